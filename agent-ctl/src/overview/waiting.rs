//! What an overview says of waiting: cgroups that their CPU limits hold back, and hosts under
//! pressure.

use super::name;
use crate::terminal::{Out, Table, Tone};
use crate::units;
use crate::when::{Clock, rfc3339};
use proto::collector::{OverviewResponse, PressedHost, Resource, ThrottledCgroup};
use serde::Serialize;

/// What it means, and what to do.
const THROTTLED_ADVICE: &str = "a limit that is used up stops the cgroup until the next period, \
                                even if CPUs are idle: raise it (CPUQuota=, limits.cpu) or run \
                                fewer threads";

/// Adds the tables; `all` with what was the same in the baseline.
pub(super) fn add(
    text: &mut String,
    out: &Out,
    answer: &OverviewResponse,
    clock: &Clock,
    all: bool,
) {
    let throttled: Vec<_> = answer
        .throttled
        .iter()
        .filter(|of| all || !of.in_baseline)
        .collect();
    if !throttled.is_empty() {
        let mut table = Table::new(&[
            "THROTTLED",
            "ON",
            "OF",
            ">WITHHELD",
            ">CORES",
            ">LIMIT",
            "SINCE",
            ">BEFORE",
        ]);
        for of in &throttled {
            table.row([
                name(&of.cgroup),
                of.host.clone(),
                name(match of.container.as_str() {
                    "" => of.service.as_str(),
                    container => container,
                }),
                percent(of.share),
                format!("{:.2}", of.cores),
                limit(of),
                since(of.since_unix_ns, clock),
                of.baseline_share.map_or_else(dash, percent),
            ]);
        }
        text.push('\n');
        let table = table.sparing(&["OF", "BEFORE", "CORES", "SINCE", "LIMIT"]);
        text.push_str(&table.show(out));
        more(text, answer.throttled_left_out);
        text.push_str(&out.tone(Tone::Dim, THROTTLED_ADVICE));
        text.push('\n');
    }
    let pressed: Vec<_> = answer
        .pressed
        .iter()
        .filter(|of| all || !of.in_baseline)
        .collect();
    if !pressed.is_empty() {
        let mut table = Table::new(&["PRESSURE", "FOR", ">OF THE TIME", "SINCE", ">BEFORE"]);
        for of in &pressed {
            table.row([
                of.host.clone(),
                resource(of).to_owned(),
                percent(of.share),
                since(of.since_unix_ns, clock),
                of.baseline_share.map_or_else(dash, percent),
            ]);
        }
        text.push('\n');
        text.push_str(&table.sparing(&["BEFORE", "SINCE"]).show(out));
        more(text, answer.pressed_left_out);
    }
    // What is not known must not look like none.
    if all && !answer.throttling_known {
        text.push_str("\nthrottling is not known: no agent in this selection reports it\n");
    }
    if all && answer.pressure_hosts == 0 {
        text.push_str("\npressure is not known: no host in this selection reports it\n");
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn limit(of: &ThrottledCgroup) -> String {
    match of.limit_cores > 0.0 {
        true => format!("{:.2}", of.limit_cores),
        false => dash(),
    }
}

fn since(unix_ns: i64, clock: &Clock) -> String {
    match unix_ns {
        0 => "before".to_owned(),
        since => clock.show_time(since),
    }
}

fn more(text: &mut String, left_out: u64) {
    if left_out > 0 {
        text.push_str(&format!("{} more\n", units::count(left_out)));
    }
}

fn resource(of: &PressedHost) -> &'static str {
    match of.resource() {
        Resource::Cpu => "cpu",
        Resource::Memory => "memory",
        Resource::Io => "io",
        Resource::Unspecified => "unknown",
    }
}

/// For scripts.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    throttling_known: bool,
    throttled: Vec<JsonThrottled<'a>>,
    throttled_left_out: u64,
    pressure_hosts: u32,
    pressed: Vec<JsonPressed<'a>>,
    pressed_left_out: u64,
}

#[derive(Serialize)]
struct JsonThrottled<'a> {
    host: &'a str,
    cgroup: &'a str,
    service: &'a str,
    container: &'a str,
    share: f64,
    /// Null: not known.
    baseline_share: Option<f64>,
    cores: f64,
    limit_cores: Option<f64>,
    since: Option<String>,
    until: Option<String>,
    in_baseline: bool,
}

#[derive(Serialize)]
struct JsonPressed<'a> {
    host: &'a str,
    resource: &'static str,
    share: f64,
    /// Null: not known.
    baseline_share: Option<f64>,
    since: Option<String>,
    until: Option<String>,
    in_baseline: bool,
}

impl<'a> Json<'a> {
    pub(super) fn of(answer: &'a OverviewResponse) -> Json<'a> {
        let time = |unix_ns: i64| (unix_ns != 0).then(|| rfc3339(unix_ns));
        let throttled = answer.throttled.iter().map(|of| JsonThrottled {
            host: &of.host,
            cgroup: &of.cgroup,
            service: &of.service,
            container: &of.container,
            share: of.share,
            baseline_share: of.baseline_share,
            cores: of.cores,
            limit_cores: (of.limit_cores > 0.0).then_some(of.limit_cores),
            since: time(of.since_unix_ns),
            until: time(of.until_unix_ns),
            in_baseline: of.in_baseline,
        });
        let pressed = answer.pressed.iter().map(|of| JsonPressed {
            host: &of.host,
            resource: resource(of),
            share: of.share,
            baseline_share: of.baseline_share,
            since: time(of.since_unix_ns),
            until: time(of.until_unix_ns),
            in_baseline: of.in_baseline,
        });
        Json {
            throttling_known: answer.throttling_known,
            throttled: throttled.collect(),
            throttled_left_out: answer.throttled_left_out,
            pressure_hosts: answer.pressure_hosts,
            pressed: pressed.collect(),
            pressed_left_out: answer.pressed_left_out,
        }
    }
}
