//! The calls: Keep for agents; List and Profile for people.

use super::Pins;
use super::limits::{LIST_DEFAULT, MESSAGE_MAX, PINS_MAX, PLACE_MAX, UPLOAD_MAX};
use super::sight::Sight;
use super::take::{UploadMessage, fault, head};
use crate::access::{Caller, Scope};
use crate::evidence::{KeptQuery, ProfileKind, ReadError, in_part, refused, send};
use crate::identity::{self, Member};
use crate::ingest::stopped;
use crate::query::{ANSWER_TIMEOUT, Failed, profile_bytes};
use crate::store::Limits;
use profile::Profile;
use proto::collector::pin_service_server::PinService;
use proto::collector::pin_upload_service_server::PinUploadService;
use proto::collector::upload_pin_request::Body;
use proto::collector::{
    HostPin, ListHostPinsRequest, ListHostPinsResponse, PinProfileRequest, PinProfileResponse,
    UploadPinRequest, UploadPinResponse,
};
use proto::convert::Chunks;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// Chunks between the connection and the disk.
const PIECES_QUEUED: usize = 2;

#[tonic::async_trait]
impl PinUploadService for Pins {
    async fn upload(
        &self,
        request: Request<Streaming<UploadPinRequest>>,
    ) -> Result<Response<UploadPinResponse>, Status> {
        let peer = request.remote_addr();
        let member = identity::member(&request);
        let mut requests = request.into_inner();
        let mut shutdown = self.0.shutdown.clone();
        let keeping = self.keep_one(&mut requests, member.as_ref());
        let kept = tokio::select! {
            kept = timeout(UPLOAD_MAX, keeping) => kept,
            () = stopped(&mut shutdown) => {
                return Err(Status::unavailable("the collector is shutting down"));
            }
        };
        let kept = kept.unwrap_or_else(|_| {
            let seconds = UPLOAD_MAX.as_secs();
            let text = format!("the pin did not arrive within {seconds} s");
            Err(Status::deadline_exceeded(text))
        });
        let metrics = &self.0.metrics;
        match &kept {
            Ok(true) => _ = metrics.pins_repeated.inc(),
            Ok(false) => _ = metrics.pins_kept.inc(),
            Err(status) if status.code() == Code::InvalidArgument => {
                metrics.pins_refused.inc();
                tracing::warn!(?peer, "pin of an agent refused: {}", status.message());
            }
            Err(status) => {
                tracing::debug!(?peer, "pin of an agent not stored: {}", status.message());
            }
        }
        kept.map(|repeated| Response::new(UploadPinResponse { repeated }))
    }
}

impl Pins {
    /// True when it was there already.
    async fn keep_one(
        &self,
        requests: &mut Streaming<UploadPinRequest>,
        member: Option<&Arc<Member>>,
    ) -> Result<bool, Status> {
        let files = self.0.open().await?;
        let Some(Body::Head(mut asked)) = next(requests).await? else {
            return Err(fault("the first message must be the head of the pin"));
        };
        if let Some(hello) = &mut asked.hello {
            let facts = hello.facts.get_or_insert_default();
            identity::bind(member, &mut hello.host_id, facts)?;
        }
        let has_capture = asked.has_capture;
        let head = head(asked, self.0.clock.now_unix_ns(), &self.0.metrics)?;
        if let Some(known) = files.find(&head) {
            let known = known.pin.unwrap_or_default();
            if known.capture_bytes > 0 || !has_capture {
                return Ok(true);
            }
        }
        let place = timeout(PLACE_MAX, self.0.places.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            let text = "other agents are uploading pins; retry in a moment";
            return Err(Status::unavailable(text));
        };
        let host_bytes = files.bounds().owner_bytes;
        let mut admitted = self.0.admission.admit(&head.host_id, host_bytes)?;
        let (pieces, mut taken) = mpsc::channel(PIECES_QUEUED);
        let inner = self.0.clone();
        let taking = tokio::task::spawn_blocking(move || {
            // Given back when it has ended, whoever waits for it.
            let _place = place;
            let taken = inner.take(head, has_capture, &mut admitted, &mut taken);
            match &taken {
                Err(status) if status.code() != Code::InvalidArgument => {}
                _ => admitted.counts(),
            }
            taken
        });
        let passed = pass_on(requests, pieces).await;
        let taken = taking
            .await
            .map_err(|_| Status::internal("the collector failed to store the pin"))?;
        // The reason why the upload failed is more important than that it could not be read
        // further.
        match (taken, passed) {
            (Err(status), Err(passed)) if status.code() == Code::Cancelled => Err(passed),
            (taken, _) => taken.map(|()| false),
        }
    }
}

/// Hands chunks on until the end, or until nobody takes them.
async fn pass_on(
    requests: &mut Streaming<UploadPinRequest>,
    pieces: mpsc::Sender<UploadMessage>,
) -> Result<(), Status> {
    loop {
        let piece = match next(requests).await? {
            Some(Body::Minutes(chunk)) => UploadMessage::Chunk(ProfileKind::Minutes, chunk),
            Some(Body::Captured(chunk)) => UploadMessage::Chunk(ProfileKind::Captured, chunk),
            Some(Body::Head(_)) => return Err(fault("the pin has a second head")),
            None => UploadMessage::End,
        };
        let last = matches!(piece, UploadMessage::End);
        if pieces.send(piece).await.is_err() || last {
            return Ok(());
        }
    }
}

