//! The thread that queries runtimes, and the interface that the symbolizer sees.
//!
//! A runtime that fails is left alone for a while, longer each time, and nobody waits for a runtime
//! that failed last time. Whether its answer is late, its socket is gone or it hangs, the only cost
//! is containers without metadata until it is back.

use super::cache::{CONTAINERS_MAX, Cache, Want};
use super::{ASK_MAX, Chosen, Error, Metadata, ProviderCounts, Runtime, Source, is_id};
use crate::Labels;
use host::sync::lock;
use host::time::MonotonicTime;
use profile::text::with_causes;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Longest wait of the symbolizer for the first answers about all containers that are new in a
/// window. A runtime that is well answers in a few milliseconds.
pub const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Containers that wait to be asked for. More are asked for with a later window.
const QUEUED_MAX: usize = 1024;

/// Containers asked for at a time. More would hold up a runtime; fewer, the others while one is
/// slow.
const ASKS_AT_ONCE: usize = 4;

/// Answers in a row that may be late, or broken off, before the runtime is left alone: one
/// container that its runtime chokes on is no reason to ask for no other.
const FAILURES_BEFORE_PAUSE: u32 = 3;

/// First pause of a runtime that fails; doubled each time.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// Longest such pause: a runtime that is back is asked again within it.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How long after a container's cgroup was made its runtime is asked, when nobody met it before.
/// Docker answers nothing about a container that it is just starting, which takes some 300 ms.
const MADE_PAUSE: Duration = Duration::from_millis(700);

struct Ask {
    id: Box<str>,
    runtime: Option<&'static str>,
}

/// Messages to the thread.
enum Message {
    /// Ask for a container.
    Ask(Ask),
    /// A cgroup was made.
    Made(Box<[u8]>),
}

/// Announces cgroups as they are created, so that containers that end before their window does are
/// looked up in time. It may outlive the provider.
#[derive(Debug)]
pub struct Announcer(mpsc::WeakSender<Message>);

impl Announcer {
    /// A cgroup was made: its path from the root of its hierarchy. Never waits; where there is no
    /// room the container is asked for when its samples are named.
    pub fn announce(&self, path: &[u8]) {
        if let Some(messages) = self.0.upgrade() {
            let _ = messages.try_send(Message::Made(path.into()));
        }
    }
}

/// Metadata of containers. Clones share it.
#[derive(Clone)]
pub struct Containers {
    shared: Arc<Shared>,
    /// None: nobody is asked.
    asks: Option<mpsc::Sender<Message>>,
}

struct Shared {
    cache: Mutex<Cache>,
    settled: Condvar,
    counts: Arc<ProviderCounts>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Cache> {
        // Nothing in here panics while it holds the lock.
        lock(&self.cache)
    }
}

/// Asks. To be run on a thread of its own.
pub struct ContainerMetadataProvider {
    shared: Arc<Shared>,
    asks: mpsc::Receiver<Message>,
    runtimes: Arc<[GatedRuntime]>,
}

/// A runtime, and whether it is left alone for now.
struct GatedRuntime {
    source: Source,
    runtime: Box<dyn Runtime>,
    gate: Mutex<Gate>,
}

impl std::fmt::Debug for Containers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Containers")
            .field("asked", &self.asks.is_some())
            .finish_non_exhaustive()
    }
}

impl Containers {
    /// Creates it without any source.
    pub fn none() -> Containers {
        Containers {
            shared: Arc::new(Shared {
                cache: Mutex::new(Cache::new(0, MonotonicTime::now())),
                settled: Condvar::new(),
                counts: Arc::default(),
            }),
            asks: None,
        }
    }

    /// Creates the thread that asks these sources in this order, and its handle.
    pub fn new(
        sources: impl IntoIterator<Item = Source>,
        chosen: &Chosen,
        counts: Arc<ProviderCounts>,
    ) -> (Containers, ContainerMetadataProvider) {
        let (asks, receiver) = mpsc::channel(QUEUED_MAX);
        let shared = Arc::new(Shared {
            cache: Mutex::new(Cache::new(CONTAINERS_MAX, MonotonicTime::now())),
            settled: Condvar::new(),
            counts,
        });
        let runtimes = sources.into_iter().map(|source| GatedRuntime {
            runtime: source.runtime(chosen),
            source,
            gate: Mutex::default(),
        });
        let provider = ContainerMetadataProvider {
            shared: Arc::clone(&shared),
            asks: receiver,
            runtimes: runtimes.collect(),
        };
        let asks = Some(asks);
        (Containers { shared, asks }, provider)
    }

    /// Returns a handle that announces cgroups ahead of their samples.
    pub fn announcer(&self) -> Option<Announcer> {
        let asks = self.asks.as_ref()?;
        Some(Announcer(asks.downgrade()))
    }

