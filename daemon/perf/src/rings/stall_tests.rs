//! Tests rings with damaged records, and with records longer than the kernel should write: no ring
//! stalls, and intact records after the damage are read.

use super::*;
use crate::loss::SampleSpacing;
use crate::ring::Ring;
use crate::synthetic;
use perf_event_open_sys::bindings as sys;
use proptest::prelude::*;
use std::collections::BTreeSet;

const PERIOD: u64 = 10_000_000;
const SECOND: u64 = 1_000_000_000;
const CPUS: u32 = 2;
const SET: SetKey = SetKey(7);

/// Two CPUs, with the rings of a capture next to those of the continuous profile.
fn rings(ring_bytes: usize) -> Rings {
    let ring = |cpu, pace| {
        let ring = Ring::in_memory(ring_bytes).expect("maps");
        CpuRing::over(CpuId(cpu), ring, pace)
    };
    let own = (0..CPUS).map(|cpu| ring(cpu, SampleSpacing::Fixed(PERIOD)));
    let mut rings = Rings::over(own.collect(), Features::default(), 0).expect("some");
    let theirs = (0..CPUS).map(|cpu| (0, ring(cpu, SampleSpacing::Counted)));
    let layouts = vec![Features::default().layout(0)];
    rings.add_set(RingSet::over(SET, theirs, layouts, true).expect("some"));
    rings
}

/// The ring of this number: those of the continuous profile, then those of the capture.
fn ring(rings: &mut Rings, number: usize) -> &mut Ring {
    let (own, cpu) = (number < CPUS as usize, number % CPUS as usize);
    if own {
        return rings.rings_mut()[cpu].ring_mut();
    }
    let set = rings.set_mut(SET).expect("added");
    set.rings_mut().nth(cpu).expect("there").1.ring_mut()
}

const RINGS: usize = 2 * CPUS as usize;

/// What a drain hands out: processes of samples, and pieces of kernel code that changed.
#[derive(Default)]
struct Handed {
    pids: Vec<u32>,
    kernel_code: u32,
    missing: u64,
    missing_in_set: u64,
}

fn drain(rings: &mut Rings, horizon: u64, handed: &mut Handed) {
    rings.drain(MonotonicTime(horizon), |drained| match drained {
        Drained::Record { record, time, .. } => {
            assert!(time.0 <= horizon, "{time:?}");
            match record {
                Record::Sample(sample) => handed.pids.push(sample.pid.0),
                Record::KernelCode => handed.kernel_code += 1,
                _ => {}
            }
        }
        Drained::SetSample { sample, .. } => handed.pids.push(sample.pid.0),
        Drained::SetArrival { .. } => {}
        Drained::LossGap(gap) => {
            assert!(gap.from <= gap.until, "{gap:?}");
            handed.missing += gap.samples;
        }
        Drained::SetGap { gap, .. } => {
            assert!(gap.from <= gap.until, "{gap:?}");
            handed.missing_in_set += gap.samples;
        }
    });
}

fn sample(time: u64, pid: u32) -> Vec<u8> {
    synthetic::sample(MonotonicTime(time), pid, 0, PERIOD, &[7, 8])
}

/// A time that no real clock has reached: only the horizon of drains decides what is later than
/// now, however slowly a test runs.
fn tomorrow() -> u64 {
    MonotonicTime::now().0 + 24 * 3600 * SECOND
}

