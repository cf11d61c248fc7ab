//! Compresses answers if the client accepts it.
//!
//! Only complete answers are compressed: the page's files, downloads, metrics. Streams are not.

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::HeaderMap;
use hyper::body::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY,
};
use std::io::{self, Write};

/// What is smaller is sent as it is. Unit: bytes.
const BYTES_MIN: usize = 1024;

/// Piece in which an answer is held. Unit: bytes.
const PIECE_BYTES: usize = 128 << 10;

/// True when gzip is taken.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT_ENCODING).iter();
    let mut codings = texts
        .filter_map(|text| text.to_str().ok())
        .flat_map(|text| text.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        let refused = weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0);
        matches!(name.trim(), "gzip" | "*") && !refused
    })
}

/// True for what gets smaller by it.
fn is_text(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        kind.starts_with("text/")
            || [
                "application/json",
                "application/proto",
                "application/manifest+json",
                "image/svg+xml",
            ]
            .iter()
            .any(|known| kind.starts_with(known))
            || kind.starts_with("application/openmetrics-text")
    })
}

/// Compresses an answer with this head, if that is of use. Blocks for as long as it takes.
pub(super) fn compress(head: &mut HeaderMap, pieces: Vec<Bytes>) -> Vec<Bytes> {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    if bytes < BYTES_MIN || !is_text(head) {
        return pieces;
    }
    match gzip(&pieces) {
        Ok(packed) if packed.len() < bytes => {
            mark(head);
            if head.contains_key(CONTENT_LENGTH) {
                head.insert(CONTENT_LENGTH, HeaderValue::from(packed.len()));
            }
            let mut packed = Bytes::from(packed);
            let mut own = Vec::new();
            while !packed.is_empty() {
                own.push(packed.split_to(packed.len().min(PIECE_BYTES)));
            }
            own
        }
        _ => pieces,
    }
}

/// Says that what follows is compressed.
fn mark(head: &mut HeaderMap) {
    head.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
}

fn gzip(pieces: &[Bytes]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for piece in pieces {
        encoder.write_all(piece)?;
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    fn asked(text: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
        is_asked(&headers)
    }

    #[test]
    fn only_who_takes_it_gets_it() {
        for text in [
            "gzip",
            "gzip, br",
            "br;q=1.0, gzip;q=0.5",
            "*",
            "deflate,gzip",
        ] {
            assert!(asked(text), "{text}");
        }
        for text in ["", "br", "gzip;q=0", "x-gzip2", "identity"] {
            assert!(!asked(text), "{text}");
        }
        assert!(!is_asked(&HeaderMap::new()));
    }

    #[test]
    fn what_is_unpacked_is_what_there_was() {
        let text = "main;read 7\n".repeat(50_000);
        let mut head = HeaderMap::new();
        head.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        head.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        let pieces = vec![Bytes::from(text.clone())];
        let packed = compress(&mut head, pieces);
        let bytes: Vec<u8> = packed.concat();
        assert_eq!(head[CONTENT_LENGTH], HeaderValue::from(bytes.len()));
        assert_eq!(head[CONTENT_ENCODING], "gzip");
        let mut unpacked = String::new();
        let read = GzDecoder::new(&bytes[..]).read_to_string(&mut unpacked);
        assert_eq!(read.expect("gzip"), text.len());
        assert_eq!(unpacked, text);
        // An image is as small as it gets, and so is what is small.
        let mut image = HeaderMap::new();
        image.insert(CONTENT_TYPE, HeaderValue::from_static("image/png"));
        compress(&mut image, vec![Bytes::from(vec![0; 5000])]);
        assert!(!image.contains_key(CONTENT_ENCODING));
        let mut small = HeaderMap::new();
        small.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        compress(&mut small, vec![Bytes::from_static(b"ok")]);
        assert!(!small.contains_key(CONTENT_ENCODING));
    }
}
