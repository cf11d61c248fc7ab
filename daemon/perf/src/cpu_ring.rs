//! One ring of a CPU: its event, and what is known of its losses.
//!
//! A scan reads the records of a ring once, in the order they were written, so that it sees the
//! records before and after a loss next to each other. Its findings are kept separate until the
//! drain is done with them: a drain that takes fewer records than were scanned scans again.
//!
//! A ring keeps working whatever it contains. A record waits for its time only if that is not later
//! than now; one from the future is damaged, skipped and counted. Times in one ring never go back:
//! a record older than the one before it gets that one's time. A ring that is nearly full and still
//! does not move is flushed.

use crate::error::RingsError;
use crate::event::{self, EventKind, EventSpec, Feature, Features};
use crate::loss::{LossGap, LossMeter, SampleSpacing};
use crate::probe::{self, Placement, Probe};
use crate::record::{self, FlowEvent};
use crate::ring::{Position, Ring, Scratch};
use host::ids::CpuId;
use host::time::MonotonicTime;
use perf_event::Counter;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Counts of one CPU: those of a scan of its ring, or added up since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounts {
    /// Samples read.
    pub samples: u64,
    /// Records lost in a full ring, those of the side band left out where it has its own.
    pub lost: u64,
    /// Records of the side band lost in its own ring.
    pub lost_side_band: u64,
    /// Samples estimated to be among them, or not taken while throttled.
    pub missed: u64,
    /// Throttle events.
    pub throttled: u64,
    /// Samples that were there and that nobody had the time to take: of captures alone. Counted as
    /// lost too.
    pub dropped: u64,
    /// Damaged records, and rings emptied because of a damaged header.
    pub malformed: u64,
    /// Times the ring was nearly full, did not move, and was flushed.
    pub flushed: u64,
    /// Records lost in the ring while it did not move, out of `lost`.
    pub lost_stalled: u64,
    /// Time of the newest sign of life: a sample, or a ring still full; when sampling started,
    /// before there is one.
    pub newest: MonotonicTime,
}

impl CpuCounts {
    /// Adds those of a scan.
    pub(super) fn add(&mut self, scan: CpuCounts) {
        self.samples += scan.samples;
        self.lost = self.lost.saturating_add(scan.lost);
        self.lost_side_band = self.lost_side_band.saturating_add(scan.lost_side_band);
        self.missed = self.missed.saturating_add(scan.missed);
        self.throttled += scan.throttled;
        self.dropped += scan.dropped;
        self.malformed += scan.malformed;
        self.flushed += scan.flushed;
        self.lost_stalled = self.lost_stalled.saturating_add(scan.lost_stalled);
        self.newest = self.newest.max(scan.newest);
    }
}

/// State of a ring's records up to some position.
#[derive(Clone, Copy, Debug)]
struct RingState {
    meter: LossMeter,
    /// Counts of the scan alone.
    counts: CpuCounts,
    /// Records lost by the `LOST` records.
    told: u64,
    /// Records lost by the event's own count, which is there before a `LOST` record can be.
    counted: u64,
    /// Size of the largest record seen.
    largest: usize,
    /// Time of the youngest record seen.
    youngest: MonotonicTime,
}

impl RingState {
    /// A record reports a loss; the event's own count may already include it.
    fn lost_record(&mut self, records: u64) {
        let before = self.told.max(self.counted);
        self.told = self.told.saturating_add(records);
        self.lost(self.told.max(self.counted) - before);
    }

    fn lost_count(&mut self, counted: u64) {
        let before = self.told.max(self.counted);
        self.counted = self.counted.max(counted);
        self.lost(self.told.max(self.counted) - before);
    }

    fn lost(&mut self, records: u64) {
        self.counts.lost = self.counts.lost.saturating_add(records);
        self.meter.lost(records);
    }
}

