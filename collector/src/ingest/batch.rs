//! The only path to the store: windows of all streams, grouped so that one call stores all that
//! wait.

use super::limits::BATCH_ROWS_MAX;
use super::window::Pending;
use crate::metrics::Metrics;
use crate::store::{BatchPolicy, Defined, NewWindow, PushOutcome, StoreError, WindowSink};
use crate::time::Clock;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A window for the store.
pub struct Job {
    /// The window.
    pub pending: Box<Pending>,
    /// Frames of stacks that its agent was asked for; no others.
    pub definitions: Option<Arc<Defined>>,
    /// Where to send the answer. It has room for every unanswered window of its stream.
    pub answer: mpsc::Sender<Answered>,
}

/// A window with what became of it.
pub struct Answered {
    /// The window.
    pub pending: Box<Pending>,
    /// Its outcome; an error if it has none and the agent should retry later.
    pub outcome: Result<PushOutcome, String>,
}

/// The store broke down in the middle of a call: what it holds in memory is not to be trusted.
#[derive(Debug, thiserror::Error)]
#[error("the store panicked during a call")]
pub struct StorePanicked;

/// A batch for the store's thread, and where it says what failed.
type Call = (Vec<Job>, oneshot::Sender<Failure>);

/// Failures in a batch.
struct Failure {
    /// The first or, of windows pushed one by one, the last; for the log.
    text: Option<String>,
    /// No window of the batch was taken.
    is_complete: bool,
}

/// For how long the store counts as failing after the last push that failed. Agents come again
/// within a minute or so; with less, a store that is away looks well between their attempts, with
/// more, one window that the store refuses keeps a collector with few agents from being ready.
const FAILING_FOR: Duration = Duration::from_secs(180);

/// The thread that calls the store, and nothing else: whatever queries, downloads and metrics take
/// of the runtime's threads, an acknowledgement does not wait for one. It ends when this is
/// dropped.
pub struct Pusher {
    batches: mpsc::Sender<Call>,
    policy: BatchPolicy,
}

impl Pusher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be none.
    pub fn start(
        store: Arc<dyn WindowSink>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Pusher> {
        // One: the next batch is collected while the store is called.
        let (batches, mut queue) = mpsc::channel::<Call>(1);
        let policy = store.batch_policy();
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        thread.spawn(move || {
            while let Some((batch, tell)) = queue.blocking_recv() {
                let failure = push(&*store, batch, clock.now_unix_ns(), &metrics);
                // Nobody waits when the collector ends.
                let _ = tell.send(failure);
            }
        })?;
        Ok(Pusher { batches, policy })
    }

    async fn push(&self, batch: Vec<Job>) -> Result<Failure, StorePanicked> {
        let (tell, told) = oneshot::channel();
        // Both ends are gone only when the thread panicked.
        let sent = self.batches.send((batch, tell)).await;
        sent.map_err(|_| StorePanicked)?;
        told.await.map_err(|_| StorePanicked)
    }
}

/// Name of the thread that calls the store.
pub const THREAD: &str = "fp-store";

/// Calls the store with what comes from `jobs`, until all senders are gone.
///
/// # Errors
/// When a call of the store panicked.
pub async fn run(
    pusher: Pusher,
    mut jobs: mpsc::Receiver<Job>,
    metrics: Arc<Metrics>,
) -> Result<(), StorePanicked> {
    let mut issue = Issue::default();
    loop {
        let next = match metrics.push_failing.get() {
            0 => jobs.recv().await,
            _ => match tokio::time::timeout(FAILING_FOR, jobs.recv()).await {
                Ok(next) => next,
                Err(_) => {
                    metrics.push_failing.set(0);
                    continue;
                }
            },
        };
        let Some(first) = next else {
            return Ok(());
        };
        let batch = collect(first, &mut jobs, pusher.policy).await;
        metrics.queue_windows.set(jobs.len() as u64);
        let failure = pusher.push(batch).await?;
        metrics.push_failing.set(u64::from(failure.is_complete));
        issue.tell(failure.text);
    }
}

/// Collects jobs that wait or arrive within the linger time, up to the bounds of a batch.
async fn collect(first: Job, jobs: &mut mpsc::Receiver<Job>, policy: BatchPolicy) -> Vec<Job> {
    let mut rows = first.pending.window.rows.len();
    let mut batch = vec![first];
    let linger = tokio::time::sleep(policy.linger);
    tokio::pin!(linger);
    while batch.len() < policy.windows && rows < BATCH_ROWS_MAX {
        tokio::select! {
            biased;
            job = jobs.recv() => match job {
                Some(job) => {
                    rows += job.pending.window.rows.len();
                    batch.push(job);
                }
                None => break,
            },
            () = &mut linger => break,
        }
    }
    batch
}

