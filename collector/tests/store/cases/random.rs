//! Random windows and questions: an engine answers as the model does.

use crate::store::draft::{Draft, definitions, windows};
use crate::store::model::{Model, without_reports};
use crate::store::text::{lines, samples, totals};
use crate::store::{Engine, Fresh, NOW_NS, Place, SECOND, ample, bare, names, query, range, scope};
use collector::store::{
    AccountedSeries, LabelSet, LabelTotals, PushOutcome, SAMPLE_LABELS, Store, StoreQueries as _,
    TimeRange, WindowSink as _,
};
use profile::{CostBy, Costs, Dictionary, StackEnd, Throttling, TopSort};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

/// Rounds of random data; each is several pushes and questions.
const ROUNDS: u32 = 2;
/// As many as find what a few do not.
const MANY_ROUNDS: u32 = 12;

#[derive(Clone, Debug)]
pub struct Push {
    pub windows: Vec<Choice>,
    with_definitions: bool,
}

#[derive(Clone, Debug)]
pub struct Choice {
    host: u8,
    boot: u8,
    sequence: u64,
    length_s: i64,
    measured: bool,
    rows: Vec<(u8, u8, u8, u64)>,
}

#[derive(Clone, Debug)]
pub struct Question {
    start_s: i64,
    length_s: i64,
    selector: usize,
    group_by: usize,
    pub step_s: u64,
}

