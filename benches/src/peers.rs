//! `perf record` alone, and with `perf script` and folding after it, on the load that runs.

use anyhow::{Context, ensure};
use fixtures::process::run;
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What a step may take beyond the time it records.
const SLACK: Duration = Duration::from_secs(300);

/// One way to a profile.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// What runs.
    pub name: &'static str,
    /// Length of the recording. Unit: seconds.
    pub seconds: u64,
    /// Samples in it.
    pub samples: u64,
    /// CPU time, all steps. Unit: seconds.
    pub cpu_s: f64,
    /// What the comparison has to know.
    pub note: &'static str,
}

impl Peer {
    /// CPU seconds for 10,000 samples.
    pub fn cpu_s_per_10k(&self) -> f64 {
        self.cpu_s / self.samples.max(1) as f64 * 10_000.0
    }
}

/// Runs a command line under bash's `time` and returns its CPU seconds, those of its children
/// included.
fn timed(line: &str, args: &[&str], limit: Duration) -> anyhow::Result<f64> {
    let mut command = Command::new("bash");
    command
        .arg("-c")
        .arg(format!("TIMEFORMAT='cpu %U %S'; time {line}"))
        .arg("bash")
        .args(args);
    let out = run(&mut command, limit);
    ensure!(
        out.code == Some(0),
        "failed to run `{line}`: {}",
        out.stderr.trim()
    );
    let times = out
        .stderr
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("cpu "));
    let times = times.with_context(|| format!("no times in `{}`", out.stderr.trim()))?;
    times
        .split(' ')
        .map(|field| field.parse::<f64>().map_err(anyhow::Error::from))
        .sum()
}

/// Measures both ways over one recording of `length`.
///
/// # Errors
/// When perf or bash fails.
pub fn measure(length: Duration) -> anyhow::Result<[Peer; 2]> {
    let dir = tempfile::tempdir()?;
    let text = |path: &Path| path.display().to_string();
    let data = text(&dir.path().join("perf.data"));
    let script = text(&dir.path().join("perf.script"));
    let folded = text(&dir.path().join("perf.folded"));
    let seconds = length.as_secs();

    let record = r#"perf record -q -F 99 -a -g -o "$1" sleep "$2""#;
    let record_s = timed(record, &[&data, &seconds.to_string()], length + SLACK)?;
    let print = format!(
        r#"perf {} -i "$1" > "$2""#,
        fixtures::perf::SCRIPT.join(" ")
    );
    let script_s = timed(&print, &[&data, &script], SLACK)?;
    let own = text(&std::env::current_exe()?);
    let fold_s = timed(r#""$1" fold "$2" > "$3""#, &[&own, &script, &folded], SLACK)?;

    // The folding that is timed leaves out nothing, so its counts are the samples.
    let counts = std::fs::read_to_string(&folded)?;
    let count = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|field| field.parse::<u64>().ok())
    };
    let samples = counts.lines().filter_map(count).sum();
    ensure!(samples > 0, "perf recorded nothing");
    Ok([
        Peer {
            name: "perf record -F 99 -a -g",
            seconds,
            samples,
            cpu_s: record_s,
            note: "raw addresses in a file: neither named nor folded; idle samples included",
        },
        Peer {
            name: "perf record + perf script + folding",
            seconds,
            samples,
            cpu_s: record_s + script_s + fold_s,
            note: "named and folded after the fact; the folding is our own",
        },
    ])
}
