//! The database of annotations and of versions already seen in services and agents, so that after a
//! start the collector does not report old versions as new.

use super::check::is_seen_on;
use super::deploys::{Known, KnownValue, Note, SeenOn};
use super::limits::{
    ANNOTATIONS_MAX, BACK_NS_MAX, COUNTING_NS, HOST_NAMES_MAX, KEPT_HOSTS_MAX, ROLLOUT_GAP_NS,
    ROLLOUT_NS_MIN,
};
use crate::access::Scope;
use crate::database::{self, DatabaseError, Layout};
use crate::sync::lock;
use profile::key;
use proto::collector::Annotation;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS annotations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    begun INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    kind TEXT NOT NULL,
    said TEXT NOT NULL,
    url TEXT NOT NULL,
    labels TEXT NOT NULL,
    author TEXT NOT NULL,
    hosts INTEGER NOT NULL,
    added INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS annotations_begun ON annotations (begun);
CREATE TABLE IF NOT EXISTS seen (
    service INTEGER NOT NULL,
    value INTEGER NOT NULL,
    first INTEGER NOT NULL,
    told INTEGER NOT NULL,
    annotation INTEGER NOT NULL,
    said TEXT NOT NULL,
    PRIMARY KEY (service, value)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (
    annotation INTEGER NOT NULL,
    host INTEGER NOT NULL,
    origin INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (annotation, host)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS origins (
    id INTEGER PRIMARY KEY,
    labels TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS agents (
    host INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    said TEXT NOT NULL
) STRICT;";

/// Its file and its tables. Version 1 did not know which hosts a deployment was seen on.
const LAYOUT: Layout = Layout {
    file: "annotations.sqlite",
    schema: SCHEMA,
    upgrades: &["ALTER TABLE counted ADD COLUMN origin INTEGER NOT NULL DEFAULT 0;"],
};

/// See the file.
pub(super) struct Book {
    database: Mutex<Connection>,
}

/// What was removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pruned {
    /// Too old.
    pub aged: usize,
    /// Too many.
    pub over: usize,
}

impl Book {
    /// Opens it in a directory, makes it where there is none.
    pub fn open(dir: &Path) -> Result<Book, DatabaseError> {
        let database = database::open_in(dir, &LAYOUT)?;
        Ok(Book {
            database: Mutex::new(database),
        })
    }

    /// Keeps one. Returns it as it is kept, and whether it was there already.
    pub fn add(&self, new: &Annotation) -> rusqlite::Result<(Annotation, bool)> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let labels = labels_text(new);
        let same = change
            .query_row(
                "SELECT * FROM annotations WHERE begun = ?1 AND ended = ?2 AND kind = ?3 AND said = ?4 \
                 AND url = ?5 AND labels = ?6 AND author = ?7",
                params![
                    new.start_unix_ns,
                    new.end_unix_ns,
                    new.kind,
                    new.text,
                    new.url,
                    labels,
                    new.by
                ],
                read,
            )
            .optional()?;
        if let Some(same) = same {
            return Ok((same, true));
        }
        let id = insert(&change, new)?;
        change.commit()?;
        let kept = Annotation {
            id: id.unsigned_abs(),
            ..new.clone()
        };
        Ok((kept, false))
    }

    /// Annotations that overlap a range and that a scope may see, newest first. Detected
    /// deployments have the hosts of it alone.
    pub fn each(
        &self,
        range: Option<(i64, i64)>,
        scope: Option<&Scope>,
        mut take: impl FnMut(Annotation),
    ) -> rusqlite::Result<()> {
        let (from, to) = range.unwrap_or((i64::MIN, i64::MAX));
        let database = lock(&self.database);
        let mut hosts = Hosts::of(&database, scope);
        let mut asked = database.prepare_cached(
            "SELECT * FROM annotations WHERE begun < ?2 AND max(begun, ended) >= ?1 \
             ORDER BY begun DESC, id DESC",
        )?;
        for row in asked.query_map(params![from, to], read)? {
            if let Some(seen) = hosts.seen(row?)? {
                take(seen.annotation);
            }
        }
        Ok(())
    }

    /// The one of a number, as a scope sees it; `None`: there is none, or it may not be seen.
    pub fn find(&self, id: u64, scope: Option<&Scope>) -> rusqlite::Result<Option<Seen>> {
        let database = lock(&self.database);
        let id = i64::try_from(id).unwrap_or(-1);
        let mut asked = database.prepare_cached("SELECT * FROM annotations WHERE id = ?1")?;
        match asked.query_row(params![id], read).optional()? {
            Some(found) => Hosts::of(&database, scope).seen(found),
            None => Ok(None),
        }
    }

    /// Deletes one. False: it does not exist.
    pub fn remove(&self, id: u64) -> rusqlite::Result<bool> {
        let mut database = lock(&self.database);
        let id = i64::try_from(id).unwrap_or(-1);
        let change = database.transaction()?;
        let gone = change.execute("DELETE FROM annotations WHERE id = ?1", params![id])?;
        change.execute("DELETE FROM counted WHERE annotation = ?1", params![id])?;
        change.commit()?;
        Ok(gone > 0)
    }

    /// How many there are.
    pub fn count(&self) -> rusqlite::Result<u64> {
        let database = lock(&self.database);
        let count = database.query_row("SELECT count(*) FROM annotations", [], |row| {
            row.get::<_, i64>(0)
        })?;
        Ok(count.unsigned_abs())
    }

    /// Removes what is over its age, then the oldest of what are too many.
    pub fn prune(&self, now: i64, age_ns: i64) -> rusqlite::Result<Pruned> {
        self.prune_to(now, age_ns, KEPT_HOSTS_MAX)
    }

    /// The same with another limit of hosts of deploys.
    pub fn prune_to(&self, now: i64, age_ns: i64, hosts_max: i64) -> rusqlite::Result<Pruned> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let aged = change.execute(
            "DELETE FROM annotations WHERE max(begun, ended) < ?1",
            params![now.saturating_sub(age_ns)],
        )?;
        let over = change.execute(
            "DELETE FROM annotations WHERE id IN (SELECT id FROM annotations \
             ORDER BY begun DESC, id DESC LIMIT -1 OFFSET ?1)",
            params![ANNOTATIONS_MAX as i64],
        )?;
        change.execute(
            "DELETE FROM counted WHERE annotation NOT IN (SELECT id FROM annotations)",
            [],
        )?;
        // The newest deployments keep theirs.
        change.execute(
            "DELETE FROM counted WHERE annotation IN (SELECT annotation FROM \
             (SELECT annotation, sum(count(*)) OVER (ORDER BY annotation DESC) AS hosts \
             FROM counted GROUP BY annotation) WHERE hosts > ?1)",
            params![hosts_max],
        )?;
        change.execute(
            "DELETE FROM origins WHERE id NOT IN (SELECT origin FROM counted)",
            [],
        )?;
        change.commit()?;
        Ok(Pruned { aged, over })
    }

    /// What was seen earlier, for a start.
    pub fn known(&self, now: i64) -> rusqlite::Result<Known> {
        let database = lock(&self.database);
        let mut known = Known::default();
        let mut asked = database.prepare(
            "SELECT service, value, first, told, annotation, said FROM seen ORDER BY first",
        )?;
        let rows = asked.query_map([], |row| {
            let value = KnownValue {
                service: row.get(0)?,
                value: row.get(1)?,
                first: row.get(2)?,
                told: row.get(3)?,
                said: row.get(5)?,
                hosts: Vec::new(),
            };
            Ok((value, row.get::<_, i64>(4)?))
        })?;
        let mut counted = database.prepare("SELECT host FROM counted WHERE annotation = ?1")?;
        for row in rows {
            let (mut value, annotation) = row?;
            if value.told > now.saturating_sub(COUNTING_NS) {
                let hosts = counted.query_map(params![annotation], |row| row.get(0))?;
                value.hosts = hosts.collect::<rusqlite::Result<_>>()?;
            }
            known.values.push(value);
        }
        let mut asked = database.prepare("SELECT host, version, said FROM agents")?;
        let rows = asked.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        known.agents = rows.collect::<rusqlite::Result<_>>()?;
        Ok(known)
    }

    /// Writes the findings, all or none. Returns the deployments that are announced.
    pub fn write(&self, notes: &[Note], now: i64) -> rusqlite::Result<Vec<Annotation>> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let mut told = Vec::new();
        for note in notes {
            told.extend(write(&change, note, now)?);
        }
        change.commit()?;
        Ok(told)
    }
}

