//! `perf record`, alone and with `perf script` and folding after it: with frame pointers, and with
//! copies of the user stack that `perf script` unwinds.

use super::{Measured, Outcome, RATE_HZ, Recorded, Stage};
use crate::contained::{Contained, Ended, bytes_in};
use crate::stacks::Counted;
use std::path::Path;
use std::time::Duration;
use testkit::perf::PerfSample;

/// Longest that frame-pointer stacks may take to be printed, and the text to be folded.
const SCRIPT_LIMIT: Duration = Duration::from_secs(300);
/// Longest that copied stacks may take to be unwound and printed. What is printed by then counts.
const UNWIND_LIMIT: Duration = Duration::from_secs(150);
/// Longest recording with stack copies: 3 MB a second on two CPUs, and unwinding takes longer than
/// recording.
const COPY_LENGTH_MAX: Duration = Duration::from_secs(30);

/// `perf record -F 99 -a -g`, then `perf script --no-inline` and folding.
pub fn frame_pointers(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let ways = Ways {
        record: "-g",
        names: ["perf record -g", "perf record -g + script + fold"],
        length: stage.length,
        script_limit: SCRIPT_LIMIT,
    };
    measure(stage, &ways)
}

/// `perf record --call-graph dwarf,16384`, then `perf script --no-inline` and folding.
pub fn stack_copies(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let ways = Ways {
        record: "--call-graph dwarf,16384",
        names: [
            "perf record --call-graph dwarf,16384",
            "perf record dwarf + script + fold",
        ],
        length: stage.length.min(COPY_LENGTH_MAX),
        script_limit: UNWIND_LIMIT,
    };
    measure(stage, &ways)
}

struct Ways {
    record: &'static str,
    names: [&'static str; 2],
    length: Duration,
    script_limit: Duration,
}

fn measure(stage: &Stage<'_>, ways: &Ways) -> anyhow::Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, script, folded) = (path("perf.data"), path("script"), path("folded"));
    let line = format!(
        r#"exec perf record -q -F {RATE_HZ} -a {} -o "$1""#,
        ways.record
    );
    let recorded = match stage.record(dir.path(), ways.length, &line, &[&data])? {
        Ok(recorded) => recorded,
        Err(reason) => return Ok(Err(reason)),
    };
    let Some((samples, lost)) = count(dir.path(), &data)? else {
        return Ok(Err(format!("no samples: {}", recorded.ended.reason())));
    };
    let recorded_bytes = std::fs::metadata(&data).map_or(0, |meta| meta.len());

    // Inlined functions cost perf 6.1 minutes more; the daemon does not look them up either.
    let line = format!(
        r#"exec perf {} --no-inline -i "$1" > "$2""#,
        testkit::perf::SCRIPT.join(" ")
    );
    let printed = step(
        dir.path(),
        "print",
        &line,
        &[&data, &script],
        ways.script_limit,
    )?;
    let own = std::env::current_exe()?.display().to_string();
    let line = r#"exec "$1" fold "$2" > "$3""#;
    let fold = step(
        dir.path(),
        "fold",
        line,
        &[&own, &script, &folded],
        SCRIPT_LIMIT,
    )?;

    let text = String::from_utf8_lossy(&std::fs::read(&script)?).into_owned();
    let stacks = testkit::perf::parse(&text);
    let busy: Vec<&PerfSample> = stacks.iter().filter(|sample| !sample.is_idle()).collect();
    let mut counted = Counted::default();
    for sample in &busy {
        counted.add(sample.frames.iter().map(|(name, _)| name.as_str()), 1);
    }
    let alone = Measured {
        lost: Some(lost),
        written_bytes: recorded_bytes,
        ..recorded.row(
            ways.names[0],
            "raw records in a file: neither named nor folded",
            Some(samples),
        )
    };
    let whole = whole(
        ways,
        &recorded,
        &alone,
        (&printed, &fold),
        stacks.len() as u64,
    );
    Ok(Ok(vec![
        alone,
        Measured {
            complete: counted.share(),
            written_bytes: bytes_in(dir.path()),
            ..whole
        },
    ]))
}

/// The row of all steps. When printing was cut short, its cost is that of the samples it came to.
fn whole(
    ways: &Ways,
    recorded: &Recorded,
    alone: &Measured,
    (printed, fold): (&Ended, &Ended),
    stacks: u64,
) -> Measured {
    let samples = alone.samples.unwrap_or(0);
    let after_s = (printed.cpu_ns + fold.cpu_ns) as f64 * 1e-9;
    let mut note = "named and folded after the fact; folded by inferno".to_owned();
    if !printed.success {
        let limit = ways.script_limit.as_secs();
        note += &format!("; printing was stopped after {limit} s at {stacks} of {samples} samples");
    }
    let after_per_10k = super::per_10k(after_s, stacks as f64);
    let peak = |ended: &Ended| ended.rss_peak_bytes;
    Measured {
        name: ways.names[1],
        note,
        cpu_s: alone.cpu_s + after_s,
        cpu_s_per_10k: alone.cpu_s_per_10k.map(|cost| cost + after_per_10k),
        steady_cpu_s_per_10k: alone.steady_cpu_s_per_10k.map(|cost| cost + after_per_10k),
        rss_peak_bytes: peak(&recorded.ended).max(peak(printed)).max(peak(fold)),
        ..alone.clone()
    }
}

fn step(
    dir: &Path,
    name: &str,
    line: &str,
    args: &[&str],
    limit: Duration,
) -> anyhow::Result<Ended> {
    Contained::start(dir, name, line, args).finish(limit)
}

/// Samples and lost samples of a recording, counted without unwinding any.
fn count(dir: &Path, data: &str) -> anyhow::Result<Option<(u64, u64)>> {
    let line = r#"exec perf script -F pid,time --show-lost-events -i "$1""#;
    let ended = step(dir, "count", line, &[data], SCRIPT_LIMIT)?;
    for name in ["count.out", "count.err"] {
        std::fs::remove_file(dir.join(name))?;
    }
    let (samples, lost) = counts(&ended.stdout);
    Ok((samples > 0).then_some((samples, lost)))
}

/// Reads the lines `PID TIME:` and those of `PERF_RECORD_LOST … lost N`.
fn counts(text: &str) -> (u64, u64) {
    let (mut samples, mut lost) = (0, 0);
    for line in text.lines() {
        if line.contains("PERF_RECORD_LOST") {
            let words = line.rsplit_once("lost ").map(|(_, rest)| rest.trim());
            lost += words.and_then(|count| count.parse().ok()).unwrap_or(0);
        } else if line.trim_end().ends_with(':') {
            samples += 1;
        }
    }
    (samples, lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_losses_are_counted() {
        let text = "\
             17  6245.123456: \n\
             -1  6245.123457: PERF_RECORD_LOST lost 5\n\
             17  6245.223456: \n";
        assert_eq!(counts(text), (2, 5));
    }
}
