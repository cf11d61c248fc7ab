//! Stacks of the daemon with stack copies and of `perf record --call-graph dwarf` over the same
//! seconds of the mixed load.

use super::agreement::{self, Agreement, Stack};
use crate::contained::Contained;
use crate::load::Load;
use crate::peers::{RATE_HZ, SETTLE};
use crate::stacks::{Counted, plain};
use crate::watched::Watched;
use anyhow::{Context, ensure};
use profile::FrameKind;
use proto::agent::{QueryProfileRequest, TimeRange};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use testkit::perf::{KernelAliases, PerfSample};
use testkit::{View, clock};

/// Longest that perf may unwind. What it has printed by then is compared.
const UNWIND_LIMIT: Duration = Duration::from_secs(180);
/// How long perf goes on after the time that is compared: answers are widened to whole windows, of
/// which one is a second long.
const AFTER: Duration = Duration::from_secs(2);
/// Left out at the end when perf was stopped while unwinding: a window, and what may be out of
/// order.
const CUT_NS: i64 = 1_500_000_000;

/// What was compared.
#[derive(Debug, Serialize)]
pub struct Whole {
    /// Time that both cover.
    pub seconds: f64,
    /// What ran.
    pub load: Vec<&'static str>,
    /// False when perf was stopped before it had unwound all.
    pub unwound_all: bool,
    /// All, then by program, the most sampled first.
    pub programs: Vec<Program>,
    /// How far the two agree.
    pub agreement: Agreement,
}

/// Whole stacks of a program in both profiles.
#[derive(Debug, Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// In the daemon's.
    pub daemon: Counted,
    /// In perf's.
    pub perf: Counted,
}

/// Measures for `length`.
///
/// # Errors
/// When perf or the daemon fails.
pub fn measure(length: Duration, settings: &[String]) -> anyhow::Result<Whole> {
    let load = Load::start()?;
    let mut settings = settings.to_vec();
    settings.push("windows.length_s=1".to_owned());
    let daemon = Watched::start("stack-copy", &settings);
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("perf.data").display().to_string();
    let line = format!(
        r#"exec perf record -q -F {RATE_HZ} -a --call-graph dwarf,16384 -e cpu-clock -k CLOCK_MONOTONIC -o "$1""#
    );
    let mut perf = Contained::start(dir.path(), "record", &line, &[&data]);
    ensure!(perf.watch(SETTLE), "perf does not record");
    let begin = clock::unix_ns();
    ensure!(perf.watch(length), "perf does not record");
    let mut end = clock::unix_ns();
    let offset = clock::wall_minus_mono();
    perf.watch(AFTER);
    perf.interrupt();
    perf.finish(UNWIND_LIMIT)?;
    let names = load.names().to_vec();
    drop(load);

    let line = format!(
        r#"exec perf {} --no-inline -i "$1""#,
        testkit::perf::SCRIPT.join(" ")
    );
    let printed = Contained::start(dir.path(), "print", &line, &[&data]).finish(UNWIND_LIMIT)?;
    let theirs = testkit::perf::parse(&printed.stdout);
    let last = theirs
        .last()
        .with_context(|| format!("perf printed no samples: {}", printed.reason()))?;
    if !printed.success {
        end = end.min(last.mono_ns as i64 + offset - CUT_NS);
    }
    let request = QueryProfileRequest {
        range: Some(TimeRange {
            start_unix_ns: begin,
            end_unix_ns: end,
        }),
        group_by: vec!["*".to_owned()],
        ..QueryProfileRequest::default()
    };
    let ours = daemon.client().query_until(&request, end);
    let covered_end = ours.info.start_unix_ns + ours.info.duration_ns as i64;
    let covered = ours.info.start_unix_ns..covered_end;
    let inside = |sample: &&PerfSample| {
        covered.contains(&(sample.mono_ns as i64 + offset)) && !sample.is_idle()
    };
    let theirs: Vec<&PerfSample> = theirs.iter().filter(inside).collect();
    ensure!(!theirs.is_empty(), "perf and the daemon share no time");
    let aliases = KernelAliases::load();
    Ok(Whole {
        seconds: ours.info.duration_ns as f64 * 1e-9,
        load: names,
        unwound_all: printed.success,
        programs: programs(&ours, &theirs),
        agreement: agreement::of(
            &our_stacks(&ours, &aliases),
            &their_stacks(&theirs, &aliases),
        ),
    })
}

fn programs(ours: &View, theirs: &[&PerfSample]) -> Vec<Program> {
    let mut by_name = BTreeMap::<&str, (Counted, Counted)>::new();
    let mut all = (Counted::default(), Counted::default());
    for sample in &ours.samples {
        let names = || sample.frames.iter().map(|frame| frame.function.as_str());
        // perf's name is the thread's.
        let name = sample.label(profile::key::THREAD);
        by_name
            .entry(name)
            .or_default()
            .0
            .add(names(), sample.count);
        all.0.add(names(), sample.count);
    }
    for sample in theirs {
        let names = || sample.frames.iter().map(|(name, _)| name.as_str());
        by_name.entry(&sample.comm).or_default().1.add(names(), 1);
        all.1.add(names(), 1);
    }
    let mut programs: Vec<Program> = by_name
        .into_iter()
        .map(|(name, (daemon, perf))| Program {
            name: name.to_owned(),
            daemon,
            perf,
        })
        .collect();
    programs.sort_by_key(|row| std::cmp::Reverse(row.daemon.stacks + row.perf.stacks));
    let all = Program {
        name: "all".to_owned(),
        daemon: all.0,
        perf: all.1,
    };
    programs.insert(0, all);
    programs
}

/// The daemon's stacks, without inlined functions, which perf was asked to leave out.
fn our_stacks<'a>(view: &'a View, aliases: &'a KernelAliases) -> Vec<Stack<'a>> {
    let stack = |sample: &'a testkit::ViewSample| Stack {
        frames: sample
            .frames
            .iter()
            .filter(|frame| frame.kind != FrameKind::Inlined)
            .map(|frame| same(&frame.function, &frame.module, aliases))
            .collect(),
        count: sample.count,
    };
    view.samples.iter().map(stack).collect()
}

fn their_stacks<'a>(samples: &[&'a PerfSample], aliases: &'a KernelAliases) -> Vec<Stack<'a>> {
    let stack = |sample: &&'a PerfSample| Stack {
        frames: sample
            .frames
            .iter()
            .map(|(name, module)| same(name, module, aliases))
            .collect(),
        count: 1,
    };
    samples.iter().map(stack).collect()
}

/// One name for what both call differently: no parameters, no versions, one of several names of a
/// kernel address, and the file's name where the function has none.
fn same<'a>(function: &'a str, module: &'a str, aliases: &'a KernelAliases) -> &'a str {
    if function.starts_with('[') {
        let base = module.rsplit('/').next().unwrap_or(module);
        return if base.is_empty() { function } else { base };
    }
    let name = match function.split_once('(') {
        Some((name, _)) if !name.is_empty() => name,
        _ => function,
    };
    aliases.one(plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_words_for_a_frame_without_a_name_are_the_same() {
        let none = KernelAliases::default();
        let ours = same("[cc1]", "cc1", &none);
        assert_eq!(ours, same("[unknown]", "/usr/lib/gcc/cc1", &none));
        assert_eq!(same("a::b(int) const", "x", &none), "a::b");
        assert_eq!(same("memcpy@@GLIBC_2.14", "libc.so.6", &none), "memcpy");
    }
}
