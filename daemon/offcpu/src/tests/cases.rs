//! Tests the machine on handwritten records, one case each.

use super::*;

fn at(time: u64, cpu: u32) -> At {
    At {
        time: MonotonicTime(time),
        cpu: CpuId(cpu),
    }
}

fn sleep(run: &mut Run, time: u64, cpu: u32, tid: u32, next: u32) {
    let kind = EventKind::Switch {
        prev: tid,
        leaving: Leaving::Sleep,
        next,
        copied: Copied::No,
    };
    run.tell(&Event {
        at: at(time, cpu),
        kind,
    });
}

fn resume(run: &mut Run, time: u64, cpu: u32, tid: u32) {
    sleep(run, time, cpu, 0, tid);
}

#[test]
fn a_wait_that_started_before_the_capture_is_not_known_and_counted() {
    let mut run = Run::new(0);
    resume(&mut run, 10, 0, 5);
    sleep(&mut run, 20, 0, 5, 0);
    let (found, counts) = run.finish(50);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].start, found[0].length, found[0].waker),
        (20, 30, None)
    );
    assert_eq!((counts.started_before, counts.ongoing), (1, 1));
}

#[test]
fn a_thread_id_used_again_does_not_go_on_with_the_wait_of_the_one_before() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    // It comes back and ends, and another one gets its id.
    resume(&mut run, 20, 0, 5);
    run.machine.ends(at(30, 0), Tid(5), &mut |_| {});
    resume(&mut run, 90, 0, 5);
    sleep(&mut run, 95, 0, 5, 0);
    resume(&mut run, 99, 0, 5);
    let (found, _) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.start, wait.length)).collect();
    assert_eq!(found, [(10, 10), (95, 4)]);
}

#[test]
fn a_thread_that_left_twice_or_came_twice_waited_for_an_unknown_time() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    sleep(&mut run, 30, 1, 5, 0);
    resume(&mut run, 40, 1, 5);
    resume(&mut run, 70, 0, 5);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.start, wait.length)).collect();
    assert_eq!(found, [(30, 10)]);
    assert_eq!((counts.unknown, counts.unknown_ns), (2, 20));
}

#[test]
fn a_record_that_comes_late_is_as_a_lost_one() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    sleep(&mut run, 30, 0, 6, 0);
    resume(&mut run, 20, 1, 5);
    resume(&mut run, 40, 0, 6);
    resume(&mut run, 50, 0, 5);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.tid, wait.length)).collect();
    assert_eq!(found, [(6, 10)]);
    assert_eq!((counts.late, counts.unknown), (1, 1));
}

#[test]
fn a_full_table_has_room_again_when_a_loss_made_its_threads_unknown() {
    let mut run = Run::new(0);
    run.machine = Machine::with_bounds(Duration::ZERO, 2, 64);
    sleep(&mut run, 10, 0, 1, 0);
    sleep(&mut run, 11, 0, 2, 0);
    sleep(&mut run, 12, 0, 3, 0);
    assert_eq!(run.machine.counts.threads_refused, 1);
    run.machine.lost_switches(Loss {
        from: MonotonicTime(20),
        until: MonotonicTime(20),
    });
    sleep(&mut run, 21, 0, 3, 0);
    let (found, counts) = run.finish(30);
    assert_eq!(found.len(), 1);
    assert_eq!((counts.threads_refused, counts.unknown), (1, 2));
}

#[test]
fn time_in_the_queue_for_a_cpu_is_told_apart() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    let kind = EventKind::Waking { woken: 5, waker: 2 };
    run.tell(&Event {
        at: at(30, 1),
        kind,
    });
    resume(&mut run, 37, 0, 5);
    let (found, counts) = run.finish(100);
    assert_eq!((found[0].length, found[0].waker), (27, Some(2)));
    assert_eq!((counts.waits_ns, counts.delay_ns), (27, 7));
}

#[test]
fn a_thread_that_is_not_wanted_any_more_is_forgotten() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    resume(&mut run, 20, 0, 5);
    run.machine.passes(at(30, 0), Tid(5), &mut |_| {});
    assert_eq!(run.machine.who(Tid(5)), None);
    resume(&mut run, 40, 0, 5);
    let (found, counts) = run.finish(50);
    assert_eq!((found.len(), counts.unknown), (1, 0));
}

fn wake(run: &mut Run, time: u64, cpu: u32, woken: u32, waker: u32) {
    let kind = EventKind::Waking { woken, waker };
    run.tell(&Event {
        at: at(time, cpu),
        kind,
    });
}

