//! Connect's protocol for unary calls, in front of the services of gRPC.
//!
//! A request is a message, in protocol buffers or JSON, without any frame around it; so is the
//! answer, in the codec of the request. Errors are JSON in either. What it says goes to the service
//! as a call of gRPC, and what that says comes back. JSON is read and written by the descriptors of
//! the .proto files, and so leniently as its clients need: names of fields in both spellings,
//! numbers as texts, and fields and names of enums that are not known left out.
//!
//! Source: connectrpc.com/docs/protocol. Not here: streams, the `GET` form of calls, compression
//! other than gzip.

use super::held::{Held, Place};
use super::wire::DESCRIPTORS;
use crate::gunzip::{GunzipError, gunzip};
use crate::query::{RETRY_AFTER, ResponseSlot};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName,
    HeaderValue, TE,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_web::GrpcWebLayer;
use tower::{Layer, Service, ServiceExt};

/// Largest request, unpacked. Unit: bytes. A selector may have 64 KiB.
pub const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Largest request in JSON, unpacked, whose messages take many times their size in memory. Unit:
/// bytes.
const JSON_BYTES_MAX: usize = 8 << 20;

/// Bytes in front of a message of gRPC: whether it is compressed, and its length.
const FRAME_HEAD: usize = 5;

/// Most digits of a time limit.
const TIMEOUT_DIGITS: usize = 10;

const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const GRPC_STATUS: &str = "grpc-status";

/// An answer.
pub(crate) enum Answer {
    /// All of it, and the place it holds until it is read.
    Whole(Response<Bytes>, Option<ResponseSlot>),
    /// In frames of gRPC-Web, which keep their place themselves.
    Frames(Response<tonic::body::Body>),
}

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    Proto,
    Json,
}

impl Codec {
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Codec::Proto => "application/proto",
            Codec::Json => "application/json",
        })
    }
}

/// What a request is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Connect(Codec),
    GrpcWeb,
    Other,
}

impl Dialect {
    fn of(headers: &HeaderMap) -> Dialect {
        let kind = headers.get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let plain = kind.split(';').next().unwrap_or("").trim();
        match plain.to_ascii_lowercase().as_str() {
            "application/proto" => Dialect::Connect(Codec::Proto),
            "application/json" => Dialect::Connect(Codec::Json),
            plain if plain.starts_with("application/grpc") => Dialect::GrpcWeb,
            _ => Dialect::Other,
        }
    }
}

/// Answers one call of `service`, whose requests have at most so many bytes, unpacked.
pub(crate) async fn answer<S, B>(service: Held<S>, request: Request<B>, most: usize) -> Answer
where
    S: Service<
            Request<tonic::body::Body>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        > + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + std::fmt::Display,
{
    if request.method() != Method::POST {
        let mut response = bare(StatusCode::METHOD_NOT_ALLOWED);
        let post = HeaderValue::from_static("POST");
        response.headers_mut().insert(ALLOW, post);
        return Answer::Whole(response, None);
    }
    match Dialect::of(request.headers()) {
        Dialect::GrpcWeb => match GrpcWebLayer::new().layer(service).oneshot(request).await {
            Ok(response) => Answer::Frames(response),
            Err(never) => match never {},
        },
        Dialect::Connect(codec) => {
            let (inner, _) = service.inner();
            let limit = match timeout(request.headers()) {
                Ok(limit) => limit,
                Err(status) => return Answer::Whole(failed(&status), None),
            };
            let calling = call(inner, codec, request, most);
            let called = match limit {
                None => calling.await,
                Some(limit) => tokio::time::timeout(limit, calling)
                    .await
                    .unwrap_or_else(|_| {
                        Err(Status::deadline_exceeded(
                            "the client's time is over: use a shorter range or fewer hosts",
                        ))
                    }),
            };
            match called {
                Ok((message, place)) => {
                    let mut response = Response::new(message);
                    let kind = codec.content_type();
                    response.headers_mut().insert(CONTENT_TYPE, kind);
                    Answer::Whole(response, place)
                }
                Err(status) => Answer::Whole(failed(&status), None),
            }
        }
        Dialect::Other => Answer::Whole(bare(StatusCode::UNSUPPORTED_MEDIA_TYPE), None),
    }
}

