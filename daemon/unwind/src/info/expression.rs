//! Evaluates the DWARF expressions of unwind tables: signal frames, realigned stacks, PLT entries.
//!
//! Bounded in operations and stack, without allocation; reads memory only from the copy of the
//! stack. Expressions come from untrusted files: one that makes no sense ends the stack with
//! [`StackEnd::NoUnwindInfo`].

use super::section::Slice;
use super::state::{Registers, StackCopy};
use gimli::{Encoding, Expression, Format, Operation};
use profile::StackEnd;
use std::cell::Cell;

/// Deepest stack of an expression. Those of compilers and C libraries need three or four.
const DEPTH_MAX: usize = 16;

/// Most operations of one evaluation: bounds loops. The longest known has fifteen.
const OPERATIONS_MAX: usize = 128;

const ENCODING: Encoding = Encoding {
    address_size: 8,
    format: Format::Dwarf32,
    version: 4,
};

#[derive(Default)]
struct Values {
    values: [u64; DEPTH_MAX],
    depth: usize,
}

impl Values {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.depth)? = value;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.values[self.depth])
    }

    fn pick(&self, from_top: usize) -> Option<u64> {
        let at = self.depth.checked_sub(from_top + 1)?;
        Some(self.values[at])
    }
}

/// Evaluates `expression` with `first` on the stack, where there is one: the CFA, for register
/// rules. Each operation is one less in `left`, what the walk may still do.
///
/// # Errors
/// [`StackEnd::NoUnwindInfo`] for what cannot be evaluated, [`StackEnd::WorkLimit`] when nothing is
/// left, or what reading the stack gave.
pub fn evaluate(
    expression: Expression<Slice<'_>>,
    first: Option<u64>,
    registers: &Registers,
    stack: &StackCopy<'_>,
    left: &Cell<u32>,
) -> Result<u64, StackEnd> {
    let mut values = Values::default();
    if let Some(first) = first {
        values.push(first).ok_or(StackEnd::NoUnwindInfo)?;
    }
    let (mut rest, whole) = (expression.0, expression.0);
    for _ in 0..OPERATIONS_MAX {
        if rest.is_empty() {
            return values.pop().ok_or(StackEnd::NoUnwindInfo);
        }
        left.set(left.get().checked_sub(1).ok_or(StackEnd::WorkLimit)?);
        let operation =
            Operation::parse(&mut rest, ENCODING).map_err(|_| StackEnd::NoUnwindInfo)?;
        match operation {
            Operation::Skip { target } => rest = jump(whole, rest, target)?,
            Operation::Bra { target } => {
                if values.pop().ok_or(StackEnd::NoUnwindInfo)? != 0 {
                    rest = jump(whole, rest, target)?;
                }
            }
            Operation::Deref {
                size: 8,
                space: false,
                ..
            } => {
                let address = values.pop().ok_or(StackEnd::NoUnwindInfo)?;
                values
                    .push(stack.read(address)?)
                    .ok_or(StackEnd::NoUnwindInfo)?;
            }
            other => step(&other, &mut values, registers).ok_or(StackEnd::NoUnwindInfo)?,
        }
    }
    Err(StackEnd::NoUnwindInfo)
}

fn jump<'a>(whole: Slice<'a>, rest: Slice<'a>, target: i16) -> Result<Slice<'a>, StackEnd> {
    let at = whole.len() as i64 - rest.len() as i64 + i64::from(target);
    let at = usize::try_from(at).map_err(|_| StackEnd::NoUnwindInfo)?;
    let bytes = whole.slice().get(at..).ok_or(StackEnd::NoUnwindInfo)?;
    Ok(Slice::new(bytes, gimli::LittleEndian))
}

/// One operation that neither jumps nor reads memory. `None` when it cannot be.
fn step(
    operation: &Operation<Slice<'_>>,
    values: &mut Values,
    registers: &Registers,
) -> Option<()> {
    let value = match *operation {
        Operation::Nop => return Some(()),
        Operation::Drop => {
            values.pop()?;
            return Some(());
        }
        Operation::Swap => {
            let (top, below) = (values.pop()?, values.pop()?);
            values.push(top)?;
            below
        }
        Operation::Rot => {
            let (first, second, third) = (values.pop()?, values.pop()?, values.pop()?);
            values.push(first)?;
            values.push(third)?;
            second
        }
        Operation::Pick { index } => values.pick(usize::from(index))?,
        Operation::UnsignedConstant { value } => value,
        Operation::SignedConstant { value } => value as u64,
        Operation::RegisterOffset {
            register, offset, ..
        } => registers.get(register.0)?.wrapping_add(offset as u64),
        Operation::PlusConstant { value } => values.pop()?.wrapping_add(value),
        Operation::Abs => (values.pop()? as i64).wrapping_abs() as u64,
        Operation::Neg => values.pop()?.wrapping_neg(),
        Operation::Not => !values.pop()?,
        ref two => {
            let (right, left) = (values.pop()?, values.pop()?);
            of_two(two, left, right)?
        }
    };
    values.push(value)
}

fn of_two(operation: &Operation<Slice<'_>>, left: u64, right: u64) -> Option<u64> {
    let (signed_left, signed_right) = (left as i64, right as i64);
    // A shift by the width or more leaves nothing, or the sign.
    let bits = u32::try_from(right).unwrap_or(u32::MAX);
    Some(match operation {
        Operation::And => left & right,
        Operation::Or => left | right,
        Operation::Xor => left ^ right,
        Operation::Plus => left.wrapping_add(right),
        Operation::Minus => left.wrapping_sub(right),
        Operation::Mul => left.wrapping_mul(right),
        Operation::Div => signed_left.checked_div(signed_right)? as u64,
        Operation::Mod => left.checked_rem(right)?,
        Operation::Shl => left.checked_shl(bits).unwrap_or(0),
        Operation::Shr => left.checked_shr(bits).unwrap_or(0),
        Operation::Shra => (signed_left >> bits.min(63)) as u64,
        Operation::Eq => u64::from(left == right),
        Operation::Ne => u64::from(left != right),
        Operation::Ge => u64::from(signed_left >= signed_right),
        Operation::Gt => u64::from(signed_left > signed_right),
        Operation::Le => u64::from(signed_left <= signed_right),
        Operation::Lt => u64::from(signed_left < signed_right),
        _ => return None,
    })
}
