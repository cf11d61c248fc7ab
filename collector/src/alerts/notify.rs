//! What receivers are sent: the JSON of an Alertmanager webhook, version 4, or a text for a chat.
//!
//! Names come from hosts and processes. In JSON they are data; in a chat they stand between
//! backticks, where nothing is a link, a mention or a command.

use super::book::{About, Episode};
use super::limits::{ALERTS_TOLD_MAX, CHAT_BYTES_MAX};
use crate::time::rfc3339;
use profile::text::printable;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How Alertmanager writes that something has not ended.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// What one notification is about: a rule, what changed, and what fires besides.
pub struct Notice<'a> {
    /// What receivers know it by.
    pub key: &'a str,
    /// Name of the receiver.
    pub receiver: &'a str,
    /// Name of the rule.
    pub rule: &'a str,
    /// What changed.
    pub changed: &'a [Episode],
    /// What has been firing all along.
    pub others: &'a [Episode],
    /// Address of the page.
    pub page: &'a str,
}

impl Notice<'_> {
    /// As the receiver's format has it.
    pub fn body(&self, format: &str) -> String {
        match format {
            "slack" => json!({ "text": self.text() }).to_string(),
            _ => self.alertmanager().to_string(),
        }
    }

    fn is_firing(&self) -> bool {
        !self.others.is_empty() || self.changed.iter().any(|one| one.resolved == 0)
    }

    fn alertmanager(&self) -> Value {
        let all = || self.changed.iter().chain(self.others);
        let told: Vec<&Episode> = all().take(ALERTS_TOLD_MAX).collect();
        let labels: Vec<BTreeMap<String, String>> = told.iter().map(|one| labels(one)).collect();
        let common = |maps: &[BTreeMap<String, String>]| -> Map<String, Value> {
            let first = maps.first().cloned().unwrap_or_default();
            let is_common = |(name, value): &(String, String)| {
                maps.iter().all(|map| map.get(name) == Some(value))
            };
            let pairs = first.into_iter().filter(is_common);
            pairs
                .map(|(name, value)| (name, Value::String(value)))
                .collect()
        };
        let notes: Vec<BTreeMap<String, String>> =
            told.iter().map(|one| annotations(one)).collect();
        let alerts: Vec<Value> = told
            .iter()
            .zip(labels.iter().zip(&notes))
            .map(|(one, (labels, notes))| {
                json!({
                    "status": if one.resolved == 0 { "firing" } else { "resolved" },
                    "labels": labels,
                    "annotations": notes,
                    "startsAt": rfc3339(one.fired),
                    "endsAt": if one.resolved == 0 { NEVER.to_owned() } else { rfc3339(one.resolved) },
                    "generatorURL": self.link(),
                    "fingerprint": one.about.fingerprint,
                })
            })
            .collect();
        json!({
            "version": "4",
            "notificationId": self.key,
            "receiver": self.receiver,
            "status": if self.is_firing() { "firing" } else { "resolved" },
            "groupKey": format!("{{}}:{{alertname=\"{}\"}}", self.rule),
            "groupLabels": { "alertname": self.rule },
            "commonLabels": common(&labels),
            "commonAnnotations": common(&notes),
            "externalURL": self.page,
            "truncatedAlerts": all().count() - told.len(),
            "alerts": alerts,
        })
    }

    fn link(&self) -> String {
        format!("{}/#view=alerts", self.page)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut left_out = 0;
        for one in self.changed {
            let line = line(one);
            if text.len() + line.len() > CHAT_BYTES_MAX {
                left_out += 1;
                continue;
            }
            text += &line;
        }
        if left_out > 0 {
            text += &format!("and {left_out} more\n");
        }
        if !self.others.is_empty() {
            let also = self.others.len();
            text += &format!("{also} more of this alert firing since before\n");
        }
        text += &in_chat(&self.link());
        text
    }
}

/// One alert in a chat.
fn line(one: &Episode) -> String {
    let About {
        labels,
        condition,
        severity,
        summary,
        ended,
        ..
    } = &one.about;
    let state = if one.resolved == 0 {
        "FIRING"
    } else {
        "RESOLVED"
    };
    let mut line = format!("{state} {}", code(&one.rule));
    for (name, value) in labels {
        line += &format!(" {}", code(&format!("{name}={value}")));
    }
    if !severity.is_empty() {
        line += &format!(" ({})", code(severity));
    }
    line += &format!("\n{}, {}", code(condition), code(&value_text(&one.about)));
    if one.resolved != 0 {
        line += &format!(", fired {} UTC", code(&rfc3339(one.fired)));
        if !ended.is_empty() {
            line += &format!("; {}", code(ended));
        }
    }
    if !summary.is_empty() {
        line += &format!("\n{}", in_chat(summary));
    }
    line + "\n"
}

/// The value in words: `5.2 cores, limit 3, baseline 2`.
pub fn value_text(about: &About) -> String {
    let number = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let unit = match about.unit.as_str() {
        "percent" => " %",
        _ => " cores",
    };
    let value = match about.value {
        Some(value) => format!("now {}{unit}", number(value)),
        None => "value unknown".to_owned(),
    };
    let threshold = about.threshold.map(|at| format!(", limit {}", number(at)));
    let baseline = about
        .baseline
        .map(|at| format!(", baseline {}", number(at)));
    [
        value,
        threshold.unwrap_or_default(),
        baseline.unwrap_or_default(),
    ]
    .concat()
}

