//! What the process table reports to `fp-jit`: the identity of a process, and the jitdumps that it
//! maps.

use host::ids::{Avma, Pid, ProcessId};
use host::time::MonotonicTime;
use symbolize::files::FileIdentity;

/// Jitdumps of one process. A runtime writes one; one that is run again by `exec` is another
/// process.
pub const DUMPS_MAX: usize = 4;

/// A process of one lifetime and one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessInstance {
    /// Its id in the process table.
    pub id: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// When it started; zero when it is older than the daemon.
    pub started: MonotonicTime,
}

/// The marker of a jitdump: the mapping that shows that a runtime writes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpSeen {
    /// Who mapped it.
    pub whose: ProcessInstance,
    /// Start and end of the mapping.
    pub range: (Avma, Avma),
    /// Its path, as the process sees it.
    pub path: Box<[u8]>,
    /// Its identity.
    pub identity: FileIdentity,
}
