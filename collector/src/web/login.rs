//! Logging in to the page and out of it.

use super::door::{Asking, Door, cookie, set_cookie};
use super::{Peer, Site, plain};
use crate::access::{Caller, SESSION_LASTS_S};
use crate::audit::Event;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, SET_COOKIE};
use hyper::http::Extensions;
use hyper::{HeaderMap, StatusCode};
use profile::text::{markup, printable};
use std::sync::Arc;
use tonic::Status;

/// Path of the login.
pub(super) const PATH: &str = "/login";

/// Largest body. Unit: bytes.
pub(super) const BODY_BYTES_MAX: usize = 4096;

const PAGE: &str = include_str!("login/login.html");
const SCRIPT: &str = include_str!("login/login.js");
const STYLE: &str = include_str!("login/login.css");
const FAILED: &str = include_str!("login/failed.html");

/// A page that says why a login failed.
pub(super) fn failed_page(why: &str) -> String {
    FAILED.replace("{why}", &markup(&printable(why)))
}

fn own(kind: &'static str, text: &'static str) -> Response {
    let kind = HeaderValue::from_static(kind);
    let cache = HeaderValue::from_static("no-cache");
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, cache)], text).into_response()
}

pub(super) async fn page() -> Response {
    own("text/html; charset=utf-8", PAGE)
}

pub(super) async fn script() -> Response {
    own("text/javascript; charset=utf-8", SCRIPT)
}

pub(super) async fn style() -> Response {
    own("text/css; charset=utf-8", STYLE)
}

/// The door of a listener that has one.
fn door(site: &Site) -> Option<Arc<Door>> {
    site.entrance.door.clone()
}

fn refused(status: &Status) -> Response {
    super::refused(status).map(Body::from)
}

fn no_login() -> Response {
    plain(StatusCode::NOT_FOUND, "this collector has no login\n").map(Body::from)
}

/// The ways to log in besides a token, as JSON.
pub(super) async fn ways(State(site): State<Site>) -> Response {
    let Some(door) = door(&site) else {
        return no_login();
    };
    let provider = door.oidc.as_ref().map(|oidc| oidc.provider_name());
    json(&serde_json::json!({ "provider": provider }))
}

fn json(value: &serde_json::Value) -> Response {
    let kind = HeaderValue::from_static("application/json");
    let cache = HeaderValue::from_static("no-store");
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, cache)];
    (headers, value.to_string()).into_response()
}

/// `token TOKEN` or `link LINK` becomes a session.
pub(super) async fn log_in(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    asking: Option<Extension<Asking>>,
    body: Bytes,
) -> Response {
    let Some(door) = door(&site) else {
        return no_login();
    };
    let text = String::from_utf8_lossy(&body).into_owned();
    let people = door.people.clone();
    let asking = asking.filter(|Extension(asking)| asking.by_session);
    let logging_in = move || match text.split_once(' ') {
        Some(("token", token)) => people.log_in(token, Some(peer.0)).map(Some),
        Some(("link", link)) => {
            let logged_in = asking.as_ref().map(|asking| &*asking.caller);
            people.follow(link, Some(peer.0), logged_in)
        }
        _ => Err(Status::unauthenticated("there is no token")),
    };
    let started = tokio::task::spawn_blocking(logging_in).await;
    let started = started.unwrap_or_else(|_| Err(Status::internal("logging in failed")));
    let secret = match started {
        Ok(Some(secret)) => secret,
        Ok(None) => return plain(StatusCode::NO_CONTENT, "").map(Body::from),
        Err(status) => return refused(&status),
    };
    if let Some(visitor) = door.people.visitor(&secret) {
        let event = visitor.caller.event(peer.0.to_string(), "page-login");
        door.people.audit().note(event);
    }
    let mut response = plain(StatusCode::NO_CONTENT, "").map(Body::from);
    if let Some(cookie) = set_cookie(&secret, SESSION_LASTS_S) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

/// Ends the session of the caller.
pub(super) async fn log_out(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let Some(door) = door(&site) else {
        return no_login();
    };
    if let Some(session) = cookie(&headers) {
        if let Some(visitor) = door.people.visitor(&session) {
            let event: Event = visitor.caller.event(peer.0.to_string(), "page-logout");
            door.people.audit().note(event);
        }
        let people = door.people.clone();
        let ended = tokio::task::spawn_blocking(move || people.log_out(&session)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!("failed to delete an ended session: {error}");
        }
    }
    let mut response = plain(StatusCode::NO_CONTENT, "").map(Body::from);
    if let Some(cookie) = set_cookie("", 0) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

/// The caller as JSON; without logins, the local caller.
pub(super) async fn session(asking: Option<Extension<Asking>>, extensions: Extensions) -> Response {
    let by_session = asking.is_some_and(|Extension(asking)| asking.by_session);
    let caller = match Caller::of(&extensions) {
        Ok(caller) => caller,
        Err(status) => return refused(&status),
    };
    json(&serde_json::json!({
        "name": caller.name,
        "role": caller.role.name(),
        "can_log_out": by_session,
    }))
}
