//! The status as JSON: every field of the agent's answer, under names that scripts rely on.

use super::{export, own_share};
use crate::degradation::Degradation;
use crate::runtimes;
use crate::when::rfc3339;
use profile::{Coverage, Quality};
use proto::agent::{self, GetStatusResponse, Governed, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(super) struct Json<'a> {
    version: &'a str,
    host: &'a str,
    kernel: &'a str,
    started: String,
    now: String,
    sampling: Sampling<'a>,
    recorder: Recorder,
    /// Null without a collector.
    export: Option<export::Json<'a>>,
    own_cost: OwnCost<'a>,
    budget: BudgetJson<'a>,
    stack_ends: Vec<OutcomeJson<'a>>,
    unnamed_leaves: Vec<OutcomeJson<'a>>,
    runtimes: Vec<runtimes::Json<'a>>,
    quality: Quality,
    last_minute: RecentJson,
    degradations: Vec<Degradation<'a>>,
    cpus: Vec<Cpu>,
    counters: Vec<Counter<'a>>,
    environment: Option<Environment<'a>>,
    /// Null of an agent that is older.
    sandbox: Option<Sandbox<'a>>,
}

#[derive(Serialize)]
struct RecentJson {
    #[serde(flatten)]
    coverage: Coverage,
    share: Option<f64>,
    lost_samples: u64,
}

#[derive(Default, Serialize)]
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
    stack_bytes: u32,
    reduced: &'a str,
    unwind_cache_bytes: u64,
    unwind_cache_bytes_max: u64,
}

impl<'a> Sampling<'a> {
    fn of(found: &'a agent::Sampling) -> Sampling<'a> {
        Sampling {
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
            stack_bytes: found.stack_bytes,
            reduced: &found.reduced,
            unwind_cache_bytes: found.unwind_cache_bytes,
            unwind_cache_bytes_max: found.unwind_cache_bytes_max,
        }
    }
}

#[derive(Serialize)]
struct BudgetJson<'a> {
    /// Millionths of one CPU.
    cpu_ppm: GovernedJson<'a>,
    memory_bytes: GovernedJson<'a>,
    serving_cpu_ppm: u64,
}

#[derive(Serialize)]
struct GovernedJson<'a> {
    budget: u64,
    used: u64,
    level: u32,
    lowest_level: u32,
    since: String,
    limits: &'a str,
    reason: &'a str,
}

impl<'a> GovernedJson<'a> {
    fn of(found: Option<&'a Governed>) -> GovernedJson<'a> {
        GovernedJson {
            budget: found.map_or(0, |found| found.budget),
            used: found.map_or(0, |found| found.used),
            level: found.map_or(0, |found| found.level),
            lowest_level: found.map_or(0, |found| found.lowest_level),
            since: rfc3339(found.map_or(0, |found| found.since_unix_ns)),
            limits: found.map_or("", |found| &found.limits),
            reason: found.map_or("", |found| &found.reason),
        }
    }
}

#[derive(Serialize)]
struct OutcomeJson<'a> {
    id: u32,
    word: &'a str,
    samples: u64,
}

impl<'a> OutcomeJson<'a> {
    fn all(rows: &'a [Outcome]) -> Vec<OutcomeJson<'a>> {
        let row = |row: &'a Outcome| OutcomeJson {
            id: row.id,
            word: &row.word,
            samples: row.samples,
        };
        rows.iter().map(row).collect()
    }
}

#[derive(Serialize)]
struct Recorder {
    oldest: String,
    newest: String,
    windows: u32,
    bytes: u64,
    budget_bytes: u64,
    window_seconds: u32,
    downsampled_windows: u32,
    dropped_windows: u64,
    times_bytes: u64,
    times_budget_bytes: u64,
    /// Since when the time of each sample is known.
    times_since: Option<String>,
    times_dropped: u64,
}

impl Recorder {
    fn of(found: agent::Recorder) -> Recorder {
        let times_since = found.times_since_unix_ns;
        Recorder {
            oldest: rfc3339(found.oldest_unix_ns),
            newest: rfc3339(found.newest_unix_ns),
            windows: found.windows,
            bytes: found.bytes,
            budget_bytes: found.budget_bytes,
            window_seconds: found.window_seconds,
            downsampled_windows: found.downsampled_windows,
            dropped_windows: found.dropped_windows,
            times_bytes: found.times_bytes,
            times_budget_bytes: found.times_budget_bytes,
            times_since: (times_since != 0).then(|| rfc3339(times_since)),
            times_dropped: found.times_dropped,
        }
    }
}

#[derive(Serialize)]
struct OwnCost<'a> {
    cpu_ns: u64,
    cpu_share: f64,
    rss_bytes: u64,
    cpu_ns_by_thread: BTreeMap<&'a str, u64>,
    wakeups: u64,
}

