//! Parses the entries of a section of unwind information, heads and functions, and writes both
//! again for gimli to evaluate, with each function starting at zero.
//!
//! Every number is untrusted. An entry that is not understood gives `None` and is left out.

use crate::info::section::{Bases, Dialect, Slice};
use gimli::{LittleEndian, Reader};

/// Data of a head while its functions are read.
pub(super) struct CommonInfo {
    /// Written again: an entry that gimli reads, with its length.
    pub(super) entry: Box<[u8]>,
    /// Descriptions have a length of data before their instructions.
    has_data: bool,
    /// How descriptions write addresses.
    pointer: u8,
}

/// Where the head of the entry at `at` is; `None` for a head itself.
pub(super) fn head_of(dialect: Dialect, content: &[u8], at: u64) -> Option<u64> {
    let id = u32::from_le_bytes(*content.first_chunk()?);
    match dialect {
        Dialect::Eh if id == 0 => None,
        Dialect::Eh => at.checked_add(4)?.checked_sub(u64::from(id)),
        Dialect::Debug => (id != u32::MAX).then_some(u64::from(id)),
    }
}

/// A description as it is written, but for its head.
pub(super) struct Function<'c> {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) instructions: &'c [u8],
}

impl<'c> Function<'c> {
    /// `content` starts behind the length of the entry at `at`.
    pub(super) fn parse(
        content: &'c [u8],
        at: u64,
        head: &CommonInfo,
        bases: &Bases,
    ) -> Option<Function<'c>> {
        let mut rest = Slice::new(content, LittleEndian);
        let _head = rest.read_u32().ok()?;
        let address = bases.section.wrapping_add(at + 8);
        let start = match head.pointer & 0x70 {
            0 => 0,
            0x10 => address,
            0x20 => bases.text,
            // Relative to what linkers do not write here, or padded.
            _ => return None,
        };
        if head.pointer & gimli::DW_EH_PE_indirect.0 != 0 {
            return None;
        }
        let start = start.wrapping_add(read_pointer(&mut rest, head.pointer)?);
        let length = read_pointer(&mut rest, head.pointer)?;
        if head.has_data {
            let length = rest.read_uleb128().ok()?;
            rest.skip(usize::try_from(length).ok()?).ok()?;
        }
        Some(Function {
            start,
            length,
            instructions: rest.slice(),
        })
    }
}

impl CommonInfo {
    /// `content` starts behind the length.
    pub(super) fn parse(dialect: Dialect, content: &[u8]) -> Option<CommonInfo> {
        let mut rest = Slice::new(content, LittleEndian);
        let is_head = match dialect {
            Dialect::Eh => 0,
            Dialect::Debug => u32::MAX,
        };
        if rest.read_u32().ok()? != is_head {
            return None;
        }
        let version = rest.read_u8().ok()?;
        if !matches!(version, 1 | 3 | 4) {
            return None;
        }
        let augmentation = rest.read_null_terminated_slice().ok()?;
        if version >= 4 {
            let (address_size, segment_size) = (rest.read_u8().ok()?, rest.read_u8().ok()?);
            if (address_size, segment_size) != (8, 0) {
                return None;
            }
        }
        let (code, data) = (rest.read_uleb128().ok()?, rest.read_sleb128().ok()?);
        let return_register = match version {
            1 => u64::from(rest.read_u8().ok()?),
            _ => rest.read_uleb128().ok()?,
        };
        let (mut pointer, mut signal) = (gimli::DW_EH_PE_absptr.0, false);
        let letters = augmentation.slice().strip_prefix(b"z");
        if let Some(letters) = letters {
            let length = rest.read_uleb128().ok()?;
            let mut data = rest.split(usize::try_from(length).ok()?).ok()?;
            for letter in letters {
                match letter {
                    b'R' => pointer = data.read_u8().ok()?,
                    b'L' => drop(data.read_u8().ok()?),
                    b'P' => {
                        let personality = data.read_u8().ok()?;
                        if personality & 0x70 == 0x50 {
                            return None;
                        }
                        read_pointer(&mut data, personality)?;
                    }
                    b'S' => signal = true,
                    b'B' => {}
                    _ => return None,
                }
            }
        } else {
            match augmentation.slice() {
                b"" => {}
                b"S" => signal = true,
                _ => return None,
            }
        }
        let instructions = rest.slice();
        if names_an_address(instructions) {
            return None;
        }
        let mut written = vec![0, 0, 0, 0, 1];
        written.extend_from_slice(if signal { b"zRS\0" } else { b"zR\0" });
        put_unsigned(&mut written, code);
        put_signed(&mut written, data);
        written.push(u8::try_from(return_register).ok()?);
        // One byte of data: addresses are written as LEB128.
        written.extend_from_slice(&[1, gimli::DW_EH_PE_uleb128.0]);
        written.extend_from_slice(instructions);
        let length = u32::try_from(written.len()).ok()?;
        Some(CommonInfo {
            entry: [&length.to_le_bytes()[..], &written].concat().into(),
            has_data: letters.is_some(),
            pointer,
        })
    }
}

