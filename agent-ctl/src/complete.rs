//! Live completion: what a shell offers for values that only an agent or a collector knows: units,
//! containers, processes, labels, pins, captures, events.
//!
//! The scripts of `completions.rs` call this program with the line that is being typed. It answers
//! within [`DEADLINE`] or not at all, and prints no errors: a shell shows them in the middle of the
//! line. Names that a shell would read as more than a word are not offered, for anybody who runs
//! something on a machine chooses them.

use crate::cli::Cli;
use crate::client::Client;
use crate::collector::Samples;
use crate::fleet_capture::list;
use crate::peer::{Connection, Peer};
use crate::source::{Question, Source};
use crate::terminal::write_stdout;
use crate::when::Range;
use crate::{cli, events, exit, group_by, pins, sampleable};
use clap::{Command, CommandFactory};
use profile::{TopBy, TopSort, key};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

/// The argument with which scripts call. No subcommand has this name.
pub const CALL: &str = "--complete-line";

/// Longest that somebody who presses Tab waits.
const DEADLINE: Duration = Duration::from_millis(700);

/// Most values offered.
const VALUES_MAX: usize = 200;

/// How far back values are looked for.
const SINCE: Duration = Duration::from_secs(900);

/// Exit code of a place where nothing is known live: the script goes on by itself.
const NOT_LIVE: u8 = 1;

/// Something whose values are known live.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Live {
    /// Values of a label.
    Values(&'static str),
    /// Names of labels.
    Labels,
    /// Names of pins.
    Pins,
    /// Names of triggers that pinned something.
    Triggers,
    /// Numbers of captures.
    Captures,
    /// Numbers of events of a fleet.
    Events,
    /// Events to sample.
    Sampleable,
}

/// Options with live values, by their long names.
const OPTIONS: [(&str, Live); 13] = [
    ("unit", Live::Values(key::UNIT)),
    ("slice", Live::Values(key::SLICE)),
    ("container", Live::Values(key::CONTAINER)),
    ("comm", Live::Values(key::COMM)),
    ("thread", Live::Values(key::THREAD)),
    ("pid", Live::Values(key::PID)),
    ("cgroup", Live::Values(key::CGROUP)),
    ("host", Live::Values(key::HOST)),
    ("service", Live::Values(crate::select::SERVICE)),
    ("by", Live::Labels),
    ("group-by", Live::Labels),
    ("trigger", Live::Triggers),
    ("event", Live::Sampleable),
];

/// Commands whose first argument has live values.
const ARGUMENTS: [(&[&str], Live); 6] = [
    (&["labels"], Live::Labels),
    (&["pins", "show"], Live::Pins),
    (&["captures", "get"], Live::Captures),
    (&["captures", "cancel"], Live::Captures),
    (&["captures", "delete"], Live::Captures),
    (&["events", "delete"], Live::Events),
];

