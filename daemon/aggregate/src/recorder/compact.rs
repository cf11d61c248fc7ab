//! Keeps the recorder within its budget: drops by age, downsamples, collects the dictionary, and
//! cuts what does not fit.

use super::accounts::{Accounts, ROWS_MAX};
use super::block::{Block, Row};
use super::growth::Marks;
use super::times::Times;
use super::{Part, Recorder, Window};
use hashbrown::HashMap;
use host::time::MonotonicTime;
use profile::{Account, Dictionary, LabelSetId, Remap, SampleKey, StackEnd, StackId, key};
use std::time::Duration;

/// Steps that old windows are downsampled to.
const STEPS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// Windows this new are never downsampled: the first question after an incident is about the last
/// minutes, by the second.
const FINE_KEPT: Duration = Duration::from_secs(300);

/// Size of the dictionary below which it is never collected for its garbage alone. Unit: bytes.
const COLLECT_MIN_BYTES: usize = 1024 * 1024;

/// Most cgroups that keep a row of their own when rows are folded; of the rest only the sum stays.
const FOLD_CGROUPS_MAX: usize = 256;

/// A key that uses nothing but its labels.
fn labels_only(labels: LabelSetId) -> SampleKey {
    SampleKey {
        labels,
        stack: StackId::EMPTY,
        end: StackEnd::Complete,
    }
}

impl Recorder {
    /// Drops windows that are over their age.
    pub(super) fn retire(&mut self) {
        let newest = self
            .open
            .back()
            .or(self.windows.back().map(|window| &window.whole));
        let Some(newest) = newest.map(|part| part.end) else {
            return;
        };
        while let Some(window) = self.windows.front() {
            if newest.since(window.whole.end) < self.options.retention {
                break;
            }
            self.totals.dropped_by_age += window.held();
            self.windows.pop_front();
            self.garbage = true;
        }
    }

    /// True when the dictionary has doubled since it was last collected, and something died.
    pub(super) fn garbage_is_worth_collecting(&self) -> bool {
        let bytes = self.dict.heap_bytes();
        self.garbage && bytes > COLLECT_MIN_BYTES && bytes / 2 > self.collected_bytes
    }

    /// Goes below three quarters of the budget, so that this is not to be done for every window: by
    /// what loses nothing first, then resolution, then the oldest windows, then rows.
    pub(super) fn shrink(&mut self) {
        let budget = self.options.budget_bytes;
        let target = budget / 4 * 3;
        if self.garbage && self.dict.heap_bytes() / 5 * 4 > self.collected_bytes {
            self.collect(None);
        }
        for step in STEPS {
            if self.bytes() > target {
                self.downsample(step, target);
            }
        }
        let mut limit = target;
        while self.bytes() > budget && limit > 0 {
            self.collect(Some(limit));
            limit /= 2;
        }
        let rows = |part: &Part| part.block.rows().max(part.accounts.rows());
        let most = |parts: &mut dyn Iterator<Item = &Part>| parts.map(rows).max();
        let mut keep = most(&mut self.parts()).unwrap_or(0);
        while self.bytes() > budget && keep > 0 {
            keep /= 2;
            self.cut_all(keep);
            self.collect(Some(0));
        }
    }

    /// Merges neighbours of the same step, oldest first, until `target` is reached.
    pub(super) fn downsample(&mut self, step: Duration, target: usize) {
        let newest = self
            .windows
            .back()
            .map_or(MonotonicTime(0), |window| window.whole.end);
        let step = step.as_nanos() as u64;
        let mut bytes = self.bytes();
        let mut at = 0;
        while bytes > target && at < self.windows.len() {
            let bucket = self.windows[at].whole.start.0 / step;
            if newest.since(MonotonicTime((bucket + 1) * step)) < FINE_KEPT {
                break;
            }
            // A window that was not measured stays apart, or its samples would count as taken where
            // nothing was expected.
            let measured = self.windows[at].is_measured();
            let same = |window: &&Window| {
                window.whole.start.0 / step == bucket && window.is_measured() == measured
            };
            let run = self.windows.range(at..).take_while(same).count();
            if run > 1
                && let Some(whole) = Part::merge(self.windows.range(at..at + run).map(|w| &w.whole))
            {
                let merged: Vec<Window> = self.windows.drain(at..at + run).collect();
                let before: usize = merged.iter().map(|window| window.whole.bytes()).sum();
                bytes = (bytes + whole.bytes()).saturating_sub(before);
                let windows = (merged[0].windows.0, merged[run - 1].windows.1);
                self.totals.downsampled += run as u64;
                self.generation += 1;
                self.windows.insert(at, Window { windows, whole });
            }
            at += 1;
        }
    }

