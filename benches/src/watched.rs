//! A daemon in a cgroup of its own: what it used and what it took, between two moments.

use crate::cost::Usage;
use crate::stacks;
use anyhow::Context;
use proto::agent::{QueryProfileRequest, TimeRange};
use std::time::Instant;
use testkit::{Cgroup, Client, Daemon, View};

/// A running daemon.
pub struct Watched {
    /// How it walks user stacks: the value of `unwind.mode`.
    pub mode: &'static str,
    daemon: Daemon,
    cgroup: Cgroup,
}

/// What a daemon has used and taken up to a moment.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The moment.
    pub at: Instant,
    /// CPU time of it and of everything it started. Unit: nanoseconds.
    pub cpu_ns: u64,
    /// By thread, and memory.
    pub usage: Usage,
    /// Samples taken and lost so far, and wake-ups of its sampler, by its own counters.
    pub taken: SampleCounts,
}

/// Counters of a daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleCounts {
    /// Samples of all CPUs, those of the idle loop included.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Wake-ups of the sampler.
    pub wakeups: u64,
}

impl Watched {
    /// Starts one and waits until it samples.
    pub fn start(mode: &'static str, settings: &[String]) -> Watched {
        let cgroup = Cgroup::new("fleetprof-bench");
        let options = Daemon::with().set(&format!("unwind.mode={mode}"));
        let options = settings
            .iter()
            .fold(options, |options, setting| options.set(setting));
        let daemon = options.cgroup(&cgroup).start().sampling();
        Watched {
            mode,
            daemon,
            cgroup,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// A connection. A new one each time: one that slept answered no keep-alive.
    pub fn client(&self) -> Client {
        self.daemon.client()
    }

    /// The start of a measurement: the query that drains its rings lies before it.
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        let taken = taken(&self.client())?;
        Ok(Mark {
            at: Instant::now(),
            usage: Usage::of(self.pid())?,
            cpu_ns: self.cgroup.cpu_ns()?,
            taken,
        })
    }

    /// The end of a measurement: the query lies behind it.
    ///
    /// # Errors
    /// As for [`Watched::mark`].
    pub fn end(&self) -> anyhow::Result<Mark> {
        let (usage, cpu_ns) = (Usage::of(self.pid())?, self.cgroup.cpu_ns()?);
        let at = Instant::now();
        let taken = taken(&self.client())?;
        Ok(Mark {
            at,
            cpu_ns,
            usage,
            taken,
        })
    }

    /// Everything sampled in the last `seconds`, with all labels.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn profile(&self, seconds: f64) -> anyhow::Result<View> {
        let range = TimeRange {
            start_unix_ns: testkit::clock::unix_ns() - (seconds * 1e9) as i64,
            end_unix_ns: 0,
        };
        let request = QueryProfileRequest {
            range: Some(range),
            group_by: vec!["*".to_owned()],
            fresh: true,
            ..QueryProfileRequest::default()
        };
        let view = self.client().query(request);
        view.context("failed to ask for a profile")
    }
}

/// Share of complete stacks of a profile.
pub fn complete(view: &View) -> stacks::Counted {
    let mut counted = stacks::Counted::default();
    for sample in &view.samples {
        let names = sample.frames.iter().map(|frame| frame.function.as_str());
        counted.add(names, sample.count);
    }
    counted
}

/// Drains what is sampled and reads the counters. They count at the drain, of which there is one a
/// second at most; without one of its own a reading could be off by that much.
///
/// # Errors
/// When the daemon does not answer.
pub fn taken(client: &Client) -> anyhow::Result<SampleCounts> {
    let now = testkit::clock::unix_ns();
    let newest = QueryProfileRequest {
        range: Some(TimeRange {
            start_unix_ns: now,
            end_unix_ns: 0,
        }),
        fresh: true,
        ..QueryProfileRequest::default()
    };
    client
        .query(newest)
        .context("failed to ask for fresh samples")?;
    let status = client.status().context("failed to ask for the status")?;
    Ok(SampleCounts {
        samples: status.cpus.iter().map(|cpu| cpu.samples).sum(),
        lost: status.cpus.iter().map(|cpu| cpu.lost).sum(),
        wakeups: status
            .counters
            .iter()
            .find(|counter| counter.name == "fleetprof_sampler_wakeups_total")
            .map_or(0, |counter| counter.value),
    })
}
