//! The exporter's part of the status, the metrics and the list of degradations.

use super::Exporter;
use super::gaps::Cause;
use super::spool::Waiting;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::MonotonicTime;
use proto::agent as wire;
use std::time::Duration;

/// A collector that has been away this long is worth a word: restarts take less.
const AWAY_INFO: Duration = Duration::from_secs(120);

/// A collector that is away for this long has most likely not just been restarted.
const AWAY_WARNING: Duration = Duration::from_secs(600);

/// Progress of the threads, for the status.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub(super) taken_windows: u64,
    pub(super) taken_samples: u64,
    pub(super) withheld_samples: u64,
    pub(super) acked_windows: u64,
    pub(super) acked_samples: u64,
    /// Windows the collector had already.
    pub(super) repeated_windows: u64,
    pub(super) connections: u64,
    pub(super) connected_since: Option<MonotonicTime>,
    pub(super) away_since: Option<MonotonicTime>,
    pub(super) last_ack: Option<MonotonicTime>,
    pub(super) last_error: String,
    pub(super) last_refusal: String,
    pub(super) spool_error: Option<String>,
    pub(super) collector_version: String,
    pub(super) definitions: u64,
    /// Answers of the collector with an outcome unknown to this version.
    pub(super) unknown_outcomes: u64,
}

metrics::counted! {
    /// How long the way to the collector takes.
    pub struct ExportTimes;
    /// Time from sending a window until the collector acknowledged it.
    Histogram fleetprof_export_push_duration_seconds = push [metrics::CALL_SECONDS];
    /// Time to write a window to the spool, fsync included.
    Histogram fleetprof_spool_write_duration_seconds = spool_write [metrics::DISK_SECONDS];
}

/// Numbers of the exporter, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Windows that closed since the start.
    pub taken_windows: u64,
    /// Samples in them with withheld stacks.
    pub withheld_samples: u64,
    /// Windows the collector has acknowledged since the start.
    pub acked_windows: u64,
    /// Samples in them.
    pub acked_samples: u64,
    /// Windows the collector had already.
    pub repeated_windows: u64,
    /// Connections that came about.
    pub connections: u64,
    /// Messages with definitions of stacks.
    pub definitions: u64,
    /// Windows that wait.
    pub waiting_windows: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// 1 while there is a connection.
    pub connected: u64,
    /// Windows and samples given up since the boot, by [`Cause::ALL`].
    pub dropped: super::gaps::Totals,
}

impl Exporter {
    /// Numbers for metrics.
    pub fn counts(&self) -> ExportCounts {
        let progress = lock(&self.shared.progress).clone();
        let (waiting, dropped) = self.waiting();
        ExportCounts {
            taken_windows: progress.taken_windows,
            withheld_samples: progress.withheld_samples,
            acked_windows: progress.acked_windows,
            acked_samples: progress.acked_samples,
            repeated_windows: progress.repeated_windows,
            connections: progress.connections,
            definitions: progress.definitions,
            waiting_windows: waiting.windows,
            waiting_bytes: waiting.bytes,
            connected: u64::from(progress.connected_since.is_some()),
            dropped,
        }
    }

    /// Times for metrics.
    pub fn times(&self) -> &ExportTimes {
        &self.shared.times
    }

    fn waiting(&self) -> (Waiting, super::gaps::Totals) {
        let index = lock(&self.shared.index);
        (index.waiting(), index.gaps.totals())
    }

    /// As the status shows it.
    pub fn status(&self) -> wire::Export {
        let progress = lock(&self.shared.progress).clone();
        let (waiting, dropped) = self.waiting();
        let unix = |at: Option<MonotonicTime>| at.map_or(0, |at| self.clock.to_unix_ns(at));
        let dropped = Cause::ALL.iter().zip(dropped);
        wire::Export {
            collector: self.collector().to_string(),
            host_id: self.identity.host_id.clone(),
            connected_since_unix_ns: unix(progress.connected_since),
            away_since_unix_ns: unix(progress.away_since),
            last_error: progress.last_error,
            last_ack_unix_ns: unix(progress.last_ack),
            waiting_windows: waiting.windows,
            waiting_bytes: waiting.bytes,
            bytes_max: self.shared.settings().max_bytes,
            oldest_unix_ns: waiting.oldest_unix_ns.unwrap_or(0),
            taken_windows: progress.taken_windows,
            taken_samples: progress.taken_samples,
            acked_windows: progress.acked_windows,
            acked_samples: progress.acked_samples,
            dropped: dropped
                .filter(|(_, (windows, _))| *windows > 0)
                .map(|(cause, (windows, samples))| wire::ExportDrop {
                    cause: cause.word().to_owned(),
                    windows,
                    samples,
                })
                .collect(),
            spool_error: progress.spool_error.unwrap_or_default(),
            collector_version: progress.collector_version,
        }
    }

    /// Degradations of the upload to the collector.
    pub fn degradations(&self, now: MonotonicTime) -> Vec<Degradation> {
        let progress = lock(&self.shared.progress).clone();
        let (waiting, _) = self.waiting();
        let mut list = Vec::new();
        let away = progress.away_since.map(|since| now.since(since));
        list.extend(away.and_then(|away| {
            degradation(
                &self.collector().to_string(),
                away,
                &progress.last_error,
                waiting.windows,
            )
        }));
        if let Some(reason) = &progress.spool_error {
            list.push(Degradation::new(
                "spool_unusable",
                Severity::Warning,
                format!(
                    "windows wait for the collector in memory and are lost at a restart: {reason}"
                ),
                format!(
                    "df '{0}'; ls -ld '{0}'; chown root:root '{0}' && chmod 0700 '{0}'",
                    self.dir.display()
                ),
            ));
        }
        if progress.unknown_outcomes > 0 {
            list.push(Degradation::new(
                "collector_not_understood",
                Severity::Warning,
                format!(
                    "the collector at {} gave {} answers that this version does not understand: \
                     their windows wait and are sent again",
                    self.collector(),
                    progress.unknown_outcomes
                ),
                "fleetprofd --version; fleetprof-collector --version",
            ));
        }
        if !progress.last_refusal.is_empty() {
            list.push(Degradation::new(
                "collector_refuses",
                Severity::Warning,
                format!(
                    "the collector refused windows, the last one because {}",
                    progress.last_refusal
                ),
                "timedatectl status",
            ));
        }
        list
    }
}

/// A collector that is away, when it has been for minutes.
pub fn degradation(
    address: &str,
    away: Duration,
    error: &str,
    waiting: u64,
) -> Option<Degradation> {
    let severity = match away {
        away if away >= AWAY_WARNING => Severity::Warning,
        away if away >= AWAY_INFO => Severity::Info,
        _ => return None,
    };
    let reason = match error {
        "" => String::new(),
        error => format!(" ({error})"),
    };
    Some(Degradation::new(
        "collector_away",
        severity,
        format!(
            "the collector at {address} has been unreachable for {} s{reason}: {waiting} {}",
            away.as_secs(),
            if waiting == 1 {
                "window waits for it"
            } else {
                "windows wait for it"
            }
        ),
        "systemctl status fleetprof-collector",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_away_is_told_after_minutes_and_is_never_an_error() {
        let after = |seconds| {
            let away = Duration::from_secs(seconds);
            let found = degradation("127.0.0.1:1", away, "refused", 3);
            found.map(|found| found.severity)
        };
        assert_eq!(after(60), None);
        assert_eq!(after(120), Some(Severity::Info));
        assert_eq!(after(600), Some(Severity::Warning));
        assert_eq!(after(1_000_000), Some(Severity::Warning));
    }
}
