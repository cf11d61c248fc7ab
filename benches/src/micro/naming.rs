//! The close of a window: naming a batch of addresses and recording it, the first time, when symbol
//! tables are read, and again, when every name is known.

use super::Lines;
use super::folding::{Folding, SAMPLES};
use aggregate::batch::RawBatch;
use aggregate::batch_symbolizer::BatchSymbolizer;
use aggregate::fold::Folder;
use aggregate::recorder::{Recorder, RecorderOptions};
use cgroup::CgroupTable;
use host::frame::RawFrame;
use host::ids::{Avma, FileId, FileOffset, Pid};
use host::time::MonotonicTime;
use jit::JitSymbolLookup;
use std::sync::{Arc, RwLock};
use symbolize::counters::SymbolCounters;
use symbolize::files::{self, FileIdentity, FileSeen, FileStore};
use symbolize::kernel::KernelSymbols;
use symbolize::{SymbolOptions, Symbolizer};

/// The id this program's own file goes by.
const OWN: FileId = FileId(1);
/// Length of a window. Unit: nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// This program's code: the mapping that is executable.
struct OwnCode {
    path: String,
    range: (u64, u64),
    offset: u64,
}

fn own_code() -> Option<OwnCode> {
    let exe = std::fs::read_link("/proc/self/exe").ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps
        .lines()
        .find(|line| line.contains(" r-xp ") && line.ends_with(&*exe.to_string_lossy()))?;
    let mut fields = line.split_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(OwnCode {
        path: exe.to_string_lossy().into_owned(),
        range: (hex(begin)?, hex(end)?),
        offset: hex(fields.nth(1)?)?,
    })
}

/// Addresses of kernel functions; none where they are hidden.
fn kernel_addresses() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let address = |line: &str| u64::from_str_radix(line.split(' ').next()?, 16).ok();
    let shown = text
        .lines()
        .filter_map(address)
        .filter(|&address| address != 0);
    shown.step_by(7).collect()
}

/// A symbolizer over this program's file and the kernel.
fn symbolizer(code: &OwnCode) -> BatchSymbolizer {
    let counters = Arc::new(SymbolCounters::default());
    let store = Arc::new(FileStore::new(None, Arc::clone(&counters)));
    let pid = Pid(std::process::id());
    store.see(&FileSeen {
        id: OWN,
        identity: FileIdentity::Path,
        path: code.path.as_bytes().into(),
        pid,
        range: (Avma(code.range.0), Avma(code.range.1)),
        relatives: [Pid(0); files::RELATIVES],
    });
    let options = SymbolOptions::default();
    let mut symbolizer = Symbolizer::new(options, Arc::clone(&store), counters);
    symbolizer.set_kernel_symbols(KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none()));
    BatchSymbolizer::new(
        symbolizer,
        store,
        JitSymbolLookup::closed(),
        CgroupTable::discover(),
    )
}

/// Both closes.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    let Some(code) = own_code() else {
        lines.note("naming: skipped, this program's own mapping was not found".to_owned());
        return Ok(());
    };
    let kernel = kernel_addresses();
    let size = code.range.1 - code.range.0;
    // A tenth of the functions are the kernel's; the others are spread over this program's code.
    let frame = |function: u64| match kernel.get(function as usize) {
        Some(&address) if function.is_multiple_of(10) => RawFrame::Kernel(address),
        _ => RawFrame::File(OWN, FileOffset(code.offset + function * 7919 % size)),
    };
    let folding = Folding::new(SAMPLES, frame);
    let mut window = 0;
    let mut batch = || {
        let mut folder = Folder::new(MonotonicTime(window * WINDOW_NS));
        folding.add_all(&mut folder);
        window += 1;
        folder.take(MonotonicTime(window * WINDOW_NS), true, RawBatch::default())
    };
    let rows = batch().samples.len() as u64;
    let recorder = || RwLock::new(Recorder::new(RecorderOptions::default()));
    lines.with_setup(
        "window close, new names",
        "row",
        rows,
        || (symbolizer(&code), recorder(), batch()),
        |(mut symbolizer, recorder, mut batch)| {
            symbolizer.record(&mut batch, &recorder);
            (symbolizer, recorder)
        },
    );
    let (mut symbolizer, kept) = (symbolizer(&code), recorder());
    lines.with_setup(
        "window close, known names",
        "row",
        rows,
        &mut batch,
        |mut batch| {
            symbolizer.record(&mut batch, &kept);
        },
    );
    lines.note(format!(
        "naming: a window of {SAMPLES} samples in {rows} rows; new names include reading the symbols \
         of a file"
    ));
    Ok(())
}