/// Writes one thing that was found; a deploy is returned.
fn write(change: &Transaction<'_>, note: &Note, now: i64) -> rusqlite::Result<Option<Annotation>> {
    match note {
        Note::Value {
            service,
            value,
            first,
            said,
        } => {
            change.execute(
                "INSERT OR IGNORE INTO seen VALUES (?1, ?2, ?3, 0, 0, ?4)",
                params![service, value, first, said],
            )?;
        }
        Note::Deploy {
            service,
            value,
            said,
            on,
            start,
            text,
            labels,
        } => {
            let mut annotation = Annotation {
                start_unix_ns: *start,
                text: text.clone(),
                labels: labels.iter().cloned().collect(),
                kind: super::DEPLOY.to_owned(),
                by: super::FOUND.to_owned(),
                hosts: 1,
                added_unix_ns: now,
                ..Annotation::default()
            };
            let id = insert(change, &annotation)?;
            change.execute(
                "INSERT INTO seen VALUES (?1, ?2, ?3, ?3, ?4, ?5) \
                 ON CONFLICT DO UPDATE SET told = ?3, annotation = ?4",
                params![service, value, now, id, said],
            )?;
            count(change, id, on)?;
            annotation.id = id.unsigned_abs();
            return Ok(Some(annotation));
        }
        Note::Also {
            service,
            value,
            on,
            start,
        } => {
            let id: Option<i64> = change
                .query_row(
                    "SELECT annotation FROM seen WHERE service = ?1 AND value = ?2",
                    params![service, value],
                    |row| row.get(0),
                )
                .optional()?;
            let Some(id) = id.filter(|&id| id > 0) else {
                return Ok(None);
            };
            if count(change, id, on)? {
                change.execute(
                    "UPDATE annotations SET hosts = hosts + 1 WHERE id = ?1",
                    params![id],
                )?;
            }
            // A rollout ends with its last host, which is close to those before it.
            change.execute(
                "UPDATE annotations SET ended = ?2 WHERE id = ?1 AND ?2 > ended \
                 AND ?2 - begun >= ?3 AND ?2 - max(begun, ended) <= ?4",
                params![id, start, ROLLOUT_NS_MIN, ROLLOUT_GAP_NS],
            )?;
            // A host that reports later may have been the first: its windows had waited.
            change.execute(
                "UPDATE annotations SET begun = ?2 WHERE id = ?1 AND begun > ?2 AND begun - ?2 <= ?3",
                params![id, start, BACK_NS_MAX],
            )?;
        }
        Note::Agent {
            host,
            version,
            said,
        } => {
            change.execute(
                "INSERT OR REPLACE INTO agents VALUES (?1, ?2, ?3)",
                params![host, version, said],
            )?;
        }
        Note::ForgetValue { service, value } => {
            change.execute(
                "DELETE FROM seen WHERE service = ?1 AND value = ?2",
                params![service, value],
            )?;
        }
        Note::ForgetService { service } => {
            change.execute("DELETE FROM seen WHERE service = ?1", params![service])?;
        }
        Note::ForgetAgent { host } => {
            change.execute("DELETE FROM agents WHERE host = ?1", params![host])?;
        }
    }
    Ok(None)
}

