//! CPU time over time from the kernel's accounting, and what hosts and cgroups waited for, read
//! from the metadata of windows: no head and no block is read. What is stored is added up while it
//! is decoded: a day of a fleet has millions of accounts, of which no tables are built.

mod waiting;

use super::super::chunk::CHUNK_NS;
use super::super::chunk_slice::ends;
use super::super::codec::{Reader, SectionReader};
use super::super::file::FileError;
use super::super::meta::{Account, HostSum, Presence, StoredSummary, Summary, WindowMeta};
use super::super::partition::{Facts, Partition};
use super::super::reader::StoreReader;
use super::super::summaries::decode_parts;
use super::activity::{host_is_selected, labels_of};
use super::plan::{Read, level_of};
use super::{Stop, each_partition, kept_labels, select, slices};
use crate::store::query::{AccountSums, Axis, QueryBudget, add_line};
use crate::store::{LabelSet, PressureSum, Scope, StoreError};
use crate::sync::read;
use ::profile::{GroupBy, LabelSetId, key};
use hashbrown::HashMap;
use std::sync::Arc;
use waiting::{FoundThrottled, Throttled};

/// Times by step. Unit: nanoseconds.
type Line = Vec<i128>;

/// By host: the time of its windows by step. Unit: nanoseconds.
type Covered = HashMap<String, Vec<u64>>;

/// By host: for how long its tasks waited by step; only of hosts that say it.
type Pressed = HashMap<String, Vec<PressureSum>>;

/// What a partition has.
struct Found {
    lines: HashMap<LabelSet, Line>,
    covered: Covered,
    pressed: Pressed,
    throttled: FoundThrottled,
}

/// Lines of one partition while it is read.
struct Lines {
    axis: Axis,
    /// By label set of the partition, up to the largest that was seen: the place of its line.
    places: Vec<Option<u32>>,
    /// By kept labels: the place of their line.
    by_labels: HashMap<LabelSet, usize>,
    lines: Vec<Line>,
}

/// See [`WindowSource::accounted`](crate::store::query::WindowSource::accounted).
pub fn accounted(
    reader: &StoreReader,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    budget: &mut QueryBudget<'_>,
) -> Result<AccountSums, StoreError> {
    let used = Read {
        windows: true,
        level: level_of(reader, scope.range),
        ..Read::default()
    };
    let mut lines: HashMap<LabelSet, Line> = HashMap::new();
    let (mut hosts, mut pressure) = (Covered::new(), Pressed::new());
    let mut throttled = FoundThrottled::default();
    each_partition(
        reader,
        scope.range,
        budget,
        |partition, budget| read_partition(partition, scope, group_by, axis, budget),
        |found: Found, budget| {
            throttled.add(found.throttled, budget);
            for (host, line) in found.pressed {
                match pressure.get_mut(&host) {
                    Some(sum) => {
                        budget.release(line.len() * size_of::<PressureSum>());
                        sum.iter_mut().zip(line).for_each(|(sum, of)| *sum += of);
                    }
                    None => drop(pressure.insert(host, line)),
                }
            }
            for (host, line) in found.covered {
                match hosts.get_mut(&host) {
                    Some(sum) => {
                        budget.release(line.len() * size_of::<u64>());
                        add_line(sum, &line);
                    }
                    None => drop(hosts.insert(host, line)),
                }
            }
            for (labels, line) in found.lines {
                match lines.get_mut(&labels) {
                    Some(sum) => {
                        budget.release(line.len() * size_of::<i128>());
                        sum.iter_mut()
                            .zip(line)
                            .for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
                    }
                    None => drop(lines.insert(labels, line)),
                }
            }
            Ok(())
        },
    )?;
    let (throttled, throttling_known) = throttled.finish();
    Ok(AccountSums {
        lines,
        hosts,
        pressure,
        throttled,
        throttling_known,
        resolution: used.resolution(),
    })
}

