//! Opens the engine that the configuration names: the one place that knows them all.

use super::Store;
use super::embedded::{self, EmbeddedStore};
use crate::config::{Config, Engine};
use std::sync::Arc;

/// Unit: nanoseconds.
const DAY_NS: u64 = 86_400_000_000_000;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This build does not have the engine.
    #[error("failed to open the store: this build has no engine `{engine}`")]
    Absent {
        /// Its name.
        engine: &'static str,
    },
    /// The embedded engine could not be opened.
    #[error(transparent)]
    Embedded(#[from] embedded::OpenError),
}

/// The store of `config`. Blocks: it may replay a log.
///
/// # Errors
/// When the engine cannot be opened.
pub fn open(config: &Config, now_unix_ns: i64) -> Result<Arc<dyn Store>, OpenError> {
    match config.store {
        Engine::Embedded => {
            let options = embedded_options(config);
            let store = EmbeddedStore::open(&config.data_dir, options, now_unix_ns)?;
            Ok(Arc::new(store))
        }
        Engine::ClickHouse => Err(OpenError::Absent {
            engine: "clickhouse",
        }),
    }
}

fn embedded_options(config: &Config) -> embedded::Options {
    embedded::Options {
        retention_ns: u64::from(config.retention.ten_minutes_days) * DAY_NS,
        disk_bytes: config.retention.disk_bytes(),
        service_labels: config.service_labels.clone(),
        ..embedded::Options::default()
    }
}
