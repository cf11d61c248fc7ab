//! Compares a range with a baseline by service and host, and by function where a service changed.
//! Data flows one way: both sides are read as cores by step (`lines`), each line is compared with
//! its baseline (`shift`), hosts with their peers (`peers`), and for services that changed the
//! functions are compared (`functions`). What hosts and cgroups waited for is next to it
//! (`waiting`).

mod functions;
mod lines;
#[cfg(test)]
mod noise;
mod peers;
mod shift;
mod waiting;

use super::chance::discoveries;
use super::request::{Selected, check, invalid, limit, whole_steps};
use super::{Ask, Failed, Queries, answer, resolved};
use crate::access::Caller;
use crate::store::{DataQuality, Limits, Scope, StoreError, StoreQueries, TimeRange};
use lines::{Side, by_name, hosts_of, mean};
use peers::Outlier;
use profile::Selector;
use proto::collector as wire;
use shift::{Line, Shift, Spread};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Status;
use waiting::{Pressed, Resource, Throttled};

/// The part of the changes marked as significant that may be due to chance.
const FALSE_DISCOVERIES: f64 = 0.01;

/// A change that is smaller does not matter. Cores, and share of the larger side.
const CHANGE_MIN: (f64, f64) = (0.02, 0.03);

/// Lines with less on both sides cannot change by what matters, and are not judged. Unit: cores.
const CORES_MIN: f64 = 0.02;

/// Anything below it counts as nothing: the line appeared or vanished. Unit: cores.
const NOTHING: f64 = 0.001;

/// Most steps of a range, and lengths that a step is chosen from. Unit: seconds. From ten minutes
/// on the store has sums.
const STEPS_MAX: u64 = 72;
const STEPS_S: [u64; 12] = [
    10, 20, 60, 120, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800,
];

const ROWS: usize = 20;
const ROWS_MAX: usize = 200;

/// Most services for which functions are compared.
const SERVICES_MAX: usize = 3;

/// Most names of hosts in a row.
const NAMES_MAX: usize = 50;

/// The label of services that a request does not name.
const SERVICE_LABEL: &str = "unit";

/// A line of a table, judged.
pub struct Row {
    /// The service, or host.
    name: String,
    now: Vec<f64>,
    baseline: Vec<f64>,
    shift: Option<Shift>,
    significant: bool,
    /// Hosts it ran on.
    hosts: usize,
    /// Hosts on which it changed the same way, the largest change first.
    changed_hosts: Vec<String>,
}

/// Both sides, judged.
struct Judged {
    fleet: Row,
    services: Vec<Row>,
    hosts: Vec<Row>,
    outliers: Vec<(Outlier, bool)>,
    throttled: Vec<Throttled>,
    pressed: Vec<Pressed>,
}

impl Queries {
    /// See the module.
    pub(super) async fn overview(
        &self,
        caller: &Caller,
        asked: wire::OverviewRequest,
    ) -> Result<wire::OverviewResponse, Status> {
        let selected = Selected::new(asked.selection)?.without_filters("Overview")?;
        check(asked.baseline)?;
        let baseline_selector = match asked.baseline_selection {
            Some(selection) if selection.range.is_some() => {
                return Err(invalid(
                    "failed to make an overview: the range of the baseline is given as `baseline`, \
                     not in its selection",
                ));
            }
            Some(selection) => {
                let selected = Selected::new(Some(selection))?;
                Some(selected.without_filters("Overview")?.selector)
            }
            None => None,
        };
        let label = match asked.service_label.as_str() {
            "" => SERVICE_LABEL.to_owned(),
            "*" | "host" => {
                return Err(invalid(
                    "failed to make an overview: name the label whose values are services",
                ));
            }
            _ => asked.service_label,
        };
        let rows = limit(asked.limit, ROWS, ROWS_MAX);
        let (now, nodes) = (self.0.clock.now_unix_ns(), self.0.options.nodes);
        let hosts = self.0.hosts.clone();
        self.run(
            caller,
            Ask::Overview,
            nodes,
            self.0.options.lines,
            move |store, limits| {
                let range = resolved(store, selected.range(), now)?;
                let baseline = match asked.baseline {
                    Some(_) => resolved(store, asked.baseline, now)?,
                    None => before(range),
                };
                let step_ns = step(range, baseline);
                let side = |range, selector: &Selector| {
                    let scope = Scope {
                        range: whole_steps(range, step_ns),
                        selector: selector.clone(),
                    };
                    Side::read(store, &scope, &label, step_ns, limits)
                };
                let of_baseline = baseline_selector.as_ref().unwrap_or(&selected.selector);
                let (before, after) = (
                    side(baseline, of_baseline)?,
                    side(range, &selected.selector)?,
                );
                let judged = judge(&before, &after, &label);
                let mut found = Functions::default();
                if !asked.without_functions && baseline_selector.is_none() {
                    let about = (label.as_str(), &selected.selector);
                    found = functions(store, &judged, about, (baseline, &after), limits)?;
                }
                Ok(answer_of(judged, (before, after), rows, found, |quality| {
                    answer::quality(quality, None, &hosts)
                }))
            },
        )
        .await
    }
}

