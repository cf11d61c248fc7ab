//! The database of alerts: what is pending or firing, what fired, changes that nobody was told of
//! yet, and notifications that wait for their receiver.
//!
//! What a round changes is one transaction: an alert is never firing without its notification on
//! disk, and no notification is there twice. A notification is removed when its receiver has
//! accepted it.

use super::limits::{EPISODES_MAX, WAITING_MAX};
use super::state::Alert;
use crate::database::{self, DatabaseError, Layout};
use crate::sync::lock;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS alerts (
    rule TEXT NOT NULL,
    part TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (rule, part)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule TEXT NOT NULL,
    part TEXT NOT NULL,
    fired INTEGER NOT NULL,
    resolved INTEGER NOT NULL,
    about TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS episodes_fired ON episodes (fired);
CREATE TABLE IF NOT EXISTS news (
    rule TEXT NOT NULL,
    episode INTEGER NOT NULL,
    PRIMARY KEY (rule, episode)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    receiver TEXT NOT NULL,
    made INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_receiver ON outbox (receiver, id);";

/// Its file and its tables.
const LAYOUT: Layout = Layout {
    file: "alerts.sqlite",
    schema: SCHEMA,
    upgrades: &[],
};

/// What is kept of an alert that fired, so that it can be shown without its rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Its fingerprint.
    pub fingerprint: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Selects its samples.
    pub selector: String,
    /// The condition in words.
    pub condition: String,
    /// `cores` or `percent`.
    pub unit: String,
    /// The function of a share.
    pub function: String,
    /// The rule's severity.
    pub severity: String,
    /// The rule's sentence.
    pub summary: String,
    /// The value when it fired, or the last known one.
    pub value: Option<f64>,
    /// Where it fired.
    pub threshold: Option<f64>,
    /// What it was compared with.
    pub baseline: Option<f64>,
    /// Why it ended, where that is not the condition; empty: it is.
    pub ended: String,
    /// Whether it opens an incident.
    #[serde(default)]
    pub opens_incident: bool,
    /// Who is told of it.
    pub receivers: Vec<String>,
}

/// An alert that fired.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Its number.
    pub id: u64,
    /// Its rule.
    pub rule: String,
    /// Its group.
    pub part: String,
    /// When it fired.
    pub fired: i64,
    /// When it was resolved; 0: it is not.
    pub resolved: i64,
    /// The rest.
    pub about: About,
}

/// A notification that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its number, in the order in which they are sent.
    pub id: i64,
    /// What receivers know it by.
    pub key: String,
    /// Who gets it.
    pub receiver: String,
    /// What is sent.
    pub body: String,
}

/// Changes of one round of a rule.
#[derive(Debug, Default)]
pub struct Round {
    /// States that changed; none: it is at rest.
    pub states: Vec<(String, Option<Alert>)>,
    /// What fired, with its group.
    pub fired: Vec<(String, i64, About)>,
    /// What was resolved: its number, when, and why.
    pub resolved: Vec<(u64, i64, About)>,
}

impl Round {
    /// True when there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.fired.is_empty() && self.resolved.is_empty()
    }
}

/// See the file.
pub struct Book {
    database: Mutex<Connection>,
}

impl Book {
    /// Opens it in a directory, makes it where there is none.
    pub fn open(dir: &Path) -> Result<Book, DatabaseError> {
        let database = database::open_in(dir, &LAYOUT)?;
        Ok(Book {
            database: Mutex::new(database),
        })
    }

    /// All states by rule and group. One that cannot be read is left out: its rule is evaluated as
    /// if for the first time.
    pub fn states(&self) -> rusqlite::Result<BTreeMap<(String, String), Alert>> {
        let database = lock(&self.database);
        let mut asked = database.prepare("SELECT rule, part, state FROM alerts")?;
        let rows = asked.query_map([], |row| {
            let state: String = row.get(2)?;
            Ok(((row.get(0)?, row.get(1)?), state))
        })?;
        let mut states = BTreeMap::new();
        for row in rows {
            let (name, state) = row?;
            if let Ok(alert) = serde_json::from_str(&state) {
                states.insert(name, alert);
            }
        }
        Ok(states)
    }

