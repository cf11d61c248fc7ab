//! Tests which captures share which sets of rings.

use super::*;

fn spec() -> Spec {
    Spec {
        probes: Vec::new(),
        cgroup: None,
    }
}

fn opened_by(id: u64) -> Sets {
    let started = Started {
        every: Every::Rate(99),
        period: 0,
        stack_bytes: 0,
        cpus: 1,
        ring_bytes: 1 << 20,
        shared: false,
        notices: Vec::new(),
    };
    let set = OpenSet {
        key: SetKey(3),
        spec: spec(),
        started,
        users: vec![CaptureId(id)],
        seen: Arc::default(),
    };
    Sets {
        last_key: 3,
        list: vec![set],
    }
}

#[test]
fn a_capture_that_wants_what_another_has_gets_the_same_rings() {
    let mut sets = opened_by(1);
    for (id, entry) in [(2, Entry::CaptureStart), (3, Entry::Change)] {
        let joined = sets.join(CaptureId(id), entry, &spec()).expect("it may");
        let (set, started) = joined.expect("they are open");
        assert_eq!(set.map(|set| set.key()), Some(SetKey(3)));
        assert!(started.shared);
    }
    assert_eq!(sets.captures().count(), 3);
}

#[test]
fn a_capture_that_changes_to_what_it_has_is_not_given_it_again() {
    let mut sets = opened_by(1);
    let joined = sets.join(CaptureId(1), Entry::Change, &spec());
    let (set, _) = joined.expect("it may").expect("they are open");
    assert!(set.is_none(), "the sampler would take each sample twice");
    assert_eq!(sets.captures().count(), 1);
}

#[test]
fn what_finds_no_helper_is_a_matter_of_the_moment() {
    let event = || "uprobe:/bin/x:main".to_owned();
    let fault = |error: EngineError| error.fault();
    assert_eq!(fault(EngineError::Busy { event: event() }), Fault::Moment);
    assert_eq!(fault(EngineError::Late { event: event() }), Fault::Machine);
}
