//! From a sample to frames: which addresses belong to its stack, and how the stack ended.
//!
//! [`Unwinder`] is the seam: today it reads the callchain that the kernel walked by frame pointers;
//! unwinding from a copied stack (`.eh_frame`) comes in beside it and the longer valid result wins.
//! Called by the sampler thread for each sample; allocates nothing once its buffers have grown.

mod callchain;

use crate::aggregate::batch::RawFrame;
use crate::perf::record::Sample;
use crate::process::Process;
use crate::process::space::Mapping;
use profile::StackEnd;

/// An unwound stack, leaf first. The buffer is used again for each sample.
#[derive(Debug, Default)]
pub struct StackBuffer {
    /// The frames.
    pub frames: Vec<RawFrame>,
    /// The mappings of its file frames: files without samples so far are announced through them. Copied
    /// because the address space belongs to the process table.
    pub files: Vec<Mapping>,
}

impl StackBuffer {
    fn clear(&mut self) {
        self.frames.clear();
        self.files.clear();
    }
}

/// Turns samples into stacks.
#[derive(Debug, Clone, Copy)]
pub struct Unwinder {
    /// Frames at which the kernel cuts a callchain.
    pub depth_max: usize,
}

impl Unwinder {
    /// Unwinds one sample into `out`. `process` is `None` when nothing is known of it.
    pub fn unwind(
        &self,
        sample: &Sample<'_>,
        process: Option<&Process>,
        out: &mut StackBuffer,
    ) -> StackEnd {
        out.clear();
        callchain::walk(sample, process, self.depth_max, out)
    }
}