impl<'a> OwnCost<'a> {
    fn of(status: &'a GetStatusResponse) -> OwnCost<'a> {
        let cost = status.own_cost.as_ref();
        let threads = cost.into_iter().flat_map(|cost| &cost.cpu_ns_by_thread);
        OwnCost {
            cpu_ns: cost.map_or(0, |cost| cost.cpu_ns),
            cpu_share: own_share(status),
            rss_bytes: cost.map_or(0, |cost| cost.rss_bytes),
            cpu_ns_by_thread: threads.map(|(name, &ns)| (name.as_str(), ns)).collect(),
            wakeups: cost.map_or(0, |cost| cost.wakeups),
        }
    }
}

#[derive(Serialize)]
struct Cpu {
    cpu: u32,
    samples: u64,
    missed_samples: u64,
    lost: u64,
    throttled: u64,
    online: bool,
    away_ns: u64,
}

impl Cpu {
    fn of(found: &agent::CpuStatus) -> Cpu {
        Cpu {
            cpu: found.cpu,
            samples: found.samples,
            missed_samples: found.missed_samples,
            lost: found.lost,
            throttled: found.throttled,
            online: found.online,
            away_ns: found.away_ns,
        }
    }
}

/// A counter as JSON.
#[derive(Serialize)]
pub(super) struct Counter<'a> {
    name: &'a str,
    labels: &'a str,
    value: u64,
}

impl<'a> Counter<'a> {
    /// One of the status.
    pub(super) fn of(found: &'a agent::Counter) -> Counter<'a> {
        Counter {
            name: &found.name,
            labels: &found.labels,
            value: found.value,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Sandbox<'a> {
    on: bool,
    seccomp: bool,
    seccomp_error: &'a str,
    landlock_abi: u32,
    confined: &'a [String],
    landlock_error: &'a str,
    listens_confined: bool,
    connects_confined: bool,
}

impl<'a> Sandbox<'a> {
    /// One of the status.
    pub(super) fn of(found: &'a agent::Sandbox) -> Sandbox<'a> {
        Sandbox {
            on: found.on,
            seccomp: found.seccomp,
            seccomp_error: &found.seccomp_error,
            landlock_abi: found.landlock_abi,
            confined: &found.confined,
            landlock_error: &found.landlock_error,
            listens_confined: found.listens_confined,
            connects_confined: found.connects_confined,
        }
    }
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

impl<'a> Environment<'a> {
    fn of(found: &'a agent::Environment) -> Environment<'a> {
        Environment {
            perf_event_paranoid: found.perf_event_paranoid,
            perf_event_max_stack: found.perf_event_max_stack,
            perf_event_mlock_kb: found.perf_event_mlock_kb,
            perf_event_max_sample_rate: found.perf_event_max_sample_rate,
            kptr_restrict: found.kptr_restrict,
            kernel_symbols: found.kernel_symbols,
            cgroup_mode: &found.cgroup_mode,
            cgroup_root: &found.cgroup_root,
        }
    }
}

impl<'a> Json<'a> {
    pub(super) fn of(status: &'a GetStatusResponse) -> Json<'a> {
        let budget = status.budget.as_ref();
        let coverage = Coverage::from(status.coverage.unwrap_or_default());
        Json {
            version: &status.version,
            host: &status.host,
            kernel: &status.kernel,
            started: rfc3339(status.started_unix_ns),
            now: rfc3339(status.now_unix_ns),
            // An agent that says nothing of its sampling does not sample.
            sampling: status
                .sampling
                .as_ref()
                .map(Sampling::of)
                .unwrap_or_default(),
            recorder: Recorder::of(status.recorder.unwrap_or_default()),
            export: status.export.as_ref().map(export::Json::of),
            own_cost: OwnCost::of(status),
            budget: BudgetJson {
                cpu_ppm: GovernedJson::of(budget.and_then(|budget| budget.cpu.as_ref())),
                memory_bytes: GovernedJson::of(budget.and_then(|budget| budget.memory.as_ref())),
                serving_cpu_ppm: budget.map_or(0, |budget| budget.serving_cpu_ppm),
            },
            stack_ends: OutcomeJson::all(&status.stack_ends),
            unnamed_leaves: OutcomeJson::all(&status.unnamed_leaves),
            runtimes: runtimes::Json::all(&status.runtimes),
            quality: status.quality.unwrap_or_default().into(),
            last_minute: RecentJson {
                coverage,
                share: coverage.share(),
                lost_samples: status.recent_lost_samples,
            },
            degradations: status.degradations.iter().map(Degradation::of).collect(),
            cpus: status.cpus.iter().map(Cpu::of).collect(),
            counters: status.counters.iter().map(Counter::of).collect(),
            sandbox: status.sandbox.as_ref().map(Sandbox::of),
            environment: status.environment.as_ref().map(Environment::of),
        }
    }
}
