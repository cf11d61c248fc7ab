//! Measures how many rows derived from arm64 instructions are right, by comparison with the unwind
//! information of a file, on any architecture.

use super::explore::{Code, WORD_BYTES, derive};
use super::frame::Frame;
use super::{Value, leads_on, number};
use crate::info::derive::compare::{Agreement, each_piece};
use crate::info::derive::runs::Derived;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, Vendor,
};
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{Headers, ReadAt};

/// What a compiler wrote of some instructions.
struct Row {
    start: u64,
    end: u64,
    outermost: bool,
    /// The register that the CFA is counted from, and its distance.
    cfa: Option<(u16, i64)>,
    returns: Value,
    frame_pointer: Value,
}

/// Derives rows for the `.text` of an image as if nothing described it, and compares. `None` for
/// files without unwind information.
///
/// # Errors
/// When that takes more than `budget` has left.
pub fn compare<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Option<Agreement>, Over> {
    let Some(text) = headers.section(b".text") else {
        return Ok(None);
    };
    let Some(rows) = rows(image, headers, budget)? else {
        return Ok(None);
    };
    each_piece(image, text, budget, |bytes, address| {
        let mut check = || budget.check().is_ok();
        let code = Code::new(bytes, address, &mut check)?;
        let entry = code.place(headers.entry).filter(|_| headers.entry != 0);
        let derived = derive(code, entry, &[]);
        Some(judge(&rows, (bytes, address), &derived))
    })
}

/// What `.eh_frame` says, in order of address.
fn rows<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Option<Vec<Row>>, Over> {
    let Some(section) = headers.section(b".eh_frame") else {
        return Ok(None);
    };
    let mut bytes = vec![0; section.size as usize];
    budget.reads(bytes.len())?;
    if image.read_exact_at(&mut bytes, section.offset).is_err() {
        return Ok(None);
    }
    let mut table = EhFrame::new(&bytes, LittleEndian);
    table.set_vendor(Vendor::AArch64);
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    let (mut rows, mut context) = (Vec::new(), UnwindContext::new());
    let mut entries = table.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(function) = partial.parse(EhFrame::cie_from_offset) else {
            continue;
        };
        let Ok(mut of_function) = function.rows(&table, &bases, &mut context) else {
            continue;
        };
        while let Ok(Some(row)) = of_function.next_row() {
            let place = |register: u16| match row.register(gimli::Register(register)) {
                Some(RegisterRule::Offset(offset)) => Value::At(-offset as i32),
                None | Some(RegisterRule::SameValue) => Value::Same,
                _ => Value::Lost,
            };
            let returns = row.register(gimli::Register(number::LR));
            rows.push(Row {
                start: row.start_address(),
                end: row.end_address(),
                outermost: matches!(returns, Some(RegisterRule::Undefined)),
                cfa: match row.cfa() {
                    CfaRule::RegisterAndOffset { register, offset } => Some((register.0, *offset)),
                    CfaRule::Expression(_) => None,
                },
                returns: place(number::LR),
                frame_pointer: place(number::FP),
            });
        }
        budget.check()?;
    }
    rows.sort_by_key(|row| row.start);
    Ok((!rows.is_empty()).then_some(rows))
}

fn judge(rows: &[Row], (bytes, address): (&[u8], u64), derived: &Derived<Frame>) -> Agreement {
    let mut forever = || true;
    let mut counts = Agreement::default();
    let Some(code) = Code::new(bytes, address, &mut forever) else {
        return counts;
    };
    let mut runs = derived.runs.iter().peekable();
    // Where the function under way had saved its return address.
    let mut saved = Value::Same;
    let mut at = 0;
    while let Some(word) = code.word(at) {
        let into = at * WORD_BYTES;
        while runs.next_if(|run| run.end <= into).is_some() {}
        let run = runs.peek().filter(|run| run.start <= into);
        let frame = run.map(|run| &derived.frames[usize::from(run.frame)]);
        saved = match (run, frame.map(Frame::returns)) {
            (Some(run), _) if run.entry && run.start == into => Value::Same,
            (_, Some(Value::At(below))) => Value::At(below),
            _ => saved,
        };
        let place = address + u64::from(into);
        let after = rows.partition_point(|row| row.start <= place);
        let row = after.checked_sub(1).map(|before| &rows[before]);
        if let Some(row) = row.filter(|row| place < row.end)
            && (frame.is_some() || !word.fills())
        {
            counts += judge_one(row, frame, saved);
        }
        at += 1;
    }
    counts
}

fn judge_one(row: &Row, frame: Option<&Frame>, saved: Value) -> Agreement {
    let bytes = u64::from(WORD_BYTES);
    let mut counts = Agreement {
        described: bytes,
        ..Agreement::default()
    };
    let Some(frame) = frame.filter(|frame| frame.outermost || leads_on(frame)) else {
        return counts;
    };
    counts.derived = bytes;
    if frame.outermost || row.outermost {
        match frame.outermost && row.outermost {
            true => counts.right = bytes,
            false => counts.wrong = bytes,
        }
        return counts;
    }
    let Some((register, distance)) = row.cfa else {
        return counts;
    };
    let own = match register {
        number::SP => frame.sp,
        number::FP => frame.fp,
        _ => None,
    };
    let Some(own) = own else {
        return counts;
    };
    // Compilers do not always say that it was read back.
    let read_back = frame.returns() == Value::Same && row.returns == saved;
    if i64::from(own) != distance || frame.returns() != row.returns && !read_back {
        counts.wrong = bytes;
        return counts;
    }
    counts.right = bytes;
    let read_back = read_back && frame.frame_pointer() == Value::Same;
    if frame.frame_pointer() != row.frame_pointer && !read_back {
        counts.wrong_frame_pointer = bytes;
    }
    counts
}
