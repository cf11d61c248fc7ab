//! Keys of windows and queries: how long data is kept, and limits.

use crate::config::Config;
use config::{Key, Kind, Reload, Value, as_text, put_int, socket_address};
use profile::fleet::COLLECTOR_PORT;

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
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
];
