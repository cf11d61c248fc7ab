//! The lists `alerts` and `receivers`: their keys, and one entry of each as a type.
//! [`super::Rule`] parses the texts of an alert.

use config::{Field, Item, Items, Kind, Value, parse_seconds, show_seconds};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Most rules. Each is at least one query in each round.
pub const RULES_MAX: usize = 64;

/// Most receivers.
pub const RECEIVERS_MAX: usize = 16;

/// Longest time that a value is the mean of. Unit: seconds.
pub(super) const OVER_MAX_S: u64 = 3600;

/// Section `alerting`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Alerting {
    /// Time between two rounds. Unit: seconds.
    pub interval_s: u32,
    /// How long changes of a rule wait for further ones. Unit: seconds.
    pub wait_s: u32,
    /// Age up to which resolved alerts are kept, days.
    pub retention_days: u32,
}

/// Keys of an entry in `alerts`.
pub(super) static ALERTS: Items = Items {
    what: "alert",
    max: RULES_MAX,
    fields: ALERT_FIELDS,
    example: ALERTS_EXAMPLE,
};

const ALERTS_EXAMPLE: &str = "\
alerts:
  - name: api-cpu
    selector: unit=\"api.service\"
    when: cores > baseline x 1.5
    baseline: yesterday
    for: 5m
    to: oncall
  - name: api-malloc
    selector: unit=\"api.service\"
    when: share > 12%
    function: malloc
    by: host
    over: 5m
    for: 5m
    clear: 10
    severity: ticket
";

const ALERT_FIELDS: &[Field] = &[
    Field {
        name: "name",
        kind: Kind::Text(64),
        required: true,
        default: "",
        doc: "Name of the alert: letters, digits, `_`, `.` and `-`. An alert that keeps its name \
              keeps its state over a restart.",
    },
    Field {
        name: "selector",
        kind: Kind::Text(1024),
        required: false,
        default: "the complete fleet",
        doc: "Samples that it is about, as in every query.",
    },
    Field {
        name: "when",
        kind: Kind::Text(128),
        required: true,
        default: "",
        doc: "`QUANTITY > NUMBER`, `QUANTITY < NUMBER` or `QUANTITY > baseline x FACTOR`. \
              Quantities: cores (CPU time for each second), share (percent of the samples that \
              have `function` in their stack).",
    },
    Field {
        name: "function",
        kind: Kind::Text(512),
        required: false,
        default: "",
        doc: "The function of a share: its exact name, or a pattern between slashes \
              (`/^je_.*alloc$/`).",
    },
    Field {
        name: "by",
        kind: Kind::Text(128),
        required: false,
        default: "one alert for the selection",
        doc: "A label, such as `host`: each of its values is an alert of its own, at most 200.",
    },
    Field {
        name: "baseline",
        kind: Kind::Word(&["hour", "yesterday", "last_week"]),
        required: false,
        default: "hour",
        doc: "What `baseline` is: the mean of the hour before, or of the hour around the same time \
              a day or a week ago.",
    },
    Field {
        name: "at_least",
        kind: Kind::Decimal,
        required: false,
        default: "with a baseline 0.1 cores or 1 percent",
        doc: "A value below this never fires, whatever the baseline is.",
    },
    Field {
        name: "over",
        kind: Kind::Duration(10, OVER_MAX_S),
        required: false,
        default: "1m",
        doc: "The value is the mean over this time.",
    },
    Field {
        name: "for",
        kind: Kind::Duration(0, 86_400),
        required: false,
        default: "0s",
        doc: "How long the condition must hold without a break.",
    },
    Field {
        name: "clear",
        kind: Kind::Decimal,
        required: false,
        default: "the number of `when`",
        doc: "The alert is over only once the value (with a baseline: its multiple) is on the \
              other side of this.",
    },
    Field {
        name: "keep_firing",
        kind: Kind::Duration(0, 86_400),
        required: false,
        default: "1m",
        doc: "How long it must be over without a break before the alert is resolved.",
    },
    Field {
        name: "no_data",
        kind: Kind::Word(&["keep", "ok", "fire"]),
        required: false,
        default: "keep",
        doc: "What missing or lossy data means. keep: nothing changes, for at most 6 h. ok: the \
              alert is over. fire: the condition holds.",
    },
    Field {
        name: "severity",
        kind: Kind::Text(32),
        required: false,
        default: "",
        doc: "The label `severity` of notifications.",
    },
    Field {
        name: "summary",
        kind: Kind::Text(512),
        required: false,
        default: "",
        doc: "A sentence for whoever is notified.",
    },
    Field {
        name: "incident",
        kind: Kind::Bool,
        required: false,
        default: "false",
        doc: "Open an incident when the alert fires, with the profile of the minutes before.",
    },
    Field {
        name: "to",
        kind: Kind::Text(512),
        required: false,
        default: "all receivers",
        doc: "Names of receivers, with `,` between them; `none`: only the page and agent-ctl \
              show it.",
    },
];

