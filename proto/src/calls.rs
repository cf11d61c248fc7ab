//! Tracks the calls of each connection, so that a connection without calls is closed.
//!
//! Received bytes say nothing about a peer: with TLS they may be half a handshake. A call that
//! reached a service does, from its head to the last byte of its answer. A call needs no token to
//! count, but one without a token is over at once. Only health is answered without a token, and a
//! watch on it lasts forever.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tonic::codegen::Body;
use tonic::codegen::http::{Extensions, Request, Response};
use tower::{Layer, Service};

/// For how long a connection may be without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time from connecting to the first call. Clients connect because they have one.
    pub first_call: Duration,
    /// Time without a call after that. Clients that keep a connection open connect again by
    /// themselves.
    pub idle: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            first_call: Duration::from_secs(10),
            idle: Duration::from_secs(300),
        }
    }
}

/// Path of the calls that everybody may make.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The calls of one connection.
#[derive(Debug)]
pub struct Calls {
    patience: Patience,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    under_way: usize,
    /// It had a call.
    called: bool,
    /// It asked for health.
    probed: bool,
    /// When it connected, last asked for health, or its last call ended.
    since: Instant,
}

impl Calls {
    /// Creates the calls of a connection made now.
    pub fn new(patience: Patience) -> Arc<Calls> {
        Arc::new(Calls {
            patience,
            state: Mutex::new(State {
                under_way: 0,
                called: false,
                probed: false,
                since: Instant::now(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call starts; it ends when the guard is dropped.
    pub fn start(self: &Arc<Calls>) -> Call {
        let mut state = self.lock();
        state.under_way += 1;
        state.called = true;
        Call(Arc::clone(self))
    }

    /// Somebody asks for health: it is not closed so soon, and gives way to others as before.
    pub fn probe(&self) {
        let mut state = self.lock();
        state.probed = true;
        state.since = Instant::now();
    }

    /// When the connection is to be closed unless a call comes before; `None` while there is one.
    fn deadline(&self) -> Option<Instant> {
        let state = *self.lock();
        let limit = if state.called || state.probed {
            self.patience.idle
        } else {
            self.patience.first_call
        };
        (state.under_way == 0).then(|| state.since + limit)
    }

    /// How much its place is worth: strangers give way first, and who has been idle longest. `None`
    /// while a call is under way.
    pub fn worth(&self) -> Option<(bool, Instant)> {
        let state = *self.lock();
        (state.under_way == 0).then_some((state.called, state.since))
    }
}

/// Detects when a connection has had no call for too long: a peer can answer pings forever.
#[derive(Debug)]
pub struct IdleTimer {
    calls: Arc<Calls>,
    /// Until it may be so.
    sleep: Pin<Box<Sleep>>,
}

impl IdleTimer {
    /// Creates the timer of a connection with these calls.
    pub fn new(calls: Arc<Calls>) -> IdleTimer {
        let patience = calls.patience;
        let sleep = tokio::time::sleep(patience.first_call.min(patience.idle));
        IdleTimer {
            calls,
            sleep: Box::pin(sleep),
        }
    }

    /// Ready when the connection is to be closed.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let now = Instant::now();
            let deadline = self.calls.deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(());
            }
            let next = deadline.unwrap_or(now + self.calls.patience.idle);
            self.sleep.as_mut().reset(next);
        }
    }
}

/// A call under way.
pub struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.since = Instant::now();
    }
}

/// The other end of a connection, as recorded in the extensions of every request.
pub trait Caller: Clone + Send + Sync + 'static {
    /// Its calls.
    fn calls(&self) -> &Arc<Calls>;

    /// Adds to the extensions what services look for in them.
    fn note(&self, _extensions: &mut Extensions) {}
}

/// Counts the calls of each connection of a `P`.
pub struct CountCalls<P>(PhantomData<fn() -> P>);

impl<P> CountCalls<P> {
    /// The layer.
    pub fn new() -> CountCalls<P> {
        CountCalls(PhantomData)
    }
}

impl<P> Default for CountCalls<P> {
    fn default() -> CountCalls<P> {
        CountCalls::new()
    }
}

impl<P> Clone for CountCalls<P> {
    fn clone(&self) -> CountCalls<P> {
        CountCalls::new()
    }
}

impl<P, S> Layer<S> for CountCalls<P> {
    type Service = Counted<P, S>;

    fn layer(&self, service: S) -> Counted<P, S> {
        Counted(service, PhantomData)
    }
}

/// See [`CountCalls`].
pub struct Counted<P, S>(S, PhantomData<fn() -> P>);

impl<P, S: Clone> Clone for Counted<P, S> {
    fn clone(&self) -> Counted<P, S> {
        Counted(self.0.clone(), PhantomData)
    }
}

impl<P, S, Req, Res> Service<Request<Req>> for Counted<P, S>
where
    P: Caller,
    S: Service<Request<Req>, Response = Response<Res>>,
    S::Future: Send + 'static,
{
    type Response = Response<CountedBody<Res>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Req>) -> Self::Future {
        let is_probe = request.uri().path().starts_with(HEALTH);
        let caller = request.extensions().get::<P>().cloned();
        let call = caller.and_then(|caller| {
            caller.note(request.extensions_mut());
            if is_probe {
                caller.calls().probe();
                return None;
            }
            Some(caller.calls().start())
        });
        let answering = self.0.call(request);
        Box::pin(async move {
            let response = answering.await?;
            Ok(response.map(|body| CountedBody { body, _call: call }))
        })
    }
}

/// An answer; its call is under way as long as it is being sent.
pub struct CountedBody<B> {
    body: B,
    _call: Option<Call>,
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
