//! A capture request of a client, checked against the limits in force.

use agent_config::Captures as Limits;
use aggregate::recorders::Detail;
use profile::Query;
use proto::agent;
use std::time::Duration;
use tonic::Status;

/// Shortest capture. Unit: milliseconds. A sample of 99 Hz is due every 10.
const DURATION_MIN_MS: u64 = 10;

/// Longest text of who asks and why. Unit: bytes, as `agent.proto` says.
pub const TEXT_BYTES_MAX: usize = 256;

/// Longest name of an event, and longest kernel filter. Unit: bytes; the kernel takes a page of the
/// latter.
pub const EVENT_BYTES_MAX: usize = 4096;

/// Largest copy of a user stack. Unit: bytes; a sample record has 64 KiB for all it holds.
const STACK_BYTES_MAX: u32 = 56 << 10;

/// The event when none is named.
pub const EVENT_DEFAULT: &str = "cpu-clock";

/// Waits for the CPU by stack: measured by another machinery than samples are.
pub const OFF_CPU: &str = "off-cpu";

/// How the stacks of a capture are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unwind {
    /// As the configuration says.
    #[default]
    Configured,
    /// By a copy of the stack.
    StackCopy,
    /// By the kernel, along frame pointers.
    FramePointer,
}

fn detail(request: &agent::CaptureRequest) -> Detail {
    match (request.instructions, request.lines) {
        (true, _) => Detail::Instructions,
        (false, true) => Detail::Lines,
        (false, false) => Detail::Functions,
    }
}

/// A request within the limits.
#[derive(Clone, Debug)]
pub struct CaptureSpec {
    /// Which samples, frames and labels.
    pub query: Query,
    /// How long.
    pub duration: Duration,
    /// The event by name.
    pub event: String,
    /// Samples a second on each CPU; 0: as the event is best sampled.
    pub rate_hz: u32,
    /// Events a sample; 0: by rate.
    pub period: u64,
    /// The kernel's filter of a tracepoint.
    pub filter: String,
    /// How stacks are walked.
    pub unwind: Unwind,
    /// Bytes copied of each stack; 0: as configured.
    pub stack_bytes: u32,
    /// How much of the past is wanted; zero: nothing.
    pub before: Duration,
    /// Say when each sample was taken.
    pub times: bool,
    /// Waits shorter than this are left out.
    pub min_wait: Duration,
    /// How detailed frames are.
    pub detail: Detail,
}

impl CaptureSpec {
    /// Checks a request.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with what would be right.
    pub fn new(request: &agent::CaptureRequest, limits: &Limits) -> Result<CaptureSpec, Status> {
        for (what, text, most) in [
            ("who asks", &request.who, TEXT_BYTES_MAX),
            ("the reason", &request.reason, TEXT_BYTES_MAX),
            ("the event", &request.event, EVENT_BYTES_MAX),
            ("the filter", &request.filter, EVENT_BYTES_MAX),
        ] {
            if text.len() > most {
                let given = text.len();
                return Err(invalid(format!(
                    "failed to use {what}: it has {given} bytes, at most {most} are allowed"
                )));
            }
        }
        let event = match request.event.trim() {
            "" => EVENT_DEFAULT,
            event => event,
        };
        let query = crate::query::query(
            request.matchers.clone(),
            request.frame_filters.clone(),
            &request.group_by,
        )?;
        check_rate(event, request, limits)?;
        if request.stack_bytes > STACK_BYTES_MAX {
            let given = request.stack_bytes;
            return Err(invalid(format!(
                "failed to copy {given} bytes of each stack: at most {STACK_BYTES_MAX} are possible"
            )));
        }
        if request.min_wait_ns > 0 && event != OFF_CPU {
            return Err(invalid(format!(
                "failed to skip short waits: `{event}` has no waits\nuse the event `{OFF_CPU}`"
            )));
        }
        Ok(CaptureSpec {
            query,
            duration: duration(request.duration_ns, limits)?,
            event: event.to_owned(),
            rate_hz: request.rate_hz,
            period: request.period,
            filter: request.filter.trim().to_owned(),
            unwind: unwind(&request.unwind)?,
            // The kernel copies multiples of eight.
            stack_bytes: request.stack_bytes.next_multiple_of(8),
            before: Duration::from_nanos(request.before_ns),
            times: !request.no_times,
            min_wait: Duration::from_nanos(request.min_wait_ns),
            detail: detail(request),
        })
    }
}

fn duration(ns: u64, limits: &Limits) -> Result<Duration, Status> {
    let wanted = Duration::from_nanos(ns);
    if ns == 0 {
        return Err(invalid("failed to start the capture: it has no duration"));
    }
    if wanted < Duration::from_millis(DURATION_MIN_MS) {
        return Err(invalid(format!(
            "failed to capture for `{wanted:?}`: the minimum is {DURATION_MIN_MS} ms"
        )));
    }
    let most = limits.duration_max_s;
    if wanted > Duration::from_secs(most.into()) {
        return Err(invalid(format!(
            "failed to capture for `{wanted:?}`: `captures.duration_max_s` allows {most} s"
        )));
    }
    Ok(wanted)
}

