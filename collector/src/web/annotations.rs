//! `POST` and `GET /api/annotations`: events of the fleet, as JSON, for pipelines.
//!
//! A request that adds must say that it is JSON: a page of another site cannot send that without a
//! preflight request, which is rejected, even if the browser names no origin.

use super::api::{Page, instant, json, refused};
use super::{Peer, Site, plain};
use crate::access::Caller;
use crate::time::rfc3339;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::Response;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::http::Extensions;
use hyper::{HeaderMap, StatusCode};
use proto::collector::{Annotation, ListAnnotationsRequest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tonic::Status;

/// Path of both.
pub(super) const PATH: &str = "/api/annotations";

/// A time: text as RFC 3339 has it, or nanoseconds since the Unix epoch.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum When {
    Text(String),
    Number(i64),
}

/// What is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    text: String,
    #[serde(default)]
    time: Option<When>,
    #[serde(default)]
    end: Option<When>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    url: String,
    #[serde(default)]
    kind: String,
}

/// What is answered.
#[derive(Debug, Serialize)]
struct Shown {
    id: u64,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    kind: String,
    text: String,
    labels: BTreeMap<String, String>,
    url: String,
    by: String,
    hosts: u64,
    host_names: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Listed {
    annotations: Vec<Shown>,
    left_out: u64,
}

impl From<Annotation> for Shown {
    fn from(of: Annotation) -> Shown {
        Shown {
            id: of.id,
            time: rfc3339(of.start_unix_ns),
            end: (of.end_unix_ns != 0).then(|| rfc3339(of.end_unix_ns)),
            kind: of.kind,
            text: of.text,
            labels: of.labels.into_iter().collect(),
            url: of.url,
            by: of.by,
            hosts: of.hosts,
            host_names: of.host_names,
        }
    }
}

fn optional(name: &str, when: Option<When>) -> Result<i64, Status> {
    match when {
        None => Ok(0),
        Some(When::Number(number)) => Ok(number),
        Some(When::Text(text)) => instant(name, &text),
    }
}

fn parse(body: &[u8]) -> Result<Annotation, Status> {
    let new: New = serde_json::from_slice(body).map_err(|error| {
        Status::invalid_argument(format!(
            "failed to read the annotation: {error}\nsend JSON with `text` and optionally `time`, \
             `end`, `labels`, `url` and `kind`"
        ))
    })?;
    Ok(Annotation {
        start_unix_ns: optional("time", new.time)?,
        end_unix_ns: optional("end", new.end)?,
        text: new.text,
        labels: new.labels.into_iter().collect(),
        url: new.url,
        kind: new.kind,
        ..Annotation::default()
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Adds one: 201, or 200 when it was there already.
pub(super) async fn add(
    State(site): State<Site>,
    peer: Option<Extension<Peer>>,
    extensions: Extensions,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return refused(&status),
    };
    if !is_json(&headers) {
        let text = "failed to read the annotation: send it with `Content-Type: application/json`\n";
        return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, text).map(Body::from);
    }
    let added = match parse(&body) {
        Ok(asked) => {
            let peer = peer.map_or_else(String::new, |Extension(peer)| peer.0.to_string());
            site.annotations.add(&caller, peer, asked).await
        }
        Err(status) => Err(status),
    };
    match added {
        Ok((annotation, false)) => json(StatusCode::CREATED, &Shown::from(annotation)),
        Ok((annotation, true)) => json(StatusCode::OK, &Shown::from(annotation)),
        Err(status) => refused(&status),
    }
}

/// Lists them, the newest first.
pub(super) async fn list(
    State(site): State<Site>,
    extensions: Extensions,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return refused(&status),
    };
    let listed = match Page::read(pairs, &["kind"]) {
        Ok(page) => {
            let asked = ListAnnotationsRequest {
                kind: page.value("kind"),
                range: page.range,
                limit: page.limit,
            };
            site.annotations.list(caller, asked).await
        }
        Err(status) => Err(status),
    };
    match listed {
        Ok(listed) => {
            let annotations = listed.annotations.into_iter().map(Shown::from).collect();
            let left_out = listed.left_out;
            json(
                StatusCode::OK,
                &Listed {
                    annotations,
                    left_out,
                },
            )
        }
        Err(status) => refused(&status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_texts_or_nanoseconds_and_come_back_as_texts() {
        let parsed = |body: &str| parse(body.as_bytes());
        let one = parsed(r#"{"text":"v42","time":"2026-11-27T17:20:00.5+01:00"}"#).expect("sound");
        assert_eq!(rfc3339(one.start_unix_ns), "2026-11-27T16:20:00.5Z");
        assert_eq!(one.end_unix_ns, 0);
        let number = format!(r#"{{"text":"v42","time":{},"end":7}}"#, one.start_unix_ns);
        let other = parsed(&number).expect("sound");
        assert_eq!(
            (other.start_unix_ns, other.end_unix_ns),
            (one.start_unix_ns, 7)
        );
        for wrong in [
            "",
            "[]",
            r#"{"time":1}"#,
            r#"{"text":"a","time":"yesterday"}"#,
            r#"{"text":"a","txt":1}"#,
            r#"{"text":"a","time":1.5}"#,
            r#"{"text":"a","labels":{"a":1}}"#,
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
