//! Weights over time, from the sums of series: no block is read.

use super::super::block::Sum;
use super::super::chunk::{CHUNK_NS, HOUR_NS};
use super::super::chunk_slice::{ChunkSlice, ends};
use super::super::codec::SectionReader;
use super::super::dict::NONE;
use super::super::encode::{SERVICE_STEP_NS, each_head};
use super::super::file::FileError;
use super::super::level::Level;
use super::super::partition::{Facts, Partition, View};
use super::super::reader::StoreReader;
use super::super::table::Table;
use super::choice::Choice;
use super::plan::{Read, plan};
use super::steps::{HostLabels, OfPartition, Steps};
use super::{Stop, each_partition, select, service_answers, slices};
use crate::store::query::{Axis, QueryBudget, SeriesSums, Units, add_line, memory_exceeded};
use crate::store::{LabelSet, Scope, StoreError};
use crate::sync::read;
use ::profile::{GroupBy, Value};
use hashbrown::HashMap;
use std::sync::Arc;

impl Choice {
    /// Reads heads of slices: those of the file and, with `with_memory`, those of memory. `each`
    /// gets kept labels, kind, chunk, start after the chunk's, and sum. With `whole`, complete
    /// chunks come as one.
    pub fn read_heads(
        &self,
        view: &View,
        (of_file, slices): (&[ChunkSlice], &[ChunkSlice]),
        whole: bool,
        with_memory: bool,
        budget: &QueryBudget<'_>,
        mut each: impl FnMut(u32, u16, u16, u64, Sum) -> Result<(), StoreError>,
    ) -> Result<(), Stop> {
        let mut opener = SectionReader::new().map_err(FileError::from)?;
        let mut stopped: Result<(), StoreError> = Ok(());
        let ranges = self.ranges();
        let period_of = |bundle: u32| self.period_of(bundle);
        let mut found = |slice: &ChunkSlice, series: u32, start: u64, sum: Sum, is_whole: bool| {
            let kept = self.kept(series);
            if kept == NONE || stopped.is_err() || !(is_whole || slice.has(start)) {
                return;
            }
            let kind = self.series_kinds[series as usize];
            stopped = each(kept, kind, slice.chunk, start, sum);
        };
        for slice in of_file {
            let is_whole = whole && slice.part.is_none();
            let wanted = |range: u32| ranges.get(range as usize).is_some_and(|wanted| *wanted);
            let all = (0, 1 << 32);
            view.file.each_blob(
                self.table,
                slice.chunk,
                all,
                wanted,
                |_, body| -> Result<(), Stop> {
                    budget.check()?;
                    each_head(
                        &mut opener,
                        body,
                        is_whole,
                        period_of,
                        |series, start, sum| {
                            found(slice, series, start, sum, is_whole);
                        },
                    )?;
                    Ok(())
                },
            )?;
        }
        for mem in view.chunks.iter().filter(|_| with_memory) {
            let Some(slice) = slices.iter().find(|slice| slice.chunk == mem.chunk) else {
                continue;
            };
            for (group, rows) in &mem.groups {
                budget.check()?;
                rows.each_head(period_of(*group), |start, series, sum| {
                    found(slice, series, start, sum, false);
                })?;
            }
        }
        stopped?;
        Ok(())
    }
}

/// Lines of one partition, by kept labels.
#[derive(Default)]
struct Found {
    labels: Vec<LabelSet>,
    lines: Vec<Option<Vec<u64>>>,
    total: Value,
    units: Vec<String>,
    used: Read,
    /// By step: what all lines weigh, and what of it was lost. Empty where nobody asks.
    sums: Vec<(u64, u64)>,
    /// The lines have all samples of the selected hosts, or nobody asks what these weigh.
    is_of_hosts: bool,
}

impl Found {
    /// Adds to a line what was at an instant; returns by how many bytes the lines grew.
    fn add(&mut self, line: usize, axis: Axis, at: i64, sum: Sum) -> usize {
        let line = &mut self.lines[line];
        let grown = if line.is_none() { axis.steps * 8 } else { 0 };
        let line = line.get_or_insert_with(|| vec![0; axis.steps]);
        let (step, value) = (axis.step_of(at), sum.all());
        if let Some(slot) = line.get_mut(step) {
            *slot = slot.saturating_add(value.weight);
        }
        if let Some((all, lost)) = self.sums.get_mut(step) {
            *all = all.saturating_add(value.weight);
            *lost = lost.saturating_add(sum.lost.weight);
        }
        self.total += value;
        grown
    }
}

