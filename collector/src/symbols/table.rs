//! The functions of known builds, in one SQLite database: found by build id and address.
//!
//! Its size on disk is bounded. Fetched tables can be fetched again, so they are removed first,
//! least recently used before others; uploaded tables are removed only for other uploads.

use super::extract::Functions;
use crate::store::Found;
use crate::sync::{lock, read, write};
use hashbrown::HashMap;
use profile::NameSource;
use rusqlite::{Connection, OptionalExtension as _, params};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Marks the file as ours: `FPSY`.
const APPLICATION_ID: i32 = 0x4650_5359;

/// Format of the file.
const VERSION: i32 = 1;

/// Size of a row in addition to the name. Unit: bytes; approximate.
const ROW_BYTES: u64 = 24;

/// Names from so long on take pages of their own. Unit: bytes.
const LONG_NAME: u64 = 900;

/// A page of the file. Unit: bytes.
const PAGE: u64 = 4096;

/// Most that the log next to the file keeps once it was copied back. Unit: bytes.
const LOG_BYTES_MAX: i64 = 16 << 20;

/// Most builds known. An entry takes 200 bytes of memory.
const BUILDS_MAX: usize = 100_000;

/// Longest name of a file kept. Unit: bytes.
const FILE_NAME_BYTES_MAX: usize = 256;

/// Time that one connection waits for another. Readers do not wait in this mode of SQLite.
const BUSY_MAX: Duration = Duration::from_secs(30);

const SCHEMA: &str = "
    CREATE TABLE builds (
        id INTEGER PRIMARY KEY AUTOINCREMENT, build_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, source INTEGER NOT NULL,
        functions INTEGER NOT NULL, bytes INTEGER NOT NULL, added INTEGER NOT NULL, used INTEGER NOT NULL
    );
    CREATE TABLE functions (
        build INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL, name BLOB NOT NULL,
        PRIMARY KEY (build, start)
    ) WITHOUT ROWID;
";

/// What a function takes in the file. Unit: bytes. A third of a page is free on average.
fn row_bytes(name: usize) -> u64 {
    let row = name as u64 + ROW_BYTES;
    match row > LONG_NAME {
        true => row.next_multiple_of(PAGE) + PAGE / 4,
        false => row * 4 / 3,
    }
}

/// Why symbols were not taken.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// They would need more than all may have.
    #[error(
        "the symbols take {bytes} bytes, more than the {bytes_max} for all symbols \
        (`symbols.disk_mib`)"
    )]
    TooLarge {
        /// What they take.
        bytes: u64,
        /// What all may.
        bytes_max: u64,
    },
    /// The database failed.
    #[error("failed to use the symbol database: {0}")]
    Database(#[from] rusqlite::Error),
    /// Its folder failed.
    #[error("failed to open `{}`: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl TableError {
    /// True when the file holds what no database does: anything else may go well the next time.
    fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        let TableError::Database(error) = self else {
            return false;
        };
        matches!(
            error.sqlite_error_code(),
            Some(DatabaseCorrupt | NotADatabase)
        )
    }
}

/// A build with stored symbols.
#[derive(Debug)]
pub struct Build {
    id: i64,
    /// What its file was called.
    pub name: String,
    /// Where it came from.
    pub source: NameSource,
    /// How many functions it has.
    pub functions: u64,
    /// What they take. Unit: bytes; about.
    pub bytes: u64,
    /// When it came. Unit: nanoseconds since the Unix epoch.
    pub added: i64,
    used: AtomicI64,
}

impl Build {
    /// When it was used last. Unit: nanoseconds since the Unix epoch.
    pub fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// Result of storing symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// What they take. Unit: bytes.
    pub bytes: u64,
    /// Symbols of the build were there before.
    pub replaced: bool,
    /// Builds that were removed to make room.
    pub removed: u64,
}

/// See the module.
pub struct Table {
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
    /// By build id.
    builds: RwLock<HashMap<String, Build>>,
    bytes_max: u64,
}

