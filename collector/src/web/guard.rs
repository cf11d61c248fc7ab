//! Decides which pages may send HTTP requests: those of this collector, and programs.
//!
//! A listener on loopback has no users, so only the browser stands between it and any page on the
//! internet; one with logins has cookies, which a browser sends along. Requests must name the
//! collector as their host, which a name that was rebound to its address does not; and they must
//! not come from another site's page. Other sites may only link to the page or its login:
//! everything else runs queries on the store, and a browser would write their answers to its user's
//! disk.

use super::{login, page, sign_in};
use crate::oidc;
use hyper::header::{
    CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{HeaderMap, Method, Uri};
use std::net::IpAddr;

/// What the page may load: its own files and its own collector, nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data: blob:; font-src 'self'; worker-src 'self'; manifest-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Who may show something in a frame: in [`POLICY`], nobody.
const NO_FRAMES: &str = "frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// Adds security headers to every answer; headers that an answer sets itself stay.
///
/// The older header that forbids frames knows no sites: it is left out where some may show one.
pub(super) fn secure(headers: &mut HeaderMap, is_framed: bool) {
    for (name, value) in HEADERS {
        if is_framed && name == X_FRAME_OPTIONS {
            continue;
        }
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
}

/// Whether a request is for a panel of the page that another page shows in a frame: all that it
/// may get there. What the page does with `embed` changes nothing, so nobody can be made to click.
pub(super) fn is_panel(method: &Method, uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    let is_embed = |pair: &str| pair == "embed" || pair.starts_with("embed=");
    method == Method::GET && page::is_page(uri.path()) && query.split('&').any(is_embed)
}

/// Lets pages of these sites show an answer in a frame. Before [`secure`], which allows none.
pub(super) fn frame(headers: &mut HeaderMap, sites: &str) {
    let ancestors = format!("frame-ancestors {sites}");
    let policy = POLICY.replace(NO_FRAMES, &ancestors);
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
}

/// The names that a listener has.
#[derive(Clone, Debug)]
pub struct Names {
    /// `http` or `https`: what the listener itself speaks.
    pub scheme: &'static str,
    /// `web.external_url`: its scheme, and its host with the port where that is said.
    pub external: Option<(String, String)>,
    /// What the collector's machine calls itself, where others may come by that name.
    pub hostname: Option<String>,
    /// Addresses are names too: a page that had its own name rebound has that one.
    pub addresses: bool,
}

impl Names {
    /// Returns the names of a listener on loopback without logins.
    pub fn loopback() -> Names {
        Names {
            scheme: "http",
            external: None,
            hostname: None,
            addresses: false,
        }
    }

    fn is_external(&self, host: &str) -> bool {
        let external = self.external.as_ref();
        external.is_some_and(|(_, own)| own.eq_ignore_ascii_case(host))
    }

    fn has(&self, host: &str) -> bool {
        if is_here(host) || self.is_external(host) {
            return true;
        }
        let Some(name) = without_port(host) else {
            return false;
        };
        let hostname = self.hostname.as_deref();
        hostname.is_some_and(|own| own.eq_ignore_ascii_case(name))
            || self.addresses && name.parse::<IpAddr>().is_ok()
    }

    /// Whether the page of an origin is that of the host that was asked.
    fn is_own(&self, origin: &str, host: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else {
            return false;
        };
        let external = self.external.as_ref().filter(|_| self.is_external(host));
        // In front of a plain listener a proxy speaks TLS.
        let own = external.map_or(self.scheme, |(scheme, _)| scheme);
        authority.eq_ignore_ascii_case(host) && scheme == own
    }
}

/// Says why a request is refused; `None` when it is not.
pub(super) fn refusal(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    names: &Names,
) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, None) => uri.authority().map(|authority| authority.as_str()),
        _ => None,
    };
    let Some(host) = host.filter(|host| names.has(host)) else {
        return Some(
            "the host name is not this collector's: open it as localhost or 127.0.0.1, or set \
             `web.external_url` to its name",
        );
    };
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text(ORIGIN.as_str())
        && !names.is_own(origin, host)
    {
        return Some("requests from pages of other sites are refused");
    }
    let foreign =
        matches!(text("sec-fetch-site"), Some(site) if site != "same-origin" && site != "none");
    // Following a link to the page is fine, wherever the link is. Links on the page are not
    // foreign.
    let link = method == Method::GET && text("sec-fetch-mode") == Some("navigate");
    let path = uri.path();
    // An identity provider sends browsers back; only the browser that started a login gets
    // anything.
    let opens = page::is_page(path) || [login::PATH, sign_in::PATH, oidc::CALLBACK].contains(&path);
    if foreign && !(link && opens) {
        return Some("requests from pages of other sites are refused");
    }
    None
}

