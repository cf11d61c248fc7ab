//! Reads closed windows one by one, for pins, which keep some of them longer than the recorder.

use super::sink::ClosedWindow;
use super::times::Timestamp;
use super::{Recorder, Window};
use crate::batch::RawTimestamp;
use host::time::MonotonicTime;

/// Position of a reader of closed windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Number of the last window that was read.
    number: u64,
}

impl Recorder {
    /// Shows the next closed window behind `cursor` that overlaps the time, if there is one, and
    /// moves the cursor. A window that was merged with one already read is passed over.
    pub fn next_closed<T>(
        &self,
        cursor: &mut Cursor,
        (from, to): (MonotonicTime, MonotonicTime),
        take: impl FnOnce(&ClosedWindow<'_>) -> T,
    ) -> Option<T> {
        let at = self
            .windows
            .partition_point(|window| window.windows.0 <= cursor.number);
        let mut windows = self.windows.range(at..);
        let wanted = |window: &&Window| window.whole.overlaps(from, to);
        let window = windows.find(wanted)?;
        cursor.number = window.windows.1;
        Some(take(&self.closed(&window.whole)))
    }

    /// End of the newest closed window.
    pub fn newest_closed(&self) -> Option<MonotonicTime> {
        self.windows.back().map(|window| window.whole.end)
    }

    /// True if all of this time is covered by windows that were not downsampled.
    pub fn holds_fine(&self, from: MonotonicTime, to: MonotonicTime) -> bool {
        let start = self.windows.front().map(|window| window.whole.start);
        let near = |window: &&Window| window.whole.overlaps(from, to);
        start.is_some_and(|start| start <= from)
            && !self.windows.iter().filter(near).any(Window::is_downsampled)
    }
}

impl ClosedWindow<'_> {
    /// When the samples were taken, oldest first, with places in [`ClosedWindow::rows`], and how
    /// many of these times found no room; none where they are not known.
    pub fn timestamps(&self) -> Option<(Vec<RawTimestamp>, u64)> {
        let timestamp = |timestamp: Timestamp| RawTimestamp {
            row: timestamp.row,
            time: timestamp.time,
            weight: timestamp.weight,
        };
        let list = || self.times.iter(self.start).map(timestamp).collect();
        let known = self.times.are_known();
        known.then(|| (list(), self.times.refused()))
    }
}