/// Pushes a batch and answers all of it. Returns what failed.
fn push(store: &dyn WindowSink, batch: Vec<Job>, now: i64, metrics: &Metrics) -> Failure {
    let definitions: Vec<Arc<Defined>> = batch
        .iter()
        .filter_map(|job| job.definitions.clone())
        .collect();
    let (windows, mut rest): (Vec<NewWindow>, Vec<Job>) = batch
        .into_iter()
        .map(|mut job| (take(&mut job.pending), job))
        .unzip();
    let mut result = call(store, &windows, &definitions, now, metrics);
    let mut failure = result.as_ref().err().map(ToString::to_string);
    if let (Err(StoreError::Engine { .. }), true) = (&result, windows.len() > 1) {
        // One window that the engine chokes on must not keep out those of all other hosts.
        let mut each = Vec::with_capacity(windows.len());
        for (window, job) in windows.into_iter().zip(&mut rest) {
            let one = std::slice::from_ref(&window);
            let outcome = match call(store, one, &definitions, now, metrics) {
                Ok(mut taken) if taken.len() == 1 => later(taken.remove(0)),
                Ok(_) => Err("the store's answer has the wrong length".to_owned()),
                Err(error) => {
                    let origin = &window.origin;
                    let host = &origin.host.host_id;
                    failure = Some(format!("{error} (window {} of `{host}`)", origin.sequence));
                    Err(error.to_string())
                }
            };
            job.pending.window = window;
            each.push(outcome);
        }
        let is_complete = each.iter().all(Result::is_err);
        answer(rest, each, metrics);
        return Failure {
            text: failure,
            is_complete,
        };
    }
    for (window, job) in windows.into_iter().zip(&mut rest) {
        job.pending.window = window;
    }
    if result.as_ref().is_ok_and(|taken| taken.len() != rest.len()) {
        let message = "the answer has another length than the request".to_owned();
        let operation = "store windows";
        result = Err(StoreError::Engine { operation, message });
        failure = result.as_ref().err().map(ToString::to_string);
    }
    let mut is_complete = failure.is_some();
    let outcomes = match result {
        Ok(taken) => {
            let outcomes: Vec<_> = taken.into_iter().map(later).collect();
            failure = outcomes
                .iter()
                .find_map(|outcome| outcome.as_ref().err())
                .cloned();
            is_complete = outcomes.iter().all(Result::is_err) && failure.is_some();
            outcomes
        }
        Err(error) => {
            let text = error.to_string();
            rest.iter().map(|_| Err(text.clone())).collect()
        }
    };
    answer(rest, outcomes, metrics);
    Failure {
        is_complete,
        text: failure,
    }
}

/// What becomes of a window: an error if it is to come again later.
fn later(outcome: PushOutcome) -> Result<PushOutcome, String> {
    match outcome {
        PushOutcome::Unavailable(reason) => Err(format!("the store is unavailable: {reason}")),
        outcome => Ok(outcome),
    }
}

fn call(
    store: &dyn WindowSink,
    windows: &[NewWindow],
    definitions: &[Arc<Defined>],
    now: i64,
    metrics: &Metrics,
) -> Result<Vec<PushOutcome>, StoreError> {
    let started = Instant::now();
    let result = store.push_defined(windows, definitions, now);
    metrics.pushes.inc();
    let took = started.elapsed();
    metrics.push_ns.inc_by(took.as_nanos() as u64);
    metrics.push_time.observe(took.as_secs_f64());
    metrics.pushes_failed.inc_by(u64::from(result.is_err()));
    result
}

fn answer(jobs: Vec<Job>, outcomes: Vec<Result<PushOutcome, String>>, metrics: &Metrics) {
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        match &outcome {
            Ok(PushOutcome::Stored) => {
                metrics.windows_stored.inc();
                metrics
                    .rows_stored
                    .inc_by(job.pending.window.rows.len() as u64);
            }
            Ok(PushOutcome::Duplicate) => _ = metrics.windows_repeated.inc(),
            Ok(PushOutcome::Rejected(_)) => _ = metrics.windows_refused.inc(),
            Ok(
                PushOutcome::NeedStacks(_)
                | PushOutcome::NeedCallers(_)
                | PushOutcome::Unavailable(_),
            )
            | Err(_) => {}
        }
        let pending = job.pending;
        // A stream that has ended needs no answer; one that lives has room for it.
        let _ = job.answer.try_send(Answered { pending, outcome });
    }
}

/// The window, out of what waits for its answer.
fn take(pending: &mut Pending) -> NewWindow {
    let empty = NewWindow {
        origin: pending.window.origin.clone(),
        range: pending.window.range,
        event: String::new(),
        unit: String::new(),
        period: 0,
        quality: profile::Quality::default(),
        label_sets: Vec::new(),
        rows: Vec::new(),
        accounts: Vec::new(),
        pressure: None,
        dropped_before: None,
        stream: None,
    };
    std::mem::replace(&mut pending.window, empty)
}

/// Logs a trouble of the store when it starts and when it ends, not each time.
#[derive(Default)]
struct Issue {
    current: Option<String>,
    times: u64,
}

impl Issue {
    fn tell(&mut self, failure: Option<String>) {
        match failure {
            Some(text) => {
                self.times += 1;
                if self.current.as_ref() != Some(&text) {
                    tracing::warn!("the store rejects windows for now: {text}");
                    self.current = Some(text);
                }
            }
            None if self.current.take().is_some() => {
                let times = std::mem::take(&mut self.times);
                tracing::info!(times, "the store accepts windows again");
            }
            None => {}
        }
    }
}
