//! The tables of blobs in a file of a partition.

/// Tables of blobs by chunk and bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Samples by group.
    Block,
    /// Sums by series.
    Head,
    /// Samples by service.
    ServiceBlock,
    /// Sums by service.
    ServiceHead,
}

impl Table {
    pub(super) fn select(self) -> &'static str {
        match self {
            Table::Block => "SELECT id, body FROM block WHERE id >= ?1 AND id < ?2",
            Table::Head => "SELECT id, body FROM head WHERE id >= ?1 AND id < ?2",
            Table::ServiceBlock => "SELECT id, body FROM service_block WHERE id >= ?1 AND id < ?2",
            Table::ServiceHead => "SELECT id, body FROM service_head WHERE id >= ?1 AND id < ?2",
        }
    }
}