fn read_partition(
    partition: &Arc<Partition>,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    budget: &mut QueryBudget<'_>,
) -> Result<Found, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, scope.range);
    let (from, to) = ends(&slices);
    let choose = || select(&read(&dict), &scope.selector);
    let (view, taken) = partition.view(
        budget.limits,
        (from, to),
        |_| Facts::Windows,
        choose,
        |_, _| false,
    )?;
    let held = view.heap_bytes();
    budget.hold(held)?;
    let limits = budget.limits;
    let mut lines = Lines::new(axis);
    let mut throttled = Throttled::new(axis);
    let mut hosts = Hosts::new(axis, |labels| {
        let labels = labels_of(&read(&dict), labels);
        let taken = host_is_selected(&scope.selector, &labels) && limits.tells_of(&labels);
        taken.then(|| labels.get(key::HOST).to_owned())
    });
    let mut add = |step: usize, (labels, account): (u32, Account), budget: &mut QueryBudget<'_>| {
        if taken.get(labels as usize).is_some_and(|taken| *taken) {
            let kept = || kept_labels(&read(&dict), LabelSetId(labels), group_by);
            lines.add(step, labels, account.ns - account.below_ns, kept, budget)?;
            if budget.limits.waiting {
                throttled.add(step, labels, account.throttling, budget)?;
            }
        }
        Ok::<(), StoreError>(())
    };
    let summed = axis.step_ns.is_multiple_of(CHUNK_NS);
    let slice_of = |chunk: u16| slices.iter().find(|slice| slice.chunk == chunk);
    let mut opener = SectionReader::new().map_err(FileError::from)?;
    let mut raw = Vec::new();
    let read_all = view
        .file
        .each_windows(from, to, |chunk, body| -> Result<(), Stop> {
            budget.check()?;
            let Some(slice) = slice_of(chunk) else {
                return Ok(());
            };
            let start = partition.chunk_start(chunk);
            let mut body = Reader::new(body);
            if !summed || slice.part.is_some() {
                let mut body = body.clone();
                opener.skip(&mut body)?;
                let (windows, parts) = decode_parts(&mut opener, &mut body, &mut raw)?;
                for window in &windows {
                    let at = window.range.start_unix_ns;
                    if slice.has(partition.chunk_of(at).1) {
                        let step = axis.step_of(at);
                        let mut accounts = window.accounts.iter();
                        accounts.try_for_each(|account| add(step, *account, budget))?;
                        hosts.add_window(window, budget)?;
                    }
                }
                for (into, part) in &parts {
                    if slice.has(*into) {
                        let step = axis.step_of(start.saturating_add_unsigned(*into));
                        let mut accounts = of_summary(part);
                        accounts.try_for_each(|account| add(step, account, budget))?;
                        hosts.add_summary(step, part, budget)?;
                    }
                }
                if !windows.is_empty() || !parts.is_empty() {
                    return Ok(());
                }
            }
            opener.open(&mut body, &mut raw)?;
            let (step, mut input) = (axis.step_of(start), Reader::new(&raw));
            let mut stored = StoredSummary::open(&mut input)?;
            while let Some((key, sum, presence)) = stored.next_host()? {
                hosts.add_sum(step, key, (&sum, &presence), budget)?;
            }
            let mut accounts = stored.accounts()?;
            while let Some(account) = accounts.next_account()? {
                add(step, account, budget)?;
            }
            Ok(())
        });
    let read_all = read_all.and_then(|()| -> Result<(), Stop> {
        for chunk in &view.chunks {
            budget.check()?;
            let Some(slice) = slice_of(chunk.chunk) else {
                continue;
            };
            if let Some(whole) = chunk.summary.as_deref()
                && summed
                && slice.part.is_none()
            {
                let step = axis.step_of(partition.chunk_start(chunk.chunk));
                of_summary(whole).try_for_each(|account| add(step, account, budget))?;
                hosts.add_summary(step, whole, budget)?;
                continue;
            }
            for window in &chunk.windows {
                let at = window.range.start_unix_ns;
                if slice.has(partition.chunk_of(at).1) {
                    let step = axis.step_of(at);
                    let mut accounts = window.accounts.iter();
                    accounts.try_for_each(|account| add(step, *account, budget))?;
                    hosts.add_window(window, budget)?;
                }
            }
        }
        Ok(())
    });
    view.close(partition);
    budget.release(held);
    read_all?;
    let throttled = throttled.finish(&dict, budget)?;
    Ok(Found {
        lines: lines.into_map(),
        covered: hosts.covered,
        pressed: hosts.pressed,
        throttled,
    })
}

/// The time of windows by host and step, while a partition is read.
struct Hosts<N> {
    axis: Axis,
    /// Name of the host of these labels, if it is selected.
    name_of: N,
    names: HashMap<u32, Option<String>>,
    covered: Covered,
    pressed: Pressed,
}

