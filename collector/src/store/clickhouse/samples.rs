//! Samples: sums by stack from the engine, frames from the dictionaries.

use super::client::Client;
use super::fault::Fault;
use super::hosts::kinds;
use super::keys::{STEP_NS, Span};
use super::rollup::Source;
use super::select::{Condition, Grouping, Labels, sum, within};
use super::statement::Statement;
use super::sums::RAW;
use crate::store::names::{NamedBy, Nameless};
use crate::store::query::{BatchDict, SampleBatch, SamplesRead, Units};
use crate::store::{LabelSet, Limits, TimeRange};
use clickhouse::Row;
use profile::{
    Dictionary, FrameId, FrameKind, FrameRef, Info, LabelSetId, MIXED_EVENTS, Query, StackEnd,
    StackId, UnnamedReason, Value,
};
use serde::Deserialize;
use std::collections::HashMap;

/// Taken for each sum of samples in memory, with its part of the tables. Unit: bytes.
const CELL_BYTES: usize = 64;
/// Most ids in one request for stacks or frames, 4 MB of text; for more, the complete dictionaries
/// of the days are read. Unit: ids.
const IDS_MAX: usize = 200_000;
/// Stands for a stack that the dictionary of its day does not have (any more).
const UNKNOWN_STACK: &str = "[unknown stack]";

/// A sum of samples.
struct Cell {
    group: u64,
    stack: u64,
    end: u8,
    value: Value,
}

/// Samples of a query, with the tables that name them.
pub(super) struct Samples {
    /// `None`: there are none.
    pub batch: Option<SampleBatch<Tables>>,
    /// Where they were read from.
    pub read: SamplesRead,
}

/// What names the samples of one query: nobody else adds to it.
pub struct Tables {
    dict: Dictionary,
    leaves: Vec<(StackId, StackEnd)>,
}

impl BatchDict for Tables {
    fn read<T>(&self, look: impl FnOnce(&Dictionary, &[(StackId, StackEnd)]) -> T) -> T {
        look(&self.dict, &self.leaves)
    }
}

/// See [`WindowSource::samples`](crate::store::query::WindowSource::samples).
pub(super) async fn samples(
    client: &Client,
    names: &NamedBy,
    range: TimeRange,
    query: &Query,
    limits: &Limits,
) -> Result<Samples, Fault> {
    if Span::of(range, STEP_NS).is_none() {
        let read = SamplesRead {
            covered: range,
            resolution: RAW,
        };
        return Ok(Samples { batch: None, read });
    }
    let source = Source::of(client, range, query, limits).await?;
    let mut read = Read::of(client, source, query, limits).await?;
    if !read.source.still_holds(client, limits).await? {
        // Something was inserted meanwhile, perhaps for the second time.
        let surest = Source::surest(range)?;
        read = Read::of(client, surest, query, limits).await?;
    }
    let span = read.source.span;
    let read_from = SamplesRead {
        covered: span.covered,
        resolution: read.source.resolution,
    };
    if read.cells.is_empty() {
        return Ok(Samples {
            batch: None,
            read: read_from,
        });
    }
    let found = kinds(client, span, query.selector(), limits).await?;
    if read.without_sets {
        // Without a look at label sets the units are those of the windows.
        for name in &found.units {
            read.units.add(name)?;
        }
    }
    let stacks = read_stacks(client, &mut read, limits).await?;
    names.name(&mut read.dict, &mut Nameless::default(), limits);
    within(read.dict.later.heap_bytes(), limits)?;
    let range = found.range.unwrap_or(span.covered);
    let kind = Info {
        start_unix_ns: range.start_unix_ns,
        duration_ns: range.end_unix_ns.abs_diff(range.start_unix_ns),
        event: match found.events.as_slice() {
            [] => String::new(),
            [event] => event.clone(),
            _ => MIXED_EVENTS.to_owned(),
        },
        unit: std::mem::take(&mut read.units).into_text(),
        period: match found.periods.as_slice() {
            [period] => *period,
            _ => 0,
        },
        ..Info::default()
    };
    Ok(Samples {
        batch: Some(read.into_batch(&stacks, kind)),
        read: read_from,
    })
}

/// What was read of the samples.
struct Read {
    source: Source,
    cells: Vec<Cell>,
    units: Units,
    /// Labels of groups.
    names: HashMap<u64, LabelSet>,
    /// Everything was selected and put together, without a look at label sets.
    without_sets: bool,
    dict: Dictionary,
}

