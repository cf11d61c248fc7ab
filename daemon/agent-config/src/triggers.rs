//! The list `triggers`: its keys, and one entry as a type. [`Rule`] parses the texts of an entry.

pub mod condition;
pub mod rule;
pub mod target;

pub use rule::{Rule, RuleError};

use config::{Field, Item, Items, Kind, Value, parse_seconds, show_seconds};
use rule::TRIGGERS_MAX;
use serde::{Serialize, Serializer};

/// Longest time that a pin may start before its trigger fired: the recorder's longest default
/// retention. Unit: seconds.
const BEFORE_MAX_S: u64 = 3600;

/// Longest time that a pin may go on after its trigger fired. Unit: seconds.
const AFTER_MAX_S: u64 = 3600;

/// Keys of an entry in `triggers`.
pub(super) static ITEMS: Items = Items {
    what: "trigger",
    max: TRIGGERS_MAX,
    fields: FIELDS,
    example: EXAMPLE,
};

const EXAMPLE: &str = "\
triggers:
  - name: api-throttled
    target: /system.slice/api.service
    when: nr_throttled > 5/s
    for: 10s
    cooldown: 15m
    capture: {event: off-cpu, duration: 20s}
  - {name: pressure, target: host, when: psi.cpu.some.avg10 > 40, clear: 20}
  - {name: jump, target: \"/system.slice/*.service\", when: cpu_share rises > 3x in 60s}
";

const FIELDS: &[Field] = &[
    Field {
        name: "name",
        kind: Kind::Text(64),
        required: true,
        default: "",
        doc: "Name of the trigger in pins, status and log: letters, digits, `_`, `.` and `-`.",
    },
    Field {
        name: "target",
        kind: Kind::Text(1024),
        required: true,
        default: "",
        doc: "What the trigger checks, with all cgroups below: `host`, the path of a cgroup, a \
            path with `*` and `?` in names (`/system.slice/*.service`; `**` is any number of \
            names), or the name of a unit. Each matching cgroup is checked separately.",
    },
    Field {
        name: "when",
        kind: Kind::Text(128),
        required: true,
        default: "",
        doc: "`QUANTITY > NUMBER` or `QUANTITY rises > NUMBERx in TIME`, which compares with the \
              mean of the time before. Quantities: cpu_share (of all CPUs, 0 to 1), cpus (CPUs in \
              use), nr_throttled (periods a second in which cpu.max throttled the cgroup), \
              run_queue (running or waiting tasks for each CPU; host only), \
              psi.RESOURCE.KIND.AVERAGE (cpu, memory or io; some or full; avg10, avg60 or avg300; \
              percent).",
    },
    Field {
        name: "for",
        kind: Kind::Duration(0, 3600),
        required: false,
        default: "0s",
        doc: "How long the condition must hold without a break.",
    },
    Field {
        name: "clear",
        kind: Kind::Decimal,
        required: false,
        default: "the number of `when`",
        doc: "The trigger can fire again only after the quantity (with `rises`: its multiple) was \
            at or below this.",
    },
    Field {
        name: "cooldown",
        kind: Kind::Duration(0, 604_800),
        required: false,
        default: "10m",
        doc: "Shortest time between two firings for the same target.",
    },
    Field {
        name: "max_per_day",
        kind: Kind::Int(1, 1000),
        required: false,
        default: "10",
        doc: "Maximum number of firings on one day (UTC), over all targets.",
    },
    Field {
        name: "keep_before",
        kind: Kind::Duration(0, BEFORE_MAX_S),
        required: false,
        default: "5m",
        doc: "How much of the time before to pin.",
    },
    Field {
        name: "keep_after",
        kind: Kind::Duration(0, AFTER_MAX_S),
        required: false,
        default: "2m",
        doc: "How much of the time after to pin.",
    },
    Field {
        name: "capture.event",
        kind: Kind::Text(256),
        required: true,
        default: "",
        doc: "Capture this event of the target when the trigger fires, as `agent-ctl capture` \
            does.",
    },
    Field {
        name: "capture.duration",
        kind: Kind::Duration(1, 3600),
        required: false,
        default: "30s",
        doc: "How long to capture.",
    },
    Field {
        name: "capture.rate_hz",
        kind: Kind::IntOrAuto(1, 9999),
        required: false,
        default: "0",
        doc: "Samples a second on each CPU.",
    },
    Field {
        name: "capture.filter",
        kind: Kind::Text(512),
        required: false,
        default: "",
        doc: "The kernel's filter expression for a tracepoint.",
    },
];

/// A time in seconds, written `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_seconds(self.0))
    }
}

