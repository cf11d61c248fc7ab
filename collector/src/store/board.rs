//! Which host's agent attends at which collector, where several share a store: a notice board, no
//! storage of windows.

use super::{Limits, StoreError};
use std::collections::BTreeMap;

/// A host whose agent attends somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attending {
    /// The host.
    pub host_id: String,
    /// Its name, as its samples have it.
    pub hostname: String,
    /// Labels that its agent's configuration gives.
    pub labels: BTreeMap<String, String>,
    /// Where other collectors reach the one it attends at: `HOST:PORT`.
    pub collector: String,
    /// When it was there last, on that collector's clock.
    pub seen_unix_ns: i64,
}

/// Where collectors that share a store tell each other which hosts attend at them. A store that
/// nobody shares has nobody to tell.
pub trait NoticeBoard: Send + Sync + 'static {
    /// Tells other collectors on this store which hosts attend at this one.
    ///
    /// # Errors
    /// When they could not be told.
    fn attend(&self, _hosts: &[Attending]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Hosts that any collector told to attend since then, each once, where it was last.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn attending(
        &self,
        _since_unix_ns: i64,
        _limits: &Limits,
    ) -> Result<Vec<Attending>, StoreError> {
        Ok(Vec::new())
    }

    /// True when other collectors may use the same store, and tell it of their hosts.
    fn is_shared(&self) -> bool {
        false
    }
}
