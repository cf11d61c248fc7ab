//! Tests queries, grouping and merging over complete profiles.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use profile::{
    Counted, Dictionary, FrameFilter, FrameFilterOp, FrameId, FrameKind, FrameRef, GroupBy,
    LabelMatcher, LabelSetId, MatchOp, OTHER_FRAME, Profile, Query, QueryRunner, SampleKey,
    Selector, StackEnd, UnnamedReason, Value,
};
use proptest::prelude::*;
use support::{build, canonical, from_lines, info, samples, short, unnamed};

const LINES: &str = "
    comm=web,unit=nginx.service main;work;parse 3
    comm=web,unit=nginx.service main;work;work;read;sys_read@kernel 5
    comm=db,unit=pg.service main;loop;read;sys_read@kernel 7
    comm=db start;loop;main;tick 2
";

fn query(selector: &str, filters: &[(FrameFilterOp, &str)], group: &[&str]) -> Query {
    let filters = filters
        .iter()
        .map(|&(op, regex)| FrameFilter::new(op, regex).unwrap())
        .collect();
    Query::new(
        selector.parse().unwrap(),
        filters,
        GroupBy::from_keys(group),
    )
    .unwrap()
}

fn check(selector: &str, filters: &[(FrameFilterOp, &str)], group: &[&str], expected: &[&str]) {
    assert_eq!(
        short(&from_lines(LINES).query(&query(selector, filters, group))),
        expected
    );
}

#[test]
fn selects_by_label() {
    check(
        "comm=db,unit!=\"\"",
        &[],
        &["unit"],
        &["unit=pg.service main;loop;read;sys_read 7"],
    );
    check(
        "unit=\"\"",
        &[],
        &["*"],
        &["comm=db start;loop;main;tick 2"],
    );
}

#[test]
fn groups_by_nothing() {
    let all = [
        "main;loop;read;sys_read 7",
        "main;work;parse 3",
        "main;work;work;read;sys_read 5",
    ];
    let all = all.map(|line| format!(" {line}"));
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    all.push(" start;loop;main;tick 2");
    check("", &[], &[], &all);
}

#[test]
fn keep_and_drop_take_whole_samples() {
    check(
        "",
        &[(FrameFilterOp::Keep, "^tick$")],
        &[],
        &[" start;loop;main;tick 2"],
    );
    check(
        "",
        &[(FrameFilterOp::Drop, "^sys_")],
        &[],
        &[" main;work;parse 3", " start;loop;main;tick 2"],
    );
}

#[test]
fn focus_cuts_above_the_outermost_match() {
    check(
        "",
        &[(FrameFilterOp::Focus, "^(work|main)$")],
        &[],
        &[
            " main;loop;read;sys_read 7",
            " main;tick 2",
            " main;work;parse 3",
            " main;work;work;read;sys_read 5",
        ],
    );
    check(
        "",
        &[(FrameFilterOp::Focus, "work")],
        &[],
        &[" work;parse 3", " work;work;read;sys_read 5"],
    );
}

#[test]
fn filters_match_the_name_of_the_runtime_too() {
    let profile = from_lines(
        "
        comm=web main;run@interpreted 3
        comm=web main;run 2
    ",
    );
    let kept = |op, regex| short(&profile.query(&query("", &[(op, regex)], &[])));
    assert_eq!(kept(FrameFilterOp::Keep, "^~run$"), [" main;run 3"]);
    assert_eq!(kept(FrameFilterOp::Drop, "^~run$"), [" main;run 2"]);
    assert_eq!(kept(FrameFilterOp::Focus, "^~run$"), [" run 3"]);
    assert_eq!(kept(FrameFilterOp::Keep, "^run$").len(), 2);
}

#[test]
fn collapse_leaves_the_outermost_of_each_run() {
    check(
        "comm=web",
        &[(FrameFilterOp::Collapse, "work|read")],
        &[],
        &[" main;work 5", " main;work;parse 3"],
    );
}