/// Writes the entry of a function that starts at zero and has no end, behind its head.
pub(super) fn write_function(to: &mut Vec<u8>, head: &CommonInfo, instructions: &[u8]) {
    to.extend_from_slice(&head.entry);
    // The head, the range (from zero to the largest address), no data.
    const RANGE: [u8; 7] = [0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    let length = (4 + RANGE.len() + instructions.len()) as u32;
    to.extend_from_slice(&length.to_le_bytes());
    let back = to.len() as u32;
    to.extend_from_slice(&back.to_le_bytes());
    to.extend_from_slice(&RANGE);
    to.extend_from_slice(instructions);
}

/// Reads an address written as `encoding` (LSB, exception frames) says, without what it is relative
/// to.
fn read_pointer(rest: &mut Slice<'_>, encoding: u8) -> Option<u64> {
    Some(match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => rest.read_u64().ok()?,
        0x01 => rest.read_uleb128().ok()?,
        0x09 => rest.read_sleb128().ok()? as u64,
        0x02 => u64::from(rest.read_u16().ok()?),
        0x0a => i64::from(rest.read_i16().ok()?) as u64,
        0x03 => u64::from(rest.read_u32().ok()?),
        0x0b => i64::from(rest.read_i32().ok()?) as u64,
        _ => return None,
    })
}

/// What the operands of a call frame instruction are (DWARF 5, 7.24).
enum Operands {
    Bytes(usize),
    Numbers(usize),
    /// So many numbers, then a length and as many bytes.
    Block(usize),
}

/// True where an instruction names an address: it would be another one here, and compilers write
/// none.
pub(super) fn names_an_address(instructions: &[u8]) -> bool {
    use Operands::{Block, Bytes, Numbers};
    const SET_LOCATION: u8 = 0x01;
    // Most have nothing that looks like it.
    if !instructions.contains(&SET_LOCATION) {
        return false;
    }
    let mut rest = Slice::new(instructions, LittleEndian);
    while let Ok(code) = rest.read_u8() {
        let operands = match code {
            0x40..0x80 | 0xc0.. | 0x00 | 0x0a | 0x0b | 0x2d => Bytes(0),
            0x80..0xc0 | 0x06..=0x08 | 0x0d | 0x0e | 0x13 | 0x2e => Numbers(1),
            SET_LOCATION => return true,
            0x02 => Bytes(1),
            0x03 => Bytes(2),
            0x04 => Bytes(4),
            0x05 | 0x09 | 0x0c | 0x11 | 0x12 | 0x14 | 0x15 => Numbers(2),
            0x0f => Block(0),
            0x10 | 0x16 => Block(1),
            // Whoever evaluates it stops here.
            _ => return false,
        };
        let numbers = |rest: &mut Slice<'_>, count| (0..count).all(|_| rest.skip_leb128().is_ok());
        let whole = match operands {
            Bytes(count) => rest.skip(count).is_ok(),
            Numbers(count) => numbers(&mut rest, count),
            Block(count) => {
                let length = numbers(&mut rest, count)
                    .then(|| rest.read_uleb128().ok())
                    .flatten();
                let length = length.and_then(|length| usize::try_from(length).ok());
                length.is_some_and(|length| rest.skip(length).is_ok())
            }
        };
        if !whole {
            return false;
        }
    }
    false
}

fn put_unsigned(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn put_signed(to: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8 & 0x7f);
}
