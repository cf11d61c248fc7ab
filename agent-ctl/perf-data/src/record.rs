//! Records of the kernel as they stand in the file, under whatever layout perf asked for.
//!
//! Layout: perf_event_open(2). What does not fit its type is `None`.

use crate::attr::{Attr, read, sample};
use crate::fields::Fields;
use host::ids::{CpuId, Pid, Tid};
use perf::record::{CpuMode, MapFile, Mmap};

/// Types of records (`PERF_RECORD_*`) that are used.
pub mod kind {
    /// A mapping, of the kernel or by a kernel older than 3.12.
    pub const MMAP: u32 = 1;
    /// Records that found no room.
    pub const LOST: u32 = 2;
    /// A task has a new name.
    pub const COMM: u32 = 3;
    /// A thread has ended.
    pub const EXIT: u32 = 4;
    /// The event was paused.
    pub const THROTTLE: u32 = 5;
    /// A new thread or process.
    pub const FORK: u32 = 7;
    /// A sample.
    pub const SAMPLE: u32 = 9;
    /// A mapping.
    pub const MMAP2: u32 = 10;
    /// Samples that the event's driver lost.
    pub const LOST_SAMPLES: u32 = 13;
    /// A cgroup.
    pub const CGROUP: u32 = 19;

    /// All of them.
    pub const ALL: [u32; 10] = [
        MMAP,
        LOST,
        COMM,
        EXIT,
        THROTTLE,
        FORK,
        SAMPLE,
        MMAP2,
        LOST_SAMPLES,
        CGROUP,
    ];
}

/// `PERF_RECORD_MISC_*`: where the CPU was, and what else a record says.
const MISC_MODE: u16 = 0b111;
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
const MISC_MMAP_DATA: u16 = 1 << 13;
/// At exec, in `COMM`.
pub const MISC_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

/// `PROT_EXEC` and `MAP_PRIVATE` of a mapping.
const PROT_EXEC: u32 = 4;
const MAP_PRIVATE: u32 = 2;

/// `PERF_SAMPLE_BRANCH_*`: a word before the branches, and one with each, behind them.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;

/// Pid of what is the kernel's, in records of perf itself.
const KERNEL_PID: u32 = u32::MAX;

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Where the CPU was.
    pub mode: CpuMode,
    /// Instruction pointer; 0 when it was not recorded.
    pub ip: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The CPU.
    pub cpu: CpuId,
    /// What it stands for, if it says so.
    pub period: Option<u64>,
    /// Words of the callchain, if there is one.
    pub chain: Option<&'a [u8]>,
    /// Kind of the registers (0: none, 1: of 32 bits, 2: of 64), and their values.
    pub regs: Option<(u64, &'a [u8])>,
    /// The stack that was copied, and whether it may go on behind the copy.
    pub stack: Option<(&'a [u8], bool)>,
    /// Cgroup; 0 when it was not recorded.
    pub cgroup: u64,
}

/// Reads a sample of an event.
pub fn sampled<'a>(attr: &Attr, misc: u16, body: &'a [u8]) -> Option<Sampled<'a>> {
    let mut fields = Fields(body);
    let word = |fields: &mut Fields<'a>, field: u64| match attr.has(field) {
        true => fields.u64(),
        false => Some(0),
    };
    word(&mut fields, sample::IDENTIFIER)?;
    let ip = word(&mut fields, sample::IP)?;
    let task = word(&mut fields, sample::TID)?;
    for field in [sample::TIME, sample::ADDR, sample::ID, sample::STREAM_ID] {
        word(&mut fields, field)?;
    }
    let cpu = word(&mut fields, sample::CPU)?;
    let period = word(&mut fields, sample::PERIOD)?;
    if attr.has(sample::READ) {
        skip_read(attr, &mut fields)?;
    }
    let mut chain = None;
    if attr.has(sample::CALLCHAIN) {
        let count = fields.u64()?;
        chain = Some(fields.words(count)?);
    }
    if attr.has(sample::RAW) {
        let len = fields.u32()?;
        fields.take_u64(len.into())?;
    }
    if attr.has(sample::BRANCH_STACK) {
        skip_branches(attr, &mut fields)?;
    }
    let mut regs = None;
    if attr.has(sample::REGS_USER) {
        regs = registers(attr.regs_user, &mut fields)?;
    }
    let mut stack = None;
    if attr.has(sample::STACK_USER) {
        let size = fields.u64()?;
        let bytes = fields.take_u64(size)?;
        if size > 0 {
            let used = fields.u64()?.min(size);
            stack = Some((bytes.get(..used as usize)?, used == size));
        }
    }
    word(&mut fields, sample::WEIGHT | sample::WEIGHT_STRUCT)?;
    word(&mut fields, sample::DATA_SRC)?;
    word(&mut fields, sample::TRANSACTION)?;
    if attr.has(sample::REGS_INTR) {
        registers(attr.regs_intr, &mut fields)?;
    }
    word(&mut fields, sample::PHYS_ADDR)?;
    let cgroup = word(&mut fields, sample::CGROUP)?;
    Some(Sampled {
        mode: match misc & MISC_MODE {
            MISC_KERNEL => CpuMode::Kernel,
            MISC_USER => CpuMode::User,
            _ => CpuMode::Other,
        },
        ip,
        pid: Pid(task as u32),
        tid: Tid((task >> 32) as u32),
        cpu: CpuId(cpu as u32),
        period: attr.has(sample::PERIOD).then_some(period),
        chain,
        regs,
        stack,
        cgroup,
    })
}

