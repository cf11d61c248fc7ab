//! How stacks of each program ended and how many of their frames have names, by the daemon's own
//! word.

use crate::report::{Table, count, percent};
use profile::{UnnamedReason, key};
use serde::Serialize;
use std::collections::BTreeMap;
use testkit::View;

/// Programs shown; the rest is added up.
const ROWS: usize = 16;

/// One program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Program {
    /// Name of its processes.
    pub name: String,
    /// Samples.
    pub samples: u64,
    /// Samples with a complete stack.
    pub whole: u64,
    /// Frames, times samples.
    pub frames: u64,
    /// Those of the frames that have a name.
    pub named: u64,
    /// Frames without a name whose file has no symbols at all.
    pub without_symbols: u64,
    /// Samples that are not complete, by the reason.
    pub ends: BTreeMap<&'static str, u64>,
}

impl Program {
    fn add(&mut self, other: &Program) {
        self.samples += other.samples;
        self.whole += other.whole;
        self.frames += other.frames;
        self.named += other.named;
        self.without_symbols += other.without_symbols;
        for (&end, &samples) in &other.ends {
            *self.ends.entry(end).or_default() += samples;
        }
    }
}

/// All programs of a profile, those with most samples first, and their sum.
pub fn of(view: &View) -> Vec<Program> {
    let mut by_name: BTreeMap<&str, Program> = BTreeMap::new();
    for sample in &view.samples {
        let mut program = Program {
            samples: sample.count,
            ..Program::default()
        };
        if sample.end.is_complete() {
            program.whole = sample.count;
        } else {
            program.ends.insert(sample.end.word(), sample.count);
        }
        for frame in &sample.frames {
            program.frames += sample.count;
            match frame.unnamed {
                UnnamedReason::No => program.named += sample.count,
                UnnamedReason::NoSymbols => program.without_symbols += sample.count,
                _ => {}
            }
        }
        by_name
            .entry(sample.label(key::COMM))
            .or_default()
            .add(&program);
    }
    let mut all = Program {
        name: "all".to_owned(),
        ..Program::default()
    };
    let mut programs: Vec<Program> = by_name
        .into_iter()
        .map(|(name, program)| {
            all.add(&program);
            Program {
                name: name.to_owned(),
                ..program
            }
        })
        .collect();
    programs.sort_by_key(|program| std::cmp::Reverse(program.samples));
    let mut rest = Program {
        name: format!("{} others", programs.len().saturating_sub(ROWS)),
        ..Program::default()
    };
    for program in programs.drain(ROWS.min(programs.len())..) {
        rest.add(&program);
    }
    programs.extend((rest.samples > 0).then_some(rest));
    programs.push(all);
    programs
}

/// The programs as a table.
pub fn table(mode: &str, programs: &[Program]) -> Table {
    let mode = format!("fleetprofd, {mode}");
    let mut table = Table::new(&[
        &mode,
        "samples",
        "complete stacks",
        "frames named",
        "where there are symbols",
        "not complete",
    ]);
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    for program in programs {
        let with_symbols = program.frames - program.without_symbols;
        let mut ends: Vec<_> = program.ends.iter().collect();
        ends.sort_by_key(|(_, samples)| std::cmp::Reverse(**samples));
        let ends: Vec<String> = ends
            .iter()
            .take(3)
            .map(|(end, samples)| format!("{samples} {end}"))
            .collect();
        table.row([
            program.name.clone(),
            count(Some(program.samples)),
            percent(share(program.whole, program.samples)),
            percent(share(program.named, program.frames)),
            percent(share(program.named, with_symbols)),
            ends.join(", "),
        ]);
    }
    table
}
