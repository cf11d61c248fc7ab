//! The rule of one address: how to get from a frame to its caller. It is small, because many are
//! stored.
//!
//! Compiled code needs few forms: the CFA is a register plus a number, and registers are saved at
//! the CFA plus a number. Those are kept as [`Step::Saved`]; everything else (signal frames,
//! realigned stacks, assembler with expressions) is computed from its row each time, as
//! [`Step::Computed`].
//!
//! A [`Kind`] is the result of a row of one file, usually a rule, stored once for all of its
//! functions.

mod linkage;

use super::ALLOCATION_BYTES;
use super::expression::evaluate;
use super::row::Row;
use super::section::Slice;
use super::state::{Registers, StackCopy, number};
use crate::arch::{self, FRAME_POINTER_PLACE, LINK_REGISTER, PLACES, RETURN_COLUMN};
use gimli::{CfaRule, Expression, LittleEndian, RegisterRule, UnwindExpression};
use hashbrown::{DefaultHashBuilder, HashTable};
pub use linkage::Linkage;
use linkage::linkage;
use profile::StackEnd;
use std::cell::Cell;
use std::hash::BuildHasher;

/// A place that says the register was not saved: it holds the caller's value; of the return
/// address, that it is in the link register.
const SAME: i16 = i16::MIN;

/// How to get to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The registers are saved at fixed distances from the CFA.
    Saved {
        /// The register that the CFA is counted from.
        base: u8,
        /// Distance of the CFA from it. Unit: bytes.
        offset: i32,
        /// Distances of the saved registers from the CFA. Unit: eight bytes.
        places: [i16; PLACES.len()],
    },
    /// As its row in the table says, each time.
    Computed,
    /// This is the outermost frame.
    Outermost,
    /// The function calls on another stack than the one that its caller is on.
    Switched(Behind),
    /// Nothing describes the address.
    Unknown,
}

/// What follows a function that calls on another stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behind {
    /// Nothing: the called function never returns.
    Nobody,
    /// Its caller, by its frame pointer.
    Caller,
    /// The caller of its caller, by the frame pointer of its caller: it has none itself.
    CallersCaller,
    /// Its caller, and nothing leads there.
    Unknown,
}

/// The rule of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// How to get to the caller.
    pub step: Step,
    /// A signal handler returns here: the frame above is wherever the signal struck.
    pub signal: bool,
    /// No call leads here: as a return address it is that of the function's first instruction.
    pub entered: bool,
    /// It was derived from instructions: nothing describes the address.
    pub derived: bool,
    /// The code may run in the frame of the file's [`Lender`](super::derive::lender::Lender).
    pub lent: bool,
}

impl Rule {
    /// Nothing describes the address.
    pub const UNKNOWN: Rule = Rule {
        step: Step::Unknown,
        signal: false,
        entered: false,
        derived: false,
        lent: false,
    };

    /// The stack starts in this function.
    pub const OUTERMOST: Rule = Rule {
        step: Step::Outermost,
        ..Rule::UNKNOWN
    };

    /// The stack was made to start here.
    pub const ENTERED: Rule = Rule {
        step: Step::Outermost,
        entered: true,
        ..Rule::UNKNOWN
    };

    /// The function calls on another stack.
    pub fn switched(behind: Behind) -> Rule {
        Rule {
            step: Step::Switched(behind),
            ..Rule::UNKNOWN
        }
    }

    /// The rule of a Go function with a stack of `depth` bytes, without the return address.
    /// `injected`: its frame is treated as that of an interrupted instruction, which did not call
    /// it.
    pub fn of_go(depth: i32, injected: bool) -> Option<Rule> {
        let frame = arch::go_frame(depth, injected).filter(|_| depth >= 0)?;
        let place = |at: Option<i32>| match at {
            None => Some(SAME),
            Some(at) => i16::try_from(at).ok().filter(|&at| at != SAME),
        };
        let mut places = [SAME; PLACES.len()];
        places[0] = place(frame.returns_at)?;
        places[FRAME_POINTER_PLACE] = place(frame.frame_pointer_at)?;
        let step = Step::Saved {
            base: number::SP as u8,
            offset: frame.cfa,
            places,
        };
        Some(Rule {
            step,
            signal: injected,
            ..Rule::UNKNOWN
        })
    }

