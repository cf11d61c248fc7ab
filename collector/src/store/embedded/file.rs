//! A partition's file: an SQLite database with the dictionary, blocks, heads and windows of some
//! hours.
//!
//! Written by one transaction a flush, fsynced before it counts; read by any number of connections,
//! each of which sees the state it started with. Nothing outside this file speaks SQL.

mod rewrite;
mod rows;

pub use rewrite::{Hours, Replacement, hours_of, put_in_place};
pub use rows::{Facts, Rows};

use super::codec::Corrupt;
use super::encode::Encoded;
use super::table::Table;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};
use std::path::{Path, PathBuf};

/// Marks the file as a partition of ours: `FPST`.
const APPLICATION_ID: i32 = 0x4650_5354;

/// Format of the file. A file of another version is not touched.
const VERSION: i32 = 1;

/// Most parts of one chunk and bundle: a flush writes one. Beyond it a flush fails for that chunk.
const PARTS_MAX: u32 = 1 << 16;

const SCHEMA: &str = "
    CREATE TABLE about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE dict (id INTEGER PRIMARY KEY, entries BLOB NOT NULL, contents BLOB NOT NULL);
    CREATE TABLE host (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE chunk (id INTEGER PRIMARY KEY, record INTEGER NOT NULL, parts INTEGER NOT NULL);
    CREATE TABLE block (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE head (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE service_block (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE service_head (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE windows (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
";

/// Why a partition's file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It holds what was never written; it is to be set aside.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// No room, or the disk refuses: it may work later.
    #[error("{0}")]
    Unavailable(String),
    /// The archive does not give it, or gives something else.
    #[error("{0}")]
    Archive(String),
    /// The caller has gone, or the time is over.
    #[error("the caller gave up")]
    Cancelled,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl From<Corrupt> for FileError {
    fn from(damage: Corrupt) -> FileError {
        FileError::Damaged(damage.to_string())
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> FileError {
        FileError::Unavailable(error.to_string())
    }
}

impl From<rusqlite::Error> for FileError {
    fn from(error: rusqlite::Error) -> FileError {
        let text = error.to_string();
        // A file that ends before it should is no failure of the disk.
        let short = rusqlite::ffi::SQLITE_IOERR_SHORT_READ;
        if error
            .sqlite_error()
            .is_some_and(|error| error.extended_code == short)
        {
            return FileError::Damaged("it is cut short".to_owned());
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => FileError::Damaged(text),
            Some(
                ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::OutOfMemory
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked,
            ) => FileError::Unavailable(text),
            // A column that is not what the schema says, or a table that is not there.
            None => FileError::Damaged(text),
            Some(_) if text.contains("no such table") => FileError::Damaged(text),
            Some(_) => FileError::Other(text),
        }
    }
}

/// The key of a blob: chunk, then bundle, then part.
fn key(chunk: u16, bundle: u32, part: u32) -> i64 {
    i64::from(chunk & 0x7fff) << 48 | i64::from(bundle) << 16 | i64::from(part)
}

/// Ids of the blobs of a chunk with bundles in `[from, to)`: the first, and the one after the last.
pub fn ids_of_bundles(chunk: u16, (from, to): (u32, u64)) -> (i64, i64) {
    let high = key(chunk, 0, 0) + ((to.min(1 << 32) as i64) << 16);
    (key(chunk, from, 0), high)
}

/// Ids of all blobs of chunks in `[from, to]`: the first, and the one after the last.
pub fn ids_of_chunks(from: u16, to: u16) -> (i64, i64) {
    (key(from, 0, 0), key(to, 0, 0).saturating_add(1 << 48))
}

/// What one flush adds to a file.
pub struct Flush {
    /// Its number in this file: one more than that of the flush before.
    pub number: u64,
    /// Entries of the dictionary, sealed, with the contents of its stacks.
    pub dict: Option<(Vec<u8>, Vec<u8>)>,
    /// Chunks with the last record of the log that is in them.
    pub chunks: Vec<(u16, u64, Encoded)>,
    /// Hosts that changed.
    pub hosts: Vec<(u32, Vec<u8>)>,
}

/// Data that is read as soon as a file is opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// Labels that identify services, one per line.
    pub service_labels: Vec<String>,
    /// Which set of ids it has; 0 for files of before there were several.
    pub generation: u64,
    /// Which data it has: that of the file that it was downsampled from, whatever its ids are. A
    /// file that starts empty starts one.
    pub lineage: u64,
    /// How many flushes are in it.
    pub flushes: u64,
    /// Last record of the log by chunk.
    pub records: Vec<(u16, u64)>,
}

/// Creates the tables of an empty file, and writes its owner.
fn lay_out(
    connection: &Connection,
    service_labels: &[String],
    (generation, lineage): (u64, u64),
    flushes: i64,
) -> Result<(), FileError> {
    connection.execute_batch(&format!(
        "BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};
         {SCHEMA} COMMIT;"
    ))?;
    let labels = service_labels.join("\n");
    connection.execute(
        "INSERT INTO about VALUES ('service_labels', ?1), ('generation', ?2), ('flushes', ?3), \
         ('lineage', ?4)",
        params![
            labels.as_bytes(),
            generation as i64,
            flushes,
            lineage as i64
        ],
    )?;
    Ok(())
}

/// A connection to a partition's file.
pub struct PartitionFile {
    connection: Connection,
    alone: bool,
}

impl PartitionFile {
    /// Makes a new file with ids of this generation, and data that no other file has.
    pub fn create(
        path: &Path,
        service_labels: &[String],
        generation: u64,
        lineage: u64,
    ) -> Result<PartitionFile, FileError> {
        let temporary = path.with_extension("new");
        remove(&temporary)?;
        {
            let connection = Connection::open(&temporary)?;
            connection.execute_batch(
                "PRAGMA page_size = 4096; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;",
            )?;
            lay_out(&connection, service_labels, (generation, lineage), 0)?;
        }
        // SQLite would take the log of a file that is gone for that of the new one.
        for stale in &names(path)[1..] {
            remove_one(stale)?;
        }
        std::fs::rename(&temporary, path)?;
        if let Some(folder) = path.parent() {
            std::fs::File::open(folder)?.sync_all()?;
        }
        PartitionFile::open(path)
    }

    /// Opens a file that is there.
    pub fn open(path: &Path) -> Result<PartitionFile, FileError> {
        PartitionFile::open_as(path, false)
    }

    /// Opens a file that is there for reading. SQLite shares an index of its log between
    /// connections in a file of its own; where the disk has no room even for that, this connection
    /// is alone.
    pub fn open_to_read(path: &Path) -> Result<PartitionFile, FileError> {
        match PartitionFile::open(path) {
            Err(FileError::Unavailable(_)) => PartitionFile::open_as(path, true),
            opened => opened,
        }
    }

    /// True when it keeps others from the file: not to be kept longer than needed.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    fn open_as(path: &Path, alone: bool) -> Result<PartitionFile, FileError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        if alone {
            let _mode: String =
                connection.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |row| row.get(0))?;
        }
        let id: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let version: i32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if id != APPLICATION_ID || version != VERSION {
            return Err(FileError::Damaged(format!(
                "it is not a partition of version {VERSION}: application {id:#x}, version {version}"
            )));
        }
        let _mode: String =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
        connection.execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0;",
        )?;
        connection.set_prepared_statement_cache_capacity(32);
        // What SQLite puts off until something is read, such as that index, shall fail here.
        let _rows: i64 =
            connection.query_row("SELECT count(*) FROM about", [], |row| row.get(0))?;
        Ok(PartitionFile { connection, alone })
    }

    /// Reads what is needed at once.
    pub fn read_opened(&self) -> Result<Opened, FileError> {
        let labels: Vec<u8> = self.connection.query_row(
            "SELECT value FROM about WHERE name = 'service_labels'",
            [],
            |row| row.get(0),
        )?;
        let labels = String::from_utf8(labels)
            .map_err(|_| FileError::Damaged("text is not UTF-8".to_owned()))?;
        let generation = self.number("generation")? as u64;
        // Files of before there was an archive have none; nor were they archived.
        let lineage = match self.number("lineage")? {
            0 => generation,
            lineage => lineage as u64,
        };
        let mut opened = Opened {
            service_labels: labels.split('\n').map(str::to_owned).collect(),
            generation,
            lineage,
            flushes: self.number("flushes")? as u64,
            ..Opened::default()
        };
        opened.service_labels.retain(|label| !label.is_empty());
        let mut chunks = self.connection.prepare("SELECT id, record FROM chunk")?;
        let mut rows = chunks.query([])?;
        while let Some(row) = rows.next()? {
            let (chunk, record): (i64, i64) = (row.get(0)?, row.get(1)?);
            let chunk = u16::try_from(chunk).map_err(|_| Corrupt("a chunk is not there"))?;
            opened.records.push((chunk, record as u64));
        }
        Ok(opened)
    }

    /// Reads hosts, as they were written.
    pub fn each_host(
        &self,
        mut host: impl FnMut(&[u8]) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut statement = self.connection.prepare("SELECT body FROM host")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            host(blob(row, 0)?)?;
        }
        Ok(())
    }

    fn number(&self, name: &str) -> Result<i64, FileError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT value FROM about WHERE name = ?1")?;
        let found = select.query_row([name], |row| row.get(0)).optional()?;
        Ok(found.unwrap_or(0))
    }

    /// Reads the dictionary's batches in order; contents of stacks only when asked for.
    pub fn each_dict(
        &self,
        with_contents: bool,
        mut batch: impl FnMut(&[u8], &[u8]) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let sql = if with_contents {
            "SELECT entries, contents FROM dict ORDER BY id"
        } else {
            "SELECT entries, x'' FROM dict ORDER BY id"
        };
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            batch(blob(row, 0)?, blob(row, 1)?)?;
        }
        Ok(())
    }

    /// Writes a flush up to, but without, the commit, which [`PartitionFile::commit`] does. One
    /// that is in the file already, after a commit that only seemed to fail, adds nothing; says
    /// whether it does.
    pub fn write(&mut self, flush: &Flush) -> Result<bool, FileError> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let written = self.number("flushes").and_then(|done| {
            if done as u64 >= flush.number {
                return Ok(false);
            }
            self.connection
                .prepare_cached("INSERT OR REPLACE INTO about VALUES ('flushes', ?1)")?
                .execute(params![flush.number as i64])?;
            self.write_rows(flush)?;
            Ok(true)
        });
        if written.is_err() {
            self.roll_back();
        }
        written
    }

    fn write_rows(&self, flush: &Flush) -> Result<(), FileError> {
        let connection = &self.connection;
        if let Some((entries, contents)) = &flush.dict {
            connection
                .prepare_cached("INSERT INTO dict (entries, contents) VALUES (?1, ?2)")?
                .execute(params![entries, contents])?;
        }
        for (id, body) in &flush.hosts {
            connection
                .prepare_cached("INSERT OR REPLACE INTO host VALUES (?1, ?2)")?
                .execute(params![id, body])?;
        }
        for (chunk, record, encoded) in &flush.chunks {
            let part: u32 = connection
                .prepare_cached("SELECT parts FROM chunk WHERE id = ?1")?
                .query_row(params![chunk], |row| row.get(0))
                .optional()?
                .unwrap_or(0);
            if part >= PARTS_MAX {
                return Err(FileError::Other("a chunk has too many parts".to_owned()));
            }
            connection
                .prepare_cached("INSERT OR REPLACE INTO chunk VALUES (?1, ?2, ?3)")?
                .execute(params![chunk, *record as i64, part + 1])?;
            let insert = |sql: &str, rows: &[(u32, Vec<u8>)]| -> Result<(), FileError> {
                let mut statement = connection.prepare_cached(sql)?;
                for (bundle, body) in rows {
                    statement.execute(params![key(*chunk, *bundle, part), body])?;
                }
                Ok(())
            };
            insert("INSERT INTO block VALUES (?1, ?2)", &encoded.blocks)?;
            insert("INSERT INTO head VALUES (?1, ?2)", &encoded.heads)?;
            insert(
                "INSERT INTO service_block VALUES (?1, ?2)",
                &encoded.service_blocks,
            )?;
            insert(
                "INSERT INTO service_head VALUES (?1, ?2)",
                &encoded.service_heads,
            )?;
            connection
                .prepare_cached("INSERT INTO windows VALUES (?1, ?2)")?
                .execute(params![key(*chunk, 0, part), encoded.windows])?;
        }
        Ok(())
    }

    /// Makes what was written durable and visible.
    pub fn commit(&mut self) -> Result<(), FileError> {
        let done = self.connection.execute_batch("COMMIT");
        if done.is_err() {
            self.roll_back();
        }
        Ok(done?)
    }

    fn roll_back(&mut self) {
        // After some errors SQLite has rolled back by itself, and this one fails.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    /// Fixes the state that is read until [`PartitionFile::end`]; returns how many flushes are in
    /// it.
    pub fn begin(&self) -> Result<u64, FileError> {
        self.connection.execute_batch("BEGIN")?;
        let pinned = self.number("flushes");
        if pinned.is_err() {
            self.end();
        }
        Ok(pinned? as u64)
    }

    /// Ends reading.
    pub fn end(&self) {
        let _ = self.connection.execute_batch("COMMIT");
    }

    /// Blobs of one chunk with a bundle that is in `[from, to)` and wanted, by bundle. Returns
    /// whether there was one.
    pub fn each_blob<E: From<FileError>>(
        &self,
        table: Table,
        chunk: u16,
        bundles: (u32, u64),
        wanted: impl Fn(u32) -> bool,
        mut blob_of: impl FnMut(u32, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let prepared = self.connection.prepare_cached(table.select());
        let mut statement = prepared.map_err(FileError::from)?;
        let (low, high) = ids_of_bundles(chunk, bundles);
        let mut rows = statement
            .query(params![low, high])
            .map_err(FileError::from)?;
        let mut any = false;
        while let Some(row) = rows.next().map_err(FileError::from)? {
            let id: i64 = row.get(0).map_err(FileError::from)?;
            let bundle = (id >> 16) as u32;
            if wanted(bundle) {
                blob_of(bundle, blob(row, 1)?)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Windows of chunks in `[from, to]`, by chunk.
    pub fn each_windows<E: From<FileError>>(
        &self,
        from: u16,
        to: u16,
        mut blob_of: impl FnMut(u16, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let prepared = self
            .connection
            .prepare_cached("SELECT id, body FROM windows WHERE id >= ?1 AND id < ?2");
        let mut statement = prepared.map_err(FileError::from)?;
        let (low, high) = ids_of_chunks(from, to);
        let queried = statement.query(params![low, high]);
        let mut rows = queried.map_err(FileError::from)?;
        while let Some(row) = rows.next().map_err(FileError::from)? {
            let id: i64 = row.get(0).map_err(FileError::from)?;
            blob_of((id >> 48) as u16, blob(row, 1)?)?;
        }
        Ok(())
    }

    /// Moves SQLite's own log into the file: as much as readers allow, or, to `end`, all of it.
    pub fn checkpoint(&self, end: bool) -> Result<(), FileError> {
        let sql = if end {
            "PRAGMA wal_checkpoint(TRUNCATE)"
        } else {
            "PRAGMA wal_checkpoint(PASSIVE)"
        };
        self.connection.query_row(sql, [], |_| Ok(()))?;
        Ok(())
    }
}

fn blob<'r>(row: &'r rusqlite::Row<'_>, at: usize) -> Result<&'r [u8], FileError> {
    row.get_ref(at)?
        .as_blob()
        .map_err(|_| FileError::Damaged("a column holds something else".to_owned()))
}

/// Every name a partition's file has on disk.
pub fn names(path: &Path) -> [PathBuf; 3] {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    [path.to_owned(), with("-wal"), with("-shm")]
}

/// True while SQLite has a log next to a partition's file.
pub fn has_log(path: &Path) -> bool {
    names(path)[1].exists()
}

/// Renames a partition's file, so that it is never read again, and can be looked at.
pub fn quarantine_file(path: &Path) -> std::io::Result<()> {
    for name in names(path) {
        let mut aside = name.as_os_str().to_owned();
        aside.push(".damaged");
        let aside = PathBuf::from(aside);
        // Only the last of several is kept: they all stood for the same hours.
        if name.exists() && std::fs::exists(&aside)? {
            let aside = aside.display();
            tracing::warn!("replaced `{aside}` with a partition that was damaged later");
        }
        // The log of SQLite belongs to its file: both keep their names but for the end.
        match std::fs::rename(&name, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes a partition's file.
pub fn remove(path: &Path) -> std::io::Result<()> {
    names(path).iter().try_for_each(|name| remove_one(name))
}

fn remove_one(name: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Size on disk. Unit: bytes.
pub fn bytes(path: &Path) -> u64 {
    let sizes = names(path)
        .into_iter()
        .filter_map(|name| std::fs::metadata(name).ok());
    sizes.map(|metadata| metadata.len()).sum()
}