/// Keys of an entry in `receivers`.
pub(super) static RECEIVERS: Items = Items {
    what: "receiver",
    max: RECEIVERS_MAX,
    fields: RECEIVER_FIELDS,
    example: RECEIVERS_EXAMPLE,
};

const RECEIVERS_EXAMPLE: &str = "\
receivers:
  - {name: oncall, format: alertmanager, url: \"https://hooks.example.net/fleetprof\"}
  - {name: chat, format: slack, url_file: /etc/fleetprof/secrets/chat-url}
";

const RECEIVER_FIELDS: &[Field] = &[
    Field {
        name: "name",
        kind: Kind::Text(64),
        required: true,
        default: "",
        doc: "Name of the receiver: letters, digits, `_`, `.` and `-`.",
    },
    Field {
        name: "format",
        kind: Kind::Word(&["alertmanager", "slack"]),
        required: true,
        default: "",
        doc: "alertmanager: the JSON of an Alertmanager webhook, version 4. slack: a text for \
              Slack, Mattermost and others with such webhooks.",
    },
    Field {
        name: "url",
        kind: Kind::Text(2048),
        required: false,
        default: "",
        doc: "Address of the webhook, http:// or https://. The collector shows it nowhere.",
    },
    Field {
        name: "url_file",
        kind: Kind::Path,
        required: false,
        default: "",
        doc: "File with the address, so that it is not in this one. The collector reads it for \
              each notification.",
    },
];

/// An entry of `alerts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlertRule {
    /// Its name.
    pub name: String,
    /// Its samples.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The condition.
    pub when: String,
    /// The function of a share.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// The label of its groups; empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Which time a baseline is.
    pub baseline: String,
    /// Least value that fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<String>,
    /// What a value is the mean of. Unit: seconds.
    #[serde(serialize_with = "as_time")]
    pub over: u64,
    /// How long the condition has to hold. Unit: seconds.
    #[serde(rename = "for", serialize_with = "as_time")]
    pub hold: u64,
    /// Where it is over; none: at the condition's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear: Option<String>,
    /// How long it has to be over. Unit: seconds.
    #[serde(serialize_with = "as_time")]
    pub keep_firing: u64,
    /// What missing data means.
    pub no_data: String,
    /// A label of notifications.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub severity: String,
    /// A sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Whether it opens an incident.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incident: bool,
    /// Who is notified; empty: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
}

/// An entry of `receivers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// What it reads.
    pub format: String,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<SecretUrl>,
    /// Where that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
}

/// An address that lets whoever has it send messages: it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(pub String);

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

pub(super) fn as_time<S: Serializer>(seconds: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show_seconds(*seconds))
}

impl Default for AlertRule {
    fn default() -> AlertRule {
        AlertRule {
            name: String::new(),
            selector: String::new(),
            when: String::new(),
            function: String::new(),
            by: String::new(),
            baseline: "hour".to_owned(),
            at_least: None,
            over: 60,
            hold: 0,
            clear: None,
            keep_firing: 60,
            no_data: "keep".to_owned(),
            severity: String::new(),
            summary: String::new(),
            incident: false,
            to: String::new(),
        }
    }
}

