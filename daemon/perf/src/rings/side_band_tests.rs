//! Tests the side band in rings of its own: in order of time with the samples, and never at their
//! expense.

use super::*;
use crate::event::EventKind;
use crate::loss::SampleSpacing;
use crate::ring::Ring;
use crate::synthetic;

const PERIOD: u64 = 10_000_000;
const SAMPLES: usize = 0;
const SIDE_BAND: usize = 1;

/// A CPU with a ring for samples and one for the side band.
fn rings_in_memory(samples_bytes: usize, side_band_bytes: usize) -> Rings {
    let ring = |bytes, pace| {
        let ring = Ring::in_memory(bytes).expect("maps");
        CpuRing::over(CpuId(0), ring, pace)
    };
    let samples = ring(samples_bytes, SampleSpacing::Fixed(PERIOD));
    let side_band = ring(side_band_bytes, SampleSpacing::Never).of_side_band();
    Rings::over(vec![samples, side_band], Features::default(), 0).expect("some")
}

fn write(rings: &mut Rings, ring: usize, record: &[u8]) -> bool {
    rings.rings_mut()[ring].ring_mut().write(record)
}

fn sample(time: u64) -> Vec<u8> {
    synthetic::sample(MonotonicTime(time), 1, 0, PERIOD, &[7])
}

fn comm(time: u64) -> Vec<u8> {
    synthetic::comm(MonotonicTime(time), 1, *b"worker\0\0")
}

/// One drain: times of samples, times of all others, samples missing.
fn drain(rings: &mut Rings, horizon: u64) -> (Vec<u64>, Vec<u64>, u64) {
    let (mut samples, mut others, mut missing) = (Vec::new(), Vec::new(), 0);
    rings.drain(MonotonicTime(horizon), |drained| match drained {
        Drained::Record { time, record, .. } => match record {
            Record::Sample(_) => samples.push(time.0),
            _ => others.push(time.0),
        },
        Drained::LossGap(gap) => missing += gap.samples,
        _ => {}
    });
    (samples, others, missing)
}

#[test]
fn a_cpu_with_two_rings_is_one_cpu() {
    let mut rings = rings_in_memory(64 << 10, 64 << 10);
    assert_eq!(rings.cpus(), 1);
    assert_eq!(rings.cpu_ids().collect::<Vec<_>>(), [CpuId(0)]);
    rings.leave(CpuId(0));
    assert!(rings.take_left().is_some() && rings.take_left().is_some());
    assert!(rings.take_left().is_none());
}

#[test]
fn a_name_comes_before_the_samples_after_it() {
    let mut rings = rings_in_memory(64 << 10, 64 << 10);
    assert!(write(&mut rings, SAMPLES, &sample(10)) && write(&mut rings, SAMPLES, &sample(30)));
    assert!(write(&mut rings, SIDE_BAND, &comm(20)) && write(&mut rings, SIDE_BAND, &comm(40)));
    let mut times = Vec::new();
    rings.drain(MonotonicTime(30), |drained| {
        if let Drained::Record { time, .. } = drained {
            times.push(time.0);
        }
    });
    assert_eq!(times, [10, 20, 30], "40 is beyond the horizon");
}

#[test]
fn records_lost_in_the_side_band_are_counted_and_no_sample_is_missing() {
    let mut rings = rings_in_memory(64 << 10, 64 << 10);
    let lost = synthetic::lost(MonotonicTime(50 * PERIOD), 1_000_000);
    assert!(write(&mut rings, SIDE_BAND, &lost));
    // Samples far apart say something only where samples were lost.
    assert!(write(&mut rings, SAMPLES, &sample(PERIOD)));
    assert!(write(&mut rings, SAMPLES, &sample(90 * PERIOD)));
    let (samples, _, missing) = drain(&mut rings, 100 * PERIOD);
    assert_eq!((samples.len(), missing), (2, 0));
    assert_eq!(
        (rings.stats.lost, rings.stats.lost_side_band),
        (0, 1_000_000)
    );
    assert_eq!(rings.lost_side_band, 1_000_000);
    let counts: Vec<_> = rings.counts().collect();
    assert_eq!(counts.len(), 1);
    let counts = counts[0].1;
    assert_eq!(
        (counts.lost, counts.lost_side_band, counts.missed),
        (0, 1_000_000, 0)
    );
}

#[test]
fn a_side_band_that_is_full_is_no_sign_of_life() {
    let mut rings = rings_in_memory(64 << 10, 4 << 10);
    let start = MonotonicTime::now().0;
    while write(&mut rings, SIDE_BAND, &comm(start)) {}
    drain(&mut rings, start + 10 * PERIOD);
    let newest = rings.counts().next().map(|(_, counts)| counts.newest);
    assert!(newest.is_some_and(|newest| newest.0 < start + 10 * PERIOD));
}

