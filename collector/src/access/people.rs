//! The database of users: people and programs with their tokens.
//!
//! A change is on disk before anybody is informed of it. Tokens are in memory as well, so that a
//! call does not wait for the disk. Only a hash of a token's secret is stored: 160 random bits need
//! no slow hash. When a token is revoked, all its calls are notified.

mod logins;
mod sign_ins;

pub use logins::Visitor;
pub use sign_ins::{SIGN_IN_NAME_BYTES_MAX, Settings, SignIn};

use super::failures::{Failures, Refusals, SUMMED, Whom};
use super::person::{CALLS_MAX, Person};
use super::sessions::{self, Sessions};
use super::{AccessError, Caller, DENIED, LOCAL, PROXIED, Role, SIGNED_IN, Scope};
use crate::audit::{Audit, Event};
use crate::database;
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::time::Clock;
use proto::credential::{Credential, ID_BYTES, KEY_HASH_BYTES, SECRET_BYTES};
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::{Connection, params};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::http::header::AUTHORIZATION;

/// Longest name. Unit: bytes.
const NAME_BYTES_MAX: usize = 128;

/// Most users. Beyond it nobody can be added before somebody is removed; users with a token that
/// expired long ago are removed automatically.
pub(super) const PEOPLE_MAX: usize = 10_000;

/// How long a user with an expired token is listed. Unit: seconds.
const ENDED_KEPT_S: i64 = 90 * 86_400;

/// For how long a token is good unless it says otherwise, and at most. Unit: seconds.
const LIFETIME_S: i64 = 90 * 86_400;
const LIFETIME_S_MAX: i64 = 3660 * 86_400;

/// How often it is written when tokens were used last, and failures are summed.
const KEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Seconds until it is worth trying again, where somebody has too many calls.
pub(crate) const RETRY_AFTER: &str = "retry-after";

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS people (
    name TEXT PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    secret BLOB NOT NULL,
    role TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    used INTEGER NOT NULL
) STRICT;";

/// Who is to be let in.
#[derive(Clone, Debug)]
pub struct NewPerson {
    /// As the audit log has it.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// A selector; empty: the complete fleet.
    pub scope: String,
    /// Zero: 90 days. Unit: seconds.
    pub lifetime_s: u32,
    /// In the place of who has this name.
    pub replace: bool,
}

/// See the file.
pub struct People {
    database: Mutex<Connection>,
    people: Mutex<HashMap<[u8; ID_BYTES], Arc<Person>>>,
    sessions: Sessions,
    authority: [u8; KEY_HASH_BYTES],
    logins: Refusals,
    /// Failed logins with a provider.
    sign_ins_failed: Failures,
    /// Calls that those may have whom a proxy names, by name.
    proxied: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Nobody ends what a proxy lets in. Held here: a call ends when this is gone.
    proxied_ended: watch::Sender<bool>,
    /// Calls that somebody known may not make.
    pub(crate) denied: Refusals,
    /// Hosts that were not let in.
    pub(crate) unjoined: Refusals,
    clock: Clock,
    audit: Audit,
    metrics: Arc<Metrics>,
}

