//! Applies changes while the sampler runs: new rings, CPUs that come and go, the length of windows.

use super::held::HeldSelection;
use super::pace::CopyWatch;
use super::{Command, Sampler, SamplerError};
use crate::workers::file_loader::Retired;
use host::sys::Poller;
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRing;
use perf::rings::Rings;
use std::os::fd::RawFd;
use std::time::Duration;
use unwind::walk::Depths;

/// Rings that are to be sampled from `cut` on. Both run for a moment, so that nothing is missing
/// between them, and what both have is taken from one.
pub(super) struct Successor {
    rings: Rings,
    depths: Depths,
    period: u64,
    reduced: bool,
    pub(super) cut: MonotonicTime,
}

impl Sampler {
    /// Switches to the successor once its cut has been reached.
    pub(super) fn succeed(&mut self) -> Result<(), SamplerError> {
        let Some(next) = self.successor.take() else {
            return Ok(());
        };
        let mut next = *next;
        // Weights differ from here on.
        self.look_at_held(HeldSelection::All);
        self.hand_over(next.cut, false)?;
        next.rings.follow(&self.rings, next.cut);
        for watched in next.rings.fds() {
            listen(&self.poller, &self.deaf, watched)?;
        }
        for watched in self.rings.fds() {
            unlisten(&self.poller, &self.deaf, watched)?;
        }
        next.rings.adopt_sets(&mut self.rings);
        let mut old = std::mem::replace(&mut self.rings, next.rings);
        old.stop();
        self.retire(Retired(Box::new(old)));
        self.unwinder.depths = next.depths;
        self.folder.batch().period = next.period;
        self.folder.reduced = next.reduced;
        self.deep = CopyWatch::since(self.unwinder.counts().copies.cut);
        Ok(())
    }

    pub(super) fn unwatch(&self, ring: &CpuRing) -> Result<(), SamplerError> {
        match ring.watched() {
            Some(watched) => unlisten(&self.poller, &self.deaf, watched),
            None => Ok(()),
        }
    }

    pub(super) fn obey(
        &mut self,
        command: Command,
        horizon: MonotonicTime,
        now: MonotonicTime,
    ) -> Result<(), SamplerError> {
        // Later than the pass started, where that took time.
        let now = now.max(MonotonicTime::now());
        match command {
            Command::Windows { length, boundary } => {
                self.window = length;
                self.window_end = end_after(horizon, boundary, length);
                self.window_over = None;
            }
            Command::Replace {
                rings,
                depths,
                period,
                reduced,
            } => {
                // They have filled since the first of them was opened, and nothing before the cut
                // is theirs.
                let mut rings = *rings;
                rings.drain(MonotonicTime::now(), |_| {});
                self.successor = Some(Box::new(Successor {
                    rings,
                    depths,
                    period,
                    reduced,
                    cut: MonotonicTime::now(),
                }));
            }
            Command::AddCpu { rings, since, left } => {
                for gap in self.rings.missed_around(&rings.samples, left, since) {
                    self.losses.add(gap);
                }
                for watched in rings.iter().filter_map(CpuRing::watched) {
                    listen(&self.poller, &self.deaf, watched)?;
                }
                self.captures.cpu_came(since);
                self.rings.add(*rings);
            }
            Command::KeepTimes(keep) => self.folder.keep_timestamps = keep,
            Command::RemoveCpu(cpu) => {
                self.rings.leave(cpu);
                if self.rings.leave_sets(cpu) {
                    self.captures.cpu_changed();
                }
            }
            Command::BeginCapture(capture) => {
                self.captures
                    .start(*capture, &mut self.rings, &self.poller, now);
            }
            Command::FollowCapture(follow) => {
                self.captures
                    .follow(*follow, &mut self.rings, &self.poller, now);
            }
            Command::EndCapture(id) => self.captures.end(id, now),
        }
        Ok(())
    }
}

/// Makes the pollers report when a ring fills.
pub(super) fn listen(
    poller: &Poller,
    deaf: &Poller,
    (fd, is_side_band): (RawFd, bool),
) -> Result<(), SamplerError> {
    poller.add_edge(fd, 0).map_err(SamplerError::Wait)?;
    match is_side_band {
        true => deaf.add_edge(fd, 0).map_err(SamplerError::Wait),
        false => Ok(()),
    }
}

fn unlisten(
    poller: &Poller,
    deaf: &Poller,
    (fd, is_side_band): (RawFd, bool),
) -> Result<(), SamplerError> {
    poller.remove(fd).map_err(SamplerError::Wait)?;
    match is_side_band {
        true => deaf.remove(fd).map_err(SamplerError::Wait),
        false => Ok(()),
    }
}

/// The first end of a window after `time`, when windows of `length` meet at `boundary`.
fn end_after(time: MonotonicTime, boundary: MonotonicTime, length: Duration) -> MonotonicTime {
    let length = (length.as_nanos() as i128).max(1);
    let into = (i128::from(time.0) - i128::from(boundary.0)).rem_euclid(length);
    time.plus(Duration::from_nanos((length - into) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_end(time: u64, boundary: u64, length: u64, expected: u64) {
        let end = end_after(
            MonotonicTime(time),
            MonotonicTime(boundary),
            Duration::from_nanos(length),
        );
        assert_eq!(end, MonotonicTime(expected));
    }

    #[test]
    fn windows_are_aligned_to_a_boundary_before_or_after() {
        check_end(103, 110, 10, 110);
        check_end(103, 150, 10, 110);
        check_end(103, 20, 10, 110);
        check_end(103, 1007, 10, 107);
    }

    #[test]
    fn a_window_that_would_end_now_lasts_its_whole_length() {
        check_end(110, 110, 10, 120);
    }
}