/// The time of the same length right before a range.
fn before(range: TimeRange) -> TimeRange {
    let length = range.end_unix_ns.saturating_sub(range.start_unix_ns);
    TimeRange {
        start_unix_ns: range.start_unix_ns.saturating_sub(length),
        end_unix_ns: range.start_unix_ns,
    }
}

/// The length of steps of both sides.
fn step(range: TimeRange, baseline: TimeRange) -> u64 {
    let length = |range: TimeRange| range.end_unix_ns.abs_diff(range.start_unix_ns);
    let longer = length(range).max(length(baseline));
    let mut steps = STEPS_S.iter().map(|seconds| seconds * 1_000_000_000);
    let fits = |step: &u64| longer / step <= STEPS_MAX;
    let longest = STEPS_S[STEPS_S.len() - 1] * 1_000_000_000;
    steps
        .find(fits)
        .unwrap_or(longer / STEPS_MAX / longest * longest + longest)
}

/// Holds every line against its baseline, and hosts against each other.
fn judge(before: &Side, after: &Side, label: &str) -> Judged {
    let mut fleet = Row::new(String::new(), before.whole(), after.whole());
    fleet.hosts = after
        .cells
        .keys()
        .map(|(_, host)| host)
        .collect::<BTreeSet<_>>()
        .len();
    let mut services = rows_of(before, after, |(service, _)| service);
    let mut hosts = rows_of(before, after, |(_, host)| host);
    let mut cells = cells_of(before, after);
    // All lines that were looked at are one table: whoever looks at many finds something.
    let rows = || {
        let of_hosts = services.iter().chain(&hosts).chain([&fleet]);
        of_hosts.chain(cells.iter().map(|(_, row)| row))
    };
    let chances: Vec<f64> = rows().filter_map(Row::chance).collect();
    let mut found = discoveries(&chances, FALSE_DISCOVERIES).into_iter();
    let verdicts: Vec<bool> = rows()
        .map(|row| row.chance().is_some() && found.next() == Some(true) && row.matters())
        .collect();
    let mut verdicts = verdicts.into_iter();
    let mut mark = |row: &mut Row| row.significant = verdicts.next() == Some(true);
    services.iter_mut().for_each(&mut mark);
    hosts.iter_mut().for_each(&mut mark);
    mark(&mut fleet);
    cells.iter_mut().for_each(|(_, row)| mark(row));
    add_hosts(&mut services, cells, after);
    for rows in [&mut services, &mut hosts] {
        rows.retain(|row| mean(&row.now) > 0.0 || mean(&row.baseline) > 0.0);
        rows.sort_by(|a, b| b.surprise().cmp_with(&a.surprise()));
    }
    let was: BTreeSet<(String, String)> = peers::outliers(before)
        .into_iter()
        .map(|outlier| (outlier.service, outlier.host))
        .collect();
    let mut outliers: Vec<(Outlier, bool)> = peers::outliers(after)
        .into_iter()
        .map(|outlier| {
            let before = was.contains(&(outlier.service.clone(), outlier.host.clone()));
            (outlier, before)
        })
        .collect();
    outliers.sort_by_key(|(_, before)| *before);
    Judged {
        fleet,
        services,
        hosts,
        outliers,
        throttled: waiting::throttled(before, after, label),
        pressed: waiting::pressed(before, after),
    }
}

