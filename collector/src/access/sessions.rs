//! Sessions of the page and links that start one, as they are in memory and in the database.
//!
//! A browser has a cookie with 256 random bits, of which only a hash is kept. It stands for the
//! token that it was made with, so it ends with it; besides, after half a day without use, and
//! after a week. One of somebody whom a provider vouches for stands for what it said of them
//! (`people/sign_ins.rs`). A link is good once, for a minute, and is in memory alone.

use super::person::Person;
use super::{AccessError, Caller, Role, Scope};
use data_encoding::BASE64URL_NOPAD;
use proto::credential::ID_BYTES;
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::Connection;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

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
pub(super) const LINKS_MAX: usize = 256;

/// Schema of the table.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS sessions (
    hash BLOB PRIMARY KEY,
    id BLOB,
    created INTEGER NOT NULL,
    used INTEGER NOT NULL
) STRICT;";

/// Apart from the other sessions: one of these without its columns would be that of whoever is on
/// the collector's machine.
pub(super) const SIGN_INS_SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS sign_ins (
    hash BLOB PRIMARY KEY,
    subject TEXT NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    scope TEXT NOT NULL,
    settings BLOB NOT NULL,
    created INTEGER NOT NULL,
    used INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS sign_in_names (
    name TEXT PRIMARY KEY,
    subject TEXT NOT NULL,
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
    pub(super) fn of(id: Option<[u8; ID_BYTES]>) -> Whose {
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

/// Somebody with a session of their own.
pub(super) struct SignedIn {
    pub(super) subject: String,
    /// In the place of one with a token: what bounds and ends their calls.
    pub(super) person: Arc<Person>,
}

impl SignedIn {
    /// Ends what is under way.
    pub(super) fn end(&self) {
        self.person.end();
    }
}

pub(super) struct Session {
    pub(super) whose: Whose,
    pub(super) created: i64,
    pub(super) used: i64,
}

pub(super) struct Link {
    pub(super) whose: Option<[u8; ID_BYTES]>,
    pub(super) until: Instant,
}

/// See the file.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) open: Mutex<HashMap<Hash, Session>>,
    pub(super) links: Mutex<HashMap<Hash, Link>>,
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
        read_sign_ins(database, &mut open)?;
        Ok(Sessions {
            open: Mutex::new(open),
            links: Mutex::default(),
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

    pub(super) fn is_good(&self, now: i64) -> bool {
        let lasts = match self.whose {
            Whose::Token(_) | Whose::SignedIn(_) => LASTS_S,
            Whose::Local => LOCAL_LASTS_S,
        };
        now.saturating_sub(self.used) < IDLE_S && now.saturating_sub(self.created) < lasts
    }
}

pub(super) fn end(open: &mut HashMap<Hash, Session>, key: &Hash) {
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

/// Sessions of the database. What cannot be read lets nobody in.
fn read_sign_ins(
    database: &Connection,
    open: &mut HashMap<Hash, Session>,
) -> Result<(), AccessError> {
    let mut rows =
        database.prepare("SELECT hash, subject, name, role, scope, created, used FROM sign_ins")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let (role, scope): (String, String) = (row.get(3)?, row.get(4)?);
        let scope = match scope.is_empty() {
            true => Ok(None),
            false => Scope::parse(&scope).map(Some),
        };
        let (Some(role), Ok(scope)) = (Role::named(&role), scope) else {
            tracing::error!(role, "failed to load a session: unknown role or scope");
            continue;
        };
        let (created, used): (i64, i64) = (row.get(5)?, row.get(6)?);
        let subject: String = row.get(1)?;
        let caller = Caller {
            name: row.get(2)?,
            role,
            scope,
        };
        let person = Arc::new(signed_in(caller, &subject, created, open));
        let whose = Whose::SignedIn(Arc::new(SignedIn { subject, person }));
        let session = Session {
            whose,
            created,
            used,
        };
        open.insert(row.get(0)?, session);
    }
    Ok(())
}

/// In the place of a person with a token. All sessions of one have the same number of calls.
pub(super) fn signed_in(
    caller: Caller,
    subject: &str,
    now: i64,
    open: &HashMap<Hash, Session>,
) -> Person {
    let mut others = open
        .values()
        .filter_map(|session| session.whose.signed_in());
    let other = others.find(|other| other.subject == subject);
    let calls = other.map(|other| other.person.calls.clone());
    Person::signed_in(caller, now, now.saturating_add(LASTS_S), calls)
}
