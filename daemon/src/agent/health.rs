//! The health of the stages: whether they make progress, what they miss, and which degradations
//! hold.

use super::Agent;
use super::alarm::Alarms;
use super::losses::{RecentLosses, Stalls};
use aggregate::recorder::Covered;
use host::heartbeat::{Heartbeat, PriorityGovernor};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::Ledger;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A symbolizer that works this long on one batch waits for a file system: naming takes
/// milliseconds, and seconds for the first batch of a large host.
const SYMBOLIZER_SLOW: Duration = Duration::from_secs(20);

/// `fp-files` waits 2 s for a file that is opened, and reading all processes or one file's unwind
/// information takes tenths of a second: past this the disk itself does not answer.
const FILES_SLOW: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
pub struct StageHealth {
    /// Losses of the rings in the last minutes.
    pub losses: Mutex<RecentLosses>,
    /// Which degradations hold, since when, and which were reported.
    pub alarms: Mutex<Alarms>,
    /// The ledger of the last minute, and the end of the newest window in it.
    pub recent: Mutex<Option<(MonotonicTime, (Ledger, Covered))>>,
    /// The symbolizer's work on one batch.
    pub symbolizer: Heartbeat,
    /// How soon the symbolizer gets a CPU.
    pub symbolizer_pace: PriorityGovernor,
    /// The work of `fp-files` on one request.
    pub files: Arc<Heartbeat>,
}

impl StageHealth {
    /// How long the symbolizer has worked on one batch, when that is suspiciously long.
    pub fn symbolizer_slow(&self) -> Option<Duration> {
        self.symbolizer
            .busy_longer_than(SYMBOLIZER_SLOW, MonotonicTime::now())
    }

    /// How long `fp-files` has worked on one request, when that is suspiciously long.
    pub fn files_slow(&self) -> Option<Duration> {
        self.files
            .busy_longer_than(FILES_SLOW, MonotonicTime::now())
    }
}

impl Agent {
    /// Remembers what was missed so far, so that `status` can speak of the last minutes. Called
    /// every ten seconds or more often, by one thread.
    pub fn note_losses(&self, now: MonotonicTime) {
        let quality = aggregate::recorder::read(&self.recorder).totals_of_quality();
        let stalls = Stalls::of(&self.sampling.sampler);
        let mut losses = lock(&self.health.losses);
        if let Some(times) = losses.flushes(now, stalls) {
            let facts = lock(&self.sampling.sampler.facts);
            let cpus = facts.cpus.iter().filter(|(_, counts)| counts.flushed > 0);
            let cpus: Vec<String> = cpus.map(|(cpu, _)| cpu.0.to_string()).collect();
            let cpus = cpus.join(" ");
            tracing::warn!(
                times,
                cpus,
                "a ring buffer was full and stuck: it was flushed, and its samples are lost"
            );
        }
        losses.note(now, (&quality, stalls), || {
            Duration::from_nanos(
                self.sampling
                    .sampler
                    .longest_delay
                    .swap(0, Ordering::Relaxed),
            )
        });
    }
}
