//! `agent-ctl status`: what the agent is doing, what it costs and what is degraded. `collector.rs`
//! shows a collector's.

mod collector;
mod export;
mod json;
mod store;

use crate::client::Client;
use crate::degradation::severity;
use crate::form::Form;
use crate::peer::{Connection, Peer};
use crate::terminal::{Out, Table, Tone, clean, hang};
use crate::when::Clock;
use crate::{exit, runtimes, summary, units};
use anyhow::Result;
use profile::{Coverage, Quality};
use proto::agent::{
    Budget, CpuStatus, Environment, GetStatusResponse, Governed, Outcome, OwnCost, Sampling,
    Sandbox, Severity,
};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Shows what the agent or collector is doing, what it costs and what is degraded.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 6: the agent answers but gets no samples, or the collector has a warning or an error.

Examples:
  agent-ctl status
  agent-ctl status --cpus --counters --verbose
  agent-ctl status --json | jq .own_cost.rss_bytes
  agent-ctl --collector c1 status")]
pub struct Args {
    /// Show a row for each CPU (agent only)
    #[arg(long)]
    cpus: bool,
    /// Show all counters of drops and limits that are not zero
    #[arg(long)]
    counters: bool,
    /// Show the CPU time of each thread (agent only)
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    form: Form,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    if peer.is_collector() {
        return collector::run(out, connection, &peer, args).await;
    }
    agent(out, connection, &peer, args).await
}

async fn agent(out: &Out, connection: &Connection, peer: &Peer, args: Args) -> Result<u8> {
    let status = Client::connect(connection, peer).await?.status().await?;
    if args.form.is_json() {
        out.write_json(&json::Json::of(&status))?;
    } else {
        out.write(&show(out, &status, &args))?;
    }
    let arrive = status
        .sampling
        .as_ref()
        .is_some_and(|sampling| sampling.samples_arrive);
    let mut found = status.degradations.iter();
    let is_well = arrive && !found.any(|found| found.severity() == Severity::Error);
    Ok(if is_well { exit::OK } else { exit::PARTIAL })
}

/// CPU seconds per second since the start, as a share of one CPU.
pub fn own_share(status: &GetStatusResponse) -> f64 {
    let cost = status.own_cost.as_ref().map_or(0, |cost| cost.cpu_ns);
    let uptime = status
        .now_unix_ns
        .saturating_sub(status.started_unix_ns)
        .max(0);
    units::share(cost, uptime.unsigned_abs())
}

/// Time since a moment of the agent's clock.
fn age(status: &GetStatusResponse, unix_ns: i64) -> String {
    let age = status.now_unix_ns.saturating_sub(unix_ns).max(0);
    units::duration(Duration::from_secs(age.unsigned_abs() / 1_000_000_000))
}

/// Column at which values start, and go on where they are long.
const VALUE_COLUMN: usize = 11;

/// What the columns of CPUs count, which is not what `quality` does.
const CPUS_LEGEND: &str = "\
SAMPLES includes idle CPUs, which `quality` leaves out. MISSED counts samples that the CPU's clock \
should have taken but that were lost or throttled. LOST counts records of any kind that found no \
room in the ring.
";

/// Smallest share of an end of stacks that is shown: below it would be `0.0 %`.
const END_SHARE_MIN: f64 = 0.0005;

fn show(out: &Out, status: &GetStatusResponse, args: &Args) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let name = out.tone(Tone::Strong, &format!("{name:<10}"));
        let _ = writeln!(text, "{name} {value}");
    };
    let clock = Clock::at(status.now_unix_ns);
    let sampling = status.sampling.clone().unwrap_or_default();
    line("agent", running(status));
    line("sampling", sampled(&sampling));
    line("unwinding", unwinding(&sampling));
    line("samples", arrival(out, &sampling));
    let quality = Quality::from(status.quality.unwrap_or_default());
    let (taken, missing) = (units::count(quality.taken), summary::missing(&quality));
    line("quality", format!("{taken} taken; {missing}"));
    if !status.stack_ends.is_empty() {
        line("stacks", stack_ends(&status.stack_ends));
    }
    if !status.runtimes.is_empty() {
        line("generated", runtimes::line(&status.runtimes));
    }
    line("coverage", recent(status));
    for (name, text) in recorder_lines(status, &clock) {
        line(name, text);
    }
    if let Some(export) = &status.export {
        let lines = export::lines(export, status.now_unix_ns, |ns| age(status, ns));
        for (number, text) in lines.into_iter().enumerate() {
            line(if number == 0 { "collector" } else { "" }, text);
        }
    }
    let cost = status.own_cost.clone().unwrap_or_default();
    line("own cost", own_cost(status, &cost));
    if let Some(budget) = &status.budget {
        for (name, text) in budget_lines(budget, &clock) {
            line(name, text);
        }
    }
    if let Some(sandbox) = &status.sandbox {
        line("sandbox", sandboxed(sandbox));
    }
    if args.verbose && !cost.cpu_ns_by_thread.is_empty() {
        line("threads", threads(&cost));
    }
    if let Some(env) = &status.environment {
        line("kernel", kernel(env));
    }
    if !sampling.missing_features.is_empty() {
        let missing = sampling.missing_features.join(", ");
        line("without", clean(&missing).into_owned());
    }
    text.push_str(&degradations(out, &status.degradations));
    text = hang(&text, out.columns(), VALUE_COLUMN);
    if args.cpus {
        let _ = write!(text, "\n{}", cpus(&status.cpus).show(out));
        text.push_str(&hang(CPUS_LEGEND, out.columns(), 0));
    }
    if args.counters {
        let _ = write!(text, "\n{}", counters(&status.counters).show(out));
    }
    text
}

