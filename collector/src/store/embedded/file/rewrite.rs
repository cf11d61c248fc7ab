//! Rewrites within a partition's file: parts that become one, sums by hours, and a new file that
//! replaces an older one.

use super::{FileError, PartitionFile, blob, key, lay_out, remove};
use crate::store::embedded::chunk::{HOUR_CHUNKS, HOURS_FROM};
use crate::store::embedded::encode::HEADS_SHARED;
use crate::store::embedded::table::Table;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the mark of an hour in `about`.
const HOUR: &str = "hour ";

/// Rows that take the place of parts.
pub struct Replacement {
    /// The blocks' table: that of their heads follows from it.
    pub table: Table,
    /// The chunk, or hour.
    pub chunk: u16,
    /// Range of bundles.
    pub range: u32,
    /// Parts below it are replaced; later ones came meanwhile and stay.
    pub parts: u64,
    /// Blocks by bundle.
    pub blocks: Vec<(u32, Vec<u8>)>,
    /// Heads by range of bundles.
    pub heads: Vec<(u32, Vec<u8>)>,
}

fn tables(table: Table) -> (&'static str, &'static str) {
    match table {
        Table::Block | Table::Head => ("block", "head"),
        Table::ServiceBlock | Table::ServiceHead => ("service_block", "service_head"),
    }
}

/// An hour's number, and what was flushed into its chunks, as a number that only grows.
pub type Hours = BTreeMap<u16, u64>;

/// Hours of chunks with their parts.
pub fn hours_of(chunks: impl IntoIterator<Item = (u16, u64)>) -> Hours {
    let mut hours = Hours::new();
    for (chunk, parts) in chunks {
        *hours.entry(chunk / HOUR_CHUNKS).or_default() += parts;
    }
    hours
}

