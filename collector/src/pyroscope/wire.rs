//! The generated messages and services, and their descriptors.
#![expect(
    missing_docs,
    clippy::allow_attributes,
    reason = "generated: the .proto files hold the documentation"
)]

/// Queries.
pub mod querier {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("querier.v1");
    }
}

/// What queries share.
pub mod types {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("types.v1");
    }
}

/// Profiles that others send.
pub mod push {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("push.v1");
    }
}

/// Settings of Drilldown.
pub mod settings {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("settings.v1");
    }
}

/// Encoded descriptors of all of it, for JSON and for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pyroscope.bin"));
