//! Captures over the fleet: agents attend on a stream that they keep open, and one question of a person becomes
//! an order to each of them.
//!
//! ```text
//! agents ──Attend──▶ attend ──▶ attendance          (who is there, and their orders)
//!                      │            ▲
//!                   reports      orders
//!                      ▼            │
//!                    part ──────▶ fanout ──▶ merge  (blocking, one host after the other)
//!                 (a task a host)   │
//! people ──Capture──▶ service ──▶ select            (hosts with samples ∩ hosts that attend)
//! ```
//!
//! No port is open on hosts. Every bound is in `limits.rs`; results of all fan-outs together have as much memory
//! as one query (`memory.rs`).

mod attend;
mod attendance;
mod fanout;
mod history;
pub mod limits;
mod memory;
mod merge;
mod part;
mod select;
mod service;

use crate::metrics::Metrics;
use crate::query::Queries;
use crate::time::Clock;
use attendance::Attendance;
use history::Fanouts;
use limits::Timeouts;
use memory::Budget;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// What attending and captures may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOptions {
    /// Agents that attend at a time. More are told to come again later.
    pub streams: usize,
    /// Memory for results. Unit: bytes.
    pub memory_bytes: usize,
    /// For how long agents are waited for.
    pub timeouts: Timeouts,
}

/// Answers agents and people; clones share everything.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    attendance: Arc<Attendance>,
    fanouts: Arc<Fanouts>,
    budget: Arc<Budget>,
    queries: Queries,
    options: ControlOptions,
    places: Arc<Semaphore>,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

impl Control {
    /// Nobody attends yet. Streams and fan-outs end when `shutdown` becomes true.
    pub fn new(
        queries: Queries,
        options: ControlOptions,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Control {
        Control(Arc::new(Inner {
            attendance: Arc::new(Attendance::new(metrics.clone())),
            fanouts: Arc::new(Fanouts::new(metrics.clone())),
            budget: Arc::new(Budget::new(options.memory_bytes, metrics.clone())),
            queries,
            places: Arc::new(Semaphore::new(options.streams)),
            options,
            clock,
            metrics,
            shutdown,
        }))
    }
}
