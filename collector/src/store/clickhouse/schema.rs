//! The tables, created and migrated by whichever collector comes first, on one server or on all of
//! a cluster (`layout.rs`).
//!
//! Every statement of a migration has no effect if it was done before. So any number of collectors
//! may run them at once, and if one ends half-way, the next one completes the work.
//!
//! How counts stay exact: `windows` says what is stored. A window counts if its row exists, and its
//! row is written last. Rows of samples have an origin, which together with the step identifies
//! their window. A window written twice gives equal rows with equal keys, of which the engine keeps
//! one: at once in queries with FINAL, on disk when it merges. So no insert has to happen exactly
//! once, and collectors need not know of each other. FINAL and the check of `windows` are left out
//! if the number of samples in the range equals the number that its windows state, before the
//! reading and after it. Materialized views feed the rollups. Repeating an identical insert adds
//! nothing to them, because of its token; windows that are inserted again in a different batch do
//! add. So each of their rows counts the rows it was made from, and a rollup answers for an hour
//! only if it has as many as the windows of the hour state.

use super::SCHEMA_VERSION;
use super::client::Client;
use super::fault::{Fault, code};
use super::keys::Keys;
use super::layout::Layout;
use super::options::Options;
use super::rows::{
    FeedRow, FrameRow, GapRow, HealthRow, HostRow, SeriesRow, StackRow, TotalRow, WindowRow,
};
use super::shard::Shard;
use super::statement::Statement;
use ::clickhouse::Row as _;

/// Statements by version, 1 first. A version that was published never changes.
const MIGRATIONS: &[&[&str]] = &[
    FIRST,
    SYSTEM_NAMES,
    ATTENDANCE,
    HEALTH,
    LOST,
    ONCE,
    ENDS,
    WAITING,
    SHARED,
    START_LINES,
];

/// Version from which the table of versions says which collectors can use the database, and a
/// cluster has tables over all shards.
const SHARED_VERSION: u32 = 9;

/// Version from which collectors can use a database of [`SCHEMA_VERSION`]: they find all that they
/// read, and what they write is complete. With less, an older collector writes what nobody can
/// read; with more, collectors cannot be replaced one by one.
const READABLE_BY: u32 = 9;

/// Several collectors on one shard insert more often than one, so that tokens are remembered for
/// ten times as many inserts.
const SHARED: &[&str] = &[
    "ALTER TABLE schema_version ADD COLUMN IF NOT EXISTS readable_by UInt32 DEFAULT version",
    "ALTER TABLE samples MODIFY SETTING non_replicated_deduplication_window = 10000",
    "ALTER TABLE service_1m MODIFY SETTING non_replicated_deduplication_window = 10000",
    "ALTER TABLE service_1h MODIFY SETTING non_replicated_deduplication_window = 10000",
];

/// Functions as their runtime writes them, in addition to the readable name. Empty for most.
const SYSTEM_NAMES: &[&str] =
    &["ALTER TABLE frames ADD COLUMN IF NOT EXISTS system_name String CODEC(ZSTD(3))"];

/// Which host is connected to which collector. Nothing is lost with it: it is announced every few
/// seconds.
const ATTENDANCE: &[&str] = &["CREATE TABLE IF NOT EXISTS attendance (
        collector String, host_id String, hostname String, labels Map(String, String), seen_ns Int64
    ) ENGINE = ReplacingMergeTree(seen_ns) ORDER BY (collector, host_id)
    TTL toDateTime(intDiv(seen_ns, 1000000000), 'UTC') + INTERVAL 1 DAY"];

/// Windows from before version 4 say that nothing of their weight was lost. This version changes no
/// table: it fills in what was, see [`tell_lost`].
const LOST: &[&str] = &[];

/// What the views make of samples remembers the tokens of the last inserts, about a quarter of an
/// hour of them: one that comes again adds nothing.
const ONCE: &[&str] = &[
    "ALTER TABLE samples MODIFY SETTING non_replicated_deduplication_window = 1000",
    "ALTER TABLE service_1m MODIFY SETTING non_replicated_deduplication_window = 1000",
    "ALTER TABLE service_1h MODIFY SETTING non_replicated_deduplication_window = 1000",
];