impl Table {
    /// Opens or makes the database in a folder. One that is damaged is set aside.
    ///
    /// # Errors
    /// When there can be none in that folder.
    pub fn open(dir: &Path, bytes_max: u64) -> Result<Table, TableError> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.map_err(|source| TableError::Folder {
            path: dir.to_owned(),
            source,
        })?;
        let path = dir.join("symbols.sqlite");
        Table::open_file(&path, bytes_max).or_else(|error| {
            if !error.is_damage() {
                return Err(error);
            }
            tracing::error!(
                "the symbol database is damaged and was renamed to `*.damaged`; upload \
                the symbols again: {error}"
            );
            for end in ["", "-wal", "-shm"] {
                let from = dir.join(format!("symbols.sqlite{end}"));
                // What is not there need not go.
                let _ = std::fs::rename(&from, dir.join(format!("symbols.sqlite{end}.damaged")));
            }
            Table::open_file(&path, bytes_max)
        })
    }

    fn open_file(path: &Path, bytes_max: u64) -> Result<Table, TableError> {
        let writer = Connection::open(path)?;
        writer.busy_timeout(BUSY_MAX)?;
        writer.pragma_update(None, "journal_mode", "wal")?;
        writer.pragma_update(None, "synchronous", "normal")?;
        // The sandbox leaves it no other place.
        writer.pragma_update(None, "temp_store", "MEMORY")?;
        writer.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
        let version: i32 = writer.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            writer.execute_batch(SCHEMA)?;
            writer.pragma_update(None, "application_id", APPLICATION_ID)?;
            writer.pragma_update(None, "user_version", VERSION)?;
        } else if version != VERSION {
            let text = format!(
                "the symbol database has format {version}, and this collector reads \
                {VERSION}"
            );
            return Err(rusqlite::Error::ToSqlConversionFailure(text.into()).into());
        }
        let reader = Connection::open(path)?;
        reader.busy_timeout(BUSY_MAX)?;
        let builds = read_builds(&writer)?;
        Ok(Table {
            writer: Mutex::new(writer),
            reader: Mutex::new(reader),
            builds: RwLock::new(builds),
            bytes_max,
        })
    }

    /// The builds with stored symbols, by build ID.
    pub fn builds(&self) -> RwLockReadGuard<'_, HashMap<String, Build>> {
        read(&self.builds)
    }

    fn builds_mut(&self) -> RwLockWriteGuard<'_, HashMap<String, Build>> {
        write(&self.builds)
    }

    /// What all of them take, and may. Unit: bytes.
    pub fn bytes(&self) -> (u64, u64) {
        let builds = self.builds();
        (
            builds.values().map(|build| build.bytes).sum(),
            self.bytes_max,
        )
    }

    /// Keeps the functions of a build, in place of those that were known. What was fetched does not
    /// replace what was uploaded.
    ///
    /// # Errors
    /// When they do not fit, or the database fails; nothing is changed then.
    pub fn put(
        &self,
        functions: &Functions,
        name: &str,
        source: NameSource,
        now: i64,
    ) -> Result<Put, TableError> {
        let names = functions.list.iter().map(|one| functions.name(one).len());
        let bytes = names.map(row_bytes).sum();
        let bytes_max = self.bytes_max;
        if bytes > bytes_max {
            return Err(TableError::TooLarge { bytes, bytes_max });
        }
        let mut writer = lock(&self.writer);
        let build_id = &*functions.build_id;
        let known = self
            .builds()
            .get(build_id)
            .map(|known| (known.id, known.source));
        if let Some((_, NameSource::Upload)) = known
            && source == NameSource::Debuginfod
        {
            return Ok(Put {
                bytes,
                replaced: true,
                removed: 0,
            });
        }
        let going = self.going(build_id, bytes, source)?;
        let change = writer.transaction()?;
        for &id in known
            .iter()
            .map(|(id, _)| id)
            .chain(going.iter().map(|(_, id)| id))
        {
            change.execute("DELETE FROM functions WHERE build = ?", [id])?;
            change.execute("DELETE FROM builds WHERE id = ?", [id])?;
        }
        let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
        let name = &name[..name.floor_char_boundary(FILE_NAME_BYTES_MAX)];
        change.execute(
            "INSERT INTO builds (build_id, name, source, functions, bytes, added, used) VALUES (?,?,?,?,?,?,?)",
            params![build_id, name, source as u8, functions.list.len() as i64, bytes as i64, now, now],
        )?;
        let id = change.last_insert_rowid();
        {
            let mut insert = change.prepare("INSERT INTO functions VALUES (?,?,?,?)")?;
            for one in &functions.list {
                let length = (one.end - one.start) as i64;
                insert.execute(params![id, one.start as i64, length, functions.name(one)])?;
            }
        }
        self.write_uses(&change)?;
        change.commit()?;
        let mut builds = self.builds_mut();
        for (gone, _) in &going {
            builds.remove(gone);
        }
        let build = Build {
            id,
            name: name.to_owned(),
            source,
            functions: functions.list.len() as u64,
            bytes,
            added: now,
            used: AtomicI64::new(now),
        };
        builds.insert(build_id.to_owned(), build);
        Ok(Put {
            bytes,
            replaced: known.is_some(),
            removed: going.len() as u64,
        })
    }

    /// Builds to remove before one of this size can be added.
    fn going(
        &self,
        coming: &str,
        bytes: u64,
        source: NameSource,
    ) -> Result<Vec<(String, i64)>, TableError> {
        let builds = self.builds();
        let others = || builds.iter().filter(|(build_id, _)| *build_id != coming);
        let mut held: u64 = others().map(|(_, build)| build.bytes).sum();
        let mut count = others().count();
        let mut candidates: Vec<_> = others()
            .filter(|(_, build)| source == NameSource::Upload || build.source == source)
            .collect();
        candidates.sort_by_key(|(_, build)| (build.source == NameSource::Upload, build.used()));
        let mut going = Vec::new();
        for (build_id, build) in candidates {
            if held + bytes <= self.bytes_max && count < BUILDS_MAX {
                break;
            }
            held -= build.bytes;
            count -= 1;
            going.push((build_id.clone(), build.id));
        }
        match held + bytes <= self.bytes_max {
            true => Ok(going),
            false => Err(TableError::TooLarge {
                bytes: held + bytes,
                bytes_max: self.bytes_max,
            }),
        }
    }

    fn write_uses(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let mut update =
            connection.prepare("UPDATE builds SET used = ? WHERE id = ? AND used < ?")?;
        for build in self.builds().values() {
            update.execute(params![build.used(), build.id, build.used()])?;
        }
        Ok(())
    }

    /// Writes what is only in memory: when each was used. Not while something else is written,
    /// which does that too.
    ///
    /// # Errors
    /// When the database fails.
    pub fn flush(&self) -> Result<(), TableError> {
        let Ok(mut writer) = self.writer.try_lock() else {
            return Ok(());
        };
        let change = writer.transaction()?;
        self.write_uses(&change)?;
        Ok(change.commit()?)
    }

    /// The number of a build's symbol table, which no other ever has.
    pub fn version(&self, build_id: &str) -> Option<u64> {
        self.builds().get(build_id).map(|build| build.id as u64)
    }

    /// Names of places in one build, in their order; none where it has no symbols.
    pub fn names(&self, build_id: &str, addresses: &[u64], now: i64) -> Option<Found> {
        let (id, source) = {
            let builds = self.builds();
            let build = builds.get(build_id)?;
            build.used.fetch_max(now, Ordering::Relaxed);
            (build.id, build.source)
        };
        let reader = lock(&self.reader);
        let mut trouble = None;
        let names = addresses.iter().map(|&address| {
            let found = look_up(&reader, id, address);
            let found = found.unwrap_or_else(|error| {
                trouble = Some(error);
                None
            });
            Some(profile::names::readable(&found?))
        });
        let names = names.collect();
        if let Some(error) = trouble {
            tracing::warn!(build_id, "failed to look symbols up: {error}");
        }
        Some((source, names))
    }
}