    /// The rule that instructions lead to: the register and the distance of the CFA from it, and
    /// the distances of the return address, unless that is in the link register, and of saved
    /// registers from the CFA. Unit: bytes. `None` where they are too large.
    pub fn derived(
        (base, offset): (u16, i32),
        returns: Option<i32>,
        saved: impl Iterator<Item = (u16, i32)>,
    ) -> Option<Rule> {
        let word = |distance: i32| i16::try_from(distance / 8).ok().filter(|&at| at != SAME);
        let mut places = [SAME; PLACES.len()];
        if let Some(returns) = returns {
            places[0] = word(returns)?;
        }
        for (register, distance) in saved {
            let place = PLACES.iter().position(|&known| known == register)?;
            places[place] = word(distance)?;
        }
        let step = Step::Saved {
            base: u8::try_from(base).ok()?,
            offset,
            places,
        };
        Some(Rule {
            step,
            derived: true,
            ..Rule::UNKNOWN
        })
    }

    /// The register that the CFA is counted from, its distance from it, and how far below the CFA
    /// the frame pointer of the caller is, where it was saved. Unit: bytes. `None` of rules of
    /// another form.
    pub fn distances(&self) -> Option<(u16, i32, Option<i32>)> {
        let Step::Saved {
            base,
            offset,
            places,
        } = self.step
        else {
            return None;
        };
        let place = places[FRAME_POINTER_PLACE];
        let frame_pointer = (place != SAME).then(|| i32::from(place) * -8);
        Some((base.into(), offset, frame_pointer))
    }

    /// At the first instruction of a function nothing is saved, but by the call.
    pub const fn at_first_instruction() -> Rule {
        let mut places = [SAME; PLACES.len()];
        let mut offset = 0;
        if LINK_REGISTER.is_none() {
            (places[0], offset) = (-1, 8);
        }
        Rule {
            step: Step::Saved {
                base: number::SP as u8,
                offset,
                places,
            },
            ..Rule::UNKNOWN
        }
    }

    /// The return address is at the stack pointer plus `offset` bytes, and nothing else is saved.
    pub fn return_address_at(offset: i32) -> Rule {
        let mut places = [SAME; PLACES.len()];
        places[0] = -1;
        let step = Step::Saved {
            base: number::SP as u8,
            offset: offset + 8,
            places,
        };
        Rule {
            step,
            ..Rule::UNKNOWN
        }
    }

    /// A frame of `bytes`, with the return address and below it the saved frame pointer.
    pub fn framed(bytes: i32) -> Option<Rule> {
        let mut places = [SAME; PLACES.len()];
        (places[0], places[FRAME_POINTER_PLACE]) = (-1, -2);
        let step = Step::Saved {
            base: number::SP as u8,
            offset: bytes,
            places,
        };
        (bytes >= 16 && bytes % 8 == 0).then_some(Rule {
            step,
            ..Rule::UNKNOWN
        })
    }

    /// The frame pointer was pushed right below the return address, and nothing since.
    pub fn frame_pointer_pushed() -> Rule {
        let mut places = [SAME; PLACES.len()];
        (places[0], places[FRAME_POINTER_PLACE]) = (-1, -2);
        let step = Step::Saved {
            base: number::SP as u8,
            offset: 16,
            places,
        };
        Rule {
            step,
            ..Rule::UNKNOWN
        }
    }
}

/// The kind of a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing is described.
    Nothing,
    /// A rule.
    Rule(Rule),
    /// In a section of PLT entries the rule depends on the address.
    Linkage(Linkage),
    /// The row itself, computed for each frame.
    Computed(Box<ComputedRow>),
}

impl Kind {
    /// Memory held apart from itself. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Kind::Computed(row) => {
                size_of_val(&**row) + size_of_val(&*row.registers) + 2 * ALLOCATION_BYTES
            }
            Kind::Nothing | Kind::Rule(_) | Kind::Linkage(_) => 0,
        }
    }

    /// The rule for an address.
    pub fn rule(&self, address: u64) -> Option<Rule> {
        match self {
            Kind::Nothing => None,
            Kind::Rule(rule) => Some(*rule),
            Kind::Linkage(linkage) => Some(linkage.rule(address)),
            Kind::Computed(row) => Some(Rule {
                step: Step::Computed,
                signal: row.signal,
                entered: row.signal,
                ..Rule::UNKNOWN
            }),
        }
    }
}