/// See the module.
pub struct CpuRing {
    /// Which CPU.
    pub cpu: CpuId,
    /// None in benches and tests with rings that no kernel fills.
    counter: Option<Counter>,
    /// Reports threads that arrive on the CPU, into the same ring.
    arrivals: Option<Counter>,
    /// It holds the side band alone, and no samples.
    is_side_band: bool,
    pub(super) ring: Ring,
    counts_losses: bool,
    /// The event says for how long it was counted.
    counts_times: bool,
    /// Values for a ring that no kernel fills.
    told_times: Option<(u64, u64)>,
    told_lost: Option<u64>,
    /// Weight of each sample if samples do not contain it; else 0.
    fixed_period: u64,
    /// After the records given back, and after those of the scan.
    known: RingState,
    seen: RingState,
    /// Head when the scan started, and up to where it has gone.
    head: Position,
    scanned: Position,
    /// Its CPU is no longer sampled through this ring, which is removed once it is empty.
    leaving: bool,
    /// The scan ended because it found its share, not because there was no more.
    more: bool,
    /// It was full at a scan since which its count of losses was not read. The `LOST` record comes
    /// with the next of the side band, which may never come.
    was_full: bool,
    still: Still,
}

/// Whether a ring that is nearly full stands still.
#[derive(Clone, Copy, Debug, Default)]
struct Still {
    since: Option<MonotonicTime>,
    /// Number of scans with losses that belong to a stall: this one and the next, because a `LOST`
    /// record is written when there is room again.
    scans: u8,
}

/// Result of a scan of all rings.
pub(super) struct ScanResult {
    /// Records, by time, number of the ring, and position in it.
    pub(super) index: Vec<(MonotonicTime, u32, Position)>,
    /// Samples that are missing, by number of the ring.
    pub(super) gaps: Vec<(u32, LossGap)>,
    /// Records that are not younger than this belong to the previous rings.
    pub(super) start: MonotonicTime,
    /// Buffer for a record that wraps.
    pub(super) scratch: Scratch,
}

/// What to do with records beyond a ring's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverflowPolicy {
    /// They wait for the next scan.
    Wait,
    /// They go unread, counted as lost.
    Drop,
}

/// The rings through which the continuous profile samples a CPU.
pub struct CpuRings {
    /// The ring of the samples.
    pub samples: CpuRing,
    /// The ring of the side band, where it has its own: whoever maps, forks or renames without end
    /// fills that one, and no sample is lost.
    pub side_band: Option<CpuRing>,
}

impl CpuRings {
    /// Opens, maps and enables the events of a CPU with the most features the kernel takes,
    /// `features` at most. Returns the features it took.
    ///
    /// # Errors
    /// [`RingsError`].
    pub fn open(
        cpu: CpuId,
        spec: &EventSpec,
        ring_bytes: usize,
        features: Features,
    ) -> Result<(CpuRings, Features), RingsError> {
        let event::Opened {
            samples,
            side_band,
            features,
        } = event::open(cpu, spec, features)?;
        // Opened first, so that no sample belongs to an unreported process.
        let side_band = side_band.map(|counter| {
            CpuRing::mapped(
                cpu,
                counter,
                spec.side_band_bytes,
                SampleSpacing::Never,
                features,
            )
        });
        let side_band = match side_band.transpose() {
            // Others of this user have locked what it may: one ring takes both.
            Err(RingsError::Map { .. }) => {
                let alone = EventSpec {
                    side_band_bytes: 0,
                    ..*spec
                };
                drop(samples);
                return CpuRings::open(cpu, &alone, ring_bytes, features);
            }
            side_band => side_band?,
        };
        let side_band = side_band.map(CpuRing::of_side_band);
        let samples = CpuRing::mapped(cpu, samples, ring_bytes, pace(spec), features)?;
        Ok((CpuRings { samples, side_band }, features))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &CpuRing> {
        std::iter::once(&self.samples).chain(&self.side_band)
    }
}

impl From<CpuRing> for CpuRings {
    /// One ring for all records.
    fn from(samples: CpuRing) -> CpuRings {
        CpuRings {
            samples,
            side_band: None,
        }
    }
}

impl IntoIterator for CpuRings {
    type Item = CpuRing;
    type IntoIter = std::iter::Chain<std::iter::Once<CpuRing>, std::option::IntoIter<CpuRing>>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self.samples).chain(self.side_band)
    }
}

