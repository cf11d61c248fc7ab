//! Rules for entries of a procedure linkage table: how to unwind depends on the address.

use super::{PLACES, Rule, Step};
use crate::info::section::Slice;
use crate::info::state::number;
use gimli::{Expression, Operation};

/// How entries of a procedure linkage table are left, as GNU linkers describe it: the CFA is
/// `rsp + distance + ((rip & mask) >= behind_push) * 8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linkage {
    distance: i32,
    mask: u64,
    behind_push: u64,
    places: [i16; PLACES.len()],
}

impl Linkage {
    pub(super) fn rule(&self, address: u64) -> Rule {
        let pushed = i32::from(address & self.mask >= self.behind_push);
        let step = Step::Saved {
            base: number::SP as u8,
            offset: self.distance.saturating_add(8 * pushed),
            places: self.places,
        };
        Rule {
            step,
            ..Rule::UNKNOWN
        }
    }
}

/// Evaluates the expression in a section of PLT entries. Its address is known where it is used, so
/// no expression is left.
pub(super) fn linkage(
    expression: Expression<Slice<'_>>,
    places: [i16; PLACES.len()],
) -> Option<Linkage> {
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
    if !usual || register.0 != number::SP || ip.0 != number::RA || shift != 3 || !rest.is_empty() {
        return None;
    }
    Some(Linkage {
        distance: i32::try_from(distance).ok()?,
        mask,
        behind_push,
        places,
    })
}

fn encoding() -> gimli::Encoding {
    gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 4,
    }
}
