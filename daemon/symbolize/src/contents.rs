//! Which files that are known apart have the same content: one image layer that is seen through the
//! overlays of many containers, and a file that is met again and again on a file system without
//! generations of inodes.
//!
//! Each overlay gives its files a device number of its own, so device and inode distinguish what is
//! one file on the disk. Inode number, times and build ID are no proof: who may mount an overlay in
//! a user namespace may put it over a FUSE file system that says what it likes. The kernel's handle
//! of the file below is one, where it has the form of ext4's: no file system that a user can mount
//! has it. XFS's cannot be told from those of FUSE, so its layers are read for each container.

use super::elf;
use super::image::Image;
use super::open;
use hashbrown::{HashMap, HashSet};
use host::ids::FileId;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Stands for all files with one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentId(pub u32);

/// What tells the content of a file from that of others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Its own: nothing else is known to be the same.
    Own(FileId),
    /// Where it lies, size, times of the last write and of the last change, and build ID: an older
    /// layer is copied up when it is written to, under the handle that it had.
    Placed(Place, [u64; 5], Arc<[u8]>),
}

/// Where a file lies, in words of the kernel that its owner cannot choose.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Device and inode number.
    Device(u64, u64),
    /// The handle of the file under an overlay.
    Layer(Box<[u8]>),
}

/// What an image says of itself.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its build ID; empty without one.
    pub build_id: Arc<[u8]>,
    placed: Option<(Place, [u64; 5])>,
}

impl Facts {
    /// Those of an image. Reads it.
    pub fn of(image: &Image) -> Facts {
        let build_id = elf::read_build_id(image).unwrap_or_default();
        let placed = match image {
            Image::File(file, _) => file.metadata().ok().and_then(|facts| {
                let place = match open::is_on_overlay(file) {
                    true => Place::Layer(open::layer_handle(file)?),
                    false => Place::Device(facts.dev(), facts.ino()),
                };
                Some((place, state(&facts)))
            }),
            Image::Remote(_) | Image::Memory(_) => None,
        };
        Facts {
            build_id: build_id.into(),
            placed,
        }
    }
}

/// What changes when a file is written to.
fn state(facts: &Metadata) -> [u64; 5] {
    let times = [
        facts.mtime(),
        facts.mtime_nsec(),
        facts.ctime(),
        facts.ctime_nsec(),
    ];
    let [written, written_ns, changed, changed_ns] = times.map(i64::cast_unsigned);
    [facts.len(), written, written_ns, changed, changed_ns]
}

/// The contents of all files known.
#[derive(Debug, Default)]
pub struct Contents {
    ids: HashMap<Key, ContentId>,
    next: u32,
}

impl Contents {
    /// The content of a file.
    pub fn id_of(&mut self, file: FileId, facts: &Facts) -> ContentId {
        let key = match &facts.placed {
            Some((place, state)) => Key::Placed(place.clone(), *state, Arc::clone(&facts.build_id)),
            None => Key::Own(file),
        };
        *self.ids.entry(key).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            ContentId(self.next)
        })
    }

    /// Contents known.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// Forgets contents of no file.
    pub fn retain(&mut self, used: &HashSet<ContentId>) {
        self.ids.retain(|_, id| used.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(place: Place, state: [u64; 5], build_id: &[u8]) -> Facts {
        Facts {
            build_id: build_id.into(),
            placed: Some((place, state)),
        }
    }

    #[test]
    fn a_content_is_one_by_place_and_state_and_build_id_alone() {
        let layer = |handle: &[u8]| Place::Layer(handle.into());
        let mut contents = Contents::default();
        let mut of = |file: u32, facts: &Facts| contents.id_of(FileId(file), facts);
        let first = facts(layer(b"a"), [1; 5], b"id");
        let one = of(1, &first);
        assert_eq!(of(2, &first), one);
        let others = [
            facts(layer(b"b"), [1; 5], b"id"),
            facts(Place::Device(1, 2), [1; 5], b"id"),
            facts(layer(b"a"), [1; 5], b"other"),
        ];
        let changed = (0..5).map(|at| {
            let mut state = [1; 5];
            state[at] = 2;
            facts(layer(b"a"), state, b"id")
        });
        for other in others.into_iter().chain(changed) {
            assert_ne!(of(3, &other), one, "{other:?}");
        }
        let unplaced = Facts::default();
        assert_ne!(of(4, &unplaced), of(5, &unplaced));
    }
}
