//! What a collector may order on this host: the host has the last word, and the collector cannot
//! change it.
//!
//! A collector that somebody else has taken over asks for whatever hurts: probes on functions that
//! every process calls, filters whose answers tell what is in memory, captures without end. So what
//! is allowed is listed, by event, rate, duration and time per hour; all else is refused, in words
//! that name the key.

use agent_config::{Captures, RemoteCaptures};
use host::time::MonotonicTime;
use proto::agent::CaptureRequest;
use std::collections::VecDeque;
use std::time::Duration;
use tonic::Status;

/// The time over which captures are added up.
const HOUR: Duration = Duration::from_secs(3600);

/// Rate where a request names none. Unit: samples a second; no event is sampled more often by
/// itself.
const RATE_DEFAULT: u32 = 99;

/// Events that only look at stacks: where CPU time goes, what hardware counts, and where threads
/// wait. They read no memory, stop nobody at an instruction of anybody's choice, and have no
/// filter.
const STACKS: [&str; 20] = [
    "cpu-clock",
    "task-clock",
    "cycles",
    "instructions",
    "ref-cycles",
    "bus-cycles",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "LLC-loads",
    "LLC-load-misses",
    "off-cpu",
    "page-faults",
    "minor-faults",
    "major-faults",
    "context-switches",
    "cpu-migrations",
];

/// What the configuration allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    level: RemoteCaptures,
    events: Vec<String>,
    rate_max_hz: u32,
    duration_max: Duration,
    per_hour: Duration,
}

impl Policy {
    /// Of a configuration.
    pub fn of(config: &Captures) -> Policy {
        Policy {
            level: config.remote,
            events: config.remote_events.clone(),
            rate_max_hz: config.remote_rate_max_hz,
            duration_max: Duration::from_secs(config.remote_duration_max_s.into()),
            per_hour: Duration::from_secs(u64::from(config.remote_minutes_per_hour) * 60),
        }
    }

    /// Whether a capture may run, when captures of the last hour took `used`.
    ///
    /// # Errors
    /// PERMISSION_DENIED with the key that says so; RESOURCE_EXHAUSTED when the hour is used up.
    pub fn check(&self, request: &CaptureRequest, used: Duration) -> Result<(), Status> {
        let denied = |text: String| Err(Status::permission_denied(text));
        if self.level == RemoteCaptures::Off {
            return denied(
                "captures through a collector are switched off on this host (`captures.remote`)"
                    .to_owned(),
            );
        }
        let event = match request.event.trim() {
            "" => STACKS[0],
            event => event,
        };
        if !request.filter.trim().is_empty() && self.level != RemoteCaptures::All {
            return denied(
                "this host takes no filters from a collector: their answers tell what is in its \
                 memory (`captures.remote: all` allows them)"
                    .to_owned(),
            );
        }
        if !self.allows(event) {
            return denied(format!(
                "this host does not let a collector capture `{event}` (`captures.remote_events` \
                 lists more events)"
            ));
        }
        let rate = match request.rate_hz {
            0 => RATE_DEFAULT,
            rate => rate,
        };
        if request.period == 0 && rate > self.rate_max_hz {
            return denied(format!(
                "this host lets a collector sample {} times a second at most, not {rate} \
                 (`captures.remote_rate_max_hz`)",
                self.rate_max_hz
            ));
        }
        let duration = Duration::from_nanos(request.duration_ns);
        if duration > self.duration_max {
            return denied(format!(
                "this host lets a collector capture for {} s at most, not {} s \
                 (`captures.remote_duration_max_s`)",
                self.duration_max.as_secs(),
                duration.as_secs()
            ));
        }
        if used.saturating_add(duration) > self.per_hour {
            return Err(Status::resource_exhausted(format!(
                "captures through a collector took {} of {} minutes of this hour on this host \
                 (`captures.remote_minutes_per_hour`); come again later",
                used.as_secs().div_ceil(60),
                self.per_hour.as_secs() / 60
            )));
        }
        Ok(())
    }

    fn allows(&self, event: &str) -> bool {
        let listed = |allowed: &String| match allowed.strip_suffix('*') {
            Some(prefix) => event.starts_with(prefix),
            None => allowed == event,
        };
        self.level == RemoteCaptures::All
            || STACKS.contains(&event)
            || self.events.iter().any(listed)
    }
}

