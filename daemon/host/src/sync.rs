//! Locks for data that stays sound when a holder panics: plain values that are replaced completely.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a holder has panicked.
///
/// Only for data that stays sound then. Most of it feeds the status and the metrics, which must
/// answer above all when a thread has failed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
