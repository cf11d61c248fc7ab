//! Export: every closed window goes through a spool on disk to the collector. The daemon keeps it
//! until the collector has acknowledged it.
//!
//! ```text
//! recorder ─ exporter ─▶ queue ─▶ fp-spool ─▶ segments (disk, or memory while there is none)
//!  (fp-symbolize)                     │ index
//!                                     ▼
//!                                 fp-uplink ─ gRPC stream ─▶ collector
//! ```
//!
//! `window_exporter` copies a window as the recorder closes it; `writer` makes it durable and keeps
//! the spool's limits; `push` sends what waits, the newest first as it closes, the backlog after
//! it, and handles the answers. They share the index of what waits (`spool`): no thread waits for
//! another's disk or network, and `fp-uplink`, which also handles captures and pins, leaves disk
//! reads to other threads (`quota`). A dropped window is counted by cause and reported to the
//! collector as a gap. Without a collector in the configuration none of this runs.
//!
//! With windows of 10 s, on two CPUs with little to do, `fp-spool` and `fp-push` each woke 0.3
//! times a second; a window cost them 0.3 and 2.5 ms of CPU (most stacks new to the collector),
//! compared with 2.5 ms of `fp-sampler` (`/proc/PID/task`, 40 s, 2026-11-22). They made 11 and 50
//! system calls per window (`strace -c`).
#![forbid(unsafe_code)]

pub mod connect;
pub mod disk;
mod disk_work;
mod gaps;
mod gaps_file;
mod identity;
mod push;
mod quota;
mod reader;
mod session;
mod spool;
mod status;
mod stream;
#[cfg(test)]
mod tests;
pub mod uplink;
mod window_exporter;
mod writer;

pub use connect::Target;
pub use gaps::{Cause, SpoolGap};
pub use identity::{HostInfo, Identity};
pub use quota::Quota;
pub use status::{ExportCounts, ExportTimes, degradation};

use ::identity::Dialer;
use agent_config as config;
use aggregate::programs::Program;
use aggregate::recorder::ClosedSink;
use connect::Connection;
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use profile::Withholding;
use proto::collector::HostHealth;
use sandbox::starter::Starter;
use segment::window::WindowHeader;
use spool::Index;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};
use window_exporter::SpoolEntry;

/// Windows between the recorder and the spool's thread. Beyond it the disk has been late by as many
/// windows, and the next ones are dropped and counted.
const QUEUE_MAX: usize = 4;

/// Losses of the window exporter that the spool's thread has not seen yet; of more the last is
/// widened.
const LOST_MAX: usize = 64;

/// Settings that a reload may change.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Settings {
    /// Labels of the host.
    pub labels: BTreeMap<String, String>,
    /// Labels merged away.
    pub drop_labels: Vec<String>,
    /// What windows and pins must not contain.
    pub withhold: Arc<Withholding>,
    /// Bound of the spool. Unit: bytes.
    pub max_bytes: u64,
    /// Longest wait of a window. Unit: nanoseconds.
    pub max_age_ns: i64,
}

impl Settings {
    /// Extracts them from a configuration.
    pub fn of(config: &config::Config) -> Settings {
        let withhold = config.withholding();
        let config = &config.collector;
        Settings {
            withhold,
            labels: config.labels.clone(),
            drop_labels: config.drop_labels.clone(),
            max_bytes: config.spool.max_bytes(),
            max_age_ns: i64::try_from(config.spool.max_age().as_nanos()).unwrap_or(i64::MAX),
        }
    }
}

/// State shared by the exporter's threads, the window exporter and the status.
pub struct ExportState {
    /// The next window starts a new generation.
    rotate: AtomicBool,
    settings: Mutex<Settings>,
    settings_version: AtomicU64,
    /// The agent's health, and how often it or the programs changed in more than text.
    health: Mutex<HostHealth>,
    health_version: AtomicU64,
    /// What services of the host run.
    programs: Mutex<Vec<Program>>,
    last_sequence: AtomicU64,
    /// Gaps from the window exporter, until the spool's thread takes them.
    lost: Mutex<Vec<SpoolGap>>,
    index: Mutex<Index>,
    /// The spool's directory, once it could be opened.
    dir: Mutex<Option<Arc<disk::Dir>>>,
    /// Disk reads and writes for the sender, one after the other.
    disk: Quota,
    /// Finished records that are not noted on disk yet.
    notes: Mutex<disk_work::Notes>,
    progress: Mutex<status::Progress>,
    times: status::ExportTimes,
    /// Something new waits, or the end has come.
    wake: Notify,
    /// Set at the end: until when the sender may go on.
    stop: watch::Sender<Option<MonotonicTime>>,
    /// The spool's thread has written its last.
    written: AtomicBool,
    /// Threads that have ended.
    threads_ended: AtomicUsize,
}

