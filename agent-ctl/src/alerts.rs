//! `agent-ctl alerts`: what is pending and firing on a fleet, by the rules of its collector.

use crate::collector::Collector;
use crate::connection;
use crate::exit;
use crate::form::Form;
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean};
use crate::units;
use crate::when::{Clock, age, rfc3339};
use anyhow::Result;
use proto::agent::TimeRange;
use proto::collector::alert_service_client::AlertServiceClient;
use proto::collector::{Alert, AlertReceiver, AlertRule, AlertState, ListAlertsRequest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Largest message taken. Unit: bytes. A list is cut at 3 MiB.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Lists what is firing, pending or without data on a fleet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The collector evaluates the rules under `alerts` in its configuration and notifies the `receivers` \
there. Use --collector or FLEETPROF_COLLECTOR.

Exit code 6: an alert is firing or has no data, a rule cannot be evaluated, or a receiver cannot \
be reached. Exit code 0: nothing of this.

Examples:
  agent-ctl alerts
  agent-ctl alerts --since 7d
  agent-ctl alerts --rules
  agent-ctl alerts --json | jq -r '.alerts[] | select(.state == \"firing\").rule'")]
pub struct Args {
    /// Also list alerts that fired this long ago or later
    #[arg(long, value_name = "AGE", value_parser = age)]
    since: Option<Duration>,
    /// List the rules and receivers too
    #[arg(long)]
    rules: bool,
    /// Maximum number of alerts; those that fire are shown first
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = crate::number::within::<u32>(1, 10_000))]
    limit: u32,
    #[command(flatten)]
    form: Form,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("alerts")?;
    let clock = Collector::connect(connection, &peer).await?.clock().await?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let service = AlertServiceClient::new(transport);
    let mut service = service.max_decoding_message_size(MESSAGE_BYTES_MAX);
    let range = args.since.map(|age| TimeRange {
        start_unix_ns: clock.ago_ns(age),
        end_unix_ns: 0,
    });
    let call = service.list(ListAlertsRequest {
        range,
        limit: args.limit,
    });
    let answer = route.answer("list alerts", call).await?;
    let troubles = troubles(&answer.trouble, &answer.rules, &answer.receivers);
    for trouble in &troubles {
        note!("agent-ctl: {}", clean(trouble));
    }
    if answer.left_out > 0 {
        let count = units::count(answer.left_out);
        note!("agent-ctl: {count} more alerts are not listed: raise --limit");
    }
    let is_bad = |alert: &Alert| matches!(alert.state(), AlertState::Firing | AlertState::NoData);
    let code = match troubles.is_empty() && !answer.alerts.iter().any(is_bad) {
        true => exit::OK,
        false => exit::PARTIAL,
    };
    if args.form.is_json() {
        let all = All {
            alerts: answer.alerts.iter().map(Shown::of).collect(),
            rules: answer.rules.iter().map(ShownRule::of).collect(),
            receivers: answer.receivers.iter().map(ShownReceiver::of).collect(),
            left_out: answer.left_out,
        };
        out.write_json(&all)?;
        return Ok(code);
    }
    match (answer.alerts.is_empty(), answer.rules.is_empty()) {
        (true, true) => note!("agent-ctl: no rules: add `alerts` to the collector's configuration"),
        (true, false) => note!("agent-ctl: nothing is pending or firing"),
        (false, _) => out.write(&table(&answer.alerts, &clock).show(out))?,
    }
    if args.rules {
        let rules = rules(&answer.rules, &clock).show(out);
        let receivers = match answer.receivers.is_empty() {
            true => String::new(),
            false => format!("\n{}", receivers(&answer.receivers, &clock).show(out)),
        };
        out.write(&format!("\n{rules}{receivers}"))?;
    }
    Ok(code)
}

/// What keeps alerts from being judged or told, in sentences.
pub fn troubles(trouble: &str, rules: &[AlertRule], receivers: &[AlertReceiver]) -> Vec<String> {
    let mut found = Vec::new();
    if !trouble.is_empty() {
        found.push(trouble.to_owned());
    }
    for rule in rules.iter().filter(|rule| !rule.error.is_empty()) {
        found.push(format!(
            "alert `{}` has no value: {}",
            rule.name, rule.error
        ));
    }
    for rule in rules.iter().filter(|rule| rule.groups_left_out > 0) {
        let (name, count) = (&rule.name, units::count(rule.groups_left_out));
        found.push(format!(
            "alert `{name}` leaves out {count} values of `{}`: narrow its selector",
            rule.group_by
        ));
    }
    for one in receivers.iter().filter(|one| one.failures > 0) {
        let (name, waiting) = (&one.name, units::count(one.waiting));
        found.push(format!(
            "receiver `{name}` does not accept notifications, {waiting} wait: {}",
            one.error
        ));
    }
    found
}

fn word(state: AlertState) -> &'static str {
    match state {
        AlertState::Pending => "pending",
        AlertState::Firing => "firing",
        AlertState::NoData => "no data",
        AlertState::Resolved => "resolved",
        AlertState::Unspecified => "unknown",
    }
}

fn table(alerts: &[Alert], clock: &Clock) -> Table {
    let mut table = Table::new(&[
        "STATE", "SINCE", "ALERT", ">VALUE", ">LIMIT", "LABELS", "NOTE",
    ]);
    for alert in alerts {
        let note = match alert.no_data.as_str() {
            "" => clean(&alert.summary).into_owned(),
            why => clean(why).into_owned(),
        };
        table.row([
            word(alert.state()).to_owned(),
            clock.show(alert.since_unix_ns),
            clean(&alert.rule).into_owned(),
            number(alert.value, &alert.unit),
            number(alert.threshold, &alert.unit),
            clean(&labels(alert)).into_owned(),
            note,
        ]);
    }
    table.sparing(&["NOTE", "LABELS"])
}

