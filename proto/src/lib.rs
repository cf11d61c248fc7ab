//! The wire form of profiles and of the agent's services, generated from `fleetprof/**/*.proto`,
//! and the conversion to and from [`profile`].
#![forbid(unsafe_code)]
#![expect(clippy::allow_attributes, reason = "generated code brings its own")]

/// `fleetprof.*` packages as generated.
#[expect(
    missing_docs,
    reason = "generated: the .proto files hold the documentation"
)]
#[expect(
    clippy::large_enum_variant,
    reason = "generated: messages of a stream, one at a time"
)]
pub mod fleetprof {
    /// Profiles on the wire.
    pub mod profile {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("fleetprof.profile.v1");
        }
    }
    /// The agent's service.
    pub mod agent {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("fleetprof.agent.v1");
        }
    }
    /// The collector's services.
    pub mod collector {
        /// Version 1.
        pub mod v1 {
            tonic::include_proto!("fleetprof.collector.v1");
        }
    }
}

pub mod calls;
mod codec;
pub mod convert;
pub mod credential;
pub mod definitions;
mod ledger;
pub mod pin;
pub mod query;
mod same;
mod tls_error;
mod weight;

pub use codec::PieceCodec;
pub use convert::{AssembleError, Chunks, ProfileAssembler};
pub use definitions::{DefinedTables, Definer, TableAssembler};
pub use fleetprof::agent::v1 as agent;
pub use fleetprof::collector::v1 as collector;
pub use fleetprof::profile::v1 as wire;
pub use ledger::cgroups;
pub use tls_error::TlsProblem;
pub use weight::{Rows, chunk_heap_bytes};

/// Encoded descriptors of every .proto file, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Flow-control window of one stream between agent and collector. Unit: bytes. It is half of the
/// largest message: a window of a large host is sent without waiting.
pub const STREAM_WINDOW_BYTES: u32 = 512 << 10;

/// Streams of an agent at a time on its connection: windows of this boot and of others, captures,
/// pins.
pub const STREAMS_PER_AGENT: u32 = 4;

/// Flow-control window of the connection. Unit: bytes. It has room for all streams' windows, so a
/// stream that is not read never takes the room of the others. A thousand agents hold up to 2 GiB
/// if a collector reads nothing.
pub const CONNECTION_WINDOW_BYTES: u32 = STREAMS_PER_AGENT * STREAM_WINDOW_BYTES;

/// The name in every collector's certificate of its fleet's authority: whatever address, balancer
/// or tunnel leads there, this is who must answer.
pub const COLLECTOR_NAME: &str = "collector.fleetprof.internal";

/// Largest profile of a pin that a collector takes, its minutes and its capture each. Unit: encoded
/// bytes over all chunks. An agent's pin is 16 MiB with the defaults, packed.
pub const PIN_PART_BYTES_MAX: usize = 64 << 20;

/// Largest profile of a pin that a collector puts together. Unit: bytes of memory. Twice what
/// agents unpack a pin to.
pub const PIN_HEAP_BYTES_MAX: usize = 256 << 20;
