//! Tracks failed attempts with tokens and invitations, and calls that are not allowed: each address
//! and each person gets an answer a few times a minute, and the log gets one line for all of them.
//!
//! Nobody can guess 160 bits; this bounds the work and the log lines that attempts cause. A valid
//! token is accepted whatever others tried from the same address.

use crate::audit::{Audit, Event};
use crate::sync::lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// For how long failures are summed.
pub(crate) const SUMMED: Duration = Duration::from_secs(60);

/// Failures of one address in that time that are answered with what is wrong.
const ANSWERED_MAX: u64 = 10;

/// Addresses and persons that are told apart. Those beyond it are one.
const ADDRESSES_MAX: usize = 1024;

/// Whose failures are summed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whom {
    /// Whoever has this address, or one of its network.
    Address(IpAddr),
    /// A person or a host, by name.
    Named(String),
    /// Many, or somebody without an address.
    Many,
}

impl Whom {
    /// By the address of a connection.
    pub(crate) fn at(address: Option<IpAddr>) -> Whom {
        address.map_or(Whom::Many, |address| Whom::Address(network(address)))
    }

    /// As the log has it: who, and where.
    pub(crate) fn told(&self) -> (&str, String) {
        match self {
            Whom::Address(address) => ("", address.to_string()),
            Whom::Named(name) => (name, String::new()),
            Whom::Many => ("", "many addresses".to_owned()),
        }
    }
}

/// What a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// It is the first of its address for some time, which goes to the log.
    pub first: bool,
    /// There are too many: when to come again.
    pub limited: Option<Duration>,
}

/// Failures of an address that are reported together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Who failed.
    pub whom: Whom,
    /// Failures besides those with a line of their own.
    pub count: u64,
}

struct Tried {
    since: Instant,
    count: u64,
    /// Failures with a line of their own.
    told: u64,
}

/// See the file.
#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<Whom, Tried>>);

impl Failures {
    /// Counts one. On record by itself is the first; with `each`, every one until there are too
    /// many.
    pub(crate) fn count(&self, whom: Whom, now: Instant, each: bool) -> Failed {
        let mut tried = lock(&self.0);
        let mut key = whom;
        if !tried.contains_key(&key) && tried.len() >= ADDRESSES_MAX {
            key = Whom::Many;
        }
        let entry = tried.entry(key).or_insert(Tried {
            since: now,
            count: 0,
            told: 0,
        });
        entry.count += 1;
        let limited = entry.limited(now);
        if entry.count == 1 || each && limited.is_none() {
            entry.told += 1;
        }
        Failed {
            first: entry.count == 1,
            limited,
        }
    }

    /// Whether there are too many of an address: when to come again.
    pub(crate) fn limited(&self, address: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let tried = lock(&self.0);
        let all = || {
            tried
                .get(&Whom::Many)
                .filter(|_| tried.len() >= ADDRESSES_MAX)
        };
        let known = tried.get(&Whom::at(address)).or_else(all)?;
        let is_over = now.saturating_duration_since(known.since) >= SUMMED;
        (!is_over && known.count >= ANSWERED_MAX).then(|| known.left(now))
    }

    /// Sums with an elapsed time and more than one failure.
    pub(crate) fn sums(&self, now: Instant) -> Vec<Sum> {
        let mut sums = Vec::new();
        lock(&self.0).retain(|whom, tried| {
            let keep = now.saturating_duration_since(tried.since) < SUMMED;
            if !keep && tried.count > tried.told {
                sums.push(Sum {
                    whom: whom.clone(),
                    count: tried.count - tried.told,
                });
            }
            keep
        });
        sums
    }
}

/// Refusals of one kind, on record: each by itself until there are too many of somebody in a
/// minute, and these as a sum.
pub(crate) struct Refusals {
    pub(super) failures: Failures,
    audit: Audit,
    action: &'static str,
    /// What is said of those beyond.
    more: &'static str,
}

impl Refusals {
    pub(crate) fn new(audit: Audit, action: &'static str, more: &'static str) -> Refusals {
        Refusals {
            failures: Failures::default(),
            audit,
            action,
            more,
        }
    }

    /// Puts one on record, with what `event` adds to it.
    pub(crate) fn note(&self, whom: Whom, event: Event, why: &str) -> Failed {
        let failed = self.failures.count(whom, Instant::now(), true);
        if failed.limited.is_none() {
            let why = why.lines().next().unwrap_or_default();
            self.audit.note(event.ended(&format!("failed: {why}")));
        }
        failed
    }

    /// Puts the sums of those on record whose time is over by `now`.
    pub(crate) fn sum(&self, now: Instant) {
        for sum in self.failures.sums(now) {
            let (who, address) = sum.whom.told();
            tracing::warn!(who, peer = address, count = sum.count, "{}", self.more);
            let event = Event::by(who, address, self.action).with("count", sum.count);
            self.audit
                .note(event.ended(&format!("failed: {}", self.more)));
        }
    }
}

impl Tried {
    fn limited(&self, now: Instant) -> Option<Duration> {
        (self.count > ANSWERED_MAX).then(|| self.left(now))
    }

    fn left(&self, now: Instant) -> Duration {
        let left = SUMMED.saturating_sub(now.saturating_duration_since(self.since));
        left.max(Duration::from_secs(1))
    }
}

/// The network of one customer of an internet provider: an IPv4 address, or 64 bits of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_guesses_are_one_line_and_one_sum() {
        let failures = Failures::default();
        let (whom, now) = (Whom::Address([10, 0, 0, 1].into()), Instant::now());
        let tried: Vec<Failed> = (0..10_000)
            .map(|_| failures.count(whom.clone(), now, false))
            .collect();
        assert_eq!(tried.iter().filter(|failed| failed.first).count(), 1);
        let answered = tried.iter().filter(|failed| failed.limited.is_none());
        assert_eq!(answered.count() as u64, ANSWERED_MAX);
        assert_eq!(failures.sums(now), []);
        let now = now + SUMMED;
        let sum = Sum {
            whom: whom.clone(),
            count: 9_999,
        };
        assert_eq!(failures.sums(now), [sum]);
        assert!(failures.count(whom, now, false).first);
    }

    #[test]
    fn addresses_are_bounded_and_networks_are_one() {
        let (failures, now) = (Failures::default(), Instant::now());
        for low in 0..10_000_u16 {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, low);
            failures.count(Whom::at(Some(address.into())), now, false);
        }
        assert_eq!(lock(&failures.0).len(), 1);
        for low in 0..10_000_u32 {
            failures.count(Whom::at(Some(IpAddr::V4(low.into()))), now, false);
        }
        assert_eq!(lock(&failures.0).len(), ADDRESSES_MAX + 1);
        let other = failures.count(Whom::at(Some([10, 1, 1, 1].into())), now, false);
        assert!(other.limited.is_some());
    }

    #[test]
    fn a_person_is_told_apart_from_the_address_they_share() {
        let (failures, now) = (Failures::default(), Instant::now());
        let named = |name: &str| Whom::Named(name.to_owned());
        for _ in 0..100 {
            failures.count(named("anna"), now, true);
        }
        assert!(failures.count(named("anna"), now, true).limited.is_some());
        assert!(failures.count(named("ben"), now, true).limited.is_none());
        let now = now + SUMMED;
        let sum = Sum {
            whom: named("anna"),
            count: 101 - ANSWERED_MAX,
        };
        assert_eq!(failures.sums(now), [sum]);
    }
}
