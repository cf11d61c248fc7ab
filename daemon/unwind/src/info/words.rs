//! Stack words beyond the copy of a sample that a walk may read, and those that it did read.

use crate::arch::RegisterSet;
use std::cell::{Cell, RefCell};

/// Words of a stack by their address, sparse.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The lowest address.
    pub base: u64,
    /// Distances from `base`, ascending.
    pub at: Box<[u32]>,
    /// The words, in the order of `at`.
    pub values: Box<[u64]>,
}

impl Words {
    /// The word at an address, when it was kept.
    pub fn get(&self, address: u64) -> Option<u64> {
        let at = u32::try_from(address.checked_sub(self.base)?).ok()?;
        let found = self.at.binary_search(&at).ok()?;
        self.values.get(found).copied()
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.at) + size_of_val(&*self.values)
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// True when nothing was kept.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
}

/// Words that a walk read.
#[derive(Default)]
pub struct Reads {
    /// Addresses of words, in order.
    pub words: RefCell<Vec<u64>>,
    /// Registers of the sample, by number.
    pub registers: Cell<RegisterSet>,
    /// It read what is not there, or more than is noted: not to be remembered.
    pub spoiled: Cell<bool>,
}

/// Words noted of a walk. A walk of 512 frames reads at most seven of each; deeper ones are not
/// remembered.
pub const WORDS_MAX: usize = 4096;

impl Reads {
    /// Notes a word.
    pub fn word(&self, address: u64, found: bool) {
        match self.words.try_borrow_mut() {
            Ok(mut words) if found && words.len() < WORDS_MAX => words.push(address),
            _ => self.spoiled.set(true),
        }
    }

    /// Notes registers of the sample.
    pub fn registers(&self, mask: RegisterSet) {
        self.registers.set(self.registers.get() | mask);
    }

    /// Forgets all, for the next walk.
    pub fn clear(&self) {
        if let Ok(mut words) = self.words.try_borrow_mut() {
            words.clear();
        }
        self.registers.set(0);
        self.spoiled.set(false);
    }
}
