//! Records which host is connected to which collector, if several share a store. It stores no
//! windows.

use super::{Limits, StoreError};
use std::collections::BTreeMap;

/// A host with a control stream to some collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedHost {
    /// The host.
    pub host_id: String,
    /// Its name, as its samples have it.
    pub hostname: String,
    /// Labels that its agent's configuration gives.
    pub labels: BTreeMap<String, String>,
    /// Where other collectors reach the one it is connected to: `HOST:PORT`.
    pub collector: String,
    /// When it was there last, on that collector's clock.
    pub seen_unix_ns: i64,
}

/// Where collectors that share a store announce their connected hosts to each other. A store that
/// is not shared ignores it.
pub trait NoticeBoard: Send + Sync + 'static {
    /// Announces to other collectors on this store which hosts are connected to this one.
    ///
    /// # Errors
    /// When they could not be announced.
    fn announce_hosts(&self, _hosts: &[ConnectedHost]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Hosts that any collector announced as connected since then, each once, where it was last.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn connected_hosts(
        &self,
        _since_unix_ns: i64,
        _limits: &Limits,
    ) -> Result<Vec<ConnectedHost>, StoreError> {
        Ok(Vec::new())
    }

    /// True if other collectors may use the same store and announce their hosts to it.
    fn is_shared(&self) -> bool {
        false
    }
}
