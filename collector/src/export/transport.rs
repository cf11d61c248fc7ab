//! The way to a receiver: OTLP over gRPC, or over HTTP in protocol buffers, packed with gzip.

use super::limits::{ANSWER_BYTES_MAX, HEADERS_BYTES_MAX, RETRY_AFTER_MAX, SEND_TIMEOUT};
use crate::config::{OtlpProtocol as Protocol, OtlpTarget as Target};
use crate::otlp::wire::{ExportProfilesServiceRequest, ExportProfilesServiceResponse};
use crate::otlp::{GRPC_PATH, HTTP_PATH};
use crate::trust;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use proto::PieceCodec;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use tonic::body::Body;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};

/// Time to reach a receiver.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The receiver took it.
    Accepted {
        /// But for these profiles.
        rejected: u64,
        /// What it said.
        message: String,
    },
    /// It is not taken later either.
    Refused(String),
    /// It may be taken later; after this time, if the receiver said so.
    Failed(String, Option<Duration>),
    /// The receiver has no room: for now, or for a request of this size.
    Exhausted(String),
}

/// A client of a receiver; clones share connections.
#[derive(Clone)]
pub struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    protocol: Protocol,
    /// The address of the call.
    url: Uri,
}

impl Transport {
    /// Believes the system's authorities, and those of a file. Reads files.
    ///
    /// # Errors
    /// A sentence, when a file cannot be used.
    pub fn new(target: &Target) -> Result<Transport, String> {
        let config = trust::client(target.ca_file.as_deref(), target.cert.as_ref());
        let config = config.map_err(|why| why.of_key("export.otlp"))?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http();
        let connector = match target.protocol {
            Protocol::Grpc => connector.enable_http2().wrap_connector(tcp),
            Protocol::Http => connector.enable_http1().wrap_connector(tcp),
        };
        let client = Client::builder(TokioExecutor::new())
            .http2_only(target.protocol == Protocol::Grpc)
            .build(connector);
        Ok(Transport {
            client,
            protocol: target.protocol,
            url: call_url(&target.url, target.protocol),
        })
    }

    /// Sends a request.
    pub async fn send(&self, headers: HeaderMap, request: ExportProfilesServiceRequest) -> Sent {
        let sending = async {
            match self.protocol {
                Protocol::Grpc => self.call(headers, request).await,
                Protocol::Http => self.post(headers, request).await,
            }
        };
        tokio::time::timeout(SEND_TIMEOUT, sending)
            .await
            .unwrap_or_else(|_| {
                let text = format!("no answer within {} s", SEND_TIMEOUT.as_secs());
                Sent::Failed(text, None)
            })
    }

    async fn call(&self, headers: HeaderMap, request: ExportProfilesServiceRequest) -> Sent {
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.url.clone())
            .send_compressed(Gzip)
            .accept_compressed(Gzip)
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        if let Err(why) = grpc.ready().await {
            return Sent::Failed(why.to_string(), None);
        }
        let metadata = MetadataMap::from_headers(headers);
        let request = tonic::Request::from_parts(metadata, Extensions::default(), request);
        let path = PathAndQuery::from_static(GRPC_PATH);
        let codec: PieceCodec<ExportProfilesServiceRequest, ExportProfilesServiceResponse> =
            PieceCodec::default();
        match grpc.unary(request, path, codec).await {
            Ok(answer) => accepted(answer.into_inner()),
            Err(status) => judged(&status),
        }
    }

    async fn post(&self, mut headers: HeaderMap, request: ExportProfilesServiceRequest) -> Sent {
        let failed = |why: &dyn std::fmt::Display| Sent::Failed(why.to_string(), None);
        let packing = tokio::task::spawn_blocking(move || packed(&request));
        let Ok(Ok(body)) = packing.await else {
            return failed(&"the request cannot be packed");
        };
        let kind = HeaderValue::from_static("application/x-protobuf");
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let mut request = Request::new(Body::new(Full::new(body)));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = headers;
        let answer = match self.client.request(request).await {
            Ok(answer) => answer,
            Err(why) => return failed(&profile::text::with_causes(&why)),
        };
        let (head, body) = answer.into_parts();
        let after = head.headers.get(RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let after = after.map(|s: u64| Duration::from_secs(s).min(RETRY_AFTER_MAX));
        let text = format!("it answered {}", head.status);
        match head.status {
            StatusCode::OK => {
                let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
                let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                // What cannot be read is no refusal: the status says that it was taken.
                accepted(ExportProfilesServiceResponse::decode(body).unwrap_or_default())
            }
            status if status.is_success() => accepted(ExportProfilesServiceResponse::default()),
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => Sent::Refused(text),
            status if status.is_redirection() => Sent::Failed(
                format!("{text}, and redirects are not followed: configure where it leads to"),
                None,
            ),
            _ => Sent::Failed(text, after),
        }
    }
}