/// What Linux 6.18 wrote for one BPF program that came and went, into the ring of the first of
/// three listeners on a CPU: `KSYMBOL` and `BPF_EVENT`, each with two trailers too many. The times
/// of the records, and their bytes.
fn recorded(junk: u64) -> Vec<(u64, Vec<u8>)> {
    let name = *b"bpf_prog_59f4a931744dcdc6_stalls\0\0\0\0\0\0\0\0";
    let ksymbol = |time: u64, flags: u64| {
        let mut body = vec![0xffff_ffff_c002_204c, 0x14 | 1 << 32 | flags << 48];
        body.extend(name.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        }));
        body.extend([0x57b4_0000_57b4, time, 0, 0x43a]);
        body.extend([junk; 8]);
        (time, synthetic::record(sys::PERF_RECORD_KSYMBOL, 0, &body))
    };
    let bpf_event = |time: u64, what: u64| {
        let mut body = vec![what | 0xd5 << 32, 0xc6cd_4d74_31a9_f459];
        body.extend([0x57b4_0000_57b4, time, 0, 0x43a]);
        body.extend([junk; 8]);
        let kind = sys::PERF_RECORD_BPF_EVENT;
        (time, synthetic::record(kind, 0, &body))
    };
    vec![
        ksymbol(0x1e9_34b8_570d, 0),
        bpf_event(0x1e9_34b8_5e72, 1),
        ksymbol(0x1e9_34b9_12fd, 1),
        bpf_event(0x1e9_34b9_183b, 2),
    ]
}

#[test]
fn records_longer_than_their_content_do_not_stall_a_ring() {
    // What lay in the ring before: nothing, a user address, a kernel address, text.
    for junk in [
        0,
        0x7f7d_dda1_6d00,
        0xffff_ffff_8123_4567,
        u64::from_ne_bytes(*b"/usr/bin"),
    ] {
        let mut rings = rings(64 << 10);
        let mut handed = Handed::default();
        let mut newest = 0;
        for (pid, (time, bytes)) in recorded(junk).into_iter().enumerate() {
            assert_eq!(record::time(&bytes), Ok(MonotonicTime(time)));
            newest = time + 1;
            for bytes in [bytes, sample(newest, pid as u32)] {
                assert!(ring(&mut rings, 0).write(&bytes));
            }
        }
        drain(&mut rings, newest, &mut handed);
        assert_eq!(
            (handed.pids, handed.kernel_code),
            (vec![0, 1, 2, 3], 4),
            "{junk:#x}"
        );
        assert_eq!((rings.malformed, rings.flushed), (0, 0));
    }
}

#[test]
fn a_record_of_changed_code_has_its_trailer_behind_both_pieces() {
    // Five old bytes and three new ones, padded.
    for trailers in 1..4 {
        let mut body = vec![0xffff_ffff_8100_0000, 5 | 3 << 16, 0x1234_5678];
        body.extend([0, 777, 0, 1]);
        body.extend(vec![u64::MAX; 4 * (trailers - 1)]);
        let bytes = synthetic::record(sys::PERF_RECORD_TEXT_POKE, 0, &body);
        assert_eq!(
            record::time(&bytes),
            Ok(MonotonicTime(777)),
            "{trailers} trailers"
        );
    }
}

#[test]
fn a_record_without_room_for_its_trailer_is_damaged() {
    let no_end = [u64::from_ne_bytes(*b"no end! "); 8];
    let lengths = [0, 400 | 400 << 16, 0, 0, 0, 0, 0];
    for (kind, body) in [
        (sys::PERF_RECORD_KSYMBOL, &no_end[..]),
        (sys::PERF_RECORD_KSYMBOL, &[0; 5]),
        (sys::PERF_RECORD_BPF_EVENT, &[0; 5]),
        (sys::PERF_RECORD_TEXT_POKE, &lengths),
        (sys::PERF_RECORD_TEXT_POKE, &[0; 1]),
    ] {
        let bytes = synthetic::record(kind, 0, body);
        assert_eq!(record::time(&bytes), Err(record::Malformed), "{kind}");
    }
}

#[test]
fn a_record_later_than_now_is_skipped_and_one_on_its_way_is_not() {
    let mut rings = rings(64 << 10);
    let now = tomorrow();
    let mut handed = Handed::default();
    for (time, pid) in [
        (now - 20, 1),
        (u64::MAX, 2),
        (now + 3600 * SECOND, 3),
        (now - 10, 4),
        // On a CPU with a clock that is ahead.
        (now + 5_000_000, 5),
    ] {
        assert!(ring(&mut rings, 0).write(&sample(time, pid)));
    }
    drain(&mut rings, now, &mut handed);
    assert_eq!((&handed.pids[..], rings.malformed), (&[1, 4][..], 2));
    let newest = rings.counts().next().map(|(_, counts)| counts.newest);
    assert_eq!(newest, Some(MonotonicTime(now - 10)));
    drain(&mut rings, now + 10_000_000, &mut handed);
    assert_eq!((&handed.pids[..], rings.malformed), (&[1, 4, 5][..], 2));
}