/// Answers a call of a script; `None` when this is none.
pub fn call(mut words: impl Iterator<Item = OsString>) -> Option<u8> {
    words.next()?;
    if words.next()? != CALL {
        return None;
    }
    let line = words.next().unwrap_or_default();
    let place = Place::of(&line.to_string_lossy());
    let Some((live, connection)) = place.live.clone().zip(place.connection()) else {
        return Some(NOT_LIVE);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let values = runtime.block_on(async {
        let values = values(&live, &connection, place.prefix());
        tokio::time::timeout(DEADLINE, values).await
    });
    runtime.shutdown_background();
    // Nobody answers: nothing is offered, for what the script has would be wrong here.
    let values = values.ok().and_then(Result::ok).unwrap_or_default();
    let mut text = String::new();
    for value in place.offered(values) {
        text.push_str(&value);
        text.push('\n');
    }
    let _ = write_stdout(text.as_bytes());
    Some(exit::OK)
}

/// Where the cursor is in a command line.
#[derive(Debug, Default)]
struct Place {
    live: Option<Live>,
    /// What is typed of the value.
    typed: String,
    /// Options that say who is asked.
    connection: Vec<String>,
}

impl Place {
    fn of(line: &str) -> Place {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        if line.ends_with(char::is_whitespace) {
            words.push("");
        }
        let mut place = Place::default();
        let Some((last, before)) = words.split_last() else {
            return place;
        };
        let mut root = Cli::command();
        root.build();
        let mut command = &root;
        let mut path: Vec<&str> = Vec::new();
        let mut arguments = 0usize;
        let mut open: Option<&clap::Arg> = None;
        for word in before {
            if let Some(option) = open.take() {
                place.note(option, word);
                continue;
            }
            match option_of(command, word) {
                Some((option, Some(value))) => place.note(option, value),
                Some((option, None)) => open = takes_value(option).then_some(option),
                None if word.starts_with('-') => {}
                None => match command.find_subcommand(word) {
                    Some(below) if arguments == 0 => {
                        path.push(below.get_name());
                        command = below;
                    }
                    _ => arguments += 1,
                },
            }
        }
        let option = match (open, option_of(command, last)) {
            (Some(option), _) => Some((option, *last)),
            (None, Some((option, Some(value)))) => Some((option, value)),
            _ => None,
        };
        let live_of = |option: &clap::Arg| {
            let name = option.get_long()?;
            let found = OPTIONS.iter().find(|(known, _)| *known == name);
            found.map(|(_, live)| live.clone())
        };
        match option {
            Some((option, value)) => {
                place.live = live_of(option);
                value.clone_into(&mut place.typed);
            }
            None if last.starts_with('-') || arguments > 0 => {}
            None => {
                let found = ARGUMENTS.iter().find(|(of, _)| *of == path.as_slice());
                place.live = found.map(|(_, live)| live.clone());
                (*last).clone_into(&mut place.typed);
            }
        }
        place
    }

    /// Notes the value of an option that says who is asked.
    fn note(&mut self, option: &clap::Arg, value: &str) {
        if option.get_help_heading() == Some("Connection")
            && let Some(name) = option.get_long()
        {
            self.connection.push(format!("--{name}"));
            self.connection.push(value.to_owned());
        }
    }

    fn connection(&self) -> Option<Connection> {
        let start = ["agent-ctl"].into_iter();
        let words = start.chain(self.connection.iter().map(String::as_str));
        let words = words.chain(["status"]).map(OsString::from);
        let mut connection = cli::parse(words).ok()?.connection;
        connection.timeout = connection.timeout.min(DEADLINE);
        Some(connection)
    }

    /// What is typed of the last of several values.
    fn prefix(&self) -> &str {
        match self.live {
            Some(Live::Labels) => self.typed.rsplit(',').next().unwrap_or(""),
            _ => &self.typed,
        }
    }

    /// The values that go on with what is typed, as they stand on the line.
    fn offered(&self, values: Vec<String>) -> Vec<String> {
        let prefix = self.prefix();
        let before = &self.typed[..self.typed.len() - prefix.len()];
        let values = values.into_iter();
        let values = values.filter(|value| is_one_word(value) && value.starts_with(prefix));
        let values = values.take(VALUES_MAX);
        values.map(|value| format!("{before}{value}")).collect()
    }
}

/// True for a name that every shell reads as the one word that it is.
fn is_one_word(value: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+,-".contains(c);
    !value.is_empty() && !value.starts_with('-') && value.chars().all(is_plain)
}

fn takes_value(option: &clap::Arg) -> bool {
    option.get_action().takes_values()
}

/// The option that a word names, and its value where that is in the same word.
fn option_of<'c, 'w>(
    command: &'c Command,
    word: &'w str,
) -> Option<(&'c clap::Arg, Option<&'w str>)> {
    let mut options = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let found = options.find(|option| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name) || aliases.contains(&name)
        });
        return found.map(|option| (option, value));
    }
    let short = word.strip_prefix('-')?;
    let mut letters = short.chars();
    let letter = letters.next()?;
    let found = options.find(|option| option.get_short() == Some(letter))?;
    let value = Some(letters.as_str()).filter(|value| !value.is_empty());
    Some((found, value))
}

async fn values(live: &Live, connection: &Connection, typed: &str) -> anyhow::Result<Vec<String>> {
    if *live == Live::Sampleable {
        return Ok(sampleable_events(typed));
    }
    let collector = || connection.collector_only("values");
    let peer = match live {
        Live::Values(key::HOST) | Live::Values(crate::select::SERVICE) => collector()?,
        Live::Events => collector()?,
        _ => connection.peer()?,
    };
    match live {
        Live::Values(label) => of_label(connection, &peer, label, typed).await,
        Live::Labels => labels(connection, &peer).await,
        Live::Pins => {
            let pins = pins::names(connection, &peer).await?;
            // At its agent the number is enough.
            let name = |name: String| match (peer.is_collector(), name.rsplit_once('/')) {
                (false, Some((_, number))) => number.to_owned(),
                _ => name,
            };
            Ok(pins.into_iter().map(|(pin, _)| name(pin)).collect())
        }
        Live::Triggers => {
            let pins = pins::names(connection, &peer).await?;
            let triggers: BTreeSet<String> = pins.into_iter().map(|(_, name)| name).collect();
            Ok(triggers.into_iter().collect())
        }
        Live::Captures => captures(connection, &peer).await,
        Live::Events => events::numbers(connection, &peer).await,
        Live::Sampleable => Ok(Vec::new()),
    }
}

/// Events with names of their own; tracepoints once their kind is typed, for there are thousands.
fn sampleable_events(typed: &str) -> Vec<String> {
    let named = sampleable::NAMED.iter();
    let mut all: Vec<String> = named.map(|&(name, _)| name.to_owned()).collect();
    match typed.starts_with("tracepoint:") {
        true => all.extend(sampleable::tracepoint_names()),
        false => all.extend(["tracepoint:", "uprobe:"].map(str::to_owned)),
    }
    all
}

