//! A range of a collector in steps: a table with a row for each step, label set and stack.
//!
//! One step after the other is asked for and written, so a long range takes the memory of one step
//! and of the file.

use crate::collector::Collector;
use crate::exit::{self, fail};
use crate::fleet::{self, Fleet};
use crate::loss;
use crate::output;
use crate::peer::Peer;
use crate::render::Format;
use crate::select::fleet_option;
use crate::source::Question;
use crate::summary;
use crate::terminal::clean;
use crate::units;
use crate::when::{Clock, Range};
use anyhow::Result;
use profile::formats::parquet;
use proto::collector::{ProfileRequest, SeriesRequest};
use std::path::Path;
use std::time::Duration;

/// Most steps, as a collector has them in a download.
const STEPS_MAX: u64 = 1024;

/// Length of a window, of which a collector makes steps. Unit: nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// Refuses steps where there can be none.
///
/// # Errors
/// With what to do.
pub fn check(
    step: Option<Duration>,
    group_by: &[String],
    format: Format,
    peer: &Peer,
) -> Result<()> {
    let why = match step {
        None => return Ok(()),
        Some(_) if !peer.is_collector() => {
            return Err(fleet_option("--step", "an agent answers with one profile"));
        }
        Some(_) if format != Format::Parquet => {
            "the format has one time\ngive --format parquet, or a file that ends in .parquet"
        }
        Some(_) if group_by.iter().any(|label| label == "*") => {
            "columns are the same in each step\nname the labels of --group-by"
        }
        Some(_) => return Ok(()),
    };
    Err(fail(exit::USAGE, format!("failed to use --step: {why}")))
}

/// A table.
pub struct Table {
    bytes: Vec<u8>,
    /// Steps with samples.
    steps: usize,
    step_ns: u64,
    fleet: Fleet,
}

/// Asks for every step that has data. An open range ends now.
///
/// # Errors
/// When there are too many steps, they have no unit in common, or the collector does not answer.
pub async fn table(
    collector: &mut Collector,
    question: &Question,
    step: Duration,
    now_ns: i64,
) -> Result<Table> {
    let Range { start_ns, end_ns } = question.range;
    let end_ns = if end_ns == 0 { now_ns } else { end_ns };
    let step_ns = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
    // An open start is where the collector's data starts, so what it answers is counted, too.
    if start_ns > 0 {
        let whole_ns = step_ns.div_ceil(WINDOW_NS).max(1).saturating_mul(WINDOW_NS);
        refuse_more(end_ns.abs_diff(start_ns) / whole_ns)?;
    }
    // Which steps have data is known without stacks.
    let mut selection = question.samples.selection(question.range);
    selection.frame_filters.clear();
    let request = SeriesRequest {
        selection: Some(selection),
        step_ns,
        ..SeriesRequest::default()
    };
    let (series, fleet) = collector.series(request).await?;
    refuse_more((series.steps.len() as u64).saturating_sub(1))?;
    let mut parts = Vec::new();
    let mut bytes = Vec::new();
    let mut writer = parquet::Writer::new(&mut bytes, question.group_by.clone())?;
    let mut steps = 0;
    for (at, step) in series.steps.iter().enumerate() {
        if step.hosts == 0 {
            continue;
        }
        let from = series.step_ns.saturating_mul(at as u64);
        let from = series.start_unix_ns.saturating_add_unsigned(from);
        // The first and the last are cut to the range.
        let range = Range {
            start_ns: from.max(start_ns),
            end_ns: from.saturating_add_unsigned(series.step_ns).min(end_ns),
        };
        let request = ProfileRequest {
            selection: Some(question.samples.selection(range)),
            group_by: question.group_by.clone(),
            max_nodes: 0,
        };
        let (profile, part) = collector.profile(request).await?;
        steps += usize::from(!profile.samples.is_empty());
        writer.add(&profile)?;
        parts.push(part);
    }
    writer.finish()?;
    Ok(Table {
        bytes,
        steps,
        step_ns: series.step_ns,
        fleet: fleet.made_of(parts),
    })
}

/// Refuses a range that lies in more than so many steps, of which the first is not counted.
fn refuse_more(further: u64) -> Result<()> {
    if further < STEPS_MAX {
        return Ok(());
    }
    Err(fail(
        exit::USAGE,
        format!(
            "failed to use --step: the range has more than {STEPS_MAX} steps\nuse a longer step \
             or a shorter range"
        ),
    ))
}

/// Writes a table to its file and says what it is.
///
/// # Errors
/// When it cannot be written.
pub fn deliver(path: &Path, table: Table, quiet: bool, clock: &Clock) -> Result<u8> {
    let Table { steps, fleet, .. } = &table;
    let code = fleet::code(*steps == 0, Some(fleet));
    if *steps == 0 {
        note!("agent-ctl: no samples in the range: nothing written");
    } else {
        output::deliver(path, &table.bytes)?;
        if !quiet {
            let step = units::duration(Duration::from_nanos(table.step_ns));
            let place = match output::is_stdout(path) {
                true => String::new(),
                false => format!("{}: ", clean(&path.to_string_lossy())),
            };
            let line = summary::fleet_line(fleet, clock);
            note!("{place}{steps} steps of {step}, {line}");
        }
    }
    if !quiet || *steps == 0 {
        fleet.note();
    }
    if let Some(why) = fleet.loss() {
        loss::note(&why);
    }
    Ok(code)
}