impl Read {
    async fn of(
        client: &Client,
        source: Source,
        query: &Query,
        limits: &Limits,
    ) -> Result<Read, Fault> {
        let (table, span) = (source.label_table(), source.span);
        let labels = Labels::Set(table);
        let condition = Condition::of(client, labels, span, query.selector(), limits).await?;
        let grouping = Grouping::new(query.group_by());
        let mut units = Units::default();
        let cells = read_cells(client, &source, &condition, &grouping, &mut units, limits).await?;
        let names = grouping
            .labels(client, (table, None), span, &condition, limits)
            .await?;
        Ok(Read {
            without_sets: grouping.is_one() && condition.is_empty(),
            source,
            cells,
            units,
            names,
            dict: Dictionary::default(),
        })
    }

    /// The samples by dense ids.
    fn into_batch(self, stacks: &HashMap<u64, StackId>, kind: Info) -> SampleBatch<Tables> {
        let mut dict = self.dict;
        let names = self.names.iter();
        let label_sets: HashMap<u64, LabelSetId> = names
            .map(|(&group, labels)| (group, dict.intern_labels(labels.iter())))
            .collect();
        let (mut labels, mut kept_of) = (Vec::new(), HashMap::new());
        let (mut leaves, mut leaf_of) = (Vec::new(), HashMap::new());
        let mut list = Vec::with_capacity(self.cells.len());
        for cell in self.cells {
            let kept = *kept_of.entry(cell.group).or_insert_with(|| {
                labels.push(label_sets.get(&cell.group).copied().unwrap_or_default());
                labels.len() as u32 - 1
            });
            let leaf = *leaf_of.entry((cell.stack, cell.end)).or_insert_with(|| {
                let stack = stacks.get(&cell.stack).copied().unwrap_or_default();
                leaves.push((stack, StackEnd::from_u8(cell.end).unwrap_or_default()));
                leaves.len() as u32 - 1
            });
            list.push((kept, leaf, cell.value));
        }
        list.sort_unstable_by_key(|&(kept, leaf, _)| (kept, leaf));
        // Each shard has its own sum.
        list.dedup_by(|later, first| {
            let is_same = (later.0, later.1) == (first.0, first.1);
            if is_same {
                first.2 += later.2;
            }
            is_same
        });
        SampleBatch {
            dict: Tables { dict, leaves },
            lists: vec![(labels, list)],
            kinds: vec![kind],
            is_one_of_several: false,
        }
    }
}

/// SQL of the samples that are selected, before they are put together.
fn from(
    source: &Source,
    condition: &Condition,
    grouping: &Grouping<'_>,
    ask: &mut Statement,
) -> (String, &'static str) {
    let span = source.span;
    let rows = source.sql();
    if grouping.is_one() && condition.is_empty() {
        return (
            format!("({rows}) AS sample"),
            "toUInt64(0) AS g, '' AS unit",
        );
    }
    let table = source.label_table();
    let narrowed = if condition.is_empty() {
        String::new()
    } else {
        let chosen = condition.sql(ask);
        let days = span.of_days();
        format!(" AND series IN (SELECT series FROM {table} WHERE {days} AND {chosen})")
    };
    let selected = grouping.selected(table, span, condition, ask);
    let from = format!(
        "({rows}{narrowed}) AS sample INNER JOIN ({selected}) AS set \
         ON sample.series = set.series"
    );
    (from, "set.g AS g, toString(set.unit) AS unit")
}

async fn read_cells(
    client: &Client,
    source: &Source,
    condition: &Condition,
    grouping: &Grouping<'_>,
    units: &mut Units,
    limits: &Limits,
) -> Result<Vec<Cell>, Fault> {
    #[derive(Row, Deserialize)]
    struct Sum {
        g: u64,
        unit: String,
        stack: u64,
        end: u8,
        n: u64,
        w: u64,
    }
    let mut ask = Statement::default();
    let (from, group) = from(source, condition, grouping, &mut ask);
    ask.sql = format!(
        "SELECT {group}, sample.stack AS stack, sample.end AS end, sum(sample.n) AS n, \
         {} AS w FROM {from} GROUP BY g, unit, stack, end",
        sum("sample.w")
    );
    let mut cells = Vec::new();
    client
        .each::<Sum>(&ask, limits, |row| {
            within((cells.len() + 1) * CELL_BYTES, limits)?;
            if !row.unit.is_empty() {
                units.add(&row.unit)?;
            }
            cells.push(Cell {
                group: row.g,
                stack: row.stack,
                end: row.end,
                value: Value {
                    count: row.n,
                    weight: row.w,
                },
            });
            Ok(())
        })
        .await?;
    Ok(cells)
}

