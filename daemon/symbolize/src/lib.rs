//! Names frames: (file, offset) and kernel addresses become functions of the recorder's dictionary.
//!
//! Input: per batch and file, the distinct offsets; output: one or more frames each, leaf first.
//! Nothing here is an error: an address without a name becomes a frame called `[module]` with the
//! reason. Everything runs on the symbolizer's thread, may block on file systems, and is bounded by
//! [`SymbolOptions::cache_bytes`]; [`files`] opens files on its own thread.
//!
//! Symbols are read by our own reader ([`elf`]) into tables of 20 bytes a function: an address with
//! a known frame costs 20 to 70 ns (5,000 random addresses of libc, node, librustc_driver; two
//! shared CPUs, 2026-11-21), a symbol name 0.2 to 7 µs once, most of it demangling. blazesym
//! provides lines and inlined functions (`lines`). Its symbol lookup is not used for the rest
//! because it maps files into memory (truncating a mapped file, as `cp` over a library does, ends
//! the daemon with SIGBUS), follows debug links of container files in the daemon's own mount
//! namespace, and works only together with DWARF.
//!
//! Panics of the demanglers and of blazesym are caught here. So a panic hook must not end the
//! process; only a thread that ends by panic may.

pub mod budget;
pub mod contents;
pub mod counters;
pub mod debug_files;
mod debug_shape;
pub mod elf;
pub mod fetched;
mod file_names;
pub mod files;
pub mod functions;
pub mod go;
pub mod image;
pub mod inflate;
pub mod kernel;
mod lines;
pub mod mounts;
pub mod open;
mod places;
pub mod starts;
pub use places::function_start;

#[cfg(test)]
mod tests;

use budget::{Over, Purpose};
use contents::ContentId;
pub use counters::SymbolCounters;
use counters::{add, bump};
use fetched::FetchedFiles;
use file_names::FileNames;
use files::{FileIdentity, FileStore, Found};
use hashbrown::HashMap;
use host::bounds::CacheBounds;
use host::ids::{FileId, FileOffset};
use host::time::{MonotonicTime, thread_cpu};
pub use kernel::KernelSymbols;
use profile::{Dictionary, FrameId, FrameKind, FrameRef, UnnamedReason, names};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Shortest time between two readings of the kernel's symbols. A reading takes about 50 ms of CPU.
/// Doubles, up to [`KERNEL_REREAD_MAX`], while readings bring no new name.
const KERNEL_REREAD_MIN: Duration = Duration::from_secs(60);

/// Longest time between two readings while there are addresses without a name.
const KERNEL_REREAD_MAX: Duration = Duration::from_secs(3600);

/// CPU time since the start of a batch of a capture after which no more files are read or searched
/// for debug information for it. The continuous profile's batch waits that long, plus the time of
/// work that was already started: reading a file, reading its debug information and searching that
/// may take [`budget::FILE_CPU_MAX`] each and a call into the library. Its window is then late but
/// complete. Places in files read before get function names; those in others have no name in that
/// batch. If it is too small, captures of hosts where much runs have fewer lines, and fewer names
/// at first.
const LINES_CPU_MAX: Duration = Duration::from_secs(1);

/// How to name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolOptions {
    /// Add source file and line where the debug information has them.
    pub lines: bool,
    /// Show functions that were inlined as frames of their own.
    pub inlined_frames: bool,
    /// Do both for programs in Go, from their own tables alone, with the first lines of functions.
    pub go_lines: bool,
    /// Where separate debug files are, in the daemon's own mount namespace.
    pub debug_dirs: Vec<PathBuf>,
    /// Most memory for symbols of files, in bytes; the longest unused files go first. Too small and
    /// symbol tables are read again for every batch.
    pub cache_bytes: usize,
}

impl Default for SymbolOptions {
    fn default() -> Self {
        SymbolOptions {
            lines: false,
            inlined_frames: false,
            go_lines: false,
            debug_dirs: vec![PathBuf::from("/usr/lib/debug")],
            cache_bytes: 24 << 20,
        }
    }
}

/// The frames of one address: `len` (at least one) from `first` in [`Named::frames`], leaf first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    /// Index of the leaf frame.
    pub first: u32,
    /// Number of frames.
    pub len: u32,
}

/// Frames of a list of addresses. Reused: cleared by its owner, filled by appending.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// One per address, in the order requested.
    pub spans: Vec<FrameSpan>,
    /// Frames of all spans.
    pub frames: Vec<FrameId>,
}

impl Named {
    /// Empties it, keeping the buffers.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.frames.clear();
    }

    /// The frames of the address asked for at `index`, leaf first.
    pub fn frames_of(&self, index: usize) -> &[FrameId] {
        let span = self.spans[index];
        &self.frames[span.first as usize..][..span.len as usize]
    }

    /// Appends the frames of the next address.
    pub fn push(&mut self, frames: &[FrameId]) {
        self.spans.push(FrameSpan {
            first: self.frames.len() as u32,
            len: frames.len() as u32,
        });
        self.frames.extend_from_slice(frames);
    }
}

