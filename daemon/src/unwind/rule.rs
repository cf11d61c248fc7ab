//! The rule of one address: how to get from a frame to its caller. Small enough to keep many.
//!
//! Compiled code needs few forms: the CFA is a register plus a number, and registers are saved at the
//! CFA plus a number. Those are kept as [`Step::Saved`]; everything else (signal frames, realigned
//! stacks, assembler with expressions) is computed from its row each time, as [`Step::Computed`].

use super::expression::evaluate;
use super::state::{Registers, StackCopy, number};
use super::table::{Row, RowFacts, Slice};
use gimli::{CfaRule, Expression, Operation, RegisterRule};
use profile::StackEnd;

/// Registers whose place a rule keeps, the return address first.
const PLACES: [u16; 7] = [
    number::RA,
    number::RBX,
    number::RBP,
    number::R12,
    number::R13,
    number::R14,
    number::R15,
];

/// A place that says the register was not saved: it holds the caller's value.
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
    /// Nothing describes the address.
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
}

impl Rule {
    /// Nothing describes the address.
    pub const UNKNOWN: Rule = Rule {
        step: Step::Unknown,
        signal: false,
        entered: false,
    };

    /// The stack begins in this function.
    pub const OUTERMOST: Rule = Rule {
        step: Step::Outermost,
        ..Rule::UNKNOWN
    };

    /// The stack was made to begin here.
    pub const ENTERED: Rule = Rule {
        step: Step::Outermost,
        signal: false,
        entered: true,
    };

    /// The return address is at the stack pointer plus `offset` bytes, and nothing else is saved.
    pub fn return_address_at(offset: i32) -> Rule {
        let mut places = [SAME; PLACES.len()];
        places[0] = -1;
        let step = Step::Saved {
            base: number::RSP as u8,
            offset: offset + 8,
            places,
        };
        Rule {
            step,
            ..Rule::UNKNOWN
        }
    }

    /// The frame pointer was pushed right below the return address, and nothing since.
    pub fn frame_pointer_pushed() -> Rule {
        let mut places = [SAME; PLACES.len()];
        (places[0], places[2]) = (-1, -2);
        let step = Step::Saved {
            base: number::RSP as u8,
            offset: 16,
            places,
        };
        Rule {
            step,
            ..Rule::UNKNOWN
        }
    }

    /// The rule of a row, for the address it was looked up for.
    pub fn of_row(row: &Row, facts: RowFacts<'_>, address: u64) -> Rule {
        let step = if outermost(row, facts) {
            Step::Outermost
        } else {
            saved(row, facts, address).unwrap_or(Step::Computed)
        };
        Rule {
            step,
            signal: facts.signal,
            entered: facts.signal,
        }
    }
}

fn outermost(row: &Row, facts: RowFacts<'_>) -> bool {
    let rule = row.register(gimli::Register(facts.return_register));
    matches!(rule, Some(RegisterRule::Undefined))
}

/// The row as distances; `None` when it needs more than that.
fn saved(row: &Row, facts: RowFacts<'_>, address: u64) -> Option<Step> {
    if facts.signal || facts.return_register != number::RA {
        return None;
    }
    let (base, offset) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => (register.0, *offset),
        CfaRule::Expression(expression) => (
            number::RSP,
            plt_offset(facts.expression(expression)?, address)?,
        ),
    };
    let mut places = [SAME; PLACES.len()];
    let mut has_return_address = false;
    for (register, rule) in row.registers() {
        let place = PLACES.iter().position(|number| *number == register.0);
        match (place, rule) {
            (Some(place), RegisterRule::Offset(at)) => {
                let in_words = (at % 8 == 0).then_some(at / 8)?;
                places[place] = i16::try_from(in_words).ok().filter(|&at| at != SAME)?;
                has_return_address |= register.0 == number::RA;
            }
            (Some(_), RegisterRule::SameValue) if register.0 != number::RA => {}
            (Some(_), _) => return None,
            // The stack pointer of the caller is the CFA, unless the row says otherwise.
            (None, _) if register.0 == number::RSP => return None,
            // What calls do not keep, callers do not use.
            (None, _) => {}
        }
    }
    has_return_address.then_some(Step::Saved {
        base: u8::try_from(base).ok()?,
        offset: i32::try_from(offset).ok()?,
        places,
    })
}

