//! Keys of the store, its directory and labels, and the addresses that the collector listens on.

use crate::config::{Config, Engine, Sandbox};
use config::{Key, Kind, Reload, Value, as_text, put_word, socket_address, text_or_null, word};
use std::path::PathBuf;

const ENGINES: &[(Engine, &str)] = &[
    (Engine::Embedded, "embedded"),
    (Engine::ClickHouse, "clickhouse"),
];

const SANDBOX: &[(Sandbox, &str)] = &[(Sandbox::Auto, "auto"), (Sandbox::Off, "off")];

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "data_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Directory for the data of the embedded store, and with every store for pins and \
            captures. It is created if missing; only one collector at a time may use it.",
        get: |c| Value::Text(c.data_dir.to_string_lossy().into_owned()),
        put: |c, v| {
            if let Some(text) = as_text(&v) {
                c.data_dir = PathBuf::from(text);
            }
        },
    },
    Key {
        path: "store",
        kind: Kind::Word(&["embedded", "clickhouse"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Store for windows. embedded: files in data_dir, with nothing else to install. \
            clickhouse: the server of the section clickhouse, which any number of collectors may \
            share.",
        get: |c| word(&c.store, ENGINES),
        put: |c, v| put_word(&mut c.store, &v, ENGINES),
    },
    Key {
        path: "sandbox",
        kind: Kind::Word(&["auto", "off"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Drop rights that the collector does not need, before it does anything else: access \
            to all files except data_dir and those named in this configuration, all TCP ports \
            except its own (Landlock), and system calls such as execve, ptrace, mount and bpf \
            (seccomp). auto: as far as the kernel supports it; `agent-ctl status` shows what is \
            active.",
        get: |c| word(&c.sandbox, SANDBOX),
        put: |c, v| put_word(&mut c.sandbox, &v, SANDBOX),
    },
    Key {
        path: "service_labels",
        kind: Kind::Names(8),
        unit: "",
        reload: Reload::Restart,
        doc: "Labels that name a service: the first one that a sample has. The collector stores \
            sums over the hosts of a service in addition to those of each host, so queries about \
            services stay fast with any number of hosts.",
        get: |c| Value::List(c.service_labels.clone()),
        put: |c, v| {
            if let Value::List(list) = v {
                c.service_labels = list;
            }
        },
    },
    Key {
        path: "listen.grpc",
        kind: Kind::Address,
        unit: "",
        reload: Reload::Restart,
        doc: "Address for agents and agent-ctl, over gRPC.",
        get: |c| Value::Text(c.listen.grpc.to_string()),
        put: |c, v| {
            if let Some(address) = as_text(&v).and_then(socket_address) {
                c.listen.grpc = address;
            }
        },
    },
    Key {
        path: "listen.http",
        kind: Kind::Address,
        unit: "",
        reload: Reload::Restart,
        doc: "Address for browsers and scrapers, over HTTP: the page, downloads, /metrics and \
            /healthz.",
        get: |c| Value::Text(c.listen.http.to_string()),
        put: |c, v| {
            if let Some(address) = as_text(&v).and_then(socket_address) {
                c.listen.http = address;
            }
        },
    },
    Key {
        path: "listen.tls",
        kind: Kind::AddressOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Address for hosts and people on other machines, over gRPC with TLS 1.3, such as \
            0.0.0.0:7601. Hosts need an invitation (`agent-ctl hosts invite`), people a token \
            (`agent-ctl users add`); nobody else gets an answer. null: only this machine.",
        get: |c| {
            let address = c.listen.tls;
            address.map_or(Value::Null, |address| Value::Text(address.to_string()))
        },
        put: |c, v| c.listen.tls = as_text(&v).and_then(socket_address),
    },
    Key {
        path: "listen.https",
        kind: Kind::AddressOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Address for browsers and scrapers on other machines, over HTTPS, such as \
            0.0.0.0:7611. It serves the same as listen.http, with a login. null: only this \
            machine.",
        get: |c| {
            let address = c.listen.https;
            address.map_or(Value::Null, |address| Value::Text(address.to_string()))
        },
        put: |c, v| c.listen.https = as_text(&v).and_then(socket_address),
    },
    Key {
        path: "listen.advertise",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of listen.tls for other machines: HOST, or HOST:PORT if they need another \
            port. `agent-ctl hosts invite` and `users add` print it. null: the machine's own name, \
            which other machines do not know if it is a container.",
        get: |c| text_or_null(&c.listen.advertise),
        put: |c, v| c.listen.advertise = as_text(&v).map(str::to_owned),
    },
];
