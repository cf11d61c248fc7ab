//! Opens the engine that the configuration names: the only place that knows all engines.

use super::clickhouse::{self, ClickHouseStore};
use super::embedded::{self, ArchiveOptions, BucketOptions, EmbeddedStore};
use super::{OpenStore, PROFILE_TYPE, Store};
use crate::config::{Config, Engine};
use std::sync::Arc;
use std::time::Duration;

/// How far in the future windows may start: a clock that is further ahead is wrong, and its windows
/// would stand where nobody looks for them.
const FUTURE: Duration = Duration::from_secs(600);
/// Unit: nanoseconds.
const DAY_NS: u64 = 86_400 * 1_000_000_000;

/// Size of the parts of an upload. Unit: bytes. S3 wants at least 5 MiB; each is in memory.
const PART_BYTES: usize = 8 << 20;

/// Memory of the store of other senders for windows that are in no file yet. Unit: bytes. They send
/// less than agents do; smaller would make more, smaller files.
const SENDERS_MEMTABLE_BYTES: usize = 64 << 20;

/// Memory of the store of other senders for dictionaries. Unit: bytes. At least that of one
/// partition (`partition_dictionary_bytes`); smaller would read them from disk for each question.
const SENDERS_DICTIONARY_BYTES: usize = 256 << 20;

/// Size of the pieces of objects that queries fetch. Unit: bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Files of `data_dir`.
    #[error("failed to open the embedded store")]
    Embedded(#[from] embedded::OpenError),
    /// The server, or what is in it.
    #[error("failed to open the ClickHouse store")]
    ClickHouse(#[from] clickhouse::OpenError),
}

/// The store of `config`. Blocks: it may replay a log.
///
/// # Errors
/// When the engine cannot be opened.
pub fn open(config: &Config, now_unix_ns: i64) -> Result<OpenStore, OpenError> {
    let engine: Arc<dyn Store> = match config.store {
        Engine::Embedded => Arc::new(open_embedded(config, now_unix_ns)?),
        Engine::ClickHouse => Arc::new(ClickHouseStore::open(clickhouse_options(config))?),
    };
    let store = OpenStore::of(engine);
    Ok(match config.senders.enabled {
        true => store.with_senders(OpenStore::of(senders(config, now_unix_ns)?)),
        false => store,
    })
}

/// The store of other senders: of the same engine, in a directory or a database of its own. It
/// keeps windows as they came until they expire, so no sum is made before somebody asks.
fn senders(config: &Config, now_unix_ns: i64) -> Result<Arc<dyn Store>, OpenError> {
    let days = config.senders.retention_days;
    Ok(match config.store {
        Engine::Embedded => {
            let age_ns = u64::from(days) * DAY_NS;
            let options = embedded::Options {
                retention_ns: age_ns,
                windows_ns: age_ns,
                minutes_ns: age_ns,
                ten_minutes_ns: age_ns,
                future_ns: FUTURE.as_nanos() as u64,
                disk_bytes: config.senders.disk_bytes(),
                memtable_bytes: SENDERS_MEMTABLE_BYTES,
                dictionary_bytes: SENDERS_DICTIONARY_BYTES,
                service_labels: vec![PROFILE_TYPE.to_owned()],
                ..embedded::Options::default()
            };
            let dir = config.data_dir.join("senders");
            Arc::new(EmbeddedStore::open(&dir, options, now_unix_ns)?)
        }
        Engine::ClickHouse => Arc::new(ClickHouseStore::open(senders_clickhouse_options(config))?),
    })
}

/// The embedded store in the data directory of `config`, whatever its store is. Blocks, as
/// [`open`].
///
/// # Errors
/// When it cannot be opened.
pub fn open_embedded(
    config: &Config,
    now_unix_ns: i64,
) -> Result<EmbeddedStore, embedded::OpenError> {
    let keep = config.retention;
    let age_ns = |days: u32| u64::from(days) * DAY_NS;
    let options = embedded::Options {
        retention_ns: age_ns(keep.service_hours_days),
        windows_ns: age_ns(keep.raw_days),
        minutes_ns: age_ns(keep.minute_days),
        ten_minutes_ns: age_ns(keep.ten_minutes_days),
        future_ns: FUTURE.as_nanos() as u64,
        disk_bytes: config.retention.disk_bytes(),
        service_labels: config.service_labels.clone(),
        archive: archive_options(config),
        ..embedded::Options::default()
    };
    EmbeddedStore::open(&config.data_dir, options, now_unix_ns)
}

/// Options of the ClickHouse store.
pub fn clickhouse_options(config: &Config) -> clickhouse::Options {
    let (from, keep) = (&config.clickhouse, config.retention);
    let age = |days: u32| Duration::from_secs(u64::from(days) * 86_400);
    clickhouse::Options {
        urls: from.urls.clone(),
        cluster: from.cluster.clone(),
        database: from.database.clone(),
        user: Some(from.user.clone()).filter(|user| !user.is_empty()),
        password_file: from.password_file.clone(),
        ca_file: from.ca_file.clone(),
        cert: from.cert_file.clone().zip(from.key_file.clone()),
        insert_quorum: from.insert_quorum,
        storage_policy: from.storage_policy.clone(),
        cold_after: (from.cold_after_days > 0).then(|| age(from.cold_after_days)),
        raw: age(keep.raw_days),
        label_sets: age(keep.ten_minutes_days),
        minutes: age(keep.minute_days),
        retention: age(keep.service_hours_days),
        future: FUTURE,
        ..clickhouse::Options::default()
    }
}

/// Options of the ClickHouse store of other senders.
pub fn senders_clickhouse_options(config: &Config) -> clickhouse::Options {
    let age = Duration::from_secs(u64::from(config.senders.retention_days) * 86_400);
    let of_agents = clickhouse_options(config);
    clickhouse::Options {
        database: format!("{}_senders", of_agents.database),
        cold_after: None,
        raw: age,
        label_sets: age,
        minutes: age,
        retention: age,
        ..of_agents
    }
}

/// How the archive of `config` behaves, if there is one.
pub fn archive_options(config: &Config) -> Option<ArchiveOptions> {
    let from = &config.archive;
    let (bucket, prefix) = from.place()?;
    let age_ns = |days: u32| u64::from(days) * DAY_NS;
    Some(ArchiveOptions {
        bucket: BucketOptions {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: from.endpoint.clone(),
            region: from.region.clone(),
            path_style: from.path_style,
            credentials_file: from.credentials_file.clone(),
            ca_file: from.ca_file.clone(),
        },
        local_ns: age_ns(from.local_days),
        retention_ns: age_ns(from.retention_days),
        cache_bytes: u64::from(from.cache_gib) << 30,
        part_bytes: PART_BYTES,
        piece_bytes: PIECE_BYTES,
    })
}
