//! Builds the answer of `GetStatus`: sampling, memory, cost, and all degradations.

use super::coverage::{self, LastMinute, Low};
use super::environment;
use super::losses::Stalls;
use super::{Agent, Uplink, catalogue, stacks};
use aggregate::recorder::{Covered, Outcomes, RecorderStats};
use host::health::{Degradation, Severity};
use host::ids::CpuId;
use host::sync::lock;
use host::time::MonotonicTime;
use metrics::{Kind, OwnCost, counted};
use perf::cpu_ring::CpuCounts;
use perf::event::Feature;
use profile::{Ledger, Quality};
use proto::agent as wire;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Without a sample for this long, though CPUs worked, samples do not arrive: a machine with one
/// busy CPU takes 99 a second, and the sampler wakes every second. On idle CPUs an event need not
/// tick at all.
const SAMPLES_MISSING: Duration = Duration::from_secs(10);

impl Agent {
    /// See [`crate::grpc::Host::status`].
    pub(super) fn status_now(&self) -> wire::GetStatusResponse {
        let now = MonotonicTime::now();
        let cost = OwnCost::read();
        let (stats, quality, outcomes, recent) = {
            let recorder = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
            (
                recorder.stats(),
                recorder.totals_of_quality(),
                recorder.outcomes(),
                recorder.recent_ledger(),
            )
        };
        // Times apart: those are in the answer by themselves.
        let mut counters = catalogue::families(self, &cost);
        counters.retain(|family| family.kind == Kind::Counter);
        wire::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            host: self.start.environment.host.clone(),
            kernel: self.start.environment.kernel.clone(),
            started_unix_ns: self.start.started_unix_ns,
            now_unix_ns: self.clock.to_unix_ns(now),
            sampling: Some(self.sampling_status(now)),
            recorder: Some(self.recorder_status(&stats)),
            own_cost: Some(wire::OwnCost {
                cpu_ns: cost.cpu_ns,
                rss_bytes: cost.rss_bytes,
                wakeups: cost.wakeups(),
                cpu_ns_by_thread: cost
                    .threads
                    .into_iter()
                    .map(|(name, thread)| (name, thread.cpu_ns))
                    .collect(),
            }),
            degradations: self.dated(&self.degradations(now, &quality, &outcomes, &recent)),
            quality: Some(quality.into()),
            cpus: self.cpu_status(now),
            counters: counted(&counters)
                .map(|counted| wire::Counter {
                    name: counted.name,
                    labels: counted.labels,
                    value: counted.value,
                })
                .collect(),
            environment: Some(self.environment_status()),
            budget: Some(self.budget_status()),
            stack_ends: stacks::ends(&outcomes),
            unnamed_leaves: stacks::unnamed_leaves(&outcomes),
            coverage: Some(recent.0.coverage().into()),
            recent_lost_samples: recent.0.host.lost,
            export: self.uplink.get().map(|uplink| uplink.exporter.status()),
            runtimes: self.runtimes_status(),
            membership: self.fleet.status(),
            sandbox: Some(self.sandbox_status()),
        }
    }

    fn sandbox_status(&self) -> wire::Sandbox {
        let report = self.sandbox.report();
        wire::Sandbox {
            on: report.on,
            seccomp: report.seccomp,
            seccomp_error: report.seccomp_error,
            landlock_abi: report.landlock_abi,
            confined: report.confined.into_iter().map(str::to_owned).collect(),
            landlock_error: report.landlock_error,
            listens_confined: report.listens,
            connects_confined: report.connects,
        }
    }

    fn cpu_status(&self, now: MonotonicTime) -> Vec<wire::CpuStatus> {
        let counts: BTreeMap<CpuId, CpuCounts> = lock(&self.sampling.sampler.facts)
            .cpus
            .iter()
            .copied()
            .collect();
        let watch = lock(&self.sampling.cpus);
        let status = watch.known().map(|(cpu, presence)| {
            let counts = counts.get(&cpu).copied().unwrap_or_default();
            wire::CpuStatus {
                cpu: cpu.0,
                samples: counts.samples,
                lost: counts.lost,
                throttled: counts.throttled,
                online: presence.online,
                away_ns: presence.away(now).as_nanos() as u64,
                missed_samples: counts.missed,
            }
        });
        status.collect()
    }

    fn sampling_status(&self, now: MonotonicTime) -> wire::Sampling {
        let sampling = lock(&self.sampling.facts).clone();
        let newest = MonotonicTime(self.sampling.sampler.newest_sample.load(Ordering::Relaxed));
        let age = if newest == MonotonicTime(0) {
            Duration::ZERO
        } else {
            now.since(newest)
        };
        let unwind_cache_bytes = lock(&self.sampling.sampler.facts).unwinding.modules.bytes;
        wire::Sampling {
            event: sampling.event.name().into(),
            requested_event: sampling.requested.name().into(),
            rate_hz: sampling.plan.rate_hz,
            cpus_online: sampling.cpus_online as u32,
            cpus_sampled: sampling.cpus_sampled as u32,
            ring_bytes_per_cpu: sampling.plan.ring_bytes as u64,
            unwind: match sampling.plan.stack_bytes {
                0 => "frame-pointer".into(),
                _ => "stack-copy".into(),
            },
            missing_features: sampling
                .features
                .missing()
                .iter()
                .map(|f| f.name().into())
                .collect(),
            last_sample_age_ns: age.as_nanos() as u64,
            samples_arrive: newest != MonotonicTime(0)
                && (age < SAMPLES_MISSING || !self.sampling.samples_due()),
            stack_bytes: sampling.plan.stack_bytes,
            reduced: sampling.plan.reduced.unwrap_or_default(),
            unwind_cache_bytes,
            unwind_cache_bytes_max: self.budget.bounds.unwind() as u64,
        }
    }

    fn recorder_status(&self, stats: &RecorderStats) -> wire::Recorder {
        let unix = |time: Option<MonotonicTime>| time.map_or(0, |time| self.clock.to_unix_ns(time));
        let window_seconds = lock(&self.settings.active).config.windows.length_s;
        wire::Recorder {
            oldest_unix_ns: unix(stats.oldest),
            newest_unix_ns: unix(stats.newest),
            windows: stats.windows as u32,
            bytes: stats.bytes as u64,
            budget_bytes: stats.budget_bytes as u64,
            window_seconds,
            downsampled_windows: stats.downsampled_windows as u32,
            dropped_windows: stats.totals.dropped_by_age + stats.totals.dropped_by_budget,
            times_bytes: stats.times_bytes as u64,
            times_budget_bytes: stats.times_budget_bytes as u64,
            times_since_unix_ns: unix(stats.times_since),
            times_dropped: stats.totals.times_dropped,
        }
    }

    fn environment_status(&self) -> wire::Environment {
        let known = &self.start.environment;
        wire::Environment {
            perf_event_paranoid: known.perf_event_paranoid.unwrap_or_default(),
            perf_event_max_stack: known.perf_event_max_stack.unwrap_or_default(),
            perf_event_mlock_kb: known.perf_event_mlock_kb.unwrap_or_default(),
            perf_event_max_sample_rate: known.perf_event_max_sample_rate.unwrap_or_default(),
            kptr_restrict: known.kptr_restrict.unwrap_or_default(),
            kernel_symbols: self.start.kernel_symbols,
            cgroup_mode: self.start.hierarchy.mode.as_str().into(),
            cgroup_root: self
                .start
                .hierarchy
                .mount
                .as_ref()
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
        }
    }

    /// Coverage of the last minute when it is too low.
    pub(super) fn coverage_low(&self, (ledger, covered): &(Ledger, Covered)) -> Option<Low> {
        let all_sampled = {
            let sampling = lock(&self.sampling.facts);
            sampling.cpus_sampled >= sampling.cpus_online
        };
        let stalls = Stalls::of(&self.sampling.sampler);
        let lost_stalled = lock(&self.health.losses).lost_stalled(MonotonicTime::now(), stalls);
        coverage::low(&LastMinute {
            ledger,
            covered,
            all_sampled,
            lost_stalled,
        })
    }

    /// All current degradations.
    pub(super) fn degradations_now(&self, now: MonotonicTime) -> Vec<Degradation> {
        let known = lock(&self.health.recent).take();
        let (quality, outcomes, (newest, recent)) = {
            let recorder = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
            let newest = recorder.newest_end();
            // The main thread asks twice while a window lasts.
            let recent = known.filter(|(end, _)| *end == newest);
            (
                recorder.totals_of_quality(),
                recorder.outcomes(),
                recent.unwrap_or_else(|| (newest, recorder.recent_ledger())),
            )
        };
        let list = self.degradations(now, &quality, &outcomes, &recent);
        *lock(&self.health.recent) = Some((newest, recent));
        list
    }

    /// Said when no sample has arrived for a while though CPUs were busy.
    pub(super) fn no_samples(&self, now: MonotonicTime) -> Option<Degradation> {
        let newest = MonotonicTime(self.sampling.sampler.newest_sample.load(Ordering::Relaxed));
        let up = now.since(self.start.started);
        let silent = now.since(newest) >= SAMPLES_MISSING;
        if !silent || up <= SAMPLES_MISSING || !self.sampling.samples_due() {
            return None;
        }
        let event = lock(&self.sampling.facts).event.name();
        Some(Degradation::new(
            "no_samples",
            Severity::Error,
            match newest {
                MonotonicTime(0) => format!(
                    "no sample of the event `{event}` has ever arrived, although CPUs were busy"
                ),
                newest => format!(
                    "no sample of the event `{event}` has arrived for {} s, although CPUs were \
                     busy",
                    now.since(newest).as_secs()
                ),
            },
            "systemctl restart fleetprofd; if it comes back, report it with the output of agent-ctl \
             status --json",
        ))
    }

    /// Degradations of the machine and of this run.
    fn degradations(
        &self,
        now: MonotonicTime,
        quality: &Quality,
        outcomes: &Outcomes,
        recent: &(Ledger, Covered),
    ) -> Vec<Degradation> {
        let sampling = lock(&self.sampling.facts).clone();
        let config = lock(&self.settings.active).config.clone();
        let mut list = environment::degradations(
            &self.start.environment,
            &config.sampling,
            &self.start.hierarchy,
        );
        list.extend(self.blinding(now));
        if let Some(age) = self.health.symbolizer_slow() {
            list.push(Degradation::new(
                "naming_stalled",
                Severity::Error,
                format!(
                    "the thread that names samples has waited {} s on one window, most likely for \
                     a file system that does not answer: samples are kept, but answers do not show \
                     them yet",
                    age.as_secs()
                ),
                "cat /proc/$(pidof fleetprofd)/task/*/stack",
            ));
        }
        if let Some(age) = self.health.files_slow() {
            list.push(Degradation::new(
                "files_stalled",
                Severity::Error,
                format!(
                    "the thread that opens executables has waited {} s for a file, most likely for \
                     a disk that does not answer: programs that start now have no names and \
                     shorter stacks",
                    age.as_secs()
                ),
                "cat /proc/$(pidof fleetprofd)/task/*/stack",
            ));
        }
        let (processes, unwinding) = {
            let facts = lock(&self.sampling.sampler.facts);
            (facts.processes, facts.unwinding)
        };
        let cache = stacks::UnwindCache {
            in_force: self.budget.bounds.unwind(),
            configured: config.unwind.cache_bytes(),
            modules: unwinding.modules,
        };
        list.extend(stacks::degradation(
            outcomes,
            &config.unwind,
            &sampling.plan,
            &cache,
        ));
        list.extend(stacks::looks_degradation(
            &lock(&self.sampling.sampler.facts).unwinding.looks,
        ));
        list.extend(cache.degradation());
        list.extend(stacks::of_process_table(&processes));
        list.extend(stacks::of_costly_files(
            &self.counters.symbols,
            &unwinding.modules,
        ));
        list.extend(self.counters.containers.degradation());
        list.extend(self.triggers.degradations());
        list.extend(self.pins.degradation());
        list.extend(self.sandbox.report().missing().map(|reasons| {
            Degradation::new(
                "sandbox_partial",
                Severity::Info,
                format!("the sandbox of the daemon is incomplete: {reasons}"),
                sandbox::REMEDY,
            )
        }));
        if let Some(reason) = &sampling.fallback {
            list.push(Degradation::new(
                "event_fallback",
                Severity::Info,
                format!(
                    "`{}` is sampled instead of `{}`: {reason}",
                    sampling.event.name(),
                    sampling.requested.name()
                ),
                "",
            ));
        }
        for feature in sampling.features.missing() {
            list.push(Degradation::new(
                feature.name(),
                Severity::Info,
                format!(
                    "the kernel does not support `{}`: {}",
                    feature.name(),
                    consequence(*feature)
                ),
                "",
            ));
        }
        if sampling.cpus_sampled < sampling.cpus_online {
            list.push(Degradation::new(
                "cpus_not_sampled",
                Severity::Warning,
                format!(
                    "{} of {} CPUs are sampled: the log tells why the others are not",
                    sampling.cpus_sampled, sampling.cpus_online
                ),
                "systemctl restart fleetprofd",
            ));
        }
        self.budget_degradations(&mut list);
        let longest = self.sampling.sampler.longest_delay.load(Ordering::Relaxed);
        let counted = (quality, Stalls::of(&self.sampling.sampler));
        let losses =
            lock(&self.health.losses).degradations(now, counted, Duration::from_nanos(longest));
        if let (Some(lost), Some(cause)) = (
            list.iter_mut().find(|found| found.id == "samples_lost"),
            losses.first(),
        ) {
            lost.remedy.clone_from(&cause.remedy);
        }
        list.extend(losses);
        list.extend(self.coverage_low(recent).map(coverage::degradation));
        if let Some(Uplink { exporter, .. }) = self.uplink.get() {
            list.extend(exporter.degradations(now));
        }
        list.extend(self.fleet.degradations(self.clock.to_unix_ns(now)));
        list
    }
}

/// What a profile lacks without a feature.
fn consequence(feature: Feature) -> &'static str {
    match feature {
        Feature::ReadLost => "losses are known only from records",
        Feature::Cgroup => "cgroups are read from /proc and are missing for short-lived processes",
        Feature::Ksymbol => "kernel modules and BPF programs that are loaded later get names late",
    }
}

/// As a message; `since_unix_ns`: 0 when it is not known.
pub(super) fn to_wire(degradation: &Degradation, since_unix_ns: i64) -> wire::Degradation {
    let severity = match degradation.severity {
        Severity::Info => wire::Severity::Info,
        Severity::Warning => wire::Severity::Warning,
        Severity::Error => wire::Severity::Error,
    };
    wire::Degradation {
        id: degradation.id.into(),
        message: degradation.message.clone(),
        remedy: degradation.remedy.clone(),
        severity: severity as i32,
        since_unix_ns,
    }
}
