//! Tests answers for profile types of kept captures: whose they are, of which time, and what
//! becomes of them when files go or are damaged.

use super::*;
use crate::access::Scope as CallerScope;
use crate::evidence::Bounds;
use crate::store::{Cancel, Limits, profile_types};
use crate::time::Clock;
use profile::{FrameKind, FrameRef, LabelMatcher, MatchOp, OFF_CPU, SampleKey};
use proto::agent::CaptureRequest;
use proto::collector::FleetCaptureRequest;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;
const WAITS: &str = "captured:off_cpu:nanoseconds:off_cpu:nanoseconds";
const FAULTS: &str = "captured:page-faults:count:page-faults:faults";

/// Kept captures in a directory of their own.
struct Stage {
    dir: tempfile::TempDir,
    kept: Arc<KeptCaptures>,
    captured: Captured,
}

/// A capture of ten seconds, with one sample of each stack. Its host has the name of its
/// namespace.
struct Capture<'c> {
    id: u64,
    /// Unit: seconds.
    from: i64,
    of: (&'c str, &'c str),
    namespace: &'c str,
    stacks: &'c [(&'c str, u64)],
}

impl<'c> Capture<'c> {
    fn waits(id: u64, from: i64, stacks: &'c [(&'c str, u64)]) -> Capture<'c> {
        Capture {
            id,
            from,
            of: (OFF_CPU, "nanoseconds"),
            namespace: "n",
            stacks,
        }
    }
}

impl Stage {
    async fn set() -> Stage {
        let dir = tempfile::tempdir().expect("a directory");
        let bounds = Bounds {
            bytes: 64 << 20,
            owner_bytes: u64::MAX,
            count: 2000,
            age_ns: i64::MAX,
        };
        let clock = Clock::new(|| 0);
        let dirs = (dir.path().join("captures"), bounds);
        let kept = Arc::new(KeptCaptures::new(dirs, clock, Arc::default()));
        kept.open(|_| {}).await.expect("opens");
        let captured = Captured::new(kept.clone());
        Stage {
            dir,
            kept,
            captured,
        }
    }

    fn keep(&self, of: &Capture<'_>) {
        let profile = profile(of);
        let capture = CaptureRequest {
            event: of.of.0.to_owned(),
            ..CaptureRequest::default()
        };
        let head = KeptCapture {
            info: Some(FleetCaptureInfo {
                id: of.id,
                request: Some(FleetCaptureRequest {
                    capture: Some(capture),
                    ..FleetCaptureRequest::default()
                }),
                started_unix_ns: of.from * SECOND,
                elapsed_ns: 10 * SECOND as u64,
                ..FleetCaptureInfo::default()
            }),
            selection: format!("namespace={:?}", of.namespace),
            profile_type: profile_type(&profile.info),
            ..KeptCapture::default()
        };
        self.kept.keep(head, None, Some(&profile)).expect("kept");
    }

    fn path(&self, id: u64) -> PathBuf {
        let captures = self.dir.path().join("captures");
        captures.join(format!("{id:016x}.capture"))
    }

    fn of(&self, caller: &Caller, id: &str) -> Arc<dyn StoreQueries> {
        self.captured.seen_by(caller, Some(id))
    }

    /// Ids of the types that a caller sees.
    fn types(&self, caller: &Caller) -> Vec<String> {
        let all = self.captured.seen_by(caller, None);
        profile_types(&*all, seconds(0, 100_000), &limits()).expect("types")
    }

    /// Stacks of a type for somebody without a scope.
    fn stacks(&self, id: &str, (from, to): (i64, i64)) -> BTreeMap<String, u64> {
        stacks(&*self.of(&Caller::local(), id), seconds(from, to))
    }
}

