//! Measures how many derived rows are right, by comparison with the unwind information of a file.
//!
//! For benches and tests only; the daemon compares nothing while it runs.

use super::derive;
use super::module::Module;
use crate::arch::a64;
pub use derive::compare::Agreement;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{self, ReadAt};

/// Derives rows for the `.text` of an image as if nothing described it, and compares. `None` for
/// files that are no such image or have no unwind information.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn compare<R: ReadAt + ?Sized>(
    image: &R,
    budget: &FileBudget<'_>,
) -> Result<Option<Agreement>, Over> {
    let Ok(headers) = elf::read_headers(image) else {
        return Ok(None);
    };
    if headers.is_64 && headers.machine == a64::ELF_MACHINE {
        return derive::aarch64::compare::compare(image, &headers, budget);
    }
    let module = Module::of(image, &headers, budget)?;
    let Some(module) = module.filter(|module| module.functions() > 0) else {
        return Ok(None);
    };
    derive::compare::compare(image, &headers, |address| module.described(address), budget)
}
