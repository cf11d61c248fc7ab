//! Finds cgroups that their CPU limits hold back, and hosts whose tasks wait for CPU, memory or
//! I/O.
//!
//! The kernel counts both, so there is no chance to be judged as for CPU time: what passes its
//! threshold over the complete range is named, and marked if it was as bad in the baseline.

use super::lines::{Side, Waiting};
use crate::store::{PressureSum, ThrottledCgroup};
use profile::{Throttling, key};
use std::collections::BTreeMap;

/// A cgroup is named if its limit withheld at least this share of the CPU time that it wanted, and
/// this many cores. Below a twentieth, bursts of a few periods of 100 ms are all that is held back;
/// the cores are those of a change that matters.
const THROTTLED_MIN: (f64, f64) = (0.05, 0.02);

/// A host is named if its tasks waited for this share of the time. CPU: in half of it, some task
/// that could run had to wait, which work notices. Memory and I/O count only time in which nothing
/// ran at all, so less of it is worse: three minutes and twelve minutes an hour.
const PRESSED_MIN: [(Resource, f64); 3] = [
    (Resource::Cpu, 0.5),
    (Resource::Memory, 0.05),
    (Resource::Io, 0.2),
];

/// What was above its threshold in the baseline is news again if its share grew by this much.
const WORSE: f64 = 0.1;

/// A time counts as that of the waiting while it has at least this part of the mean of the range.
const PART_OF_MEAN: f64 = 0.5;

/// What tasks of a host wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A CPU.
    Cpu,
    /// Memory.
    Memory,
    /// I/O.
    Io,
}

/// A cgroup that its CPU limit held back.
#[derive(Clone, Debug, PartialEq)]
pub struct Throttled {
    /// Name of its host.
    pub host: String,
    /// Path.
    pub cgroup: String,
    /// The service, by the label of the request.
    pub service: String,
    /// Name of the container, or its id; empty outside of containers.
    pub container: String,
    /// What was withheld, of what it wanted.
    pub share: f64,
    /// The same in the baseline; `None` if it is not known.
    pub baseline_share: Option<f64>,
    /// What was withheld. Unit: cores.
    pub cores: f64,
    /// The limit; 0: not known.
    pub limit_cores: f64,
    /// The steps in which it was held back, half open.
    pub steps: (usize, usize),
    /// It was about as bad in the baseline.
    pub in_baseline: bool,
}

/// A host whose tasks waited.
#[derive(Clone, Debug, PartialEq)]
pub struct Pressed {
    /// Name.
    pub host: String,
    /// What they waited for.
    pub resource: Resource,
    /// For which share of the time.
    pub share: f64,
    /// The same in the baseline; `None` if it is not known.
    pub baseline_share: Option<f64>,
    /// The steps in which they waited, half open.
    pub steps: (usize, usize),
    /// It was about as bad in the baseline.
    pub in_baseline: bool,
}

/// Cgroups that were held back: new ones first, then by what was withheld.
pub fn throttled(before: &Side, after: &Side, label: &str) -> Vec<Throttled> {
    let (share_min, cores_min) = THROTTLED_MIN;
    let was = Baseline::of(&before.waiting, label);
    let mut found: Vec<Throttled> = Vec::new();
    for of in &after.waiting.throttled {
        let (host, cgroup) = (of.labels.get(key::HOST), of.labels.get(key::CGROUP));
        let Some(covered) = after.waiting.hosts.get(host) else {
            continue;
        };
        let whole: u64 = covered.iter().sum();
        let cores = of.sum.ns as f64 / whole.max(1) as f64;
        let Some(share) = of.sum.share() else {
            continue;
        };
        if share < share_min || cores < cores_min {
            continue;
        }
        let service = of.labels.get(label);
        let baseline_share = was.share_of(host, cgroup, service);
        found.push(Throttled {
            host: host.to_owned(),
            cgroup: cgroup.to_owned(),
            service: service.to_owned(),
            container: container(of),
            share,
            baseline_share,
            cores,
            limit_cores: of.sum.limit_cores().unwrap_or(0.0),
            steps: span(&of.steps, covered),
            in_baseline: is_no_news(share, baseline_share, share_min),
        });
    }
    found.sort_by(|a, b| {
        let more = b.cores.total_cmp(&a.cores);
        a.in_baseline.cmp(&b.in_baseline).then(more)
    });
    found
}

fn container(of: &ThrottledCgroup) -> String {
    let name = of.labels.get(key::CONTAINER_NAME);
    match name {
        "" => of.labels.get(key::CONTAINER).to_owned(),
        name => name.to_owned(),
    }
}

/// What was held back in the baseline.
struct Baseline<'w> {
    of: &'w Waiting,
    by_cgroup: BTreeMap<(&'w str, &'w str), Throttling>,
    /// The largest share of a cgroup of each service: a container that is started again has another
    /// path, and what was throttled before it is no less throttled.
    by_service: BTreeMap<&'w str, f64>,
}

