//! What each sender has sent lately, against its bounds.
//!
//! The collector's memory of it is bounded by the number of tokens, and of series by the bound
//! itself. It starts again with the collector.

use super::{Cause, Refusal};
use crate::sync::lock;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

const MINUTE_NS: i64 = 60_000_000_000;
const HOUR_NS: i64 = 3_600_000_000_000;

/// See the file.
pub(super) struct Accounts {
    bytes_per_minute: u64,
    series_max: usize,
    hasher: RandomState,
    senders: Mutex<HashMap<String, Account>>,
}

#[derive(Default)]
struct Account {
    minute: i64,
    bytes: u64,
    hour: i64,
    series: HashSet<u64>,
}

impl Accounts {
    pub fn new(bytes_per_minute: u64, series_max: usize) -> Accounts {
        Accounts {
            bytes_per_minute,
            series_max,
            hasher: RandomState::new(),
            senders: Mutex::default(),
        }
    }

    /// Adds a request of a sender.
    ///
    /// # Errors
    /// When the sender sent too much in this minute.
    pub fn bytes(&self, sender: &str, bytes: u64, now_unix_ns: i64) -> Result<(), Refusal> {
        let mut senders = lock(&self.senders);
        let account = senders.entry(sender.to_owned()).or_default();
        let minute = now_unix_ns.div_euclid(MINUTE_NS);
        if account.minute != minute {
            (account.minute, account.bytes) = (minute, 0);
        }
        let sum = account.bytes.saturating_add(bytes);
        // The first request of a minute is taken whatever its size, which has a bound of its own.
        if account.bytes > 0 && sum > self.bytes_per_minute {
            let mib = self.bytes_per_minute >> 20;
            return Err(Refusal {
                cause: Cause::Rate,
                text: format!(
                    "`{sender}` sent more than {mib} MiB in this minute \
                     (`senders.sender_mib_per_minute`): try again in the next one"
                ),
            });
        }
        account.bytes = sum;
        Ok(())
    }

    /// Notes the series of a request of a sender: all of them, or none.
    ///
    /// # Errors
    /// When there are new ones, and the sender has too many in this hour.
    pub fn series<'a>(
        &self,
        sender: &str,
        series: impl IntoIterator<Item = &'a str>,
        now_unix_ns: i64,
    ) -> Result<(), Refusal> {
        let mut senders = lock(&self.senders);
        let account = senders.entry(sender.to_owned()).or_default();
        let hour = now_unix_ns.div_euclid(HOUR_NS);
        if account.hour != hour {
            account.hour = hour;
            account.series.clear();
        }
        let series = series.into_iter().map(|one| self.hasher.hash_one(one));
        let new: HashSet<u64> = series.filter(|one| !account.series.contains(one)).collect();
        if account.series.len() + new.len() > self.series_max && !new.is_empty() {
            let most = self.series_max;
            return Err(Refusal {
                cause: Cause::Series,
                text: format!(
                    "`{sender}` sends more than {most} series in this hour, which is the limit \
                     (`senders.sender_series_max`): send labels with fewer values"
                ),
            });
        }
        account.series.extend(new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_may_send_so_much_in_a_minute_and_others_are_not_affected() {
        let accounts = Accounts::new(100, 1);
        assert!(accounts.bytes("a", 60, 1).is_ok());
        assert!(accounts.bytes("a", 41, 2).is_err());
        assert!(accounts.bytes("a", 40, 3).is_ok());
        assert!(accounts.bytes("b", 100, 3).is_ok());
        assert!(accounts.bytes("a", 60, MINUTE_NS).is_ok());
    }

    #[test]
    fn series_that_are_known_are_taken_at_the_limit() {
        let accounts = Accounts::new(1, 2);
        assert!(accounts.series("a", ["x"], 1).is_ok());
        assert!(accounts.series("a", ["y"], 1).is_ok());
        assert!(accounts.series("a", ["z"], 1).is_err());
        assert!(accounts.series("a", ["x"], 1).is_ok());
        assert!(accounts.series("a", ["z"], HOUR_NS).is_ok());
    }
}
