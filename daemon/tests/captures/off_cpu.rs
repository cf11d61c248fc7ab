//! Tests a capture of event `off-cpu` on real rings with waits of known length and cause: how long,
//! at which place, and who woke the thread.

use crate::got::live;
use ::offcpu::WaitCounts;
use aggregate::batch::RawBatch;
use aggregate::batch_symbolizer::BatchSymbolizer;
use aggregate::recorder::{Recorder, RecorderOptions, RecorderQuery, WindowRange, query};
use capture::engine::OffCpuCapture;
use capture::offcpu::Options;
use cgroup::CgroupTable;
use host::ids::{CaptureId, Pid};
use host::time::MonotonicTime;
use jit::JitSymbolLookup;
use profile::{Profile, Query, StackEnd, key};
use sampler::filter::Filter;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use symbolize::counters::SymbolCounters;
use symbolize::files::FileStore;
use symbolize::kernel::KernelSymbols;
use symbolize::{SymbolOptions, Symbolizer};

/// Time that the threads wait for, in rounds. Each waits the same again and again.
const ROUNDS: u32 = 30;

/// Stages of a round: nothing, for the pipe, to be unparked, unparked.
const STAGES: u64 = 4;

/// What a thread waited for, by its own clock. Unit: nanoseconds.
#[derive(Default)]
struct Truth {
    slept: AtomicU64,
    piped: AtomicU64,
    parked: AtomicU64,
    synced: AtomicU64,
}

fn timed(sum: &AtomicU64, wait: impl FnOnce()) {
    let begin = Instant::now();
    wait();
    sum.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(body).expect("failed to start a thread")
}

/// In each round, sleeps 5 ms, waits 10 ms for a pipe and 15 ms to be unparked. One thread does all
/// of it, so the waits differ only in their stacks.
fn waiter(truth: Arc<Truth>, mut pipe: PipeReader, asked: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    for round in 0..ROUNDS {
        let stage = |stage: u64| u64::from(round) * STAGES + stage;
        timed(&truth.slept, || {
            std::thread::sleep(Duration::from_millis(5))
        });
        asked.store(stage(1), Ordering::Release);
        timed(&truth.piped, || {
            pipe.read_exact(&mut [0]).expect("the writer is there");
        });
        asked.store(stage(2), Ordering::Release);
        timed(&truth.parked, || {
            while asked.load(Ordering::Acquire) != stage(3) {
                std::thread::park();
            }
        });
    }
    stop.store(true, Ordering::Release);
}

