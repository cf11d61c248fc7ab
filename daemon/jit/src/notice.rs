//! Messages to `fp-jit` from the sampler and the symbolizer.

use super::reader::GeneratedCode;
use host::ids::ProcessId;
use host::time::MonotonicTime;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use unwind::process::{DumpSeen, ProcessInstance};

/// Notices that wait for `fp-jit`, which takes all of them at once. A start of a large host tells
/// of some hundred processes; what finds no room is told again with the next sample.
pub const NOTICES_MAX: usize = 1024;

/// A process with samples to be named.
#[derive(Debug)]
pub struct SymbolRequest {
    /// Which.
    pub whose: ProcessInstance,
    /// The addresses that are to have names.
    pub addresses: Vec<u64>,
    /// It had ended by then.
    pub ended: bool,
}

/// What is known of one process, for the symbolizer.
#[derive(Clone, Debug)]
pub struct SharedCodeMap {
    /// Whose.
    pub id: ProcessId,
    /// What is known; shared, and locked for moments.
    pub known: Arc<Mutex<GeneratedCode>>,
    /// Its files were not read in time: there may be more.
    pub late: bool,
}

/// What `fp-jit` is told and asked.
#[derive(Debug)]
pub enum Notice {
    /// A process has its first sample in generated code.
    Met(ProcessInstance),
    /// A process has mapped a jitdump.
    Dump(Box<DumpSeen>),
    /// A process that was told of has ended, then.
    Ended(ProcessId, MonotonicTime),
    /// No sample before this will be asked for.
    Named(MonotonicTime),
    /// Samples are to be named: these processes are to be up to date.
    Refresh {
        /// Those with samples.
        wanted: Vec<SymbolRequest>,
        /// No sample before this will be asked for.
        named_until: MonotonicTime,
        /// Where the answer goes.
        reply: SyncSender<Vec<SharedCodeMap>>,
    },
}
