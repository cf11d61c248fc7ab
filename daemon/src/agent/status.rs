//! What `GetStatus` says: sampling, memory, cost, and everything that is degraded.

use super::{Agent, lock};
use crate::aggregate::recorder::RecorderStats;
use crate::metrics::OwnCost;
use crate::perf::environment::{self, Degradation, Severity};
use crate::perf::event::Feature;
use crate::time::Mono;
use profile::Quality;
use proto::agent as wire;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Without a sample for this long, samples do not arrive: a machine with one busy CPU takes 99 a
/// second, and the sampler wakes every second.
const SAMPLES_MISSING: Duration = Duration::from_secs(10);

impl Agent {
    /// See [`crate::grpc::Host::status`].
    pub(super) fn status_now(&self) -> wire::GetStatusResponse {
        let now = Mono::now();
        let cost = OwnCost::read();
        let facts = lock(&self.sampler.facts).clone();
        let (stats, quality) = {
            let recorder = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
            (recorder.stats(), recorder.totals_of_quality())
        };
        let registry = self.registry.get();
        let counters = registry
            .map(|registry| registry.counters())
            .unwrap_or_default();
        wire::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            host: self.environment.host.clone(),
            kernel: self.environment.kernel.clone(),
            started_unix_ns: self.started_unix_ns,
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
            degradations: self
                .degradations(now, &quality)
                .into_iter()
                .map(to_wire)
                .collect(),
            quality: Some(quality.into()),
            cpus: facts
                .cpus
                .iter()
                .map(|(cpu, counts)| wire::CpuStatus {
                    cpu: cpu.0,
                    samples: counts.samples,
                    lost: counts.lost,
                    throttled: counts.throttled,
                })
                .collect(),
            counters: counters
                .into_iter()
                .map(|counted| wire::Counter {
                    name: counted.name.into(),
                    labels: counted.labels,
                    value: counted.value,
                })
                .collect(),
            environment: Some(self.environment_status()),
        }
    }

    fn sampling_status(&self, now: Mono) -> wire::Sampling {
        let sampling = lock(&self.sampling).clone();
        let newest = Mono(self.sampler.newest_sample.load(Ordering::Relaxed));
        let age = if newest == Mono(0) {
            Duration::ZERO
        } else {
            now.since(newest)
        };
        wire::Sampling {
            event: sampling.event.name().into(),
            requested_event: sampling.requested.name().into(),
            rate_hz: sampling.rate_hz,
            cpus_online: sampling.cpus_online as u32,
            cpus_sampled: sampling.cpus_sampled as u32,
            ring_bytes_per_cpu: sampling.ring_bytes as u64,
            unwind: "frame-pointer".into(),
            missing_features: sampling.missing.iter().map(|f| f.name().into()).collect(),
            last_sample_age_ns: age.as_nanos() as u64,
            samples_arrive: newest != Mono(0) && age < SAMPLES_MISSING,
        }
    }

    fn recorder_status(&self, stats: &RecorderStats) -> wire::Recorder {
        let unix = |time: Option<Mono>| time.map_or(0, |time| self.clock.to_unix_ns(time));
        wire::Recorder {
            oldest_unix_ns: unix(stats.oldest),
            newest_unix_ns: unix(stats.newest),
            windows: stats.windows as u32,
            bytes: stats.bytes as u64,
            budget_bytes: stats.budget_bytes as u64,
            window_seconds: lock(&self.config).config.windows.length_s,
            coarse_windows: stats.coarse_windows as u32,
            dropped_windows: stats.totals.dropped_by_age + stats.totals.dropped_by_budget,
        }
    }

    fn environment_status(&self) -> wire::Environment {
        let known = &self.environment;
        wire::Environment {
            perf_event_paranoid: known.perf_event_paranoid.unwrap_or_default(),
            perf_event_max_stack: known.perf_event_max_stack.unwrap_or_default(),
            perf_event_mlock_kb: known.perf_event_mlock_kb.unwrap_or_default(),
            perf_event_max_sample_rate: known.perf_event_max_sample_rate.unwrap_or_default(),
            kptr_restrict: known.kptr_restrict.unwrap_or_default(),
            kernel_symbols: self.kernel_symbols,
            cgroup_mode: self.hierarchy.mode.as_str().into(),
            cgroup_root: self
                .hierarchy
                .mount
                .as_ref()
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
        }
    }

    /// What does not work as it should: of the machine, and of this run.
    fn degradations(&self, now: Mono, quality: &Quality) -> Vec<Degradation> {
        let sampling = lock(&self.sampling).clone();
        let config = lock(&self.config).config.clone();
        let mut list = self
            .environment
            .degradations(&config.sampling, &self.hierarchy);
        let newest = Mono(self.sampler.newest_sample.load(Ordering::Relaxed));
        let up = self.clock.to_unix_ns(now) - self.started_unix_ns;
        if now.since(newest) >= SAMPLES_MISSING && up > SAMPLES_MISSING.as_nanos() as i64 {
            list.push(Degradation::new(
                "no_samples",
                Severity::Error,
                format!(
                    "no sample of the event `{}` has arrived for {} s",
                    sampling.event.name(),
                    now.since(newest).as_secs()
                ),
                "agent-ctl doctor",
            ));
        }
        if let Some(age) = self.namer_slow() {
            list.push(Degradation::new(
                "naming_stalled",
                Severity::Error,
                format!(
                    "the thread that names samples has waited {} s for one window, most likely for a \
                     file system that does not answer: samples are kept, answers do not show them yet",
                    age.as_secs()
                ),
                "cat /proc/$(pidof fleetprofd)/task/*/stack",
            ));
        }
        if quality.taken > 1000 && quality.incomplete * 2 > quality.taken {
            list.push(Degradation::new(
                "frame_pointers",
                Severity::Info,
                format!(
                    "{:.0} % of stacks end before their start function: most code here is built \
                     without frame pointers. Leaf functions and CPU shares are right, callers are missing",
                    quality.incomplete as f64 * 100.0 / quality.taken as f64
                ),
                "build with -fno-omit-frame-pointer (Rust: -C force-frame-pointers=yes)",
            ));
        }
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
        for feature in sampling.missing {
            list.push(Degradation::new(
                feature.name(),
                Severity::Info,
                format!(
                    "the kernel does not know `{}`: {}",
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
                    "{} of {} CPUs are sampled: the others went offline at the start",
                    sampling.cpus_sampled, sampling.cpus_online
                ),
                "systemctl restart fleetprofd",
            ));
        }
        if quality.lost > 0 {
            list.push(Degradation::new(
                "records_lost",
                Severity::Warning,
                format!("{} records found no room in a ring buffer", quality.lost),
                "raise sampling.ring_kib and reload: agent-ctl config reload",
            ));
        }
        if quality.throttled > 0 {
            list.push(Degradation::new(
                "throttled",
                Severity::Warning,
                format!(
                    "the kernel paused sampling {} times because samples took too long",
                    quality.throttled
                ),
                "sysctl -w kernel.perf_cpu_time_max_percent=25, or lower sampling.rate_hz",
            ));
        }
        list
    }
}

/// What a profile misses without a feature.
fn consequence(feature: Feature) -> &'static str {
    match feature {
        Feature::ReadLost => "losses are known from records only",
        Feature::BuildId => "files are known by inode instead of by build id",
        Feature::Cgroup => "cgroups are read from /proc and are missing for short-lived processes",
        Feature::Ksymbol => "names of kernel modules and BPF programs loaded later come late",
    }
}

fn to_wire(degradation: environment::Degradation) -> wire::Degradation {
    let severity = match degradation.severity {
        Severity::Info => wire::Severity::Info,
        Severity::Warning => wire::Severity::Warning,
        Severity::Error => wire::Severity::Error,
    };
    wire::Degradation {
        id: degradation.id.into(),
        message: degradation.message,
        remedy: degradation.remedy,
        severity: severity as i32,
    }
}