fn running(status: &GetStatusResponse) -> String {
    format!(
        "fleetprofd {} on {} (Linux {}), up {}",
        clean(&status.version),
        clean(&status.host),
        clean(&status.kernel),
        age(status, status.started_unix_ns)
    )
}

fn sampled(sampling: &Sampling) -> String {
    let asked = if sampling.event == sampling.requested_event {
        String::new()
    } else {
        format!(" ({} was asked for)", clean(&sampling.requested_event))
    };
    format!(
        "{}{asked} at {} Hz on {} of {} CPUs, {} a ring",
        clean(&sampling.event),
        sampling.rate_hz,
        sampling.cpus_sampled,
        sampling.cpus_online,
        units::bytes(sampling.ring_bytes_per_cpu),
    )
}

fn arrival(out: &Out, sampling: &Sampling) -> String {
    if !sampling.samples_arrive {
        return out.tone(Tone::Bad, "do not arrive: see agent-ctl doctor");
    }
    let newest = units::duration(Duration::from_nanos(sampling.last_sample_age_ns));
    let arrive = out.tone(Tone::Good, "arrive");
    format!("{arrive}, the newest {newest} ago")
}

fn recorder_lines(status: &GetStatusResponse, clock: &Clock) -> Vec<(&'static str, String)> {
    let recorder = status.recorder.unwrap_or_default();
    let size = format!(
        "{} of {}, {} windows of {} s ({} downsampled), {} dropped",
        units::bytes(recorder.bytes),
        units::bytes(recorder.budget_bytes),
        units::count(recorder.windows.into()),
        recorder.window_seconds,
        units::count(recorder.downsampled_windows.into()),
        units::count(recorder.dropped_windows)
    );
    let mut lines = vec![("recorder", size)];
    if recorder.windows > 0 {
        let range = format!(
            "{} ({} ago)",
            clock.show_range(recorder.oldest_unix_ns, recorder.newest_unix_ns),
            age(status, recorder.oldest_unix_ns),
        );
        lines.push(("", range));
    }
    lines
}

fn own_cost(status: &GetStatusResponse, cost: &OwnCost) -> String {
    format!(
        "{:.2} % of one CPU, {} resident, {} wake-ups",
        own_share(status) * 100.0,
        units::bytes(cost.rss_bytes),
        units::count(cost.wakeups)
    )
}

/// What stands in place of threads where all are confined.
const ALL_THREADS: &str = "all";

/// What the daemon has given up, and why not more.
fn sandboxed(sandbox: &Sandbox) -> String {
    if !sandbox.on {
        return "off (`sandbox`)".to_owned();
    }
    let why = |error: &str| match error {
        "" => String::new(),
        error => format!(" ({})", clean(error)),
    };
    let landlock = match (sandbox.landlock_abi, sandbox.confined.len()) {
        (0, 0) if sandbox.landlock_error.is_empty() => "landlock on no thread".to_owned(),
        (0, _) => format!("no landlock{}", why(&sandbox.landlock_error)),
        (abi, 1) if sandbox.confined == [ALL_THREADS] => {
            let ports = match (sandbox.listens_confined, sandbox.connects_confined) {
                (true, true) => "",
                (true, false) => ", TCP to any port",
                _ => ", any TCP port",
            };
            format!("landlock ABI {abi} on every thread{ports}")
        }
        (abi, 1) => format!(
            "landlock ABI {abi} on 1 thread{}",
            why(&sandbox.landlock_error)
        ),
        (abi, threads) => format!(
            "landlock ABI {abi} on {threads} threads{}",
            why(&sandbox.landlock_error)
        ),
    };
    let seccomp = match sandbox.seccomp {
        true => "seccomp on".to_owned(),
        false => format!("seccomp off{}", why(&sandbox.seccomp_error)),
    };
    format!("{landlock}, {seccomp}")
}

fn threads(cost: &OwnCost) -> String {
    let threads: BTreeMap<_, _> = cost.cpu_ns_by_thread.iter().collect();
    let threads = threads.into_iter();
    let threads = threads.map(|(name, &ns)| format!("{} {:.2} s", clean(name), ns as f64 / 1e9));
    threads.collect::<Vec<String>>().join(", ")
}

fn kernel(env: &Environment) -> String {
    format!(
        "perf_event_paranoid {}, max_stack {}, mlock_kb {}, max_sample_rate {}, \
         kptr_restrict {} (symbols {}), cgroups {} at {}",
        env.perf_event_paranoid,
        env.perf_event_max_stack,
        env.perf_event_mlock_kb,
        env.perf_event_max_sample_rate,
        env.kptr_restrict,
        if env.kernel_symbols {
            "shown"
        } else {
            "hidden"
        },
        clean(&env.cgroup_mode),
        clean(&env.cgroup_root)
    )
}

