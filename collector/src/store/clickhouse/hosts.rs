//! The activity of hosts in and around a range, and what is known of them.

use super::client::Client;
use super::fault::Fault;
use super::keys::{NS_PER_S, Span};
use super::rows::{HealthRow, HostRow};
use super::select::{Condition, Labels, sum, within};
use super::shard::Shard;
use super::statement::Statement;
use crate::store::query::{ABSENT_NS_MIN, FleetActivity, HostActivity};
use crate::store::{Gap, HostFacts, HostKey, HostRecord, Limits, TimeRange, WINDOW_NS_MAX};
use clickhouse::Row;
use profile::{Quality, Selector, Value};
use serde::Deserialize;
use std::collections::HashMap;

/// A window is at most so long; what covers the start of a range starts within. Unit: seconds.
const WINDOW_S_MAX: i64 = (WINDOW_NS_MAX / NS_PER_S as u64) as i64;
/// An agent reports what it dropped with the first window after it, so the gap ends about when that
/// window starts; clocks may be set meanwhile. Unit: seconds.
pub(super) const GAP_AFTER_S_MAX: i64 = 86_400;
/// Longest time of dropped windows that counts as dropped; what is before it counts as absent. With
/// less, a host that was off the network for a while with a full spool is reported as switched off;
/// with more, queries about old days read more of them. Unit: seconds.
pub(super) const GAP_S_MAX: i64 = 31 * 86_400;
/// Taken for each gap while they are collected. Unit: bytes.
const GAP_BYTES: usize = 128;
/// Taken for each host while they are collected. Unit: bytes.
const HOST_BYTES: usize = 400;

/// What windows say was missed while sampling, added up: see [`sampling`].
const MISSED_SUM: &str = "tuple(sum(set.idle), sum(set.lost), sum(set.throttled), \
                          sum(set.malformed), sum(set.reduced), sum(set.lost_late))";

/// A row of [`MISSED_SUM`].
type Missed = (u64, u64, u64, u64, u64, u64);

/// What was missed while sampling; of stacks and names windows say nothing.
fn sampling((idle, lost, throttled, malformed, reduced, lost_late): Missed) -> Quality {
    Quality {
        idle,
        lost,
        throttled,
        malformed,
        reduced,
        lost_late,
        ..Quality::default()
    }
}

/// What kinds of samples windows have, and when.
#[derive(Default)]
pub(super) struct Kinds {
    /// First start and last end.
    pub range: Option<TimeRange>,
    pub events: Vec<String>,
    pub periods: Vec<u64>,
    /// Units of windows with samples.
    pub units: Vec<String>,
}

/// The kinds of samples of the hosts that `selector` takes.
pub(super) async fn kinds(
    client: &Client,
    span: Span,
    selector: &Selector,
    limits: &Limits,
) -> Result<Kinds, Fault> {
    #[derive(Row, Deserialize)]
    struct Found {
        windows: u64,
        first_ns: i64,
        end_ns: i64,
        events: Vec<String>,
        periods: Vec<u64>,
        units: Vec<String>,
    }
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let mut ask = Statement::default();
    let selected = hosts.sql(&mut ask);
    ask.sql = format!(
        "SELECT count() AS windows, min(start_ns) AS first_ns, max(set.end_ns) AS end_ns, \
         groupUniqArray(2)(toString(event)) AS events, groupUniqArray(2)(period) AS periods, \
         groupUniqArrayIf(2)(toString(unit), set.rows > 0) AS units \
         FROM windows AS set FINAL WHERE {} AND {selected}",
        span.of_steps()
    );
    let mut kinds = Kinds::default();
    client
        .each::<Found>(&ask, limits, |row| {
            if row.windows > 0 {
                kinds.range = Some(spanning(kinds.range, row.first_ns, row.end_ns));
            }
            add_new(&mut kinds.events, row.events);
            add_new(&mut kinds.periods, row.periods);
            add_new(&mut kinds.units, row.units);
            Ok(())
        })
        .await?;
    Ok(kinds)
}

/// A host around a range.
#[derive(Default)]
struct Around {
    activity: HostActivity,
    /// Runs of absence, as far as windows near the range show.
    absent: Vec<(i64, i64)>,
    /// First start and last end near the range.
    near: Option<(i64, i64)>,
}

impl Around {
    /// What the host did, with the times of its windows: absence and time near the range say when
    /// they are there, and who was there before or after it was so at some time.
    fn into_activity(mut self) -> HostActivity {
        let mut spans = Vec::with_capacity(self.absent.len() + 3);
        if self.activity.before {
            spans.push((i64::MIN, i64::MIN));
        }
        if let Some((mut first, last)) = self.near {
            self.absent.sort_unstable();
            for (from, to) in self.absent {
                spans.push((first, from));
                first = to;
            }
            spans.push((first, last));
        }
        if self.activity.after {
            spans.push((i64::MAX, i64::MAX));
        }
        HostActivity {
            spans,
            ..self.activity
        }
    }
}

