//! Keeps the place of an answer until its client has read it.
//!
//! A call puts the [`ResponseSlot`] that it holds next to its message, in the extensions of its
//! response. The transport would forget it there: [`Held`] takes it out and gives the memory back
//! when the last byte has been read, or the client has not read for too long.

use crate::query::{ANSWER_TIMEOUT, Queries, ResponseSlot, STALL_TIMEOUT};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

/// A place in the extensions of a response, which are shared.
#[derive(Clone)]
pub(super) struct Place(Arc<Mutex<Option<ResponseSlot>>>);

impl Place {
    /// An answer with its place.
    pub fn with<T>(message: T, place: ResponseSlot) -> tonic::Response<T> {
        let mut response = tonic::Response::new(message);
        let shared = Place(Arc::new(Mutex::new(Some(place))));
        response.extensions_mut().insert(shared);
        response
    }

    /// The place of a response, if it has one.
    pub fn of<B>(response: &mut Response<B>) -> Option<ResponseSlot> {
        let shared = response.extensions_mut().remove::<Place>()?;
        crate::sync::lock(&shared.0).take()
    }
}

/// A service whose answers keep their places until they are read.
#[derive(Clone)]
pub struct Held<S> {
    inner: S,
    queries: Queries,
}

impl<S> Held<S> {
    pub(crate) fn new(inner: S, queries: Queries) -> Held<S> {
        Held { inner, queries }
    }

    /// The service itself, for whoever sees to places.
    pub(super) fn inner(self) -> (S, Queries) {
        (self.inner, self.queries)
    }
}

impl<S: NamedService> NamedService for Held<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<Request<B>> for Held<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answering = self.inner.call(request);
        let queries = self.queries.clone();
        Box::pin(async move {
            let mut response = answering.await?;
            Ok(match Place::of(&mut response) {
                Some(place) => response.map(|body| held(body, place, queries)),
                None => response,
            })
        })
    }
}

/// The body, read at the client's pace for as long as it may take.
fn held(mut body: Body, place: ResponseSlot, queries: Queries) -> Body {
    let (tx, frames) = mpsc::channel::<Result<Frame<Bytes>, Status>>(1);
    tokio::spawn(async move {
        let _place = place;
        let whole = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        while let Some(frame) = body.frame().await {
            let left = whole.saturating_duration_since(tokio::time::Instant::now());
            match tx.send_timeout(frame, STALL_TIMEOUT.min(left)).await {
                Ok(()) => {}
                Err(mpsc::error::SendTimeoutError::Closed(_)) => break,
                Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                    queries.count_stalled();
                    break;
                }
            }
        }
        // Until the last frame has been taken, too.
        let _ = tokio::time::timeout(STALL_TIMEOUT, tx.closed()).await;
    });
    Body::new(http_body_util::StreamBody::new(ReceiverStream::new(frames)))
}
