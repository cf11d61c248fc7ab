//! Batches that the sampler hands to the symbolizer: folded samples with frames that are still
//! addresses.
//!
//! A batch covers a part of one window, or all of it unless a client asked for fresh data. Its
//! buffers are recycled: a batch returns to the sampler once it is named, so in steady state the
//! sampler allocates nothing.

use host::frame::RawFrame;
use host::ids::{CaptureId, CgroupId, Comm, Pid, ProcessId};
use host::time::MonotonicTime;
use offcpu::WaitCounts;
use profile::{Quality, StackEnd, Value};

/// Most created cgroups per batch whose paths are kept. A host that starts a thousand containers in
/// a window creates some 4,000.
const CGROUPS_MAX: usize = 8192;

/// Bytes of their paths together: 256 each. Paths of containers in pods have 250; whoever has a
/// cgroup to make others in may give them 4 KiB.
const CGROUP_BYTES_MAX: usize = 2 << 20;

/// A folded stack: `len` frames from `first` in [`RawBatch::frames`], leaf first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Index of the leaf frame.
    pub first: u32,
    /// Number of frames.
    pub len: u32,
    /// How it ended at its root end.
    pub end: StackEnd,
    /// True when a frame of it lies in generated code.
    pub generated: bool,
}

/// When a sample with a frame in generated code was taken: the code at an address may change within
/// one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawTime {
    /// Index in [`RawBatch::samples`].
    pub row: u32,
    /// Its time.
    pub time: MonotonicTime,
}

/// When a sample was taken, and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawTimestamp {
    /// Index in [`RawBatch::samples`].
    pub row: u32,
    /// Its time.
    pub time: MonotonicTime,
    /// In the event's unit.
    pub weight: u64,
}

/// Samples of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// The cgroup from the record; 0 if the kernel gave none.
    pub cgroup: CgroupId,
    /// Index in [`RawBatch::processes`].
    pub process: u32,
    /// Name of the thread.
    pub thread: Comm,
    /// Index in [`RawBatch::stacks`].
    pub stack: u32,
    /// Count and weight.
    pub value: Value,
}

/// A process with samples in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawProcess {
    /// Its id in the process table.
    pub id: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// Name of its main thread.
    pub comm: Comm,
    /// True for threads of the kernel, which have no user memory.
    pub kernel: bool,
    /// When this lifetime or exec generation started; zero when it is older than the daemon.
    pub started: MonotonicTime,
    /// True when all threads of the process had ended by the end of the batch.
    pub ended: bool,
}

/// Samples that were lost on one CPU, estimated: the CPU's clock ticks on, so what is missing
/// between two records of its ring is known in number, busy and idle together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLoss {
    /// Time of the last record before the gap, or the start of the batch if that is later.
    pub from: MonotonicTime,
    /// Time of the first record after it, or the end of the batch if that is sooner.
    pub until: MonotonicTime,
    /// Samples that did not arrive, those of the idle loop included.
    pub samples: u64,
    /// Weight of one of them.
    pub period: u64,
}

