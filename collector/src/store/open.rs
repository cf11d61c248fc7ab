//! Opens the engine that the configuration names: the one place that knows them all.

use super::Store;
use crate::config::{Config, Engine};
use std::sync::Arc;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This build does not have the engine.
    #[error("failed to open the store: this build has no engine `{engine}`")]
    Absent {
        /// Its name.
        engine: &'static str,
    },
}

/// The store of `config`. Blocks: it may replay a log.
///
/// # Errors
/// When the engine cannot be opened.
pub fn open(config: &Config, now_unix_ns: i64) -> Result<Arc<dyn Store>, OpenError> {
    let _ = now_unix_ns;
    let engine = match config.store {
        Engine::Embedded => "embedded",
        Engine::ClickHouse => "clickhouse",
    };
    Err(OpenError::Absent { engine })
}