/// When the last window of a host and day ends, so that nobody reads all windows for it. Rows of
/// before have it as far as what is kept depends on it: on the last two days.
const ENDS: &[&str] = &[
    "ALTER TABLE host_days ADD COLUMN IF NOT EXISTS end_ns SimpleAggregateFunction(max, Int64)",
    "ALTER TABLE windows_to_host_days MODIFY QUERY
    SELECT toDate(chunk) AS day, host, host_id, boot,
        sipHash64(mapKeys(windows.labels), mapValues(windows.labels)) AS labels_id,
        anyLast(windows.labels) AS labels, min(start_ns) AS first_ns, max(start_ns) AS last_ns,
        max(windows.end_ns) AS end_ns
    FROM windows GROUP BY day, host, host_id, boot, labels_id",
    "INSERT INTO host_days (day, host, host_id, boot, labels_id, labels, first_ns, last_ns, end_ns)
    SELECT toDate(chunk) AS day, host, host_id, boot,
        sipHash64(mapKeys(windows.labels), mapValues(windows.labels)) AS labels_id,
        anyLast(windows.labels) AS labels, min(start_ns) AS first_ns, max(start_ns) AS last_ns,
        max(windows.end_ns) AS end_ns
    FROM windows WHERE toDate(chunk) >= (SELECT max(day) - 1 FROM host_days)
    GROUP BY day, host, host_id, boot, labels_id",
];

/// How CPU limits held cgroups back, and for how long tasks of hosts waited. Rows of before have
/// the defaults, which say that nothing is known: nothing used while throttling was known, and no
/// time for which pressure is known.
const WAITING: &[&str] = &[
    "ALTER TABLE totals ADD COLUMN IF NOT EXISTS throttled_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE totals ADD COLUMN IF NOT EXISTS throttle_used_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE totals ADD COLUMN IF NOT EXISTS limit_millicores UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS pressure_known_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS pressure_cpu_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS pressure_memory_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS pressure_io_ns UInt64 DEFAULT 0 CODEC(ZSTD(1))",
];

/// Version that [`tell_lost`] belongs to.
const LOST_VERSION: u32 = 5;

/// What agents report about their own work, and what of the weight of a window was lost. Collectors
/// of version 3 read all columns of `hosts`, so health has a table of its own: a new column would
/// break reading their hosts. Nothing is lost with it, because it is reported again every minute.
/// New columns have a default, because otherwise those collectors could not insert their windows.
const HEALTH: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS host_health (
        host_id String, boot FixedString(16), health Array(UInt8) CODEC(ZSTD(3)), seen_ns Int64,
        at DateTime('UTC') DEFAULT now()
    ) ENGINE = ReplacingMergeTree(seen_ns) ORDER BY (host_id, boot) TTL at + INTERVAL 7 DAY",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS lost_n UInt64 DEFAULT 0 CODEC(ZSTD(1))",
    "ALTER TABLE windows ADD COLUMN IF NOT EXISTS lost_w UInt64 DEFAULT 0 CODEC(ZSTD(1))",
];

/// First lines of functions, which most frames do not have. Collectors of version 9 leave them out.
const START_LINES: &[&str] =
    &["ALTER TABLE frames ADD COLUMN IF NOT EXISTS start_line UInt32 DEFAULT 0 CODEC(ZSTD(1))"];

