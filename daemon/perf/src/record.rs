//! Records of the ring buffer, parsed in place.
//!
//! Layout: perf_event_open(2) with the `sample_type` of [`super::event`]; every record except
//! samples ends with the `sample_id` trailer. The input comes from the kernel, but a parser that
//! trusts lengths is one kernel bug away from reading past a record, so every read is checked, and
//! what does not fit is [`Malformed`]. No allocation, no copies.

use host::ids::{CgroupId, Comm, CpuId, Pid, Tid};
use host::time::MonotonicTime;
use perf_event_open_sys::bindings as sys;

/// A record with bytes that do not fit its type.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Malformed;

/// Which optional fields the records of an event contain. There is one layout for all rings of the
/// continuous profile, and one for each event of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `PERF_SAMPLE_CGROUP` is on.
    pub cgroup: bool,
    /// Registers in `REGS_USER`, by bit; 0 when it is off.
    pub user_regs: u64,
    /// `STACK_USER` is on.
    pub user_stack: bool,
    /// `PERF_SAMPLE_RAW` is on.
    pub raw: bool,
    /// Weight of each sample if `PERF_SAMPLE_PERIOD` is off; 0: it is on.
    pub fixed_period: u64,
}

/// Bytes of the `sample_id` trailer: TID, TIME, CPU, IDENTIFIER.
const TRAILER_BYTES: usize = 32;

/// More records than this are never lost between two `LOST` records: one each nanosecond for 18
/// minutes. A larger count is damage. With a smaller bound a long pause of the daemon on a busy
/// machine would look like damage.
const LOST_MAX: u64 = 1 << 40;

/// What the kernel was doing when a sample was taken (`PERF_RECORD_MISC_CPUMODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMode {
    /// Kernel code.
    Kernel,
    /// User code.
    User,
    /// A guest or the hypervisor: its addresses mean nothing here.
    Other,
}

/// A callchain: addresses, leaf first, with `PERF_CONTEXT_*` markers between them.
#[derive(Clone, Copy, Debug)]
pub struct Callchain<'a>(&'a [u8]);

impl<'a> Callchain<'a> {
    /// Wraps native-endian 64-bit words; a tail shorter than a word is ignored.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Callchain(bytes)
    }

    /// Number of words, markers included.
    pub fn len(&self) -> usize {
        self.0.len() / 8
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.len() < 8
    }

    /// The words as they are recorded.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The words.
    pub fn iter(&self) -> impl Iterator<Item = u64> + 'a {
        self.0.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        })
    }
}

/// The user registers and the copy of the user stack, where they were asked for and there are some.
#[derive(Clone, Copy)]
pub struct UserState<'a> {
    /// False for a 32-bit program.
    pub is_64: bool,
    /// Register values in bit order of the mask.
    pub regs: &'a [u8],
    /// Bytes from the stack pointer up. Holds secrets: kept nowhere but in `sampler/src/held.rs`,
    /// for a second.
    pub stack: &'a [u8],
    /// True when the copy has the size that was asked for: the stack may go on behind it. A shorter
    /// one ends where readable memory does.
    pub full: bool,
}

impl std::fmt::Debug for UserState<'_> {
    /// Prints sizes, never contents.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let UserState { is_64, full, .. } = self;
        let bytes = self.stack.len();
        write!(
            f,
            "UserState {{ is_64: {is_64}, stack: {bytes} bytes, full: {full} }}"
        )
    }
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Where the CPU was.
    pub mode: CpuMode,
    /// Instruction pointer.
    pub ip: u64,
    /// Process; 0 for the idle task.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Its time.
    pub time: MonotonicTime,
    /// The CPU.
    pub cpu: CpuId,
    /// Weight of the sample, in the event's unit.
    pub period: u64,
    /// Kernel and user chain.
    pub callchain: Callchain<'a>,
    /// For unwinding from a copied stack.
    pub user: Option<UserState<'a>>,
    /// Data of a tracepoint, as its `format` file describes it, followed by padding; `None` if not
    /// requested. May contain untrusted names and text.
    pub raw: Option<&'a [u8]>,
    /// cgroup in the hierarchy of perf_event; 0 when not asked for.
    pub cgroup: CgroupId,
}

/// How a mapping names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFile<'a> {
    /// GNU build id: in recordings of perf alone.
    BuildId(&'a [u8]),
    /// Device and inode; all zero for anonymous memory.
    Inode {
        /// Device major.
        major: u32,
        /// Device minor.
        minor: u32,
        /// Inode number.
        inode: u64,
        /// Inode generation.
        generation: u64,
    },
}