/// Time that captures took in the last hour.
#[derive(Debug, Default)]
pub struct Spent {
    /// When each was ordered, and for how long.
    captures: VecDeque<(MonotonicTime, Duration)>,
}

impl Spent {
    /// The sum at `now`.
    pub fn at(&mut self, now: MonotonicTime) -> Duration {
        while let Some(&(ordered, _)) = self.captures.front()
            && now.since(ordered) >= HOUR
        {
            self.captures.pop_front();
        }
        self.captures.iter().map(|(_, duration)| *duration).sum()
    }

    /// Adds a capture that is let through. It counts in full, also when it ends early: who cancels
    /// has cost the host a start.
    pub fn add(&mut self, now: MonotonicTime, duration: Duration) {
        self.captures.push_back((now, duration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn policy() -> Policy {
        Policy::of(&Captures::default())
    }

    fn request(event: &str) -> CaptureRequest {
        CaptureRequest {
            event: event.to_owned(),
            duration_ns: 10_000_000_000,
            ..CaptureRequest::default()
        }
    }

    fn denied(policy: &Policy, request: &CaptureRequest, key: &str) {
        let refused = policy.check(request, Duration::ZERO).expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains(key), "{}", refused.message());
    }

    #[test]
    fn what_looks_at_stacks_alone_is_allowed() {
        for event in STACKS.iter().chain(&["", " cycles "]) {
            assert!(
                policy().check(&request(event), Duration::ZERO).is_ok(),
                "{event}"
            );
        }
    }

    #[test]
    fn probes_tracepoints_and_filters_are_refused() {
        for event in [
            "uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc",
            "tracepoint:raw_syscalls:sys_enter",
            "block-io",
            "cpu-clock2",
        ] {
            denied(&policy(), &request(event), "`captures.remote_events`");
        }
        let filtered = CaptureRequest {
            filter: "filename.ustring ~ \"*secret*\"".to_owned(),
            ..request("cpu-clock")
        };
        denied(&policy(), &filtered, "`captures.remote: all`");
    }

    #[test]
    fn more_events_can_be_listed_by_name_or_prefix_and_still_take_no_filter() {
        let policy = Policy {
            events: vec!["tracepoint:block:*".to_owned(), "block-io".to_owned()],
            ..policy()
        };
        for event in ["tracepoint:block:block_rq_issue", "block-io"] {
            assert!(
                policy.check(&request(event), Duration::ZERO).is_ok(),
                "{event}"
            );
        }
        denied(
            &policy,
            &request("tracepoint:sched:sched_switch"),
            "remote_events",
        );
        let filtered = CaptureRequest {
            filter: "nr_sector > 8".to_owned(),
            ..request("block-io")
        };
        denied(&policy, &filtered, "`captures.remote: all`");
    }

    #[test]
    fn a_host_that_allows_all_still_bounds_rate_duration_and_time() {
        let policy = Policy {
            level: RemoteCaptures::All,
            ..policy()
        };
        let probe = CaptureRequest {
            filter: "x > 1".to_owned(),
            ..request("uprobe:/bin/true:main")
        };
        assert!(policy.check(&probe, Duration::ZERO).is_ok());
        let fast = CaptureRequest {
            rate_hz: 9999,
            ..request("cpu-clock")
        };
        denied(&policy, &fast, "`captures.remote_rate_max_hz`");
        let long = CaptureRequest {
            duration_ns: 3_600_000_000_000,
            ..request("cpu-clock")
        };
        denied(&policy, &long, "`captures.remote_duration_max_s`");
        let used = policy.per_hour - Duration::from_secs(5);
        let refused = policy
            .check(&request("cpu-clock"), used)
            .expect_err("refused");
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[test]
    fn a_host_that_allows_nothing_takes_nothing() {
        let policy = Policy {
            level: RemoteCaptures::Off,
            ..policy()
        };
        denied(&policy, &request("cpu-clock"), "`captures.remote`");
    }

    #[test]
    fn time_is_given_back_after_an_hour() {
        let mut spent = Spent::default();
        let start = MonotonicTime(1);
        let minute = Duration::from_secs(60);
        spent.add(start, minute);
        spent.add(start.plus(minute), minute);
        assert_eq!(spent.at(start.plus(minute)), 2 * minute);
        assert_eq!(spent.at(start.plus(HOUR)), minute);
        assert_eq!(spent.at(start.plus(HOUR + minute)), Duration::ZERO);
    }
}
