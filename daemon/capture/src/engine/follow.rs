//! Changes what a capture samples while it runs, by replacing its set of rings with another.
//!
//! A perf event belongs to the cgroup it was opened on, not to its path. When a unit or container
//! restarts it gets a new cgroup, which the event does not count. Also, an event with a period may
//! occur more often than the sampling limit allows.
//!
//! Called by the capture's thread. Blocks as starting a capture does.

use super::{Engine, EngineError, Entry, PERIOD_MAX, Started, checked, identity, open_cgroup};
use cgroup::usage;
use host::ids::CaptureId;
use perf::probe::Every;
use sampler::{CaptureSwitch, Command, RingSetSwitch, SetOf};
use std::time::Duration;

/// What happened to the cgroup that a capture's events are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// They are bound to none.
    Unbound,
    /// It is there.
    Same,
    /// It is not there now.
    Gone,
    /// It was made again, and is sampled from now on.
    Again {
        /// CPU time that it had used before; `None` where the kernel keeps no account.
        unseen: Option<Duration>,
        /// Notices for the reader of the profile.
        notices: Vec<String>,
    },
}

impl Engine {
    /// Looks whether the cgroup of a capture is another one by now, and goes on with that. A few
    /// microseconds where it is not.
    ///
    /// # Errors
    /// [`EngineError`] when the new one cannot be sampled: the capture keeps what it has.
    pub fn follow(&self, id: CaptureId) -> Result<Followed, EngineError> {
        let Some(Some(bound)) = self.of(id, |set| set.spec.cgroup.clone()) else {
            return Ok(Followed::Unbound);
        };
        match identity(&bound.directory) {
            Ok(found) if found == bound.identity => return Ok(Followed::Same),
            Ok(_) => {}
            Err(_) => return Ok(Followed::Gone),
        }
        let Some(mut probes) = self.of(id, |set| set.spec.probes.clone()) else {
            return Ok(Followed::Unbound);
        };
        let cgroup = open_cgroup(&bound.directory)?;
        let mut notices = Vec::new();
        for probe in &mut probes {
            // The kernel may have lowered its limit since the start.
            probe.every = checked(probe.every, &probe.name, &probe.source, &mut notices)?;
        }
        // The old cgroup is dead, and the new one was nobody's: all of both is the capture's.
        let started = self.enter(id, Entry::Change, probes, Some(cgroup), |set, started| {
            follow(id, set, started.period, RingSetSwitch::Apart)
        })?;
        notices.extend(started.notices);
        Ok(Followed::Again {
            unseen: usage::used_in(&bound.directory),
            notices,
        })
    }

    /// Has the event of a capture sampled so many times more rarely, and says how it is set up
    /// then. By a longer period, never by the kernel's rate: that follows bursts, and takes 14
    /// samples of 32,000 page faults in 3 s where 499 a second are asked for (Linux 6.18). `None`:
    /// it is by rate, or none of this id runs.
    ///
    /// # Errors
    /// [`EngineError`]: the capture keeps what it has.
    pub fn slow_down(&self, id: CaptureId, times: u64) -> Result<Option<Started>, EngineError> {
        let Some(spec) = self.of(id, |set| set.spec.clone()) else {
            return Ok(None);
        };
        let [probe] = &spec.probes[..] else {
            return Ok(None);
        };
        // A clock with a period is at most as fast as the highest rate.
        let period = match probe.every {
            Every::Period(period) if !probe.source.is_clock() => period,
            Every::Period(_) | Every::Rate(_) => return Ok(None),
        };
        let (mut probe, mut notices) = (probe.clone(), Vec::new());
        let longer = period.saturating_mul(times.max(2)).min(PERIOD_MAX);
        let longer = Every::Period(longer);
        probe.every = checked(longer, &probe.name, &probe.source, &mut notices)?;
        let cgroup = spec.cgroup.map(|bound| open_cgroup(&bound.directory));
        let cgroup = cgroup.transpose()?;
        let mut started = self.enter(id, Entry::Change, vec![probe], cgroup, |set, started| {
            follow(id, set, started.period, RingSetSwitch::Cut)
        })?;
        started.notices.append(&mut notices);
        Ok(Some(started))
    }
}

fn follow(id: CaptureId, set: SetOf, period: u64, seam: RingSetSwitch) -> Command {
    Command::FollowCapture(Box::new(CaptureSwitch {
        id,
        set,
        period,
        seam,
    }))
}
