//! The rings of all CPUs, drained together in order of time.
//!
//! Records of different CPUs depend on each other: a process forked on one CPU runs on another. A
//! drain takes all records older than a horizon shortly before now from all rings, sorts them by
//! time and hands them out. Younger ones stay for the next drain, because an older one may still
//! arrive from another CPU.

use crate::cpu_ring::{self, CpuCounts, CpuRing, CpuRings, OverflowPolicy, ScanResult};
use crate::error::RingsError;
use crate::event::{EventSpec, Features};
use crate::loss::LossGap;
use crate::plan;
use crate::record::{self, Layout, Record, Sample};
use crate::ring::{Position, Scratch};
use crate::rings::sets::{RingSet, SetKey, each_of_set, in_sets};
use host::ids::{CpuId, Tid};
use host::time::MonotonicTime;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How far before now a drain stops. A record gets its time when the kernel starts to write it and
/// is visible when it is done: microseconds, unless a hypervisor takes the CPU away in between.
/// What comes later than that is still used, and counted as late.
pub const HORIZON: Duration = Duration::from_millis(2);

/// How far a drain may go at `now`.
pub fn horizon_at(now: MonotonicTime) -> MonotonicTime {
    MonotonicTime(now.0.saturating_sub(HORIZON.as_nanos() as u64))
}

/// Records a drain handles at once; more are left for the next. Bounds the index's memory at
/// 6 MiB. A drain at 99 Hz and 64 CPUs sees about 15,000.
const RECORDS_PER_DRAIN_MAX: usize = 1 << 18;

/// Samples of captures that a drain handles at once, those of all their rings together: at 5 to 10
/// µs each about 0.1 s. As rings of the continuous profile hold several times that, its records
/// never wait for a capture's until they are lost.
const SET_RECORDS_PER_DRAIN_MAX: usize = 1 << 14;

/// Least of them for one ring.
const SET_SHARE_MIN: usize = 16;

/// Least records of one ring that a drain takes.
const SHARE_MIN: usize = 64;

/// How full the fullest ring of the continuous profile's samples is when captures do without what
/// is beyond their share, in parts of 256. Until then all wait together for the next drain, which
/// follows at once, so that the process table is that of their time.
const DROP_FULL: u64 = 96;

/// How far the drains may fall behind for their sake before they do without likewise.
const DROP_LATE: Duration = Duration::from_secs(2);

/// As [`DROP_FULL`], when the side band does: it names the samples, and a ring of samples is half
/// full by design when the sampler comes.
const DROP_SIDE_BAND_FULL: u64 = 176;

/// How far a scan came: before the first record that found no room in the index.
struct Reached {
    /// For the continuous profile's samples.
    samples: MonotonicTime,
    /// For these and the side band.
    continuous: MonotonicTime,
    /// For captures as well.
    all: MonotonicTime,
}

/// A ring that fills this often wakes the reader about twice in three seconds, as the watermark
/// lies at five eighths.
const OFTEN: Duration = Duration::from_secs(1);

/// How full a ring is found after a time of quiet, in parts of 256: less, and the CPUs are idle,
/// where listening costs nothing; more, and there is more than samples, of which nobody knows how
/// much.
const QUIET_FULL: std::ops::Range<u64> = 16..176;

/// How full a ring is when nothing waits any more for what is not in it. Unit: parts of 256.
const WAITS_FULL: u64 = 64;

/// The rings of all CPUs.
pub struct Rings {
    rings: Vec<CpuRing>,
    /// Sets of captures.
    sets: Vec<RingSet>,
    /// Counts of each CPU that was ever sampled.
    counts: BTreeMap<CpuId, CpuCounts>,
    layout: Layout,
    features: Features,
    found: ScanResult,
    newest: MonotonicTime,
    /// In how much time samples alone fill a ring; zero when that is not known.
    fills_in: Duration,
    /// Time of the newest record when something was lost last.
    lost_at: Option<MonotonicTime>,
    /// Findings of the last drain.
    pub stats: DrainStats,
    /// Records that were older than ones already handed out.
    pub late: u64,
    /// Damaged records.
    pub malformed: u64,
    /// Times a ring was flushed, those of captures included.
    pub flushed: u64,
    /// Records lost in rings that stood still, those of captures left out.
    pub lost_stalled: u64,
    /// Records of the side band lost in rings of its own.
    pub lost_side_band: u64,
}