impl<N: FnMut(u32) -> Option<String>> Hosts<N> {
    fn new(axis: Axis, name_of: N) -> Hosts<N> {
        Hosts {
            axis,
            name_of,
            names: HashMap::new(),
            covered: Covered::new(),
            pressed: Pressed::new(),
        }
    }

    fn add_window(
        &mut self,
        window: &WindowMeta,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let range = window.range;
        let ns = range.end_unix_ns.saturating_sub(range.start_unix_ns);
        let of = (ns, window.pressure_sum());
        let step = self.axis.step_of(range.start_unix_ns);
        self.add(step, window.host_labels, of, budget)
    }

    /// Adds windows that start in one step.
    fn add_summary(
        &mut self,
        step: usize,
        summary: &Summary,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let mut hosts = summary.hosts.iter();
        hosts.try_for_each(|(&key, (sum, presence))| {
            self.add_sum(step, key, (sum, presence), budget)
        })
    }

    /// Adds those of one host. What follows one another is one span, which is as long as its
    /// windows.
    fn add_sum(
        &mut self,
        step: usize,
        (_, labels): (u32, u32),
        (sum, presence): (&HostSum, &Presence),
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let spans = presence.spans.iter();
        let lengths = spans.map(|(start, end)| end.saturating_sub(*start));
        let ns = lengths.fold(0, i64::saturating_add);
        self.add(step, labels, (ns, sum.pressure), budget)
    }

    fn add(
        &mut self,
        step: usize,
        labels: u32,
        (ns, pressure): (i64, PressureSum),
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let name = self.names.entry(labels);
        let Some(name) = name.or_insert_with(|| (self.name_of)(labels)) else {
            return Ok(());
        };
        if !self.covered.contains_key(name.as_str()) {
            budget.hold(self.axis.steps * size_of::<u64>() + name.len())?;
            self.covered.insert(name.clone(), vec![0; self.axis.steps]);
        }
        let line = self.covered.get_mut(name.as_str());
        if let Some(sum) = line.and_then(|line| line.get_mut(step)) {
            *sum = sum.saturating_add(ns.max(0).unsigned_abs());
        }
        if pressure.covered_ns > 0 {
            if !self.pressed.contains_key(name.as_str()) {
                let line = vec![PressureSum::default(); self.axis.steps];
                budget.hold(size_of_val(&line[..]) + name.len())?;
                self.pressed.insert(name.clone(), line);
            }
            let line = self.pressed.get_mut(name.as_str());
            if let Some(sum) = line.and_then(|line| line.get_mut(step)) {
                *sum += pressure;
            }
        }
        Ok(())
    }
}

/// Accounts by label set of the partition.
fn of_summary(summary: &Summary) -> impl Iterator<Item = (u32, Account)> {
    summary
        .accounts
        .iter()
        .map(|(&labels, &account)| (labels, account))
}

impl Lines {
    fn new(axis: Axis) -> Lines {
        Lines {
            axis,
            places: Vec::new(),
            by_labels: HashMap::new(),
            lines: Vec::new(),
        }
    }

    /// Adds the CPU time of a label set in a step; `kept` says which of its labels are kept.
    fn add(
        &mut self,
        step: usize,
        labels: u32,
        ns: i128,
        kept: impl FnOnce() -> LabelSet,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let known = self.places.get(labels as usize).copied().flatten();
        let place = match known {
            Some(place) => place as usize,
            None => {
                let next = self.lines.len();
                let place = *self.by_labels.entry(kept()).or_insert(next);
                if place == next {
                    budget.hold(self.axis.steps * size_of::<i128>())?;
                    self.lines.push(vec![0; self.axis.steps]);
                }
                let places = (labels as usize + 1).max(self.places.len());
                self.places.resize(places, None);
                self.places[labels as usize] = u32::try_from(place).ok();
                place
            }
        };
        if let Some(sum) = self.lines[place].get_mut(step) {
            *sum = sum.saturating_add(ns);
        }
        Ok(())
    }

    fn into_map(mut self) -> HashMap<LabelSet, Line> {
        let places = self.by_labels.drain();
        let lines = &mut self.lines;
        places
            .map(|(labels, place)| (labels, std::mem::take(&mut lines[place])))
            .collect()
    }
}
