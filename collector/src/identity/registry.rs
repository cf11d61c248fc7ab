//! The members of the fleet: hosts with their keys, and invitations, in a database of their own.
//!
//! A change is on disk before anybody is informed of it. Members are in memory as well, so that a
//! connection does not wait for the disk. When a member is removed, all its connections are
//! notified.

use super::IdentityError;
use super::authority::KeyHash;
use super::outside::{self, Named};
use crate::database;
use crate::store::is_host_label;
use crate::sync::lock;
use proto::credential::{Credential, ID_BYTES, SECRET_BYTES};
use ring::rand::{SecureRandom, SystemRandom};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Semaphore, watch};

/// Calls of one host at a time: several connections' worth of what an agent needs. Those that
/// linger after trouble count until they have ended.
const CALLS_PER_HOST_MAX: usize = 32;

/// Longest name of a host, what agents take too. Unit: bytes.
const NAME_BYTES_MAX: usize = profile::fleet::HOST_NAME_BYTES_MAX;

/// Most labels of an invitation, and their longest name and value. Unit: labels, bytes.
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 128;

/// Most invitations that are kept; the oldest that let nobody in any more go first.
const INVITATIONS_MAX: i64 = 10_000;

/// For how long an invitation is good unless it says otherwise, and at most. Unit: seconds.
const LIFETIME_S: i64 = 3600;
const LIFETIME_S_MAX: i64 = 366 * 86_400;

/// Most hosts of one invitation.
const HOSTS_MAX: u32 = 1_000_000;

/// How long the host of a reusable invitation must not have been connected before one with another
/// key may take its place by the same invitation: an instance that was made again, not a second one
/// next to it. Unit: seconds.
const REPLACED_AFTER_S: i64 = 300;

/// A host that renews again within this time gets a certificate, and nothing is written. Unit:
/// seconds.
const RENEWED_AGAIN_S: u64 = 60;

/// Most members, those of other authorities among them.
const MEMBERS_MAX: usize = 1 << 17;

/// In place of the key and the invitation of a host that has neither.
const NO_KEY: KeyHash = [0; 32];
const NO_INVITATION: [u8; ID_BYTES] = [0; ID_BYTES];

/// Result of a request for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// A host became a member.
    New,
    /// A member renewed its certificate.
    Renewed,
    /// A member has another certificate for the same as a moment ago: nothing was written, and
    /// nothing is to be.
    Again,
}

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS members (
    host_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    key BLOB NOT NULL,
    labels TEXT NOT NULL,
    invitation BLOB NOT NULL,
    enrolled INTEGER NOT NULL,
    renewed INTEGER NOT NULL,
    removed INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS invitations (
    id BLOB PRIMARY KEY,
    secret BLOB NOT NULL,
    name TEXT NOT NULL,
    labels TEXT NOT NULL,
    made INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    hosts_max INTEGER NOT NULL,
    hosts INTEGER NOT NULL,
    replaces INTEGER NOT NULL
) STRICT;";

/// Why a host does not become a member.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No invitation, none of ours, or a wrong secret: which of these is nobody's business.
    #[error(
        "the host is not a member, and the invitation is not from this collector; make one there \
         with `agent-ctl hosts invite`"
    )]
    Unknown,
    /// The invitation was good once.
    #[error("the invitation has expired; make a new one with `agent-ctl hosts invite`")]
    Expired,
    /// It has let in as many as it may.
    #[error("the invitation is used up; make a new one with `agent-ctl hosts invite`")]
    UsedUp,
    /// Another host has what this one claims.
    #[error("{0}")]
    Taken(String),
    /// Its data about itself is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] IdentityError),
}

impl From<rusqlite::Error> for Refused {
    fn from(source: rusqlite::Error) -> Refused {
        Refused::Store(IdentityError::Registry(source))
    }
}

/// A host of the fleet.
#[derive(Debug)]
pub struct Member {
    /// What it calls itself.
    pub host_id: String,
    /// By which the fleet knows it.
    pub name: String,
    /// Labels that its invitation gave it.
    pub labels: BTreeMap<String, String>,
    /// Its key.
    pub key: KeyHash,
    /// Unit: seconds since the Unix epoch.
    pub enrolled: i64,
    /// When it got its certificate of now.
    renewed: AtomicI64,
    /// When it was connected last; the start of the collector counts. Unit: seconds since the Unix
    /// epoch.
    seen: AtomicI64,
    /// By which it came in.
    invitation: [u8; ID_BYTES],
    /// Further calls that it may have in progress.
    pub(super) calls: Arc<Semaphore>,
    /// True once it is a member no more, or another member in its place.
    ended: watch::Sender<bool>,
}