impl PartitionFile {
    /// By chunk: how many parts it was given by now.
    pub fn chunk_parts(&self) -> Result<BTreeMap<u16, u64>, FileError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id, parts FROM chunk")?;
        let mut rows = statement.query([])?;
        let mut chunks = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let (chunk, parts): (i64, i64) = (row.get(0)?, row.get(1)?);
            let damaged = |_| FileError::Damaged("a chunk is not there".to_owned());
            let chunk = u16::try_from(chunk).map_err(damaged)?;
            chunks.insert(chunk, u64::try_from(parts).map_err(damaged)?);
        }
        Ok(chunks)
    }

    /// Hours with something in them, and what was flushed into them.
    pub fn hours(&self) -> Result<Hours, FileError> {
        Ok(hours_of(self.chunk_parts()?))
    }

    /// Hours that were added up, and what had been flushed into them then.
    pub fn hours_added_up(&self) -> Result<Hours, FileError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT name, value FROM about WHERE name >= 'hour ' AND name < 'hour!'",
        )?;
        let mut rows = statement.query([])?;
        let mut hours = Hours::new();
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            let hour = name
                .strip_prefix(HOUR)
                .and_then(|hour| hour.parse::<u16>().ok());
            let parts = <[u8; 8]>::try_from(blob(row, 1)?).map(u64::from_le_bytes);
            match (hour, parts) {
                (Some(hour), Ok(parts)) if hour < HOURS_FROM => drop(hours.insert(hour, parts)),
                _ => return Err(FileError::Damaged("an hour is not there".to_owned())),
            }
        }
        Ok(hours)
    }

    /// Hours with sums of everything in the file: the rest is read by chunks.
    pub fn hours_valid(&self) -> Result<Vec<u16>, FileError> {
        let marks = self.hours_added_up()?;
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        let mut hours = self.hours()?;
        hours.retain(|hour, parts| marks.get(hour) == Some(parts));
        Ok(hours.into_keys().collect())
    }

    /// Ranges of bundles of which the chunk has several parts.
    pub fn ranges_in_parts(&self, table: Table, chunk: u16) -> Result<Vec<u32>, FileError> {
        let sql = match table {
            Table::Block | Table::Head => {
                "SELECT id >> 16 FROM head WHERE id >= ?1 AND id < ?2 GROUP BY 1 HAVING count(*) > 1"
            }
            Table::ServiceBlock | Table::ServiceHead => {
                "SELECT id >> 16 FROM service_head WHERE id >= ?1 AND id < ?2 GROUP BY 1 \
                 HAVING count(*) > 1"
            }
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![key(chunk, 0, 0), key(chunk, 0, 0) + (1 << 48)])?;
        let mut ranges = Vec::new();
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            ranges.push(id as u32);
        }
        Ok(ranges)
    }

    /// Chunks with windows in several parts.
    pub fn chunks_in_parts(&self) -> Result<Vec<u16>, FileError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id >> 48 FROM windows GROUP BY 1 HAVING count(*) > 1")?;
        let mut rows = statement.query([])?;
        let mut chunks = Vec::new();
        while let Some(row) = rows.next()? {
            let chunk: i64 = row.get(0)?;
            chunks.push(chunk as u16);
        }
        Ok(chunks)
    }

    fn transaction(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let done = work(&self.connection);
        if done.is_err() {
            self.roll_back();
            return done;
        }
        self.commit()
    }

    /// Puts one range in the place of its parts.
    pub fn replace(&mut self, with: &Replacement) -> Result<(), FileError> {
        self.transaction(|connection| {
            let (blocks, heads) = tables(with.table);
            let from = with.range.saturating_mul(HEADS_SHARED);
            let to = u64::from(from) + u64::from(HEADS_SHARED);
            let bundles = key(with.chunk, 0, 0) + ((to.min(1 << 32) as i64) << 16);
            let ends = [
                (blocks, key(with.chunk, from, 0), bundles),
                (
                    heads,
                    key(with.chunk, with.range, 0),
                    key(with.chunk, with.range, 0) + (1 << 16),
                ),
            ];
            for (table, low, high) in ends {
                let sql =
                    format!("DELETE FROM {table} WHERE id >= ?1 AND id < ?2 AND (id & 65535) < ?3");
                let mut statement = connection.prepare_cached(&sql)?;
                statement.execute(params![low, high, with.parts as i64])?;
            }
            insert(connection, blocks, with.chunk, &with.blocks)?;
            insert(connection, heads, with.chunk, &with.heads)
        })
    }

    /// Puts what is kept of a chunk's windows in the place of its parts.
    pub fn replace_windows(
        &mut self,
        chunk: u16,
        parts: u64,
        body: &[u8],
    ) -> Result<(), FileError> {
        self.transaction(|connection| {
            let mut statement = connection.prepare_cached(
                "DELETE FROM windows WHERE id >= ?1 AND id < ?2 AND (id & 65535) < ?3",
            )?;
            let low = key(chunk, 0, 0);
            statement.execute(params![low, low + (1 << 16), parts as i64])?;
            insert(connection, "windows", chunk, &[(0, body.to_vec())])
        })
    }

    /// Marks the sums of an hour as incomplete.
    pub fn forget_hour(&mut self, hour: u16) -> Result<(), FileError> {
        self.connection.execute(
            "DELETE FROM about WHERE name = ?1",
            params![format!("{HOUR}{hour}")],
        )?;
        Ok(())
    }

    /// Says that an hour's sums have all that was flushed into it, unless more came meanwhile.
    pub fn hour_is_added_up(&mut self, hour: u16, parts: u64) -> Result<bool, FileError> {
        let mut same = false;
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let done = self.hours().and_then(|hours| {
            same = hours.get(&hour) == Some(&parts);
            if same {
                self.connection.execute(
                    "INSERT OR REPLACE INTO about VALUES (?1, ?2)",
                    params![format!("{HOUR}{hour}"), &parts.to_le_bytes()[..]],
                )?;
            }
            Ok(())
        });
        if done.is_err() {
            self.roll_back();
            done?;
        }
        self.commit()?;
        Ok(same)
    }

    /// Starts a file that is to take the place of another: not durable until [`put_in_place`] gave
    /// it its name, and never looked at before.
    pub fn create_replacement(
        path: &Path,
        service_labels: &[String],
        generation: u64,
        from: &PartitionFile,
    ) -> Result<PartitionFile, FileError> {
        let temporary = path.with_extension("new");
        remove(&temporary)?;
        let connection = Connection::open(&temporary)?;
        connection.execute_batch(
            "PRAGMA page_size = 4096; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY;",
        )?;
        // One that a crash leaves behind is removed: nothing is ever rolled back in it.
        let _mode: String =
            connection.query_row("PRAGMA journal_mode = OFF", [], |row| row.get(0))?;
        let opened = from.read_opened()?;
        lay_out(
            &connection,
            service_labels,
            (generation, opened.lineage),
            opened.flushes as i64,
        )?;
        Ok(PartitionFile {
            connection,
            alone: true,
        })
    }

    /// Copies the last record of the log and the number of parts by chunk, and the hosts.
    pub fn copy_records(&mut self, from: &PartitionFile) -> Result<(), FileError> {
        let mut statement = from
            .connection
            .prepare("SELECT id, record, parts FROM chunk")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, record, parts): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            self.connection
                .prepare_cached("INSERT INTO chunk VALUES (?1, ?2, ?3)")?
                .execute(params![id, record, parts])?;
        }
        let mut statement = from.connection.prepare("SELECT id, body FROM host")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(0)?;
            self.connection
                .prepare_cached("INSERT INTO host VALUES (?1, ?2)")?
                .execute(params![id, blob(row, 1)?])?;
        }
        Ok(())
    }

    /// Copies the dictionary as it is.
    pub fn copy_dict(&mut self, from: &PartitionFile) -> Result<(), FileError> {
        from.each_dict(true, |entries, contents| self.add_dict(entries, contents))
    }

    /// Appends a batch of the dictionary.
    pub fn add_dict(&mut self, entries: &[u8], contents: &[u8]) -> Result<(), FileError> {
        self.connection
            .prepare_cached("INSERT INTO dict (entries, contents) VALUES (?1, ?2)")?
            .execute(params![entries, contents])?;
        Ok(())
    }

    /// Inserts blocks with their heads.
    pub fn add_blocks(&mut self, with: &Replacement) -> Result<(), FileError> {
        self.transaction(|connection| {
            let (blocks, heads) = tables(with.table);
            insert(connection, blocks, with.chunk, &with.blocks)?;
            insert(connection, heads, with.chunk, &with.heads)
        })
    }

    /// Inserts what is kept of a chunk's windows.
    pub fn add_windows(&mut self, chunk: u16, body: Vec<u8>) -> Result<(), FileError> {
        insert(&self.connection, "windows", chunk, &[(0, body)])
    }

    /// Copies blobs of a chunk, or hour, as they are.
    pub fn copy_hour(&mut self, from: &PartitionFile, hour: u16) -> Result<(), FileError> {
        let all = (0, 1 << 32);
        for (table, name) in [
            (Table::ServiceBlock, "service_block"),
            (Table::ServiceHead, "service_head"),
        ] {
            let chunk = HOURS_FROM + hour;
            from.each_blob(
                table,
                chunk,
                all,
                |_| true,
                |bundle, body| -> Result<(), FileError> {
                    insert(&self.connection, name, chunk, &[(bundle, body.to_vec())])
                },
            )?;
        }
        Ok(())
    }

    /// Makes the file durable; [`put_in_place`] gives it its name.
    pub fn make_durable(self, path: &Path) -> Result<(), FileError> {
        self.connection
            .close()
            .map_err(|(_, error)| FileError::from(error))?;
        std::fs::File::open(path.with_extension("new"))?.sync_all()?;
        Ok(())
    }
}

/// Renames a durable file to its final name.
pub fn put_in_place(path: &Path) -> std::io::Result<()> {
    std::fs::rename(path.with_extension("new"), path)?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn insert(
    connection: &Connection,
    table: &str,
    chunk: u16,
    rows: &[(u32, Vec<u8>)],
) -> Result<(), FileError> {
    let sql = format!("INSERT INTO {table} VALUES (?1, ?2)");
    let mut statement = connection.prepare_cached(&sql)?;
    for (bundle, body) in rows {
        statement.execute(params![key(chunk, *bundle, 0), body])?;
    }
    Ok(())
}