fn profile(of: &Capture<'_>) -> Profile {
    let mut profile = Profile::default();
    let pairs = [("host", of.namespace), ("comm", "c")];
    let labels = profile.dict.intern_labels(pairs);
    for (text, weight) in of.stacks {
        let stack = text.split(';').fold(StackId::EMPTY, |stack, function| {
            let kind = match function.starts_with('[') {
                true => FrameKind::Synthetic,
                false => FrameKind::Native,
            };
            let frame = profile.dict.intern_frame(FrameRef {
                function,
                kind,
                ..FrameRef::default()
            });
            profile.dict.stacks.child(stack, frame)
        });
        let key = SampleKey {
            labels,
            stack,
            end: StackEnd::Complete,
        };
        profile.add(
            key,
            Value {
                count: 1,
                weight: *weight,
            },
        );
    }
    (profile.info.event, profile.info.unit) = (of.of.0.to_owned(), of.of.1.to_owned());
    profile.info.start_unix_ns = of.from * SECOND;
    profile.info.duration_ns = 10 * SECOND as u64;
    profile.info.quality.lost = 3;
    profile
}

fn seconds(from: i64, to: i64) -> TimeRange {
    TimeRange {
        start_unix_ns: from * SECOND,
        end_unix_ns: to * SECOND,
    }
}

fn limits() -> Limits {
    Limits {
        reports: true,
        hosts: None,
        waiting: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 64 << 20,
        nodes: 10_000,
        lines: 10_000,
    }
}

fn scope((from, to): (i64, i64), selector: &str) -> Scope {
    Scope {
        range: seconds(from, to),
        selector: selector.parse().expect("a selector"),
    }
}

fn caller(scope: &str) -> Caller {
    Caller {
        name: "eve".to_owned(),
        scope: Some(CallerScope::parse(scope).expect("a scope")),
        ..Caller::clone(&Caller::local())
    }
}

fn stacks(store: &dyn StoreQueries, range: TimeRange) -> BTreeMap<String, u64> {
    let found = store.profile(range, &Query::default(), &limits());
    folded(&found.expect("a profile").data)
}

/// Stacks of a profile, root first, with their weights.
fn folded(profile: &Profile) -> BTreeMap<String, u64> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for (key, value) in &profile.samples {
        let frames = profile.dict.stacks.leaf_first(key.stack);
        let mut names: Vec<_> = frames.map(|of| profile.dict.frame(of).function).collect();
        names.reverse();
        *all.entry(names.join(";")).or_default() += value.weight;
    }
    all
}

fn expected(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let all = of.iter().map(|&(stack, weight)| (stack.to_owned(), weight));
    all.collect()
}

#[tokio::test]
async fn captures_of_one_type_are_added_up_each_in_its_own_time() {
    let stage = Stage::set().await;
    stage.keep(&Capture::waits(1, 100, &[("main;wait", 50), ("main", 7)]));
    stage.keep(&Capture::waits(2, 200, &[("main;wait", 5)]));
    assert_eq!(
        stage.stacks(WAITS, (0, 1000)),
        expected(&[("main", 7), ("main;wait", 55)])
    );
    assert_eq!(
        stage.stacks(WAITS, (200, 210)),
        expected(&[("main;wait", 5)])
    );
    assert_eq!(stage.stacks(WAITS, (110, 200)), expected(&[]));
    assert_eq!(stage.stacks(FAULTS, (0, 1000)), expected(&[]));
    let kept = stage.of(&Caller::local(), WAITS).kept().expect("a range");
    assert_eq!(kept, Some(seconds(100, 210)));
}

