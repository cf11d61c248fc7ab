//! Commands from other threads to the sampler.

use super::waits::Waits;
use crate::filter::Filter;
use aggregate::batch::RawBatch;
use host::ids::{CaptureId, CpuId};
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRings;
use perf::rings::Rings;
use perf::rings::sets::{RingSet, SetKey};
use std::time::Duration;
use unwind::walk::Depths;

/// How often a capture hands over what it has, so that its progress is live.
pub const HAND_OVER: Duration = Duration::from_millis(500);

/// Room that a capture's batches start with: a second at 997 Hz on eight CPUs without growing.
/// Unit: rows.
const ROWS_AT_FIRST: usize = 8 << 10;

/// A change while the sampler runs.
pub enum Command {
    /// Sample with these rings from now on, and count this weight for a sample without one.
    Replace {
        /// Opened and enabled.
        rings: Box<Rings>,
        /// Most frames of a stack.
        depths: Depths,
        /// Weight of one sample; 0 when it varies.
        period: u64,
        /// The daemon's budget allows less than is configured.
        reduced: bool,
    },
    /// Sample one more CPU, or one again that was away.
    AddCpu {
        /// Opened and enabled.
        rings: Box<CpuRings>,
        /// Since when the CPU may have run unsampled.
        since: MonotonicTime,
        /// Since when it had been offline; as `since` where it was not.
        left: MonotonicTime,
    },
    /// A CPU went away.
    RemoveCpu(CpuId),
    /// Close windows this long, at multiples of it before and after `boundary`.
    Windows {
        /// The length.
        length: Duration,
        /// Boundary between the old and the new one.
        boundary: MonotonicTime,
    },
    /// Say of every sample of the continuous profile when it was taken, or do not.
    KeepTimes(bool),
    /// Start a capture.
    BeginCapture(Box<CaptureStart>),
    /// Have a capture go on with another set.
    FollowCapture(Box<CaptureSwitch>),
    /// End a capture with what there is.
    EndCapture(CaptureId),
}

/// Data with which a capture starts.
#[derive(Debug)]
pub struct CaptureStart {
    /// Its id.
    pub id: CaptureId,
    /// Where its samples come from.
    pub set: SetOf,
    /// Which of them it uses.
    pub filter: Filter,
    /// Say of every sample when it was taken.
    pub keep_times: bool,
    /// How often it hands over what it has.
    pub window: Duration,
    /// Weight of one sample; 0 when it varies.
    pub period: u64,
    /// Makes waits of the samples of the set, for event `off-cpu`.
    pub waits: Option<Box<Waits>>,
    /// Batches that it folds into.
    pub(super) batches: [RawBatch; 2],
}

/// Where the samples of a capture come from.
#[derive(Debug)]
pub enum SetOf {
    /// Rings that the sampler does not know yet.
    New(Box<RingSet>),
    /// Rings that another capture has opened, and that did not end before this one starts.
    Open(SetKey),
}

impl SetOf {
    /// Which set it is.
    pub fn key(&self) -> SetKey {
        match self {
            SetOf::New(set) => set.key,
            SetOf::Open(key) => *key,
        }
    }
}

/// The set with which a capture continues, in place of the one it has.
#[derive(Debug)]
pub struct CaptureSwitch {
    /// Its id. A capture that has ended does not continue.
    pub id: CaptureId,
    /// Where its samples come from now.
    pub set: SetOf,
    /// Weight of one sample; 0 when it varies.
    pub period: u64,
    /// Boundary between the two sets.
    pub seam: RingSetSwitch,
}

/// How two sets of one capture meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSetSwitch {
    /// Both sample the same: what is not younger than the moment of the change is taken from the
    /// first, the rest from the second.
    Cut,
    /// They sample different things, of which the first has come to its end: all of both is taken.
    Apart,
}

impl CaptureStart {
    /// All that the sampler needs, allocated here: on the caller's thread.
    pub fn new(id: CaptureId, set: SetOf, filter: Filter) -> CaptureStart {
        let batch = || RawBatch {
            frames: Vec::with_capacity(8 * ROWS_AT_FIRST),
            stacks: Vec::with_capacity(ROWS_AT_FIRST),
            samples: Vec::with_capacity(ROWS_AT_FIRST),
            ..RawBatch::default()
        };
        CaptureStart {
            id,
            set,
            filter,
            keep_times: false,
            window: HAND_OVER,
            period: 0,
            waits: None,
            batches: [batch(), batch()],
        }
    }
}
