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
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest look at the rollups of one day.
const LOOK: Duration = Duration::from_secs(60);
/// Memory for it. Unit: bytes.
const LOOK_BYTES: usize = 64 << 20;

/// A day of a table.
#[derive(::clickhouse::Row, serde::Deserialize)]
struct Partition {
    of: String,
    name: String,
    day: u16,
}

impl ClickHouseStore {
    /// Drops what is over age; returns how many days of tables.
    pub(super) async fn retire(&self, now_unix_ns: i64) -> Result<u64, Fault> {
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
        let mut whole: BTreeMap<u16, bool> = BTreeMap::new();
        let (mut dropped, mut kept_longer) = (0, 0);
        for &(table, kept) in BY_DAY {
            let first_kept = first(kept);
            for partition in old.iter().filter(|partition| partition.of == table) {
                let day = partition.day;
                let digits = partition.name.bytes().all(|byte| byte.is_ascii_digit());
                if day >= first_kept || !digits {
                    continue;
                }
                if kept == Kept::Raw && day >= first(Kept::Longest) {
                    let has = match whole.get(&day) {
                        Some(&has) => has,
                        None => self.rollups_have(day).await?,
                    };
                    whole.insert(day, has);
                    if !has {
                        kept_longer += 1;
                        continue;
                    }
                }
                if table == "series" && whole.get(&day) == Some(&false) {
                    continue;
                }
                // Minutes of a day whose samples stay are dropped as others: samples answer for it.
                let drop = format!("ALTER TABLE {table} DROP PARTITION {}", partition.name);
                self.client.execute(&drop).await?;
                dropped += 1;
            }
        }
        self.counters
            .days_kept_longer
            .store(kept_longer, Ordering::Relaxed);
        if dropped > 0 {
            let age_s = i64::try_from(longest.as_secs()).unwrap_or(i64::MAX);
            let oldest_s = (now_unix_ns / NS_PER_S).saturating_sub(age_s);
            let old_ns = oldest_s.saturating_mul(NS_PER_S);
            let gaps = format!("ALTER TABLE gaps DELETE WHERE to_ns < {old_ns}");
            let hosts = format!("ALTER TABLE hosts DELETE WHERE last_seen_ns < {old_ns}");
            self.client.execute(&gaps).await?;
            self.client.execute(&hosts).await?;
        }
        Ok(dropped)
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