/// A refusal in the words of whoever sent a request with these headers.
pub(crate) fn refused(headers: &HeaderMap, status: &Status) -> Response<Bytes> {
    if Dialect::of(headers) != Dialect::GrpcWeb {
        return failed(status);
    }
    let mut response = status.clone().into_http::<Bytes>();
    let kind = HeaderValue::from_static("application/grpc-web+proto");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// An error as Connect's clients read it, whatever codec they use.
pub(super) fn failed(status: &Status) -> Response<Bytes> {
    let (code, http) = named(status.code());
    let body = serde_json::json!({ "code": code, "message": status.message() });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(http).unwrap_or(StatusCode::BAD_GATEWAY);
    response.extensions_mut().insert(status.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let again = status.metadata().get(RETRY_AFTER);
    if let Some(again) = again.and_then(|again| HeaderValue::from_bytes(again.as_bytes()).ok()) {
        headers.insert(hyper::header::RETRY_AFTER, again);
    }
    response
}

/// The name of a code, and the status of HTTP that stands for it.
fn named(code: Code) -> (&'static str, u16) {
    match code {
        Code::Ok | Code::Unknown => ("unknown", 500),
        Code::Cancelled => ("canceled", 499),
        Code::InvalidArgument => ("invalid_argument", 400),
        Code::DeadlineExceeded => ("deadline_exceeded", 504),
        Code::NotFound => ("not_found", 404),
        Code::AlreadyExists => ("already_exists", 409),
        Code::PermissionDenied => ("permission_denied", 403),
        Code::ResourceExhausted => ("resource_exhausted", 429),
        Code::FailedPrecondition => ("failed_precondition", 400),
        Code::Aborted => ("aborted", 409),
        Code::OutOfRange => ("out_of_range", 400),
        Code::Unimplemented => ("unimplemented", 501),
        Code::Internal => ("internal", 500),
        Code::Unavailable => ("unavailable", 503),
        Code::DataLoss => ("data_loss", 500),
        Code::Unauthenticated => ("unauthenticated", 401),
    }
}

fn bare(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// How long the client waits.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(text) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let digits = text.to_str().ok().filter(|text| {
        text.len() <= TIMEOUT_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
    });
    let ms = digits.and_then(|digits| digits.parse().ok());
    let limit = ms.map(Duration::from_millis);
    limit.map(Some).ok_or_else(|| {
        Status::invalid_argument("failed to use `Connect-Timeout-Ms`: expected at most 10 digits")
    })
}

async fn call<S, B>(
    mut service: S,
    codec: Codec,
    request: Request<B>,
    most: usize,
) -> Result<(Bytes, Option<ResponseSlot>), Status>
where
    S: Service<
            Request<tonic::body::Body>,
            Response = Response<tonic::body::Body>,
            Error = Infallible,
        >,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut parts, body) = request.into_parts();
    let Some((input, output)) = messages(parts.uri.path()) else {
        let path = profile::text::printable(parts.uri.path()).into_owned();
        return Err(Status::unimplemented(format!(
            "this collector does not answer `{path}`"
        )));
    };
    let packed = parts.headers.get(CONTENT_ENCODING);
    let is_packed = match packed.map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => {
            return Err(Status::unimplemented(
                "failed to read the request: its compression is not supported; use gzip or \
                 identity",
            ));
        }
    };
    let body = Limited::new(body, most).collect().await;
    let body = body.map_err(|_| {
        // Clients send again what a limit in time refuses.
        Status::out_of_range(format!(
            "failed to read the request: it ended early or has more than {most} bytes"
        ))
    })?;
    let body = body.to_bytes();
    // Large ones take seconds, in which nothing else would be answered.
    let reading = tokio::task::spawn_blocking(move || {
        let body = match is_packed && !body.is_empty() {
            true => unpacked(&body, most)?.into(),
            false => body,
        };
        match codec {
            Codec::Proto => Ok(body),
            Codec::Json if body.len() > JSON_BYTES_MAX => Err(Status::out_of_range(format!(
                "failed to read the request: JSON may have {JSON_BYTES_MAX} bytes; send protocol \
                 buffers"
            ))),
            Codec::Json => Ok(Bytes::from(from_json(input, &body)?)),
        }
    });
    let message = reading.await;
    let message = message.map_err(|_| Status::internal("failed to read the request"))??;
    let mut frame = Vec::with_capacity(FRAME_HEAD + message.len());
    frame.push(0);
    frame.extend(
        u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    frame.extend_from_slice(&message);
    let headers = &mut parts.headers;
    for name in [CONTENT_ENCODING, CONTENT_LENGTH, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    for name in ["grpc-encoding", "grpc-accept-encoding", "grpc-timeout"] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    let body = tonic::body::Body::new(Full::new(Bytes::from(frame)));
    let Ok(()) = std::future::poll_fn(|context| service.poll_ready(context)).await;
    let Ok(mut response) = service.call(Request::from_parts(parts, body)).await;
    let place = Place::of(&mut response);
    let refusal = |headers: &HeaderMap| {
        let status = headers
            .get(GRPC_STATUS)
            .and(Status::from_header_map(headers));
        status.filter(|status| status.code() != Code::Ok)
    };
    if let Some(status) = refusal(response.headers()) {
        return Err(status);
    }
    let body = response.into_body().collect().await?;
    if let Some(status) = body.trailers().and_then(refusal) {
        return Err(status);
    }
    let mut message = body.to_bytes();
    if message.len() < FRAME_HEAD {
        return Err(Status::internal("the answer has no message"));
    }
    let message = message.split_off(FRAME_HEAD);
    match codec {
        Codec::Proto => Ok((message, place)),
        Codec::Json => {
            let writing = tokio::task::spawn_blocking(move || to_json(output, message));
            let text = writing.await;
            let text = text.map_err(|_| Status::internal("failed to write JSON"))?;
            Ok((text?.into(), place))
        }
    }
}

/// The descriptors.
static POOL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());

