//! What becomes of pushed windows: stored once, repeated, missing stacks, refused.

use crate::store::draft::{Draft, definitions, push, store_all, windows};
use crate::store::text::{assert_adds_up, short};
use crate::store::{BEGIN_NS, Engine, Fresh, NOW_NS, Place, SECOND, ample, range, whole_hour};
use collector::store::{PushOutcome, Store};
use profile::{ContentId, Dictionary, Query, Remap, StackEnd, StackId, Value};

fn web(sequence: u64, start_s: i64) -> Draft {
    Draft::new("a", sequence, start_s).row("unit=web", "main;work", 3)
}

fn windows_of(store: &dyn Store) -> u64 {
    whole_hour(store).quality.windows
}

pub fn a_pushed_window_is_answered(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0).row("unit=db", "main;read", 1)]);
    let answer = whole_hour(&*store);
    assert_eq!(
        short(&answer.data),
        [
            "{unit=db} main;read complete 1",
            "{unit=web} main;work complete 3"
        ]
    );
    assert_adds_up(&answer);
    assert_eq!(answer.quality.windows, 1);
    assert_eq!(answer.quality.unit, "nanoseconds");
    assert_eq!(answer.data.info.event, "cpu-clock");
}

pub fn a_push_of_nothing_is_nothing(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    assert_eq!(push(&*store, &[]), []);
    assert_eq!(windows_of(&*store), 0);
}

pub fn a_repeat_in_one_call_counts_once(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let taken = push(&*store, &[web(1, 0), web(1, 0), web(2, 10)]);
    assert_eq!(
        taken,
        [
            PushOutcome::Stored,
            PushOutcome::Duplicate,
            PushOutcome::Stored
        ]
    );
    let answer = whole_hour(&*store);
    assert_eq!((answer.quality.total.count, answer.quality.windows), (6, 2));
}

pub fn a_repeat_in_a_later_call_counts_once(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0)]);
    let taken = push(&*store, &[web(1, 0), web(2, 10)]);
    assert_eq!(taken, [PushOutcome::Duplicate, PushOutcome::Stored]);
    let answer = whole_hour(&*store);
    assert_eq!((answer.quality.total.count, answer.quality.windows), (6, 2));
}

pub fn a_repeat_after_reopening_counts_once(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0), web(2, 10)]);
    let store = store.reopened();
    let taken = push(&*store, &[web(2, 10), web(3, 20)]);
    assert_eq!(taken, [PushOutcome::Duplicate, PushOutcome::Stored]);
    let answer = whole_hour(&*store);
    assert_eq!((answer.quality.total.count, answer.quality.windows), (9, 3));
}

pub fn a_repeat_that_says_another_time_counts_once(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0), web(2, 10)]);
    // Another step, another chunk, another day: nowhere is it another window.
    let again = [
        web(1, 20).numbered_as(&web(1, 0)),
        web(1, 1800).numbered_as(&web(1, 0)),
        web(2, -2 * 3600).numbered_as(&web(2, 10)),
    ];
    let repeated = [
        PushOutcome::Duplicate,
        PushOutcome::Duplicate,
        PushOutcome::Duplicate,
    ];
    assert_eq!(push(&*store, &again), repeated);
    let store = store.reopened();
    assert_eq!(push(&*store, &again), repeated);
    let all = range(-3 * 86_400, 3600);
    let answer = store.profile(all, &Query::default(), &ample()).unwrap();
    assert_eq!((answer.quality.total.count, answer.quality.windows), (6, 2));
}

pub fn a_sequence_of_another_boot_is_another_window(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0), web(1, 60).boot(2)]);
    let other = Draft::new("b", 1, 0).row("unit=web", "main;work", 5);
    store_all(&*store, &[other]);
    assert_eq!(whole_hour(&*store).quality.total.count, 11);
}

pub fn a_window_waits_for_stacks_that_are_not_known(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let known = web(1, 0);
    let waiting = Draft::new("a", 2, 10)
        .row("unit=web", "main;work", 1)
        .row("unit=web", "main;other", 1)
        .row("unit=db", "main;other", 1)
        .row("unit=web", "main;third", 1);
    let both = windows(&[known.clone(), waiting.clone()]);
    let taken = store.push(&both, &definitions(&[known]), NOW_NS).unwrap();
    assert_eq!(taken[0], PushOutcome::Stored);
    let PushOutcome::NeedStacks(mut missing) = taken[1].clone() else {
        panic!("{:?}", taken[1]);
    };
    let mut expected = vec![waiting.window.rows[1].stack, waiting.window.rows[3].stack];
    missing.sort();
    expected.sort();
    assert_eq!(missing, expected);
    assert_eq!(whole_hour(&*store).quality.total.count, 3);

    store_all(&*store, &[waiting]);
    let answer = whole_hour(&*store);
    assert_eq!((answer.quality.total.count, answer.quality.windows), (7, 2));
    assert_adds_up(&answer);
}