impl From<Seconds> for std::time::Duration {
    fn from(Seconds(seconds): Seconds) -> Self {
        std::time::Duration::from_secs(seconds)
    }
}

/// An entry of `triggers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trigger {
    /// Its name.
    pub name: String,
    /// Its target.
    pub target: String,
    /// The condition.
    pub when: String,
    /// How long it has to hold.
    #[serde(rename = "for")]
    pub hold: Seconds,
    /// Below this it is armed again; none: the condition's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear: Option<String>,
    /// Shortest time between two firings.
    pub cooldown: Seconds,
    /// Most firings on one day.
    pub max_per_day: u32,
    /// Past that is pinned.
    pub keep_before: Seconds,
    /// Future that is pinned.
    pub keep_after: Seconds,
    /// The capture that the trigger also starts; `None`: it only pins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<TriggerCapture>,
}

/// `capture` of a trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TriggerCapture {
    /// The event.
    pub event: String,
    /// How long to capture.
    pub duration: Seconds,
    /// Samples a second on each CPU; 0: as the event is best sampled.
    pub rate_hz: u32,
    /// The kernel's filter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub filter: String,
}

impl Default for Trigger {
    fn default() -> Self {
        Trigger {
            name: String::new(),
            target: String::new(),
            when: String::new(),
            hold: Seconds(0),
            clear: None,
            cooldown: Seconds(600),
            max_per_day: 10,
            keep_before: Seconds(300),
            keep_after: Seconds(120),
            capture: None,
        }
    }
}

impl Default for TriggerCapture {
    fn default() -> Self {
        TriggerCapture {
            event: String::new(),
            duration: Seconds(30),
            rate_hz: 0,
            filter: String::new(),
        }
    }
}

impl Trigger {
    /// From what was admitted by [`ITEMS`].
    pub(super) fn of(item: Item) -> Trigger {
        let mut trigger = Trigger::default();
        for (name, value) in item {
            let capture = |trigger: &mut Trigger, put: &dyn Fn(&mut TriggerCapture)| {
                put(trigger.capture.get_or_insert_default());
            };
            let text = match &value {
                Value::Text(text) => text.clone(),
                _ => String::new(),
            };
            let number = match value {
                Value::Int(number) => u32::try_from(number).unwrap_or(u32::MAX),
                _ => 0,
            };
            let seconds = Seconds(parse_seconds(&text).unwrap_or(0));
            match name.as_str() {
                "name" => trigger.name = text,
                "target" => trigger.target = text,
                "when" => trigger.when = text,
                "for" => trigger.hold = seconds,
                "clear" => trigger.clear = Some(text),
                "cooldown" => trigger.cooldown = seconds,
                "max_per_day" => trigger.max_per_day = number,
                "keep_before" => trigger.keep_before = seconds,
                "keep_after" => trigger.keep_after = seconds,
                "capture.event" => capture(&mut trigger, &|c| c.event.clone_from(&text)),
                "capture.duration" => capture(&mut trigger, &|c| c.duration = seconds),
                "capture.rate_hz" => capture(&mut trigger, &|c| c.rate_hz = number),
                "capture.filter" => capture(&mut trigger, &|c| c.filter.clone_from(&text)),
                _ => {}
            }
        }
        trigger
    }

    /// As [`ITEMS`] admits it.
    pub(super) fn item(&self) -> Item {
        let text = |text: &str| Value::Text(text.to_owned());
        let seconds = |Seconds(seconds): Seconds| Value::Text(show_seconds(seconds));
        let mut item = vec![
            ("name", text(&self.name)),
            ("target", text(&self.target)),
            ("when", text(&self.when)),
            ("for", seconds(self.hold)),
        ];
        item.extend(self.clear.as_deref().map(|clear| ("clear", text(clear))));
        item.extend([
            ("cooldown", seconds(self.cooldown)),
            ("max_per_day", Value::Int(self.max_per_day.into())),
            ("keep_before", seconds(self.keep_before)),
            ("keep_after", seconds(self.keep_after)),
        ]);
        if let Some(capture) = &self.capture {
            item.push(("capture.event", text(&capture.event)));
            item.push(("capture.duration", seconds(capture.duration)));
            item.push(("capture.rate_hz", Value::Int(capture.rate_hz.into())));
            if !capture.filter.is_empty() {
                item.push(("capture.filter", text(&capture.filter)));
            }
        }
        let owned = |(name, value): (&str, Value)| (name.to_owned(), value);
        item.into_iter().map(owned).collect()
    }
}
