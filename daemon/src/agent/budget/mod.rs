//! Keeps the daemon's own cost within its budget, and reports it.
//!
//! [`cpu`] and [`memory`] decide, without clock or syscalls, and [`copies`] decides how much of
//! each stack to copy. This file reads the usage, applies the decisions and remembers them for
//! `status`. Called by the main thread every few seconds, and by any thread that reloads the
//! configuration.

pub mod copies;
pub mod cpu;
pub mod memory;
mod meter;

use super::{Agent, open_sampling, recorder_options};
use agent_config::Config;
use copies::CopyGovernor;
use cpu::{CpuGovernor, INTERVAL};
use host::bounds::Bounds;
use host::facts::Environment;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::MonotonicTime;
use memory::{Action, MemoryGovernor};
use meter::{Apart, CpuUse, Meter};
use metrics::OwnCost;
use perf::plan::{Limits, Plan};
use profile::text::with_causes;
use proto::agent as wire;
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory of the daemon besides caches and recorder: batches, names, threads, code. Unit: bytes. 25
/// to 45 MiB measured on two CPUs.
const BASE_BYTES: usize = 56 << 20;

/// The part of the machine's memory that an automatic budget may take.
const MACHINE_SHARE: u64 = 16;

/// Least automatic memory budget. Unit: bytes.
const MEMORY_MIN: usize = 48 << 20;

/// Readings of the cost of answering that are kept: those of a minute, its start and end included.
const SERVING_KEPT: usize = 7;

/// When the next reading is due: the main thread looks around more often than the budget needs, and
/// a reading is two small files per thread.
#[derive(Debug, Default)]
struct Due(Option<MonotonicTime>);