/// What it is about, as `name=value`, in one order.
pub fn labels(alert: &Alert) -> String {
    let labels: BTreeMap<&String, &String> = alert.labels.iter().collect();
    let labels = labels.into_iter();
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    labels.join(" ")
}

fn rules(rules: &[AlertRule], clock: &Clock) -> Table {
    let mut table = Table::new(&["RULE", "CONDITION", "BY", "SELECTOR", "EVALUATED"]);
    for rule in rules {
        let or_dash = |text: &str| match text {
            "" => "-".to_owned(),
            text => clean(text).into_owned(),
        };
        table.row([
            clean(&rule.name).into_owned(),
            clean(&rule.condition).into_owned(),
            or_dash(&rule.group_by),
            or_dash(&rule.selector),
            time(rule.evaluated_unix_ns, clock),
        ]);
    }
    table.sparing(&["EVALUATED", "SELECTOR"])
}

fn receivers(receivers: &[AlertReceiver], clock: &Clock) -> Table {
    let mut table = Table::new(&["RECEIVER", "FORMAT", ">SENT", ">WAITING", "OLDEST"]);
    for one in receivers {
        table.row([
            clean(&one.name).into_owned(),
            clean(&one.format).into_owned(),
            units::count(one.sent),
            units::count(one.waiting),
            time(one.oldest_unix_ns, clock),
        ]);
    }
    table
}

fn time(unix_ns: i64, clock: &Clock) -> String {
    match unix_ns {
        0 => "-".to_owned(),
        unix_ns => clock.show(unix_ns),
    }
}

/// A value with its unit, cores without.
pub fn number(value: Option<f64>, unit: &str) -> String {
    match (value, unit) {
        (None, _) => "-".to_owned(),
        (Some(value), "percent") => format!("{value:.1} %"),
        (Some(value), _) => format!("{value:.2}"),
    }
}

#[derive(Serialize)]
struct All<'a> {
    alerts: Vec<Shown<'a>>,
    rules: Vec<ShownRule<'a>>,
    receivers: Vec<ShownReceiver<'a>>,
    left_out: u64,
}

/// An alert for scripts.
#[derive(Serialize)]
pub struct Shown<'a> {
    rule: &'a str,
    state: &'static str,
    labels: BTreeMap<&'a str, &'a str>,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fired: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<String>,
    value: Option<f64>,
    threshold: Option<f64>,
    baseline: Option<f64>,
    unit: &'a str,
    no_data: &'a str,
    severity: &'a str,
    summary: &'a str,
    selector: &'a str,
    function: &'a str,
    fingerprint: &'a str,
}

#[derive(Serialize)]
struct ShownRule<'a> {
    name: &'a str,
    condition: &'a str,
    selector: &'a str,
    by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluated: Option<String>,
    error: &'a str,
}

#[derive(Serialize)]
struct ShownReceiver<'a> {
    name: &'a str,
    format: &'a str,
    waiting: u64,
    sent: u64,
    failures: u64,
    error: &'a str,
}

fn some(unix_ns: i64) -> Option<String> {
    (unix_ns != 0).then(|| rfc3339(unix_ns))
}

impl Shown<'_> {
    /// As it is told.
    pub fn of(alert: &Alert) -> Shown<'_> {
        let labels = alert.labels.iter();
        Shown {
            rule: &alert.rule,
            state: match alert.state() {
                AlertState::NoData => "no_data",
                state => word(state),
            },
            labels: labels.map(|(n, v)| (n.as_str(), v.as_str())).collect(),
            since: rfc3339(alert.since_unix_ns),
            fired: some(alert.fired_unix_ns),
            resolved: some(alert.resolved_unix_ns),
            value: alert.value,
            threshold: alert.threshold,
            baseline: alert.baseline,
            unit: &alert.unit,
            no_data: &alert.no_data,
            severity: &alert.severity,
            summary: &alert.summary,
            selector: &alert.selector,
            function: &alert.function,
            fingerprint: &alert.fingerprint,
        }
    }
}

impl ShownRule<'_> {
    fn of(rule: &AlertRule) -> ShownRule<'_> {
        ShownRule {
            name: &rule.name,
            condition: &rule.condition,
            selector: &rule.selector,
            by: &rule.group_by,
            evaluated: some(rule.evaluated_unix_ns),
            error: &rule.error,
        }
    }
}

impl ShownReceiver<'_> {
    fn of(one: &AlertReceiver) -> ShownReceiver<'_> {
        ShownReceiver {
            name: &one.name,
            format: &one.format,
            waiting: one.waiting,
            sent: one.sent,
            failures: one.failures,
            error: &one.error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_keeps_an_alert_from_people_is_a_sentence() {
        let rule = AlertRule {
            name: "api".to_owned(),
            error: "the query failed".to_owned(),
            ..AlertRule::default()
        };
        let receiver = AlertReceiver {
            name: "oncall".to_owned(),
            failures: 3,
            waiting: 2,
            error: "it answered 503".to_owned(),
            ..AlertReceiver::default()
        };
        let found = troubles("", &[rule], &[receiver]);
        assert_eq!(
            found,
            [
                "alert `api` has no value: the query failed",
                "receiver `oncall` does not accept notifications, 2 wait: it answered 503"
            ]
        );
        assert!(troubles("", &[AlertRule::default()], &[AlertReceiver::default()]).is_empty());
    }

    #[test]
    fn values_have_their_unit() {
        assert_eq!(number(Some(12.34), "percent"), "12.3 %");
        assert_eq!(number(Some(4.0), "cores"), "4.00");
        assert_eq!(number(None, "cores"), "-");
    }
}
