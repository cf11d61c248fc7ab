//! The gate of the port for other hosts: identifies the caller and checks permissions. Hosts
//! authenticate by the certificate of their connection, people by a token with each call.
//!
//! A call holds its place until its answer is complete. It ends earlier if its token ends.

use super::{Member, MemberPeer};
use crate::access::{self, Caller, DENIED, People, Person, Who};
use crate::audit::Event;
use hyper::body::{Body, Frame, SizeHint};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::http::header::{AUTHORIZATION, CONTENT_TYPE};
use tonic::codegen::http::{HeaderMap, Request, Response, Uri};
use tonic::{Code, Status};
use tower::{Layer, Service};

/// Seconds after which it is worth to try again.
const AGAIN_S: u64 = 1;

/// Time without a call after which a token's use is on record again. Unit: seconds.
const LOGIN_AGAIN_S: i64 = 3600;

/// See the file.
#[derive(Clone)]
pub struct Gatekeeper {
    people: Arc<People>,
    reads: bool,
}

impl Gatekeeper {
    /// For these people. Their reads are on record where `reads` says so.
    pub fn new(people: Arc<People>, reads: bool) -> Gatekeeper {
        Gatekeeper { people, reads }
    }

    /// Lets a call in, or says why not.
    fn admit<B>(&self, request: &mut Request<B>) -> Result<Held, Status> {
        let peer = request.extensions().get::<MemberPeer>().cloned();
        let address = peer.as_ref().and_then(MemberPeer::address);
        let metrics = self.people.metrics();
        let before = self.people.now();
        let headers = request.headers_mut();
        let person = self.people.authenticate(headers, address)?;
        // Nobody behind the gate needs it.
        headers.remove(AUTHORIZATION);
        let who = match (&person, &peer) {
            (Some(person), _) => Who::Person(person.caller.role),
            (None, Some(peer)) if peer.member.is_some() => Who::Host,
            (None, Some(peer)) if peer.was_member => Who::Removed,
            (None, _) => Who::Stranger,
        };
        let member = peer.as_ref().and_then(|peer| peer.member.clone());
        let known = match (&person, member) {
            (Some(person), _) => Some(Known::Person(person.caller.clone())),
            (None, Some(member)) => Some(Known::Host(member)),
            (None, None) => None,
        };
        let asked = known.map(|known| Asked {
            people: self.people.clone(),
            known,
            address,
            uri: request.uri().clone(),
        });
        let path = request.uri().path();
        if let Some(status) = access::refusal(path, who) {
            match &asked {
                Some(asked) => asked.refused(&status),
                // What strangers ask for is answered, and on no record.
                None => {
                    metrics.calls_denied.inc();
                }
            }
            return Err(status);
        }
        let Some(person) = person else {
            let member = peer.and_then(|peer| peer.member);
            let call = match member {
                Some(member) => Some(place(&member.calls, "this host", metrics)?),
                None => None,
            };
            return Ok(Held {
                call,
                ended: None,
                asked,
            });
        };
        let call = place(&person.calls, &person.caller.name, metrics)?;
        if let Some(peer) = &peer {
            peer.promote()?;
        }
        let told = address.map(|address| address.to_string());
        let told = told.unwrap_or_default();
        if person.is_back(before, LOGIN_AGAIN_S) {
            let event = person.caller.event(told.clone(), "login");
            self.people.audit().note(event);
        }
        if self.reads && access::READS.iter().any(|call| path.starts_with(call)) {
            let call = path.rsplit('/').next().unwrap_or_default();
            let event = person.caller.event(told, "read").with("call", call);
            self.people.audit().note(event);
        }
        let ended: Ended = Box::pin(person.ended(before));
        let extensions = request.extensions_mut();
        extensions.insert::<Arc<Caller>>(person.caller.clone());
        extensions.insert::<Arc<Person>>(person);
        Ok(Held {
            call: Some(call),
            ended: Some(ended),
            asked,
        })
    }
}

/// A place for one more call.
fn place(
    calls: &Arc<Semaphore>,
    whose: &str,
    metrics: &crate::metrics::Metrics,
) -> Result<OwnedSemaphorePermit, Status> {
    calls.clone().try_acquire_owned().map_err(|_| {
        metrics.calls_limited.inc();
        let text = format!("`{whose}` has too many running calls");
        let mut status = Status::resource_exhausted(text);
        status
            .metadata_mut()
            .insert(access::RETRY_AFTER, AGAIN_S.into());
        status
    })
}

type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Resources of a call while it lasts.
struct Held {
    call: Option<OwnedSemaphorePermit>,
    /// Done when it is to end.
    ended: Option<Ended>,
    asked: Option<Asked>,
}