fn look_up(
    reader: &Connection,
    build: i64,
    address: u64,
) -> Result<Option<Vec<u8>>, rusqlite::Error> {
    let mut nearest = reader.prepare_cached(
        "SELECT start, length, name FROM functions WHERE build = ? AND start <= ? ORDER BY start DESC LIMIT 1",
    )?;
    let found = nearest.query_row(params![build, address as i64], |row| {
        let (start, length): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok((start as u64, length as u64, row.get::<_, Vec<u8>>(2)?))
    });
    let covers = |start: u64, length: u64| address.wrapping_sub(start) < length;
    Ok(found
        .optional()?
        .filter(|&(start, length, _)| covers(start, length))
        .map(|(_, _, name)| name))
}

fn read_builds(connection: &Connection) -> Result<HashMap<String, Build>, rusqlite::Error> {
    let mut all = connection
        .prepare("SELECT build_id, id, name, source, functions, bytes, added, used FROM builds")?;
    let rows = all.query_map([], |row| {
        let source = match row.get::<_, u8>(3)? {
            0 => NameSource::Upload,
            _ => NameSource::Debuginfod,
        };
        let count = |at: usize| row.get::<_, i64>(at).map(|number| number.max(0) as u64);
        let build = Build {
            id: row.get(1)?,
            name: row.get(2)?,
            source,
            functions: count(4)?,
            bytes: count(5)?,
            added: row.get(6)?,
            used: AtomicI64::new(row.get(7)?),
        };
        Ok((row.get(0)?, build))
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn own() -> Functions {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        Functions::read(&file).unwrap()
    }

    /// Some functions of a build of that id.
    fn build(build_id: &str) -> Functions {
        let mut own = own();
        own.list.truncate(100);
        build_id.clone_into(&mut own.build_id);
        own
    }

    fn name(table: &Table, build_id: &str, address: u64) -> Option<String> {
        table.names(build_id, &[address], 9)?.1.remove(0)
    }

    #[test]
    fn every_function_is_found_from_its_first_to_its_last_byte() {
        let dir = tempfile::tempdir().unwrap();
        let table = Table::open(dir.path(), 1 << 30).unwrap();
        let own = own();
        table.put(&own, "own", NameSource::Upload, 1).unwrap();
        for (at, one) in own.list.iter().enumerate().step_by(97) {
            let expected = profile::names::readable(own.name(one));
            let next = own.list.get(at + 1).map_or(u64::MAX, |next| next.start);
            let last = (one.end - 1).min(next - 1);
            for address in [one.start, last] {
                let found = name(&table, &own.build_id, address);
                assert_eq!(found.as_ref(), Some(&expected), "{address:#x}");
            }
        }
        assert_eq!(name(&table, &own.build_id, 0), None);
        assert_eq!(name(&table, &own.build_id, u64::MAX), None);
    }

    #[test]
    fn no_table_has_the_number_of_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = {
            let table = Table::open(&dir.path().join("probe"), 1 << 30).unwrap();
            let put = table.put(&build("aaaaaaaa"), "", NameSource::Upload, 1);
            put.unwrap().bytes
        };
        let table = Table::open(dir.path(), bytes).unwrap();
        let mut seen = Vec::new();
        for build_id in ["aaaaaaaa", "bbbbbbbb", "aaaaaaaa", "aaaaaaaa"] {
            let put = table.put(&build(build_id), "", NameSource::Upload, 1);
            put.unwrap();
            let version = table.version(build_id).unwrap();
            assert!(!seen.contains(&version));
            seen.push(version);
        }
        assert_eq!(table.version("bbbbbbbb"), None);
    }

    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let one = build("aaaaaaaa");
        let address = one.list[50].start;
        let before = {
            let table = Table::open(dir.path(), 1 << 30).unwrap();
            table.put(&one, "one", NameSource::Upload, 1).unwrap();
            name(&table, "aaaaaaaa", address)
        };
        let table = Table::open(dir.path(), 1 << 30).unwrap();
        assert!(before.is_some());
        assert_eq!(name(&table, "aaaaaaaa", address), before);
        assert_eq!(table.builds()["aaaaaaaa"].name, "one");
    }

    #[test]
    fn at_the_bound_what_was_fetched_and_not_used_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let size = {
            let table = Table::open(&dir.path().join("probe"), 1 << 30).unwrap();
            table
                .put(&build("aaaaaaaa"), "", NameSource::Upload, 1)
                .unwrap()
                .bytes
        };
        let table = Table::open(dir.path(), size * 3).unwrap();
        let put = |build_id: &str, source, now| table.put(&build(build_id), "", source, now);
        put("aaaaaaaa", NameSource::Upload, 1).unwrap();
        put("bbbbbbbb", NameSource::Debuginfod, 2).unwrap();
        put("cccccccc", NameSource::Debuginfod, 3).unwrap();
        // So `cccccccc` was used longest ago.
        let address = build("bbbbbbbb").list[0].start;
        table.names("bbbbbbbb", &[address], 10);
        assert_eq!(
            put("dddddddd", NameSource::Debuginfod, 11).unwrap().removed,
            1
        );
        let known = |build_id: &str| table.builds().contains_key(build_id);
        assert!(known("aaaaaaaa") && known("bbbbbbbb") && known("dddddddd"));
        assert!(!known("cccccccc"));
        // Uploads take the place of what was fetched, and then of each other.
        for (at, build_id) in ["eeeeeeee", "ffffffff", "01010101"].into_iter().enumerate() {
            put(build_id, NameSource::Upload, 20 + at as i64).unwrap();
        }
        assert!(!known("aaaaaaaa") && !known("bbbbbbbb") && !known("dddddddd"));
        // What is fetched never takes the place of an upload.
        let refused = put("02020202", NameSource::Debuginfod, 30);
        assert!(matches!(refused, Err(TableError::TooLarge { .. })));
        assert!(table.bytes().0 <= size * 3);
    }

    #[test]
    fn what_was_fetched_does_not_replace_an_upload() {
        let dir = tempfile::tempdir().unwrap();
        let table = Table::open(dir.path(), 1 << 30).unwrap();
        let one = build("aaaaaaaa");
        table.put(&one, "up", NameSource::Upload, 1).unwrap();
        let put = table.put(&one, "down", NameSource::Debuginfod, 2).unwrap();
        assert!(put.replaced);
        assert_eq!(table.builds()["aaaaaaaa"].name, "up");
        let put = table.put(&one, "again", NameSource::Upload, 3).unwrap();
        assert!(put.replaced);
        assert_eq!(table.builds()["aaaaaaaa"].name, "again");
    }

    #[test]
    fn a_damaged_database_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("symbols.sqlite");
        std::fs::write(&path, [7; 8192]).unwrap();
        let table = Table::open(dir.path(), 1 << 30).unwrap();
        table
            .put(&build("aaaaaaaa"), "", NameSource::Upload, 1)
            .unwrap();
        assert!(dir.path().join("symbols.sqlite.damaged").exists());
    }
}
