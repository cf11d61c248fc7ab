//! What the store remembers of one shard: what its dictionaries have, what is unfinished there, and
//! whether it takes windows now.

use super::client::Client;
use super::known::Known;
use super::push::Batch;
use super::shard::Shard;
use crate::store::StoreError;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// First and longest time for which nothing is pushed after the shard was away.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// The shard does not take anything now.
struct Outage {
    until: Instant,
    wait: Duration,
    reason: String,
}

/// A day of a table that could not be dropped.
pub(super) struct Undropped {
    /// When it is tried again.
    pub until: Instant,
    /// Why it was not.
    pub reason: String,
}

/// Whether the rollups of a day have all of its samples, which changes no more once no window of
/// the day is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    Whole,
    /// Not known to be, and looked at again from then on.
    Not(Instant),
}

/// One shard and what is known of it.
pub(super) struct ShardState {
    /// It alone.
    pub client: Client,
    pub shard: Arc<Shard>,
    pub known: Mutex<Known>,
    /// Rows that the shard perhaps took some of.
    pub unfinished: Mutex<Option<Batch>>,
    /// Days over the age of samples with rollups that were checked.
    pub looked: Mutex<BTreeMap<u16, Looked>>,
    /// Days of tables that could not be dropped.
    pub undropped: Mutex<BTreeMap<(&'static str, u16), Undropped>>,
    /// Days of samples kept beyond their age.
    pub days_kept_longer: AtomicU64,
    outage: Mutex<Option<Outage>>,
}

impl ShardState {
    /// One for each shard of `client`.
    pub fn all(client: &Client) -> Vec<ShardState> {
        let shards = client.shards();
        let of = |shard: &Arc<Shard>| ShardState {
            client: client.only(shard),
            shard: shard.clone(),
            known: Mutex::new(Known::of_shards(shards.len())),
            unfinished: Mutex::default(),
            looked: Mutex::default(),
            undropped: Mutex::default(),
            days_kept_longer: AtomicU64::new(0),
            outage: Mutex::default(),
        };
        shards.iter().map(of).collect()
    }

    /// The shard took windows.
    pub fn is_back(&self) {
        *lock(&self.outage) = None;
    }

    /// The shard did not take windows.
    pub fn went_away(&self, reason: &str) {
        let mut outage = lock(&self.outage);
        let wait = outage.as_ref().map_or(BACK_OFF_MIN, |last| last.wait * 2);
        let wait = wait.min(BACK_OFF_MAX);
        *outage = Some(Outage {
            until: Instant::now() + wait,
            wait,
            reason: reason.to_owned(),
        });
    }

    /// Writes do not hammer a shard that is away: they fail at once until it is time to try again.
    pub fn may_write(&self) -> Result<(), StoreError> {
        match &*lock(&self.outage) {
            Some(outage) if Instant::now() < outage.until => {
                let reason = format!("ClickHouse: {}", outage.reason);
                Err(StoreError::Unavailable(reason))
            }
            _ => Ok(()),
        }
    }

    /// A sentence for the operator while it takes no windows.
    pub fn issue(&self) -> Option<String> {
        let outage = lock(&self.outage);
        let reason = &outage.as_ref()?.reason;
        let servers = self.shard.servers().iter();
        let urls: Vec<&str> = servers.map(|server| server.url.as_str()).collect();
        Some(format!(
            "ClickHouse at {} rejects data: {reason}. Agents keep their windows until ClickHouse \
             works again.",
            urls.join(" and ")
        ))
    }
}
