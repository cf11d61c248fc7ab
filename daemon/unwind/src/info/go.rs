//! Unwind information of Go programs, which have none of the usual kind once they are stripped: it
//! is derived from the stack depths that Go's own tables state for each instruction.
//!
//! The CFA is the stack pointer plus the depth plus the size of the return address; the caller's
//! frame pointer is next to it. The first functions of a goroutine, runtime functions that run on
//! stacks of their own, and the functions that signal handlers return to are recognized by name
//! ([`roles`]). Called by `fp-files`, once per file.

use super::pack::build::{Builder, put};
use super::row_words::ROWS_MAX;
use super::rule::{Behind, ComputedRow, Kind, Rule};
use super::table::Table;
use crate::arch;
use hashbrown::HashMap;
use symbolize::budget::{Charge, FileBudget, Over};
use symbolize::elf::{Headers, ReadAt};
use symbolize::go;
use symbolize::go::functions::{Function, TOP_FRAME, WRITES_SP};
use symbolize::go::roles::{Role, roles};
use symbolize::go::values::{Lists, Values};

/// Functions, and rows of them, between two looks at what is held and spent.
const AT_ONCE: usize = 1024;

/// Code at the start of a function that is looked at for whether it keeps a frame pointer. Unit:
/// bytes.
const PROLOGUE_BYTES: usize = 64;

/// How a list of depths is to be read: two functions may share one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reading {
    Depths,
    Injected,
}

/// The table of a Go program, with addresses counted from `base`. `None` for other programs.
///
/// # Errors
/// When reading it takes more than `budget` has left.
pub fn table<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    base: u64,
    budget: &FileBudget<'_>,
) -> Result<Option<Table>, Over> {
    let Some(tables) = go::find(image, headers, budget)? else {
        return Ok(None);
    };
    let roles = roles(image, &tables, budget)?;
    let lists = Lists::new(image, &tables, budget);
    let mut writer = Writer {
        image,
        headers,
        base,
        budget,
        charge: budget.charge(lists.heap_bytes())?,
        roles,
        lists,
        builder: Builder::new(),
        known: HashMap::new(),
        seen: 0,
    };
    tables.each(image, budget, |function: &Function| writer.add(function))?;
    let packed = writer.builder.finish(writer.charge)?;
    Ok(Table::of(packed, base))
}

/// Writes the rows of one function after another.
struct Writer<'a, 'b, R: ?Sized> {
    image: &'a R,
    headers: &'a Headers,
    base: u64,
    budget: &'a FileBudget<'b>,
    charge: Charge<'a>,
    roles: HashMap<u32, Role>,
    lists: Lists<'a, 'b, R>,
    builder: Builder,
    /// Rows of the lists that were read, and where they end.
    known: HashMap<(u32, Reading), Option<(u32, u32)>>,
    /// Functions and rows since the last look at what is held and spent.
    seen: usize,
}

impl<R: ReadAt + ?Sized> Writer<'_, '_, R> {
    fn add(&mut self, function: &Function) -> Result<(), Over> {
        self.seen += 1;
        if self.seen >= AT_ONCE {
            self.seen = 0;
            let known = self.known.allocation_size();
            let held = self.lists.heap_bytes() + known + known / 2 + self.builder.heap_bytes();
            self.charge.set(held)?;
            self.budget.check()?;
        }
        let Some(Ok(start)) = function.start.checked_sub(self.base).map(u32::try_from) else {
            return Ok(());
        };
        let len = u32::try_from(function.end - function.start).unwrap_or(u32::MAX);
        let role = self.roles.get(&function.name).copied();
        match self.rule_of_role(function, role) {
            Ok(kind) => self.add_alike(start, len, kind),
            Err(reading) => {
                if let Some((rows, end)) = self.rows(function.depths, reading)? {
                    self.builder.add(start, end.min(len), rows);
                }
                if role == Some(Role::StandsIn) {
                    self.add_stand_in(function, start)?;
                }
                Ok(())
            }
        }
    }

