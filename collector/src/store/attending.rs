//! Which host's agent attends at which collector, where several share a store.

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
