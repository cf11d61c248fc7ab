//! What agents, collectors and commands must agree on before they talk to each other.

/// Port of collectors for agents and for those who ask, where none is given.
pub const COLLECTOR_PORT: u16 = 7600;

/// Port of collectors for agents of other hosts, with TLS, where none is given.
pub const COLLECTOR_TLS_PORT: u16 = 7601;

/// Longest id of a host. A Kubernetes node has a name of up to 253 bytes; the name of its cluster
/// (32 bytes) and a slash may stand before it. Unit: bytes.
pub const HOST_ID_BYTES_MAX: usize = 288;

/// Longest name of a host, for the same reason. Unit: bytes.
pub const HOST_NAME_BYTES_MAX: usize = 288;
