//! The table of keys: the one place that says what a key means, its unit, range, and whether a
//! reload takes it. `config/collector.yaml` is written from it; defaults stand beside the section
//! types.

use super::auth::RULES;
use super::{Config, Engine, Login, OidcRule, Sandbox};
use config::{
    Key, Kind, Reload, Value, as_text, log, path_or_null, put_bool, put_int, put_word,
    socket_address, text_or_null, word,
};
use proto::COLLECTOR_PORT;
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
        "Where the collector listens: for people and agents of this machine on loopback, for agents of \
         other hosts with TLS.",
    ),
    (
        "web",
        "The page for people of other machines: what it is called, and who is let in. People log in with a token \
         (agent-ctl users add), or by a link (agent-ctl page).",
    ),
    (
        "web.tls",
        "The certificate of listen.https. All null: one that the fleet's authority signs, which no browser knows.",
    ),
    (
        "web.proxy",
        "A proxy in front that says who asks, as oauth2-proxy does. From other addresses its headers are taken off.",
    ),
    ("auth", "Who logs in by other means than a token."),
    (
        "auth.oidc",
        "A provider of OpenID Connect whose people log in to the page with their account there: authorization code \
         with PKCE. What they may do goes by their groups, and who is in none of rules is refused.",
    ),
    (
        "identity",
        "Who the hosts of the fleet are. The authority and the members are in data_dir/identity.",
    ),
    (
        "identity.outside",
        "Hosts whose certificates another authority signs: a company's, cert-manager's, SPIRE's. They need no \
         invitation, and are who their certificate says.",
    ),
    (
        "audit",
        "What was done at this collector, and by whom: an append-only log in the directory audit of data_dir \
         (agent-ctl audit).",
    ),
    (
        "retention",
        "For how long data is kept, and how fine. It becomes coarser by partitions of 6 h (clickhouse: \
         by days); each age is at least the one before. Over the disk budget the oldest goes first, the \
         sums of services last.",
    ),
    ("ingest", "What agents may take."),
    ("query", "What queries may take."),
    ("control", "Captures over the fleet."),
    (
        "pins",
        "Evidence that triggers of agents pinned: files in the directory pins of data_dir, with every store.",
    ),
    (
        "captures",
        "Captures over the fleet that are kept: files in the directory captures of data_dir, with every store, at \
         the collector that was asked.",
    ),
    (
        "annotations",
        "What happened to the fleet and when: deploys that are found, and what people and pipelines note \
         (agent-ctl events); in the directory annotations of data_dir, with every store.",
    ),
    (
        "symbols",
        "Names of functions that agents have none for: symbol tables by build id, in the directory symbols of \
         data_dir, with every store. People upload them (agent-ctl symbols upload), and debuginfod servers \
         have those of distributions.",
    ),
    ("clickhouse", "The server to use with `store: clickhouse`."),
    ("log", "The collector's own log, on standard error."),
    ("shutdown", "The end of the collector."),
];

