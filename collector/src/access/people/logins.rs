//! Starts and ends sessions of the page, and makes links that start one.

use super::{People, Person};
use crate::access::sessions::{
    Hash, LINK_LASTS, LINKS_MAX, Link, Session, SignedIn, Whose, end, hash, secret, surplus,
};
use crate::access::{AccessError, Caller, LOCAL};
use crate::sync::lock;
use proto::credential::ID_BYTES;
use rusqlite::params;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Instant;
use tonic::Status;

/// Whoever has a session.
pub struct Visitor {
    /// As what answers knows them.
    pub caller: Arc<Caller>,
    /// Their token; none on the collector's machine.
    pub person: Option<Arc<Person>>,
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

    /// Whose session this cookie is of.
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