#[tokio::test]
async fn parts_of_a_range_add_up_to_all_of_it_in_every_answer() {
    let stage = Stage::set().await;
    // Five seconds each in two steps, without times.
    stage.keep(&Capture::waits(1, 105, &[("main;wait", 51), ("main", 8)]));
    let store = stage.of(&Caller::local(), WAITS);
    let first = stage.stacks(WAITS, (100, 110));
    assert_eq!(first, expected(&[("main", 4), ("main;wait", 25)]));
    let second = stage.stacks(WAITS, (110, 120));
    assert_eq!(second, expected(&[("main", 4), ("main;wait", 26)]));
    let series = store.series(&scope((0, 300), ""), &[], 10 * SECOND as u64, &limits());
    let series = series.expect("a series");
    assert_eq!(series.quality.total.weight, 59);
    let line = &series.data.lines[0].weights;
    let steps: Vec<_> = (0..).zip(line).filter(|(_, weight)| **weight > 0).collect();
    assert_eq!(steps, [(10, &29), (11, &30)]);
    let known: Vec<u64> = series.data.steps[9..13]
        .iter()
        .map(|step| step.hosts)
        .collect();
    assert_eq!(known, [0, 1, 1, 0], "no data is not 0");
    for (range, weight) in [((0, 110), 29), ((110, 300), 30), ((0, 300), 59)] {
        let totals = store.totals(&scope(range, ""), &[], &limits());
        assert_eq!(
            totals.expect("totals").quality.total.weight,
            weight,
            "{range:?}"
        );
    }
}

#[tokio::test]
async fn a_host_that_was_captured_twice_in_a_step_is_one_host_of_it() {
    let stage = Stage::set().await;
    stage.keep(&Capture::waits(1, 100, &[("main", 40)]));
    stage.keep(&Capture::waits(2, 120, &[("main", 40)]));
    let of = Capture::waits(3, 120, &[("main", 40)]);
    stage.keep(&Capture {
        namespace: "other",
        ..of
    });
    let store = stage.of(&Caller::local(), WAITS);
    let series = store.series(&scope((0, 300), ""), &[], 300 * SECOND as u64, &limits());
    let step = &series.expect("a series").data.steps[0];
    assert_eq!((step.hosts, step.covered_ns), (2, 30 * SECOND as u64));
}

#[tokio::test]
async fn labels_select_and_group_without_stacks_and_with_them() {
    let stage = Stage::set().await;
    for (id, namespace) in [(1, "a"), (2, "b")] {
        let of = Capture::waits(id, 100, &[("main", 10)]);
        stage.keep(&Capture { namespace, ..of });
    }
    let store = stage.of(&Caller::local(), WAITS);
    let names = store.label_names(&scope((0, 1000), ""), &limits());
    assert_eq!(names.expect("names"), ["comm", "host"]);
    let values = store.label_values(&scope((0, 1000), "comm=c"), "host", "", 1, &limits());
    assert_eq!(values.expect("values"), (vec!["a".to_owned()], true));
    let by = ["host".to_owned()];
    let totals = store.totals(&scope((0, 1000), "host=b"), &by, &limits());
    let rows = totals.expect("totals").data;
    assert_eq!((rows.len(), rows[0].labels.get("host")), (1, "b"));
    let query = Query::new(
        "host=b".parse().unwrap(),
        Vec::new(),
        GroupBy::from_keys(&by),
    );
    let found = store.profile(seconds(0, 1000), &query.unwrap(), &limits());
    let found = found.expect("a profile");
    assert_eq!(found.data.total().weight, 10);
    assert_eq!((found.quality.hosts, found.quality.sampling.lost), (1, 3));
}

#[tokio::test]
async fn each_unit_and_event_is_a_type_of_its_own() {
    let stage = Stage::set().await;
    let of = Capture::waits(1, 100, &[("main", 10)]);
    stage.keep(&of);
    let faults = ("page-faults", "faults");
    stage.keep(&Capture {
        id: 2,
        of: faults,
        ..of
    });
    assert_eq!(stage.types(&Caller::local()), [WAITS, FAULTS]);
    let all = stage.captured.seen_by(&Caller::local(), None);
    let refused = all.totals(&scope((0, 1000), ""), &[], &limits());
    assert!(
        matches!(refused, Err(StoreError::Units(_))),
        "no sum of both"
    );
    let own = LabelMatcher::new(PROFILE_TYPE, MatchOp::Equal, FAULTS).expect("a matcher");
    let own = Scope {
        range: seconds(0, 1000),
        selector: Selector::new(vec![own]).expect("a selector"),
    };
    let by = [PROFILE_TYPE.to_owned()];
    let rows = all.totals(&own, &by, &limits()).expect("totals").data;
    assert_eq!(rows[0].labels.get(PROFILE_TYPE), FAULTS);
}

