//! The catalogue of the daemon's own metrics: every number of every stage with a description, read
//! when metrics are requested.

mod captures;
mod containers;
mod recorder;
mod sampler;
mod triggers;
mod unwinding;
mod uplink;

use super::Agent;
use super::budget::Budget;
use aggregate::programs::ProgramTable;
use host::sync::lock;
use metrics::{Family, Kind, OwnCost, gather, one};
use sandbox::Report;
use std::sync::atomic::AtomicU64;

/// Reads everything; `own` is what the daemon costs now.
pub(super) fn families(agent: &Agent, own: &OwnCost) -> Vec<Family> {
    let mut all: Vec<Family> = own.families().collect();
    // A copy: the sampler does not wait while names are put together.
    let facts = lock(&agent.sampling.sampler.facts).clone();
    all.extend(sampler::families(&agent.sampling.sampler, &facts));
    all.extend(unwinding::families(&facts));
    all.extend(recorder::families(agent));
    all.extend(gather(BUDGET, &lock(&agent.budget.state)));
    all.extend(gather(SANDBOX, &agent.sandbox.report()));
    all.extend(gather(REFUSED_CLIENTS, &()));
    all.extend(crate::grpc::TIMES.families());
    all.extend(captures::families(agent));
    all.extend(containers::families(&agent.counters.containers));
    all.extend(gather(PROGRAMS, &*agent.counters.programs));
    all.extend(triggers::families(agent));
    all.extend(uplink::families(agent));
    let symbols = agent.counters.symbols.all();
    all.extend(symbols.map(|(name, help, value)| {
        let (name, kind) = match name.strip_suffix("_ns") {
            Some(time) => (format!("{time}_seconds"), Kind::CounterNs),
            None => (name.to_owned(), Kind::Counter),
        };
        Family {
            name: format!("fleetprof_symbols_{name}_total").into(),
            help,
            kind,
            readings: one(value),
        }
    }));
    // The status has this order.
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

metrics::rows! { SANDBOX: Report;
    /// Version of the active Landlock rules; 0 if there are none.
    Gauge fleetprof_sandbox_landlock_abi = |s| u64::from(s.landlock_abi);
    /// Threads confined to their own files and ports.
    Gauge fleetprof_sandbox_confined_threads = |s| s.confined.len() as u64;
    /// Helper threads started for confined threads.
    Counter fleetprof_sandbox_threads_started_total = |_s| sandbox::starter::started();
    /// Requests of confined threads that waited because no helper thread could be started.
    Counter fleetprof_sandbox_threads_failed_total = |_s| sandbox::starter::without_thread();
    /// 1 while system calls that the daemon does not need are refused.
    Gauge fleetprof_sandbox_seccomp = |s| u64::from(s.seccomp);
}

metrics::rows! { PROGRAMS: ProgramTable;
    /// Programs of services that are not reported because the host runs too many.
    Counter fleetprof_programs_evicted_total = |p| &p.evicted;
    /// Stacks with a file that was not counted toward a service's programs because the window had
    /// too many files.
    Counter fleetprof_programs_uncounted_stacks_total = |p| &p.uncounted;
}

metrics::rows! { BUDGET: Budget;
    /// CPU time the daemon may use, not counting answers to clients and reading files of users and
    /// containers. Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_ppm = |b| b.cpu.budget_ppm();
    /// CPU time the daemon used in the last minute. Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_used_ppm = |b| b.cpu.used_ppm().unwrap_or(0);
    /// CPU time the daemon used in the last minute to answer clients. Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_serving_ppm = |b| b.serving_ppm();
    /// Steps by which sampling is currently reduced to keep the CPU budget.
    Gauge fleetprof_budget_cpu_level = |b| b.cpu.level() as u64;
    /// Memory the daemon may use, not counting ring buffers.
    Gauge fleetprof_budget_memory_bytes = |b| b.memory.budget() as u64;
    /// Memory the daemon used at the last check.
    Gauge fleetprof_budget_memory_used_bytes = |b| b.memory.used().unwrap_or(0) as u64;
    /// Steps by which caches and recorder are currently reduced to keep the memory budget.
    Gauge fleetprof_budget_memory_level = |b| b.memory.level() as u64;
    /// CPU time the daemon used, by purpose; the CPU budget covers only its own work.
    CounterNs fleetprof_budget_cpu_seconds_total{part} = |b| b.cpu_ns();
    /// Adjustments made to keep the budgets and to copy enough of each stack, by kind.
    Counter fleetprof_budget_steps_total{step} = |b| [
        ("cpu_lowered", b.counts.cpu_lowered),
        ("cpu_raised", b.counts.cpu_raised),
        ("cpu_refused", b.counts.cpu_refused),
        ("copies_lowered", b.counts.copies_lowered),
        ("copies_raised", b.counts.copies_raised),
        ("copies_refused", b.counts.copies_refused),
        ("memory_lowered", b.counts.memory_lowered),
        ("memory_raised", b.counts.memory_raised),
        ("memory_trimmed", b.counts.memory_trimmed),
    ];
}

metrics::rows! { REFUSED_CLIENTS: ();
    /// Connections closed and answers refused, by cause.
    Counter fleetprof_grpc_refused_total{cause} = |_| refused_clients();
}

/// What became of those who asked over gRPC, and were not answered.
fn refused_clients() -> [(&'static str, &'static AtomicU64); 3] {
    use crate::grpc::{ANSWERS_REFUSED, CONNECTIONS};
    [
        ("connection_silent", &CONNECTIONS.silent),
        ("connection_made_room", &CONNECTIONS.made_room),
        ("answers_held", &ANSWERS_REFUSED),
    ]
}
