//! The state that a stream keeps between windows: label sets and stacks by id.

use super::Fault;
use crate::memory::Reservation;
use crate::store::{LabelSet, StackMemo};
use profile::ContentId;
use std::sync::Arc;

/// Label sets and stacks of a stream, by id.
#[derive(Default)]
pub(super) struct Tables {
    /// As the agent sent them. Id 0, the empty set, is row 0.
    pub(super) own: Vec<LabelSet>,
    /// With the labels of the host; emptied when these change.
    pub(super) merged: Vec<Option<LabelSet>>,
    /// Id 0, the empty stack, is row 0.
    pub(super) stacks: Vec<ContentId>,
    /// The store's cache for `stacks`.
    pub(super) memo: Arc<StackMemo>,
    pub(super) held: Reservation,
}

impl Tables {
    pub(super) fn new() -> Tables {
        Tables {
            own: vec![LabelSet::default()],
            merged: vec![None],
            stacks: vec![ContentId::default()],
            memo: Arc::default(),
            held: Reservation::default(),
        }
    }

    pub(super) fn stack(&self, id: u32) -> Result<ContentId, Fault> {
        let table = "stacks";
        let found = self.stacks.get(id as usize).copied();
        found.ok_or(Fault::Id { table, id })
    }
}
