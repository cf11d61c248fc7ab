//! Sessions of the page, and links that start one.
//!
//! A browser has a cookie with 256 random bits; only a hash of it is stored. A session belongs to
//! the token with which it was opened and ends with it; it also ends after half a day without use,
//! and after a week. A session opened through an identity provider belongs to what the provider
//! said (`sign_ins.rs`). A link works once, for a minute, and exists only in memory.

use super::people::{AccessError, People};
use super::sign_ins::{self, SignedIn};
use super::{Caller, LOCAL, Person};
use crate::sync::lock;
use data_encoding::BASE64URL_NOPAD;
use proto::credential::ID_BYTES;
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::{Connection, params};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Random bytes of a cookie and of a link.
pub(crate) const SECRET_BYTES: usize = 32;

/// When a session ends without use. Unit: seconds.
const IDLE_S: i64 = 12 * 3600;

/// When a session ends at most. Unit: seconds.
pub const LASTS_S: i64 = 7 * 86_400;

/// When a session ends at most that was started on the collector's machine, for nobody by name: no
/// token ends it before. Unit: seconds.
const LOCAL_LASTS_S: i64 = 3600;

/// Sessions, and those of one token. The one that was used longest ago goes for another.
const SESSIONS_MAX: usize = 10_000;
const PER_PERSON_MAX: usize = 32;

/// How long a link is good, and how many are at a time.
pub const LINK_LASTS: Duration = Duration::from_secs(60);
const LINKS_MAX: usize = 256;

/// Schema of the table.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS sessions (
    hash BLOB PRIMARY KEY,
    id BLOB,
    created INTEGER NOT NULL,
    used INTEGER NOT NULL
) STRICT;";

pub(crate) type Hash = [u8; 32];

/// The owner of a session.
#[derive(Clone)]
pub(super) enum Whose {
    /// Whoever is on the collector's machine.
    Local,
    /// Who has this token.
    Token([u8; ID_BYTES]),
    /// Somebody whom a provider vouched for.
    SignedIn(Arc<SignedIn>),
}

impl Whose {
    fn of(id: Option<[u8; ID_BYTES]>) -> Whose {
        id.map_or(Whose::Local, Whose::Token)
    }

    fn is(&self, other: &Whose) -> bool {
        match (self, other) {
            (Whose::Local, Whose::Local) => true,
            (Whose::Token(own), Whose::Token(other)) => own == other,
            (Whose::SignedIn(own), Whose::SignedIn(other)) => own.subject == other.subject,
            _ => false,
        }
    }

    pub(super) fn signed_in(&self) -> Option<&Arc<SignedIn>> {
        match self {
            Whose::SignedIn(signed_in) => Some(signed_in),
            _ => None,
        }
    }
}

pub(super) struct Session {
    pub(super) whose: Whose,
    pub(super) created: i64,
    pub(super) used: i64,
}

struct Link {
    whose: Option<[u8; ID_BYTES]>,
    until: Instant,
}

/// See the file.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) open: Mutex<HashMap<Hash, Session>>,
    links: Mutex<HashMap<Hash, Link>>,
}

/// A user with a session.
pub struct Visitor {
    /// As what answers knows them.
    pub caller: Arc<Caller>,
    /// Their token; none on the collector's machine.
    pub person: Option<Arc<Person>>,
}

pub(crate) fn hash(text: &str) -> Hash {
    *blake3::hash(text.as_bytes()).as_bytes()
}

pub(crate) fn secret() -> Result<String, AccessError> {
    let mut bytes = [0; SECRET_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| AccessError::Random)?;
    Ok(BASE64URL_NOPAD.encode(&bytes))
}

impl Sessions {
    /// Loads the sessions in the database.
    pub(super) fn read(database: &Connection) -> Result<Sessions, AccessError> {
        let mut rows = database.prepare("SELECT hash, id, created, used FROM sessions")?;
        let read = rows.query_map([], |row| {
            let session = Session {
                whose: Whose::of(row.get(1)?),
                created: row.get(2)?,
                used: row.get(3)?,
            };
            Ok((row.get(0)?, session))
        })?;
        let mut open: HashMap<Hash, Session> = read.collect::<Result<_, _>>()?;
        sign_ins::read(database, &mut open)?;
        Ok(Sessions {
            open: Mutex::new(open),
            links: Mutex::default(),
        })
    }
}

impl People {
    /// Starts a session of whoever has this token. Returns the value of the cookie. Blocks.
    ///
    /// # Errors
    /// As [`People::check`]; INTERNAL when it cannot be kept.
    pub fn log_in(&self, token: &str, peer: Option<SocketAddr>) -> Result<String, Status> {
        let person = self.check(token, peer)?;
        self.start(Some(person.id()))
    }