/// A new executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap<'a> {
    /// Process.
    pub pid: Pid,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file of the first byte.
    pub file_offset: u64,
    /// What is mapped.
    pub file: MapFile<'a>,
    /// True for a copy of one's own, as loaders map programs (`MAP_PRIVATE`).
    pub private: bool,
    /// Path, or a word such as `//anon` and `[vdso]`.
    pub path: &'a [u8],
}

/// A record the agent works with.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// `PERF_RECORD_SAMPLE`
    Sample(Sample<'a>),
    /// `PERF_RECORD_MMAP2`
    Mmap(Mmap<'a>),
    /// `PERF_RECORD_COMM`: a task has a new name; `exec` when through a new program.
    Comm {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// The name.
        comm: Comm,
        /// True at exec: the address space is a new one.
        exec: bool,
    },
    /// `PERF_RECORD_FORK`: a new thread (`pid == parent`) or process.
    Fork {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
        /// Process of the creator.
        parent: Pid,
        /// Thread of the creator.
        parent_tid: Tid,
    },
    /// `PERF_RECORD_EXIT`: a thread has ended.
    Exit {
        /// Process.
        pid: Pid,
        /// Thread.
        tid: Tid,
    },
    /// `PERF_RECORD_CGROUP`: a new cgroup.
    Cgroup {
        /// Its id.
        id: CgroupId,
        /// Path from the root of the hierarchy.
        path: &'a [u8],
    },
    /// `PERF_RECORD_LOST` or `LOST_SAMPLES`: records that found no room.
    Lost(u64),
    /// `PERF_RECORD_THROTTLE`
    Throttle,
    /// `PERF_RECORD_KSYMBOL` or `BPF_EVENT`: kernel code came or went.
    KernelCode,
    /// `PERF_RECORD_SWITCH` or `SWITCH_CPU_WIDE`, of a thread that comes to a CPU.
    Arrival {
        /// The thread; 0: the idle task.
        tid: Tid,
        /// The CPU.
        cpu: CpuId,
    },
    /// A kind the agent has no use for.
    Other,
}

/// Reads fields from front to back.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (front, back) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = back;
        Ok(front)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_ne_bytes(bytes))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_ne_bytes(bytes))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        let mut bytes = [0; 2];
        bytes.copy_from_slice(self.take(2)?);
        Ok(u16::from_ne_bytes(bytes))
    }

    fn u32_pair(&mut self) -> Result<(u32, u32), Malformed> {
        Ok((self.u32()?, self.u32()?))
    }

    /// Bytes before the first NUL of what is left.
    fn text(&self) -> &'a [u8] {
        let end = self
            .0
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.0.len());
        &self.0[..end]
    }
}

/// Type and misc bits of a record.
pub fn header(record: &[u8]) -> Result<(u32, u16), Malformed> {
    let mut cursor = Cursor(record);
    let kind = cursor.u32()?;
    let misc_and_size = cursor.take(4)?;
    Ok((
        kind,
        u16::from_ne_bytes([misc_and_size[0], misc_and_size[1]]),
    ))
}

/// True for samples.
pub fn is_sample(record: &[u8]) -> bool {
    header(record).is_ok_and(|(kind, _)| kind == sys::PERF_RECORD_SAMPLE)
}

/// What a record says about the flow of samples in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// A sample, and what it stands for.
    Sample(u64),
    /// Records that found no room.
    Lost(u64),
    /// Samples that the event's driver lost.
    LostSamples(u64),
    /// The event was paused.
    Throttle,
    /// The event goes on.
    Unthrottle,
    /// Anything else.
    Other,
}

/// Returns the flow event of a record, without parsing the rest. A field past its end makes it
/// [`FlowEvent::Other`], and so does a count of lost records that cannot be. If the event does not
/// say the period of each sample, the value of [`FlowEvent::Sample`] means nothing.
pub fn flow_event(record: &[u8]) -> FlowEvent {
    let word = |at: usize| Cursor(record.get(at..).unwrap_or_default()).u64();
    let count = |at: usize| match word(at) {
        Ok(count @ ..=LOST_MAX) => Ok(count),
        _ => Err(Malformed),
    };
    let event = match header(record) {
        // Sample: header, identifier, ip, tid, time, cpu, period.
        Ok((sys::PERF_RECORD_SAMPLE, _)) => word(48).map(FlowEvent::Sample),
        Ok((sys::PERF_RECORD_LOST, _)) => count(16).map(FlowEvent::Lost),
        Ok((sys::PERF_RECORD_LOST_SAMPLES, _)) => count(8).map(FlowEvent::LostSamples),
        Ok((sys::PERF_RECORD_THROTTLE, _)) => Ok(FlowEvent::Throttle),
        Ok((sys::PERF_RECORD_UNTHROTTLE, _)) => Ok(FlowEvent::Unthrottle),
        _ => Ok(FlowEvent::Other),
    };
    event.unwrap_or(FlowEvent::Other)
}

