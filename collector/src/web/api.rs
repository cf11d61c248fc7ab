//! What the paths below `/api` share that answer with JSON: times, parameters of lists, answers.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use proto::agent::TimeRange;
use serde::Serialize;
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tonic::Status;

/// A time as requests have it.
pub(super) fn instant(name: &str, when: &str) -> Result<i64, Status> {
    if let Ok(number) = when.parse() {
        return Ok(number);
    }
    let time = OffsetDateTime::parse(when, &Rfc3339).ok();
    let unix_ns = time.and_then(|time| i64::try_from(time.unix_timestamp_nanos()).ok());
    unix_ns.ok_or_else(|| {
        Status::invalid_argument(format!(
            "failed to use `{name}`: expected 2026-11-27T16:20:00Z or nanoseconds since the Unix \
             epoch"
        ))
    })
}

/// Which part of a list is asked for.
pub(super) struct Page {
    pub range: Option<TimeRange>,
    /// 0: as many as there are without being asked.
    pub limit: u32,
    others: BTreeMap<&'static str, String>,
}

impl Page {
    /// Reads `from`, `to`, `limit`, and the parameters that this list has besides.
    pub fn read(pairs: Vec<(String, String)>, others: &[&'static str]) -> Result<Page, Status> {
        let mut page = Page {
            range: None,
            limit: 0,
            others: BTreeMap::new(),
        };
        for (name, value) in pairs {
            let range = &mut page.range;
            match name.as_str() {
                "from" => range.get_or_insert_default().start_unix_ns = instant("from", &value)?,
                "to" => range.get_or_insert_default().end_unix_ns = instant("to", &value)?,
                "limit" => {
                    page.limit = value.parse().map_err(|_| {
                        Status::invalid_argument("failed to use `limit`: expected a number")
                    })?;
                }
                _ => {
                    let Some(own) = others.iter().find(|own| **own == name) else {
                        let mut known = vec!["from", "to"];
                        known.extend(others);
                        return Err(Status::invalid_argument(format!(
                            "unknown parameter `{name}`: use {} or limit",
                            known.join(", ")
                        )));
                    };
                    page.others.insert(own, value);
                }
            }
        }
        Ok(page)
    }

    /// The value of one of the others; empty: it was not given.
    pub fn value(&self, name: &str) -> String {
        self.others.get(name).cloned().unwrap_or_default()
    }
}

pub(super) fn refused(status: &Status) -> Response {
    super::refused(status).map(Body::from)
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    let kind = HeaderValue::from_static("application/json");
    let cache = HeaderValue::from_static("no-store");
    (status, [(CONTENT_TYPE, kind), (CACHE_CONTROL, cache)], text).into_response()
}
