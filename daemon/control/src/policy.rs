//! The policy for commands of a collector: the host decides, and the collector cannot change it.
//!
//! An attacker who has taken over a collector would request whatever hurts: probes on functions
//! that every process calls, filters that reveal memory contents, captures without end. So allowed
//! captures are listed by event, rate, duration and time per hour. Everything else is rejected with
//! a message that names the key.

use agent_config::{Captures, RemoteCaptures};
use capture::event::{Event, RATE_HZ};
use capture::request::{EVENT_BYTES_MAX, EVENT_DEFAULT, OFF_CPU};
use host::time::MonotonicTime;
use proto::agent::CaptureRequest;
use std::collections::VecDeque;
use std::time::Duration;
use tonic::Status;

/// The time over which captures are added up.
const HOUR: Duration = Duration::from_secs(3600);

/// Smallest charge for a capture, because each opens events on all CPUs and reads `/proc`.
const CHARGE_MIN: Duration = Duration::from_secs(10);

/// The policy from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    level: RemoteCaptures,
    events: Vec<String>,
    rate_max_hz: u32,
    duration_max: Duration,
    per_hour: Duration,
}

impl Policy {
    /// Reads the policy from a configuration.
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
                "this host allows no captures from a collector (`captures.remote`)".to_owned(),
            );
        }
        if request.event.len() > EVENT_BYTES_MAX || request.filter.len() > EVENT_BYTES_MAX {
            return denied(format!(
                "an event and a filter may have at most {EVENT_BYTES_MAX} bytes"
            ));
        }
        let event = event_of(request);
        if !request.filter.trim().is_empty() && self.level != RemoteCaptures::All {
            return denied(
                "this host allows no filters from a collector, because filters reveal memory \
                 (`captures.remote: all` allows them)"
                    .to_owned(),
            );
        }
        if !self.allows(event) {
            return denied(format!(
                "this host does not allow a collector to capture `{}` (`captures.remote_events` \
                 allows more events)",
                event.escape_default().take(200).collect::<String>()
            ));
        }
        if request.period > 0 && self.level != RemoteCaptures::All {
            return denied(
                "this host allows a collector only a rate, not a period (`captures.remote: all` \
                 allows a period)"
                    .to_owned(),
            );
        }
        if request.rate_hz > self.rate_max_hz {
            return denied(format!(
                "this host allows a collector at most {} samples a second, not {} \
                 (`captures.remote_rate_max_hz`)",
                self.rate_max_hz, request.rate_hz
            ));
        }
        let duration = Duration::from_nanos(request.duration_ns);
        if duration > self.duration_max {
            return denied(format!(
                "this host allows a collector captures of at most {} s, not {} s \
                 (`captures.remote_duration_max_s`)",
                self.duration_max.as_secs(),
                duration.as_secs()
            ));
        }
        if used.saturating_add(charge(request)) > self.per_hour {
            return Err(Status::resource_exhausted(format!(
                "captures from a collector used {} of {} minutes in this hour on this host \
                 (`captures.remote_minutes_per_hour`); try again later",
                used.as_secs().div_ceil(60),
                self.per_hour.as_secs() / 60
            )));
        }
        Ok(())
    }

    /// A request that may run, at no more than the rate that is allowed: where it names none, that
    /// which the event has by itself may be higher.
    pub fn bounded(&self, mut request: CaptureRequest) -> CaptureRequest {
        let unnamed = request.rate_hz == 0 && request.period == 0;
        if unnamed && self.rate_max_hz < RATE_HZ && event_of(&request) != OFF_CPU {
            request.rate_hz = self.rate_max_hz;
        }
        request
    }

    fn allows(&self, event: &str) -> bool {
        // A path that is looked up elsewhere than it reads: a prefix would say nothing.
        if ["/../", "/./", "//"]
            .iter()
            .any(|part| event.contains(part))
        {
            return self.level == RemoteCaptures::All;
        }
        let listed = |allowed: &String| match allowed.strip_suffix('*') {
            Some(prefix) => event.starts_with(prefix),
            None => allowed == event,
        };
        self.level == RemoteCaptures::All
            || is_stacks_alone(event)
            || self.events.iter().any(listed)
    }
}

/// Whether an event only looks at stacks: where CPU time goes, what is counted, and where threads
/// wait. Such events read no memory, stop nobody at an instruction of anybody's choice, and have no
/// filter.
fn is_stacks_alone(event: &str) -> bool {
    event == OFF_CPU || matches!(Event::parse(event), Ok(Event::Counted(_)))
}