#[tokio::test]
async fn a_capture_in_a_coarser_unit_adds_to_those_in_the_finer_one() {
    let stage = Stage::set().await;
    let fine = Capture::waits(1, 100, &[("main", 7)]);
    stage.keep(&fine);
    let coarse = (OFF_CPU, "microseconds");
    stage.keep(&Capture {
        id: 2,
        of: coarse,
        ..fine
    });
    assert_eq!(stage.types(&Caller::local()), [WAITS]);
    assert_eq!(stage.stacks(WAITS, (0, 1000)), expected(&[("main", 7007)]));
}

#[tokio::test]
async fn a_scope_hides_a_capture_with_its_type_its_labels_and_its_time() {
    let stage = Stage::set().await;
    let own = Capture::waits(1, 100, &[("main", 10)]);
    stage.keep(&own);
    stage.keep(&Capture {
        id: 2,
        from: 500,
        of: ("uprobe:/kanarie:f", "calls"),
        namespace: "kanarie",
        stacks: &[("kanarie", 9)],
    });
    stage.keep(&Capture {
        id: 3,
        from: 700,
        namespace: "kanarie",
        ..own
    });
    let eve = caller("namespace=n");
    // The answers of those who see all are known when she asks.
    assert_eq!(stage.stacks(WAITS, (0, 1000)), expected(&[("main", 20)]));
    assert_eq!(stage.types(&eve), [WAITS]);
    let all = stage.captured.seen_by(&eve, None);
    assert_eq!(all.kept().expect("a range"), Some(seconds(100, 110)));
    let store = stage.of(&eve, WAITS);
    let hosts = store.label_values(&scope((0, 1000), ""), "host", "", 9, &limits());
    assert_eq!(hosts.expect("hosts").0, ["n"]);
    assert_eq!(stacks(&*store, seconds(0, 1000)), expected(&[("main", 10)]));
    let series = store.series(&scope((0, 1000), ""), &[], 10 * SECOND as u64, &limits());
    let steps = series.expect("a series").data.steps;
    assert_eq!(steps.iter().map(|step| step.weight).sum::<u64>(), 10);
    let nobody = caller("namespace=other");
    assert!(stage.types(&nobody).is_empty());
    let kept = stage.captured.seen_by(&nobody, None).kept();
    assert_eq!(kept.expect("nothing"), None);
}

#[tokio::test]
async fn who_sees_parts_of_hosts_sees_no_wakers_and_no_counts_of_hosts() {
    let stage = Stage::set().await;
    let waits = "main;wait;[woken by kanarie];kanarie";
    stage.keep(&Capture::waits(1, 100, &[(waits, 10)]));
    let range = seconds(0, 1000);
    let all = stage.of(&Caller::local(), WAITS);
    assert_eq!(stacks(&*all, range), expected(&[(waits, 10)]));
    let found = stage.of(&caller("namespace=n"), WAITS);
    let found = found.profile(range, &Query::default(), &limits());
    let found = found.expect("a profile");
    assert_eq!(folded(&found.data), expected(&[("main;wait", 10)]));
    assert_eq!(found.quality.sampling.lost, 0);
}