/// See [`WindowSource::series`](crate::store::query::WindowSource::series).
pub fn series(
    reader: &StoreReader,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    budget: &mut QueryBudget<'_>,
) -> Result<SeriesSums, StoreError> {
    let mut lines: HashMap<LabelSet, Vec<u64>> = HashMap::new();
    let mut total = Value::default();
    let mut units = Units::default();
    let mut used = Read::default();
    let mut steps = Steps::new(axis);
    each_partition(
        reader,
        scope.range,
        budget,
        |partition, budget| {
            let hosts = match budget.limits.reports {
                true => Some(HostLabels::of(partition)?),
                false => None,
            };
            let hosts = hosts.as_ref();
            let mut found =
                read_partition(partition, scope, group_by, axis, (hosts, false), budget)?;
            // Reads the heads of every series of the selected hosts, no block: a line of one unit
            // of a hundred takes a hundred times the heads that it is made of. Where steps are
            // shorter than a minute the windows, which are read below, have the same sums.
            if !found.is_of_hosts {
                let none = GroupBy::Keys(Vec::new());
                let all = read_partition(partition, scope, &none, axis, (hosts, true), budget)?;
                let lines = all.lines.iter().flatten();
                budget.release(lines.count() * axis.steps * 8);
                found.sums = all.sums;
            }
            let mut windows = OfPartition::new(axis, scope.range);
            windows.read(partition, scope, budget)?;
            Ok((found, windows))
        },
        |(found, windows), budget| {
            steps.add(windows, budget)?;
            steps.add_sums(&found.sums);
            total += found.total;
            for unit in &found.units {
                units.add(unit)?;
            }
            used |= found.used;
            for (labels, line) in found.labels.into_iter().zip(found.lines) {
                let Some(line) = line else { continue };
                match lines.get_mut(&labels) {
                    Some(sum) => {
                        budget.release(axis.steps * 8);
                        add_line(sum, &line);
                    }
                    None => drop(lines.insert(labels, line)),
                }
            }
            Ok(())
        },
    )?;
    Ok(SeriesSums {
        lines,
        total,
        units,
        resolution: used.resolution(),
        steps: steps.finish(),
    })
}

/// Reads the lines of what the selector takes, or, with `all`, of all samples of the hosts it
/// takes. Without `hosts` nobody asks what these weigh.
fn read_partition(
    partition: &Arc<Partition>,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    (hosts, all): (Option<&HostLabels>, bool),
    budget: &mut QueryBudget<'_>,
) -> Result<Found, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, scope.range);
    let minutes = axis.step_ns.is_multiple_of(SERVICE_STEP_NS);
    let mut is_of_hosts = false;
    let limits = budget.limits;
    let choose = || {
        let dict = read(&dict);
        let of_hosts = hosts.map(|hosts| hosts.select(&dict, &scope.selector, limits));
        let taken = match &of_hosts {
            Some(of_hosts) if all => of_hosts.clone(),
            _ => select(&dict, &scope.selector),
        };
        is_of_hosts = of_hosts.is_none_or(|of_hosts| taken == of_hosts);
        let choose = |table| Choice::new(&dict, &taken, group_by, table);
        let answers = match all {
            true => taken.iter().all(|taken| *taken),
            false => service_answers(&dict, &scope.selector, group_by),
        };
        let service = minutes && partition.level != Level::ServiceHours && answers;
        let units: Vec<String> = dict.kinds.iter().map(|kind| kind.unit.clone()).collect();
        (
            choose(Table::Head),
            service.then(|| choose(Table::ServiceHead)),
            units,
        )
    };
    let (view, (own, service, units)) = partition.view(
        budget.limits,
        ends(&slices),
        |_| Facts::None,
        choose,
        |(own, ..), group| own.wants(group),
    )?;
    let mut found = Found {
        is_of_hosts,
        ..Found::default()
    };
    found.used.level = partition.level;
    if own.is_empty() {
        view.close(partition);
        return Ok(found);
    }
    let held = view.heap_bytes();
    budget.hold(held)?;
    if budget.limits.reports {
        found.sums = vec![(0, 0); axis.steps];
    }
    let whole = axis.step_ns.is_multiple_of(CHUNK_NS);
    let by_service = |slice: &ChunkSlice| service.is_some() && slice.is_of_minutes();
    let hours = axis.step_ns.is_multiple_of(HOUR_NS);
    let plan = match plan(partition, &view.file, &slices, by_service, hours) {
        Ok(plan) => plan,
        Err(error) => {
            view.close(partition);
            return Err(error.into());
        }
    };
    let mut kinds_used = vec![false; units.len()];
    let mut read_all = Ok(());
    for choice in [service.as_ref(), Some(&own)].into_iter().flatten() {
        let own = choice.table == Table::Head;
        let base = found.labels.len();
        found.labels.extend(choice.labels.iter().cloned());
        found.lines.resize(found.labels.len(), None);
        let mut charge = 0usize;
        read_all = choice.read_heads(
            &view,
            (if own { &plan.own } else { &plan.services }, &slices),
            whole,
            own,
            budget,
            |kept, kind, chunk, start, sum| {
                let at = partition.chunk_start(chunk).saturating_add(start as i64);
                charge += found.add(base + kept as usize, axis, at, sum);
                if charge > budget.limits.memory_bytes {
                    return Err(StoreError::TooLarge(memory_exceeded(budget.limits)));
                }
                kinds_used[usize::from(kind)] = true;
                match own {
                    true => found.used.windows = true,
                    false => found.used.note_service(ChunkSlice { chunk, part: None }),
                }
                Ok(())
            },
        );
        if read_all.is_ok() {
            read_all = budget.hold(charge).map_err(Stop::from);
        }
        if read_all.is_err() {
            break;
        }
    }
    view.close(partition);
    budget.release(held);
    read_all?;
    let used = units.into_iter().zip(kinds_used).filter(|(_, used)| *used);
    found.units = used.map(|(unit, _)| unit).collect();
    Ok(found)
}
