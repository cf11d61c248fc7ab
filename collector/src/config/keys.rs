//! The table of configuration keys: the only place that states what a key means, its unit and
//! range, and whether a reload applies it. `config/collector.yaml` is generated from it. Defaults
//! are in the section types.

use super::alerts::{ALERTS, RECEIVERS};
use super::auth::RULES;
use super::{AlertRule, Config, Engine, Login, OidcRule, Receiver, Sandbox};
use config::{
    Key, Kind, Reload, Value, as_text, log, path_or_null, put_bool, put_int, put_word,
    socket_address, text_or_null, word,
};
use profile::fleet::COLLECTOR_PORT;
use std::path::PathBuf;

const LOGINS: &[(Login, &str)] = &[(Login::Auto, "auto"), (Login::Always, "always")];

const ENGINES: &[(Engine, &str)] = &[
    (Engine::Embedded, "embedded"),
    (Engine::ClickHouse, "clickhouse"),
];

const SANDBOX: &[(Sandbox, &str)] = &[(Sandbox::Auto, "auto"), (Sandbox::Off, "off")];

/// Sections with a sentence each, in the order of the file.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    (
        "listen",
        "Addresses that the collector listens on: loopback for people and agents on this machine, \
         TLS for other hosts.",
    ),
    (
        "web",
        "The page for people on other machines. They log in with a token (agent-ctl users add), or \
         with a link (agent-ctl page).",
    ),
    (
        "web.tls",
        "The certificate of listen.https. All null: a certificate from the fleet's authority, \
         which no browser trusts.",
    ),
    (
        "web.proxy",
        "A proxy in front of the page that authenticates people, such as oauth2-proxy. Its headers \
         are ignored from other addresses.",
    ),
    ("auth", "Logins without a token."),
    (
        "auth.oidc",
        "An OpenID Connect provider. People log in to the page with their account there \
         (authorization code with PKCE). Their groups decide what they may do, and people without \
         a matching rule are refused.",
    ),
    (
        "identity",
        "Certificates of the hosts of the fleet. The authority and the members are in \
         data_dir/identity.",
    ),
    (
        "identity.outside",
        "Hosts with certificates from another authority: a company's, cert-manager's, SPIRE's. \
         They need no invitation; their certificate names them.",
    ),
    (
        "audit",
        "The audit log of actions at this collector: append-only, in the directory audit of \
         data_dir (agent-ctl audit).",
    ),
    (
        "retention",
        "How long data is kept, and at which resolution. Data gets coarser by partitions of 6 h \
         (clickhouse: by days); each age must be at least the one before. Above the disk limit the \
         oldest data is removed first, and the sums of services last.",
    ),
    ("ingest", "Limits on agents."),
    ("query", "Limits on queries."),
    ("control", "Fleet captures."),
    (
        "pins",
        "Pins from triggers of agents: files in the directory pins of data_dir, with every store.",
    ),
    (
        "captures",
        "Fleet captures that the collector keeps: files in the directory captures of data_dir, \
         with every store, at the collector that started them.",
    ),
    (
        "annotations",
        "Annotations of the fleet: deploys that the collector finds, and notes of people and \
         pipelines (agent-ctl events); in the directory annotations of data_dir, with every store.",
    ),
    (
        "alerting",
        "How the collector evaluates alerts and notifies receivers (agent-ctl alerts); the state is \
         in the directory alerts of data_dir, with every store. Of several collectors on one store, \
         give the alerts to one.",
    ),
    (
        "incidents",
        "Incidents with their evidence (agent-ctl incidents): kept until an admin deletes them, in \
         the directory incidents of data_dir, with every store.",
    ),
    (
        "symbols",
        "Symbol tables for functions that agents cannot name: by build id, in the directory \
         symbols of data_dir, with every store. People upload them (agent-ctl symbols upload), and \
         debuginfod servers have those of distributions.",
    ),
    ("clickhouse", "The server to use with `store: clickhouse`."),
    ("log", "The collector's own log, on standard error."),
    ("shutdown", "How the collector stops."),
];