/// The symbolizer. Built and used on one thread.
pub struct Symbolizer {
    options: SymbolOptions,
    store: Arc<FileStore>,
    counters: Arc<SymbolCounters>,
    files: HashMap<ContentId, FileNames>,
    /// Sum of what `files` hold.
    bytes: usize,
    clock: u64,
    kernel: Kernel,
    bounds: Option<Arc<CacheBounds>>,
    /// Debug files of servers; none: no server is asked.
    fetched: Option<Arc<FetchedFiles>>,
    purpose: Purpose,
    /// Frames say which instruction they are at.
    instructions: bool,
    /// CPU time of this thread from which on no files are read any more, nor debug information
    /// looked through; none: they always are.
    lines_until: Option<Duration>,
}

impl Symbolizer {
    /// Counters of naming.
    pub fn counters(&self) -> &Arc<SymbolCounters> {
        &self.counters
    }

    /// A symbolizer over the files of `store`.
    pub fn new(
        options: SymbolOptions,
        store: Arc<FileStore>,
        counters: Arc<SymbolCounters>,
    ) -> Symbolizer {
        let (files, kernel) = (HashMap::new(), Kernel::default());
        Symbolizer {
            options,
            store,
            counters,
            files,
            bytes: 0,
            clock: 0,
            kernel,
            bounds: None,
            fetched: None,
            purpose: Purpose::Profile,
            instructions: false,
            lines_until: None,
        }
    }

    /// Another over the same files, with lines and inlined functions, for captures: what it reads
    /// is within bounds of its own, and costs this one neither memory nor time.
    pub fn with_lines(&self, cache_bytes: usize) -> Symbolizer {
        let options = SymbolOptions {
            lines: true,
            inlined_frames: true,
            go_lines: true,
            cache_bytes,
            ..self.options.clone()
        };
        let (store, counters) = (Arc::clone(&self.store), Arc::clone(&self.counters));
        let mut other = Symbolizer::new(options, store, counters).fetching(self.fetched.clone());
        if let Some(symbols) = &self.kernel.symbols {
            other.kernel.take(Arc::clone(symbols));
        }
        other.purpose = Purpose::Captures;
        other
    }

    /// Starts a batch of a capture: files are read and debug information is looked through for a
    /// while from now on, and frames of files say which instruction they are at, or do not.
    pub fn start_capture(&mut self, instructions: bool) {
        self.instructions = instructions;
        self.lines_until = Some(thread_cpu() + LINES_CPU_MAX);
    }

    /// Requests debug files for builds without symbols from servers. The directory in which they
    /// are stored must be one of [`SymbolOptions::debug_dirs`].
    pub fn fetching(mut self, fetched: Option<Arc<FetchedFiles>>) -> Symbolizer {
        self.fetched = fetched;
        self
    }

    /// Names places of one file: appends one span for each of `offsets`.
    pub fn file(
        &mut self,
        id: FileId,
        offsets: &[FileOffset],
        dict: &mut Dictionary,
        out: &mut Named,
    ) {
        if offsets.is_empty() {
            return;
        }
        self.clock += 1;
        let limit = match &self.bounds {
            Some(bounds) => bounds.symbols(),
            None => self.options.cache_bytes,
        };
        let found = self.store.get(id);
        let Some(content) = found.content else {
            // It was never opened.
            let reason = found.image.as_ref().err().copied();
            let reason = reason.unwrap_or(UnnamedReason::FileUnreadable);
            return self.no_names(&found, reason, offsets, dict, out);
        };
        self.ask_for_symbols(content);
        if !self.files.contains_key(&content) {
            let read = match self.has_time() {
                true => self.read(&found),
                false => Err(UnnamedReason::OverBudget),
            };
            match read {
                Ok(names) => self.files.insert(content, names),
                Err(reason) => return self.no_names(&found, reason, offsets, dict, out),
            };
        }
        let has_time = self.has_time();
        let Some(names) = self.files.get_mut(&content) else {
            unreachable!("it was kept");
        };
        names.used = self.clock;
        let image = found.image.as_ref().ok();
        // Looking through debug information is charged to the owner of the file, as reading it is.
        let budget = names.to_look_through(image, offsets);
        let budget = budget.filter(|_| has_time);
        let budget = budget.and_then(|image| self.store.budget_for(image, self.purpose));
        let lines = budget.is_some();
        let bytes = lines.then(|| {
            names.find_go_lines(image, offsets, dict, &self.counters);
            names.bytes_to_read(image, offsets, limit, &self.counters)
        });
        if let Some(bytes @ 1..) = bytes {
            self.evict(limit.saturating_sub(bytes), Some(content));
        }
        let Some(names) = self.files.get_mut(&content) else {
            unreachable!("it was kept");
        };
        let first = out.spans.len();
        names.name(image, offsets, bytes, dict, out, &self.counters);
        if self.instructions {
            names.tell_instructions(offsets, first, dict, out);
        }
        drop(budget);
        let now = names.heap_bytes();
        self.bytes = (self.bytes + now).saturating_sub(std::mem::replace(&mut names.counted, now));
        self.evict(limit, None);
    }

