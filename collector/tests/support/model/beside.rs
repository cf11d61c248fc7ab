//! What stands beside a model's answers (gaps, hosts, quality), and the pruning of profiles.

use super::{ABSENT_MIN_NS, Kept, STEP_NS, State, keep};
use collector::store::{
    DataQuality, GAPS_MAX, Gap, HostKey, LabelSet, Limits, PressureSum, Resolution, Scope, Series,
    Step, ThrottledCgroup, TimeRange, TimeSeries, selects,
};
use profile::{Profile, Quality, Remap, Selector, StackEnd, StackId, Throttling, Value, key};
use std::collections::{BTreeMap, BTreeSet};

impl State {
    /// Gaps of the hosts that `selector` takes, by host, clipped to the range.
    pub(super) fn gaps(
        &self,
        range: TimeRange,
        selector: &Selector,
        limits: &Limits,
    ) -> Vec<(HostKey, Gap)> {
        let mut by_host: BTreeMap<&HostKey, Vec<&Kept>> = BTreeMap::new();
        for kept in &self.windows {
            if kept.host_is_selected(selector, limits) {
                by_host
                    .entry(&kept.window.origin.host)
                    .or_default()
                    .push(kept);
            }
        }
        let mut gaps = Vec::new();
        for (host, mut windows) in by_host {
            windows.sort_by_key(|kept| kept.window.range);
            let mut covered_to = i64::MAX;
            for kept in windows {
                let window = &kept.window;
                let start = window.range.start_unix_ns;
                let mut absent = vec![(covered_to.min(start), start)];
                if let Some(gap) = &window.dropped_before {
                    let (from, to) = (gap.range.start_unix_ns, gap.range.end_unix_ns);
                    absent = vec![(absent[0].0, from.min(start)), (to.max(absent[0].0), start)];
                    gaps.push((host.clone(), gap.clone()));
                }
                for (from, to) in absent {
                    if to.saturating_sub(from) >= ABSENT_MIN_NS {
                        let range = TimeRange {
                            start_unix_ns: from,
                            end_unix_ns: to,
                        };
                        let cause = "absent".to_owned();
                        gaps.push((
                            host.clone(),
                            Gap {
                                range,
                                windows: 0,
                                samples: 0,
                                cause,
                            },
                        ));
                    }
                }
                let before = if covered_to == i64::MAX {
                    i64::MIN
                } else {
                    covered_to
                };
                covered_to = before.max(window.range.end_unix_ns);
            }
        }
        for (_, gap) in &mut gaps {
            gap.range.start_unix_ns = gap.range.start_unix_ns.max(range.start_unix_ns);
            gap.range.end_unix_ns = gap.range.end_unix_ns.min(range.end_unix_ns);
        }
        gaps.retain(|(_, gap)| gap.range.start_unix_ns < gap.range.end_unix_ns);
        gaps
    }

