//! The options that select time and samples, and their conversion to requests.

use crate::exit::{self, fail};
use crate::peer::Peer;
use crate::when::{Clock, Range, Resolved, Since, WhenError};
use anyhow::Result;
use clap::builder::TypedValueParser as _;
use profile::key;
use proto::agent::{FrameFilter, FrameFilterOp, LabelMatcher, MatchOp};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// Which time. Without any of these: the last five minutes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct When {
    /// From this long ago, or this time, until now: `5m`, `yesterday`, `14:03` [default: 5m]
    #[arg(
        long,
        value_name = "DURATION|TIME",
        value_parser = crate::when::since,
        allow_hyphen_values = true,
        help_heading = "Time"
    )]
    pub since: Option<Since>,
    /// Start: an age (`10m`, `10 min ago`), `14:03`, `yesterday 14:03`, `2026-11-21T14:03:00Z` or
    /// Unix seconds
    #[arg(
        long,
        value_name = "TIME",
        conflicts_with = "since",
        allow_hyphen_values = true,
        help_heading = "Time"
    )]
    pub from: Option<String>,
    /// End, same formats [default: now]
    #[arg(
        long,
        visible_alias = "until",
        value_name = "TIME",
        allow_hyphen_values = true,
        help_heading = "Time"
    )]
    pub to: Option<String>,
}

/// Length of the range when none is asked for: long enough for a few thousand samples a CPU.
pub const DEFAULT_SINCE: Duration = Duration::from_secs(300);

impl When {
    /// Sets how far back to look where no time is asked for.
    pub fn or_since(&mut self, since: Duration) {
        if self.since.is_none() && self.from.is_none() && self.to.is_none() {
            self.since = Some(Since::Age(since));
        }
    }

    /// The range on the clock of the agent or collector. How times were taken that can be
    /// understood in two ways is said on standard error.
    ///
    /// # Errors
    /// When a time cannot be read, the start is in the future, or the range ends before it starts.
    pub fn range(&self, clock: &Clock) -> Result<Range> {
        let found = self.read(clock);
        let found = found.map_err(|error| fail(exit::USAGE, error.to_string()))?;
        Ok(found.noted())
    }

    fn read(&self, clock: &Clock) -> Result<Resolved, WhenError> {
        let mut notes = Vec::new();
        let start_ns = match (&self.from, &self.since) {
            (Some(from), _) | (None, Some(Since::Time(from))) => clock.start(from, &mut notes)?,
            (None, Some(Since::Age(age))) => clock.ago_ns(*age),
            // `--to` alone: everything up to then.
            (None, None) if self.to.is_some() => 0,
            (None, None) => clock.ago_ns(DEFAULT_SINCE),
        };
        let since = self.since.as_ref().map(|since| match since {
            Since::Age(age) => crate::units::duration(*age),
            Since::Time(time) => time.clone(),
        });
        let from = self.from.clone().or(since).unwrap_or_default();
        let shown = format!("{from}..{}", self.to.as_deref().unwrap_or("now"));
        let end_ns = match &self.to {
            Some(to) => clock.end(start_ns, to, &shown, &mut notes)?,
            None => 0,
        };
        let range = Range { start_ns, end_ns }.check(&shown)?;
        Ok(Resolved { range, notes })
    }
}

/// Which hosts of a fleet. Only a collector knows these labels.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Hosts {
    /// Name of the host (with --collector)
    #[arg(long, value_name = "NAME", help_heading = "Samples")]
    pub host: Vec<String>,
    /// Value of the label `service` from the agents' configuration (with --collector)
    #[arg(long, value_name = "NAME", help_heading = "Samples")]
    pub service: Vec<String>,
}

/// Label that names services, if the configuration of agents sets it.
pub const SERVICE: &str = "service";

impl Hosts {
    /// The matchers; all of them must hold.
    pub fn matchers(&self) -> impl Iterator<Item = LabelMatcher> {
        let host = any_of(key::HOST, MatchOp::Equal, &self.host);
        let service = any_of(SERVICE, MatchOp::Equal, &self.service);
        host.into_iter().chain(service)
    }
}