    /// Starts a session of whoever a link was made for. In a browser that somebody is logged in
    /// with already it changes nothing: none, where it was for the same one. Blocks.
    ///
    /// # Errors
    /// As [`People::log_in`]; ALREADY_EXISTS if somebody else is logged in: with a link made by a
    /// stranger, they would continue as the stranger, who could see what they look at.
    pub fn follow(
        &self,
        link: &str,
        peer: Option<SocketAddr>,
        logged_in: Option<&Caller>,
    ) -> Result<Option<String>, Status> {
        let found = lock(&self.sessions().links).remove(&hash(link));
        let found = found.filter(|link| link.until > Instant::now());
        let Some(link) = found else {
            let why = "the link was already used, or is more than a minute old";
            return Err(self.failed(peer, "", why));
        };
        let Some(logged_in) = logged_in else {
            return self.start(link.whose).map(Some);
        };
        let is_own = match link.whose {
            None => logged_in.name == LOCAL,
            Some(id) => {
                let person = self.person(&id);
                person.is_some_and(|person| person.caller.name == logged_in.name)
            }
        };
        if is_own {
            return Ok(None);
        }
        Err(Status::already_exists(format!(
            "the link is for another person, and `{}` is logged in here: log out first, then get a \
             new link",
            logged_in.name
        )))
    }

    /// A link for somebody; none: for whoever is on the collector's machine.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there are too many.
    pub fn link(&self, person: Option<&Arc<Person>>) -> Result<String, Status> {
        let secret = secret().map_err(|_| Status::internal("failed to get random numbers"))?;
        let now = Instant::now();
        let mut links = lock(&self.sessions().links);
        links.retain(|_, link| link.until > now);
        if links.len() >= LINKS_MAX {
            return Err(Status::resource_exhausted(
                "too many links are waiting; try again in a minute",
            ));
        }
        let link = Link {
            whose: person.map(|person| person.id()),
            until: now + LINK_LASTS,
        };
        links.insert(hash(&secret), link);
        Ok(secret)
    }

    fn start(&self, id: Option<[u8; ID_BYTES]>) -> Result<String, Status> {
        let started = (|| {
            let secret = secret()?;
            let (key, now) = (hash(&secret), self.now());
            self.with_database(|database| {
                database.execute(
                    "INSERT INTO sessions VALUES (?1, ?2, ?3, ?3)",
                    params![key, id, now],
                )?;
                Ok(())
            })?;
            let whose = Whose::of(id);
            let session = Session {
                whose: whose.clone(),
                created: now,
                used: now,
            };
            let gone = {
                let mut open = lock(&self.sessions().open);
                open.insert(key, session);
                surplus(&mut open, &whose, now)
            };
            self.forget(&gone)?;
            Ok::<_, AccessError>(secret)
        })();
        started.map_err(|error| {
            tracing::error!("failed to start a session: {error}");
            Status::internal("the collector failed to store the session; see its log")
        })
    }

    pub(super) fn forget(&self, gone: &[Hash]) -> Result<(), AccessError> {
        if gone.is_empty() {
            return Ok(());
        }
        self.with_database(|database| {
            let change = database.transaction()?;
            for key in gone {
                change.execute("DELETE FROM sessions WHERE hash = ?1", params![key])?;
                change.execute("DELETE FROM sign_ins WHERE hash = ?1", params![key])?;
            }
            change.commit()?;
            Ok(())
        })
    }

    /// The user whose session has this cookie.
    pub fn visitor(&self, cookie: &str) -> Option<Visitor> {
        let now = self.now();
        let whose = {
            let mut open = lock(&self.sessions().open);
            let session = open.get_mut(&hash(cookie)).filter(|own| own.is_good(now))?;
            session.used = now;
            session.whose.clone()
        };
        match whose {
            Whose::Local => Some(Visitor {
                caller: Caller::local(),
                person: None,
            }),
            Whose::SignedIn(signed_in) => Some(Visitor {
                caller: signed_in.person.caller.clone(),
                person: Some(signed_in.person.clone()),
            }),
            Whose::Token(id) => {
                let person = self.person(&id).filter(|person| person.expires > now)?;
                person.use_at(now);
                Some(Visitor {
                    caller: person.caller.clone(),
                    person: Some(person),
                })
            }
        }
    }

