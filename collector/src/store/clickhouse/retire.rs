//! Drops data by age: days of tables, each at the age of its level.
//!
//! Samples are dropped first, and only if the rollups of their day include all of them, once each.
//! Where they do not, the rollups of the day are made again from the samples. If that fails, the
//! samples are kept as long as anything of the day is kept.

use super::fault::Fault;
use super::keys::{Keys, NS_PER_S, oldest_day};
use super::rebuild;
use super::rollup::Source;
use super::schema::{BY_DAY, Kept};
use super::state::{Looked, ShardState, Undropped};
use super::statement::Statement;
use super::{Counters, Options};
use crate::store::{Cancel, Limits};
use crate::sync::lock;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest look at the rollups of one day.
const LOOK: Duration = Duration::from_secs(60);
/// Memory for it. Unit: bytes.
const LOOK_BYTES: usize = 64 << 20;

/// Time after which a look that failed is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

/// Time after which a day that lacked something is looked at again: another collector's clock may
/// be late.
const LACKING_AGAIN: Duration = Duration::from_secs(6 * 3600);

/// Time after which a day that could not be dropped is tried again. Most reasons stay until a
/// person acts; with less, a server that refuses is asked all the time.
const DROP_AGAIN: Duration = Duration::from_secs(600);

/// Result of dropping a day of a table.
enum Dropped {
    Now,
    /// The server refuses, now or a short time ago.
    Not,
    /// The server has no room or time for it.
    Away,
}

/// A day of a table.
#[derive(::clickhouse::Row, serde::Deserialize)]
struct Partition {
    of: String,
    name: String,
    day: u16,
}

