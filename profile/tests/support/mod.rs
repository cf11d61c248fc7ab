//! Profiles for tests: built from text, made up by proptest, and compared by content.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses its own part"
)]

use profile::{FrameKind, FrameRef, Info, Profile, SampleKey, StackEnd, UnnamedReason, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Nanoseconds a sample stands for in these profiles.
pub const PERIOD: u64 = 10_000_000;

pub fn info() -> Info {
    Info {
        start_unix_ns: 1_700_000_000_000_000_000,
        duration_ns: 10_000_000_000,
        event: "cpu-clock".into(),
        unit: "nanoseconds".into(),
        period: PERIOD,
        ..Info::default()
    }
}

/// One sample of a made-up profile.
#[derive(Clone, Debug)]
pub struct Sample {
    pub labels: Vec<(String, String)>,
    /// Root first: kind, function, module.
    pub frames: Vec<(FrameKind, String, String)>,
    pub end: StackEnd,
    pub count: u64,
}

pub fn build(samples: &[Sample]) -> Profile {
    let mut profile = Profile {
        info: info(),
        ..Profile::default()
    };
    for sample in samples {
        let labels = profile.dict.intern_labels(
            sample
                .labels
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str())),
        );
        let frames: Vec<_> = sample
            .frames
            .iter()
            .map(|(kind, function, module)| {
                // Runtimes mark what an interpreter runs.
                let raw = match kind {
                    FrameKind::Interpreted => format!("~{function}"),
                    _ => String::new(),
                };
                profile.dict.intern_frame(FrameRef {
                    kind: *kind,
                    function,
                    system_name: &raw,
                    module,
                    ..FrameRef::default()
                })
            })
            .collect();
        let stack = profile.dict.stacks.intern(frames);
        let value = Value {
            count: sample.count,
            weight: sample.count * PERIOD,
        };
        profile.add(
            SampleKey {
                labels,
                stack,
                end: sample.end,
            },
            value,
        );
    }
    profile.info.quality.taken = profile.total().count;
    profile
}

/// A profile from lines such as `comm=a,unit=b main;work;sys_read@kernel 3`.
pub fn from_lines(lines: &str) -> Profile {
    let samples: Vec<Sample> = lines
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut parts = line.split(' ');
            let (labels, frames) = (parts.next().unwrap(), parts.next().unwrap());
            Sample {
                labels: labels
                    .split(',')
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect(),
                frames: frames.split(';').map(frame).collect(),
                end: StackEnd::Complete,
                count: parts.next().unwrap().parse().unwrap(),
            }
        })
        .collect();
    build(&samples)
}

fn frame(text: &str) -> (FrameKind, String, String) {
    let (function, word) = text.split_once('@').unwrap_or((text, "native"));
    let kind = FrameKind::ALL
        .into_iter()
        .find(|kind| kind.word() == word)
        .unwrap();
    let module = match kind {
        FrameKind::Kernel => "[kernel]",
        FrameKind::Native | FrameKind::Inlined => "app",
        _ => "",
    };
    (kind, function.to_owned(), module.to_owned())
}

/// Contents by text: labels, frames and end, in an order of their own.
pub fn canonical(profile: &Profile) -> BTreeMap<String, (u64, u64)> {
    let mut all = BTreeMap::new();
    for (&key, &value) in &profile.samples {
        let mut labels: Vec<_> = profile.dict.labels(key.labels).collect();
        labels.sort_unstable();
        let mut frames: Vec<_> = profile
            .dict
            .stacks
            .leaf_first(key.stack)
            .map(|id| profile.dict.frame(id))
            .map(|f| {
                (
                    f.kind,
                    f.unnamed as u8,
                    f.function,
                    f.system_name,
                    f.module,
                    f.file,
                    f.line,
                )
            })
            .collect();
        frames.reverse();
        let text = format!("{labels:?} {frames:?} {:?}", key.end);
        assert!(
            all.insert(text, (value.count, value.weight)).is_none(),
            "a key stands twice"
        );
    }
    all
}

