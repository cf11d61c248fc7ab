//! Finds where the fields of the scheduler's tracepoints are in their raw data.
//!
//! Kernel versions differ in offsets, in sizes and in the bits of `prev_state`, so all of it is
//! read from the `format` files of tracefs (Documentation/trace/events.rst), never from constants.
//! The files come from the kernel, but the version is unknown: sizes, numbers and counts are
//! checked, and anything not understood is an error that names the field.

use thiserror::Error;

/// Most bytes of a `format` file that are read. The kernel gives out 1 to 3 KiB for these
/// tracepoints.
pub const FORMAT_BYTES_MAX: usize = 64 << 10;

/// Most bytes of raw data that a field may lie in: `PERF_MAX_TRACE_SIZE` of Linux 6.18.
const RAW_BYTES_MAX: usize = 8192;

/// Most states read from a `print fmt` line. Linux 6.18 has eight, 4.13 had eleven.
const STATES_MAX: usize = 32;

/// `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ` of `common_flags` (include/linux/trace_events.h).
/// Bits of the interface: every tool that shows latencies reads them.
const HARDIRQ: u64 = 0x08;
const SOFTIRQ: u64 = 0x10;

/// States of a thread by letter since Linux 4.14 (include/linux/sched.h, `task_index_to_char`), for
/// a format with a `print fmt` that lists none.
const DOCUMENTED_STATES: [(u64, u8); 8] = [
    (0x01, b'S'),
    (0x02, b'D'),
    (0x04, b'T'),
    (0x08, b't'),
    (0x10, b'X'),
    (0x20, b'Z'),
    (0x40, b'P'),
    (0x80, b'I'),
];

/// Why a `format` file is of no use.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// Not text, too long, or without an id.
    #[error("failed to read the format of tracepoint `{tracepoint}`: {why}")]
    Unreadable {
        /// The tracepoint.
        tracepoint: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A field is not there, or no number of at most eight bytes.
    #[error("failed to find field `{field}` in the format of tracepoint `{tracepoint}`")]
    Field {
        /// The tracepoint.
        tracepoint: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// A number in the raw data of a tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// The number; `None` when the data ends before it.
    fn read(self, raw: &[u8]) -> Option<u64> {
        let bytes = raw.get(self.offset..self.offset + self.size)?;
        Some(match *bytes {
            [a] => a.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}

/// Common fields of the tracepoints: the id, and the kernel's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Common {
    id: u16,
    kind: Field,
    flags: Field,
}

impl Common {
    fn is(&self, raw: &[u8]) -> bool {
        self.kind.read(raw) == Some(self.id.into())
    }
}

/// How a thread leaves a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// It waits, and a signal may end that.
    Sleep,
    /// It waits and nothing but what it waits for ends that: disks, and locks of the kernel.
    Uninterruptible,
    /// It was stopped, by a signal or by who traces it.
    Stopped,
    /// It could go on: another one had to run.
    Preempted,
    /// The thread has ended.
    Dead,
}

/// A switch from one thread to another. Thread ids are those of the initial pid namespace; 0: idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The thread that leaves.
    pub prev: u32,
    /// How it leaves.
    pub leaving: Leaving,
    /// The thread that runs now.
    pub next: u32,
}

/// In what the kernel was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Within {
    /// In the thread itself.
    #[default]
    Thread,
    /// In a soft interrupt on top of it.
    Softirq,
    /// In a hard one.
    Hardirq,
}

/// A wake-up of a thread, by the one that is on the CPU or by an interrupt on top of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waking {
    /// The woken thread.
    pub woken: u32,
    /// By what.
    pub within: Within,
}

/// Reads the raw data of `sched:sched_switch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchFormat {
    common: Common,
    prev: Field,
    state: Field,
    next: Field,
    uninterruptible: u64,
    stopped: u64,
    dead: u64,
    /// All bits with a letter: without any the thread could go on.
    all: u64,
}

