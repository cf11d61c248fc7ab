//! The database of incidents and their timelines. What evidence shows is in files next to it.

use super::limits::{ENTRIES_MAX, HOSTS_MAX};
use crate::database::{self, DatabaseError, Layout};
use crate::sync::lock;
use proto::collector::{Incident, IncidentEntry, IncidentEntryKind, IncidentState};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS incidents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    state INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    opened_by TEXT NOT NULL,
    acknowledged INTEGER NOT NULL,
    acknowledged_by TEXT NOT NULL,
    closed INTEGER NOT NULL,
    closed_by TEXT NOT NULL,
    labels TEXT NOT NULL,
    source TEXT NOT NULL,
    hosts TEXT NOT NULL,
    added INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    incident INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    author TEXT NOT NULL,
    said TEXT NOT NULL,
    address TEXT NOT NULL,
    evidence INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS entries_incident ON entries (incident, at);
CREATE TABLE IF NOT EXISTS causes (
    cause TEXT PRIMARY KEY,
    incident INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS views (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    author TEXT NOT NULL,
    saved INTEGER NOT NULL,
    scope TEXT NOT NULL,
    evidence INTEGER NOT NULL
) STRICT;";

/// Its file and its tables.
const LAYOUT: Layout = Layout {
    file: "incidents.sqlite",
    schema: SCHEMA,
    upgrades: &[],
};

/// See the file.
pub struct Book {
    database: Mutex<Connection>,
}

/// A new entry.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// When it was.
    pub at: i64,
    /// Which it is.
    pub kind: IncidentEntryKind,
    /// Who adds it.
    pub by: String,
    /// What it says.
    pub text: String,
    /// Address of the page.
    pub address: String,
    /// Its file; 0: none.
    pub evidence: u64,
}

impl Book {
    /// Opens it in a directory, makes it where there is none.
    pub fn open(dir: &Path) -> Result<Book, DatabaseError> {
        let database = database::open_in(dir, &LAYOUT)?;
        Ok(Book {
            database: Mutex::new(database),
        })
    }