impl Member {
    /// True for a host with a certificate from another authority: no key of it is known.
    pub fn is_outside(&self) -> bool {
        outside::is_given(&self.host_id)
    }

    /// When it got its certificate of now. Unit: seconds since the Unix epoch.
    pub fn renewed(&self) -> i64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// The number of the invitation by which it came in.
    pub fn invitation(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.invitation)
    }

    /// Notes that it is connected, or was until now.
    pub fn see(&self, now: i64) {
        self.seen.store(now, Ordering::Relaxed);
    }

    /// Connections that it has.
    pub fn connections(&self) -> usize {
        self.ended.receiver_count()
    }

    /// True once it is no member any more.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }
}

/// Properties of a new invitation.
#[derive(Clone, Debug, Default)]
pub struct Invitation {
    /// The name of the host; empty: what it calls itself.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Zero: an hour. Unit: seconds.
    pub lifetime_s: u32,
    /// Zero: one.
    pub hosts_max: u32,
    /// A host that is a member already may come back with another key.
    pub replaces: bool,
}

impl Invitation {
    /// How long it is good. Unit: seconds.
    pub fn lasts_s(&self) -> i64 {
        match i64::from(self.lifetime_s) {
            0 => LIFETIME_S,
            given => given,
        }
    }
}

/// An invitation that was made.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its number.
    pub id: [u8; ID_BYTES],
    /// Properties of the invitation.
    pub invitation: Invitation,
    /// When it was made, and until when it is good. Unit: seconds since the Unix epoch.
    pub made: i64,
    /// See there.
    pub expires: i64,
    /// How many came by it.
    pub hosts: u32,
}

/// A host that wants to be a member, or stay one.
pub struct Applicant<'a> {
    /// What it calls itself.
    pub host_id: &'a str,
    /// Its name.
    pub hostname: &'a str,
    /// Its key.
    pub key: KeyHash,
    /// Its invitation.
    pub credential: Option<&'a Credential>,
}

/// See the file.
pub struct Registry {
    database: Mutex<Connection>,
    members: Mutex<HashMap<String, Arc<Member>>>,
}

