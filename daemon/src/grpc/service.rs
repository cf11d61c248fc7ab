//! The calls of AgentService.

use super::answer::{AnswerStream, Outlet};
use super::held::{HeldAnswers, Hold};
use super::listen::Peer;
use super::{
    ANSWER_TIMEOUT, ActiveConfig, CAPTURES_MAX, FLUSH_TIMEOUT, HELD_BYTES_MAX, Host, QUERIES_MAX,
    ReloadOutcome, STREAMS_MAX, capture, cgroups, fleet, ledger, live, pins,
};
use ::capture::Capturing;
use ::capture::query as request;
use aggregate::recorder::{
    self, Covered, QueryError, RecorderAnswer, RecorderQuery, WindowRange, read,
};
use host::time::MonotonicTime;
use metrics::Histogram;
use profile::{Profile, Query, Selector};
use proto::agent;
use proto::agent::agent_service_server::AgentService;
use proto::convert::Chunks;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::{Request, Response, Status};

/// Answers calls; a handle that is cloned for each connection.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) host: Arc<dyn Host>,
    pub(super) shutdown: watch::Receiver<bool>,
    stall_timeout: Duration,
    /// Memory of answers that are being read.
    pub(super) held: HeldAnswers,
    /// See [`QUERIES_MAX`].
    pub(super) queries: Arc<Semaphore>,
    /// See [`STREAMS_MAX`].
    streams: Arc<Semaphore>,
    /// Status and reload, one at a time: they never wait behind queries.
    calls: Arc<Semaphore>,
    /// Joining and leaving a fleet, one at a time: they wait for a collector.
    joins: Arc<Semaphore>,
    /// Captures that start, one at a time: each opens events and reads /proc.
    starting: Arc<Semaphore>,
    /// See [`CAPTURES_MAX`].
    captures: Arc<Semaphore>,
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

    fn outlet<T>(&self, peer: Option<Peer>) -> Result<(Outlet<T>, AnswerStream<T>), Status> {
        let place = self.streams.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{STREAMS_MAX} answers are already being sent, \
                which is the limit"
            ))
        })?;
        Ok(Outlet::new(peer, self.stall_timeout, place))
    }
}

#[tonic::async_trait]
impl AgentService for Service {
    type QueryProfileStream = AnswerStream<agent::QueryProfileResponse>;
    type StreamProfilesStream = AnswerStream<agent::StreamProfilesResponse>;
    type CaptureStream = AnswerStream<agent::CaptureResponse>;

    async fn capture(
        &self,
        request: Request<agent::CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let name = peer
            .as_ref()
            .map_or("unknown", |peer| &*peer.name)
            .to_owned();
        let asked = request.into_inner();
        let place = self.captures.clone().try_acquire_owned().map_err(|_| {
            let running = captures_of(&*self.host).map_or(0, |captures| captures.running());
            Status::resource_exhausted(format!(
                "failed to start the capture: {running} captures run already, and too many wait to \
                 start\nlist them: agent-ctl captures"
            ))
        })?;
        let (messages, permit) = blocking(self, &TIMES.capture, &self.starting, move |host, _| {
            captures_of(host)?.start(asked, ::capture::Asker::here(name))
        })
        .await?;
        drop(permit);
        let (outlet, stream) = Outlet::new(peer, self.stall_timeout, place);
        tokio::spawn(capture::forward(messages, outlet));
        Ok(Response::new(stream))
    }

    async fn cancel_capture(
        &self,
        request: Request<agent::CancelCaptureRequest>,
    ) -> Result<Response<agent::CancelCaptureResponse>, Status> {
        let id = request.into_inner().id;
        match captures_of(&*self.host)?.cancel(id) {
            true => Ok(Response::new(agent::CancelCaptureResponse {})),
            false => Err(Status::not_found(format!(
                "failed to cancel capture `{id}`: no capture with this id runs\nlist them: \
                 agent-ctl captures"
            ))),
        }
    }

    async fn list_captures(
        &self,
        _request: Request<agent::ListCapturesRequest>,
    ) -> Result<Response<agent::ListCapturesResponse>, Status> {
        let captures = captures_of(&*self.host)?.list();
        Ok(Response::new(agent::ListCapturesResponse { captures }))
    }

    async fn list_pins(
        &self,
        _request: Request<agent::ListPinsRequest>,
    ) -> Result<Response<agent::ListPinsResponse>, Status> {
        let pins = self.host.pins().map(|pins| pins.list());
        let pins = pins.unwrap_or_default();
        Ok(Response::new(agent::ListPinsResponse { pins }))
    }

    async fn join_fleet(
        &self,
        request: Request<agent::JoinFleetRequest>,
    ) -> Result<Response<agent::JoinFleetResponse>, Status> {
        fleet::join(&*self.host, &self.joins, request).await
    }

    async fn leave_fleet(
        &self,
        request: Request<agent::LeaveFleetRequest>,
    ) -> Result<Response<agent::LeaveFleetResponse>, Status> {
        fleet::leave(&*self.host, &self.joins, request).await
    }

    async fn get_status(
        &self,
        _request: Request<agent::GetStatusRequest>,
    ) -> Result<Response<agent::GetStatusResponse>, Status> {
        let (found, _) = blocking(
            self,
            &TIMES.status,
            &self.calls,
            |host, _| Ok(host.status()),
        )
        .await?;
        Ok(Response::new(found))
    }