    /// Registers the containers of a window, by id and runtime, and starts lookups of new ones.
    /// Waits at most [`FIRST_WAIT`] for answers that are likely.
    pub fn meet<'a>(&self, met: impl IntoIterator<Item = (&'a str, Option<&'static str>)>) {
        let Some(asks) = &self.asks else { return };
        let (now, counts) = (MonotonicTime::now(), &self.shared.counts);
        let mut cache = self.shared.lock();
        for (id, runtime) in met {
            if !is_asked_for(id, runtime) {
                continue;
            }
            match cache.want(id, true, now) {
                Want::Nothing => {}
                Want::Deferred => ProviderCounts::add(&counts.deferred, 1),
                Want::Ask => {
                    let id = id.into();
                    match asks.try_send(Message::Ask(Ask { id, runtime })) {
                        Ok(()) => ProviderCounts::add(&counts.asked, 1),
                        Err(refused) => {
                            if let Message::Ask(ask) = refused.into_inner() {
                                cache.unasked(&ask.id);
                            }
                            ProviderCounts::add(&counts.deferred, 1);
                        }
                    }
                }
            }
        }
        let waiting = |cache: &mut Cache| cache.awaited() > 0;
        let waited = self
            .shared
            .settled
            .wait_timeout_while(cache, FIRST_WAIT, waiting);
        let (mut cache, _) = waited.unwrap_or_else(PoisonError::into_inner);
        ProviderCounts::add(&counts.late, cache.stop_waiting());
        counts.evicted.store(cache.evicted(), Ordering::Relaxed);
        counts.known.store(cache.known(), Ordering::Relaxed);
    }

    /// Metadata of the container that a cgroup's labels name.
    pub fn of(&self, labels: &Labels) -> Option<Arc<Metadata>> {
        self.shared.lock().get(labels.container.as_deref()?)
    }
}

impl ContainerMetadataProvider {
    /// Asks until every [`Containers`] is gone.
    pub fn run(mut self) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        match builder.enable_all().build() {
            Ok(runtime) => {
                runtime.block_on(self.serve());
            }
            Err(error) => {
                tracing::warn!(%error, "containers have no names: failed to start asking");
                while let Some(message) = self.asks.blocking_recv() {
                    if let Message::Ask(ask) = message {
                        settle(&self.shared, &ask.id, None, false);
                    }
                }
            }
        }
    }

    async fn serve(&mut self) {
        let mut running = JoinSet::new();
        // Containers made lately, oldest first.
        let mut made: VecDeque<(Instant, Ask)> = VecDeque::new();
        loop {
            let room = running.len() < ASKS_AT_ONCE;
            let due = made.front().map(|(due, _)| *due);
            let ask = tokio::select! {
                message = self.asks.recv(), if room => match message {
                    None => return,
                    Some(Message::Ask(ask)) => Some(ask),
                    Some(Message::Made(path)) => {
                        let due = Instant::now() + MADE_PAUSE;
                        let ask = container_of(&path).filter(|_| made.len() < QUEUED_MAX);
                        made.extend(ask.map(|ask| (due, ask)));
                        None
                    }
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if room && due.is_some() => {
                    made.pop_front().map(|(_, ask)| ask).filter(|ask| self.is_wanted(ask))
                }
                Some(_) = running.join_next() => None,
            };
            if let Some(ask) = ask {
                let (shared, runtimes) = (Arc::clone(&self.shared), Arc::clone(&self.runtimes));
                running.spawn(async move { answer(&shared, &runtimes, &ask).await });
            }
        }
    }

    /// Whether a container that was made lately is still to be asked for.
    fn is_wanted(&self, ask: &Ask) -> bool {
        let counts = &self.shared.counts;
        let want = self
            .shared
            .lock()
            .want(&ask.id, false, MonotonicTime::now());
        match want {
            Want::Nothing => {}
            Want::Deferred => ProviderCounts::add(&counts.deferred, 1),
            Want::Ask => ProviderCounts::add(&counts.asked, 1),
        }
        want == Want::Ask
    }
}

/// The container in a cgroup's path, if there is a source to ask about it.
fn container_of(path: &[u8]) -> Option<Ask> {
    let labels = Labels::of_path(std::str::from_utf8(path).ok()?);
    let id = labels.container?;
    let runtime = labels.runtime;
    is_asked_for(&id, runtime).then_some(Ask { id, runtime })
}

/// Machines of LXC and systemd have names, and nobody to ask.
fn is_asked_for(id: &str, runtime: Option<&str>) -> bool {
    is_id(id) && !matches!(runtime, Some("lxc" | "systemd-nspawn"))
}

/// Asks one after the other until somebody knows.
async fn answer(shared: &Shared, runtimes: &[GatedRuntime], ask: &Ask) {
    let mut settled = Settled {
        shared,
        id: &ask.id,
        found: None,
        sure: true,
    };
    for asked in runtimes {
        if !asked.runtime.serves(ask.runtime) {
            continue;
        }
        match gate(asked).view(Instant::now()) {
            View::Shut { passing } => {
                settled.sure &= !passing;
                continue;
            }
            View::Ailing => {
                shared.lock().hopeless(&ask.id);
                shared.settled.notify_all();
            }
            View::Well => {}
        }
        let answer = timeout(ASK_MAX, asked.runtime.inspect(&ask.id)).await;
        match answer.unwrap_or(Err(Error::Late)) {
            Ok(found) => {
                note_success(asked);
                if let Some(metadata) = &found {
                    ProviderCounts::add(&shared.counts.labels_cut, metadata.labels_cut);
                    settled.found = found;
                    break;
                }
            }
            Err(error) => {
                settled.sure &= !is_passing(&error);
                note_failure(&shared.counts, asked, &error);
            }
        }
    }
    let counter = match settled.found {
        Some(_) => &shared.counts.found,
        None => &shared.counts.unknown,
    };
    ProviderCounts::add(counter, 1);
}