/// How late the sampler may be with emptying a ring after a time of quiet without a loss, where
/// rings hold enough for it: a thread of ordinary priority waits a tenth of it on a busy machine,
/// and a pass over 64 busy CPUs takes another tenth.
const LATE_AT_MOST: Duration = Duration::from_millis(300);

/// How long times of quiet are short after a loss: on this machine more is late, or passes take
/// longer, than [`LATE_AT_MOST`] reckons with.
const CAREFUL: Duration = Duration::from_secs(600);

/// See [`Rings::quiet`].
fn quiet(stats: DrainStats, rings: usize, fills_in: Duration, careful: bool) -> Option<Duration> {
    let ordinary = QUIET_FULL.contains(&stats.fullest) && stats.lost + stats.lost_side_band == 0;
    let often = fills_in / (rings.max(1) as u32) < OFTEN && !fills_in.is_zero();
    (ordinary && often).then(|| {
        let least = fills_in * 7 / 20;
        match careful {
            true => least,
            false => (fills_in * 3 / 5)
                .min(fills_in.saturating_sub(LATE_AT_MOST))
                .max(least),
        }
    })
}

/// Findings of a drain about losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStats {
    /// Records that found no room in rings of samples, of all kinds.
    pub lost: u64,
    /// Records of the side band that found none in its own.
    pub lost_side_band: u64,
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Damaged records.
    pub malformed: u64,
    /// How full the fullest ring of samples was. Unit: parts of 256.
    pub fullest: u64,
    /// Samples of captures that were there and that nobody had the time to take; counted as lost
    /// too.
    pub dropped: u64,
    /// Times a ring stood still and was flushed.
    pub flushed: u64,
    /// Records lost in rings that stood still, out of `lost`.
    pub lost_stalled: u64,
}

impl DrainStats {
    fn add(&mut self, counts: CpuCounts) {
        self.lost = self.lost.saturating_add(counts.lost);
        self.lost_side_band = self.lost_side_band.saturating_add(counts.lost_side_band);
        self.throttled += counts.throttled;
        self.malformed += counts.malformed;
        self.dropped += counts.dropped;
        self.flushed += counts.flushed;
        self.lost_stalled = self.lost_stalled.saturating_add(counts.lost_stalled);
    }
}

/// An item that a drain hands out.
pub enum Drained<'a> {
    /// Samples that are missing; before all records.
    LossGap(LossGap),
    /// A record.
    Record {
        /// When it was made.
        time: MonotonicTime,
        /// CPU of the ring.
        cpu: CpuId,
        /// The record.
        record: Record<'a>,
    },
    /// Samples that are missing in a ring of a capture; before all records.
    SetGap {
        /// The set that it belongs to.
        set: SetKey,
        /// Number of the event in the set.
        event: u8,
        /// What is missing.
        gap: LossGap,
    },
    /// A sample of a ring of a capture.
    SetSample {
        /// The set that it belongs to.
        set: SetKey,
        /// Number of the event in the set.
        event: u8,
        /// The sample.
        sample: Sample<'a>,
    },
    /// A thread arrives on a CPU for which a set requested this ([`RingSet::tell_arrivals`]).
    SetArrival {
        /// The set that it belongs to.
        set: SetKey,
        /// Its time.
        time: MonotonicTime,
        /// The CPU.
        cpu: CpuId,
        /// The thread.
        tid: Tid,
    },
}

