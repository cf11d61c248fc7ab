//! `agent-ctl hosts`: lists every host known to a collector, and what is wrong with it.

use crate::collector::Collector;
use crate::degradation::Degradation;
use crate::fleet::{self, Fleet};
use crate::form::Form;
use crate::peer::Connection;
use crate::select::When;
use crate::terminal::{Out, Table};
use crate::when::{Clock, rfc3339};
use crate::{exit, members, units};
use anyhow::Result;
use profile::Coverage;
use profile::unit::{TIME, base, is_time, time_unit_ns};
use proto::agent::Severity;
use proto::collector::{Host, HostFacts};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Lists the hosts of a fleet, or says who may join it.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Only a collector knows hosts: use --collector or FLEETPROF_COLLECTOR. CPU is the mean number of \
CPUs in use over the range, or cycles a second if the host counts cycles. COVERAGE is the part of \
the CPU time in the kernel's accounting that was sampled, GAPS the time without data while the \
host was up, SPOOL the data that waits on the host's disk. WARNINGS also has what the agent \
reports: the worst in full, others by name. A host is silent after three minutes without contact; \
after --gone-after it is gone and no longer counts as trouble. JSON has every host, whatever \
--limit says. Exit code 6: a host is silent, sends no samples or has warnings, or data of the \
range is missing.

Examples:
  agent-ctl --collector c1 hosts
  agent-ctl --collector c1 hosts --trouble
  agent-ctl --collector c1 hosts invite
  agent-ctl --collector c1 hosts --since 1h --sort cpu
  agent-ctl --collector c1 hosts --json | jq -r '.hosts[] | select(.state == \"silent\").host'"
)]
pub struct Args {
    #[command(subcommand)]
    action: Option<members::Action>,
    #[command(flatten)]
    when: When,
    /// Order of the rows
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    sort: Sort,
    /// Show only hosts that are silent or have warnings
    #[arg(long)]
    trouble: bool,
    /// Count a host as gone when it was not seen for this long
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = crate::when::duration)]
    gone_after: Duration,
    /// Maximum number of rows
    #[arg(long, value_name = "ROWS", value_parser = crate::number::any::<usize>())]
    limit: Option<usize>,
    #[command(flatten)]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Name
    Name,
    /// CPU time in the range, most first
    Cpu,
    /// Time last seen, longest ago first
    Seen,
}

/// A host that was not heard of for so long is silent. Agents send a window each ten seconds and
/// the collector notes that it heard of them at least once a minute, so three minutes are no
/// hiccup.
const SILENT_AFTER: Duration = Duration::from_secs(180);

/// A clock that is wrong by less is not worth a word. Unit: nanoseconds.
const CLOCK_AHEAD_NS: u64 = 1_000_000_000;

/// The collector's names for a silent host and for an agent that announced its stop.
const SILENT: &str = "host_silent";
const STOPPED: &str = "agent_stopped";

/// Names of problems that only the collector detects.
const COLLECTOR_SEES: [&str; 3] = ["clock", "twins", "namesakes"];

/// Fewest cells of warnings: what is wrong matters more than how much a host uses.
const WARNINGS_CELLS_MIN: usize = 44;

