//! Keys of the ClickHouse servers.

use super::put_text;
use crate::config::Config;
use config::{Key, Kind, Reload, Value, as_text, path_or_null, put_int, text_or_null};
use std::path::PathBuf;

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "clickhouse.urls",
        kind: Kind::Urls(256),
        unit: "",
        reload: Reload::Restart,
        doc: "HTTP interfaces of servers, such as [http://ch-1:8123, http://ch-2:8123]. The first \
            one that works is used. With clickhouse.cluster: servers of every shard, in any order.",
        get: |c| Value::List(c.clickhouse.urls.clone()),
        put: |c, v| {
            if let Value::List(list) = v {
                c.clickhouse.urls = list;
            }
        },
    },
    Key {
        path: "clickhouse.cluster",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Name of a cluster in the servers' remote_servers. Tables are then replicated within \
            each shard, and each host's windows are on one shard. The servers need a Keeper, and \
            the macros shard and replica. null: tables of one server.",
        get: |c| text_or_null(&c.clickhouse.cluster),
        put: |c, v| c.clickhouse.cluster = as_text(&v).map(str::to_owned),
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
        doc: "Name of the user. `fleetprof-collector store grants` prints the rights that it needs.",
        get: |c| Value::Text(c.clickhouse.user.clone()),
        put: |c, v| put_text(&mut c.clickhouse.user, v),
    },
    Key {
        path: "clickhouse.password_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "File with the user's password; white space at its end is ignored. null: no password.",
        get: |c| path_or_null(&c.clickhouse.password_file),
        put: |c, v| c.clickhouse.password_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "clickhouse.ca_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with authorities that may sign the servers' certificates, in addition to \
            those of the system.",
        get: |c| path_or_null(&c.clickhouse.ca_file),
        put: |c, v| c.clickhouse.ca_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "clickhouse.cert_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the certificate that the collector shows the servers, and those that \
            signed it. null: none.",
        get: |c| path_or_null(&c.clickhouse.cert_file),
        put: |c, v| c.clickhouse.cert_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "clickhouse.key_file",
        kind: Kind::PathOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "PEM file with the key of that certificate.",
        get: |c| path_or_null(&c.clickhouse.key_file),
        put: |c, v| c.clickhouse.key_file = as_text(&v).map(PathBuf::from),
    },
    Key {
        path: "clickhouse.insert_quorum",
        kind: Kind::Int(0, 16),
        unit: "replicas",
        reload: Reload::Restart,
        doc: "Replicas that must have an insert before windows are acknowledged. 0: the one that \
            it is sent to; its disk has it then, and if that disk is lost before another replica \
            has copied it, so are the windows. With 2 or more, inserts wait while fewer replicas \
            work.",
        get: |c| Value::Int(c.clickhouse.insert_quorum.into()),
        put: |c, v| put_int(&mut c.clickhouse.insert_quorum, &v),
    },
    Key {
        path: "clickhouse.storage_policy",
        kind: Kind::IdOrNull(64),
        unit: "",
        reload: Reload::Restart,
        doc: "Storage policy for the tables; it must have the disks of the policy that they have \
            now. null: leave it as it is.",
        get: |c| text_or_null(&c.clickhouse.storage_policy),
        put: |c, v| c.clickhouse.storage_policy = as_text(&v).map(str::to_owned),
    },
    Key {
        path: "clickhouse.cold_after_days",
        kind: Kind::Int(0, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "Age at which data moves to the volume `cold` of that policy, such as a disk in object \
            storage. 0: never.",
        get: |c| Value::Int(c.clickhouse.cold_after_days.into()),
        put: |c, v| put_int(&mut c.clickhouse.cold_after_days, &v),
    },
];