impl SwitchFormat {
    /// The tracepoint.
    pub const NAME: &str = "sched:sched_switch";

    /// Reads a `format` file.
    ///
    /// # Errors
    /// [`FormatError`] when something that is needed is not in it.
    pub fn parse(text: &[u8]) -> Result<SwitchFormat, FormatError> {
        let text = readable(Self::NAME, text)?;
        let field = |name| field(Self::NAME, text, name);
        let states = states(text);
        let mask = |letters: &[u8]| {
            let bits = states.iter().filter(|(_, letter)| letters.contains(letter));
            bits.fold(0, |mask, (bit, _)| mask | bit)
        };
        Ok(SwitchFormat {
            common: common(Self::NAME, text)?,
            prev: field("prev_pid")?,
            state: field("prev_state")?,
            next: field("next_pid")?,
            uninterruptible: mask(b"D"),
            stopped: mask(b"Tt"),
            dead: mask(b"XZx"),
            all: states.iter().fold(0, |mask, (bit, _)| mask | bit),
        })
    }

    /// The number by which an event of it is opened.
    pub fn id(&self) -> u16 {
        self.common.id
    }

    /// The kernel's filter for switches of threads that cannot go on.
    pub fn blocked_filter(&self) -> String {
        format!("prev_state & {}", self.all)
    }

    /// The kernel's filter for all others: with [`SwitchFormat::blocked_filter`], every switch
    /// once.
    pub fn ready_filter(&self) -> String {
        format!("!(prev_state & {})", self.all)
    }

    /// The switch; `None` for data of another tracepoint, or that ends too early.
    pub fn read(&self, raw: &[u8]) -> Option<Switch> {
        if !self.common.is(raw) {
            return None;
        }
        let state = self.state.read(raw)?;
        let leaving = match state & self.all {
            0 => Leaving::Preempted,
            bits if bits & self.dead != 0 => Leaving::Dead,
            bits if bits & self.uninterruptible != 0 => Leaving::Uninterruptible,
            bits if bits & self.stopped != 0 => Leaving::Stopped,
            _ => Leaving::Sleep,
        };
        Some(Switch {
            prev: self.prev.read(raw)? as u32,
            leaving,
            next: self.next.read(raw)? as u32,
        })
    }
}

/// Reads the raw data of `sched:sched_waking`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakingFormat {
    common: Common,
    woken: Field,
}

impl WakingFormat {
    /// The tracepoint. `sched_wakeup` is of no use, because the CPU of the woken thread may record
    /// it.
    pub const NAME: &str = "sched:sched_waking";

    /// Reads a `format` file.
    ///
    /// # Errors
    /// [`FormatError`] when something that is needed is not in it.
    pub fn parse(text: &[u8]) -> Result<WakingFormat, FormatError> {
        let text = readable(Self::NAME, text)?;
        Ok(WakingFormat {
            common: common(Self::NAME, text)?,
            woken: field(Self::NAME, text, "pid")?,
        })
    }

    /// The number by which an event of it is opened.
    pub fn id(&self) -> u16 {
        self.common.id
    }

    /// The wake-up; `None` for data of another tracepoint, or that ends too early.
    pub fn read(&self, raw: &[u8]) -> Option<Waking> {
        if !self.common.is(raw) {
            return None;
        }
        let flags = self.common.flags.read(raw)?;
        let within = if flags & HARDIRQ != 0 {
            Within::Hardirq
        } else if flags & SOFTIRQ != 0 {
            Within::Softirq
        } else {
            Within::Thread
        };
        Some(Waking {
            woken: self.woken.read(raw)? as u32,
            within,
        })
    }
}

fn readable<'a>(tracepoint: &'static str, text: &'a [u8]) -> Result<&'a str, FormatError> {
    let unreadable = |why| FormatError::Unreadable { tracepoint, why };
    if text.len() > FORMAT_BYTES_MAX {
        return Err(unreadable("it is too long"));
    }
    std::str::from_utf8(text).map_err(|_| unreadable("it is not text"))
}

