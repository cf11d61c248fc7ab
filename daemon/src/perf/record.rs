//! Records of the ring buffer, parsed in place.
//!
//! Shape: the layouts of perf_event_open(2) for the `sample_type` of [`super::event`]: every record
//! that is not a sample ends with the `sample_id` trailer. Input is the kernel's, but a parser that
//! trusts lengths is one kernel bug away from reading past a record: every read is checked, and what
//! does not fit is [`Malformed`]. No allocation, no copies.

use crate::ids::{CgroupId, Comm, CpuId, Pid, Tid};
use crate::time::Mono;
use perf_event_open_sys::bindings as sys;

/// A record whose bytes do not fit its type.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Malformed;

/// Which optional fields the records of an event carry. One layout for all rings of the continuous
/// profile, and one for each event of a capture.
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
    /// What each sample stands for where `PERF_SAMPLE_PERIOD` is off; 0: it is on.
    pub fixed_period: u64,
}

/// Bytes of the `sample_id` trailer: TID, TIME, CPU, IDENTIFIER.
const TRAILER_BYTES: usize = 32;

/// What the kernel was doing when a sample was taken (`PERF_RECORD_MISC_CPUMODE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMode {
    /// Kernel code.
    Kernel,
    /// User code.
    User,
    /// A guest or the hypervisor, whose addresses mean nothing here.
    Other,
}

/// A callchain: addresses, leaf first, with `PERF_CONTEXT_*` markers between them.
#[derive(Clone, Copy, Debug)]
pub struct Callchain<'a>(&'a [u8]);

impl<'a> Callchain<'a> {
    /// Takes little-endian-as-the-host words; a tail shorter than a word is ignored.
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
    /// Bytes from the stack pointer up. Holds secrets: never kept.
    pub stack: &'a [u8],
    /// True when the copy has the size that was asked for: the stack may go on behind it. A shorter
    /// one ends where readable memory does.
    pub full: bool,
}

impl std::fmt::Debug for UserState<'_> {
    /// Tells sizes, never contents.
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
    /// When.
    pub time: Mono,
    /// Where.
    pub cpu: CpuId,
    /// What the sample stands for, in the event's unit.
    pub period: u64,
    /// Kernel and user chain.
    pub callchain: Callchain<'a>,
    /// For unwinding from a copied stack.
    pub user: Option<UserState<'a>>,
    /// What a tracepoint recorded, as its `format` file describes it, padding behind; `None` when not
    /// asked for. May hold names and text of strangers.
    pub raw: Option<&'a [u8]>,
    /// cgroup in the hierarchy of perf_event; 0 when not asked for.
    pub cgroup: CgroupId,
}

/// How a mapping names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFile<'a> {
    /// GNU build id.
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

/// What a record says of the flow of samples in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
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

/// The pulse of a record, without parsing the rest. A field past its end makes it [`Pulse::Other`]. Of an event
/// that does not say the period of each sample, what stands for it means nothing.
pub fn pulse(record: &[u8]) -> Pulse {
    let word = |at: usize| Cursor(record.get(at..).unwrap_or_default()).u64();
    let pulse = match header(record) {
        // Sample: header, identifier, ip, tid, time, cpu, period.
        Ok((sys::PERF_RECORD_SAMPLE, _)) => word(48).map(Pulse::Sample),
        Ok((sys::PERF_RECORD_LOST, _)) => word(16).map(Pulse::Lost),
        Ok((sys::PERF_RECORD_LOST_SAMPLES, _)) => word(8).map(Pulse::LostSamples),
        Ok((sys::PERF_RECORD_THROTTLE, _)) => Ok(Pulse::Throttle),
        Ok((sys::PERF_RECORD_UNTHROTTLE, _)) => Ok(Pulse::Unthrottle),
        _ => Ok(Pulse::Other),
    };
    pulse.unwrap_or(Pulse::Other)
}

/// When a record was made: all records are put in this order before they are used.
pub fn time(record: &[u8]) -> Result<Mono, Malformed> {
    let (kind, _) = header(record)?;
    // Sample: header, identifier, ip, tid, time. Others: the trailer's second field.
    let at = if kind == sys::PERF_RECORD_SAMPLE {
        32
    } else {
        record
            .len()
            .checked_sub(TRAILER_BYTES - 8)
            .ok_or(Malformed)?
    };
    Ok(Mono(Cursor(record.get(at..).ok_or(Malformed)?).u64()?))
}