    /// Lines of points by kept labels and step, the heaviest first, and the rest.
    pub(super) fn lines<'k>(
        &'k self,
        scope: &Scope,
        group_by: &[String],
        step_ns: u64,
        (is_accounted, points): (bool, impl Iterator<Item = (&'k Kept, &'k LabelSet, i128)>),
        limits: &Limits,
    ) -> TimeSeries {
        let step = step_ns as i64;
        let start = scope.range.start_unix_ns.div_euclid(step) * step;
        let covered_ns = (scope.range.end_unix_ns - start).max(0) as u64;
        let steps = covered_ns.div_ceil(step_ns) as usize;
        let mut lines: BTreeMap<LabelSet, Vec<i128>> = BTreeMap::new();
        for (kept, labels, weight) in points {
            let at = (kept.window.range.start_unix_ns - start) / step;
            let line = lines.entry(keep(labels, group_by));
            line.or_insert_with(|| vec![0; steps])[at as usize] += weight;
        }
        let clip = |weight: i128| u64::try_from(weight.max(0)).unwrap_or(u64::MAX);
        let mut lines: Vec<_> = lines
            .into_iter()
            .map(|(labels, weights)| Series {
                labels,
                weights: weights.into_iter().map(clip).collect(),
            })
            .collect();
        lines.retain(|line| !is_accounted || line.weights.iter().any(|weight| *weight > 0));
        let weight = |line: &Series| {
            let weights = line.weights.iter();
            weights.fold(0u64, |sum, weight| sum.saturating_add(*weight))
        };
        lines.sort_by_key(|line| std::cmp::Reverse(weight(line)));
        let left_out = lines.split_off(lines.len().min(limits.lines));
        let mut rest = match left_out.is_empty() {
            true => Vec::new(),
            false => vec![0u64; steps],
        };
        for line in &left_out {
            rest.iter_mut()
                .zip(&line.weights)
                .for_each(|(sum, weight)| *sum = sum.saturating_add(*weight));
        }
        TimeSeries {
            start_unix_ns: start,
            step_ns,
            lines,
            rest,
            rest_lines: left_out.len() as u64,
            steps: self.steps(scope, (start, step, steps), limits),
        }
    }

    /// The time of the windows that start in each step, by host.
    pub(super) fn covered_by_host(
        &self,
        scope: &Scope,
        (start, step_ns): (i64, u64),
        limits: &Limits,
    ) -> BTreeMap<String, Vec<u64>> {
        let covered_ns = (scope.range.end_unix_ns - start).max(0) as u64;
        let steps = covered_ns.div_ceil(step_ns) as usize;
        let mut hosts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for kept in &self.windows {
            if kept.is_in(scope.range) && kept.host_is_selected(&scope.selector, limits) {
                let range = kept.window.range;
                let line = hosts.entry(kept.host_labels().get(key::HOST).to_owned());
                let at = ((range.start_unix_ns - start) as u64 / step_ns) as usize;
                line.or_insert_with(|| vec![0; steps])[at] +=
                    (range.end_unix_ns - range.start_unix_ns) as u64;
            }
        }
        hosts
    }

    /// For how long tasks of these hosts waited, of those that say it.
    pub(super) fn pressure_by_host(
        &self,
        scope: &Scope,
        (start, step_ns): (i64, u64),
        limits: &Limits,
    ) -> BTreeMap<String, Vec<PressureSum>> {
        let covered_ns = (scope.range.end_unix_ns - start).max(0) as u64;
        let steps = covered_ns.div_ceil(step_ns) as usize;
        let mut hosts: BTreeMap<String, Vec<PressureSum>> = BTreeMap::new();
        for kept in self.in_range(scope.range) {
            let range = kept.window.range;
            let length = (range.end_unix_ns - range.start_unix_ns) as u64;
            if kept.window.pressure.is_some() && kept.host_is_selected(&scope.selector, limits) {
                let line = hosts.entry(kept.host_labels().get(key::HOST).to_owned());
                let line = line.or_insert_with(|| vec![PressureSum::default(); steps]);
                let at = ((range.start_unix_ns - start) as u64 / step_ns) as usize;
                line[at] += PressureSum::of(kept.window.pressure, length);
            }
        }
        hosts
    }

    /// Throttling of selected cgroups, with the start of its window.
    fn throttling_of(&self, scope: &Scope) -> Vec<(i64, &LabelSet, Throttling)> {
        let mut found = Vec::new();
        for kept in self.in_range(scope.range) {
            for (labels, of) in kept.throttling() {
                if selects(&scope.selector, labels) {
                    found.push((kept.window.range.start_unix_ns, labels, of));
                }
            }
        }
        found
    }

    /// True if throttling of a selected cgroup is known.
    pub(super) fn throttling_known(&self, scope: &Scope) -> bool {
        let all = self.throttling_of(scope);
        all.iter().any(|(_, _, of)| *of != Throttling::default())
    }

    /// Selected cgroups that were held back, the longest first.
    pub(super) fn throttled(
        &self,
        scope: &Scope,
        (start, step_ns): (i64, u64),
    ) -> Vec<ThrottledCgroup> {
        let covered_ns = (scope.range.end_unix_ns - start).max(0) as u64;
        let steps = covered_ns.div_ceil(step_ns) as usize;
        let mut found: BTreeMap<&LabelSet, ThrottledCgroup> = BTreeMap::new();
        for (at, labels, of) in self.throttling_of(scope) {
            let cgroup = found.entry(labels).or_insert_with(|| ThrottledCgroup {
                labels: labels.clone(),
                sum: Throttling::default(),
                steps: vec![0; steps],
            });
            cgroup.sum += of;
            cgroup.steps[((at - start) as u64 / step_ns) as usize] += of.ns;
        }
        let mut found: Vec<_> = found.into_values().filter(|of| of.sum.ns > 0).collect();
        found.sort_by_key(|of| std::cmp::Reverse(of.sum.ns));
        found
    }

    /// What steps of a series are made of.
    pub(super) fn steps(
        &self,
        scope: &Scope,
        (start, step, count): (i64, i64, usize),
        limits: &Limits,
    ) -> Vec<Step> {
        let mut steps = vec![Step::default(); count];
        let mut hosts: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); count];
        for kept in &self.windows {
            if !kept.is_in(scope.range) || !kept.host_is_selected(&scope.selector, limits) {
                continue;
            }
            let range = kept.window.range;
            let first = ((range.start_unix_ns - start) / step) as usize;
            let last = ((range.end_unix_ns - 1 - start) / step) as usize;
            for hosts in hosts.iter_mut().take(last + 1).skip(first) {
                hosts.insert(&kept.window.origin.host.host_id);
            }
            let own = &mut steps[first];
            own.covered_ns += (range.end_unix_ns - range.start_unix_ns) as u64;
            for (key, value) in &kept.rows {
                own.weight = own.weight.saturating_add(value.weight);
                if key.end == StackEnd::Lost {
                    own.lost_weight = own.lost_weight.saturating_add(value.weight);
                }
            }
        }
        for (step, hosts) in steps.iter_mut().zip(hosts) {
            step.hosts = hosts.len() as u64;
        }
        steps
    }

    pub(super) fn quality(
        &self,
        scope: &Scope,
        total: Value,
        unit: String,
        limits: &Limits,
    ) -> DataQuality {
        let range = scope.range;
        let (mut hosts, mut alive) = (BTreeSet::new(), BTreeSet::new());
        let mut spans: BTreeMap<&HostKey, (bool, bool)> = BTreeMap::new();
        let (mut windows, mut unmeasured) = (0, 0);
        let mut sampling = Quality::default();
        for kept in &self.windows {
            if !kept.host_is_selected(&scope.selector, limits) {
                continue;
            }
            let host = &kept.window.origin.host;
            let span = spans.entry(host).or_default();
            span.0 |= kept.window.range.start_unix_ns < range.start_unix_ns;
            span.1 |= kept.window.range.start_unix_ns >= range.end_unix_ns;
            if *span == (true, true) {
                alive.insert(&host.host_id);
            }
            if kept.is_in(range) {
                hosts.insert(&host.host_id);
                alive.insert(&host.host_id);
                windows += 1;
                unmeasured += u64::from(kept.window.accounts.is_empty());
                sampling += kept.window.quality;
            }
        }
        let mut gaps = self.gaps(range, &scope.selector, limits);
        gaps.sort_by_key(|(_, gap)| gap.range.start_unix_ns - gap.range.end_unix_ns);
        let length = |gap: &Gap| (gap.range.end_unix_ns - gap.range.start_unix_ns) as u64;
        let gaps_total = gaps.len() as u64;
        let gap_ns_total = gaps.iter().map(|(_, gap)| length(gap)).sum();
        gaps.truncate(GAPS_MAX);
        DataQuality {
            covered: range,
            resolution: Resolution {
                step_ns: STEP_NS as u64,
                by_service: false,
            },
            hosts: hosts.len() as u64,
            hosts_alive: alive.len() as u64,
            windows,
            windows_unmeasured: unmeasured,
            gaps,
            gaps_total,
            gap_ns_total,
            sampling,
            total,
            unit,
            pruned_weight: 0,
            named_later: Default::default(),
            damaged: Vec::new(),
            not_kept: Vec::new(),
        }
    }
}