/// Characters of an id that distinguish hosts with the same name.
const ID_CHARS: usize = 12;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    if let Some(action) = args.action.take() {
        return members::run(out, connection, action).await;
    }
    let peer = connection.collector_only("hosts")?;
    let mut collector = Collector::connect(connection, &peer).await?;
    let clock = collector.clock().await?;
    let range = args.when.range(&clock)?;
    let (hosts, left_out, fleet) = collector.hosts(range).await?;
    let table = HostList {
        left_out,
        ..HostList::of(hosts, fleet, &clock, &args)
    };
    let code = match table.troubled() {
        0 => fleet::code(table.rows.is_empty(), Some(&table.fleet)),
        _ => exit::PARTIAL,
    };
    if args.form.is_json() {
        out.write_json(&table.json(&clock, &args))?;
        return Ok(code);
    }
    if table.rows.is_empty() {
        note!(
            "agent-ctl: {}",
            match collector.is_scoped() {
                true => "no host in the scope of your login has data in this time",
                false => "no host has pushed to the collector yet",
            }
        );
        return Ok(code);
    }
    if table.shown(&args).next().is_some() {
        out.write(&table.show(&args).show(out))?;
    }
    note!("{}", table.line());
    if left_out > 0 {
        let left_out = units::count(left_out);
        note!("{left_out} hosts that were last seen longest ago are not shown");
    }
    // How many hosts and which gaps is in the table, but for hosts that have no trouble any more.
    let gaps_ns: u64 = table.rows.iter().map(|row| row.host.gap_ns).sum();
    if args.trouble && table.troubled() == 0 && table.fleet.is_partial() && gaps_ns > 0 {
        let gaps = units::duration(Duration::from_nanos(gaps_ns));
        note!("data is missing, {gaps} in all; without --trouble each host has its gaps");
    }
    table.fleet.note_damage();
    Ok(code)
}

/// Whether a host is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Alive,
    Silent,
    /// Its agent said that it was stopped on purpose.
    Stopped,
    Gone,
}

/// A host, all its boots in one.
struct Row {
    host: Host,
    facts: HostFacts,
    boots: u64,
    age: Duration,
    state: State,
    coverage: Coverage,
}

impl Row {
    fn is_troubled(&self) -> bool {
        match self.state {
            State::Alive | State::Stopped => self.host.blind || !self.host.warnings.is_empty(),
            State::Silent => true,
            State::Gone => false,
        }
    }

    /// Warnings. They follow what the collector sees: the worst in full, and the names of others
    /// that the agent reports. JSON has all sentences.
    fn warnings(&self) -> String {
        let mut all: Vec<&str> = match self.state {
            State::Alive => Vec::new(),
            State::Silent => vec!["silent"],
            State::Stopped => vec!["stopped"],
            State::Gone => vec!["gone"],
        };
        let host = &self.host;
        if host.degradations.is_empty() {
            // A collector of an older version.
            all.extend(host.warnings.iter().map(String::as_str));
            return all.join("; ");
        }
        let mut in_full = self.state == State::Alive;
        for found in &host.degradations {
            let is_state = [SILENT, STOPPED].contains(&found.id.as_str());
            if found.severity() < Severity::Warning || (is_state && self.state != State::Alive) {
                continue;
            }
            let of_collector = COLLECTOR_SEES.contains(&found.id.as_str());
            all.push(match in_full || of_collector {
                true => &found.message,
                false => &found.id,
            });
            in_full = false;
        }
        all.join("; ")
    }
}

/// What is known of all hosts.
struct HostList {
    rows: Vec<Row>,
    /// Hosts beyond what a collector lists.
    left_out: u64,
    fleet: Fleet,
}

