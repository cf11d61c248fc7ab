//! Clients that took another port for theirs: each request gets an answer that says so, in the
//! language that it came in.
//!
//! Without it they see a connection that breaks, and no reason. The first bytes tell apart what is
//! spoken: HTTP/1, HTTP/2, or something else, such as TLS. Nothing is served here but one sentence.

use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tonic::{Code, Status};

/// Bytes that tell what is spoken.
pub(crate) const FIRST_BYTES: usize = 4;

/// Starts of a request of HTTP/1.
const HTTP1: [&[u8; FIRST_BYTES]; 8] = [
    b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN",
];

/// Most of such a request that is read before it is answered. Unit: bytes.
const HTTP1_BYTES: usize = 16 << 10;

/// First bytes of HTTP/2.
const PREFACE: &[u8] = b"PRI";

/// Time to take the answer. Whoever is here has no business here.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls at a time on one connection.
const CALLS_MAX: u32 = 4;

/// Largest header list of a call. Unit: bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Whether a connection starts as HTTP/2; `None` when it says nothing or is gone.
pub(crate) async fn starts_as_http2(stream: &TcpStream, within: Duration) -> Option<bool> {
    let mut first = [0; PREFACE.len()];
    let peeked = tokio::time::timeout(within, stream.peek(&mut first)).await;
    let read = peeked.ok()?.ok()?;
    (read > 0).then(|| is_http2(&first))
}

/// Whether these are the first bytes of HTTP/2.
pub(crate) fn is_http2(first: &[u8]) -> bool {
    first.starts_with(PREFACE)
}

/// What a client of gRPC hears at the page's port.
pub(crate) fn gone_wrong(grpc: SocketAddr) -> Status {
    let text = format!("this is the page's port (HTTP); gRPC is at {grpc}");
    Status::failed_precondition(text)
}

/// Whether these are the first bytes of a request of HTTP/1.
pub(crate) fn is_http1(first: &[u8]) -> bool {
    HTTP1.iter().any(|method| first == *method)
}

/// Answers a request of HTTP/1 with 400 and a line of text. A connection that does not take so
/// little at once gets nothing.
pub(crate) fn answer_http1(stream: &TcpStream, text: &str) {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n{text}",
        text.len()
    );
    // What is not read when the connection is closed makes the kernel reset it, answer and all.
    let mut request = [0; HTTP1_BYTES];
    let _ = stream.try_read(&mut request);
    let _ = stream.try_write(answer.as_bytes());
}

/// The connection, when what comes first is not HTTP in clear: for a port of TLS, which a browser
/// was told to speak `http://` to, or `agent-ctl` without a login. Each is answered with `text` in
/// its own language, and gRPC with `code`.
///
/// # Errors
/// When it was answered so, or is gone.
pub(crate) async fn unless_clear(
    stream: TcpStream,
    code: Code,
    text: &str,
) -> io::Result<TcpStream> {
    let mut first = [0; FIRST_BYTES];
    let read = stream.peek(&mut first).await?;
    let first = &first[..read];
    if is_http1(first) {
        answer_http1(&stream, &format!("{text}\n"));
    } else if is_http2(first) {
        answer(stream, Status::new(code, text)).await;
    } else {
        return Ok(stream);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is not TLS"))
}

/// Answers every call with this.
pub(crate) async fn answer(stream: TcpStream, status: Status) {
    let say = service_fn(move |_: Request<Incoming>| {
        let answer: Response<Body> = status.clone().into_http();
        async move { Ok::<_, Infallible>(answer) }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), say);
    // How it ends is the client's affair.
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, serving).await;
}
