//! Identifies the caller over HTTP, on a listener with logins: by token, by session, or by what a
//! trusted proxy says. Sessions come from a token, a link, or an identity provider.

use crate::access::{Caller, PROXIED, People, Person, Role, Scope};
use crate::oidc::Oidc;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tonic::Status;

/// Name of the cookie. Browsers take one of such a name from the page's own host alone, over TLS.
const COOKIE_NAME: &str = "__Host-fleetprof";

/// The scope of whoever has none.
const EVERYTHING: &str = "*";

/// Longest name that a proxy may give. Unit: bytes.
const USER_BYTES_MAX: usize = 128;

/// A trusted proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Where it connects from.
    pub from: Vec<IpAddr>,
    /// Header with the user's name.
    pub user_header: HeaderName,
    /// Header with the user's role.
    pub role_header: Option<HeaderName>,
    /// Has their scope.
    pub scope_header: Option<HeaderName>,
    /// Their role where it has none.
    pub role: Role,
}

/// See the file.
pub struct Door {
    /// Users with tokens.
    pub people: Arc<People>,
    /// A proxy in front.
    pub proxy: Option<Proxy>,
    /// A provider of identities that people log in with.
    pub oidc: Option<Arc<Oidc>>,
    /// Whether reads are on record.
    pub audit_reads: bool,
}

/// The caller.
#[derive(Clone)]
pub(super) struct Asking {
    pub(super) caller: Arc<Caller>,
    /// Their token, or what stands for one: whose calls are bounded.
    pub(super) person: Option<Arc<Person>>,
    /// Whether they have a session, which they can end.
    pub(super) by_session: bool,
}

impl Door {
    /// Who sent a request; none: somebody unknown. Takes off what nobody behind it needs.
    pub(super) fn who(
        &self,
        headers: &mut HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Result<Option<Asking>, Status> {
        let proxied = self.proxied(headers, peer)?;
        if proxied.is_some() {
            return Ok(proxied);
        }
        let by_token = self.people.authenticate(headers, peer)?;
        headers.remove(AUTHORIZATION);
        if let Some(person) = by_token {
            return Ok(Some(Asking {
                caller: person.caller.clone(),
                person: Some(person),
                by_session: false,
            }));
        }
        let visitor = cookie(headers).and_then(|cookie| self.people.visitor(&cookie));
        Ok(visitor.map(|visitor| Asking {
            caller: visitor.caller,
            person: visitor.person,
            by_session: true,
        }))
    }

    /// The user named by a proxy. The headers are removed from every request.
    fn proxied(
        &self,
        headers: &mut HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Result<Option<Asking>, Status> {
        let Some(proxy) = &self.proxy else {
            return Ok(None);
        };
        let user = take(headers, &proxy.user_header);
        let role = match &proxy.role_header {
            Some(header) => take(headers, header),
            None => Vec::new(),
        };
        let scope = proxy.scope_header.as_ref();
        let scope = scope.map(|header| take(headers, header));
        // An address of IPv4 may come in the clothes of IPv6.
        let trusted = peer.is_some_and(|peer| proxy.from.contains(&peer.ip().to_canonical()));
        if !trusted || user.is_empty() {
            return Ok(None);
        }
        let wrong = |what: &str| Status::permission_denied(format!("the proxy sends {what}"));
        let [user] = &user[..] else {
            return Err(wrong("several people"));
        };
        let name = user.to_str().unwrap_or_default();
        let hostile = name.chars().any(profile::text::is_hostile) || name.trim() != name;
        if name.is_empty() || name.len() > USER_BYTES_MAX || hostile {
            return Err(wrong("a user name that cannot be recorded"));
        }
        let role = match &role[..] {
            [] => proxy.role,
            [role] => role.to_str().ok().and_then(Role::named).ok_or_else(|| {
                wrong(
                    "an unknown role: expected `metrics`, `viewer`, `operator` or \
                    `admin`",
                )
            })?,
            _ => return Err(wrong("several roles")),
        };
        let scope = match scope {
            None => None,
            Some(values) => scope_of(&values, role).map_err(|why| wrong(&why))?,
        };
        let person = self.people.proxied(Caller {
            name: format!("{PROXIED}{name}"),
            role,
            scope,
        });
        Ok(Some(Asking {
            caller: person.caller.clone(),
            person: Some(person),
            by_session: false,
        }))
    }
}

/// The scope that a proxy gives somebody. It must say so where they have none: a header that it
/// left out by mistake opens nothing.
fn scope_of(values: &[HeaderValue], role: Role) -> Result<Option<Scope>, String> {
    let text = match values {
        [] => "",
        [value] => value.to_str().unwrap_or("?").trim(),
        _ => return Err("several scopes".to_owned()),
    };
    match (text, role) {
        (EVERYTHING, _) | ("", Role::Admin) => Ok(None),
        ("", _) => Err(format!(
            "no scope: expected a selector, or `{EVERYTHING}` for the whole fleet"
        )),
        (_, Role::Admin) => Err("a scope for an admin, whom it does not limit".to_owned()),
        (text, _) => Scope::parse(text)
            .map(Some)
            .map_err(|why| format!("a scope that cannot be used: {why}")),
    }
}

fn take(headers: &mut HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    let values = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    values
}

/// The session of a request.
pub(super) fn cookie(headers: &HeaderMap) -> Option<String> {
    named_cookie(headers, COOKIE_NAME)
}

/// A cookie of a request.
pub(super) fn named_cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let texts = headers.get_all(COOKIE).iter();
    let mut pairs = texts
        .filter_map(|text| text.to_str().ok())
        .flat_map(|text| text.split(';'));
    pairs.find_map(|pair| {
        let (found, value) = pair.trim().split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

/// The cookie that a browser keeps for a session, for this many seconds.
pub(super) fn set_cookie(value: &str, lasts_s: i64) -> Option<HeaderValue> {
    set_named_cookie(COOKIE_NAME, value, lasts_s)
}

/// The same of any cookie.
pub(super) fn set_named_cookie(name: &str, value: &str, lasts_s: i64) -> Option<HeaderValue> {
    let text = format!("{name}={value}; Path=/; Max-Age={lasts_s}; Secure; HttpOnly; SameSite=Lax");
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;
    use crate::identity::Guarded;
    use crate::metrics::Metrics;
    use crate::time::Clock;
    use tonic::Code;

    #[tokio::test]
    async fn requests_of_one_name_from_a_proxy_share_their_bound_of_calls() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("people.sqlite");
        let metrics = Arc::<Metrics>::default();
        let people = People::open(
            &file,
            [0; 32],
            Clock::system(),
            Audit::off(),
            metrics.clone(),
        );
        let people = people.expect("a registry");
        let place = |name: &str| {
            let person = people.proxied(Caller {
                name: format!("{PROXIED}{name}"),
                role: Role::Viewer,
                scope: None,
            });
            Guarded::<()>::place(&person, &metrics, people.now())
        };
        let mut held: Vec<_> = (0..32).map(|_| place("anna").expect("a place")).collect();
        let beyond = place("anna").map(|_| ()).expect_err("refused");
        assert_eq!(beyond.code(), Code::ResourceExhausted);
        place("ben").map(|_| ()).expect("his own");
        held.pop();
        place("anna").map(|_| ()).expect("a place again");
    }
}
