//! What answers calls: the host, bounds of what is asked at a time, and work on threads that may
//! block.

use super::answer::{AnswerStream, Outlet};
use super::held::{HeldAnswers, Hold};
use super::listen::Peer;
use super::{CAPTURES_MAX, HELD_BYTES_MAX, Host, QUERIES_MAX, STREAMS_MAX};
use aggregate::recorder::{self, Covered, QueryError, RecorderAnswer, RecorderQuery, WindowRange};
use host::time::MonotonicTime;
use metrics::Histogram;
use profile::{Profile, Query};
use proto::convert::Chunks;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;

/// Answers calls; a handle that is cloned for each connection.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) host: Arc<dyn Host>,
    pub(super) shutdown: watch::Receiver<bool>,
    pub(super) stall_timeout: Duration,
    /// Memory of answers that are being read.
    pub(super) held: HeldAnswers,
    /// See [`QUERIES_MAX`].
    pub(super) queries: Arc<Semaphore>,
    /// See [`STREAMS_MAX`].
    pub(super) streams: Arc<Semaphore>,
    /// Status and reload, one at a time: they never wait behind queries.
    pub(super) calls: Arc<Semaphore>,
    /// Joining and leaving a fleet, one at a time: they wait for a collector.
    pub(super) joins: Arc<Semaphore>,
    /// Captures that start, one at a time: each opens events and reads /proc.
    pub(super) starting: Arc<Semaphore>,
    /// See [`CAPTURES_MAX`].
    pub(super) captures: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(
        host: Arc<dyn Host>,
        shutdown: watch::Receiver<bool>,
        stall_timeout: Duration,
    ) -> Service {
        Service {
            host,
            shutdown,
            stall_timeout,
            held: HeldAnswers::new(HELD_BYTES_MAX),
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            calls: Arc::new(Semaphore::new(1)),
            joins: Arc::new(Semaphore::new(1)),
            starting: Arc::new(Semaphore::new(1)),
            captures: Arc::new(Semaphore::new(CAPTURES_MAX)),
        }
    }

    /// Runs `query` over `span` on a blocking thread; the hold is for its answer, until it is sent.
    pub(super) async fn profile(
        &self,
        span: WindowRange,
        query: Arc<Query>,
    ) -> Result<(Chunks<Profile>, Covered, Hold), Status> {
        let held = self.held.clone();
        let ((chunks, covered, hold), _) =
            blocking(self, &TIMES.profile, &self.queries, move |host, cancel| {
                let answer = answer(host, span, (&*query).into(), cancel)?;
                let hold = held.hold(&answer.profile)?;
                // Sorts the samples: too long for the runtime's thread.
                Ok((Chunks::new(answer.profile), answer.covered, hold))
            })
            .await?;
        Ok((chunks, covered, hold))
    }

    pub(super) fn outlet<T>(
        &self,
        peer: Option<Peer>,
    ) -> Result<(Outlet<T>, AnswerStream<T>), Status> {
        let place = self.streams.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{STREAMS_MAX} answers are already being sent, \
                which is the limit"
            ))
        })?;
        Ok(Outlet::new(peer, self.stall_timeout, place))
    }
}

/// The recorder's answer, in wall time.
pub(super) fn answer(
    host: &dyn Host,
    span: WindowRange,
    asked: RecorderQuery<'_>,
    cancel: &AtomicBool,
) -> Result<RecorderAnswer, Status> {
    let mut answer = recorder::query(host.recorder(), span, asked, cancel).map_err(status)?;
    let start = covered_from(&answer.covered);
    answer.date(start, |at| host.clock().to_unix_ns(at));
    Ok(answer)
}

/// Start of the covered time; if nothing is covered, now or the requested start, whichever is
/// earlier.
pub(super) fn covered_from(covered: &Covered) -> MonotonicTime {
    match covered.windows {
        0 if covered.start == MonotonicTime(0) => MonotonicTime::now(),
        0 => covered.start.min(MonotonicTime::now()),
        _ => covered.start,
    }
}

pub(super) fn status(error: QueryError) -> Status {
    match error {
        QueryError::Cancelled => Status::cancelled(error.to_string()),
    }
}

metrics::counted! {
    /// How long calls take.
    pub struct CallTimes;
    /// Time of calls over gRPC until their answer is made, waiting for a place included, by what
    /// they ask for.
    Histogram fleetprof_grpc_query_duration_seconds{kind} =
        "profile" profile [metrics::CALL_SECONDS],
        "cgroups" cgroups [metrics::CALL_SECONDS],
        "ledger" ledger [metrics::CALL_SECONDS],
        "pin" pin [metrics::CALL_SECONDS],
        "status" status [metrics::CALL_SECONDS],
        "reload" reload [metrics::CALL_SECONDS],
        "capture_start" capture [metrics::CALL_SECONDS];
}

/// Times of the calls, kept once for the process because it has one service.
pub static TIMES: LazyLock<CallTimes> = LazyLock::new(CallTimes::default);

/// Runs `work` on a blocking thread within the limit, and stores in `time` how long it took. If the
/// caller goes away, the flag informs `work`; the permit is returned only when it has ended.
pub(super) async fn blocking<T: Send + 'static>(
    service: &Service,
    time: &Histogram,
    limit: &Arc<Semaphore>,
    work: impl FnOnce(&dyn Host, &AtomicBool) -> Result<T, Status> + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit), Status> {
    let arrived = Instant::now();
    let Ok(permit) = limit.clone().acquire_owned().await else {
        return Err(Status::unavailable("shutting down"));
    };
    let (host, cancel) = (service.host.clone(), Arc::new(AtomicBool::new(false)));
    let _guard = CancelOnDrop(cancel.clone());
    let done = tokio::task::spawn_blocking(move || (work(&*host, &cancel), permit)).await;
    time.observe(arrived.elapsed().as_secs_f64());
    let (result, permit) = done.map_err(|_| Status::internal("the call failed in the daemon"))?;
    Ok((result?, permit))
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
