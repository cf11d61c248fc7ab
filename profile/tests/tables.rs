//! Tables by function and label, and diffs.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use profile::{
    CostBy, CostDiff, Costs, Diff, FunctionChange, GroupBy, Profile, Remap, SampleKey, StackEnd,
    TopBy, TopSort, Value,
};
use proptest::prelude::*;
use support::{PERIOD, build, from_lines, samples};

const LINES: &str = "
    comm=web main;work;parse 3
    comm=web main;work;work;parse;work 5
    comm=db main;loop;sys_read@kernel 7
    - start 1
";

fn rows(profile: &Profile, by: &TopBy, sort: TopSort, limit: usize) -> Vec<String> {
    profile
        .top(by, sort, limit)
        .rows
        .iter()
        .map(|row| {
            assert_eq!(row.own.weight, row.own.count * PERIOD);
            let (own, total) = (row.own.count, row.total.count);
            format!(
                "{own} {total} {} {} {}",
                row.name,
                row.kind.word(),
                row.module
            )
        })
        .collect()
}

#[test]
fn recursion_counts_once() {
    let profile = from_lines(LINES);
    assert_eq!(
        rows(&profile, &TopBy::Function, TopSort::Total, 10),
        [
            "0 15 main native app",
            "5 8 work native app",
            "3 8 parse native app",
            "7 7 sys_read kernel [kernel]",
            "0 7 loop native app",
            "1 1 start native app",
        ]
    );
}

#[test]
fn the_limit_says_what_it_left_out() {
    let profile = from_lines(LINES);
    let top = profile.top(&TopBy::Function, TopSort::Own, 2);
    assert_eq!((top.rows.len(), top.omitted, top.total.count), (2, 4, 16));
    assert_eq!(top.rows[0].name, "sys_read");
}

#[test]
fn a_module_counts_once_for_each_stack() {
    let profile = from_lines(LINES);
    assert_eq!(
        rows(&profile, &TopBy::Module, TopSort::Total, 10),
        ["9 16 app native ", "7 7 [kernel] kernel "]
    );
}

#[test]
fn labels_have_a_row_for_those_without() {
    let profile = from_lines(LINES);
    let by = TopBy::Label("comm".into());
    assert_eq!(
        rows(&profile, &by, TopSort::Own, 10),
        ["8 8 web synthetic ", "7 7 db synthetic ", "1 1  synthetic "]
    );
}

#[test]
fn an_inlined_function_is_the_same_function() {
    let profile = from_lines("- main;f 1\n- main;f@inlined 2");
    assert_eq!(
        rows(&profile, &TopBy::Function, TopSort::Own, 1),
        ["3 3 f native app"]
    );
}

fn diff(before: &str, after: &str) -> Diff {
    Diff::new(
        &from_lines(before),
        &from_lines(after),
        &GroupBy::Keys(Vec::new()),
    )
    .unwrap()
}

fn function<'d>(diff: &'d Diff, name: &str) -> &'d FunctionChange {
    diff.functions
        .iter()
        .find(|row| row.function == name)
        .unwrap()
}

#[test]
fn new_and_vanished_functions_are_told() {
    let diff = diff(
        "pid=1 main;old 5\npid=1 main 5",
        "pid=2 main;new 5\npid=2 main 5",
    );
    let told: Vec<_> = ["main", "old", "new"]
        .iter()
        .map(|name| function(&diff, name))
        .map(|row| (row.is_new(), row.is_vanished()))
        .collect();
    assert_eq!(told, [(false, false), (false, true), (true, false)]);
}

#[test]
fn shares_do_not_depend_on_the_length_of_profiles() {
    let diff = diff("- main;a 300\n- main;b 700", "- main;a 3000\n- main;b 7000");
    let share = diff.share(function(&diff, "a").own);
    assert_eq!((share.before, share.after, share.delta), (0.3, 0.3, 0.0));
    assert_eq!(diff.normalised(function(&diff, "a").own.before).count, 3000);
}

