//! Options for reading generated code: which kinds of files, and how much of them.

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// False to read no perf maps.
    pub perf_maps: bool,
    /// False to read no jitdumps.
    pub jitdumps: bool,
    /// False to leave the structures of JVMs alone.
    pub hotspot: bool,
    /// Largest part of a perf map that is read, and most memory for one list of code, in bytes. All
    /// that is known takes [`ROOM_OF_MAPS`](crate::watch::ROOM_OF_MAPS) times as much at most.
    pub max_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            perf_maps: true,
            jitdumps: true,
            hotspot: true,
            max_bytes: 64 << 20,
        }
    }
}