    /// The time of a batch is not used up.
    fn has_time(&self) -> bool {
        self.lines_until.is_none_or(|until| thread_cpu() < until)
    }

    /// Requests the debug file of a file without symbols, and reads the file again once the debug
    /// file has arrived or was removed, because a removed file takes room as long as it is open.
    fn ask_for_symbols(&mut self, content: ContentId) {
        let (Some(fetched), Some(names)) = (&self.fetched, self.files.get(&content)) else {
            return;
        };
        let read_again = match (names.build_id(), names.lacks_symbols) {
            (Some(build_id), true) => fetched.want(build_id),
            (Some(build_id), false) => names.has_fetched && !fetched.has(build_id),
            (None, _) => false,
        };
        if read_again {
            let gone = self.files.remove(&content).map_or(0, |names| names.counted);
            self.bytes = self.bytes.saturating_sub(gone);
        }
    }

    /// Reads the names of a file.
    ///
    /// # Errors
    /// Why it has none now. One that is put off is asked for again with its next samples.
    fn read(&self, found: &Found) -> Result<FileNames, UnnamedReason> {
        let image = found.image.as_ref().map_err(|reason| *reason)?;
        let budget = self.store.budget_for(image, self.purpose);
        let budget = budget.ok_or(UnnamedReason::OverBudget)?;
        let mut names = FileNames::read(image, found, &self.options, &budget, &self.counters);
        if let (Some(fetched), Some(build_id)) = (&self.fetched, names.build_id())
            && fetched.has(build_id)
        {
            fetched.used(build_id);
            (names.lacks_symbols, names.has_fetched) = (false, true);
        }
        if budget.over() == Some(Over::Later) {
            self.store.count_put_off();
            return Err(UnnamedReason::OverBudget);
        }
        Ok(names)
    }

    /// Gives all places of a file one frame that says why they have no name.
    fn no_names(
        &self,
        found: &Found,
        reason: UnnamedReason,
        offsets: &[FileOffset],
        dict: &mut Dictionary,
        out: &mut Named,
    ) {
        let module = module_name(&found.path, &found.identity);
        let frame = unnamed(dict, FrameKind::Native, &module, reason);
        offsets.iter().for_each(|_| out.push(&[frame]));
        add(&self.counters.addresses_unnamed, offsets.len() as u64);
    }

    /// Frees memory down to the limit, least recently used files first: debug information first,
    /// which is large and not needed for places already named, then complete files except `kept`.
    fn evict(&mut self, limit: usize, kept: Option<ContentId>) {
        while self.bytes > limit {
            let with_lines = self.files.values_mut().filter(|names| names.has_lines());
            if let Some(names) = with_lines.min_by_key(|names| names.used) {
                names.drop_lines();
                let before = names.counted;
                names.counted = names.heap_bytes();
                self.bytes = (self.bytes + names.counted).saturating_sub(before);
                continue;
            }
            let others = self.files.iter().filter(|(id, _)| Some(**id) != kept);
            let oldest = others.min_by_key(|(_, names)| names.used);
            let oldest = oldest.map(|(&id, _)| id);
            let Some(names) = oldest.and_then(|id| self.files.remove(&id)) else {
                return;
            };
            self.bytes = self.bytes.saturating_sub(names.counted);
            bump(&self.counters.tables_evicted);
        }
    }

    /// Names kernel addresses: appends one span for each.
    pub fn kernel(&mut self, addresses: &[u64], dict: &mut Dictionary, out: &mut Named) {
        if addresses.is_empty() {
            return;
        }
        self.kernel.refresh(&self.counters);
        for &address in addresses {
            let frame = self.kernel.name(address, dict, &self.counters);
            out.push(&[frame]);
        }
    }

    /// Reports that the kernel's symbols changed: a module or BPF program came or went. They are
    /// read again before the next kernel address, but at most once a minute.
    pub fn kernel_changed(&mut self) {
        self.kernel.stale = true;
        self.kernel.wait = KERNEL_REREAD_MIN;
    }

    /// Sets a table that was already read, to avoid reading it twice at start.
    pub fn set_kernel_symbols(&mut self, symbols: KernelSymbols) {
        self.kernel.take(Arc::new(symbols));
    }

