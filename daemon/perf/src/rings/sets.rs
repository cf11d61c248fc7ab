//! Rings of captures: one per CPU and event, drained together with those of the continuous profile.
//!
//! A set contains the rings of one specification; captures with the same specification share it. It
//! belongs to whoever opened it until the sampler takes it over. Its events are closed on another
//! thread than the sampler's, because the kernel waits for all CPUs when it removes a tracepoint or
//! uprobe.

use crate::cpu_ring::{self, CpuRing};
use crate::error::RingsError;
use crate::event::Features;
use crate::probe::{Placement, Probe};
use crate::record::{self, Layout, Record, Sample};
use crate::ring::{Position, Scratch};
use crate::rings::{DrainStats, Drained, is_offline};
use host::ids::CpuId;
use host::time::MonotonicTime;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most events of a set: what its samples' `event` counts.
pub const EVENTS_MAX: usize = 8;

/// A set of rings. Never used again while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetKey(pub u64);

/// See the module.
pub struct RingSet {
    /// Which set it is.
    pub key: SetKey,
    pub(super) rings: Vec<SetRing>,
    /// By number of the event.
    pub(super) layouts: Vec<Layout>,
    /// True when samples of the idle loop say that nothing happened: of clocks and of the
    /// processor.
    pub idles: bool,
    /// Only samples after this count: before it not all of its events ran.
    pub start: MonotonicTime,
    /// Findings of the last drain.
    pub stats: DrainStats,
    /// Samples that its events brought, lost ones too: whoever opened it sees how often they
    /// happen.
    pub seen: Arc<AtomicU64>,
    /// Behind the rings, which go first.
    charge: Option<Charge>,
}

/// Memory that stands in an account until the set is closed.
struct Charge {
    account: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A ring of a set.
pub(super) struct SetRing {
    pub(super) event: u8,
    pub(super) ring: CpuRing,
}

impl std::fmt::Debug for RingSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RingSet { key, rings, .. } = self;
        write!(f, "RingSet {{ key: {}, rings: {} }}", key.0, rings.len())
    }
}