const FIRST: &[&str] = &[
    // What is stored; everything else counts only with a row here.
    "CREATE TABLE IF NOT EXISTS windows (
        chunk DateTime('UTC') CODEC(Delta, ZSTD(1)), slot UInt8,
        host UInt64 CODEC(ZSTD(1)), sequence UInt64 CODEC(Delta, ZSTD(1)),
        origin UInt64 CODEC(ZSTD(1)),
        host_id LowCardinality(String), boot FixedString(16),
        start_ns Int64 CODEC(Delta, ZSTD(1)), end_ns Int64 CODEC(Delta, ZSTD(1)),
        event LowCardinality(String), unit LowCardinality(String), period UInt64 CODEC(ZSTD(1)),
        labels Map(LowCardinality(String), String) CODEC(ZSTD(1)),
        idle UInt64, lost UInt64, throttled UInt64, malformed UInt64, reduced UInt64,
        lost_late UInt64, measured UInt8, expected_ns UInt64, estimated_ns UInt64,
        n UInt64, w UInt64, rows UInt64
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(chunk) ORDER BY (host, sequence)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    // When each host was alive, by day. Smallest and largest bear repeats.
    "CREATE TABLE IF NOT EXISTS host_days (
        day Date, host UInt64, host_id LowCardinality(String), boot FixedString(16),
        labels_id UInt64,
        labels SimpleAggregateFunction(anyLast, Map(String, String)),
        first_ns SimpleAggregateFunction(min, Int64), last_ns SimpleAggregateFunction(max, Int64)
    ) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(day)
    ORDER BY (host_id, boot, host, day, labels_id)",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS windows_to_host_days TO host_days AS
    SELECT toDate(chunk) AS day, host, host_id, boot,
        sipHash64(mapKeys(windows.labels), mapValues(windows.labels)) AS labels_id,
        anyLast(windows.labels) AS labels, min(start_ns) AS first_ns, max(start_ns) AS last_ns
    FROM windows GROUP BY day, host, host_id, boot, labels_id",
    "CREATE TABLE IF NOT EXISTS gaps (
        chunk DateTime('UTC'), host UInt64, sequence UInt64,
        host_id LowCardinality(String), boot FixedString(16),
        labels Map(LowCardinality(String), String),
        from_ns Int64, to_ns Int64, windows UInt64, samples UInt64, cause LowCardinality(String)
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(chunk) ORDER BY (host, sequence)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    // Dictionaries of a day: they go with it, and nothing has to be collected as garbage.
    "CREATE TABLE IF NOT EXISTS series (
        day Date, series UInt64, unit LowCardinality(String),
        labels Map(LowCardinality(String), String) CODEC(ZSTD(1))
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY series
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    "CREATE TABLE IF NOT EXISTS services (
        day Date, series UInt64, unit LowCardinality(String),
        labels Map(LowCardinality(String), String) CODEC(ZSTD(1))
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY series
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    "CREATE TABLE IF NOT EXISTS frames (
        day Date, frame UInt64 CODEC(NONE), kind UInt8, unnamed UInt8, line UInt32 CODEC(ZSTD(1)),
        function String CODEC(ZSTD(3)), module LowCardinality(String), file LowCardinality(String)
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(day) PRIMARY KEY tuple()
    ORDER BY (module, file, function, line, kind, unnamed, frame)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    // Sorted by frames, neighbours share all but the last of them and compress to little.
    "CREATE TABLE IF NOT EXISTS stacks (
        day Date, stack UInt64 CODEC(NONE), hash FixedString(16) CODEC(NONE),
        frames Array(UInt64) CODEC(ZSTD(3))
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(day) PRIMARY KEY tuple()
    ORDER BY (frames, stack)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    // By label set without stacks, with the kernel's accounting.
    "CREATE TABLE IF NOT EXISTS totals (
        chunk DateTime('UTC') CODEC(Delta, ZSTD(1)), series UInt64 CODEC(ZSTD(1)), slot UInt8,
        origin UInt64 CODEC(ZSTD(1)), n UInt64 CODEC(T64, ZSTD(1)), w UInt64 CODEC(ZSTD(1)),
        lost_n UInt64 CODEC(ZSTD(1)), lost_w UInt64 CODEC(ZSTD(1)),
        expected_ns Int64 CODEC(ZSTD(1)), estimated_ns Int64 CODEC(ZSTD(1)),
        alone_ns Int64 CODEC(ZSTD(1)), alone_estimated_ns Int64 CODEC(ZSTD(1))
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(chunk)
    ORDER BY (chunk, series, slot, origin)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    // The samples. A weight is n × period, and what it differs by (mostly nothing) in `extra`.
    "CREATE TABLE IF NOT EXISTS samples (
        chunk DateTime('UTC') CODEC(Delta, ZSTD(1)), series UInt64 CODEC(ZSTD(1)),
        stack UInt64 CODEC(ZSTD(1)), end UInt8 CODEC(ZSTD(1)), slot UInt8 CODEC(ZSTD(1)),
        origin UInt64 CODEC(ZSTD(1)), n UInt64 CODEC(T64, ZSTD(1)),
        period UInt64 CODEC(ZSTD(1)), extra UInt64 CODEC(ZSTD(1))
    ) ENGINE = ReplacingMergeTree PARTITION BY toYYYYMMDD(chunk)
    ORDER BY (chunk, series, stack, end, slot, origin)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
    "CREATE TABLE IF NOT EXISTS service_1m (
        time DateTime('UTC') CODEC(Delta, ZSTD(1)), service UInt64 CODEC(ZSTD(1)),
        stack UInt64 CODEC(ZSTD(1)), end UInt8 CODEC(ZSTD(1)),
        n SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
        w SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
        rows SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1))
    ) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(time)
    PRIMARY KEY (toStartOfHour(time), service, stack)
    ORDER BY (toStartOfHour(time), service, stack, end, time)",
    "CREATE TABLE IF NOT EXISTS service_1h (
        time DateTime('UTC') CODEC(Delta, ZSTD(1)), service UInt64 CODEC(ZSTD(1)),
        stack UInt64 CODEC(ZSTD(1)), end UInt8 CODEC(ZSTD(1)),
        n SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
        w SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
        rows SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1))
    ) ENGINE = AggregatingMergeTree PARTITION BY toYYYYMMDD(time)
    ORDER BY (time, service, stack, end)",
    // What samples are inserted into; the views carry them on.
    "CREATE TABLE IF NOT EXISTS feed (
        chunk DateTime('UTC'), slot UInt8, series UInt64, service UInt64, stack UInt64, end UInt8,
        origin UInt64, n UInt64, w UInt64, period UInt64
    ) ENGINE = Null",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS feed_to_samples TO samples AS
    SELECT chunk, series, stack, end, slot, origin, n, period, w - n * period AS extra FROM feed",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS feed_to_service_1m TO service_1m AS
    SELECT toStartOfMinute(chunk + slot * 10) AS time, service, stack, end,
        sum(feed.n) AS n, sum(feed.w) AS w, count() AS rows
    FROM feed GROUP BY time, service, stack, end",
    "CREATE MATERIALIZED VIEW IF NOT EXISTS feed_to_service_1h TO service_1h AS
    SELECT toStartOfHour(chunk) AS time, service, stack, end,
        sum(feed.n) AS n, sum(feed.w) AS w, count() AS rows
    FROM feed GROUP BY time, service, stack, end",
    "CREATE TABLE IF NOT EXISTS hosts (
        host_id String, boot FixedString(16), hostname String, kernel String, arch String,
        cpus_online UInt32, memory_bytes UInt64, agent_version String,
        labels Map(String, String), spool_windows UInt64, spool_bytes UInt64,
        spool_bytes_max UInt64, spool_oldest_ns Int64, dropped_windows UInt64,
        first_seen_ns Int64, last_seen_ns Int64, clock_ahead_ns Int64
    ) ENGINE = ReplacingMergeTree ORDER BY (host_id, boot)
    SETTINGS fsync_after_insert = 1, fsync_part_directory = 1",
];

