//! Keys of what is exported.

use crate::config::{Config, OtlpProtocol};
use config::{
    Key, Kind, Reload, Value, as_text, path_or_null, put_int, put_word, text_or_null, word,
};
use std::path::PathBuf;

const PROTOCOLS: &[(OtlpProtocol, &str)] =
    &[(OtlpProtocol::Grpc, "grpc"), (OtlpProtocol::Http, "http")];

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "export.otlp.url",
        kind: Kind::IdOrNull(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the receiver: https://HOST:4317, or http:// without TLS. With protocol \
            http an address without a path has /v1development/profiles. null: nothing is exported.",
        get: |c| text_or_null(&c.export.otlp.url),
        put: |c, v| c.export.otlp.url = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "export.otlp.protocol",
        kind: Kind::Word(&["grpc", "http"]),
        unit: "",
        reload: Reload::Restart,
        doc: "How requests travel, in protocol buffers either way.",
        get: |c| word(&c.export.otlp.protocol, PROTOCOLS),
        put: |c, v| put_word(&mut c.export.otlp.protocol, &v, PROTOCOLS),
    },
    Key {
        path: "export.otlp.headers_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with headers for each request, such as a token: NAME: VALUE, one a line. It is \
            read for each request, so a new token needs no restart.",
        get: |c| path_or_null(&c.export.otlp.headers_file),
        put: |c, v| c.export.otlp.headers_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "export.otlp.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities to trust for export.otlp.url, in addition to the system's.",
        get: |c| path_or_null(&c.export.otlp.ca_file),
        put: |c, v| c.export.otlp.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "export.otlp.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the collector's certificate, for a receiver that asks for one.",
        get: |c| path_or_null(&c.export.otlp.cert_file),
        put: |c, v| c.export.otlp.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "export.otlp.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with its key.",
        get: |c| path_or_null(&c.export.otlp.key_file),
        put: |c, v| c.export.otlp.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "export.otlp.selector",
        kind: Kind::IdOrNull(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Samples to export, as in every query, without spaces: unit=\"api.service\". null: \
            all samples of agents.",
        get: |c| text_or_null(&c.export.otlp.selector),
        put: |c, v| c.export.otlp.selector = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "export.otlp.interval_s",
        kind: Kind::Int(10, 3600),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Length of time in one profile, in steps of ten seconds. A profile is sent half a \
            minute after its end.",
        get: |c| Value::Int(c.export.otlp.interval_s.into()),
        put: |c, v| put_int(&mut c.export.otlp.interval_s, &v),
    },
    Key {
        path: "export.otlp.backlog_hours",
        kind: Kind::Int(1, 168),
        unit: "hours",
        reload: Reload::Restart,
        doc: "How long profiles wait for a receiver that is away. Older ones are given up. They \
            wait in the store, at full resolution: not longer than retention keeps that.",
        get: |c| Value::Int(c.export.otlp.backlog_hours.into()),
        put: |c, v| put_int(&mut c.export.otlp.backlog_hours, &v),
    },
];
