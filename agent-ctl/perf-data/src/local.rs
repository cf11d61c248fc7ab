//! Files and the kernel of this machine, as far as they are those that were recorded.
//!
//! A file counts if it has the recorded build id, or, where none was recorded, the device, inode
//! and generation. The kernel counts if its symbols lie where they did: the same build since the
//! same boot. Paths in a file of somebody else may name anything, so only regular files are opened,
//! and nothing of them is shown but names at the recorded offsets.

use hashbrown::HashMap;
use host::ids::{Avma, FileId, Pid};
use host::time::MonotonicTime;
use jit::code::{CodeMap, When};
use jit::map::MapReader;
use profile::UnnamedReason;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use symbolize::budget::FileBudget;
use symbolize::elf::{find_build_id, read_headers};
use symbolize::files::{FileIdentity, FileSeen, FileStore, RELATIVES};
use symbolize::{KernelSymbols, SymbolCounters, SymbolOptions, Symbolizer, open};
use unwind::info::module::Module;
use unwind::walk::UnwindUpdate;
use unwind::walk::call_sites;
use unwind::walk::modules::Loaded;

/// Memory for names of files. Unit: bytes. At the bound the longest unused file is read again.
const NAMES_BYTES_MAX: usize = 512 << 20;

/// Largest list of generated code read of one process. Unit: bytes. Large Java servers write 20 MB.
const MAP_BYTES_MAX: u64 = 256 << 20;

/// Memory for the generated code of one process. Unit: bytes.
const CODE_BYTES_MAX: usize = 256 << 20;

/// Lines of `/proc/kallsyms` in which the kernel's first symbols are.
const FIRST_SYMBOLS_MAX: usize = 4096;

/// Files of a recording.
pub struct LocalFiles {
    store: Arc<FileStore>,
    /// Of the store and of naming.
    counters: Arc<SymbolCounters>,
    options: SymbolOptions,
    /// False: nothing of this machine is looked at.
    is_used: bool,
    /// The kernel that runs is the one that was recorded.
    has_kernel: bool,
    /// What was asked of the store.
    seen: HashMap<FileId, FileSeen>,
    missing: Vec<String>,
}

impl LocalFiles {
    /// Those of this machine, or none.
    pub fn new(is_used: bool) -> LocalFiles {
        LocalFiles::holding(None, is_used)
    }

    /// The same, of which so many are open at a time; `None` for as many as an agent has.
    pub fn holding(open_max: Option<usize>, is_used: bool) -> LocalFiles {
        let counters = Arc::<SymbolCounters>::default();
        LocalFiles {
            store: Arc::new(FileStore::new(open_max, Arc::clone(&counters))),
            counters,
            options: SymbolOptions {
                cache_bytes: NAMES_BYTES_MAX,
                ..SymbolOptions::default()
            },
            is_used,
            has_kernel: false,
            seen: HashMap::new(),
            missing: Vec::new(),
        }
    }

    /// Decides whether the kernel is the one that was recorded: its symbol lies at the same
    /// address, and nothing says that it is another build.
    pub fn meet_kernel(&mut self, symbol: &[u8], address: u64, build: Option<&[u8]>) {
        let same_build = || match (build, running_build()) {
            (Some(recorded), Some(running)) => *recorded == *running,
            _ => true,
        };
        self.has_kernel = self.is_used
            && address != 0
            && running_address(symbol) == Some(address)
            && same_build();
    }

    /// True when the kernel is the one that was recorded: so is the boot, and processes of it are
    /// those that run, or ran.
    pub fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    /// Files that are not here, or others: their paths.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Files that were not read because those of their owner took too long.
    pub fn put_off(&self) -> u64 {
        self.counters.files_put_off.load(Ordering::Relaxed)
    }

    /// True for a file that [`LocalFiles::see`] was not called with.
    pub fn is_new(&self, file: FileId) -> bool {
        !self.seen.contains_key(&file)
    }

