//! Measures how many derived rows are right, by comparison with the unwind information of a file.
//!
//! For benches and tests only; the daemon compares nothing while it runs.

use super::code::Code;
use super::explore::derive;
use super::frame::{Frame, Value};
use super::runs::Derived;
use super::{PIECE_BYTES_MAX, aarch64, held_for, kind, number_of};
use crate::arch::{a64, psabi as number};
use crate::info::module::Module;
use crate::info::rule::{Kind, Rule, Step};
use std::ops::AddAssign;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{self, ReadAt, Section};

/// Counts of instruction bytes that the unwind information of files describes; what fills up
/// between instructions apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// All of them.
    pub described: u64,
    /// Instructions that also have a derived row.
    pub derived: u64,
    /// Instructions with rows that find the same return address.
    pub right: u64,
    /// Instructions with rows that find another one.
    pub wrong: u64,
    /// Rows that are right except for the place of the caller's frame pointer.
    pub wrong_frame_pointer: u64,
}

impl AddAssign for Agreement {
    fn add_assign(&mut self, other: Agreement) {
        self.described += other.described;
        self.derived += other.derived;
        self.right += other.right;
        self.wrong += other.wrong;
        self.wrong_frame_pointer += other.wrong_frame_pointer;
    }
}

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
        return aarch64::compare::compare(image, &headers, budget);
    }
    let (Some(module), Some(text)) = (
        Module::of(image, &headers, budget)?,
        headers.section(b".text"),
    ) else {
        return Ok(None);
    };
    if module.functions() == 0 {
        return Ok(None);
    }
    each_piece(image, text, budget, |bytes, address| {
        let mut check = || budget.check().is_ok();
        let code = Code::new(bytes, address, &mut check);
        let entry = code.place(headers.entry);
        let derived = derive(code, entry, &[])?;
        Some(judge(&module, (bytes, address), &derived))
    })
}

/// Sums what `each` says of the pieces of a section, by their bytes and address. `None` when it
/// says nothing of one.
pub(super) fn each_piece<R: ReadAt + ?Sized>(
    image: &R,
    text: &Section,
    budget: &FileBudget<'_>,
    mut each: impl FnMut(&[u8], u64) -> Option<Agreement>,
) -> Result<Option<Agreement>, Over> {
    let mut counts = Agreement::default();
    let mut at = 0;
    while at < text.size {
        let mut bytes = vec![0; (text.size - at).min(PIECE_BYTES_MAX) as usize];
        budget.reads(bytes.len())?;
        let _held = budget.charge(held_for(bytes.len()))?;
        if image.read_exact_at(&mut bytes, text.offset + at).is_err() {
            return Ok(None);
        }
        let agreement = each(&bytes, text.address + at);
        budget.check()?;
        let Some(agreement) = agreement else {
            return Ok(None);
        };
        counts += agreement;
        at += bytes.len() as u64;
    }
    Ok(Some(counts))
}

fn judge(module: &Module, (bytes, address): (&[u8], u64), derived: &Derived<Frame>) -> Agreement {
    let mut forever = || true;
    let mut code = Code::new(bytes, address, &mut forever);
    let mut counts = Agreement::default();
    let mut instruction = iced_x86::Instruction::default();
    let mut runs = derived.runs.iter().peekable();
    let mut at = 0;
    while at < code.len() {
        while runs.next_if(|run| run.end <= at).is_some() {}
        let frame = runs.peek().filter(|run| run.start <= at);
        let frame = frame.map(|run| &derived.frames[usize::from(run.frame)]);
        if frame.is_none() {
            let end = code.padding_end(at).unwrap_or(at);
            if end > at {
                at = end;
                continue;
            }
        }
        let len = match code.decode(at, &mut instruction) {
            Some(true) => instruction.len() as u32,
            Some(false) => 1,
            None => break,
        };
        if let Some(rule) = module.described(address + u64::from(at)) {
            counts += judge_one(rule, frame, len.into());
        }
        at += len;
    }
    counts
}

fn judge_one(rule: Rule, frame: Option<&Frame>, bytes: u64) -> Agreement {
    let mut counts = Agreement {
        described: bytes,
        ..Agreement::default()
    };
    let Some(frame) = frame.filter(|frame| kind(frame) != Kind::Nothing) else {
        return counts;
    };
    counts.derived = bytes;
    if frame.outermost || rule.step == Step::Outermost {
        match frame.outermost && rule.step == Step::Outermost {
            true => counts.right = bytes,
            false => counts.wrong = bytes,
        }
        return counts;
    }
    let Some((base, distance, saved_at)) = rule.distances() else {
        return counts;
    };
    let own = match base {
        number::RSP => frame.sp,
        number::RBP => frame.fp,
        _ => frame.other.and_then(|(register, distance)| {
            (number_of(register) == Some(base)).then_some(distance)
        }),
    };
    match own {
        None => {}
        Some(own) if own != distance => counts.wrong = bytes,
        Some(_) => {
            counts.right = bytes;
            let own = frame
                .saved()
                .into_iter()
                .find(|(register, _)| *register == number::RBP);
            let popped = |at: i32| frame.sp.is_some_and(|sp| sp < at);
            let same = match (own.map(|(_, value)| value), saved_at) {
                (Some(Value::At(own)), Some(at)) => own == at,
                // Compilers do not say that it was read back.
                (Some(Value::Same), Some(at)) => popped(at),
                (Some(Value::Same), None) => true,
                _ => false,
            };
            counts.wrong_frame_pointer = if same { 0 } else { bytes };
        }
    }
    counts
}