#[test]
fn what_a_record_of_no_time_says_of_losses_holds() {
    let mut rings = rings(64 << 10);
    let start = tomorrow();
    let tick = |number: u64| start + number * PERIOD;
    let mut handed = Handed::default();
    for bytes in [
        sample(tick(1), 1),
        synthetic::lost(MonotonicTime(u64::MAX), 3),
        sample(tick(5), 1),
        // The sample itself is the one that is missing.
        sample(u64::MAX, 1),
        sample(tick(7), 1),
        synthetic::lost(MonotonicTime(tick(7)), u64::MAX),
        sample(tick(8), 1),
    ] {
        assert!(ring(&mut rings, 0).write(&bytes));
    }
    drain(&mut rings, tick(8), &mut handed);
    assert_eq!((handed.pids.len(), handed.missing), (4, 3 + 1));
    assert_eq!(rings.stats.lost, 3, "and not as many as there cannot be");
}

#[test]
fn an_old_time_of_a_record_that_waits_holds_nobody_up() {
    let mut rings = rings(4 << 20);
    let start = tomorrow();
    // More than a drain takes of a capture, among them some with the time of the boot.
    let count = 30_000;
    for number in 0..count {
        let time = if number % 4096 == 4095 {
            1
        } else {
            start + number
        };
        assert!(ring(&mut rings, 2).write(&sample(time, number as u32)));
    }
    let mut handed = Handed::default();
    for _ in 0..count {
        drain(&mut rings, start + count, &mut handed);
    }
    let all = BTreeSet::from_iter(handed.pids.iter().copied());
    assert_eq!(
        (handed.pids.len(), all.len()),
        (count as usize, count as usize)
    );
}

/// Fills a ring with samples that are later than drains go and not later than now, and has it
/// drained once a second for `seconds`. What was handed out, and whether the ring was emptied.
fn stand_still(number: usize, fill: u64, seconds: u64) -> (Rings, Handed, bool) {
    let mut rings = rings(16 << 10);
    let now = MonotonicTime::now().0;
    let mut pid = 0;
    let target = ring(&mut rings, number);
    while target.head().0 * 100 < 16384 * fill {
        pid += 1;
        assert!(target.write(&sample(now, pid)));
    }
    let mut handed = Handed::default();
    for second in (0..=seconds).rev() {
        drain(&mut rings, now - SECOND - second * SECOND, &mut handed);
    }
    let target = ring(&mut rings, number);
    let emptied = target.tail() == target.head();
    (rings, handed, emptied)
}

#[test]
fn a_full_ring_that_stands_still_for_seconds_is_flushed() {
    for number in [0, 2] {
        let (rings, handed, emptied) = stand_still(number, 95, 3);
        assert!(emptied, "ring {number}");
        assert_eq!((rings.flushed, handed.pids.len()), (1, 0));
    }
}

#[test]
fn a_ring_that_moves_in_time_or_has_room_is_left_alone() {
    for (fill, seconds) in [(95, 2), (40, 10)] {
        let (rings, _, emptied) = stand_still(0, fill, seconds);
        assert_eq!(
            (rings.flushed, emptied),
            (0, false),
            "{fill} %, {seconds} s"
        );
    }
}

