//! The activity of hosts in and around a range, as engines report it, and what follows from it:
//! gaps, hosts alive, and the quality of an answer.

use super::QueryBudget;
use crate::store::{
    DataQuality, GAPS_MAX, Gap, HostKey, HostRange, Resolution, StoreError, TimeRange,
};
use hashbrown::{HashMap, HashSet};
use profile::{Quality, Value};

/// Windows that start sooner after the end of the one before follow it without a gap. Unit:
/// nanoseconds. Agents read their clock for each window; less is jitter.
pub const ABSENT_NS_MIN: i64 = 1_000_000_000;

/// Cause of a gap that nobody explained.
const ABSENT: &str = "absent";

/// Taken for each gap while they are collected. Unit: bytes.
const GAP_BYTES: usize = 128;

/// Activity of one boot of a host in and around a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostActivity {
    /// In the range, without the time of gaps.
    pub inside: HostRange,
    /// A window starts before the range.
    pub before: bool,
    /// A window starts after the range.
    pub after: bool,
    /// When windows are there, in any order: all of the range, and the nearest before and after it.
    pub spans: Vec<(i64, i64)>,
    /// Windows that the agent reported as dropped, as far as they overlap the range.
    pub dropped: Vec<Gap>,
}

/// Activity of hosts, by boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetActivity {
    /// Hosts with windows in the range, and hosts that are missing there.
    pub hosts: HashMap<HostKey, HostActivity>,
}

/// The part of an answer's quality about the answer itself.
pub struct AnswerFacts {
    /// What was read.
    pub resolution: Resolution,
    /// What it adds up to.
    pub total: Value,
    /// Unit of weights.
    pub unit: String,
}

impl HostActivity {
    /// Gaps within `range`.
    fn gaps(&mut self, range: TimeRange) -> Vec<Gap> {
        let absent = without(absences(&mut self.spans), &self.dropped);
        let absent = absent
            .into_iter()
            .filter(|(from, to)| to.saturating_sub(*from) >= ABSENT_NS_MIN)
            .map(|(start_unix_ns, end_unix_ns)| Gap {
                range: TimeRange {
                    start_unix_ns,
                    end_unix_ns,
                },
                windows: 0,
                samples: 0,
                cause: ABSENT.to_owned(),
            });
        let mut gaps: Vec<Gap> = self.dropped.iter().cloned().chain(absent).collect();
        for gap in &mut gaps {
            gap.range.start_unix_ns = gap.range.start_unix_ns.max(range.start_unix_ns);
            gap.range.end_unix_ns = gap.range.end_unix_ns.min(range.end_unix_ns);
        }
        gaps.retain(|gap| gap.range.start_unix_ns < gap.range.end_unix_ns);
        gaps
    }
}