/// True when the host was not counted before.
fn count(change: &Transaction<'_>, annotation: i64, on: &SeenOn) -> rusqlite::Result<bool> {
    let origin = on.origin();
    let added = change.execute(
        "INSERT OR IGNORE INTO counted VALUES (?1, ?2, ?3)",
        params![annotation, on.host, origin],
    )?;
    if added > 0 {
        let labels = serde_json::to_string(&*on.labels).unwrap_or_default();
        change.execute(
            "INSERT OR IGNORE INTO origins VALUES (?1, ?2)",
            params![origin, labels],
        )?;
    }
    Ok(added > 0)
}

/// An annotation as somebody sees it.
pub(super) struct Seen {
    /// It, with the hosts of the scope.
    pub annotation: Annotation,
    /// It was also seen on hosts outside the scope.
    pub is_part: bool,
}

/// Hosts of deployments, as far as a scope sees them.
struct Hosts<'d> {
    database: &'d Connection,
    scope: Option<&'d Scope>,
    /// Labels by origin, read once.
    known: HashMap<i64, Rc<BTreeMap<String, String>>>,
}

impl<'d> Hosts<'d> {
    fn of(database: &'d Connection, scope: Option<&'d Scope>) -> Hosts<'d> {
        Hosts {
            database,
            scope,
            known: HashMap::new(),
        }
    }

    /// The annotation with its hosts; `None`: the scope does not see it.
    fn seen(&mut self, mut annotation: Annotation) -> rusqlite::Result<Option<Seen>> {
        let is_own = is_seen_on(self.scope, &annotation, &BTreeMap::new());
        if annotation.hosts == 0 {
            let is_part = false;
            return Ok(is_own.then_some(Seen {
                annotation,
                is_part,
            }));
        }
        let all = annotation.hosts;
        let (mut names, mut seen) = (Vec::new(), 0);
        let mut asked = self.database.prepare_cached(
            "SELECT origin, labels FROM counted JOIN origins ON origins.id = origin \
             WHERE annotation = ?1",
        )?;
        let mut rows = asked.query(params![annotation.id.cast_signed()])?;
        while let Some(row) = rows.next()? {
            let origin: i64 = row.get(0)?;
            let labels = match self.known.get(&origin) {
                Some(labels) => Rc::clone(labels),
                None => {
                    let labels = Rc::new(labels_of(row.get_ref(1)?.as_str()?));
                    self.known.insert(origin, Rc::clone(&labels));
                    labels
                }
            };
            if is_own || is_seen_on(self.scope, &annotation, &labels) {
                seen += 1;
                names.extend(labels.get(key::HOST).cloned());
            }
        }
        if !is_own && seen == 0 {
            return Ok(None);
        }
        names.sort_unstable();
        names.truncate(HOST_NAMES_MAX);
        annotation.host_names = names;
        if !is_own {
            annotation.hosts = seen;
        }
        Ok(Some(Seen {
            annotation,
            is_part: !is_own && seen < all,
        }))
    }
}