#[tokio::test]
async fn a_capture_that_is_removed_is_in_no_answer_any_more() {
    let stage = Stage::set().await;
    stage.keep(&Capture::waits(1, 100, &[("main", 10)]));
    stage.keep(&Capture::waits(2, 200, &[("main", 5)]));
    let source = Source {
        kept: stage.kept.clone(),
        indexes: Arc::default(),
        caller: Caller::clone(&Caller::local()),
        of: None,
    };
    let found = source.found(None, &Selector::default()).expect("a list");
    assert_eq!(stage.stacks(WAITS, (0, 1000)), expected(&[("main", 15)]));
    stage.kept.remove(1).expect("removed");
    assert_eq!(stage.stacks(WAITS, (0, 1000)), expected(&[("main", 5)]));
    assert_eq!(
        stage.of(&Caller::local(), WAITS).kept().unwrap(),
        Some(seconds(200, 210))
    );
    // As to somebody who had the list before.
    let limits = limits();
    let mut budget = QueryBudget::new(&limits);
    assert!(
        source
            .read(&found[0], &mut budget)
            .expect("no error")
            .is_none()
    );
    assert_eq!(budget.left_out().count(), 0, "nothing is damaged");
}

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 0x40;
    std::fs::write(path, bytes).expect("written");
}

#[tokio::test]
async fn a_damaged_file_is_named_and_the_others_answer() {
    let stage = Stage::set().await;
    stage.keep(&Capture::waits(1, 100, &[("main", 10)]));
    stage.keep(&Capture::waits(2, 200, &[("main", 5)]));
    damage(&stage.path(1));
    let store = stage.of(&Caller::local(), WAITS);
    let found = store.profile(seconds(0, 1000), &Query::default(), &limits());
    let found = found.expect("a profile");
    assert_eq!(folded(&found.data), expected(&[("main", 5)]));
    assert_eq!(found.quality.damaged, ["capture 1"]);
    let totals = store.totals(&scope((0, 1000), ""), &[], &limits());
    assert_eq!(totals.expect("totals").quality.damaged, ["capture 1"]);
    let hidden = stage.of(&caller("namespace=other"), WAITS);
    let found = hidden.profile(seconds(0, 1000), &Query::default(), &limits());
    assert_eq!(found.expect("nothing").quality.damaged, [""; 0]);
}

#[tokio::test]
async fn a_thousand_captures_are_listed_from_their_heads_and_added_up_one_by_one() {
    let stage = Stage::set().await;
    for id in 1..=1000 {
        stage.keep(&Capture::waits(id, 100 * id as i64, &[("main", 10)]));
    }
    assert_eq!(
        stage.stacks(WAITS, (0, 200_000)),
        expected(&[("main", 10_000)])
    );
    let store = stage.of(&Caller::local(), WAITS);
    let totals = store.totals(&scope((0, 200_000), ""), &[], &limits());
    assert_eq!(totals.expect("totals").quality.total.weight, 10_000);
    for id in 1..=1000 {
        std::fs::remove_file(stage.path(id)).expect("a file");
    }
    assert_eq!(stage.types(&Caller::local()), [WAITS], "no file is read");
    assert_eq!(stage.types(&caller("namespace=n")), [WAITS]);
}

#[tokio::test]
async fn a_question_is_held_to_its_memory_and_its_caller() {
    let stage = Stage::set().await;
    stage.keep(&Capture::waits(1, 100, &[("main", 10)]));
    let store = stage.of(&Caller::local(), WAITS);
    let small = Limits {
        memory_bytes: 100,
        ..limits()
    };
    let gone = limits();
    gone.cancel.cancel();
    let all = scope((0, 1000), "");
    for (limits, is_large) in [(&small, true), (&gone, false)] {
        let profile = store.profile(all.range, &Query::default(), limits);
        let names = store.label_names(&all, limits);
        for failed in [profile.map(drop), names.map(drop)] {
            let failed = failed.expect_err("refused");
            assert_eq!(
                matches!(failed, StoreError::TooLarge(_)),
                is_large,
                "{failed}"
            );
            assert_eq!(
                matches!(failed, StoreError::Cancelled),
                !is_large,
                "{failed}"
            );
        }
    }
}

#[tokio::test]
async fn without_captures_there_is_nothing_to_ask() {
    let stage = Stage::set().await;
    assert!(stage.captured.is_empty());
    stage.keep(&Capture::waits(1, 100, &[("main", 10)]));
    assert!(!stage.captured.is_empty());
    stage.kept.remove(1).expect("removed");
    assert!(stage.captured.is_empty());
}
