//! Tests walks of real stacks by the compiler's unwind information: a C program writes down its own
//! registers, stack and callers, built with the options that distributions use. The program is the
//! same on every architecture; where the compiler is for another architecture, an emulator runs it.

use super::StackBuffer;
use super::engine::Engine;
use super::modules::Loaded;
use crate::arch::{REGISTERS, SIGNAL_RETURN};
use crate::info::module::Module;
use crate::info::state::{Registers, StackCopy};
use crate::process::ProcessTable;
use host::frame::RawFrame;
use host::ids::{Avma, Pid, Tid};
use host::time::MonotonicTime;
use perf::record::{MapFile, Mmap, UserState};
use profile::StackEnd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use symbolize::budget::FileBudget;
use symbolize::elf::{self, Segment};

const PROCESS: Pid = Pid(7);
const NOW: MonotonicTime = MonotonicTime(1_000_000_000);

/// Compilers of this architecture, the first that is there.
const COMPILERS: [&str; 2] = if cfg!(target_arch = "aarch64") {
    ["aarch64-linux-gnu-gcc", "cc"]
} else {
    ["x86_64-linux-gnu-gcc", "cc"]
};

/// How return addresses and jumps are protected by default in distributions.
const PROTECTED: &str = if cfg!(target_arch = "aarch64") {
    "-mbranch-protection=standard"
} else {
    "-fcf-protection=full"
};

/// Runs a program, with an emulator where this machine is of another architecture.
fn run(program: &Path, arguments: &[&str]) -> Option<Output> {
    let own = Command::new(program).args(arguments).output();
    let emulated = || {
        let mut emulator = Command::new("qemu-aarch64-static");
        emulator.arg(program).args(arguments).output()
    };
    // Under an emulator a program that cannot be started is one that ends with 127.
    match own {
        Ok(output) if output.status.code() != Some(127) => Some(output),
        _ => emulated().ok(),
    }
}

/// The program, gone at the end.
struct Program(PathBuf);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The program built so; `None`, reported, where it cannot be.
fn build(options: &[&str]) -> Option<Program> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("fleetprof-frames-{}-{number}", std::process::id());
    let program = Program(std::env::temp_dir().join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/walk/real_stacks/frames.c");
    for compiler in COMPILERS {
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-static", "-no-pie", "-fasynchronous-unwind-tables"])
            .args(options)
            .arg(&source)
            .arg("-o")
            .arg(&program.0);
        match command.output() {
            Ok(built) if built.status.code() != Some(127) => {
                let said = String::from_utf8_lossy(&built.stderr);
                assert!(built.status.success(), "{said}");
                return Some(program);
            }
            _ => continue,
        }
    }
    testkit::skip("no compiler for this architecture");
    None
}

/// The registers and the stack that the program wrote down.
struct StackDump {
    program: Program,
    registers: Vec<u64>,
    stack: Vec<u64>,
    /// Outermost first; 0: not known.
    callers: Vec<u64>,
    /// The words at what the handler of a signal returns to, where it ran.
    returns: Vec<u64>,
}

fn told(options: &[&str], arguments: &[&str]) -> Option<StackDump> {
    let program = build(options)?;
    let output = run(&program.0, arguments)?;
    let text = String::from_utf8(output.stdout).expect("text");
    let line = |what: &str| -> Vec<u64> {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        let words = line.unwrap_or_default().split_whitespace();
        words
            .map(|word| u64::from_str_radix(word, 16).expect("a number"))
            .collect()
    };
    let told = StackDump {
        registers: line("registers"),
        stack: line("stack"),
        callers: line("callers"),
        returns: line("returns"),
        program,
    };
    assert_eq!(
        told.registers.len(),
        REGISTERS,
        "{:?}: {text}",
        output.status
    );
    Some(told)
}

/// The addresses that a walk comes through, leaf first, each as what it returns to, and how it
/// ends. `described`: with the program's unwind information.
fn walk(told: &StackDump, described: bool) -> (Vec<u64>, StackEnd, Engine) {
    let image = std::fs::File::open(&told.program.0).expect("the program");
    let headers = elf::read_headers(&image).expect("headers");
    let mut table = ProcessTable::new();
    table.fork(PROCESS, Tid(7), Pid(1), Tid(1), NOW);
    let code = |segment: &&Segment| segment.executable;
    for segment in headers.segments.iter().filter(code) {
        map(
            &mut table,
            segment.address,
            segment.memory_size,
            segment.offset,
            1,
        );
    }
    let mut engine = Engine::new(64 << 20);
    let module = Module::of(&image, &headers, &FileBudget::default());
    let module = module.expect("within the budget").expect("of this machine");
    let mut modules = vec![(told.callers[0], described.then_some(module))];
    // The kernel's or the emulator's code, if the program's is not what handlers return to.
    let returns = told.callers.iter().rev().nth(1).copied();
    if let (Some(address), Some(_), false) = (returns, SIGNAL_RETURN, told.returns.is_empty()) {
        // What is returned to is looked up one byte before, which may be in another page.
        let page = (address - 1) & !0xfff;
        map(&mut table, page, 0x2000, 0, 2);
        let module = Module::of_signal_return(address - page);
        modules.push((address, Some(module)));
    }
    for (address, module) in modules {
        let process = table.get(PROCESS).expect("a process");
        let mapping = process.space().find(Avma(address)).expect("mapped");
        engine.modules.install(Loaded {
            file: mapping.backing.file().expect("a file"),
            module: Ok(module.map(Arc::new)),
        });
    }
    let bytes = |words: &[u64]| -> Vec<u8> {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.collect()
    };
    let (regs, stack) = (bytes(&told.registers), bytes(&told.stack));
    let user = UserState {
        is_64: true,
        regs: &regs,
        stack: &stack,
        full: false,
    };
    let registers = Registers::from_sample(&user).expect("all registers");
    let copy = StackCopy::new(registers.sp(), &stack, false);
    let process = table.get(PROCESS).expect("a process");
    let mut out = StackBuffer::default();
    let end = engine.walk(process, registers, copy, NOW, 128, &mut out);
    let address = |frame: &RawFrame| match *frame {
        RawFrame::File(file, offset) => {
            let mut mappings = process.space().iter();
            let map = mappings.find(|map| map.backing.file() == Some(file));
            let map = map.expect("its mapping");
            map.start
                .wrapping_sub(map.file_offset)
                .wrapping_add(offset.0)
        }
        _ => 0,
    };
    let frames = out.frames.iter().map(address).collect();
    (frames, end, engine)
}

