//! Memory bounds of caches that the budget changes while the daemon runs.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most memory that the large holders may take. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Symbol tables and names of files.
    pub symbols: usize,
    /// Unwind tables.
    pub unwind: usize,
    /// The flight recorder.
    pub recorder: usize,
}

impl Bounds {
    /// All of them together.
    pub fn total(&self) -> usize {
        self.symbols
            .saturating_add(self.unwind)
            .saturating_add(self.recorder)
    }
}

/// The bounds of caches that other threads own. Each owner looks at its bound when it adds
/// something; nobody waits for it.
#[derive(Debug)]
pub struct CacheBounds {
    symbols: AtomicUsize,
    unwind: AtomicUsize,
}

impl CacheBounds {
    /// With these bounds in force.
    pub fn new(bounds: Bounds) -> CacheBounds {
        CacheBounds {
            symbols: AtomicUsize::new(bounds.symbols),
            unwind: AtomicUsize::new(bounds.unwind),
        }
    }

    /// Puts others in force.
    pub fn set(&self, bounds: Bounds) {
        self.symbols.store(bounds.symbols, Ordering::Relaxed);
        self.unwind.store(bounds.unwind, Ordering::Relaxed);
    }

    /// Symbol tables and names of files. Unit: bytes.
    pub fn symbols(&self) -> usize {
        self.symbols.load(Ordering::Relaxed)
    }

    /// Unwind tables. Unit: bytes.
    pub fn unwind(&self) -> usize {
        self.unwind.load(Ordering::Relaxed)
    }
}