impl CpuRing {
    /// As [`CpuRings::open`], for an event of a capture.
    ///
    /// # Errors
    /// [`RingsError`].
    pub fn open_probe(
        cpu: CpuId,
        probe: &Probe,
        place: &Placement<'_>,
        features: Features,
    ) -> Result<(CpuRing, Features), RingsError> {
        let (counter, features) = probe::open(cpu, probe, place, features)?;
        let pace = probe.pace(place.cgroup.is_some());
        let mut ring = CpuRing::mapped(cpu, counter, place.ring_bytes, pace, features)?;
        ring.counts_times = probe.source.is_hardware();
        ring.fixed_period = probe.fixed_period();
        Ok((ring, features))
    }

    fn mapped(
        cpu: CpuId,
        mut counter: Counter,
        ring_bytes: usize,
        pace: SampleSpacing,
        features: Features,
    ) -> Result<CpuRing, RingsError> {
        let ring =
            Ring::map(counter.as_raw_fd(), ring_bytes).map_err(|source| RingsError::Map {
                cpu: cpu.0,
                bytes: ring_bytes,
                source,
            })?;
        counter
            .enable()
            .map_err(|source| RingsError::Enable { cpu: cpu.0, source })?;
        let mut opened = CpuRing::over(cpu, ring, pace);
        opened.counter = Some(counter);
        opened.counts_losses = features.has(Feature::ReadLost);
        Ok(opened)
    }

    /// A ring that no kernel fills: for benches and tests.
    pub fn over(cpu: CpuId, ring: Ring, pace: SampleSpacing) -> CpuRing {
        let start = MonotonicTime::now();
        let known = RingState {
            meter: LossMeter::new(pace, start),
            // Until there is a sample, this is the time when sampling started.
            counts: CpuCounts {
                newest: start,
                ..CpuCounts::default()
            },
            told: 0,
            counted: 0,
            largest: 0,
            youngest: MonotonicTime(0),
        };
        let head = ring.head();
        CpuRing {
            cpu,
            counter: None,
            arrivals: None,
            is_side_band: false,
            ring,
            counts_losses: false,
            counts_times: false,
            told_times: None,
            told_lost: None,
            fixed_period: 0,
            known,
            seen: known,
            head,
            scanned: head,
            leaving: false,
            more: false,
            was_full: false,
            still: Still::default(),
        }
    }

    /// Makes this ring one for the side band only.
    pub fn of_side_band(mut self) -> CpuRing {
        self.is_side_band = true;
        self
    }

    /// It holds the side band alone.
    pub fn is_side_band(&self) -> bool {
        self.is_side_band
    }

    /// The ring's memory: where benches and tests write.
    pub fn ring_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// The event's descriptor.
    pub fn fd(&self) -> Option<RawFd> {
        self.counter.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// The event's descriptor, and whether it is of the side band.
    pub fn watched(&self) -> Option<(RawFd, bool)> {
        self.fd().map(|fd| (fd, self.is_side_band))
    }

    /// Makes the ring report each thread that arrives on the CPU, from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn tell_arrivals(&mut self) -> io::Result<()> {
        let Some(counter) = self.counter.as_ref().filter(|_| !self.leaving) else {
            return Ok(());
        };
        if self.arrivals.is_none() {
            self.arrivals = Some(probe::open_arrivals(self.cpu, counter)?);
        }
        Ok(())
    }

    /// Number of samples that this CPU's clock would have taken from `since` to `until`, or to the
    /// start of this ring.
    pub(super) fn missed_between(
        &self,
        since: MonotonicTime,
        until: Option<MonotonicTime>,
    ) -> Option<LossGap> {
        self.known.meter.missed_between(since, until)
    }