/// Parses a whole record, header included.
///
/// # Errors
/// [`Malformed`] when a field lies past its end.
pub fn parse<'a>(record: &'a [u8], layout: &Layout) -> Result<Record<'a>, Malformed> {
    let (kind, misc) = header(record)?;
    let body = record.get(8..).ok_or(Malformed)?;
    if kind == sys::PERF_RECORD_SAMPLE {
        return sample(body, misc, layout).map(Record::Sample);
    }
    let body = &body[..body.len().checked_sub(TRAILER_BYTES).ok_or(Malformed)?];
    let mut cursor = Cursor(body);
    Ok(match kind {
        sys::PERF_RECORD_MMAP2 => Record::Mmap(mmap(cursor, misc)?),
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
        _ => Record::Other,
    })
}

fn mmap(mut cursor: Cursor<'_>, misc: u16) -> Result<Mmap<'_>, Malformed> {
    let (pid, _tid) = cursor.u32_pair()?;
    let (start, len, file_offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let file = if misc & sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16 != 0 {
        let size = cursor.take(4)?[0] as usize;
        MapFile::BuildId(cursor.take(20)?.get(..size).ok_or(Malformed)?)
    } else {
        let (major, minor) = cursor.u32_pair()?;
        MapFile::Inode {
            major,
            minor,
            inode: cursor.u64()?,
            generation: cursor.u64()?,
        }
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
    let time = Mono(cursor.u64()?);
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
mod tests {
    use super::*;
    use crate::perf::synthetic::record;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout {
        cgroup: true,
        user_regs: 0,
        user_stack: false,
        raw: false,
        fixed_period: 0,
    };

    fn pair(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    const TRAILER: [u64; 4] = [0, 777, 0, 0];

    fn sample_body(chain: &[u64], rest: &[u64]) -> Vec<u64> {
        let mut body = vec![1, 0xabc, pair(10, 11), 500, pair(3, 0), 10_101_010];
        body.push(chain.len() as u64);
        body.extend(chain);
        body.extend(rest);
        body
    }

    #[test]
    fn a_sample_has_its_fields_in_the_order_of_the_manual() {
        let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7, 8], &[44]));
        let Ok(Record::Sample(sample)) = parse(&bytes, &LAYOUT) else {
            panic!("not a sample")
        };
        assert_eq!(sample.mode, CpuMode::User);
        assert_eq!(
            (sample.pid, sample.tid, sample.cpu),
            (Pid(10), Tid(11), CpuId(3))
        );
        assert_eq!((sample.time, sample.period), (Mono(500), 10_101_010));
        assert_eq!(sample.callchain.iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(sample.cgroup, CgroupId(44));
        assert_eq!(time(&bytes), Ok(Mono(500)));
    }

    #[test]
    fn a_sample_that_does_not_say_its_period_has_the_events() {
        let mut body = sample_body(&[7, 8], &[44]);
        body.remove(5);
        let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &body);
        let layout = Layout {
            fixed_period: 100,
            ..LAYOUT
        };
        let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
            panic!("not a sample")
        };
        assert_eq!((sample.time, sample.period), (Mono(500), 100));
        assert_eq!(sample.callchain.iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(sample.cgroup, CgroupId(44));
        assert!(matches!(pulse(&bytes), Pulse::Sample(_)));
    }

    #[test]
    fn a_sample_without_user_context_has_no_registers_and_its_cgroup_is_still_right() {
        let layout = Layout {
            cgroup: true,
            user_regs: 0x1c0,
            user_stack: true,
            raw: false,
            fixed_period: 0,
        };
        // abi 0, stack size 0, cgroup.
        let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &[0, 0, 44]));
        let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
            panic!("not a sample")
        };
        assert!(sample.user.is_none());
        assert_eq!(sample.cgroup, CgroupId(44));
    }

    #[test]
    fn a_stack_copy_ends_where_the_kernel_stopped_copying() {
        let layout = Layout {
            cgroup: true,
            user_regs: 0x1c0,
            user_stack: true,
            raw: false,
            fixed_period: 0,
        };
        // abi 2, three registers, 16 bytes reserved, of which 8 are real, cgroup.
        let rest = [2, 100, 101, 102, 16, 0x55, 0x66, 8, 44];
        let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7], &rest));
        let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
            panic!("not a sample")
        };
        let user = sample.user.expect("copied");
        assert_eq!(user.regs.len(), 24);
        assert_eq!(user.stack, 0x55u64.to_ne_bytes());
        assert!(user.is_64);
        assert!(!user.full, "the stack ends here, not the copy");
        assert_eq!(sample.cgroup, CgroupId(44));
    }

    #[test]
    fn what_a_tracepoint_recorded_stands_between_callchain_and_registers() {
        let layout = Layout {
            user_regs: 0x1c0,
            user_stack: true,
            raw: true,
            ..LAYOUT
        };
        // Twelve bytes of data behind their size; abi 0, stack size 0, cgroup.
        let raw = [pair(12, 0xaaaa_bbbb), 0x1122_3344_5566_7788];
        let rest = [&raw[..], &[0, 0, 44]].concat();
        let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &rest));
        let Ok(Record::Sample(sample)) = parse(&bytes, &layout) else {
            panic!("not a sample")
        };
        let found = sample.raw.expect("recorded");
        assert_eq!(found.len(), 12);
        assert_eq!(found[..4], 0xaaaa_bbbbu32.to_ne_bytes());
        assert_eq!(sample.cgroup, CgroupId(44));
        let rest = [&[pair(4000, 0)][..], &[0, 0, 44]].concat();
        let bytes = record(sys::PERF_RECORD_SAMPLE, 1, &sample_body(&[7], &rest));
        assert!(matches!(parse(&bytes, &layout), Err(Malformed)));
    }

    #[test]
    fn a_callchain_longer_than_its_record_is_malformed() {
        let mut body = sample_body(&[7, 8], &[44]);
        body[6] = 100;
        let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &body);
        assert!(matches!(parse(&bytes, &LAYOUT), Err(Malformed)));
    }

    #[test]
    fn a_mapping_with_build_id_has_no_inode() {
        let mut body = vec![pair(10, 10), 0x1000, 0x2000, 0x400];
        let mut id = [0u8; 24];
        id[0] = 20;
        id[4..].fill(0xab);
        body.extend(id.chunks(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        }));
        body.push(pair(5, 2));
        body.push(u64::from_ne_bytes(*b"/bin/x\0\0"));
        body.extend(TRAILER);
        let misc = sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16;
        let bytes = record(sys::PERF_RECORD_MMAP2, misc, &body);
        let Ok(Record::Mmap(mmap)) = parse(&bytes, &LAYOUT) else {
            panic!("not a mapping")
        };
        assert_eq!(mmap.file, MapFile::BuildId(&[0xab; 20]));
        assert_eq!(
            (mmap.start, mmap.len, mmap.file_offset),
            (0x1000, 0x2000, 0x400)
        );
        assert_eq!(mmap.path, b"/bin/x");
        assert_eq!(time(&bytes), Ok(Mono(777)));
    }

    #[test]
    fn a_comm_record_says_whether_it_was_exec() {
        let name = u64::from_ne_bytes(*b"worker\0\0");
        let body = [&[pair(10, 12), name, 0][..], &TRAILER].concat();
        let misc = sys::PERF_RECORD_MISC_COMM_EXEC as u16;
        let bytes = record(sys::PERF_RECORD_COMM, misc, &body);
        let Ok(Record::Comm {
            pid,
            tid,
            comm,
            exec,
        }) = parse(&bytes, &LAYOUT)
        else {
            panic!("not a comm")
        };
        assert_eq!((pid, tid, exec), (Pid(10), Tid(12), true));
        assert_eq!(comm, Comm::from_bytes(b"worker"));
    }

    #[test]
    fn a_lost_record_counts_what_found_no_room() {
        let body = [&[1, 42][..], &TRAILER].concat();
        let bytes = record(sys::PERF_RECORD_LOST, 0, &body);
        assert!(matches!(parse(&bytes, &LAYOUT), Ok(Record::Lost(42))));
        assert_eq!(pulse(&bytes), Pulse::Lost(42));
    }

    #[test]
    fn the_pulse_of_a_sample_is_its_period() {
        let bytes = record(sys::PERF_RECORD_SAMPLE, 2, &sample_body(&[7, 8], &[44]));
        assert_eq!(pulse(&bytes), Pulse::Sample(10_101_010));
        assert_eq!(pulse(&bytes[..48]), Pulse::Other);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            kind in 0u32..24, misc: u16, body: Vec<u8>, regs: bool, stack: bool, raw: bool
        ) {
            let layout = Layout {
                cgroup: true, user_regs: if regs { 0x1c0 } else { 0 }, user_stack: stack, raw,
                fixed_period: 0,
            };
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(misc.to_ne_bytes());
            bytes.extend([0, 0]);
            bytes.extend(body);
            let _ = (time(&bytes), pulse(&bytes));
            if let Ok(Record::Sample(sample)) = parse(&bytes, &layout) {
                prop_assert!(sample.callchain.len() * 8 <= bytes.len());
            }
        }
    }
}
