//! Keeps logins in progress: each can be completed once, within a time limit, by the browser that
//! started it.

use crate::access::{Hash, SECRET_BYTES, hash, network, secret};
use crate::sync::lock;
use data_encoding::BASE64URL_NOPAD;
use ring::digest::{SHA256, digest};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long somebody has to log in at the provider.
pub const LASTS: Duration = Duration::from_secs(600);

/// Most logins in progress: from one address, and from all. Beyond either bound the oldest login is
/// dropped, at the second one the oldest of the address that has most. A login takes 2.5 KiB at
/// most. Behind a proxy all logins have the proxy's address and cannot be distinguished, so only
/// the second bound applies.
const OF_NETWORK_MAX: usize = 256;
const ALL_MAX: usize = 4096;

/// A login under way.
pub(super) struct Begun {
    browser: Hash,
    /// Its address, or its network if one customer has many addresses. `None`: there is a proxy in
    /// between.
    network: Option<IpAddr>,
    until: Instant,
    /// The value that the ID token must contain.
    pub(super) nonce: String,
    /// Proves to the provider that it is the same login.
    pub(super) verifier: String,
    /// Unit: seconds since the Unix epoch.
    pub(super) since: i64,
    /// Where its browser goes then.
    pub(super) back: String,
}

/// Data that is sent with the redirect.
pub(super) struct Ticket {
    pub(super) state: String,
    pub(super) nonce: String,
    /// Hash of the verifier.
    pub(super) challenge: String,
    /// Hash by which its browser is recognized.
    pub(super) browser: String,
}

/// Who starts one.
pub(super) struct Beginner<'a> {
    /// Existing secret of the browser.
    pub(super) browser: Option<&'a str>,
    /// None: a proxy is in between.
    pub(super) address: Option<IpAddr>,
    pub(super) since: i64,
    pub(super) back: String,
}

/// See the file.
#[derive(Default)]
pub(super) struct Pending(Mutex<HashMap<Hash, Begun>>);

/// Whether a browser's mark is one of ours by its looks.
fn is_mark(text: &str) -> bool {
    let bytes = BASE64URL_NOPAD.decode(text.as_bytes());
    bytes.is_ok_and(|bytes| bytes.len() == SECRET_BYTES)
}

impl Pending {
    /// Starts a login. Returns its ticket and how many logins were dropped for it; `None` when
    /// there are no random numbers.
    pub(super) fn begin(&self, beginner: Beginner<'_>, now: Instant) -> Option<(Ticket, u64)> {
        let (state, nonce, verifier) = (secret().ok()?, secret().ok()?, secret().ok()?);
        let browser = match beginner.browser.filter(|mark| is_mark(mark)) {
            // Several tabs of one browser share its mark, so that each can come back.
            Some(mark) => mark.to_owned(),
            None => secret().ok()?,
        };
        let challenge = digest(&SHA256, verifier.as_bytes());
        let ticket = Ticket {
            nonce: nonce.clone(),
            challenge: BASE64URL_NOPAD.encode(challenge.as_ref()),
            browser,
            state,
        };
        let begun = Begun {
            browser: hash(&ticket.browser),
            network: beginner.address.map(network),
            until: now + LASTS,
            nonce,
            verifier,
            since: beginner.since,
            back: beginner.back,
        };
        let mut all = lock(&self.0);
        all.retain(|_, begun| begun.until > now);
        let own = all.values().filter(|it| it.network == begun.network);
        // Where all have too many, who has most gives way.
        let many = begun.network.is_some() && own.count() >= OF_NETWORK_MAX;
        let full = match many {
            true => Some(begun.network),
            false if all.len() >= ALL_MAX => {
                // Each is looked at once: anyone may start a login, so it must stay cheap.
                let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
                for it in all.values() {
                    *counts.entry(it.network).or_default() += 1;
                }
                let most = counts.into_iter().max_by_key(|&(_, count)| count);
                most.map(|(network, _)| network)
            }
            false => None,
        };
        let oldest = full.and_then(|full| {
            let of_full = all.iter().filter(|(_, other)| other.network == full);
            of_full.min_by_key(|(_, other)| other.until)
        });
        let oldest = oldest.map(|(key, _)| *key);
        let gone = u64::from(oldest.is_some_and(|key| all.remove(&key).is_some()));
        all.insert(hash(&ticket.state), begun);
        Some((ticket, gone))
    }