/// Refuses labels that the samples of an agent do not have: nothing, or everything, would match.
///
/// # Errors
/// When an agent is to be asked for hosts or services.
pub fn check(matchers: &[LabelMatcher], peer: &Peer) -> Result<()> {
    let of_fleet = |matcher: &&LabelMatcher| matches!(&*matcher.label, key::HOST | SERVICE);
    match matchers.iter().find(of_fleet) {
        Some(matcher) if !peer.is_collector() => Err(fail(
            exit::USAGE,
            format!(
                "failed to select by `{}`: an agent knows only its own host, without this \
                 label\nuse --collector HOST:PORT",
                matcher.label
            ),
        )),
        _ => Ok(()),
    }
}

/// The profile type of an option; empty: CPU of agents.
///
/// # Errors
/// When an agent is to be asked for one.
pub fn profile_type(asked: Option<&str>, peer: &Peer) -> Result<String> {
    match asked {
        Some(_) if !peer.is_collector() => Err(fleet_option(
            "--type",
            "an agent has its own CPU profile alone",
        )),
        asked => Ok(asked.unwrap_or_default().to_owned()),
    }
}

/// The error of an option that only a collector understands.
pub fn fleet_option(option: &str, why: &str) -> anyhow::Error {
    fail(
        exit::USAGE,
        format!("failed to use {option}: {why}\nuse --collector HOST:PORT"),
    )
}

/// Which samples, by their labels. Options add up; one given several times takes any of its values.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Labels {
    /// cgroup, with everything below it
    #[arg(long, value_name = "PATH", value_parser = cgroup_path(), help_heading = "Samples")]
    pub cgroup: Vec<String>,
    /// systemd unit; `.service` is optional
    #[arg(long, value_name = "UNIT", help_heading = "Samples")]
    pub unit: Vec<String>,
    /// systemd slice; `.slice` is optional
    #[arg(long, value_name = "SLICE", help_heading = "Samples")]
    pub slice: Vec<String>,
    /// Container id or id prefix
    #[arg(long, value_name = "ID", help_heading = "Samples")]
    pub container: Vec<String>,
    /// Process name
    #[arg(long, value_name = "NAME", help_heading = "Samples")]
    pub comm: Vec<String>,
    /// Process id on its host
    #[arg(
        long,
        value_name = "PID",
        value_parser = crate::number::any::<u32>(),
        help_heading = "Samples"
    )]
    pub pid: Vec<u32>,
    /// Thread name
    #[arg(long, value_name = "NAME", help_heading = "Samples")]
    pub thread: Vec<String>,
    /// Label matchers: `comm=~"ja.*",unit!="cron.service"`; operators = != =~ !~ ^= (subtree)
    #[arg(long, value_name = "MATCHERS", help_heading = "Samples")]
    pub selector: Vec<String>,
    /// Which hosts of a fleet.
    #[command(flatten)]
    pub hosts: Hosts,
}

impl Labels {
    /// The matchers; all of them must hold.
    ///
    /// # Errors
    /// When a selector or pattern is malformed.
    pub fn matchers(&self) -> Result<Vec<LabelMatcher>> {
        let mut all = Vec::new();
        let mut add = |label: &str, single: MatchOp, values: &[String]| {
            all.extend(any_of(label, single, values));
        };
        let with_suffix = |values: &[String], suffix: &str| -> Vec<String> {
            let add = |value: &String| {
                if value.contains('.') {
                    value.clone()
                } else {
                    format!("{value}{suffix}")
                }
            };
            values.iter().map(add).collect()
        };
        let absolute = |path: &String| format!("/{}", path.trim_matches('/'));
        let cgroups: Vec<String> = self.cgroup.iter().map(absolute).collect();
        let pids: Vec<String> = self.pid.iter().map(u32::to_string).collect();
        add(key::CGROUP, MatchOp::Subtree, &cgroups);
        add(
            key::UNIT,
            MatchOp::Equal,
            &with_suffix(&self.unit, ".service"),
        );
        add(
            key::SLICE,
            MatchOp::Equal,
            &with_suffix(&self.slice, ".slice"),
        );
        add(key::COMM, MatchOp::Equal, &self.comm);
        add(key::PID, MatchOp::Equal, &pids);
        add(key::THREAD, MatchOp::Equal, &self.thread);
        if !self.container.is_empty() {
            let prefixes: Vec<String> = self.container.iter().map(|id| regex::escape(id)).collect();
            let value = format!("(?:{}).*", prefixes.join("|"));
            all.push(matcher(key::CONTAINER, MatchOp::Regex, value));
        }
        all.extend(self.hosts.matchers());
        for text in &self.selector {
            all.extend(selected(text)?);
        }
        Ok(all)
    }
}