impl Registry {
    /// Opens the database, makes it where there is none.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn open(path: &Path, now: i64) -> Result<Registry, IdentityError> {
        let database = database::open(path).map_err(IdentityError::Registry)?;
        let members = (|| {
            database.execute_batch(SCHEMA)?;
            let mut rows = database.prepare(
                "SELECT host_id, name, key, labels, enrolled, renewed, invitation FROM members
                 WHERE removed IS NULL",
            )?;
            let read = rows.query_map([], |row| {
                let member = Member {
                    host_id: row.get(0)?,
                    name: row.get(1)?,
                    key: row.get(2)?,
                    labels: labels_of(&row.get::<_, String>(3)?),
                    enrolled: row.get(4)?,
                    renewed: AtomicI64::new(row.get(5)?),
                    seen: AtomicI64::new(now),
                    invitation: row.get(6)?,
                    calls: Arc::new(Semaphore::new(CALLS_PER_HOST_MAX)),
                    ended: watch::Sender::new(false),
                };
                Ok((member.host_id.clone(), Arc::new(member)))
            })?;
            read.collect::<Result<HashMap<_, _>, _>>()
        })();
        Ok(Registry {
            members: Mutex::new(members.map_err(IdentityError::Registry)?),
            database: Mutex::new(database),
        })
    }

    /// The member of this id, if its key is this one.
    pub fn member(&self, host_id: &str, key: &KeyHash) -> Option<Arc<Member>> {
        let member = lock(&self.members).get(host_id).cloned()?;
        (member.key == *key).then_some(member)
    }

    /// All members, by name.
    pub fn members(&self) -> Vec<Arc<Member>> {
        let mut members: Vec<_> = lock(&self.members).values().cloned().collect();
        members.sort_by(|a, b| (&a.name, &a.host_id).cmp(&(&b.name, &b.host_id)));
        members
    }

    /// Names of hosts that were removed since, in seconds since the Unix epoch, and that no member
    /// has now.
    ///
    /// # Errors
    /// When the database fails.
    pub fn removed_since(&self, since: i64) -> Result<BTreeSet<String>, IdentityError> {
        let read = || {
            let database = lock(&self.database);
            let mut rows = database.prepare("SELECT name FROM members WHERE removed >= ?1")?;
            let names = rows.query_map(params![since], |row| row.get(0))?;
            names.collect::<Result<BTreeSet<String>, _>>()
        };
        let mut names = read().map_err(IdentityError::Registry)?;
        for member in lock(&self.members).values() {
            names.remove(&member.name);
        }
        Ok(names)
    }

    /// Makes an invitation. Returns its credential and when it expires.
    ///
    /// # Errors
    /// When it cannot be one, or cannot be written.
    pub fn invite(
        &self,
        invitation: &Invitation,
        authority: KeyHash,
        now: i64,
    ) -> Result<(Credential, i64), Refused> {
        check_labels(&invitation.labels)?;
        let hosts_max = invitation.hosts_max.max(1);
        if hosts_max > HOSTS_MAX {
            let text = format!("an invitation may be for at most {HOSTS_MAX} hosts");
            return Err(Refused::Invalid(text));
        }
        if invitation.replaces && invitation.name.is_empty() {
            let text = "an invitation that replaces a host needs the name of the host";
            return Err(Refused::Invalid(text.to_owned()));
        }
        if !invitation.name.is_empty() {
            check_name(&invitation.name)?;
            if hosts_max > 1 {
                let text = "an invitation for several hosts cannot have a host name";
                return Err(Refused::Invalid(text.to_owned()));
            }
        }
        let lifetime = invitation.lasts_s();
        if lifetime > LIFETIME_S_MAX {
            let text = "an invitation may be valid for at most a year";
            return Err(Refused::Invalid(text.to_owned()));
        }
        let mut credential = Credential {
            id: [0; ID_BYTES],
            secret: [0; SECRET_BYTES],
            authority,
        };
        let random = SystemRandom::new();
        random
            .fill(&mut credential.id)
            .and_then(|()| random.fill(&mut credential.secret))
            .map_err(|_| IdentityError::Random)?;
        let expires = now.saturating_add(lifetime);
        let mut database = lock(&self.database);
        let change = database.transaction()?;
        // After every removal so far, in the same second and when the clock was set back too: the
        // order of the two decides who may come back.
        let removed: Option<i64> =
            change.query_row("SELECT max(removed) FROM members", [], |row| row.get(0))?;
        let made = removed.map_or(now, |removed| now.max(removed.saturating_add(1)));
        change.execute(
            "INSERT INTO invitations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8)",
            params![
                credential.id,
                hashed(&credential),
                invitation.name,
                text_of(&invitation.labels),
                made,
                expires,
                hosts_max,
                invitation.replaces
            ],
        )?;
        change.execute(
            "DELETE FROM invitations WHERE id IN (
                 SELECT id FROM invitations ORDER BY (expires > ?1 AND hosts < hosts_max), made
                 LIMIT max(0, (SELECT count(*) FROM invitations) - ?2))",
            params![now, INVITATIONS_MAX],
        )?;
        change.commit()?;
        Ok((credential, expires))
    }

    /// The invitations that still let somebody in, newest first.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn invitations(&self, now: i64) -> Result<Vec<Listed>, IdentityError> {
        let database = lock(&self.database);
        let mut rows = database
            .prepare(
                "SELECT id, name, labels, hosts_max, replaces, made, expires, hosts
                 FROM invitations WHERE expires > ?1 AND hosts < hosts_max
                 ORDER BY made DESC, id",
            )
            .map_err(IdentityError::Registry)?;
        let listed = rows.query_map(params![now], |row| {
            Ok(Listed {
                id: row.get(0)?,
                invitation: Invitation {
                    name: row.get(1)?,
                    labels: labels_of(&row.get::<_, String>(2)?),
                    lifetime_s: 0,
                    hosts_max: row.get(3)?,
                    replaces: row.get(4)?,
                },
                made: row.get(5)?,
                expires: row.get(6)?,
                hosts: row.get(7)?,
            })
        });
        listed
            .and_then(Iterator::collect)
            .map_err(IdentityError::Registry)
    }

    /// Takes an invitation back; none when none that is good has this id.
    ///
    /// # Errors
    /// When the database fails.
    pub fn revoke(&self, id: [u8; ID_BYTES], now: i64) -> Result<Option<Listed>, IdentityError> {
        let found = self.invitations(now)?.into_iter().find(|own| own.id == id);
        if found.is_some() {
            // It is kept, as one that has expired: those who came by it are known by it.
            lock(&self.database)
                .execute(
                    "UPDATE invitations SET expires = ?2 WHERE id = ?1",
                    params![id, now],
                )
                .map_err(IdentityError::Registry)?;
        }
        Ok(found)
    }

    /// Takes a host in, or lets one that is in renew: a known key needs no invitation, so a host
    /// that was away for months comes back by itself.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn enroll(
        &self,
        applicant: &Applicant<'_>,
        now: i64,
    ) -> Result<(Arc<Member>, Enrolled), Refused> {
        let id = applicant.host_id;
        let plain = id.chars().all(|c| !profile::text::is_hostile(c));
        let most = crate::store::HOST_ID_BYTES_MAX;
        if id.is_empty() || id.len() > most || !plain {
            let text = format!("a host id must have 1 to {most} printable bytes");
            return Err(Refused::Invalid(text));
        }
        if outside::is_given(id) {
            let text = format!("`{id}` is reserved for certificates of another authority");
            return Err(Refused::Invalid(text));
        }
        if let Some(known) = self.member(applicant.host_id, &applicant.key) {
            // Whoever asks again and again makes no work for the disk.
            if now.saturating_sub(known.renewed()).unsigned_abs() < RENEWED_AGAIN_S {
                return Ok((known, Enrolled::Again));
            }
            let mut database = lock(&self.database);
            let change = database.transaction()?;
            change.execute(
                "UPDATE members SET renewed = ?2 WHERE host_id = ?1",
                params![applicant.host_id, now],
            )?;
            change.commit()?;
            known.renewed.store(now, Ordering::Relaxed);
            return Ok((known, Enrolled::Renewed));
        }
        let credential = applicant.credential.ok_or(Refused::Unknown)?;
        let mut database = lock(&self.database);
        // It may have come in meanwhile.
        if let Some(known) = self.member(applicant.host_id, &applicant.key) {
            return Ok((known, Enrolled::Again));
        }
        let change = database.transaction()?;
        let (invitation, made) = invitation(&change, credential, now)?;
        check_not_removed(&change, applicant, made)?;
        let name = match invitation.name.is_empty() {
            true => applicant.hostname,
            false => &invitation.name,
        };
        check_name(name)?;
        self.check_free(applicant, name, (&invitation, credential.id), now)?;
        change.execute(
            "UPDATE invitations SET hosts = hosts + 1 WHERE id = ?1",
            params![credential.id],
        )?;
        change.execute(
            "INSERT OR REPLACE INTO members VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, NULL)",
            params![
                applicant.host_id,
                name,
                applicant.key,
                text_of(&invitation.labels),
                credential.id,
                now
            ],
        )?;
        change.commit()?;
        let member = Arc::new(Member {
            host_id: applicant.host_id.to_owned(),
            name: name.to_owned(),
            labels: invitation.labels,
            key: applicant.key,
            enrolled: now,
            renewed: AtomicI64::new(now),
            seen: AtomicI64::new(now),
            invitation: credential.id,
            calls: Arc::new(Semaphore::new(CALLS_PER_HOST_MAX)),
            ended: watch::Sender::new(false),
        });
        let before = lock(&self.members).insert(member.host_id.clone(), member.clone());
        if let Some(before) = before {
            before.ended.send_replace(true);
        }
        Ok((member, Enrolled::New))
    }

    /// The member that a certificate of another authority names, if it is one already.
    pub fn named(&self, named: &Named) -> Option<Arc<Member>> {
        let member = lock(&self.members).get(&named.host_id).cloned()?;
        (member.name == named.name && member.labels == named.labels).then_some(member)
    }

    /// Takes a host in that a certificate of another authority names; `None` for one that was
    /// removed. It comes back when somebody is invited by its name after that.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit(&self, named: &Named, now: i64) -> Result<Option<Arc<Member>>, Refused> {
        let mut database = lock(&self.database);
        // It may have come in meanwhile.
        if let Some(known) = self.named(named) {
            return Ok(Some(known));
        }
        check_name(&named.name)?;
        let change = database.transaction()?;
        let before: Option<(i64, Option<i64>)> = change
            .query_row(
                "SELECT enrolled, removed FROM members WHERE host_id = ?1",
                params![named.host_id],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        if let Some((_, Some(removed))) = before {
            let invited: Option<i64> = change.query_row(
                "SELECT max(made) FROM invitations WHERE name = ?1",
                params![named.name],
                |row| row.get(0),
            )?;
            if invited.is_none_or(|made| made <= removed) {
                return Ok(None);
            }
        }
        {
            let members = lock(&self.members);
            if members.len() >= MEMBERS_MAX {
                let text = format!("the fleet already has {MEMBERS_MAX} hosts, which is the limit");
                return Err(Refused::Taken(text));
            }
            let other = members
                .values()
                .any(|member| member.name == named.name && member.host_id != named.host_id);
            if other {
                let text = format!("another host is called `{}`", named.name);
                return Err(Refused::Taken(text));
            }
        }
        let enrolled = before.map_or(now, |(enrolled, _)| enrolled);
        change.execute(
            "INSERT OR REPLACE INTO members VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, NULL)",
            params![
                named.host_id,
                named.name,
                NO_KEY,
                text_of(&named.labels),
                NO_INVITATION,
                enrolled,
                now
            ],
        )?;
        change.commit()?;
        let member = Arc::new(Member {
            host_id: named.host_id.clone(),
            name: named.name.clone(),
            labels: named.labels.clone(),
            key: NO_KEY,
            enrolled,
            renewed: AtomicI64::new(now),
            seen: AtomicI64::new(now),
            invitation: NO_INVITATION,
            calls: Arc::new(Semaphore::new(CALLS_PER_HOST_MAX)),
            ended: watch::Sender::new(false),
        });
        let before = lock(&self.members).insert(member.host_id.clone(), member.clone());
        if let Some(before) = before {
            before.ended.send_replace(true);
        }
        Ok(Some(member))
    }

    /// Whether nobody else has the id, the name or the key.
    fn check_free(
        &self,
        applicant: &Applicant<'_>,
        name: &str,
        (invitation, id): (&Invitation, [u8; ID_BYTES]),
        now: i64,
    ) -> Result<(), Refused> {
        let members = lock(&self.members);
        for member in members.values() {
            if member.host_id == applicant.host_id {
                let seen = member.seen.load(Ordering::Relaxed);
                let silent = now.saturating_sub(seen) >= REPLACED_AFTER_S;
                let gone = silent && member.connections() == 0;
                let again = invitation.hosts_max > 1 && member.invitation == id && gone;
                let replaces = invitation.replaces && invitation.name == member.name;
                if !replaces && !again {
                    return Err(Refused::Taken(format!(
                        "a host with this id is a member already, as `{}`, with another key: it was \
                         cloned, or set up again (invite it with --replace, or remove it first)",
                        member.name
                    )));
                }
            } else if member.key == applicant.key {
                return Err(Refused::Taken(format!(
                    "this host has the same key as `{}`: its state was copied; remove the \
                     directory `identity` on this host and join again",
                    member.name
                )));
            } else if member.name == name {
                return Err(Refused::Taken(format!(
                    "another host is called `{name}`; remove it, or invite this one with --name"
                )));
            }
        }
        Ok(())
    }

    /// Takes a host out, by its name or its id. Its connections end.
    ///
    /// # Errors
    /// When the database fails.
    pub fn remove(&self, host: &str, now: i64) -> Result<Option<Arc<Member>>, IdentityError> {
        let database = lock(&self.database);
        let found = {
            let members = lock(&self.members);
            let by_name = || members.values().find(|member| member.name == host);
            members.get(host).or_else(by_name).cloned()
        };
        let Some(member) = found else {
            return Ok(None);
        };
        database
            .execute(
                "UPDATE members SET removed = ?2 WHERE host_id = ?1",
                params![member.host_id, now],
            )
            .map_err(IdentityError::Registry)?;
        lock(&self.members).remove(&member.host_id);
        member.ended.send_replace(true);
        Ok(Some(member))
    }
}

