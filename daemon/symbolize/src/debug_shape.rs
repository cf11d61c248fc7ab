//! Checks debug information for what the library that reads it does not bound itself.
//!
//! blazesym recurses once for each inlined function within another, so endlessly nested entries
//! would overflow the stack and end the daemon; and it keeps the rows of a line program once for
//! each unit that refers to it. One walk over the entries, without their attributes, finds both.

use super::budget::{FileBudget, Over};
use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugInfo, DebugLineOffset, EndianSlice,
    LittleEndian, UnitHeader, UnitType,
};

/// Deepest entry. So many take less than half of the stack that the symbolizer's thread has, also
/// in debug builds (`tests/images.rs`). Files of programs that are nested deeper have no lines.
const DEPTH_MAX: usize = 256;

/// Longest line program of one unit, including its head. Unit: bytes. The library reads all of it
/// between two checks of the time. Files with a longer one have no lines.
const LINE_PROGRAM_MAX: u64 = 2 << 20;

/// How often all line programs together may be named, in times of their section. A unit has one of
/// its own; few tools have units share theirs.
const LINES_NAMED_MAX: u64 = 4;

/// Entries between two looks at the budget.
const AT_ONCE: usize = 4096;

/// Why debug information is not given to the library.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShapeError {
    /// Entries are nested too deeply.
    #[error("the debug information is nested more than {DEPTH_MAX} levels deep")]
    Deep,
    /// A line program is too long, or units name line programs of others.
    #[error("the line programs are too long, or referenced too often")]
    Lines,
    /// Looking at it took more time than one file may.
    #[error(transparent)]
    Over(#[from] Over),
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Refuses `.debug_info`, with its `.debug_abbrev` and `.debug_line`, that the library must not
/// get. What is damaged is not refused for that: the library stops reading where this does.
///
/// # Errors
/// Why the library is not to get it.
pub fn check(
    info: &[u8],
    abbrev: &[u8],
    line: &[u8],
    budget: &FileBudget<'_>,
) -> Result<(), ShapeError> {
    let abbrev = DebugAbbrev::new(abbrev, LittleEndian);
    let mut units = DebugInfo::new(info, LittleEndian).units();
    let mut lines = Lines { line, named: 0 };
    // Units that follow each other may share it.
    let mut known: Option<(usize, Abbreviations)> = None;
    while let Ok(Some(header)) = units.next() {
        budget.check()?;
        let at = header.debug_abbrev_offset().0;
        if known.as_ref().is_none_or(|(of, _)| *of != at) {
            known = header.abbreviations(&abbrev).ok().map(|all| (at, all));
        }
        if let Some((_, abbreviations)) = &known {
            check_unit(&header, abbreviations, &mut lines, budget)?;
        }
    }
    Ok(())
}

fn check_unit(
    header: &UnitHeader<Slice<'_>>,
    abbreviations: &Abbreviations,
    lines: &mut Lines<'_>,
    budget: &FileBudget<'_>,
) -> Result<(), ShapeError> {
    // The library reads no lines of the others.
    let has_lines = matches!(
        header.type_(),
        UnitType::Compilation | UnitType::Skeleton(_) | UnitType::SplitCompilation(_)
    );
    let Ok(mut entries) = header.entries_raw(abbreviations, None) else {
        return Ok(());
    };
    let (mut depth, mut count) = (0_usize, 0_usize);
    while !entries.is_empty() {
        count += 1;
        if count.is_multiple_of(AT_ONCE) {
            budget.check()?;
        }
        let entry = match entries.read_abbreviation() {
            Err(_) => return Ok(()),
            Ok(None) => {
                // Never below zero: what follows too many ends is as deep as it looks.
                depth = depth.saturating_sub(1);
                continue;
            }
            Ok(Some(entry)) => entry,
        };
        if count == 1 && has_lines {
            for &spec in entry.attributes() {
                let Ok(attribute) = entries.read_attribute(spec) else {
                    return Ok(());
                };
                if let (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) =
                    (attribute.name(), attribute.value())
                {
                    lines.name(at)?;
                }
            }
        } else if entries.skip_attributes(entry.attributes()).is_err() {
            return Ok(());
        }
        depth += usize::from(entry.has_children());
        if depth > DEPTH_MAX {
            return Err(ShapeError::Deep);
        }
    }
    Ok(())
}

/// The line programs that units name.
struct Lines<'l> {
    line: &'l [u8],
    /// Sum of their lengths. Unit: bytes.
    named: u64,
}