/// What the call with this path takes and gives.
fn messages(path: &str) -> Option<(MessageDescriptor, MessageDescriptor)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = POOL.as_ref()?.get_service_by_name(service)?;
    let method = service.methods().find(|own| own.name() == method)?;
    Some((method.input(), method.output()))
}

/// Unpacks a request, up to the most that one may have.
fn unpacked(body: &[u8], most: usize) -> Result<Vec<u8>, Status> {
    gunzip(body, most).map_err(|error| match error {
        GunzipError::TooLarge => Status::out_of_range(format!(
            "failed to unpack the request: it has more than {most} bytes"
        )),
        GunzipError::Damaged(_) => {
            Status::invalid_argument("failed to unpack the request: it is not gzip")
        }
    })
}

/// A message from its JSON, encoded. An empty text is a message without fields.
fn from_json(kind: MessageDescriptor, text: &[u8]) -> Result<Vec<u8>, Status> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let wrong = |error: serde_json::Error| {
        Status::invalid_argument(format!("failed to read the request's JSON: {error}"))
    };
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut reader = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize_with_options(kind, &mut reader, &options);
    let message = message.map_err(wrong)?;
    reader.end().map_err(wrong)?;
    Ok(prost::Message::encode_to_vec(&message))
}

/// The JSON of an encoded message.
fn to_json(kind: MessageDescriptor, message: Bytes) -> Result<Vec<u8>, Status> {
    let wrong = |error: &dyn std::fmt::Display| {
        Status::internal(format!("failed to write the answer's JSON: {error}"))
    };
    let message = DynamicMessage::decode(kind, message).map_err(|error| wrong(&error))?;
    serde_json::to_vec(&message).map_err(|error| wrong(&error))
}

