//! `agent-ctl --collector C doctor`: shows what is wrong with the hosts of a fleet, by cause, the
//! worst first, and how to fix it.
//!
//! Nothing is measured here: agents report what they see of themselves, and the collector what it
//! sees of them. Hosts that have been gone for a day do not count.

use super::{Args, mark};
use crate::collector::Collector;
use crate::degradation::severity;
use crate::exit;
use crate::peer::{Connection, Peer};
use crate::terminal::{Out, Tone, clean, hang};
use crate::units;
use crate::when::{Clock, Range, rfc3339};
use anyhow::Result;
use proto::agent::{Degradation, Severity};
use proto::collector::{Host, StatusResponse};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Hosts of a cause that are named. JSON has all.
const HOSTS_NAMED: usize = 8;

/// A host that was not seen for so long is gone, and no trouble any more.
const GONE_AFTER: Duration = Duration::from_secs(86_400);

/// What is looked at: the state of hosts is that of now.
const SINCE: Duration = Duration::from_secs(300);

/// Columns by which what belongs to a cause is indented.
const INDENT: usize = 8;

/// One cause, and where it holds.
#[derive(Debug)]
struct Cause {
    /// Worst of its hosts first.
    severity: Severity,
    /// No usable samples come from some of its hosts.
    is_blind: bool,
    /// A sentence of one of its hosts.
    message: String,
    remedy: String,
    /// How long it has held, longest first.
    hosts: Vec<(String, i64)>,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, peer: &Peer, args: &Args) -> Result<u8> {
    let mut collector = Collector::connect(connection, peer).await?;
    let clock = collector.clock().await?;
    let status = collector.status().await?;
    let range = Range {
        start_ns: clock.ago_ns(SINCE),
        end_ns: 0,
    };
    let (hosts, left_out, _) = collector.hosts(range).await?;
    let hosts = latest(hosts, &clock);
    let causes = causes(&hosts, &status.degradations);
    let is_degraded = causes
        .iter()
        .any(|(_, cause)| cause.severity >= Severity::Warning);
    if args.form.is_json() {
        out.write_json(&Json::of(&hosts, &causes, left_out))?;
    } else {
        let text = show(out, &status, &hosts, &causes, &clock);
        out.write(&hang(&text, out.columns(), INDENT))?;
        if left_out > 0 {
            let left_out = units::count(left_out);
            note!("{left_out} hosts that were last seen longest ago were not looked at");
        }
    }
    Ok(match is_degraded || hosts.is_empty() {
        true => exit::PARTIAL,
        false => exit::OK,
    })
}

/// Each host that is not gone once, as it was seen last.
fn latest(hosts: Vec<Host>, clock: &Clock) -> Vec<Host> {
    let gone_ns = clock.ago_ns(GONE_AFTER);
    let mut by_id: BTreeMap<String, Host> = BTreeMap::new();
    for host in hosts {
        let newer = by_id
            .get(&host.host_id)
            .is_none_or(|known| known.last_seen_unix_ns <= host.last_seen_unix_ns);
        if newer && host.last_seen_unix_ns >= gone_ns {
            by_id.insert(host.host_id.clone(), host);
        }
    }
    by_id.into_values().collect()
}

fn name(host: &Host) -> String {
    let name = host.facts.as_ref().map_or("", |facts| &facts.hostname);
    match name {
        "" => host.host_id.clone(),
        name => name.to_owned(),
    }
}