    /// Users who logged in through a provider, by name: the newest session, when one was last used,
    /// and how many there are.
    pub fn signed_in(&self) -> Vec<(Arc<Person>, i64, u32)> {
        let now = self.now();
        let open = lock(&self.sessions().open);
        let mut found: BTreeMap<&str, (&Session, &Arc<SignedIn>, i64, u32)> = BTreeMap::new();
        for session in open.values().filter(|session| session.is_good(now)) {
            let Some(own) = session.whose.signed_in() else {
                continue;
            };
            let name = own.person.caller.name.as_str();
            let of_name = found.entry(name).or_insert((session, own, 0, 0));
            if session.created > of_name.0.created {
                (of_name.0, of_name.1) = (session, own);
            }
            of_name.2 = of_name.2.max(session.used);
            of_name.3 += 1;
        }
        let found = found.into_values();
        found
            .map(|(_, own, used, count)| (own.person.clone(), used, count))
            .collect()
    }

    /// How many sessions of the page were started with each token, by its id.
    pub fn sessions_by_token(&self) -> HashMap<[u8; ID_BYTES], u32> {
        let now = self.now();
        let mut counts = HashMap::new();
        for session in lock(&self.sessions().open).values() {
            if let Whose::Token(id) = &session.whose
                && session.is_good(now)
            {
                *counts.entry(*id).or_default() += 1;
            }
        }
        counts
    }

    /// Ends a session. Blocks.
    ///
    /// # Errors
    /// When the database fails: it has ended until a restart.
    pub fn log_out(&self, cookie: &str) -> Result<(), AccessError> {
        let key = hash(cookie);
        let ended = lock(&self.sessions().open).remove(&key);
        if let Some(session) = ended {
            session.end();
        }
        self.forget(&[key])
    }

    /// Removes sessions that have ended, and writes when the others were used. Blocks.
    ///
    /// # Errors
    /// When the database fails.
    pub fn keep_sessions(&self) -> Result<(), AccessError> {
        let now = self.now();
        let (gone, used) = {
            let mut open = lock(&self.sessions().open);
            let is_over = |session: &Session| {
                let ended = match &session.whose {
                    Whose::Token(id) => self.person(id).is_none(),
                    Whose::Local | Whose::SignedIn(_) => false,
                };
                !session.is_good(now) || ended
            };
            let gone: Vec<Hash> = open
                .iter()
                .filter(|(_, session)| is_over(session))
                .map(|(key, _)| *key)
                .collect();
            for key in &gone {
                end(&mut open, key);
            }
            let used: Vec<(Hash, i64)> = open
                .iter()
                .map(|(key, session)| (*key, session.used))
                .collect();
            (gone, used)
        };
        self.forget(&gone)?;
        if used.is_empty() {
            return Ok(());
        }
        self.with_database(|database| {
            let change = database.transaction()?;
            for (key, used) in &used {
                change.execute(
                    "UPDATE sessions SET used = ?2 WHERE hash = ?1 AND used < ?2",
                    params![key, used],
                )?;
                change.execute(
                    "UPDATE sign_ins SET used = ?2 WHERE hash = ?1 AND used < ?2",
                    params![key, used],
                )?;
            }
            change.commit()?;
            Ok(())
        })
    }
}

impl Session {
    /// Ends only the session's own calls in progress; calls of a token end with the token.
    pub(super) fn end(&self) {
        if let Some(signed_in) = self.whose.signed_in() {
            signed_in.end();
        }
    }

    fn is_good(&self, now: i64) -> bool {
        let lasts = match self.whose {
            Whose::Token(_) | Whose::SignedIn(_) => LASTS_S,
            Whose::Local => LOCAL_LASTS_S,
        };
        now.saturating_sub(self.used) < IDLE_S && now.saturating_sub(self.created) < lasts
    }
}

fn end(open: &mut HashMap<Hash, Session>, key: &Hash) {
    if let Some(session) = open.remove(key) {
        session.end();
    }
}

/// Removes sessions beyond the bounds and expired ones; the newest stays.
pub(super) fn surplus(open: &mut HashMap<Hash, Session>, whose: &Whose, now: i64) -> Vec<Hash> {
    let mut gone: Vec<Hash> = open
        .iter()
        .filter(|(_, session)| !session.is_good(now))
        .map(|(key, _)| *key)
        .collect();
    let own = open.iter().filter(|(_, session)| session.whose.is(whose));
    let mut own: Vec<_> = own.map(|(key, session)| (session.used, *key)).collect();
    own.sort_unstable();
    let beyond = own.len().saturating_sub(PER_PERSON_MAX);
    gone.extend(own.iter().take(beyond).map(|(_, key)| *key));
    if open.len() > SESSIONS_MAX {
        let oldest = open.iter().min_by_key(|(_, session)| session.used);
        gone.extend(oldest.map(|(key, _)| *key));
    }
    for key in &gone {
        end(open, key);
    }
    gone
}
