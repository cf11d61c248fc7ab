//! Sessions of people who log in through an identity provider. They have no token: role and scope
//! are those at the time of the login, and end with the session.
//!
//! A name belongs to the first person who logs in with it, because captures are owned by name and
//! providers let people change theirs. Another person with the same name always gets the same
//! suffix. A name that was not used for a long time is forgotten.

use super::{People, Person};
use crate::access::sessions::{Hash, Session, SignedIn, Whose, hash, secret, signed_in, surplus};
use crate::access::{AccessError, Caller, Role, SIGNED_IN, Scope};
use crate::sync::lock;
use profile::text::with_causes;
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;
use tonic::Status;

/// Longest name that a provider may give. Unit: bytes. With what stands before it and the mark
/// behind it, it is no longer than names of people with tokens.
pub const SIGN_IN_NAME_BYTES_MAX: usize = 100;

/// How long a name that nobody comes with is somebody's. Unit: seconds.
const NAME_KEPT_S: i64 = 90 * 86_400;

/// Most names. At the bound nobody new is let in before an old one is forgotten.
const NAMES_MAX: i64 = 20_000;

/// Hash of the settings that a session was started with.
pub type Settings = [u8; 32];

/// A person who logged in through a provider.
#[derive(Clone, Debug)]
pub struct SignIn {
    /// The provider.
    pub issuer: String,
    /// Their permanent id at the provider.
    pub subject: String,
    /// Their name at the provider.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The part of the fleet they see.
    pub scope: Option<Scope>,
    /// The settings that decided this.
    pub settings: Settings,
}

impl People {
    /// Ends the sessions that other settings decided, or all.
    ///
    /// # Errors
    /// When the database fails.
    pub fn keep_sign_ins_of(&self, settings: Option<&Settings>) -> Result<(), AccessError> {
        let gone: Vec<Hash> = self.with_database(|database| {
            let mut rows = database.prepare("SELECT hash, settings FROM sign_ins")?;
            let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            let rows: Vec<(Hash, Vec<u8>)> = rows.collect::<Result<_, _>>()?;
            let of_others = rows
                .into_iter()
                .filter(|(_, own)| settings.is_none_or(|settings| settings[..] != own[..]));
            Ok(of_others.map(|(key, _)| key).collect())
        })?;
        self.end_sessions(&gone)
    }

    /// Starts a session of somebody. Returns the value of the cookie, and as whom they are let in.
    /// Blocks.
    ///
    /// # Errors
    /// PERMISSION_DENIED where nobody may have that name, INTERNAL when it cannot be kept.
    pub fn sign_in(&self, sign_in: &SignIn) -> Result<(String, Arc<Caller>), Status> {
        let started = (|| {
            let now = self.now();
            // Another provider's person of the same number is somebody else.
            let subject = format!("{} {}", sign_in.issuer, sign_in.subject);
            let Some(name) = self.claim(&sign_in.name, &subject, now)? else {
                return Ok(None);
            };
            let secret = secret()?;
            let key = hash(&secret);
            let caller = Caller {
                name,
                role: sign_in.role,
                scope: sign_in.scope.clone(),
            };
            let scope = caller.scope.as_ref();
            let scope = scope.map(|scope| scope.text.clone()).unwrap_or_default();
            self.with_database(|database| {
                database.execute(
                    "INSERT INTO sign_ins VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
                    params![
                        key,
                        subject,
                        caller.name,
                        caller.role.name(),
                        scope,
                        sign_in.settings,
                        now
                    ],
                )?;
                Ok(())
            })?;
            let (gone, caller) = {
                let mut open = lock(&self.sessions().open);
                let person = Arc::new(signed_in(caller, &subject, now, &open));
                let caller = person.caller.clone();
                let whose = Whose::SignedIn(Arc::new(SignedIn { subject, person }));
                let session = Session {
                    whose: whose.clone(),
                    created: now,
                    used: now,
                };
                open.insert(key, session);
                (surplus(&mut open, &whose, now), caller)
            };
            self.forget(&gone)?;
            Ok::<_, AccessError>(Some((secret, caller)))
        })();
        match started {
            Ok(Some(started)) => Ok(started),
            Ok(None) => Err(Status::permission_denied(
                "the name belongs to another person here, or there are too many names",
            )),
            Err(error) => {
                tracing::error!("failed to start a session: {}", with_causes(&error));
                let text = "the collector failed to store the session; see its log";
                Err(Status::internal(text))
            }
        }
    }

    /// The name of a person here; `None` if it cannot be used.
    fn claim(&self, name: &str, subject: &str, now: i64) -> Result<Option<String>, AccessError> {
        let plain = format!("{SIGNED_IN}{name}");
        let mark = blake3::hash(subject.as_bytes()).to_hex();
        let marked = format!("{plain}#{}", &mark[..12]);
        let token = |name: &str| self.list().iter().any(|one| one.caller.name == name);
        let free = [plain, marked].into_iter().filter(|name| !token(name));
        let free: Vec<String> = free.collect();
        self.with_database(|database| {
            let change = database.transaction()?;
            // A session lasts a week, so nobody with one has a name that is forgotten.
            change.execute(
                "DELETE FROM sign_in_names WHERE used < ?1",
                params![now.saturating_sub(NAME_KEPT_S)],
            )?;
            let mut found = None;
            for name in free {
                let owner: Option<String> = change
                    .query_row(
                        "SELECT subject FROM sign_in_names WHERE name = ?1",
                        params![name],
                        |row| row.get(0),
                    )
                    .optional()?;
                if owner.is_none_or(|owner| owner == subject) {
                    found = Some(name);
                    break;
                }
            }
            if let Some(name) = &found {
                change.execute(
                    "INSERT OR REPLACE INTO sign_in_names VALUES (?1, ?2, ?3)",
                    params![name, subject, now],
                )?;
                let all: i64 =
                    change.query_row("SELECT count(*) FROM sign_in_names", [], |row| row.get(0))?;
                if all > NAMES_MAX {
                    return Ok(None);
                }
            }
            change.commit()?;
            Ok(found)
        })
    }

    /// Ends the sessions of somebody by this name. It stays theirs: captures belong to names, and
    /// many providers let people choose theirs. Blocks.
    ///
    /// # Errors
    /// When the database fails: they have ended until a restart.
    pub(in crate::access) fn sign_out(
        &self,
        name: &str,
    ) -> Result<Option<Arc<Person>>, AccessError> {
        let (gone, last) = {
            let open = lock(&self.sessions().open);
            let own = open.iter().filter_map(|(key, session)| {
                let signed_in = session.whose.signed_in()?;
                let is_own = signed_in.person.caller.name == name;
                is_own.then(|| (*key, signed_in.person.clone()))
            });
            let own: Vec<_> = own.collect();
            let last = own.last().map(|(_, person)| person.clone());
            let gone: Vec<Hash> = own.into_iter().map(|(key, _)| key).collect();
            (gone, last)
        };
        self.end_sessions(&gone)?;
        Ok(last)
    }

    /// Ends sessions and their calls in progress.
    fn end_sessions(&self, gone: &[Hash]) -> Result<(), AccessError> {
        {
            let mut open = lock(&self.sessions().open);
            for key in gone {
                if let Some(session) = open.remove(key) {
                    session.end();
                }
            }
        }
        self.forget(gone)
    }
}
