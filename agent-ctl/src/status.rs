//! `agent-ctl status`: what the agent is doing, what it costs and what is degraded.

use crate::client::{Client, Connection};
use crate::terminal::{Out, Table, Tone, clean};
use crate::when::{Clock, rfc3339};
use crate::{exit, summary, units};
use anyhow::Result;
use profile::Quality;
use proto::agent::{GetStatusResponse, Severity};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Shows what the agent is doing, what it costs and what is degraded.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit code 6: the agent answers, but no samples arrive.

Examples:
  agent-ctl status
  agent-ctl status --cpus --counters
  agent-ctl status --json | jq .own_cost.rss_bytes")]
pub struct Args {
    /// Add a row for each CPU
    #[arg(long)]
    cpus: bool,
    /// Add the counters of everything dropped or bounded that are not zero
    #[arg(long)]
    counters: bool,
    /// Print JSON, CPUs and counters included
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let status = Client::connect(connection).await?.status().await?;
    if args.json {
        out.write_json(&Json::of(&status))?;
    } else {
        out.write(&show(out, &status, &args))?;
    }
    let arrive = status
        .sampling
        .as_ref()
        .is_some_and(|sampling| sampling.samples_arrive);
    Ok(if arrive { exit::OK } else { exit::PARTIAL })
}

/// The word and tone of a severity.
pub fn severity(severity: Severity) -> (&'static str, Tone) {
    match severity {
        Severity::Error => ("error", Tone::Bad),
        Severity::Warning => ("warning", Tone::Warn),
        Severity::Info | Severity::Unspecified => ("info", Tone::Dim),
    }
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

fn show(out: &Out, status: &GetStatusResponse, args: &Args) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(
            text,
            "{} {value}",
            out.tone(Tone::Strong, &format!("{name:<10}"))
        );
    };
    let clock = Clock::at(status.now_unix_ns);
    let age = |ns: i64| {
        let age = status.now_unix_ns.saturating_sub(ns).max(0);
        units::duration(Duration::from_secs(age.unsigned_abs() / 1_000_000_000))
    };
    line(
        "agent",
        format!(
            "fleetprofd {} on {} (Linux {}), up {}",
            clean(&status.version),
            clean(&status.host),
            clean(&status.kernel),
            age(status.started_unix_ns)
        ),
    );
    let sampling = status.sampling.clone().unwrap_or_default();
    let asked = if sampling.event == sampling.requested_event {
        String::new()
    } else {
        format!(" ({} was asked for)", clean(&sampling.requested_event))
    };
    line(
        "sampling",
        format!(
            "{}{asked} at {} Hz on {} of {} CPUs, {} a ring, unwinding by {}",
            clean(&sampling.event),
            sampling.rate_hz,
            sampling.cpus_sampled,
            sampling.cpus_online,
            units::bytes(sampling.ring_bytes_per_cpu),
            clean(&sampling.unwind)
        ),
    );
    let newest = units::duration(Duration::from_nanos(sampling.last_sample_age_ns));
    line(
        "samples",
        if sampling.samples_arrive {
            format!(
                "{}, the newest {newest} ago",
                out.tone(Tone::Good, "arrive")
            )
        } else {
            out.tone(Tone::Bad, "do not arrive: see agent-ctl doctor")
        },
    );
    let quality = Quality::from(status.quality.unwrap_or_default());
    line(
        "quality",
        format!(
            "{} taken; {}",
            units::count(quality.taken),
            summary::missing(&quality)
        ),
    );
    let recorder = status.recorder.unwrap_or_default();
    line(
        "recorder",
        format!(
            "{} of {}, {} windows of {} s ({} coarser), {} dropped",
            units::bytes(recorder.bytes),
            units::bytes(recorder.budget_bytes),
            recorder.windows,
            recorder.window_seconds,
            recorder.coarse_windows,
            recorder.dropped_windows
        ),
    );
    if recorder.windows > 0 {
        line(
            "",
            format!(
                "from {} ({} ago) to {}",
                clock.show(recorder.oldest_unix_ns),
                age(recorder.oldest_unix_ns),
                clock.show_time(recorder.newest_unix_ns)
            ),
        );
    }
    let cost = status.own_cost.clone().unwrap_or_default();
    line(
        "own cost",
        format!(
            "{:.2} % of one CPU, {} resident, {} wake-ups",
            own_share(status) * 100.0,
            units::bytes(cost.rss_bytes),
            units::count(cost.wakeups)
        ),
    );
    let threads: BTreeMap<_, _> = cost.cpu_ns_by_thread.iter().collect();
    let threads: Vec<String> = threads
        .into_iter()
        .map(|(name, &ns)| format!("{} {:.2} s", clean(name), ns as f64 / 1e9))
        .collect();
    if !threads.is_empty() {
        line("", threads.join(", "));
    }
    if let Some(env) = &status.environment {
        line(
            "kernel",
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
            ),
        );
    }
    if !sampling.missing_features.is_empty() {
        line(
            "without",
            clean(&sampling.missing_features.join(", ")).into_owned(),
        );
    }
    for degradation in &status.degradations {
        let (word, tone) = severity(degradation.severity());
        let _ = writeln!(
            text,
            "{} {}: {}",
            out.tone(tone, &format!("{word:<10}")),
            clean(&degradation.id),
            clean(&degradation.message)
        );
        if !degradation.remedy.is_empty() {
            let _ = writeln!(text, "{:<10} mend it: {}", "", clean(&degradation.remedy));
        }
    }
    if args.cpus {
        let mut table = Table::new(&[">CPU", ">SAMPLES", ">LOST", ">THROTTLED"]);
        for cpu in &status.cpus {
            table.row([
                cpu.cpu.to_string(),
                units::count(cpu.samples),
                units::count(cpu.lost),
                units::count(cpu.throttled),
            ]);
        }
        let _ = write!(text, "\n{}", table.show(out));
    }
    if args.counters {
        let mut table = Table::new(&["COUNTER", ">VALUE"]);
        for counter in status.counters.iter().filter(|counter| counter.value > 0) {
            let labels = match counter.labels.as_str() {
                "" => String::new(),
                labels => format!("{{{labels}}}"),
            };
            table.row([
                format!("{}{labels}", counter.name),
                units::count(counter.value),
            ]);
        }
        let _ = write!(text, "\n{}", table.show(out));
    }
    text
}