    /// The database, for one thread at a time.
    pub(super) fn database(&self) -> MutexGuard<'_, Connection> {
        lock(&self.database)
    }

    /// Opens an incident, with the first entry of its timeline. `cause`: what opened it unasked,
    /// which opens none again.
    pub fn add(
        &self,
        new: &Incident,
        cause: Option<&str>,
        first: &NewEntry,
        now: i64,
    ) -> rusqlite::Result<u64> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        change.execute(
            "INSERT INTO incidents (title, state, opened, opened_by, acknowledged, \
             acknowledged_by, closed, closed_by, labels, source, hosts, added) \
             VALUES (?1, ?2, ?3, ?4, 0, '', 0, '', ?5, ?6, '[]', ?7)",
            params![
                new.title,
                IncidentState::Open as i32,
                new.opened_unix_ns,
                new.opened_by,
                json(&new.labels.iter().collect::<BTreeMap<_, _>>()),
                new.source,
                now
            ],
        )?;
        let id = change.last_insert_rowid();
        if let Some(cause) = cause {
            change.execute(
                "INSERT OR REPLACE INTO causes VALUES (?1, ?2, ?3)",
                params![cause, id, now],
            )?;
        }
        insert(&change, id, first)?;
        change.commit()?;
        Ok(id.unsigned_abs())
    }

    /// Adds an entry; `None`: there is no such incident, or it is full.
    pub fn entry(
        &self,
        incident: u64,
        new: &NewEntry,
        cause: Option<&str>,
        hosts: &[String],
    ) -> rusqlite::Result<Option<IncidentEntry>> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let number = number(incident);
        let row = change.query_row(
            "SELECT hosts, (SELECT count(*) FROM entries WHERE incident = ?1) FROM incidents \
             WHERE id = ?1",
            [number],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)),
        );
        let Some((known, count)) = row.optional()? else {
            return Ok(None);
        };
        if count >= ENTRIES_MAX as i64 {
            return Ok(None);
        }
        let id = insert(&change, number, new)?;
        if let Some(cause) = cause {
            change.execute(
                "INSERT OR REPLACE INTO causes VALUES (?1, ?2, ?3)",
                params![cause, number, new.at],
            )?;
        }
        let mut all: Vec<String> = serde_json::from_str(&known).unwrap_or_default();
        let had = all.len();
        for host in hosts {
            if all.len() < HOSTS_MAX && !all.contains(host) {
                all.push(host.clone());
            }
        }
        if all.len() > had {
            change.execute(
                "UPDATE incidents SET hosts = ?2 WHERE id = ?1",
                params![number, json(&all)],
            )?;
        }
        change.commit()?;
        Ok(Some(IncidentEntry {
            id: id.unsigned_abs(),
            at_unix_ns: new.at,
            kind: new.kind as i32,
            by: new.by.clone(),
            text: new.text.clone(),
            address: new.address.clone(),
            evidence: None,
        }))
    }

    /// The incident that a cause opened or was added to.
    pub fn of_cause(&self, cause: &str) -> rusqlite::Result<Option<u64>> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached("SELECT incident FROM causes WHERE cause = ?1")?;
        let found = asked
            .query_row([cause], |row| row.get::<_, i64>(0))
            .optional()?;
        Ok(found.map(i64::unsigned_abs))
    }

    /// The newest incident of a source that is not closed.
    pub fn open_of(&self, source: &str) -> rusqlite::Result<Option<u64>> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT id FROM incidents WHERE source = ?1 AND state != ?2 ORDER BY id DESC LIMIT 1",
        )?;
        let closed = IncidentState::Closed as i32;
        let found = asked
            .query_row(params![source, closed], |row| row.get::<_, i64>(0))
            .optional()?;
        Ok(found.map(i64::unsigned_abs))
    }

    /// Incidents opened unasked since then, and the last of them.
    pub fn unasked(&self, since: i64) -> rusqlite::Result<(usize, Option<u64>)> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT count(*), max(id) FROM incidents WHERE source != '' AND added >= ?1",
        )?;
        asked.query_row([since], |row| {
            let count: i64 = row.get(0)?;
            let last: Option<i64> = row.get(1)?;
            Ok((count.unsigned_abs() as usize, last.map(i64::unsigned_abs)))
        })
    }

    /// Changes the state of an incident, with an entry that says so; false: there is none.
    pub fn set_state(
        &self,
        incident: u64,
        state: IncidentState,
        entry: &NewEntry,
    ) -> rusqlite::Result<bool> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let number = number(incident);
        let (at, by) = (entry.at, &entry.by);
        let changed = match state {
            IncidentState::Acknowledged => change.execute(
                "UPDATE incidents SET state = ?2, acknowledged = ?3, acknowledged_by = ?4, \
                 closed = 0, closed_by = '' WHERE id = ?1",
                params![number, state as i32, at, by],
            )?,
            IncidentState::Closed => change.execute(
                "UPDATE incidents SET state = ?2, closed = ?3, closed_by = ?4 WHERE id = ?1",
                params![number, state as i32, at, by],
            )?,
            _ => change.execute(
                "UPDATE incidents SET state = ?2, acknowledged = 0, acknowledged_by = '', \
                 closed = 0, closed_by = '' WHERE id = ?1",
                params![number, state as i32],
            )?,
        };
        if changed == 0 {
            return Ok(false);
        }
        let count: i64 = change.query_row(
            "SELECT count(*) FROM entries WHERE incident = ?1",
            [number],
            |row| row.get(0),
        )?;
        // A full one can still be closed; beyond that only its state changes.
        if count < 2 * ENTRIES_MAX as i64 {
            insert(&change, number, entry)?;
        }
        change.commit()?;
        Ok(true)
    }

    /// The incident of a number.
    pub fn find(&self, id: u64) -> rusqlite::Result<Option<Incident>> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT *, (SELECT count(*) FROM entries WHERE incident = incidents.id) AS count \
             FROM incidents WHERE id = ?1",
        )?;
        asked.query_row([number(id)], incident).optional()
    }

    /// All incidents, the newest first.
    pub fn each(&self, open: bool, mut take: impl FnMut(Incident)) -> rusqlite::Result<()> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT *, (SELECT count(*) FROM entries WHERE incident = incidents.id) AS count \
             FROM incidents WHERE ?1 = 0 OR state != ?2 ORDER BY id DESC",
        )?;
        let closed = IncidentState::Closed as i32;
        for row in asked.query_map(params![open, closed], incident)? {
            take(row?);
        }
        Ok(())
    }

    /// The timeline of an incident, each entry with the number of its evidence.
    pub fn entries(&self, id: u64) -> rusqlite::Result<Vec<(IncidentEntry, u64)>> {
        let database = lock(&self.database);
        let mut asked =
            database.prepare_cached("SELECT * FROM entries WHERE incident = ?1 ORDER BY at, id")?;
        let rows = asked.query_map([number(id)], |row| {
            let entry = IncidentEntry {
                id: row.get::<_, i64>("id")?.unsigned_abs(),
                at_unix_ns: row.get("at")?,
                kind: row.get("kind")?,
                by: row.get("author")?,
                text: row.get("said")?,
                address: row.get("address")?,
                evidence: None,
            };
            Ok((entry, row.get::<_, i64>("evidence")?.unsigned_abs()))
        })?;
        rows.collect()
    }

    /// How many incidents there are.
    pub fn count(&self) -> rusqlite::Result<usize> {
        let database = lock(&self.database);
        let count: i64 = database.query_row("SELECT count(*) FROM incidents", [], |r| r.get(0))?;
        Ok(count.unsigned_abs() as usize)
    }

    /// Deletes one with its timeline. False: it does not exist.
    pub fn remove(&self, id: u64) -> rusqlite::Result<bool> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let gone = change.execute("DELETE FROM incidents WHERE id = ?1", [number(id)])?;
        change.execute("DELETE FROM entries WHERE incident = ?1", [number(id)])?;
        change.commit()?;
        Ok(gone > 0)
    }

    /// Keeps a cause that is still there from being forgotten. Writes only what is older than
    /// `before`.
    pub fn renew_cause(&self, cause: &str, now: i64, before: i64) -> rusqlite::Result<()> {
        let database = lock(&self.database);
        database
            .execute(
                "UPDATE causes SET at = ?2 WHERE cause = ?1 AND at < ?3",
                params![cause, now, before],
            )
            .map(|_| ())
    }

    /// Forgets causes that are too old to come again.
    pub fn forget_causes(&self, before: i64) -> rusqlite::Result<()> {
        let database = lock(&self.database);
        database
            .execute("DELETE FROM causes WHERE at < ?1", [before])
            .map(|_| ())
    }
}

