//! The rings of all CPUs, drained together in order of time.
//!
//! Records of different CPUs belong together: a process forked on one CPU runs on another. A drain
//! takes all records older than a horizon a little before now, from all rings, sorts them by time
//! and hands them out; younger ones stay for the next drain, because an older one may still be on
//! its way on another CPU.

use crate::ids::CpuId;
use crate::perf::cpu_ring::{self, CpuCounts, CpuRing, Excess, Found};
use crate::perf::event::{EventSpec, Features, OpenError};
use crate::perf::loss::Gap;
use crate::perf::plan;
use crate::perf::record::{self, Layout, Record, Sample};
use crate::perf::ring::{Position, Scratch};
use crate::perf::sets::{RingSet, SetKey, each_of_set, in_sets};
use crate::time::Mono;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use thiserror::Error;

/// How far before now a drain stops. A record gets its time when the kernel begins to write it and
/// is visible when it is done: microseconds, unless a hypervisor takes the CPU away in between.
/// What comes later than that is still used, and counted as late.
pub const HORIZON: Duration = Duration::from_millis(2);

/// How far a drain may go at `now`.
pub fn horizon_at(now: Mono) -> Mono {
    Mono(now.0.saturating_sub(HORIZON.as_nanos() as u64))
}

/// Records a drain handles at once; more are left for the next. Bounds the index's memory at
/// 6 MiB. A drain at 99 Hz and 64 CPUs sees about 15,000.
const RECORDS_PER_DRAIN_MAX: usize = 1 << 18;

/// Samples of captures that a drain handles at once, those of all their rings together: at 5 to 10 µs each
/// about 0.1 s. As rings of the continuous profile hold several times that, its records never wait for a
/// capture's until they are lost.
const SET_RECORDS_PER_DRAIN_MAX: usize = 1 << 14;

/// Least of them for one ring.
const SET_SHARE_MIN: usize = 16;

/// How full the fullest ring of the continuous profile is when captures do without what is beyond their
/// share, in parts of 256. Until then all wait together for the next drain, which follows at once, so that
/// the process table is that of their time.
const SHED_FULL: u64 = 96;

/// How far the drains may fall behind for the captures' sake before these do without likewise.
const SHED_LATE: Duration = Duration::from_secs(2);