/// Folded samples of a part of one window.
#[derive(Debug, Default)]
pub struct RawBatch {
    /// The capture it is of; `None`: of the continuous profile. Stays when the batch is emptied.
    pub capture: Option<CaptureId>,
    /// Start of the part.
    pub start: MonotonicTime,
    /// End of the part.
    pub end: MonotonicTime,
    /// True when the window ends with this batch.
    pub closes: bool,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// Frames of all stacks.
    pub frames: Vec<RawFrame>,
    /// Stacks, each once.
    pub stacks: Vec<RawStack>,
    /// Samples, each key once.
    pub samples: Vec<RawSample>,
    /// Processes, each once.
    pub processes: Vec<RawProcess>,
    /// Times of the samples with frames in generated code, in the order they were folded.
    pub times: Vec<RawTime>,
    /// Such samples whose time did not fit; they count as taken at the end of the batch.
    pub times_refused: u64,
    /// Times of all samples, where they are kept, in the order they were folded.
    pub timestamps: Vec<RawTimestamp>,
    /// Samples whose time did not fit.
    pub timestamps_refused: u64,
    /// Samples estimated to have been lost in the time of this batch.
    pub losses: Vec<RawLoss>,
    /// Weight of what is known to have been lost after its end.
    pub lost_after: u64,
    /// cgroups created since the last batch: id and path from the root of their hierarchy. See
    /// [`RawBatch::note_cgroup`].
    pub cgroups: Vec<(CgroupId, Box<[u8]>)>,
    /// Bytes of their paths.
    pub cgroup_bytes: usize,
    /// Files announced to the store by the end of the batch, since the start.
    pub files_announced: u64,
    /// True when kernel code came or went since the last batch.
    pub kernel_changed: bool,
    /// Samples that a capture's pre-filter refused. They are not among those taken. Losses are
    /// counted over all samples.
    pub passed_over: u64,
    /// Samples that were there for a capture and that the sampler had no time to take; they are
    /// counted as lost too.
    pub dropped: u64,
    /// CPUs that came or went while a capture ran: it sampled them in part.
    pub cpus_changed: u32,
    /// cgroups made below those that a capture is about, for which its pre-filter had no room.
    pub cgroups_refused: u64,
    /// For how long a capture's processor event was to be counted on all CPUs, and was. It is set
    /// in the batches in which a set of the capture's rings ends. Unit: nanoseconds.
    pub counted_ns: (u64, u64),
    /// Counts of waits that a capture saw or missed.
    pub waits: WaitCounts,
    /// What was taken and missed. The symbolizer adds what is known only after naming.
    pub quality: Quality,
}

impl RawBatch {
    /// Index of the first frame that belongs to the thread itself: the one after the last mark.
    pub fn own_frames_at(&self, stack: RawStack) -> usize {
        let frames = &self.frames[stack.first as usize..(stack.first + stack.len) as usize];
        let last = frames.iter().rposition(|frame| frame.is_mark());
        last.map_or(0, |at| at + 1)
    }

    /// Stores the path of a created cgroup. False if there is no room: the cgroup is then named
    /// from the tree, if it still exists.
    pub fn note_cgroup(&mut self, id: CgroupId, path: &[u8]) -> bool {
        let bytes = self.cgroup_bytes + path.len();
        if self.cgroups.len() >= CGROUPS_MAX || bytes > CGROUP_BYTES_MAX {
            return false;
        }
        self.cgroup_bytes = bytes;
        self.cgroups.push((id, path.into()));
        true
    }

    /// Empties it, keeping the buffers.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.stacks.clear();
        self.samples.clear();
        self.processes.clear();
        self.times.clear();
        self.times_refused = 0;
        self.timestamps.clear();
        self.timestamps_refused = 0;
        self.cgroups.clear();
        self.cgroup_bytes = 0;
        self.losses.clear();
        self.lost_after = 0;
        self.passed_over = 0;
        self.dropped = 0;
        self.cpus_changed = 0;
        self.cgroups_refused = 0;
        self.counted_ns = (0, 0);
        self.waits = WaitCounts::default();
        self.quality = Quality::default();
        self.closes = false;
        self.kernel_changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_cgroups_are_bounded_by_number_and_by_bytes() {
        let mut batch = RawBatch::default();
        let noted = (0..100_000)
            .filter(|&id| batch.note_cgroup(CgroupId(id), b"/a"))
            .count();
        assert_eq!(noted, CGROUPS_MAX);
        batch.clear();
        let long = [b'x'; 4096];
        let noted = (0..100_000)
            .filter(|&id| batch.note_cgroup(CgroupId(id), &long))
            .count();
        assert_eq!(noted, CGROUP_BYTES_MAX / long.len());
        batch.clear();
        assert!(
            batch.note_cgroup(CgroupId(1), &long),
            "an empty batch has room again"
        );
    }
}
