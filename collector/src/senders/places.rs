//! Places for requests of senders: how many are read at a time, by whom, and how long that may
//! take. What is refused in front of them, by the transport, is counted here.
//!
//! A request takes a place before its body is read, so places bound the memory of bodies. It waits
//! for one, because not all senders come again.

use super::{Cause, Refusal, Senders};
use crate::access::Caller;
use crate::sync::lock;
use hyper::{Request, Response, StatusCode};
use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;
use tower_http::timeout::TimeoutBody;

/// Most requests at a time.
const REQUESTS_MAX: usize = 8;

/// Most of one sender, so that nobody keeps all others waiting.
const OF_SENDER_MAX: usize = REQUESTS_MAX / 2;

/// Most requests that wait for a place. Little of their bodies is in memory.
const WAITING_MAX: usize = 64;

/// How long they wait.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Time without a byte of a body after which its place is another's: a sender that stalls is
/// over before others have waited too long.
const STALL_MAX: Duration = Duration::from_secs(5);

/// Time for a request from its place to its answer.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

tokio::task_local! {
    /// True once the request of this task was refused and counted.
    static COUNTED: Cell<bool>;
}

/// See the file.
pub(super) struct Places {
    wait: Duration,
    all: Arc<Semaphore>,
    waiting: Semaphore,
    of_senders: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place, until it is dropped.
pub(crate) struct Place {
    _own: OwnedSemaphorePermit,
    _one_of_all: OwnedSemaphorePermit,
}

impl Places {
    pub fn new() -> Places {
        Places::with(WAIT_MAX)
    }

    fn with(wait: Duration) -> Places {
        Places {
            wait,
            all: Arc::new(Semaphore::new(REQUESTS_MAX)),
            waiting: Semaphore::new(WAITING_MAX),
            of_senders: Mutex::default(),
        }
    }

    /// The places of a sender; senders without a request take no memory.
    fn of(&self, sender: &str) -> Arc<Semaphore> {
        let mut of_senders = lock(&self.of_senders);
        if let Some(own) = of_senders.get(sender).and_then(Weak::upgrade) {
            return own;
        }
        of_senders.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(OF_SENDER_MAX));
        of_senders.insert(sender.to_owned(), Arc::downgrade(&own));
        own
    }

    async fn place(&self, sender: &str) -> Option<Place> {
        let _waits = self.waiting.try_acquire().ok()?;
        let taking = async {
            // Its own first: who has enough takes none of all.
            let own = self.of(sender).acquire_owned().await.ok()?;
            let one_of_all = self.all.clone().acquire_owned().await.ok()?;
            Some(Place {
                _own: own,
                _one_of_all: one_of_all,
            })
        };
        timeout(self.wait, taking).await.ok().flatten()
    }
}

/// A body that ends with an error when nothing of it comes for too long.
pub(crate) fn steady<B>(body: B) -> TimeoutBody<B> {
    TimeoutBody::new(STALL_MAX, body)
}

/// A service of gRPC whose requests take a place before they are read, and may take so long.
#[derive(Clone)]
pub struct Placed<S> {
    inner: S,
    senders: Senders,
}

impl<S: NamedService> NamedService for Placed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Placed<S>
where
    S: Service<Request<TimeoutBody<Body>>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let caller = Caller::of(request.extensions());
        // Nothing of it is read before it is polled.
        let answering = self.inner.call(request.map(steady));
        let senders = self.senders.clone();
        Box::pin(async move {
            let answering = async {
                let Ok(answered) = answering.await;
                answered
            };
            Ok(senders.answered(caller, answering, Status::into_http).await)
        })
    }
}

impl Senders {
    /// A service that takes places for its requests.
    pub fn placed<S>(&self, inner: S) -> Placed<S> {
        let senders = self.clone();
        Placed { inner, senders }
    }

    /// Reads and answers a request once it has a place.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there is none for too long, or answering takes too long.
    pub(crate) async fn in_place<T>(
        &self,
        caller: &Caller,
        answering: impl Future<Output = T>,
    ) -> Result<T, Status> {
        let busy = |text| {
            self.refuse(Refusal {
                cause: Cause::Busy,
                text,
            })
        };
        let place = self.0.places.place(&caller.name).await;
        let _place = place.ok_or_else(|| {
            busy(format!(
                "{OF_SENDER_MAX} requests of this sender or {REQUESTS_MAX} of all are being read, \
                 which is the limit; try again in a moment"
            ))
        })?;
        timeout(REQUEST_TIMEOUT, answering).await.map_err(|_| {
            let seconds = REQUEST_TIMEOUT.as_secs();
            busy(format!(
                "failed to read the request: it took more than {seconds} s"
            ))
        })
    }

    /// Counts a refusal.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Status {
        refusal.cause.counter(&self.0.metrics).inc();
        // Requests of plain HTTP have none: nobody but this refuses them.
        let _ = COUNTED.try_with(|counted| counted.set(true));
        refusal.status()
    }

    /// Reads and answers a request that the transport decodes, once it has a place, and counts its
    /// refusal if the transport made it. `refused` makes an answer of any other.
    pub(crate) async fn answered<B>(
        &self,
        caller: Result<Arc<Caller>, Status>,
        answering: impl Future<Output = Response<B>>,
        refused: impl FnOnce(Status) -> Response<B>,
    ) -> Response<B> {
        let answering = async {
            let in_place = async { self.in_place(&*caller?, answering).await };
            let answered = in_place.await.unwrap_or_else(refused);
            if !COUNTED.with(Cell::get)
                && let Some(cause) = cause(&answered)
            {
                cause.counter(&self.0.metrics).inc();
            }
            answered
        };
        COUNTED.scope(Cell::new(false), answering).await
    }
}

/// Why the transport refused a request, by its answer: in gRPC, in Connect, or in HTTP alone.
fn cause<B>(answered: &Response<B>) -> Option<Cause> {
    let status = answered.extensions().get().cloned();
    match status.or_else(|| Status::from_header_map(answered.headers())) {
        Some(status) => match status.code() {
            Code::OutOfRange => Some(Cause::TooLarge),
            Code::InvalidArgument
            | Code::Internal
            | Code::Unimplemented
            | Code::Unknown
            | Code::Cancelled
            | Code::DataLoss => Some(Cause::Malformed),
            _ => None,
        },
        None => match answered.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Some(Cause::TooLarge),
            StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => Some(Cause::Malformed),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sender_with_many_requests_leaves_places_for_others() {
        let places = Places::with(Duration::from_millis(20));
        let mut held = Vec::new();
        for _ in 0..OF_SENDER_MAX {
            held.push(places.place("busy").await.expect("a place"));
        }
        assert!(places.place("busy").await.is_none(), "its own are taken");
        assert!(places.place("other").await.is_some());
        held.pop();
        assert!(places.place("busy").await.is_some());
    }

    #[tokio::test]
    async fn a_request_waits_until_a_place_is_free() {
        let places = Places::new();
        let mut held = Vec::new();
        for number in 0..REQUESTS_MAX {
            held.push(places.place(&number.to_string()).await.expect("a place"));
        }
        let waiting = places.place("late");
        let freeing = async {
            tokio::task::yield_now().await;
            held.clear();
        };
        let (place, ()) = tokio::join!(waiting, freeing);
        assert!(place.is_some());
    }

    #[tokio::test]
    async fn senders_without_requests_are_forgotten() {
        let places = Places::new();
        for number in 0..100 {
            drop(places.place(&number.to_string()).await);
        }
        assert_eq!(lock(&places.of_senders).len(), 1);
    }
}