fn insert(change: &Transaction<'_>, incident: i64, new: &NewEntry) -> rusqlite::Result<i64> {
    change.execute(
        "INSERT INTO entries (incident, at, kind, author, said, address, evidence) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            incident,
            new.at,
            new.kind as i32,
            new.by,
            new.text,
            new.address,
            number(new.evidence)
        ],
    )?;
    Ok(change.last_insert_rowid())
}

fn number(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(-1)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn incident(row: &Row<'_>) -> rusqlite::Result<Incident> {
    let labels: String = row.get("labels")?;
    let labels: BTreeMap<String, String> = serde_json::from_str(&labels).unwrap_or_default();
    let hosts: String = row.get("hosts")?;
    Ok(Incident {
        id: row.get::<_, i64>("id")?.unsigned_abs(),
        title: row.get("title")?,
        state: row.get("state")?,
        opened_unix_ns: row.get("opened")?,
        opened_by: row.get("opened_by")?,
        acknowledged_unix_ns: row.get("acknowledged")?,
        acknowledged_by: row.get("acknowledged_by")?,
        closed_unix_ns: row.get("closed")?,
        closed_by: row.get("closed_by")?,
        labels: labels.into_iter().collect(),
        source: row.get("source")?,
        hosts: serde_json::from_str(&hosts).unwrap_or_default(),
        entries: row.get::<_, i64>("count")?.unsigned_abs(),
        bytes: 0,
    })
}