/// True for names and addresses that only this machine answers to.
fn is_here(host: &str) -> bool {
    without_port(host).is_some_and(|name| {
        name.eq_ignore_ascii_case("localhost")
            || name
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

/// A name or an address without its port and brackets; none where it is neither.
pub(crate) fn without_port(host: &str) -> Option<&str> {
    if let Some(rest) = host.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((address, port)) if is_port(port) => Some(address),
            _ => None,
        };
    }
    match host.find(':') {
        Some(at) if is_port(&host[at..]) => Some(&host[..at]),
        Some(_) => None,
        None => Some(host),
    }
}

/// `:` and digits, or nothing.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &'static str)], method: Method) -> bool {
        check_at("/", headers, method)
    }

    fn check_at(
        path: &'static str,
        headers: &[(&'static str, &'static str)],
        method: Method,
    ) -> bool {
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        check_with(path, &map, &method, &Names::loopback())
    }

    fn check_with(path: &'static str, map: &HeaderMap, method: &Method, names: &Names) -> bool {
        refusal(method, &Uri::from_static(path), map, names).is_none()
    }

    #[test]
    fn a_listener_with_logins_has_its_own_names_and_origins() {
        let names = Names {
            scheme: "http",
            external: Some(("https".to_owned(), "profiles.example.net".to_owned())),
            hostname: Some("c1".to_owned()),
            addresses: true,
        };
        let check = |host: &'static str, origin: Option<&'static str>| {
            let mut map = HeaderMap::new();
            map.insert(HOST, HeaderValue::from_static(host));
            if let Some(origin) = origin {
                map.insert(ORIGIN, HeaderValue::from_static(origin));
            }
            check_with("/api/login", &map, &Method::POST, &names)
        };
        for host in [
            "profiles.example.net",
            "c1:7611",
            "10.0.0.1:7611",
            "[2001::1]",
        ] {
            assert!(check(host, None), "{host}");
        }
        for host in [
            "example.net",
            "x.profiles.example.net",
            "c1.example.net",
            "c2",
        ] {
            assert!(!check(host, None), "{host}");
        }
        let own = "profiles.example.net";
        assert!(check(own, Some("https://profiles.example.net")));
        for origin in [
            "http://profiles.example.net",
            "https://example.net",
            "https://profiles.example.net:8443",
            "null",
        ] {
            assert!(!check(own, Some(origin)), "{origin}");
        }
        assert!(check("c1:7611", Some("http://c1:7611")));
        assert!(!check("c1:7611", Some("https://c1:7611")));
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:7610",
            "127.0.0.1:7610",
            "127.9.9.9",
            "[::1]:7610",
            "[::1]",
        ] {
            assert!(check(&[("host", host)], Method::GET), "{host}");
        }
        for host in [
            "",
            "example.com",
            "example.com:7610",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "127.0.0.1:7610:1",
            "10.0.0.1",
            "0.0.0.0",
            "[::1",
            "[::1]x",
            "[2001::1]",
            "localhost@example.com",
        ] {
            assert!(!check(&[("host", host)], Method::GET), "{host}");
        }
        assert!(!check(&[], Method::GET));
        assert!(!check(
            &[("host", "localhost"), ("host", "localhost")],
            Method::GET
        ));
    }

    #[test]
    fn pages_of_other_sites_get_nothing() {
        let host = ("host", "localhost:7610");
        let own = ("origin", "http://localhost:7610");
        assert!(check(&[host, own], Method::POST));
        assert!(check(
            &[host, own, ("sec-fetch-site", "same-origin")],
            Method::POST
        ));
        for origin in [
            "http://example.com",
            "http://localhost:80",
            "http://127.0.0.1:7610",
            "null",
        ] {
            assert!(
                !check(&[host, ("origin", origin)], Method::POST),
                "{origin}"
            );
        }
        for site in ["cross-site", "same-site"] {
            assert!(!check(&[host, ("sec-fetch-site", site)], Method::GET));
        }
    }

    #[test]
    fn links_from_elsewhere_open_the_page() {
        let link = [
            ("host", "localhost:7610"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
        ];
        assert!(check(&link, Method::GET));
        assert!(!check(&link, Method::POST));
    }
    #[test]
    fn a_panel_may_be_framed_by_the_named_sites_and_loads_what_the_page_loads() {
        let mut headers = HeaderMap::new();
        frame(&mut headers, "https://a.example https://b.example:8443");
        secure(&mut headers, true);
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().expect("text");
        let (own, ancestors) = policy
            .split_once("frame-ancestors ")
            .expect("they are named");
        assert_eq!(ancestors, "https://a.example https://b.example:8443");
        assert_eq!(POLICY.strip_suffix(NO_FRAMES), Some(own));
        assert!(!headers.contains_key(X_FRAME_OPTIONS));
    }

    #[test]
    fn nothing_but_the_page_with_embed_is_a_panel() {
        let is = |method, uri| is_panel(&method, &Uri::from_static(uri));
        for uri in ["/?embed", "/?embed=chart", "/index.html?a=1&embed=table"] {
            assert!(is(Method::GET, uri), "{uri}");
        }
        for uri in [
            "/",
            "/?embedded",
            "/?x=embed",
            "/login?embed",
            "/api/profile.svg?embed",
            "/app.js?embed",
        ] {
            assert!(!is(Method::GET, uri), "{uri}");
        }
        assert!(!is(Method::POST, "/?embed"));
    }

    #[test]
    fn links_from_elsewhere_open_nothing_but_the_page() {
        let link = |site| {
            [
                ("host", "localhost:7610"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", "navigate"),
            ]
        };
        assert!(check_at("/?x", &link("cross-site"), Method::GET));
        assert!(check_at("/index.html", &link("cross-site"), Method::GET));
        for path in [
            "/api/profile.folded?from=0",
            "/metrics",
            "/app.js",
            "//",
            "/index.html/../api/profile.folded",
        ] {
            for site in ["cross-site", "same-site"] {
                assert!(!check_at(path, &link(site), Method::GET), "{path}");
            }
            // Links within the page send the first, addresses typed by hand the second.
            for site in ["same-origin", "none"] {
                assert!(check_at(path, &link(site), Method::GET), "{path}");
            }
        }
    }
}