/// A capture on a host with a CPU 1 that was offline before: thread 5 waits there twice and comes
/// back from the idle task each time, which nothing records.
#[test]
fn a_thread_that_comes_from_a_silent_idle_task_has_waited_until_it_was_woken() {
    let times = u64::from(crate::machine::SILENT_MIN);
    let mut run = Run::new(0);
    for start in (0..times).map(|time| 10 + time * 100) {
        sleep(&mut run, start, 1, 5, 0);
        wake(&mut run, start + 20, 0, 5, 2);
    }
    let end = 10 + times * 100;
    sleep(&mut run, end, 1, 5, 0);
    let (found, counts) = run.finish(end + 31);
    let (last, before) = found.split_last().expect("waits");
    assert!(
        before
            .iter()
            .all(|wait| (wait.length, wait.waker) == (20, Some(2)))
    );
    assert_eq!((last.length, last.waker), (31, None));
    assert_eq!((counts.estimated, counts.estimated_ns), (times, 20 * times));
    assert_eq!((counts.unknown, counts.ongoing), (0, 1));
    assert_eq!(counts.cause(), "CPU 1 reports no switches from idle");
    let summary = counts.summary();
    assert_eq!((summary.complete, summary.taken_ns()), (0, 20 * times + 31));
}

#[test]
fn a_thread_that_tells_of_its_arrival_has_waited_until_then() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 1, 5, 0);
    wake(&mut run, 30, 0, 5, 2);
    let Run { machine, found } = &mut run;
    let emit = &mut |wait: Wait<'_>| Run::note(found, &wait);
    machine.arrives(at(37, 1), Tid(5), emit);
    // The same again: reported by the thread that left, and by itself.
    machine.arrives(at(38, 1), Tid(5), emit);
    sleep(&mut run, 50, 1, 5, 0);
    let (found, counts) = run.finish(60);
    let found: Vec<_> = found.iter().map(|wait| (wait.start, wait.length)).collect();
    assert_eq!(found, [(10, 27), (50, 10)]);
    assert_eq!(
        (counts.estimated, counts.unknown, counts.delay_ns),
        (0, 0, 7)
    );
}

#[test]
fn a_cpu_whose_idle_task_was_seen_to_switch_is_not_silent() {
    let mut run = Run::new(0);
    resume(&mut run, 5, 1, 6);
    for start in (0..100).map(|time| 10 + time * 100) {
        sleep(&mut run, start, 1, 5, 0);
        wake(&mut run, start + 20, 0, 5, 2);
    }
    let (_, counts) = run.finish(20_000);
    assert_eq!(counts.estimated, 99);
    assert!(counts.silent.is_empty());
}

#[test]
fn a_wait_ends_with_the_first_wake_up_that_had_an_effect() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 1, 5, 0);
    wake(&mut run, 20, 0, 5, 2);
    // It runs by now, unseen, and is woken as it is about to wait again.
    wake(&mut run, 50, 0, 5, 3);
    sleep(&mut run, 51, 1, 5, 0);
    resume(&mut run, 60, 0, 5);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found
        .iter()
        .map(|wait| (wait.start, wait.length, wait.waker))
        .collect();
    assert_eq!(found, [(10, 10, Some(2)), (51, 9, Some(3))]);
    assert_eq!(counts.estimated, 1);
}

#[test]
fn a_wait_that_was_woken_before_records_were_lost_ends_there() {
    let mut run = Run::new(0);
    sleep(&mut run, 10, 0, 5, 0);
    sleep(&mut run, 12, 0, 6, 0);
    wake(&mut run, 20, 1, 5, 2);
    run.machine.lost_switches(Loss {
        from: MonotonicTime(30),
        until: MonotonicTime(40),
    });
    wake(&mut run, 50, 1, 6, 2);
    resume(&mut run, 60, 0, 5);
    resume(&mut run, 61, 0, 6);
    let (found, counts) = run.finish(100);
    let found: Vec<_> = found.iter().map(|wait| (wait.tid, wait.length)).collect();
    assert_eq!(found, [(5, 10)], "the other may have waited twice");
    assert_eq!((counts.estimated, counts.unknown), (1, 1));
    assert_eq!(counts.cause(), "a record was lost, or the kernel made none");
}

#[test]
fn cpus_are_named_up_to_a_few() {
    let text = |cpus: &[u32]| {
        let mut mask = crate::CpuMask::default();
        cpus.iter().for_each(|&cpu| mask.add(CpuId(cpu)));
        mask.text()
    };
    assert_eq!(text(&[1]), "CPU 1");
    assert_eq!(text(&[0, 65]), "CPUs 0, 65");
    assert_eq!(text(&[0, 1, 2, 3, 4, 9999]), "CPUs 0, 1, 2, 3 and 2 more");
}