/// Every key, in the order of the file.
pub const KEYS: &[Key<Config>] = &[
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
    Key {
        path: "web.external_url",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the page for browsers on other machines: https://profiles.example.net. \
            Requests for other names are refused, except for the machine's own name and IP \
            addresses.",
        get: |c| text_or_null(&c.web.external_url),
        put: |c, v| c.web.external_url = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.login",
        kind: Kind::Word(&["auto", "always"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Where the page needs a login. auto: at listen.https, and at listen.http if \
            web.proxy.user_header is set. always: at listen.http too, for a proxy that forwards \
            there.",
        get: |c| word(&c.web.login, LOGINS),
        put: |c, v| put_word(&mut c.web.login, &v, LOGINS),
    },
    Key {
        path: "web.tls.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the certificate and the certificates that signed it. The collector \
            reads it again when it changes.",
        get: |c| path_or_null(&c.web.tls.cert_file),
        put: |c, v| c.web.tls.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.tls.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the key of the certificate.",
        get: |c| path_or_null(&c.web.tls.key_file),
        put: |c, v| c.web.tls.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.proxy.from",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "IP addresses that the proxy connects from, separated by `,`. Every process on the \
            proxy's machine can act as any person.",
        get: |c| text_or_null(&c.web.proxy.from),
        put: |c, v| c.web.proxy.from = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.user_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the name of the person, such as X-Forwarded-User. The proxy must set or \
            remove it on every request. null: trust no proxy.",
        get: |c| text_or_null(&c.web.proxy.user_header),
        put: |c, v| c.web.proxy.user_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the role of the person: metrics, viewer, operator or admin. null: \
            everybody has the role web.proxy.role.",
        get: |c| text_or_null(&c.web.proxy.role_header),
        put: |c, v| c.web.proxy.role_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.scope_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header with the scope of the person: a selector, or * for the whole fleet. People \
            without the header are refused, except admins, who have no scope. null: nobody has a \
            scope.",
        get: |c| text_or_null(&c.web.proxy.scope_header),
        put: |c, v| c.web.proxy.scope_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role",
        kind: Kind::Word(&["metrics", "viewer", "operator", "admin"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Role of people without a role from the proxy.",
        get: |c| Value::Text(c.web.proxy.role.clone()),
        put: |c, v| put_text(&mut c.web.proxy.role, v),
    },
    Key {
        path: "auth.oidc.issuer",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "Issuer of the provider, exactly as in /.well-known/openid-configuration below this \
            address: https://login.example.net/realms/main. null: no login with a provider.",
        get: |c| text_or_null(&c.auth.oidc.issuer),
        put: |c, v| c.auth.oidc.issuer = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_id",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "Id of the collector at the provider: a confidential client with the redirect address \
            web.external_url followed by /login/oidc/callback.",
        get: |c| text_or_null(&c.auth.oidc.client_id),
        put: |c, v| c.auth.oidc.client_id = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_secret_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the secret of that client; white space around it is ignored. The collector \
            reads it at each login.",
        get: |c| path_or_null(&c.auth.oidc.client_secret_file),
        put: |c, v| c.auth.oidc.client_secret_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.provider_name",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Text of the login button after `Sign in with`.",
        get: |c| Value::Text(c.auth.oidc.provider_name.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.provider_name, v),
    },
    Key {
        path: "auth.oidc.scopes",
        kind: Kind::Text(512),
        unit: "",
        reload: Reload::Restart,
        doc: "Scopes to request from the provider, separated by spaces; openid is always included. \
            Some providers send groups only for a special scope, and some refuse unknown scopes.",
        get: |c| Value::Text(c.auth.oidc.scopes.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.scopes, v),
    },
    Key {
        path: "auth.oidc.groups_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim with the groups of a person: a list of texts at the top level of the ID token, \
            or of the answer from the provider's userinfo address.",
        get: |c| Value::Text(c.auth.oidc.groups_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.groups_claim, v),
    },
    Key {
        path: "auth.oidc.name_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim with the name of a person, which is oidc:NAME in the audit log. If two people \
            have the same name, the second one gets a suffix.",
        get: |c| Value::Text(c.auth.oidc.name_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.name_claim, v),
    },
    Key {
        path: "auth.oidc.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities that may sign the provider's certificate, in addition to \
            those of the system.",
        get: |c| path_or_null(&c.auth.oidc.ca_file),
        put: |c, v| c.auth.oidc.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.rules",
        kind: Kind::Items(&RULES),
        unit: "",
        reload: Reload::Restart,
        doc: "Roles by group: the first rule with a group of the person decides. People in none of \
            these groups are refused. A change of auth.oidc ends all earlier sessions.",
        get: |c| Value::Items(c.auth.oidc.rules.iter().map(OidcRule::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.auth.oidc.rules = list.into_iter().map(OidcRule::of).collect();
            }
        },
    },
    Key {
        path: "identity.host_days",
        kind: Kind::Int(1, 365),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long the certificate of a host is valid. Hosts renew it by themselves after two \
            thirds of this time, or later: a host that was off for a year can still renew it.",
        get: |c| Value::Int(c.identity.host_days.into()),
        put: |c, v| put_int(&mut c.identity.host_days, &v),
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
    Key {
        path: "retention.raw_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep windows as they arrived, in steps of 10 s. A host of 16 busy CPUs \
              takes about 35 MB a day.",
        get: |c| Value::Int(c.retention.raw_days.into()),
        put: |c, v| put_int(&mut c.retention.raw_days, &v),
    },
    Key {
        path: "retention.minute_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Maximum age of data in steps of a minute, which takes about four fifths of the \
            space. With clickhouse: only sums over the hosts of each service.",
        get: |c| Value::Int(c.retention.minute_days.into()),
        put: |c, v| put_int(&mut c.retention.minute_days, &v),
    },
    Key {
        path: "retention.ten_minutes_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Maximum age of data in steps of ten minutes, which takes about half the space. Older \
            windows from agents are refused and counted. With clickhouse: only series and totals, \
            without stacks; windows are refused after raw_days.",
        get: |c| Value::Int(c.retention.ten_minutes_days.into()),
        put: |c, v| put_int(&mut c.retention.ten_minutes_days, &v),
    },
    Key {
        path: "retention.service_hours_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Maximum age of sums over the hosts of each service, in steps of an hour. Samples of \
            that age have only the label of their service. Older data is removed.",
        get: |c| Value::Int(c.retention.service_hours_days.into()),
        put: |c, v| put_int(&mut c.retention.service_hours_days, &v),
    },
    Key {
        path: "retention.disk_gib",
        kind: Kind::Int(1, 1 << 20),
        unit: "GiB",
        reload: Reload::Restart,
        doc: "Maximum size of data_dir. At the limit the oldest data is removed before its age. \
            This does not apply to clickhouse, which has its own limits.",
        get: |c| Value::Int(c.retention.disk_gib.into()),
        put: |c, v| put_int(&mut c.retention.disk_gib, &v),
    },
    Key {
        path: "ingest.streams_max",
        kind: Kind::Int(1, 65_536),
        unit: "agents",
        reload: Reload::Restart,
        doc: "Maximum number of connected agents. Further agents must retry later and keep their \
            windows meanwhile. Each agent takes a file descriptor.",
        get: |c| Value::Int(c.ingest.streams_max.into()),
        put: |c, v| put_int(&mut c.ingest.streams_max, &v),
    },
    Key {
        path: "ingest.memory_mib",
        kind: Kind::Int(128, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for windows that agents have sent and the store has not stored yet, and for \
            the state of their streams: about 0.5 MiB an agent. At the limit the collector stops \
            reading, and agents keep their windows.",
        get: |c| Value::Int(c.ingest.memory_mib.into()),
        put: |c, v| put_int(&mut c.ingest.memory_mib, &v),
    },
    Key {
        path: "query.concurrent",
        kind: Kind::Int(1, 64),
        unit: "queries",
        reload: Reload::Restart,
        doc: "Maximum number of running queries; further queries wait until their timeout. Each \
            query takes a thread, and memory up to query.memory_mib.",
        get: |c| Value::Int(c.query.concurrent.into()),
        put: |c, v| put_int(&mut c.query.concurrent, &v),
    },
    Key {
        path: "query.timeout_s",
        kind: Kind::Int(1, 600),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Time for one query, including waiting. A query that takes longer is cancelled.",
        get: |c| Value::Int(c.query.timeout_s.into()),
        put: |c, v| put_int(&mut c.query.timeout_s, &v),
    },
    Key {
        path: "query.memory_mib",
        kind: Kind::Int(16, 65_536),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for one query, including the file that it writes. A query that needs more is \
            refused, with advice on what to narrow. All answers being sent share the same amount \
            again.",
        get: |c| Value::Int(c.query.memory_mib.into()),
        put: |c, v| put_int(&mut c.query.memory_mib, &v),
    },
    Key {
        path: "query.nodes_max",
        kind: Kind::Int(1000, 10_000_000),
        unit: "stacks",
        reload: Reload::Restart,
        doc: "Maximum number of stacks in a profile; the lightest are folded into their callers, \
            and the answer shows their weight.",
        get: |c| Value::Int(c.query.nodes_max.into()),
        put: |c, v| put_int(&mut c.query.nodes_max, &v),
    },
    Key {
        path: "control.advertise",
        kind: Kind::PeerOrNull(COLLECTOR_PORT),
        unit: "",
        reload: Reload::Restart,
        doc: "Address where other collectors on the same clickhouse reach listen.grpc of this one, \
            so a capture at any of them reaches the agents of all. null: other collectors do not \
            know the agents of this one. It must be on loopback, like listen.grpc; use a tunnel to \
            reach another machine.",
        get: |c| {
            let address = c.control.advertise;
            address.map_or(Value::Null, |address| Value::Text(address.to_string()))
        },
        put: |c, v| c.control.advertise = as_text(&v).and_then(socket_address),
    },
    Key {
        path: "pins.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep pins after their upload, even if the windows of their time are \
            gone.",
        get: |c| Value::Int(c.pins.retention_days.into()),
        put: |c, v| put_int(&mut c.pins.retention_days, &v),
    },
    Key {
        path: "pins.disk_mib",
        kind: Kind::Int(1, 1 << 24),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of all pins, in addition to retention.disk_gib. At the limit the host \
            whose pins take most loses its oldest pin. A pin with some minutes of a busy host \
            takes about 1 MiB.",
        get: |c| Value::Int(c.pins.disk_mib.into()),
        put: |c, v| put_int(&mut c.pins.disk_mib, &v),
    },
    Key {
        path: "pins.host_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of the pins of one host, and roughly what it may upload in a day. At \
            the limit its oldest pin is deleted; a larger pin is refused and stays with its agent.",
        get: |c| Value::Int(c.pins.host_mib.into()),
        put: |c, v| put_int(&mut c.pins.host_mib, &v),
    },
    Key {
        path: "captures.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep fleet captures after their end.",
        get: |c| Value::Int(c.captures.retention_days.into()),
        put: |c, v| put_int(&mut c.captures.retention_days, &v),
    },
    Key {
        path: "captures.disk_mib",
        kind: Kind::Int(1, 1 << 24),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of all kept captures, in addition to retention.disk_gib. At the limit \
            the oldest is deleted. A capture that is larger than this is not kept, and its result \
            says so. A host takes about 100 KiB for 30 s of CPU time.",
        get: |c| Value::Int(c.captures.disk_mib.into()),
        put: |c, v| put_int(&mut c.captures.disk_mib, &v),
    },
    Key {
        path: "captures.count_max",
        kind: Kind::Int(1, 10_000),
        unit: "captures",
        reload: Reload::Restart,
        doc: "Maximum number of kept captures; the oldest are deleted first. Each takes some KiB \
            of memory.",
        get: |c| Value::Int(c.captures.count_max.into()),
        put: |c, v| put_int(&mut c.captures.count_max, &v),
    },
    Key {
        path: "annotations.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep annotations after their time. The collector keeps at most 10,000, \
            and deletes the oldest first.",
        get: |c| Value::Int(c.annotations.retention_days.into()),
        put: |c, v| put_int(&mut c.annotations.retention_days, &v),
    },
    Key {
        path: "annotations.find_deploys",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Find deploys: an agent that changes its version, or a service with a new image, build or \
            version. The collector adds one annotation for all hosts together.",
        get: |c| Value::Bool(c.annotations.find_deploys),
        put: |c, v| put_bool(&mut c.annotations.find_deploys, &v),
    },
    Key {
        path: "alerting.interval_s",
        kind: Kind::Int(10, 3600),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Time between two evaluations of all alerts. An evaluation that takes long is followed \
            by a longer break, so that alerts use at most a fifth of one CPU.",
        get: |c| Value::Int(c.alerting.interval_s.into()),
        put: |c, v| put_int(&mut c.alerting.interval_s, &v),
    },
    Key {
        path: "alerting.wait_s",
        kind: Kind::Int(0, 3600),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "How long the first change of an alert waits for changes of its other groups, which \
            then are one notification.",
        get: |c| Value::Int(c.alerting.wait_s.into()),
        put: |c, v| put_int(&mut c.alerting.wait_s, &v),
    },
    Key {
        path: "alerting.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep resolved alerts, which the page marks on charts. The collector keeps \
            at most 10,000, and deletes the oldest first.",
        get: |c| Value::Int(c.alerting.retention_days.into()),
        put: |c, v| put_int(&mut c.alerting.retention_days, &v),
    },
    Key {
        path: "alerts",
        kind: Kind::Items(&ALERTS),
        unit: "",
        reload: Reload::Restart,
        doc: "Conditions on CPU time and on shares of functions. Each is evaluated on everything \
            that is stored, whoever may see it.",
        get: |c| Value::Items(c.alerts.iter().map(AlertRule::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.alerts = list.into_iter().map(AlertRule::of).collect();
            }
        },
    },
    Key {
        path: "receivers",
        kind: Kind::Items(&RECEIVERS),
        unit: "",
        reload: Reload::Restart,
        doc: "Webhooks that are notified when an alert fires and when it is resolved. The collector \
            connects to whatever address stands here, also inside your network, and follows no \
            redirect.",
        get: |c| Value::Items(c.receivers.iter().map(Receiver::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.receivers = list.into_iter().map(Receiver::of).collect();
            }
        },
    },
    Key {
        path: "incidents.disk_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of the evidence of all incidents, in addition to retention.disk_gib. At \
            the limit no evidence can be added: nothing is removed to make room.",
        get: |c| Value::Int(c.incidents.disk_mib.into()),
        put: |c, v| put_int(&mut c.incidents.disk_mib, &v),
    },
    Key {
        path: "incidents.incident_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of the evidence of one incident.",
        get: |c| Value::Int(c.incidents.incident_mib.into()),
        put: |c, v| put_int(&mut c.incidents.incident_mib, &v),
    },
    Key {
        path: "incidents.count_max",
        kind: Kind::Int(1, 10_000),
        unit: "incidents",
        reload: Reload::Restart,
        doc: "Maximum number of incidents. At the limit no incident can be opened.",
        get: |c| Value::Int(c.incidents.count_max.into()),
        put: |c, v| put_int(&mut c.incidents.count_max, &v),
    },
    Key {
        path: "incidents.open_for_pins",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Open an incident when a trigger of an agent pins minutes: one for each trigger and \
            host while it is open, at most 20 an hour.",
        get: |c| Value::Bool(c.incidents.open_for_pins),
        put: |c, v| put_bool(&mut c.incidents.open_for_pins, &v),
    },
    Key {
        path: "symbols.disk_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of all symbol tables, in addition to retention.disk_gib. At the limit \
            the least recently used fetched tables are deleted first; only uploads replace \
            uploads.",
        get: |c| Value::Int(c.symbols.disk_mib.into()),
        put: |c, v| put_int(&mut c.symbols.disk_mib, &v),
    },
    Key {
        path: "symbols.debuginfod",
        kind: Kind::Urls(8),
        unit: "",
        reload: Reload::Restart,
        doc: "debuginfod servers to ask, in this order, for builds whose functions had no names in \
            an answer. The servers learn which builds run here. No answer waits for them: the next \
            answer has the names.",
        get: |c| Value::List(c.symbols.debuginfod.clone()),
        put: |c, v| {
            if let Value::List(list) = v {
                c.symbols.debuginfod = list;
            }
        },
    },
    Key {
        path: "clickhouse.url",
        kind: Kind::Text(1024),
        unit: "",
        reload: Reload::Restart,
        doc: "Address of the HTTP interface: http://HOST:PORT or https://HOST:PORT.",
        get: |c| Value::Text(c.clickhouse.url.clone()),
        put: |c, v| put_text(&mut c.clickhouse.url, v),
    },
    Key {
        path: "clickhouse.database",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Name of the database, which is created if missing.",
        get: |c| Value::Text(c.clickhouse.database.clone()),
        put: |c, v| put_text(&mut c.clickhouse.database, v),
    },
    Key {
        path: "clickhouse.user",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Name of the user, who needs the rights to create the database and its tables.",
        get: |c| Value::Text(c.clickhouse.user.clone()),
        put: |c, v| put_text(&mut c.clickhouse.user, v),
    },
    Key {
        path: "clickhouse.password_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the user's password; white space around it is ignored. null: no password.",
        get: |c| {
            let file = c.clickhouse.password_file.as_ref();
            file.map_or(Value::Null, |file| {
                Value::Text(file.to_string_lossy().into_owned())
            })
        },
        put: |c, v| c.clickhouse.password_file = as_text(&v).map(PathBuf::from),
    },
    log::level_key(),
    log::format_key(),
    Key {
        path: "shutdown.grace_s",
        kind: Kind::Int(1, 300),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Time after SIGTERM to finish running answers and windows. Agents send windows \
            without an answer again.",
        get: |c| Value::Int(c.shutdown.grace_s.into()),
        put: |c, v| put_int(&mut c.shutdown.grace_s, &v),
    },
];

fn put_text(to: &mut String, value: Value) {
    if let Value::Text(text) = value {
        *to = text;
    }
}