    /// Writes the changes of a round, all or none. Returns the numbers of what fired, by group.
    pub fn write(&self, rule: &str, round: &Round) -> rusqlite::Result<BTreeMap<String, u64>> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let mut numbers = BTreeMap::new();
        for (part, fired, about) in &round.fired {
            change.execute(
                "INSERT INTO episodes (rule, part, fired, resolved, about) \
                 VALUES (?1, ?2, ?3, 0, ?4)",
                params![rule, part, fired, json(about)],
            )?;
            let id = change.last_insert_rowid();
            note(&change, rule, id)?;
            numbers.insert(part.clone(), id.unsigned_abs());
        }
        for (id, at, about) in &round.resolved {
            let id = i64::try_from(*id).unwrap_or(i64::MAX);
            change.execute(
                // Whoever was told that it fired is told that it is over.
                "UPDATE episodes SET resolved = ?2, about = json_set(?3, '$.receivers', \
                 json(coalesce(json_extract(about, '$.receivers'), '[]'))) WHERE id = ?1",
                params![id, at, json(about)],
            )?;
            note(&change, rule, id)?;
        }
        for (part, state) in &round.states {
            match state {
                Some(alert) => {
                    let mut alert = alert.clone();
                    if let Some(&id) = numbers.get(part) {
                        alert.episode = id;
                    }
                    change.execute(
                        "INSERT OR REPLACE INTO alerts VALUES (?1, ?2, ?3)",
                        params![rule, part, json(&alert)],
                    )?
                }
                None => change.execute(
                    "DELETE FROM alerts WHERE rule = ?1 AND part = ?2",
                    params![rule, part],
                )?,
            };
        }
        change.commit()?;
        Ok(numbers)
    }

    /// Rules with changes that nobody was told of, and the numbers of what changed.
    pub fn news(&self) -> rusqlite::Result<BTreeMap<String, Vec<u64>>> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached("SELECT rule, episode FROM news")?;
        let rows = asked.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
        let mut news: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for row in rows {
            let (rule, episode): (String, i64) = row?;
            news.entry(rule).or_default().push(episode.unsigned_abs());
        }
        Ok(news)
    }

    /// What changed in a rule, and what fires besides: what a notification says.
    pub fn told(&self, rule: &str) -> rusqlite::Result<(Vec<Episode>, Vec<Episode>)> {
        let database = lock(&self.database);
        let mut changed = database.prepare_cached(
            "SELECT episodes.* FROM episodes JOIN news ON news.episode = episodes.id \
             WHERE news.rule = ?1 ORDER BY id",
        )?;
        let changed = changed
            .query_map([rule], episode)?
            .collect::<rusqlite::Result<_>>()?;
        let mut others = database.prepare_cached(
            "SELECT * FROM episodes WHERE rule = ?1 AND resolved = 0 AND id NOT IN \
             (SELECT episode FROM news WHERE news.rule = ?1) ORDER BY id",
        )?;
        let others = others
            .query_map([rule], episode)?
            .collect::<rusqlite::Result<_>>()?;
        Ok((changed, others))
    }

    /// Puts the notifications of a rule's changes where they are sent from, and forgets the
    /// changes. `of`: the changes that the notifications tell of. Returns how many older ones were
    /// dropped to make room.
    pub fn post(
        &self,
        (rule, of): (&str, &[Episode]),
        made: i64,
        notifications: &[Waiting],
    ) -> rusqlite::Result<u64> {
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        let mut dropped = 0;
        for one in notifications {
            change.execute(
                "INSERT OR IGNORE INTO outbox (key, receiver, made, body) VALUES (?1, ?2, ?3, ?4)",
                params![one.key, one.receiver, made, one.body],
            )?;
            dropped += change.execute(
                "DELETE FROM outbox WHERE receiver = ?1 AND id NOT IN \
                 (SELECT id FROM outbox WHERE receiver = ?1 ORDER BY id DESC LIMIT ?2)",
                params![one.receiver, WAITING_MAX as i64],
            )? as u64;
        }
        for episode in of {
            let id = i64::try_from(episode.id).unwrap_or(i64::MAX);
            change.execute(
                // What became of it since it was read is still to be told.
                "DELETE FROM news WHERE rule = ?1 AND episode = ?2 AND NOT EXISTS \
                 (SELECT 1 FROM episodes WHERE id = ?2 AND resolved != ?3)",
                params![rule, id, episode.resolved],
            )?;
        }
        change.commit()?;
        Ok(dropped)
    }

    /// The oldest notification of a receiver.
    pub fn next(&self, receiver: &str) -> rusqlite::Result<Option<Waiting>> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT id, key, receiver, body FROM outbox WHERE receiver = ?1 ORDER BY id LIMIT 1",
        )?;
        let read = |row: &Row<'_>| {
            Ok(Waiting {
                id: row.get(0)?,
                key: row.get(1)?,
                receiver: row.get(2)?,
                body: row.get(3)?,
            })
        };
        asked.query_row([receiver], read).optional()
    }

    /// Forgets a notification that was accepted or given up.
    pub fn sent(&self, id: i64) -> rusqlite::Result<()> {
        let database = lock(&self.database);
        database
            .execute("DELETE FROM outbox WHERE id = ?1", [id])
            .map(|_| ())
    }

    /// Removes what waits for receivers that are not among these. Returns how many.
    pub fn forget_others(&self, receivers: &[&str]) -> rusqlite::Result<u64> {
        let database = lock(&self.database);
        let names = serde_json::to_string(receivers).unwrap_or_default();
        let gone = database.execute(
            "DELETE FROM outbox WHERE receiver NOT IN (SELECT value FROM json_each(?1))",
            [names],
        )?;
        Ok(gone as u64)
    }

    /// By receiver how many wait, and when the oldest was made.
    pub fn waiting(&self) -> rusqlite::Result<BTreeMap<String, (u64, i64)>> {
        let database = lock(&self.database);
        let mut asked = database
            .prepare_cached("SELECT receiver, count(*), min(made) FROM outbox GROUP BY receiver")?;
        let rows = asked.query_map([], |row| {
            let count: i64 = row.get(1)?;
            Ok((row.get(0)?, (count.unsigned_abs(), row.get(2)?)))
        })?;
        rows.collect()
    }

    /// Alerts that fired and overlap a range, newest first;
    /// without a range those that fire now.
    pub fn each(
        &self,
        range: Option<(i64, i64)>,
        mut take: impl FnMut(Episode),
    ) -> rusqlite::Result<()> {
        let database = lock(&self.database);
        let mut asked = database.prepare_cached(
            "SELECT * FROM episodes WHERE resolved = 0 OR (fired < ?2 AND resolved >= ?1) \
             ORDER BY fired DESC, id DESC",
        )?;
        let (from, to) = range.unwrap_or((i64::MAX, i64::MIN));
        for row in asked.query_map([from, to], episode)? {
            take(row?);
        }
        Ok(())
    }

    /// Removes resolved alerts that are too old or too many.
    pub fn prune(&self, now: i64, age_ns: i64) -> rusqlite::Result<usize> {
        let database = lock(&self.database);
        let aged = database.execute(
            "DELETE FROM episodes WHERE resolved > 0 AND resolved < ?1 \
             AND id NOT IN (SELECT episode FROM news)",
            [now.saturating_sub(age_ns)],
        )?;
        let over = database.execute(
            "DELETE FROM episodes WHERE resolved > 0 AND id NOT IN (SELECT episode FROM news) \
             AND id NOT IN (SELECT id FROM episodes ORDER BY id DESC LIMIT ?1)",
            [EPISODES_MAX as i64],
        )?;
        Ok(aged + over)
    }
}

/// Notes a change that nobody was told of. Two of the same alert are told at once, as what became
/// of it.
fn note(change: &Transaction<'_>, rule: &str, episode: i64) -> rusqlite::Result<()> {
    change
        .execute(
            "INSERT OR IGNORE INTO news VALUES (?1, ?2)",
            params![rule, episode],
        )
        .map(|_| ())
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn episode(row: &Row<'_>) -> rusqlite::Result<Episode> {
    let about: String = row.get("about")?;
    Ok(Episode {
        id: row.get::<_, i64>("id")?.unsigned_abs(),
        rule: row.get("rule")?,
        part: row.get("part")?,
        fired: row.get("fired")?,
        resolved: row.get("resolved")?,
        about: serde_json::from_str(&about).unwrap_or_default(),
    })
}