/// Rows of the sums of cells by one part of their names.
fn rows_of(before: &Side, after: &Side, of: fn(&(String, String)) -> &String) -> Vec<Row> {
    let (mut was, mut is) = (by_name(before, of), by_name(after, of));
    let names: BTreeSet<String> = was.keys().chain(is.keys()).cloned().collect();
    let rows = names.into_iter().map(|name| {
        let line = |lines: &mut BTreeMap<String, Vec<f64>>, side: &Side| {
            lines.remove(&name).unwrap_or_else(|| side.nothing())
        };
        let (was, is) = (line(&mut was, before), line(&mut is, after));
        Row::new(name, was, is)
    });
    rows.collect()
}

/// Rows of each service on each host, by service. Hosts of a service are each other's peers.
fn cells_of(before: &Side, after: &Side) -> Vec<(String, Row)> {
    let mut services: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (service, host) in before.cells.keys().chain(after.cells.keys()) {
        services.entry(service).or_default().insert(host);
    }
    let mut cells = Vec::new();
    for (service, hosts) in services {
        let lines = hosts.into_iter().map(|host| {
            let names = (service.to_owned(), host.to_owned());
            let [was, is] = [before, after].map(|side| {
                let cell = side.cells.get(&names).cloned();
                cell.unwrap_or_else(|| side.nothing())
            });
            (names.1, Line::of(&was, &is), was, is)
        });
        let lines: Vec<_> = lines.collect();
        let alike = lines.iter().filter_map(|(_, line, ..)| line.as_ref());
        let alike = alike.filter(|line| line.level() >= CORES_MIN);
        let peers = Spread::pooled(&alike.map(Line::spread).collect::<Vec<_>>());
        for (host, line, was, is) in lines {
            let shift = line.map(|line| line.shift(peers.as_ref()));
            cells.push((service.to_owned(), Row::judged(host, (was, is), shift)));
        }
    }
    cells
}

/// Adds to services the hosts on which they changed. A change on some hosts that is lost in the sum
/// of all is one of the service.
fn add_hosts(services: &mut [Row], cells: Vec<(String, Row)>, after: &Side) {
    let hosts = hosts_of(after);
    let mut changed: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for (service, cell) in cells {
        if cell.significant {
            changed.entry(service).or_default().push(cell);
        }
    }
    for row in services {
        row.hosts = hosts.get(&row.name).map_or(0, BTreeSet::len);
        let Some(mut cells) = changed.remove(&row.name) else {
            continue;
        };
        let sum: f64 = cells.iter().map(Row::change).sum();
        // One of all hosts: the way most of it went.
        let way = if row.significant { row.change() } else { sum };
        cells.retain(|cell| cell.change() * way > 0.0);
        cells.sort_by(|a, b| b.change().abs().total_cmp(&a.change().abs()));
        if !row.significant
            && let Some(of_hosts) = together(&cells, row.now.len())
        {
            row.shift = Some(of_hosts);
            row.significant = true;
        }
        row.changed_hosts = cells.into_iter().map(|cell| cell.name).collect();
    }
}

/// The sum of what changes on several hosts. It started when it had on half of them, the most
/// certain of those that started then says until when it lasted: a host that joined later does not
/// move it.
fn together(cells: &[Row], steps: usize) -> Option<Shift> {
    let shifts = || cells.iter().filter_map(|cell| cell.shift);
    let mut starts: Vec<usize> = shifts().map(|shift| shift.steps.0).collect();
    starts.sort_unstable();
    let start = *starts.get(starts.len().checked_sub(1)? / 2)?;
    let then = shifts().filter(|shift| shift.steps.0 == start);
    let surest = then.max_by(|a, b| {
        let sure = |shift: &Shift| (shift.change / shift.error).abs();
        sure(a).total_cmp(&sure(b))
    })?;
    Some(Shift {
        change: shifts().map(|shift| shift.change).sum(),
        error: shifts()
            .map(|shift| shift.error.powi(2))
            .sum::<f64>()
            .sqrt(),
        chance: shifts().map(|shift| shift.chance).fold(1.0, f64::min),
        steps: (surest.steps.0, surest.steps.1.min(steps)),
    })
}

impl Row {
    fn new(name: String, baseline: Vec<f64>, now: Vec<f64>) -> Row {
        let shift = Line::of(&baseline, &now).map(|line| line.shift(None));
        Row::judged(name, (baseline, now), shift)
    }

