//! How the host is a member of a fleet: by an invitation and a key of its own, or by a certificate
//! that somebody else renews, in the section `collector.tls`.

use super::Config;
use config::{Conflict, Key, Kind, Reload, Value, as_text, path_or_null, text_or_null};
use serde::Serialize;
use std::path::PathBuf;

/// Section `collector.tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectorTls {
    /// Where the collector listens for other machines: `HOST:PORT`.
    pub address: Option<String>,
    /// The host's certificate, and those that signed it. PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key. PEM.
    pub key_file: Option<PathBuf>,
    /// Who signs the collector's certificate. PEM.
    pub ca_file: Option<PathBuf>,
    /// Its name in that certificate; none: the one that all collectors have from their own fleets.
    pub server_name: Option<String>,
}

/// The sentence of the section.
pub(super) const SECTION: (&str, &str) = (
    "collector.tls",
    "A certificate that somebody else renews (cert-manager, SPIRE's helper, a company's authority), in place of \
     `agent-ctl join`. The collector must name that authority in identity.outside.",
);

const fn file(
    path: &'static str,
    doc: &'static str,
    get: fn(&Config) -> Value,
    put: fn(&mut Config, Value),
) -> Key<Config> {
    Key {
        path,
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc,
        get,
        put,
    }
}

/// Longest of the texts that name no host. Unit: bytes.
const WORD_BYTES_MAX: usize = 256;

const fn word(
    path: &'static str,
    bytes_max: usize,
    doc: &'static str,
    get: fn(&Config) -> Value,
    put: fn(&mut Config, Value),
) -> Key<Config> {
    Key {
        path,
        kind: Kind::IdOrNull(bytes_max),
        unit: "",
        reload: Reload::Restart,
        doc,
        get,
        put,
    }
}

/// The key `collector.host_name`.
pub(super) const fn host_name_key() -> Key<Config> {
    word(
        "collector.host_name",
        proto::HOST_NAME_BYTES_MAX,
        "What this host is called, which is the label host where it joined without another name: in a pod the \
         name of its node. null: its host name.",
        |c| text_or_null(&c.collector.host_name),
        |c, v| c.collector.host_name = as_text(&v).map(str::to_owned),
    )
}

/// The key `collector.identity_dir`.
pub(super) const fn dir_key() -> Key<Config> {
    Key {
        path: "collector.identity_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Where the host keeps its key and what it knows of its fleet, from `agent-ctl join` on.",
        get: |c| Value::Text(c.collector.identity_dir.display().to_string()),
        put: |c, v| {
            if let Some(dir) = as_text(&v) {
                c.collector.identity_dir = dir.into();
            }
        },
    }
}

/// The key `collector.join_file`.
pub(super) const fn join_key() -> Key<Config> {
    file(
        "collector.join_file",
        "File with the line that `agent-ctl hosts invite` prints, or its last two words: a host that is \
         a member of no fleet joins with it by itself, and tries again until it is let in. For images and \
         clusters.",
        |c| path_or_null(&c.collector.join_file),
        |c, v| c.collector.join_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.address`.
pub(super) const fn address_key() -> Key<Config> {
    word(
        "collector.tls.address",
        WORD_BYTES_MAX,
        "Where the collector's listen.tls is: HOST:PORT. null: the host joins a fleet with `agent-ctl join`, or \
         none.",
        |c| text_or_null(&c.collector.tls.address),
        |c, v| c.collector.tls.address = as_text(&v).map(str::to_owned),
    )
}

/// The key `collector.tls.cert_file`.
pub(super) const fn cert_key() -> Key<Config> {
    file(
        "collector.tls.cert_file",
        "PEM file with the certificate of this host and those that signed it. It is read again when it changes.",
        |c| path_or_null(&c.collector.tls.cert_file),
        |c, v| c.collector.tls.cert_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.key_file`.
pub(super) const fn key_key() -> Key<Config> {
    file(
        "collector.tls.key_file",
        "PEM file with its key. It is read again when it changes.",
        |c| path_or_null(&c.collector.tls.key_file),
        |c, v| c.collector.tls.key_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.ca_file`.
pub(super) const fn ca_key() -> Key<Config> {
    file(
        "collector.tls.ca_file",
        "PEM file with the authorities that sign the collector's certificate: data_dir/identity/authority.crt of the \
         collector, or others where it has identity.outside.cert_file. It is read again when it changes.",
        |c| path_or_null(&c.collector.tls.ca_file),
        |c, v| c.collector.tls.ca_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.server_name`.
pub(super) const fn name_key() -> Key<Config> {
    word(
        "collector.tls.server_name",
        WORD_BYTES_MAX,
        "Name in DNS that the collector's certificate must have. null: collector.fleetprof.internal, which the \
         authority of its own fleet gives it.",
        |c| text_or_null(&c.collector.tls.server_name),
        |c, v| c.collector.tls.server_name = as_text(&v).map(str::to_owned),
    )
}

impl Config {
    /// What of `collector.tls` does not fit together.
    pub(super) fn of_collector_tls(&self) -> Option<Conflict> {
        let tls = &self.collector.tls;
        let Some(address) = &tls.address else {
            let lone = tls.cert_file.is_some() || tls.key_file.is_some() || tls.ca_file.is_some();
            let message = "is null, and files of certificates are named: say where the collector is, as HOST:PORT";
            return lone.then(|| Conflict::new("collector.tls.address", message.to_owned()));
        };
        let parts = address.rsplit_once(':');
        let sound = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !sound {
            let address = config::shown(address);
            let message = format!("is `{address}`: it is HOST:PORT");
            return Some(Conflict::new("collector.tls.address", message));
        }
        if self.collector.address.is_some() {
            let message = "is set, and so is `collector.address`: a host has one collector";
            return Some(Conflict::new("collector.tls.address", message.to_owned()));
        }
        for (key, file) in [
            ("collector.tls.cert_file", &tls.cert_file),
            ("collector.tls.key_file", &tls.key_file),
            ("collector.tls.ca_file", &tls.ca_file),
        ] {
            if file.is_none() {
                let message = "is null, and `collector.tls.address` is set: the certificate, its key and the \
                               authorities of the collector are three files";
                return Some(Conflict::new(key, message.to_owned()));
            }
        }
        None
    }
}
