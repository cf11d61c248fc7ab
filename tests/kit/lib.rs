//! What tests of all crates use: fakes of agents and collectors, the real daemon, collector and
//! CLI, cgroups, workloads of known shape, hostile ELF files, clocks, bounded waits, `perf` next to
//! them, and a headless browser.
//!
//! What the kit starts it also ends, on a panic too. A test that cannot run says so with [`skip`].
//! Tests that need the machine's CPUs to themselves hold [`Live`], other tests with daemons
//! [`Beside`].
#![forbid(unsafe_code)]

pub mod binaries;
pub mod browser;
pub mod capture;
pub mod cgroup;
pub mod client;
pub mod clock;
pub mod cpu;
pub mod ctl;
pub mod daemon;
pub mod docker;
pub mod fake;
pub mod fleet;
pub mod golang;
pub mod hostile_elf;
pub mod http;
pub mod modules;
pub mod numbering;
pub mod perf;
pub mod process;
pub mod recording;
pub mod repository;
pub mod require;
pub mod runtimes;
pub mod small_disk;
pub mod stats;
pub mod sysctl;
pub mod terminal;
pub mod view;
pub mod wait;
pub mod wire;
pub mod workload;

pub use cgroup::Cgroup;
pub use client::Client;
pub use daemon::Daemon;
pub use docker::Docker;
pub use process::program;
pub use require::{Beside, Live, Need, beside, cannot, live, met, skip};
pub use small_disk::SmallDisk;
pub use view::{View, ViewFrame, ViewSample};
pub use workload::Workload;
