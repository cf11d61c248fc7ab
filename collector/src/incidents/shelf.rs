//! Saved views in the database of incidents. What is kept of a snapshot is in a file of evidence.

use super::book::Book;
use rusqlite::{OptionalExtension as _, Row, params};

/// A view as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shelved {
    /// Its number; 0: it has none yet.
    pub id: u64,
    /// What it is called.
    pub name: String,
    /// Address of the page.
    pub address: String,
    /// Who saved it.
    pub by: String,
    /// When.
    pub saved: i64,
    /// The scope of who saved it; empty: none.
    pub scope: String,
    /// Its file; 0: it is no snapshot.
    pub evidence: u64,
}

impl Book {
    /// Keeps a view; its number.
    pub fn shelve(&self, new: &Shelved) -> rusqlite::Result<u64> {
        let database = self.database();
        database.execute(
            "INSERT INTO views (name, address, author, saved, scope, evidence) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                new.name,
                new.address,
                new.by,
                new.saved,
                new.scope,
                i64::try_from(new.evidence).unwrap_or(0)
            ],
        )?;
        Ok(database.last_insert_rowid().unsigned_abs())
    }

    /// All views, the newest first.
    pub fn shelved(&self) -> rusqlite::Result<Vec<Shelved>> {
        let database = self.database();
        let mut asked = database.prepare_cached("SELECT * FROM views ORDER BY id DESC")?;
        asked.query_map([], shelved)?.collect()
    }

    /// The view of a number.
    pub fn find_shelved(&self, id: u64) -> rusqlite::Result<Option<Shelved>> {
        let database = self.database();
        let mut asked = database.prepare_cached("SELECT * FROM views WHERE id = ?1")?;
        let id = i64::try_from(id).unwrap_or(-1);
        asked.query_row([id], shelved).optional()
    }

    /// How many views there are.
    pub fn count_shelved(&self) -> rusqlite::Result<usize> {
        let database = self.database();
        let count: i64 = database.query_row("SELECT count(*) FROM views", [], |row| row.get(0))?;
        Ok(count.unsigned_abs() as usize)
    }

    /// Deletes one. False: it does not exist.
    pub fn unshelve(&self, id: u64) -> rusqlite::Result<bool> {
        let id = i64::try_from(id).unwrap_or(-1);
        let gone = self
            .database()
            .execute("DELETE FROM views WHERE id = ?1", [id])?;
        Ok(gone > 0)
    }
}

fn shelved(row: &Row<'_>) -> rusqlite::Result<Shelved> {
    Ok(Shelved {
        id: row.get::<_, i64>("id")?.unsigned_abs(),
        name: row.get("name")?,
        address: row.get("address")?,
        by: row.get("author")?,
        saved: row.get("saved")?,
        scope: row.get("scope")?,
        evidence: row.get::<_, i64>("evidence")?.unsigned_abs(),
    })
}