/// When a record was made: all records are put in this order before they are used.
pub fn time(record: &[u8]) -> Result<MonotonicTime, Malformed> {
    let (kind, _) = header(record)?;
    // Sample: header, identifier, ip, tid, time. Others: the trailer's second field.
    let at = match kind {
        sys::PERF_RECORD_SAMPLE => 32,
        _ => trailer_at(kind, record)? + 8,
    };
    Ok(MonotonicTime(
        Cursor(record.get(at..).ok_or(Malformed)?).u64()?,
    ))
}

/// Where the trailer of a record that is not a sample starts: at the end of its body.
///
/// For most types that is a trailer's length before the end of the record. Records of changed
/// kernel code may be longer than what was written into them: for each event on the CPU that wants
/// such a record the kernel adds a trailer to the size in the header, and does not take it off
/// again for the next one (`perf_event_ksymbol_output`, `perf_event_bpf_output` and
/// `perf_event_text_poke_output` in kernel/events/core.c; seen on Linux 6.18 next to `perf
/// record`). What lies behind the trailer was in the ring before. So the length of their body is
/// taken from the body itself.
fn trailer_at(kind: u32, record: &[u8]) -> Result<usize, Malformed> {
    let end = record.len().checked_sub(TRAILER_BYTES).ok_or(Malformed)?;
    let at = match kind {
        // Header, address, length, type and flags; the name with its NUL.
        sys::PERF_RECORD_KSYMBOL => {
            let name = record.get(24..).ok_or(Malformed)?;
            let nul = name.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
            24 + (nul + 1).next_multiple_of(8)
        }
        // Header, type, flags, id, tag.
        sys::PERF_RECORD_BPF_EVENT => 24,
        // Header, address, length of the old and of the new bytes; both.
        sys::PERF_RECORD_TEXT_POKE => {
            let mut lengths = Cursor(record.get(16..).ok_or(Malformed)?);
            let (old, new) = (lengths.u16()?, lengths.u16()?);
            (20 + usize::from(old) + usize::from(new)).next_multiple_of(8)
        }
        _ => end,
    };
    match at <= end {
        true => Ok(at),
        false => Err(Malformed),
    }
}

/// Parses a complete record, including its header.
///
/// # Errors
/// [`Malformed`] when a field lies past its end.
pub fn parse<'a>(record: &'a [u8], layout: &Layout) -> Result<Record<'a>, Malformed> {
    let (kind, misc) = header(record)?;
    let body = record.get(8..).ok_or(Malformed)?;
    if kind == sys::PERF_RECORD_SAMPLE {
        return sample(body, misc, layout).map(Record::Sample);
    }
    let trailer = trailer_at(kind, record)?;
    let body = record.get(8..trailer).ok_or(Malformed)?;
    let mut cursor = Cursor(body);
    Ok(match kind {
        sys::PERF_RECORD_MMAP2 => Record::Mmap(mmap(cursor)?),
        sys::PERF_RECORD_COMM => {
            let (pid, tid) = cursor.u32_pair()?;
            Record::Comm {
                pid: Pid(pid),
                tid: Tid(tid),
                comm: Comm::from_bytes(cursor.text()),
                exec: misc & sys::PERF_RECORD_MISC_COMM_EXEC as u16 != 0,
            }
        }
        sys::PERF_RECORD_FORK => {
            let (pid, parent) = cursor.u32_pair()?;
            let (tid, parent_tid) = cursor.u32_pair()?;
            Record::Fork {
                pid: Pid(pid),
                tid: Tid(tid),
                parent: Pid(parent),
                parent_tid: Tid(parent_tid),
            }
        }
        sys::PERF_RECORD_EXIT => {
            let (pid, _) = cursor.u32_pair()?;
            let (tid, _) = cursor.u32_pair()?;
            Record::Exit {
                pid: Pid(pid),
                tid: Tid(tid),
            }
        }
        sys::PERF_RECORD_CGROUP => {
            let id = CgroupId(cursor.u64()?);
            Record::Cgroup {
                id,
                path: cursor.text(),
            }
        }
        sys::PERF_RECORD_LOST => {
            cursor.u64()?;
            Record::Lost(cursor.u64()?)
        }
        sys::PERF_RECORD_LOST_SAMPLES => Record::Lost(cursor.u64()?),
        sys::PERF_RECORD_THROTTLE => Record::Throttle,
        sys::PERF_RECORD_KSYMBOL | sys::PERF_RECORD_BPF_EVENT => Record::KernelCode,
        sys::PERF_RECORD_SWITCH | sys::PERF_RECORD_SWITCH_CPU_WIDE
            if u32::from(misc) & sys::PERF_RECORD_MISC_SWITCH_OUT == 0 =>
        {
            // Who comes stands in the trailer alone: process, thread, time, CPU.
            let mut trailer = Cursor(record.get(trailer..).ok_or(Malformed)?);
            let (_, tid) = trailer.u32_pair()?;
            trailer.u64()?;
            Record::Arrival {
                tid: Tid(tid),
                cpu: CpuId(trailer.u32()?),
            }
        }
        _ => Record::Other,
    })
}