impl ShardState {
    /// Drops what is over age.
    pub(super) async fn retire(
        &self,
        (keys, options, counters): (&Keys, &Options, &Counters),
        now_unix_ns: i64,
    ) -> Result<(), Fault> {
        let first_kept = |age: Duration| oldest_day(now_unix_ns, age);
        let longest = options.retention;
        let first = |kept: Kept| match kept {
            Kept::Raw => first_kept(options.raw.min(longest)),
            Kept::Minutes => first_kept(options.minutes.min(longest)),
            Kept::LabelSets => first_kept(options.label_sets.min(longest)),
            Kept::Longest => first_kept(longest),
        };
        lock(&self.known).retire(first(Kept::Raw));
        let newest = first(Kept::Raw);
        let ask = Statement::of(format!(
            "SELECT DISTINCT table AS of, partition AS name, \
             toUInt16(toDate(parseDateTimeBestEffort(partition))) AS day FROM system.parts \
             WHERE active AND database = currentDatabase() AND length(partition) = 8 \
             AND toUInt32OrZero(partition) BETWEEN 19700101 AND toYYYYMMDD(toDate({newest})) - 1 \
             ORDER BY day"
        ));
        let old = self.shard.all::<Partition>(&ask).await?;
        let listed: BTreeSet<u16> = old.iter().map(|partition| partition.day).collect();
        lock(&self.looked).retain(|day, _| listed.contains(day));
        lock(&self.undropped).retain(|(table, day), _| {
            old.iter()
                .any(|partition| partition.of == *table && partition.day == *day)
        });
        let (mut dropped, mut kept_longer) = (false, BTreeSet::new());
        let mut look_failed = None;
        let mut is_away = false;
        'tables: for &(table, kept) in BY_DAY {
            let first_kept = first(kept);
            for partition in old.iter().filter(|partition| partition.of == table) {
                let day = partition.day;
                let digits = partition.name.bytes().all(|byte| byte.is_ascii_digit());
                if day >= first_kept || !digits {
                    continue;
                }
                if kept == Kept::Raw && day >= first(Kept::Longest) {
                    // After a fault nobody waits for the next one.
                    let is_whole = match look_failed {
                        None => self.look(keys, day).await,
                        Some(_) => Ok(false),
                    };
                    let is_whole = is_whole.unwrap_or_else(|fault| {
                        look_failed = Some(fault);
                        false
                    });
                    if !is_whole {
                        kept_longer.insert(day);
                        continue;
                    }
                }
                let needed = match table {
                    "series" => kept_longer.contains(&day),
                    "frames" => lock(&self.undropped).contains_key(&("stacks", day)),
                    // Minutes of a day with samples that stay are dropped as usual: the samples
                    // answer for it.
                    _ => false,
                };
                if needed {
                    continue;
                }
                match self.drop_day(table, partition, counters).await {
                    Dropped::Now => dropped = true,
                    // A refusal says nothing of other days.
                    Dropped::Not if kept == Kept::Raw => {
                        kept_longer.insert(day);
                    }
                    Dropped::Not => {}
                    // Other days would wait as long in vain. The next round starts after this one.
                    Dropped::Away => {
                        is_away = true;
                        break 'tables;
                    }
                }
            }
        }
        if !is_away {
            let days = kept_longer.len() as u64;
            self.days_kept_longer.store(days, Ordering::Relaxed);
        }
        if dropped {
            let age_s = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
            let oldest_s = (now_unix_ns / NS_PER_S).saturating_sub(age_s);
            let old_ns = oldest_s.saturating_mul(NS_PER_S);
            let gaps = format!("ALTER TABLE gaps DELETE WHERE to_ns < {old_ns}");
            let hosts = format!("ALTER TABLE hosts DELETE WHERE last_seen_ns < {old_ns}");
            self.shard.execute(&gaps).await?;
            self.shard.execute(&hosts).await?;
        }
        // What can be dropped is dropped. The rest is tried again, and reported until it is done.
        let undropped = lock(&self.undropped);
        let waiting = undropped.values().next();
        let waiting = waiting.map(|first| Fault::Refused(first.reason.clone()));
        waiting.or(look_failed).map_or(Ok(()), Err)
    }

    /// Drops a day of a table, unless that failed and it is not yet time to try again.
    async fn drop_day(
        &self,
        table: &'static str,
        partition: &Partition,
        counters: &Counters,
    ) -> Dropped {
        let key = (table, partition.day);
        let is_due = |known: &Undropped| known.until <= Instant::now();
        if !lock(&self.undropped).get(&key).is_none_or(is_due) {
            return Dropped::Not;
        }
        match self.shard.drop_partition(table, &partition.name).await {
            Ok(()) => {
                lock(&self.undropped).remove(&key);
                counters.partitions_dropped.inc();
                Dropped::Now
            }
            Err(fault) => {
                let is_away = matches!(fault, Fault::Away(_));
                let until = Instant::now() + DROP_AGAIN;
                let reason = format!("day {} of `{table}`: {fault}", partition.name);
                lock(&self.undropped).insert(key, Undropped { until, reason });
                if is_away { Dropped::Away } else { Dropped::Not }
            }
        }
    }

    /// Whether the rollups of a day are known to have all of it.
    async fn look(&self, keys: &Keys, day: u16) -> Result<bool, Fault> {
        let known = lock(&self.looked).get(&day).copied();
        match known {
            Some(Looked::Whole) => return Ok(true),
            Some(Looked::Not(until)) if Instant::now() < until => return Ok(false),
            _ => {}
        }
        let has = self.make_rollups(keys, day).await;
        let looked = match has {
            Ok(true) => Looked::Whole,
            Ok(false) => Looked::Not(Instant::now() + LACKING_AGAIN),
            Err(_) => Looked::Not(Instant::now() + LOOK_AGAIN),
        };
        lock(&self.looked).insert(day, looked);
        has
    }

    /// Whether the rollups of a day have all of it. Where they do not, because windows were
    /// inserted again in another batch, they are made again: no window of that day is taken any
    /// more.
    async fn make_rollups(&self, keys: &Keys, day: u16) -> Result<bool, Fault> {
        if self.has_rollups(day).await? {
            return Ok(true);
        }
        match rebuild::rebuild(&self.shard, keys, day).await {
            // The user may not make tables. The samples still answer.
            Err(why) if why.is_forbidden() || matches!(why, Fault::Refused(_)) => {
                tracing::warn!(day, "failed to make the rollups of a day again: {why}");
                Ok(false)
            }
            done => {
                done?;
                self.has_rollups(day).await
            }
        }
    }

    async fn has_rollups(&self, day: u16) -> Result<bool, Fault> {
        let limits = Limits {
            hosts: None,
            waiting: true,
            reports: true,
            cancel: Cancel::default(),
            deadline: Instant::now() + LOOK,
            memory_bytes: LOOK_BYTES,
            nodes: 0,
            lines: 0,
        };
        Source::has_day(&self.client, day.into(), &limits).await
    }
}