    /// Adds a function that is the same all over.
    fn add_alike(&mut self, start: u32, len: u32, kind: Kind) -> Result<(), Over> {
        let rows = [(0, self.builder.number(kind)?)];
        if let Some(rows) = self.builder.keep(&rows) {
            self.builder.add(start, len, rows);
        }
        Ok(())
    }

    /// Adds the first instruction of a function as what something returns to. A return address is
    /// looked up one byte before it.
    fn add_stand_in(&mut self, function: &Function, start: u32) -> Result<(), Over> {
        if let (Some(before), Some(rule)) = (start.checked_sub(1), Rule::of_go(0, false))
            && !self.keeps_frame_pointer(function)
        {
            let rule = Rule {
                entered: true,
                ..rule
            };
            self.add_alike(before, 1, Kind::Rule(rule))?;
        }
        Ok(())
    }

    /// The rows of the list of depths at a place, and where they end.
    fn rows(&mut self, depths: u32, reading: Reading) -> Result<Option<(u32, u32)>, Over> {
        if let Some(&found) = self.known.get(&(depths, reading)) {
            return Ok(found);
        }
        let list = self.lists.at(depths)?;
        let found = match list {
            Some(list) => rows(&mut self.builder, list, reading, &mut self.seen)?,
            None => None,
        };
        self.known.insert((depths, reading), found);
        Ok(found)
    }

    /// The rule for all of a function, or else how to read its depths.
    fn rule_of_role(&self, function: &Function, role: Option<Role>) -> Result<Kind, Reading> {
        let switched = || match self.keeps_frame_pointer(function) {
            true => Behind::Caller,
            false => Behind::CallersCaller,
        };
        let rule = match role {
            Some(Role::Starts) => Rule::OUTERMOST,
            Some(Role::Leaves) => Rule::switched(Behind::Nobody),
            Some(Role::Loses) => Rule::switched(Behind::Unknown),
            Some(Role::SignalReturn) => {
                return Ok(Kind::Computed(Box::new(ComputedRow::signal_return())));
            }
            Some(Role::Injected) => return Err(Reading::Injected),
            Some(Role::Plain | Role::StandsIn) => return Err(Reading::Depths),
            None if function.flags & TOP_FRAME != 0 => Rule::OUTERMOST,
            Some(Role::Switches) => Rule::switched(switched()),
            None if function.flags & WRITES_SP != 0 => Rule::switched(switched()),
            None => return Err(Reading::Depths),
        };
        Ok(Kind::Rule(rule))
    }

    /// True when a function saves its caller's frame pointer and sets its own.
    fn keeps_frame_pointer(&self, function: &Function) -> bool {
        let mut code = [0; PROLOGUE_BYTES];
        let len = (function.end - function.start).min(PROLOGUE_BYTES as u64) as usize;
        let offset = self.headers.offset_of(function.start);
        let read = offset.and_then(|offset| self.image.read_some_at(&mut code[..len], offset).ok());
        let code = &code[..read.unwrap_or(0)];
        let has = |instructions: &[u8]| {
            let mut places = code.windows(instructions.len());
            places.any(|place| place == instructions)
        };
        arch::GO_KEEPS_FRAME_POINTER.into_iter().any(has)
    }
}

/// The rows of a list of depths, and where they end. Adds their number to `seen`.
fn rows(
    builder: &mut Builder,
    depths: Values<'_>,
    reading: Reading,
    seen: &mut usize,
) -> Result<Option<(u32, u32)>, Over> {
    let mut found: Vec<(u32, u16)> = Vec::new();
    let mut end = 0;
    for span in depths.take(ROWS_MAX - 1) {
        *seen += 1;
        let rule = Rule::of_go(span.value, reading == Reading::Injected);
        let number = builder.number(rule.map_or(Kind::Nothing, Kind::Rule))?;
        if span.from < span.until {
            put(&mut found, span.from, number);
            end = span.until;
        }
    }
    Ok(builder.keep(&found).map(|rows| (rows, end)))
}

#[cfg(test)]
mod tests;
