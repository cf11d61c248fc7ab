//! Rows as they are inserted. Their field names and types are those of the tables in `schema.rs`.

use clickhouse::Row;
use serde::{Deserialize, Serialize};

/// A label set.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct SeriesRow {
    pub day: u16,
    pub series: u64,
    pub unit: String,
    pub labels: Vec<(String, String)>,
}

/// A frame of a stack.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct FrameRow {
    pub day: u16,
    pub frame: u64,
    pub kind: u8,
    pub unnamed: u8,
    pub line: u32,
    pub start_line: u32,
    pub function: String,
    pub module: String,
    pub file: String,
    pub system_name: String,
}

/// A stack, root first.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct StackRow {
    pub day: u16,
    pub stack: u64,
    pub hash: [u8; 16],
    pub frames: Vec<u64>,
}

/// Samples on their way into `samples` and the rollups.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct FeedRow {
    pub chunk: u32,
    pub slot: u8,
    pub series: u64,
    pub service: u64,
    pub stack: u64,
    pub end: u8,
    pub origin: u64,
    pub n: u64,
    pub w: u64,
    pub period: u64,
}

/// What a label set has in a window, without stacks.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct TotalRow {
    pub chunk: u32,
    pub series: u64,
    pub slot: u8,
    pub origin: u64,
    pub n: u64,
    pub w: u64,
    pub lost_n: u64,
    pub lost_w: u64,
    pub expected_ns: i64,
    pub estimated_ns: i64,
    pub alone_ns: i64,
    pub alone_estimated_ns: i64,
    pub throttled_ns: u64,
    pub throttle_used_ns: u64,
    pub limit_millicores: u64,
}

/// A window that is stored.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct WindowRow {
    pub chunk: u32,
    pub slot: u8,
    pub host: u64,
    pub sequence: u64,
    pub origin: u64,
    pub host_id: String,
    pub boot: [u8; 16],
    pub start_ns: i64,
    pub end_ns: i64,
    pub event: String,
    pub unit: String,
    pub period: u64,
    pub labels: Vec<(String, String)>,
    pub idle: u64,
    pub lost: u64,
    pub throttled: u64,
    pub malformed: u64,
    pub reduced: u64,
    pub lost_late: u64,
    pub measured: u8,
    pub expected_ns: u64,
    pub estimated_ns: u64,
    pub n: u64,
    pub w: u64,
    pub rows: u64,
    pub lost_n: u64,
    pub lost_w: u64,
    pub pressure_known_ns: u64,
    pub pressure_cpu_ns: u64,
    pub pressure_memory_ns: u64,
    pub pressure_io_ns: u64,
}

/// Windows that the agent gave up.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct GapRow {
    pub chunk: u32,
    pub host: u64,
    pub sequence: u64,
    pub host_id: String,
    pub boot: [u8; 16],
    pub labels: Vec<(String, String)>,
    pub from_ns: i64,
    pub to_ns: i64,
    pub windows: u64,
    pub samples: u64,
    pub cause: String,
}

/// What is known of a host.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct HostRow {
    pub host_id: String,
    pub boot: [u8; 16],
    pub hostname: String,
    pub kernel: String,
    pub arch: String,
    pub cpus_online: u32,
    pub memory_bytes: u64,
    pub agent_version: String,
    pub labels: Vec<(String, String)>,
    pub spool_windows: u64,
    pub spool_bytes: u64,
    pub spool_bytes_max: u64,
    pub spool_oldest_ns: i64,
    pub dropped_windows: u64,
    pub first_seen_ns: i64,
    pub last_seen_ns: i64,
    pub clock_ahead_ns: i64,
}

/// What the agent of a host says of its own work, as of when the host was heard of.
#[derive(Clone, Row, Serialize, Deserialize)]
pub(super) struct HealthRow {
    pub host_id: String,
    pub boot: [u8; 16],
    pub health: Vec<u8>,
    pub seen_ns: i64,
}
