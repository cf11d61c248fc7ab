//! Times unwinding: the same samples of a running load, by the daemon's unwinder and by framehop.
//!
//! Samples are recorded in this process with copies of stacks, and kept, which the daemon never
//! does. Then each unwinder walks all of them again and again: the first pass is the cold one.

mod peer;

use host::bounds::{Bounds, CacheBounds};
use host::ids::{CgroupId, CpuId, FileId, Pid, Tid};
use host::time::MonotonicTime;
use perf::event::{EventKind, EventSpec};
use perf::record::{Callchain, CpuMode, Record, Sample, UserState};
use perf::rings::{Drained, Rings, horizon_at};
use profile::StackEnd;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symbolize::SymbolCounters;
use symbolize::budget::FileBudget;
use symbolize::files::{FileStore, generation_of_mapping};
use unwind::info::module::Module;
use unwind::process::{ProcessTable, scan};
use unwind::walk::modules::Loaded;
use unwind::walk::{Depths, StackBuffer, UnwindUpdate, Unwinder};

/// Bytes of stack recorded: what the daemon copies by default.
const STACK_BYTES: u32 = 16 << 10;
/// Most frames of a stack.
const DEPTHS: Depths = Depths {
    chain: 127,
    walk: 512,
};
/// Bound of the unwind tables: the daemon's default.
const CACHE_BYTES: usize = 48 << 20;
/// Passes over all samples whose fastest counts.
const PASSES: usize = 7;

/// A sample with its memory.
struct Kept {
    mode: CpuMode,
    ip: u64,
    pid: Pid,
    tid: Tid,
    time: MonotonicTime,
    callchain: Vec<u8>,
    regs: Vec<u8>,
    stack: Vec<u8>,
    is_64: bool,
    full: bool,
}

impl Kept {
    fn of(sample: &Sample<'_>) -> Option<Kept> {
        let user = sample.user?;
        Some(Kept {
            mode: sample.mode,
            ip: sample.ip,
            pid: sample.pid,
            tid: sample.tid,
            time: sample.time,
            callchain: sample.callchain.iter().flat_map(u64::to_ne_bytes).collect(),
            regs: user.regs.to_vec(),
            stack: user.stack.to_vec(),
            is_64: user.is_64,
            full: user.full,
        })
    }

    /// The sample as it was recorded.
    fn sample(&self) -> Sample<'_> {
        Sample {
            mode: self.mode,
            ip: self.ip,
            pid: self.pid,
            tid: self.tid,
            time: self.time,
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&self.callchain),
            user: Some(UserState {
                is_64: self.is_64,
                regs: &self.regs,
                stack: &self.stack,
                full: self.full,
            }),
            raw: None,
            cgroup: CgroupId(0),
        }
    }
}

/// Records every process of the machine for a while.
fn record(time: Duration) -> anyhow::Result<(ProcessTable, Vec<Kept>)> {
    let cpus: Vec<CpuId> = (0..std::thread::available_parallelism()?.get() as u32)
        .map(CpuId)
        .collect();
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 199,
        max_stack_depth: 127,
        watermark_bytes: 2 << 20,
        stack_bytes: STACK_BYTES,
        side_band_bytes: 0,
    };
    let mut rings = Rings::open(&cpus, &spec, 8 << 20)?;
    let mut processes = ProcessTable::new();
    for scanned in
        &scan::all(|(pid, start, end), _| generation_of_mapping(pid, start, end)).processes
    {
        processes.adopt(scanned);
    }
    let own = Pid(std::process::id());
    let mut kept = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
        rings.drain(horizon_at(MonotonicTime::now()), |drained| {
            let Drained::Record { time, record, .. } = drained else {
                return;
            };
            match record {
                Record::Sample(sample) if sample.pid != own => kept.extend(Kept::of(&sample)),
                Record::Mmap(mmap) => processes.mmap(&mmap, time),
                Record::Comm {
                    pid,
                    tid,
                    comm,
                    exec,
                } => processes.comm(pid, tid, comm, exec, time),
                Record::Fork {
                    pid,
                    tid,
                    parent,
                    parent_tid,
                } => {
                    processes.fork(pid, tid, parent, parent_tid, time);
                }
                _ => {}
            }
        });
    }
    Ok((processes, kept))
}

/// Reads the unwind information of every file that a sampled process maps.
fn modules(processes: &mut ProcessTable, kept: &[Kept]) -> (FileStore, BTreeSet<u32>) {
    let store = FileStore::new(None, Arc::new(SymbolCounters::default()));
    let mut files = BTreeSet::new();
    let pids: BTreeSet<Pid> = kept.iter().map(|kept| kept.pid).collect();
    for pid in pids {
        processes.announce_all(pid, MonotonicTime::now(), |seen| {
            store.see(&seen);
            files.insert(seen.id.0);
            true
        });
    }
    (store, files)
}

