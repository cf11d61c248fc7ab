//! Asks runtimes to tell what code they made, where the configuration allows it.

use crate::ids::{Pid, ProcessId};
use crate::time::Mono;

/// What may be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskOptions {
    /// Attach to HotSpot and have it write its perf map.
    pub hotspot_attach: bool,
    /// Have .NET write a perf map while it is wanted.
    pub dotnet_enable: bool,
}

/// A process whose generated code is to be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its id.
    pub id: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// The latest time it can have begun (see `jit/target.rs`).
    pub began_by: Mono,
}

/// Asks, each runtime rarely. Owned by `fp-jit`; what may block is done by helpers of its own.
#[derive(Debug)]
pub struct Asker {
    #[expect(dead_code, reason = "nothing is asked yet")]
    options: AskOptions,
}

impl Asker {
    /// Nobody was asked yet.
    pub fn new(options: AskOptions) -> Asker {
        Asker { options }
    }

    /// A process has samples in generated code, `unnamed` of them without a name since the last call.
    pub fn note(&mut self, _process: Asked, _unnamed: u64, _now: Mono) {}

    /// Goes on with what is under way: once a second while `fp-jit` has anything to do. Returns the processes
    /// that have written a map since the last call: to be read at once.
    pub fn tick(&mut self, _now: Mono) -> Vec<ProcessId> {
        Vec::new()
    }

    /// The process ended, or nobody wants its names any more.
    pub fn forget(&mut self, _process: ProcessId) {}
}
