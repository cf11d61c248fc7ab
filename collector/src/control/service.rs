//! The calls: Control for agents; Capture, Cancel, List, Profile and Delete for people.

use super::agent_registry::OUTBOX;
use super::fanout::{self, Fanout};
use super::history::Owner;
use super::limits::{FANOUTS_MAX, WHO_BYTES_MAX};
use super::{Control, select, stream};
use crate::access::{Caller, LOCAL, event};
use crate::audit::{BEGUN, HOSTS_NAMED};
use crate::identity;
use crate::query::busy;
use proto::collector::capture_service_server::CaptureService;
use proto::collector::control_service_server::ControlService;
use proto::collector::{
    CancelFleetCaptureRequest, CancelFleetCaptureResponse, ControlRequest, ControlResponse,
    DeleteFleetCaptureRequest, DeleteFleetCaptureResponse, FleetCaptureInfo,
    FleetCaptureProfileRequest, FleetCaptureProfileResponse, FleetCaptureRequest,
    FleetCaptureResponse, ListFleetCapturesRequest, ListFleetCapturesResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Name of callers over HTTP: addresses of browsers on this machine say nothing.
const PAGE: &str = "page";

#[tonic::async_trait]
impl ControlService for Control {
    type ControlStream = ReceiverStream<Result<ControlResponse, Status>>;

    async fn control(
        &self,
        request: Request<Streaming<ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let Ok(place) = self.0.places.clone().try_acquire_owned() else {
            let streams = self.0.options.streams;
            return Err(Status::unavailable(format!(
                "{streams} agents are already connected, which is the limit (`ingest.streams_max`)"
            )));
        };
        let who = (peer(&request), identity::member(&request));
        let (out, responses) = mpsc::channel(OUTBOX);
        let requests = request.into_inner();
        tokio::spawn(stream::run(self.clone(), requests, out, who, place));
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

#[tonic::async_trait]
impl CaptureService for Control {
    type CaptureStream = ReceiverStream<Result<FleetCaptureResponse, Status>>;
    type ProfileStream = ReceiverStream<Result<FleetCaptureProfileResponse, Status>>;

    async fn capture(
        &self,
        request: Request<FleetCaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let inner = &self.0;
        let event = event(&request, "capture")?;
        let caller = Caller::of(request.extensions())?;
        let peer = by(&caller, peer(&request));
        let asked = request.into_inner();
        let mut checked = select::check(&asked, &caller)?;
        let (who, reason) = (
            cut(&checked.capture.who).to_owned(),
            cut(&checked.capture.reason).to_owned(),
        );
        // Who has logged in is known: what they call themselves does not count.
        let told = match who.is_empty() || caller.name != LOCAL {
            true => peer.clone(),
            false => format!("{who} at {peer}"),
        };
        checked.capture.who = cut(&told).to_owned();
        checked.capture.reason.clone_from(&reason);
        let stays = asked.stays;
        let capture = asked.capture.as_ref();
        let filtered = capture.is_some_and(|capture| !capture.frame_filters.is_empty());
        let info = FleetCaptureInfo {
            request: Some(asked),
            peer: peer.clone(),
            started_unix_ns: inner.clock.now_unix_ns(),
            ..FleetCaptureInfo::default()
        };
        let owner = Owner::new(&caller, &checked.selector);
        // Opened first in any case: numbers go on after those of captures that are kept. Those of
        // other collectors are kept where somebody asked for them.
        let opened = self.open_kept().await;
        let keeps = match checked.host_ids.is_empty() {
            true => opened.map(|_| true),
            false => Ok(false),
        };
        let slot = inner.fanouts.start(info, owner);
        let Some(slot) = slot else {
            return Err(busy(format!(
                "{FANOUTS_MAX} fleet captures run already, which is the limit"
            )));
        };
        if matches!(keeps, Ok(true)) {
            let (kept, id) = (inner.kept.clone(), slot.id);
            // If the disk rejects it, the log says so.
            let _ = tokio::task::spawn_blocking(move || kept.use_up(id)).await;
        }
        let event = event.with("id", slot.id);
        let asked_for = event
            .clone()
            .with("said", who.as_str())
            .with("reason", reason.as_str())
            .with("selector", checked.selector.to_string())
            .with("event", checked.capture.event.as_str())
            .with("duration_ns", checked.capture.duration_ns)
            .with("before_ns", checked.capture.before_ns);
        let now = inner.clock.now_unix_ns();
        let plan = select::plan(
            &checked,
            &inner.registry,
            &inner.queries,
            inner.options.advertise.as_deref(),
            (now, &self.removed_hosts().await),
        )
        .await;
        let plan = plan.inspect_err(|status| {
            slot.update(|info| status.message().clone_into(&mut info.ended_by));
            // Nothing is done, and who tries what is worth to know all the same.
            let why = status.message().lines().next().unwrap_or_default();
            let outcome = format!("failed: {why}");
            inner
                .audit
                .note(asked_for.clone().with("hosts", 0).ended(&outcome));
        })?;
        let begun = asked_for
            .with("hosts", plan.chosen.len())
            .with("names", names(&plan))
            .ended(BEGUN);
        inner.audit.record(begun).await.inspect_err(|status| {
            slot.update(|info| status.message().clone_into(&mut info.ended_by));
        })?;
        tracing::info!(
            id = slot.id,
            peer,
            who = ?who,
            reason = ?reason,
            selector = ?checked.selector.to_string(),
            event = ?checked.capture.event,
            seconds = checked.capture.duration_ns as f64 / 1e9,
            hosts = plan.chosen.len(),
            "fleet capture started"
        );
        let (client, responses) = mpsc::channel(fanout::OUTBOX);
        let fanout = Fanout {
            control: self.clone(),
            slot,
            checked,
            plan,
            event,
            filtered,
            stays,
            keeps: keeps.map_err(|status| status.message().to_owned()),
        };
        tokio::spawn(fanout.run(client));
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn cancel(
        &self,
        request: Request<CancelFleetCaptureRequest>,
    ) -> Result<Response<CancelFleetCaptureResponse>, Status> {
        let event = event(&request, "capture-cancel")?;
        let caller = Caller::of(request.extensions())?;
        let peer = by(&caller, peer(&request));
        let id = request.into_inner().id;
        let event = event.with("id", id);
        self.0.audit.record(event.clone().ended(BEGUN)).await?;
        if !self.0.fanouts.cancel(id, &peer, &caller) {
            return Err(Status::not_found(format!(
                "no fleet capture with id {id} is running"
            )));
        }
        self.0.audit.note(event);
        tracing::info!(id, peer, "fleet capture cancelled");
        Ok(Response::new(CancelFleetCaptureResponse {}))
    }

    async fn list(
        &self,
        request: Request<ListFleetCapturesRequest>,
    ) -> Result<Response<ListFleetCapturesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        Ok(Response::new(self.listed(&asked, &caller).await))
    }

    async fn profile(
        &self,
        request: Request<FleetCaptureProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let parts = self.replay(request.into_inner(), caller).await?;
        Ok(Response::new(ReceiverStream::new(parts)))
    }

    async fn delete(
        &self,
        request: Request<DeleteFleetCaptureRequest>,
    ) -> Result<Response<DeleteFleetCaptureResponse>, Status> {
        let event = event(&request, "capture-delete")?;
        let caller = Caller::of(request.extensions())?;
        let id = request.into_inner().id;
        let event = event.with("id", id);
        self.0.audit.record(event.clone().ended(BEGUN)).await?;
        self.remove(id, &caller).await?;
        self.0.audit.note(event);
        tracing::info!(id, by = caller.name, "kept capture removed");
        Ok(Response::new(DeleteFleetCaptureResponse {}))
    }
}

fn peer<T>(request: &Request<T>) -> String {
    let address = request.remote_addr();
    address.map_or_else(|| PAGE.to_owned(), |address| address.to_string())
}

/// The caller as shown in the list: people with a login by their name.
fn by(caller: &Caller, peer: String) -> String {
    match caller.name.as_str() {
        LOCAL => peer,
        name => format!("{name} at {peer}"),
    }
}

/// Names of the hosts that are asked, as many as a line of the audit log has room for.
fn names(plan: &select::Plan) -> Vec<String> {
    let names = plan.chosen.iter().take(HOSTS_NAMED);
    names.map(|chosen| chosen.hostname.clone()).collect()
}

/// Text of a client, within bounds.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(WHO_BYTES_MAX)]
}