fn labels_of(text: &str) -> BTreeMap<String, String> {
    serde_json::from_str(text).unwrap_or_default()
}

fn insert(change: &Transaction<'_>, new: &Annotation) -> rusqlite::Result<i64> {
    change.execute(
        "INSERT INTO annotations (begun, ended, kind, said, url, labels, author, hosts, added) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            new.start_unix_ns,
            new.end_unix_ns,
            new.kind,
            new.text,
            new.url,
            labels_text(new),
            new.by,
            i64::try_from(new.hosts).unwrap_or(i64::MAX),
            new.added_unix_ns
        ],
    )?;
    Ok(change.last_insert_rowid())
}

/// Labels in one order, so that equal ones are the same text.
fn labels_text(of: &Annotation) -> String {
    let sorted: BTreeMap<&String, &String> = of.labels.iter().collect();
    serde_json::to_string(&sorted).unwrap_or_default()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Annotation> {
    let labels: String = row.get(6)?;
    let labels = labels_of(&labels);
    let hosts: i64 = row.get(8)?;
    Ok(Annotation {
        id: row.get::<_, i64>(0)?.unsigned_abs(),
        start_unix_ns: row.get(1)?,
        end_unix_ns: row.get(2)?,
        kind: row.get(3)?,
        text: row.get(4)?,
        url: row.get(5)?,
        labels: labels.into_iter().collect(),
        by: row.get(7)?,
        hosts: hosts.unsigned_abs(),
        added_unix_ns: row.get(9)?,
        host_names: Vec::new(),
    })
}
