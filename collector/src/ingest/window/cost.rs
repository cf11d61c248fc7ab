//! Computes what a part of a window will cost in memory, before it is accepted.

use crate::store::{LabelSet, Row, WindowAccount};
use proto::collector as wire;

/// Memory that a part holds: as a number of bytes, or taken.
pub struct Cost<T> {
    /// With the stream's dictionary.
    pub tables: T,
    /// With the window, until it is answered.
    pub rows: T,
}

/// Memory of a part if each label set also gets the labels of the host, `host_bytes` of them. Unit:
/// bytes.
pub fn cost(part: &wire::WindowPart, host_bytes: usize) -> Cost<usize> {
    const PAIR: usize = 2 * size_of::<String>();
    let labels = part.label_sets.iter().map(|set| {
        let text: usize = set.names_values.iter().map(String::len).sum();
        // Twice: as sent, and with the labels of the host.
        2 * (text + set.names_values.len().div_ceil(2) * PAIR + 2 * size_of::<LabelSet>())
            + host_bytes
    });
    let accounts = part
        .facts
        .as_ref()
        .map_or(0, |facts| facts.account_label_sets.len());
    let row = size_of::<Row>() + size_of::<u32>();
    Cost {
        // A hash, and what the store remembers of it.
        tables: labels.sum::<usize>() + part.stack_hashes.len() / 4 * 5,
        rows: part.sample_stacks.len() * row + accounts * size_of::<WindowAccount>(),
    }
}