fn cpus(cpus: &[CpuStatus]) -> Table {
    let mut table = Table::new(&[
        ">CPU",
        ">SAMPLES",
        ">MISSED",
        ">LOST",
        ">THROTTLED",
        "PRESENCE",
    ]);
    for cpu in cpus {
        table.row([
            cpu.cpu.to_string(),
            units::count(cpu.samples),
            units::count(cpu.missed_samples),
            units::count(cpu.lost),
            units::count(cpu.throttled),
            presence(cpu.online, cpu.away_ns),
        ]);
    }
    table
}

/// What is degraded, with how to fix it.
fn degradations(out: &Out, degradations: &[proto::agent::Degradation]) -> String {
    let mut text = String::new();
    for degradation in degradations {
        let (word, tone) = severity(degradation.severity());
        let _ = writeln!(
            text,
            "{} {}: {}",
            out.tone(tone, &format!("{word:<10}")),
            clean(&degradation.id),
            clean(&degradation.message)
        );
        if !degradation.remedy.is_empty() {
            let _ = writeln!(
                text,
                "{:<10} {}{}",
                "",
                exit::REMEDY,
                clean(&degradation.remedy)
            );
        }
    }
    text
}

/// The counters that are not zero.
fn counters(counters: &[proto::agent::Counter]) -> Table {
    let mut table = Table::new(&["COUNTER", ">VALUE"]);
    for counter in counters.iter().filter(|counter| counter.value > 0) {
        let labels = match counter.labels.as_str() {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        table.row([
            format!("{}{labels}", counter.name),
            units::count(counter.value),
        ]);
    }
    table
}

/// How user stacks are walked, and why by less than what is configured.
fn unwinding(sampling: &Sampling) -> String {
    let mut text = clean(&sampling.unwind).into_owned();
    if sampling.stack_bytes > 0 {
        let _ = write!(
            text,
            ", {} of each stack, tables {} of {}",
            units::bytes(sampling.stack_bytes.into()),
            units::bytes(sampling.unwind_cache_bytes),
            units::bytes(sampling.unwind_cache_bytes_max)
        );
    }
    if !sampling.reduced.is_empty() {
        let _ = write!(text, "; {}", clean(&sampling.reduced));
    }
    text
}

/// Shares of the ways in which stacks ended, most first.
fn stack_ends(ends: &[Outcome]) -> String {
    let total = ends.iter().map(|end| end.samples).sum();
    let mut ends: Vec<&Outcome> = ends.iter().collect();
    ends.retain(|end| units::share(end.samples, total) >= END_SHARE_MIN);
    ends.sort_by_key(|end| std::cmp::Reverse(end.samples));
    let share = |end: &&Outcome| {
        format!(
            "{} {}",
            clean(&end.word),
            units::percent(end.samples, total)
        )
    };
    let shares: Vec<String> = ends.iter().map(share).collect();
    shares.join(", ")
}

/// Both budgets: what is used, what is allowed, what is limited and since when.
fn budget_lines(budget: &Budget, clock: &Clock) -> [(&'static str, String); 2] {
    let cpu_share = |ppm: u64| format!("{:.2} %", ppm as f64 / 10_000.0);
    let limited = |governed: &Governed| match governed.level {
        0 => String::new(),
        level => format!(
            "; step {level} of {} since {}: {} ({})",
            governed.lowest_level,
            clock.show(governed.since_unix_ns),
            clean(&governed.limits),
            clean(&governed.reason)
        ),
    };
    let cpu = budget.cpu.clone().unwrap_or_default();
    let memory = budget.memory.clone().unwrap_or_default();
    [
        (
            "budget",
            format!(
                "{} of {} of one CPU over the last minute, {} more for answers{}",
                cpu_share(cpu.used),
                cpu_share(cpu.budget),
                cpu_share(budget.serving_cpu_ppm),
                limited(&cpu)
            ),
        ),
        (
            "",
            format!(
                "{} of {} of memory{}",
                units::bytes(memory.used),
                units::bytes(memory.budget),
                limited(&memory)
            ),
        ),
    ]
}

/// Coverage of the last minute.
fn recent(status: &GetStatusResponse) -> String {
    let coverage = Coverage::from(status.coverage.unwrap_or_default());
    let lost = units::count(status.recent_lost_samples);
    match summary::coverage(&coverage, profile::unit::TIME) {
        None if coverage.windows == 0 => "no window is closed yet".to_owned(),
        None => "the kernel's CPU accounting is not known".to_owned(),
        Some(text) => format!("last minute: {text}; {lost} samples lost"),
    }
}

/// Whether a CPU runs, and how long it did not.
fn presence(online: bool, away_ns: u64) -> String {
    let away = units::duration(Duration::from_nanos(away_ns));
    match (online, away_ns) {
        (true, 0) => "online".to_owned(),
        (true, _) => format!("online, was away {away}"),
        (false, _) => format!("offline for {away} in all"),
    }
}
