//! Tests what a window says of waiting for CPUs, and what that takes on the wire.

use super::*;
use profile::{Pressure, Remap};
use proto::collector::WindowFacts;
use segment::window::Facts;

/// Cgroups of a host.
const CGROUPS: usize = 100;

/// The facts of a window on the wire; `throttled` says it by cgroup.
fn sent(throttled: impl Fn(usize) -> Option<u64>, pressure: Option<Pressure>) -> WindowFacts {
    let mut tables = Tables::default();
    let accounts = (0..CGROUPS).map(|at| Account {
        labels: tables
            .dict
            .intern_labels([("cgroup", format!("/c{at}").as_str())]),
        ns: 40_000_000,
        throttled_ns: throttled(at),
        limit_millicores: throttled(at).map_or(0, |ns| ns.min(200)),
        ..Account::default()
    });
    let accounts = accounts.collect();
    let window = Window {
        facts: Facts {
            pressure,
            ..Facts::default()
        },
        accounts,
        ..Window::default()
    };
    let mut stream = Stream::new(1 << 20, 0, true);
    let mut parts = stream.parts(&tables, &mut Remap::default(), &window, None);
    parts.pop().and_then(|part| part.facts).expect("facts")
}

#[test]
fn only_throttled_cgroups_take_room_on_the_wire() {
    let none = sent(|_| None, None);
    assert!(!none.throttling_known && none.throttling_unknown.is_empty());
    // That nothing was throttled is one flag for all cgroups.
    let unthrottled = sent(|_| Some(0), None);
    assert!(unthrottled.throttling_known);
    assert_eq!(unthrottled.encoded_len(), none.encoded_len() + 2);
    let one = sent(|at| Some(if at == 7 { 18_000_000_000 } else { 0 }), None);
    assert_eq!(one.throttled_accounts, [7]);
    assert_eq!(one.throttled_ns, [18_000_000_000]);
    assert_eq!(one.throttled_limits, [200]);
    assert_eq!(one.encoded_len(), unthrottled.encoded_len() + 14);
    let pressure = Pressure {
        cpu_ns: 5_000_000_000,
        memory_ns: 0,
        io_ns: 0,
    };
    let pressed = sent(|_| None, Some(pressure));
    assert_eq!(pressed.encoded_len(), none.encoded_len() + 9);
}

#[test]
fn a_cgroup_whose_throttling_is_not_known_is_not_called_unthrottled() {
    let facts = sent(|at| (at != 3).then_some(0), None);
    assert_eq!(facts.throttling_unknown, [3]);
    assert!(facts.throttling_known && facts.throttled_accounts.is_empty());
}

#[test]
fn the_spool_keeps_what_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&[(0, 1, vec![1], 2)]);
    let picked = run.pick().unwrap();
    let mut readers = Readers::default();
    let (window, _) = readers.window(&run.shared, &picked, 0).unwrap();
    assert_eq!(window.accounts[0].throttled_ns, Some(3000));
    assert_eq!(window.facts.pressure.unwrap().cpu_ns, 70);
}