/// The CFA's distance from the stack pointer in a section of PLT entries as GNU linkers describe it:
/// `rsp + 8 + ((rip & 15) >= N) * 8`, where N is behind the entry's push. The address is known here,
/// so no expression is left.
fn plt_offset(expression: Expression<Slice<'_>>, address: u64) -> Option<i64> {
    let mut rest = expression.0;
    let mut next = || Operation::parse(&mut rest, encoding()).ok();
    let Operation::RegisterOffset {
        register,
        offset: distance,
        ..
    } = next()?
    else {
        return None;
    };
    let Operation::RegisterOffset {
        register: ip,
        offset: 0,
        ..
    } = next()?
    else {
        return None;
    };
    let constant = |operation: Operation<Slice<'_>>| match operation {
        Operation::UnsignedConstant { value } => Some(value),
        _ => None,
    };
    let mask = constant(next()?)?;
    let and = next()?;
    let behind_push = constant(next()?)?;
    let compared = next()?;
    let shift = constant(next()?)?;
    let (shifted, added) = (next()?, next()?);
    let usual = (and, compared, shifted, added)
        == (
            Operation::And,
            Operation::Ge,
            Operation::Shl,
            Operation::Plus,
        );
    if !usual || register.0 != number::RSP || ip.0 != number::RA || shift != 3 || !rest.is_empty() {
        return None;
    }
    let pushed = address & mask >= behind_push;
    Some(distance + 8 * i64::from(pushed))
}

fn encoding() -> gimli::Encoding {
    gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    }
}

/// Where the return address of a frame is, by a rule of fixed distances.
pub fn return_slot(
    base: u8,
    offset: i32,
    places: &[i16; PLACES.len()],
    registers: &Registers,
) -> Option<u64> {
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
    let base = registers
        .get(u16::from(base))
        .ok_or(StackEnd::NoUnwindInfo)?;
    let cfa = base.wrapping_add(i64::from(offset) as u64);
    let at = |place: i16| cfa.wrapping_add((i64::from(place) * 8) as u64);
    let mut caller = registers.after_return(stack.read(at(places[0]))?, cfa);
    for (&number, &place) in PLACES.iter().zip(places).skip(1) {
        if place == SAME {
            continue;
        }
        // A register that cannot be read is missed only by a frame that is found through it.
        match stack.read(at(place)) {
            Ok(value) => caller.set(number, value),
            Err(_) => caller.forget(number),
        }
    }
    Ok(caller)
}

/// The caller's registers as a row says, whatever it says.
///
/// # Errors
/// How the stack ends when memory cannot be read or the row makes no sense.
pub fn step_computed(
    row: &Row,
    facts: RowFacts<'_>,
    registers: &Registers,
    stack: &StackCopy<'_>,
) -> Result<Registers, StackEnd> {
    let no_sense = StackEnd::NoUnwindInfo;
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => registers
            .get(register.0)
            .ok_or(no_sense)?
            .wrapping_add(*offset as u64),
        CfaRule::Expression(expression) => {
            let expression = facts.expression(expression).ok_or(no_sense)?;
            evaluate(expression, None, registers, stack)?
        }
    };
    let expression = |expression: &gimli::UnwindExpression<usize>| {
        let expression = facts.expression(expression).ok_or(no_sense)?;
        evaluate(expression, Some(cfa), registers, stack)
    };
    let value = |rule: &RegisterRule<usize>, own: u16| match rule {
        RegisterRule::Offset(offset) => stack.read(cfa.wrapping_add(*offset as u64)),
        RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add(*offset as u64)),
        RegisterRule::Expression(place) => stack.read(expression(place)?),
        RegisterRule::ValExpression(value) => expression(value),
        RegisterRule::Register(other) => registers.get(other.0).ok_or(no_sense),
        RegisterRule::SameValue => registers.get(own).ok_or(no_sense),
        RegisterRule::Constant(value) => Ok(*value),
        _ => Err(no_sense),
    };
    let returns = row
        .register(gimli::Register(facts.return_register))
        .ok_or(no_sense)?;
    let ip = value(&returns, facts.return_register)?;
    let mut caller = registers.after_return(ip, cfa);
    for (register, rule) in row.registers() {
        if register.0 == facts.return_register || register.0 > number::RA {
            continue;
        }
        match value(rule, register.0) {
            Ok(value) => caller.set(register.0, value),
            Err(_) if register.0 == number::RSP => return Err(no_sense),
            Err(_) => caller.forget(register.0),
        }
    }
    Ok(caller)
}