/// What is wrong, by its id; the worst first, and of those what most hosts have.
fn causes(hosts: &[Host], of_collector: &[Degradation]) -> Vec<(String, Cause)> {
    let mut causes: BTreeMap<String, Cause> = BTreeMap::new();
    let mut add = |found: &Degradation, host: Option<&Host>, is_first: bool| {
        let is_blind = is_first && host.is_some_and(|host| host.blind);
        let cause = causes.entry(found.id.clone()).or_insert_with(|| Cause {
            severity: found.severity(),
            is_blind,
            message: found.message.clone(),
            remedy: found.remedy.clone(),
            hosts: Vec::new(),
        });
        if found.severity() > cause.severity || (is_blind && !cause.is_blind) {
            found.message.clone_into(&mut cause.message);
            found.remedy.clone_into(&mut cause.remedy);
        }
        cause.severity = cause.severity.max(found.severity());
        cause.is_blind |= is_blind;
        if let Some(host) = host {
            cause.hosts.push((name(host), found.since_unix_ns));
        }
    };
    for host in hosts {
        for (at, found) in host.degradations.iter().enumerate() {
            add(found, Some(host), at == 0);
        }
        if host.degradations.is_empty() {
            // A collector of an older version has sentences alone.
            for message in &host.warnings {
                let found = Degradation {
                    id: "warning".to_owned(),
                    message: message.clone(),
                    severity: Severity::Warning.into(),
                    ..Degradation::default()
                };
                add(&found, Some(host), false);
            }
        }
    }
    for found in of_collector {
        add(found, None, false);
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    for (_, cause) in &mut causes {
        // Since when is not known counts as long ago.
        cause
            .hosts
            .sort_by(|left, right| (left.1, &left.0).cmp(&(right.1, &right.0)));
    }
    causes.sort_by_key(|(_, cause)| {
        let hosts = std::cmp::Reverse(cause.hosts.len());
        (!cause.is_blind, std::cmp::Reverse(cause.severity), hosts)
    });
    causes
}

fn show(
    out: &Out,
    status: &StatusResponse,
    hosts: &[Host],
    causes: &[(String, Cause)],
    clock: &Clock,
) -> String {
    let plural = |count: usize| match count {
        1 => "1 host".to_owned(),
        count => format!("{} hosts", units::count(count as u64)),
    };
    let mut text = format!(
        "{} fleetprof-collector {} answers, {} in the last day\n",
        mark(out, Severity::Unspecified),
        clean(&status.version),
        plural(hosts.len())
    );
    if hosts.is_empty() {
        let _ = writeln!(
            text,
            "{} no host has pushed to the collector: `agent-ctl hosts invite` invites one",
            mark(out, Severity::Warning)
        );
    }
    for (id, cause) in causes {
        let of = match cause.hosts.len() {
            0 => "the collector".to_owned(),
            count => plural(count),
        };
        let blind = match cause.is_blind {
            true => ", no samples",
            false => "",
        };
        let _ = writeln!(
            text,
            "{} {} ({of}{blind}): {}",
            mark(out, cause.severity),
            clean(id),
            clean(&cause.message)
        );
        let named = cause
            .hosts
            .iter()
            .take(HOSTS_NAMED)
            .map(|(host, since_ns)| {
                let age_ns = clock
                    .now_ns()
                    .saturating_sub(*since_ns)
                    .max(0)
                    .unsigned_abs();
                match since_ns {
                    0 => clean(host).into_owned(),
                    _ => {
                        let age = Duration::from_secs(age_ns / 1_000_000_000);
                        format!("{} for {}", clean(host), units::duration(age))
                    }
                }
            });
        let mut named: Vec<String> = named.collect();
        if let Some(more) = cause
            .hosts
            .len()
            .checked_sub(HOSTS_NAMED)
            .filter(|more| *more > 0)
        {
            named.push(format!("{} more", units::count(more as u64)));
        }
        if !named.is_empty() {
            let _ = writeln!(text, "{:INDENT$}on {}", "", named.join(", "));
        }
        if !cause.remedy.is_empty() {
            let _ = writeln!(
                text,
                "{:INDENT$}{}{}",
                "",
                exit::REMEDY,
                clean(&cause.remedy)
            );
        }
    }
    let mut severities = causes.iter().map(|(_, cause)| cause.severity);
    if !hosts.is_empty() && severities.all(|found| found < Severity::Warning) {
        let verdict = match causes.is_empty() {
            true => "nothing is degraded",
            false => "nothing else is degraded",
        };
        let _ = writeln!(text, "\n{}", out.tone(Tone::Good, verdict));
    }
    text
}

#[derive(Serialize)]
struct Json<'a> {
    hosts: u64,
    hosts_left_out: u64,
    causes: Vec<JsonCause<'a>>,
}