impl HostList {
    fn of(hosts: Vec<Host>, fleet: Fleet, clock: &Clock, args: &Args) -> HostList {
        let mut by_id: BTreeMap<String, Row> = BTreeMap::new();
        for mut host in hosts {
            if host.unit.is_empty() {
                fleet.unit().clone_into(&mut host.unit);
            }
            let id = host.host_id.clone();
            let row = row(host, clock, args.gone_after);
            match by_id.entry(id) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    merge(entry.get_mut(), row);
                }
            }
        }
        let mut rows: Vec<Row> = by_id.into_values().collect();
        rows.sort_by(|left, right| {
            let by_name = || left.facts.hostname.cmp(&right.facts.hostname);
            match args.sort {
                Sort::Name => by_name(),
                // What is counted in another unit cannot be compared: after all CPU time.
                Sort::Cpu => {
                    let key = |row: &Row| (is_time(&row.host.unit), row.host.weight);
                    key(right).cmp(&key(left)).then_with(by_name)
                }
                Sort::Seen => right.age.cmp(&left.age).then_with(by_name),
            }
        });
        HostList {
            rows,
            left_out: 0,
            fleet,
        }
    }

    /// The rows to show.
    fn shown(&self, args: &Args) -> impl Iterator<Item = &Row> {
        let troubled = args.trouble;
        let rows = self.rows.iter();
        rows.filter(move |row| !troubled || row.is_troubled())
    }

    fn troubled(&self) -> usize {
        self.rows.iter().filter(|row| row.is_troubled()).count()
    }

    fn count(&self, state: State) -> u64 {
        self.rows.iter().filter(|row| row.state == state).count() as u64
    }

    /// CPUs in use on the mean over the range; another unit than time has none, nor has a host of
    /// which no window came: nobody knows what it did.
    fn cpus_of(&self, host: &Host) -> Option<f64> {
        (host.windows > 0)
            .then(|| self.cpus(host.weight, &host.unit))
            .flatten()
    }

    /// Mean usage of a host over the range; `-`: not known, because it sent no windows.
    fn used_by(&self, host: &Host) -> String {
        match host.windows {
            0 => "-".to_owned(),
            _ => self.used(host.weight, &host.unit),
        }
    }

    fn cpus(&self, weight: u64, unit: &str) -> Option<f64> {
        let covered_ns = self.fleet.covered_ns();
        // Nothing is nothing in any unit.
        let nothing = || (weight == 0 && unit.is_empty()).then_some(1);
        let unit_ns = time_unit_ns(unit).or_else(nothing)?;
        (covered_ns > 0).then(|| units::share(weight, covered_ns) * unit_ns as f64)
    }

    /// A mean over the range: CPUs as a bare number, other units by the second.
    fn used(&self, weight: u64, unit: &str) -> String {
        let covered_ns = self.fleet.covered_ns();
        match self.cpus(weight, unit) {
            Some(cpus) => format!("{cpus:.2}"),
            None if base(unit).0 == units::CYCLES && covered_ns > 0 => {
                // Cycles a nanosecond are billions a second.
                let rate = units::share(weight, covered_ns) * base(unit).1 as f64;
                format!("{rate:.2} Gc/s")
            }
            None => units::weight(weight, unit),
        }
    }

    fn show(&self, args: &Args) -> Table {
        let mut table = Table::new(&[
            "HOST",
            "LAST SEEN",
            ">CPU",
            ">COVERAGE",
            ">GAPS",
            "SPOOL",
            "CLOCK",
            "VERSION",
            "WARNINGS",
        ]);
        let mut names: HashMap<&str, u32> = HashMap::new();
        for row in &self.rows {
            *names.entry(&row.facts.hostname).or_default() += 1;
        }
        for row in self.shown(args).take(args.limit.unwrap_or(usize::MAX)) {
            let name = row.facts.hostname.as_str();
            let short: String = row.host.host_id.chars().take(ID_CHARS).collect();
            let name = match (name.is_empty(), names.get(name)) {
                (true, _) => short,
                (_, Some(2..)) => format!("{name} ({short})"),
                _ => name.to_owned(),
            };
            let coverage = row.coverage.share();
            let coverage = coverage.map(|share| format!("{:.1} %", share * 100.0));
            let dash = || "-".to_owned();
            table.row([
                name,
                format!("{} ago", units::duration(row.age)),
                self.used_by(&row.host),
                coverage.unwrap_or_else(dash),
                match row.host.gap_ns {
                    0 => dash(),
                    ns => units::duration(Duration::from_nanos(ns)),
                },
                spool(&row.facts),
                ahead(row.host.clock_ahead_ns),
                row.facts.agent_version.clone(),
                row.warnings(),
            ]);
        }
        // Who it is, whether it is sampled and what is wrong with it go last.
        table
            .sparing(&[
                "VERSION",
                "CLOCK",
                "SPOOL",
                "GAPS",
                "CPU",
                "LAST SEEN",
                "COVERAGE",
            ])
            .last_at_least(WARNINGS_CELLS_MIN)
    }

    fn line(&self) -> String {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.host.weight > 0) {
            let sum = sums.entry(&row.host.unit).or_default();
            *sum = sum.saturating_add(row.host.weight);
        }
        // CPU time first, and alone where there is nothing else. All hosts that have it have it in
        // one unit.
        let unit = sums.keys().copied().find(|unit| is_time(unit));
        let unit = unit.unwrap_or(TIME);
        let time = sums.remove(unit).unwrap_or(0);
        let mut used = Vec::new();
        if self.rows.iter().all(|row| row.host.windows == 0) {
            used.push("CPU use unknown: no complete window in the range".to_owned());
        } else if time > 0 || sums.is_empty() {
            used.push(format!("{} CPUs in use", self.used(time, unit)));
        }
        used.extend(sums.iter().map(|(unit, sum)| match self.used(*sum, unit) {
            sum if unit.is_empty() => format!("{sum} in an unknown unit"),
            sum => sum,
        }));
        let used = used.join(" and ");
        let named = |count: u64, word: &str| match count {
            0 => String::new(),
            count => format!("{} {word}, ", units::count(count)),
        };
        let stopped = named(self.count(State::Stopped), "stopped");
        let blind = self.rows.iter().filter(|row| row.host.blind).count();
        let blind = named(blind as u64, "without samples");
        let warned = self.rows.iter().filter(|row| !row.host.warnings.is_empty());
        format!(
            "{} {}, {used}, {} silent, {stopped}{} gone, {blind}{} with warnings",
            units::count(self.rows.len() as u64),
            if self.rows.len() == 1 {
                "host"
            } else {
                "hosts"
            },
            self.count(State::Silent),
            self.count(State::Gone),
            warned.count()
        )
    }

    fn json<'a>(&'a self, clock: &Clock, args: &Args) -> Json<'a> {
        let host = |row: &'a Row| JsonHost {
            host: &row.facts.hostname,
            host_id: &row.host.host_id,
            boot_id: &row.host.boot_id,
            boots: row.boots,
            state: row.state,
            connected: row.host.connected,
            first_seen: rfc3339(row.host.first_seen_unix_ns),
            last_seen: rfc3339(row.host.last_seen_unix_ns),
            clock_ahead_ns: row.host.clock_ahead_ns,
            windows: row.host.windows,
            weight: row.host.weight,
            unit: &row.host.unit,
            cpus_used: self.cpus_of(&row.host),
            coverage: row.coverage,
            coverage_share: row.coverage.share(),
            gap_ns: row.host.gap_ns,
            kernel: &row.facts.kernel,
            arch: &row.facts.arch,
            cpus_online: row.facts.cpus_online,
            memory_bytes: row.facts.memory_bytes,
            agent_version: &row.facts.agent_version,
            labels: row.facts.labels.iter().map(pair).collect(),
            spool: row.facts.spool.as_ref().map(|spool| Spool {
                windows: spool.windows,
                bytes: spool.bytes,
                bytes_max: spool.bytes_max,
                oldest: (spool.oldest_unix_ns != 0).then(|| rfc3339(spool.oldest_unix_ns)),
                dropped_windows: spool.dropped_windows,
            }),
            warnings: &row.host.warnings,
            blind: row.host.blind,
            lost_weight: row.host.lost_weight,
            degradations: row.host.degradations.iter().map(Degradation::of).collect(),
        };
        Json {
            now: rfc3339(clock.now_ns()),
            gone_after_s: args.gone_after.as_secs(),
            silent: self.count(State::Silent),
            gone: self.count(State::Gone),
            hosts_left_out: self.left_out,
            hosts: self.shown(args).map(host).collect(),
            fleet: self.fleet.json(),
        }
    }
}

