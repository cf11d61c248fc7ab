//! Keys of the identities of hosts, and the audit log.

use crate::config::Config;
use crate::config::sections::DAY;
use config::{Key, Kind, Reload, Value, as_text, path_or_null, put_bool, put_int, text_or_null};
use std::path::PathBuf;
use std::time::Duration;

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "identity.host_days",
        kind: Kind::Int(1, 365),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long the certificate of a host is valid. Hosts renew it by themselves after two \
            thirds of this time, or later: a host that was off for a year can still renew it.",
        get: |c| Value::Int(c.identity.host_lasts.as_secs() / DAY.as_secs()),
        put: |c, v| {
            if let Value::Int(days) = v {
                c.identity.host_lasts = Duration::from_secs(days * DAY.as_secs());
            }
        },
    },
    Key {
        path: "identity.outside.ca_files",
        kind: Kind::Paths(8),
        unit: "",
        reload: Reload::Restart,
        doc: "PEM files with authorities that may sign certificates of hosts. The collector reads \
            them again when they change.",
        get: |c| {
            let files = c.identity.outside.ca_files.iter();
            Value::List(
                files
                    .map(|file| file.to_string_lossy().into_owned())
                    .collect(),
            )
        },
        put: |c, v| {
            if let Value::List(files) = v {
                c.identity.outside.ca_files = files.into_iter().map(PathBuf::from).collect();
            }
        },
    },
    Key {
        path: "identity.outside.hosts",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Names in such certificates that are hosts of this fleet. spiffe://DOMAIN/PATH/: \
            SPIFFE IDs with this prefix; the rest is the host's name, and the label spiffe_id has \
            the complete ID. dns:*.hosts.example.net: DNS names with this suffix, one in each \
            certificate.",
        get: |c| text_or_null(&c.identity.outside.hosts),
        put: |c, v| c.identity.outside.hosts = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "identity.outside.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with a certificate and the certificates that signed it. listen.tls uses it \
            for clients that connect to another name than collector.fleetprof.internal. The \
            collector reads it again when it changes. null: use the certificate of the fleet's own \
            authority for all clients.",
        get: |c| path_or_null(&c.identity.outside.cert_file),
        put: |c, v| c.identity.outside.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "identity.outside.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the key of the certificate.",
        get: |c| path_or_null(&c.identity.outside.key_file),
        put: |c, v| c.identity.outside.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "audit.disk_mib",
        kind: Kind::Int(32, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of the audit log, in addition to retention.disk_gib. At the limit its \
            oldest file is deleted; a line takes about 400 bytes.",
        get: |c| Value::Int(c.audit.disk_mib.into()),
        put: |c, v| put_int(&mut c.audit.disk_mib, &v),
    },
    Key {
        path: "audit.queries",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Record reads of people with a login too: who made which call, and when.",
        get: |c| Value::Bool(c.audit.queries),
        put: |c, v| put_bool(&mut c.audit.queries, &v),
    },
];