/// The next message; none at the end.
async fn next(requests: &mut Streaming<UploadPinRequest>) -> Result<Option<Body>, Status> {
    let message = timeout(MESSAGE_MAX, requests.message()).await;
    let message = message.map_err(|_| {
        let seconds = MESSAGE_MAX.as_secs();
        Status::deadline_exceeded(format!("the agent sent nothing for {seconds} s"))
    })?;
    let message = message.map_err(|status| match status.code() {
        // The decoder reports these: the message is too large, or is no message at all. All other
        // errors come from the connection.
        Code::OutOfRange | Code::ResourceExhausted | Code::Internal => fault(status.message()),
        _ => Status::cancelled("the agent has left"),
    })?;
    match message {
        None => Ok(None),
        Some(UploadPinRequest { body: Some(body) }) => Ok(Some(body)),
        Some(_) => Err(fault("this version does not know the body of a message")),
    }
}

impl Pins {
    /// Makes something of what `caller` may see of a pin's profile, in the place of a query.
    ///
    /// # Errors
    /// As the call `Profile`.
    pub(crate) async fn make<T: Send + 'static>(
        &self,
        caller: Arc<Caller>,
        asked: PinProfileRequest,
        make: impl FnOnce(Profile, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let query = query(&asked, &caller)?;
        let part = match asked.captured {
            true => ProfileKind::Captured,
            false => ProfileKind::Minutes,
        };
        let inner = self.0.clone();
        inner.open().await?;
        let made = self.0.queries.work(move |limits| {
            let gone = || limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
            let files = inner.files()?;
            if caller.scope.is_some() {
                let labels = inner.queries.labels_of_hosts();
                let found = files.get(asked.id);
                let sight = found.map(|pin| inner.sight(&caller, &pin, &labels, limits));
                if matches!(sight.transpose()?, None | Some(Sight::Nothing)) {
                    return Err(refused(ReadError::unknown::<HostPin>(asked.id)));
                }
            }
            let profile = files.read(asked.id, part, limits.memory_bytes, gone);
            let mut profile = profile.map_err(refused)?;
            if caller.sees_parts_of_hosts() {
                profile = in_part(profile);
            }
            let answer = query.answer(&profile);
            drop(profile);
            make(answer, limits)
        });
        made.await
    }
}

#[tonic::async_trait]
impl PinService for Pins {
    type ProfileStream = ReceiverStream<Result<PinProfileResponse, Status>>;

    async fn list(
        &self,
        request: Request<ListHostPinsRequest>,
    ) -> Result<Response<ListHostPinsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let limit = match asked.limit {
            0 => LIST_DEFAULT,
            limit => (limit as usize).min(PINS_MAX),
        };
        let files = self.0.open().await?;
        if caller.scope.is_none() {
            let (pins, left_out) = files.list(limit, |pin| matches(&asked, pin));
            return Ok(Response::new(ListHostPinsResponse { pins, left_out }));
        }
        let (all, beyond) = files.list(PINS_MAX, |pin| {
            // What is asked of the trigger may be not theirs to know: it is looked at later.
            let trigger = String::new();
            let place = ListHostPinsRequest {
                trigger,
                ..asked.clone()
            };
            matches(&place, pin)
        });
        let inner = self.0.clone();
        let labels = inner.queries.labels_of_hosts();
        let listed = self.0.queries.work(move |limits| {
            let (mut pins, mut left_out) = (Vec::new(), 0);
            for pin in all {
                let sight = inner.sight(&caller, &pin, &labels, limits)?;
                let shown = sight.shown(pin).filter(|pin| matches(&asked, pin));
                match shown {
                    Some(pin) if pins.len() < limit => pins.push(pin),
                    Some(_) => left_out += 1,
                    None => {}
                }
            }
            Ok((pins, left_out))
        });
        let (pins, left_out) = listed.await?;
        if beyond > 0 {
            tracing::debug!(beyond, "a list has no room for all pins");
        }
        Ok(Response::new(ListHostPinsResponse { pins, left_out }))
    }

    async fn profile(
        &self,
        request: Request<PinProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let mut place = self.0.queries.response_slot()?;
        let made = self.make(caller, request.into_inner(), move |answer, _| {
            place.hold(profile_bytes(&answer))?;
            Ok((Chunks::new(answer), place))
        });
        let (chunks, place) = made.await?;
        let (tx, parts) = mpsc::channel(1);
        let queries = self.0.queries.clone();
        tokio::spawn(async move {
            let parts = chunks.map(|chunk| PinProfileResponse { chunk: Some(chunk) });
            let sending = timeout(ANSWER_TIMEOUT, send(parts, tx));
            if !matches!(sending.await, Ok(true)) {
                queries.count_stalled();
            }
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(parts)))
    }
}

fn matches(asked: &ListHostPinsRequest, pin: &HostPin) -> bool {
    let host = &asked.host;
    let trigger = pin.pin.as_ref().map_or("", |pin| &pin.trigger);
    let fired = pin.pin.as_ref().map_or(0, |pin| pin.fired_unix_ns);
    let within = asked
        .range
        .is_none_or(|range| (range.start_unix_ns..range.end_unix_ns).contains(&fired));
    within
        && (asked.id == 0 || asked.id == pin.id)
        && (host.is_empty() || *host == pin.host_id || *host == pin.hostname)
        && (asked.trigger.is_empty() || asked.trigger == trigger)
}

fn query(asked: &PinProfileRequest, caller: &Caller) -> Result<KeptQuery, Status> {
    // Samples of a pin do not have the labels of their host, which is looked at before.
    let within = caller.scope.as_ref().map(Scope::within_host);
    KeptQuery::new(
        (asked.matchers.clone(), within),
        asked.frame_filters.clone(),
        &asked.group_by,
        asked.times,
    )
}
