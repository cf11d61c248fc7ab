//! Settings of the host's fleet membership: it joins by an invitation with a key of its own, or
//! uses a certificate that another tool renews, configured in the section `collector.tls`.

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
    /// Certificates of the authorities that sign the collector's certificate. PEM.
    pub ca_file: Option<PathBuf>,
    /// Its name in that certificate; `None`: the name that every collector has in its own fleet's
    /// certificate.
    pub server_name: Option<String>,
}

/// The sentence of the section.
pub(super) const SECTION: (&str, &str) = (
    "collector.tls",
    "A certificate that another program renews (cert-manager, SPIRE's helper, a company's \
     authority), instead of `agent-ctl join`. The collector must name its authority in \
     identity.outside.",
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

/// The key `collector.host_id`.
pub(super) const fn host_id_key() -> Key<Config> {
    Key {
        path: "collector.host_id",
        kind: Kind::IdOrNull(profile::fleet::HOST_ID_BYTES_MAX),
        unit: "",
        reload: Reload::Restart,
        doc: "Id of this host at the collector. It must stay the same after a reboot, and be \
            unique in the fleet. null: a hash of /etc/machine-id, or the host name if that file is \
            missing.",
        get: |c| {
            let id = c.collector.host_id.clone();
            id.map_or(Value::Null, Value::Text)
        },
        put: |c, v| c.collector.host_id = as_text(&v).map(str::to_owned),
    }
}

/// The key `collector.host_name`.
pub(super) const fn host_name_key() -> Key<Config> {
    word(
        "collector.host_name",
        profile::fleet::HOST_NAME_BYTES_MAX,
        "Name of this host. It becomes the label host, unless the host joined with another name. \
         In a pod, use the name of the node. null: the host name.",
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
        doc: "Directory for the host's key and the data of its fleet, which `agent-ctl join` \
            fills.",
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
        "File with the line that `agent-ctl hosts invite` prints, or its last two words. A host \
         that is not a member of a fleet joins with it by itself, and retries until it succeeds. \
         Use this for images and clusters.",
        |c| path_or_null(&c.collector.join_file),
        |c, v| c.collector.join_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.address`.
pub(super) const fn address_key() -> Key<Config> {
    word(
        "collector.tls.address",
        WORD_BYTES_MAX,
        "Address of the collector's listen.tls: HOST:PORT. null: no certificate from files; the \
         host can join a fleet with `agent-ctl join`.",
        |c| text_or_null(&c.collector.tls.address),
        |c, v| c.collector.tls.address = as_text(&v).map(str::to_owned),
    )
}

/// The key `collector.tls.cert_file`.
pub(super) const fn cert_key() -> Key<Config> {
    file(
        "collector.tls.cert_file",
        "PEM file with the certificate of this host and the certificates that signed it. The \
         daemon reads it again when it changes.",
        |c| path_or_null(&c.collector.tls.cert_file),
        |c, v| c.collector.tls.cert_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.key_file`.
pub(super) const fn key_key() -> Key<Config> {
    file(
        "collector.tls.key_file",
        "PEM file with the key of the certificate. The daemon reads it again when it changes.",
        |c| path_or_null(&c.collector.tls.key_file),
        |c, v| c.collector.tls.key_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.ca_file`.
pub(super) const fn ca_key() -> Key<Config> {
    file(
        "collector.tls.ca_file",
        "PEM file with the authorities that sign the collector's certificate: \
         data_dir/identity/authority.crt of the collector, or others if it has \
         identity.outside.cert_file. The daemon reads it again when it changes.",
        |c| path_or_null(&c.collector.tls.ca_file),
        |c, v| c.collector.tls.ca_file = as_text(&v).map(PathBuf::from),
    )
}

/// The key `collector.tls.server_name`.
pub(super) const fn name_key() -> Key<Config> {
    word(
        "collector.tls.server_name",
        WORD_BYTES_MAX,
        "DNS name that the collector's certificate must have. null: collector.fleetprof.internal, \
         the name in certificates from the fleet's own authority.",
        |c| text_or_null(&c.collector.tls.server_name),
        |c, v| c.collector.tls.server_name = as_text(&v).map(str::to_owned),
    )
}

impl Config {
    /// Keys of `collector.tls` that contradict each other.
    pub(super) fn of_collector_tls(&self) -> Option<Conflict> {
        let tls = &self.collector.tls;
        let Some(address) = &tls.address else {
            let lone = tls.cert_file.is_some() || tls.key_file.is_some() || tls.ca_file.is_some();
            let message = "is null, but certificate files are set: set the collector's address, \
                HOST:PORT";
            return lone.then(|| Conflict::new("collector.tls.address", message.to_owned()));
        };
        let parts = address.rsplit_once(':');
        let sound = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !sound {
            let address = config::shown(address);
            let message = format!("is `{address}`: expected HOST:PORT");
            return Some(Conflict::new("collector.tls.address", message));
        }
        if self.collector.address.is_some() {
            let message = "and `collector.address` are both set: set only one of them";
            return Some(Conflict::new("collector.tls.address", message.to_owned()));
        }
        for (key, file) in [
            ("collector.tls.cert_file", &tls.cert_file),
            ("collector.tls.key_file", &tls.key_file),
            ("collector.tls.ca_file", &tls.ca_file),
        ] {
            if file.is_none() {
                let message = "is null, but `collector.tls.address` is set: set `cert_file`, \
                    `key_file` and `ca_file`";
                return Some(Conflict::new(key, message.to_owned()));
            }
        }
        None
    }
}