impl Question {
    /// Its selector, and the labels that it keeps.
    pub fn texts(&self) -> (&'static str, &'static [&'static str]) {
        (SELECTORS[self.selector], GROUPS[self.group_by])
    }

    pub fn range(&self) -> TimeRange {
        range(self.start_s, self.start_s + self.length_s)
    }
}

const SELECTORS: &[&str] = &[
    "",
    "host=h1",
    "unit=web",
    "unit!=web",
    "unit=~\"w.*|\"",
    "cgroup^=/s",
    "host!=h0,comm=~\".+\"",
    "unit=\"\"",
];
const GROUPS: &[&[&str]] = &[
    &[],
    &["unit"],
    &["host", "cgroup"],
    &["comm", "unit"],
    &["*"],
];
const LABELS: &[&str] = &[
    "unit=web,cgroup=/s/web",
    "unit=web,cgroup=/s/web,comm=a",
    "unit=db,cgroup=/s/db",
    "cgroup=/",
    "comm=b",
];
const STACKS: &[&str] = &[
    "main",
    "main;a",
    "main;a;b",
    "main;c",
    "x;a;b",
    "",
    "main;a;b;c;d",
    "?y",
];

fn choices() -> impl Strategy<Value = Choice> {
    let row = (
        0..LABELS.len() as u8,
        0..STACKS.len() as u8,
        0..16u8,
        0..50u64,
    );
    let rows = proptest::collection::vec(row, 0..8);
    let length = prop_oneof![Just(10i64), Just(1), Just(60)];
    (0..3u8, 1..3u8, 0..40u64, length, any::<bool>(), rows).prop_map(
        |(host, boot, sequence, length_s, measured, rows)| Choice {
            host,
            boot,
            sequence,
            length_s,
            measured,
            rows,
        },
    )
}

pub fn pushes() -> impl Strategy<Value = Vec<Push>> {
    let push = (proptest::collection::vec(choices(), 1..6), any::<bool>());
    let push = push.prop_map(|(windows, with_definitions)| Push {
        windows,
        with_definitions,
    });
    proptest::collection::vec(push, 2..8)
}

pub fn questions() -> impl Strategy<Value = Vec<Question>> {
    let length = prop_oneof![Just(600i64), Just(3600), Just(7200), 10..4000i64];
    let start = prop_oneof![Just(0i64), Just(600), Just(3600), 0..6000i64];
    let step = prop_oneof![Just(10u64), Just(60), Just(600), Just(3600), Just(70)];
    let question = (start, length, 0..SELECTORS.len(), 0..GROUPS.len(), step).prop_map(
        |(start_s, length_s, selector, group_by, step_s)| Question {
            start_s,
            length_s,
            selector,
            group_by,
            step_s,
        },
    );
    proptest::collection::vec(question, 4..6)
}

pub fn draft(choice: &Choice) -> Draft {
    // The time follows from the sequence, as it does for a repeat.
    let start_s = choice.sequence as i64 * 170 + i64::from(choice.boot);
    let host = format!("h{}", choice.host);
    let mut draft = Draft::new(&host, choice.sequence, start_s)
        .boot(choice.boot)
        .lasting(choice.length_s);
    for &(labels, stack, end, count) in &choice.rows {
        let (labels, stack) = (LABELS[labels as usize], STACKS[stack as usize]);
        draft = match StackEnd::from_u8(end) {
            Some(StackEnd::Lost) | None => draft.lost(labels, count),
            Some(end) => draft.ended(labels, stack, end, count),
        };
    }
    if choice.measured {
        draft = draft.account("/s/web", choice.sequence * 1000, choice.sequence);
        // Known in two windows of three, as of agents of two versions.
        draft = match choice.sequence % 3 {
            0 => draft,
            1 => draft.throttled(0, 0),
            _ => draft.throttled(choice.sequence * 700, choice.sequence),
        };
        draft = draft.account("/", choice.sequence * 2000 + 1, choice.sequence);
    }
    if !choice.sequence.is_multiple_of(4) {
        draft = draft.pressure(choice.sequence * 30, choice.sequence, choice.sequence % 4);
    }
    draft
}

fn same_taken(left: &[PushOutcome], right: &[PushOutcome]) {
    let sorted = |taken: &PushOutcome| match taken {
        PushOutcome::NeedStacks(stacks) => {
            let mut stacks = stacks.clone();
            stacks.sort();
            PushOutcome::NeedStacks(stacks)
        }
        other => other.clone(),
    };
    let sorted = |all: &[PushOutcome]| all.iter().map(sorted).collect::<Vec<_>>();
    assert_eq!(sorted(left), sorted(right));
}

fn ask(store: &dyn Store, model: &Model, question: &Question) {
    let (text, by) = question.texts();
    let asked = question.range();
    let widened = |covered: TimeRange, step_ns: u64| {
        let step = step_ns as i64;
        assert!(covered.start_unix_ns <= asked.start_unix_ns, "{question:?}");
        assert!(covered.end_unix_ns >= asked.end_unix_ns, "{question:?}");
        assert!(
            asked.start_unix_ns - covered.start_unix_ns < step,
            "{question:?}"
        );
        assert!(
            covered.end_unix_ns - asked.end_unix_ns < step,
            "{question:?}"
        );
        covered
    };
    let of_query = query(text, by);
    let answer = store.profile(asked, &of_query, &ample()).unwrap();
    let covered = widened(answer.quality.covered, answer.quality.resolution.step_ns);
    let expected = model.profile(covered, &of_query, &ample()).unwrap();
    assert_eq!(
        samples(&answer.data),
        samples(&expected.data),
        "{question:?}"
    );
    for by in [CostBy::Function, CostBy::Module] {
        let costs = store.costs(asked, &of_query, by, &ample()).unwrap();
        assert_eq!(costs.quality, answer.quality, "{question:?}");
        assert_eq!(
            costs.data.into_top(TopSort::Total, usize::MAX),
            Costs::of(&expected.data, by).into_top(TopSort::Total, usize::MAX),
            "{question:?}"
        );
    }
    let mut quality = answer.quality.clone();
    quality.resolution = expected.quality.resolution;
    if answer.data.samples.is_empty() {
        quality.unit.clone_from(&expected.quality.unit);
    }
    if quality.gaps.len() < collector::store::GAPS_MAX {
        let order = |of: &mut Vec<(_, collector::store::Gap)>| {
            of.sort_by(|left, right| (&left.0, left.1.range).cmp(&(&right.0, right.1.range)));
        };
        let mut of_model = expected.quality.clone();
        order(&mut quality.gaps);
        order(&mut of_model.gaps);
        assert_eq!(quality, of_model, "{question:?}");
    }

    let (of_scope, by) = (scope(asked, text), names(by));
    let step_ns = question.step_s * SECOND as u64;
    let answer = store.series(&of_scope, &by, step_ns, &ample()).unwrap();
    let coarsest = answer.quality.resolution.step_ns.max(step_ns);
    let covered = widened(answer.quality.covered, coarsest);
    let expected = model
        .series(&scope(covered, text), &by, step_ns, &ample())
        .unwrap();
    assert_eq!(lines(&answer.data), lines(&expected.data), "{question:?}");
    assert_eq!(
        answer.data.start_unix_ns, expected.data.start_unix_ns,
        "{question:?}"
    );
    assert_eq!(answer.quality.total, expected.quality.total, "{question:?}");
    let bare = store.series(&of_scope, &by, step_ns, &bare()).unwrap();
    assert_eq!(bare, without_reports(answer), "{question:?}");

    let answer = store.totals(&of_scope, &by, &ample()).unwrap();
    let covered = widened(answer.quality.covered, answer.quality.resolution.step_ns);
    let expected = model.totals(&scope(covered, text), &by, &ample()).unwrap();
    assert_eq!(totals(&answer.data), totals(&expected.data), "{question:?}");
    assert_eq!(answer.quality.total, expected.quality.total, "{question:?}");
    let throttling = |rows: &[LabelTotals]| -> BTreeMap<LabelSet, Throttling> {
        let rows = rows.iter().map(|row| (row.labels.clone(), row.throttling));
        rows.filter(|(_, of)| *of != Throttling::default())
            .collect()
    };
    assert_eq!(
        throttling(&answer.data),
        throttling(&expected.data),
        "{question:?}"
    );

    // Samples have labels that accounts lack.
    if SAMPLE_LABELS.iter().any(|label| text.contains(label)) {
        return;
    }
    let by = vec!["host".to_owned(), "cgroup".to_owned()];
    let answer = store.accounted(&of_scope, &by, step_ns, &ample()).unwrap();
    let coarsest = answer.quality.resolution.step_ns.max(step_ns);
    let covered = widened(answer.quality.covered, coarsest);
    let expected = model
        .accounted(&scope(covered, text), &by, step_ns, &ample())
        .unwrap();
    let waiting = |mut data: AccountedSeries| {
        data.throttled.sort_by(|a, b| a.labels.cmp(&b.labels));
        (data.throttled, data.throttling_known, data.pressure)
    };
    assert_eq!(waiting(answer.data), waiting(expected.data), "{question:?}");
}

pub fn answers_are_those_of_the_model(engine: &dyn Engine, _: Box<dyn Place>) {
    check_rounds(engine, ROUNDS);
}

pub fn answers_of_many_rounds_are_those_of_the_model(engine: &dyn Engine, _: Box<dyn Place>) {
    check_rounds(engine, MANY_ROUNDS);
}

fn check_rounds(engine: &dyn Engine, times: u32) {
    let strategy = (pushes(), questions(), 0..8usize);
    rounds(times, &strategy, |(pushes, questions, reopen_after)| {
        let place = engine.place().expect("it was there a moment ago");
        let (mut store, model) = (Fresh::of(place), Model::default());
        for (at, push) in pushes.iter().enumerate() {
            let drafts: Vec<_> = push.windows.iter().map(draft).collect();
            let given = if push.with_definitions || !engine.knows_stacks_of_all_hosts() {
                definitions(&drafts)
            } else {
                Dictionary::default()
            };
            let windows = windows(&drafts);
            let taken = store.push(&windows, &given, NOW_NS).unwrap();
            same_taken(&taken, &model.push(&windows, &given, NOW_NS).unwrap());
            if at == reopen_after {
                store = store.reopened();
            }
        }
        for question in &questions {
            ask(&*store, &model, question);
        }
    });
}

/// Checks so many random values, the same ones each time.
pub fn rounds<S: Strategy>(times: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = Config {
        cases: times,
        failure_persistence: None,
        max_shrink_iters: 20,
        ..Config::default()
    };
    let checked = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    )
    .run(strategy, |value| {
        check(value);
        Ok(())
    });
    checked.unwrap();
}