/// The expressions of a file's rows, each once.
#[derive(Debug, Default)]
pub struct Expressions {
    /// One behind the other.
    pub bytes: Vec<u8>,
    /// Places, found again by content.
    known: HashTable<SectionRange>,
    hasher: DefaultHashBuilder,
}

impl Expressions {
    /// Memory that finding them again takes. Unit: bytes.
    pub fn tables_bytes(&self) -> usize {
        self.known.allocation_size()
    }

    fn place(&mut self, expression: Expression<Slice<'_>>) -> Option<SectionRange> {
        let Expressions {
            bytes,
            known,
            hasher,
        } = self;
        let expression = expression.0.slice();
        let hash = hasher.hash_one(expression);
        let same = |place: &SectionRange| place.bytes_in(bytes) == Some(expression);
        if let Some(&place) = known.find(hash, same) {
            return Some(place);
        }
        let place = SectionRange {
            at: u32::try_from(bytes.len()).ok()?,
            len: u32::try_from(expression.len()).ok()?,
        };
        bytes.extend_from_slice(expression);
        let hash_of =
            |place: &SectionRange| hasher.hash_one(place.bytes_in(bytes).unwrap_or_default());
        known.insert_unique(hash, place, hash_of);
        Some(place)
    }
}

/// Where an expression is among those of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SectionRange {
    at: u32,
    len: u32,
}

impl SectionRange {
    fn bytes_in(self, expressions: &[u8]) -> Option<&[u8]> {
        let at = self.at as usize;
        expressions.get(at..at + self.len as usize)
    }

    fn of(self, expressions: &[u8]) -> Result<Expression<Slice<'_>>, StackEnd> {
        let bytes = self.bytes_in(expressions);
        let bytes = bytes.ok_or(StackEnd::NoUnwindInfo)?;
        Ok(Expression(Slice::new(bytes, LittleEndian)))
    }
}

/// Where the value of a register, or the CFA, comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// A register and a distance.
    Register(u16, i64),
    /// It is the caller's already.
    Same,
    /// Memory at a distance from the CFA.
    At(i64),
    /// The CFA and a distance.
    Cfa(i64),
    /// Memory at what an expression gives.
    AtExpression(SectionRange),
    /// The value of an expression.
    Expression(SectionRange),
    /// A number.
    Constant(u64),
    /// It is unknown.
    Unknown,
}

/// A row that is computed for each frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ComputedRow {
    signal: bool,
    cfa: Source,
    returns: Source,
    return_register: u16,
    registers: Box<[(u16, Source)]>,
}

impl ComputedRow {
    /// The row of a function that a signal handler returns to: all registers are where the kernel
    /// put them, counted from the stack pointer.
    pub fn signal_return() -> ComputedRow {
        use arch::{SIGNAL_ORDER as ORDER, SIGNAL_REGISTERS_AT as REGISTERS_AT};
        let at = |place: usize| Source::At(REGISTERS_AT + 8 * place as i64);
        let saved = ORDER.iter().enumerate();
        let mut registers: Vec<_> = saved.map(|(place, &own)| (own, at(place))).collect();
        registers.sort_unstable_by_key(|&(register, _)| register);
        ComputedRow {
            signal: true,
            cfa: Source::Register(number::SP, 0),
            returns: at(ORDER.len()),
            return_register: number::RA,
            registers: registers.into(),
        }
    }
}

/// Facts about a row besides its rules, while it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowFacts<'a> {
    /// True in the function that a signal handler returns to.
    pub signal: bool,
    /// The column that holds the return address.
    pub return_register: u16,
    /// The section that contains the expressions.
    pub section: &'a [u8],
}

impl<'a> RowFacts<'a> {
    fn expression(&self, expression: &UnwindExpression<usize>) -> Option<Expression<Slice<'a>>> {
        let end = expression.offset.checked_add(expression.length)?;
        let bytes = self.section.get(expression.offset..end)?;
        Some(Expression(Slice::new(bytes, LittleEndian)))
    }
}

