//! Section `export`: who gets the profiles of agents besides those who ask.

use super::alerts::receiver_url;
use super::is_loopback;
use hyper::Uri;
use profile::{Selector, SelectorError};
use serde::Serialize;
use std::path::PathBuf;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Export {
    /// A receiver of OTLP.
    pub otlp: OtlpExport,
}

/// Section `export.otlp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtlpExport {
    /// Address of the receiver; none: nothing is exported.
    pub url: Option<String>,
    /// How requests travel.
    pub protocol: OtlpProtocol,
    /// File with further headers.
    pub headers_file: Option<PathBuf>,
    /// File with further authorities.
    pub ca_file: Option<PathBuf>,
    /// File with the collector's certificate.
    pub cert_file: Option<PathBuf>,
    /// File with its key.
    pub key_file: Option<PathBuf>,
    /// Takes the samples; none: all.
    pub selector: Option<String>,
    /// Length of the stretches that are sent. Unit: seconds.
    pub interval_s: u32,
    /// Age at which what waits is given up. Unit: hours.
    pub backlog_hours: u32,
}

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP in protocol buffers.
    Http,
}

/// Where a receiver is, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct OtlpTarget {
    /// Its address.
    pub url: Uri,
    /// How requests travel.
    pub protocol: OtlpProtocol,
    /// File with further headers, which is read for each request: tokens expire.
    pub headers_file: Option<PathBuf>,
    /// File with further authorities.
    pub ca_file: Option<PathBuf>,
    /// Files with the collector's certificate and its key.
    pub cert: Option<(PathBuf, PathBuf)>,
}

impl Default for OtlpExport {
    fn default() -> OtlpExport {
        OtlpExport {
            url: None,
            protocol: OtlpProtocol::Grpc,
            headers_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            selector: None,
            interval_s: 60,
            backlog_hours: 24,
        }
    }
}

impl OtlpExport {
    /// The receiver; `None` without one, or if its address is none.
    pub fn target(&self) -> Option<OtlpTarget> {
        Some(OtlpTarget {
            url: receiver_url(self.url.as_deref()?).ok()?,
            protocol: self.protocol,
            headers_file: self.headers_file.clone(),
            ca_file: self.ca_file.clone(),
            cert: self.cert_file.clone().zip(self.key_file.clone()),
        })
    }

    /// Takes the samples.
    ///
    /// # Errors
    /// When the text is no selector.
    pub fn selector(&self) -> Result<Selector, SelectorError> {
        let text = self.selector.as_deref();
        text.map_or(Ok(Selector::default()), str::parse)
    }

    /// Problems that concern several values.
    pub(super) fn settle(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if let Err(why) = self.selector() {
            found.push(("export.otlp.selector", format!("is invalid: {why}")));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            let text = "is only half of the pair: set both `export.otlp.cert_file` and \
                        `export.otlp.key_file`, or none";
            found.push(("export.otlp.cert_file", text.to_owned()));
        }
        let Some(url) = &self.url else { return found };
        let shown = config::shown(url);
        let uri = match receiver_url(url) {
            Ok(uri) => uri,
            Err(why) => {
                found.push(("export.otlp.url", format!("is `{shown}`, which {why}")));
                return found;
            }
        };
        if self.protocol == OtlpProtocol::Grpc && !matches!(uri.path(), "" | "/") {
            let text = format!(
                "is `{shown}`, with a path: over gRPC there is none. Use https://HOST:PORT, or \
                 `export.otlp.protocol: http`"
            );
            found.push(("export.otlp.url", text));
        }
        let is_clear = uri.scheme_str() == Some("http");
        let is_here = uri.host().is_some_and(is_loopback);
        if is_clear && !is_here && self.headers_file.is_some() {
            let text = format!(
                "is `{shown}`, and `export.otlp.headers_file` is set: its headers would be sent in \
                 clear text. Use https://"
            );
            found.push(("export.otlp.url", text));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut OtlpExport)) -> Vec<&'static str> {
        let mut export = OtlpExport {
            url: Some("https://otel.example:4317".to_owned()),
            ..OtlpExport::default()
        };
        change(&mut export);
        export.settle().into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key() {
        assert!(wrong(|_| ()).is_empty());
        assert_eq!(
            wrong(|of| of.url = Some("otel:4317".into())),
            ["export.otlp.url"]
        );
        assert_eq!(
            wrong(|of| of.url = Some("https://a/v1development/profiles".into())),
            ["export.otlp.url"]
        );
        assert!(
            wrong(|of| {
                of.url = Some("https://a/v1development/profiles".into());
                of.protocol = OtlpProtocol::Http;
            })
            .is_empty()
        );
        assert_eq!(
            wrong(|of| of.selector = Some("unit=~\"(\"".into())),
            ["export.otlp.selector"]
        );
        assert_eq!(
            wrong(|of| of.cert_file = Some("/a".into())),
            ["export.otlp.cert_file"]
        );
    }

    #[test]
    fn a_token_is_not_sent_in_clear_text_to_another_machine() {
        let with = |url: &str| {
            wrong(|of| {
                of.url = Some(url.into());
                of.headers_file = Some("/t".into());
            })
        };
        assert_eq!(with("http://otel.example:4317"), ["export.otlp.url"]);
        assert!(with("http://127.0.0.1:4317").is_empty());
        assert!(with("https://otel.example:4317").is_empty());
    }
}
