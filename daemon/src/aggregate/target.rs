//! Where the namer puts what it named: into the continuous profile's recorder, or into that of a capture.
//!
//! Each recorder has a dictionary of its own, so what the namer knows of its ids is kept for each.

use super::batch::RawBatch;
use super::owners::{self, Window};
use crate::cgroup::containers::Containers;
use crate::ids::CaptureId;
use hashbrown::HashMap;
use profile::{Dictionary, LabelSetId, Remap, Value};
use std::collections::BTreeMap;

/// What the namer knows of one recorder.
#[derive(Default)]
pub(super) struct Target {
    /// From the namer's names to the recorder's dictionary, of the recorder's `epoch`.
    pub names: Remap,
    /// From the namer's label sets to the recorder's dictionary, likewise.
    pub labels: Remap,
    epoch: u64,
    /// Samples of the batch before by cgroup, for one in which everything was lost.
    before: BTreeMap<Box<str>, Value>,
}

impl Target {
    /// Forgets ids of the recorder's dictionary when they are not what they were.
    pub fn follow(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.names = Remap::default();
            self.labels = Remap::default();
            self.epoch = epoch;
        }
    }

    /// Divides what a batch of a capture lost among the cgroups it has samples of. The kernel accounts for
    /// all of a cgroup's time and not for what a capture selects, so only samples tell.
    pub fn losses(
        &mut self,
        batch: &RawBatch,
        taken: BTreeMap<Box<str>, Value>,
        containers: &Containers,
        dict: &mut Dictionary,
    ) -> Vec<(LabelSetId, Value)> {
        let window = Window {
            taken: &taken,
            before: &self.before,
            idle: batch.quality.idle,
            accounts: &[],
            is_time: false,
        };
        let losses = owners::distribute(&batch.losses, &window);
        let losses = losses
            .iter()
            .map(|loss| {
                let labels = super::ledger::label_set(dict, containers, &loss.path);
                (labels, loss.value)
            })
            .collect();
        if !taken.is_empty() {
            self.before = taken;
        }
        losses
    }
}

/// Every recorder that is written to: the continuous profile's, and those of captures.
#[derive(Default)]
pub(super) struct Targets(HashMap<Option<CaptureId>, Target>);

impl Targets {
    /// Of the batch's recorder.
    pub fn of(&mut self, capture: Option<CaptureId>) -> &mut Target {
        self.0.entry(capture).or_default()
    }

    /// Forgets those of captures that are over.
    pub fn keep(&mut self, running: &[CaptureId]) {
        self.0
            .retain(|id, _| id.is_none_or(|id| running.contains(&id)));
    }

    /// The namer's names have been forgotten.
    pub fn forget_names(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|target| target.names = Remap::default());
    }

    /// The namer's label sets have been forgotten.
    pub fn forget_labels(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|target| target.labels = Remap::default());
    }
}
