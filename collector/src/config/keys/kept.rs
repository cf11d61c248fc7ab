//! Keys of what the collector keeps besides windows: pins, captures, annotations, alerts,
//! incidents, symbol tables.

use crate::config::alerts::{ALERTS, RECEIVERS};
use crate::config::measures::MEASURES;
use crate::config::{AlertRule, Config, MeasureEntry, Receiver};
use config::{Key, Kind, Reload, Value, put_bool, put_int};

/// In the order of the file.
pub(super) const KEYS: &[Key<Config>] = &[
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
        doc: "Time between two evaluations of all alerts, and of all measures. An evaluation that \
            takes long is followed by a longer break, so that alerts and measures use at most a \
            fifth of one CPU each.",
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
        path: "measures",
        kind: Kind::Items(&MEASURES),
        unit: "",
        reload: Reload::Restart,
        doc: "Numbers that are measured on stored profiles and stand in `/metrics`: CPU time by a \
            label, and shares of functions. Each is measured on everything that is stored, whoever \
            may see it.",
        get: |c| Value::Items(c.measures.iter().map(MeasureEntry::item).collect()),
        put: |c, v| {
            if let Value::Items(list) = v {
                c.measures = list.into_iter().map(MeasureEntry::of).collect();
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
];