/// Settles a lookup when dropped, so that a panic in a source's code leaves no lookup pending
/// forever.
struct Settled<'a> {
    shared: &'a Shared,
    id: &'a str,
    found: Option<Metadata>,
    sure: bool,
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        settle(self.shared, self.id, self.found.take(), self.sure);
    }
}

fn settle(shared: &Shared, id: &str, found: Option<Metadata>, sure: bool) {
    shared.lock().settle(id, found, sure, MonotonicTime::now());
    shared.settled.notify_all();
}

/// Whether it may be otherwise soon, without anybody's doing.
fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::Late | Error::Broken(_)
    )
}

/// How a runtime fares.
#[derive(Default)]
struct Gate {
    failures: u32,
    passing: bool,
    shut_until: Option<Instant>,
}

enum View {
    Well,
    /// It failed the last time.
    Ailing,
    Shut {
        passing: bool,
    },
}

impl Gate {
    fn view(&self, now: Instant) -> View {
        match self.shut_until {
            Some(until) if now < until => View::Shut {
                passing: self.passing,
            },
            _ if self.failures > 0 => View::Ailing,
            _ => View::Well,
        }
    }

    /// A failure of the runtime, not of one container. True when it fared well before.
    fn fail(&mut self, error: &Error, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.passing = is_passing(error);
        let at_once = !matches!(error, Error::Late | Error::Broken(_));
        if at_once || self.failures >= FAILURES_BEFORE_PAUSE {
            let pause = PAUSE_MIN.saturating_mul(1 << (self.failures - 1).min(10));
            self.shut_until = Some(now + pause.min(PAUSE_MAX));
        }
        self.failures == 1
    }
}

fn gate(asked: &GatedRuntime) -> MutexGuard<'_, Gate> {
    lock(&asked.gate)
}

fn note_success(asked: &GatedRuntime) {
    let before = std::mem::take(&mut *gate(asked));
    if before.failures > 0 {
        tracing::info!(source = %asked.source, "the container runtime answers again");
    }
}

fn note_failure(counts: &ProviderCounts, asked: &GatedRuntime, error: &Error) {
    let Some(cause) = error.cause() else { return };
    counts.fail(cause);
    // These are about one container; the next may be well.
    let of_one = matches!(
        error,
        Error::Refused(_) | Error::TooLong | Error::Malformed(_)
    );
    if !of_one && gate(asked).fail(error, Instant::now()) {
        tracing::warn!(
            source = %asked.source,
            error = with_causes(error),
            "containers of this runtime have no names for now"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::Inspection;
    use super::super::serial_calls::SerialCalls;
    use super::*;
    use std::time::Instant;

    /// Where every call hangs until the test ends.
    struct Hung(SerialCalls);

    impl Runtime for Hung {
        fn serves(&self, _: Option<&str>) -> bool {
            true
        }

        fn inspect<'a>(&'a self, _: &'a str) -> Inspection<'a> {
            Box::pin(self.0.run(|| {
                loop {
                    std::thread::park();
                }
            }))
        }
    }

    #[test]
    fn file_systems_that_hang_hold_up_no_other_source() {
        let id = "0123456789ab";
        let dir = tempfile::tempdir().unwrap();
        let container = dir.path().join("containers").join(id);
        std::fs::create_dir_all(&container).unwrap();
        let config = format!(r#"{{"ID":"{id}","Name":"/web"}}"#);
        std::fs::write(container.join("config.v2.json"), config).unwrap();
        let source: Source = format!("docker-files:{}", dir.path().display())
            .parse()
            .unwrap();
        let chosen = Chosen::from([]);
        let all = [source.clone(), source.clone(), source];
        let (containers, mut provider) = Containers::new(all, &chosen, Arc::default());
        let runtimes = Arc::get_mut(&mut provider.runtimes).unwrap();
        for hung in &mut runtimes[..2] {
            hung.runtime = Box::new(Hung(SerialCalls::default()));
        }
        std::thread::spawn(move || provider.run());
        let labels = Labels {
            container: Some(id.into()),
            ..Labels::default()
        };
        containers.meet([(id, Some("docker"))]);
        let started = Instant::now();
        let found = loop {
            match containers.of(&labels) {
                None if started.elapsed() < Duration::from_secs(60) => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                found => break found,
            }
        };
        let name = found.expect("its files are read").container_name.clone();
        assert_eq!(name.as_deref(), Some("web"));
    }
}
