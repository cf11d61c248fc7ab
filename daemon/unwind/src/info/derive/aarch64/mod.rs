//! Unwind rows of arm64 code, derived from its instructions.
//!
//! It works as for x86-64, but all instructions have one length, calls leave the return address in
//! a register, and frames mostly say where they are, so less must be guessed. Compiled on every
//! architecture, so that arm64 files can be compared anywhere.

pub mod compare;
mod explore;
mod frame;
#[cfg(test)]
mod tests;

use super::EntryPoint;
use super::frame::Value;
use super::runs::{self, Derived};
use crate::arch::a64::{Flow, Word};
use crate::info::pack::build::Builder;
use crate::info::rule::{Kind, Rule};
use explore::{Code, derive};
use frame::Frame;
use symbolize::budget::Over;

/// Numbers of the registers in unwind tables (DWARF for the Arm 64-bit Architecture, 4.1).
mod number {
    /// The frame pointer.
    pub const FP: u16 = 29;
    /// The link register.
    pub const LR: u16 = 30;
    /// The stack pointer.
    pub const SP: u16 = 31;
}

/// The register of the first argument.
const FIRST_ARGUMENT: u8 = 0;

/// Adds what can be derived of a piece of code at an address; `base`: what addresses are counted
/// from. `starts_function`: a function does at its start.
pub fn add(
    builder: &mut Builder,
    (bytes, address): (&[u8], u64),
    check: &mut dyn FnMut() -> bool,
    starts_function: bool,
    base: u64,
    program: EntryPoint,
) -> Result<(), Over> {
    let Some(Ok(start)) = address.checked_sub(base).map(u32::try_from) else {
        return Ok(());
    };
    let Some(code) = Code::new(bytes, address, check) else {
        return Ok(());
    };
    let first = starts_function.then(|| code.padding_end(0));
    let entry = code.place(program.entry).filter(|_| program.entry != 0);
    let main = program.main.and_then(|main| code.place(main));
    let entries: Vec<u32> = first.into_iter().chain(main).collect();
    let Derived { runs, frames } = derive(code, entry, &entries);
    let mut kinds = Vec::with_capacity(frames.len());
    for frame in &frames {
        kinds.push(builder.number(kind(frame))?);
    }
    runs::add(builder, runs.into_iter(), &kinds, start);
    Ok(())
}

/// The address that code has in the register of the first argument when it first calls something.
pub fn first_argument(bytes: &[u8], address: u64) -> Option<u64> {
    let mut check = || true;
    let code = Code::new(bytes, address, &mut check)?;
    let calls = |at: &u32| matches!(code.word(*at).map(Word::flow), Some(Flow::Call(_)));
    let call = (0..)
        .take_while(|&at| code.word(at).is_some())
        .find(calls)?;
    let before = code.addresses().take_while(|&(at, ..)| at < call);
    let arguments = before.filter(|&(_, register, _)| register == FIRST_ARGUMENT);
    arguments.last().map(|(.., address)| address)
}

/// True where a frame leads to the caller's, with its frame pointer: with another one its own
/// caller would be found at a wrong place.
fn leads_on(frame: &Frame) -> bool {
    frame.is_followed() && ![frame.returns(), frame.frame_pointer()].contains(&Value::Lost)
}

/// The kind of row for a frame.
fn kind(frame: &Frame) -> Kind {
    if frame.outermost {
        return Kind::Rule(Rule::OUTERMOST);
    }
    if !leads_on(frame) {
        return Kind::Nothing;
    }
    let base = match (frame.sp, frame.fp) {
        (Some(sp), _) => Some((number::SP, sp)),
        (None, fp) => fp.map(|fp| (number::FP, fp)),
    };
    let returns = match frame.returns() {
        Value::At(below) => Some(-below),
        Value::Same | Value::Lost => None,
    };
    let saved = frame.saved().filter_map(|(register, value)| match value {
        Value::At(below) if register != number::LR => Some((register, -below)),
        _ => None,
    });
    let rule = base.and_then(|base| Rule::derived(base, returns, saved));
    rule.map_or(Kind::Nothing, Kind::Rule)
}
