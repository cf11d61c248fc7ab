//! The samples that fakes make up, and what a question selects of them.

use profile::{
    Coverage, FrameFilter, FrameFilterOp, FrameKind, FrameRef, GroupBy, Info, LabelMatcher,
    MatchOp, Profile, Quality, Query, SampleKey, Selector, StackEnd, StackId, UnnamedReason, Value,
};
use proto::Chunks;
use proto::wire::ProfileChunk;
use std::pin::Pin;
use tokio_stream::Stream;
use tonic::Status;

/// What fakes believe the time to be: 2026-11-21 14:00:00 UTC.
pub const NOW_NS: i64 = 1_795_269_600_000_000_000;
/// Unit: nanoseconds.
pub const S: i64 = 1_000_000_000;
/// Weight of a sample. Unit: nanoseconds.
pub const PERIOD: u64 = 10_101_010;

/// An answer in parts.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A profile in parts so small that the client has to put several together.
pub fn chunks(profile: Profile) -> impl Iterator<Item = ProfileChunk> + Send {
    Chunks::with_target(profile, 200)
}

/// One sample: (labels, frames root first, end, count).
type Sample = (
    &'static [(&'static str, &'static str)],
    &'static [(&'static str, u8)],
    StackEnd,
    u64,
);

const SAMPLES: &[Sample] = &[
    (
        &[
            ("cgroup", "/system.slice/nginx.service"),
            ("slice", "system.slice"),
            ("unit", "nginx.service"),
            ("comm", "nginx"),
            ("pid", "812"),
        ],
        &[
            ("main", 0),
            ("ngx_worker_process_cycle", 0),
            ("ngx_epoll_process_events", 0),
        ],
        StackEnd::Complete,
        700,
    ),
    (
        &[
            ("cgroup", "/system.slice/nginx.service"),
            ("unit", "nginx.service"),
            ("comm", "nginx"),
            ("pid", "812"),
        ],
        &[
            ("main", 0),
            ("ngx_worker_process_cycle", 0),
            ("do_syscall_64", 1),
            ("tcp_sendmsg", 1),
        ],
        StackEnd::Complete,
        200,
    ),
    (
        &[
            ("cgroup", "/user.slice/a\u{202e}b\n"),
            ("comm", "evil\x1b[31m"),
            ("pid", "4711"),
            ("container", "3f2a9c"),
        ],
        &[("f;o\x07o <b>", 0), ("[libevil.so]", 0)],
        StackEnd::BrokenChain,
        100,
    ),
];

/// The made-up profile; `scale` multiplies the counts of the last sample.
///
/// # Panics
/// Never: the table's kinds are known.
pub fn profile(scale: u64) -> Profile {
    let mut profile = Profile {
        info: Info {
            start_unix_ns: NOW_NS - 300 * S,
            duration_ns: 300 * S as u64,
            event: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            period: PERIOD,
            quality: Quality {
                lost: 3,
                truncated: 110,
                depth_limit: 10,
                ..Quality::default()
            },
            coverage: Coverage {
                expected_ns: 1030 * PERIOD,
                estimated_ns: 10 * PERIOD,
                expected_samples: 1030,
                taken_ns: 1000 * PERIOD,
                windows: 30,
                windows_unmeasured: 1,
            },
            ..Info::default()
        },
        ..Profile::default()
    };
    for (at, &(labels, frames, end, count)) in SAMPLES.iter().enumerate() {
        let labels = profile.dict.intern_labels(labels.iter().copied());
        let mut stack = StackId::EMPTY;
        for &(function, kind) in frames {
            let kind = FrameKind::from_u8(kind).expect("a kind");
            let module = if kind == FrameKind::Kernel {
                "[kernel]"
            } else {
                "nginx"
            };
            let stripped = function == "[libevil.so]";
            let unnamed = if stripped {
                UnnamedReason::NoSymbols
            } else {
                UnnamedReason::No
            };
            let frame = FrameRef {
                kind,
                unnamed,
                function,
                module,
                ..FrameRef::default()
            };
            let frame = profile.dict.intern_frame(frame);
            stack = profile.dict.stacks.child(stack, frame);
        }
        let count = if at + 1 == SAMPLES.len() {
            count * scale
        } else {
            count
        };
        let key = SampleKey { labels, stack, end };
        profile.add(
            key,
            Value {
                count,
                weight: count * PERIOD,
            },
        );
        profile.info.quality.taken += count;
        if end != StackEnd::Complete {
            profile.info.quality.unnamed += count;
        }
    }
    profile
}

/// What a question selects of a profile.
///
/// # Errors
/// When a matcher or filter is malformed.
pub fn select(
    profile: &Profile,
    matchers: &[proto::agent::LabelMatcher],
    filters: &[proto::agent::FrameFilter],
    group_by: &[String],
) -> Result<Profile, Status> {
    let refused = |error: profile::FilterError| Status::invalid_argument(error.to_string());
    let op = |op| match op {
        proto::agent::MatchOp::NotEqual => MatchOp::NotEqual,
        proto::agent::MatchOp::Regex => MatchOp::Regex,
        proto::agent::MatchOp::NotRegex => MatchOp::NotRegex,
        proto::agent::MatchOp::Subtree => MatchOp::Subtree,
        _ => MatchOp::Equal,
    };
    let matchers = matchers
        .iter()
        .map(|m| LabelMatcher::new(&m.label, op(m.op()), &m.value));
    let matchers = matchers.collect::<Result<_, _>>().map_err(refused)?;
    let op = |op| match op {
        proto::agent::FrameFilterOp::Drop => FrameFilterOp::Drop,
        proto::agent::FrameFilterOp::Focus => FrameFilterOp::Focus,
        proto::agent::FrameFilterOp::Collapse => FrameFilterOp::Collapse,
        _ => FrameFilterOp::Keep,
    };
    let filters = filters
        .iter()
        .map(|f| FrameFilter::new(op(f.op()), &f.regex));
    let filters = filters.collect::<Result<_, _>>().map_err(refused)?;
    let selector = Selector::new(matchers).map_err(refused)?;
    let query = Query::new(selector, filters, GroupBy::from_keys(group_by)).map_err(refused)?;
    Ok(profile.query(&query))
}

/// The profile with a moment for each sample, 7 ms apart, in the last seconds before now.
pub fn timed(mut profile: Profile) -> Profile {
    let mut at_ns = 0;
    let mut list = Vec::new();
    for (key, value) in profile.sorted() {
        for _ in 0..value.count {
            let weight = value.weight / value.count;
            list.push(profile::Timestamp { at_ns, key, weight });
            at_ns += 7_000_000;
        }
    }
    profile.timestamps = profile::Timestamps {
        start_unix_ns: NOW_NS - at_ns as i64,
        duration_ns: at_ns.max(1),
        dropped: 3,
        list,
    };
    profile
}