pub fn a_window_is_asked_once_for_all_it_lacks(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    // The mate defines a part of what the other names, and stands before it, behind it, or is
    // refused.
    for (turn, (is_before, is_refused)) in [(true, false), (false, false), (true, true)]
        .into_iter()
        .enumerate()
    {
        let [deep, part, own] = ["b;c", "b", "own"].map(|rest| format!("turn{turn};{rest}"));
        let length = if is_refused { -10 } else { 10 };
        let mate = Draft::new("a", turn as u64, 0).row("unit=web", &deep, 1);
        let mate = mate.lasting(length);
        let waiting = Draft::new("b", turn as u64, 0)
            .row("unit=web", &part, 1)
            .row("unit=web", &own, 1);
        let given = definitions(std::slice::from_ref(&mate));
        let mut both = windows(&[mate, waiting.clone()]);
        if !is_before {
            both.reverse();
        }
        let taken = store.push(&both, &given, NOW_NS).unwrap();
        let PushOutcome::NeedStacks(asked) = &taken[usize::from(is_before)] else {
            panic!("turn {turn}: {taken:?}");
        };
        // The answer has what was asked for and no more, and comes alone.
        let mut answer = Dictionary::default();
        let mut remap = Remap::default();
        for (at, id) in waiting.stacks.content_ids().iter().enumerate() {
            if asked.contains(id) {
                remap.stack(&waiting.stacks, &mut answer, StackId(at as u32));
            }
        }
        let again = store.push(&windows(&[waiting]), &answer, NOW_NS).unwrap();
        assert_eq!(again, [PushOutcome::Stored], "turn {turn}");
    }
    assert_eq!(windows_of(&*store), 5);
}

pub fn stacks_are_known_from_then_on(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, 0)]);
    let nothing = Dictionary::default();
    let later = windows(&[web(2, 10)]);
    assert_eq!(
        store.push(&later, &nothing, NOW_NS).unwrap(),
        [PushOutcome::Stored]
    );
    let store = store.reopened();
    let later = windows(&[web(3, 1800)]);
    assert_eq!(
        store.push(&later, &nothing, NOW_NS).unwrap(),
        [PushOutcome::Stored]
    );
    assert_eq!(
        short(&whole_hour(&*store).data),
        ["{unit=web} main;work complete 9"]
    );
}

pub fn stacks_that_no_row_names_are_ignored(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let unused = Draft::new("a", 9, 0).row("unit=web", "nobody;names;this", 1);
    let one = web(1, 0);
    let given = definitions(&[one.clone(), unused]);
    let taken = store.push(&windows(&[one]), &given, NOW_NS).unwrap();
    assert_eq!(taken, [PushOutcome::Stored]);
    assert_eq!(
        short(&whole_hour(&*store).data),
        ["{unit=web} main;work complete 3"]
    );
    // A hash that no frames stand for stays unknown.
    let invented = web(2, 10).with(|window| window.rows[0].stack = ContentId([7; 16]));
    let taken = push(&*store, &[invented]);
    assert_eq!(taken, [PushOutcome::NeedStacks(vec![ContentId([7; 16])])]);
}

pub fn windows_of_the_future_and_of_long_ago_are_refused(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts = [
        web(1, 2 * 86_400),
        web(2, 0).with(|window| {
            window.range.start_unix_ns -= 20 * 365 * 86_400 * SECOND;
            window.range.end_unix_ns -= 20 * 365 * 86_400 * SECOND;
        }),
        web(3, 0),
        web(4, 0).with(|window| {
            window.range.start_unix_ns = i64::MAX - SECOND;
            window.range.end_unix_ns = i64::MAX;
        }),
        web(5, 0).with(|window| {
            window.range.start_unix_ns = i64::MIN;
            window.range.end_unix_ns = i64::MIN + SECOND;
        }),
    ];
    let taken = push(&*store, &drafts);
    for at in [0, 1, 3, 4] {
        let PushOutcome::Rejected(why) = &taken[at] else {
            panic!("{:?}", taken[at]);
        };
        assert!(!why.is_empty());
    }
    assert_eq!(taken[2], PushOutcome::Stored);
    assert_eq!(store.kept().unwrap(), Some(range(0, 10)));
}

