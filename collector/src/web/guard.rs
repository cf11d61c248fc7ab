//! Who may ask over HTTP: pages of this collector, and programs on this machine.
//!
//! The listener is on loopback and knows no users, so a browser is what stands between it and any
//! page on the internet. Requests must name the collector as their host, which a name that was
//! rebound to 127.0.0.1 does not; and they must not come from another site's page. Only a link to
//! the page itself may: behind all else are queries of the store, whose answers a browser would
//! write to its user's disk.

use super::page;
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

/// Adds what browsers are told with every answer; what an answer says itself stays.
pub(super) fn secure(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
}

/// Says why a request is refused; `None` when it is not.
pub(super) fn refusal(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, None) => uri.authority().map(|authority| authority.as_str()),
        _ => None,
    };
    let Some(host) = host.filter(|host| is_here(host)) else {
        return Some(
            "the name in the address is not this collector's: open it as localhost or 127.0.0.1",
        );
    };
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(origin) = text(ORIGIN.as_str())
        && origin.split_once("://").map(|(_, origin)| origin) != Some(host)
    {
        return Some("requests from pages of other sites are refused");
    }
    let foreign =
        matches!(text("sec-fetch-site"), Some(site) if site != "same-origin" && site != "none");
    // Following a link to the page is fine, wherever the link is. Links on the page are not
    // foreign.
    let link = method == Method::GET && text("sec-fetch-mode") == Some("navigate");
    if foreign && !(link && page::is_page(uri.path())) {
        return Some("requests from pages of other sites are refused");
    }
    None
}

/// True for names and addresses that only this machine answers to.
fn is_here(host: &str) -> bool {
    let name = if let Some(rest) = host.strip_prefix('[') {
        match rest.split_once(']') {
            Some((address, port)) if is_port(port) => address,
            _ => return false,
        }
    } else {
        match host.find(':') {
            Some(at) if is_port(&host[at..]) => &host[..at],
            Some(_) => return false,
            None => host,
        }
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
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
        refusal(&method, &Uri::from_static(path), &map).is_none()
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
            // Of the page's own links, and of addresses that were typed.
            for site in ["same-origin", "none"] {
                assert!(check_at(path, &link(site), Method::GET), "{path}");
            }
        }
    }
}
