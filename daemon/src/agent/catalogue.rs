//! The catalogue of the daemon's own metrics: every number of every stage with its sentence, read
//! when somebody asks.

mod captures;
mod containers;
mod recorder;
mod sampler;
mod triggers;
mod unwinding;
mod uplink;

use super::Agent;
use super::budget::Budget;
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
    all.extend(triggers::families(agent));
    all.extend(uplink::families(agent));
    let symbols = agent.counters.symbols.all();
    all.extend(symbols.map(|(name, help, value)| Family {
        name: format!("fleetprof_symbols_{name}_total").into(),
        help,
        kind: Kind::Counter,
        readings: one(value),
    }));
    // Status tells them in this order.
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

metrics::rows! { SANDBOX: Report;
    /// Version of Landlock's rules in force; 0: none.
    Gauge fleetprof_sandbox_landlock_abi = |s| u64::from(s.landlock_abi);
    /// Threads that reach nothing but their own files and ports.
    Gauge fleetprof_sandbox_confined_threads = |s| s.confined.len() as u64;
    /// Threads started for those that are confined.
    Counter fleetprof_sandbox_threads_started_total = |_s| sandbox::starter::started();
    /// Work of confined threads that waited for other work because no thread could be started for
    /// it.
    Counter fleetprof_sandbox_threads_failed_total = |_s| sandbox::starter::without_thread();
    /// 1 while system calls that the daemon has no use for are refused.
    Gauge fleetprof_sandbox_seccomp = |s| u64::from(s.seccomp);
}

metrics::rows! { BUDGET: Budget;
    /// CPU time the daemon may take, answering clients and files of users and containers aside.
    /// Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_ppm = |b| b.cpu.budget_ppm();
    /// CPU time it took over the last minute. Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_used_ppm = |b| b.cpu.used_ppm().unwrap_or(0);
    /// CPU time it took to answer clients over the last minute. Unit: millionths of one CPU.
    Gauge fleetprof_budget_cpu_serving_ppm = |b| b.serving_ppm();
    /// Steps by which sampling is lowered to keep the CPU budget.
    Gauge fleetprof_budget_cpu_level = |b| b.cpu.level() as u64;
    /// Memory the daemon may take, ring buffers aside.
    Gauge fleetprof_budget_memory_bytes = |b| b.memory.budget() as u64;
    /// Memory it took when it was last read.
    Gauge fleetprof_budget_memory_used_bytes = |b| b.memory.used().unwrap_or(0) as u64;
    /// Steps by which caches and recorder are lowered to keep the memory budget.
    Gauge fleetprof_budget_memory_level = |b| b.memory.level() as u64;
    /// CPU time the daemon used, by what for; its CPU budget governs its own work alone.
    Counter fleetprof_budget_cpu_ns_total{part} = |b| b.cpu_ns();
    /// What was done to keep the budgets and to copy as much of stacks as they need, by kind.
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
