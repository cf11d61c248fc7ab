//! Parts of chunks: what of a partition a query is about.

use super::encode::SERVICE_STEP_NS;

/// A chunk of a plan: all of it, or what starts in `[from, to)` after its own start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSlice {
    /// Which.
    pub chunk: u16,
    /// `None`: all of it. Unit: nanoseconds.
    pub part: Option<(u64, u64)>,
}

impl ChunkSlice {
    /// True if it starts and ends at full minutes: the rollup by service has it.
    pub fn is_of_minutes(&self) -> bool {
        self.part
            .is_none_or(|(from, to)| from % SERVICE_STEP_NS == 0 && to % SERVICE_STEP_NS == 0)
    }

    /// The part, where it is not all of the chunk, since the Unix epoch, as the chunk's `start` is.
    pub fn part_from(&self, start: i64) -> Option<(i64, i64)> {
        let (from, to) = self.part?;
        let at = |into| start.saturating_add_unsigned(into);
        Some((at(from), at(to)))
    }

    /// True when a window that starts at `start` after the chunk's start is in it.
    pub fn has(&self, start: u64) -> bool {
        self.part
            .is_none_or(|(from, to)| from <= start && start < to)
    }
}

/// The first and last chunk of a plan.
pub fn ends(slices: &[ChunkSlice]) -> (u16, u16) {
    let first = slices.first().map_or(0, |slice| slice.chunk);
    (first, slices.last().map_or(0, |slice| slice.chunk))
}