#[derive(Serialize)]
struct JsonCause<'a> {
    id: &'a str,
    severity: &'static str,
    /// No usable samples come from some of the hosts.
    blind: bool,
    message: &'a str,
    remedy: &'a str,
    hosts: Vec<JsonHost<'a>>,
}

#[derive(Serialize)]
struct JsonHost<'a> {
    host: &'a str,
    /// Absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

impl<'a> Json<'a> {
    fn of(hosts: &[Host], causes: &'a [(String, Cause)], hosts_left_out: u64) -> Json<'a> {
        let cause = |(id, cause): &'a (String, Cause)| JsonCause {
            id,
            severity: severity(cause.severity).0,
            blind: cause.is_blind,
            message: &cause.message,
            remedy: &cause.remedy,
            hosts: cause
                .hosts
                .iter()
                .map(|(host, since)| JsonHost {
                    host,
                    since: (*since != 0).then(|| rfc3339(*since)),
                })
                .collect(),
        };
        Json {
            hosts: hosts.len() as u64,
            hosts_left_out,
            causes: causes.iter().map(cause).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::collector::HostFacts;

    fn host(name: &str, blind: bool, found: &[(&str, Severity)]) -> Host {
        Host {
            host_id: format!("id-{name}"),
            facts: Some(HostFacts {
                hostname: name.to_owned(),
                ..HostFacts::default()
            }),
            blind,
            degradations: found
                .iter()
                .map(|(id, severity)| Degradation {
                    id: (*id).to_owned(),
                    message: format!("{id} on {name}"),
                    remedy: format!("repair {id}"),
                    severity: (*severity).into(),
                    since_unix_ns: 1_000_000_000,
                })
                .collect(),
            ..Host::default()
        }
    }

    #[test]
    fn the_worst_cause_comes_first_and_has_all_its_hosts() {
        use Severity::{Error, Info, Warning};
        let hosts = [
            host("a", false, &[("cpu_budget", Warning)]),
            host("b", false, &[("cpu_budget", Warning), ("kptr", Info)]),
            host("c", true, &[("no_samples", Error), ("cpu_budget", Warning)]),
            host("d", false, &[("clock", Error)]),
        ];
        let causes = causes(&hosts, &[]);
        let order: Vec<&str> = causes.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(order, ["no_samples", "clock", "cpu_budget", "kptr"]);
        assert_eq!(causes[2].1.hosts.len(), 3);
        let clock = Clock::at(61_000_000_000);
        let text = show(
            &Out::plain(),
            &StatusResponse::default(),
            &hosts,
            &causes,
            &clock,
        );
        assert!(
            text.contains("no_samples (1 host, no samples): no_samples on c\n        on c for 1 min\n        fix: repair no_samples\n"),
            "{text}"
        );
        assert!(text.contains("cpu_budget (3 hosts): "), "{text}");
        assert!(!text.contains("nothing is degraded"), "{text}");
    }

    #[test]
    fn a_host_counts_once_and_not_when_it_is_gone() {
        let day_ns = 86_400_000_000_000;
        let clock = Clock::at(10 * day_ns);
        let seen = |name: &str, days: i64, found: &[(&str, Severity)]| Host {
            last_seen_unix_ns: days * day_ns,
            ..host(name, false, found)
        };
        let hosts = vec![
            seen("a", 10, &[]),
            seen("a", 9, &[("old_boot", Severity::Error)]),
            seen("b", 2, &[("host_silent", Severity::Error)]),
        ];
        let hosts = latest(hosts, &clock);
        assert_eq!(hosts.len(), 1);
        assert!(causes(&hosts, &[]).is_empty());
        let text = show(
            &Out::plain(),
            &StatusResponse::default(),
            &hosts,
            &[],
            &clock,
        );
        assert!(text.ends_with("\nnothing is degraded\n"), "{text}");
    }
}
