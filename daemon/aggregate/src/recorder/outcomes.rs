//! Counts samples since the start by outcome: how their stack ended, and why their leaf has no
//! symbol.

use super::block::Row;
use profile::{Dictionary, StackEnd, UnnamedReason};

/// Number of rows of the longer table.
const ROWS: usize = {
    let (ends, unnamed) = (StackEnd::ALL.len(), UnnamedReason::ALL.len());
    if ends > unnamed { ends } else { unnamed }
};

/// Counts by place in [`StackEnd::ALL`] and [`UnnamedReason::ALL`]. Unit: samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Outcomes {
    ends: [u64; ROWS],
    leaves: [u64; ROWS],
}

impl Outcomes {
    /// Adds rows with ids of `dict`.
    pub(super) fn add(&mut self, rows: &[Row], dict: &Dictionary) {
        for (key, value) in rows {
            let end = StackEnd::ALL.iter().position(|&end| end == key.end);
            let leaf = dict.stacks.node(key.stack).map(|(_, frame)| frame);
            let reason = leaf.map_or(UnnamedReason::No, |frame| dict.frames.get(frame).unnamed);
            let leaf = UnnamedReason::ALL.iter().position(|&row| row == reason);
            for (table, at) in [(&mut self.ends, end), (&mut self.leaves, leaf)] {
                if let Some(count) = at.and_then(|at| table.get_mut(at)) {
                    *count = count.saturating_add(value.count);
                }
            }
        }
    }

    /// Samples with a stack that ended this way.
    pub fn ended(&self, end: StackEnd) -> u64 {
        let at = StackEnd::ALL.iter().position(|&row| row == end);
        at.and_then(|at| self.ends.get(at)).copied().unwrap_or(0)
    }

    /// Samples with a leaf that has no symbol for this reason.
    pub fn unnamed(&self, reason: UnnamedReason) -> u64 {
        let at = UnnamedReason::ALL.iter().position(|&row| row == reason);
        at.and_then(|at| self.leaves.get(at)).copied().unwrap_or(0)
    }
}
