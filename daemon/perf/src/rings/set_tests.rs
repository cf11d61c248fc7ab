//! Tests rings of several owners that are drained together: order of time, shares, and whose
//! records are lost.

use super::*;
use crate::loss::SampleSpacing;
use crate::ring::Ring;
use crate::synthetic;
use proptest::prelude::*;

const PERIOD: u64 = 10_000_000;

fn rings_in_memory(cpus: u32) -> Rings {
    let ring = |cpu| {
        let ring = Ring::in_memory(64 << 10).expect("maps");
        CpuRing::over(CpuId(cpu), ring, SampleSpacing::Fixed(PERIOD))
    };
    Rings::over((0..cpus).map(ring).collect(), Features::default(), 0).expect("some")
}

const SETS: u64 = 2;
const SET_CPUS: u64 = 3;

/// Rings in memory, with sets of captures.
fn rings_with_sets(ring_bytes: usize) -> Rings {
    let mut rings = rings_in_memory(SET_CPUS as u32);
    for key in 0..SETS {
        let ring = |cpu| {
            let ring = Ring::in_memory(ring_bytes).expect("maps");
            (0, CpuRing::over(CpuId(cpu), ring, SampleSpacing::Counted))
        };
        let layouts = vec![Features::default().layout(0)];
        let set = RingSet::over(SetKey(key), (0..SET_CPUS as u32).map(ring), layouts, true);
        rings.add_set(set.expect("some"));
    }
    rings
}

/// Owner (the last one is the continuous profile) and time of all up to `horizon`, gaps by owner,
/// and how many drains it took.
struct Handed {
    samples: Vec<(u64, u64)>,
    missing: [u64; SETS as usize + 1],
    drains: u32,
}

fn handed(rings: &mut Rings, horizon: MonotonicTime) -> Handed {
    let mut handed = Handed {
        samples: Vec::new(),
        missing: [0; SETS as usize + 1],
        drains: 0,
    };
    loop {
        let Handed {
            samples, missing, ..
        } = &mut handed;
        let reached = rings.drain(horizon, |drained| match drained {
            Drained::Record { time, .. } => samples.push((SETS, time.0)),
            Drained::SetSample { set, sample, .. } => samples.push((set.0, sample.time.0)),
            Drained::LossGap(gap) => missing[SETS as usize] += gap.samples,
            Drained::SetArrival { .. } => {}
            Drained::SetGap { set, gap, .. } => missing[set.0 as usize] += gap.samples,
        });
        handed.drains += 1;
        if reached >= horizon {
            return handed;
        }
    }
}

fn ring_of(rings: &mut Rings, owner: u64, cpu: u64) -> &mut CpuRing {
    if owner == SETS {
        return &mut rings.rings_mut()[cpu as usize];
    }
    let set = rings.set_mut(SetKey(owner)).expect("added");
    set.rings_mut().nth(cpu as usize).expect("there").1
}

proptest! {
    #[test]
    fn every_owner_gets_its_own_and_all_in_order_of_time(
        records in proptest::collection::vec((0..=SETS, 0..SET_CPUS, 1u64..50), 1..300),
        stops in proptest::collection::vec(0u64..8000, 0..4),
    ) {
        let mut rings = rings_with_sets(64 << 10);
        let (mut time, mut expected) = (0, Vec::new());
        for (owner, cpu, later) in records {
            time += later;
            let bytes = synthetic::sample(MonotonicTime(time), 1, cpu as u32, PERIOD, &[7]);
            prop_assert!(ring_of(&mut rings, owner, cpu).ring_mut().write(&bytes));
            expected.push((owner, time));
        }
        let mut stops: Vec<u64> = stops.into_iter().filter(|&stop| stop < time).collect();
        stops.sort_unstable();
        stops.push(time);
        let mut found = Vec::new();
        for stop in stops {
            let handed = handed(&mut rings, MonotonicTime(stop));
            prop_assert!(handed.samples.iter().all(|it| it.1 <= stop));
            found.extend(handed.samples);
        }
        prop_assert_eq!(found, expected);
    }
}

/// As many samples of a set on one CPU as there are, one each microsecond. Returns the last time.
fn flood(rings: &mut Rings, count: u64) -> MonotonicTime {
    for number in 1..=count {
        let bytes = synthetic::sample(MonotonicTime(number * 1000), 1, 0, 1, &[7]);
        assert!(ring_of(rings, 0, 0).ring_mut().write(&bytes));
    }
    MonotonicTime(count * 1000)
}

#[test]
fn what_exceeds_the_share_of_captures_waits_for_the_next_drain() {
    let mut rings = rings_with_sets(4 << 20);
    let last = flood(&mut rings, 10_000);
    let bytes = synthetic::comm(MonotonicTime(last.0 / 2), 1, *b"worker\0\0");
    assert!(ring_of(&mut rings, SETS, 1).ring_mut().write(&bytes));
    let handed = handed(&mut rings, last);
    assert_eq!((handed.samples.len(), handed.drains), (10_001, 4));
    assert!(handed.samples.iter().map(|it| it.1).is_sorted(), "together");
    assert_eq!(handed.missing, [0, 0, 0]);
}

#[test]
fn the_continuous_profile_does_not_wait_for_captures_until_its_rings_are_full() {
    let mut rings = rings_with_sets(4 << 20);
    let last = flood(&mut rings, 10_000);
    // Its ring has 64 KiB: more than three eighths of it.
    let mut own = 0;
    while rings.rings_mut()[2].ring_mut().head().0 < 28 << 10 {
        own += 1;
        let time = last.0 - 1_000_000 + own;
        let bytes = synthetic::sample(MonotonicTime(time), 1, 2, PERIOD, &[7]);
        assert!(ring_of(&mut rings, SETS, 2).ring_mut().write(&bytes));
    }
    let handed = handed(&mut rings, last);
    assert_eq!(handed.drains, 1);
    let of = |owner| handed.samples.iter().filter(|it| it.0 == owner).count() as u64;
    assert_eq!(of(SETS), own);
    let share = (SET_RECORDS_PER_DRAIN_MAX as u64) / (SETS * SET_CPUS);
    assert_eq!((of(0), handed.missing), (share, [10_000 - share, 0, 0]));
    let stats = rings.sets()[0].stats;
    assert_eq!(
        (stats.dropped, stats.lost),
        (10_000 - share, 10_000 - share)
    );
    assert_eq!(rings.stats.lost, 0);
}

#[test]
fn captures_of_a_cpu_that_went_away_are_told() {
    let mut rings = rings_with_sets(64 << 10);
    assert!(rings.leave_sets(CpuId(1)));
    assert!(!rings.leave_sets(CpuId(9)));
}

#[test]
fn sets_stay_when_the_rings_of_the_continuous_profile_are_replaced() {
    let (mut old, mut new) = (rings_with_sets(64 << 10), rings_in_memory(1));
    let bytes = synthetic::sample(MonotonicTime(5), 1, 0, PERIOD, &[7]);
    assert!(ring_of(&mut old, 1, 0).ring_mut().write(&bytes));
    handed(&mut old, MonotonicTime(3));
    new.follow(&old, MonotonicTime(3));
    new.adopt_sets(&mut old);
    assert_eq!(handed(&mut new, MonotonicTime(10)).samples, [(1, 5)]);
    assert!(new.take_set(SetKey(1)).is_some() && new.take_set(SetKey(1)).is_none());
    assert_eq!(handed(&mut new, MonotonicTime(20)).samples, []);
}
