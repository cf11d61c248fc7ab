//! The data behind each step of a series: for how long hosts sent windows, how much they took, and
//! how much of it was lost.
//!
//! Samples belong to the step in which their window starts, so their time is that of the windows
//! that start there. In steps of a minute and more it is computed from the spans in a chunk's
//! summary, as runs of windows of the usual length; in shorter ones, where a longer window would
//! look like a peak and a stop, from each window. Where nobody asks for more than the hosts of a
//! step, the spans are enough for any: what is missing within one is shorter than a second.

use super::super::chunk_slice::ends;
use super::super::codec::{Reader, SectionReader};
use super::super::dict::Dict;
use super::super::file::FileError;
use super::super::host_state::HostState;
use super::super::meta::Presence;
use super::super::partition::{Facts, Partition};
use super::super::summaries::{decode_hosts, decode_parts};
use super::activity::{WINDOW_STEP_NS, host_is_selected, labels_of};
use super::{Stop, slices};
use crate::store::query::{Axis, QueryBudget};
use crate::store::{Limits, Scope, Step, StoreError, TimeRange};
use crate::sync::read;
use ::profile::{Selector, StrId, key};
use hashbrown::HashMap;
use std::sync::Arc;

/// Steps from this length on are read from summaries. Unit: nanoseconds. Six windows: one that is
/// some seconds longer changes little. Shorter: ranges of a day read the facts of every window.
const SUMMED_FROM_NS: u64 = 60_000_000_000;

/// Names of the labels that the hosts of a partition have, by the value of `host`.
pub struct HostLabels(HashMap<String, Vec<String>>);

impl HostLabels {
    /// Reads them for the hosts that a partition has windows of.
    pub fn of(partition: &Partition) -> Result<HostLabels, FileError> {
        let mut hosts: HashMap<String, Vec<String>> = HashMap::new();
        let of_boots = partition.all_hosts()?;
        for labels in of_boots.states.values().filter_map(HostState::labels) {
            let names = hosts.entry(labels.get(key::HOST).to_owned());
            let names = names.or_default();
            names.extend(labels.iter().map(|(name, _)| name.to_owned()));
        }
        Ok(HostLabels(hosts))
    }

    /// By label set: whether it belongs to a host that the selector selects. A matcher of a label
    /// that the complete host does not have is ignored. Hosts that the caller may not see are not
    /// selected.
    pub fn select(&self, dict: &Dict, selector: &Selector, limits: &Limits) -> Vec<bool> {
        let strings = &dict.tables.strings;
        let find = |name: &str| strings.find(name);
        let host = find(key::HOST);
        let matchers: Vec<_> = selector.matchers().iter().collect();
        let names: Vec<_> = matchers
            .iter()
            .map(|matcher| find(matcher.label()))
            .collect();
        // By host: which matchers speak of it; none of one that the asker may not hear of.
        let mut speaking: HashMap<StrId, Option<Vec<usize>>> = HashMap::new();
        let mut known: HashMap<(usize, StrId), bool> = HashMap::new();
        let sets = dict.tables.label_sets.iter();
        sets.map(|pairs| {
            let value = |name: Option<StrId>| {
                let found = name.and_then(|name| pairs.iter().find(|&&(own, _)| own == name));
                found.map_or(StrId::EMPTY, |&(_, value)| value)
            };
            let speaking = speaking.entry(value(host)).or_insert_with_key(|&host| {
                let own = self.0.get(strings.get(host));
                let speaks = |at: &usize| match own {
                    Some(own) => own.iter().any(|name| name == matchers[*at].label()),
                    None => true,
                };
                let told = limits.tells_of_name(strings.get(host));
                told.then(|| (0..matchers.len()).filter(speaks).collect())
            });
            let Some(speaking) = speaking else {
                return false;
            };
            speaking.iter().all(|&at| {
                let value = value(names[at]);
                *known
                    .entry((at, value))
                    .or_insert_with(|| matchers[at].matches(strings.get(value)))
            })
        })
        .collect()
    }
}

/// Steps of a series as they are put together.
pub struct Steps {
    steps: Vec<Step>,
    /// By id of a host: a bit for each step that it covers some of.
    hosts: HashMap<String, Vec<u64>>,
}

/// What windows of one partition add, aside until all of it is read.
pub struct OfPartition {
    axis: Axis,
    /// Windows that start in it count.
    range: TimeRange,
    covered_ns: Vec<u64>,
    hosts: HashMap<String, Vec<u64>>,
}

impl Steps {
    /// Steps that nobody covers.
    pub fn new(axis: Axis) -> Steps {
        Steps {
            steps: vec![Step::default(); axis.steps],
            hosts: HashMap::new(),
        }
    }

