//! `POST /v1development/profiles`: OTLP over HTTP, in protocol buffers and JSON. Answers and
//! refusals are in the codec of the request.

use super::Site;
use super::others::{sent_status, unanswered};
use crate::access::Caller;
use crate::query::RETRY_AFTER;
use crate::senders::otlp::{Codec, ExportProfilesServiceResponse};
use crate::senders::{Refusal, Senders};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use prost::Message;
use tonic::Status;

/// An error in protocol buffers.
#[derive(Clone, PartialEq, Message)]
struct ErrorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

fn codec_of(headers: &HeaderMap) -> Option<Codec> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    match kind.split(';').next()?.trim() {
        "application/x-protobuf" => Some(Codec::Proto),
        "application/json" => Some(Codec::Json),
        _ => None,
    }
}

/// Takes what exporters send.
pub(super) async fn export(State(site): State<Site>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(senders) = site.senders.clone() else {
        return unanswered(&parts.headers);
    };
    let Some(codec) = codec_of(&parts.headers) else {
        let text = "failed to read the request: its content type is neither \
                    application/x-protobuf nor application/json";
        let status = senders.refuse(Refusal::malformed(text));
        let mut response = refused(Codec::Json, &status);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    };
    let caller = Caller::of(&parts.extensions);
    let answering = async {
        let caller = caller?;
        let storing = async {
            let body = senders.body(body).await?;
            Senders::posted(&senders, &caller, codec, body).await
        };
        senders.in_place(&caller, storing).await?
    };
    match answering.await {
        Ok(answer) => written(
            codec,
            match codec {
                Codec::Proto => answer.encode_to_vec(),
                Codec::Json => json(&answer).to_string().into_bytes(),
            },
        ),
        Err(status) => refused(codec, &status),
    }
}

fn json(answer: &ExportProfilesServiceResponse) -> serde_json::Value {
    match &answer.partial_success {
        None => serde_json::json!({}),
        Some(partial) => serde_json::json!({
            "partialSuccess": { "errorMessage": partial.error_message }
        }),
    }
}

fn written(codec: Codec, content: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(content));
    let kind = HeaderValue::from_static(match codec {
        Codec::Proto => "application/x-protobuf",
        Codec::Json => "application/json",
    });
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn refused(codec: Codec, status: &Status) -> Response {
    let (code, message) = (i32::from(status.code()), status.message().to_owned());
    let content = match codec {
        Codec::Proto => ErrorStatus { code, message }.encode_to_vec(),
        Codec::Json => serde_json::json!({ "code": code, "message": message })
            .to_string()
            .into_bytes(),
    };
    let mut response = written(codec, content);
    *response.status_mut() = sent_status(status.code());
    let again = status.metadata().get(RETRY_AFTER);
    if let Some(again) = again.and_then(|again| HeaderValue::from_bytes(again.as_bytes()).ok()) {
        let headers = response.headers_mut();
        headers.insert(hyper::header::RETRY_AFTER, again);
    }
    response
}