impl AlertRule {
    /// From what was admitted by [`ALERTS`].
    pub(super) fn of(item: Item) -> AlertRule {
        let mut rule = AlertRule::default();
        for (name, value) in item {
            if let ("incident", Value::Bool(opens)) = (name.as_str(), &value) {
                rule.incident = *opens;
            }
            let Value::Text(text) = value else { continue };
            let seconds = parse_seconds(&text).unwrap_or(0);
            match name.as_str() {
                "name" => rule.name = text,
                "selector" => rule.selector = text,
                "when" => rule.when = text,
                "function" => rule.function = text,
                "by" => rule.by = text,
                "baseline" => rule.baseline = text,
                "at_least" => rule.at_least = Some(text),
                "over" => rule.over = seconds,
                "for" => rule.hold = seconds,
                "clear" => rule.clear = Some(text),
                "keep_firing" => rule.keep_firing = seconds,
                "no_data" => rule.no_data = text,
                "severity" => rule.severity = text,
                "summary" => rule.summary = text,
                "to" => rule.to = text,
                _ => {}
            }
        }
        rule
    }

    /// As [`ALERTS`] admits it.
    pub(super) fn item(&self) -> Item {
        let maybe = |name, text: &Option<String>| text.clone().map(|t| (name, Value::Text(t)));
        written([
            text("name", &self.name),
            text("selector", &self.selector),
            text("when", &self.when),
            text("function", &self.function),
            text("by", &self.by),
            text("baseline", &self.baseline),
            maybe("at_least", &self.at_least),
            seconds("over", self.over),
            seconds("for", self.hold),
            maybe("clear", &self.clear),
            seconds("keep_firing", self.keep_firing),
            text("no_data", &self.no_data),
            text("severity", &self.severity),
            text("summary", &self.summary),
            self.incident.then_some(("incident", Value::Bool(true))),
            text("to", &self.to),
        ])
    }
}

/// An entry of a list, of the keys that are written.
pub(super) fn written<const N: usize>(keys: [Option<(&str, Value)>; N]) -> Item {
    let keys = keys.into_iter().flatten();
    keys.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A key with its text; none where that is empty.
pub(super) fn text<'n>(name: &'n str, text: &str) -> Option<(&'n str, Value)> {
    (!text.is_empty()).then(|| (name, Value::Text(text.to_owned())))
}

/// A key with its time.
pub(super) fn seconds(name: &str, seconds: u64) -> Option<(&str, Value)> {
    Some((name, Value::Text(show_seconds(seconds))))
}

impl Receiver {
    /// From what was admitted by [`RECEIVERS`].
    pub(super) fn of(item: Item) -> Receiver {
        let mut receiver = Receiver::default();
        for (name, value) in item {
            let Value::Text(text) = value else { continue };
            match name.as_str() {
                "name" => receiver.name = text,
                "format" => receiver.format = text,
                "url" => receiver.url = Some(SecretUrl(text)),
                "url_file" => receiver.url_file = Some(PathBuf::from(text)),
                _ => {}
            }
        }
        receiver
    }

    /// As [`RECEIVERS`] admits it.
    pub(super) fn item(&self) -> Item {
        let url = self.url.as_ref().map(|url| ("url", url.0.clone()));
        let file = self.url_file.as_ref();
        let file = file.map(|file| ("url_file", file.to_string_lossy().into_owned()));
        let named = [("name", self.name.clone()), ("format", self.format.clone())];
        let all = named.into_iter().chain(url).chain(file);
        all.map(|(name, text)| (name.to_owned(), Value::Text(text)))
            .collect()
    }
}

/// Checks an address of a receiver.
///
/// # Errors
/// What is wrong with it, without the address.
pub fn receiver_url(text: &str) -> Result<hyper::Uri, &'static str> {
    let uri: hyper::Uri = text.trim().parse().map_err(|_| "is not an address")?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("is not a complete address: expected https://HOST/PATH");
    };
    if authority.as_str().contains('@') {
        return Err("has a user name: put a token into the path, or send it through a proxy");
    }
    match scheme {
        "http" | "https" => Ok(uri),
        _ => Err("does not start with http:// or https://"),
    }
}

/// True for a name that stands in addresses, files and labels as it is.
pub fn is_plain_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    !name.is_empty() && name.chars().all(known)
}
