//! Turns profiles into rows: the sliding range, by function, cgroup and process.

use super::Sort;
use profile::{FrameKind, Profile, TopBy, TopSort, key};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Labels the views need.
pub const GROUP_BY: [&str; 4] = [key::CGROUP, key::UNIT, key::COMM, key::PID];

/// What rows stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// Functions
    Functions,
    /// cgroups, each with all below it
    Cgroups,
    /// Processes
    Processes,
    /// Hosts of a fleet (with --collector)
    Hosts,
}

impl View {
    /// Every view of an agent, in the order of Tab.
    pub const ALL: [View; 3] = [View::Functions, View::Cgroups, View::Processes];

    /// Every view of a fleet, in the order of Tab.
    pub const FLEET: [View; 4] = [View::Functions, View::Cgroups, View::Processes, View::Hosts];

    /// Lower-case name.
    pub fn word(self) -> &'static str {
        match self {
            View::Functions => "functions",
            View::Cgroups => "cgroups",
            View::Processes => "processes",
            View::Hosts => "hosts",
        }
    }

    /// Heading of the names.
    pub fn heading(self) -> &'static str {
        match self {
            View::Functions => "FUNCTION",
            View::Cgroups => "CGROUP",
            View::Processes => "PROCESS",
            View::Hosts => "HOST",
        }
    }

    /// Heading of the details.
    pub fn detail(self) -> &'static str {
        match self {
            View::Functions => "MODULE",
            View::Cgroups => "UNIT",
            View::Processes => "CGROUP",
            View::Hosts => "",
        }
    }

    /// Heading of the details of a fleet: its processes are grouped by name, so they have none.
    pub fn fleet_detail(self) -> &'static str {
        match self {
            View::Processes => "",
            other => other.detail(),
        }
    }
}

/// One row, with text as the agent sent it: escape it where it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Function, cgroup, or `PID comm`.
    pub name: String,
    /// Module, unit, or cgroup.
    pub detail: String,
    /// Weight of its own.
    pub own: u64,
    /// Weight with callees, or cgroups below.
    pub total: u64,
    /// Kind of a function.
    pub kind: Option<FrameKind>,
}

/// The rows of every view.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Sum of all weights.
    pub total: u64,
    functions: Vec<Row>,
    cgroups: Vec<Row>,
    processes: Vec<Row>,
    hosts: Vec<Row>,
}

impl Rows {
    /// The rows of one view, and none of the others.
    pub fn only(view: View, rows: Vec<Row>, total: u64) -> Rows {
        let mut all = Rows {
            total,
            ..Rows::default()
        };
        match view {
            View::Functions => all.functions = rows,
            View::Cgroups => all.cgroups = rows,
            View::Processes => all.processes = rows,
            View::Hosts => all.hosts = rows,
        }
        all
    }

    /// The rows of a profile grouped by [`GROUP_BY`].
    pub fn of(profile: &Profile) -> Rows {
        let functions = profile.top(&TopBy::Function, TopSort::Own, usize::MAX).rows;
        let functions = functions
            .into_iter()
            .map(|row| Row {
                name: row.name,
                detail: row.module,
                own: row.own.weight,
                total: row.total.weight,
                kind: Some(row.kind),
            })
            .collect();
        // Label sets are few; samples are many.
        let mut weights = HashMap::new();
        for (sample, value) in &profile.samples {
            let sum: &mut u64 = weights.entry(sample.labels).or_default();
            *sum = sum.saturating_add(value.weight);
        }
        let mut processes: HashMap<(&str, &str), Row> = HashMap::new();
        let mut cgroups: HashMap<&str, Row> = HashMap::new();
        for (&set, &weight) in &weights {
            let label = |key| profile.dict.label(set, key).unwrap_or("");
            let (pid, comm, cgroup) = (label(key::PID), label(key::COMM), label(key::CGROUP));
            let process = processes
                .entry((pid, comm))
                .or_insert_with(|| row(format!("{pid:>7} {comm}"), cgroup.to_owned()));
            add(&mut process.own, weight);
            add(&mut process.total, weight);
            let own = cgroups
                .entry(cgroup)
                .or_insert_with(|| row(cgroup.to_owned(), String::new()));
            add(&mut own.own, weight);
            add(&mut own.total, weight);
            if own.detail.is_empty() {
                label(key::UNIT).clone_into(&mut own.detail);
            }
            for above in ancestors(cgroup) {
                let above = cgroups
                    .entry(above)
                    .or_insert_with(|| row(above.into(), "".into()));
                add(&mut above.total, weight);
            }
        }
        Rows {
            total: profile.total().weight,
            functions,
            cgroups: cgroups.into_values().collect(),
            processes: processes.into_values().collect(),
            hosts: Vec::new(),
        }
    }

    /// The rows of a view, largest first.
    pub fn sorted(&self, view: View, sort: Sort) -> Vec<&Row> {
        let rows = match view {
            View::Functions => &self.functions,
            View::Cgroups => &self.cgroups,
            View::Processes => &self.processes,
            View::Hosts => &self.hosts,
        };
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_unstable_by(|left, right| sort.order(left, right));
        rows
    }
}

fn row(name: String, detail: String) -> Row {
    Row {
        name,
        detail,
        own: 0,
        total: 0,
        kind: None,
    }
}

fn add(sum: &mut u64, weight: u64) {
    *sum = sum.saturating_add(weight);
}

/// Most levels a path is counted up through. cgroup trees are a handful deep; a path of a thousand
/// slashes is a prank.
const DEPTH_MAX: usize = 64;

fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = if path.starts_with('/') { path } else { "/" };
    std::iter::from_fn(move || {
        if rest == "/" {
            return None;
        }
        let at = rest.rfind('/')?;
        rest = if at == 0 { "/" } else { &rest[..at] };
        Some(rest)
    })
    .take(DEPTH_MAX)
}

/// The newest profiles, as many as cover the range.
pub struct Sliding {
    range: Duration,
    profiles: VecDeque<Profile>,
}

/// Most profiles kept, whatever their durations say: ten minutes of one a second, and some room.
const PROFILES_MAX: usize = 700;

impl Sliding {
    /// Nothing yet.
    pub fn new(range: Duration) -> Sliding {
        Sliding {
            range,
            profiles: VecDeque::new(),
        }
    }

    /// Adds the newest profile, and drops those that are no longer needed to cover the range.
    pub fn push(&mut self, profile: Profile) {
        self.profiles.push_back(profile);
        let range_ns = u64::try_from(self.range.as_nanos()).unwrap_or(u64::MAX);
        let mut covered: u64 = 0;
        let mut keep = 0;
        for profile in self.profiles.iter().rev() {
            keep += 1;
            covered = covered.saturating_add(profile.info.duration_ns);
            if covered >= range_ns {
                break;
            }
        }
        let keep = keep.min(PROFILES_MAX);
        self.profiles.drain(..self.profiles.len() - keep);
    }

    /// Forgets everything: after a gap the range would cover time that was not seen.
    pub fn clear(&mut self) {
        self.profiles.clear();
    }

    /// All of it as one profile. Profiles in another unit than the newest are left out: the agent
    /// was restarted with another event.
    pub fn merged(&self) -> Profile {
        let mut merged = Profile::default();
        let mut covered: u64 = 0;
        for profile in self.profiles.iter().rev() {
            if merged.merge(profile).is_ok() {
                covered = covered.saturating_add(profile.info.duration_ns);
            }
        }
        // Time that was seen: between two profiles some may be missing.
        merged.info.duration_ns = covered;
        merged
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use profile::{FrameRef, Info, SampleKey, StackEnd, StackId, Value};

    /// A profile of one second with these (cgroup, pid, comm, root-first functions, weight).
    pub fn profile(samples: &[(&str, &str, &str, &[&str], u64)]) -> Profile {
        let mut profile = Profile {
            info: Info {
                start_unix_ns: 1_795_222_720_000_000_000,
                duration_ns: 1_000_000_000,
                event: "cpu-clock".into(),
                unit: "nanoseconds".into(),
                period: 10_101_010,
                ..Info::default()
            },
            ..Profile::default()
        };
        for (cgroup, pid, comm, functions, weight) in samples {
            let labels =
                profile
                    .dict
                    .intern_labels([("cgroup", *cgroup), ("pid", *pid), ("comm", *comm)]);
            let stack = functions.iter().fold(StackId::EMPTY, |stack, function| {
                let frame = FrameRef {
                    function,
                    module: "app",
                    ..FrameRef::default()
                };
                let frame = profile.dict.intern_frame(frame);
                profile.dict.stacks.child(stack, frame)
            });
            let key = SampleKey {
                labels,
                stack,
                end: StackEnd::Complete,
            };
            profile.add(
                key,
                Value {
                    count: 1,
                    weight: *weight,
                },
            );
            profile.info.quality.taken += 1;
        }
        profile
    }

    fn shown(rows: &Rows, view: View, sort: Sort) -> Vec<(String, u64, u64)> {
        let rows = rows.sorted(view, sort).into_iter();
        rows.map(|row| (row.name.clone(), row.own, row.total))
            .collect()
    }

    fn owned(rows: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        rows.iter()
            .map(|&(name, own, total)| (name.to_owned(), own, total))
            .collect()
    }

    #[test]
    fn every_view_adds_up() {
        let rows = Rows::of(&profile(&[
            ("/a/b", "7", "x", &["main", "work"], 6),
            ("/a", "7", "x", &["main"], 1),
            ("/c", "8", "y", &["main", "work", "work"], 3),
        ]));
        assert_eq!(rows.total, 10);
        let functions = shown(&rows, View::Functions, Sort::Own);
        assert_eq!(functions, owned(&[("work", 9, 9), ("main", 1, 10)]));
        let cgroups = shown(&rows, View::Cgroups, Sort::Total);
        assert_eq!(
            cgroups,
            owned(&[("/", 0, 10), ("/a", 1, 7), ("/a/b", 6, 6), ("/c", 3, 3)])
        );
        let processes = shown(&rows, View::Processes, Sort::Own);
        assert_eq!(
            processes,
            owned(&[("      7 x", 7, 7), ("      8 y", 3, 3)])
        );
    }

    #[test]
    fn the_range_slides() {
        let mut sliding = Sliding::new(Duration::from_secs(3));
        for weight in 1..=5 {
            sliding.push(profile(&[("/", "1", "x", &["f"], weight)]));
        }
        let merged = sliding.merged();
        assert_eq!(
            (merged.total().weight, merged.info.quality.taken),
            (3 + 4 + 5, 3)
        );
        sliding.clear();
        assert_eq!(sliding.merged().total().weight, 0);
    }

    #[test]
    fn profiles_without_duration_do_not_pile_up() {
        let mut sliding = Sliding::new(Duration::from_secs(3));
        for _ in 0..PROFILES_MAX + 10 {
            sliding.push(Profile::default());
        }
        assert_eq!(sliding.profiles.len(), PROFILES_MAX);
    }
}