fn skip_read(attr: &Attr, fields: &mut Fields<'_>) -> Option<()> {
    let times = u64::from((attr.read_format & read::TIMES).count_ones());
    let with_value = 1 + u64::from((attr.read_format & read::WITH_VALUE).count_ones());
    let values = match attr.read_format & read::GROUP {
        0 => 1,
        _ => fields.u64()?,
    };
    fields.words(values.checked_mul(with_value)?.checked_add(times)?)?;
    Some(())
}

fn skip_branches(attr: &Attr, fields: &mut Fields<'_>) -> Option<()> {
    let count = fields.u64()?;
    let each = 3 + u64::from(attr.branch_type & BRANCH_COUNTERS != 0);
    let before = u64::from(attr.branch_type & BRANCH_HW_INDEX != 0);
    fields.words(count.checked_mul(each)?.checked_add(before)?)?;
    Some(())
}

/// The kind of some registers and their values; `Some(None)` when the task had none.
#[expect(clippy::option_option, reason = "damage and absence are different")]
fn registers<'a>(mask: u64, fields: &mut Fields<'a>) -> Option<Option<(u64, &'a [u8])>> {
    match fields.u64()? {
        0 => Some(None),
        abi => Some(Some((abi, fields.words(mask.count_ones().into())?))),
    }
}

/// What a record of a mapping is of.
#[derive(Debug)]
pub enum Mapped<'a> {
    /// Executable memory of a process.
    Process(Mmap<'a>),
    /// The kernel's code: the symbol that it was recorded with, and its address.
    Kernel {
        /// `_text` or `_stext`.
        symbol: &'a [u8],
        /// Where it was.
        address: u64,
    },
    /// Modules of the kernel, data, guests.
    Other,
}

/// Reads the body of `MMAP` or `MMAP2`.
///
/// The kernel says of a mapping that it has a build id for every event of the machine as soon as
/// one asked for it, of another perf or of an agent, and then writes an inode for those that did
/// not (seen on Linux 6.18). perf 6.1 aborts on that.
pub fn mapped<'a>(attr: &Attr, (kind, misc): (u32, u16), body: &'a [u8]) -> Option<Mapped<'a>> {
    let mut fields = Fields(body);
    let pid = fields.u32()?;
    fields.u32()?;
    let (start, len, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let mut file = MapFile::Inode {
        major: 0,
        minor: 0,
        inode: 0,
        generation: 0,
    };
    let (mut protection, mut flags) = (PROT_EXEC, MAP_PRIVATE);
    if kind == kind::MMAP2 {
        let identity = fields.take(24)?;
        let mut inside = Fields(identity);
        file = match attr.build_ids && misc & MISC_MMAP_BUILD_ID != 0 {
            false => MapFile::Inode {
                major: inside.u32()?,
                minor: inside.u32()?,
                inode: inside.u64()?,
                generation: inside.u64()?,
            },
            // Its length, three bytes of padding, and room for twenty.
            true => MapFile::BuildId(identity[4..].get(..usize::from(identity[0]))?),
        };
        (protection, flags) = (fields.u32()?, fields.u32()?);
    }
    let path = fields.text();
    if pid == KERNEL_PID || misc & MISC_MODE != MISC_USER {
        let kernel = path.strip_prefix(b"[kernel.kallsyms]");
        return Some(match kernel.filter(|symbol| !symbol.is_empty()) {
            Some(symbol) => Mapped::Kernel {
                symbol,
                address: file_offset,
            },
            None => Mapped::Other,
        });
    }
    let is_data = kind == kind::MMAP && misc & MISC_MMAP_DATA != 0;
    if is_data || protection & PROT_EXEC == 0 {
        return Some(Mapped::Other);
    }
    Some(Mapped::Process(Mmap {
        pid: Pid(pid),
        start,
        len,
        file_offset,
        file,
        private: flags & MAP_PRIVATE != 0,
        path,
    }))
}

/// Process, thread and their creators, of `FORK` and `EXIT`.
pub fn task(body: &[u8]) -> Option<[u32; 4]> {
    let mut fields = Fields(body);
    let (pid, parent) = (fields.u32()?, fields.u32()?);
    Some([pid, fields.u32()?, parent, fields.u32()?])
}
