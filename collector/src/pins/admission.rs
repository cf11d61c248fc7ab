//! Bounds what one host may upload per day of UTC.

use super::limits::{HOST_PINS_PER_DAY_MAX, HOSTS_PER_DAY_MAX};
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::time::Clock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tonic::Status;

/// Nanoseconds of a day.
const DAY_NS: i64 = 86_400_000_000_000;

/// Uploads of each host on one day.
#[derive(Default)]
struct Today {
    day: i64,
    /// Pins and their bytes.
    hosts: HashMap<String, (u32, u64)>,
}

/// See the module.
pub(super) struct Admission {
    today: Mutex<Today>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// A pin that a host uploads, counted for its day. Dropped before it [counts](Admitted::counts) for
/// good it is given back with its bytes: what became of the disk or the connection is not the
/// host's fault.
pub(super) struct Admitted {
    admission: Arc<Admission>,
    host_id: String,
    day: i64,
    bytes: u64,
    counts: bool,
}

impl Admission {
    pub(super) fn new(clock: Clock, metrics: Arc<Metrics>) -> Admission {
        Admission {
            today: Mutex::default(),
            clock,
            metrics,
        }
    }

    fn today(&self) -> MutexGuard<'_, Today> {
        lock(&self.today)
    }

    /// Counts a pin of a host, when it may upload one more today.
    pub(super) fn admit(
        self: &Arc<Self>,
        host_id: &str,
        host_bytes: u64,
    ) -> Result<Admitted, Status> {
        let day = self.clock.now_unix_ns().div_euclid(DAY_NS);
        let mut today = self.today();
        if today.day != day {
            *today = Today {
                day,
                hosts: HashMap::new(),
            };
        }
        let refused = |text: String| {
            self.metrics.pins_limited.inc();
            Err(Status::resource_exhausted(text))
        };
        if today.hosts.len() >= HOSTS_PER_DAY_MAX && !today.hosts.contains_key(host_id) {
            let text = "too many hosts have uploaded pins today; retry tomorrow";
            return refused(text.to_owned());
        }
        let (pins, bytes) = today.hosts.entry(host_id.to_owned()).or_default();
        if *pins >= HOST_PINS_PER_DAY_MAX {
            return refused(format!(
                "the host has uploaded {pins} pins today, which is the limit; retry tomorrow"
            ));
        }
        if *bytes > host_bytes {
            return refused(format!(
                "the host has uploaded {bytes} bytes of pins today, more than it may keep \
                 (`pins.host_mib`); retry tomorrow"
            ));
        }
        *pins += 1;
        Ok(Admitted {
            admission: Arc::clone(self),
            host_id: host_id.to_owned(),
            day,
            bytes: 0,
            counts: false,
        })
    }
}

impl Admitted {
    /// Counts bytes of it.
    pub(super) fn add_bytes(&mut self, more: u64) {
        self.bytes = self.bytes.saturating_add(more);
        self.change(|(_, bytes)| *bytes = bytes.saturating_add(more));
    }

    /// It was kept, or made no sense.
    pub(super) fn counts(&mut self) {
        self.counts = true;
    }

    fn change(&self, change: impl FnOnce(&mut (u32, u64))) {
        let mut today = self.admission.today();
        if today.day == self.day
            && let Some(host) = today.hosts.get_mut(&self.host_id)
        {
            change(host);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if !self.counts {
            self.change(|(pins, bytes)| {
                *pins = pins.saturating_sub(1);
                *bytes = bytes.saturating_sub(self.bytes);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_the_hosts_fault_uses_up_nothing_of_its_day() {
        let admission = Arc::new(Admission::new(Clock::new(|| 0), Arc::default()));
        let upload = |counts: bool| {
            let mut admitted = admission.admit("a", 100)?;
            admitted.add_bytes(60);
            if counts {
                admitted.counts();
            }
            Ok::<(), Status>(())
        };
        for _ in 0..2 * HOST_PINS_PER_DAY_MAX {
            upload(false).expect("it is given back");
        }
        upload(true).expect("60 bytes of 100");
        upload(true).expect("the last within 100");
        upload(true).expect_err("too many bytes");
    }
}