    /// Keeps to a limit that may change, in place of [`SymbolOptions::cache_bytes`].
    pub fn follow(&mut self, bounds: Arc<CacheBounds>) {
        self.bounds = Some(bounds);
    }

    /// Drops every frame id held: the dictionary they are of is no more.
    pub fn forget_frames(&mut self) {
        self.files.values_mut().for_each(FileNames::forget_frames);
        self.kernel.frames.clear();
        self.kernel.no_name = None;
    }

    /// Memory held for symbols and debug information of files, in bytes.
    pub fn files_bytes(&self) -> usize {
        self.bytes
    }

    /// Memory held for symbols of files and of the kernel, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes
            + self
                .kernel
                .symbols
                .as_ref()
                .map_or(0, |symbols| symbols.heap_bytes())
    }
}

const NO_FRAME: FrameId = FrameId(u32::MAX);

/// The kernel's symbols and the frames made of them.
struct Kernel {
    symbols: Option<Arc<KernelSymbols>>,
    /// A frame for each symbol, [`NO_FRAME`] until asked for.
    frames: Vec<FrameId>,
    no_name: Option<FrameId>,
    read_at: MonotonicTime,
    wait: Duration,
    /// True when the table should be read again.
    stale: bool,
}

impl Default for Kernel {
    fn default() -> Self {
        Kernel {
            symbols: None,
            frames: Vec::new(),
            no_name: None,
            read_at: MonotonicTime::default(),
            wait: KERNEL_REREAD_MIN,
            stale: false,
        }
    }
}

impl Kernel {
    fn refresh(&mut self, counters: &SymbolCounters) {
        let due = self.symbols.is_none()
            || self.stale && MonotonicTime::now().since(self.read_at) >= self.wait;
        if !due {
            return;
        }
        bump(&counters.kernel_reads);
        let before = self.symbols.as_ref().map(|symbols| symbols.len());
        // Unreadable is the same as hidden: there are no names.
        let symbols = KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none());
        self.wait = match before == Some(symbols.len()) {
            true => (self.wait * 2).min(KERNEL_REREAD_MAX),
            false => KERNEL_REREAD_MIN,
        };
        self.take(Arc::new(symbols));
    }

    fn take(&mut self, symbols: Arc<KernelSymbols>) {
        self.symbols = Some(symbols);
        self.frames.clear();
        self.no_name = None;
        self.read_at = MonotonicTime::now();
        self.stale = false;
    }

    fn name(&mut self, address: u64, dict: &mut Dictionary, counters: &SymbolCounters) -> FrameId {
        let found = self
            .symbols
            .as_ref()
            .and_then(|symbols| symbols.find(address));
        let Some(symbol) = found else {
            let hidden = self.symbols.as_ref().is_none_or(|symbols| symbols.hidden());
            self.stale |= !hidden;
            bump(&counters.addresses_unnamed);
            return *self.no_name.get_or_insert_with(|| {
                let reason = if hidden {
                    UnnamedReason::KernelHidden
                } else {
                    UnnamedReason::NotInKallsyms
                };
                unnamed(dict, FrameKind::Kernel, "[kernel]", reason)
            });
        };
        let index = symbol.index as usize;
        if self.frames.len() <= index {
            let len = self.symbols.as_ref().map_or(0, |symbols| symbols.len());
            self.frames.resize(len.max(index + 1), NO_FRAME);
        }
        if self.frames[index] == NO_FRAME {
            bump(&counters.names_read);
            self.frames[index] = dict.intern_frame(FrameRef {
                kind: FrameKind::Kernel,
                function: symbol.name,
                module: symbol.module,
                ..FrameRef::default()
            });
        }
        bump(&counters.addresses_named);
        self.frames[index]
    }
}

/// The placeholder for code without a symbol: a frame called `[module]`, with the reason.
pub fn unnamed(
    dict: &mut Dictionary,
    kind: FrameKind,
    module: &str,
    reason: UnnamedReason,
) -> FrameId {
    unnamed_at(dict, kind, (module, reason), "")
}

/// The same for the function at a place.
fn unnamed_at(
    dict: &mut Dictionary,
    kind: FrameKind,
    (module, reason): (&str, UnnamedReason),
    place: &str,
) -> FrameId {
    let bracketed;
    let function = match module {
        "" => "[unknown]",
        _ if module.starts_with('[') => module,
        _ => {
            bracketed = format!("[{module}]");
            &bracketed
        }
    };
    dict.intern_frame(FrameRef {
        kind,
        unnamed: reason,
        function,
        system_name: place,
        module,
        ..FrameRef::default()
    })
}

/// How a file is called in frames: the last part of its path, `[vdso]` for the kernel's.
pub fn module_name(path: &[u8], identity: &FileIdentity) -> String {
    match identity {
        FileIdentity::Vdso => "[vdso]".to_owned(),
        _ => names::capped_bytes(open::base_name(path)),
    }
}
