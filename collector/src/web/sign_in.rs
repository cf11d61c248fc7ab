//! Login to the page with an identity provider: the redirect to it, and the return from it.

use super::door::{Door, named_cookie, set_cookie, set_named_cookie};
use super::{Peer, Site, login, plain};
use crate::access::SESSION_LASTS_S;
use crate::audit::Event;
use crate::oidc::{self, Answer, LOGIN_LASTS, Oidc, Refused};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{
    CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE,
};
use hyper::{HeaderMap, StatusCode};
use std::sync::Arc;
use tonic::{Code, Status};

/// Where a login with a provider starts.
pub(super) const PATH: &str = "/login/oidc";

/// Cookie that identifies a browser between leaving and coming back.
const COOKIE_NAME: &str = "__Host-fleetprof-login";

/// Says that a browser was sent to the name that the provider sends it back to.
const NAMED: &str = "named";

/// Longest address of the page that a login comes back to. Unit: bytes.
const BACK_BYTES_MAX: usize = 2048;

/// The door of a listener that has one, and its provider.
fn provider(site: &Site) -> Option<(Arc<Door>, Arc<Oidc>)> {
    let door = site.entrance.door.clone()?;
    let oidc = door.oidc.clone()?;
    Some((door, oidc))
}

fn none() -> Response {
    let text = "this collector has no identity provider\n";
    plain(StatusCode::NOT_FOUND, text).map(Body::from)
}

/// Where a login comes back to: the page itself and its state, and nothing else.
fn local(asked: Option<&str>) -> String {
    let is_state = |text: &&str| {
        let sound = |b: u8| b.is_ascii_graphic() && !b"\"<>\\`".contains(&b);
        text.len() <= BACK_BYTES_MAX
            && text.bytes().all(sound)
            && (*text == "/" || text.starts_with("/#"))
    };
    asked.filter(is_state).unwrap_or("/").to_owned()
}

/// Whether a request was for this host; browsers leave out the port that a scheme has anyway.
fn is_host(host: &str, scheme: &str, own: &str) -> bool {
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let plain = |host: &str| {
        host.strip_suffix(usual)
            .unwrap_or(host)
            .to_ascii_lowercase()
    };
    plain(host) == plain(own)
}

fn redirect(location: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    match HeaderValue::from_str(location) {
        Ok(location) => {
            headers.insert(LOCATION, location);
            response
        }
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR, "the address is invalid"),
    }
}

/// Why a login failed, for somebody who looks at it.
fn refusal(status: StatusCode, why: &str) -> Response {
    let page = login::failed_page(why);
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    let cache = HeaderValue::from_static("no-store");
    (status, [(CONTENT_TYPE, kind), (CACHE_CONTROL, cache)], page).into_response()
}

fn limited(status: &Status) -> Response {
    let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, status.message());
    if let Some(after) = status.metadata().get(crate::access::RETRY_AFTER)
        && let Ok(after) = HeaderValue::from_bytes(after.as_bytes())
    {
        response.headers_mut().insert(RETRY_AFTER, after);
    }
    response
}

/// Sends a browser to the provider.
pub(super) async fn begin(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    Query(pairs): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let Some((door, oidc)) = provider(&site) else {
        return none();
    };
    let back = pairs.iter().find(|(name, _)| name == "return");
    let back = local(back.map(|(_, value)| value.as_str()));
    // The provider sends browsers back to one name, and a cookie is of one.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if let Some((scheme, own)) = &site.entrance.names.external
        && host.is_some_and(|host| !is_host(host, scheme, own))
        // A proxy that passes no names on would send it round without end.
        && !pairs.iter().any(|(name, _)| name == NAMED)
    {
        let query = oidc::form(&[(NAMED, "1"), ("return", &back)]);
        return redirect(&format!("{scheme}://{own}{PATH}?{query}"));
    }
    let browser = named_cookie(&headers, COOKIE_NAME);
    // Behind a proxy all have its address: one who starts many would be all of them.
    let is_direct = site.entrance.tls.is_some();
    let (address, now) = (is_direct.then(|| peer.0.ip()), door.people.now());
    match oidc.begin(browser.as_deref(), address, now, back).await {
        Ok(begin) => {
            let mut response = redirect(&begin.location);
            let lasts = i64::try_from(LOGIN_LASTS.as_secs()).unwrap_or(0);
            if let Some(cookie) = set_named_cookie(COOKIE_NAME, &begin.browser, lasts) {
                response.headers_mut().insert(SET_COOKIE, cookie);
            }
            response
        }
        Err(refused) => {
            let told = refused
                .told
                .unwrap_or("the collector failed to start the login");
            refusal(StatusCode::BAD_GATEWAY, told)
        }
    }
}

