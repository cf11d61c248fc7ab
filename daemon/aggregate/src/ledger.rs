//! Data that the symbolizer collects for the open window, to account for it when it closes: samples
//! by cgroup, losses, and readings of the kernel's accounting.
//!
//! Runs on the symbolizer's thread, outside the recorder's lock, because closing a window reads
//! cgroupfs.

use super::attribution::{self, Window};
use super::batch::{RawBatch, RawLoss};
use cgroup::containers::Containers;
use cgroup::usage::{Blind, ClosedWindow, Meters, UsageStats};
use cgroup::{CgroupTable, Labels};
use host::time::MonotonicTime;
use profile::{Account, Dictionary, LabelSetId, Pressure, Value, key};
use std::collections::BTreeMap;
use std::path::Path;

/// Most different sampling periods per window for which losses are counted separately. Losses with
/// further periods are added to the last: the rate changes a few times a minute at most.
const PERIODS_MAX: usize = 64;

/// What a closed window gets in addition to its samples. Empty for a batch that closes none.
#[derive(Default)]
pub(super) struct Closed {
    /// Samples lost, by cgroup.
    pub losses: Vec<(LabelSetId, Value)>,
    /// CPU time by cgroup, with what is below it.
    pub accounts: Vec<Account>,
    /// For how long tasks of the host waited.
    pub pressure: Option<Pressure>,
}

/// See the module.
pub(super) struct LedgerKeeper {
    containers: Containers,
    meters: Meters,
    /// Start of the open window; none before its first batch.
    start: Option<MonotonicTime>,
    taken: BTreeMap<Box<str>, Value>,
    before: BTreeMap<Box<str>, Value>,
    /// One loss for each period.
    losses: Vec<RawLoss>,
    idle: u64,
}

impl LedgerKeeper {
    /// Takes the first readings.
    pub fn new(cgroups: &CgroupTable) -> LedgerKeeper {
        let mut meters = Meters::new(cgroups.hierarchy().clone(), Path::new("/proc"));
        meters.start(cgroups.iter().map(|cgroup| &*cgroup.path));
        LedgerKeeper::of(meters, cgroups.containers().clone())
    }

    fn of(meters: Meters, containers: Containers) -> LedgerKeeper {
        LedgerKeeper {
            containers,
            meters,
            start: None,
            taken: BTreeMap::new(),
            before: BTreeMap::new(),
            losses: Vec::new(),
            idle: 0,
        }
    }

    /// A cgroup was created.
    pub fn note_created(&mut self, path: &[u8]) {
        self.meters.note_created(path);
    }

    /// Counters of the kernel's accounting.
    pub fn stats(&self) -> UsageStats {
        self.meters.stats()
    }

    /// Adds samples of the batch at hand; the path is empty where it is not known.
    pub fn add(&mut self, path: &str, value: Value) {
        match self.taken.get_mut(path) {
            Some(sum) => *sum += value,
            None => {
                self.taken.insert(path.into(), value);
            }
        }
    }

