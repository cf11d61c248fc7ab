//! `agent-ctl cgroups`: shows the tree of cgroups with their CPU time.

use crate::collector::Samples;
use crate::fleet::{self, Fleet};
use crate::form::Form;
use crate::peer::{Connection, Peer};
use crate::select::{self, Hosts, When, fleet_option};
use crate::source::{Question, Source, Tree};
use crate::terminal::{Out, Table, clean};
use crate::when::rfc3339;
use crate::{exit, loss, nothing, summary, units};
use anyhow::Result;
use profile::{Coverage, Expected, LedgerRow, Quality, Tally, Throttling};
use proto::agent::{Cgroup, GetLedgerRequest, GetLedgerResponse};
use serde::Serialize;
use std::collections::HashMap;

/// Shows the tree of cgroups with their CPU time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shares refer to all CPU time sampled in the range. A collector adds up the trees of its hosts by \
path. THROTTLED is the part of the CPU time that a cgroup wanted and its own CPU limit withheld; \
`-` means that it is not known. JSON has every cgroup, whatever --depth and --limit say. Exit code 6: there are no samples, \
most were lost, or the collector misses part of the data.

Examples:
  agent-ctl cgroups --since 10m
  agent-ctl cgroups --sort self --flat --limit 20
  agent-ctl cgroups --json | jq '.cgroups[] | select(.unit == \"nginx.service\")'
  agent-ctl --collector c1 cgroups --since 1h --host web-1 --depth 3")]
pub struct Args {
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    hosts: Hosts,
    /// Label matchers, such as `region="eu"` (with --collector)
    #[arg(long, value_name = "MATCHERS", help_heading = "Samples")]
    selector: Vec<String>,
    /// Order of cgroups with the same parent; with --flat of all cgroups
    #[arg(long, value_enum, default_value_t = Sort::Total)]
    sort: Sort,
    /// Print a list instead of a tree
    #[arg(long)]
    flat: bool,
    /// Maximum depth of the tree, counted from the root
    #[arg(long, value_name = "LEVELS", value_parser = crate::number::within::<usize>(1, u64::MAX))]
    depth: Option<usize>,
    /// Maximum number of rows
    #[arg(long, value_name = "ROWS", value_parser = crate::number::any::<usize>())]
    limit: Option<usize>,
    #[command(flatten)]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// CPU time of the cgroup and all below it
    Total,
    /// CPU time of the cgroup itself
    #[value(name = "self")]
    Own,
    /// Path
    Path,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.peer()?;
    let samples = samples(&args, &peer)?;
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    let range = args.when.range(&clock)?;
    let answer = source.cgroups(range, &samples).await?;
    let late = match &source {
        Source::Agent(_) => loss::of_time(range, answer.covered.end_unix_ns, &clock),
        Source::Collector(_) => None,
    };
    let missing = answer.loss().or(late);
    if let Some(why) = &missing {
        loss::note(why);
    }
    let code = match missing {
        Some(_) => exit::PARTIAL,
        None => fleet::code(answer.total_weight == 0, answer.fleet.as_ref()),
    };
    if args.form.is_json() {
        let ledger = match &mut source {
            Source::Agent(client) => {
                let range = Some(range.into());
                let matchers = Vec::new();
                Some(client.ledger(GetLedgerRequest { range, matchers }).await?)
            }
            Source::Collector(_) => None,
        };
        out.write_json(&Json::of(&answer, ledger))?;
        return Ok(code);
    }
    let covered = (answer.covered.start_unix_ns, answer.covered.end_unix_ns);
    if let Some(widened) = summary::widened(range, covered, &clock) {
        note!("{widened}");
    }
    if answer.total_weight == 0 {
        let question = Question::of_labels(range, samples);
        let why = nothing::why_or_time(&mut source, &question, &clock).await?;
        note!("agent-ctl: {why}");
    } else {
        out.write(&table(&answer, &args).show(out))?;
        note!(
            "{} samples, {} CPU, {}; {}",
            units::count(answer.samples),
            units::weight(answer.total_weight, &answer.unit),
            clock.show_range(answer.covered.start_unix_ns, answer.covered.end_unix_ns),
            summary::missing(&answer.quality)
        );
    }
    if answer.rows_left_out > 0 {
        let left_out = units::count(answer.rows_left_out);
        note!("{left_out} cgroups with the least CPU time are not shown");
    }
    if let Some(fleet) = &answer.fleet {
        fleet.note();
    }
    Ok(code)
}