/// For how long a table keeps its days.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// As long as samples are, and longer where the rollups of the day lack something.
    Raw,
    /// As long as sums of services in minutes.
    Minutes,
    /// As long as anything by label set.
    LabelSets,
    /// As long as sums of services in hours.
    Longest,
}

/// Tables of which a day's partition is dropped when the day is over age, windows last: without its
/// row a window does not count. The day is in the partition's name.
pub(super) const BY_DAY: &[(&str, Kept)] = &[
    ("samples", Kept::Raw),
    ("service_1m", Kept::Minutes),
    ("totals", Kept::LabelSets),
    ("series", Kept::LabelSets),
    ("service_1h", Kept::Longest),
    ("stacks", Kept::Longest),
    ("frames", Kept::Longest),
    ("services", Kept::Longest),
    ("host_days", Kept::Longest),
    ("windows", Kept::Longest),
];

#[derive(clickhouse::Row, serde::Deserialize)]
struct Text {
    text: String,
}

#[derive(clickhouse::Row, serde::Deserialize)]
struct Number {
    number: u32,
}

/// What a migration of the database to `version` does, in this order, for one server.
fn single(version: u32) -> &'static [&'static str] {
    MIGRATIONS[version as usize - 1]
}

/// What every version needs: the database, the table whose comment is its key, and the table of
/// versions.
fn base(database: &str, key: &str) -> [String; 3] {
    [
        format!("CREATE DATABASE IF NOT EXISTS {database}"),
        format!(
            "CREATE TABLE IF NOT EXISTS identity (nothing UInt8) ENGINE = Null COMMENT '{key}'"
        ),
        "CREATE TABLE IF NOT EXISTS schema_version (version UInt32, at DateTime DEFAULT now())
            ENGINE = ReplacingMergeTree ORDER BY version"
            .to_owned(),
    ]
}