#[test]
fn filters_apply_in_order() {
    let focus = (FrameFilterOp::Focus, "read");
    let drop = (FrameFilterOp::Drop, "main");
    check("", &[focus, drop], &[], &[" read;sys_read 12"]);
    check("", &[drop, focus], &[], &[]);
}

#[test]
fn quality_counts_what_was_kept() {
    let mut profile = Profile {
        info: info(),
        ..Profile::default()
    };
    profile.info.quality.lost = 9;
    profile.info.quality.taken = 1000;
    let frame = profile.dict.intern_frame(unnamed("[app]"));
    let stack = profile.dict.stacks.intern([frame]);
    for (comm, end) in [
        ("a", StackEnd::Complete),
        ("a", StackEnd::DepthLimit),
        ("a", StackEnd::BrokenChain),
        ("b", StackEnd::DepthLimit),
    ] {
        let labels = profile.dict.intern_labels([("comm", comm)]);
        profile.add(
            SampleKey { labels, stack, end },
            Value {
                count: 2,
                weight: 20,
            },
        );
    }
    let quality = profile.query(&query("comm=a", &[], &[])).info.quality;
    assert_eq!(
        (
            quality.taken,
            quality.truncated,
            quality.depth_limit,
            quality.unnamed,
            quality.lost
        ),
        (6, 4, 2, 6, 9)
    );
}

#[test]
fn a_runner_takes_several_dictionaries() {
    let (one, two) = (
        from_lines("comm=a main;x 1"),
        from_lines("comm=b main;y 2\ncomm=a main;x 4"),
    );
    let query = query("comm=a", &[(FrameFilterOp::Keep, "main")], &["comm"]);
    let mut runner = QueryRunner::new(&query);
    for profile in [&one, &two] {
        runner.next_dictionary();
        profile
            .samples
            .iter()
            .for_each(|(&key, &value)| runner.add(&profile.dict, key, value));
    }
    assert_eq!(short(&runner.finish(info())), ["comm=a main;x 5"]);
}

#[test]
fn a_dictionary_may_grow_between_samples() {
    let mut profile = from_lines("comm=a main;x 1");
    let query = query("comm=a", &[(FrameFilterOp::Keep, "main")], &["comm"]);
    let mut runner = QueryRunner::new(&query);
    for (&key, &value) in &profile.samples {
        runner.add(&profile.dict, key, value);
    }
    profile
        .merge(&from_lines("comm=a main;y;z 2\ncomm=c main;x 3"))
        .unwrap();
    for (&key, &value) in profile.samples.iter().filter(|(_, value)| value.count > 1) {
        runner.add(&profile.dict, key, value);
    }
    assert_eq!(
        short(&runner.finish(info())),
        ["comm=a main;x 1", "comm=a main;y;z 2"]
    );
}

fn filtered(profile: &Profile, op: FrameFilterOp, regex: &str) -> Profile {
    profile.query(&query("", &[(op, regex)], &["*"]))
}

fn sum(left: Value, right: Value) -> Value {
    let mut sum = left;
    sum += right;
    sum
}