fn pair<'a>((name, value): (&'a String, &'a String)) -> (&'a str, &'a str) {
    (name, value)
}

fn row(mut host: Host, clock: &Clock, gone_after: Duration) -> Row {
    let age_ns = clock.now_ns().saturating_sub(host.last_seen_unix_ns);
    // Full seconds: a heartbeat is no stop-watch.
    let age = Duration::from_secs(age_ns.max(0).unsigned_abs() / 1_000_000_000);
    let stopped = host.degradations.iter().any(|found| found.id == STOPPED);
    let state = match age {
        age if age > gone_after.max(SILENT_AFTER) => State::Gone,
        _ if stopped => State::Stopped,
        age if age > SILENT_AFTER => State::Silent,
        _ => State::Alive,
    };
    Row {
        facts: host.facts.take().unwrap_or_default(),
        coverage: host.coverage.take().unwrap_or_default().into(),
        boots: 1,
        age,
        state,
        host,
    }
}

/// Adds another boot of the same host: what was counted is added up, the rest is of the boot that
/// was heard of last.
fn merge(row: &mut Row, mut other: Row) {
    if other.host.last_seen_unix_ns > row.host.last_seen_unix_ns {
        std::mem::swap(row, &mut other);
    }
    let (host, more) = (&mut row.host, &other.host);
    host.windows = host.windows.saturating_add(more.windows);
    host.weight = host.weight.saturating_add(more.weight);
    if host.unit != more.unit && more.weight > 0 {
        // A boot that did nothing has no say; two units make a sum of nothing.
        host.unit = match host.weight == more.weight {
            true => more.unit.clone(),
            false => String::new(),
        };
    }
    host.gap_ns = host.gap_ns.saturating_add(more.gap_ns);
    host.first_seen_unix_ns = host.first_seen_unix_ns.min(more.first_seen_unix_ns);
    host.lost_weight = host.lost_weight.saturating_add(more.lost_weight);
    for found in &more.degradations {
        if !host.degradations.iter().any(|own| own.id == found.id) {
            host.degradations.push(found.clone());
        }
    }
    for warning in other.host.warnings {
        if !host.warnings.contains(&warning) {
            host.warnings.push(warning);
        }
    }
    row.coverage += other.coverage;
    row.boots = row.boots.saturating_add(other.boots);
}