#[test]
fn the_error_is_the_binomial_one() {
    let diff = diff("- a 300\n- b 700", "- a 400\n- b 600");
    let share = diff.share(function(&diff, "a").own);
    // √(0.3·0.7/1000 + 0.4·0.6/1000) = 0.02121, nearly the same with the added hit and miss.
    assert!((share.std_error - 0.02121).abs() < 1e-4, "{share:?}");
    assert!(share.is_significant());
}

#[test]
fn few_samples_prove_nothing() {
    let diff = diff("- a 1\n- b 9", "- b 10");
    let share = diff.share(function(&diff, "a").own);
    assert!(
        share.std_error > 0.1 && !share.is_significant(),
        "{share:?}"
    );
}

#[test]
fn units_must_agree() {
    let (before, mut after) = (from_lines("- a 1"), from_lines("- a 1"));
    after.info.unit = "cycles".into();
    assert!(Diff::new(&before, &after, &GroupBy::All).is_err());
}

#[test]
fn a_lost_sample_costs_no_function_anything() {
    let mut profile = from_lines("- main;a 5");
    let key = *profile.samples.keys().next().unwrap();
    let lost = SampleKey {
        end: StackEnd::Lost,
        ..key
    };
    let value = Value {
        count: 2,
        weight: 20,
    };
    profile.add(lost, value);
    let costs = || Costs::of(&profile, CostBy::Function);
    assert_eq!(costs().without_lost().total().count, 5);
    let rows = costs().into_top(TopSort::Own, 10).rows;
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.own.count))
        .collect();
    assert_eq!(rows, [("a", 5), ("[lost]", 2), ("main", 0)]);
}

proptest! {
    #[test]
    fn functions_differ_as_their_profiles_do(a in samples(), b in samples()) {
        let sampled = |of: &Profile| {
            let (mut sampled, mut remap) = (Profile::default(), Remap::default());
            let samples = of.sorted().into_iter();
            for (key, value) in samples.filter(|(key, _)| key.end != StackEnd::Lost) {
                sampled.add_from(&of.dict, &mut remap, key, value);
            }
            sampled
        };
        let (a, b) = (sampled(&build(&a)), sampled(&build(&b)));
        let of_profiles = Diff::new(&a, &b, &GroupBy::Keys(Vec::new())).unwrap();
        let costs = |profile| Costs::of(profile, CostBy::Function);
        let of_costs = CostDiff::new(costs(&a), costs(&b));
        prop_assert_eq!(of_costs.totals, of_profiles.totals);
        prop_assert_eq!(of_costs.functions, of_profiles.functions);
    }

    #[test]
    fn a_profile_does_not_differ_from_itself(a in samples()) {
        let profile = build(&a);
        let diff = Diff::new(&profile, &profile, &GroupBy::All).unwrap();
        prop_assert_eq!(diff.samples.len(), profile.samples.len());
        for sample in &diff.samples {
            prop_assert_eq!(sample.change.before, sample.change.after);
            prop_assert_eq!(diff.normalised(sample.change.before), sample.change.after);
        }
        for row in &diff.functions {
            prop_assert_eq!(diff.share(row.own).delta, 0.0);
            prop_assert_eq!(diff.share(row.total).delta, 0.0);
            prop_assert!(!row.is_new() && !row.is_vanished());
        }
    }

    #[test]
    fn own_values_add_up_and_totals_stay_below_the_whole(a in samples()) {
        let profile = build(&a);
        let top = profile.top(&TopBy::Function, TopSort::Own, usize::MAX);
        let own: u64 = top.rows.iter().map(|row| row.own.count).sum();
        prop_assert_eq!(own, profile.total().count);
        prop_assert!(top.rows.iter().all(|row| row.own.count <= row.total.count && row.total.count <= own));
    }
}