/// Every key, in the order of the file.
pub const KEYS: &[Key<Config>] = &[
    Key {
        path: "data_dir",
        kind: Kind::Path,
        unit: "",
        reload: Reload::Restart,
        doc: "Where the embedded store keeps its data, and every collector the pins of agents and captures. It is made \
              when it is missing; one collector at a time may use it.",
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
        doc: "What stores the windows. embedded: files in data_dir, nothing else needed. clickhouse: \
              the server of the section clickhouse, which any number of collectors may share.",
        get: |c| word(&c.store, ENGINES),
        put: |c, v| put_word(&mut c.store, &v, ENGINES),
    },
    Key {
        path: "sandbox",
        kind: Kind::Word(&["auto", "off"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Whether the collector gives up what it does not need before it does anything else: all files but \
              data_dir and those that are named here, all TCP ports but its own (Landlock), and system calls such \
              as execve, ptrace, mount and bpf (seccomp). auto: as far as the kernel has it; `agent-ctl status` says \
              what is in force.",
        get: |c| word(&c.sandbox, SANDBOX),
        put: |c, v| put_word(&mut c.sandbox, &v, SANDBOX),
    },
    Key {
        path: "service_labels",
        kind: Kind::Names(8),
        unit: "",
        reload: Reload::Restart,
        doc: "What a service is: the value of the first of these labels that a sample has. Sums over \
              the hosts of a service are kept next to those of each host, so that questions about \
              services stay fast whatever the number of hosts.",
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
        doc: "For agents and agent-ctl, over gRPC.",
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
        doc: "For browsers and scrapers, over HTTP: the page, downloads, /metrics and /healthz.",
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
        doc: "For hosts and people of other machines, over gRPC with TLS 1.3, at any address: 0.0.0.0:7601. Hosts \
              are let in by `agent-ctl hosts invite`, people by `agent-ctl users add`, and nobody else is answered. \
              null: this machine alone.",
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
        doc: "For browsers and scrapers of other machines, over HTTPS, at any address: 0.0.0.0:7611. The same as \
              listen.http, with a login. null: this machine alone.",
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
        doc: "What hosts and people of other machines call listen.tls: HOST, or HOST:PORT where the port is another \
              one for them. It stands in the lines that `agent-ctl hosts invite` and `users add` print. null: the \
              machine's own name, which in a container nobody else knows.",
        get: |c| text_or_null(&c.listen.advertise),
        put: |c, v| c.listen.advertise = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.external_url",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "How browsers of other machines open the page: https://profiles.example.net. Requests for other names \
              are refused, but for the machine's own and for addresses.",
        get: |c| text_or_null(&c.web.external_url),
        put: |c, v| c.web.external_url = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.login",
        kind: Kind::Word(&["auto", "always"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Where the page asks for a login. auto: at listen.https, and at listen.http where web.proxy.user_header \
              is set. always: at listen.http too, for a proxy that leads there.",
        get: |c| word(&c.web.login, LOGINS),
        put: |c, v| put_word(&mut c.web.login, &v, LOGINS),
    },
    Key {
        path: "web.tls.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the certificate and those that signed it. It is read again when it changes.",
        get: |c| path_or_null(&c.web.tls.cert_file),
        put: |c, v| c.web.tls.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.tls.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with its key.",
        get: |c| path_or_null(&c.web.tls.key_file),
        put: |c, v| c.web.tls.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "web.proxy.from",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "IP addresses that the proxy connects from, with `,` between them. Whoever can connect from there can be \
              anybody: on the proxy's machine, every process.",
        get: |c| text_or_null(&c.web.proxy.from),
        put: |c, v| c.web.proxy.from = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.user_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header in which the proxy names whoever asks, as in X-Forwarded-User. It must set or remove it on every \
              request. null: no proxy is believed.",
        get: |c| text_or_null(&c.web.proxy.user_header),
        put: |c, v| c.web.proxy.user_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role_header",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Header in which the proxy gives their role: metrics, viewer, operator or admin. null: web.proxy.role is \
              everybody's.",
        get: |c| text_or_null(&c.web.proxy.role_header),
        put: |c, v| c.web.proxy.role_header = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "web.proxy.role",
        kind: Kind::Word(&["metrics", "viewer", "operator", "admin"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Role of those for whom the proxy gives none.",
        get: |c| Value::Text(c.web.proxy.role.clone()),
        put: |c, v| put_text(&mut c.web.proxy.role, v),
    },
    Key {
        path: "auth.oidc.issuer",
        kind: Kind::IdOrNull(512),
        unit: "",
        reload: Reload::Restart,
        doc: "Who the provider is, letter by letter as it says itself in /.well-known/openid-configuration below this \
              address: https://login.example.net/realms/main. null: nobody logs in so.",
        get: |c| text_or_null(&c.auth.oidc.issuer),
        put: |c, v| c.auth.oidc.issuer = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_id",
        kind: Kind::IdOrNull(256),
        unit: "",
        reload: Reload::Restart,
        doc: "What the collector is called at the provider, as a confidential client with the redirect address \
              web.external_url and /login/oidc/callback.",
        get: |c| text_or_null(&c.auth.oidc.client_id),
        put: |c, v| c.auth.oidc.client_id = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "auth.oidc.client_secret_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the secret of that client; white space around it is left out. It is read at each login.",
        get: |c| path_or_null(&c.auth.oidc.client_secret_file),
        put: |c, v| c.auth.oidc.client_secret_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.provider_name",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "What the button of the login says after `Sign in with`.",
        get: |c| Value::Text(c.auth.oidc.provider_name.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.provider_name, v),
    },
    Key {
        path: "auth.oidc.scopes",
        kind: Kind::Text(512),
        unit: "",
        reload: Reload::Restart,
        doc: "What the provider is asked for, with spaces between; openid is always one of them. Some give groups only \
              for a scope of their own, and some refuse scopes that they do not know.",
        get: |c| Value::Text(c.auth.oidc.scopes.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.scopes, v),
    },
    Key {
        path: "auth.oidc.groups_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim that has somebody's groups: a list of texts at the top of the ID token, or of what the provider says \
              at its userinfo address.",
        get: |c| Value::Text(c.auth.oidc.groups_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.groups_claim, v),
    },
    Key {
        path: "auth.oidc.name_claim",
        kind: Kind::Text(128),
        unit: "",
        reload: Reload::Restart,
        doc: "Claim that has their name, which is oidc:NAME in the audit log. Where two have one name, the second to \
              come has a mark behind it.",
        get: |c| Value::Text(c.auth.oidc.name_claim.clone()),
        put: |c, v| put_text(&mut c.auth.oidc.name_claim, v),
    },
    Key {
        path: "auth.oidc.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities that may sign the provider's certificate, beside those that the system knows.",
        get: |c| path_or_null(&c.auth.oidc.ca_file),
        put: |c, v| c.auth.oidc.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "auth.oidc.rules",
        kind: Kind::Items(&RULES),
        unit: "",
        reload: Reload::Restart,
        doc: "What somebody may do: the first rule of whose group they are decides, and the others are not looked at. \
              Who is in none of these groups is refused. Sessions of before a change of auth.oidc end with it.",
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
        doc: "How long the certificate of a host lasts. Hosts renew theirs by themselves after two thirds of it, and \
              later too: a host that was off for a year comes back.",
        get: |c| Value::Int(c.identity.host_days.into()),
        put: |c, v| put_int(&mut c.identity.host_days, &v),
    },
    Key {
        path: "identity.outside.ca_files",
        kind: Kind::Paths(8),
        unit: "",
        reload: Reload::Restart,
        doc: "PEM files with the authorities whose certificates are hosts' too. They are read again when they change.",
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
        doc: "Which names in such certificates are hosts of this fleet. spiffe://DOMAIN/PATH/: SPIFFE IDs that start \
              so; the host's name is what follows, and its label spiffe_id the whole. dns:*.hosts.example.net: names \
              in DNS that end so, one to a certificate.",
        get: |c| text_or_null(&c.identity.outside.hosts),
        put: |c, v| c.identity.outside.hosts = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "identity.outside.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with a certificate, and those that signed it, that listen.tls shows to whoever asks for another \
              name than collector.fleetprof.internal. It is read again when it changes. null: that of the fleet's own \
              authority, to everybody.",
        get: |c| path_or_null(&c.identity.outside.cert_file),
        put: |c, v| c.identity.outside.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "identity.outside.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with its key.",
        get: |c| path_or_null(&c.identity.outside.key_file),
        put: |c, v| c.identity.outside.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "audit.disk_mib",
        kind: Kind::Int(32, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that the audit log may take, apart from retention.disk_gib. At the bound its oldest file goes; a \
              line takes about 400 bytes.",
        get: |c| Value::Int(c.audit.disk_mib.into()),
        put: |c, v| put_int(&mut c.audit.disk_mib, &v),
    },
    Key {
        path: "audit.queries",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Whether reads of people with a login are on record too: who asked which call, and when.",
        get: |c| Value::Bool(c.audit.queries),
        put: |c, v| put_bool(&mut c.audit.queries, &v),
    },
    Key {
        path: "retention.raw_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long windows are kept as they came, in steps of 10 s. A host of 16 busy CPUs takes about 35 \
              MB a day.",
        get: |c| Value::Int(c.retention.raw_days.into()),
        put: |c, v| put_int(&mut c.retention.raw_days, &v),
    },
    Key {
        path: "retention.minute_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age up to which data is kept in steps of a minute, about four fifths as large. With clickhouse: sums \
              over the hosts of each service only.",
        get: |c| Value::Int(c.retention.minute_days.into()),
        put: |c, v| put_int(&mut c.retention.minute_days, &v),
    },
    Key {
        path: "retention.ten_minutes_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age up to which data is kept in steps of ten minutes, about half as large. Windows that \
              agents bring later are refused and counted. With clickhouse: lines over time and totals, \
              without stacks; windows are refused after raw_days.",
        get: |c| Value::Int(c.retention.ten_minutes_days.into()),
        put: |c, v| put_int(&mut c.retention.ten_minutes_days, &v),
    },
    Key {
        path: "retention.service_hours_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age up to which sums over the hosts of each service are kept in steps of an hour. Samples \
              as old as that have no label but their service's. What is older is removed.",
        get: |c| Value::Int(c.retention.service_hours_days.into()),
        put: |c, v| put_int(&mut c.retention.service_hours_days, &v),
    },
    Key {
        path: "retention.disk_gib",
        kind: Kind::Int(1, 1 << 20),
        unit: "GiB",
        reload: Reload::Restart,
        doc: "Most that data_dir may take. At the bound the oldest data goes before its age. Not for \
              clickhouse, which has bounds of its own.",
        get: |c| Value::Int(c.retention.disk_gib.into()),
        put: |c, v| put_int(&mut c.retention.disk_gib, &v),
    },
    Key {
        path: "ingest.streams_max",
        kind: Kind::Int(1, 65_536),
        unit: "agents",
        reload: Reload::Restart,
        doc: "Agents connected at a time. More are told to come again later; they keep their windows \
              meanwhile. Each takes a file descriptor.",
        get: |c| Value::Int(c.ingest.streams_max.into()),
        put: |c, v| put_int(&mut c.ingest.streams_max, &v),
    },
    Key {
        path: "ingest.memory_mib",
        kind: Kind::Int(128, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for what agents have sent and the store has not yet taken, and for what their \
              streams carry: about 0.5 MiB an agent. At the bound agents are not read, and keep \
              their windows.",
        get: |c| Value::Int(c.ingest.memory_mib.into()),
        put: |c, v| put_int(&mut c.ingest.memory_mib, &v),
    },
    Key {
        path: "query.concurrent",
        kind: Kind::Int(1, 64),
        unit: "queries",
        reload: Reload::Restart,
        doc: "Queries that run at a time; more wait until their time is over. Each takes a thread, and \
              memory up to query.memory_mib.",
        get: |c| Value::Int(c.query.concurrent.into()),
        put: |c, v| put_int(&mut c.query.concurrent, &v),
    },
    Key {
        path: "query.timeout_s",
        kind: Kind::Int(1, 600),
        unit: "seconds",
        reload: Reload::Restart,
        doc: "Time for one query, waiting included. One that takes longer is given up.",
        get: |c| Value::Int(c.query.timeout_s.into()),
        put: |c, v| put_int(&mut c.query.timeout_s, &v),
    },
    Key {
        path: "query.memory_mib",
        kind: Kind::Int(16, 65_536),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Memory for one query, the file it writes included. One that needs more is refused, with what \
              to narrow. Answers that wait to be read have as much again, all together.",
        get: |c| Value::Int(c.query.memory_mib.into()),
        put: |c, v| put_int(&mut c.query.memory_mib, &v),
    },
    Key {
        path: "query.nodes_max",
        kind: Kind::Int(1000, 10_000_000),
        unit: "stacks",
        reload: Reload::Restart,
        doc: "Most stacks of one profile; the lightest are folded into their callers, and their weight \
              is told with the answer.",
        get: |c| Value::Int(c.query.nodes_max.into()),
        put: |c, v| put_int(&mut c.query.nodes_max, &v),
    },
    Key {
        path: "control.advertise",
        kind: Kind::PeerOrNull(COLLECTOR_PORT),
        unit: "",
        reload: Reload::Restart,
        doc: "Where other collectors on the same clickhouse reach listen.grpc of this one, so that a capture \
              asked of any of them reaches the agents of all; null: they are not told of its agents. Loopback \
              only, as listen.grpc is: of another machine the end of a tunnel.",
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
        doc: "How long pins are kept after they came, whatever is left of the windows of their time.",
        get: |c| Value::Int(c.pins.retention_days.into()),
        put: |c, v| put_int(&mut c.pins.retention_days, &v),
    },
    Key {
        path: "pins.disk_mib",
        kind: Kind::Int(1, 1 << 24),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that all pins may take, apart from retention.disk_gib. At the bound the host whose pins take most \
              loses its oldest. A pin of some minutes of a busy host takes about 1 MiB.",
        get: |c| Value::Int(c.pins.disk_mib.into()),
        put: |c, v| put_int(&mut c.pins.disk_mib, &v),
    },
    Key {
        path: "pins.host_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that the pins of one host may take, and about what it may upload in a day. At the bound its \
              oldest goes; a larger pin is refused and stays with its agent.",
        get: |c| Value::Int(c.pins.host_mib.into()),
        put: |c, v| put_int(&mut c.pins.host_mib, &v),
    },
    Key {
        path: "captures.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long captures over the fleet are kept after they ended.",
        get: |c| Value::Int(c.captures.retention_days.into()),
        put: |c, v| put_int(&mut c.captures.retention_days, &v),
    },
    Key {
        path: "captures.disk_mib",
        kind: Kind::Int(1, 1 << 24),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that all kept captures may take, apart from retention.disk_gib. At the bound the oldest goes. \
              A single one that takes more is not kept, which its result says. A host takes about 100 KiB for 30 s \
              of CPU time.",
        get: |c| Value::Int(c.captures.disk_mib.into()),
        put: |c, v| put_int(&mut c.captures.disk_mib, &v),
    },
    Key {
        path: "captures.count_max",
        kind: Kind::Int(1, 10_000),
        unit: "captures",
        reload: Reload::Restart,
        doc: "Most captures that are kept; of more the oldest go. Some KiB of memory each.",
        get: |c| Value::Int(c.captures.count_max.into()),
        put: |c, v| put_int(&mut c.captures.count_max, &v),
    },
    Key {
        path: "annotations.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long annotations are kept after their time. There are 10,000 at most, the oldest go first.",
        get: |c| Value::Int(c.annotations.retention_days.into()),
        put: |c, v| put_int(&mut c.annotations.retention_days, &v),
    },
    Key {
        path: "annotations.find_deploys",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Whether deploys are found: an agent that changes its version, a service that has a new image or \
              version. Each is an annotation, once over all hosts.",
        get: |c| Value::Bool(c.annotations.find_deploys),
        put: |c, v| put_bool(&mut c.annotations.find_deploys, &v),
    },
    Key {
        path: "symbols.disk_mib",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Most that all symbol tables may take, apart from retention.disk_gib. At the bound those that were \
              fetched and not used for longest go first; uploads go for other uploads only.",
        get: |c| Value::Int(c.symbols.disk_mib.into()),
        put: |c, v| put_int(&mut c.symbols.disk_mib, &v),
    },
    Key {
        path: "symbols.debuginfod",
        kind: Kind::Urls(8),
        unit: "",
        reload: Reload::Restart,
        doc: "Servers that are asked, in this order, for the builds whose functions had no names in an answer: \
              they learn which builds run here. No answer waits for them; what they have is in the next one.",
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
        doc: "Its HTTP interface: http://HOST:PORT or https://HOST:PORT.",
        get: |c| Value::Text(c.clickhouse.url.clone()),
        put: |c, v| put_text(&mut c.clickhouse.url, v),
    },
    Key {
        path: "clickhouse.database",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "The database; it is made when it is missing.",
        get: |c| Value::Text(c.clickhouse.database.clone()),
        put: |c, v| put_text(&mut c.clickhouse.database, v),
    },
    Key {
        path: "clickhouse.user",
        kind: Kind::Text(64),
        unit: "",
        reload: Reload::Restart,
        doc: "The user. It needs the rights to make the database and its tables.",
        get: |c| Value::Text(c.clickhouse.user.clone()),
        put: |c, v| put_text(&mut c.clickhouse.user, v),
    },
    Key {
        path: "clickhouse.password_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the user's password; white space around it is left out. null: none.",
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
        doc: "Time after SIGTERM for windows and answers under way. What agents have sent and got no \
              answer for, they send again.",
        get: |c| Value::Int(c.shutdown.grace_s.into()),
        put: |c, v| put_int(&mut c.shutdown.grace_s, &v),
    },
];

fn put_text(to: &mut String, value: Value) {
    if let Value::Text(text) = value {
        *to = text;
    }
}
