//! The target for unwind information: whole walks through the unwinder of copied stacks.

use host::bounds::{Bounds, CacheBounds};
use host::ids::{Avma, CgroupId, CpuId, Pid, Tid};
use host::time::MonotonicTime;
use perf::record::{Callchain, CpuMode, MapFile, Mmap, Sample, UserState};
use std::sync::Arc;
use symbolize::budget::FileBudget;
use symbolize::elf;
use unwind::info::module::Module;
use unwind::process::ProcessTable;
use unwind::process::space::Backing;
use unwind::walk::modules::Loaded;
use unwind::walk::{Depths, StackBuffer, UnwindUpdate, Unwinder};

/// Most unwind information kept. Unit: bytes.
const BYTES_MAX: usize = 1 << 20;

/// Unwind information: whatever an image says of its code, a walk from any place of it ends, is no
/// deeper than asked for, and what was read of the image is not much larger than it.
pub fn unwinding(data: &[u8]) {
    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x7fff_0000;
    const DEPTH: usize = 32;
    let Ok(headers) = elf::read_headers(data) else {
        return;
    };
    let budget = FileBudget::default();
    let Ok(Some(mut module)) = Module::of(data, &headers, &budget) else {
        return;
    };
    if module.derive(data, &headers, &budget).is_err() {
        return;
    }
    assert!(budget.most_held() <= 64 * data.len() + BYTES_MAX);
    assert!(module.heap_bytes() <= 16 * data.len() + BYTES_MAX);
    let mut processes = ProcessTable::new();
    let pid = Pid(7);
    let mapped = Mmap {
        pid,
        start: CODE,
        len: data.len() as u64,
        file_offset: 0,
        file: MapFile::BuildId(&[1; 20]),
        private: true,
        path: b"/program",
    };
    processes.mmap(&mapped, MonotonicTime(1));
    let process = processes.get(pid).expect("a process with a mapping");
    let mapping = process.space().find(Avma(CODE));
    let Some(Backing::File(file)) = mapping.map(|mapping| mapping.backing) else {
        return;
    };
    let depths = Depths {
        chain: DEPTH,
        walk: DEPTH,
    };
    let bounds = Bounds {
        symbols: 0,
        unwind: BYTES_MAX,
        recorder: 0,
    };
    let mut unwinder = Unwinder::new(depths, Arc::new(CacheBounds::new(bounds)));
    unwinder.install(UnwindUpdate::Module(Loaded {
        file,
        module: Ok(Some(Arc::new(module))),
    }));
    let stack = &data[data.len().saturating_sub(512)..];
    let mut out = StackBuffer::default();
    for offset in (0..data.len() as u64).step_by(13).take(512) {
        // In the order of the mask: frame pointer, stack pointer, instruction pointer.
        let mut regs = [0; 17 * 8];
        for (at, value) in [(6, STACK + 64), (7, STACK), (8, CODE + offset)] {
            regs[at * 8..at * 8 + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        let sample = Sample {
            mode: CpuMode::User,
            ip: CODE + offset,
            pid,
            tid: Tid(7),
            time: MonotonicTime(2),
            cpu: CpuId(0),
            period: 1,
            callchain: Callchain::from_bytes(&[]),
            user: Some(UserState {
                is_64: true,
                regs: &regs,
                stack,
                full: offset % 2 == 0,
            }),
            raw: None,
            cgroup: CgroupId(1),
        };
        unwinder.unwind(&sample, Some(process), &mut out);
        assert!(out.frames.len() <= DEPTH);
    }
}