/// Tables for SQL of people over all shards: `windows_all` and so on. They are for reading alone:
/// collectors send each shard what belongs to it.
fn over_shards(layout: Layout<'_>) -> Vec<String> {
    let Layout::Cluster(cluster) = layout else {
        return Vec::new();
    };
    let of = |table: &str| {
        format!(
            "CREATE TABLE IF NOT EXISTS {table}_all ON CLUSTER '{cluster}' AS {table} \
             ENGINE = Distributed('{cluster}', currentDatabase(), '{table}')"
        )
    };
    EXPECTED.iter().map(|(table, _)| of(table)).collect()
}

/// Statements that bring a database from one version to another; `from` 0: that make it, with
/// `key`.
pub(super) fn statements(
    layout: Layout<'_>,
    database: &str,
    key: &str,
    (from, to): (u32, u32),
) -> Vec<String> {
    let mut all = Vec::new();
    if from == 0 {
        all.extend(base(database, key).map(|statement| layout.statement(&statement)));
    }
    for version in from + 1..=to {
        let of_version = single(version).iter();
        all.extend(of_version.map(|statement| layout.statement(statement)));
        if version == SHARED_VERSION {
            all.extend(over_shards(layout));
        }
        all.push(note(version));
    }
    all
}

/// Notes a version as done.
fn note(version: u32) -> String {
    if version < SHARED_VERSION {
        return format!("INSERT INTO schema_version (version) VALUES ({version})");
    }
    format!("INSERT INTO schema_version (version, readable_by) VALUES ({version}, {READABLE_BY})")
}

/// Makes the database what this collector understands and returns its key. A database that is up to
/// date needs no rights to change tables.
pub(super) async fn migrate(
    client: &Client,
    options: &Options,
    fresh_key: &str,
) -> Result<Keys, Fault> {
    let known = keys_of(client).await?;
    let mut found = versions_of(client, &known).await?;
    if known.iter().any(Option::is_none) || found.iter().any(|&has| has < SCHEMA_VERSION) {
        make(
            client,
            options,
            known.iter().flatten().next().map_or(fresh_key, |key| key),
        )
        .await?;
        found = versions_of(client, &keys_of(client).await?).await?;
        update(client, options, &found).await?;
    }
    let key = keys_of(client).await?.into_iter().flatten().next();
    key.and_then(|key| Keys::parse(&key)).ok_or(Fault::NoKey)
}

/// Makes what every version needs where it is not there. A shard that was added later gets the key
/// of the others.
async fn make(client: &Client, options: &Options, key: &str) -> Result<(), Fault> {
    let layout = options.layout();
    let [database, identity, versions] = base(client.first().database(), key);
    // Who may not create databases may still use one that is there.
    let created = client.first().outside(&layout.statement(&database)).await;
    // Making a table that is not there yet happens once, whoever asks: so there is one key.
    if let Err(fault) = client.first().execute(&layout.statement(&identity)).await {
        return Err(created.err().unwrap_or(fault));
    }
    client.first().execute(&layout.statement(&versions)).await
}

