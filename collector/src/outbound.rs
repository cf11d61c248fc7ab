//! Requests to providers of identities and to webhooks, over HTTP/1.1: one connection each,
//! certificates checked, no redirect followed, bounded in time and size.

use crate::trust;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Longest time for a question, looking up the name included.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Largest answer. Unit: bytes. That of a large provider about somebody in 2,000 groups is half.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Largest head of an answer. Unit: bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What is asked.
pub(crate) struct Question<'a> {
    pub(crate) to: &'a Uri,
    /// What to post, with its type in `headers`; none: it is got.
    pub(crate) form: Option<String>,
    /// Further headers.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// Asks.
pub(crate) struct Client {
    tls: TlsConnector,
}

impl Client {
    /// Believes the system's authorities, and those of a file.
    pub(crate) fn new(ca_file: Option<&Path>) -> Result<Client, String> {
        let config = trust::client(ca_file, None);
        let mut config = config.map_err(|why| why.of_key("auth.oidc.ca_file"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Client {
            tls: Arc::new(config).into(),
        })
    }

    /// The status and the body of the answer.
    pub(crate) async fn ask(&self, question: Question<'_>) -> Result<(StatusCode, Bytes), String> {
        let to = format!("`{}`", config::shown(&question.to.to_string()));
        match tokio::time::timeout(ANSWER_MAX, self.exchange(question, true)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(format!("failed to ask {to}: {why}")),
            Err(_) => Err(format!(
                "failed to ask {to}: no answer within {} s",
                ANSWER_MAX.as_secs()
            )),
        }
    }

    /// The status of the answer, which is not read any further. An error does not name the address,
    /// which may be a secret.
    pub(crate) async fn status(&self, question: Question<'_>) -> Result<StatusCode, String> {
        match tokio::time::timeout(ANSWER_MAX, self.exchange(question, false)).await {
            Ok(answer) => answer.map(|(status, _)| status),
            Err(_) => Err(format!("no answer within {} s", ANSWER_MAX.as_secs())),
        }
    }

    async fn exchange(
        &self,
        question: Question<'_>,
        reads: bool,
    ) -> Result<(StatusCode, Bytes), String> {
        let host = question.to.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let encrypted = question.to.scheme_str() == Some("https");
        let port = question.to.port_u16();
        let port = port.unwrap_or(if encrypted { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream.map_err(|why| why.to_string())?;
        if !encrypted {
            return speak(stream, question, reads).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|why| why.to_string())?;
        let stream = self.tls.connect(name, stream).await;
        speak(stream.map_err(|why| why.to_string())?, question, reads).await
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    question: Question<'_>,
    reads: bool,
) -> Result<(StatusCode, Bytes), String> {
    let handshake = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|why| why.to_string())?;
    // Ends with this question.
    let mut working = JoinSet::new();
    working.spawn(connection);
    let path = question.to.path_and_query();
    let authority = question.to.authority();
    let mut request = Request::builder()
        .method(match question.form {
            Some(_) => Method::POST,
            None => Method::GET,
        })
        .uri(path.map_or("/", |path| path.as_str()))
        .header(HOST, authority.map_or("", |authority| authority.as_str()))
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, "fleetprof-collector")
        .header(CONNECTION, "close");
    for (name, value) in question.headers {
        request = request.header(name, value);
    }
    let body = Full::new(Bytes::from(question.form.unwrap_or_default()));
    let request = request.body(body).map_err(|why| why.to_string())?;
    let answer = sender.send_request(request).await;
    let (head, body) = answer.map_err(|why| why.to_string())?.into_parts();
    if !reads {
        return Ok((head.status, Bytes::new()));
    }
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|why| format!("{why}, and only {ANSWER_BYTES_MAX} bytes are read"))?;
    Ok((head.status, body.to_bytes()))
}