    async fn list_cgroups(
        &self,
        request: Request<agent::ListCgroupsRequest>,
    ) -> Result<Response<agent::ListCgroupsResponse>, Status> {
        let range = request::range(request.into_inner().range, self.host.clock())?;
        let (answer, _) = blocking(self, &TIMES.cgroups, &self.queries, move |host, cancel| {
            let recorder = read(host.recorder());
            let all = Selector::default();
            let (ledger, covered) = recorder.ledger(range, &all, cancel).map_err(status)?;
            let unit = recorder.event().1.to_owned();
            drop(recorder);
            let total_weight = ledger
                .host
                .taken_weight
                .saturating_add(ledger.host.lost_weight);
            Ok(agent::ListCgroupsResponse {
                cgroups: cgroups::list(ledger.rows),
                covered: Some(wire_range(host, &covered)),
                quality: Some(covered.quality.into()),
                total_weight,
                unit,
            })
        })
        .await?;
        Ok(Response::new(answer))
    }

    async fn get_ledger(
        &self,
        request: Request<agent::GetLedgerRequest>,
    ) -> Result<Response<agent::GetLedgerResponse>, Status> {
        let asked = request.into_inner();
        let selector = request::selector(asked.matchers)?;
        let range = request::range(asked.range, self.host.clock())?;
        let (answer, _) = blocking(self, &TIMES.ledger, &self.queries, move |host, cancel| {
            let recorder = read(host.recorder());
            let (ledger, covered) = recorder.ledger(range, &selector, cancel).map_err(status)?;
            let unit = recorder.event().1.to_owned();
            drop(recorder);
            let range = wire_range(host, &covered);
            Ok(ledger::answer(ledger, &covered, range, unit))
        })
        .await?;
        Ok(Response::new(answer))
    }

    async fn query_profile(
        &self,
        request: Request<agent::QueryProfileRequest>,
    ) -> Result<Response<Self::QueryProfileStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let asked = request.into_inner();
        let query = request::query(asked.matchers, asked.frame_filters, &asked.group_by)?;
        // Checked before the flush; read again after it, when the clock may have been refreshed.
        request::range(asked.range, self.host.clock())?;
        let (outlet, stream) = self.outlet(peer)?;
        if asked.fresh {
            // Late data is no reason to refuse what is there.
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.host.flush()).await;
        }
        let (from, to) = request::range(asked.range, self.host.clock())?;
        let query = Arc::new(query);
        let (chunks, hold) = match asked.pin_capture {
            0 => {
                let wall = pins::wall(asked.range);
                self.profile_or_pin((from, to), wall, query, asked.times)
                    .await?
            }
            pin => self.pinned_capture(pin, query).await?,
        };
        tokio::spawn(async move {
            let wrap = |chunk| agent::QueryProfileResponse { chunk: Some(chunk) };
            let sending = outlet.send_all(chunks, wrap);
            if tokio::time::timeout(ANSWER_TIMEOUT, sending).await.is_err() {
                outlet.give_up();
            }
            // A client that has gone needs no answer.
            drop(hold);
        });
        Ok(Response::new(stream))
    }

    async fn stream_profiles(
        &self,
        request: Request<agent::StreamProfilesRequest>,
    ) -> Result<Response<Self::StreamProfilesStream>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let asked = request.into_inner();
        let query = request::query(asked.matchers, asked.frame_filters, &asked.group_by)?;
        let interval = request::interval(asked.interval_ms)?;
        let (outlet, stream) = self.outlet(peer)?;
        tokio::spawn(live::run(self.clone(), Arc::new(query), interval, outlet));
        Ok(Response::new(stream))
    }

    async fn get_config(
        &self,
        _request: Request<agent::GetConfigRequest>,
    ) -> Result<Response<agent::GetConfigResponse>, Status> {
        let ActiveConfig { yaml, path } = self.host.config();
        Ok(Response::new(agent::GetConfigResponse { yaml, path }))
    }

    async fn reload_config(
        &self,
        _request: Request<agent::ReloadConfigRequest>,
    ) -> Result<Response<agent::ReloadConfigResponse>, Status> {
        let (outcome, _) = blocking(self, &TIMES.reload, &self.calls, |host, _| {
            host.reload().map_err(Status::failed_precondition)
        })
        .await?;
        let ReloadOutcome {
            changed,
            needs_restart,
        } = outcome;
        Ok(Response::new(agent::ReloadConfigResponse {
            changed,
            needs_restart,
        }))
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
fn covered_from(covered: &Covered) -> MonotonicTime {
    match covered.windows {
        0 if covered.start == MonotonicTime(0) => MonotonicTime::now(),
        0 => covered.start.min(MonotonicTime::now()),
        _ => covered.start,
    }
}

/// The covered time as clients read it.
fn wire_range(host: &dyn Host, covered: &Covered) -> agent::TimeRange {
    let clock = host.clock();
    let start = covered_from(covered);
    agent::TimeRange {
        start_unix_ns: clock.to_unix_ns(start),
        end_unix_ns: clock.to_unix_ns(covered.end.max(start)),
    }
}

/// Captures of the host; there are none while it starts.
fn captures_of(host: &dyn Host) -> Result<Arc<dyn Capturing>, Status> {
    host.captures()
        .ok_or_else(|| Status::unavailable("the daemon cannot capture yet"))
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
