//! Copies what the embedded store has into another store: windows as they came, and hosts.
//!
//! A copy that ended goes on when it is started again: a window that is there already counts once.
//! What was copied is added up again in both stores.

use super::embedded::EmbeddedStore;
use super::result::Cancel;
use super::{Limits, NewWindow, PushOutcome, Scope, Store, StoreError, StoreQueries, TimeRange};
use profile::{Dictionary, Selector};
use std::time::{Duration, Instant};

/// Windows of one push: as many as those of a second of a large fleet.
const WINDOWS_MAX: usize = 256;
/// Longest time of a sum that verifies. Unit: seconds.
const SUM_S: u64 = 300;
/// Memory for it. Unit: bytes.
const SUM_BYTES: usize = 256 << 20;
/// Time between two tries of a store that is away, and how often it is tried.
const AGAIN: Duration = Duration::from_secs(2);
const TRIES_MAX: u32 = 30;

/// Rows of a sum: there is one for each unit.
const LINES: usize = 100;

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Windows that were stored.
    pub stored: u64,
    /// Windows that were there already.
    pub there: u64,
    /// Windows that are refused, mostly for their age.
    pub refused: u64,
    /// Why the first of them was.
    pub reason: Option<String>,
    /// Hosts.
    pub hosts: u64,
    /// Start of times of which the target has less than the source, after the copy. Unit:
    /// nanoseconds since the Unix epoch.
    pub lacking: Vec<i64>,
    /// Partitions of which windows are only there added up: they are not copied.
    pub coarser: u64,
}

/// Copies. Nothing is to be pushed to `from` meanwhile; `each` hears of every ten minutes that are
/// done.
///
/// # Errors
/// When a store cannot be read or written; what was copied until then stays.
pub fn copy(
    from: &EmbeddedStore,
    to: &dyn Store,
    now_unix_ns: i64,
    mut each: impl FnMut(TimeRange, &Copied),
) -> Result<Copied, StoreError> {
    let mut copied = Copied::default();
    let mut ranges = Vec::new();
    let coarser = from.each_chunk(&mut |range, windows, definitions| {
        let refused = copied.refused;
        for some in windows.chunks(WINDOWS_MAX) {
            push(to, some, definitions, now_unix_ns, &mut copied)?;
        }
        // Of what is refused the target has less, and why is known.
        if copied.refused == refused {
            ranges.push(range);
        }
        each(range, &copied);
        Ok(())
    })?;
    copied.coarser = coarser.len() as u64;
    let everything = TimeRange {
        start_unix_ns: now_unix_ns - 1,
        end_unix_ns: now_unix_ns,
    };
    let hosts = from.hosts(everything, &limits())?;
    let hosts: Vec<_> = hosts.into_iter().map(|(host, _)| host).collect();
    to.put_hosts(&hosts)?;
    copied.hosts = hosts.len() as u64;
    for range in ranges {
        let (source, target) = (sum(from, range)?, sum(to, range)?);
        if target.0 < source.0 || target.1 < source.1 || target.2 < source.2 {
            copied.lacking.push(range.start_unix_ns);
        }
    }
    Ok(copied)
}

fn push(
    to: &dyn Store,
    windows: &[NewWindow],
    definitions: &Dictionary,
    now_unix_ns: i64,
    copied: &mut Copied,
) -> Result<(), StoreError> {
    for tried in 0.. {
        let taken = match to.push(windows, definitions, now_unix_ns) {
            Ok(taken) => taken,
            Err(StoreError::Unavailable(_)) if tried < TRIES_MAX => {
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => return Err(error),
        };
        let away = taken.iter().find_map(|of| match of {
            PushOutcome::Unavailable(reason) => Some(reason.clone()),
            _ => None,
        });
        match away {
            // Those that were taken are there when it comes again.
            Some(_) if tried < TRIES_MAX => std::thread::sleep(AGAIN),
            Some(reason) => return Err(StoreError::Unavailable(reason)),
            None => {
                for outcome in taken {
                    count(outcome, copied)?;
                }
                return Ok(());
            }
        }
    }
    Ok(())
}

fn count(outcome: PushOutcome, copied: &mut Copied) -> Result<(), StoreError> {
    match outcome {
        PushOutcome::Stored => copied.stored += 1,
        PushOutcome::Duplicate => copied.there += 1,
        PushOutcome::Rejected(reason) => {
            copied.refused += 1;
            copied.reason.get_or_insert(reason);
        }
        PushOutcome::NeedStacks(_) | PushOutcome::NeedCallers(_) | PushOutcome::Unavailable(_) => {
            return Err(StoreError::Engine {
                operation: "copy windows",
                message: "the target asks for stacks that came with them".to_owned(),
            });
        }
    }
    Ok(())
}

fn limits() -> Limits {
    Limits {
        hosts: None,
        waiting: false,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(SUM_S),
        memory_bytes: SUM_BYTES,
        nodes: 0,
        lines: LINES,
    }
}

/// Windows, samples and their weight in a range.
fn sum(
    store: &(impl StoreQueries + ?Sized),
    range: TimeRange,
) -> Result<(u64, u64, u64), StoreError> {
    let selector = Selector::default();
    let found = store.totals(&Scope { range, selector }, &[], &limits())?;
    let taken = found.data.iter().map(|of| of.taken);
    let (count, weight) = taken.fold((0u64, 0u64), |(count, weight), of| {
        (
            count.saturating_add(of.count),
            weight.saturating_add(of.weight),
        )
    });
    Ok((found.quality.windows, count, weight))
}
