//! `benches micro`: hot paths alone, in time and allocations for each item, beside a crate that
//! does the same where there is one. No privilege is needed but for captured records and kernel
//! names.

mod folding;
mod formats;
mod generated;
mod naming;
mod recording;
mod records;
mod synthetic;

use crate::machine::Machine;
use crate::report::{self, Table, number};
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Counts allocations of the whole program: two atomic additions each, which every figure of this
/// bench carries, the daemon's and the peers' alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs of each line, at least.
const RUNS_MIN: usize = 7;
/// Time for the runs of a line, unless the fewest take longer.
const TIME: Duration = Duration::from_millis(500);

/// A group of lines.
type Group = (&'static str, fn(&mut Lines) -> anyhow::Result<()>);

const GROUPS: &[Group] = &[
    ("records", records::measure),
    ("folding", folding::measure),
    ("naming", naming::measure),
    ("generated", generated::measure),
    ("recorder", recording::measure),
    ("formats", formats::measure),
];

/// What `benches micro` takes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches micro                       everything, about a minute
  benches micro --group records       parsing of records, compared with perf-event2
  benches micro --json -              for scripts")]
pub struct Args {
    /// Run only this group; may be repeated
    #[arg(long, value_name = "NAME", value_parser = group_names())]
    group: Vec<String>,
    /// Write the report as JSON to this file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn group_names() -> Vec<&'static str> {
    GROUPS.iter().map(|&(name, _)| name).collect()
}

/// Everything measured.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    lines: Vec<Line>,
    /// What could not be measured here, and what the figures need to be read.
    notes: Vec<String>,
}

/// One hot path.
#[derive(Debug, Serialize)]
struct Line {
    group: &'static str,
    name: String,
    /// What is counted.
    item: &'static str,
    /// Items of a run.
    items: u64,
    runs: usize,
    /// Time for an item in the fastest run, and in the middle one. Unit: nanoseconds.
    min_ns: f64,
    median_ns: f64,
    /// Allocations for an item, growth in place included.
    allocations: f64,
}

/// Lines as they are measured.
pub struct Lines {
    group: &'static str,
    lines: Vec<Line>,
    notes: Vec<String>,
}

impl Lines {
    /// Measures `work` on what `setup` makes for each run, outside of the time. Dropping what
    /// `work` returns is outside too.
    pub fn with_setup<S, T>(
        &mut self,
        name: &str,
        item: &'static str,
        items: u64,
        mut setup: impl FnMut() -> S,
        mut work: impl FnMut(S) -> T,
    ) {
        // The first run fills caches and buffers; it is not counted.
        drop(black_box(work(setup())));
        let (mut times, mut allocations) = (Vec::new(), 0);
        let mut total = Duration::ZERO;
        while times.len() < RUNS_MIN || total < TIME {
            let input = setup();
            let region = Region::new(ALLOCATOR);
            let begin = Instant::now();
            let output = black_box(work(input));
            let took = begin.elapsed();
            let change = region.change();
            allocations = change.allocations + change.reallocations;
            drop(output);
            times.push(took);
            total += took;
        }
        times.sort_unstable();
        let each = |time: Duration| time.as_nanos() as f64 / items.max(1) as f64;
        self.lines.push(Line {
            group: self.group,
            name: name.to_owned(),
            item,
            items,
            runs: times.len(),
            min_ns: each(times[0]),
            median_ns: each(times[times.len() / 2]),
            allocations: allocations as f64 / items.max(1) as f64,
        });
    }

    /// Measures `work`, which needs nothing made for it.
    pub fn run<T>(&mut self, name: &str, item: &'static str, items: u64, work: impl FnMut() -> T) {
        let mut work = work;
        self.with_setup(name, item, items, || (), |()| work());
    }

    /// Says what a reader has to know.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}

/// Runs the bench and prints its report.
///
/// # Errors
/// When a group cannot be set up.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut lines = Lines {
        group: "",
        lines: Vec::new(),
        notes: Vec::new(),
    };
    for &(name, measure) in GROUPS {
        if !args.group.is_empty() && !args.group.iter().any(|group| group == name) {
            continue;
        }
        eprintln!("{name}");
        lines.group = name;
        measure(&mut lines)?;
    }
    let report = Report {
        machine: Machine::here(),
        lines: lines.lines,
        notes: lines.notes,
    };
    report::put(&report, args.json.as_deref(), text)
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "path",
        "item",
        "items",
        "runs",
        "ns min",
        "ns median",
        "allocations",
    ]);
    for line in &report.lines {
        table.row([
            format!("{}: {}", line.group, line.name),
            line.item.to_owned(),
            report::count(Some(line.items)),
            line.runs.to_string(),
            number(Some(line.min_ns), 1),
            number(Some(line.median_ns), 1),
            number(Some(line.allocations), 3),
        ]);
    }
    let mut text = report::machine(&report.machine);
    text +=
        "times and allocations are for one item; counting costs each allocation two atomics\n\n";
    text += &table.text();
    for note in &report.notes {
        text += &format!("  {note}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted_for_each_item() {
        let mut lines = Lines {
            group: "test",
            lines: Vec::new(),
            notes: Vec::new(),
        };
        // Other tests of this program allocate at the same time: at least what is asked for here.
        lines.run("boxes", "box", 100, || {
            (0..100u64).map(Box::new).collect::<Vec<_>>()
        });
        let line = &lines.lines[0];
        assert!(line.allocations >= 1.0 && line.runs >= RUNS_MIN);
        assert!(line.min_ns <= line.median_ns);
    }
}