/// What the hosts that `selector` takes did in and around a range.
pub(super) async fn activity(
    client: &Client,
    span: Span,
    selector: &Selector,
    limits: &Limits,
) -> Result<FleetActivity, Fault> {
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let mut around: HashMap<HostKey, Around> = HashMap::new();
    read_inside(client, span, &hosts, limits, &mut around).await?;
    read_days(client, span, &hosts, limits, &mut around).await?;
    read_near(client, span, &hosts, limits, &mut around).await?;
    read_dropped(client, span, &hosts, limits, &mut around).await?;
    let hosts = around.into_iter();
    let hosts = hosts.map(|(host, around)| (host, around.into_activity()));
    Ok(FleetActivity {
        hosts: hosts.collect(),
    })
}

/// What hosts did in the range.
async fn read_inside(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut HashMap<HostKey, Around>,
) -> Result<(), Fault> {
    #[derive(Row, Deserialize)]
    struct Did {
        host_id: String,
        boot: [u8; 16],
        windows: u64,
        unmeasured: u64,
        n: u64,
        w: u64,
        lost_n: u64,
        lost_w: u64,
        expected_ns: u64,
        estimated_ns: u64,
        missed: Missed,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    ask.sql = format!(
        "SELECT toString(host_id) AS host_id, boot, count() AS windows, \
         countIf(set.measured = 0) AS unmeasured, sum(set.n) AS n, {} AS w, \
         sum(set.lost_n) AS lost_n, {} AS lost_w, {} AS expected_ns, {} AS estimated_ns, \
         {MISSED_SUM} AS missed FROM windows AS set FINAL WHERE {} AND {selected} \
         GROUP BY host_id, boot",
        sum("set.w"),
        sum("set.lost_w"),
        sum("if(set.measured = 0, toUInt64(set.w - set.lost_w), set.expected_ns)"),
        sum("if(set.measured = 0, toUInt64(set.w - set.lost_w), set.estimated_ns)"),
        span.of_steps()
    );
    client
        .each::<Did>(&ask, limits, |row| {
            within((around.len() + 1) * HOST_BYTES, limits)?;
            let key = HostKey {
                host_id: row.host_id,
                boot_id: row.boot,
            };
            let lost = Value {
                count: row.lost_n,
                weight: row.lost_w,
            };
            let taken = Value {
                count: row.n.saturating_sub(lost.count),
                weight: row.w.saturating_sub(lost.weight),
            };
            // A host that was assigned to another shard has windows on both.
            let inside = &mut around.entry(key).or_default().activity.inside;
            inside.windows += row.windows;
            inside.windows_unmeasured += row.unmeasured;
            inside.taken += taken;
            inside.lost += lost;
            inside.sampling += sampling(row.missed);
            inside.expected_ns = inside.expected_ns.saturating_add(row.expected_ns);
            inside.estimated_ns = inside.estimated_ns.saturating_add(row.estimated_ns);
            Ok(())
        })
        .await
}

/// Which hosts were there before and after the range.
async fn read_days(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut HashMap<HostKey, Around>,
) -> Result<(), Fault> {
    #[derive(Row, Deserialize)]
    struct Host {
        host_id: String,
        boot: [u8; 16],
        first_ns: i64,
        last_ns: i64,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    ask.sql = format!(
        "SELECT toString(host_id) AS host_id, boot, min(day.first_ns) AS first_ns, \
         max(day.last_ns) AS last_ns FROM host_days AS day WHERE {selected} \
         GROUP BY host_id, boot"
    );
    let range = span.covered;
    client
        .each::<Host>(&ask, limits, |row| {
            let key = HostKey {
                host_id: row.host_id,
                boot_id: row.boot,
            };
            within((around.len() + 1) * HOST_BYTES, limits)?;
            let activity = &mut around.entry(key).or_default().activity;
            activity.before |= row.first_ns < range.start_unix_ns;
            activity.after |= row.last_ns >= range.end_unix_ns;
            Ok(())
        })
        .await
}

/// Where windows around the range do not follow one another.
async fn read_near(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut HashMap<HostKey, Around>,
) -> Result<(), Fault> {
    #[derive(Row, Deserialize)]
    struct Edge {
        host_id: String,
        boot: [u8; 16],
        from_ns: i64,
        to_ns: i64,
        first: u8,
        end_ns: i64,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    // For each window the latest end of those before it; only windows that do not join it are
    // returned, and the first and last of each host.
    ask.sql = format!(
        "SELECT host_id, boot, from_ns, to_ns, first, end_ns FROM ( \
           SELECT toString(host_id) AS host_id, boot, start_ns AS to_ns, end_ns, \
             max(end_ns) OVER (PARTITION BY host ORDER BY start_ns, end_ns, sequence \
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS from_ns, \
             row_number() OVER (PARTITION BY host ORDER BY start_ns, end_ns, sequence) AS number, \
             count() OVER (PARTITION BY host) AS numbers, toUInt8(number = 1) AS first \
           FROM windows AS set FINAL WHERE {near} AND {selected} \
         ) WHERE first OR number = numbers OR to_ns - from_ns >= {ABSENT_NS_MIN}",
        near = span.widened(WINDOW_S_MAX, WINDOW_S_MAX).of_steps(),
    );
    let mut count = 0;
    client
        .each::<Edge>(&ask, limits, |row| {
            count += 1;
            within(count * GAP_BYTES, limits)?;
            let key = HostKey {
                host_id: row.host_id,
                boot_id: row.boot,
            };
            let host = around.entry(key).or_default();
            if row.first == 0 && row.to_ns.saturating_sub(row.from_ns) >= ABSENT_NS_MIN {
                host.absent.push((row.from_ns, row.to_ns));
            }
            let ended = row.end_ns.max(if row.first == 0 {
                row.from_ns
            } else {
                row.end_ns
            });
            let near = host.near.get_or_insert((row.to_ns, ended));
            *near = (near.0.min(row.to_ns), near.1.max(ended));
            Ok(())
        })
        .await
}

/// What agents reported as dropped. The report and its window are stored on the days around the
/// range on which it may have been made, however many days are stored.
async fn read_dropped(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut HashMap<HostKey, Around>,
) -> Result<(), Fault> {
    #[derive(Row, Deserialize)]
    struct Dropped {
        host_id: String,
        boot: [u8; 16],
        from_ns: i64,
        to_ns: i64,
        windows: u64,
        samples: u64,
        cause: String,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    ask.sql = format!(
        "SELECT toString(host_id) AS host_id, boot, from_ns, to_ns, set.windows AS windows, \
         samples, toString(cause) AS cause FROM gaps AS set FINAL \
         WHERE {near} AND from_ns < {end} AND to_ns > {start} AND {selected} \
         AND (host, sequence) IN (SELECT host, sequence FROM windows WHERE {near} AND \
           (host, sequence) IN (SELECT host, sequence FROM gaps \
             WHERE {near} AND from_ns < {end} AND to_ns > {start}))",
        near = span.widened(GAP_AFTER_S_MAX, GAP_S_MAX).of_chunks(),
        start = span.covered.start_unix_ns,
        end = span.covered.end_unix_ns,
    );
    let mut count = 0;
    client
        .each::<Dropped>(&ask, limits, |row| {
            count += 1;
            within(count * GAP_BYTES, limits)?;
            let key = HostKey {
                host_id: row.host_id,
                boot_id: row.boot,
            };
            around.entry(key).or_default().activity.dropped.push(Gap {
                range: TimeRange {
                    start_unix_ns: row.from_ns,
                    end_unix_ns: row.to_ns,
                },
                windows: row.windows,
                samples: row.samples,
                cause: row.cause,
            });
            Ok(())
        })
        .await
}

/// From the first window that is kept to the end of the last. It reads the first day and the last
/// two, a few rows for each host, however many days are between them.
pub(super) async fn kept(client: &Client) -> Result<Option<TimeRange>, Fault> {
    #[derive(Row, Deserialize)]
    struct Kept {
        rows: u64,
        first_ns: i64,
        last_ns: i64,
    }
    // The engine knows the first and last day of each part. A window that starts on the day before
    // the last may end after all of that day.
    let sql = "WITH (SELECT min(day) FROM host_days) AS first, \
         (SELECT max(day) FROM host_days) AS last \
         SELECT count() AS rows, min(told.first_ns) AS first_ns, \
         max(greatest(told.last_ns, told.end_ns)) AS last_ns \
         FROM host_days AS told WHERE day = first OR day >= last - 1";
    let mut kept = None;
    for of_shard in client.one_of_each::<Kept>(sql).await? {
        if of_shard.rows > 0 {
            kept = Some(spanning(kept, of_shard.first_ns, of_shard.last_ns));
        }
    }
    Ok(kept)
}

/// A range that reaches from the start of both to the end of both.
fn spanning(range: Option<TimeRange>, start_unix_ns: i64, end_unix_ns: i64) -> TimeRange {
    let range = range.unwrap_or(TimeRange {
        start_unix_ns,
        end_unix_ns,
    });
    TimeRange {
        start_unix_ns: range.start_unix_ns.min(start_unix_ns),
        end_unix_ns: range.end_unix_ns.max(end_unix_ns),
    }
}

/// Adds what is not there yet.
fn add_new<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

/// Every host that is remembered.
pub(super) async fn host_records(
    client: &Client,
    limits: &Limits,
) -> Result<Vec<HostRecord>, Fault> {
    let mut hosts: Vec<HostRecord> = Vec::new();
    // By name: a later version may add columns while collectors of this one still run.
    let ask = Statement::of(
        "SELECT host_id, boot, hostname, kernel, arch, cpus_online, memory_bytes, agent_version, labels, \
         spool_windows, spool_bytes, spool_bytes_max, spool_oldest_ns, dropped_windows, first_seen_ns, \
         last_seen_ns, clock_ahead_ns FROM hosts FINAL",
    );
    client
        .each::<HostRow>(&ask, limits, |row| {
            within((hosts.len() + 1) * size_of::<HostRecord>(), limits)?;
            hosts.push(record(row));
            Ok(())
        })
        .await?;
    hosts.sort_unstable_by(|left, right| sorted_by(left).cmp(&sorted_by(right)));
    add_health(client, &mut hosts, limits).await?;
    Ok(hosts)
}

/// What hosts are sorted by.
fn sorted_by(host: &HostRecord) -> (&str, [u8; 16]) {
    (&host.key.host_id, host.key.boot_id)
}

/// Adds what agents say of their own work. Health is written before its host and read after it;
/// where it is older, a collector that knows no health has heard of the host since, and what was
/// said then says nothing of now.
async fn add_health(
    client: &Client,
    hosts: &mut [HostRecord],
    limits: &Limits,
) -> Result<(), Fault> {
    let mut bytes = size_of_val(hosts);
    let ask = Statement::of(
        "SELECT host_id, boot, health, seen_ns FROM host_health FINAL WHERE notEmpty(health)",
    );
    client
        .each::<HealthRow>(&ask, limits, |row| {
            let of_row = |record: &HostRecord| sorted_by(record).cmp(&(&*row.host_id, row.boot));
            let at = hosts.binary_search_by(of_row);
            if let Some(record) = at.ok().and_then(|at| hosts.get_mut(at))
                && row.seen_ns >= record.last_seen_unix_ns
            {
                bytes += row.health.len();
                within(bytes, limits)?;
                record.facts.health = row.health;
            }
            Ok(())
        })
        .await
}

/// Remembers hosts of one shard.
pub(super) async fn put_hosts(shard: &Shard, hosts: &[&HostRecord]) -> Result<(), Fault> {
    let health = hosts.iter().map(|host| HealthRow {
        host_id: host.key.host_id.clone(),
        boot: host.key.boot_id,
        health: host.facts.health.clone(),
        seen_ns: host.last_seen_unix_ns,
    });
    let health: Vec<HealthRow> = health.collect();
    shard.insert("host_health", &health).await?;
    let hosts: Vec<HostRow> = hosts.iter().map(|host| row(host)).collect();
    shard.insert("hosts", &hosts).await
}

fn record(row: HostRow) -> HostRecord {
    HostRecord {
        key: HostKey {
            host_id: row.host_id,
            boot_id: row.boot,
        },
        facts: HostFacts {
            hostname: row.hostname,
            kernel: row.kernel,
            arch: row.arch,
            cpus_online: row.cpus_online,
            memory_bytes: row.memory_bytes,
            agent_version: row.agent_version,
            labels: row.labels.into_iter().collect(),
            spool_windows: row.spool_windows,
            spool_bytes: row.spool_bytes,
            spool_bytes_max: row.spool_bytes_max,
            spool_oldest_unix_ns: row.spool_oldest_ns,
            dropped_windows: row.dropped_windows,
            health: Vec::new(),
        },
        first_seen_unix_ns: row.first_seen_ns,
        last_seen_unix_ns: row.last_seen_ns,
        clock_ahead_ns: row.clock_ahead_ns,
    }
}

/// A host as it is remembered.
fn row(host: &HostRecord) -> HostRow {
    let facts = &host.facts;
    let labels = facts.labels.iter();
    HostRow {
        host_id: host.key.host_id.clone(),
        boot: host.key.boot_id,
        hostname: facts.hostname.clone(),
        kernel: facts.kernel.clone(),
        arch: facts.arch.clone(),
        cpus_online: facts.cpus_online,
        memory_bytes: facts.memory_bytes,
        agent_version: facts.agent_version.clone(),
        labels: labels
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        spool_windows: facts.spool_windows,
        spool_bytes: facts.spool_bytes,
        spool_bytes_max: facts.spool_bytes_max,
        spool_oldest_ns: facts.spool_oldest_unix_ns,
        dropped_windows: facts.dropped_windows,
        first_seen_ns: host.first_seen_unix_ns,
        last_seen_ns: host.last_seen_unix_ns,
        clock_ahead_ns: host.clock_ahead_ns,
    }
}