    /// Opens a file, if it is here.
    pub fn see(&mut self, mut seen: FileSeen) {
        if !self.is_new(seen.id) {
            return;
        }
        // The recorded pid and addresses mean nothing here: in this process no mapping lies at 0,
        // and its root is the one to look in.
        seen.pid = Pid(std::process::id());
        seen.range = (Avma(0), Avma(0));
        seen.relatives = [Pid(0); RELATIVES];
        if !self.is_used || seen.identity == FileIdentity::Vdso && !self.has_kernel {
            // A name alone is never opened.
            seen.identity = FileIdentity::Path;
            seen.path = open::base_name(&seen.path).into();
        }
        let path = String::from_utf8_lossy(&seen.path).into_owned();
        let id = seen.id;
        self.store.see(&seen);
        if self.store.get(id).image.is_err() {
            self.missing.push(path);
        }
        self.seen.insert(id, seen);
    }

    /// Opens a file again that was closed because too many are open, before its content is read.
    pub fn reopen(&self, file: FileId) {
        if let Some(seen) = self.seen.get(&file) {
            self.store.see(seen);
        }
    }

    /// What the unwinder needs to know of a file that was seen.
    pub fn module(&self, file: FileId) -> UnwindUpdate {
        self.reopen(file);
        let found = self.store.get(file);
        let module = match &found.image {
            Ok(image) => {
                let dirs = &self.options.debug_dirs;
                let budget = FileBudget::default();
                let held = found.debug.as_ref();
                Module::read(image, held, &found.path, (dirs, true), &budget)
                    .map(|module| module.map(Arc::new))
            }
            Err(_) => Ok(None),
        };
        UnwindUpdate::Module(Loaded { file, module })
    }

    /// What kind of call a place follows.
    pub fn call_site(&self, place: call_sites::ReturnSite) -> Option<UnwindUpdate> {
        self.reopen(place.0);
        let image = self.store.get(place.0).image.ok()?;
        let headers = read_headers(&image).ok()?;
        let site = call_sites::look(&image, &headers, place.1)?;
        Some(UnwindUpdate::CallSite(call_sites::Looked { place, site }))
    }

    /// Names for the places in these files.
    pub fn symbolizer(&self) -> Symbolizer {
        let (store, counters) = (Arc::clone(&self.store), Arc::clone(&self.counters));
        let mut symbolizer = Symbolizer::new(self.options.clone(), store, counters);
        if !self.has_kernel {
            symbolizer.set_kernel_symbols(KernelSymbols::none());
        }
        symbolizer
    }

    /// The list that the runtime of a process wrote of its generated code, if it is still there.
    pub fn code(&self, pid: Pid) -> Result<CodeMap, UnnamedReason> {
        if !self.has_kernel {
            return Err(UnnamedReason::JitProcessGone);
        }
        let path = PathBuf::from(format!("/tmp/perf-{}.map", pid.0));
        let root = open::Root::of_dir(Path::new("/"));
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        let file = root.and_then(|root| root.open(bytes, open::Links::Inside));
        let mut file = file
            .map_err(|_| UnnamedReason::JitNoMap)?
            .take(MAP_BYTES_MAX);
        let mut code = CodeMap::new(CODE_BYTES_MAX);
        let (mut reader, mut buffer) = (MapReader::default(), vec![0; 64 << 10]);
        let now = When::at(MonotonicTime(0));
        while let Ok(len @ 1..) = file.read(&mut buffer) {
            reader.feed(&buffer[..len], now, &mut code);
        }
        Ok(code)
    }
}

/// Where a symbol of the running kernel lies; `None` when it is hidden.
fn running_address(symbol: &[u8]) -> Option<u64> {
    let list = BufReader::new(File::open("/proc/kallsyms").ok()?);
    let mut lines = list
        .split(b'\n')
        .take(FIRST_SYMBOLS_MAX)
        .map_while(Result::ok);
    lines.find_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let address = std::str::from_utf8(words.next()?).ok()?;
        (words.nth(1)? == symbol).then(|| u64::from_str_radix(address, 16).ok())?
    })
}

/// The build id of the running kernel.
fn running_build() -> Option<Box<[u8]>> {
    let notes = std::fs::read("/sys/kernel/notes").ok()?;
    find_build_id(&notes, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_store_puts_off_is_counted() {
        let files = LocalFiles::new(true);
        files.store.count_put_off();
        assert_eq!(files.put_off(), 1);
        assert!(Arc::ptr_eq(files.symbolizer().counters(), &files.counters));
    }
}