impl Lines<'_> {
    /// Counts one more.
    fn name(&mut self, at: DebugLineOffset) -> Result<(), ShapeError> {
        let rest = self.line.get(at.0..).unwrap_or_default();
        let length = match rest.split_first_chunk::<4>() {
            // 64 bits follow.
            Some((&[0xff, 0xff, 0xff, 0xff], rest)) => {
                rest.first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
            }
            Some((length, _)) => u64::from(u32::from_le_bytes(*length)),
            None => 0,
        };
        self.named = self.named.saturating_add(length);
        let most = (self.line.len() as u64).saturating_mul(LINES_NAMED_MAX);
        match length > LINE_PROGRAM_MAX || self.named > most {
            true => Err(ShapeError::Lines),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::FILE_CPU_MAX;
    use std::time::Duration;

    /// Abbreviations: 1, a unit with `DW_AT_stmt_list`; 2, a function; 3, an inlined function.
    const ABBREV: &[u8] = &[
        1, 0x11, 1, 0x10, 0x17, 0, 0, 2, 0x2e, 1, 0, 0, 3, 0x1d, 1, 0, 0, 0,
    ];

    /// A unit of DWARF 4 with this line program and these entries.
    fn unit(stmt_list: u32, entries: &[u8]) -> Vec<u8> {
        let mut rest = vec![4, 0, 0, 0, 0, 0, 8, 1];
        rest.extend_from_slice(&stmt_list.to_le_bytes());
        rest.extend_from_slice(entries);
        let mut unit = (rest.len() as u32).to_le_bytes().to_vec();
        unit.append(&mut rest);
        unit
    }

    fn checked(info: &[u8], line: &[u8]) -> Result<(), ShapeError> {
        check(info, ABBREV, line, &FileBudget::default())
    }

    #[test]
    fn entries_nested_without_end_are_refused() {
        let nested = |depth: usize| {
            let mut entries = vec![2];
            entries.resize(depth + 1, 3);
            entries.resize(2 * depth + 3, 0);
            entries
        };
        assert_eq!(checked(&unit(0, &nested(200)), &[]), Ok(()));
        let deep = nested(10_000);
        assert_eq!(checked(&unit(0, &deep), &[]), Err(ShapeError::Deep));
        // Neither ends before them nor a unit before hides them, nor that the rest is missing.
        let mut hidden = vec![0; 20_000];
        hidden.extend_from_slice(&deep);
        let mut info = unit(0, &[0]);
        info.append(&mut unit(0, &hidden));
        assert_eq!(checked(&info, &[]), Err(ShapeError::Deep));
        let cut = unit(0, &[&deep[..5000], &[99]].concat());
        assert_eq!(checked(&cut, &[]), Err(ShapeError::Deep));
        // What follows each other is not deep.
        assert_eq!(checked(&unit(0, &[2, 0].repeat(10_000)), &[]), Ok(()));
        let budget = FileBudget::new(0, Duration::ZERO);
        let over = check(&info, ABBREV, &[], &budget);
        assert_eq!(over, Err(ShapeError::Over(Over::Time)));
    }

    #[test]
    fn long_line_programs_and_those_of_many_units_are_refused() {
        let program = |length: u32| {
            let mut line = length.to_le_bytes().to_vec();
            line.resize(length as usize + 4, 0);
            line
        };
        let one = unit(0, &[0]);
        assert_eq!(checked(&one, &program(1 << 20)), Ok(()));
        let long = program(LINE_PROGRAM_MAX as u32 + 1);
        assert_eq!(checked(&one, &long), Err(ShapeError::Lines));
        let mut wide = vec![0xff; 4];
        wide.extend_from_slice(&(LINE_PROGRAM_MAX + 1).to_le_bytes());
        assert_eq!(checked(&one, &wide), Err(ShapeError::Lines));
        let few = one.repeat(LINES_NAMED_MAX as usize);
        assert_eq!(checked(&few, &program(1 << 20)), Ok(()));
        let many = one.repeat(LINES_NAMED_MAX as usize + 1);
        assert_eq!(checked(&many, &program(1 << 20)), Err(ShapeError::Lines));
        // Beyond the section there is none.
        assert_eq!(checked(&unit(u32::MAX, &[0]), &long), Ok(()));
    }

    #[test]
    fn whatever_stands_there_nothing_falls() {
        let info = [unit(0, &[2, 3, 0, 0, 0]), unit(4, &[2, 0, 0])].concat();
        for at in 0..info.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut info = info.clone();
                info[at] = value;
                let budget = FileBudget::new(0, FILE_CPU_MAX);
                let _ = check(&info, ABBREV, &[8, 0, 0, 0, 1], &budget);
                let _ = check(&info[..at], ABBREV, &[], &budget);
            }
        }
    }
}
