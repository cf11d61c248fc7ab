//! `GET /api/alerts`: what is pending and firing, as JSON, for scripts and other tools.

use super::Site;
use super::api::{Page, json, refused};
use crate::access::Caller;
use crate::time::rfc3339;
use axum::extract::{Query, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::http::Extensions;
use proto::collector::{Alert, AlertState, ListAlertsRequest, ListAlertsResponse};
use serde::Serialize;
use std::collections::BTreeMap;

/// Its path.
pub(super) const PATH: &str = "/api/alerts";

#[derive(Debug, Serialize)]
struct Shown {
    rule: String,
    fingerprint: String,
    state: &'static str,
    labels: BTreeMap<String, String>,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fired: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<String>,
    value: Option<f64>,
    threshold: Option<f64>,
    baseline: Option<f64>,
    unit: String,
    no_data: String,
    severity: String,
    summary: String,
    selector: String,
    function: String,
}

#[derive(Debug, Serialize)]
struct ShownRule {
    name: String,
    condition: String,
    selector: String,
    by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluated: Option<String>,
    error: String,
    groups_left_out: u64,
}

#[derive(Debug, Serialize)]
struct Listed {
    alerts: Vec<Shown>,
    rules: Vec<ShownRule>,
    left_out: u64,
    trouble: String,
}

/// The name of a state.
fn word(state: AlertState) -> &'static str {
    match state {
        AlertState::Pending => "pending",
        AlertState::Firing => "firing",
        AlertState::NoData => "no_data",
        AlertState::Resolved => "resolved",
        AlertState::Unspecified => "unknown",
    }
}

impl From<Alert> for Shown {
    fn from(of: Alert) -> Shown {
        let time = |unix_ns: i64| (unix_ns != 0).then(|| rfc3339(unix_ns));
        Shown {
            state: word(of.state()),
            rule: of.rule,
            fingerprint: of.fingerprint,
            labels: of.labels.into_iter().collect(),
            since: rfc3339(of.since_unix_ns),
            fired: time(of.fired_unix_ns),
            resolved: time(of.resolved_unix_ns),
            value: of.value,
            threshold: of.threshold,
            baseline: of.baseline,
            unit: of.unit,
            no_data: of.no_data,
            severity: of.severity,
            summary: of.summary,
            selector: of.selector,
            function: of.function,
        }
    }
}

impl From<ListAlertsResponse> for Listed {
    fn from(of: ListAlertsResponse) -> Listed {
        let rules = of.rules.into_iter().map(|rule| ShownRule {
            name: rule.name,
            condition: rule.condition,
            selector: rule.selector,
            by: rule.group_by,
            evaluated: (rule.evaluated_unix_ns != 0).then(|| rfc3339(rule.evaluated_unix_ns)),
            error: rule.error,
            groups_left_out: rule.groups_left_out,
        });
        Listed {
            alerts: of.alerts.into_iter().map(Shown::from).collect(),
            rules: rules.collect(),
            left_out: of.left_out,
            trouble: of.trouble,
        }
    }
}

/// Lists them: those of now, and with a range those that fired in it.
pub(super) async fn list(
    State(site): State<Site>,
    extensions: Extensions,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return refused(&status),
    };
    let listed = match Page::read(pairs, &[]) {
        Ok(page) => {
            let asked = ListAlertsRequest {
                range: page.range,
                limit: page.limit,
            };
            site.alerts.list(&caller, asked).await
        }
        Err(status) => Err(status),
    };
    match listed {
        Ok(listed) => json(StatusCode::OK, &Listed::from(listed)),
        Err(status) => refused(&status),
    }
}