    /// No more samples through this ring; those in it are still to be had.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        for counter in self.counter.iter_mut().chain(&mut self.arrivals) {
            // A CPU that went offline has taken its event along.
            let _ = counter.disable();
        }
    }

    /// True if it was asked to leave and is empty.
    pub(super) fn has_left(&self) -> bool {
        self.leaving && self.ring.tail() == self.ring.head()
    }

    /// Scans the records from the tail up to `horizon`, `share` of them at most, and adds them
    /// to `found` under the number of this ring. Returns the time of the first record that found no
    /// room and waits.
    pub(super) fn scan(
        &mut self,
        number: u32,
        horizon: MonotonicTime,
        (share, overflow): (usize, OverflowPolicy),
        found: &mut ScanResult,
    ) -> Option<MonotonicTime> {
        self.head = self.ring.head();
        self.scanned = self.ring.tail();
        self.seen = self.known;
        self.more = false;
        self.was_full |= self.is_full();
        let mut left = share;
        let mut dropped = DroppedSamples::default();
        let mut now = None;
        while self.scanned != self.head {
            let record = self
                .ring
                .record(self.scanned, self.head, &mut found.scratch);
            let Ok(bytes) = record else {
                // Without a sound header there is no next record: start over at the head.
                self.seen.counts.malformed += 1;
                self.seen.meter.uncounted();
                self.scanned = self.head;
                break;
            };
            let (len, time) = (bytes.len(), record::time(bytes));
            let flow = match (record::flow_event(bytes), self.fixed_period) {
                (FlowEvent::Sample(_), fixed @ 1..) => FlowEvent::Sample(fixed),
                (flow, _) => flow,
            };
            match time.map(|time| time.max(self.seen.youngest)) {
                Ok(time) if time > horizon => {
                    // Asked for after the head: what is in the ring was written before.
                    let now = *now.get_or_insert_with(|| horizon.max(MonotonicTime::now()));
                    if time <= now.plus(CLOCKS_APART) {
                        break;
                    }
                    self.skip(flow);
                }
                Ok(time) if left == 0 && overflow == OverflowPolicy::Wait => {
                    self.more = true;
                    return Some(time);
                }
                Ok(time) => {
                    match flow {
                        // It belongs to the rings before these.
                        _ if time <= found.start => {}
                        FlowEvent::Sample(period) if left == 0 => dropped.add(time, period),
                        _ if left > 0 => {
                            found.index.push((time, number, self.scanned));
                            left -= 1;
                        }
                        FlowEvent::Other if self.is_side_band => self.seen.lost(1),
                        _ => {}
                    }
                    self.seen.largest = self.seen.largest.max(len);
                    self.follow(number, flow, time, found);
                    self.seen.youngest = time;
                }
                Err(record::Malformed) => self.skip(flow),
            }
            self.scanned = Position(self.scanned.0 + len as u64);
        }
        if let Some(gap) = dropped.gap() {
            self.seen.counts.samples -= gap.samples;
            self.seen.counts.dropped += gap.samples;
            self.seen.counts.lost += gap.samples;
            self.tell(number, Some(gap), found);
        }
        None
    }

    /// Skips a record with an unknown time. What it reports about losses still counts.
    fn skip(&mut self, flow: FlowEvent) {
        self.seen.counts.malformed += 1;
        match flow {
            FlowEvent::Lost(records) => self.seen.lost_record(records),
            FlowEvent::LostSamples(samples) => self.seen.lost(samples),
            FlowEvent::Throttle => {
                self.seen.counts.throttled += 1;
                self.seen.meter.uncounted();
            }
            // The sample itself is missing now.
            FlowEvent::Sample(_) | FlowEvent::Unthrottle => self.seen.meter.uncounted(),
            FlowEvent::Other => {}
        }
    }

    fn follow(
        &mut self,
        number: u32,
        flow: FlowEvent,
        time: MonotonicTime,
        found: &mut ScanResult,
    ) {
        match flow {
            FlowEvent::Sample(period) => {
                self.seen.counts.samples += u64::from(time > found.start);
                self.seen.counts.newest = time;
                let gap = self.seen.meter.sample(time, period);
                self.tell(number, gap, found);
            }
            FlowEvent::Lost(records) => self.seen.lost_record(records),
            // Counted by the driver, not by the ring.
            FlowEvent::LostSamples(samples) => self.seen.lost(samples),
            FlowEvent::Throttle => {
                self.seen.counts.throttled += 1;
                self.seen.meter.uncounted();
            }
            FlowEvent::Unthrottle => self.seen.meter.uncounted(),
            FlowEvent::Other => {}
        }
    }

    fn tell(&mut self, number: u32, gap: Option<LossGap>, found: &mut ScanResult) {
        let Some(gap) = gap else { return };
        let (_, gap) = gap.split(found.start);
        if gap.samples > 0 {
            let missed = &mut self.seen.counts.missed;
            *missed = missed.saturating_add(gap.samples);
            found.gaps.push((number, gap));
        }
    }

    /// After a scan that saw everything up to `horizon`: adds what the ring loses at this moment. A
    /// `LOST` record is written only when there is room again, which may be after the window is
    /// closed; the event's own count knows at once. It is read only where something is amiss.
    ///
    /// `asked` is how far the drain was to go; it may reach no further than `horizon`.
    pub(super) fn count_losses(
        &mut self,
        number: u32,
        (horizon, asked): (MonotonicTime, MonotonicTime),
        found: &mut ScanResult,
    ) {
        if self.more {
            return;
        }
        self.watch(asked, &mut found.scratch);
        let full = self.is_full();
        if full && !self.is_side_band {
            // What was sampled last is not in it: an event is not silent because nobody listened.
            self.seen.counts.newest = self.seen.counts.newest.max(horizon);
        }
        let owes = self.is_side_band && std::mem::take(&mut self.was_full);
        if full || owes || self.seen.meter.overdue(horizon) {
            match self.read_lost() {
                Some(counted) => self.seen.lost_count(counted),
                None if full && self.seen.meter.overdue(horizon) => self.seen.meter.uncounted(),
                None => {}
            }
        }
        let gap = self.seen.meter.up_to(horizon);
        self.tell(number, gap, found);
    }

    /// The next record, if it is as long as the longest, has no room.
    fn is_full(&self) -> bool {
        let filled = (self.head.0 - self.ring.tail().0) as usize;
        filled + self.seen.largest + LOST_RECORD_BYTES > self.ring.size()
    }

    fn is_nearly_full(&self) -> bool {
        // A damaged length may stand for the longest record: it alone makes no ring full.
        let fullness = self.fullness();
        fullness >= NEARLY_FULL || fullness >= HALF_FULL && self.is_full()
    }

    /// Flushes the ring when it is nearly full and has stood still for too long.
    fn watch(&mut self, now: MonotonicTime, scratch: &mut Scratch) {
        if self.scanned != self.ring.tail() || !self.is_nearly_full() {
            self.still.since = None;
            return;
        }
        self.still.scans = 2;
        let since = *self.still.since.get_or_insert(now);
        if now.since(since) < STILL_MAX {
            return;
        }
        self.still.since = None;
        self.seen.counts.flushed += 1;
        while self.scanned != self.head {
            let Ok(bytes) = self.ring.record(self.scanned, self.head, scratch) else {
                self.seen.meter.uncounted();
                self.scanned = self.head;
                break;
            };
            let (len, flow) = (bytes.len(), record::flow_event(bytes));
            match flow {
                FlowEvent::Sample(_) => self.seen.lost(1),
                FlowEvent::Lost(records) => self.seen.lost_record(records),
                FlowEvent::LostSamples(samples) => self.seen.lost(samples),
                FlowEvent::Throttle | FlowEvent::Unthrottle => self.seen.meter.uncounted(),
                FlowEvent::Other if self.is_side_band => self.seen.lost(1),
                FlowEvent::Other => {}
            }
            self.scanned = Position(self.scanned.0 + len as u64);
        }
    }

    fn read_lost(&self) -> Option<u64> {
        let Some(counter) = &self.counter else {
            return self.told_lost;
        };
        let counter = Some(counter).filter(|_| self.counts_losses)?;
        event::read_counts(counter.as_raw_fd(), true, self.counts_times)?.lost
    }

    /// For how long the event was to be counted, and was, where it is one that says so. Unit:
    /// nanoseconds.
    pub(super) fn times(&self) -> Option<(u64, u64)> {
        let Some(counter) = &self.counter else {
            return self.told_times;
        };
        let counter = Some(counter).filter(|_| self.counts_times)?;
        event::read_counts(counter.as_raw_fd(), self.counts_losses, true)?.times
    }

    /// Sets for how long the event of a ring that no kernel fills was counted, for tests.
    pub fn tell_times(&mut self, enabled_ns: u64, running_ns: u64) {
        self.told_times = Some((enabled_ns, running_ns));
    }

    /// Sets how many records a ring that no kernel fills lost, for tests.
    pub fn tell_lost(&mut self, records: u64) {
        self.told_lost = Some(records);
    }

    /// A record the scan found. One that wraps is copied to `scratch`.
    pub(super) fn record<'a>(
        &'a self,
        position: Position,
        scratch: &'a mut Scratch,
    ) -> Option<&'a [u8]> {
        self.ring.record(position, self.head, scratch).ok()
    }

    /// A record the scan found did not parse after all.
    pub(super) fn malformed(&mut self) {
        self.seen.counts.malformed += 1;
    }

    /// How full the scan found it, before it is released. Unit: parts of 256.
    pub(super) fn fullness(&self) -> u64 {
        (self.head.0 - self.ring.tail().0) * 256 / self.ring.size() as u64
    }

    /// The scan is dealt with: its records go back to the kernel. Returns what was counted.
    pub(super) fn release(&mut self) -> CpuCounts {
        self.known = self.seen;
        if self.scanned != self.ring.tail() {
            self.ring.release(self.scanned);
        }
        let mut counts = std::mem::take(&mut self.known.counts);
        if self.is_side_band {
            counts.lost_side_band = std::mem::take(&mut counts.lost);
        }
        if self.still.scans > 0 {
            self.still.scans -= 1;
            counts.lost_stalled = counts.lost;
        }
        counts
    }

    pub(super) fn holds_sample(&self, scratch: &mut Scratch) -> bool {
        let (head, mut at) = (self.ring.head(), self.ring.tail());
        while at != head {
            let Ok(bytes) = self.ring.record(at, head, scratch) else {
                return false;
            };
            if record::is_sample(bytes) {
                return true;
            }
            at = Position(at.0 + bytes.len() as u64);
        }
        false
    }
}

