//! A row of a section as it is computed from its description.

use gimli::{UnwindContextStorage, UnwindTableRow};

/// Room for rows under evaluation: 32 registers are more than code ever describes: on arm64 12
/// that calls keep, 8 of floating point, whether the return address is signed.
#[derive(Debug)]
pub(super) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(gimli::Register, gimli::RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, RowStorage>; 8]>;
}

/// A row as it is computed.
pub(super) type Row = UnwindTableRow<usize, RowStorage>;