/// Why the rings could not be opened.
#[derive(Debug, Error)]
pub enum RingsError {
    /// The event.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The buffer.
    #[error(
        "failed to map a ring buffer of `{bytes}` bytes for CPU `{cpu}`\n  locked memory is limited: grant CAP_IPC_LOCK, raise `ulimit -l` or kernel.perf_event_mlock_kb, or lower sampling.ring_kib"
    )]
    Map {
        /// The CPU.
        cpu: u32,
        /// Bytes asked for.
        bytes: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Starting it.
    #[error("failed to enable the perf event on CPU `{cpu}`")]
    Enable {
        /// The CPU.
        cpu: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Memory beside the rings.
    #[error("failed to map memory for records")]
    Memory(#[source] io::Error),
    /// A kernel that takes less for one CPU than for the others.
    #[error("CPU `{cpu}` cannot be sampled like the others: the kernel takes fewer features")]
    Features {
        /// The CPU.
        cpu: u32,
    },
    /// No CPU at all.
    #[error("no CPU is online to sample")]
    NoCpus,
}

/// A ring that fills this often wakes the reader about twice in three seconds, as the watermark lies at
/// five eighths.
const OFTEN: Duration = Duration::from_secs(1);

/// How full a ring is found after a time of quiet, in parts of 256: less, and the CPUs are idle, where
/// listening costs nothing; more, and there is more than samples, of which nobody knows how much.
const QUIET_FULL: std::ops::Range<u64> = 16..128;

/// The rings of all CPUs.
pub struct Rings {
    rings: Vec<CpuRing>,
    /// Those of captures.
    sets: Vec<RingSet>,
    /// Counts of each CPU that was ever sampled.
    counts: BTreeMap<CpuId, CpuCounts>,
    layout: Layout,
    features: Features,
    found: Found,
    newest: Mono,
    /// In how much time samples alone fill a ring; zero when that is not known.
    fills_in: Duration,
    /// What the last drain learned of.
    pub news: News,
    /// Records that were older than ones already handed out.
    pub late: u64,
    /// Damaged records.
    pub malformed: u64,
}

/// See [`Rings::quiet`].
fn quiet(news: News, rings: usize, fills_in: Duration) -> Option<Duration> {
    let ordinary = QUIET_FULL.contains(&news.fullest) && news.lost == 0;
    let often = fills_in / (rings.max(1) as u32) < OFTEN && !fills_in.is_zero();
    (ordinary && often).then(|| fills_in * 7 / 20)
}

/// What a drain learned of what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Records of all kinds that found no room.
    pub lost: u64,
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Damaged records.
    pub malformed: u64,
    /// How full the fullest ring was. Unit: parts of 256.
    pub fullest: u64,
    /// Samples of captures that were there and that nobody had the time to take; counted as lost too.
    pub shed: u64,
}

impl News {
    fn add(&mut self, counts: CpuCounts) {
        self.lost += counts.lost;
        self.throttled += counts.throttled;
        self.malformed += counts.malformed;
        self.shed += counts.shed;
    }
}

/// What a drain hands out.
pub enum Drained<'a> {
    /// Samples that are missing; before all records.
    Gap(Gap),
    /// A record.
    Record {
        /// When it was made.
        time: Mono,
        /// CPU of the ring.
        cpu: CpuId,
        /// The record.
        record: Record<'a>,
    },
    /// Samples that are missing in a ring of a capture; before all records.
    SetGap {
        /// Whose.
        set: SetKey,
        /// Number of the event in the set.
        event: u8,
        /// What is missing.
        gap: Gap,
    },
    /// A sample of a ring of a capture.
    SetSample {
        /// Whose.
        set: SetKey,
        /// Number of the event in the set.
        event: u8,
        /// The sample.
        sample: Sample<'a>,
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
            match CpuRing::open(cpu, spec, ring_bytes, features) {
                Ok((ring, took)) => {
                    features = took;
                    rings.push(ring);
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
        let found = Found {
            index: Vec::with_capacity(4096),
            gaps: Vec::new(),
            begin: Mono(0),
            scratch: Scratch::new().map_err(RingsError::Memory)?,
        };
        Ok(Rings {
            rings,
            sets: Vec::new(),
            counts: BTreeMap::new(),
            layout: features.layout(stack_bytes),
            features,
            found,
            newest: Mono(0),
            fills_in: Duration::ZERO,
            news: News::default(),
            late: 0,
            malformed: 0,
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

    /// A set: benches and tests write to its rings.
    pub fn set_mut(&mut self, key: SetKey) -> Option<&mut RingSet> {
        self.sets.iter_mut().find(|set| set.key == key)
    }

    /// Takes over the sets of captures of the rings that go.
    pub fn adopt_sets(&mut self, others: &mut Rings) {
        self.sets.append(&mut others.sets);
    }

    /// Has no capture sample a CPU that went away. Returns whether any did.
    pub fn leave_sets(&mut self, cpu: CpuId) -> bool {
        let left = self.sets.iter_mut().map(|set| set.leave(cpu));
        left.fold(false, |any, left| any | left)
    }

    /// Descriptors to wait on, those of captures left out.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.rings.iter().filter_map(CpuRing::fd)
    }

    /// How long the rings may be left alone after the last drain; `None`: until one says that it fills.
    ///
    /// The kernel wakes a reader each time so many bytes were written, whether or not they have been
    /// read since. So with many busy CPUs, each at its own beat, a reader that listens is woken all
    /// the time, for rings that another one's wake-up has just emptied. Samples come at a known rate:
    /// where nothing but samples came, there is no need to listen. A few CPUs are listened to always:
    /// a burst of other records fills a ring within a part of a second.
    pub fn quiet(&self) -> Option<Duration> {
        // At what rate captures fill theirs is their own matter.
        let listened = !self.sets.is_empty();
        quiet(self.news, self.rings.len(), self.fills_in).filter(|_| !listened)
    }

    /// The features the kernel took.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Counts of each CPU that was ever sampled, in order of CPUs.
    pub fn counts(&self) -> impl Iterator<Item = (CpuId, CpuCounts)> + '_ {
        self.counts.iter().map(|(&cpu, &counts)| (cpu, counts))
    }

    /// Samples one more CPU, or one again whose ring is dead: what that still holds comes out first.
    pub fn add(&mut self, ring: CpuRing) {
        self.leave(ring.cpu);
        self.rings.push(ring);
    }

    /// What is missing of a CPU that was offline from `left` to `since`, as far as it is known, and is
    /// sampled again through `ring`; counted as missed with it. The kernel takes the event away before
    /// it says that the CPU goes, and the CPU runs before it says that it came.
    pub fn missed_around(
        &mut self,
        ring: &CpuRing,
        left: Mono,
        since: Mono,
    ) -> impl Iterator<Item = Gap> + use<> {
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

    /// Takes out a ring that was told to leave and is empty.
    pub fn take_left(&mut self) -> Option<CpuRing> {
        let at = self.rings.iter().position(CpuRing::has_left)?;
        Some(self.rings.swap_remove(at))
    }

    /// Goes on where other rings stop: what is not younger than `cut` was theirs, and counts carry on.
    pub fn follow(&mut self, others: &Rings, cut: Mono) {
        self.found.begin = cut;
        self.newest = others.newest;
        self.late = others.late;
        self.malformed = others.malformed;
        self.counts.clone_from(&others.counts);
    }

    /// The CPUs with a ring.
    pub fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.rings.iter().map(|ring| ring.cpu)
    }

    /// Number of CPUs with a ring.
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// Memory of the index of records.
    pub fn index_bytes(&self) -> usize {
        self.found.index.capacity() * size_of::<(Mono, u32, Position)>()
    }

    /// The ring of each CPU.
    pub fn rings_mut(&mut self) -> &mut [CpuRing] {
        &mut self.rings
    }

    /// Hands out every record up to `horizon`, in order of time, and gives the space back to the
    /// kernel. Returns the horizon it reached: all records before it have been handed out, and are an
    /// earlier one than asked for when there are too many for one drain.
    pub fn drain(&mut self, horizon: Mono, mut each: impl FnMut(Drained<'_>)) -> Mono {
        let horizon = self.look(horizon);
        for (number, ring) in all(&mut self.rings, &mut self.sets).enumerate() {
            ring.look_at_losses(number as u32, horizon, &mut self.found);
        }
        let main = self.rings.len();
        for &(number, gap) in &self.found.gaps {
            match (number as usize).checked_sub(main) {
                None => each(Drained::Gap(gap)),
                Some(number) => {
                    if let Some((set, it, _)) = in_sets(&mut self.sets, number) {
                        let event = it.event;
                        each(Drained::SetGap { set, event, gap });
                    }
                }
            }
        }
        let Found { index, scratch, .. } = &mut self.found;
        index.sort_unstable();
        for &(time, number, position) in &*index {
            if let Some(number) = (number as usize).checked_sub(main) {
                if let Some((set, it, layout)) = in_sets(&mut self.sets, number) {
                    each_of_set(set, it, &layout, position, scratch, &mut each);
                }
                continue;
            }
            let ring = &mut self.rings[number as usize];
            // Looked at before, so the header is sound.
            let Some(bytes) = ring.record(position, scratch) else {
                continue;
            };
            let Ok(record) = record::parse(bytes, &self.layout) else {
                ring.malformed();
                continue;
            };
            self.late += u64::from(time < self.newest);
            self.newest = self.newest.max(time);
            let cpu = ring.cpu;
            each(Drained::Record { time, cpu, record });
        }
        self.news = News::default();
        for ring in &mut self.rings {
            self.news.fullest = self.news.fullest.max(ring.fullness());
            let counts = ring.release();
            self.news.add(counts);
            self.counts.entry(ring.cpu).or_default().add(counts);
        }
        self.malformed += self.news.malformed;
        for set in &mut self.sets {
            set.news = News::default();
            for it in &mut set.rings {
                set.news.fullest = set.news.fullest.max(it.ring.fullness());
                let counts = it.ring.release();
                let brought = counts.samples + counts.lost;
                set.seen.fetch_add(brought, Ordering::Relaxed);
                set.news.add(counts);
            }
        }
        horizon
    }

    /// Looks at the records up to `horizon`, or up to an earlier one where a ring holds more than its
    /// share: what is younger than the first record left behind must wait with it.
    fn look(&mut self, horizon: Mono) -> Mono {
        let (own, all) = self.look_up_to(horizon, Excess::Waits);
        if all == horizon {
            return horizon;
        }
        // What a capture cannot have at once is not worth a sample of the continuous profile.
        let fullest = self.rings.iter().map(CpuRing::fullness).max();
        let pressed = fullest.unwrap_or(0) > SHED_FULL || horizon.since(all) > SHED_LATE;
        let (limit, excess) = match pressed {
            true => (own, Excess::Shed),
            false => (all, Excess::Waits),
        };
        self.look_up_to(limit, excess);
        limit
    }

    /// Returns the horizon, or the time before the first record that found no room in the index: of the
    /// continuous profile, and of all.
    fn look_up_to(&mut self, horizon: Mono, excess: Excess) -> (Mono, Mono) {
        let mut own = horizon;
        self.found.index.clear();
        self.found.gaps.clear();
        let share = (RECORDS_PER_DRAIN_MAX / self.rings.len().max(1)).max(64);
        let share = (share, Excess::Waits);
        let of_sets = self.sets.iter().map(|set| set.rings.len()).sum::<usize>();
        let set_share = (SET_RECORDS_PER_DRAIN_MAX / of_sets.max(1)).max(SET_SHARE_MIN);
        let main = self.rings.len();
        let mut rings = all(&mut self.rings, &mut self.sets).zip(0..);
        for (ring, number) in rings.by_ref().take(main) {
            if let Some(left) = ring.look(number, horizon, share, &mut self.found) {
                own = own.min(left);
            }
        }
        let mut limit = own;
        for (ring, number) in rings {
            if let Some(left) = ring.look(number, own, (set_share, excess), &mut self.found) {
                limit = limit.min(left);
            }
        }
        (own, limit)
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

#[cfg(test)]
mod set_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::event::EventKind;
    use crate::perf::loss::Pace;
    use crate::perf::ring::Ring;
    use crate::perf::synthetic;
    use proptest::prelude::*;

    #[test]
    fn a_busy_thread_is_sampled_in_order_of_time_needs_root() {
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: 999,
            max_stack_depth: 127,
            watermark_bytes: 64 << 10,
            stack_bytes: 0,
        };
        let online = [CpuId(0), CpuId(1)];
        let mut rings = match Rings::open(&online, &spec, 256 << 10) {
            Ok(rings) => rings,
            Err(error) => {
                eprintln!("skip: perf events are not to be had here: {error}");
                return;
            }
        };
        // By CPU time: other processes want the CPUs too.
        let begin = cpu_time();
        let mut burnt = 0u64;
        while cpu_time() < begin + Duration::from_millis(300) {
            for _ in 0..100_000 {
                burnt = std::hint::black_box(burnt.wrapping_mul(31).wrapping_add(7));
            }
        }
        let end = Mono::now();
        let (mut mine, mut newest, mut horizon) = (0, Mono(0), Mono(0));
        while horizon < end {
            horizon = rings.drain(horizon_at(Mono::now()), |drained| {
                let (time, record) = match drained {
                    Drained::Record { time, record, .. } => (time, record),
                    // On a loaded machine the ring is full before this thread had its time.
                    _ => return,
                };
                assert!(time >= newest, "records come in order of time");
                newest = time;
                if let Record::Sample(sample) = record {
                    mine += u32::from(sample.pid.0 == std::process::id());
                    assert!(!sample.callchain.is_empty());
                }
            });
        }
        assert_eq!((rings.malformed, rings.late), (0, 0));
        // 300 at 999 Hz; a third of it is proof enough.
        assert!(
            mine > 100,
            "only {mine} samples of a thread that was busy for 300 ms"
        );
    }

    /// CPU time of this thread.
    fn cpu_time() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("readable");
        let first = text.split(' ').next().and_then(|word| word.parse().ok());
        Duration::from_nanos(first.expect("a number"))
    }

    /// An event at 999 Hz on both CPUs. None where there are no perf events.
    fn fast_rings(ring_bytes: usize) -> Option<Rings> {
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: 999,
            max_stack_depth: 8,
            watermark_bytes: 4 << 10,
            stack_bytes: 0,
        };
        match Rings::open(&[CpuId(0), CpuId(1)], &spec, ring_bytes) {
            Ok(rings) => Some(rings),
            Err(error) => {
                eprintln!("skip: perf events are not to be had here: {error}");
                None
            }
        }
    }

    fn wait_until(time: Mono) {
        std::thread::sleep(time.since(Mono::now()));
    }

    #[test]
    fn many_rings_with_nothing_but_samples_are_left_alone_and_no_others() {
        let fills_in = Duration::from_millis(2400);
        let news = |fullest, lost| News {
            fullest,
            lost,
            ..News::default()
        };
        let alone = Some(Duration::from_millis(840));
        for (news, rings, expected) in [
            (news(90, 0), 64, alone),
            (news(90, 0), 2, None),
            (news(3, 0), 64, None),
            (news(200, 0), 64, None),
            (news(90, 1), 64, None),
        ] {
            assert_eq!(
                quiet(news, rings, fills_in),
                expected,
                "{news:?}, {rings} rings"
            );
        }
        assert_eq!(quiet(news(90, 0), 64, Duration::ZERO), None);
    }

    /// Does something while no CPU is idle: not every machine's clock ticks on idle ones.
    fn while_busy<T>(body: impl FnOnce() -> T) -> T {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[test]
    fn taken_and_missing_samples_add_up_to_the_time_that_passed_needs_root() {
        while_busy(hold_taken_and_missing_against_time);
    }

    fn hold_taken_and_missing_against_time() {
        // The same clock with room for all of it: a hypervisor that takes a CPU away takes its ticks
        // away too, so that the time alone does not tell how many there were.
        let Some(mut reference) = fast_rings(4 << 20) else {
            return;
        };
        let Some(mut rings) = fast_rings(8 << 10) else {
            return;
        };
        let begin = Mono::now();
        // Nobody drains for a second: rings of 8 KiB hold a part of it.
        wait_until(Mono::now().plus(Duration::from_secs(1)));
        let full = Mono::now();
        let (mut missing, mut known_at_once) = (0, false);
        // Until each CPU has sampled again: before, what is missing has no end.
        while rings.counts().count() < 2 || rings.counts().any(|(_, of_cpu)| of_cpu.newest < full) {
            assert!(
                Mono::now().since(full) < Duration::from_secs(30),
                "no samples"
            );
            let horizon = horizon_at(Mono::now());
            rings.drain(horizon, |drained| {
                if let Drained::Gap(gap) = drained {
                    assert!(gap.from < gap.until && gap.until <= horizon, "{gap:?}");
                    known_at_once |= missing == 0;
                    missing += gap.samples;
                }
            });
            wait_until(Mono::now().plus(Duration::from_millis(20)));
        }
        let newest: BTreeMap<CpuId, Mono> = rings
            .counts()
            .map(|(cpu, counts)| (cpu, counts.newest))
            .collect();
        let (mut ticks, mut throttled) = (0, false);
        reference.drain(horizon_at(Mono::now()), |drained| match drained {
            // There is room for everything: only the kernel can have taken samples away.
            Drained::Gap(_) => throttled = true,
            Drained::Record { time, cpu, record } => {
                let is_sample = matches!(record, Record::Sample(_));
                ticks += u64::from(is_sample && begin < time && time <= newest[&cpu]);
            }
            Drained::SetGap { .. } | Drained::SetSample { .. } => {}
        });
        let mut counts = CpuCounts::default();
        let mut periods = 0;
        for (_, of_cpu) in rings.counts() {
            periods += of_cpu.newest.since(begin).as_nanos() as u64 / (1_000_000_000 / 999);
            counts.add(of_cpu);
        }
        assert_eq!(counts.missed, missing);
        assert!(known_at_once && missing > 500, "{missing} missing");
        let found = counts.samples + counts.missed;
        eprintln!("{counts:?}, {periods} periods passed, {ticks} ticks");
        assert!(found <= periods + 4, "{found} of {periods}");
        if throttled {
            return eprintln!("skip: the kernel throttles events here");
        }
        assert!(found >= ticks * 95 / 100, "{found} of {ticks}");
    }

    #[test]
    fn no_tick_is_twice_or_missing_where_rings_are_replaced_needs_root() {
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: 99,
            max_stack_depth: 127,
            watermark_bytes: 64 << 10,
            stack_bytes: 0,
        };
        let cpus = [CpuId(0), CpuId(1)];
        let open = || Rings::open(&cpus, &spec, 256 << 10);
        // A hypervisor may take a CPU away for longer than this waits: then there is nothing to hold
        // against each other, and another try may have more luck.
        let seamless = while_busy(|| {
            (0..10).any(|_| match (open(), open()) {
                (Ok(old), Ok(new)) => replaced_without_a_seam(old, new, cpus.len()),
                _ => {
                    eprintln!("skip: perf events are not to be had here");
                    true
                }
            })
        });
        assert!(
            seamless,
            "in ten tries a CPU had no samples on both sides of the cut"
        );
    }

    /// False when a CPU has no samples right before or right after the cut.
    fn replaced_without_a_seam(mut old: Rings, mut new: Rings, cpus: usize) -> bool {
        wait_until(Mono::now().plus(Duration::from_millis(100)));
        let cut = Mono::now();
        wait_until(cut.plus(Duration::from_millis(100)));
        let mut times = BTreeMap::<CpuId, Vec<Mono>>::new();
        let mut collect = |drained: Drained<'_>| {
            if let Drained::Record { time, cpu, record } = drained
                && matches!(record, Record::Sample(_))
            {
                times.entry(cpu).or_default().push(time);
            }
        };
        assert_eq!(old.drain(cut, &mut collect), cut);
        new.follow(&old, cut);
        new.drain(horizon_at(Mono::now()), &mut collect);
        let has_both = |times: &Vec<Mono>| {
            let after = times.partition_point(|&time| time <= cut);
            after > 0 && after < times.len()
        };
        if times.len() < cpus || !times.values().all(has_both) {
            return false;
        }
        let period = Duration::from_nanos(1_000_000_000 / 99);
        for (cpu, times) in &times {
            assert!(times.is_sorted_by(|a, b| a < b), "{cpu:?}: {times:?}");
            let after = times.partition_point(|&time| time <= cut);
            let across = times[after].since(times[after - 1]);
            if across > 2 * period {
                eprintln!("{cpu:?}: {across:?} across the cut");
                return false;
            }
        }
        for (cpu, counts) in new.counts() {
            assert_eq!(counts.samples, times[&cpu].len() as u64);
        }
        true
    }

    const PERIOD: u64 = 10_000_000;

    fn rings_in_memory(cpus: u32) -> Rings {
        let ring = |cpu| {
            let ring = Ring::in_memory(64 << 10).expect("maps");
            CpuRing::over(CpuId(cpu), ring, Pace::Fixed(PERIOD))
        };
        Rings::over((0..cpus).map(ring).collect(), Features::default(), 0).expect("some")
    }

    /// Times of everything up to `horizon`, however many drains it takes.
    fn times(rings: &mut Rings, horizon: Mono) -> Vec<u64> {
        let mut times = Vec::new();
        while rings.drain(horizon, |drained| {
            if let Drained::Record { time, .. } = drained {
                times.push(time.0);
            }
        }) < horizon
        {}
        times
    }

    proptest! {
        #[test]
        fn what_old_and_new_rings_both_have_comes_out_once(
            records in proptest::collection::vec((0u32..4, 1u64..50), 1..200), cut in 0u64..6000
        ) {
            let (mut old, mut new) = (rings_in_memory(4), rings_in_memory(4));
            let mut time = 0;
            let mut expected = Vec::new();
            for (cpu, later) in records {
                time += later;
                let bytes = synthetic::comm(Mono(time), 1, *b"worker\0\0");
                prop_assert!(old.rings_mut()[cpu as usize].ring_mut().write(&bytes));
                prop_assert!(new.rings_mut()[cpu as usize].ring_mut().write(&bytes));
                expected.push(time);
            }
            let mut found = times(&mut old, Mono(cut));
            new.follow(&old, Mono(cut));
            found.extend(times(&mut new, Mono(time)));
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_ring_that_is_told_to_leave_is_emptied_first() {
        let mut rings = rings_in_memory(2);
        let bytes = synthetic::comm(Mono(5), 1, *b"worker\0\0");
        assert!(rings.rings_mut()[1].ring_mut().write(&bytes));
        rings.leave(CpuId(1));
        assert!(rings.take_left().is_none());
        assert_eq!(times(&mut rings, Mono(10)), [5]);
        assert_eq!(rings.take_left().map(|ring| ring.cpu), Some(CpuId(1)));
        assert_eq!(rings.cpus(), 1);
    }

    /// What is missing of a CPU whose last sample was at `last` and whose new ring begins now, 30
    /// periods after it: from, until and number, counted back from now in periods.
    fn around(left: u64, since: u64) -> (Vec<(u64, u64, u64)>, u64) {
        let mut rings = rings_in_memory(2);
        let ring = Ring::in_memory(64 << 10).expect("maps");
        let ring = CpuRing::over(CpuId(1), ring, Pace::Fixed(PERIOD));
        let begin = ring.missed_between(Mono(0), None).expect("long ago").until;
        let ago = |periods: u64| Mono(begin.0 - periods * PERIOD);
        let sample = synthetic::sample(ago(30), 1, 1, PERIOD, &[7]);
        assert!(rings.rings_mut()[1].ring_mut().write(&sample));
        times(&mut rings, ago(29));
        let gaps = rings.missed_around(&ring, ago(left), ago(since));
        let back = |time: Mono| (begin.0 - time.0) / PERIOD;
        let gaps = gaps.map(|gap| (back(gap.from), back(gap.until), gap.samples));
        let gaps = gaps.collect();
        let counted = rings.counts().find(|(cpu, _)| *cpu == CpuId(1));
        (gaps, counted.map_or(0, |(_, counts)| counts.missed))
    }

    #[test]
    fn a_cpu_misses_what_is_before_it_was_away_and_after() {
        assert_eq!(around(20, 5), (vec![(30, 20, 10), (5, 0, 5)], 15));
    }

    #[test]
    fn a_cpu_that_left_unnoticed_misses_all_since_its_last_sample() {
        assert_eq!(around(3, 3), (vec![(30, 0, 30)], 30));
    }

    #[test]
    fn counts_of_a_cpu_go_on_when_it_comes_back() {
        let mut rings = rings_in_memory(2);
        for round in 1..=2 {
            let bytes = synthetic::sample(Mono(round * 10), 1, 1, PERIOD, &[7]);
            let ring = rings
                .rings_mut()
                .iter_mut()
                .find(|ring| ring.cpu == CpuId(1));
            assert!(ring.expect("there").ring_mut().write(&bytes));
            rings.leave(CpuId(1));
            times(&mut rings, Mono(round * 10));
            assert!(rings.take_left().is_some());
            let ring = Ring::in_memory(64 << 10).expect("maps");
            rings.add(CpuRing::over(CpuId(1), ring, Pace::Fixed(PERIOD)));
        }
        let counted = rings.counts().find(|(cpu, _)| *cpu == CpuId(1));
        assert_eq!(counted.map(|(_, counts)| counts.samples), Some(2));
    }
}
