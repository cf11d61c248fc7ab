//! All limits of incidents.

use std::time::Duration;

/// Longest title. Unit: bytes.
pub const TITLE_BYTES_MAX: usize = 200;

/// Longest text of an entry. Unit: bytes.
pub const TEXT_BYTES_MAX: usize = 4000;

/// Longest address of the page. Unit: bytes.
pub const ADDRESS_BYTES_MAX: usize = 4 << 10;

/// Most labels of an incident.
pub const LABELS_MAX: usize = 16;

/// Longest name and value of a label. Unit: bytes.
pub const LABEL_BYTES_MAX: usize = 512;

/// Most entries of an incident.
pub const ENTRIES_MAX: usize = 300;

/// Most pieces of evidence of an incident.
pub const EVIDENCE_MAX: usize = 100;

/// Most saved views.
pub const VIEWS_MAX: usize = 1000;

/// Most hosts that an incident names.
pub const HOSTS_MAX: usize = 50;

/// Largest profile of evidence. Unit: encoded bytes.
pub const PART_BYTES_MAX: usize = 64 << 20;

/// Longest head of a file of evidence. Unit: bytes. With a selector at its bound it is a quarter.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Incidents that are opened unasked, in an hour. Further alerts and pins go to the last of them.
pub const UNASKED_PER_HOUR_MAX: usize = 20;

/// How often the collector looks for alerts and pins that open incidents.
pub const LOOK: Duration = Duration::from_secs(5);

/// How far back each look goes: what came while the collector was down still opens an incident,
/// and so do pins that arrive late. Unit: nanoseconds.
pub const LOOK_BACK_NS: i64 = 86_400 * 1_000_000_000;

/// Incidents that are listed unless more are asked for.
pub const LIST_DEFAULT: usize = 200;

/// Most incidents of a list.
pub const LIST_MAX: usize = 1000;

/// Most bytes of a list, below the 4 MiB that clients take.
pub const LIST_BYTES_MAX: usize = 3 << 20;

/// Largest request. Unit: bytes. Two selections, each with an address, are half of this.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Most pictures in a bundle. Others are named without one.
pub const PICTURES_MAX: usize = 20;

/// Size of pictures beyond which a bundle takes no more. Unit: bytes.
pub const PICTURES_BYTES_MAX: usize = 32 << 20;