async fn of_label(
    connection: &Connection,
    peer: &Peer,
    label: &str,
    typed: &str,
) -> anyhow::Result<Vec<String>> {
    let mut source = Source::connect(connection, peer).await?;
    let clock = source.clock().await?;
    let range = Range {
        start_ns: clock.ago_ns(SINCE),
        end_ns: 0,
    };
    if let Source::Collector(collector) = &mut source {
        let limit = u32::try_from(VALUES_MAX).unwrap_or(u32::MAX);
        return collector.label_values(range, label, typed, limit).await;
    }
    let samples = Samples::by_labels(Vec::new());
    let question = Question {
        group_by: vec![label.to_owned()],
        ..Question::of_labels(range, samples)
    };
    let profile = source.profile(question).await?.profile;
    // What runs most is meant most often.
    let top = profile.top(&TopBy::Label(label.to_owned()), TopSort::Own, usize::MAX);
    Ok(top.rows.into_iter().map(|row| row.name).collect())
}

async fn labels(connection: &Connection, peer: &Peer) -> anyhow::Result<Vec<String>> {
    let mut source = Source::connect(connection, peer).await?;
    let clock = source.clock().await?;
    let range = Range {
        start_ns: clock.ago_ns(SINCE),
        end_ns: 0,
    };
    match &mut source {
        Source::Collector(collector) => collector.label_names(range, "").await,
        Source::Agent(_) => Ok(group_by::AGENT_LABELS.map(str::to_owned).to_vec()),
    }
}

async fn captures(connection: &Connection, peer: &Peer) -> anyhow::Result<Vec<String>> {
    if peer.is_collector() {
        let all = list::listed(connection, peer, 0).await?.captures;
        return Ok(all.iter().map(|info| info.id.to_string()).collect());
    }
    let mut client = Client::connect(connection, peer).await?;
    let all = client.captures().await?;
    Ok(all.iter().map(|info| info.id.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(line: &str) -> (Option<Live>, String) {
        let place = Place::of(line);
        (place.live, place.typed)
    }

    #[test]
    fn the_place_says_what_is_looked_for() {
        for (line, expected, typed) in [
            ("agent-ctl profile --unit ", Some(Live::Values("unit")), ""),
            (
                "agent-ctl profile --unit ng",
                Some(Live::Values("unit")),
                "ng",
            ),
            (
                "agent-ctl profile --unit=ng",
                Some(Live::Values("unit")),
                "ng",
            ),
            (
                "agent-ctl profile --unit nginx --comm p",
                Some(Live::Values("comm")),
                "p",
            ),
            ("agent-ctl series --by un", Some(Live::Labels), "un"),
            ("agent-ctl labels ", Some(Live::Labels), ""),
            (
                "agent-ctl --collector c1 pins show w",
                Some(Live::Pins),
                "w",
            ),
            ("agent-ctl captures get ", Some(Live::Captures), ""),
            ("agent-ctl events delete 1", Some(Live::Events), "1"),
            ("agent-ctl capture -e off", Some(Live::Sampleable), "off"),
            (
                "agent-ctl capture --event tracepoint:sch",
                Some(Live::Sampleable),
                "tracepoint:sch",
            ),
            ("agent-ctl pins --trigger ", Some(Live::Triggers), ""),
            // What is not known live.
            ("agent-ctl profile ", None, ""),
            ("agent-ctl profile --uni", None, ""),
            ("agent-ctl profile --since ", None, ""),
            ("agent-ctl pins ", None, ""),
            ("agent-ctl labels unit ", None, ""),
            ("agent-ctl", None, ""),
            ("", None, ""),
        ] {
            let (found, text) = live(line);
            assert_eq!(found, expected, "{line}");
            if expected.is_some() {
                assert_eq!(text, typed, "{line}");
            }
        }
    }

    #[test]
    fn the_scripts_know_the_same_options() {
        let names = OPTIONS.each_ref().map(|(name, _)| *name);
        assert_eq!(names, crate::completions::LIVE);
    }

    #[test]
    fn whoever_the_line_names_is_asked() {
        let place = Place::of("agent-ctl --agent unix:/a.sock profile --unit ");
        let peer = place.connection().unwrap().peer().unwrap();
        assert_eq!(peer.target.to_string(), "unix:/a.sock");
        let place = Place::of("agent-ctl profile --collector=c1:9 --unit x");
        let peer = place.connection().unwrap().peer().unwrap();
        assert!(peer.is_collector() && peer.target.to_string() == "c1:9");
        // A line that cannot be meant asks nobody.
        let place = Place::of("agent-ctl --agent x/y profile --unit ");
        assert!(place.connection().is_none());
    }

    #[test]
    fn names_that_a_shell_would_run_are_not_offered() {
        let place = Place::of("agent-ctl profile --comm ");
        let values = [
            "nginx",
            "$(rm -rf ~)",
            "a b",
            "`id`",
            "x;y",
            "-o",
            "a\nb",
            "user@1000.service",
        ];
        let offered = place.offered(values.map(str::to_owned).to_vec());
        assert_eq!(offered, ["nginx", "user@1000.service"]);
    }

    #[test]
    fn the_last_of_several_labels_is_completed() {
        let place = Place::of("agent-ctl series --by unit,co");
        let values = ["comm", "container", "unit"].map(str::to_owned).to_vec();
        assert_eq!(place.offered(values), ["unit,comm", "unit,container"]);
    }
}