pub fn windows_that_make_no_sense_are_refused(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts = [
        web(1, 0).lasting(-10),
        web(2, 0).lasting(3601),
        web(3, 0).with(|window| window.rows[0].labels = 1),
        web(4, 0).with(|window| window.rows[0].labels = u32::MAX),
        web(5, 0)
            .account("/a", 1, 0)
            .with(|window| window.accounts[0].labels = 2),
        web(6, 0).with(|window| {
            window.origin.host.host_id = "x".repeat(profile::fleet::HOST_ID_BYTES_MAX + 1)
        }),
        web(7, 0),
    ];
    let taken = push(&*store, &drafts);
    for refused in &taken[..6] {
        assert!(matches!(refused, PushOutcome::Rejected(_)), "{refused:?}");
    }
    assert_eq!(taken[6], PushOutcome::Stored);
    assert_eq!(windows_of(&*store), 1);
}

pub fn rows_of_one_key_add_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let draft = web(1, 0).row("unit=web", "main;work", 4).ended(
        "unit=web",
        "main;work",
        StackEnd::BrokenChain,
        1,
    );
    store_all(&*store, &[draft]);
    assert_eq!(
        short(&whole_hour(&*store).data),
        [
            "{unit=web} main;work broken_chain 1",
            "{unit=web} main;work complete 7"
        ]
    );
}

pub fn weights_are_kept_as_they_come(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let set = |draft: Draft, count, weight| {
        draft.with(|window| window.rows[0].value = Value { count, weight })
    };
    store_all(
        &*store,
        &[
            set(web(1, 0), 3, 1),
            set(web(2, 10), 0, 17),
            set(web(3, 20), 5, 0),
            set(web(4, 30), 2, 1 << 40).with(|window| window.period = 0),
        ],
    );
    let total = whole_hour(&*store).quality.total;
    assert_eq!(
        total,
        Value {
            count: 10,
            weight: 18 + (1 << 40)
        }
    );
}

pub fn everything_is_there_after_reopening(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    for minute in 0..30 {
        let draft = web(minute, minute as i64 * 60)
            .row(
                "unit=db,comm=pg",
                &format!("main;q{minute};do_read"),
                minute,
            )
            .lost("unit=db", 1)
            .account("/a", 7, 1);
        store_all(&*store, &[draft]);
    }
    let before = whole_hour(&*store);
    let kept = store.kept().unwrap();
    let store = store.reopened();
    let after = whole_hour(&*store);
    assert_eq!(short(&after.data), short(&before.data));
    assert_eq!(after.quality, before.quality);
    assert_eq!(store.kept().unwrap(), kept);
}

pub fn a_window_without_rows_is_a_window(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[Draft::new("a", 1, 0)]);
    assert_eq!(
        push(&*store, &[Draft::new("a", 1, 0)]),
        [PushOutcome::Duplicate]
    );
    let answer = whole_hour(&*store);
    assert_eq!((answer.quality.windows, answer.quality.hosts), (1, 1));
    assert_eq!(answer.quality.total, Value::default());
}

pub fn two_windows_of_one_moment_both_count(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let short_ones = [
        web(1, 0).lasting(3),
        web(2, 3).lasting(7),
        web(3, 0).boot(2),
        web(4, 20).lasting(60),
    ];
    store_all(&*store, &short_ones);
    let answer = whole_hour(&*store);
    assert_eq!(
        (answer.quality.total.count, answer.quality.windows),
        (12, 4)
    );
}

pub fn windows_far_apart_are_both_kept(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[web(1, -2 * 86_400), web(2, 0)]);
    let all = range(-3 * 86_400, 3600);
    let answer = store.profile(all, &Query::default(), &ample()).unwrap();
    assert_eq!(short(&answer.data), ["{unit=web} main;work complete 6"]);
    assert_eq!(whole_hour(&*store).quality.total.count, 3);
    assert_eq!(
        store.kept().unwrap().unwrap().start_unix_ns,
        BEGIN_NS - 2 * 86_400 * SECOND
    );
}
