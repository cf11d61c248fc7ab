//! The table of configuration keys: the only place that states what a key means, its unit and
//! range, and whether a reload applies it. `config/collector.yaml` is generated from it. Defaults
//! are in the section types.

mod archive;
mod clickhouse;
mod data;
mod export;
mod general;
mod hosts;
mod kept;
mod people;
mod senders;

use super::Config;
use config::{Key, Kind, Reload, Value, joined, log, put_int};

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
    (
        "senders",
        "Profiles of SDKs and other agents: Pyroscope's push API and /ingest. They have profile \
         types of their own, in the directory senders of data_dir (clickhouse: in a database of \
         their own, the name of the other with _senders).",
    ),
    (
        "export",
        "Who gets the profiles of agents besides those who ask.",
    ),
    (
        "export.otlp",
        "A receiver of OTLP profiles 1.10: an OpenTelemetry Collector, Pyroscope or another \
         collector. Profiles of other senders are not exported. Of several collectors on one store, \
         each exports what its agents send.",
    ),
    (
        "archive",
        "A bucket of S3, or of a server that speaks its protocol, for the embedded store: it gets \
         partitions an hour after they ended, keeps them longer than the disk, and a new \
         collector starts from it when this one is lost.",
    ),
    ("clickhouse", "The server to use with `store: clickhouse`."),
    ("log", "The collector's own log, on standard error."),
    ("shutdown", "How the collector stops."),
];

/// Keys of no file of their own.
const LAST: &[Key<Config>] = &[
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

/// Files of keys, in the order of the configuration file.
const PARTS: &[&[Key<Config>]] = &[
    general::KEYS,
    people::KEYS,
    hosts::KEYS,
    data::KEYS,
    kept::KEYS,
    senders::KEYS,
    export::KEYS,
    archive::KEYS,
    clickhouse::KEYS,
    LAST,
];

/// Every key, in the order of the file.
pub const KEYS: &[Key<Config>] = &joined::<Config, { config::count(PARTS) }>(PARTS);

fn put_text(to: &mut String, value: Value) {
    if let Value::Text(text) = value {
        *to = text;
    }
}