fn common(tracepoint: &'static str, text: &str) -> Result<Common, FormatError> {
    let id = text.lines().find_map(|line| line.strip_prefix("ID:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    Ok(Common {
        id: id.ok_or(FormatError::Unreadable {
            tracepoint,
            why: "it has no id",
        })?,
        kind: field(tracepoint, text, "common_type")?,
        flags: field(tracepoint, text, "common_flags")?,
    })
}

/// Finds `field:TYPE NAME; offset:N; size:N; …`.
fn field(tracepoint: &'static str, text: &str, name: &'static str) -> Result<Field, FormatError> {
    let found = text.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        let declared = parts
            .next()?
            .rsplit(|c: char| c.is_whitespace() || c == '*');
        if declared.into_iter().next()? != name {
            return None;
        }
        let (mut offset, mut size) = (None, None);
        for part in parts {
            match part.trim().split_once(':') {
                Some(("offset", number)) => offset = number.parse().ok(),
                Some(("size", number)) => size = number.parse().ok(),
                _ => {}
            }
        }
        let (offset, size) = (offset?, size?);
        let sound = matches!(size, 1 | 2 | 4 | 8) && offset < RAW_BYTES_MAX;
        sound.then_some(Field { offset, size })
    });
    found.ok_or(FormatError::Field {
        tracepoint,
        field: name,
    })
}