/// All rings, in the order of their numbers.
fn all<'a>(
    rings: &'a mut [CpuRing],
    sets: &'a mut [RingSet],
) -> impl Iterator<Item = &'a mut CpuRing> {
    let others = sets.iter_mut().flat_map(|set| set.rings.iter_mut());
    rings.iter_mut().chain(others.map(|it| &mut it.ring))
}

impl Rings {
    /// Opens, maps and enables the event on each of `cpus`. CPUs that went away meanwhile are left
    /// out.
    ///
    /// # Errors
    /// [`RingsError`], when any other CPU fails: half a machine is not a profile.
    pub fn open(cpus: &[CpuId], spec: &EventSpec, ring_bytes: usize) -> Result<Rings, RingsError> {
        let mut features = Features::default();
        let mut rings = Vec::with_capacity(cpus.len());
        for &cpu in cpus {
            match CpuRings::open(cpu, spec, ring_bytes, features) {
                Ok((opened, took)) => {
                    features = took;
                    rings.extend(opened);
                }
                Err(_) if is_offline(cpu) => {}
                Err(error) => return Err(error),
            }
        }
        let mut rings = Rings::over(rings, features, spec.stack_bytes)?;
        let held_ms = plan::held_ms(ring_bytes as u64, spec.rate_hz, spec.stack_bytes.into());
        rings.fills_in = Duration::from_millis(held_ms);
        Ok(rings)
    }

    /// Rings that are open already, of events that copy `stack_bytes` of the user stack.
    ///
    /// # Errors
    /// [`RingsError`], when there are none, or no memory.
    pub fn over(
        rings: Vec<CpuRing>,
        features: Features,
        stack_bytes: u32,
    ) -> Result<Rings, RingsError> {
        if rings.is_empty() {
            return Err(RingsError::NoCpus);
        }
        let found = ScanResult {
            index: Vec::with_capacity(4096),
            gaps: Vec::new(),
            start: MonotonicTime(0),
            scratch: Scratch::new().map_err(RingsError::Memory)?,
        };
        Ok(Rings {
            rings,
            sets: Vec::new(),
            counts: BTreeMap::new(),
            layout: features.layout(stack_bytes),
            features,
            found,
            newest: MonotonicTime(0),
            fills_in: Duration::ZERO,
            lost_at: None,
            stats: DrainStats::default(),
            late: 0,
            malformed: 0,
            flushed: 0,
            lost_stalled: 0,
            lost_side_band: 0,
        })
    }

    /// Drains the rings of captures too from now on.
    pub fn add_set(&mut self, set: RingSet) {
        self.sets.push(set);
    }

    /// Drains a set no more.
    pub fn take_set(&mut self, key: SetKey) -> Option<RingSet> {
        let at = self.sets.iter().position(|set| set.key == key)?;
        Some(self.sets.swap_remove(at))
    }

    /// The sets of captures.
    pub fn sets(&self) -> &[RingSet] {
        &self.sets
    }

    /// A set: it is asked for more, and benches and tests write to its rings.
    pub fn set_mut(&mut self, key: SetKey) -> Option<&mut RingSet> {
        self.sets.iter_mut().find(|set| set.key == key)
    }

    /// Takes over the sets of captures from the replaced rings.
    pub fn adopt_sets(&mut self, others: &mut Rings) {
        self.sets.append(&mut others.sets);
    }

    /// Stops all captures from sampling a CPU that went away. Returns whether any did.
    pub fn leave_sets(&mut self, cpu: CpuId) -> bool {
        let left = self.sets.iter_mut().map(|set| set.leave(cpu));
        left.fold(false, |any, left| any | left)
    }