/// The kind for a row.
pub(super) fn kind_of_row(row: &Row, facts: RowFacts<'_>, expressions: &mut Expressions) -> Kind {
    if outermost(row, facts) {
        return Kind::Rule(Rule {
            step: Step::Outermost,
            signal: facts.signal,
            entered: facts.signal,
            ..Rule::UNKNOWN
        });
    }
    saved(row, facts).unwrap_or_else(|| {
        let computed = computed(row, facts, expressions);
        computed.map_or(Kind::Nothing, |row| Kind::Computed(Box::new(row)))
    })
}

fn outermost(row: &Row, facts: RowFacts<'_>) -> bool {
    let rule = row.register(gimli::Register(facts.return_register));
    matches!(rule, Some(RegisterRule::Undefined))
}

/// The row as distances; `None` when it needs more than that.
fn saved(row: &Row, facts: RowFacts<'_>) -> Option<Kind> {
    if facts.signal || facts.return_register != RETURN_COLUMN {
        return None;
    }
    let mut places = [SAME; PLACES.len()];
    // A link register that nothing is said of still has it.
    let mut has_return_address = LINK_REGISTER.is_some();
    for (register, rule) in row.registers() {
        let number = match register.0 {
            RETURN_COLUMN => number::RA,
            other => other,
        };
        let place = PLACES.iter().position(|known| *known == number);
        match (place, rule) {
            (Some(place), RegisterRule::Offset(at)) => {
                let in_words = (at % 8 == 0).then_some(at / 8)?;
                places[place] = i16::try_from(in_words).ok().filter(|&at| at != SAME)?;
                has_return_address |= number == number::RA;
            }
            (Some(_), RegisterRule::SameValue)
                if number != number::RA || LINK_REGISTER.is_some() => {}
            (Some(_), _) => return None,
            // The stack pointer of the caller is the CFA, unless the row says otherwise.
            (None, RegisterRule::ValOffset(0)) if number == number::SP => {}
            (None, _) if number == number::SP => return None,
            // What calls do not keep, callers do not use.
            (None, _) => {}
        }
    }
    if !has_return_address {
        return None;
    }
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let step = Step::Saved {
                base: u8::try_from(register.0).ok()?,
                offset: i32::try_from(*offset).ok()?,
                places,
            };
            Some(Kind::Rule(Rule {
                step,
                ..Rule::UNKNOWN
            }))
        }
        CfaRule::Expression(expression) => {
            let linkage = linkage(facts.expression(expression)?, places)?;
            Some(Kind::Linkage(linkage))
        }
    }
}

/// The row with everything that it needs. `None` when it makes no sense.
fn computed(row: &Row, facts: RowFacts<'_>, expressions: &mut Expressions) -> Option<ComputedRow> {
    let mut place = |at: &UnwindExpression<usize>| expressions.place(facts.expression(at)?);
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Source::Register(register.0, *offset),
        CfaRule::Expression(expression) => Source::Expression(place(expression)?),
    };
    let mut source = |rule: &RegisterRule<usize>| {
        Some(match rule {
            RegisterRule::Offset(offset) => Source::At(*offset),
            RegisterRule::ValOffset(offset) => Source::Cfa(*offset),
            RegisterRule::Expression(at) => Source::AtExpression(place(at)?),
            RegisterRule::ValExpression(value) => Source::Expression(place(value)?),
            RegisterRule::Register(other) => Source::Register(other.0, 0),
            RegisterRule::SameValue => Source::Same,
            RegisterRule::Constant(value) => Source::Constant(*value),
            _ => Source::Unknown,
        })
    };
    let returns = match row.register(gimli::Register(facts.return_register)) {
        Some(rule) => source(&rule)?,
        None if LINK_REGISTER.is_some() => Source::Same,
        None => return None,
    };
    let mut registers = Vec::new();
    for (register, rule) in row.registers() {
        if register.0 != facts.return_register && register.0 <= number::RA {
            registers.push((register.0, source(rule)?));
        }
    }
    // Rows that say the same are one.
    registers.sort_unstable_by_key(|&(register, _)| register);
    Some(ComputedRow {
        signal: facts.signal,
        cfa,
        returns,
        return_register: facts.return_register,
        registers: registers.into(),
    })
}

