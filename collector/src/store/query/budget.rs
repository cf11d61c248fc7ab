//! Holds a query to its limits.

use crate::store::{Limits, StoreError};
use std::collections::BTreeSet;
use std::time::Instant;

/// Remaining limits of a query.
pub struct QueryBudget<'l> {
    /// The limits.
    pub limits: &'l Limits,
    used: usize,
    left_out: BTreeSet<String>,
}

impl<'l> QueryBudget<'l> {
    /// Starts a query.
    pub fn new(limits: &'l Limits) -> QueryBudget<'l> {
        QueryBudget {
            limits,
            used: 0,
            left_out: BTreeSet::new(),
        }
    }

    /// To be called every few milliseconds of work.
    ///
    /// # Errors
    /// When the caller has gone, or the time is over.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.limits.cancel.is_cancelled() || Instant::now() >= self.limits.deadline {
            return Err(StoreError::Cancelled);
        }
        Ok(())
    }

    /// Counts memory that is held until the end, or until it is released. Unit: bytes.
    ///
    /// # Errors
    /// When it is more than the query may hold.
    pub fn hold(&mut self, bytes: usize) -> Result<(), StoreError> {
        self.used = self.used.saturating_add(bytes);
        if self.used > self.limits.memory_bytes {
            return Err(StoreError::TooLarge(memory_exceeded(self.limits)));
        }
        Ok(())
    }

    /// Memory that the query may still hold. Unit: bytes.
    pub fn left(&self) -> usize {
        self.limits.memory_bytes.saturating_sub(self.used)
    }

    /// Notes what could not be read for this query: its answer names it.
    pub fn leave_out(&mut self, name: String) {
        self.left_out.insert(name);
    }

    /// What could not be read for this query.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.iter().map(String::as_str)
    }

    /// Memory that is held no more. Unit: bytes.
    pub fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// Says that a query needs too much memory, and what to do.
pub fn memory_exceeded(limits: &Limits) -> String {
    format!(
        "the query needs more than {} bytes of memory; narrow the range or selection, or group by \
         fewer labels",
        limits.memory_bytes
    )
}