proptest! {
    #[test]
    fn merge_is_commutative(a in samples(), b in samples()) {
        let (a, b) = (build(&a), build(&b));
        let (mut left, mut right) = (a.clone(), b.clone());
        left.merge(&b).unwrap();
        right.merge(&a).unwrap();
        prop_assert_eq!(canonical(&left), canonical(&right));
        prop_assert_eq!(left.info, right.info);
    }

    #[test]
    fn merge_is_associative(a in samples(), b in samples(), c in samples()) {
        let (a, b, c) = (build(&a), build(&b), build(&c));
        let mut left = a.clone();
        left.merge(&b).unwrap();
        left.merge(&c).unwrap();
        let mut inner = b;
        inner.merge(&c).unwrap();
        let mut right = a;
        right.merge(&inner).unwrap();
        prop_assert_eq!(canonical(&left), canonical(&right));
        prop_assert_eq!(left.info, right.info);
    }

    #[test]
    fn merging_into_nothing_gives_the_same(a in samples()) {
        let a = build(&a);
        let mut empty = Profile::default();
        empty.merge(&a).unwrap();
        prop_assert_eq!(canonical(&empty), canonical(&a));
        prop_assert_eq!(empty.info, a.info);
    }

    #[test]
    fn grouping_keeps_the_total(a in samples(), keys in prop::sample::subsequence(vec!["comm", "unit", "pid"], 0..=3)) {
        let profile = build(&a);
        let grouped = profile.group_by(&GroupBy::from_keys(&keys));
        prop_assert_eq!(grouped.total(), profile.total());
        let labels_left = grouped.dict.label_sets.iter().flatten().all(|&(key, _)| keys.contains(&grouped.dict.strings.get(key)));
        prop_assert!(labels_left);
        let same = profile.query(&query("", &[], &keys));
        prop_assert_eq!(canonical(&same), canonical(&grouped));
    }

    #[test]
    fn keep_and_drop_partition_the_total(a in samples(), regex in "[a-z]") {
        let profile = build(&a);
        let kept = filtered(&profile, FrameFilterOp::Keep, &regex);
        let dropped = filtered(&profile, FrameFilterOp::Drop, &regex);
        prop_assert_eq!(sum(kept.total(), dropped.total()), profile.total());
        let mut both = kept;
        both.merge(&dropped).unwrap();
        prop_assert_eq!(canonical(&both), canonical(&profile));
    }

    #[test]
    fn collapse_keeps_the_total_and_focus_the_total_of_keep(a in samples(), regex in "[a-z]") {
        let profile = build(&a);
        prop_assert_eq!(filtered(&profile, FrameFilterOp::Collapse, &regex).total(), profile.total());
        prop_assert_eq!(
            filtered(&profile, FrameFilterOp::Focus, &regex).total(),
            filtered(&profile, FrameFilterOp::Keep, &regex).total()
        );
    }

    #[test]
    fn opposite_matchers_partition_the_total(a in samples(), regex in any::<bool>()) {
        let profile = build(&a);
        let (yes, no) = if regex { (MatchOp::Regex, MatchOp::NotRegex) } else { (MatchOp::Equal, MatchOp::NotEqual) };
        let part = |op| {
            let matcher = LabelMatcher::new("comm", op, "a").unwrap();
            let selector = Selector::new(vec![matcher]).unwrap();
            profile.query(&Query::new(selector, Vec::new(), GroupBy::All).unwrap()).total()
        };
        prop_assert_eq!(sum(part(yes), part(no)), profile.total());
    }
}

#[test]
fn samples_are_counted_alike_before_and_after_there_are_waits() {
    let mut dict = Dictionary::default();
    let mut counted = Counted::default();
    let stacks: [&[&str]; 5] = [
        &["main", "?"],
        &["main", OTHER_FRAME],
        &["main", "?", "[woken by b]", "write"],
        &["main", "write", "[still waiting]", "?"],
        &[],
    ];
    for names in stacks {
        let frames: Vec<FrameId> = names
            .iter()
            .map(|&function| {
                dict.intern_frame(FrameRef {
                    kind: match function.starts_with('[') {
                        true => FrameKind::Synthetic,
                        false => FrameKind::Native,
                    },
                    unnamed: match function {
                        "?" => UnnamedReason::NoSymbols,
                        _ => UnnamedReason::No,
                    },
                    function,
                    ..FrameRef::default()
                })
            })
            .collect();
        let key = SampleKey {
            labels: LabelSetId::default(),
            stack: dict.stacks.intern(frames),
            end: StackEnd::Complete,
        };
        counted.add(&dict, key, 3);
    }
    // The leaf of a wait is where its thread waits.
    let quality = counted.quality();
    assert_eq!((quality.taken, quality.unnamed, quality.folded), (15, 6, 3));
}
