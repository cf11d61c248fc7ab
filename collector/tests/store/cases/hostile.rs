//! Text and numbers that strangers choose.

use crate::store::draft::{Draft, frame, push, store_all};
use crate::store::{Engine, Fresh, Place, ample, at, hour, names, query, range, scope, whole_hour};
use collector::store::{LabelSet, PushOutcome, Scope};
use profile::{
    FrameKind, FrameRef, LabelMatcher, MatchOp, Selector, StackEnd, UnnamedReason, Value,
};

/// Text that ends literals, patterns, lines and statements elsewhere.
const HOSTILE: &[&str] = &[
    "'",
    "''",
    "\"",
    "`",
    "\\",
    "\\'",
    "\\N",
    "' OR 1=1 --",
    "'; DROP TABLE samples; --",
    "\"}); DROP DATABASE default; /*",
    "{x:String}",
    "?",
    "??",
    "%s%n",
    "%",
    "_",
    "\0",
    "a\0b",
    "\n",
    "a\r\nb",
    "\t",
    "--boundary\r\nContent-Disposition: form-data",
    "&param_x=1",
    "+",
    "%27",
    "\u{feff}",
    "\u{202e}",
    "\u{10ffff}",
    "ﷺ",
    "[1,2]",
    "{'a':'b'}",
    " ",
    "NULL",
];

pub fn labels_are_only_text(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut draft = Draft::new("a", 1, 0);
    for (at, text) in HOSTILE.iter().enumerate() {
        let name = format!("n{text}");
        let labels = draft.labels_of([(name.as_str(), *text), ("value", *text)]);
        let value = Value {
            count: at as u64 + 1,
            weight: at as u64 + 1,
        };
        draft = draft.sample(&labels, &[frame("f")], StackEnd::Complete, value);
    }
    store_all(&*store, &[draft]);
    let all = scope(hour(), "");
    let mut expected: Vec<String> = HOSTILE.iter().map(|text| format!("n{text}")).collect();
    expected.extend(names(&["host", "value"]));
    expected.sort();
    assert_eq!(store.label_names(&all, &ample()).unwrap(), expected);
    let mut expected = names(HOSTILE);
    expected.sort();
    let values = store
        .label_values(&all, "value", "", 999, &ample())
        .unwrap();
    assert_eq!(values, (expected, false));

    for (at, text) in HOSTILE.iter().enumerate() {
        let name = format!("n{text}");
        let count = at as u64 + 1;
        let matcher = LabelMatcher::new(name.clone(), MatchOp::Equal, *text).unwrap();
        let scope = Scope {
            range: hour(),
            selector: Selector::new(vec![matcher]).unwrap(),
        };
        let (values, _) = store
            .label_values(&scope, &name, text, 9, &ample())
            .unwrap();
        assert_eq!(values, [*text]);
        let rows = store
            .totals(&scope, std::slice::from_ref(&name), &ample())
            .unwrap()
            .data;
        assert_eq!(rows.len(), 1, "{text:?}");
        assert_eq!(rows[0].labels, LabelSet::new([(name, (*text).to_owned())]));
        assert_eq!(rows[0].taken.count, count, "{text:?}");
    }
}

pub fn functions_are_only_text(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let long = "x".repeat(70_000);
    let texts: Vec<&str> = HOSTILE.iter().copied().chain([long.as_str()]).collect();
    let frames = |text| {
        [FrameKind::Native, FrameKind::Inlined].map(|kind| FrameRef {
            kind,
            unnamed: UnnamedReason::Limit,
            function: text,
            system_name: "'; --\u{0}\u{1b}[2J",
            module: text,
            file: text,
            line: u32::MAX,
            start_line: u32::MAX,
        })
    };
    let mut draft = Draft::new("a", 1, 0);
    let labels = draft.labels("unit=u");
    let value = Value {
        count: 1,
        weight: 1,
    };
    for text in &texts {
        draft = draft.sample(&labels, &frames(text), StackEnd::Complete, value);
    }
    let deep: Vec<FrameRef<'_>> = (0..2000).map(|_| frame("deep")).collect();
    draft = draft.sample(&labels, &deep, StackEnd::DepthLimit, value);
    store_all(&*store, &[draft]);
    let store = store.reopened();
    let data = whole_hour(&*store).data;
    let mut path = Vec::new();
    let mut found: Vec<String> = Vec::new();
    for key in data.samples.keys() {
        data.dict.stacks.root_first(key.stack, &mut path);
        if path.len() == 2000 {
            continue;
        }
        let function = data.dict.frame(path[0]).function;
        let read: Vec<_> = path.iter().map(|&id| data.dict.frame(id)).collect();
        assert_eq!(read, frames(function));
        found.push(function.to_owned());
    }
    found.sort();
    let mut expected = names(&texts);
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(data.samples.len(), texts.len() + 1);
}

pub fn long_labels_are_kept_whole(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let long = "é'".repeat(22_000);
    let draft = Draft::new("a", 1, 0);
    let labels = draft.labels_of([("long", long.as_str())]);
    let value = Value {
        count: 1,
        weight: 1,
    };
    store_all(
        &*store,
        &[draft.sample(&labels, &[frame("f")], StackEnd::Complete, value)],
    );
    let values = store.label_values(&scope(hour(), ""), "long", "é'é", 9, &ample());
    assert_eq!(values.unwrap(), (vec![long], false));
}

pub fn numbers_at_their_limits_harm_nothing_else(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let huge = |sequence: u64| {
        Draft::new("b", sequence, 60 * sequence as i64)
            .row("unit=huge", "f", u64::MAX)
            .account("/", u64::MAX, u64::MAX)
            .with(|window| {
                window.rows[0].value.weight = u64::MAX;
                window.period = u64::MAX;
                window.origin.sequence = u64::MAX - sequence;
                window.quality.idle = u64::MAX;
            })
    };
    let plain = Draft::new("a", 1, 0).row("unit=u", "f", 3);
    let taken = push(&*store, &[huge(1), plain, huge(2)]);
    assert_eq!(taken[1], PushOutcome::Stored);
    let answer = store
        .profile(hour(), &query("unit=u", &[]), &ample())
        .unwrap();
    assert_eq!(answer.quality.total.count, 3);
    let answer = store
        .profile(hour(), &query("unit=huge", &[]), &ample())
        .unwrap();
    let all_refused = matches!(&taken[0], PushOutcome::Rejected(_));
    let expected = if all_refused { 0 } else { u64::MAX };
    assert_eq!(
        answer.quality.total.count, expected,
        "refused or saturated, never wrapped"
    );
    assert_eq!(answer.quality.total.weight, expected);
    // Steps and ranges that overflow when multiplied.
    for step_ns in [1 << 62, u64::MAX / 2] {
        let series = store.series(&scope(hour(), "unit=u"), &[], step_ns, &ample());
        assert_eq!(series.unwrap().quality.total.count, 3);
    }
    let kept = store.kept().unwrap().unwrap();
    assert!(kept.start_unix_ns == at(0) && kept.end_unix_ns <= range(0, 130).end_unix_ns);
}