fn bounds() -> Arc<CacheBounds> {
    Arc::new(CacheBounds::new(Bounds {
        symbols: 0,
        unwind: CACHE_BYTES,
        recorder: 0,
    }))
}

fn unwinder(store: &FileStore, files: &BTreeSet<u32>) -> Unwinder {
    let mut unwinder = Unwinder::new(DEPTHS, bounds());
    for &id in files {
        let file = FileId(id);
        let found = store.get(file);
        let dirs = [PathBuf::from("/usr/lib/debug")];
        let module = found.image.map_or(Ok(None), |image| {
            let budget = FileBudget::default();
            Module::read(&image, None, &found.path, (&dirs, true), &budget)
        });
        unwinder.install(UnwindUpdate::Module(Loaded {
            file,
            module: module.map(|module| module.map(Arc::new)),
        }));
    }
    unwinder
}

/// Records `time` long and prints what unwinding costs and how complete it is.
pub fn run(time: Duration) -> anyhow::Result<()> {
    let (mut processes, mut kept) = record(time)?;
    let recorded = kept.len();
    // Here, unlike in the daemon, all unwinding comes after: of a program that was replaced since
    // nothing is known any more.
    kept.retain(|kept| {
        let process = processes.get(kept.pid);
        process.is_some_and(|process| process.started <= kept.time)
    });
    anyhow::ensure!(!kept.is_empty(), "no sample with a user stack");
    let begin = Instant::now();
    let (store, files) = modules(&mut processes, &kept);
    let mut ours = unwinder(&store, &files);
    println!(
        "{} samples of {recorded}, {} files read in {:?}",
        kept.len(),
        files.len(),
        begin.elapsed()
    );
    let mut stack = StackBuffer::default();
    let mut pass = |ours: &mut Unwinder, each: &mut dyn FnMut(&Kept, StackEnd, &StackBuffer)| {
        let begin = Instant::now();
        for kept in &kept {
            let end = ours.unwind(&kept.sample(), processes.get(kept.pid), &mut stack);
            each(kept, end, &stack);
        }
        begin.elapsed().as_secs_f64() * 1e6 / kept.len() as f64
    };
    // The memory of the samples is in the caches' reach for all alike: cold are the unwinders
    // alone.
    let touched = kept.iter().flat_map(|kept| kept.stack.iter().step_by(64));
    std::hint::black_box(touched.map(|&byte| u64::from(byte)).sum::<u64>());
    let cold = pass(&mut ours, &mut |_, _, _| ());
    let warm = (0..PASSES)
        .map(|_| pass(&mut ours, &mut |_, _, _| ()))
        .fold(f64::MAX, f64::min);
    let mut ends: BTreeMap<(String, &str), (u32, usize)> = BTreeMap::new();
    let mut roots: BTreeMap<String, u32> = BTreeMap::new();
    pass(&mut ours, &mut |kept, end, stack| {
        let comm = processes
            .get(kept.pid)
            .map_or_else(String::new, |p| p.comm.text().into_owned());
        let entry = ends.entry((comm.clone(), end.word())).or_default();
        entry.0 += 1;
        entry.1 += stack.frames.len();
        if end != StackEnd::Complete {
            let root = match stack.frames.last() {
                Some(host::frame::RawFrame::File(file, offset)) => {
                    let found = store.get(*file);
                    format!("{} {:#x}", String::from_utf8_lossy(&found.path), offset.0)
                }
                other => format!("{other:?}"),
            };
            *roots
                .entry(format!("{comm} {} {root}", end.word()))
                .or_default() += 1;
        }
    });
    let mut peer = peer::Peer::new(&kept, &processes, &store);
    let peer_cold = peer.pass(&kept);
    let peer_warm = (0..PASSES)
        .map(|_| peer.pass(&kept).us)
        .fold(f64::MAX, f64::min);
    let whole: u32 = ends
        .iter()
        .filter(|((_, end), _)| *end == "complete")
        .map(|(_, (count, _))| count)
        .sum();
    let share = |whole: f64| 100.0 * whole / kept.len() as f64;
    println!(
        "                 fleetprofd  framehop     ratio\n\
         cold, µs/sample  {cold:>10.2} {:>9.2} {:>9.2}\n\
         warm, µs/sample  {warm:>10.2} {peer_warm:>9.2} {:>9.2}\n\
         complete, %      {:>10.1} {:>9.1} {:>9.2}",
        peer_cold.us,
        cold / peer_cold.us,
        warm / peer_warm,
        share(whole.into()),
        share(peer_cold.whole as f64),
        f64::from(whole) / peer_cold.whole as f64,
    );
    for ((comm, end), (count, frames)) in ends {
        println!(
            "{count:6} {comm} {end} {:.1} frames",
            frames as f64 / f64::from(count)
        );
    }
    let mut roots: Vec<_> = roots.into_iter().collect();
    roots.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (root, count) in roots.iter().take(25) {
        println!("{count:6} {root}");
    }
    println!("{:?}", ours.counts());
    Ok(())
}