    /// Rebuilds the dictionary from what windows use. With a limit, the newest windows that fit in
    /// that many bytes are kept, at least the newest one, and the others dropped.
    ///
    /// Entries keep their order, so rows stay sorted and are packed again in one pass. Measured:
    /// see `tests::collection_of_a_large_machine`.
    pub(super) fn collect(&mut self, limit: Option<usize>) {
        let started = MonotonicTime::now();
        if limit.is_some() {
            self.recent.clear();
        }
        let mut marks = Marks::none(&self.dict);
        let mut bytes = 0;
        let mut mark = |part: &Part| {
            // Tables have room to spare for half of what they hold on average.
            let used: usize = part
                .block
                .iter()
                .map(|row| marks.mark(&self.dict, row.0))
                .sum();
            let accounts = part.accounts.iter();
            let used = used
                + accounts
                    .map(|account| marks.mark(&self.dict, labels_only(account.labels)))
                    .sum::<usize>();
            bytes += used / 2 * 3 + part.bytes();
            bytes
        };
        self.open.iter().chain(&self.recent).for_each(|part| {
            mark(part);
        });
        let newest = self.windows.len().saturating_sub(1);
        let mut keep_from = 0;
        for (at, window) in self.windows.iter().enumerate().rev() {
            if mark(&window.whole) > limit.unwrap_or(usize::MAX) {
                keep_from = (at + 1).min(newest);
                break;
            }
        }
        for window in self.windows.drain(..keep_from) {
            self.totals.dropped_by_budget += window.held();
        }
        self.rebuild(&marks);
        self.garbage = false;
        self.collected_bytes = self.dict.heap_bytes();
        self.growth.settle(&self.dict, 0);
        self.epoch += 1;
        self.generation += 1;
        self.totals.collections += 1;
        let took = MonotonicTime::now().since(started).as_nanos() as u64;
        self.totals.longest_collection_ns = self.totals.longest_collection_ns.max(took);
    }

    fn rebuild(&mut self, marks: &Marks) {
        let mut dict = Dictionary::default();
        let mut remap = Remap::default();
        for id in marks.label_sets() {
            remap.label_set(&self.dict, &mut dict, id);
        }
        for id in marks.stacks() {
            remap.stack(&self.dict, &mut dict, id);
        }
        let windows = self.windows.iter_mut().map(|window| &mut window.whole);
        for part in windows.chain(&mut self.open).chain(&mut self.recent) {
            let rows = part.block.iter().map(|(key, value)| {
                let labels = remap.label_set(&self.dict, &mut dict, key.labels);
                let stack = remap.stack(&self.dict, &mut dict, key.stack);
                (
                    SampleKey {
                        labels,
                        stack,
                        end: key.end,
                    },
                    value,
                )
            });
            part.block = Block::encode(rows, part.block.period());
            let accounts = part.accounts.iter().map(|account| Account {
                labels: remap.label_set(&self.dict, &mut dict, account.labels),
                ..account
            });
            part.accounts = Accounts::seal(accounts, ROWS_MAX);
        }
        self.dict = dict;
    }

