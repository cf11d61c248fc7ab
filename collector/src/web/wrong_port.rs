//! Answers gRPC clients that connect to the page's port by mistake: each call gets an error that
//! says so.
//!
//! Without it they would see a broken connection and no reason. The page only speaks HTTP/1, so the
//! preface of HTTP/2 identifies them. Nothing is served here but that one sentence.

use super::HEAD_TIMEOUT;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tonic::Status;

/// First bytes of HTTP/2.
const PREFACE: &[u8] = b"PRI";

/// Time to take the answer. Whoever is here has no business here.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls at a time on one connection.
const CALLS_MAX: u32 = 4;

/// Largest header list of a call. Unit: bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Whether a connection starts as HTTP/2; `None` when it says nothing or is gone.
pub(super) async fn is_http2(stream: &TcpStream) -> Option<bool> {
    let mut first = [0; PREFACE.len()];
    let peeked = tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut first)).await;
    let read = peeked.ok()?.ok()?;
    (read > 0).then(|| first == PREFACE)
}

/// Answers every call with where gRPC is.
pub(super) async fn answer(stream: TcpStream, grpc: SocketAddr) {
    let say = service_fn(move |_: Request<Incoming>| async move {
        let text = format!("this is the page's port (HTTP); gRPC is at {grpc}");
        let answer: Response<Body> = Status::failed_precondition(text).into_http();
        Ok::<_, Infallible>(answer)
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), say);
    // How it ends is the client's affair.
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, serving).await;
}
