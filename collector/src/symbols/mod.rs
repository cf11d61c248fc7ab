//! Names of functions that agents could not find: symbol tables by build ID, uploaded or fetched.
//!
//! An agent uses the names that its host has. For the rest, a frame says which function of which
//! build it is ([`profile::Place`]), and that is stored. The names are looked up when an answer is
//! built, so windows stored before a symbol table arrived have them too, and nothing stored is
//! changed.
//!
//! `extract` reads files, `table` stores their symbols, `fetch` requests builds without known names
//! from debuginfod servers, and `service` receives uploads.

mod extract;
mod fetch;
mod service;
mod table;

pub use extract::{ExtractError, Functions};
pub use service::MESSAGE_BYTES_MAX as UPLOAD_BYTES_MAX;
pub use table::{Put, Table, TableError};

use crate::audit::Audit;
use crate::metrics::Metrics;
use crate::store::{Found, Names};
use crate::sync::lock;
use crate::time::Clock;
use debuginfod::{FetchQueue, Servers};
use profile::NameSource;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::sync::{Semaphore, watch};

/// Files that are read at a time: reading the largest takes some 500 MB.
const READ_AT_ONCE: usize = 1;

/// Files that are received at a time.
const RECEIVE_AT_ONCE: usize = 4;

/// Most of one uploaded or fetched file. Unit: bytes. Debug files of the largest programs have 2
/// GB.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// Options of symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SymbolOptions {
    /// Where everything of it is.
    pub dir: PathBuf,
    /// Most of all symbols on disk. Unit: bytes.
    pub disk_bytes: u64,
    /// Servers that are asked for builds, in this order.
    pub debuginfod: Vec<String>,
}

/// The symbols that the collector knows; clones share everything.
#[derive(Clone)]
pub struct Symbols(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    /// None: it cannot be opened.
    table: Option<Table>,
    /// Builds to ask servers for; none: nobody asks.
    wanted: Option<Mutex<FetchQueue>>,
    /// Wakes the thread that asks servers.
    bell: SyncSender<()>,
    reading: Arc<Semaphore>,
    receiving: Semaphore,
    shutdown: watch::Receiver<bool>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// Where uploads are put on record.
    audit: OnceLock<Audit>,
}

impl Symbols {
    /// Opens what is known, and starts to ask servers where there are any. Where there can be no
    /// database that is said, and nothing has names.
    ///
    /// # Errors
    /// When the thread that asks servers cannot be started.
    pub fn open(
        options: &SymbolOptions,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<Symbols> {
        let table = Table::open(&options.dir, options.disk_bytes);
        let table = table.inspect_err(|error| {
            tracing::error!(
                "failed to open the symbol database, so functions without a name from \
                their agent stay unnamed: {error}"
            );
            metrics.symbols_unavailable.set(1);
        });
        let servers = &options.debuginfod;
        let asks = !servers.is_empty() && table.is_ok();
        let (bell, rings) = mpsc::sync_channel(1);
        let symbols = Symbols(Arc::new(Inner {
            dir: options.dir.clone(),
            table: table.ok(),
            wanted: asks.then(Mutex::default),
            bell,
            reading: Arc::new(Semaphore::new(READ_AT_ONCE)),
            receiving: Semaphore::new(RECEIVE_AT_ONCE),
            shutdown,
            clock,
            metrics,
            audit: OnceLock::new(),
        }));
        symbols.0.remove_leftovers();
        if asks {
            fetch::start(&symbols.0, Servers::new(servers, FILE_BYTES_MAX), rings)?;
        }
        Ok(symbols)
    }

    /// Says where uploads are put on record. Once.
    pub fn audited_by(&self, audit: Audit) {
        // The collector says it at its start.
        let _ = self.0.audit.set(audit);
    }

    /// Writes what is only in memory.
    pub fn close(&self) {
        let flushed = self.0.table.as_ref().map_or(Ok(()), Table::flush);
        if let Err(error) = flushed {
            tracing::warn!("failed to store when symbols were last used: {error}");
        }
    }
}

impl Names for Symbols {
    fn version(&self, build_id: &str) -> Option<u64> {
        self.0.table.as_ref()?.version(build_id)
    }

    fn names(&self, build_id: &str, addresses: &[u64]) -> Option<Found> {
        let now = self.0.clock.now_unix_ns();
        self.0.table.as_ref()?.names(build_id, addresses, now)
    }

    fn want(&self, builds: Vec<String>) {
        if let Some(mut wanted) = self.0.wanted() {
            wanted.add(builds);
            // One ring is enough for all that waits.
            let _ = self.0.bell.try_send(());
        }
    }
}

/// Prefix of the names of files that are still arriving.
const INCOMING: &str = "incoming-";

impl Inner {
    fn wanted(&self) -> Option<MutexGuard<'_, FetchQueue>> {
        let wanted = self.wanted.as_ref()?;
        Some(lock(wanted))
    }

    /// Removes what a process left that ended while it brought a file.
    fn remove_leftovers(&self) {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            if entry.file_name().to_string_lossy().starts_with(INCOMING) {
                // What cannot be removed now is there at the next start.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn table(&self) -> Result<&Table, TakeError> {
        self.table.as_ref().ok_or(TakeError::Unavailable)
    }

    /// Reads a file and keeps its functions, if it is of the build that is expected. Blocks.
    fn take(
        &self,
        path: &Path,
        (name, source): (&str, NameSource),
        expected: Option<&str>,
    ) -> Result<(Functions, Put), TakeError> {
        let file = std::fs::File::open(path).map_err(TakeError::Read)?;
        // A reader that panics costs its file only.
        let functions = std::panic::catch_unwind(|| Functions::read(&file));
        let functions = functions.map_err(|_| TakeError::Damaged)??;
        if expected.is_some_and(|build_id| build_id != functions.build_id) {
            return Err(TakeError::OtherBuild(functions.build_id));
        }
        let now = self.clock.now_unix_ns();
        let put = self.table()?.put(&functions, name, source, now)?;
        self.metrics.symbol_builds_removed.inc_by(put.removed);
        Ok((functions, put))
    }
}

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
enum TakeError {
    #[error("failed to read the symbols: {0}")]
    Read(io::Error),
    #[error("the symbols are damaged")]
    Damaged,
    #[error("the symbols belong to build {0}")]
    OtherBuild(String),
    #[error("the symbol database cannot be opened: see the collector's log")]
    Unavailable,
    #[error(transparent)]
    Extract(#[from] ExtractError),
    #[error(transparent)]
    Table(#[from] TableError),
}