    /// Cuts the rows of the next part to what the window may still bring in; returns the samples
    /// that were folded.
    pub(super) fn fit(&mut self, rows: &mut Vec<Row>) -> u64 {
        let share = self.window_share();
        // A packed row takes about four bytes.
        let packed = rows.len() * 4;
        let before = self.growth.settled();
        let used = self.growth.used(&self.dict) + packed;
        if used <= share {
            self.growth.settle(&self.dict, used - before);
            return 0;
        }
        let allowed = share.saturating_sub(before);
        let mut marks = self.growth.marks(&self.dict);
        let mut spent = 0;
        rows.sort_unstable_by(|a, b| b.1.count.cmp(&a.1.count).then(a.0.cmp(&b.0)));
        let mut kept = 0;
        for at in 0..rows.len() {
            let key = rows[at].0;
            let cost = marks.cost(&self.dict, key) + 4;
            if spent + cost <= allowed {
                spent += marks.mark(&self.dict, key) + 4;
                rows.swap(kept, at);
                kept += 1;
            }
        }
        let folded = self.fold(rows, kept);
        self.garbage = true;
        self.growth.settle(&self.dict, spent);
        folded
    }

    /// Keeps the `keep` rows with the most samples of every window and part.
    pub(super) fn cut_all(&mut self, keep: usize) {
        let mut windows = std::mem::take(&mut self.windows);
        let mut open = std::mem::take(&mut self.open);
        for part in windows
            .iter_mut()
            .map(|window| &mut window.whole)
            .chain(&mut open)
        {
            if part.accounts.rows() > keep {
                part.accounts = Accounts::seal(part.accounts.iter(), keep);
            }
            if part.block.rows() > keep {
                let mut rows: Vec<Row> = part.block.iter().collect();
                rows.sort_unstable_by(|a, b| b.1.count.cmp(&a.1.count).then(a.0.cmp(&b.0)));
                let folded = self.fold(&mut rows, keep);
                part.quality.folded += folded;
                self.totals.folded_samples += folded;
                let block = Block::seal(&mut rows, part.block.period());
                part.times = Times::merge(std::iter::once(&*part), part.start, &block);
                part.block = block;
            }
        }
        (self.windows, self.open) = (windows, open);
        self.garbage = true;
    }

    /// Replaces all rows from `kept` on by rows of `[other]`, one a cgroup, and those of `[lost]`
    /// by such; returns the samples put under `[other]`.
    fn fold(&mut self, rows: &mut Vec<Row>, kept: usize) -> u64 {
        let (other, lost) = (self.other(), self.lost());
        let mut targets: HashMap<LabelSetId, LabelSetId> = HashMap::new();
        let mut sums: HashMap<SampleKey, profile::Value> = HashMap::new();
        let mut folded = 0u64;
        for &(key, value) in &rows[kept..] {
            // Lost samples stay separate from taken ones.
            let (stack, end) = match key.end {
                StackEnd::Lost => (lost, StackEnd::Lost),
                _ => {
                    folded = folded.saturating_add(value.count);
                    (other, StackEnd::Complete)
                }
            };
            let target = match targets.get(&key.labels) {
                Some(&target) => target,
                // Nothing kept: no room even for a row a cgroup.
                None if kept == 0 || sums.len() >= FOLD_CGROUPS_MAX => LabelSetId::default(),
                None => *targets
                    .entry(key.labels)
                    .insert(self.cgroup_only(key.labels))
                    .get(),
            };
            let labels = target;
            *sums.entry(SampleKey { labels, stack, end }).or_default() += value;
        }
        rows.truncate(kept);
        rows.extend(sums);
        folded
    }

    fn cgroup_only(&mut self, id: LabelSetId) -> LabelSetId {
        let mut set: Vec<_> = self.dict.label_sets.get(id).to_vec();
        set.retain(|&(name, _)| key::is_of_cgroup(self.dict.strings.get(name)));
        self.dict.label_sets.intern(&mut set)
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.open
            .iter()
            .chain(self.windows.iter().map(|window| &window.whole))
    }
}

impl Window {
    /// True when the kernel's accounting goes with it.
    fn is_measured(&self) -> bool {
        self.whole.accounts.rows() > 0
    }

    /// Number of windows it was when they were taken.
    fn held(&self) -> u64 {
        self.windows.1 - self.windows.0 + 1
    }
}