/// Brings shards that have these versions up to date.
async fn update(client: &Client, options: &Options, found: &[u32]) -> Result<(), Fault> {
    let layout = options.layout();
    let oldest = found.iter().copied().min().unwrap_or(0);
    for version in oldest + 1..=SCHEMA_VERSION {
        let shards = client.shards().iter().zip(found);
        let behind: Vec<_> = shards.filter(|&(_, &has)| has < version).collect();
        for statement in single(version) {
            if layout.is_done_once(statement) {
                client.first().execute(&layout.statement(statement)).await?;
                continue;
            }
            for (shard, _) in &behind {
                shard.execute(statement).await?;
            }
        }
        if version == SHARED_VERSION {
            for statement in over_shards(layout) {
                client.first().execute(&statement).await?;
            }
        }
        for (shard, _) in behind {
            if version == LOST_VERSION {
                tell_lost(shard).await?;
            }
            if layout == Layout::Single {
                shard.execute(&note(version)).await?;
            }
        }
    }
    if layout != Layout::Single {
        // The servers of a cluster make changes when they get to it. Until all have made all of
        // them, nothing is noted, and whoever comes next does them again.
        for shard in client.shards() {
            if let Some(first) = missing(shard).await?.first() {
                let name = &shard.name;
                return Err(Fault::Away(format!("shard `{name}` has no {first} yet")));
            }
        }
        for (shard, has) in client.shards().iter().zip(found) {
            for version in has + 1..=SCHEMA_VERSION {
                shard.execute(&note(version)).await?;
            }
        }
    }
    Ok(())
}

/// The key of the database on each shard that has one; they must be the same.
pub(super) async fn keys_of(client: &Client) -> Result<Vec<Option<String>>, Fault> {
    let mut keys = Vec::new();
    for shard in client.shards() {
        let ask = format!(
            "SELECT comment AS text FROM system.tables WHERE database = '{}' AND name = 'identity'",
            shard.database()
        );
        let key = shard.all_outside::<Text>(&ask).await?.pop();
        keys.push(key.map(|key| key.text));
    }
    let mut known = keys.iter().flatten();
    let first = known.next();
    if known.any(|key| Some(key) != first) {
        return Err(Fault::Refused(
            "shards have different keys: the comments of their tables `identity` must be the same"
                .to_owned(),
        ));
    }
    Ok(keys)
}

/// Versions of shards; 0 where there is none yet.
async fn versions_of(client: &Client, keys: &[Option<String>]) -> Result<Vec<u32>, Fault> {
    let mut versions = Vec::new();
    for (shard, key) in client.shards().iter().zip(keys) {
        let version = match key {
            None => 0,
            Some(_) => match version_of(shard).await {
                Err(Fault::Refused(text)) if code(&text) == Some(UNKNOWN_TABLE) => 0,
                version => version?,
            },
        };
        versions.push(version);
    }
    Ok(versions)
}

/// The server's code for a table that is not there.
const UNKNOWN_TABLE: u32 = 60;

/// The version of a shard; of a later one, the one of this collector, if it may use it.
pub(super) async fn version_of(shard: &Shard) -> Result<u32, Fault> {
    let found: Number = shard
        .one("SELECT toUInt32(max(version)) AS number FROM schema_version")
        .await?;
    if found.number <= SCHEMA_VERSION {
        return Ok(found.number);
    }
    let readable: Number = shard
        .one("SELECT toUInt32(argMax(readable_by, version)) AS number FROM schema_version")
        .await?;
    if SCHEMA_VERSION < readable.number {
        return Err(Fault::Newer {
            found: found.number,
        });
    }
    Ok(SCHEMA_VERSION)
}

/// Tables with the columns that this collector reads and writes.
const EXPECTED: &[(&str, &[&str])] = &[
    ("windows", WindowRow::COLUMN_NAMES),
    (
        "host_days",
        &[
            "day", "host", "host_id", "boot", "labels", "first_ns", "last_ns", "end_ns",
        ],
    ),
    ("gaps", GapRow::COLUMN_NAMES),
    ("series", SeriesRow::COLUMN_NAMES),
    ("services", SeriesRow::COLUMN_NAMES),
    ("frames", FrameRow::COLUMN_NAMES),
    ("stacks", StackRow::COLUMN_NAMES),
    ("totals", TotalRow::COLUMN_NAMES),
    (
        "samples",
        &[
            "chunk", "series", "stack", "end", "slot", "origin", "n", "period", "extra",
        ],
    ),
    (
        "service_1m",
        &["time", "service", "stack", "end", "n", "w", "rows"],
    ),
    (
        "service_1h",
        &["time", "service", "stack", "end", "n", "w", "rows"],
    ),
    ("hosts", HostRow::COLUMN_NAMES),
    ("host_health", HealthRow::COLUMN_NAMES),
    (
        "attendance",
        &["collector", "host_id", "hostname", "labels", "seen_ns"],
    ),
];

