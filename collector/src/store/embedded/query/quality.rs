//! What an answer is made of: hosts, windows, gaps, and what was missed while sampling.

use super::super::codec::{Reader, SectionReader};
use super::super::dict::Dict;
use super::super::meta::{HostSum, Presence, Summary, WindowMeta};
use super::super::partition::{Facts, Partition};
use super::super::summaries::{take_parts, take_whole};
use super::super::{EmbeddedStore, partition::View};
use super::{Guard, Piece, Stop, partitions, pieces};
use crate::store::{GAPS_MAX, Gap, HostKey, LabelSet, Rollup, StoreError, StoreQuality, TimeRange};
use crate::sync::{lock, read};
use ::profile::{Selector, Value};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Step of windows in answers. Unit: nanoseconds. Agents close a window every ten seconds.
pub const WINDOW_STEP_NS: u64 = 10_000_000_000;

/// Memory for what a host did, without its spans. Unit: bytes.
const HOST_BYTES: usize = 400;

/// Boots that are looked at between two looks at the clock: about a millisecond of matching.
const BOOTS_A_CHECK: usize = 256;

/// Cause of a gap nobody explained.
const ABSENT: &str = "absent";

/// What selected hosts did.
#[derive(Default)]
pub struct Fleet {
    hosts: HashMap<HostKey, HostDays>,
}

#[derive(Default)]
struct HostDays {
    inside: HostSum,
    before: bool,
    after: bool,
    presence: Presence,
}

/// True when the labels of a host as a whole do not speak against it: those it has not are of its
/// samples.
pub fn host_is_selected(selector: &Selector, labels: &LabelSet) -> bool {
    selector.matchers().iter().all(|matcher| {
        let value = labels.get(matcher.label());
        value.is_empty() || matcher.matches(value)
    })
}