    fn judged(name: String, (baseline, now): (Vec<f64>, Vec<f64>), shift: Option<Shift>) -> Row {
        Row {
            name,
            now,
            baseline,
            shift,
            significant: false,
            hosts: 0,
            changed_hosts: Vec::new(),
        }
    }

    /// By how many cores it changed.
    fn change(&self) -> f64 {
        self.shift.map_or(0.0, |shift| shift.change)
    }

    /// How likely chance alone is; `None`: it is not judged.
    fn chance(&self) -> Option<f64> {
        let shift = self.shift?;
        let most = mean(&self.baseline).max(mean(&self.baseline) + shift.change);
        (most >= CORES_MIN).then_some(shift.chance)
    }

    /// True when the change is large enough.
    fn matters(&self) -> bool {
        let Some(shift) = self.shift else {
            return false;
        };
        let before = mean(&self.baseline);
        let (cores, share) = CHANGE_MIN;
        shift.change.abs() >= cores.max(share * before.max(before + shift.change))
    }

    /// Sort key: what to show first.
    fn surprise(&self) -> Surprise {
        Surprise {
            significant: self.significant,
            size: match self.significant {
                true => self.change().abs(),
                false => mean(&self.now),
            },
        }
    }
}

/// Order of rows.
struct Surprise {
    significant: bool,
    size: f64,
}

impl Surprise {
    fn cmp_with(&self, other: &Surprise) -> std::cmp::Ordering {
        let by_size = self.size.total_cmp(&other.size);
        self.significant.cmp(&other.significant).then(by_size)
    }
}

/// Functions of services that changed.
#[derive(Default)]
struct Functions {
    rows: Vec<wire::OverviewFunction>,
    /// Services of which they took too long or too much.
    missing: Vec<String>,
}

