//! CPU time over time from the kernel's accounting, and what hosts and cgroups waited for, read
//! from the metadata of windows: no head and no block is read.

mod waiting;

use super::super::chunk::CHUNK_NS;
use super::super::chunk_slice::ends;
use super::super::codec::{Reader, SectionReader};
use super::super::file::FileError;
use super::super::meta::{Account, Summary, WindowMeta};
use super::super::partition::{Facts, Partition};
use super::super::reader::StoreReader;
use super::super::summaries::{decode_parts, decode_whole};
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
    /// By label set of the partition: the place of its line.
    places: HashMap<u32, usize>,
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
    let mut add = |at: i64, accounts: Accounts<'_>, budget: &mut QueryBudget<'_>| {
        for (labels, account) in accounts {
            if taken.get(labels as usize).is_some_and(|taken| *taken) {
                let kept = || kept_labels(&read(&dict), LabelSetId(labels), group_by);
                lines.add(at, labels, account.ns - account.below_ns, kept, budget)?;
                if budget.limits.waiting {
                    throttled.add(at, labels, account.throttling, budget)?;
                }
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
            let whole = decode_whole(&mut opener, &mut body, &mut raw)?;
            if !summed || slice.part.is_some() {
                let (windows, parts) = decode_parts(&mut opener, &mut body, &mut raw)?;
                for window in &windows {
                    let at = window.range.start_unix_ns;
                    if slice.has(partition.chunk_of(at).1) {
                        add(at, &mut window.accounts.iter().copied(), budget)?;
                        hosts.add_window(window, budget)?;
                    }
                }
                for (into, part) in &parts {
                    if slice.has(*into) {
                        let at = start.saturating_add_unsigned(*into);
                        add(at, &mut of_summary(part), budget)?;
                        hosts.add_summary(at, part, budget)?;
                    }
                }
                if !windows.is_empty() || !parts.is_empty() {
                    return Ok(());
                }
            }
            add(start, &mut of_summary(&whole), budget)?;
            Ok(hosts.add_summary(start, &whole, budget)?)
        });
    let read_all = read_all.and_then(|()| -> Result<(), Stop> {
        for chunk in &view.chunks {
            budget.check()?;
            let Some(slice) = slice_of(chunk.chunk) else {
                continue;
            };
            for window in &chunk.windows {
                let at = window.range.start_unix_ns;
                if slice.has(partition.chunk_of(at).1) {
                    add(at, &mut window.accounts.iter().copied(), budget)?;
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
        self.add(range.start_unix_ns, window.host_labels, of, budget)
    }

    /// Adds windows that start in one step. What follows one another is one span, which is as long
    /// as its windows.
    fn add_summary(
        &mut self,
        at: i64,
        summary: &Summary,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        for (&(_, labels), (sum, presence)) in &summary.hosts {
            let spans = presence.spans.iter();
            let lengths = spans.map(|(start, end)| end.saturating_sub(*start));
            let ns = lengths.fold(0, i64::saturating_add);
            self.add(at, labels, (ns, sum.pressure), budget)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        at: i64,
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
        if let Some(sum) = line.and_then(|line| line.get_mut(self.axis.step_of(at))) {
            *sum = sum.saturating_add(ns.max(0).unsigned_abs());
        }
        if pressure.covered_ns > 0 {
            if !self.pressed.contains_key(name.as_str()) {
                let line = vec![PressureSum::default(); self.axis.steps];
                budget.hold(size_of_val(&line[..]) + name.len())?;
                self.pressed.insert(name.clone(), line);
            }
            let line = self.pressed.get_mut(name.as_str());
            if let Some(sum) = line.and_then(|line| line.get_mut(self.axis.step_of(at))) {
                *sum += pressure;
            }
        }
        Ok(())
    }
}

/// Accounts by label set of the partition.
type Accounts<'a> = &'a mut dyn Iterator<Item = (u32, Account)>;

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
            places: HashMap::new(),
            by_labels: HashMap::new(),
            lines: Vec::new(),
        }
    }

    /// Adds the CPU time of a label set at an instant; `kept` says which of its labels are kept.
    fn add(
        &mut self,
        at: i64,
        labels: u32,
        ns: i128,
        kept: impl FnOnce() -> LabelSet,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), StoreError> {
        let place = match self.places.get(&labels) {
            Some(&place) => place,
            None => {
                let next = self.lines.len();
                let place = *self.by_labels.entry(kept()).or_insert(next);
                if place == next {
                    budget.hold(self.axis.steps * size_of::<i128>())?;
                    self.lines.push(vec![0; self.axis.steps]);
                }
                self.places.insert(labels, place);
                place
            }
        };
        if let Some(sum) = self.lines[place].get_mut(self.axis.step_of(at)) {
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
