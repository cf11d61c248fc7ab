//! What each step of a series says of the windows it is made of.

use crate::store::draft::{Draft, PERIOD, store_all};
use crate::store::{Engine, Fresh, Place, SECOND, ample, names, range, scope};
use collector::store::{Step, Store};

fn window(host: &str, sequence: u64, start_s: i64) -> Draft {
    // Two units, so that no label but the host's is of the host as a whole.
    let draft = Draft::new(host, sequence, start_s);
    draft.row("unit=u", "f", 3).row("unit=v", "g", 2)
}

fn steps(store: &dyn Store, range_s: (i64, i64), selector: &str, step_s: u64) -> Vec<Step> {
    let scope = scope(range(range_s.0, range_s.1), selector);
    let by = names(&["unit"]);
    let answer = store.series(&scope, &by, step_s * SECOND as u64, &ample());
    answer.unwrap().data.steps
}

/// Seconds, and how many hosts have them, by step.
fn covered(steps: &[Step]) -> Vec<(u64, u64)> {
    let covered = steps.iter();
    covered
        .map(|step| (step.covered_ns / SECOND as u64, step.hosts))
        .collect()
}

pub fn steps_say_for_how_long_hosts_sent_windows(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let mut drafts: Vec<_> = (0..9).map(|at| window("a", at, at as i64 * 10)).collect();
    drafts.extend((0..3).map(|at| window("b", at, 60 + at as i64 * 10)));
    // One that took longer, as when the agent was stopped for a while.
    drafts.push(window("a", 9, 120).lasting(60));
    drafts.push(window("a", 10, 180));
    store_all(&*store, &drafts);
    let of = |selector: &str, step_s| covered(&steps(&*store, (0, 240), selector, step_s));
    assert_eq!(of("", 60), [(60, 1), (60, 2), (60, 1), (10, 1)]);
    assert_eq!(of("host=b", 60), [(0, 0), (30, 1), (0, 0), (0, 0)]);
    let fine = covered(&steps(&*store, (110, 190), "host=a", 10));
    let none = (0, 0);
    let longer = [
        none,
        (60, 1),
        (0, 1),
        (0, 1),
        (0, 1),
        (0, 1),
        (0, 1),
        (10, 1),
    ];
    assert_eq!(fine, longer);
    assert_eq!(of("unit=u", 60), of("", 60), "a unit is not of the host");
}

pub fn steps_say_what_their_hosts_lost(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let lost = |host, sequence, start_s| {
        Draft::new(host, sequence, start_s)
            .row("unit=u", "f", 1)
            .lost("", 9)
    };
    let drafts = [
        window("a", 1, 0),
        lost("a", 2, 60),
        window("b", 1, 0),
        window("b", 2, 60),
    ];
    store_all(&*store, &drafts);
    let of = |selector: &str| -> Vec<(u64, u64)> {
        let found = steps(&*store, (0, 120), selector, 60);
        let parts = found.iter();
        parts
            .map(|step| (step.weight / PERIOD, step.lost_weight / PERIOD))
            .collect()
    };
    assert_eq!(of(""), [(10, 0), (15, 9)]);
    assert_eq!(of("host=a"), [(5, 0), (10, 9)]);
    assert_eq!(
        of("host=a,unit=v"),
        of("host=a"),
        "what was lost has no unit"
    );
    assert_eq!(of("unit=v"), of(""));
    assert_eq!(of("host=b,unit=u"), [(5, 0), (5, 0)]);
    assert_eq!(of("host=none"), [(0, 0), (0, 0)]);
}

pub fn a_host_without_windows_has_no_data(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    store_all(&*store, &[window("a", 1, 600)]);
    assert_eq!(
        covered(&steps(&*store, (0, 1200), "", 600)),
        [(0, 0), (10, 1)]
    );
    assert_eq!(steps(&*store, (0, 0), "", 600), []);
}
