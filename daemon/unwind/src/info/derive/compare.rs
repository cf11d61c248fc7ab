//! How right rows derived from instructions of x86-64 are, and the counts of that for both
//! architectures.

use super::code::Code;
use super::explore::derive;
use super::frame::{Frame, Value};
use super::runs::Derived;
use super::{PIECE_BYTES_MAX, held_for, kind, number_of};
use crate::arch::psabi as number;
use crate::info::rule::{Kind, Rule, Step};
use std::ops::AddAssign;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{Headers, ReadAt, Section};

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

/// Derives rows for the `.text` of an image of x86-64, and compares them with the rules that are
/// `described`. `None` for files without it.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn compare<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    described: impl Fn(u64) -> Option<Rule>,
    budget: &FileBudget<'_>,
) -> Result<Option<Agreement>, Over> {
    let Some(text) = headers.section(b".text") else {
        return Ok(None);
    };
    each_piece(image, text, budget, |bytes, address| {
        let mut check = || budget.check().is_ok();
        let code = Code::new(bytes, address, &mut check);
        let entry = code.place(headers.entry);
        let derived = derive(code, entry, &[])?;
        Some(judge(&described, (bytes, address), &derived))
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

fn judge(
    described: impl Fn(u64) -> Option<Rule>,
    (bytes, address): (&[u8], u64),
    derived: &Derived<Frame>,
) -> Agreement {
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
        if let Some(rule) = described(address + u64::from(at)) {
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