/// The invitation of a credential, when it is good.
fn invitation(
    change: &Transaction<'_>,
    credential: &Credential,
    now: i64,
) -> Result<(Invitation, i64), Refused> {
    let found = change
        .query_row(
            "SELECT secret, name, labels, expires, hosts_max, hosts, replaces, made FROM invitations
             WHERE id = ?1",
            params![credential.id],
            |row| {
                let secret: [u8; 32] = row.get(0)?;
                let invitation = Invitation {
                    name: row.get(1)?,
                    labels: labels_of(&row.get::<_, String>(2)?),
                    lifetime_s: 0,
                    hosts_max: row.get(4)?,
                    replaces: row.get(6)?,
                };
                let counts: (i64, u32, i64) = (row.get(3)?, row.get(5)?, row.get(7)?);
                Ok((secret, invitation, counts))
            },
        )
        .optional()?;
    let (secret, invitation, (expires, hosts, made)) = found.ok_or(Refused::Unknown)?;
    // Both are hashes, so the duration of the comparison reveals nothing about the secret.
    if secret != hashed(credential) {
        return Err(Refused::Unknown);
    }
    if expires <= now {
        return Err(Refused::Expired);
    }
    if hosts >= invitation.hosts_max {
        return Err(Refused::UsedUp);
    }
    Ok((invitation, made))
}