/// Samples that a scan passed over.
#[derive(Default)]
struct DroppedSamples {
    samples: u64,
    weight: u64,
    from: Option<MonotonicTime>,
    until: MonotonicTime,
}

impl DroppedSamples {
    fn add(&mut self, time: MonotonicTime, period: u64) {
        self.samples += 1;
        self.weight = self.weight.saturating_add(period);
        self.from.get_or_insert(time);
        self.until = self.until.max(time);
    }

    fn gap(&self) -> Option<LossGap> {
        Some(LossGap {
            from: self.from?,
            until: self.until,
            samples: self.samples,
            period: self.weight / self.samples.max(1),
        })
    }
}

/// How far the clocks of two CPUs may be apart: a record this much later than now is not damaged.
///
/// The kernel compares a CPU's counter with another clock and gives it up when they differ by more
/// than 62.5 ms (`WATCHDOG_THRESHOLD` in kernel/time/clocksource.c, before Linux 5.13; less since).
/// A smaller value would skip sound records on such a machine; a ring waits this long for a damaged
/// one at most.
const CLOCKS_APART: Duration = Duration::from_millis(100);

/// How full a ring is that may be about to lose records, whatever their length. Unit: parts of 256;
/// nine tenths. With less, rings that wait for good reason could be flushed.
const NEARLY_FULL: u64 = 230;