impl Due {
    /// True when a reading at `now` is wanted, which then counts as taken.
    fn at(&mut self, now: MonotonicTime) -> bool {
        let is_due = self.0.is_none_or(|last| now.since(last) >= INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// What is in force, and why.
#[derive(Debug)]
pub struct Budget {
    /// CPU time.
    pub cpu: CpuGovernor,
    /// Memory.
    pub memory: MemoryGovernor,
    /// How much of each stack is copied.
    pub copies: CopyGovernor,
    /// Usage when the CPU level last changed.
    cpu_reason: String,
    /// Usage when the memory level last changed.
    memory_reason: String,
    /// Why the last step of the CPU ladder could not be taken.
    refused: Option<String>,
    due: Due,
    meter: Meter,
    apart: Apart,
    /// CPU time of reading files of users and containers.
    owners_files_ns: u64,
    /// Usage at the last reading.
    used: CpuUse,
    /// Time and CPU time of answering clients, of the last minute.
    serving: VecDeque<(MonotonicTime, u64)>,
    /// Steps taken since the start.
    pub counts: BudgetCounts,
}

/// Steps taken since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BudgetCounts {
    /// Sampling was lowered.
    pub cpu_lowered: u64,
    /// Sampling was raised.
    pub cpu_raised: u64,
    /// A step could not be taken, because the rings could not be opened.
    pub cpu_refused: u64,
    /// Less of each stack was copied again.
    pub copies_lowered: u64,
    /// More of each stack was copied.
    pub copies_raised: u64,
    /// More could not be copied: no room in the rings, or in the CPU budget.
    pub copies_refused: u64,
    /// Bounds of memory were lowered.
    pub memory_lowered: u64,
    /// Bounds of memory were raised.
    pub memory_raised: u64,
    /// Free memory was given back.
    pub memory_trimmed: u64,
}

/// The large holders as configured.
pub fn configured_bounds(config: &Config) -> Bounds {
    Bounds {
        symbols: config.symbols.cache_bytes(),
        unwind: config.unwind.cache_bytes(),
        recorder: config.recorder.budget_bytes(),
    }
}

/// The memory budget on a machine with this much memory. Unit: bytes.
pub fn memory_budget(config: &Config, machine_bytes: Option<u64>) -> usize {
    if config.budget.memory_mib > 0 {
        return (config.budget.memory_mib as usize) << 20;
    }
    let beside = BASE_BYTES.saturating_add(config.recorder.times_bytes());
    let wanted = configured_bounds(config).total().saturating_add(beside);
    let share = machine_bytes.map_or(usize::MAX, |bytes| (bytes / MACHINE_SHARE) as usize);
    wanted.min(share).max(MEMORY_MIN)
}

/// The state machine that decides how much of each stack is copied while nothing is limited.
pub(super) fn copy_governor(config: &Config, plan: &Plan) -> CopyGovernor {
    CopyGovernor::new(plan.stack_bytes, config.unwind.stack_kib_max << 10)
}

impl Budget {
    /// Creates it at the start of the daemon, without limits. `plan` is what is then in force, so
    /// that each step lowers something even on a kernel that accepts less than planned.
    pub fn new(config: &Config, environment: &Environment, plan: &Plan) -> Budget {
        let now = MonotonicTime::now();
        let cpu_ppm = config.budget.cpu_ppm(environment.cpus_online.len());
        let memory = memory_budget(config, environment.memory_bytes);
        Budget {
            cpu: CpuGovernor::new(cpu_ppm, plan.stack_bytes, plan.rate_hz, now),
            memory: MemoryGovernor::new(memory, configured_bounds(config), now),
            copies: copy_governor(config, plan),
            cpu_reason: String::new(),
            memory_reason: String::new(),
            refused: None,
            due: Due::default(),
            meter: Meter::default(),
            apart: Apart::default(),
            owners_files_ns: 0,
            used: CpuUse::default(),
            serving: VecDeque::with_capacity(SERVING_KEPT),
            counts: BudgetCounts::default(),
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.cpu.limits(self.cpu.level())
    }

    /// Mean cost of answering clients over the last minute. Unit: millionths of one CPU.
    pub fn serving_ppm(&self) -> u64 {
        let (Some((from, before)), Some((until, now))) =
            (self.serving.front(), self.serving.back())
        else {
            return 0;
        };
        let length = until.since(*from).as_nanos().max(1);
        (u128::from(now.saturating_sub(*before)) * 1_000_000 / length) as u64
    }

    /// CPU time since the start by what it was used for. What the budget governs comes first. Unit:
    /// nanoseconds.
    pub fn cpu_ns(&self) -> [(&'static str, u64); 4] {
        [
            ("own", self.used.own_ns),
            ("owners_files", self.owners_files_ns),
            ("serving", self.used.serving_ns),
            ("uploading", self.used.uploading_ns),
        ]
    }

    /// `captures_ns`: CPU time in it that captures took, which were asked for. `owners_files_ns`:
    /// that of reading files of users and containers, which has bounds of its own: if it made the
    /// daemon sample less, any user could have it do so, and that would make the files no cheaper.
    fn observe_cpu(
        &mut self,
        now: MonotonicTime,
        captures_ns: u64,
        owners_files_ns: u64,
    ) -> Option<usize> {
        let mut used = self.meter.read();
        let apart = captures_ns.saturating_add(owners_files_ns);
        used.own_ns = self.apart.less(used.own_ns, apart);
        self.owners_files_ns = owners_files_ns;
        used.serving_ns = used.serving_ns.saturating_add(captures_ns);
        if self.serving.len() == SERVING_KEPT {
            self.serving.pop_front();
        }
        self.serving.push_back((now, used.serving_ns));
        self.used = used;
        self.cpu.observe(now, used.own_ns)
    }
}

impl Agent {
    /// Reads what is used and does what follows from it. Called every ten seconds at least, by one
    /// thread; takes a millisecond, and tenths of a second when something changes.
    pub fn keep_budget(&self, now: MonotonicTime) {
        self.keep_copies(now);
        if !lock(&self.budget.state).due.at(now) {
            return;
        }
        let captures_ns = self.captures_cpu_ns();
        let owners_files_ns = &self.counters.symbols.owners_files_cpu_ns;
        let owners_files_ns = owners_files_ns.load(Ordering::Relaxed);
        let wanted = lock(&self.budget.state).observe_cpu(now, captures_ns, owners_files_ns);
        let raised = {
            let budget = lock(&self.budget.state);
            budget.copies.is_raised().then(|| budget.copies.base())
        };
        match (wanted, raised) {
            // Deeper stacks are the first to go.
            (Some(_), Some(base)) => {
                {
                    let mut budget = lock(&self.budget.state);
                    budget.cpu.refused(now);
                    budget.copies.refused(now);
                    budget.counts.copies_refused += 1;
                }
                self.copy_stacks(base, now);
            }
            (Some(level), None) => self.enter_cpu_level(level, now),
            (None, _) => {}
        }
        let used = OwnCost::rss_anon_bytes_now() as usize;
        let used = used.saturating_sub(self.captures_bytes());
        let action = lock(&self.budget.state).memory.observe(now, used);
        match action {
            Some(Action::Trim) => {
                let given_back = host::sys::trim_heap();
                lock(&self.budget.state).counts.memory_trimmed += 1;
                tracing::debug!(used, given_back, "gave free memory back");
            }
            Some(Action::Lower(_)) => self.enter_memory_level(true, used),
            Some(Action::Raise(_)) => self.enter_memory_level(false, used),
            None => {}
        }
    }

    /// Copies as much of each stack as many need, while nothing is limited.
    pub fn keep_copies(&self, now: MonotonicTime) {
        let counted = lock(&self.sampling.sampler.facts).unwinding.copies;
        let wanted = {
            let mut budget = lock(&self.budget.state);
            if budget.cpu.level() > 0 {
                return;
            }
            budget.copies.observe(now, counted)
        };
        if let Some(bytes) = wanted {
            self.copy_stacks(bytes, now);
        }
    }

    /// Copies so much of each stack from now on, if that can be had.
    fn copy_stacks(&self, bytes: u32, now: MonotonicTime) {
        // Held all the while, as for a level.
        let active = lock(&self.settings.active);
        let (before, base) = {
            let budget = lock(&self.budget.state);
            // A reload may have come in between.
            if !budget.copies.allows(bytes) {
                return;
            }
            (budget.copies.in_force(), budget.copies.base())
        };
        let mut config = active.config.clone();
        if bytes > base {
            config.unwind.stack_kib = bytes >> 10;
        }
        let raises = bytes > before;
        let opened = match open_sampling(&config, Limits::NONE) {
            // No room in the rings, or a kernel that takes less.
            Ok((_, facts)) if raises && facts.plan.reduced.is_some() => {
                Err(facts.plan.reduced.unwrap_or_default())
            }
            opened => opened.map_err(|error| with_causes(&error)),
        };
        let mut budget = lock(&self.budget.state);
        match opened {
            Ok((rings, facts)) => {
                let count = match raises {
                    true => &mut budget.counts.copies_raised,
                    false => &mut budget.counts.copies_lowered,
                };
                *count += 1;
                budget.copies.enter(bytes);
                drop(budget);
                tracing::info!(
                    bytes = facts.plan.stack_bytes,
                    before,
                    "copying {} of each stack",
                    if raises { "more" } else { "less" }
                );
                self.sampling.sample_with(rings, facts, false);
            }
            Err(reason) => {
                tracing::debug!(reason, bytes, "failed to copy more of each stack");
                budget.counts.copies_refused += 1;
                if raises {
                    budget.copies.refused(now);
                }
            }
        }
    }

    /// Samples by the limits of a level from now on.
    fn enter_cpu_level(&self, level: usize, now: MonotonicTime) {
        // Held all the while: a reload would open rings of its own.
        let active = lock(&self.settings.active);
        let (limits, used, before, budget_ppm) = {
            let budget = lock(&self.budget.state);
            let cpu = &budget.cpu;
            (
                cpu.limits(level),
                cpu.used_ppm(),
                cpu.level(),
                cpu.budget_ppm(),
            )
        };
        match open_sampling(&active.config, limits) {
            Ok((rings, facts)) => {
                let mut budget = lock(&self.budget.state);
                let used = percent(used.unwrap_or(0));
                budget.cpu_reason =
                    format!("{used} used for a minute, {} allowed", percent(budget_ppm));
                budget.refused = None;
                budget.cpu.enter(level, now);
                let lowered = level > before;
                let count = match lowered {
                    true => &mut budget.counts.cpu_lowered,
                    false => &mut budget.counts.cpu_raised,
                };
                *count += 1;
                tracing::warn!(
                    used,
                    allowed = percent(budget_ppm),
                    rate_hz = facts.plan.rate_hz,
                    stack_bytes = facts.plan.stack_bytes,
                    "{} to keep the CPU budget",
                    if lowered {
                        "sampling less"
                    } else {
                        "sampling more again"
                    }
                );
                drop(budget);
                self.sampling.sample_with(rings, facts, level > 0);
            }
            Err(error) => {
                let reason = with_causes(&error);
                tracing::warn!(reason, "failed to change sampling to keep the CPU budget");
                let mut budget = lock(&self.budget.state);
                budget.counts.cpu_refused += 1;
                budget.refused = Some(reason);
                budget.cpu.refused(now);
            }
        }
    }

    /// Puts the bounds of the memory governor's new level in force.
    fn enter_memory_level(&self, lowered: bool, used: usize) {
        let config = lock(&self.settings.active);
        let (bounds, level) = {
            let mut budget = lock(&self.budget.state);
            let allowed = budget.memory.budget() >> 20;
            budget.memory_reason = format!("{} MiB used then, {allowed} MiB allowed", used >> 20);
            match lowered {
                true => budget.counts.memory_lowered += 1,
                false => budget.counts.memory_raised += 1,
            }
            (budget.memory.bounds(), budget.memory.level())
        };
        tracing::warn!(
            level,
            used,
            recorder = bounds.recorder,
            symbols = bounds.symbols,
            unwind = bounds.unwind,
            "holding {} to keep the memory budget",
            if lowered { "less" } else { "more again" }
        );
        self.put_bounds(&config.config, bounds);
    }

    fn put_bounds(&self, config: &Config, bounds: Bounds) {
        self.budget.bounds.set(bounds);
        let mut recorder = self
            .recorder
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        recorder.set_options(recorder_options(config, bounds));
        recorder.maintain();
    }

    /// Applies a new configuration of the budget and of what it governs. The current levels stay
    /// and are evaluated again. Call it with the configuration's lock held.
    pub(super) fn configure_budget(&self, config: &Config) {
        let environment = &self.start.environment;
        let bounds = {
            let mut budget = lock(&self.budget.state);
            budget
                .cpu
                .set_budget(config.budget.cpu_ppm(environment.cpus_online.len()));
            let memory = memory_budget(config, environment.memory_bytes);
            budget.memory.configure(memory, configured_bounds(config));
            budget.memory.bounds()
        };
        self.put_bounds(config, bounds);
    }

    /// The budget's part of `status`.
    pub(super) fn budget_status(&self) -> wire::Budget {
        let budget = lock(&self.budget.state);
        let (cpu, memory) = (&budget.cpu, &budget.memory);
        let bounds = memory.bounds();
        wire::Budget {
            cpu: Some(wire::Governed {
                budget: cpu.budget_ppm(),
                used: cpu.used_ppm().unwrap_or(0),
                level: cpu.level() as u32,
                lowest_level: cpu.lowest() as u32,
                since_unix_ns: self.clock.to_unix_ns(cpu.since()),
                limits: shown_limits(cpu.limits(cpu.level())),
                reason: budget.cpu_reason.clone(),
            }),
            memory: Some(wire::Governed {
                budget: memory.budget() as u64,
                used: memory.used().unwrap_or(0) as u64,
                level: memory.level() as u32,
                lowest_level: memory::LOWEST as u32,
                since_unix_ns: self.clock.to_unix_ns(memory.since()),
                limits: match memory.level() {
                    0 => String::new(),
                    _ => shown_bounds(bounds),
                },
                reason: budget.memory_reason.clone(),
            }),
            serving_cpu_ppm: budget.serving_ppm(),
        }
    }

    /// Adds a degradation for each current limit of the budget.
    pub(super) fn budget_degradations(&self, list: &mut Vec<Degradation>) {
        let budget = lock(&self.budget.state);
        let (cpu, memory) = (&budget.cpu, &budget.memory);
        if cpu.level() > 0 {
            let still = match cpu.used_ppm() {
                Some(used) if used > cpu.budget_ppm() && cpu.level() == cpu.lowest() => {
                    format!(
                        ". It still uses {}, and cannot reduce further",
                        percent(used)
                    )
                }
                _ => String::new(),
            };
            list.push(Degradation::new(
                "cpu_budget",
                Severity::Warning,
                format!(
                    "the daemon keeps its CPU budget by {} ({}): shares stay right, with {}{still}",
                    shown_limits(cpu.limits(cpu.level())),
                    budget.cpu_reason,
                    match cpu.limits(cpu.level()).rate_hz {
                        u32::MAX => "shorter stacks",
                        _ => "shorter stacks and a larger sampling error",
                    }
                ),
                format!(
                    "raise budget.cpu above {} and reload: agent-ctl config reload",
                    percent(cpu.budget_ppm())
                ),
            ));
        }
        if let Some(reason) = &budget.refused {
            list.push(Degradation::new(
                "cpu_budget_refused",
                Severity::Warning,
                format!("failed to change sampling to keep the CPU budget: {reason}"),
                "journalctl -u fleetprofd",
            ));
        }
        let age = MonotonicTime::now().since(memory.since());
        list.extend(memory_degradation(memory, &budget.memory_reason, age));
    }
}

/// The degradation for the memory budget's current limit. `reason`: the usage when the level last
/// changed, `age` ago.
fn memory_degradation(memory: &MemoryGovernor, reason: &str, age: Duration) -> Option<Degradation> {
    if memory.level() == 0 {
        return None;
    }
    let allowed = memory.budget() >> 20;
    let bounds = shown_bounds(memory.bounds());
    let age = match age.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    };
    let over = memory.used().filter(|&used| used > memory.budget());
    let (message, least) = match over {
        // The lower bounds are no success yet: caches take a while to shrink, and a step may
        // follow.
        Some(used) => {
            let used = used.div_ceil(1 << 20);
            let next = match memory.level() {
                memory::LOWEST => "it cannot reduce further",
                _ => "it reduces further if this continues",
            };
            let message = format!(
                "the daemon is over its memory budget and holds less in memory: {bounds}. It still \
                 uses {used} MiB of {allowed} MiB, and {next} ({age} ago: {reason})"
            );
            (message, used)
        }
        None => (
            format!(
                "the daemon keeps its memory budget by keeping less: {bounds}. It uses {} MiB now \
                 ({age} ago: {reason})",
                memory.used().unwrap_or_default().div_ceil(1 << 20)
            ),
            allowed,
        ),
    };
    Some(Degradation::new(
        "memory_budget",
        Severity::Warning,
        message,
        format!("raise budget.memory_mib above {least} and reload: agent-ctl config reload"),
    ))
}

/// A share of one CPU for people: `0.35 %`.
fn percent(ppm: u64) -> String {
    format!("{}.{:02} %", ppm / 10_000, ppm / 100 % 100)
}

/// Describes what a level limits; empty if nothing.
fn shown_limits(limits: Limits) -> String {
    let copy = match limits.stack_bytes {
        u32::MAX => None,
        0 => Some("copying no stacks".to_owned()),
        bytes => Some(format!("copying {} KiB of each stack", bytes >> 10)),
    };
    let rate = (limits.rate_hz != u32::MAX).then(|| format!("sampling at {} Hz", limits.rate_hz));
    let parts: Vec<String> = rate.into_iter().chain(copy).collect();
    parts.join(" and ")
}

fn shown_bounds(bounds: Bounds) -> String {
    format!(
        "recorder {} MiB, symbols {} MiB, unwind tables {} MiB",
        bounds.recorder >> 20,
        bounds.symbols >> 20,
        bounds.unwind >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf::plan::Machine;

    #[test]
    fn the_automatic_memory_budget_fits_what_is_configured_and_the_machine() {
        let config = Config::default();
        for (machine_mib, budget_mib) in [(256 << 10, 180), (2048, 128), (1024, 64), (256, 48)] {
            let found = memory_budget(&config, Some(machine_mib << 20));
            assert_eq!(found >> 20, budget_mib, "{machine_mib} MiB");
        }
        let mut large = Config::default();
        large.recorder.budget_mib = 1024;
        assert_eq!(memory_budget(&large, None) >> 20, 1140);
        large.budget.memory_mib = 300;
        assert_eq!(memory_budget(&large, None) >> 20, 300);
    }

    #[test]
    fn every_step_of_the_cpu_ladder_lowers_what_is_in_force_and_raises_nothing() {
        let machine = Machine {
            cpus: 2,
            memory_bytes: 24 << 30,
            lockable_bytes: None,
        };
        for (ring_kib, rate_hz) in [(0, 99), (64, 4999), (64, 99), (256, 999), (0, 4999)] {
            let mut config = Config::default();
            config.sampling.ring_kib = ring_kib;
            config.sampling.rate_hz = rate_hz;
            let plan = |limits| {
                let plan = Plan::new(&config.sampling, &config.unwind, &machine, limits);
                (plan.stack_bytes, plan.rate_hz)
            };
            let full = plan(Limits::NONE);
            let plans: Vec<_> = cpu::ladder(full.0, full.1).into_iter().map(plan).collect();
            let lowers = |a: &(u32, u32), b: &(u32, u32)| b.0 <= a.0 && b.1 <= a.1 && a != b;
            assert!(plans.is_sorted_by(lowers), "{ring_kib}: {plans:?}");
        }
    }

    #[test]
    fn readings_of_a_minute_are_as_many_as_are_kept_however_often_somebody_looks() {
        for apart_s in [1, 2, 5, 10] {
            let mut due = Due::default();
            let looks = (0..=60)
                .step_by(apart_s)
                .map(|at| MonotonicTime(at * 1_000_000_000));
            let read = looks.filter(|&now| due.at(now)).count();
            assert_eq!(read, SERVING_KEPT, "every {apart_s} s");
        }
    }

    /// What is said after so many readings of so many MiB with 100 MiB allowed.
    fn memory_said(readings: &[(usize, usize)]) -> Option<Degradation> {
        let configured = configured_bounds(&Config::default());
        let mut governor = MemoryGovernor::new(100 << 20, configured, MonotonicTime(0));
        let readings = readings
            .iter()
            .flat_map(|&(times, mib)| std::iter::repeat_n(mib, times));
        for (at, mib) in readings.enumerate() {
            let now = MonotonicTime((at as u64 + 1) * 10_000_000_000);
            governor.observe(now, mib << 20);
        }
        let reason = "180 MiB used then, 100 MiB allowed";
        memory_degradation(&governor, reason, Duration::from_secs(480))
    }

    #[test]
    fn memory_that_is_over_its_budget_at_the_last_step_is_not_called_kept() {
        let said = memory_said(&[(100, 180)]).expect("it is over");
        assert!(!said.message.contains("keeps"), "{}", said.message);
        let end = ". It still uses 180 MiB of 100 MiB, and it cannot reduce further (8 min \
                   ago: 180 MiB used then, 100 MiB allowed)";
        assert!(said.message.ends_with(end), "{}", said.message);
        assert!(
            said.remedy.contains("budget.memory_mib above 180 "),
            "{}",
            said.remedy
        );
    }

    #[test]
    fn memory_that_came_within_its_budget_is_called_kept() {
        assert_eq!(memory_said(&[(100, 90)]), None);
        let said = memory_said(&[(8, 180), (1, 90)]).expect("a lower level");
        assert!(
            said.message
                .starts_with("the daemon keeps its memory budget"),
            "{}",
            said.message
        );
        assert!(!said.message.contains("still"), "{}", said.message);
        // What is used now, and what was used then with its time.
        let end = "It uses 90 MiB now (8 min ago: 180 MiB used then, 100 MiB allowed)";
        assert!(said.message.ends_with(end), "{}", said.message);
    }

    #[test]
    fn limits_are_said_in_words() {
        let check = |stack_bytes, rate_hz, expected| {
            assert_eq!(
                shown_limits(Limits {
                    stack_bytes,
                    rate_hz
                }),
                expected
            );
        };
        check(u32::MAX, u32::MAX, "");
        check(4096, u32::MAX, "copying 4 KiB of each stack");
        check(0, 49, "sampling at 49 Hz and copying no stacks");
        check(u32::MAX, 9, "sampling at 9 Hz");
    }
}