/// The stacks of the cells, in the dictionary.
async fn read_stacks(
    client: &Client,
    read: &mut Read,
    limits: &Limits,
) -> Result<HashMap<u64, StackId>, Fault> {
    #[derive(Row, Deserialize)]
    struct Stack {
        stack: u64,
        frames: Vec<u64>,
    }
    let (cells, source, dict) = (&read.cells, &read.source, &mut read.dict);
    let mut held = cells.len() * CELL_BYTES;
    let mut wanted: Vec<u64> = cells
        .iter()
        .map(|cell| cell.stack)
        .filter(|&id| id != 0)
        .collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut paths: Vec<(u64, Vec<u64>)> = Vec::new();
    if !wanted.is_empty() {
        let mut ask = Statement::default();
        let ids = listed(&wanted, source, "stack", &mut ask);
        ask.sql = format!(
            "SELECT stack, frames FROM stacks WHERE {} AND stack IN ({ids}) LIMIT 1 BY stack",
            source.span.of_days()
        );
        client
            .each::<Stack>(&ask, limits, |row| {
                held += CELL_BYTES + row.frames.len() * 8;
                within(held, limits)?;
                paths.push((row.stack, row.frames));
                Ok(())
            })
            .await?;
    }
    let frames = read_frames(client, source, &paths, dict, &mut held, limits).await?;
    let unknown = |dict: &mut Dictionary| {
        let frame = dict.intern_frame(FrameRef {
            kind: FrameKind::Synthetic,
            function: UNKNOWN_STACK,
            ..FrameRef::default()
        });
        dict.stacks.child(StackId::EMPTY, frame)
    };
    let mut stacks: HashMap<u64, StackId> = HashMap::new();
    for (id, path) in paths {
        let known: Option<Vec<FrameId>> = path.iter().map(|id| frames.get(id).copied()).collect();
        let stack = match known {
            Some(path) => dict.stacks.intern(path),
            None => unknown(dict),
        };
        stacks.insert(id, stack);
    }
    for id in wanted {
        if let std::collections::hash_map::Entry::Vacant(new) = stacks.entry(id) {
            new.insert(unknown(dict));
        }
    }
    Ok(stacks)
}

async fn read_frames(
    client: &Client,
    source: &Source,
    paths: &[(u64, Vec<u64>)],
    dict: &mut Dictionary,
    held: &mut usize,
    limits: &Limits,
) -> Result<HashMap<u64, FrameId>, Fault> {
    #[derive(Row, Deserialize)]
    struct Frame {
        frame: u64,
        kind: u8,
        unnamed: u8,
        line: u32,
        start_line: u32,
        function: String,
        module: String,
        file: String,
        system_name: String,
    }
    let mut wanted: Vec<u64> = paths.iter().flat_map(|(_, path)| path).copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut frames = HashMap::new();
    if !wanted.is_empty() {
        let mut ask = Statement::default();
        let ids = listed(&wanted, source, "frame", &mut ask);
        ask.sql = format!(
            "SELECT frame, kind, unnamed, line, start_line, function, toString(module) AS module, \
             toString(file) AS file, system_name FROM frames WHERE {} AND frame IN ({ids}) LIMIT 1 BY frame",
            source.span.of_days()
        );
        client
            .each::<Frame>(&ask, limits, |row| {
                *held += CELL_BYTES + row.function.len() + row.module.len() + row.file.len();
                *held += row.system_name.len();
                within(*held, limits)?;
                let id = dict.intern_frame(FrameRef {
                    kind: FrameKind::from_u8(row.kind).unwrap_or_default(),
                    unnamed: UnnamedReason::from_u8(row.unnamed).unwrap_or_default(),
                    function: &row.function,
                    system_name: &row.system_name,
                    module: &row.module,
                    file: &row.file,
                    line: row.line,
                    start_line: row.start_line,
                });
                frames.insert(row.frame, id);
                Ok(())
            })
            .await?;
    }
    Ok(frames)
}

/// SQL that lists ids: they are sent, or of very many the days' are read.
fn listed(ids: &[u64], source: &Source, column: &str, ask: &mut Statement) -> String {
    if ids.len() > IDS_MAX {
        return format!(
            "SELECT {column} FROM {column}s WHERE {}",
            source.span.of_days()
        );
    }
    format!("SELECT arrayJoin({})", ask.numbers(ids))
}