/// A host that was removed comes back by an invitation that was made after that, and by no other.
fn check_not_removed(
    change: &Transaction<'_>,
    applicant: &Applicant<'_>,
    made: i64,
) -> Result<(), Refused> {
    let removed: Option<i64> = change.query_row(
        "SELECT max(removed) FROM members WHERE host_id = ?1 OR key = ?2",
        params![applicant.host_id, applicant.key],
        |row| row.get(0),
    )?;
    match removed {
        Some(removed) if removed >= made => Err(Refused::Taken(
            "this host was removed from the fleet after the invitation was made; invite it again"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The stored hash of a secret.
fn hashed(credential: &Credential) -> [u8; 32] {
    *blake3::hash(&credential.secret).as_bytes()
}

fn check_name(name: &str) -> Result<(), Refused> {
    let hostile = name.chars().any(profile::text::is_hostile) || name.trim() != name;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || hostile {
        let text = format!("a host name must have 1 to {NAME_BYTES_MAX} printable bytes");
        return Err(Refused::Invalid(text));
    }
    Ok(())
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Refused> {
    let short = |text: &String| {
        let is_hostile = text.chars().any(profile::text::is_hostile);
        !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !is_hostile
    };
    if labels.len() > LABELS_MAX
        || !labels
            .iter()
            .all(|(name, value)| short(name) && short(value))
    {
        return Err(Refused::Invalid(format!(
            "an invitation has up to {LABELS_MAX} labels, whose names and values have 1 to \
             {LABEL_BYTES_MAX} printable bytes"
        )));
    }
    if let Some(name) = labels.keys().find(|name| name.starts_with("__")) {
        return Err(Refused::Invalid(format!(
            "the label `{name}` is invalid: names that start with `__` are the collector's own"
        )));
    }
    // A scope or a selector by these is about what runs on a host, and would take all of it.
    if let Some(name) = labels.keys().find(|name| !is_host_label(name)) {
        return Err(Refused::Invalid(format!(
            "the label `{name}` describes what runs on a host, so a host cannot have it"
        )));
    }
    if labels.contains_key(profile::key::HOST) {
        let text = "the label `host` is the name of the host; set it with --name";
        return Err(Refused::Invalid(text.to_owned()));
    }
    Ok(())
}

/// Labels as one text: NUL-separated, as no name or value holds one.
fn text_of(labels: &BTreeMap<String, String>) -> String {
    let words = labels
        .iter()
        .flat_map(|(name, value)| [name.as_str(), value]);
    words.collect::<Vec<_>>().join("\0")
}

fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut words = text.split('\0');
    let mut labels = BTreeMap::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        labels.insert(name.to_owned(), value.to_owned());
    }
    labels
}

#[cfg(test)]
mod tests;