/// The matchers of a selector.
///
/// # Errors
/// When it is malformed.
pub fn selected(text: &str) -> Result<Vec<LabelMatcher>> {
    let selector: profile::Selector = text.parse().map_err(usage)?;
    let wire = |found: &profile::LabelMatcher| {
        let op = match found.op() {
            profile::MatchOp::Equal => MatchOp::Equal,
            profile::MatchOp::NotEqual => MatchOp::NotEqual,
            profile::MatchOp::Regex => MatchOp::Regex,
            profile::MatchOp::NotRegex => MatchOp::NotRegex,
            profile::MatchOp::Subtree => MatchOp::Subtree,
        };
        matcher(found.label(), op, found.value().to_owned())
    };
    Ok(selector.matchers().iter().map(wire).collect())
}

/// Takes a path of any bytes, as shells complete it, in the form in which the agent shows and
/// compares it: bytes that are not UTF-8 stand as `\xNN`. That form itself is taken as it is.
fn cgroup_path() -> impl clap::builder::TypedValueParser<Value = String> {
    clap::builder::OsStringValueParser::new().map(|path| {
        let mut text = String::with_capacity(path.len());
        for chunk in path.as_bytes().utf8_chunks() {
            text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                text.push_str(&format!("\\x{byte:02x}"));
            }
        }
        text
    })
}

/// What to do with frames, by regular expression on the function name.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Frames {
    /// Keep samples with a matching function
    #[arg(
        long,
        value_name = "REGEX",
        help_heading = "Frames (applied in this order)"
    )]
    pub keep: Vec<String>,
    /// Drop samples with a matching function
    #[arg(
        long,
        value_name = "REGEX",
        help_heading = "Frames (applied in this order)"
    )]
    pub drop: Vec<String>,
    /// Keep samples with a matching function and cut its callers
    #[arg(
        long,
        value_name = "REGEX",
        help_heading = "Frames (applied in this order)"
    )]
    pub focus: Vec<String>,
    /// Merge neighbouring matching functions into one
    #[arg(
        long,
        value_name = "REGEX",
        help_heading = "Frames (applied in this order)"
    )]
    pub collapse: Vec<String>,
}

impl Frames {
    /// The filters, in the order in which they are applied.
    ///
    /// # Errors
    /// When a pattern is malformed.
    pub fn filters(&self) -> Result<Vec<FrameFilter>> {
        use profile::FrameFilterOp as Op;
        let groups = [
            (&self.keep, Op::Keep, FrameFilterOp::Keep),
            (&self.drop, Op::Drop, FrameFilterOp::Drop),
            (&self.focus, Op::Focus, FrameFilterOp::Focus),
            (&self.collapse, Op::Collapse, FrameFilterOp::Collapse),
        ];
        let mut filters = Vec::new();
        for (patterns, op, wire) in groups {
            for pattern in patterns {
                // Compiled here only to refuse it with the same words as the agent, but sooner.
                profile::FrameFilter::new(op, pattern).map_err(usage)?;
                filters.push(FrameFilter {
                    op: wire.into(),
                    regex: pattern.clone(),
                });
            }
        }
        Ok(filters)
    }
}

/// How a matcher compares, as it is written in a selector.
pub fn symbol(matcher: &LabelMatcher) -> &'static str {
    match matcher.op() {
        MatchOp::Equal | MatchOp::Unspecified => "=",
        MatchOp::NotEqual => "!=",
        MatchOp::Regex => "=~",
        MatchOp::NotRegex => "!~",
        MatchOp::Subtree => "^=",
    }
}

fn matcher(label: &str, op: MatchOp, value: String) -> LabelMatcher {
    LabelMatcher {
        label: label.to_owned(),
        op: op.into(),
        value,
    }
}

