//! What stands beside an answer: the windows it was made of, hosts, gaps.

use super::client::{Client, Fault, Statement};
use super::keys::{NS_PER_S, Span};
use super::select::{Condition, Labels, sum, within};
use crate::store::HostFacts;
use crate::store::clickhouse::rows::{HealthRow, HostRow};
use crate::store::{
    GAPS_MAX, Gap, HostKey, HostRange, HostRecord, Limits, Rollup, StoreQuality, TimeRange,
    WINDOW_NS_MAX,
};
use clickhouse::Row;
use profile::{Quality, Selector, Value};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};

/// Absence shorter than this is jitter of the agent's clock. Unit: nanoseconds.
const ABSENT_NS_MIN: i64 = NS_PER_S;
/// A window is at most so long; what covers the start of a range starts within. Unit: seconds.
const WINDOW_S_MAX: i64 = (WINDOW_NS_MAX / NS_PER_S as u64) as i64;
/// What an agent gave up is told with the first window after it, so it ends when that one starts,
/// more or less: clocks are set. Unit: seconds.
pub(super) const GAP_AFTER_S_MAX: i64 = 86_400;
/// Longest time that an agent gave up and that counts as given up; what is before is absent. With
/// less, a host that was off the network for a while with a full spool is told as switched off;
/// with more, questions about old days look at more of them. Unit: seconds.
pub(super) const GAP_S_MAX: i64 = 31 * 86_400;
/// Taken for each gap while they are collected. Unit: bytes.
const GAP_BYTES: usize = 128;

/// What windows say of a range.
#[derive(Default)]
pub(super) struct Windows {
    pub hosts: u64,
    pub windows: u64,
    pub unmeasured: u64,
    pub sampling: Quality,
    /// First begin and last end.
    pub range: Option<TimeRange>,
    pub events: Vec<String>,
    pub periods: Vec<u64>,
    /// Units of windows with samples.
    pub units: Vec<String>,
}

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

/// Adds up the windows of the selected hosts.
pub(super) async fn windows(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
) -> Result<Windows, Fault> {
    #[derive(Row, Deserialize)]
    struct Sums {
        hosts: u64,
        windows: u64,
        unmeasured: u64,
        missed: Missed,
        first_ns: i64,
        end_ns: i64,
        events: Vec<String>,
        periods: Vec<u64>,
        units: Vec<String>,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    ask.sql = format!(
        "SELECT uniqExact(host_id) AS hosts, count() AS windows, \
         countIf(measured = 0) AS unmeasured, {MISSED_SUM} AS missed, \
         min(start_ns) AS first_ns, max(set.end_ns) AS end_ns, \
         groupUniqArray(2)(toString(event)) AS events, groupUniqArray(2)(period) AS periods, \
         groupUniqArrayIf(2)(toString(unit), set.rows > 0) AS units \
         FROM windows AS set FINAL WHERE {} AND {selected}",
        span.of_steps()
    );
    let mut found = Windows::default();
    client
        .each::<Sums>(&ask, limits, |row| {
            found = Windows {
                hosts: row.hosts,
                windows: row.windows,
                unmeasured: row.unmeasured,
                // The rest is counted over the samples of the answer.
                sampling: sampling(row.missed),
                range: (row.windows > 0).then_some(TimeRange {
                    start_unix_ns: row.first_ns,
                    end_unix_ns: row.end_ns,
                }),
                events: row.events,
                periods: row.periods,
                units: row.units,
            };
            Ok(())
        })
        .await?;
    Ok(found)
}

/// Gaps of hosts, and which were alive.
#[derive(Default)]
pub(super) struct Gaps {
    pub alive: u64,
    /// Longest first; all of them.
    pub all: Vec<(HostKey, Gap)>,
}

impl Gaps {
    fn length(gap: &Gap) -> u64 {
        gap.range.end_unix_ns.abs_diff(gap.range.start_unix_ns)
    }

    /// Time of all gaps by host. Unit: nanoseconds.
    fn by_host(&self) -> HashMap<&HostKey, u64> {
        let mut sums: HashMap<&HostKey, u64> = HashMap::new();
        for (host, gap) in &self.all {
            let sum = sums.entry(host).or_default();
            *sum = sum.saturating_add(Self::length(gap));
        }
        sums
    }
}

/// A host around a range.
#[derive(Default)]
struct Around {
    before: bool,
    after: bool,
    /// Runs of absence, as far as windows near the range tell.
    absent: Vec<(i64, i64)>,
    /// First begin and last end near the range.
    near: Option<(i64, i64)>,
    inside: bool,
    dropped: Vec<Gap>,
}

impl Around {
    /// The gaps within `range`.
    fn gaps(mut self, range: TimeRange) -> Vec<Gap> {
        let (start, end) = (range.start_unix_ns, range.end_unix_ns);
        match self.near {
            Some((first, last)) => {
                if self.before && first > start {
                    self.absent.push((i64::MIN, first));
                }
                if self.after && last < end {
                    self.absent.push((last, i64::MAX));
                }
            }
            None if self.before && self.after => self.absent.push((i64::MIN, i64::MAX)),
            None => {}
        }
        let absent = without(self.absent, &self.dropped);
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
                cause: "absent".to_owned(),
            });
        let mut gaps: Vec<Gap> = self.dropped.into_iter().chain(absent).collect();
        for gap in &mut gaps {
            gap.range.start_unix_ns = gap.range.start_unix_ns.max(start);
            gap.range.end_unix_ns = gap.range.end_unix_ns.min(end);
        }
        gaps.retain(|gap| gap.range.start_unix_ns < gap.range.end_unix_ns);
        gaps
    }
}

