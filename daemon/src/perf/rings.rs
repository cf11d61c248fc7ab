//! The rings of all CPUs, drained together in order of time.
//!
//! Records of different CPUs belong together: a process forked on one CPU runs on another. A drain
//! takes all records older than a horizon a little before now, from all rings, sorts them by time
//! and hands them out; younger ones stay for the next drain, because an older one may still be on
//! its way on another CPU.

use crate::ids::CpuId;
use crate::perf::event::{self, EventSpec, Features, OpenError};
use crate::perf::record::{self, Layout, Record};
use crate::perf::ring::{Position, RECORD_BYTES_MAX, Ring};
use crate::time::Mono;
use perf_event::Counter;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use thiserror::Error;

/// How far before now a drain stops. A record gets its time when the kernel begins to write it and
/// is visible when it is done: microseconds, unless a hypervisor takes the CPU away in between.
/// What comes later than that is still used, and counted as late.
pub const HORIZON: Duration = Duration::from_millis(2);

/// Records a drain handles at once; more are left for the next. Bounds the index's memory at
/// 6 MiB. A drain at 99 Hz and 64 CPUs sees about 15,000.
const RECORDS_PER_DRAIN_MAX: usize = 1 << 18;

/// How long [`Rings::deliver_samples`] tries. At the lowest useful rate of 10 Hz two samples are due.
const PROBE: Duration = Duration::from_millis(250);

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
    /// No CPU at all.
    #[error("no CPU is online to sample")]
    NoCpus,
}

/// Counts of one CPU since its ring was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounts {
    /// Samples read.
    pub samples: u64,
    /// Records lost in a full ring.
    pub lost: u64,
    /// Throttle events.
    pub throttled: u64,
}

struct CpuRing {
    cpu: CpuId,
    counter: Counter,
    ring: Ring,
    counts: CpuCounts,
    /// Head when the drain began, and up to where it has indexed.
    head: Position,
    indexed: Position,
}