/// How full it is at least when the next long record finds no room. Unit: parts of 256.
const HALF_FULL: u64 = 128;

/// How long such a ring may stand still. A drain takes what is older than some milliseconds, so a
/// ring that is drained moves; a shorter time could take a drain that is late for one that is
/// stuck.
const STILL_MAX: Duration = Duration::from_secs(3);

/// Room that a `LOST` record takes before the first record after a loss.
const LOST_RECORD_BYTES: usize = 64;

fn pace(spec: &EventSpec) -> SampleSpacing {
    let distance = 1_000_000_000 / u64::from(spec.rate_hz.max(1));
    match spec.kind {
        EventKind::CpuClock => SampleSpacing::Fixed(distance),
        EventKind::Cycles => SampleSpacing::Varying(distance),
    }
}

/// How long [`prove_samples`] tries. At the lowest useful rate of 10 Hz two samples are due.
const PROBE: Duration = Duration::from_millis(250);

/// Proves that samples arrive: keeps this thread's CPU busy for up to a quarter of a second, until
/// `any` ring holds one. Some VMs accept a hardware event and never deliver.
pub(super) fn prove_samples(any: impl Fn(&mut Scratch) -> bool) -> bool {
    let start = MonotonicTime::now();
    let Ok(mut scratch) = Scratch::new() else {
        return false;
    };
    let mut burnt = 0u64;
    while MonotonicTime::now().since(start) < PROBE {
        for _ in 0..1_000_000 {
            burnt = std::hint::black_box(burnt.wrapping_mul(31).wrapping_add(1));
        }
        if any(&mut scratch) {
            return true;
        }
    }
    false
}