fn check_rate(event: &str, request: &agent::CaptureRequest, limits: &Limits) -> Result<(), Status> {
    let (rate, most) = (request.rate_hz, limits.rate_max_hz);
    if rate > 0 && request.period > 0 {
        return Err(invalid(
            "failed to use both a rate and a period\ngive only one of them",
        ));
    }
    if rate > most {
        return Err(invalid(format!(
            "failed to sample at {rate} Hz: `captures.rate_max_hz` allows {most}"
        )));
    }
    let is_clock = matches!(event, EVENT_DEFAULT | "task-clock");
    let least = 1_000_000_000 / u64::from(most.max(1));
    if is_clock && request.period > 0 && request.period < least {
        let period = request.period;
        return Err(invalid(format!(
            "failed to sample every {period} ns: `captures.rate_max_hz` allows a sample every \
             {least} ns"
        )));
    }
    Ok(())
}

fn unwind(word: &str) -> Result<Unwind, Status> {
    match word {
        "" | "auto" => Ok(Unwind::Configured),
        "stack-copy" => Ok(Unwind::StackCopy),
        "frame-pointer" => Ok(Unwind::FramePointer),
        other => {
            let nearest = match other.starts_with(['f', 'p']) {
                true => "frame-pointer",
                false => "stack-copy",
            };
            Err(invalid(format!(
                "failed to unwind by `{}`: it is not known, the nearest is `{nearest}`\nuse \
                 stack-copy or frame-pointer",
                other.escape_debug()
            )))
        }
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn request() -> agent::CaptureRequest {
        agent::CaptureRequest {
            duration_ns: 1_000_000_000,
            ..agent::CaptureRequest::default()
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut agent::CaptureRequest), expected: &str) {
        let mut request = request();
        change(&mut request);
        let error = CaptureSpec::new(&request, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let found = error.message().lines().next().unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_not_said_is_as_it_is_best() {
        let wanted = CaptureSpec::new(&request(), &Limits::default()).unwrap();
        assert_eq!(wanted.event, "cpu-clock");
        assert_eq!(wanted.unwind, Unwind::Configured);
        assert_eq!(
            (wanted.rate_hz, wanted.period, wanted.stack_bytes),
            (0, 0, 0)
        );
        assert!(wanted.times && wanted.query.selector().is_empty());
    }

    #[test]
    fn a_duration_is_there_and_within_its_limits() {
        let none = "failed to start the capture: it has no duration";
        refused(|r| r.duration_ns = 0, none);
        let short = "failed to capture for `5ms`: the minimum is 10 ms";
        refused(|r| r.duration_ns = 5_000_000, short);
        let long = "failed to capture for `7200s`: `captures.duration_max_s` allows 3600 s";
        refused(|r| r.duration_ns = 7_200_000_000_000, long);
    }

    #[test]
    fn a_rate_is_within_its_limit_and_alone() {
        let fast = "failed to sample at 10000 Hz: `captures.rate_max_hz` allows 9999";
        refused(|r| r.rate_hz = 10_000, fast);
        let both = "failed to use both a rate and a period";
        let set = |r: &mut agent::CaptureRequest| (r.rate_hz, r.period) = (99, 1000);
        refused(set, both);
        let short = "failed to sample every 99999 ns: `captures.rate_max_hz` allows a sample every 100010 ns";
        let clocks = ["", "cpu-clock", " task-clock "];
        for clock in clocks {
            refused(|r| (r.event, r.period) = (clock.into(), 99_999), short);
        }
    }

    #[test]
    fn words_and_texts_are_checked() {
        let word =
            "failed to unwind by `framepointer`: it is not known, the nearest is `frame-pointer`";
        refused(|r| r.unwind = "framepointer".into(), word);
        let who = "failed to use who asks: it has 257 bytes, at most 256 are allowed";
        refused(|r| r.who = "x".repeat(257), who);
        let waits = "failed to skip short waits: `cpu-clock` has no waits";
        refused(|r| r.min_wait_ns = 1, waits);
        let copy = "failed to copy 57345 bytes of each stack: at most 57344 are possible";
        refused(|r| r.stack_bytes = 57_345, copy);
    }

    #[test]
    fn a_malformed_selector_is_refused() {
        let mut asked = request();
        asked.matchers = vec![agent::LabelMatcher {
            label: "comm".into(),
            op: agent::MatchOp::Regex.into(),
            value: "(".into(),
        }];
        let error = CaptureSpec::new(&asked, &Limits::default()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}