    /// Descriptors to wait on, those of captures left out, and whether each is of the side band,
    /// which must be listened to also while the samples' need not ([`Rings::quiet`]): nobody knows
    /// when more comes.
    pub fn fds(&self) -> impl Iterator<Item = (RawFd, bool)> + '_ {
        self.rings.iter().filter_map(CpuRing::watched)
    }

    /// How long the rings may be left alone after the last drain; `None`: until one says that it
    /// fills.
    ///
    /// The kernel wakes a reader each time so many bytes were written, whether or not they have
    /// been read since. So with many busy CPUs, each at its own beat, a reader that listens is
    /// woken all the time, for rings that another one's wake-up has just emptied. Samples come at a
    /// known rate: where nothing but samples came, there is no need to listen. A few CPUs are
    /// listened to always.
    pub fn quiet(&self) -> Option<Duration> {
        // At what rate captures fill theirs is their own matter.
        let listened = !self.sets.is_empty();
        let lost = self
            .lost_at
            .is_some_and(|at| self.newest.since(at) < CAREFUL);
        // What else is in rings of samples where there is no side band comes at no known rate.
        let careful = lost || !self.rings.iter().any(CpuRing::is_side_band);
        quiet(self.stats, self.cpus(), self.fills_in, careful).filter(|_| !listened)
    }

    /// The features the kernel took.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Counts of each CPU that was ever sampled, in order of CPUs.
    pub fn counts(&self) -> impl Iterator<Item = (CpuId, CpuCounts)> + '_ {
        self.counts.iter().map(|(&cpu, &counts)| (cpu, counts))
    }

    /// Samples one more CPU, or a CPU with a dead event again; records left in its rings are read
    /// first.
    pub fn add(&mut self, rings: CpuRings) {
        self.leave(rings.samples.cpu);
        self.rings.extend(rings);
    }

    /// What is missing of a CPU that was offline from `left` to `since`, as far as it is known, and
    /// is sampled again through `ring`; counted as missed with it. The kernel takes the event away
    /// before it says that the CPU goes, and the CPU runs before it says that it came.
    pub fn missed_around(
        &mut self,
        ring: &CpuRing,
        left: MonotonicTime,
        since: MonotonicTime,
    ) -> impl Iterator<Item = LossGap> + use<> {
        let counts = self.counts.get_mut(&ring.cpu);
        // Where it left unnoticed the time since its last sample is one gap.
        let last = counts.as_ref().map(|counts| counts.newest);
        let gaps = match last {
            Some(last) if left < since => [
                ring.missed_between(last, Some(left)),
                ring.missed_between(since, None),
            ],
            last => [None, ring.missed_between(last.unwrap_or(since), None)],
        };
        let found = gaps.into_iter().flatten();
        if let Some(counts) = counts {
            counts.missed += found.clone().map(|gap| gap.samples).sum::<u64>();
        }
        found
    }

    /// Samples a CPU no more. Its ring stays until it is empty.
    pub fn leave(&mut self, cpu: CpuId) {
        for ring in self.rings.iter_mut().filter(|ring| ring.cpu == cpu) {
            ring.leave();
        }
    }

    /// Samples no CPU any more through these rings, which others have taken over from: until
    /// somebody closes their events these would only cost.
    pub fn stop(&mut self) {
        self.rings.iter_mut().for_each(CpuRing::leave);
    }

    /// Removes a ring that was asked to leave and is empty.
    pub fn take_left(&mut self) -> Option<CpuRing> {
        let at = self.rings.iter().position(CpuRing::has_left)?;
        Some(self.rings.swap_remove(at))
    }

    /// Goes on where other rings stop: what is not younger than `cut` was theirs, and counts carry
    /// on.
    pub fn follow(&mut self, others: &Rings, cut: MonotonicTime) {
        self.found.start = cut;
        self.newest = others.newest;
        self.late = others.late;
        self.malformed = others.malformed;
        self.flushed = others.flushed;
        self.lost_stalled = others.lost_stalled;
        self.lost_side_band = others.lost_side_band;
        self.counts.clone_from(&others.counts);
    }

    /// Rings of samples.
    fn of_samples(&self) -> impl Iterator<Item = &CpuRing> + '_ {
        self.rings.iter().filter(|ring| !ring.is_side_band())
    }

    /// The CPUs with a ring.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.of_samples().map(|ring| ring.cpu)
    }

    /// Number of CPUs with a ring.
    pub fn cpus(&self) -> usize {
        self.of_samples().count()
    }

    /// Memory of the index of records.
    pub fn index_bytes(&self) -> usize {
        self.found.index.capacity() * size_of::<(MonotonicTime, u32, Position)>()
    }

    /// The rings of all CPUs.
    pub fn rings_mut(&mut self) -> &mut [CpuRing] {
        &mut self.rings
    }

    /// How long records of the continuous profile may stay where they are: a part of what the rings
    /// hold, and no time at all when they have filled to a quarter, or when captures record as
    /// well.
    pub fn may_wait(&self, most: Duration) -> Duration {
        let is_low = |ring: &CpuRing| ring.fullness() < WAITS_FULL;
        match self.sets.is_empty() && self.rings.iter().all(is_low) {
            true if self.fills_in.is_zero() => most,
            true => most.min(self.fills_in / 4),
            false => Duration::ZERO,
        }
    }

    /// Hands out every record up to `asked`, in order of time, and gives the space back to the
    /// kernel. Returns the horizon it reached: all records before it have been handed out, and are
    /// an earlier one than asked for when there are too many for one drain.
    pub fn drain(
        &mut self,
        asked: MonotonicTime,
        mut each: impl FnMut(Drained<'_>),
    ) -> MonotonicTime {
        let horizon = self.scan(asked);
        for (number, ring) in all(&mut self.rings, &mut self.sets).enumerate() {
            ring.count_losses(number as u32, (horizon, asked), &mut self.found);
        }
        let main = self.rings.len();
        for &(number, gap) in &self.found.gaps {
            match (number as usize).checked_sub(main) {
                None => each(Drained::LossGap(gap)),
                Some(number) => {
                    if let Some((set, it, _)) = in_sets(&mut self.sets, number) {
                        let event = it.event;
                        each(Drained::SetGap { set, event, gap });
                    }
                }
            }
        }
        let ScanResult { index, scratch, .. } = &mut self.found;
        index.sort_unstable();
        for &(time, number, position) in &*index {
            if let Some(number) = (number as usize).checked_sub(main) {
                if let Some((set, it, layout)) = in_sets(&mut self.sets, number) {
                    let at = (time, position);
                    each_of_set(set, it, &layout, at, scratch, &mut each);
                }
                continue;
            }
            let ring = &mut self.rings[number as usize];
            // Scanned before, so the header is sound.
            let Some(bytes) = ring.record(position, scratch) else {
                continue;
            };
            let Ok(mut record) = record::parse(bytes, &self.layout) else {
                ring.malformed();
                continue;
            };
            if let Record::Sample(sample) = &mut record {
                sample.time = time;
            }
            self.late += u64::from(time < self.newest);
            self.newest = self.newest.max(time);
            let cpu = ring.cpu;
            each(Drained::Record { time, cpu, record });
        }
        self.stats = DrainStats::default();
        for ring in &mut self.rings {
            if !ring.is_side_band() {
                self.stats.fullest = self.stats.fullest.max(ring.fullness());
            }
            let counts = ring.release();
            self.stats.add(counts);
            self.counts.entry(ring.cpu).or_default().add(counts);
        }
        if self.stats.lost + self.stats.lost_side_band > 0 {
            self.lost_at = Some(self.newest);
        }
        self.malformed += self.stats.malformed;
        self.flushed += self.stats.flushed;
        self.lost_stalled = self.lost_stalled.saturating_add(self.stats.lost_stalled);
        let lost_side_band = self.stats.lost_side_band;
        self.lost_side_band = self.lost_side_band.saturating_add(lost_side_band);
        for set in &mut self.sets {
            set.stats = DrainStats::default();
            for it in &mut set.rings {
                set.stats.fullest = set.stats.fullest.max(it.ring.fullness());
                let counts = it.ring.release();
                let brought = counts.samples.saturating_add(counts.lost);
                set.seen.fetch_add(brought, Ordering::Relaxed);
                set.stats.add(counts);
            }
            self.flushed += set.stats.flushed;
        }
        horizon
    }

    /// Scans the records up to `horizon`, or up to an earlier one where a ring holds more than
    /// its share: what is younger than the first record left behind must wait with it.
    fn scan(&mut self, horizon: MonotonicTime) -> MonotonicTime {
        let reached = self.scan_up_to(horizon, OverflowPolicy::Wait, OverflowPolicy::Wait);
        if reached.all == horizon {
            return horizon;
        }
        // What captures and the side band cannot have at once is not worth a sample of the
        // continuous profile.
        let fullest = self.of_samples().map(CpuRing::fullness).max().unwrap_or(0);
        let pressed = |full: u64, reached: MonotonicTime| {
            fullest > full || horizon.since(reached) > DROP_LATE
        };
        let (limit, side_band, sets) = if pressed(DROP_SIDE_BAND_FULL, reached.continuous) {
            (reached.samples, OverflowPolicy::Drop, OverflowPolicy::Drop)
        } else if pressed(DROP_FULL, reached.all) {
            (
                reached.continuous,
                OverflowPolicy::Wait,
                OverflowPolicy::Drop,
            )
        } else {
            (reached.all, OverflowPolicy::Wait, OverflowPolicy::Wait)
        };
        self.scan_up_to(limit, side_band, sets);
        limit
    }

    /// Reports how far it came; `side_band` and `sets` say what happens to records beyond their
    /// share.
    fn scan_up_to(
        &mut self,
        horizon: MonotonicTime,
        side_band: OverflowPolicy,
        sets: OverflowPolicy,
    ) -> Reached {
        let mut samples = horizon;
        self.found.index.clear();
        self.found.gaps.clear();
        let share = (RECORDS_PER_DRAIN_MAX / self.cpus().max(1)).max(SHARE_MIN);
        let of_sets = self.sets.iter().map(|set| set.rings.len()).sum::<usize>();
        let set_share = (SET_RECORDS_PER_DRAIN_MAX / of_sets.max(1)).max(SET_SHARE_MIN);
        let main = self.rings.len();
        for (ring, number) in self.rings.iter_mut().zip(0..) {
            if !ring.is_side_band()
                && let Some(left) = ring.scan(
                    number,
                    horizon,
                    (share, OverflowPolicy::Wait),
                    &mut self.found,
                )
            {
                samples = samples.min(left);
            }
        }
        let mut continuous = samples;
        for (ring, number) in self.rings.iter_mut().zip(0..) {
            // All that is left of the drain: where one CPU storms the others bring little.
            let left = RECORDS_PER_DRAIN_MAX.saturating_sub(self.found.index.len());
            let share = (left.max(SHARE_MIN), side_band);
            if ring.is_side_band()
                && let Some(left) = ring.scan(number, samples, share, &mut self.found)
            {
                continuous = continuous.min(left);
            }
        }
        let mut all_of_it = continuous;
        for (ring, number) in all(&mut self.rings, &mut self.sets).zip(0..).skip(main) {
            let share = (set_share, sets);
            if let Some(left) = ring.scan(number, continuous, share, &mut self.found) {
                all_of_it = all_of_it.min(left);
            }
        }
        Reached {
            samples,
            continuous,
            all: all_of_it,
        }
    }

    /// Proves that samples arrive, without taking any: see `prove_samples` in `cpu_ring.rs`.
    pub fn deliver_samples(&self) -> bool {
        let rings = || self.rings.iter();
        cpu_ring::prove_samples(|scratch| rings().any(|ring| ring.holds_sample(scratch)))
    }
}

pub(super) fn is_offline(cpu: CpuId) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{}/online", cpu.0);
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
}

pub mod sets;

#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod side_band_tests;
#[cfg(test)]
mod stall_tests;

#[cfg(test)]
mod tests;