impl CpuRing {
    fn holds_sample(&self, scratch: &mut Vec<u8>) -> bool {
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

/// The rings of all CPUs.
pub struct Rings {
    rings: Vec<CpuRing>,
    layout: Layout,
    features: Features,
    index: Vec<(Mono, u32, Position)>,
    scratch: Vec<u8>,
    newest: Mono,
    /// Records that were older than ones already handed out.
    pub late: u64,
    /// Records that did not parse, and rings emptied because of a damaged header.
    pub malformed: u64,
}

/// A record with where it came from.
pub struct Drained<'a> {
    /// When it was made.
    pub time: Mono,
    /// CPU of the ring.
    pub cpu: CpuId,
    /// The record.
    pub record: Record<'a>,
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
            let counter = match event::open(cpu, spec, features) {
                Ok((counter, took)) => {
                    features = took;
                    counter
                }
                Err(OpenError::Unsupported { .. }) if is_offline(cpu) => continue,
                Err(error) => return Err(error.into()),
            };
            let ring =
                Ring::map(counter.as_raw_fd(), ring_bytes).map_err(|source| RingsError::Map {
                    cpu: cpu.0,
                    bytes: ring_bytes,
                    source,
                })?;
            let (head, counts) = (ring.head(), CpuCounts::default());
            rings.push(CpuRing {
                cpu,
                counter,
                ring,
                counts,
                head,
                indexed: head,
            });
        }
        if rings.is_empty() {
            return Err(RingsError::NoCpus);
        }
        for ring in &mut rings {
            ring.counter.enable().map_err(|source| RingsError::Enable {
                cpu: ring.cpu.0,
                source,
            })?;
        }
        Ok(Rings {
            rings,
            layout: features.layout(),
            features,
            index: Vec::with_capacity(4096),
            scratch: Vec::with_capacity(RECORD_BYTES_MAX),
            newest: Mono(0),
            late: 0,
            malformed: 0,
        })
    }

    /// Descriptors to wait on.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.rings.iter().map(|ring| ring.counter.as_raw_fd())
    }

    /// The features the kernel took.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Counts of each CPU.
    pub fn counts(&self) -> impl Iterator<Item = (CpuId, CpuCounts)> + '_ {
        self.rings.iter().map(|ring| (ring.cpu, ring.counts))
    }

    /// Number of CPUs with a ring.
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// Hands out every record up to a little before `now`, in order of time, and gives the space
    /// back to the kernel. Returns the horizon: all records before it have been handed out.
    pub fn drain(&mut self, now: Mono, mut each: impl FnMut(Drained<'_>)) -> Mono {
        let horizon = Mono(now.0.saturating_sub(HORIZON.as_nanos() as u64));
        let horizon = self.build_index(horizon);
        self.index.sort_unstable();
        for &(time, ring, position) in &self.index {
            let CpuRing {
                cpu,
                ring,
                counts,
                head,
                ..
            } = &mut self.rings[ring as usize];
            // Indexed before, so the header is sound.
            let Ok(bytes) = ring.record(position, *head, &mut self.scratch) else {
                continue;
            };
            let record = match record::parse(bytes, &self.layout) {
                Ok(record) => record,
                Err(record::Malformed) => {
                    self.malformed += 1;
                    continue;
                }
            };
            match record {
                Record::Sample(_) => counts.samples += 1,
                Record::Lost(lost) => counts.lost += lost,
                Record::Throttle => counts.throttled += 1,
                _ => {}
            }
            self.late += u64::from(time < self.newest);
            self.newest = self.newest.max(time);
            each(Drained {
                time,
                cpu: *cpu,
                record,
            });
        }
        for ring in &mut self.rings {
            if ring.indexed != ring.ring.tail() {
                ring.ring.release(ring.indexed);
            }
        }
        horizon
    }

    /// Indexes the records up to `horizon`, or up to an earlier one where a ring holds more than its
    /// share: what is younger than the first record left behind must wait with it.
    fn build_index(&mut self, horizon: Mono) -> Mono {
        let limit = self.index_up_to(horizon);
        if limit < horizon {
            return self.index_up_to(limit);
        }
        horizon
    }

    /// Returns the horizon, or the time before the first record that found no room in the index.
    fn index_up_to(&mut self, horizon: Mono) -> Mono {
        let mut limit = horizon;
        self.index.clear();
        let share = (RECORDS_PER_DRAIN_MAX / self.rings.len()).max(64);
        for (number, ring) in self.rings.iter_mut().enumerate() {
            ring.head = ring.ring.head();
            ring.indexed = ring.ring.tail();
            let mut left = share;
            while ring.indexed != ring.head {
                let record = ring.ring.record(ring.indexed, ring.head, &mut self.scratch);
                let Ok(bytes) = record else {
                    // Without a sound header there is no next record: start over at the head.
                    self.malformed += 1;
                    ring.indexed = ring.head;
                    break;
                };
                match record::time(bytes) {
                    Ok(time) if time > horizon => break,
                    Ok(time) if left == 0 => {
                        limit = limit.min(time);
                        break;
                    }
                    Ok(time) => {
                        self.index.push((time, number as u32, ring.indexed));
                        left -= 1;
                    }
                    Err(record::Malformed) => self.malformed += 1,
                }
                ring.indexed = Position(ring.indexed.0 + bytes.len() as u64);
            }
        }
        limit
    }

    /// Proves that samples arrive: keeps this thread's CPU busy for up to `PROBE` and looks for a
    /// sample, without taking any. Some VMs accept a hardware event and never deliver.
    pub fn deliver_samples(&self) -> bool {
        let begin = Mono::now();
        let mut scratch = Vec::new();
        let mut burnt = 0u64;
        while Mono::now().since(begin) < PROBE {
            for _ in 0..1_000_000 {
                burnt = std::hint::black_box(burnt.wrapping_mul(31).wrapping_add(1));
            }
            if self
                .rings
                .iter()
                .any(|ring| ring.holds_sample(&mut scratch))
            {
                return true;
            }
        }
        false
    }
}

fn is_offline(cpu: CpuId) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{}/online", cpu.0);
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::event::EventKind;

    #[test]
    fn a_busy_thread_is_sampled_in_order_of_time_needs_root() {
        let spec = EventSpec {
            kind: EventKind::CpuClock,
            rate_hz: 999,
            max_stack_depth: 127,
            watermark_bytes: 64 << 10,
        };
        let online = [CpuId(0), CpuId(1)];
        let mut rings = match Rings::open(&online, &spec, 256 << 10) {
            Ok(rings) => rings,
            Err(error) => {
                eprintln!("skip: perf events are not to be had here: {error}");
                return;
            }
        };
        let begin = Mono::now();
        let mut burnt = 0u64;
        while Mono::now().since(begin) < Duration::from_millis(300) {
            burnt = std::hint::black_box(burnt.wrapping_mul(31).wrapping_add(7));
        }
        let (mut mine, mut newest, mut horizon) = (0, Mono(0), Mono(0));
        while horizon < begin.plus(Duration::from_millis(300)) {
            horizon = rings.drain(Mono::now(), |drained| {
                assert!(drained.time >= newest, "records come in order of time");
                newest = drained.time;
                if let Record::Sample(sample) = drained.record {
                    mine += u32::from(sample.pid.0 == std::process::id());
                    assert!(!sample.callchain.is_empty());
                }
            });
        }
        assert_eq!((rings.malformed, rings.late), (0, 0));
        // 300 at 999 Hz, if no other process wanted the CPU; a third of it is proof enough.
        assert!(
            mine > 100,
            "only {mine} samples of a thread that was busy for 300 ms"
        );
    }
}