/// Selects the samples of a fleet. An agent's tree always covers the complete host.
fn samples(args: &Args, peer: &Peer) -> Result<Samples> {
    let mut samples = Samples::default();
    samples.matchers.extend(args.hosts.matchers());
    select::check(&samples.matchers, peer)?;
    if !peer.is_collector() && !args.selector.is_empty() {
        let why = "an agent has only its own host";
        return Err(fleet_option("--selector", why));
    }
    for text in &args.selector {
        samples.matchers.extend(select::selected(text)?);
    }
    Ok(samples)
}

fn table(answer: &Tree, args: &Args) -> Table {
    let mut table = Table::new(&[
        ">TOTAL",
        ">CPU",
        ">SELF",
        ">COVERAGE",
        ">THROTTLED",
        "CGROUP",
        "UNIT",
        "CONTAINER",
    ]);
    let rows = if args.flat {
        flat(answer, args.sort)
    } else {
        tree(answer, args)
    };
    for (name, cgroup) in rows.into_iter().take(args.limit.unwrap_or(usize::MAX)) {
        table.row([
            units::percent(cgroup.total_weight, answer.total_weight),
            units::weight(cgroup.total_weight, &answer.unit),
            units::weight(cgroup.self_weight, &answer.unit),
            coverage(cgroup)
                .share()
                .map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
            throttled(cgroup),
            name,
            cgroup.unit.clone(),
            container(cgroup),
        ]);
    }
    table.sparing(&["CONTAINER", "UNIT", "SELF", "CPU", "COVERAGE", "THROTTLED"])
}

/// Describes the container: its runtime, its pod, and its name, or the start of its id if nothing
/// else is known.
fn container(cgroup: &Cgroup) -> String {
    let id = match cgroup.container.char_indices().nth(12) {
        Some((at, _)) => &cgroup.container[..at],
        None => &cgroup.container,
    };
    let name = match cgroup.container_name.as_str() {
        "" => id,
        name => name,
    };
    let pod = match (cgroup.namespace.as_str(), cgroup.pod.as_str()) {
        ("", pod) => pod.to_owned(),
        (namespace, pod) => format!("{namespace}/{pod}"),
    };
    let parts = [cgroup.runtime.as_str(), &pod, name];
    let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(" ")
}

/// The kernel's accounting for a cgroup, compared with the samples taken.
fn coverage(cgroup: &Cgroup) -> Coverage {
    Coverage {
        expected_ns: cgroup.expected_ns,
        estimated_ns: cgroup.estimated_ns,
        taken_ns: cgroup.total_weight.saturating_sub(cgroup.total_lost_weight),
        ..Coverage::default()
    }
}

/// The part of the CPU time that the cgroup wanted and its limit withheld; `-`: not known.
fn throttled(cgroup: &Cgroup) -> String {
    let share = throttling(cgroup).share();
    share.map_or("-".to_owned(), |share| match share > 0.0 {
        true => format!("{:.1} %", share * 100.0),
        false => "0 %".to_owned(),
    })
}

fn throttling(cgroup: &Cgroup) -> Throttling {
    cgroup.throttling.unwrap_or_default().into()
}

fn order(sort: Sort, left: &Cgroup, right: &Cgroup) -> std::cmp::Ordering {
    let by_size = match sort {
        Sort::Total => right.total_weight.cmp(&left.total_weight),
        Sort::Own => right.self_weight.cmp(&left.self_weight),
        Sort::Path => std::cmp::Ordering::Equal,
    };
    by_size.then_with(|| left.path.cmp(&right.path))
}

fn flat(answer: &Tree, sort: Sort) -> Vec<(String, &Cgroup)> {
    let mut all: Vec<&Cgroup> = answer.cgroups.iter().collect();
    all.sort_by(|left, right| order(sort, left, right));
    all.into_iter()
        .map(|cgroup| (cgroup.path.clone(), cgroup))
        .collect()
}

