//! The second CPU, taken offline for a moment. It comes back with the end of its owner.

use crate::require::{Live, SECOND_CPU};
use std::fs;

/// While it lives, the second CPU is offline.
pub struct Offline(());

impl Offline {
    /// Takes it offline. Others measure on it, so only under the live lock.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn take(_live: &Live) -> Offline {
        let offline = Offline(());
        fs::write(SECOND_CPU, "0").expect("failed to take the second CPU offline");
        offline
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        fs::write(SECOND_CPU, "1").expect("failed to bring the second CPU back");
    }
}