    /// Adds what was read of a partition.
    pub fn add(&mut self, of: OfPartition, budget: &mut QueryBudget<'_>) -> Result<(), StoreError> {
        for (step, ns) in self.steps.iter_mut().zip(of.covered_ns) {
            step.covered_ns = step.covered_ns.saturating_add(ns);
        }
        for (host, bits) in of.hosts {
            let Some(own) = self.hosts.get_mut(&host) else {
                budget.hold(bits.len() * 8 + host.len() + 64)?;
                self.hosts.insert(host, bits);
                continue;
            };
            own.iter_mut()
                .zip(bits)
                .for_each(|(own, more)| *own |= more);
        }
        Ok(())
    }

    /// Adds weights: all, and what of it was lost, by step.
    pub fn add_sums(&mut self, sums: &[(u64, u64)]) {
        for (step, (all, lost)) in self.steps.iter_mut().zip(sums) {
            step.weight = step.weight.saturating_add(*all);
            step.lost_weight = step.lost_weight.saturating_add(*lost);
        }
    }

    /// The steps.
    pub fn finish(mut self) -> Vec<Step> {
        for bits in self.hosts.values() {
            for (at, step) in self.steps.iter_mut().enumerate() {
                let covers = bits
                    .get(at / 64)
                    .is_some_and(|word| word >> (at % 64) & 1 == 1);
                step.hosts += u64::from(covers);
            }
        }
        self.steps
    }
}

impl OfPartition {
    /// Starts a partition; windows count that start in `range`.
    pub fn new(axis: Axis, range: TimeRange) -> OfPartition {
        OfPartition {
            axis,
            range,
            covered_ns: vec![0; axis.steps],
            hosts: HashMap::new(),
        }
    }

    /// Reads the windows of the hosts that the scope's selector takes.
    pub fn read(
        &mut self,
        partition: &Arc<Partition>,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), Stop> {
        let limits = budget.limits;
        let dict = partition.dict_for(limits)?;
        let slices = slices(partition, scope.range);
        let facts = match limits.reports {
            true => Facts::Windows,
            false => Facts::Summary,
        };
        let (view, ()) = partition.view(limits, ends(&slices), |_| facts, || (), |(), _| false)?;
        let held = view.heap_bytes();
        budget.hold(held)?;
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut takes = |dict: &Dict, labels: u32| {
            *known.entry(labels).or_insert_with(|| {
                let labels = labels_of(dict, labels);
                host_is_selected(&scope.selector, &labels) && limits.tells_of(&labels)
            })
        };
        let summed = !limits.reports || self.axis.step_ns >= SUMMED_FROM_NS;
        let mut opener = SectionReader::new().map_err(FileError::from)?;
        let mut raw = Vec::new();
        let (from, to) = ends(&slices);
        let read_all = view
            .file
            .each_windows(from, to, |_, body| -> Result<(), Stop> {
                budget.check()?;
                let mut body = Reader::new(body);
                let whole = decode_hosts(&mut opener, &mut body, &mut raw)?;
                let dict = read(&dict);
                let mut summaries = vec![whole];
                if !summed {
                    let (windows, parts) = decode_parts(&mut opener, &mut body, &mut raw)?;
                    if !windows.is_empty() || !parts.is_empty() {
                        summaries = parts.into_values().collect();
                    }
                    for window in windows {
                        if let Some(host) = dict.hosts.get(window.host as usize)
                            && takes(&dict, window.host_labels)
                        {
                            let range = window.range;
                            self.add_window(&host.host_id, range.start_unix_ns, range.end_unix_ns);
                        }
                    }
                }
                for summary in summaries {
                    for (&(host, labels), (_, presence)) in &summary.hosts {
                        if let Some(host) = dict.hosts.get(host as usize)
                            && takes(&dict, labels)
                        {
                            match limits.reports {
                                true => self.add_run(&host.host_id, presence),
                                false => self.covers_all(&host.host_id, presence),
                            }
                        }
                    }
                }
                Ok(())
            });
        let dict = read(&dict);
        let in_memory = view.chunks.iter().filter(|_| !limits.reports);
        let in_memory = in_memory.flat_map(|chunk| &chunk.summary);
        for (&(host, labels), (_, presence)) in in_memory.flat_map(|summary| &summary.hosts) {
            if let Some(host) = dict.hosts.get(host as usize)
                && takes(&dict, labels)
            {
                self.covers_all(&host.host_id, presence);
            }
        }
        for window in view.chunks.iter().flat_map(|chunk| &chunk.windows) {
            if let Some(host) = dict.hosts.get(window.host as usize)
                && takes(&dict, window.host_labels)
            {
                let range = window.range;
                self.add_window(&host.host_id, range.start_unix_ns, range.end_unix_ns);
            }
        }
        drop(dict);
        view.close(partition);
        budget.release(held);
        read_all
    }

    fn is_inside(&self, at: i64) -> bool {
        (self.first()..self.range.end_unix_ns).contains(&at)
            && self.axis.step_of(at) < self.axis.steps
    }

    /// The first start of a window that counts.
    fn first(&self) -> i64 {
        self.axis.start.max(self.range.start_unix_ns)
    }

