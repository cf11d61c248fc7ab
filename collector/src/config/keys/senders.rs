//! Keys of profiles that others than agents send.

use crate::config::Config;
use config::{Key, Kind, Reload, Value, put_bool, put_int};

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
    Key {
        path: "senders.enabled",
        kind: Kind::Bool,
        unit: "",
        reload: Reload::Restart,
        doc: "Take profiles of other senders. On other machines each needs a token with the role \
            sender (agent-ctl users add), which may send and do nothing else.",
        get: |c| Value::Bool(c.senders.enabled),
        put: |c, v| put_bool(&mut c.senders.enabled, &v),
    },
    Key {
        path: "senders.retention_days",
        kind: Kind::Int(1, 3650),
        unit: "days",
        reload: Reload::Restart,
        doc: "How long to keep profiles of other senders, at full resolution.",
        get: |c| Value::Int(c.senders.retention_days.into()),
        put: |c, v| put_int(&mut c.senders.retention_days, &v),
    },
    Key {
        path: "senders.disk_gib",
        kind: Kind::Int(1, 1 << 20),
        unit: "GiB",
        reload: Reload::Restart,
        doc: "Maximum size of the profiles of other senders, in addition to retention.disk_gib. At \
            the limit the oldest are deleted. Not for clickhouse.",
        get: |c| Value::Int(c.senders.disk_gib.into()),
        put: |c, v| put_int(&mut c.senders.disk_gib, &v),
    },
    Key {
        path: "senders.request_mib",
        kind: Kind::Int(1, 64),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "Maximum size of one request of another sender, unpacked. A larger one is refused. \
            Two are read at a time, and each takes some times its size in memory.",
        get: |c| Value::Int(c.senders.request_mib.into()),
        put: |c, v| put_int(&mut c.senders.request_mib, &v),
    },
    Key {
        path: "senders.sender_mib_per_minute",
        kind: Kind::Int(1, 1 << 20),
        unit: "MiB",
        reload: Reload::Restart,
        doc: "What one sender may send in a minute; requests count unpacked, files of pprof in them \
            as they are. Beyond it requests are refused with the time after which to try again. A \
            sender is a token; all on this machine are one.",
        get: |c| Value::Int(c.senders.sender_mib_per_minute.into()),
        put: |c, v| put_int(&mut c.senders.sender_mib_per_minute, &v),
    },
    Key {
        path: "senders.sender_series_max",
        kind: Kind::Int(1, 1_000_000),
        unit: "series",
        reload: Reload::Restart,
        doc: "Series (combinations of labels and profile type) of one sender in an hour. Profiles \
            of further series are refused.",
        get: |c| Value::Int(c.senders.sender_series_max.into()),
        put: |c, v| put_int(&mut c.senders.sender_series_max, &v),
    },
];
