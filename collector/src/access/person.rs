//! A person or program with a token, and what ends their calls.

use super::{Caller, PROXIED, SIGNED_IN};
use proto::credential::ID_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Calls of one person at a time.
pub(super) const CALLS_MAX: usize = 32;

/// Longest sleep that is asked for. Unit: seconds.
const FAR_S: u64 = 400 * 86_400;

/// Somebody with a token.
#[derive(Debug)]
pub struct Person {
    /// As what answers knows them.
    pub caller: Arc<Caller>,
    /// Who let them in.
    pub created_by: String,
    /// Unit: seconds since the Unix epoch.
    pub created: i64,
    /// When the token ends.
    pub expires: i64,
    pub(super) id: [u8; ID_BYTES],
    pub(super) secret: blake3::Hash,
    pub(super) used: AtomicI64,
    /// When it was noted last that somebody comes with it.
    pub(super) seen: AtomicI64,
    /// What of that is in the database.
    pub(super) used_kept: AtomicI64,
    /// Further calls that they may have in progress.
    pub(crate) calls: Arc<Semaphore>,
    /// True once the token is taken back.
    pub(super) ended: watch::Sender<bool>,
}

impl Person {
    /// Somebody without a token, for a session. With others of theirs they share `calls`.
    pub(super) fn signed_in(
        caller: Caller,
        created: i64,
        expires: i64,
        calls: Option<Arc<Semaphore>>,
    ) -> Person {
        Person {
            created_by: SIGNED_IN.trim_end_matches(':').to_owned(),
            caller: Arc::new(caller),
            created,
            expires,
            // It is in no list, so neither is ever compared.
            id: [0; ID_BYTES],
            secret: blake3::Hash::from_bytes([0; 32]),
            used: AtomicI64::new(created),
            seen: AtomicI64::new(0),
            used_kept: AtomicI64::new(created),
            calls: calls.unwrap_or_else(|| Arc::new(Semaphore::new(CALLS_MAX))),
            ended: watch::Sender::new(false),
        }
    }

    /// Somebody whom a trusted proxy names: for one request, with the calls of all of theirs.
    pub(super) fn proxied(
        caller: Caller,
        now: i64,
        calls: Arc<Semaphore>,
        ended: watch::Sender<bool>,
    ) -> Person {
        let calls = Some(calls);
        Person {
            created_by: PROXIED.trim_end_matches(':').to_owned(),
            ended,
            // What the proxy says ends with each request.
            ..Person::signed_in(caller, now, i64::MAX, calls)
        }
    }

    /// Ends their calls.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    pub(super) fn id(&self) -> [u8; ID_BYTES] {
        self.id
    }

    pub(super) fn use_at(&self, now: i64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// When the token was used last. Unit: seconds since the Unix epoch; 0: never.
    pub fn used(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }

    /// True at the first use of the token for so many seconds, once.
    pub(crate) fn is_back(&self, now: i64, after_s: i64) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        if now.saturating_sub(seen) < after_s {
            return false;
        }
        // When calls come at the same time, one of them succeeds.
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.seen.compare_exchange(seen, now, set, get).is_ok()
    }

    /// Done when the token has ended, whichever way. `now` is the time in seconds since the Unix
    /// epoch.
    pub fn ended(&self, now: i64) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.subscribe();
        let left = u64::try_from(self.expires.saturating_sub(now)).unwrap_or(0);
        let expired = tokio::time::sleep(Duration::from_secs(left.min(FAR_S)));
        async move {
            tokio::select! {
                _ = ended.wait_for(|&ended| ended) => {}
                () = expired => {}
            }
        }
    }
}
