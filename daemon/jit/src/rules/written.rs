//! Unwind information that a runtime wrote with its code. Its rows become rules once, when the code
//! appears.
//!
//! The content is an `.eh_frame` that locates its code relative to itself, as if it were placed
//! after the code at the next multiple of eight (`perf inject` makes such an image of each
//! function; nothing has to be there in the process). All of it is untrusted.

use std::ops::Range;
use std::time::Duration;
use symbolize::budget::FileBudget;
use unwind::info::rule::{Rule, Step};
use unwind::info::section::{Bases, Dialect};
use unwind::info::table::Table;

/// Most rows of one function. Real ones have three to some twenty.
const ROWS_MAX: usize = 1024;

/// Most memory for reading what describes one function. Unit: bytes. Most of it is the window.
const BYTES_MAX: usize = 1 << 20;

/// Most CPU time for it. Real ones take some µs.
const CPU_MAX: Duration = Duration::from_millis(10);

/// It makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Senseless;

/// Unwinding information of one piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwinding<'a> {
    /// The `.eh_frame`.
    frames: &'a [u8],
    /// Its assumed position, in bytes after the next multiple of eight after the code.
    at: u64,
}

impl<'a> Unwinding<'a> {
    /// Parses the unwind information in a jitdump for one piece of code: an `.eh_frame_hdr` of
    /// `header_bytes` and an `.eh_frame`. According to the format the header comes first; V8 and
    /// CPython write it last, and `perf inject` reads it that way.
    pub fn as_written(content: &'a [u8], header_bytes: usize) -> Unwinding<'a> {
        let at = content.len().saturating_sub(header_bytes);
        let (frames, header) = content.split_at(at);
        let first = content.get(header_bytes.min(content.len())..);
        match first {
            Some(behind) if !is_header(header) && is_header(content) => Unwinding {
                frames: behind,
                at: header_bytes as u64,
            },
            _ => Unwinding { frames, at: 0 },
        }
    }
}

/// True for what starts as an `.eh_frame_hdr` of version 1 with pointers of four bytes.
fn is_header(bytes: &[u8]) -> bool {
    const SIGNED_4: u8 = gimli::DW_EH_PE_sdata4.0;
    matches!(bytes, [1, pointer, _, _, ..] if pointer & 0x0f == SIGNED_4)
}

/// The rules of the code in `range`; `None` when nothing of it is described.
pub(super) fn rows(
    range: &Range<u64>,
    unwinding: Unwinding<'_>,
) -> Result<Option<Vec<(u32, Rule)>>, Senseless> {
    if unwinding.frames.is_empty() {
        return Ok(None);
    }
    let size = range.end.checked_sub(range.start).ok_or(Senseless)?;
    let base = size
        .checked_next_multiple_of(8)
        .and_then(|size| range.start.checked_add(size)?.checked_add(unwinding.at));
    let bases = Bases {
        code: range.start,
        section: base.ok_or(Senseless)?,
        ..Bases::default()
    };
    // Descriptions of no other code are taken up, nor any that do not parse.
    let budget = FileBudget::new(BYTES_MAX, CPU_MAX);
    let table = Table::of_bytes(Dialect::Eh, unwinding.frames, bases, &budget);
    let table = table.ok().flatten().ok_or(Senseless)?;
    let mut found: Vec<(u32, Rule)> = Vec::new();
    let mut fits = true;
    let parsed = table.rows(|at, rule| {
        fits = fits && u64::from(at.end) <= size && put(&mut found, at, rule);
    });
    let described = found.iter().any(|row| row.1 != Rule::UNKNOWN);
    (parsed.is_some() && fits && described)
        .then_some(Some(found))
        .ok_or(Senseless)
}

/// Adds a row behind those there are; false when it does not lie there, or is too many. What lies
/// between is not known; nor is what needs to be computed each time, which no runtime was seen to
/// write.
fn put(found: &mut Vec<(u32, Rule)>, at: Range<u32>, rule: Rule) -> bool {
    let rule = match rule.step {
        Step::Computed => Rule::UNKNOWN,
        _ => rule,
    };
    match found.last().copied() {
        None if at.start > 0 => found.push((0, Rule::UNKNOWN)),
        // The end of the one before.
        Some((last, Rule::UNKNOWN)) if last == at.start => drop(found.pop()),
        Some((last, _)) if last >= at.start => return false,
        _ => {}
    }
    if found.len() + 2 > ROWS_MAX {
        return false;
    }
    if found.last().is_none_or(|last| last.1 != rule) {
        found.push((at.start, rule));
    }
    found.push((at.end, Rule::UNKNOWN));
    true
}