/// Stacks as `root;…;leaf count`, sorted: the short form for expectations.
pub fn short(profile: &Profile) -> Vec<String> {
    let mut all: Vec<String> = profile
        .samples
        .iter()
        .map(|(key, value)| {
            let mut labels: Vec<_> = profile
                .dict
                .labels(key.labels)
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            labels.sort_unstable();
            let mut frames: Vec<_> = profile
                .dict
                .stacks
                .leaf_first(key.stack)
                .map(|id| profile.dict.frame(id).function)
                .collect();
            frames.reverse();
            format!("{} {} {}", labels.join(","), frames.join(";"), value.count)
        })
        .collect();
    all.sort_unstable();
    all
}

/// Made-up samples: few names, so that stacks and labels meet; some hostile ones.
pub fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let name = prop_oneof![
        4 => prop::sample::select(vec!["main", "work", "read", "a;b", "x 7", "k_[k]", "\u{202e}r"])
            .prop_map(str::to_owned),
        1 => ".{1,6}",
    ];
    let frame = (
        0..FrameKind::ALL.len(),
        name,
        prop::sample::select(vec!["", "app", "libc.so.6"]),
    )
        .prop_map(|(kind, function, module)| (FrameKind::ALL[kind], function, module.to_owned()));
    let label = (
        prop::sample::select(vec!["comm", "unit", "pid"]).prop_map(str::to_owned),
        prop::sample::select(vec!["a", "b", "c;\n"]).prop_map(str::to_owned),
    );
    let sample = (
        prop::collection::vec(label, 0..3),
        prop::collection::vec(frame, 1..6),
        0..StackEnd::ALL.len(),
        1..1000u64,
    )
        .prop_map(|(labels, frames, end, count)| Sample {
            labels,
            frames,
            end: StackEnd::ALL[end],
            count,
        });
    prop::collection::vec(sample, 0..12)
}

/// A frame table entry without a symbol, for tests that count those.
pub fn unnamed(function: &str) -> FrameRef<'_> {
    FrameRef {
        function,
        module: "app",
        unnamed: UnnamedReason::NoSymbols,
        ..FrameRef::default()
    }
}

/// Names that strangers might choose to break each format, and a frame of every kind.
pub fn hostile() -> Profile {
    let native = |function: &str| (FrameKind::Native, function.to_owned(), "app".to_owned());
    let sample = |comm: &str, frames: Vec<(FrameKind, String, String)>, end, count| Sample {
        labels: vec![
            ("comm".to_owned(), comm.to_owned()),
            ("pid".to_owned(), "7".to_owned()),
        ],
        frames,
        end,
        count,
    };
    let hostile = [
        "semi;colon",
        "new\nline",
        "\x1b[31mred",
        "<script>alert(1)</script>",
        "</script><!--",
        "]]>&amp;\"'",
        "\u{202e}gpj.exe",
        "line\u{2028}separator",
        "count 12",
        "fake_[k]",
        "back\\slash",
    ];
    let mut samples = vec![
        sample(
            "app",
            vec![
                native("main"),
                (FrameKind::Interpreted, "run.py".into(), "python3".into()),
                (FrameKind::Jit, "handle".into(), String::new()),
                (FrameKind::Native, "copy".into(), "libc.so.6".into()),
                (FrameKind::Inlined, "fast_copy".into(), "libc.so.6".into()),
                (FrameKind::Kernel, "do_syscall_64".into(), "[kernel]".into()),
                (FrameKind::Kernel, "nft_do_chain".into(), "nf_tables".into()),
            ],
            StackEnd::Complete,
            5,
        ),
        sample("app", vec![native("deep")], StackEnd::DepthLimit, 2),
        sample(
            "</title>;\u{1b}]0;x\u{7}",
            vec![(FrameKind::Synthetic, "[lost]".into(), String::new())],
            StackEnd::Lost,
            1,
        ),
    ];
    samples.extend(hostile.iter().map(|name| {
        sample(
            "app",
            vec![native("main"), native(name)],
            StackEnd::Complete,
            3,
        )
    }));
    let mut profile = build(&samples);
    profile.info.quality.lost = 1;
    profile.info.quality.truncated = 2;
    profile.info.quality.depth_limit = 2;
    profile
}