/// Threads of an exporter: `fp-spool`, and the sender on `fp-uplink`.
const THREADS: usize = 2;

impl ExportState {
    fn new(settings: Settings) -> ExportState {
        ExportState {
            rotate: AtomicBool::new(false),
            settings: Mutex::new(settings),
            settings_version: AtomicU64::new(0),
            health: Mutex::default(),
            health_version: AtomicU64::new(0),
            programs: Mutex::default(),
            last_sequence: AtomicU64::new(0),
            lost: Mutex::default(),
            index: Mutex::default(),
            dir: Mutex::default(),
            disk: Quota::new(1),
            notes: Mutex::default(),
            progress: Mutex::default(),
            times: status::ExportTimes::default(),
            wake: Notify::new(),
            stop: watch::Sender::new(None),
            written: AtomicBool::new(false),
            threads_ended: AtomicUsize::new(0),
        }
    }

    fn settings_version(&self) -> u64 {
        self.settings_version.load(Ordering::Acquire)
    }

    fn dir(&self) -> Option<Arc<disk::Dir>> {
        lock(&self.dir).clone()
    }

    fn set_dir(&self, dir: Arc<disk::Dir>) {
        *lock(&self.dir) = Some(dir);
    }

    fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// A sequence of at least `wanted`, above all before.
    fn next_sequence(&self, wanted: u64) -> u64 {
        let next = |last: u64| Some(wanted.max(last.saturating_add(1)));
        let before = self
            .last_sequence
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        let (Ok(before) | Err(before)) = before;
        wanted.max(before.saturating_add(1))
    }

    /// Counts a window of which nothing reached the spool. From the window exporter: holds a lock
    /// for a moment.
    fn lost(&self, cause: Cause, header: WindowHeader) {
        let gap = SpoolGap::of(cause, &header);
        let mut lost = lock(&self.lost);
        if lost.len() < LOST_MAX {
            lost.push(gap);
        } else if let Some(last) = lost.last_mut() {
            last.widen(&gap);
        }
    }

    /// Called when one of the threads ends. The last one records what neither the disk nor the
    /// collector has, on disk for the next start to report, and in the log.
    fn thread_ended(&self, identity: &Identity) {
        if self.threads_ended.fetch_add(1, Ordering::AcqRel) + 1 < THREADS {
            return;
        }
        let lost = {
            let mut index = lock(&self.index);
            index.gaps.end();
            index.only_in_memory()
        };
        let noted = self.save_gaps(identity);
        if let Some(lost) = lost {
            tracing::error!(
                windows = lost.windows,
                samples = lost.samples,
                noted,
                "lost windows: neither the spool nor the collector stored them"
            );
        }
    }

    fn count_taken(&self, header: WindowHeader) {
        let mut progress = lock(&self.progress);
        progress.taken_windows += 1;
        progress.taken_samples += header.samples;
    }

    fn count_withheld(&self, samples: u64) {
        lock(&self.progress).withheld_samples += samples;
    }
}

/// Options of the exporter.
pub struct Options {
    /// The collector.
    pub collector: Target,
    /// Starts threads that are not confined as the uplink's are; `None` if those are not confined
    /// either.
    pub outside: Option<Starter>,
    /// Directory of the spool.
    pub dir: PathBuf,
    /// Settings that a reload may change.
    pub settings: Settings,
    /// Identity of this host.
    pub identity: Identity,
    /// The facts that the collector receives.
    pub host: HostInfo,
}

/// The handle of the exporter: what the supervisor and the status see of it.
pub struct Exporter {
    connection: Connection,
    outside: Option<Starter>,
    dir: PathBuf,
    identity: Arc<Identity>,
    host: HostInfo,
    clock: Arc<WallAnchor>,
    shared: Arc<ExportState>,
}

/// Windows on their way to the spool's thread.
pub struct Queue(Receiver<SpoolEntry>);

impl Exporter {
    /// Creates an exporter without running threads, the sink for the recorder, and the queue
    /// between them.
    pub fn new(options: Options, clock: Arc<WallAnchor>) -> (Exporter, Box<dyn ClosedSink>, Queue) {
        let shared = Arc::new(ExportState::new(options.settings));
        let (queue, entries) = sync_channel(QUEUE_MAX);
        let sink =
            window_exporter::WindowExporter::new(queue, Arc::clone(&shared), Arc::clone(&clock));
        lock(&shared.progress).away_since = Some(MonotonicTime::now());
        let dialer = options.outside.clone().map(Dialer::new);
        if let (Target::Fleet(member), Some(dialer)) = (&options.collector, &dialer) {
            member.dial_by(dialer.clone());
        }
        let exporter = Exporter {
            connection: Connection::new(options.collector, dialer),
            outside: options.outside,
            dir: options.dir,
            identity: Arc::new(options.identity),
            host: options.host,
            clock,
            shared,
        };
        (exporter, Box::new(sink), Queue(entries))
    }