/// Waits until the other is at `stage` of a round, lets it wait for so long, and ends that.
fn serve(asked: &AtomicU64, stop: &AtomicBool, stage: u64, wait: Duration, mut end: impl FnMut()) {
    let mut served = 0;
    while !stop.load(Ordering::Acquire) {
        let now = asked.load(Ordering::Acquire);
        if now != served && now % STAGES == stage {
            std::thread::sleep(wait);
            served = now;
            end();
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn write_a_byte(pipe: &mut PipeWriter) {
    pipe.write_all(&[1]).expect("the reader is there");
}

/// Runs all threads to their end.
fn waits(truth: &Arc<Truth>, disk: std::fs::File) {
    let (reader, mut writer) = std::io::pipe().expect("failed to make a pipe");
    let (asked, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let its = (Arc::clone(truth), Arc::clone(&asked), Arc::clone(&stop));
    let waiter = named("ocpu-waiter", move || waiter(its.0, reader, its.1, its.2));
    let its = (Arc::clone(&asked), Arc::clone(&stop));
    let piper = named("ocpu-writer", move || {
        serve(&its.0, &its.1, 1, Duration::from_millis(10), || {
            write_a_byte(&mut writer)
        });
    });
    let its = (Arc::clone(&asked), Arc::clone(&stop));
    let parked = waiter.thread().clone();
    let unparker = named("ocpu-unparker", move || {
        serve(&its.0, &its.1, 2, Duration::from_millis(15), || {
            its.0.fetch_add(1, Ordering::Release);
            parked.unpark();
        });
    });
    let (its, truth) = (Arc::clone(&stop), Arc::clone(truth));
    let syncer = named("ocpu-syncer", move || {
        let mut disk = disk;
        while !its.load(Ordering::Acquire) {
            disk.write_all(&[7; 4096]).expect("the disk has room");
            timed(&truth.synced, || disk.sync_all().expect("the disk works"));
        }
    });
    for thread in [waiter, piper, unparker, syncer] {
        thread.join().expect("a thread that waits ends well");
    }
}

/// A capture of waits next to a continuous profile, and its result.
struct Captured {
    profile: Profile,
    waits: WaitCounts,
    timestamps: usize,
    lost: u64,
    /// Memory of remembered walks: the most while it ran, and after it.
    recalled: [u64; 2],
}

fn symbolizer(store: &Arc<FileStore>) -> BatchSymbolizer {
    let counters = Arc::new(SymbolCounters::default());
    let mut symbolizer = Symbolizer::new(SymbolOptions::default(), Arc::clone(store), counters);
    symbolizer.set_kernel_symbols(KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none()));
    let (store, cgroups) = (Arc::clone(store), CgroupTable::discover());
    BatchSymbolizer::new(symbolizer, store, JitSymbolLookup::closed(), cgroups)
}

/// Drives the sampler while `load` runs, with a capture of this process's waits for that time.
fn capture(stack_bytes: u32, load: impl FnOnce() + Send + 'static) -> Option<Captured> {
    capture_of(std::process::id(), stack_bytes, load)
}

/// The same of the waits of a process.
fn capture_of(
    pid: u32,
    stack_bytes: u32,
    load: impl FnOnce() + Send + 'static,
) -> Option<Captured> {
    let (mut driven, shared, engine) = live()?;
    let id = CaptureId(5);
    let wanted = OffCpuCapture {
        id,
        options: Options {
            copy_all: false,
            max_stack_depth: 127,
            stack_bytes,
            min_wait: Duration::ZERO,
        },
        filter: Filter::default().pids([Pid(pid)]),
        keep_times: true,
    };
    let started = match engine.start_off_cpu(wanted) {
        Ok(started) => started,
        Err(error) => {
            testkit::skip(format_args!(
                "the scheduler is not to be traced here: {error}"
            ));
            return None;
        }
    };
    eprintln!("{started:?}");
    driven.sampler.pass(MonotonicTime::now()).expect("a pass");
    let load = std::thread::spawn(load);

    let mut captured: Vec<RawBatch> = Vec::new();
    let mut ended = false;
    let recalled = || {
        shared
            .facts
            .lock()
            .expect("no panic")
            .unwinding
            .recall
            .bytes
    };
    let mut most_recalled = 0;
    loop {
        driven.sampler.pass(MonotonicTime::now()).expect("a pass");
        most_recalled = recalled().max(most_recalled);
        while let Ok(mut batch) = driven.batches.try_recv() {
            if batch.capture.is_some() {
                let tag = batch.capture;
                captured.push(std::mem::take(&mut batch));
                batch.capture = tag;
            }
            let _ = driven.recycle.send(batch);
        }
        if captured.last().is_some_and(|batch| batch.closes) {
            break;
        }
        if load.is_finished() && !ended {
            ended = engine.end(id);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    load.join().expect("the load ends well");
    // The capture is dropped at the end of a pass, and facts are reported at the start.
    (0..3).for_each(|_| driven.sampler.pass(MonotonicTime::now()).expect("a pass"));
    let recalled = [most_recalled, recalled()];
    let recorder = RwLock::new(Recorder::new(RecorderOptions::default()));
    let mut symbolizer = symbolizer(&driven.store);
    let (mut waits, mut timestamps, mut lost) = (WaitCounts::default(), 0, 0);
    for batch in &mut captured {
        waits.add(&batch.waits);
        timestamps += batch.timestamps.len();
        lost += batch.quality.lost;
        symbolizer.record(batch, &recorder);
    }
    let span = WindowRange::Time(MonotonicTime(0), MonotonicTime(u64::MAX));
    let never = AtomicBool::new(false);
    let asked = RecorderQuery {
        query: &Query::default(),
        times: true,
        withhold: profile::Withholding::nothing(),
    };
    let answer = query(&recorder, span, asked, &never);
    driven.end();
    Some(Captured {
        profile: answer.expect("not cancelled").profile,
        waits,
        timestamps,
        lost,
        recalled,
    })
}

/// A row: thread, function names leaf first, weight.
fn rows(profile: &Profile) -> Vec<(String, Vec<String>, u64)> {
    let dict = &profile.dict;
    let rows = profile.samples.iter().map(|(sample, value)| {
        let thread = dict.label(sample.labels, key::THREAD).unwrap_or("");
        let mut functions = Vec::new();
        let mut at = sample.stack;
        while let Some((parent, frame)) = dict.stacks.node(at) {
            functions.push(dict.frame(frame).function.to_owned());
            at = parent;
        }
        (thread.to_owned(), functions, value.weight)
    });
    rows.collect()
}

/// Whether a stack of the load reaches the first function of its thread.
fn has_whole(rows: &[(String, Vec<String>, u64)]) -> bool {
    rows.iter().any(|(thread, functions, _)| {
        let root = functions.last().map_or("", String::as_str);
        thread.starts_with("ocpu-") && root.contains("clone")
    })
}

/// How long captures last that need unwind information: the next where one ended before it was
/// read. Each capture reads it again, which takes seconds in a debug build on a busy machine.
fn lengths() -> impl Iterator<Item = Duration> {
    [15, 30, 60, 120].into_iter().map(Duration::from_secs)
}

/// Does something again and again for so long.
fn lasting(length: Duration, mut load: impl FnMut()) {
    let begin = Instant::now();
    while begin.elapsed() < length {
        load();
    }
}

#[test]
fn what_is_remembered_of_waits_goes_with_the_last_capture_of_them_needs_root() {
    // Nothing is remembered before the unwind information of this program is read.
    for length in lengths() {
        let naps = move || lasting(length, || std::thread::sleep(Duration::from_millis(2)));
        let Some(captured) = capture(16 << 10, naps) else {
            return;
        };
        let [most, after] = captured.recalled;
        assert_eq!(after, 0, "of {most} bytes");
        if most > 0 {
            return;
        }
    }
    panic!("nothing was remembered");
}

#[test]
fn waits_of_known_length_come_out_with_their_wakers_needs_root() {
    let truth = Arc::new(Truth::default());
    let disk = tempfile::tempfile().expect("failed to make a file");
    let load = Arc::clone(&truth);
    let Some(captured) = capture(16 << 10, move || waits(&load, disk)) else {
        return;
    };
    let rows = rows(&captured.profile);
    let of = |thread: &str, place: &str, waker: &str| {
        let rows = rows.iter().filter(|(of, functions, _)| {
            let has = |part: &str| functions.iter().any(|function| function.contains(part));
            of == thread && has(place) && has(waker)
        });
        rows.map(|(.., weight)| weight).sum::<u64>()
    };
    let shown = || {
        let mut text = format!("{:?}, lost {}\n", captured.waits, captured.lost);
        for (thread, functions, weight) in &rows {
            text += &format!("{weight:>12} {thread} {}\n", functions.join(";"));
        }
        text
    };
    // The thread's own clock has a little more: until it waits and from when it runs again.
    let check = |thread: &str, place: &str, truth: &AtomicU64, least: f64| {
        let (found, truth) = (
            of(thread, place, "") as f64,
            truth.load(Ordering::Relaxed) as f64,
        );
        eprintln!(
            "{thread} {place}: {:.1} of {:.1} ms",
            found / 1e6,
            truth / 1e6
        );
        assert!(
            found <= truth && found >= least * truth,
            "{thread} {place}\n{}",
            shown()
        );
    };
    check("ocpu-waiter", "do_nanosleep", &truth.slept, 0.8);
    check("ocpu-waiter", "pipe_read", &truth.piped, 0.8);
    check("ocpu-waiter", "futex_do_wait", &truth.parked, 0.8);
    check("ocpu-syncer", "fsync", &truth.synced, 0.3);
    let mostly = |place: &str, waker: &str| {
        let of_waker = |waker| of("ocpu-waiter", place, waker);
        let all = of_waker("");
        // Nobody knows about an interrupt on an idle CPU with an idle task that does not report.
        let hidden = match captured.waits.silent.is_empty() || !waker.contains("interrupt") {
            true => 0,
            false => of_waker("[waker unseen]"),
        };
        let woken = of_waker(waker) + hidden;
        assert!(woken * 10 >= all * 9, "{place} {waker}\n{}", shown());
    };
    mostly("pipe_read", "[woken by ocpu-writer]");
    mostly("pipe_read", "pipe_write");
    mostly("futex_do_wait", "[woken by ocpu-unparker]");
    mostly("futex_do_wait", "futex_wake");
    mostly("do_nanosleep", "[woken by a hard interrupt]");
    assert!(
        of("ocpu-syncer", "fsync", "[uninterruptible]") > 0,
        "{}",
        shown()
    );
    // Copied stacks reach the thread's first function once this program's unwind information is
    // read.
    let whole = has_whole(&rows)
        || lengths().any(|length| {
            let load = || waits(&Arc::default(), tempfile::tempfile().expect("a file"));
            let again = capture(16 << 10, move || lasting(length, load));
            again.is_some_and(|again| has_whole(&self::rows(&again.profile)))
        });
    assert!(whole, "{}", shown());
    let ended = captured.waits.waits - captured.waits.ongoing;
    assert_eq!(captured.timestamps as u64, ended, "{}", shown());
    let times = &captured.profile.timestamps;
    assert_eq!((times.list.len() as u64, times.dropped), (ended, 0));
    let sum: u64 = rows.iter().map(|(.., weight)| weight).sum();
    assert_eq!(sum, captured.waits.waits_ns, "{}", shown());
    // The kernel reports nothing about some threads: a thread that runs after one of them arrived
    // unseen.
    if captured.lost == 0 {
        assert!(
            captured.waits.unknown * 20 <= captured.waits.waits,
            "{}",
            shown()
        );
        assert_eq!(captured.waits.late, 0, "{}", shown());
    }
}

/// Waits by turns from two callers at equal depth, without frame pointers. The array makes the
/// outer frames lie beyond what is copied with every wait where `DEEP` is large.
const PROGRAM: &str = r#"
#include <poll.h>
__attribute__((noinline)) int wait_here(void) { int found = poll(0, 0, 2); __asm__ volatile(""); return found; }
__attribute__((noinline)) int one(void) { int found = wait_here(); __asm__ volatile("nop"); return found; }
__attribute__((noinline)) int two(void) { int found = wait_here(); __asm__ volatile("nop; nop"); return found; }
__attribute__((noinline)) int outer(void) {
    volatile char held[DEEP]; held[0] = 1;
    for (;;) { one(); two(); __asm__ volatile(""); }
    return held[0];
}
int main(void) { outer(); __asm__ volatile(""); return 0; }
"#;

/// A program that waits, ended when dropped.
struct Waiter(
    std::process::Child,
    #[expect(dead_code, reason = "it is removed when dropped")] tempfile::TempDir,
);

impl Drop for Waiter {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn waiting_program(deep: u32) -> Option<Waiter> {
    let dir = tempfile::tempdir().expect("failed to make a directory");
    let (source, program) = (dir.path().join("waits.c"), dir.path().join("waits"));
    std::fs::write(&source, PROGRAM).expect("failed to write");
    let built = std::process::Command::new("cc")
        .args(["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"])
        .arg(format!("-DDEEP={deep}"))
        .arg("-o")
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        testkit::skip("there is no C compiler");
        return None;
    }
    let child = std::process::Command::new(&program).spawn();
    Some(Waiter(child.expect("failed to run"), dir))
}

/// Waited time by the caller of `wait_here`, of stacks that reach `main`; and all of it. What was
/// sampled before the unwind information of the program was read is left out.
fn by_caller(captured: &Captured) -> ([u64; 2], u64) {
    let dict = &captured.profile.dict;
    let (mut sums, mut all) = ([0; 2], 0);
    for (key, value) in &captured.profile.samples {
        if key.end == StackEnd::ModuleLoading {
            continue;
        }
        all += value.weight;
        let frames = dict.stacks.leaf_first(key.stack);
        let functions: Vec<_> = frames.map(|frame| dict.frame(frame).function).collect();
        let at = |name: &str| functions.iter().position(|&function| function == name);
        for (sum, caller) in sums.iter_mut().zip(["one", "two"]) {
            // The caller of the wait is the frame behind it.
            let called = at("wait_here")
                .zip(at(caller))
                .is_some_and(|(here, by)| by == here + 1);
            if called && at("main").is_some() {
                *sum += value.weight;
            }
        }
    }
    (sums, all)
}

/// Checks that both callers of a program with so many bytes between them and `main` are found.
fn check_callers(deep: u32) -> Option<Captured> {
    let waiter = waiting_program(deep)?;
    let mut captures = lengths().map(|length| {
        let captured = capture_of(waiter.0.id(), 16 << 10, move || std::thread::sleep(length))?;
        let (callers, all) = by_caller(&captured);
        Some((captured, callers, all))
    });
    let unread = |found: &Option<(_, _, u64)>| matches!(found, Some((.., 0)));
    let found = captures.find(|found| !unread(found));
    let (captured, callers, all) = found.expect("the unwind information is read")?;
    let ends = captured.profile.samples.keys().map(|key| key.end);
    let ends: std::collections::BTreeSet<_> = ends.collect();
    let shown = || format!("{callers:?} of {all} ns, {:?}, {ends:?}", captured.waits);
    eprintln!("{}", shown());
    // They wait by turns.
    assert!(callers.iter().all(|&of| of * 10 >= all * 3), "{}", shown());
    Some(captured)
}

#[test]
fn waits_without_frame_pointers_have_their_callers_needs_root() {
    let Some(captured) = check_callers(64) else {
        return;
    };
    let mut ends = captured.profile.samples.keys().map(|key| key.end);
    // All of its stack is in the small copies.
    assert!(!ends.any(|end| end == StackEnd::Alike));
}

#[test]
fn estimated_callers_are_never_those_of_the_other_caller_needs_root() {
    let Some(captured) = check_callers(6000) else {
        return;
    };
    assert_eq!(captured.waits.alike_wrong, 0, "{:?}", captured.waits);
}