    /// Removes and returns the login with this state, if it was started in this browser.
    pub(super) fn take(
        &self,
        state: &str,
        browser: Option<&str>,
        now: Instant,
    ) -> Result<Begun, &'static str> {
        let mut all = lock(&self.0);
        let key = hash(state);
        let found = all.get(&key).filter(|begun| begun.until > now);
        let Some(begun) = found else {
            return Err(
                "there is no such login in progress: it was already used, or took too long",
            );
        };
        // Both are hashes: how far they are alike says nothing of what they are of.
        if browser.is_none_or(|browser| hash(browser) != begun.browser) {
            return Err(
                "the login was started in another browser, or this browser keeps no \
                cookies",
            );
        }
        let begun = all.remove(&key);
        begun.ok_or("there is no such login in progress")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginner(browser: Option<&str>, address: u32) -> Beginner<'_> {
        Beginner {
            browser,
            address: Some(IpAddr::V4(address.into())),
            since: 0,
            back: "/".to_owned(),
        }
    }

    #[test]
    fn a_login_comes_back_once_to_the_browser_that_began_it() {
        let (pending, now) = (Pending::default(), Instant::now());
        let begin = |browser| pending.begin(beginner(browser, 1), now).expect("begun").0;
        let first = begin(None);
        let second = begin(Some(first.browser.as_str()));
        assert_eq!(first.browser, second.browser);
        let other = begin(Some("short"));
        assert_ne!(other.browser, "short");
        for browser in [None, Some(""), Some(other.browser.as_str())] {
            assert!(pending.take(&first.state, browser, now).is_err());
        }
        let own = Some(first.browser.as_str());
        let taken = pending.take(&first.state, own, now);
        assert_eq!(taken.map(|begun| begun.nonce).ok(), Some(first.nonce));
        assert!(pending.take(&first.state, own, now).is_err());
        assert!(pending.take(&second.state, own, now).is_ok());
    }

    #[test]
    fn a_login_ends_after_a_while() {
        let (pending, now) = (Pending::default(), Instant::now());
        let (ticket, _) = pending.begin(beginner(None, 1), now).expect("begun");
        let own = Some(ticket.browser.as_str());
        assert!(pending.take(&ticket.state, own, now + LASTS).is_err());
    }

    #[test]
    fn who_begins_many_loses_their_own() {
        let (pending, now) = (Pending::default(), Instant::now());
        let begin = |address| pending.begin(beginner(None, address), now).expect("begun");
        let (other, _) = begin(2);
        let gone: u64 = (0..OF_NETWORK_MAX + 10).map(|_| begin(1).1).sum();
        assert_eq!(gone, 10);
        let own = Some(other.browser.as_str());
        assert!(pending.take(&other.state, own, now).is_ok());
        for address in 10..10 + ALL_MAX as u32 {
            begin(address);
        }
        assert_eq!(lock(&pending.0).len(), ALL_MAX);
    }

    #[test]
    fn behind_a_proxy_nobody_is_one_address() {
        let (pending, now) = (Pending::default(), Instant::now());
        let begin = |at| {
            let beginner = Beginner {
                address: None,
                ..beginner(None, 1)
            };
            pending.begin(beginner, at).expect("begun")
        };
        let later = now + Duration::from_secs(1);
        let (first, _) = begin(now);
        let gone: u64 = (1..ALL_MAX).map(|_| begin(later).1).sum();
        assert_eq!(gone, 0, "as many as there is room for");
        assert_eq!(begin(later).1, 1);
        assert_eq!(lock(&pending.0).len(), ALL_MAX);
        let own = Some(first.browser.as_str());
        assert!(pending.take(&first.state, own, now).is_err(), "the oldest");
    }
}