/// Where the return address of a frame is, by a rule of fixed distances. `None` also where it is in
/// a register.
pub fn return_slot(
    base: u8,
    offset: i32,
    places: &[i16; PLACES.len()],
    registers: &Registers,
) -> Option<u64> {
    if LINK_REGISTER.is_some() && places[0] == SAME {
        return None;
    }
    let cfa = registers
        .get(u16::from(base))?
        .wrapping_add(i64::from(offset) as u64);
    Some(cfa.wrapping_add((i64::from(places[0]) * 8) as u64))
}

/// The caller's registers by a rule of fixed distances.
///
/// # Errors
/// How the stack ends when memory cannot be read or a register is not known.
pub fn step_saved(
    base: u8,
    offset: i32,
    places: &[i16; PLACES.len()],
    registers: &Registers,
    stack: &StackCopy<'_>,
) -> Result<Registers, StackEnd> {
    let mut caller = *registers;
    go_to_caller(base, offset, places, &mut caller, stack)?;
    Ok(caller)
}

/// The same in place, because nearly every frame needs it, and copying the registers touches two
/// cache lines.
///
/// # Errors
/// As for [`step_saved`]; the registers are then as they were.
#[inline]
pub fn go_to_caller(
    base: u8,
    offset: i32,
    places: &[i16; PLACES.len()],
    registers: &mut Registers,
    stack: &StackCopy<'_>,
) -> Result<(), StackEnd> {
    stack.goes_by(registers, u16::from(base));
    let base = registers
        .get(u16::from(base))
        .ok_or(StackEnd::NoUnwindInfo)?;
    let cfa = base.wrapping_add(i64::from(offset) as u64);
    let at = |place: i16| cfa.wrapping_add((i64::from(place) * 8) as u64);
    let returns = match LINK_REGISTER {
        Some(link) if places[0] == SAME => {
            stack.goes_by(registers, link);
            registers.get(link).ok_or(StackEnd::NoUnwindInfo)?
        }
        _ => stack.read(at(places[0]))?,
    };
    registers.returned(returns, cfa);
    for (&number, &place) in PLACES.iter().zip(places).skip(1) {
        if place == SAME {
            continue;
        }
        // A register that cannot be read is missed only by a frame that is found through it.
        match stack.read(at(place)) {
            Ok(value) => registers.set(number, value),
            Err(_) => registers.forget(number),
        }
    }
    Ok(())
}

/// The caller's registers as a row says, whatever it says. `operations` is what expressions may
/// still cost.
///
/// # Errors
/// How the stack ends when memory cannot be read or the row makes no sense.
pub fn step_computed(
    row: &ComputedRow,
    expressions: &[u8],
    registers: &Registers,
    stack: &StackCopy<'_>,
    operations: &Cell<u32>,
) -> Result<Registers, StackEnd> {
    let no_sense = StackEnd::NoUnwindInfo;
    stack.goes_by_any(registers);
    let register = |number: u16, more: i64| {
        let value = registers.get(number).ok_or(no_sense)?;
        Ok(value.wrapping_add(more as u64))
    };
    let result = |place: SectionRange, first| {
        let expression = place.of(expressions)?;
        evaluate(expression, first, registers, stack, operations)
    };
    let cfa = match row.cfa {
        Source::Register(number, offset) => register(number, offset)?,
        Source::Expression(place) => result(place, None)?,
        _ => return Err(no_sense),
    };
    let value = |source: Source, own: u16| match source {
        Source::At(offset) => stack.read(cfa.wrapping_add(offset as u64)),
        Source::Cfa(offset) => Ok(cfa.wrapping_add(offset as u64)),
        Source::AtExpression(place) => stack.read(result(place, Some(cfa))?),
        Source::Expression(place) => result(place, Some(cfa)),
        Source::Register(other, more) => register(other, more),
        Source::Same => register(own, 0),
        Source::Constant(value) => Ok(value),
        Source::Unknown => Err(no_sense),
    };
    let ip = value(row.returns, row.return_register)?;
    let mut caller = registers.after_return(ip, cfa);
    for &(own, source) in &row.registers {
        match value(source, own) {
            Ok(value) => caller.set(own, value),
            Err(StackEnd::WorkLimit) => return Err(StackEnd::WorkLimit),
            Err(_) if own == number::SP => return Err(no_sense),
            Err(_) => caller.forget(own),
        }
    }
    Ok(caller)
}