/// Functions of the services that changed most. The rest of the answer stands without those that
/// take too long or too much.
fn functions(
    store: &dyn StoreQueries,
    judged: &Judged,
    about: (&str, &Selector),
    (baseline, after): (TimeRange, &Side),
    limits: &Limits,
) -> Result<Functions, Failed> {
    let changed = judged.services.iter().filter(|row| row.significant);
    let mut found = Functions::default();
    for row in changed.take(SERVICES_MAX) {
        let Some(shift) = row.shift else { continue };
        let now = TimeRange {
            start_unix_ns: after.at(shift.steps.0),
            end_unix_ns: after
                .at(shift.steps.1)
                .min(after.quality.covered.end_unix_ns),
        };
        match functions::of_service(store, row, about, (baseline, now), limits) {
            Ok(rows) => found.rows.extend(rows),
            Err(Failed::Store(StoreError::TooLarge(_))) => found.missing.push(row.name.clone()),
            Err(Failed::Store(StoreError::Cancelled)) if !limits.cancel.is_cancelled() => {
                found.missing.push(row.name.clone());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The answer on the wire.
fn answer_of(
    judged: Judged,
    (before, after): (Side, Side),
    rows: usize,
    functions: Functions,
    quality: impl Fn(DataQuality) -> wire::DataQuality,
) -> wire::OverviewResponse {
    let steps = after.len();
    let hosts_of_sides = [hosts_of(&before), hosts_of(&after)];
    // What hosts did while they were silent is not known, whatever sums take it for.
    let shown = |side: usize, line: &[f64], row: &Row, is_host: bool| {
        let of = [&before, &after][side];
        let silent = match (is_host, hosts_of_sides[side].get(&row.name)) {
            (true, _) => of.silent_all(std::iter::once(&row.name)),
            (false, Some(hosts)) => of.silent_all(hosts.iter()),
            (false, None) => Vec::new(),
        };
        on_wire(line, &silent)
    };
    let row = |row: Row, is_host: bool| {
        let steps_shown = [
            shown(0, &row.baseline, &row, is_host),
            shown(1, &row.now, &row, is_host),
        ];
        let [baseline_steps, now_steps] = steps_shown;
        let (cores, baseline_cores) = (mean(&row.now), mean(&row.baseline));
        let change = row.shift.map(|shift| wire::Change {
            cores: shift.change,
            error: shift.error,
            significant: row.significant,
            since_unix_ns: if shift.steps.0 == 0 {
                0
            } else {
                after.at(shift.steps.0)
            },
            until_unix_ns: if shift.steps.1 >= steps {
                0
            } else {
                after.at(shift.steps.1)
            },
            appeared: baseline_cores < NOTHING && cores >= NOTHING,
            vanished: cores < NOTHING && baseline_cores >= NOTHING,
        });
        let hosts_changed = row.changed_hosts.len() as u32;
        let mut changed_hosts = row.changed_hosts;
        changed_hosts.truncate(NAMES_MAX);
        wire::OverviewRow {
            name: row.name,
            cores,
            baseline_cores,
            change,
            steps: now_steps,
            baseline_steps,
            hosts: row.hosts as u32,
            changed_hosts,
            hosts_changed,
        }
    };
    let table = |mut lines: Vec<Row>, is_host: bool| {
        let left_out = lines.len().saturating_sub(rows);
        lines.truncate(rows);
        let shown = lines.into_iter().map(|line| row(line, is_host));
        (shown.collect(), left_out as u64)
    };
    let (services, services_left_out) = table(judged.services, false);
    let (hosts, hosts_left_out) = table(judged.hosts, true);
    let outliers = judged.outliers.into_iter().take(rows);
    let outliers = outliers.map(|(outlier, in_baseline)| wire::Outlier {
        host: outlier.host,
        service: outlier.service,
        cores: outlier.cores,
        median_cores: outlier.median,
        deviations: outlier.deviations,
        hosts: outlier.hosts as u32,
        in_baseline,
    });
    let time = |(first, last): (usize, usize)| {
        let since = if first == 0 { 0 } else { after.at(first) };
        (since, if last >= steps { 0 } else { after.at(last) })
    };
    let throttled_left_out =
        judged.throttled.len().saturating_sub(rows) as u64 + after.waiting.throttled_left_out;
    let throttled = judged.throttled.into_iter().take(rows);
    let throttled = throttled.map(|of| throttled_on_wire(of, time));
    let pressed_left_out = judged.pressed.len().saturating_sub(rows) as u64;
    let pressed = judged.pressed.into_iter().take(rows);
    let pressed = pressed.map(|of| pressed_on_wire(of, time));
    wire::OverviewResponse {
        throttled: throttled.collect(),
        throttled_left_out,
        throttling_known: after.waiting.throttling_known,
        pressed: pressed.collect(),
        pressed_left_out,
        pressure_hosts: after.waiting.pressure.len() as u32,
        start_unix_ns: after.start_unix_ns,
        baseline_start_unix_ns: before.start_unix_ns,
        step_ns: after.step_ns,
        fleet: Some(row(judged.fleet, false)),
        services,
        services_left_out,
        hosts,
        hosts_left_out,
        functions: functions.rows,
        functions_missing: functions.missing,
        outliers: outliers.collect(),
        accounted: after.accounted && before.accounted,
        now: Some(quality(after.quality)),
        baseline: Some(quality(before.quality)),
    }
}

fn throttled_on_wire(
    of: Throttled,
    time: impl Fn((usize, usize)) -> (i64, i64),
) -> wire::ThrottledCgroup {
    let (since_unix_ns, until_unix_ns) = time(of.steps);
    wire::ThrottledCgroup {
        host: of.host,
        cgroup: of.cgroup,
        service: of.service,
        container: of.container,
        share: of.share,
        baseline_share: of.baseline_share,
        cores: of.cores,
        limit_cores: of.limit_cores,
        since_unix_ns,
        until_unix_ns,
        in_baseline: of.in_baseline,
    }
}

fn pressed_on_wire(of: Pressed, time: impl Fn((usize, usize)) -> (i64, i64)) -> wire::PressedHost {
    let (since_unix_ns, until_unix_ns) = time(of.steps);
    let resource = match of.resource {
        Resource::Cpu => wire::Resource::Cpu,
        Resource::Memory => wire::Resource::Memory,
        Resource::Io => wire::Resource::Io,
    };
    wire::PressedHost {
        host: of.host,
        resource: resource.into(),
        share: of.share,
        baseline_share: of.baseline_share,
        since_unix_ns,
        until_unix_ns,
        in_baseline: of.in_baseline,
    }
}

fn on_wire(line: &[f64], silent: &[bool]) -> Vec<f32> {
    let rate = |(at, rate): (usize, &f64)| match silent.get(at) == Some(&true) {
        false if rate.is_finite() => *rate as f32,
        _ => -1.0,
    };
    line.iter().enumerate().map(rate).collect()
}

#[cfg(test)]
mod tests;