/// Windows that wait on a host's disk, and those that it dropped.
fn spool(facts: &HostFacts) -> String {
    let Some(spool) = &facts.spool else {
        return "-".to_owned();
    };
    let waiting = match spool.windows {
        0 => "empty".to_owned(),
        windows => format!("{} ({})", units::count(windows), units::bytes(spool.bytes)),
    };
    match spool.dropped_windows {
        0 => waiting,
        dropped => format!("{waiting}, {} dropped", units::count(dropped)),
    }
}

/// By how much a clock is wrong.
fn ahead(ns: i64) -> String {
    if ns.unsigned_abs() < CLOCK_AHEAD_NS {
        return "ok".to_owned();
    }
    let sign = if ns > 0 { '+' } else { '-' };
    let by = units::duration(Duration::from_nanos(ns.unsigned_abs()));
    format!("{sign}{by}")
}

#[derive(Serialize)]
struct Json<'a> {
    now: String,
    gone_after_s: u64,
    silent: u64,
    gone: u64,
    hosts_left_out: u64,
    hosts: Vec<JsonHost<'a>>,
    fleet: fleet::Json,
}

#[derive(Serialize)]
struct JsonHost<'a> {
    host: &'a str,
    host_id: &'a str,
    boot_id: &'a str,
    boots: u64,
    state: State,
    connected: bool,
    first_seen: String,
    last_seen: String,
    clock_ahead_ns: i64,
    windows: u64,
    weight: u64,
    /// Empty: not known.
    unit: &'a str,
    cpus_used: Option<f64>,
    coverage: Coverage,
    coverage_share: Option<f64>,
    gap_ns: u64,
    kernel: &'a str,
    arch: &'a str,
    cpus_online: u32,
    memory_bytes: u64,
    agent_version: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    spool: Option<Spool>,
    warnings: &'a [String],
    blind: bool,
    lost_weight: u64,
    degradations: Vec<Degradation<'a>>,
}

#[derive(Serialize)]
struct Spool {
    windows: u64,
    bytes: u64,
    bytes_max: u64,
    oldest: Option<String>,
    dropped_windows: u64,
}

#[cfg(test)]
mod tests;