/// Fills the side band with more than one drain takes and the samples' ring over `full` of 256.
fn flooded(full: u64) -> (Rings, u64, u64) {
    let mut rings = rings_in_memory(64 << 10, 16 << 20);
    let mut samples = 0;
    while rings.rings_mut()[SAMPLES].ring_mut().head().0 <= (full + 1) * (64 << 10) / 256 {
        samples += 1;
        assert!(write(&mut rings, SAMPLES, &sample(samples)));
    }
    let records = RECORDS_PER_DRAIN_MAX as u64;
    for number in 1..=records {
        assert!(write(&mut rings, SIDE_BAND, &comm(samples + number)));
    }
    (rings, records, samples)
}

#[test]
fn a_flood_of_the_side_band_waits_for_the_next_drain() {
    let (mut rings, records, samples) = flooded(105);
    let end = records + samples;
    let (found, others, _) = drain(&mut rings, end);
    assert_eq!(found.len() as u64, samples);
    assert!(others.len() as u64 >= records - samples - 1);
    let (_, rest, _) = drain(&mut rings, end);
    assert_eq!((others.len() + rest.len()) as u64, records);
    assert_eq!((rings.lost_side_band, rings.late), (0, 0));
}

#[test]
fn a_flood_of_the_side_band_is_shed_before_a_sample_is_lost() {
    let (mut rings, records, samples) = flooded(DROP_SIDE_BAND_FULL);
    let (found, others, missing) = drain(&mut rings, records + samples);
    assert_eq!((found.len() as u64, missing), (samples, 0));
    assert_eq!(others.len() as u64 + rings.lost_side_band, records);
    assert_eq!(rings.lost_side_band, samples);
    assert_eq!(drain(&mut rings, records + samples), (vec![], vec![], 0));
}

#[test]
fn what_a_flood_pushed_out_is_known_though_nothing_comes_after_it() {
    let (mut rings, records, samples) = flooded(105);
    let end = records + samples;
    while write(&mut rings, SIDE_BAND, &comm(end)) {}
    rings.rings_mut()[SIDE_BAND].tell_lost(7);
    drain(&mut rings, end);
    assert_eq!(
        rings.lost_side_band, 0,
        "the drain ended before the ring did"
    );
    // The ring is not full any more.
    drain(&mut rings, end);
    assert_eq!(rings.lost_side_band, 7);
}

#[test]
fn a_storm_of_one_cpu_of_many_is_taken_whole_while_samples_have_their_usual_room() {
    let cpus = 64;
    let ring = |cpu, bytes, pace| {
        let ring = Ring::in_memory(bytes).expect("maps");
        CpuRing::over(CpuId(cpu), ring, pace)
    };
    let samples = (0..cpus).map(|cpu| ring(cpu, 16 << 10, SampleSpacing::Fixed(PERIOD)));
    let side_band = (0..cpus).map(|cpu| ring(cpu, 512 << 10, SampleSpacing::Never).of_side_band());
    let all = samples.chain(side_band).collect();
    let mut rings = Rings::over(all, Features::default(), 0).expect("some");
    // Rings of samples are this full at the tick, by design.
    while rings.rings_mut()[0].ring_mut().head().0 < (16 << 10) * 105 / 256 {
        assert!(write(&mut rings, 0, &sample(1)));
    }
    let mut records = 0;
    while write(&mut rings, cpus as usize, &comm(2)) {
        records += 1;
    }
    assert!(records > RECORDS_PER_DRAIN_MAX / cpus as usize);
    let (_, others, _) = drain(&mut rings, 10);
    assert_eq!((others.len(), rings.lost_side_band), (records, 0));
}

#[test]
fn the_kernel_writes_samples_and_the_side_band_apart_needs_root() {
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 999,
        max_stack_depth: 8,
        watermark_bytes: 4 << 10,
        stack_bytes: 0,
        side_band_bytes: 64 << 10,
    };
    let online: Vec<CpuId> = host::facts::cpus_online().expect("known");
    let mut rings = match Rings::open(&online, &spec, 256 << 10) {
        Ok(rings) => rings,
        Err(error) => {
            testkit::skip(format_args!("perf events are not to be had here: {error}"));
            return;
        }
    };
    assert_eq!(rings.cpus(), online.len());
    let status = std::process::Command::new("true").status();
    assert!(status.is_ok_and(|status| status.success()));
    std::thread::sleep(Duration::from_millis(100));
    let (mut execs, mut maps, mut samples) = (0, 0, 0);
    let (mut horizon, end) = (MonotonicTime(0), MonotonicTime::now());
    while horizon < end {
        horizon = rings.drain(horizon_at(MonotonicTime::now()), |drained| {
            if let Drained::Record { record, .. } = drained {
                match record {
                    Record::Comm {
                        comm, exec: true, ..
                    } => execs += u32::from(comm.as_bytes() == b"true"),
                    Record::Mmap(_) => maps += 1,
                    Record::Sample(_) => samples += 1,
                    _ => {}
                }
            }
        });
    }
    assert!(
        execs == 1 && maps >= 3 && samples >= 20,
        "{execs} {maps} {samples}"
    );
    assert_eq!((rings.malformed, rings.late), (0, 0));
}