    /// A window: all of its time is of the step in which it starts.
    fn add_window(&mut self, host: &str, start: i64, end: i64) {
        if end <= start {
            return;
        }
        self.covers(host, start, end);
        if self.is_inside(start) {
            let covered = &mut self.covered_ns[self.axis.step_of(start)];
            *covered = covered.saturating_add(end.abs_diff(start));
        }
    }

    /// Runs of windows that follow one another.
    fn add_run(&mut self, host: &str, presence: &Presence) {
        for &(start, end) in &presence.spans {
            self.covers(host, start, end);
            let mut at = start;
            while at < end {
                // The last start of a window in the step, and where that window ends.
                let step = match self.is_inside(at) {
                    true => self.axis.step_of(at),
                    false if at < self.first() => {
                        let before = self.first().abs_diff(at).div_ceil(WINDOW_STEP_NS);
                        at = at.saturating_add_unsigned(before.saturating_mul(WINDOW_STEP_NS));
                        continue;
                    }
                    false => break,
                };
                let next = self
                    .axis
                    .start
                    .saturating_add_unsigned((step as u64 + 1).saturating_mul(self.axis.step_ns));
                let next = next.min(self.range.end_unix_ns);
                let windows = next.abs_diff(at).div_ceil(WINDOW_STEP_NS).max(1);
                let to = at.saturating_add_unsigned(windows.saturating_mul(WINDOW_STEP_NS));
                let to = to.min(end);
                let covered = &mut self.covered_ns[step];
                *covered = covered.saturating_add(to.abs_diff(at));
                at = to;
            }
        }
    }

    /// Notes that a host covers some of the steps of each span.
    fn covers_all(&mut self, host: &str, presence: &Presence) {
        for &(start, end) in &presence.spans {
            self.covers(host, start, end);
        }
    }

    /// Notes that a host covers some of the steps of a time.
    fn covers(&mut self, host: &str, start: i64, end: i64) {
        let axis = self.axis;
        if end <= axis.start || start >= end || axis.steps == 0 {
            return;
        }
        let (first, last) = (axis.step_of(start), axis.step_of(end - 1));
        if first >= axis.steps {
            return;
        }
        let bits = self.hosts.entry_ref(host);
        let bits = bits.or_insert_with(|| vec![0; axis.steps.div_ceil(64)]);
        for step in first..=last.min(axis.steps - 1) {
            bits[step / 64] |= 1 << (step % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn range(from: i64, to: i64) -> TimeRange {
        TimeRange {
            start_unix_ns: from * SECOND,
            end_unix_ns: to * SECOND,
        }
    }

    fn covered(step_s: u64, spans: &[(i64, i64)]) -> Vec<u64> {
        let axis = Axis {
            start: 0,
            step_ns: step_s * SECOND as u64,
            steps: 4,
        };
        let mut of = OfPartition::new(axis, range(0, 4 * step_s as i64));
        let spans = spans.iter().map(|&(from, to)| (from * SECOND, to * SECOND));
        let presence = Presence {
            spans: spans.collect(),
            ..Presence::default()
        };
        of.add_run("a", &presence);
        let seconds = of.covered_ns.iter().map(|ns| ns / SECOND as u64);
        seconds.collect()
    }

    #[test]
    fn a_run_covers_steps_by_the_starts_of_its_windows() {
        assert_eq!(covered(60, &[(0, 240)]), [60, 60, 60, 60]);
        // Windows start at 3, 13, … 53: six in each minute, however they lie in it.
        assert_eq!(covered(60, &[(3, 243)]), [60, 60, 60, 60]);
        assert_eq!(covered(60, &[(33, 83)]), [30, 20, 0, 0]);
        assert_eq!(covered(60, &[(-35, 25)]), [20, 0, 0, 0]);
        assert_eq!(covered(60, &[(230, 900)]), [0, 0, 0, 10]);
        assert_eq!(covered(60, &[(-50, -10), (300, 400), (7, 7)]), [0, 0, 0, 0]);
    }

    #[test]
    fn a_long_window_is_of_its_first_step_and_covers_the_others() {
        let axis = Axis {
            start: 0,
            step_ns: 10 * SECOND as u64,
            steps: 4,
        };
        let mut steps = Steps::new(axis);
        let mut of = OfPartition::new(axis, range(0, 40));
        of.add_window("a", SECOND, 31 * SECOND);
        of.add_window("b", -5 * SECOND, 5 * SECOND);
        of.add_window("b", 40 * SECOND, 50 * SECOND);
        let limits = crate::store::Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: crate::store::Cancel::default(),
            deadline: std::time::Instant::now(),
            memory_bytes: 1 << 20,
            nodes: 0,
            lines: 0,
        };
        steps.add(of, &mut QueryBudget::new(&limits)).unwrap();
        let found = steps.finish();
        let covered = found.iter().map(|step| step.covered_ns / SECOND as u64);
        assert_eq!(covered.collect::<Vec<_>>(), [30, 0, 0, 0]);
        let hosts = found.iter().map(|step| step.hosts);
        assert_eq!(hosts.collect::<Vec<_>>(), [2, 1, 1, 1]);
    }
}
