//! The activity of hosts in and around a range, from summaries of chunks and the index of hosts.

use super::super::chunk_slice::ChunkSlice;
use super::super::codec::{Corrupt, Reader, SectionReader};
use super::super::dict::Dict;
use super::super::host_index::LabelSpans;
use super::super::meta::{Summary, WindowMeta};
use super::super::partition::{Facts, Partition, View};
use super::super::reader::StoreReader;
use super::super::summaries::{decode_hosts, decode_parts};
use super::{Stop, each_of, partitions, slices};
use crate::store::query::{FleetActivity, QueryBudget};
use crate::store::{LabelSet, Scope, StoreError, TimeRange};
use crate::sync::{lock, read};
use ::profile::Selector;
use hashbrown::HashMap;
use std::sync::Arc;

/// Step of windows in answers. Unit: nanoseconds. Agents close a window every ten seconds.
pub const WINDOW_STEP_NS: u64 = 10_000_000_000;

/// Memory for what a host did, without its spans. Unit: bytes.
const HOST_BYTES: usize = 400;

/// Boots that are looked at between two looks at the clock: about a millisecond of matching.
const BOOTS_A_CHECK: usize = 256;

/// True if the labels of the complete host do not contradict it: labels that the host lacks belong
/// to its samples.
pub fn host_is_selected(selector: &Selector, labels: &LabelSet) -> bool {
    selector.matchers().iter().all(|matcher| {
        let value = labels.get(matcher.label());
        value.is_empty() || matcher.matches(value)
    })
}

