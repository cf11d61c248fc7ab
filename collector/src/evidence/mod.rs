//! Evidence that outlives its source: profiles with facts about them, in files on the collector's
//! own disk, independent of the store's engine.
//!
//! Pins of agents and captures over the fleet are stored this way, each kind in a directory of its
//! own. Their differences are in [`Facts`].

mod ask;
mod bounds;
mod files;
mod format;
mod shares;

pub(crate) use ask::{KeptQuery, in_part, refused, send};
pub use bounds::Bounds;
pub use files::{Files, KeepError, MESSAGE_BYTES_MAX, OpenError, ProfileKind, ReadError, Removed};

use prost::Message;

/// The facts of a file, which are its head.
pub trait Facts: Message + Default + Clone + 'static {
    /// Its name in messages.
    const WHAT: &'static str;
    /// How names of its files end.
    const SUFFIX: &'static str;
    /// Start of every file; the last byte is the version.
    const MAGIC: &'static [u8; 8];
    /// Longest head. Unit: bytes.
    const HEAD_BYTES_MAX: usize;
    /// Largest profile. Unit: encoded bytes.
    const PART_BYTES_MAX: usize;
    /// The key that bounds a single file.
    const ROOM_KEY: &'static str;
    /// Whether damaged files are set aside, in place of being removed.
    const SETS_ASIDE: bool;

    /// Its number; 0: it has none yet.
    fn id(&self) -> u64;
    /// Its owner: if room is short, the owner with the most loses the oldest file first.
    fn owner(&self) -> &str;
    /// When it was, by which the oldest go first. Unit: nanoseconds since the Unix epoch.
    fn was_unix_ns(&self) -> i64;
    /// When it came, from which its age counts. Unit: nanoseconds since the Unix epoch.
    fn came_unix_ns(&self) -> i64;
    /// True for what takes the place of the other.
    fn is_same(&self, other: &Self) -> bool;
    /// As it is listed, with the bytes of its two profiles and of all of its file.
    #[must_use]
    fn listed(self, id: u64, parts: [u64; 2], bytes: u64) -> Self;
}