/// Who made a call: what is on record when it is refused.
struct Asked {
    people: Arc<People>,
    known: Known,
    address: Option<SocketAddr>,
    uri: Uri,
}

/// Somebody who proved who they are.
enum Known {
    Person(Arc<Caller>),
    Host(Arc<Member>),
}

impl Asked {
    /// Puts on record that the call was refused, if these headers or trailers of its answer say so:
    /// what a scope leaves out, and what a host claims of another, is found behind the gate.
    fn check(&self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers)
            && status.code() == Code::PermissionDenied
        {
            self.refused(&status);
        }
    }

    fn refused(&self, status: &Status) {
        let address = self.address.map(|address| address.to_string());
        let address = address.unwrap_or_default();
        let event = match &self.known {
            Known::Person(caller) => caller.event(address, DENIED),
            Known::Host(member) => Event::by(&member.name, address, DENIED),
        };
        self.people.deny(event, self.uri.path(), status.message());
    }
}

fn over() -> Status {
    Status::unauthenticated("the token has expired, or was removed")
}

impl<S> Layer<S> for Gatekeeper {
    type Service = Gate<S>;

    fn layer(&self, service: S) -> Gate<S> {
        Gate {
            service,
            keeper: self.clone(),
        }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct Gate<S> {
    service: S,
    keeper: Gatekeeper,
}

impl<S, Req, Res> Service<Request<Req>> for Gate<S>
where
    S: Service<Request<Req>, Response = Response<Res>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Res: Default + Send + 'static,
{
    type Response = Response<Guarded<Res>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Req>) -> Self::Future {
        let held = match self.keeper.admit(&mut request) {
            Ok(held) => held,
            Err(status) => return Box::pin(async move { Ok(refuse(status)) }),
        };
        let answering = self.service.call(request);
        let metrics = self.keeper.people.metrics().clone();
        Box::pin(async move {
            let Held {
                call,
                mut ended,
                asked,
            } = held;
            let response = match &mut ended {
                None => answering.await?,
                Some(ended) => tokio::select! {
                    biased;
                    () = ended => {
                        metrics.calls_ended.inc();
                        return Ok(refuse(over()));
                    }
                    response = answering => response?,
                },
            };
            if let Some(asked) = &asked {
                asked.check(response.headers());
            }
            Ok(response.map(|body| Guarded {
                body: Some(body),
                ended,
                metrics: Some(metrics),
                asked,
                _call: call,
            }))
        })
    }
}

impl<B> Guarded<B> {
    /// The answer of a person's call over HTTP: it holds its place, and ends with their token.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when they have too many under way.
    pub fn place(
        person: &Person,
        metrics: &Arc<crate::metrics::Metrics>,
        now: i64,
    ) -> Result<impl FnOnce(B) -> Guarded<B> + use<B>, Status> {
        let call = place(&person.calls, &person.caller.name, metrics)?;
        let ended: Ended = Box::pin(person.ended(now));
        let metrics = metrics.clone();
        Ok(move |body| Guarded {
            body: Some(body),
            ended: Some(ended),
            metrics: Some(metrics),
            asked: None,
            _call: Some(call),
        })
    }
}

fn refuse<B: Default>(status: Status) -> Response<Guarded<B>> {
    status.into_http::<B>().map(|body| Guarded {
        body: Some(body),
        ended: None,
        metrics: None,
        asked: None,
        _call: None,
    })
}

/// An answer; its call holds its place as long as it is being sent.
pub struct Guarded<B> {
    /// `None` once it has ended.
    body: Option<B>,
    ended: Option<Ended>,
    metrics: Option<Arc<crate::metrics::Metrics>>,
    /// Whoever is on record if its trailers are a refusal.
    asked: Option<Asked>,
    _call: Option<OwnedSemaphorePermit>,
}

impl<B: Body + Unpin> Body for Guarded<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if let Some(ended) = &mut self.ended
            && ended.as_mut().poll(cx).is_ready()
        {
            // What answers is dropped, and with it what it does.
            (self.body, self.ended) = (None, None);
            if let Some(metrics) = &self.metrics {
                metrics.calls_ended.inc();
            }
            let mut trailers = over().into_http::<()>().into_parts().0.headers;
            trailers.remove(CONTENT_TYPE);
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let (Some(asked), Poll::Ready(Some(Ok(frame)))) = (&self.asked, &polled)
            && let Some(trailers) = frame.trailers_ref()
        {
            asked.check(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // One that is ended before is short of what it said, which whoever reads it notices.
        let body = self.body.as_ref();
        body.map(Body::size_hint).unwrap_or_default()
    }
}
