//! Reasons why a capture cannot start, and what is at fault.

use super::{FILTER_BYTES_MAX, PERIOD_MAX, RATE_HZ_MAX};
use crate::event::{EventError, FILE_WAIT};
use crate::offcpu::SetupError;
use perf::error::RingsError;
use perf::event::OpenError;
use sampler::CAPTURES_MAX;
use std::io;
use thiserror::Error;

/// What is at fault if a capture cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request: only another request can succeed.
    Request,
    /// The machine, or the rights of the daemon on it.
    Machine,
    /// The target of the request is gone.
    Gone,
    /// Only the moment is wrong: captures that run or start have what it takes.
    Moment,
}

/// Why a capture cannot start.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The event.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Its rate.
    #[error("failed to sample at {0} Hz: the rate must be 1 to {RATE_HZ_MAX}")]
    Rate(u32),
    /// Its period.
    #[error(
        "failed to sample `{event}` with a period of {period}: the period must be {min} to \
        {PERIOD_MAX}"
    )]
    Period {
        /// The requested value.
        period: u64,
        /// The least.
        min: u64,
        /// The event.
        event: String,
    },
    /// A filter where none is taken.
    #[error(
        "failed to set the filter of `{event}`: only tracepoints have filters\n  a filter is an \
         expression over a tracepoint's fields, such as `prev_state != 0` for \
         `tracepoint:sched:sched_switch`"
    )]
    NoFilter {
        /// The event.
        event: String,
    },
    /// A filter that cannot be one.
    #[error(
        "failed to set the filter of `{event}`: the filter is longer than {FILTER_BYTES_MAX} \
         bytes, or has a NUL"
    )]
    BadFilter {
        /// The event.
        event: String,
    },
    /// A filter that the kernel does not understand.
    #[error(
        "failed to set the filter of `{event}`: the kernel refuses `{filter}`{}",
        told(fields)
    )]
    Filter {
        /// The event.
        event: String,
        /// The filter.
        filter: String,
        /// Fields that the filter may use.
        fields: Vec<String>,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The cgroup, removed meanwhile or not to be opened.
    #[error("failed to open the cgroup `{path}`")]
    Cgroup {
        /// Its directory.
        path: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel waits for a file system that does not answer.
    #[error(
        "failed to open `{event}`: the program's file system has not answered for {} s",
        FILE_WAIT.as_secs()
    )]
    Late {
        /// The event.
        event: String,
    },
    /// All helper threads are reading other files, or wait for file systems that do not answer.
    #[error(
        "failed to open `{event}`: all helper threads are busy with other files\n  try again in a moment"
    )]
    Busy {
        /// The event.
        event: String,
    },
    /// The event or its rings.
    #[error(transparent)]
    Rings(#[from] RingsError),
    /// The tracepoints of `off-cpu`.
    #[error(transparent)]
    Waits(#[from] SetupError),
    /// The machine takes the event and never delivers.
    #[error(
        "failed to sample `{event}`: this machine accepts events of the processor but delivers no samples\n  use `cpu-clock`"
    )]
    Silent {
        /// The event.
        event: String,
    },
    /// Rings of other captures have the memory.
    #[error(
        "failed to allocate ring buffers for the capture: other captures already use {used} \
        bytes for theirs\n  wait until one ends, or cancel one"
    )]
    Memory {
        /// By other captures.
        used: u64,
    },
    /// The limit of running captures is reached.
    #[error("failed to start the capture: {CAPTURES_MAX} captures run already, which is the limit")]
    Captures,
    /// Its id is already in use.
    #[error("failed to start capture `{0}`: it runs already")]
    Running(u64),
}

impl EngineError {
    /// What is at fault.
    pub fn fault(&self) -> Fault {
        match self {
            EngineError::Event(
                EventError::Unknown { .. }
                | EventError::Form { .. }
                | EventError::NoFunction { .. }
                | EventError::Image { .. },
            )
            | EngineError::Rate(_)
            | EngineError::Period { .. }
            | EngineError::NoFilter { .. }
            | EngineError::BadFilter { .. }
            | EngineError::Filter { .. }
            | EngineError::Running(_)
            | EngineError::Rings(RingsError::Open(OpenError::Filter { .. })) => Fault::Request,
            EngineError::Event(EventError::Busy { .. }) | EngineError::Busy { .. } => Fault::Moment,
            EngineError::Cgroup { source, .. } if is_gone(source) => Fault::Gone,
            EngineError::Event(_)
            | EngineError::Late { .. }
            | EngineError::Cgroup { .. }
            | EngineError::Rings(_)
            | EngineError::Waits(_)
            | EngineError::Silent { .. } => Fault::Machine,
            EngineError::Memory { .. } | EngineError::Captures => Fault::Moment,
        }
    }
}

/// As cgroupfs answers for a directory that was removed, by path and by descriptor.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// An example of a filter, on a line of its own.
fn told(fields: &[String]) -> String {
    let form = "\n  a filter compares fields with numbers or text, such as `prev_state != 0 && \
        prev_comm ~ \"ng*\"`";
    match fields {
        [] => form.to_owned(),
        _ => format!("{form}; the fields are `{}`", fields.join("`, `")),
    }
}
