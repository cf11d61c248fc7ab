//! Messages to `fp-jit` from the sampler and the symbolizer.

use super::reader::CodeLock;
use host::ids::ProcessId;
use host::time::MonotonicTime;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use unwind::process::{DumpSeen, ProcessInstance};

/// Most notices that wait for `fp-jit`, which handles all of them at once. On a large host the
/// start reports some hundred processes; a notice that does not fit is repeated with the next
/// sample.
pub const NOTICES_MAX: usize = 1024;

/// A process with samples to be named.
#[derive(Debug)]
pub struct SymbolRequest {
    /// The process.
    pub whose: ProcessInstance,
    /// The addresses that are to have names.
    pub addresses: Vec<u64>,
    /// It had ended by then.
    pub ended: bool,
}

/// Names for one process, for the symbolizer.
#[derive(Clone, Debug)]
pub struct SharedCodeMap {
    /// The process.
    pub id: ProcessId,
    /// The names; shared, and locked only briefly.
    pub known: Arc<CodeLock>,
    /// Its files were not read in time: there may be more.
    pub late: bool,
}

/// Messages to `fp-jit`.
#[derive(Debug)]
pub enum Notice {
    /// A process has its first sample in generated code.
    Met(ProcessInstance),
    /// A process has mapped a jitdump.
    Dump(Box<DumpSeen>),
    /// A reported process has ended, at this time.
    Ended(ProcessId, MonotonicTime),
    /// No sample before this will be asked for.
    Named(MonotonicTime),
    /// Samples are to be named: these processes are to be up to date.
    Refresh {
        /// Processes with samples.
        wanted: Vec<SymbolRequest>,
        /// No sample before this will be asked for.
        named_until: MonotonicTime,
        /// Where to send the answer.
        reply: SyncSender<Vec<SharedCodeMap>>,
    },
}