/// Folds the lightest stacks into their callers until `nodes` are left; the weight that moved.
pub fn prune(profile: &mut Profile, nodes: usize) -> u64 {
    let trie = &profile.dict.stacks;
    let mut totals = vec![0u64; trie.len()];
    for (key, value) in &profile.samples {
        totals[key.stack.0 as usize] = totals[key.stack.0 as usize].saturating_add(value.weight);
    }
    for (id, parent, _) in trie.iter().collect::<Vec<_>>().into_iter().rev() {
        totals[parent.0 as usize] = totals[parent.0 as usize].saturating_add(totals[id.0 as usize]);
    }
    let mut order: Vec<StackId> = trie.iter().map(|(id, _, _)| id).collect();
    order.sort_by_key(|id| (std::cmp::Reverse(totals[id.0 as usize]), id.0));
    let kept: BTreeSet<StackId> = order.into_iter().take(nodes).collect();
    let mut pruned = Profile {
        info: profile.info.clone(),
        ..Profile::default()
    };
    let (mut moved, mut remap) = (0u64, Remap::default());
    for (mut key, value) in profile.sorted() {
        if key.stack != StackId::EMPTY && !kept.contains(&key.stack) {
            moved = moved.saturating_add(value.weight);
        }
        while key.stack != StackId::EMPTY && !kept.contains(&key.stack) {
            key.stack = trie
                .node(key.stack)
                .map_or(StackId::EMPTY, |(parent, _)| parent);
        }
        pruned.add_from(&profile.dict, &mut remap, key, value);
    }
    *profile = pruned;
    moved
}