    /// Handles the rest of the batch after its samples were added, and closes the window if the
    /// batch says so. Label sets are of `dict`. Only weights that are time (`is_time`) are compared
    /// with the kernel's accounting.
    pub fn close(&mut self, batch: &RawBatch, is_time: bool, dict: &mut Dictionary) -> Closed {
        let start = *self.start.get_or_insert(batch.start);
        self.idle += batch.quality.idle;
        for loss in &batch.losses {
            let full = self.losses.len() >= PERIODS_MAX;
            let mut known = self.losses.iter_mut();
            match known.rfind(|known| full || known.period == loss.period) {
                Some(known) => known.samples = known.samples.saturating_add(loss.samples),
                None => self.losses.push(*loss),
            }
        }
        if !batch.closes {
            return Closed::default();
        }
        let weights = self
            .losses
            .iter()
            .map(|loss| loss.samples.saturating_mul(loss.period));
        let span = ClosedWindow {
            start,
            end: batch.end,
            blind: Blind {
                within: weights.fold(0, u64::saturating_add),
                after: batch.lost_after,
            },
        };
        let accounts = self.meters.close(span, &self.taken);
        let window = Window {
            taken: &self.taken,
            before: &self.before,
            idle: self.idle,
            accounts: &accounts,
            is_time,
        };
        let losses = attribution::attribute(&self.losses, &window);
        let closed = Closed {
            losses: losses
                .iter()
                .map(|loss| (label_set(dict, &self.containers, &loss.path), loss.value))
                .collect(),
            accounts: accounts
                .iter()
                .map(|account| Account {
                    labels: label_set(dict, &self.containers, &account.path),
                    ns: account.ns,
                    estimated_ns: account.estimated_ns,
                    throttled_ns: account.throttled_ns,
                    limit_millicores: account.limit_millicores,
                })
                .collect(),
            pressure: self.meters.pressure(span),
        };
        self.start = None;
        self.losses.clear();
        self.idle = 0;
        std::mem::swap(&mut self.taken, &mut self.before);
        self.taken.clear();
        closed
    }
}

/// The labels of a cgroup alone.
pub(super) fn label_set(dict: &mut Dictionary, containers: &Containers, path: &str) -> LabelSetId {
    let labels = Labels::of_path(path);
    let known = containers.of(&labels).unwrap_or_default();
    let mut pairs: Vec<(&str, &str)> = vec![(key::CGROUP, path)];
    labels
        .pairs()
        .for_each(|(key, value)| pairs.push((key, value)));
    pairs.extend(known.pairs());
    dict.intern_labels(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgroup::{Hierarchy, Mode};

    const PERIOD: u64 = 10_000_000;

    fn keeper() -> LedgerKeeper {
        let hierarchy = Hierarchy {
            mode: Mode::None,
            mount: None,
            prefix: Vec::new(),
            whole: false,
            v1: false,
        };
        let meters = Meters::new(hierarchy, Path::new("/nowhere"));
        LedgerKeeper::of(meters, Containers::none())
    }

    fn batch(closes: bool, lost: u64) -> RawBatch {
        let loss = RawLoss {
            from: MonotonicTime(0),
            until: MonotonicTime(1),
            samples: lost,
            period: PERIOD,
        };
        RawBatch {
            end: MonotonicTime(10),
            closes,
            period: PERIOD,
            losses: vec![loss],
            ..RawBatch::default()
        }
    }

    fn value(count: u64) -> Value {
        Value {
            count,
            weight: count * PERIOD,
        }
    }

    #[test]
    fn losses_of_all_parts_come_with_the_one_that_closes() {
        let (mut keeper, mut dict) = (keeper(), Dictionary::default());
        keeper.add("/a", value(30));
        assert!(
            keeper
                .close(&batch(false, 4), true, &mut dict)
                .losses
                .is_empty()
        );
        keeper.add("/b.service", value(10));
        let closed = keeper.close(&batch(true, 4), true, &mut dict);
        let found: Vec<_> = closed
            .losses
            .iter()
            .map(|&(labels, value)| (dict.label(labels, key::CGROUP), value.count))
            .collect();
        assert_eq!(found, [(Some("/a"), 6), (Some("/b.service"), 2)]);
        let unit = dict.label(closed.losses[1].0, key::UNIT);
        assert_eq!(unit, Some("b.service"));
    }

    #[test]
    fn the_next_window_starts_with_nothing() {
        let (mut keeper, mut dict) = (keeper(), Dictionary::default());
        keeper.add("/a", value(30));
        keeper.close(&batch(true, 9), true, &mut dict);
        assert!(
            keeper
                .close(&batch(true, 0), true, &mut dict)
                .losses
                .is_empty()
        );
    }

    #[test]
    fn without_a_path_there_is_no_label() {
        let (mut keeper, mut dict) = (keeper(), Dictionary::default());
        let closed = keeper.close(&batch(true, 3), true, &mut dict);
        assert_eq!(closed.losses, [(LabelSetId::default(), value(3))]);
    }
}