#[derive(Serialize)]
struct Json<'a> {
    version: &'a str,
    host: &'a str,
    kernel: &'a str,
    started: String,
    now: String,
    sampling: Sampling<'a>,
    recorder: Recorder,
    own_cost: OwnCost<'a>,
    quality: Quality,
    degradations: Vec<Degradation<'a>>,
    cpus: Vec<Cpu>,
    counters: Vec<Counter<'a>>,
    environment: Option<Environment<'a>>,
}

#[derive(Serialize)]
struct Sampling<'a> {
    event: &'a str,
    requested_event: &'a str,
    rate_hz: u32,
    cpus_online: u32,
    cpus_sampled: u32,
    ring_bytes_per_cpu: u64,
    unwind: &'a str,
    missing_features: &'a [String],
    last_sample_age_ns: u64,
    samples_arrive: bool,
}

#[derive(Serialize)]
struct Recorder {
    oldest: String,
    newest: String,
    windows: u32,
    bytes: u64,
    budget_bytes: u64,
    window_seconds: u32,
    coarse_windows: u32,
    dropped_windows: u64,
}

#[derive(Serialize)]
struct OwnCost<'a> {
    cpu_ns: u64,
    cpu_share: f64,
    rss_bytes: u64,
    cpu_ns_by_thread: BTreeMap<&'a str, u64>,
    wakeups: u64,
}

/// A degradation as JSON.
#[derive(Serialize)]
pub struct Degradation<'a> {
    id: &'a str,
    severity: &'static str,
    message: &'a str,
    remedy: &'a str,
}