/// Reads the summary of a complete chunk, or what is needed of it.
pub type Decode = fn(&mut SectionReader, &mut Reader<'_>, &mut Vec<u8>) -> Result<Summary, Corrupt>;

/// Reads the metadata of windows, chunk by chunk: `each` gets the complete chunk, and the part in
/// the range if that is neither the same nor empty. Both have at least what `decode` reads.
pub fn each_summary(
    partition: &Partition,
    (view, decode): (&View, Decode),
    slices: &[ChunkSlice],
    (from, to): (u16, u16),
    budget: &QueryBudget<'_>,
    mut each: impl FnMut(&Summary, Option<&Summary>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let slice_of = |chunk: u16| slices.iter().find(|slice| slice.chunk == chunk);
    let inside = |windows: &mut dyn Iterator<Item = &WindowMeta>, slice: &ChunkSlice| {
        let mut part = Summary::default();
        for window in windows {
            let (_, start) = partition.chunk_of(window.range.start_unix_ns);
            if slice.has(start) {
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
            budget.check()?;
            let mut body = Reader::new(body);
            let whole = decode(&mut opener, &mut body, &mut raw)?;
            let Some(slice) = slice_of(chunk) else {
                return each(&whole, None);
            };
            // What nothing else is stored of need not be looked at window by window.
            let part = slice.part_from(partition.chunk_start(chunk));
            if part.is_none_or(|part| whole.is_within(part)) {
                return each(&whole, Some(&whole));
            }
            let (windows, parts) = decode_parts(&mut opener, &mut body, &mut raw)?;
            let mut part = inside(&mut windows.iter(), slice);
            for (start, of) in parts {
                if slice.has(start) {
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
        budget.check()?;
        let slice = slice_of(mem.chunk);
        let part = slice.and_then(|slice| slice.part_from(partition.chunk_start(mem.chunk)));
        let part = match slice {
            Some(slice) if part.is_some_and(|part| !whole.is_within(part)) => Some(&inside(
                &mut mem.windows.iter().map(|window| &**window),
                slice,
            )),
            slice => slice.map(|_| whole),
        };
        each(whole, part)?;
    }
    Ok(())
}

/// See [`WindowSource::activity`](crate::store::query::WindowSource::activity).
pub fn activity(
    reader: &StoreReader,
    scope: &Scope,
    budget: &mut QueryBudget<'_>,
) -> Result<FleetActivity, StoreError> {
    let (range, selector) = (scope.range, &scope.selector);
    let mut fleet = FleetActivity::default();
    let mut chosen = partitions(reader, range);
    // A window soon after the range says why those before it are gone.
    let after = reader
        .catalog
        .readable(|partition| partition.start >= range.end_unix_ns);
    chosen.extend(after.into_iter().next());
    let bounds = chosen
        .first()
        .zip(chosen.last())
        .map(|(first, last)| (first.start, last.end));
    each_of(
        reader,
        chosen,
        budget,
        |partition, budget| read_partition(partition, range, selector, budget),
        |found, budget| {
            for (key, more) in found.hosts {
                budget.hold(more.spans.len() * size_of::<(i64, i64)>() + HOST_BYTES)?;
                let own = fleet.hosts.entry(key).or_default();
                own.inside += more.inside;
                own.spans.extend(more.spans);
                own.dropped.extend(more.dropped);
            }
            Ok(())
        },
    )?;
    let bounds = bounds.unwrap_or((range.start_unix_ns, range.end_unix_ns));
    add_around(&mut fleet, reader, range, bounds, selector, budget)?;
    Ok(fleet)
}

fn read_partition(
    partition: &Arc<Partition>,
    range: TimeRange,
    selector: &Selector,
    budget: &mut QueryBudget<'_>,
) -> Result<FleetActivity, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, range);
    let facts = Facts::of(&slices);
    let (view, ()) = partition.view(budget.limits, (0, u16::MAX), facts, || (), |(), _| false)?;
    let held = view.heap_bytes();
    budget.hold(held)?;
    let limits = budget.limits;
    let mut known: HashMap<u32, bool> = HashMap::new();
    let mut found = FleetActivity::default();
    let read_all = each_summary(
        partition,
        (&view, decode_hosts),
        &slices,
        (0, 0x7fff),
        budget,
        |whole, inside| {
            let dict = read(&dict);
            let mut takes = |labels: u32| {
                *known.entry(labels).or_insert_with(|| {
                    let labels = labels_of(&dict, labels);
                    host_is_selected(selector, &labels) && limits.tells_of(&labels)
                })
            };
            for (&(host, labels), (_, presence)) in &whole.hosts {
                if let Some(key) = dict.hosts.get(host as usize)
                    && takes(labels)
                {
                    let of_host = found.hosts.entry_ref(key).or_default();
                    of_host.spans.extend(&presence.spans);
                    let dropped = presence.dropped.iter().map(|(_, gap)| gap.clone());
                    of_host.dropped.extend(dropped);
                }
            }
            for (&(host, labels), (sum, _)) in inside.iter().flat_map(|inside| &inside.hosts) {
                if let Some(key) = dict.hosts.get(host as usize)
                    && takes(labels)
                {
                    found.hosts.entry_ref(key).or_default().inside += sum.in_range();
                }
            }
            Ok(())
        },
    );
    view.close(partition);
    budget.release(held);
    read_all?;
    Ok(found)
}

/// Adds of each host that is there during the range what it did outside of the partitions that
/// were read, which start and end at `bounds`.
fn add_around(
    fleet: &mut FleetActivity,
    reader: &StoreReader,
    range: TimeRange,
    bounds: (i64, i64),
    selector: &Selector,
    budget: &mut QueryBudget<'_>,
) -> Result<(), StoreError> {
    for (at, (key, boot)) in read(&reader.catalog.host_index).iter().enumerate() {
        if at.is_multiple_of(BOOTS_A_CHECK) {
            budget.check()?;
        }
        let limits = budget.limits;
        let takes = |labels| host_is_selected(selector, labels) && limits.tells_of(labels);
        let seen = || boot.by_labels.iter().filter(|of| takes(&of.labels));
        let first = seen().map(LabelSpans::first_start).min();
        let last = seen().map(LabelSpans::last_end).max();
        // Its windows, or a time between windows, lie in the range.
        if first.is_none_or(|first| first >= range.end_unix_ns)
            || last.is_none_or(|last| last <= range.start_unix_ns)
        {
            continue;
        }
        budget.hold(HOST_BYTES)?;
        let of_host = fleet.hosts.entry_ref(key).or_default();
        let spans = &mut of_host.spans;
        let first = spans.iter().map(|span| span.0).min();
        let last = spans.iter().map(|span| span.1).max();
        for under in seen() {
            of_host.before |= under.first_start() < range.start_unix_ns;
            of_host.after |= under.last_start >= range.end_unix_ns;
            spans.extend(under.around(bounds, first.zip(last)));
        }
    }
    Ok(())
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
pub fn damaged(reader: &StoreReader, range: TimeRange) -> Vec<String> {
    let damaged = lock(&reader.catalog.damaged);
    let overlaps = |of: &TimeRange| {
        of.start_unix_ns < range.end_unix_ns && range.start_unix_ns < of.end_unix_ns
    };
    let names = damaged.iter().filter(|(of, _)| overlaps(of));
    names.map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::EmbeddedStore;
    use super::super::super::host_state::{HostState, LabelTimes};
    use super::super::super::options::Options;
    use super::*;
    use crate::store::{Cancel, HostKey, Limits};
    use crate::sync::write;
    use std::time::{Duration, Instant};

    const SECOND: i64 = 1_000_000_000;

    /// A store that knows `boots` hosts, each there for ten seconds, without any partition.
    fn knowing(folder: &std::path::Path, boots: usize) -> EmbeddedStore {
        let store = EmbeddedStore::open(folder, Options::default(), 0).unwrap();
        for at in 0..boots {
            let key = HostKey {
                host_id: at.to_string(),
                boot_id: [1; 16],
            };
            let state = HostState {
                by_labels: vec![LabelTimes {
                    labels: LabelSet::default(),
                    first_start: 0,
                    last_start: 0,
                    last_end: 10 * SECOND,
                }],
                ..HostState::default()
            };
            write(&store.catalog.host_index).add_state(&key, &state);
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
        let (mut fleet, mut budget) = (FleetActivity::default(), QueryBudget::new(limits));
        let all = Selector::default();
        add_around(&mut fleet, &store.reader, range, bounds, &all, &mut budget)?;
        Ok(fleet.hosts.len())
    }

    fn limits(memory_bytes: usize) -> Limits {
        Limits {
            hosts: None,
            waiting: true,
            reports: true,
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
}
