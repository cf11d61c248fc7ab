//! The description of an event (`perf_event_attr`, perf_event_open(2)), and where its records have
//! their id and time.

use crate::fields::Fields;

/// Fields of a sample, and of the end of other records (`PERF_SAMPLE_*`).
pub mod sample {
    /// Instruction pointer.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// Data address.
    pub const ADDR: u64 = 1 << 3;
    /// Values of counters.
    pub const READ: u64 = 1 << 4;
    /// Callchain.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Id of the event.
    pub const ID: u64 = 1 << 6;
    /// CPU.
    pub const CPU: u64 = 1 << 7;
    /// Period.
    pub const PERIOD: u64 = 1 << 8;
    /// Id of the event on its CPU.
    pub const STREAM_ID: u64 = 1 << 9;
    /// Data of a tracepoint.
    pub const RAW: u64 = 1 << 10;
    /// Last branches.
    pub const BRANCH_STACK: u64 = 1 << 11;
    /// User registers.
    pub const REGS_USER: u64 = 1 << 12;
    /// Copy of the user stack.
    pub const STACK_USER: u64 = 1 << 13;
    /// Weight of a memory access.
    pub const WEIGHT: u64 = 1 << 14;
    /// Source of a memory access.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Id of the event, at the same place in every sample.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Transaction.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Registers at the interrupt.
    pub const REGS_INTR: u64 = 1 << 18;
    /// Physical address.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// Cgroup.
    pub const CGROUP: u64 = 1 << 21;
    /// Weight of a memory access in another form.
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// `PERF_FORMAT_*`: what [`sample::READ`] has.
pub mod read {
    /// Time enabled, and time running: a word each.
    pub const TIMES: u64 = 0b11;
    /// Id and number of lost samples with each value: a word each.
    pub const WITH_VALUE: u64 = 1 << 2 | 1 << 4;
    /// Values of a group.
    pub const GROUP: u64 = 1 << 3;
}

/// Bits of the flags: the period is a frequency; records other than samples end with an id and
/// time; mappings carry build ids.
const FLAG_FREQ: u64 = 1 << 10;
const FLAG_ID_ALL: u64 = 1 << 18;
const FLAG_BUILD_ID: u64 = 1 << 34;

/// An event.
#[derive(Clone, Debug, Default)]
pub struct Attr {
    /// Its name; made up from numbers where the file has none.
    pub name: String,
    /// The period of each sample, if that is fixed.
    pub period: Option<u64>,
    /// See [`sample`].
    pub sample_type: u64,
    /// See [`read`].
    pub read_format: u64,
    /// `PERF_SAMPLE_BRANCH_*`.
    pub branch_type: u64,
    /// Mask of the user registers.
    pub regs_user: u64,
    /// Mask of the registers at the interrupt.
    pub regs_intr: u64,
    /// Most frames of a callchain; 0: the kernel's default.
    pub max_stack: u16,
    /// Records other than samples end with an id and time.
    pub id_all: bool,
    /// Mappings carry the build id of their file.
    pub build_ids: bool,
}

impl Attr {
    /// Reads one. Fields that an older perf did not know are 0.
    pub fn read(bytes: &[u8]) -> Option<Attr> {
        let mut fields = Fields(bytes);
        let (kind, size) = (fields.u32()?, fields.u32()?);
        let mut fields = Fields(bytes.get(8..bytes.len().min(size as usize))?);
        let (config, period) = (fields.u64()?, fields.u64()?);
        let (sample_type, read_format) = (fields.u64()?, fields.u64()?);
        let flags = fields.u64()?;
        // Wake-ups and what the event is of: the first version ends there.
        fields.take(16)?;
        let mut later = || fields.u64().unwrap_or(0);
        let _config2 = later();
        let (branch_type, regs_user) = (later(), later());
        let _stack_and_clock = later();
        let (regs_intr, aux_and_depth) = (later(), later());
        Some(Attr {
            name: default_name(kind, config),
            period: (flags & FLAG_FREQ == 0).then_some(period),
            sample_type,
            read_format,
            branch_type,
            regs_user,
            regs_intr,
            max_stack: (aux_and_depth >> 32) as u16,
            id_all: flags & FLAG_ID_ALL != 0,
            build_ids: flags & FLAG_BUILD_ID != 0,
        })
    }

    /// True when samples have this field.
    pub fn has(&self, field: u64) -> bool {
        self.sample_type & field != 0
    }

    /// The id of the event that a record is of, as this event lays it out.
    pub fn id(&self, is_sample: bool, body: &[u8]) -> Option<u64> {
        use sample::*;
        let all = [IP, TID, TIME, ADDR];
        let before = match (self.has(IDENTIFIER), self.has(ID)) {
            (true, _) if is_sample => return Fields(body).u64(),
            (true, _) => return self.last_fields(body, IDENTIFIER),
            (false, true) if is_sample => all.iter().filter(|&&field| self.has(field)).count(),
            (false, true) => return self.last_fields(body, ID | STREAM_ID | CPU),
            (false, false) => return None,
        };
        Fields(body.get(before * 8..)?).u64()
    }

    /// The time of a record; 0 for what perf itself wrote of the time before the first.
    pub fn time(&self, is_sample: bool, body: &[u8]) -> Option<u64> {
        use sample::*;
        if !self.has(TIME) {
            return None;
        }
        if !is_sample {
            return self.last_fields(body, TIME | ID | STREAM_ID | CPU | IDENTIFIER);
        }
        let before = [IDENTIFIER, IP, TID];
        let words = before.iter().filter(|&&field| self.has(field)).count();
        Fields(body.get(words * 8..)?).u64()
    }

    /// The first of these fields in the end of a record.
    fn last_fields(&self, body: &[u8], fields: u64) -> Option<u64> {
        let words = (self.sample_type & fields).count_ones() as usize;
        let at = body.len().checked_sub(words * 8).filter(|_| self.id_all)?;
        Fields(&body[at..]).u64()
    }

    /// Body of a record without the end that all have.
    pub fn without_end<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        use sample::*;
        let all = TID | TIME | ID | STREAM_ID | CPU | IDENTIFIER;
        let bytes = match self.id_all {
            true => (self.sample_type & all).count_ones() as usize * 8,
            false => 0,
        };
        &body[..body.len().saturating_sub(bytes)]
    }
}

/// What `perf` calls an event of which the file says nothing but numbers.
fn default_name(kind: u32, config: u64) -> String {
    const HARDWARE: [&str; 10] = [
        "cycles",
        "instructions",
        "cache-references",
        "cache-misses",
        "branches",
        "branch-misses",
        "bus-cycles",
        "stalled-cycles-frontend",
        "stalled-cycles-backend",
        "ref-cycles",
    ];
    const SOFTWARE: [&str; 12] = [
        "cpu-clock",
        "task-clock",
        "page-faults",
        "context-switches",
        "cpu-migrations",
        "minor-faults",
        "major-faults",
        "alignment-faults",
        "emulation-faults",
        "dummy",
        "bpf-output",
        "cgroup-switches",
    ];
    let known = match kind {
        0 => &HARDWARE[..],
        1 => &SOFTWARE[..],
        _ => &[],
    };
    let name = usize::try_from(config).ok().and_then(|at| known.get(at));
    name.map_or_else(
        || format!("event {kind}:{config:#x}"),
        |name| (*name).to_owned(),
    )
}