fn labels(one: &Episode) -> BTreeMap<String, String> {
    let mut labels = one.about.labels.clone();
    if !one.about.function.is_empty() {
        labels.insert("function".to_owned(), one.about.function.clone());
    }
    if !one.about.severity.is_empty() {
        labels.insert("severity".to_owned(), one.about.severity.clone());
    }
    labels.insert("alertname".to_owned(), one.rule.clone());
    labels
}

fn annotations(one: &Episode) -> BTreeMap<String, String> {
    let description = format!("{}: {}", one.about.condition, value_text(&one.about));
    let mut notes = BTreeMap::from([("description".to_owned(), description)]);
    if !one.about.summary.is_empty() {
        notes.insert("summary".to_owned(), one.about.summary.clone());
    }
    if one.resolved != 0 && !one.about.ended.is_empty() {
        notes.insert("ended".to_owned(), one.about.ended.clone());
    }
    if let Some(value) = one.about.value {
        notes.insert("value".to_owned(), value.to_string());
    }
    notes
}

/// A name between backticks.
fn code(text: &str) -> String {
    format!("`{}`", in_chat(text).replace('`', "'"))
}

/// What chats take for markup, as they want it written.
fn in_chat(text: &str) -> String {
    let text = printable(text).replace(['\n', '\r'], " ");
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episode(id: u64, resolved: i64, host: &str) -> Episode {
        Episode {
            id,
            rule: "api-cpu".to_owned(),
            part: host.to_owned(),
            fired: 1_700_000_000_000_000_000,
            resolved,
            about: About {
                fingerprint: format!("{id:016x}"),
                labels: BTreeMap::from([("host".to_owned(), host.to_owned())]),
                condition: "cores > 4".to_owned(),
                unit: "cores".to_owned(),
                severity: "page".to_owned(),
                value: Some(5.25),
                threshold: Some(4.0),
                ..About::default()
            },
        }
    }

    fn notice<'a>(changed: &'a [Episode], others: &'a [Episode]) -> Notice<'a> {
        Notice {
            key: "k-1",
            receiver: "oncall",
            rule: "api-cpu",
            changed,
            others,
            page: "https://p.example.net",
        }
    }

    fn read(notice: &Notice<'_>, format: &str) -> Value {
        serde_json::from_str(&notice.body(format)).expect("JSON")
    }

    #[test]
    fn an_alertmanager_webhook_has_what_version_4_has() {
        let (changed, others) = ([episode(1, 0, "a")], [episode(2, 0, "b")]);
        let body = read(&notice(&changed, &others), "alertmanager");
        assert_eq!(body["version"], "4");
        assert_eq!(
            (&body["status"], &body["receiver"]),
            (&json!("firing"), &json!("oncall"))
        );
        assert_eq!(body["groupKey"], "{}:{alertname=\"api-cpu\"}");
        let common = json!({"alertname": "api-cpu", "severity": "page"});
        assert_eq!(body["commonLabels"], common, "the host differs");
        let first = &body["alerts"][0];
        assert_eq!(first["startsAt"], "2023-11-14T22:13:20Z");
        assert_eq!(first["endsAt"], NEVER);
        assert_eq!(
            first["annotations"]["description"],
            "cores > 4: now 5.25 cores, limit 4"
        );
        assert_eq!(body["alerts"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn it_is_resolved_once_nothing_of_the_rule_fires() {
        let resolved = [episode(1, 1_700_000_060_000_000_000, "a")];
        assert_eq!(
            read(&notice(&resolved, &[]), "alertmanager")["status"],
            "resolved"
        );
        let others = [episode(2, 0, "b")];
        assert_eq!(
            read(&notice(&resolved, &others), "alertmanager")["status"],
            "firing"
        );
    }

    #[test]
    fn a_chat_is_told_names_and_no_markup() {
        let hostile = "<!channel> `x` @here\n<https://evil.example|click>";
        let changed = [episode(1, 0, hostile)];
        let text = notice(&changed, &[]).text();
        assert!(!text.contains("<!") && !text.contains("<https"), "{text}");
        let in_code: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let name = in_code.iter().find(|code| code.contains("@here"));
        assert!(name.is_some(), "a mention is only in code: {text}");
        assert_eq!(text.matches("@here").count(), 1);
    }

    #[test]
    fn many_alerts_are_counted_and_not_all_named() {
        let changed: Vec<Episode> = (1..=500)
            .map(|id| episode(id, 0, &"h".repeat(200)))
            .collect();
        let body = read(&notice(&changed, &[]), "alertmanager");
        assert_eq!(body["truncatedAlerts"], 400);
        let text = notice(&changed, &[]).text();
        assert!(
            text.len() < CHAT_BYTES_MAX + 200 && text.contains("more"),
            "{}",
            text.len()
        );
    }
}
