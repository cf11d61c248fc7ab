//! The data of a page's heat map: which nodes of its tree were sampled in which cell.

use super::Name;
use crate::formats::tree::{Added, Tree};
use crate::heatmap::{Cell, HeatMap};
use crate::profile::Profile;
use crate::sample::Value;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most entries, about 20 bytes each: one for each node that was sampled in a cell. With more,
/// smaller stacks are folded, so that a cell has fewer nodes.
const ENTRIES_MAX: usize = 400_000;

/// Columns of entries, in order of cells.
#[derive(Serialize)]
pub(super) struct Times {
    /// Start of the first column, milliseconds since the Unix epoch.
    start_ms: f64,
    column_ms: f64,
    rows: u32,
    columns: u32,
    /// First and last cell that is covered. Cells are counted column by column.
    first: u32,
    last: u32,
    dropped: u64,
    /// Cells since that of the entry before.
    at: Vec<u32>,
    node: Vec<u32>,
    count: Vec<u64>,
    weight: Vec<u64>,
}

impl Times {
    pub fn new(map: &HeatMap, profile: &Profile, tree: &Tree<Name, 2>, added: &[Added]) -> Times {
        let number = |cell: Cell| cell.column * map.rows + cell.row;
        let mut times = Times {
            start_ms: map.start_unix_ns as f64 / 1e6,
            column_ms: map.column_ns as f64 / 1e6,
            rows: map.rows,
            columns: map.columns,
            first: number(map.cell_at(0)),
            last: number(map.cell_at(u64::MAX)),
            dropped: map.dropped,
            at: Vec::new(),
            node: Vec::new(),
            count: Vec::new(),
            weight: Vec::new(),
        };
        let mut open: BTreeMap<u32, Value> = BTreeMap::new();
        let (mut cell, mut before) = (0, 0);
        for (timestamp, &added) in profile.timestamps.list.iter().zip(added) {
            let next = number(map.cell_at(timestamp.at_ns));
            if next != cell {
                times.close(&mut open, cell, &mut before);
                cell = next;
            }
            *open.entry(tree.place(added)).or_default() += Value {
                count: 1,
                weight: timestamp.weight,
            };
        }
        times.close(&mut open, cell, &mut before);
        times
    }

    fn close(&mut self, open: &mut BTreeMap<u32, Value>, cell: u32, before: &mut u32) {
        for (node, value) in std::mem::take(open) {
            // Timestamps are in order of time.
            self.at.push(cell.saturating_sub(*before));
            *before = cell;
            self.node.push(node);
            self.count.push(value.count);
            self.weight.push(value.weight);
        }
    }

    pub fn fits(&self) -> bool {
        self.at.len() <= ENTRIES_MAX
    }
}
