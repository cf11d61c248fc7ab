//! What is dropped for its age: days of tables, each at the age of its level.
//!
//! Samples go first, and only when the rollups of their day have all of them: rollups see repeats of
//! inserts and cannot be mended later. A day that lacks something keeps its samples for as long as
//! anything is kept of it.

use super::client::{Fault, Statement};
use super::keys::NS_PER_S;
use super::rollup::Source;
use super::schema::{BY_DAY, Kept};
use super::{ClickHouseStore, lock};
use crate::store::{Cancel, Limits};
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

/// Whether the rollups of a day have all of its samples, which changes no more once no window of
/// the day is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    Whole,
    /// Not known to be, and looked at again from then on.
    Not(Instant),
}

/// A day of a table.
#[derive(::clickhouse::Row, serde::Deserialize)]
struct Partition {
    of: String,
    name: String,
    day: u16,
}

impl ClickHouseStore {
    /// Drops what is over age.
    pub(super) async fn retire(&self, now_unix_ns: i64) -> Result<(), Fault> {
        let first_kept = |age: Duration| {
            let age_s = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            let oldest_s = (now_unix_ns / NS_PER_S).saturating_sub(age_s);
            u16::try_from(oldest_s.div_euclid(86_400)).unwrap_or(0)
        };
        let longest = self.options.retention;
        let first = |kept: Kept| match kept {
            Kept::Raw => first_kept(self.options.raw.min(longest)),
            Kept::Minutes => first_kept(self.options.minutes.min(longest)),
            Kept::LabelSets => first_kept(self.options.label_sets.min(longest)),
            Kept::Longest => first_kept(longest),
        };
        lock(&self.known).retire(first(Kept::Raw));
        let newest = first(Kept::Raw);
        let ask = Statement::of(format!(
            "SELECT DISTINCT table AS of, partition AS name, \
             toUInt16(toDate(parseDateTimeBestEffort(partition))) AS day FROM system.parts \
             WHERE active AND database = currentDatabase() AND length(partition) = 8 \
             AND toUInt32OrZero(partition) BETWEEN 19700101 AND toYYYYMMDD(toDate({newest})) - 1"
        ));
        let old = self.client.all::<Partition>(&ask).await?;
        let listed: BTreeSet<u16> = old.iter().map(|partition| partition.day).collect();
        lock(&self.looked).retain(|day, _| listed.contains(day));
        let (mut dropped, mut kept_longer) = (false, BTreeSet::new());
        let mut failed = None;
        for &(table, kept) in BY_DAY {
            let first_kept = first(kept);
            for partition in old.iter().filter(|partition| partition.of == table) {
                let day = partition.day;
                let digits = partition.name.bytes().all(|byte| byte.is_ascii_digit());
                if day >= first_kept || !digits {
                    continue;
                }
                if kept == Kept::Raw && day >= first(Kept::Longest) {
                    // After a fault nobody waits for the next one.
                    let is_whole = match failed {
                        None => self.look(day).await,
                        Some(_) => Ok(false),
                    };
                    let is_whole = is_whole.unwrap_or_else(|fault| {
                        failed = Some(fault);
                        false
                    });
                    if !is_whole {
                        kept_longer.insert(day);
                        continue;
                    }
                }
                if table == "series" && kept_longer.contains(&day) {
                    continue;
                }
                // Minutes of a day whose samples stay are dropped as others: samples answer for it.
                let drop = format!("ALTER TABLE {table} DROP PARTITION {}", partition.name);
                self.client.execute(&drop).await?;
                let count = &self.counters.partitions_dropped;
                count.fetch_add(1, Ordering::Relaxed);
                dropped = true;
            }
        }
        self.counters
            .days_kept_longer
            .store(kept_longer.len() as u64, Ordering::Relaxed);
        if dropped {
            let age_s = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
            let oldest_s = (now_unix_ns / NS_PER_S).saturating_sub(age_s);
            let old_ns = oldest_s.saturating_mul(NS_PER_S);
            let gaps = format!("ALTER TABLE gaps DELETE WHERE to_ns < {old_ns}");
            let hosts = format!("ALTER TABLE hosts DELETE WHERE last_seen_ns < {old_ns}");
            self.client.execute(&gaps).await?;
            self.client.execute(&hosts).await?;
        }
        match failed {
            // What can be dropped is; it is told, and tried again.
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Whether the rollups of a day are known to have all of it.
    async fn look(&self, day: u16) -> Result<bool, Fault> {
        let known = lock(&self.looked).get(&day).copied();
        match known {
            Some(Looked::Whole) => return Ok(true),
            Some(Looked::Not(until)) if Instant::now() < until => return Ok(false),
            _ => {}
        }
        let has = self.rollups_have(day).await;
        let looked = match has {
            Ok(true) => Looked::Whole,
            Ok(false) => Looked::Not(Instant::now() + LACKING_AGAIN),
            Err(_) => Looked::Not(Instant::now() + LOOK_AGAIN),
        };
        lock(&self.looked).insert(day, looked);
        has
    }

    async fn rollups_have(&self, day: u16) -> Result<bool, Fault> {
        let limits = Limits {
            cancel: Cancel::default(),
            deadline: Instant::now() + LOOK,
            memory_bytes: LOOK_BYTES,
            nodes: 0,
            lines: 0,
        };
        Source::has_day(&self.client, day.into(), &limits).await
    }
}