impl FleetActivity {
    /// Gaps of all hosts in the range.
    fn gaps(
        &mut self,
        range: TimeRange,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<(HostKey, Gap)>, StoreError> {
        let mut gaps = Vec::new();
        for (host, activity) in &mut self.hosts {
            let of_host = activity.gaps(range);
            budget.hold(of_host.len() * GAP_BYTES)?;
            gaps.extend(of_host.into_iter().map(|gap| (host.clone(), gap)));
        }
        Ok(gaps)
    }

    /// What hosts did in the range, with the time of gaps.
    pub(crate) fn by_host(
        mut self,
        range: TimeRange,
        budget: &mut QueryBudget<'_>,
    ) -> Result<HashMap<HostKey, HostRange>, StoreError> {
        let gaps = self.gaps(range, budget)?;
        let did = self.hosts.into_iter().map(|(host, activity)| {
            let mut did = activity.inside;
            // What the agent counted over samples is not known to be of these.
            did.sampling = Quality {
                idle: did.sampling.idle,
                lost: did.sampling.lost,
                throttled: did.sampling.throttled,
                malformed: did.sampling.malformed,
                reduced: did.sampling.reduced,
                lost_late: did.sampling.lost_late,
                taken: did.taken.count,
                lost_samples: did.lost.count,
                ..Quality::default()
            };
            (host, did)
        });
        let mut did: HashMap<HostKey, HostRange> = did.collect();
        for (host, gap) in gaps {
            if let Some(did) = did.get_mut(&host) {
                did.gap_ns = did.gap_ns.saturating_add(length(&gap));
            }
        }
        Ok(did)
    }

    /// The quality of an answer over these hosts, as far as they report it.
    pub(super) fn quality(
        mut self,
        covered: TimeRange,
        facts: AnswerFacts,
        budget: &mut QueryBudget<'_>,
    ) -> Result<DataQuality, StoreError> {
        let mut gaps = self.gaps(covered, budget)?;
        gaps.sort_by(|left, right| {
            let longer = length(&right.1).cmp(&length(&left.1));
            longer.then_with(|| (&left.0, left.1.range).cmp(&(&right.0, right.1.range)))
        });
        let gaps_total = gaps.len() as u64;
        let lengths = gaps.iter().map(|(_, gap)| length(gap));
        let gap_ns_total = lengths.fold(0, u64::saturating_add);
        gaps.truncate(GAPS_MAX);
        let (mut hosts, mut alive) = (HashSet::new(), HashSet::new());
        let (mut windows, mut windows_unmeasured) = (0u64, 0u64);
        let mut sampling = Quality::default();
        for (key, activity) in &self.hosts {
            let inside = &activity.inside;
            windows = windows.saturating_add(inside.windows);
            windows_unmeasured = windows_unmeasured.saturating_add(inside.windows_unmeasured);
            sampling += inside.sampling;
            if inside.windows > 0 {
                hosts.insert(&key.host_id);
            }
            if inside.windows > 0 || (activity.before && activity.after) {
                alive.insert(&key.host_id);
            }
        }
        Ok(DataQuality {
            covered,
            resolution: facts.resolution,
            hosts: hosts.len() as u64,
            hosts_alive: alive.len() as u64,
            windows,
            windows_unmeasured,
            gaps,
            gaps_total,
            gap_ns_total,
            sampling,
            total: facts.total,
            unit: facts.unit,
            pruned_weight: 0,
            named_later: Default::default(),
            damaged: Vec::new(),
            not_kept: Vec::new(),
        })
    }
}

fn length(gap: &Gap) -> u64 {
    gap.range.end_unix_ns.abs_diff(gap.range.start_unix_ns)
}

/// Times between spans.
fn absences(spans: &mut [(i64, i64)]) -> Vec<(i64, i64)> {
    spans.sort_unstable();
    let mut absences = Vec::new();
    let mut spans = spans.iter();
    let mut covered_to = spans.next().map_or(i64::MAX, |span| span.1);
    for &(start, end) in spans {
        if start > covered_to {
            absences.push((covered_to, start));
        }
        covered_to = covered_to.max(end);
    }
    absences
}

/// Times of absence less what the agent says it gave up, whichever later window says so.
fn without(absent: Vec<(i64, i64)>, dropped: &[Gap]) -> Vec<(i64, i64)> {
    let ranges = dropped
        .iter()
        .map(|gap| (gap.range.start_unix_ns, gap.range.end_unix_ns));
    let mut dropped: Vec<(i64, i64)> = ranges.filter(|(from, to)| from < to).collect();
    dropped.sort_unstable();
    let (mut left, mut next) = (Vec::new(), 0);
    for (mut from, to) in absent {
        // What ends before this one does so before all that follow.
        while dropped.get(next).is_some_and(|&(_, end)| end <= from) {
            next += 1;
        }
        for &(start, end) in &dropped[next..] {
            if start >= to {
                break;
            }
            if from < start {
                left.push((from, start));
            }
            from = from.max(end);
        }
        if from < to {
            left.push((from, to));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn dropped(start_unix_ns: i64, end_unix_ns: i64) -> Gap {
        let range = TimeRange {
            start_unix_ns,
            end_unix_ns,
        };
        Gap {
            range,
            windows: 1,
            samples: 0,
            cause: "dropped".to_owned(),
        }
    }

    /// Gaps of a host in the first 100 s, all in seconds.
    fn check(spans: &[(i64, i64)], gone: &[(i64, i64)], expected: &[(i64, i64, &str)]) {
        let seconds =
            |&(from, to): &(i64, i64)| (from.saturating_mul(SECOND), to.saturating_mul(SECOND));
        let mut host = HostActivity {
            spans: spans.iter().map(seconds).collect(),
            dropped: gone
                .iter()
                .map(seconds)
                .map(|(from, to)| dropped(from, to))
                .collect(),
            ..HostActivity::default()
        };
        let range = TimeRange {
            start_unix_ns: 0,
            end_unix_ns: 100 * SECOND,
        };
        let found = host.gaps(range);
        let found: Vec<_> = found
            .iter()
            .map(|gap| {
                let range = gap.range;
                (
                    range.start_unix_ns / SECOND,
                    range.end_unix_ns / SECOND,
                    gap.cause.as_str(),
                )
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn time_between_windows_is_absent_unless_the_agent_says_why() {
        check(&[], &[], &[]);
        check(&[(0, 10), (10, 20)], &[], &[]);
        check(&[(30, 40), (0, 10)], &[], &[(10, 30, ABSENT)]);
        check(&[(0, 10), (30, 40)], &[(10, 30)], &[(10, 30, "dropped")]);
        check(
            &[(0, 10), (50, 60)],
            &[(20, 30)],
            &[(20, 30, "dropped"), (10, 20, ABSENT), (30, 50, ABSENT)],
        );
    }

    #[test]
    fn what_a_later_window_says_was_given_up_is_not_absent_as_well() {
        check(
            &[(0, 10), (70, 80), (80, 90)],
            &[(10, 70)],
            &[(10, 70, "dropped")],
        );
    }

    #[test]
    fn windows_that_overlap_leave_no_gap() {
        check(&[(0, 100), (10, 20), (100, 110)], &[], &[]);
    }

    #[test]
    fn a_host_that_was_there_before_and_after_is_missing_in_between() {
        let (before, after) = ((i64::MIN, i64::MIN), (i64::MAX, i64::MAX));
        check(&[before, after], &[], &[(0, 100, ABSENT)]);
        check(&[before, (20, 30)], &[], &[(0, 20, ABSENT)]);
        check(&[(20, 30), after], &[], &[(30, 100, ABSENT)]);
        check(&[before, (-10, 110), after], &[], &[]);
    }

    #[test]
    fn what_was_given_up_is_not_absent_as_well() {
        let absent = vec![(0, 10), (20, 40), (50, 60)];
        let gone = [
            dropped(25, 30),
            dropped(5, 22),
            dropped(35, 90),
            dropped(7, 6),
            dropped(26, 28),
        ];
        assert_eq!(without(absent, &gone), [(0, 5), (22, 25), (30, 35)]);
        assert_eq!(
            without(vec![(i64::MIN, i64::MAX)], &[dropped(3, 4)]),
            [(i64::MIN, 3), (4, i64::MAX)]
        );
        assert_eq!(without(Vec::new(), &[dropped(3, 4)]), []);
    }
}