/// The event that a request means.
fn event_of(request: &CaptureRequest) -> &str {
    match request.event.trim() {
        "" => EVENT_DEFAULT,
        event => event,
    }
}

/// The charge for a request.
pub fn charge(request: &CaptureRequest) -> Duration {
    Duration::from_nanos(request.duration_ns).max(CHARGE_MIN)
}

/// Time that captures took in the last hour.
#[derive(Debug, Default)]
pub struct Spent {
    captures: VecDeque<Taken>,
    /// Number of the newest.
    last: u64,
}

/// What one capture took.
#[derive(Debug)]
struct Taken {
    number: u64,
    asked: MonotonicTime,
    duration: Duration,
}

impl Spent {
    /// The sum at `now`.
    pub fn at(&mut self, now: MonotonicTime) -> Duration {
        while let Some(taken) = self.captures.front()
            && now.since(taken.asked) >= HOUR
        {
            self.captures.pop_front();
        }
        self.captures.iter().map(|taken| taken.duration).sum()
    }

    /// Adds a capture that is let through, which counts in full from now on. Returns its number.
    pub fn add(&mut self, now: MonotonicTime, duration: Duration) -> u64 {
        self.last += 1;
        self.captures.push_back(Taken {
            number: self.last,
            asked: now,
            duration,
        });
        self.last
    }

    /// Gives back what a capture that has ended did not use. Each costs its start: who cancels one
    /// after the other has no more of them.
    pub fn end(&mut self, number: u64, now: MonotonicTime) {
        // The newest are behind.
        let mut all = self.captures.iter_mut().rev();
        if let Some(taken) = all.find(|taken| taken.number == number) {
            let used = now.since(taken.asked).max(CHARGE_MIN);
            taken.duration = taken.duration.min(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capture::event::COUNTED;
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
        let counted = COUNTED.iter().map(|event| event.name);
        for event in counted.chain([OFF_CPU, "", " cycles ", "cs"]) {
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
    fn a_period_is_no_way_round_the_rate() {
        let each = CaptureRequest {
            period: 1,
            ..request("cycles")
        };
        denied(&policy(), &each, "`captures.remote: all`");
    }

    #[test]
    fn where_no_rate_is_named_the_allowed_one_is_the_bound() {
        let slow = Policy {
            rate_max_hz: 49,
            ..policy()
        };
        assert_eq!(slow.bounded(request("cpu-clock")).rate_hz, 49);
        assert_eq!(slow.bounded(request("off-cpu")).rate_hz, 0);
        assert_eq!(policy().bounded(request("cpu-clock")).rate_hz, 0);
    }

    #[test]
    fn a_prefix_is_not_walked_out_of() {
        let policy = Policy {
            events: vec!["uprobe:/opt/app/*".to_owned()],
            ..policy()
        };
        let inside = request("uprobe:/opt/app/api:serve");
        assert!(policy.check(&inside, Duration::ZERO).is_ok());
        let outside = request("uprobe:/opt/app/../../lib/libc.so.6:malloc");
        denied(&policy, &outside, "remote_events");
    }

    #[test]
    fn a_short_capture_costs_its_start() {
        let short = CaptureRequest {
            duration_ns: 10_000_000,
            ..request("cpu-clock")
        };
        assert_eq!(charge(&short), CHARGE_MIN);
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
    fn what_ends_early_counts_for_what_it_took_and_no_less_than_its_start() {
        let mut spent = Spent::default();
        let (start, minute) = (MonotonicTime(1), Duration::from_secs(60));
        let long = spent.add(start, 10 * minute);
        let short = spent.add(start, 10 * minute);
        let full = spent.add(start, minute);
        spent.end(long, start.plus(2 * minute));
        assert_eq!(spent.at(start), 13 * minute);
        spent.end(short, start.plus(Duration::from_millis(5)));
        assert_eq!(spent.at(start), 3 * minute + CHARGE_MIN);
        // Its last reports take their time; and an end that is told again changes nothing.
        spent.end(full, start.plus(2 * minute));
        spent.end(long, start.plus(9 * minute));
        assert_eq!(spent.at(start), 3 * minute + CHARGE_MIN);
        assert_eq!(spent.at(start.plus(HOUR)), Duration::ZERO);
        spent.end(long, start.plus(HOUR));
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