impl<'a> Degradation<'a> {
    /// One of the status.
    pub fn of(found: &'a proto::agent::Degradation) -> Degradation<'a> {
        Degradation::new(&found.id, found.severity(), &found.message, &found.remedy)
    }

    /// One from its parts.
    pub fn new(id: &'a str, found: Severity, message: &'a str, remedy: &'a str) -> Degradation<'a> {
        Degradation {
            id,
            severity: severity(found).0,
            message,
            remedy,
        }
    }
}

#[derive(Serialize)]
struct Cpu {
    cpu: u32,
    samples: u64,
    lost: u64,
    throttled: u64,
}

#[derive(Serialize)]
struct Counter<'a> {
    name: &'a str,
    labels: &'a str,
    value: u64,
}

#[derive(Serialize)]
struct Environment<'a> {
    perf_event_paranoid: i32,
    perf_event_max_stack: u32,
    perf_event_mlock_kb: u32,
    perf_event_max_sample_rate: u32,
    kptr_restrict: i32,
    kernel_symbols: bool,
    cgroup_mode: &'a str,
    cgroup_root: &'a str,
}

impl<'a> Json<'a> {
    fn of(status: &'a GetStatusResponse) -> Json<'a> {
        let sampling = status.sampling.as_ref().map_or(
            // An agent that says nothing of its sampling does not sample.
            Sampling {
                event: "",
                requested_event: "",
                rate_hz: 0,
                cpus_online: 0,
                cpus_sampled: 0,
                ring_bytes_per_cpu: 0,
                unwind: "",
                missing_features: &[],
                last_sample_age_ns: 0,
                samples_arrive: false,
            },
            |found| Sampling {
                event: &found.event,
                requested_event: &found.requested_event,
                rate_hz: found.rate_hz,
                cpus_online: found.cpus_online,
                cpus_sampled: found.cpus_sampled,
                ring_bytes_per_cpu: found.ring_bytes_per_cpu,
                unwind: &found.unwind,
                missing_features: &found.missing_features,
                last_sample_age_ns: found.last_sample_age_ns,
                samples_arrive: found.samples_arrive,
            },
        );
        let recorder = status.recorder.unwrap_or_default();
        let cost = status.own_cost.as_ref();
        let threads = cost.into_iter().flat_map(|cost| &cost.cpu_ns_by_thread);
        Json {
            version: &status.version,
            host: &status.host,
            kernel: &status.kernel,
            started: rfc3339(status.started_unix_ns),
            now: rfc3339(status.now_unix_ns),
            sampling,
            recorder: Recorder {
                oldest: rfc3339(recorder.oldest_unix_ns),
                newest: rfc3339(recorder.newest_unix_ns),
                windows: recorder.windows,
                bytes: recorder.bytes,
                budget_bytes: recorder.budget_bytes,
                window_seconds: recorder.window_seconds,
                coarse_windows: recorder.coarse_windows,
                dropped_windows: recorder.dropped_windows,
            },
            own_cost: OwnCost {
                cpu_ns: cost.map_or(0, |cost| cost.cpu_ns),
                cpu_share: own_share(status),
                rss_bytes: cost.map_or(0, |cost| cost.rss_bytes),
                cpu_ns_by_thread: threads.map(|(name, &ns)| (name.as_str(), ns)).collect(),
                wakeups: cost.map_or(0, |cost| cost.wakeups),
            },
            quality: status.quality.unwrap_or_default().into(),
            degradations: status.degradations.iter().map(Degradation::of).collect(),
            cpus: status
                .cpus
                .iter()
                .map(|cpu| Cpu {
                    cpu: cpu.cpu,
                    samples: cpu.samples,
                    lost: cpu.lost,
                    throttled: cpu.throttled,
                })
                .collect(),
            counters: status
                .counters
                .iter()
                .map(|found| Counter {
                    name: &found.name,
                    labels: &found.labels,
                    value: found.value,
                })
                .collect(),
            environment: status.environment.as_ref().map(|env| Environment {
                perf_event_paranoid: env.perf_event_paranoid,
                perf_event_max_stack: env.perf_event_max_stack,
                perf_event_mlock_kb: env.perf_event_mlock_kb,
                perf_event_max_sample_rate: env.perf_event_max_sample_rate,
                kptr_restrict: env.kptr_restrict,
                kernel_symbols: env.kernel_symbols,
                cgroup_mode: &env.cgroup_mode,
                cgroup_root: &env.cgroup_root,
            }),
        }
    }
}
