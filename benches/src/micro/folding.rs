//! Folding on the sampler thread, interning in a dictionary, and what others do from text.

use super::Lines;
use super::synthetic::Synthetic;
use aggregate::batch::RawBatch;
use aggregate::fold::{Folder, SampleInfo};
use host::frame::RawFrame;
use host::ids::{Avma, CgroupId, Comm, FileId, FileOffset, Pid, ProcessId, Tid};
use host::time::MonotonicTime;
use inferno::collapse::Collapse;
use profile::{Dictionary, FrameRef, StackEnd};
use unwind::process::ProcessTable;

/// A 10 s window of 20 busy CPUs at 99 Hz.
pub const SAMPLES: usize = 20_000;
/// Weight of a sample at 99 Hz. Unit: nanoseconds.
pub const PERIOD: u64 = 10_101_010;

/// The synthetic samples as the unwinder hands them over.
pub struct Folding {
    stacks: Vec<Vec<RawFrame>>,
    synthetic: Synthetic,
    table: ProcessTable,
}

impl Folding {
    /// With `frame` for each function number.
    pub fn new(samples: usize, frame: impl Fn(u64) -> RawFrame) -> Folding {
        let synthetic = Synthetic::new(samples);
        let mut table = ProcessTable::new();
        for pid in 1..=synthetic.processes {
            table.fork(Pid(pid), Tid(pid), Pid(0), Tid(0), MonotonicTime(1));
        }
        let stacks = synthetic.stacks.iter();
        Folding {
            stacks: stacks
                .map(|stack| stack.iter().map(|&function| frame(function)).collect())
                .collect(),
            synthetic,
            table,
        }
    }

    /// Folds all samples into the folder's batch.
    pub fn add_all(&self, folder: &mut Folder) {
        for sample in &self.synthetic.samples {
            let process = self.table.get(Pid(sample.pid)).expect("made above");
            let taken = SampleInfo {
                time: MonotonicTime(1),
                cgroup: CgroupId(sample.cgroup),
                thread: Comm::from_bytes(b"worker"),
                end: StackEnd::Complete,
                weight: PERIOD,
            };
            folder.add(process, &taken, &self.stacks[sample.stack]);
        }
    }
}

/// Frames in a file, 64 bytes of code for each function.
fn in_a_file(function: u64) -> RawFrame {
    RawFrame::File(FileId((function % 97) as u32), FileOffset(function * 64))
}

/// The folder in steady state, a dictionary from empty and full, and inferno on text.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    let folding = Folding::new(SAMPLES, in_a_file);
    let mut folder = Folder::new(MonotonicTime(0));
    let mut spare = Some(RawBatch::default());
    let samples = SAMPLES as u64;
    lines.run("a window, fleetprofd", "sample", samples, || {
        folding.add_all(&mut folder);
        let empty = spare.take().unwrap_or_default();
        spare = Some(folder.take(MonotonicTime(1), true, empty));
    });
    // The same with the leaf of each stack in generated code: what the times of samples cost.
    let generated = |function: u64| match function % 2 {
        0 => RawFrame::Jit(ProcessId(1), Avma(function * 64)),
        _ => in_a_file(function),
    };
    let generated = Folding::new(SAMPLES, generated);
    lines.run("a window of generated code", "sample", samples, || {
        generated.add_all(&mut folder);
        let empty = spare.take().unwrap_or_default();
        spare = Some(folder.take(MonotonicTime(1), true, empty));
    });
    let text = folding.synthetic.perf_script();
    let mut folded = Vec::new();
    lines.run(
        "from text, inferno collapse-perf",
        "sample",
        samples,
        || {
            folded.clear();
            let mut collapse = inferno::collapse::perf::Folder::default();
            collapse.collapse(text.as_bytes(), &mut folded)
        },
    );
    lines.note("folding: fleetprofd takes addresses, inferno the text of perf script".to_owned());

    let stacks = &folding.synthetic.stacks;
    let frames: u64 = stacks.iter().map(|stack| stack.len() as u64).sum();
    let names: Vec<String> = (0..6_000).map(Synthetic::name).collect();
    let intern = |dict: &mut Dictionary| {
        for stack in stacks {
            let mut id = profile::StackId::EMPTY;
            for &function in stack.iter().rev() {
                let frame = dict.intern_frame(FrameRef {
                    function: &names[function as usize],
                    module: "worker",
                    ..FrameRef::default()
                });
                id = dict.stacks.child(id, frame);
            }
        }
    };
    lines.with_setup(
        "interning new stacks",
        "frame",
        frames,
        Dictionary::default,
        |mut dict| {
            intern(&mut dict);
            dict
        },
    );
    let mut dict = Dictionary::default();
    lines.run("interning known stacks", "frame", frames, || {
        intern(&mut dict);
    });
    Ok(())
}
