//! The ClickHouse store against the real engine, through a front of its HTTP interface.
//!
//! The engine is PyPI's `chdb`, installed by `collector/tests/chdb.sh`. Where it is not, every test
//! here says so and does nothing.

mod front;
mod store;

use collector::store::Store;
use collector::store::clickhouse::{ClickHouseStore, OpenError, Options};
use front::{Front, shared};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Engine, Place};

suite!(clickhouse, crate::ClickHouse);

/// Databases of one server, one for each place.
struct ClickHouse;

struct Database {
    url: String,
    name: String,
}

impl Engine for ClickHouse {
    fn place(&self) -> Result<Box<dyn Place>, String> {
        let url = shared()?.url();
        let name = fresh_name();
        Ok(Box::new(Database { url, name }))
    }
}

impl Place for Database {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(ClickHouseStore::open(options(&self.url, &self.name)).unwrap())
    }
}

fn fresh_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn options(url: &str, database: &str) -> Options {
    Options {
        url: url.to_owned(),
        database: database.to_owned(),
        write_timeout: Duration::from_secs(120),
        ..Options::default()
    }
}

/// The shared server, or a line that says what is missing.
fn server() -> Option<&'static Front> {
    shared().map_err(|why| println!("skipped: {why}")).ok()
}