impl RingSet {
    /// Opens, maps and enables each of `probes` on each of `cpus`; CPUs that went away meanwhile
    /// are left out. Blocks: some kinds of events make the kernel wait for all CPUs.
    ///
    /// # Errors
    /// [`RingsError`], when any CPU fails: half a machine is not a profile.
    pub fn open(
        key: SetKey,
        cpus: &[CpuId],
        probes: &[Probe],
        place: &Placement<'_>,
    ) -> Result<RingSet, RingsError> {
        let mut features = Features::default();
        let mut rings = Vec::with_capacity(cpus.len() * probes.len());
        for (event, probe) in probes.iter().enumerate().take(EVENTS_MAX) {
            for &cpu in cpus {
                match CpuRing::open_probe(cpu, probe, place, features) {
                    Ok((ring, took)) => {
                        if took != features && !rings.is_empty() {
                            return Err(RingsError::Features { cpu: cpu.0 });
                        }
                        features = took;
                        let event = event as u8;
                        rings.push(SetRing { event, ring });
                    }
                    Err(_) if is_offline(cpu) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let layouts = probes.iter().map(|probe| probe.layout(features)).collect();
        let idles = |probe: &Probe| probe.source.is_clock() || probe.source.is_hardware();
        let idles = probes.iter().any(idles);
        let rings = rings.into_iter();
        RingSet::over(key, rings.map(|it| (it.event, it.ring)), layouts, idles)
    }

    /// Rings that are open already, by number of their event, and the layouts of the events'
    /// records.
    ///
    /// # Errors
    /// [`RingsError::NoCpus`], when there are none.
    pub fn over(
        key: SetKey,
        rings: impl Iterator<Item = (u8, CpuRing)>,
        layouts: Vec<Layout>,
        idles: bool,
    ) -> Result<RingSet, RingsError> {
        let rings = rings.map(|(event, ring)| SetRing { event, ring });
        let rings: Vec<SetRing> = rings.collect();
        if rings.is_empty() {
            return Err(RingsError::NoCpus);
        }
        Ok(RingSet {
            key,
            rings,
            layouts,
            idles,
            start: MonotonicTime::now(),
            stats: DrainStats::default(),
            seen: Arc::default(),
            charge: None,
        })
    }

    /// Descriptors to wait on.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.rings.iter().filter_map(|it| it.ring.fd())
    }

    /// Memory shared with the kernel. Unit: bytes.
    pub fn ring_bytes(&self) -> usize {
        self.rings.iter().map(|it| it.ring.ring.size()).sum()
    }

    /// Adds the memory of its rings to an account of bytes, which gets it back when the set is
    /// closed.
    pub fn charge(&mut self, account: Arc<AtomicU64>) {
        let bytes = self.ring_bytes() as u64;
        account.fetch_add(bytes, Ordering::Relaxed);
        self.charge = Some(Charge { account, bytes });
    }

    /// Number of CPUs with a ring.
    pub fn cpus(&self) -> usize {
        let mut cpus: Vec<CpuId> = self.rings.iter().map(|it| it.ring.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus.len()
    }

    /// The rings with the number of their event: benches and tests write to those in memory.
    pub fn rings_mut(&mut self) -> impl Iterator<Item = (u8, &mut CpuRing)> {
        self.rings.iter_mut().map(|it| (it.event, &mut it.ring))
    }

    /// For how long its events were to be counted on all CPUs, and were: less where others want the
    /// counters of the processor too. `None` for events that take none of those. Unit: nanoseconds.
    pub fn times(&self) -> Option<(u64, u64)> {
        let times = self.rings.iter().filter_map(|it| it.ring.times());
        times.reduce(|(enabled, running), (more, ran)| (enabled + more, running + ran))
    }

    /// Makes the ring of an event report each thread that arrives on a CPU, even if the switch to
    /// it is not recorded ([`Drained::SetArrival`]). Calling it again changes nothing.
    ///
    /// # Errors
    /// When the kernel refuses. No error where the CPU has no such ring.
    pub fn tell_arrivals(&mut self, event: u8, cpu: CpuId) -> io::Result<()> {
        let mut rings = self.rings.iter_mut();
        match rings.find(|it| it.event == event && it.ring.cpu == cpu) {
            Some(it) => it.ring.tell_arrivals(),
            None => Ok(()),
        }
    }

    /// Samples a CPU no more, which went away. Returns true when it was sampled.
    pub(super) fn leave(&mut self, cpu: CpuId) -> bool {
        let mut left = false;
        for it in self.rings.iter_mut().filter(|it| it.ring.cpu == cpu) {
            it.ring.leave();
            left = true;
        }
        left
    }

    /// Proves that samples arrive, without taking any: see `prove_samples` in `cpu_ring.rs`.
    pub fn delivers_samples(&self) -> bool {
        let rings = || self.rings.iter();
        cpu_ring::prove_samples(|scratch| rings().any(|it| it.ring.holds_sample(scratch)))
    }
}

/// The ring of a set by its number among those of all sets.
pub(super) fn in_sets(
    sets: &mut [RingSet],
    mut number: usize,
) -> Option<(SetKey, &mut SetRing, Layout)> {
    for set in sets {
        let rings = set.rings.len();
        if number < rings {
            let it = &mut set.rings[number];
            let layout = *set.layouts.get(usize::from(it.event))?;
            return Some((set.key, it, layout));
        }
        number -= rings;
    }
    None
}

/// Hands out one record of a capture's ring.
pub(super) fn each_of_set(
    set: SetKey,
    it: &mut SetRing,
    layout: &Layout,
    (time, position): (MonotonicTime, Position),
    scratch: &mut Scratch,
    each: &mut impl FnMut(Drained<'_>),
) {
    let event = it.event;
    let Some(bytes) = it.ring.record(position, scratch) else {
        return;
    };
    match record::parse(bytes, layout) {
        Ok(Record::Sample(sample)) => {
            let sample = Sample { time, ..sample };
            each(Drained::SetSample { set, event, sample });
        }
        Ok(Record::Arrival { tid, cpu }) => each(Drained::SetArrival {
            set,
            time,
            cpu,
            tid,
        }),
        // Losses and throttling were counted by the scan.
        Ok(_) => {}
        Err(record::Malformed) => it.ring.malformed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::SampleSpacing;
    use crate::ring::Ring;

    #[test]
    fn memory_stands_in_its_account_until_the_set_is_closed() {
        let ring = Ring::in_memory(1 << 16).expect("maps");
        let rings = [(0, CpuRing::over(CpuId(0), ring, SampleSpacing::Counted))];
        let set = RingSet::over(SetKey(1), rings.into_iter(), Vec::new(), true);
        let mut set = set.expect("it has a ring");
        let account = Arc::new(AtomicU64::new(7));
        set.charge(Arc::clone(&account));
        assert_eq!(account.load(Ordering::Relaxed), 7 + set.ring_bytes() as u64);
        assert!(set.ring_bytes() > 0);
        drop(set);
        assert_eq!(account.load(Ordering::Relaxed), 7);
    }
}