/// Runs of absence less what the agent says it gave up.
fn without(mut absent: Vec<(i64, i64)>, dropped: &[Gap]) -> Vec<(i64, i64)> {
    let ranges = dropped
        .iter()
        .map(|gap| (gap.range.start_unix_ns, gap.range.end_unix_ns));
    let mut dropped: Vec<(i64, i64)> = ranges.filter(|(from, to)| from < to).collect();
    dropped.sort_unstable();
    absent.sort_unstable();
    let (mut left, mut next) = (Vec::new(), 0);
    for (mut from, to) in absent {
        // What ends before this run does so before all that follow.
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

/// Finds the gaps of the hosts that `selector` takes.
pub(super) async fn gaps(
    client: &Client,
    span: Span,
    selector: &Selector,
    limits: &Limits,
) -> Result<Gaps, Fault> {
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let mut around: BTreeMap<HostKey, Around> = BTreeMap::new();
    read_days(client, span, &hosts, limits, &mut around).await?;
    read_near(client, span, &hosts, limits, &mut around).await?;
    read_dropped(client, span, &hosts, limits, &mut around).await?;
    let mut found = Gaps::default();
    let mut alive = std::collections::BTreeSet::new();
    for (host, around) in around {
        if around.inside || (around.before && around.after) {
            alive.insert(host.host_id.clone());
        }
        for gap in around.gaps(span.covered) {
            within(found.all.len() * GAP_BYTES, limits)?;
            found.all.push((host.clone(), gap));
        }
    }
    found.alive = alive.len() as u64;
    let order = |(host, gap): &(HostKey, Gap)| {
        (
            std::cmp::Reverse(Gaps::length(gap)),
            host.clone(),
            gap.range,
        )
    };
    found.all.sort_by_cached_key(order);
    Ok(found)
}

/// Which hosts were there before and after the range.
async fn read_days(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut BTreeMap<HostKey, Around>,
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
            within((around.len() + 1) * GAP_BYTES, limits)?;
            let host = around.entry(key).or_default();
            host.before = row.first_ns < range.start_unix_ns;
            host.after = row.last_ns >= range.end_unix_ns;
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
    around: &mut BTreeMap<HostKey, Around>,
) -> Result<(), Fault> {
    #[derive(Row, Deserialize)]
    struct Edge {
        host_id: String,
        boot: [u8; 16],
        from_ns: i64,
        to_ns: i64,
        first: u8,
        any_inside: u8,
        end_ns: i64,
    }
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    let range = span.covered;
    // For each window the latest end of those before it; only windows that do not join it are
    // returned, the first and last of each host, and one that is inside of the range.
    ask.sql = format!(
        "SELECT host_id, boot, from_ns, to_ns, first, any_inside, end_ns FROM ( \
           SELECT toString(host_id) AS host_id, boot, start_ns AS to_ns, end_ns, \
             max(end_ns) OVER (PARTITION BY host ORDER BY start_ns, end_ns, sequence \
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS from_ns, \
             row_number() OVER (PARTITION BY host ORDER BY start_ns, end_ns, sequence) AS number, \
             count() OVER (PARTITION BY host) AS numbers, toUInt8(number = 1) AS first, \
             max(toUInt8(start_ns >= {start} AND start_ns < {end})) OVER (PARTITION BY host) \
               AS any_inside \
           FROM windows AS set FINAL WHERE {near} AND {selected} \
         ) WHERE first OR number = numbers OR to_ns - from_ns >= {ABSENT_NS_MIN}",
        start = range.start_unix_ns,
        end = range.end_unix_ns,
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
            host.inside |= row.any_inside != 0;
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

/// What agents said they gave up. What is stored of it, and its window, is on the days around the
/// range that a gap may be told on, however many are kept.
async fn read_dropped(
    client: &Client,
    span: Span,
    condition: &Condition,
    limits: &Limits,
    around: &mut BTreeMap<HostKey, Around>,
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
            around.entry(key).or_default().dropped.push(Gap {
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
    let kept: Kept = client.one(sql).await?;
    Ok((kept.rows > 0).then_some(TimeRange {
        start_unix_ns: kept.first_ns,
        end_unix_ns: kept.last_ns,
    }))
}

/// Everything beside an answer but its total.
pub(super) async fn of(
    client: &Client,
    span: Span,
    selector: &Selector,
    rollup: Rollup,
    limits: &Limits,
) -> Result<(StoreQuality, Windows), Fault> {
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let windows = windows(client, span, &hosts, limits).await?;
    let gaps = gaps(client, span, selector, limits).await?;
    let lengths = gaps.all.iter().map(|(_, gap)| Gaps::length(gap));
    let quality = StoreQuality {
        covered: span.covered,
        rollup,
        hosts: windows.hosts,
        hosts_alive: gaps.alive,
        windows: windows.windows,
        windows_unmeasured: windows.unmeasured,
        gaps_total: gaps.all.len() as u64,
        gap_ns_total: lengths.fold(0, u64::saturating_add),
        gaps: gaps.all.into_iter().take(GAPS_MAX).collect(),
        sampling: windows.sampling,
        total: Value::default(),
        unit: String::new(),
        pruned_weight: 0,
        named_later: Default::default(),
        damaged: Vec::new(),
    };
    Ok((quality, windows))
}

/// What is beside an answer about no time at all.
pub(super) fn nothing(range: TimeRange, rollup: Rollup) -> StoreQuality {
    StoreQuality {
        covered: range,
        rollup,
        hosts: 0,
        hosts_alive: 0,
        windows: 0,
        windows_unmeasured: 0,
        gaps: Vec::new(),
        gaps_total: 0,
        gap_ns_total: 0,
        sampling: Quality::default(),
        total: Value::default(),
        unit: String::new(),
        pruned_weight: 0,
        named_later: Default::default(),
        damaged: Vec::new(),
    }
}

/// Every host with what it did in the range.
pub(super) async fn hosts(
    client: &Client,
    span: Option<Span>,
    limits: &Limits,
) -> Result<Vec<(HostRecord, HostRange)>, Fault> {
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
    let mut did: HashMap<HostKey, HostRange> = HashMap::new();
    if let Some(span) = span {
        let ask = Statement::of(format!(
            "SELECT toString(host_id) AS host_id, boot, count() AS windows, \
             countIf(set.measured = 0) AS unmeasured, sum(set.n) AS n, {} AS w, \
             sum(set.lost_n) AS lost_n, {} AS lost_w, {} AS expected_ns, {} AS estimated_ns, \
             {MISSED_SUM} AS missed FROM windows AS set FINAL WHERE {} GROUP BY host_id, boot",
            sum("set.w"),
            sum("set.lost_w"),
            sum("if(set.measured = 0, toUInt64(set.w - set.lost_w), set.expected_ns)"),
            sum("if(set.measured = 0, toUInt64(set.w - set.lost_w), set.estimated_ns)"),
            span.of_steps()
        ));
        client
            .each::<Did>(&ask, limits, |row| {
                within((did.len() + 1) * GAP_BYTES, limits)?;
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
                let range = HostRange {
                    windows: row.windows,
                    windows_unmeasured: row.unmeasured,
                    taken,
                    lost,
                    sampling: Quality {
                        taken: taken.count,
                        lost_samples: lost.count,
                        ..sampling(row.missed)
                    },
                    expected_ns: row.expected_ns,
                    estimated_ns: row.estimated_ns,
                    gap_ns: 0,
                };
                did.insert(key, range);
                Ok(())
            })
            .await?;
        let gaps = gaps(client, span, &Selector::default(), limits).await?;
        for (host, gap_ns) in gaps.by_host() {
            did.entry(host.clone()).or_default().gap_ns = gap_ns;
        }
    }
    let mut hosts: Vec<(HostRecord, HostRange)> = Vec::new();
    // By name: a later version may add columns while collectors of this one still run.
    let ask = Statement::of(
        "SELECT host_id, boot, hostname, kernel, arch, cpus_online, memory_bytes, agent_version, labels, \
         spool_windows, spool_bytes, spool_bytes_max, spool_oldest_ns, dropped_windows, first_seen_ns, \
         last_seen_ns, clock_ahead_ns FROM hosts FINAL ORDER BY host_id, boot",
    );
    client
        .each::<HostRow>(&ask, limits, |row| {
            within((hosts.len() + 1) * size_of::<HostRecord>(), limits)?;
            let record = record(row);
            let range = did.remove(&record.key).unwrap_or_default();
            hosts.push((record, range));
            Ok(())
        })
        .await?;
    add_health(client, &mut hosts, limits).await?;
    Ok(hosts)
}

/// Adds what agents say of their own work. Health is written before its host and read after it;
/// where it is older, a collector that knows no health has heard of the host since, and what was
/// said then says nothing of now.
async fn add_health(
    client: &Client,
    hosts: &mut [(HostRecord, HostRange)],
    limits: &Limits,
) -> Result<(), Fault> {
    let mut bytes = size_of_val(hosts);
    // In the order of bytes, as hosts are sorted.
    let ask = Statement::of(
        "SELECT host_id, boot, health, seen_ns FROM host_health FINAL \
         WHERE notEmpty(health) ORDER BY host_id, boot",
    );
    client
        .each::<HealthRow>(&ask, limits, |row| {
            let of_row = |(record, _): &(HostRecord, HostRange)| {
                let key = &record.key;
                (&*key.host_id, key.boot_id).cmp(&(&*row.host_id, row.boot))
            };
            let at = hosts.binary_search_by(of_row);
            if let Some((record, _)) = at.ok().and_then(|at| hosts.get_mut(at))
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

/// Remembers a host.
pub(super) async fn put_hosts(client: &Client, hosts: &[HostRecord]) -> Result<(), Fault> {
    let health = hosts.iter().map(|host| HealthRow {
        host_id: host.key.host_id.clone(),
        boot: host.key.boot_id,
        health: host.facts.health.clone(),
        seen_ns: host.last_seen_unix_ns,
    });
    let health: Vec<HealthRow> = health.collect();
    client.insert("host_health", &health).await?;
    let hosts: Vec<HostRow> = hosts.iter().map(row).collect();
    client.insert("hosts", &hosts).await
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

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(start_unix_ns: i64, end_unix_ns: i64) -> Gap {
        let range = TimeRange {
            start_unix_ns,
            end_unix_ns,
        };
        Gap {
            range,
            windows: 1,
            samples: 1,
            cause: "disk_full".to_owned(),
        }
    }

    #[test]
    fn what_was_given_up_is_not_absent_as_well() {
        let absent = vec![(0, 10), (20, 40), (50, 60)];
        let dropped = [gap(25, 30), gap(5, 22), gap(35, 90), gap(7, 6), gap(26, 28)];
        assert_eq!(without(absent, &dropped), [(0, 5), (22, 25), (30, 35)]);
        assert_eq!(
            without(vec![(i64::MIN, i64::MAX)], &[gap(3, 4)]),
            [(i64::MIN, 3), (4, i64::MAX)]
        );
        assert_eq!(without(Vec::new(), &[gap(3, 4)]), []);
    }
}