/// Rows in tree order with names drawn as branches. If a cgroup's parent is not listed, it is
/// placed under its nearest listed ancestor, or at the top.
fn tree<'a>(answer: &'a Tree, args: &Args) -> Vec<(String, &'a Cgroup)> {
    let by_path: HashMap<&str, &Cgroup> = answer
        .cgroups
        .iter()
        .map(|cgroup| (cgroup.path.as_str(), cgroup))
        .collect();
    let mut children: HashMap<Option<&str>, Vec<&Cgroup>> = HashMap::new();
    for cgroup in by_path.values() {
        let parent = ancestors(&cgroup.path).find(|path| by_path.contains_key(path));
        children.entry(parent).or_default().push(cgroup);
    }
    for list in children.values_mut() {
        // Reversed, because what is pushed last is popped first.
        list.sort_by(|left, right| order(args.sort, right, left));
    }
    let mut rows = Vec::with_capacity(answer.cgroups.len());
    // A list instead of recursion: how deep paths are is up to whoever makes cgroups.
    let mut todo: Vec<(&Cgroup, usize, String, Option<&str>)> = Vec::new();
    for cgroup in children.remove(&None).unwrap_or_default() {
        todo.push((cgroup, 0, String::new(), None));
    }
    while let Some((cgroup, depth, indent, parent)) = todo.pop() {
        if args.depth.is_some_and(|most| depth >= most) {
            continue;
        }
        let last = todo.last().is_none_or(|(_, next, ..)| *next != depth);
        let shown = match parent {
            None => cgroup.path.clone(),
            Some(parent) => {
                let name = cgroup.path.strip_prefix(parent).unwrap_or(&cgroup.path);
                let branch = if last { "└ " } else { "├ " };
                format!("{indent}{branch}{}", clean(name.trim_start_matches('/')))
            }
        };
        let below = match parent {
            None => String::new(),
            Some(_) => format!("{indent}{}", if last { "  " } else { "│ " }),
        };
        rows.push((shown, cgroup));
        for child in children
            .remove(&Some(cgroup.path.as_str()))
            .unwrap_or_default()
        {
            todo.push((child, depth + 1, below.clone(), Some(&cgroup.path)));
        }
    }
    rows
}

/// The paths above one, nearest first: `/a/b` gives `/a` and `/`.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        if rest == "/" {
            return None;
        }
        let at = rest.rfind('/')?;
        rest = if at == 0 { "/" } else { &rest[..at] };
        Some(rest)
    })
}

#[derive(Serialize)]
struct Json<'a> {
    start: String,
    end: String,
    unit: &'a str,
    total_weight: u64,
    quality: Quality,
    rows_left_out: u64,
    cgroups: Vec<JsonCgroup<'a>>,
    /// Only agents have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<JsonLedger>,
    /// Only collectors have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<fleet::Json>,
}

/// The loss ledger of the same time.
#[derive(Serialize)]
struct JsonLedger {
    start: String,
    end: String,
    windows: u64,
    windows_unmeasured: u64,
    rows_left_out: u64,
    host: Tally,
    expected: Expected,
    rows: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    path: String,
    own: Tally,
    total: Tally,
    expected: Expected,
    missed: i64,
    coverage: Option<f64>,
}

