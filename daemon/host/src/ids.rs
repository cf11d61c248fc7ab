//! Addresses and ids as types of their own, so that they cannot be mixed up.

/// Process id (thread group id) as the daemon's pid namespace sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Pid(pub u32);

/// Thread id as the daemon's pid namespace sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tid(pub u32);

/// Number of a logical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CpuId(pub u32);

/// Id of a cgroup in the hierarchy that owns `perf_event`: the inode number of its directory. Not
/// used again within a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CgroupId(pub u64);

/// Actual virtual memory address: as the process saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Avma(pub u64);

/// Offset in an executable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FileOffset(pub u64);

/// A file known to the process table, identified by content if the kernel reported a build ID.
/// Dense, never reused while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FileId(pub u32);

/// A process of one lifetime and one executable: changes when the pid is used again and at exec.
/// Dense, never used again while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ProcessId(pub u32);

/// A capture on demand. Never used again while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CaptureId(pub u64);

/// A task name as the kernel keeps it: up to 15 bytes, any bytes but NUL, padded with NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Comm(pub [u8; 16]);

impl Comm {
    /// Takes the bytes before the first NUL, 15 at most.
    pub fn from_bytes(bytes: &[u8]) -> Comm {
        let mut comm = Comm::default();
        for (to, &from) in comm.0[..15]
            .iter_mut()
            .zip(bytes.iter().take_while(|&&b| b != 0))
        {
            *to = from;
        }
        comm
    }

    /// The name without padding.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        &self.0[..len]
    }

    /// The name as text; bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }
}