/// One value is matched by `single`; several by a regular expression that says the same of any.
fn any_of(label: &str, single: MatchOp, values: &[String]) -> Option<LabelMatcher> {
    match values {
        [] => None,
        [value] => Some(matcher(label, single, value.clone())),
        values => {
            let subtree = single == MatchOp::Subtree;
            let below = |value: &String| match (subtree, value.as_str()) {
                (true, "/") => "/.*".to_owned(),
                (true, path) => format!("{}(?:/.*)?", regex::escape(path)),
                (false, value) => regex::escape(value),
            };
            let any: Vec<String> = values.iter().map(below).collect();
            Some(matcher(label, MatchOp::Regex, any.join("|")))
        }
    }
}

fn usage(error: impl std::fmt::Display) -> anyhow::Error {
    fail(exit::USAGE, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn shown(labels: &Labels) -> Vec<String> {
        let matchers = labels.matchers().unwrap();
        matchers
            .iter()
            .map(|m| format!("{} {:?} {}", m.label, m.op(), m.value))
            .collect()
    }

    #[test]
    fn options_become_matchers() {
        let text = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        let labels = Labels {
            cgroup: text(&["system.slice/"]),
            unit: text(&["nginx", "session-1.scope"]),
            container: text(&["ab+"]),
            pid: vec![7],
            selector: text(&[r#"comm!="a",cgroup^="/x""#]),
            ..Labels::default()
        };
        assert_eq!(
            shown(&labels),
            [
                "cgroup Subtree /system.slice",
                r"unit Regex nginx\.service|session\-1\.scope",
                "pid Equal 7",
                r"container Regex (?:ab\+).*",
                "comm NotEqual a",
                "cgroup Subtree /x",
            ]
        );
    }

    #[test]
    fn a_cgroup_is_named_by_its_bytes_or_as_it_is_shown() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            labels: Labels,
        }
        for path in [&b"/a\xff/b"[..], br"/a\xff/b"] {
            let args = [
                OsStr::new("x"),
                OsStr::new("--cgroup"),
                OsStr::from_bytes(path),
            ];
            let cli = <Cli as clap::Parser>::try_parse_from(args).expect("a path");
            assert_eq!(shown(&cli.labels), [r"cgroup Subtree /a\xff/b"]);
        }
    }

    #[test]
    fn several_subtrees_are_one_pattern_that_keeps_path_borders() {
        let labels = Labels {
            cgroup: vec!["/a.b".into(), "/".into()],
            ..Labels::default()
        };
        let matchers = labels.matchers().unwrap();
        let regex = regex::Regex::new(&format!("^(?:{})$", matchers[0].value)).unwrap();
        assert!(regex.is_match("/a.b/c") && regex.is_match("/"));
        let one = any_of("cgroup", MatchOp::Subtree, &["/a.b".into(), "/c".into()]).unwrap();
        let regex = regex::Regex::new(&format!("^(?:{})$", one.value)).unwrap();
        assert!(regex.is_match("/a.b") && !regex.is_match("/a.bc") && !regex.is_match("/axb"));
    }

    #[test]
    fn malformed_filters_are_usage_errors() {
        let labels = Labels {
            selector: vec!["comm~a".into()],
            ..Labels::default()
        };
        assert_eq!(exit::code_of(&labels.matchers().unwrap_err()), exit::USAGE);
        let frames = Frames {
            keep: vec!["(".into()],
            ..Frames::default()
        };
        assert_eq!(exit::code_of(&frames.filters().unwrap_err()), exit::USAGE);
    }

    #[test]
    fn the_default_range_is_the_last_minutes() {
        let clock = Clock::at(1_000_000_000_000);
        let range = When::default().range(&clock).unwrap();
        assert_eq!(
            range,
            Range {
                start_ns: 700_000_000_000,
                end_ns: 0
            }
        );
        let to = When {
            to: Some("-1m".into()),
            ..When::default()
        };
        assert_eq!(to.range(&clock).unwrap().start_ns, 0);
        let backwards = When {
            from: Some("1m".into()),
            to: Some("2m".into()),
            since: None,
        };
        assert_eq!(
            exit::code_of(&backwards.range(&clock).unwrap_err()),
            exit::USAGE
        );
    }
}