impl People {
    /// Opens the database, makes it where there is none. Tokens hold the hash of the key of the
    /// fleet's `authority`.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn open(
        path: &Path,
        authority: [u8; KEY_HASH_BYTES],
        clock: Clock,
        audit: Audit,
        metrics: Arc<Metrics>,
    ) -> Result<People, AccessError> {
        let database = database::open(path)?;
        database.execute_batch(SCHEMA)?;
        database.execute_batch(sessions::SCHEMA)?;
        database.execute_batch(sessions::SIGN_INS_SCHEMA)?;
        let people = read(&database)?;
        let sessions = Sessions::read(&database)?;
        Ok(People {
            database: Mutex::new(database),
            people: Mutex::new(people),
            sessions,
            authority,
            logins: Refusals::new(audit.clone(), "login", "more invalid tokens"),
            sign_ins_failed: Failures::default(),
            proxied: Mutex::default(),
            proxied_ended: watch::Sender::new(false),
            denied: Refusals::new(audit.clone(), DENIED, "more calls that they may not make"),
            unjoined: Refusals::new(audit.clone(), "join", "more hosts that may not join"),
            clock,
            audit,
            metrics,
        })
    }

    /// The log of what was done.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The collector's numbers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Unit: seconds since the Unix epoch.
    pub fn now(&self) -> i64 {
        self.clock.now_unix_ns() / 1_000_000_000
    }

    /// Lets somebody in. Returns their token.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn add(
        &self,
        new: &NewPerson,
        created_by: &str,
    ) -> Result<(Credential, Arc<Person>), AccessError> {
        let NewPerson { name, role, .. } = new;
        check_name(name)?;
        let scope = scope(&new.scope).map_err(AccessError::Invalid)?;
        if let (Some(why), Some(_)) = (no_scope(*role), &scope) {
            let text = format!("{why}\nleave the scope out, or choose another role");
            return Err(AccessError::Invalid(text));
        }
        let lifetime = match i64::from(new.lifetime_s) {
            0 => LIFETIME_S,
            given if given > LIFETIME_S_MAX => {
                let text = "a token may be valid for at most ten years";
                return Err(AccessError::Invalid(text.to_owned()));
            }
            given => given,
        };
        let mut credential = Credential {
            id: [0; ID_BYTES],
            secret: [0; SECRET_BYTES],
            authority: self.authority,
        };
        let random = SystemRandom::new();
        random
            .fill(&mut credential.id)
            .and_then(|()| random.fill(&mut credential.secret))
            .map_err(|_| AccessError::Random)?;
        let now = self.now();
        let person = Arc::new(Person {
            caller: Arc::new(Caller {
                name: name.clone(),
                role: *role,
                scope,
            }),
            created_by: created_by.to_owned(),
            created: now,
            expires: now.saturating_add(lifetime),
            id: credential.id,
            secret: blake3::hash(&credential.secret),
            used: AtomicI64::new(0),
            seen: AtomicI64::new(0),
            used_kept: AtomicI64::new(0),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            ended: watch::Sender::new(false),
        });
        let mut database = lock(&self.database);
        let before = self.named(name);
        if let Some(before) = &before
            && !new.replace
            && before.expires > now
        {
            return Err(AccessError::Taken(name.clone()));
        }
        let change = database.transaction()?;
        let forgotten = now.saturating_sub(ENDED_KEPT_S);
        change.execute("DELETE FROM people WHERE expires < ?1", params![forgotten])?;
        change.execute(
            "INSERT OR REPLACE INTO people VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0)",
            params![
                name,
                person.id,
                person.secret.as_bytes(),
                role.name(),
                new.scope,
                created_by,
                person.created,
                person.expires
            ],
        )?;
        let all: i64 = change.query_row("SELECT count(*) FROM people", [], |row| row.get(0))?;
        if all > PEOPLE_MAX as i64 {
            return Err(AccessError::Full);
        }
        change.commit()?;
        let mut people = lock(&self.people);
        people.retain(|_, person| person.expires >= forgotten);
        people.insert(person.id, person.clone());
        if let Some(before) = before {
            people.remove(&before.id);
            before.ended.send_replace(true);
        }
        Ok((credential, person))
    }

    /// Whom a trusted proxy names. All of their requests share one bound of calls.
    pub fn proxied(&self, caller: Caller) -> Arc<Person> {
        let mut proxied = lock(&self.proxied);
        if proxied.len() >= PEOPLE_MAX && !proxied.contains_key(&caller.name) {
            // Those without a call under way have nothing to be known by.
            proxied.retain(|_, calls| calls.available_permits() < CALLS_MAX);
        }
        let new = || Arc::new(Semaphore::new(CALLS_MAX));
        let calls = proxied.entry(caller.name.clone()).or_insert_with(new);
        let (calls, ended) = (calls.clone(), self.proxied_ended.clone());
        Arc::new(Person::proxied(caller, self.now(), calls, ended))
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The user with the token of this number.
    pub(super) fn person(&self, id: &[u8; ID_BYTES]) -> Option<Arc<Person>> {
        lock(&self.people).get(id).cloned()
    }

    /// Works on the database. Blocks.
    pub(super) fn with_database<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        work(&mut lock(&self.database))
    }

    fn named(&self, name: &str) -> Option<Arc<Person>> {
        let people = lock(&self.people);
        let mut people = people.values();
        people.find(|person| person.caller.name == name).cloned()
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Arc<Person>> {
        let mut people: Vec<_> = lock(&self.people).values().cloned().collect();
        people.sort_by(|a, b| a.caller.name.cmp(&b.caller.name));
        people
    }

    /// Ends somebody's token, or the sessions of somebody without one, and what is under way.
    ///
    /// # Errors
    /// When the database fails.
    pub fn remove(&self, name: &str) -> Result<Option<Arc<Person>>, AccessError> {
        let removed = self.remove_token(name)?;
        match name.starts_with(SIGNED_IN) {
            true => Ok(self.sign_out(name)?.or(removed)),
            false => Ok(removed),
        }
    }

    fn remove_token(&self, name: &str) -> Result<Option<Arc<Person>>, AccessError> {
        let database = lock(&self.database);
        // Also one that could not be read.
        database.execute("DELETE FROM people WHERE name = ?1", params![name])?;
        let Some(person) = self.named(name) else {
            return Ok(None);
        };
        lock(&self.people).remove(&person.id);
        person.ended.send_replace(true);
        Ok(Some(person))
    }

    /// Who sent a request with these headers; none where they do not say so. Whoever says it wrong
    /// is refused.
    ///
    /// # Errors
    /// UNAUTHENTICATED, and RESOURCE_EXHAUSTED for those who try again and again.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Result<Option<Arc<Person>>, Status> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = match (given.next(), given.next()) {
            (None, _) => return Ok(None),
            (Some(value), None) => value.to_str().ok().and_then(|text| {
                let (scheme, token) = text.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then_some(token)
            }),
            _ => None,
        };
        self.check(token.unwrap_or_default(), peer).map(Some)
    }

    /// The user with this token.
    ///
    /// # Errors
    /// As [`People::authenticate`].
    pub fn check(&self, token: &str, peer: Option<SocketAddr>) -> Result<Arc<Person>, Status> {
        let now = self.now();
        match self.find(token) {
            Some(person) if person.expires > now => {
                person.used.store(now, Ordering::Relaxed);
                Ok(person)
            }
            Some(person) => Err(self.failed(peer, &person.caller.name, "the token has expired")),
            // Which of these it is is nobody's business.
            None => Err(self.failed(
                peer,
                "",
                "the token is not from this collector, or was removed",
            )),
        }
    }

    /// The user with this token, even if it has expired.
    fn find(&self, token: &str) -> Option<Arc<Person>> {
        let credential = Credential::parse_token(token).ok()?;
        let person = lock(&self.people).get(&credential.id).cloned()?;
        // Hashes of blake3 are compared in constant time.
        let right = blake3::hash(&credential.secret) == person.secret;
        (right && credential.authority == self.authority).then_some(person)
    }

    /// Refuses somebody by a provider's word, or for lack of it. Each is on record, with why, until
    /// there are too many from their address. `asked`: the provider was.
    pub fn refuse_sign_in(
        &self,
        peer: Option<SocketAddr>,
        event: Event,
        why: &str,
        asked: bool,
    ) -> Status {
        self.metrics.logins_failed.inc();
        let (whom, now) = (Whom::at(peer.map(|peer| peer.ip())), Instant::now());
        if asked {
            self.sign_ins_failed.count(whom.clone(), now, false);
        }
        match self.logins.note(whom, event, why).limited {
            None => {
                let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
                let reason = why.lines().next().unwrap_or_default();
                tracing::warn!(peer, why = reason, "login refused");
                Status::permission_denied(why)
            }
            Some(after) => limited(after),
        }
    }

    /// Whether a provider may be asked once more for an address: not after many times for nothing.
    /// Guesses for which it was not asked keep nobody else from logging in.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn may_sign_in(&self, peer: Option<SocketAddr>) -> Result<(), Status> {
        let address = peer.map(|peer| peer.ip());
        match self.sign_ins_failed.limited(address, Instant::now()) {
            Some(after) => Err(limited(after)),
            None => Ok(()),
        }
    }

    pub(super) fn failed(&self, peer: Option<SocketAddr>, who: &str, why: &str) -> Status {
        self.metrics.logins_failed.inc();
        let whom = Whom::at(peer.map(|peer| peer.ip()));
        let failed = self.logins.failures.count(whom, Instant::now(), false);
        if failed.first {
            let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            tracing::warn!(peer, who, "invalid token");
            let outcome = why.lines().next().unwrap_or_default();
            self.audit
                .note(Event::by(who, peer, "login").ended(&format!("failed: {outcome}")));
        }
        match failed.limited {
            None => Status::unauthenticated(why),
            Some(after) => limited(after),
        }
    }

    /// Counts that somebody known, who `event` names, may not make the call of a path, and puts it
    /// on record.
    pub(crate) fn deny(&self, event: Event, path: &str, why: &str) {
        self.metrics.calls_denied.inc();
        let call = path.trim_start_matches('/');
        let call = call.trim_start_matches("fleetprof.collector.v1.");
        let whom = Whom::Named(event.who().to_owned());
        self.denied.note(whom, event.with("call", call), why);
    }

    /// Puts on record what was counted of failures, also those of the minute that has not passed.
    pub fn sum_all(&self) {
        self.sum(Instant::now() + SUMMED);
    }

    fn sum(&self, now: Instant) {
        // They are in the other sums too.
        self.sign_ins_failed.sums(now);
        self.denied.sum(now);
        self.unjoined.sum(now);
        self.logins.sum(now);
    }

    /// Keeps when tokens were used last, and sums failures, until the end.
    pub async fn keep(self: Arc<Self>) {
        let mut tick = tokio::time::interval(KEEP_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.sum(Instant::now());
            let people = self.clone();
            let keeping = move || people.keep_used().and_then(|()| people.keep_sessions());
            let kept = tokio::task::spawn_blocking(keeping);
            if let Ok(Err(error)) = kept.await {
                tracing::debug!(%error, "failed to store when tokens were last used");
            }
        }
    }

    /// Writes when tokens were used last.
    ///
    /// # Errors
    /// When the database fails.
    pub fn keep_used(&self) -> Result<(), AccessError> {
        let mut database = lock(&self.database);
        let used: Vec<_> = lock(&self.people)
            .values()
            .filter(|person| person.used() != person.used_kept.load(Ordering::Relaxed))
            .cloned()
            .collect();
        if used.is_empty() {
            return Ok(());
        }
        let change = database.transaction()?;
        for person in &used {
            change.execute(
                "UPDATE people SET used = ?2 WHERE id = ?1",
                params![person.id, person.used()],
            )?;
        }
        change.commit()?;
        for person in used {
            person.used_kept.store(person.used(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The error for somebody who fails again and again.
fn limited(after: Duration) -> Status {
    let text = "too many failed logins from this address; try again later";
    let mut status = Status::resource_exhausted(text);
    let after = after.as_secs().max(1);
    status.metadata_mut().insert(RETRY_AFTER, after.into());
    status
}

fn read(database: &Connection) -> Result<HashMap<[u8; ID_BYTES], Arc<Person>>, AccessError> {
    let mut rows = database.prepare(
        "SELECT name, id, secret, role, scope, created_by, created, expires, used FROM people",
    )?;
    let mut rows = rows.query([])?;
    let mut people = HashMap::new();
    while let Some(row) = rows.next()? {
        let (name, role, scope_text): (String, String, String) =
            (row.get(0)?, row.get(3)?, row.get(4)?);
        let (id, secret): ([u8; ID_BYTES], [u8; 32]) = (row.get(1)?, row.get(2)?);
        // What cannot be read lets nobody in, and nobody see more than was meant.
        let (Some(role), Ok(scope)) = (Role::named(&role), scope(&scope_text)) else {
            tracing::error!(
                name,
                role,
                scope = scope_text,
                "failed to load a person: unknown role or scope"
            );
            continue;
        };
        let used: i64 = row.get(8)?;
        let person = Person {
            caller: Arc::new(Caller { name, role, scope }),
            created_by: row.get(5)?,
            created: row.get(6)?,
            expires: row.get(7)?,
            id,
            secret: blake3::Hash::from_bytes(secret),
            used: AtomicI64::new(used),
            seen: AtomicI64::new(0),
            used_kept: AtomicI64::new(used),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            ended: watch::Sender::new(false),
        };
        people.insert(id, Arc::new(person));
    }
    Ok(people)
}

fn check_name(name: &str) -> Result<(), AccessError> {
    let hostile = name.chars().any(profile::text::is_hostile) || name.trim() != name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || hostile {
        let text = format!("a name must have 1 to {NAME_BYTES_MAX} printable bytes");
        return Err(AccessError::Invalid(text));
    }
    if name == LOCAL {
        let text = format!("`{LOCAL}` is reserved for the collector's own machine");
        return Err(AccessError::Invalid(text));
    }
    let starts = |with: &str| {
        let start = name.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    if starts(PROXIED) {
        let text = format!("the prefix `{PROXIED}` is reserved for names from a proxy");
        return Err(AccessError::Invalid(text));
    }
    if starts(SIGNED_IN) {
        let text = format!(
            "the prefix `{SIGNED_IN}` is reserved for names from an identity \
            provider"
        );
        return Err(AccessError::Invalid(text));
    }
    Ok(())
}

/// Why logins of a role have no scope; `None`: they may have one.
fn no_scope(role: Role) -> Option<&'static str> {
    match role {
        Role::Admin => Some("an admin can give others full access, so a scope limits nothing"),
        Role::Sender => {
            Some("a sender reads nothing, and what it sends is not within a scope: it may not send")
        }
        Role::Metrics | Role::Viewer | Role::Operator => None,
    }
}

/// A scope as it was written; empty: none.
fn scope(text: &str) -> Result<Option<Scope>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    Scope::parse(text).map(Some)
}