/// Reads JSON as a request of the call with this path, for tests of hostile input.
///
/// # Errors
/// When it is none.
#[doc(hidden)]
pub fn read_json(path: &str, text: &[u8]) -> Result<Vec<u8>, Status> {
    match messages(path) {
        Some((input, _)) => from_json(input, text),
        None => Err(Status::unimplemented("no such call")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::querier::v1::{
        ProfileFormat, ProfileTypesResponse, SelectMergeStacktracesRequest, SelectSeriesRequest,
    };
    use super::super::wire::types::v1 as messages;
    use super::*;
    use prost::Message;
    use std::io::Read;

    const FLAME: &str = "/querier.v1.QuerierService/SelectMergeStacktraces";
    const SERIES: &str = "/querier.v1.QuerierService/SelectSeries";

    fn read<T: Message + Default>(path: &str, text: &str) -> T {
        let bytes = read_json(path, text.as_bytes()).expect(text);
        T::decode(&bytes[..]).expect("a message")
    }

    #[test]
    fn fields_are_read_in_both_spellings_even_in_one_body() {
        let found: SelectMergeStacktracesRequest = read(
            FLAME,
            r#"{"profile_typeID":"a","labelSelector":"{}","start":1732272000000,
                "end":"1732275600000","maxNodes":null,
                "stackTraceSelector":{"call_site":[{"name":"main"}]}}"#,
        );
        assert_eq!(
            (
                found.profile_type_id.as_str(),
                found.label_selector.as_str()
            ),
            ("a", "{}")
        );
        assert_eq!(
            (found.start, found.end),
            (1_732_272_000_000, 1_732_275_600_000)
        );
        assert_eq!(found.max_nodes, None);
        let site = found.stack_trace_selector.expect("a selector").call_site;
        assert_eq!(site[0].name, "main");
        let found: SelectSeriesRequest = read(
            SERIES,
            r#"{"profileTypeID":"a","label_selector":"{}","step":15}"#,
        );
        assert_eq!((found.profile_type_id.as_str(), found.step), ("a", 15.0));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let found: SelectMergeStacktracesRequest = read(
            FLAME,
            r#"{"format":"PROFILE_FORMAT_SANDWICH","sandwichFunction":{"a":[1,{}]},"end":5}"#,
        );
        assert_eq!((found.format(), found.end), (ProfileFormat::Unspecified, 5));
        assert_eq!(read_json(FLAME, b" \n").expect("empty"), b"");
    }

    #[test]
    fn numbers_of_64_bits_are_texts_and_names_are_those_of_json() {
        let types = ProfileTypesResponse {
            profile_types: vec![messages::ProfileType {
                id: "a:b".to_owned(),
                sample_type: "cpu".to_owned(),
                ..messages::ProfileType::default()
            }],
        };
        let (_, kind) = super::messages("/querier.v1.QuerierService/ProfileTypes").expect("a call");
        let text = to_json(kind, types.encode_to_vec().into()).expect("JSON");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            r#"{"profileTypes":[{"ID":"a:b","sampleType":"cpu"}]}"#
        );
        let stats = messages::GetProfileStatsResponse {
            data_ingested: true,
            oldest_profile_time: 1_732_272_000_000,
            newest_profile_time: 0,
        };
        let (_, kind) =
            super::messages("/querier.v1.QuerierService/GetProfileStats").expect("a call");
        let text = to_json(kind, stats.encode_to_vec().into()).expect("JSON");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            r#"{"dataIngested":true,"oldestProfileTime":"1732272000000"}"#
        );
    }

    #[test]
    fn hostile_json_is_refused() {
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        for text in [
            &b"{\"start\":1e400}"[..],
            b"[]",
            b"{\"end\":\"\xff\"}",
            b"{}{}",
            deep.as_bytes(),
        ] {
            let refused = read_json(FLAME, text).expect_err("hostile");
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
    }

    #[test]
    fn a_bomb_of_gzip_is_read_up_to_the_bound() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::copy(&mut std::io::repeat(0).take(100 << 20), &mut packer).expect("packed");
        let bomb = packer.finish().expect("packed");
        assert!(bomb.len() < REQUEST_BYTES_MAX);
        let refused = unpacked(&bomb, REQUEST_BYTES_MAX).expect_err("too large");
        assert_eq!(refused.code(), Code::OutOfRange);
        assert_eq!(
            unpacked(b"no gzip", REQUEST_BYTES_MAX)
                .expect_err("none")
                .code(),
            Code::InvalidArgument
        );
    }

    #[test]
    fn content_types_may_say_more() {
        let of = |text: &'static str| {
            let headers = [(CONTENT_TYPE, HeaderValue::from_static(text))];
            Dialect::of(&headers.into_iter().collect())
        };
        assert_eq!(
            of("application/json; charset=utf-8"),
            Dialect::Connect(Codec::Json)
        );
        assert_eq!(of("Application/Proto"), Dialect::Connect(Codec::Proto));
        assert_eq!(of("application/grpc-web+proto"), Dialect::GrpcWeb);
        assert_eq!(of("application/connect+proto"), Dialect::Other);
    }
}