fn packed(request: &ExportProfilesServiceRequest) -> std::io::Result<Bytes> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&request.encode_to_vec())?;
    Ok(gzip.finish()?.into())
}

fn accepted(answer: ExportProfilesServiceResponse) -> Sent {
    let partial = answer.partial_success.unwrap_or_default();
    Sent::Accepted {
        rejected: u64::try_from(partial.rejected_profiles).unwrap_or(0),
        message: partial.error_message,
    }
}

/// What a status of gRPC means. A token that is wrong or a call that is not there can be put right
/// by people, so what waits is kept for them.
fn judged(status: &Status) -> Sent {
    let said = match status.message() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    let text = format!("it answered {:?}{said}", status.code());
    let after = retry_delay(status.details());
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Sent::Refused(text),
        Code::ResourceExhausted if after.is_none() => Sent::Exhausted(text),
        _ => Sent::Failed(text, after),
    }
}

/// `google.rpc.Status`, as far as it matters.
#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Detail>,
}

#[derive(Clone, PartialEq, Message)]
struct Detail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, Copy, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Delay>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// The time after which to come again, where a status says one.
fn retry_delay(details: &[u8]) -> Option<Duration> {
    let details = Details::decode(details).ok()?.details;
    let info = details
        .iter()
        .find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.clone()).ok()?.delay?;
    let seconds = u64::try_from(delay.seconds).ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// The address of the call. Over HTTP an address without a path has the usual one.
fn call_url(url: &Uri, protocol: Protocol) -> Uri {
    if protocol == Protocol::Grpc || !matches!(url.path(), "" | "/") {
        return url.clone();
    }
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(HTTP_PATH));
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// Headers of a request, with those of a file: `Name: value`, one a line; `#` starts a comment.
///
/// # Errors
/// A sentence, without what is in the file.
pub fn headers(file: Option<&Path>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let agent = concat!("fleetprof-collector/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    let Some(path) = file else {
        return Ok(headers);
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(HEADERS_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|why| unusable(path, &why))?;
    if text.len() as u64 > HEADERS_BYTES_MAX {
        return Err(unusable(path, &"it is too large"));
    }
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.split_once(':').and_then(|(name, value)| {
            let name: HeaderName = name.trim().parse().ok()?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let (name, value) = pair
            .ok_or_else(|| unusable(path, &format_args!("line {number} is not `Name: value`")))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("failed to use `{}` (`export.otlp`): {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_put_right_is_kept_and_the_rest_refused() {
        let sent = |code| judged(&Status::new(code, "x"));
        for code in [Code::InvalidArgument, Code::OutOfRange] {
            assert!(matches!(sent(code), Sent::Refused(_)), "{code:?}");
        }
        for code in [
            Code::Unavailable,
            Code::Unauthenticated,
            Code::Unimplemented,
        ] {
            assert!(matches!(sent(code), Sent::Failed(_, None)), "{code:?}");
        }
        assert!(matches!(sent(Code::ResourceExhausted), Sent::Exhausted(_)));
    }

    #[test]
    fn a_receiver_may_say_when_to_come_again() {
        let info = RetryInfo {
            delay: Some(Delay { seconds: 7 }),
        };
        let details = Details {
            details: vec![Detail {
                type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
                value: info.encode_to_vec().into(),
            }],
        };
        let details = details.encode_to_vec();
        assert_eq!(retry_delay(&details), Some(Duration::from_secs(7)));
        let status = Status::with_details(Code::ResourceExhausted, "x", details.into());
        let after = Some(Duration::from_secs(7));
        assert!(matches!(judged(&status), Sent::Failed(_, found) if found == after));
        assert_eq!(retry_delay(b"\xff"), None);
    }

    #[test]
    fn an_address_without_a_path_has_the_usual_one() {
        let of = |url: &str, protocol| call_url(&url.parse().expect("a URL"), protocol).to_string();
        let usual = "http://a:4318/v1development/profiles";
        assert_eq!(of("http://a:4318", Protocol::Http), usual);
        assert_eq!(of("http://a:4318/", Protocol::Http), usual);
        assert_eq!(of("http://a/x/y", Protocol::Http), "http://a/x/y");
        assert_eq!(of("http://a:4317", Protocol::Grpc), "http://a:4317/");
    }

    #[test]
    fn headers_come_from_lines_of_a_file_and_errors_have_none_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("headers");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        write("# tokens\n\nAuthorization: Bearer a:b\nX-Scope-OrgID: 7\n");
        let found = headers(Some(&path)).expect("headers");
        assert_eq!(found["authorization"], "Bearer a:b");
        assert_eq!(found["x-scope-orgid"], "7");
        write(&"# a comment\n".repeat(6000));
        assert!(headers(Some(&path)).is_err_and(|why| why.contains("too large")));
        write("Authorization s3cret\n");
        let why = headers(Some(&path)).expect_err("no header");
        assert!(why.contains("line 1") && !why.contains("s3cret"), "{why}");
    }
}