/// Views and what feeds them.
const FEEDS: &[(&str, &[&str])] = &[
    ("feed", FeedRow::COLUMN_NAMES),
    ("feed_to_samples", &[]),
    ("feed_to_service_1m", &[]),
    ("feed_to_service_1h", &[]),
    ("windows_to_host_days", &[]),
];

/// Tables, views and columns that a shard lacks, as in: table `samples`.
pub(super) async fn missing(shard: &Shard) -> Result<Vec<String>, Fault> {
    #[derive(clickhouse::Row, serde::Deserialize)]
    struct Table {
        name: String,
        columns: Vec<String>,
    }
    let ask = Statement::of(
        "SELECT of AS name, groupArray(column) AS columns FROM (SELECT table AS of, \
         name AS column FROM system.columns WHERE database = currentDatabase()) GROUP BY of",
    );
    let found = shard.all::<Table>(&ask).await?;
    let mut missing = Vec::new();
    for (table, columns) in EXPECTED.iter().chain(FEEDS) {
        let Some(found) = found.iter().find(|of| of.name == *table) else {
            missing.push(format!("table `{table}`"));
            continue;
        };
        for column in *columns {
            if !found.columns.iter().any(|name| name == column) {
                missing.push(format!("column `{column}` of table `{table}`"));
            }
        }
    }
    Ok(missing)
}

/// Columns of `windows` as version 4 has them.
const WINDOW_COLUMNS: &str = "chunk, slot, host, sequence, origin, host_id, boot, start_ns, end_ns, event, unit, \
    period, labels, idle, lost, throttled, malformed, reduced, lost_late, measured, expected_ns, estimated_ns, n, \
    w, rows, lost_n, lost_w";

/// Writes windows without a lost weight once more, with the lost weight from the sums by label set:
/// the row written last counts. If a day has no such sums any more nobody knows, so its windows
/// count as having no accounts: otherwise what was lost would count as covered. It works a day at a
/// time, which bounds the memory; a collector of version 3 that still runs keeps writing windows
/// without it.
async fn tell_lost(shard: &Shard) -> Result<(), Fault> {
    #[derive(clickhouse::Row, serde::Deserialize)]
    struct Days {
        days: Vec<u32>,
    }
    let all = "SELECT arraySort(groupUniqArray(toYYYYMMDD(chunk))) AS days FROM";
    let windows: Days = shard.one(&format!("{all} windows")).await?;
    let totals: Days = shard.one(&format!("{all} totals")).await?;
    let columns = |of: &str, exchange: &[(&str, &str)]| {
        let column = |name: &str| {
            let other = exchange.iter().find(|(own, _)| *own == name);
            other.map_or_else(|| format!("{of}.{name}"), |(_, other)| (*other).to_owned())
        };
        let names = WINDOW_COLUMNS.split(',').map(|name| column(name.trim()));
        names.collect::<Vec<_>>().join(", ")
    };
    for day in windows.days {
        let of_day = format!("toYYYYMMDD(chunk) = {day}");
        let select = if totals.days.contains(&day) {
            let lost = [("lost_n", "known.lost_n"), ("lost_w", "known.lost_w")];
            format!(
                "SELECT {} FROM (SELECT * FROM windows FINAL WHERE {of_day} AND lost_n = 0) AS own \
                 INNER JOIN (SELECT chunk, slot, origin, sum(total.lost_n) AS lost_n, \
                   sum(total.lost_w) AS lost_w FROM totals AS total FINAL \
                   WHERE {of_day} AND total.lost_n > 0 GROUP BY chunk, slot, origin) AS known \
                 ON own.chunk = known.chunk AND own.slot = known.slot AND own.origin = known.origin",
                columns("own", &lost)
            )
        } else {
            format!(
                "SELECT {} FROM windows AS own FINAL WHERE {of_day} AND own.lost_n = 0 \
                 AND own.measured = 1",
                columns("own", &[("measured", "toUInt8(0)")])
            )
        };
        let insert = format!("INSERT INTO windows ({WINDOW_COLUMNS}) {select}");
        shard.execute(&insert).await?;
    }
    Ok(())
}
