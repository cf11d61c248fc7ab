//! Many threads at one store.

use crate::store::draft::{Draft, definitions, push, windows};
use crate::store::{Engine, Fresh, NOW_NS, Place, ample, hour, query, whole_hour};
use collector::store::PushOutcome;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const THREADS: u64 = 4;
const WINDOWS: u64 = 12;
const SAMPLES: u64 = 100;

fn window(host: u64, sequence: u64) -> Draft {
    let host = format!("h{host}");
    Draft::new(&host, sequence, sequence as i64 * 10)
        .row("unit=web", "main;work", SAMPLES - 30)
        .row("unit=db", &format!("main;q{};read", sequence % 5), 20)
        .lost("unit=db", 10)
}

pub fn pushes_and_queries_of_many_threads_add_up(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let pushers: Vec<_> = (0..THREADS)
            .map(|host| {
                let store = store.shared();
                scope.spawn(move || {
                    for sequence in 0..WINDOWS {
                        let taken = push(&*store, &[window(host, sequence)]);
                        assert_eq!(taken, [PushOutcome::Stored]);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let (mut last, mut answers) = (0, 0);
            while !done.load(Ordering::Relaxed) || answers == 0 {
                let answer = store.profile(hour(), &query("", &[]), &ample()).unwrap();
                let count = answer.quality.total.count;
                assert_eq!(count % SAMPLES, 0, "windows are whole or not there");
                assert!(count >= last, "what was there stays");
                (last, answers) = (count, answers + 1);
            }
        });
        for pusher in pushers {
            pusher.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let quality = whole_hour(&*store).quality;
    assert_eq!(quality.total.count, THREADS * WINDOWS * SAMPLES);
    assert_eq!(quality.windows, THREADS * WINDOWS);
}

pub fn one_window_pushed_by_many_threads_counts_once(_: &dyn Engine, place: Box<dyn Place>) {
    let store = Fresh::of(place);
    let drafts: Vec<_> = (0..3).map(|sequence| window(1, sequence)).collect();
    let (windows, stacks) = (windows(&drafts), definitions(&drafts));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let taken = store.push(&windows, &stacks, NOW_NS).unwrap();
                let fine =
                    |of: &PushOutcome| matches!(of, PushOutcome::Stored | PushOutcome::Duplicate);
                assert!(taken.iter().all(fine), "{taken:?}");
            });
        }
    });
    let quality = whole_hour(&*store).quality;
    assert_eq!((quality.total.count, quality.windows), (3 * SAMPLES, 3));
}