    /// The body of `fp-spool`: ends when the recorder has dropped its sink.
    pub fn run_spool(&self, queue: &Queue) {
        let shared = Arc::clone(&self.shared);
        let (dir, identity) = (self.dir.clone(), Arc::clone(&self.identity));
        writer::Writer::new(shared, dir, identity, Arc::clone(&self.clock)).run(&queue.0);
    }

    /// The sender, a service of the uplink: ends soon after [`Exporter::stop`].
    pub async fn push(self: Arc<Self>) {
        push::run(&self).await;
    }

    /// Done when it is to stop.
    pub async fn stopping(&self) {
        let mut stop = self.shared.stop.subscribe();
        let _ = stop.wait_for(Option::is_some).await;
    }

    /// Work that looks at other processes, of which threads of the uplink are not capable: so much
    /// of it at a time.
    pub fn outside(&self, most: usize) -> Quota {
        match &self.outside {
            Some(starter) => Quota::outside(most, starter.clone()),
            None => Quota::new(most),
        }
    }

    /// The connection that all services share.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Where the collector is.
    pub fn collector(&self) -> &Target {
        self.connection.target()
    }

    /// Identity and facts of this host, for the start of a stream.
    pub fn hello(&self) -> proto::collector::Hello {
        proto::collector::Hello {
            host_id: self.identity.host_id.clone(),
            boot_id: self.identity.boot_id.to_vec(),
            facts: Some(self.facts()),
            now_unix_ns: self.now_unix_ns(),
        }
    }

    /// The wall clock that profiles are dated by. Unit: nanoseconds since the Unix epoch.
    pub fn now_unix_ns(&self) -> i64 {
        self.clock.to_unix_ns(MonotonicTime::now())
    }

    /// Facts about the host, without the spool.
    pub fn facts(&self) -> proto::collector::HostFacts {
        proto::collector::HostFacts {
            labels: self.shared.settings().labels.into_iter().collect(),
            ..self.host.to_wire()
        }
    }

    /// Counts changes of [`Exporter::facts`].
    pub fn facts_version(&self) -> u64 {
        self.shared.settings_version()
    }

    /// Sets the health that is reported to the collector: at once if something started or ended,
    /// otherwise together with other facts.
    pub fn set_health(&self, health: HostHealth) {
        let shape = |of: &HostHealth| {
            let list = of.degradations.iter();
            let list: Vec<_> = list.map(|of| (of.id.clone(), of.severity)).collect();
            (list, of.blind, of.stopping)
        };
        let changed = {
            let mut told = lock(&self.shared.health);
            let changed = shape(&told) != shape(&health);
            *told = health;
            changed
        };
        if changed {
            self.shared.health_version.fetch_add(1, Ordering::AcqRel);
            self.shared.wake.notify_one();
        }
    }

    /// Sets which builds of which programs services run. Changes are reported at once.
    pub fn set_programs(&self, programs: Vec<Program>) {
        let mut told = lock(&self.shared.programs);
        if *told != programs {
            *told = programs;
            self.shared.health_version.fetch_add(1, Ordering::AcqRel);
            self.shared.wake.notify_one();
        }
    }

    /// The programs as they are sent, without labels that are not. Which samples are withheld is
    /// not known of a program, so while any are, none is reported.
    fn programs(&self, settings: &Settings) -> Vec<proto::collector::Program> {
        if !settings.withhold.is_empty() {
            return Vec::new();
        }
        let sent = |program: &Program| {
            let mut labels = program.labels.clone();
            labels.retain(|name, _| !settings.drop_labels.contains(name));
            (!labels.is_empty()).then(|| proto::collector::Program {
                labels: labels.into_iter().collect(),
                module: program.module.clone(),
                build_id: program.build_id.clone(),
                since_unix_ns: self.clock.to_unix_ns(program.since),
            })
        };
        lock(&self.shared.programs)
            .iter()
            .filter_map(sent)
            .collect()
    }

    /// Reports to the collector that the agent is stopping on request.
    pub fn say_stopping(&self) {
        let health = HostHealth {
            stopping: true,
            ..lock(&self.shared.health).clone()
        };
        self.set_health(health);
    }

    /// Puts new settings in force: labels with the next window, bounds with the next one written.
    pub fn configure(&self, settings: Settings) {
        *lock(&self.shared.settings) = settings;
        self.shared.settings_version.fetch_add(1, Ordering::AcqRel);
    }

    /// What must not be sent to the collector.
    pub fn withhold(&self) -> Arc<Withholding> {
        self.shared.settings().withhold
    }

    /// Ends the sender: at once if it is not connected, otherwise when the last windows are
    /// acknowledged or at `deadline`. Windows that still wait stay in the spool.
    pub fn stop(&self, deadline: MonotonicTime) {
        self.shared.stop.send_replace(Some(deadline));
        self.shared.wake.notify_one();
    }
}