impl JsonLedger {
    fn of(answer: GetLedgerResponse) -> JsonLedger {
        let covered = answer.covered.unwrap_or_default();
        let rows = answer.rows.into_iter().map(LedgerRow::from);
        JsonLedger {
            start: rfc3339(covered.start_unix_ns),
            end: rfc3339(covered.end_unix_ns),
            windows: answer.windows,
            windows_unmeasured: answer.windows_unmeasured,
            rows_left_out: answer.rows_left_out,
            host: answer.host.unwrap_or_default().into(),
            expected: answer.expected.unwrap_or_default().into(),
            rows: rows
                .map(|row| JsonRow {
                    own: row.own,
                    total: row.total,
                    expected: row.expected,
                    missed: row.missed(),
                    coverage: row.share(),
                    path: row.path,
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct JsonCgroup<'a> {
    path: &'a str,
    slice: &'a str,
    unit: &'a str,
    container: &'a str,
    runtime: &'a str,
    pod_uid: &'a str,
    container_name: &'a str,
    image: &'a str,
    pod: &'a str,
    namespace: &'a str,
    self_count: u64,
    self_weight: u64,
    total_count: u64,
    total_weight: u64,
    total_share: f64,
    total_lost_count: u64,
    total_lost_weight: u64,
    expected_ns: u64,
    estimated_ns: u64,
    coverage: Option<f64>,
    /// Null: not known.
    throttled_share: Option<f64>,
    throttled_ns: Option<u64>,
    /// Null: not known, or it was not throttled.
    cpu_limit_cores: Option<f64>,
}

impl<'a> Json<'a> {
    fn of(answer: &'a Tree, ledger: Option<GetLedgerResponse>) -> Json<'a> {
        let covered = answer.covered;
        Json {
            start: rfc3339(covered.start_unix_ns),
            end: rfc3339(covered.end_unix_ns),
            unit: &answer.unit,
            total_weight: answer.total_weight,
            quality: answer.quality,
            rows_left_out: answer.rows_left_out,
            ledger: ledger.map(JsonLedger::of),
            fleet: answer.fleet.as_ref().map(Fleet::json),
            cgroups: answer
                .cgroups
                .iter()
                .map(|cgroup| JsonCgroup {
                    path: &cgroup.path,
                    slice: &cgroup.slice,
                    unit: &cgroup.unit,
                    container: &cgroup.container,
                    runtime: &cgroup.runtime,
                    pod_uid: &cgroup.pod_uid,
                    container_name: &cgroup.container_name,
                    image: &cgroup.image,
                    pod: &cgroup.pod,
                    namespace: &cgroup.namespace,
                    self_count: cgroup.self_count,
                    self_weight: cgroup.self_weight,
                    total_count: cgroup.total_count,
                    total_weight: cgroup.total_weight,
                    total_share: units::share(cgroup.total_weight, answer.total_weight),
                    total_lost_count: cgroup.total_lost_count,
                    total_lost_weight: cgroup.total_lost_weight,
                    expected_ns: cgroup.expected_ns,
                    estimated_ns: cgroup.estimated_ns,
                    coverage: coverage(cgroup).share(),
                    throttled_share: throttling(cgroup).share(),
                    throttled_ns: cgroup.throttling.map(|of| of.throttled_ns),
                    cpu_limit_cores: throttling(cgroup).limit_cores(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(paths: &[(&str, u64)]) -> Tree {
        let cgroup = |&(path, total_weight): &(&str, u64)| Cgroup {
            path: path.to_owned(),
            total_weight,
            ..Cgroup::default()
        };
        Tree {
            cgroups: paths.iter().map(cgroup).collect(),
            ..Tree::default()
        }
    }

    fn args(sort: Sort, depth: Option<usize>) -> Args {
        Args {
            when: When::default(),
            hosts: Hosts::default(),
            selector: Vec::new(),
            sort,
            flat: false,
            depth,
            limit: None,
            form: Form::default(),
        }
    }

    #[track_caller]
    #[test]
    fn a_container_is_shown_by_the_best_that_is_known() {
        let mut cgroup = Cgroup {
            container: "0123456789abcdef".to_owned(),
            ..Cgroup::default()
        };
        assert_eq!(container(&cgroup), "0123456789ab");
        cgroup.runtime = "containerd".to_owned();
        assert_eq!(container(&cgroup), "containerd 0123456789ab");
        cgroup.container_name = "server".to_owned();
        assert_eq!(container(&cgroup), "containerd server");
        cgroup.pod = "web-0".to_owned();
        cgroup.namespace = "shop".to_owned();
        assert_eq!(container(&cgroup), "containerd shop/web-0 server");
        assert_eq!(container(&Cgroup::default()), "");
    }

    fn check(paths: &[(&str, u64)], args: &Args, expected: &[&str]) {
        let answer = answer(paths);
        let names: Vec<String> = tree(&answer, args)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn throttling_that_is_not_known_is_not_zero() {
        let of = |throttled_ns, used_ns| Cgroup {
            throttling: Some(proto::agent::Throttling {
                throttled_ns,
                used_ns,
                limit_millicores: 200,
            }),
            ..Cgroup::default()
        };
        assert_eq!(throttled(&of(90, 10)), "90.0 %");
        assert_eq!(throttled(&of(0, 10)), "0 %");
        assert_eq!(throttled(&Cgroup::default()), "-");
    }

    #[test]
    fn a_tree_is_drawn_largest_first() {
        let paths = [
            ("/", 9),
            ("/a", 2),
            ("/a/x", 1),
            ("/b", 7),
            ("/b/y", 3),
            ("/b/z", 4),
        ];
        let expected = ["/", "├ b", "│ ├ z", "│ └ y", "└ a", "  └ x"];
        check(&paths, &args(Sort::Total, None), &expected);
        check(&paths, &args(Sort::Path, Some(2)), &["/", "├ a", "└ b"]);
    }

    #[test]
    fn missing_parents_are_bridged() {
        check(
            &[("/", 1), ("/a/b/c", 1)],
            &args(Sort::Total, None),
            &["/", "└ a/b/c"],
        );
        check(
            &[("/a/b", 1), ("x", 1)],
            &args(Sort::Total, None),
            &["/a/b", "x"],
        );
    }

    #[test]
    fn deep_paths_do_not_exhaust_the_stack() {
        let paths: Vec<String> = (1..3000).map(|depth| "/d".repeat(depth)).collect();
        let paths: Vec<(&str, u64)> = paths.iter().map(|path| (path.as_str(), 1)).collect();
        assert_eq!(tree(&answer(&paths), &args(Sort::Total, None)).len(), 2999);
    }
}