impl<'w> Baseline<'w> {
    fn of(of: &'w Waiting, label: &str) -> Baseline<'w> {
        let mut by_cgroup: BTreeMap<(&str, &str), Throttling> = BTreeMap::new();
        let mut by_service: BTreeMap<&str, f64> = BTreeMap::new();
        for cgroup in &of.throttled {
            let labels = &cgroup.labels;
            let place = (labels.get(key::HOST), labels.get(key::CGROUP));
            *by_cgroup.entry(place).or_default() += cgroup.sum;
            let share = cgroup.sum.share().unwrap_or(0.0);
            let most = by_service.entry(labels.get(label)).or_default();
            *most = most.max(share);
        }
        Baseline {
            of,
            by_cgroup,
            by_service,
        }
    }

    fn share_of(&self, host: &str, cgroup: &str, service: &str) -> Option<f64> {
        if !self.of.throttling_known {
            return None;
        }
        let own = self
            .by_cgroup
            .get(&(host, cgroup))
            .and_then(Throttling::share);
        let of_service = || {
            let named = !service.is_empty();
            self.by_service.get(service).copied().filter(|_| named)
        };
        // Of a host without the baseline's windows nothing is known.
        // Nor of one that may be among those left out.
        let is_all = self.of.throttled_left_out == 0;
        let nothing = || (is_all && self.of.hosts.contains_key(host)).then_some(0.0);
        own.or_else(of_service).or_else(nothing)
    }
}

/// Hosts under pressure: new ones first, then by how far they are above the threshold.
pub fn pressed(before: &Side, after: &Side) -> Vec<Pressed> {
    let mut found: Vec<(f64, Pressed)> = Vec::new();
    for (host, line) in &after.waiting.pressure {
        let covered: Vec<u64> = line.iter().map(|of| of.covered_ns).collect();
        for (resource, share_min) in PRESSED_MIN {
            let Some(share) = share_of(line, resource) else {
                continue;
            };
            if share < share_min {
                continue;
            }
            let was = before.waiting.pressure.get(host);
            let baseline_share = was.and_then(|line| share_of(line, resource));
            let waited: Vec<u64> = line.iter().map(|of| waited(of, resource)).collect();
            let pressed = Pressed {
                host: host.clone(),
                resource,
                share,
                baseline_share,
                steps: span(&waited, &covered),
                in_baseline: is_no_news(share, baseline_share, share_min),
            };
            found.push((share / share_min, pressed));
        }
    }
    found.sort_by(|(a_times, a), (b_times, b)| {
        let more = b_times.total_cmp(a_times);
        a.in_baseline.cmp(&b.in_baseline).then(more)
    });
    found.into_iter().map(|(_, pressed)| pressed).collect()
}

fn waited(of: &PressureSum, resource: Resource) -> u64 {
    match resource {
        Resource::Cpu => of.cpu_ns,
        Resource::Memory => of.memory_ns,
        Resource::Io => of.io_ns,
    }
}

fn share_of(line: &[PressureSum], resource: Resource) -> Option<f64> {
    let sum = |of: fn(&PressureSum, Resource) -> u64| -> f64 {
        line.iter().map(|step| of(step, resource) as f64).sum()
    };
    let covered = sum(|of, _| of.covered_ns);
    (covered > 0.0).then(|| sum(waited) / covered)
}

/// True if it was above the threshold in the baseline as well, and did not get worse.
fn is_no_news(share: f64, baseline_share: Option<f64>, share_min: f64) -> bool {
    baseline_share.is_some_and(|was| was >= share_min && share < was + WORSE)
}

/// From the first to the last step with a good part of what is usual for the range.
fn span(waited: &[u64], covered: &[u64]) -> (usize, usize) {
    let rates = waited.iter().zip(covered);
    let rates: Vec<f64> = rates
        .map(|(ns, covered)| match covered {
            0 => 0.0,
            covered => *ns as f64 / *covered as f64,
        })
        .collect();
    let known = covered.iter().filter(|ns| **ns > 0).count();
    let mean = rates.iter().sum::<f64>() / known.max(1) as f64;
    let counts = |rate: &f64| *rate > 0.0 && *rate >= mean * PART_OF_MEAN;
    let first = rates.iter().position(counts);
    let last = rates.iter().rposition(counts);
    // What had not been sent yet may be under way; what was not known before may be of before.
    let unknown = |at: usize| covered.get(at).is_none_or(|ns| *ns == 0);
    match (first, last) {
        (Some(first), Some(last)) => {
            let first = if (0..first).all(unknown) { 0 } else { first };
            let to_end = (last + 1..covered.len()).all(unknown);
            (first, if to_end { covered.len() } else { last + 1 })
        }
        _ => (0, covered.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::bare_side;
    use super::*;
    use crate::store::LabelSet;

    /// Windows of ten minutes, by step. Unit: nanoseconds.
    const STEP_NS: u64 = 600_000_000_000;
    const STEPS: usize = 6;

    /// A side of two hosts, with one cgroup that is held back in some steps.
    fn side(cgroup: &str, share: f64, steps: std::ops::Range<usize>) -> Side {
        let mut side = bare_side(STEPS, STEP_NS);
        let pairs = [
            ("host", "web-1"),
            ("cgroup", cgroup),
            ("unit", "api.service"),
        ];
        let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let cpu = STEP_NS / 5;
        let held = (cpu as f64 * share / (1.0 - share)) as u64;
        let of = |at| if steps.contains(&at) { held } else { 0 };
        let line: Vec<u64> = (0..STEPS).map(of).collect();
        let waiting = &mut side.waiting;
        for host in ["web-1", "web-2"] {
            waiting.hosts.insert(host.to_owned(), vec![STEP_NS; STEPS]);
        }
        waiting.throttling_known = true;
        if share > 0.0 {
            waiting.throttled.push(ThrottledCgroup {
                labels: LabelSet::new(owned),
                sum: Throttling {
                    ns: line.iter().sum(),
                    used_ns: cpu * steps.len() as u64,
                    limit_millicores: 200,
                },
                steps: line,
            });
        }
        side
    }

    fn one(before: &Side, after: &Side) -> Throttled {
        let mut found = throttled(before, after, "unit");
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_cgroup_that_is_held_back_since_a_moment_is_named_with_it() {
        let found = one(&side("/a", 0.0, 0..0), &side("/a", 0.9, 2..6));
        assert!((found.share - 0.9).abs() < 1e-6, "{found:?}");
        assert_eq!((found.steps, found.limit_cores), ((2, 6), 0.2));
        assert_eq!(
            (found.baseline_share, found.in_baseline),
            (Some(0.0), false)
        );
        assert_eq!(
            (found.service.as_str(), found.host.as_str()),
            ("api.service", "web-1")
        );
    }

    #[test]
    fn what_was_as_bad_before_is_no_news_and_what_got_worse_is() {
        let before = side("/a", 0.5, 0..6);
        let found = one(&before, &side("/a", 0.52, 0..6));
        assert_eq!((found.in_baseline, found.steps), (true, (0, 6)));
        assert!(!one(&before, &side("/a", 0.7, 0..6)).in_baseline);
    }

    #[test]
    fn a_container_that_was_started_again_is_held_against_its_service() {
        let found = one(&side("/pod1", 0.5, 0..6), &side("/pod2", 0.5, 0..6));
        assert!(found.in_baseline, "{found:?}");
    }

    #[test]
    fn a_baseline_of_agents_that_do_not_say_is_unknown_not_zero() {
        let mut before = side("/a", 0.0, 0..0);
        before.waiting.throttling_known = false;
        let found = one(&before, &side("/a", 0.5, 0..6));
        assert_eq!((found.baseline_share, found.in_baseline), (None, false));
    }

    #[test]
    fn a_few_bursts_are_not_named() {
        let before = side("/a", 0.0, 0..0);
        assert_eq!(throttled(&before, &side("/a", 0.04, 0..6), "unit"), []);
    }

    /// Adds the pressure of a host, the same in each step.
    fn with_pressure(mut side: Side, host: &str, cpu: f64, memory: f64) -> Side {
        let ns = |share: f64| (STEP_NS as f64 * share) as u64;
        let of = PressureSum {
            covered_ns: STEP_NS,
            cpu_ns: ns(cpu),
            memory_ns: ns(memory),
            io_ns: 0,
        };
        side.waiting
            .pressure
            .insert(host.to_owned(), vec![of; STEPS]);
        side
    }

    #[test]
    fn hosts_are_named_by_what_their_tasks_wait_for() {
        let quiet = |host| with_pressure(bare_side(STEPS, STEP_NS), host, 0.1, 0.0);
        let found = pressed(&quiet("a"), &with_pressure(quiet("b"), "a", 0.7, 0.06));
        let found: Vec<_> = found
            .iter()
            .map(|of| (of.host.as_str(), of.resource, of.in_baseline))
            .collect();
        let expected = [("a", Resource::Cpu, false), ("a", Resource::Memory, false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_host_without_the_kernels_pressure_is_not_named_nor_compared() {
        let (bare, busy) = (bare_side(STEPS, STEP_NS), bare_side(STEPS, STEP_NS));
        let busy = with_pressure(busy, "a", 0.9, 0.0);
        assert_eq!(pressed(&busy, &bare), []);
        assert_eq!(pressed(&bare, &busy)[0].baseline_share, None);
    }
}