/// The bits of `prev_state` and their letters: `{ 0x0001, "S" }` in the `print fmt` line.
fn states(text: &str) -> Vec<(u64, u8)> {
    let line = text.lines().find(|line| line.starts_with("print fmt:"));
    let pairs = line.unwrap_or_default().split('{').skip(1);
    let listed = pairs.filter_map(|pair| {
        let (number, letter) = pair.split_once('}')?.0.split_once(',')?;
        let number = number.trim();
        let bit = match number.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        match letter.trim().as_bytes() {
            [b'"', letter, b'"'] if bit.is_power_of_two() => Some((bit, *letter)),
            _ => None,
        }
    });
    let listed: Vec<_> = listed.take(STATES_MAX).collect();
    let needed = |letter| listed.iter().any(|&(_, other)| other == letter);
    if needed(b'S') && needed(b'D') {
        listed
    } else {
        DOCUMENTED_STATES.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As Linux 6.18 gives it out on x86-64.
    const SWITCH: &str = include_str!("format/sched_switch.txt");

    /// As Linux 6.18 gives it out.
    const WAKING: &str = include_str!("format/sched_waking.txt");

    fn raw_switch(id: u16, prev: u32, state: u64, next: u32) -> Vec<u8> {
        let mut raw = vec![0; 64];
        raw[..2].copy_from_slice(&id.to_ne_bytes());
        raw[24..28].copy_from_slice(&prev.to_ne_bytes());
        raw[32..40].copy_from_slice(&state.to_ne_bytes());
        raw[56..60].copy_from_slice(&next.to_ne_bytes());
        raw
    }

    fn check_leaving(format: &SwitchFormat, state: u64, expected: Leaving) {
        let found = format.read(&raw_switch(372, 7, state, 9));
        let expected = Switch {
            prev: 7,
            leaving: expected,
            next: 9,
        };
        assert_eq!(found, Some(expected), "{state:#x}");
    }

    #[test]
    fn a_switch_says_who_left_how_and_who_came() {
        let format = SwitchFormat::parse(SWITCH.as_bytes()).unwrap();
        assert_eq!(format.id(), 372);
        check_leaving(&format, 0, Leaving::Preempted);
        check_leaving(&format, 0x100, Leaving::Preempted);
        check_leaving(&format, 0x01, Leaving::Sleep);
        check_leaving(&format, 0x02, Leaving::Uninterruptible);
        check_leaving(&format, 0x08, Leaving::Stopped);
        check_leaving(&format, 0x20, Leaving::Dead);
        check_leaving(&format, 0x40, Leaving::Sleep);
        check_leaving(&format, 0x80, Leaving::Sleep);
    }

    #[test]
    fn the_bits_are_those_of_the_kernel_that_runs() {
        // Linux 4.13 had Z and X the other way round, and 2048 for a thread that was preempted.
        let old = SWITCH.replace("0x00000010, \"X\"", "16, \"Z\"");
        let old = old.replace("0x00000020, \"Z\"", "64, \"x\"");
        let old = old.replace("0x00000080, \"I\"", "512, \"P\"");
        let format = SwitchFormat::parse(old.as_bytes()).unwrap();
        check_leaving(&format, 16, Leaving::Dead);
        check_leaving(&format, 64, Leaving::Dead);
        check_leaving(&format, 512, Leaving::Sleep);
        check_leaving(&format, 2048, Leaving::Preempted);
    }

    #[test]
    fn without_letters_the_documented_bits_hold() {
        let (fields, _) = SWITCH.split_once("print fmt").unwrap();
        let format = SwitchFormat::parse(fields.as_bytes()).unwrap();
        assert_eq!(format, SwitchFormat::parse(SWITCH.as_bytes()).unwrap());
    }

    #[test]
    fn the_two_filters_have_every_switch_once() {
        let format = SwitchFormat::parse(SWITCH.as_bytes()).unwrap();
        assert_eq!(format.blocked_filter(), "prev_state & 255");
        assert_eq!(format.ready_filter(), "!(prev_state & 255)");
    }

    #[test]
    fn a_wake_up_says_who_was_woken_by_what() {
        let format = WakingFormat::parse(WAKING.as_bytes()).unwrap();
        let read = |flags| {
            let mut raw = vec![0; 36];
            raw[..2].copy_from_slice(&375u16.to_ne_bytes());
            raw[2] = flags;
            raw[24..28].copy_from_slice(&11u32.to_ne_bytes());
            format
                .read(&raw)
                .map(|waking| (waking.woken, waking.within))
        };
        assert_eq!(read(0x01), Some((11, Within::Thread)));
        assert_eq!(read(0x10), Some((11, Within::Softirq)));
        assert_eq!(read(0x18), Some((11, Within::Hardirq)));
    }

    #[test]
    fn data_of_another_tracepoint_or_cut_short_says_nothing() {
        let format = SwitchFormat::parse(SWITCH.as_bytes()).unwrap();
        assert_eq!(format.read(&raw_switch(371, 7, 1, 9)), None);
        let whole = raw_switch(372, 7, 1, 9);
        for len in 0..60 {
            assert_eq!(format.read(&whole[..len]), None, "{len}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let check = |from: &str, to: &str, expected: &str| {
            let text = SWITCH.replace(from, to);
            let error = SwitchFormat::parse(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("ID: 372", "ID: 999999", "it has no id");
        check("prev_state;", "state;", "field `prev_state`");
        check("offset:56", "offset:99999", "field `next_pid`");
        check(
            "offset:24;\tsize:4",
            "offset:24;\tsize:3",
            "field `prev_pid`",
        );
        let long = vec![b'x'; FORMAT_BYTES_MAX + 1];
        assert!(SwitchFormat::parse(&long).is_err() && SwitchFormat::parse(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn no_text_and_no_data_makes_it_fall(
            at in 0usize..SWITCH.len(), with in ".{0,12}", raw in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let at = (0..=at).rev().find(|&at| SWITCH.is_char_boundary(at)).unwrap_or(0);
            let text = format!("{}{with}{}", &SWITCH[..at], &SWITCH[at..]);
            if let Ok(format) = SwitchFormat::parse(text.as_bytes()) {
                format.read(&raw);
            }
            if let Ok(format) = WakingFormat::parse(WAKING.as_bytes()) {
                format.read(&raw);
            }
        }
    }
}
