//! Disk work of a session, done off its thread: acknowledgements are noted, then a window is read.
//!
//! Acknowledgements wait for the next read, for at most [`NOTES_AGE_MAX`]: losing one with the
//! daemon only costs a repeat, and waking a thread for each would cost more. All sessions together
//! have one piece of work in progress.

use super::gaps::SpoolGap;
use super::identity::Identity;
use super::reader::{ReadError, Readers};
use super::spool::{Done, Picked};
use super::{ExportState, Exporter};
use host::sync::lock;
use segment::window::Window;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait of acknowledgements until they are noted on disk. More than the time between two
/// windows, so that there is a read to go with.
pub const NOTES_AGE_MAX: Duration = Duration::from_secs(15);

/// A window that was read.
pub struct Found {
    /// Which it is.
    pub picked: Picked,
    /// It, in ids of the [latest](Readers::latest) reader's tables.
    pub window: Window,
    /// The gap before it, which is sent with it.
    pub gap: Option<SpoolGap>,
}

/// Work under way: brings the readers back.
pub type DiskWork = Pin<Box<dyn Future<Output = (Readers, Option<Found>)> + Send>>;

/// Notes to write to disk.
#[derive(Default)]
pub struct Notes {
    list: Vec<Note>,
    due: Option<Instant>,
}

/// Records that do not wait any more.
struct Note {
    done: Done,
    /// They, unless all of their segment is done with.
    records: Vec<u32>,
}

impl Exporter {
    /// Writes notes, and reads a window for the stream's dictionary of this epoch, if one is
    /// picked. `own`: it belongs to this host and boot.
    pub(super) fn at_disk(
        &self,
        mut readers: Readers,
        picked: Option<Picked>,
        (epoch, own): (u64, bool),
    ) -> DiskWork {
        let (shared, identity) = (Arc::clone(&self.shared), Arc::clone(&self.identity));
        let disk = self.shared.disk.clone();
        let work = move || {
            shared.write_notes(&identity);
            let read = |picked| read(&shared, &identity, &mut readers, picked, (epoch, own));
            let found = picked.and_then(read);
            (readers, found)
        };
        Box::pin(async move { disk.run(work).await })
    }
}

fn read(
    shared: &ExportState,
    identity: &Identity,
    readers: &mut Readers,
    picked: Picked,
    (epoch, own): (u64, bool),
) -> Option<Found> {
    let window = match readers.window(shared, &picked, epoch) {
        Ok((window, _)) => window,
        Err(ReadError::Gone) => return None,
        Err(ReadError::Damaged(from, error)) => {
            tracing::warn!(segment = picked.segment, %error, "the spool has damaged windows");
            let given_up = {
                let mut index = lock(&shared.index);
                index.unsend_one(picked.segment, picked.record);
                index.damaged(picked.segment, from)
            };
            if let Some((lost, done)) = given_up {
                // Noted like acknowledged ones, so that a restart does not count them again.
                shared.note(done, lost);
                shared.write_notes(identity);
            }
            return None;
        }
    };
    let gap = own.then(|| {
        let header = picked.header;
        let mut index = lock(&shared.index);
        let gaps = &mut index.gaps;
        gaps.bind(header.sequence, header.start_unix_ns, picked.fresh)
    });
    let gap = gap.flatten();
    if gap.is_some() {
        // Before it is sent: a repeat after a restart must say the same.
        shared.save_gaps(identity);
    }
    Some(Found {
        picked,
        window,
        gap,
    })
}

impl ExportState {
    /// Notes on disk that records do not wait any more, or at once that a complete segment does
    /// not, because that frees room.
    pub(super) fn note(&self, done: Done, records: Vec<u32>) {
        self.note_gaps(if done.remove {
            Duration::ZERO
        } else {
            NOTES_AGE_MAX
        });
        lock(&self.notes).list.push(Note { done, records });
    }

    /// Writes notes and gaps within this time.
    pub(super) fn note_gaps(&self, within: Duration) {
        let by = Instant::now() + within;
        let mut notes = lock(&self.notes);
        notes.due = Some(notes.due.map_or(by, |due| due.min(by)));
    }

    /// When notes are to be written at the latest.
    pub(super) fn notes_due(&self) -> Option<Instant> {
        lock(&self.notes).due
    }

    /// Writes all of them, and the gaps. Blocks.
    pub(super) fn write_notes(&self, identity: &Identity) {
        let notes = std::mem::take(&mut *lock(&self.notes));
        if notes.due.is_none() {
            return;
        }
        self.save_gaps(identity);
        let Some(dir) = self.dir() else {
            return;
        };
        for Note { done, records } in notes.list {
            if done.remove {
                dir.remove(done.segment);
                continue;
            }
            for record in records {
                if let Err(error) = dir.ack(done.segment, record) {
                    tracing::debug!(%error, "failed to record an acknowledgement: windows are sent \
                        again");
                }
            }
        }
    }
}
