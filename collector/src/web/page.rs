//! The page's files, which are embedded in the program.

use super::compress;
use crate::sync::lock;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use std::collections::BTreeMap;
use std::sync::Mutex;

struct File {
    name: &'static str,
    etag: &'static str,
    content: &'static [u8],
}

/// Every file of the page, by name. Empty when the page was not built.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Placeholder for a page that was not built.
const NOT_BUILT: &str = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
    <title>Fleetprof</title>\n<h1>Fleetprof</h1>\n<p>This collector was built without its page. \
    Build it with <code>npm ci &amp;&amp; npm run build</code> in <code>collector/ui</code>, then \
    build the collector again.</p>\n<p>Everything else works: gRPC, <a href=\"/metrics\">metrics</a>, \
    <a href=\"/api/profile.folded\">profiles</a>, <a href=\"/healthz\">health</a>.</p></html>\n";

/// Type of a file by its ending; `None` for one the page has no use for.
fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// True when the name changes with the content: `assets/app-1a2b3c4d.js`.
fn is_hashed(name: &str) -> bool {
    let stem = name
        .strip_prefix("assets/")
        .and_then(|name| name.rsplit_once('.'));
    let hash = stem.and_then(|(stem, _)| stem.rsplit_once('-'));
    hash.is_some_and(|(_, hash)| {
        let known = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        hash.len() >= 8 && hash.bytes().all(known)
    })
}

/// Paths of the page itself. All of its state stands behind the `#`, so there are no others; its
/// files are found from here, and not from a path below.
const PAGE: [&str; 2] = ["/", "/index.html"];

/// True for the page itself, false for its files.
pub(super) fn is_page(path: &str) -> bool {
    PAGE.contains(&path)
}

/// The name of what is at a path of the page.
fn name_of(path: &str) -> &str {
    match path.strip_prefix('/') {
        _ if is_page(path) => "index.html",
        Some(name) => name,
        None => path,
    }
}

/// True where the page, or a file of it, is at this path.
pub(super) fn has_file(path: &str) -> bool {
    is_page(path) || FILES.iter().any(|file| file.name == name_of(path))
}

/// Names of all files of the page, for tests of who may have them.
#[cfg(test)]
pub(super) fn files() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.name)
}

/// The file at `path` of the page.
pub(super) fn respond(method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = super::plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        let allow = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allow);
        return response;
    }
    let name = name_of(path);
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => send(file, headers),
        None if is_page(path) => {
            let mut response = Response::new(Bytes::from_static(NOT_BUILT.as_bytes()));
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        None => super::plain(StatusCode::NOT_FOUND, "not found: the page is at /\n"),
    }
}

/// The content of a file, packed where that is asked for: kept from the first time on. Nobody waits
/// while it is packed; who comes meanwhile packs it too, and the first is kept.
fn content(file: &'static File, head: &mut HeaderMap, pack: bool) -> (Bytes, bool) {
    static PACKED: Mutex<BTreeMap<&str, (HeaderMap, Bytes)>> = Mutex::new(BTreeMap::new());
    let whole = Bytes::from_static(file.content);
    if !pack {
        return (whole, false);
    }
    let known = lock(&PACKED).get(file.name).cloned();
    let (own, bytes) = known.unwrap_or_else(|| {
        let mut own = head.clone();
        let pieces = compress::compress(&mut own, vec![whole]);
        let packed = (own, Bytes::from(pieces.concat()));
        lock(&PACKED).entry(file.name).or_insert(packed).clone()
    });
    *head = own;
    (bytes, head.contains_key(CONTENT_ENCODING))
}

fn send(file: &'static File, headers: &HeaderMap) -> Response<Bytes> {
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok())
        .is_some_and(|tags| {
            let mut tags = tags.split(',').map(str::trim);
            tags.any(|tag| tag == "*" || tag.trim_start_matches("W/") == file.etag)
        });
    let mut response = if known {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(Bytes::new())
    };
    let cache = match is_hashed(file.name) {
        true => "public, max-age=31536000, immutable",
        // Kept, but asked about each time: a new collector has a new page.
        false => "no-cache",
    };
    let out = response.headers_mut();
    out.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(content_type(file.name)),
    );
    out.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    out.insert(ETAG, HeaderValue::from_static(file.etag));
    out.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if !known {
        let (own, is_packed) = content(file, out, compress::is_asked(headers));
        if is_packed && let Ok(weak) = HeaderValue::from_str(&format!("W/{}", file.etag)) {
            // Other bytes of the same file.
            response.headers_mut().insert(ETAG, weak);
        }
        *response.body_mut() = own;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_change_with_the_content_are_kept_for_ever() {
        assert!(is_hashed("assets/app-1a2b3c4d.js"));
        assert!(!is_hashed("app.js"));
        assert!(!is_hashed("assets/logo.svg"));
        assert!(!is_hashed("assets/a-b.js"));
    }

    #[test]
    fn the_page_is_at_its_own_paths_and_nowhere_else() {
        let headers = HeaderMap::new();
        let answer = |method, path| respond(&method, path, &headers);
        for method in [Method::GET, Method::HEAD] {
            for path in PAGE {
                let response = answer(method.clone(), path);
                assert_eq!(response.status(), StatusCode::OK, "{method} {path}");
                let kind = response.headers().get(CONTENT_TYPE).expect("a type");
                assert_eq!(kind, "text/html; charset=utf-8");
            }
            for path in [
                "/hosts",
                "/some/deep/link",
                "/a/app.js",
                "/a/index.html",
                "//index.html",
                "/nothing.js",
                "/../Cargo.toml",
                "",
                "*",
            ] {
                let status = answer(method.clone(), path).status();
                assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}");
            }
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let response = answer(method, "/");
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(response.headers().get(ALLOW).expect("what is"), "GET, HEAD");
        }
    }

    #[test]
    fn what_the_browser_has_is_not_sent_again() {
        let file: &'static File = &File {
            name: "app.js",
            etag: "\"0011\"",
            content: b"x",
        };
        let status = |tag: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static(tag));
            send(file, &headers).status()
        };
        assert_eq!(status("\"0011\""), StatusCode::NOT_MODIFIED);
        assert_eq!(status("\"9\", W/\"0011\""), StatusCode::NOT_MODIFIED);
        assert_eq!(status("\"9\""), StatusCode::OK);
    }
}