/// Lets a browser in that comes back from the provider.
pub(super) async fn finish(
    State(site): State<Site>,
    Extension(peer): Extension<Peer>,
    Query(pairs): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let Some((door, oidc)) = provider(&site) else {
        return none();
    };
    // Behind a proxy all have its address, so who fails there keeps the others from nothing.
    if site.entrance.tls.is_some()
        && let Err(status) = door.people.may_sign_in(Some(peer.0))
    {
        return limited(&status);
    }
    let browser = named_cookie(&headers, COOKIE_NAME);
    // What comes of it is on record and counted, also when the browser does not wait for it. Each
    // takes a login that was started, and those are bounded.
    let working = tokio::spawn(let_in(door, oidc, peer, pairs, browser));
    let done = working.await;
    done.unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "logging in failed"))
}

async fn let_in(
    door: Arc<Door>,
    oidc: Arc<Oidc>,
    peer: Peer,
    pairs: Vec<(String, String)>,
    browser: Option<String>,
) -> Response {
    let people = door.people.clone();
    let finished = match Answer::read(pairs) {
        Some(answer) => {
            oidc.finish(answer, browser.as_deref(), || people.now())
                .await
        }
        None => Err("the answer has a parameter twice".into()),
    };
    let admitted = match finished {
        Ok(admitted) => admitted,
        Err(refused) => return refuse(&door, peer, &refused),
    };
    let sign_in = admitted.sign_in.clone();
    let starting = tokio::task::spawn_blocking(move || people.sign_in(&sign_in)).await;
    let started = starting.unwrap_or_else(|_| Err(Status::internal("logging in failed")));
    let (secret, caller) = match started {
        Ok(started) => started,
        Err(status) if status.code() == Code::PermissionDenied => {
            let refused = Refused {
                why: status.message().to_owned(),
                told: None,
                subject: Some(admitted.sign_in.subject),
                asked: true,
            };
            return refuse(&door, peer, &refused);
        }
        Err(status) => return refusal(StatusCode::INTERNAL_SERVER_ERROR, status.message()),
    };
    let scope = caller.scope.as_ref();
    let event = caller
        .event(peer.0.to_string(), "page-login")
        .with("by", "oidc")
        .with("subject", admitted.sign_in.subject)
        .with("group", admitted.group)
        .with(
            "scope",
            scope.map(|scope| scope.text.clone()).unwrap_or_default(),
        );
    door.people.audit().note(event);
    let mut response = redirect(&admitted.back);
    let headers = response.headers_mut();
    let cookies = [
        set_cookie(&secret, SESSION_LASTS_S),
        set_named_cookie(COOKIE_NAME, "", 0),
    ];
    for cookie in cookies.into_iter().flatten() {
        headers.append(SET_COOKIE, cookie);
    }
    response
}

fn refuse(door: &Door, peer: Peer, refused: &Refused) -> Response {
    let mut event = Event::by("", peer.0.to_string(), "login").with("by", "oidc");
    if let Some(subject) = &refused.subject {
        event = event.with("subject", subject.as_str());
    }
    let status = door
        .people
        .refuse_sign_in(Some(peer.0), event, &refused.why, refused.asked);
    match status.code() {
        Code::ResourceExhausted => limited(&status),
        _ => refusal(StatusCode::FORBIDDEN, refused.told.unwrap_or(&refused.why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_with_its_usual_port() {
        assert!(is_host("C1", "https", "c1:443"));
        assert!(is_host("c1:443", "https", "c1"));
        assert!(!is_host("c1:7611", "https", "c1"));
        assert!(!is_host("c1:443", "http", "c1"));
        assert!(!is_host("c2", "https", "c1"));
    }

    #[test]
    fn a_login_comes_back_to_the_page_and_nowhere_else() {
        for own in ["/", "/#", "/#view=hosts&q=a%20b"] {
            assert_eq!(local(Some(own)), own);
        }
        let long = format!("/#{}", "a".repeat(BACK_BYTES_MAX));
        for other in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/api/profile.folded",
            "/login#once=x",
            "/?x#y",
            "/#a b",
            "/#a\r\nSet-Cookie: x=y",
            "/#é",
            "#x",
            &long,
        ] {
            assert_eq!(local(Some(other)), "/", "{other:?}");
        }
        assert_eq!(local(None), "/");
    }
}