fn mmap(mut cursor: Cursor<'_>) -> Result<Mmap<'_>, Malformed> {
    let (pid, _tid) = cursor.u32_pair()?;
    let (start, len, file_offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let (major, minor) = cursor.u32_pair()?;
    // There is no build id here, whatever the head says: the kernel says it of the records of all
    // events once one of them asked for build ids, and these never do.
    let file = MapFile::Inode {
        major,
        minor,
        inode: cursor.u64()?,
        generation: cursor.u64()?,
    };
    let (_prot, flags) = cursor.u32_pair()?;
    Ok(Mmap {
        pid: Pid(pid),
        start,
        len,
        file_offset,
        file,
        private: flags & libc::MAP_PRIVATE as u32 != 0,
        path: cursor.text(),
    })
}

fn sample<'a>(body: &'a [u8], misc: u16, layout: &Layout) -> Result<Sample<'a>, Malformed> {
    let mut cursor = Cursor(body);
    let _identifier = cursor.u64()?;
    let ip = cursor.u64()?;
    let (pid, tid) = cursor.u32_pair()?;
    let time = MonotonicTime(cursor.u64()?);
    let (cpu, _) = cursor.u32_pair()?;
    let period = match layout.fixed_period {
        0 => cursor.u64()?,
        fixed => fixed,
    };
    let words = usize::try_from(cursor.u64()?).map_err(|_| Malformed)?;
    let callchain = Callchain(cursor.take(words.checked_mul(8).ok_or(Malformed)?)?);
    let mut raw = None;
    if layout.raw {
        // Its size counts the padding up to a multiple of eight with the size itself.
        let size = cursor.u32()? as usize;
        raw = Some(cursor.take(size)?);
    }
    let mut regs = None;
    let mut is_64 = false;
    if layout.user_regs != 0 {
        let abi = cursor.u64()?;
        is_64 = abi == sys::PERF_SAMPLE_REGS_ABI_64 as u64;
        // A sample without user context has no registers at all, whatever the mask says.
        if abi != sys::PERF_SAMPLE_REGS_ABI_NONE as u64 {
            regs = Some(cursor.take(layout.user_regs.count_ones() as usize * 8)?);
        }
    }
    let mut stack = None;
    if layout.user_stack {
        let size = usize::try_from(cursor.u64()?).map_err(|_| Malformed)?;
        if size != 0 {
            let copied = cursor.take(size)?;
            let used = usize::try_from(cursor.u64()?).map_err(|_| Malformed)?;
            stack = Some((copied.get(..used).ok_or(Malformed)?, used == size));
        }
    }
    let cgroup = CgroupId(if layout.cgroup { cursor.u64()? } else { 0 });
    let mode = match misc as u32 & sys::PERF_RECORD_MISC_CPUMODE_MASK {
        sys::PERF_RECORD_MISC_KERNEL => CpuMode::Kernel,
        sys::PERF_RECORD_MISC_USER => CpuMode::User,
        _ => CpuMode::Other,
    };
    let user = match (regs, stack) {
        (Some(regs), Some((stack, full))) => Some(UserState {
            is_64,
            regs,
            stack,
            full,
        }),
        _ => None,
    };
    Ok(Sample {
        mode,
        ip,
        pid: Pid(pid),
        tid: Tid(tid),
        time,
        cpu: CpuId(cpu),
        period,
        callchain,
        user,
        raw,
        cgroup,
    })
}

#[cfg(test)]
mod tests;