/// Reads what is kept of windows, chunk by chunk: `each` is told the whole chunk, and what of it is in
/// the range when that is not the same or nothing.
pub fn each_summary(
    partition: &Partition,
    view: &View,
    pieces: &[Piece],
    (from, to): (u16, u16),
    guard: &Guard<'_>,
    mut each: impl FnMut(&Summary, Option<&Summary>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let piece_of = |chunk: u16| pieces.iter().find(|piece| piece.chunk == chunk);
    let inside = |windows: &mut dyn Iterator<Item = &WindowMeta>, piece: &Piece| {
        let mut part = Summary::default();
        for window in windows {
            let (_, start) = partition.chunk_of(window.range.start_unix_ns);
            if piece.has(start) {
                part.add(window);
            }
        }
        part.settle();
        part
    };
    let mut opener = SectionReader::new().map_err(super::FileError::from)?;
    let mut raw = Vec::new();
    view.file
        .each_windows(from, to, |chunk, body| -> Result<(), Stop> {
            guard.check()?;
            let mut body = Reader::new(body);
            let whole = take_whole(&mut opener, &mut body, &mut raw)?;
            let Some(piece) = piece_of(chunk) else {
                return each(&whole, None);
            };
            // What nothing else is stored of need not be looked at window by window.
            let part = piece.part_from(partition.chunk_start(chunk));
            if part.is_none_or(|part| whole.is_within(part)) {
                return each(&whole, Some(&whole));
            }
            let (windows, parts) = take_parts(&mut opener, &mut body, &mut raw)?;
            let mut part = inside(&mut windows.iter(), piece);
            for (start, of) in parts {
                if piece.has(start) {
                    part.merge(of);
                }
            }
            part.settle();
            each(&whole, Some(&part))
        })?;
    for mem in &view.chunks {
        let Some(whole) = mem.summary.as_deref() else {
            continue;
        };
        if !(from..=to).contains(&mem.chunk) || whole.hosts.is_empty() {
            continue;
        }
        guard.check()?;
        let piece = piece_of(mem.chunk);
        let part = piece.and_then(|piece| piece.part_from(partition.chunk_start(mem.chunk)));
        let part = match piece {
            Some(piece) if part.is_some_and(|part| !whole.is_within(part)) => Some(&inside(
                &mut mem.windows.iter().map(|window| &**window),
                piece,
            )),
            piece => piece.map(|_| whole),
        };
        each(whole, part)?;
    }
    Ok(())
}

impl Fleet {
    /// Reads what hosts that `selector` takes did in and around `range`.
    pub fn read(
        store: &EmbeddedStore,
        range: TimeRange,
        selector: &Selector,
        guard: &mut Guard<'_>,
    ) -> Result<Fleet, StoreError> {
        let mut fleet = Fleet::default();
        let mut chosen = partitions(store, range);
        // A window soon after the range says why those before it are gone.
        let after = read(&store.partitions)
            .values()
            .find(|partition| partition.start >= range.end_unix_ns)
            .cloned();
        chosen.extend(after);
        let bounds = chosen
            .first()
            .zip(chosen.last())
            .map(|(first, last)| (first.start, last.end));
        for partition in &chosen {
            guard.check()?;
            if partition.damaged.load(Ordering::Acquire) {
                continue;
            }
            let found = super::read_current(store, Arc::clone(partition), |partition| {
                fleet.read_partition(partition, range, selector, guard)
            });
            match found {
                Ok(_) => {}
                Err((_, Stop::Query(error))) => return Err(error),
                Err((partition, Stop::File(super::FileError::Damaged(text)))) => {
                    store.mark_damaged(&partition, &text);
                }
                Err((partition, Stop::File(error))) => {
                    return Err(store.file_error("read windows", &partition, error));
                }
            }
        }
        let bounds = bounds.unwrap_or((range.start_unix_ns, range.end_unix_ns));
        fleet.add_around(store, range, bounds, selector, guard)?;
        Ok(fleet)
    }

    fn read_partition(
        &mut self,
        partition: &Arc<Partition>,
        range: TimeRange,
        selector: &Selector,
        guard: &mut Guard<'_>,
    ) -> Result<(), Stop> {
        let dict = partition.dict(false)?;
        let pieces = pieces(partition, range);
        let facts = Facts::of(&pieces);
        let (view, ()) = partition.view((0, u16::MAX), facts, || (), |(), _| false)?;
        let held = view.heap_bytes();
        guard.hold(held)?;
        let mut known: HashMap<u32, bool> = HashMap::new();
        // Put together aside, so that a partition that turns out to be damaged adds nothing.
        let mut found = Fleet::default();
        let read_all = each_summary(
            partition,
            &view,
            &pieces,
            (0, 0x7fff),
            guard,
            |whole, inside| {
                let dict = read(&dict);
                let mut takes = |labels: u32| {
                    *known
                        .entry(labels)
                        .or_insert_with(|| host_is_selected(selector, &labels_of(&dict, labels)))
                };
                for (&(host, labels), (_, presence)) in &whole.hosts {
                    if let Some(key) = dict.hosts.get(host as usize)
                        && takes(labels)
                    {
                        let days = found.hosts.entry_ref(key).or_default();
                        days.presence.spans.extend(&presence.spans);
                        days.presence
                            .dropped
                            .extend(presence.dropped.iter().cloned());
                    }
                }
                for (&(host, labels), &(sum, _)) in inside.iter().flat_map(|inside| &inside.hosts) {
                    if let Some(key) = dict.hosts.get(host as usize)
                        && takes(labels)
                    {
                        found.hosts.entry_ref(key).or_default().inside += sum;
                    }
                }
                Ok(())
            },
        );
        view.close(partition);
        guard.release(held);
        read_all?;
        for (key, days) in found.hosts {
            guard.hold(days.presence.spans.len() * 16 + HOST_BYTES)?;
            let own = self.hosts.entry(key).or_default();
            own.inside += days.inside;
            own.presence.spans.extend(days.presence.spans);
            own.presence.dropped.extend(days.presence.dropped);
        }
        Ok(())
    }

    /// Adds of each host that is there during the range what it did outside of the partitions that
    /// were read, which begin and end at `bounds`.
    fn add_around(
        &mut self,
        store: &EmbeddedStore,
        range: TimeRange,
        bounds: (i64, i64),
        selector: &Selector,
        guard: &mut Guard<'_>,
    ) -> Result<(), StoreError> {
        for (at, (key, boot)) in read(&store.host_index).iter().enumerate() {
            if at.is_multiple_of(BOOTS_A_CHECK) {
                guard.check()?;
            }
            let takes = |labels| host_is_selected(selector, labels);
            if !boot.meets(range.start_unix_ns, range.end_unix_ns) || !boot.labels.iter().any(takes)
            {
                continue;
            }
            guard.hold(HOST_BYTES)?;
            let days = self.hosts.entry_ref(key).or_default();
            days.before |= boot.first_start() < range.start_unix_ns;
            days.after |= boot.last_start >= range.end_unix_ns;
            let spans = &mut days.presence.spans;
            let first = spans.iter().map(|span| span.0).min();
            let last = spans.iter().map(|span| span.1).max();
            spans.extend(boot.around(bounds, first.zip(last)));
        }
        Ok(())
    }

    /// Gaps of all hosts in the range.
    fn gaps(&mut self, range: TimeRange) -> Vec<(HostKey, Gap)> {
        let mut gaps = Vec::new();
        for (key, days) in &mut self.hosts {
            days.presence.settle();
            for gap in gaps_of(&days.presence) {
                let start_unix_ns = gap.range.start_unix_ns.max(range.start_unix_ns);
                let end_unix_ns = gap.range.end_unix_ns.min(range.end_unix_ns);
                if start_unix_ns < end_unix_ns {
                    let range = TimeRange {
                        start_unix_ns,
                        end_unix_ns,
                    };
                    gaps.push((key.clone(), Gap { range, ..gap }));
                }
            }
        }
        gaps
    }

    /// What hosts did, and for how long each has a gap.
    pub fn by_host(&mut self, range: TimeRange) -> HashMap<HostKey, (HostSum, u64)> {
        let mut missing: HashMap<HostKey, u64> = HashMap::new();
        for (key, gap) in self.gaps(range) {
            *missing.entry(key).or_default() += length(&gap);
        }
        let hosts = self.hosts.iter();
        hosts
            .map(|(key, days)| {
                let gap_ns = missing.get(key).copied().unwrap_or(0);
                (key.clone(), (days.inside, gap_ns))
            })
            .collect()
    }

    /// The quality of an answer over these hosts.
    pub fn quality(
        mut self,
        store: &EmbeddedStore,
        range: TimeRange,
        rollup: Rollup,
        total: Value,
        unit: String,
    ) -> StoreQuality {
        let mut gaps = self.gaps(range);
        gaps.sort_by(|left, right| {
            let key = |(host, gap): &(HostKey, Gap)| {
                (std::cmp::Reverse(length(gap)), host.clone(), gap.range)
            };
            key(left).cmp(&key(right))
        });
        let gaps_total = gaps.len() as u64;
        let gap_ns_total = gaps
            .iter()
            .fold(0u64, |sum, (_, gap)| sum.saturating_add(length(gap)));
        gaps.truncate(GAPS_MAX);
        let mut sum = HostSum::default();
        let (mut hosts, mut alive) = (HashSet::new(), HashSet::new());
        for (key, days) in &self.hosts {
            sum += days.inside;
            if days.inside.windows > 0 {
                hosts.insert(&key.host_id);
            }
            if days.inside.windows > 0 || (days.before && days.after) {
                alive.insert(&key.host_id);
            }
        }
        StoreQuality {
            covered: range,
            rollup,
            hosts: hosts.len() as u64,
            hosts_alive: alive.len() as u64,
            windows: sum.windows,
            windows_unmeasured: sum.unmeasured,
            gaps,
            gaps_total,
            gap_ns_total,
            sampling: sum.quality,
            total,
            unit,
            pruned_weight: 0,
            named_later: Default::default(),
            damaged: damaged(store, range),
        }
    }
}

fn length(gap: &Gap) -> u64 {
    gap.range.end_unix_ns.abs_diff(gap.range.start_unix_ns)
}

/// The labels of a set, as text.
pub fn labels_of(dict: &Dict, labels: u32) -> LabelSet {
    if labels as usize >= dict.tables.label_sets.len() {
        return LabelSet::default();
    }
    super::kept_labels(
        dict,
        ::profile::LabelSetId(labels),
        &::profile::GroupBy::All,
    )
}

/// Names of partitions that are set aside and had time of the range.
pub fn damaged(store: &EmbeddedStore, range: TimeRange) -> Vec<String> {
    let damaged = lock(&store.damaged);
    let overlaps = |of: &TimeRange| {
        of.start_unix_ns < range.end_unix_ns && range.start_unix_ns < of.end_unix_ns
    };
    let names = damaged.iter().filter(|(of, _)| overlaps(of));
    names.map(|(_, name)| name.clone()).collect()
}

/// Holes between spans, and what was said to be gone.
fn gaps_of(presence: &Presence) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = presence
        .dropped
        .iter()
        .map(|(_, gap)| gap.clone())
        .collect();
    // What was given up is not absent as well, whichever later window says so.
    let mut dropped: Vec<(i64, i64)> = gaps
        .iter()
        .map(|gap| (gap.range.start_unix_ns, gap.range.end_unix_ns))
        .filter(|(from, to)| from < to)
        .collect();
    dropped.sort_unstable();
    let mut absent = |from: i64, to: i64| {
        if to.saturating_sub(from) >= super::super::meta::ABSENT_MIN_NS {
            gaps.push(Gap {
                range: TimeRange {
                    start_unix_ns: from,
                    end_unix_ns: to,
                },
                windows: 0,
                samples: 0,
                cause: ABSENT.to_owned(),
            });
        }
    };
    for pair in presence.spans.windows(2) {
        let (mut from, to) = (pair[0].1, pair[1].0);
        let known = dropped.partition_point(|&(_, end)| end <= from);
        for &(start, end) in dropped[known..]
            .iter()
            .take_while(|&&(start, _)| start < to)
        {
            absent(from, start.min(to));
            from = from.max(end);
        }
        absent(from, to);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::super::super::boots::HostState;
    use super::super::super::options::Options;
    use super::*;
    use crate::store::{Cancel, Limits};
    use crate::sync::write;
    use std::time::{Duration, Instant};

    const SECOND: i64 = 1_000_000_000;

    fn check(spans: &[(i64, i64)], dropped: &[(i64, i64, i64)], expected: &[(i64, i64, &str)]) {
        let mut presence = Presence {
            spans: spans
                .iter()
                .map(|&(from, to)| (from * SECOND, to * SECOND))
                .collect(),
            ..Presence::default()
        };
        for &(said, from, to) in dropped {
            let gap = Gap {
                range: TimeRange {
                    start_unix_ns: from * SECOND,
                    end_unix_ns: to * SECOND,
                },
                windows: 1,
                samples: 0,
                cause: "dropped".into(),
            };
            presence.dropped.push((said * SECOND, gap));
        }
        presence.settle();
        let found: Vec<_> = gaps_of(&presence)
            .into_iter()
            .map(|gap| {
                let range = gap.range;
                (
                    range.start_unix_ns / SECOND,
                    range.end_unix_ns / SECOND,
                    gap.cause,
                )
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|&(from, to, cause)| (from, to, cause.to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    /// A store that knows `boots` hosts, each there for ten seconds, without any partition.
    fn knowing(folder: &std::path::Path, boots: usize) -> EmbeddedStore {
        let store = EmbeddedStore::open(folder, Options::default(), 0).unwrap();
        for at in 0..boots {
            let key = HostKey {
                host_id: at.to_string(),
                boot_id: [1; 16],
            };
            let mut state = HostState::new(&LabelSet::default());
            (state.first_start, state.last_start, state.last_end) = (0, 0, 10 * SECOND);
            write(&store.host_index).add_state(&key, &state);
        }
        store
    }

    fn look_around(
        store: &EmbeddedStore,
        (from, to): (i64, i64),
        limits: &Limits,
    ) -> Result<usize, StoreError> {
        let range = TimeRange {
            start_unix_ns: from * SECOND,
            end_unix_ns: to * SECOND,
        };
        let bounds = (range.start_unix_ns, range.end_unix_ns);
        let (mut fleet, mut guard) = (Fleet::default(), Guard::new(limits));
        fleet.add_around(store, range, bounds, &Selector::default(), &mut guard)?;
        Ok(fleet.hosts.len())
    }

    fn limits(memory_bytes: usize) -> Limits {
        Limits {
            cancel: Cancel::default(),
            deadline: Instant::now() + Duration::from_secs(600),
            memory_bytes,
            nodes: 1,
            lines: 1,
        }
    }

    #[test]
    fn a_query_that_is_given_up_does_not_walk_all_boots() {
        let folder = tempfile::tempdir().unwrap();
        let store = knowing(folder.path(), 10);
        let limits = limits(1 << 20);
        assert_eq!(look_around(&store, (0, 10), &limits).unwrap(), 10);
        limits.cancel.cancel();
        // Neither those that are in the range nor those that are not.
        for range in [(0, 10), (500, 510)] {
            let ended = look_around(&store, range, &limits);
            assert!(matches!(ended, Err(StoreError::Cancelled)), "{ended:?}");
        }
    }

    #[test]
    fn hosts_of_an_answer_are_in_the_memory_of_its_query_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = knowing(folder.path(), 100);
        let most = limits(100 * HOST_BYTES);
        assert_eq!(look_around(&store, (0, 10), &most).unwrap(), 100);
        let less = limits(99 * HOST_BYTES);
        let refused = look_around(&store, (0, 10), &less);
        assert!(
            matches!(refused, Err(StoreError::TooLarge(_))),
            "{refused:?}"
        );
        assert_eq!(look_around(&store, (500, 510), &less).unwrap(), 0);
    }

    #[test]
    fn time_between_windows_is_absent_unless_the_agent_says_why() {
        check(&[(0, 10), (10, 20)], &[], &[]);
        check(&[(30, 40), (0, 10)], &[], &[(10, 30, ABSENT)]);
        check(
            &[(0, 10), (30, 40)],
            &[(30, 10, 30)],
            &[(10, 30, "dropped")],
        );
        check(
            &[(0, 10), (50, 60)],
            &[(50, 20, 30)],
            &[(20, 30, "dropped"), (10, 20, ABSENT), (30, 50, ABSENT)],
        );
    }

    #[test]
    fn what_a_later_window_says_was_given_up_is_not_absent_as_well() {
        check(
            &[(0, 10), (70, 80), (80, 90)],
            &[(80, 10, 70)],
            &[(10, 70, "dropped")],
        );
    }

    #[test]
    fn windows_that_overlap_leave_no_gap() {
        check(&[(0, 100), (10, 20), (100, 110)], &[], &[]);
    }
}