fn map(table: &mut ProcessTable, address: u64, len: u64, offset: u64, inode: u64) {
    let into = address % 0x1000;
    let map = Mmap {
        pid: PROCESS,
        start: address - into,
        len: (len + into).next_multiple_of(0x1000),
        file_offset: offset - offset % 0x1000,
        file: MapFile::Inode {
            major: 8,
            minor: 1,
            inode,
            generation: 0,
        },
        private: true,
        path: b"/usr/bin/thing",
    };
    table.mmap(&map, NOW);
}

/// Compares what a walk came through, but for its first frames, with what the program said.
fn check(told: &StackDump, frames: &[u64], what: &str) {
    let shown = || {
        let hex = |words: &[u64]| words.iter().map(|at| format!("{at:x}")).collect::<Vec<_>>();
        format!("{what}: {:?} not {:?}", hex(frames), hex(&told.callers))
    };
    assert!(frames.len() >= told.callers.len(), "{}", shown());
    for (&found, &known) in frames.iter().zip(told.callers.iter().rev()) {
        // Calls are one byte before what they return to; an instruction that a signal struck, and
        // what its handler returns to, are themselves.
        let right = known == 0 || found + 1 == known || found == known;
        assert!(right, "{}", shown());
    }
}

/// The ways of building.
fn ways() -> [Vec<&'static str>; 4] {
    [
        vec!["-fomit-frame-pointer"],
        vec!["-fno-omit-frame-pointer"],
        vec!["-fomit-frame-pointer", PROTECTED],
        vec!["-fno-omit-frame-pointer", PROTECTED],
    ]
}

#[test]
fn every_caller_is_found_to_the_outermost() {
    for options in ways() {
        let Some(told) = told(&options, &[]) else {
            return;
        };
        let (frames, end, _) = walk(&told, true);
        assert_eq!(end, StackEnd::Complete, "{options:?}: {frames:x?}");
        // The leaf, which has saved nothing, and who called it.
        assert_eq!(frames[0], told.registers_ip());
        check(&told, &frames[2..], &format!("{options:?}"));
    }
}

impl StackDump {
    fn registers_ip(&self) -> u64 {
        let bytes: Vec<u8> = self
            .registers
            .iter()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        let user = UserState {
            is_64: true,
            regs: &bytes,
            stack: &[],
            full: false,
        };
        Registers::from_sample(&user).expect("all registers").ip()
    }
}

#[test]
fn the_callers_of_what_a_signal_struck_are_found() {
    for options in ways() {
        let Some(told) = told(&options, &["signal"]) else {
            return;
        };
        let (frames, end, _) = walk(&told, true);
        assert_eq!(end, StackEnd::Complete, "{options:?}: {frames:x?}");
        check(&told, &frames[2..], &format!("{options:?}"));
        if let Some(begin) = SIGNAL_RETURN {
            let bytes: Vec<u8> = told
                .returns
                .iter()
                .flat_map(|it| it.to_le_bytes())
                .collect();
            let known = bytes.windows(8).any(|bytes| bytes == begin);
            assert!(known, "{:x?}", told.returns);
        }
    }
}

#[test]
fn without_unwind_information_the_frame_pointers_lead_to_the_same_callers() {
    for options in [
        vec!["-fno-omit-frame-pointer"],
        vec!["-fno-omit-frame-pointer", PROTECTED],
    ] {
        let Some(told) = told(&options, &[]) else {
            return;
        };
        let (frames, _, engine) = walk(&told, false);
        // The leaf has no frame, so who called it is not in the chain.
        check(&told, &frames[1..], &format!("{options:?}"));
        assert!(engine.counts.by_frame_pointer as usize >= told.callers.len());
    }
}

#[test]
fn behind_code_that_nothing_describes_the_walk_goes_on() {
    let options = ["-fno-omit-frame-pointer", PROTECTED, "-DUNDESCRIBED"];
    let Some(told) = told(&options, &[]) else {
        return;
    };
    let (frames, end, engine) = walk(&told, true);
    assert_eq!(end, StackEnd::Complete, "{frames:x?}");
    check(&told, &frames[2..], "a function without unwind information");
    assert!(engine.counts.by_frame_pointer > 0);
}
