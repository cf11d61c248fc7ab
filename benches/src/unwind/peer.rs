//! framehop on the same samples: an unwinder and a cache for each process, as its interface wants
//! them, over sections that are read once a file.

use super::Kept;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use host::ids::Pid;
use perf::record::CpuMode;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symbolize::budget::FileBudget;
use symbolize::elf;
use symbolize::files::FileStore;
use symbolize::inflate;
use unwind::process::ProcessTable;
use unwind::process::space::Backing;

/// Longest section read, as for the daemon's unwinder. Unit: bytes.
const SECTION_BYTES_MAX: usize = 64 << 20;
/// Most frames of a stack, the same.
const FRAMES_MAX: usize = super::DEPTHS.walk;
/// Places of registers in a sample, which has them in the kernel's order.
const BP: usize = 6;
const SP: usize = 7;
const IP: usize = 8;

type Bytes = Arc<[u8]>;

/// Sections of a file.
#[derive(Clone, Default)]
struct Sections {
    /// What an address is above its place in the file, for each segment with code.
    segments: Vec<(Range<u64>, u64)>,
    named: BTreeMap<&'static str, (Range<u64>, Bytes)>,
}

const NAMES: [&str; 4] = [".text", ".eh_frame", ".eh_frame_hdr", ".debug_frame"];

impl Sections {
    fn read(store: &FileStore, file: host::ids::FileId) -> Option<Sections> {
        let image = store.get(file).image.ok()?;
        let headers = elf::read_headers(&image).ok()?;
        let code = headers.segments.iter().filter(|segment| segment.executable);
        let segments = code.map(|segment| {
            let range = segment.offset..segment.offset + segment.file_size;
            (range, segment.address.wrapping_sub(segment.offset))
        });
        let budget = FileBudget::new(usize::MAX, Duration::MAX);
        let named = NAMES.iter().filter_map(|&name| {
            let section = headers.section(name.as_bytes())?;
            let range = section.address..section.address + section.size;
            // The text is only for guesses about prologues, which nothing here needs.
            let bytes = match name {
                ".text" => Vec::new(),
                _ => inflate::content(&image, section, true, SECTION_BYTES_MAX, &budget)
                    .ok()?
                    .keep(),
            };
            Some((name, (range, bytes.into())))
        });
        Some(Sections {
            segments: segments.collect(),
            named: named.collect(),
        })
    }

    fn module(&self, start: u64, end: u64, file_offset: u64) -> Option<Module<Bytes>> {
        let mut segments = self.segments.iter();
        let (_, above) = segments.find(|(range, _)| {
            range.contains(&file_offset)
                || (file_offset..file_offset + end - start).contains(&range.start)
        })?;
        let range = |name| self.named.get(name).map(|(range, _)| range.clone());
        let bytes = |name| self.named.get(name).map(|(_, bytes)| Arc::clone(bytes));
        let info = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            debug_frame: bytes(".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        };
        let base = start.wrapping_sub(file_offset.wrapping_add(*above));
        Some(Module::new(String::new(), start..end, base, info))
    }
}

/// What framehop keeps for one process.
struct Of {
    unwinder: UnwinderX86_64<Bytes>,
    cache: CacheX86_64,
}

/// All processes of the samples.
pub struct Peer {
    processes: HashMap<Pid, Of>,
}

/// What a pass over all samples came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    /// Time a sample. Unit: microseconds.
    pub us: f64,
    /// Samples whose walk came to an end that was no error.
    pub whole: usize,
    /// Frames in all.
    pub frames: usize,
}

impl Peer {
    /// Reads every file that the processes of the samples map.
    pub fn new(kept: &[Kept], processes: &ProcessTable, store: &FileStore) -> Peer {
        let mut files = HashMap::new();
        let mut peer = Peer {
            processes: HashMap::new(),
        };
        for kept in kept {
            let Some(process) = processes.get(kept.pid) else {
                continue;
            };
            peer.processes.entry(kept.pid).or_insert_with(|| {
                let mut unwinder = UnwinderX86_64::new();
                for mapping in process.space().iter() {
                    let Backing::File(file) = mapping.backing else {
                        continue;
                    };
                    let sections = files
                        .entry(file.0)
                        .or_insert_with(|| Sections::read(store, file).unwrap_or_default());
                    let module = sections.module(mapping.start, mapping.end, mapping.file_offset);
                    if let Some(module) = module {
                        unwinder.add_module(module);
                    }
                }
                Of {
                    unwinder,
                    cache: CacheX86_64::new(),
                }
            });
        }
        peer
    }

    /// Walks the user stacks of all samples.
    pub fn pass(&mut self, kept: &[Kept]) -> Pass {
        let begin = Instant::now();
        let mut pass = Pass::default();
        for kept in kept {
            let Some(Of { unwinder, cache }) = self.processes.get_mut(&kept.pid) else {
                continue;
            };
            let sample = kept.sample();
            let Some(user) = sample.user.filter(|user| user.is_64) else {
                continue;
            };
            debug_assert!(matches!(sample.mode, CpuMode::Kernel | CpuMode::User));
            let (words, _) = user.regs.as_chunks::<8>();
            let register = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
            let (ip, sp) = (register(IP), register(SP));
            let regs = UnwindRegsX86_64::new(ip, sp, register(BP));
            let mut read = |address: u64| {
                let at = usize::try_from(address.wrapping_sub(sp)).map_err(drop)?;
                let word = user.stack.get(at..).and_then(|rest| rest.first_chunk());
                word.map(|word| u64::from_ne_bytes(*word)).ok_or(())
            };
            let mut frames = unwinder.iter_frames(ip, regs, cache, &mut read);
            for _ in 0..FRAMES_MAX {
                match frames.next() {
                    Ok(Some(_)) => pass.frames += 1,
                    Ok(None) => {
                        pass.whole += 1;
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
        pass.us = begin.elapsed().as_secs_f64() * 1e6 / kept.len() as f64;
        pass
    }
}