#[test]
fn what_a_flush_threw_away_is_lost_and_not_for_want_of_room() {
    let (mut rings, handed, _) = stand_still(2, 95, 3);
    assert!(handed.missing_in_set > 100, "{}", handed.missing_in_set);
    assert_eq!(rings.sets()[0].stats.lost, handed.missing_in_set);
    assert_eq!(rings.sets()[0].stats.lost_stalled, handed.missing_in_set);

    (rings, ..) = stand_still(0, 95, 3);
    let thrown_away = rings.lost_stalled;
    assert!(thrown_away > 100, "{thrown_away}");
    // The kernel reports lost records when there is room; later losses are of the size.
    let now = MonotonicTime::now().0;
    let mut handed = Handed::default();
    for (round, expected) in [(1, 40), (2, 40), (3, 40)] {
        let time = now + round * SECOND;
        for bytes in [synthetic::lost(MonotonicTime(time), 40), sample(time, 1)] {
            assert!(ring(&mut rings, 0).write(&bytes));
        }
        drain(&mut rings, time, &mut handed);
        assert_eq!(rings.lost_stalled, thrown_away + expected, "round {round}");
    }
    // What found no room was sampled at times that are gaps now.
    assert!(handed.missing >= 100, "{}", handed.missing);
}

/// What is written to a ring.
#[derive(Clone, Debug)]
enum Written {
    Sound,
    /// A sound record with this time.
    Time(u64),
    /// A sound record with this size in its header: where the next one starts is not known.
    Size(u16),
    /// A record of any type and content, with a correct size.
    Any(u32, Vec<u64>),
    /// So many trailers too many, of this content.
    TooLong(u64),
}

fn written() -> impl Strategy<Value = Written> {
    let time = prop_oneof![any::<u64>(), 0..1000u64, Just(u64::MAX)];
    prop_oneof![
        8 => Just(Written::Sound),
        1 => time.prop_map(Written::Time),
        1 => any::<u16>().prop_map(Written::Size),
        1 => (0..200u16).prop_map(Written::Size),
        1 => (0..30u32, proptest::collection::vec(any::<u64>(), 0..20))
            .prop_map(|(kind, body)| Written::Any(kind, body)),
        1 => any::<u64>().prop_map(Written::TooLong),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// Ten drains a second. Whatever is damaged, each ring is done within a second with what was
    /// written, and each sound record comes out once, unless it was written behind a size that
    /// cannot be trusted before the ring was empty again.
    #[test]
    fn no_damage_stalls_a_ring_or_hides_what_is_sound_behind_it(
        ticks in proptest::collection::vec(
            proptest::collection::vec((0..RINGS, written(), 0..90u64), 0..12), 1..40),
    ) {
        const TICK: u64 = SECOND / 10;
        let mut rings = rings(64 << 10);
        let start = tomorrow();
        let (mut pid, mut expected, mut handed) = (1_000_000, BTreeSet::new(), Handed::default());
        let mut trusted = [true; RINGS];
        let mut heads = Vec::new();
        let quiet = std::iter::repeat_n(Vec::new(), 12);
        for (tick, records) in ticks.into_iter().chain(quiet).enumerate() {
            let from = start + tick as u64 * TICK;
            for (number, what, later) in records {
                let time = from + later * 1_000_000;
                pid += 1;
                let bytes = match what {
                    Written::Sound => {
                        if trusted[number] {
                            expected.insert(pid);
                        }
                        sample(time, pid)
                    }
                    Written::Time(time) => sample(time, 1),
                    Written::Size(size) => {
                        let mut bytes = sample(time, 1);
                        trusted[number] &= usize::from(size) == bytes.len();
                        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
                        bytes
                    }
                    Written::Any(kind, body) => synthetic::record(kind, 0, &body),
                    Written::TooLong(junk) => recorded(junk).swap_remove(0).1,
                };
                prop_assert!(ring(&mut rings, number).write(&bytes));
            }
            heads.push([0, 1, 2, 3].map(|number| ring(&mut rings, number).head()));
            drain(&mut rings, from + TICK, &mut handed);
            for number in 0..RINGS {
                let ring = ring(&mut rings, number);
                trusted[number] |= ring.tail() == ring.head();
                if let Some(head) = tick.checked_sub(10).map(|then| heads[then][number]) {
                    prop_assert!(ring.tail() >= head, "ring {} in tick {}", number, tick);
                }
            }
        }
        let mut found: Vec<u32> = handed.pids;
        found.retain(|pid| expected.contains(pid));
        found.sort_unstable();
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }
}
