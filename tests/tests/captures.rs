//! Captures on demand on the real kernel: beside the continuous profile, and on bad days.

use profile::key;
use proto::agent::{CaptureState, QueryProfileRequest};
use std::time::Duration;
use testkit::capture::{below, equal, request};
use testkit::process::{Proc, wait_for};
use testkit::stats::SIGMAS;
use testkit::sysctl::Sysctl;
use testkit::workload::c;
use testkit::{Cgroup, Client, Daemon, Need, beside, live};
use tonic::Code;

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
/// Longest wait for a state that is on its way.
const SOON: Duration = Duration::from_secs(20);
/// Longest time from SIGTERM to the end: the grace of tests, and what a loaded machine adds.
const END: Duration = Duration::from_secs(75);

/// Largest distance of a count from the expected one of a process that is on a CPU for a part of
/// the time: no more than as if each tick met it by chance, and a tick at both ends.
fn bound(expected: f64) -> f64 {
    SIGMAS * expected.sqrt() + 2.0
}

/// Until a capture has some.
fn wait_for_samples(client: &Client, id: u64) {
    let sampled = wait_for(SOON, || {
        let listed = client.captures();
        let progress = listed.iter().find(|info| info.id == id)?.progress?;
        (progress.samples > 0).then_some(())
    });
    sampled.expect("samples of a busy host");
}

#[test]
fn a_capture_at_another_rate_and_the_profile_are_both_right_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("captured");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let _busy = c("split.c").start_in(&cgroup, &[]);
    let length = Duration::from_secs(6);
    let mut wanted = request(length);
    wanted.matchers = vec![below(cgroup.path())];
    wanted.rate_hz = 997;
    wanted.who = "a test".into();
    let before = cgroup.cpu_ns().expect("an account");
    let capture = client.capture(wanted).expect("accepted");
    let began = capture.accepted.started_unix_ns;
    // Read when the capture ends: its result may come seconds later.
    let (captured, after) = std::thread::scope(|scope| {
        let after = scope.spawn(|| {
            std::thread::sleep(length);
            cgroup.cpu_ns().expect("an account")
        });
        let captured = capture.finish().expect("captured");
        (captured, after.join().expect("an account"))
    });
    let used = after - before;
    let (result, view) = (&captured.result, &captured.view);
    eprintln!(
        "first progress after {:?}, {} in all; result {result:?}",
        captured.first_progress_after,
        captured.progress.len()
    );
    assert_eq!(result.state(), CaptureState::Complete, "{result:?}");
    assert!(captured.progress.len() >= 6);
    // The account is read a moment before and after, in which it goes on.
    let slack = 0.3e9 / view.info.period as f64;
    let expected = used as f64 / view.info.period as f64;
    let count = view.in_cgroup(cgroup.path()).count() as f64;
    let text = format!("cpu.stat: {expected:.0} samples, capture: {count}");
    assert!(count - expected <= bound(expected), "{text}");
    assert!(expected - count <= bound(expected) + slack, "{text}");
    eprintln!("{text}");
    assert_eq!(
        view.count(),
        view.in_cgroup(cgroup.path()).count(),
        "nothing else is in it"
    );
    // The continuous profile of the same time.
    let asked = QueryProfileRequest {
        range: Some(proto::agent::TimeRange {
            start_unix_ns: began,
            end_unix_ns: 0,
        }),
        matchers: vec![below(cgroup.path())],
        group_by: vec!["*".into()],
        fresh: true,
        times: true,
        ..QueryProfileRequest::default()
    };
    let until = began + result.elapsed_ns as i64;
    let profile = client.query_until(&asked, until);
    let spent = cgroup.cpu_ns().expect("an account") as f64;
    let expected = spent / profile.info.period as f64;
    let count = profile.count() as f64;
    let text = format!("99 Hz beside it: {count} of at most {expected:.0} samples");
    assert!(count <= expected + bound(expected), "{text}");
    let least = used as f64 / profile.info.period as f64;
    assert!(
        count >= least - bound(least) - 0.3e9 / profile.info.period as f64,
        "{text}"
    );
    eprintln!("{text}");
    // Times are known of every sample, in both.
    let taken = |view: &testkit::View| view.info.quality.unwrap_or_default().taken;
    assert_eq!(view.times.len() as u64, taken(view));
    assert_eq!(profile.times.len() as u64, taken(&profile));
    let end = began + result.elapsed_ns as i64;
    // Events stop a moment after the capture is told to.
    let slack = 50_000_000;
    let late = |time: &&i64| !(began - slack..=end + slack).contains(*time);
    assert_eq!(view.times.iter().find(late), None, "{began} to {end}");
    let listed = client.captures();
    assert_eq!(
        listed[0].request.as_ref().map(|r| r.who.as_str()),
        Some("a test")
    );
    assert!(daemon.log().contains("capture started") && daemon.log().contains("capture ended"));
    daemon.stop();
}

#[test]
fn a_capture_of_waits_has_the_time_that_a_sleeper_waited_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("waits");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let dir = tempfile::tempdir().expect("a directory");
    let mut sleeper = cgroup.command("sh");
    sleeper.args(["-c", "while :; do sleep 0.1; done"]);
    let _sleeper = Proc::spawn(&mut sleeper, dir.path(), "sleeper");
    let length = Duration::from_secs(2);
    let mut wanted = request(length);
    wanted.event = profile::OFF_CPU.into();
    wanted.matchers = vec![below(cgroup.path())];
    let capture = client.capture(wanted).expect("accepted");
    let captured = capture.finish().expect("captured");
    let (result, view) = (&captured.result, &captured.view);
    assert_eq!(result.state(), CaptureState::Complete, "{result:?}");
    assert_eq!(view.info.event, profile::OFF_CPU);
    // One of the two always sleeps: the shell for its child, the child for its time.
    let waited = Duration::from_nanos(view.samples.iter().map(|sample| sample.weight).sum());
    assert!(waited > length / 2, "{waited:?} of {length:?}");
}

#[test]
fn the_time_before_comes_with_it_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("captured");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let _busy = c("split.c").start_in(&cgroup, &[]);
    let mine = vec![below(cgroup.path())];
    let asked = QueryProfileRequest {
        matchers: mine.clone(),
        fresh: true,
        ..QueryProfileRequest::default()
    };
    let there = wait_for(SOON, || {
        let view = client.query(asked.clone()).expect("a profile");
        (view.count() > 50).then_some(())
    });
    there.expect("samples of the time before");
    let mut wanted = request(Duration::from_secs(1));
    wanted.matchers = mine;
    wanted.before_ns = 60_000_000_000;
    let capture = client.capture(wanted).expect("accepted");
    let began = capture.accepted.started_unix_ns;
    let captured = capture.finish().expect("captured");
    let past = captured.past.expect("the past");
    assert!(past.count() > 50, "{}", past.count());
    let end = past.info.start_unix_ns + past.info.duration_ns as i64;
    assert!(
        end <= began + 1_000_000_000,
        "the past ends where the capture starts"
    );
    assert!(!past.times.is_empty());
    assert!(captured.view.count() > 0);
    daemon.stop();
}

#[test]
fn cancelling_leaving_and_too_many_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    // Cancelled, with what there is.
    let capture = client.capture(request(SOON * 60)).expect("accepted");
    let id = capture.accepted.id;
    wait_for_samples(&client, id);
    client.cancel_capture(id).expect("it runs");
    let captured = capture.finish().expect("captured");
    assert_eq!(captured.result.state(), CaptureState::Cancelled);
    assert!(captured.view.count() > 0);
    assert_eq!(
        client.cancel_capture(id).unwrap_err().code(),
        Code::NotFound
    );
    // As many as are allowed, and then none.
    let many: Vec<_> = (0..200)
        .map(|_| client.capture(request(SOON * 60)))
        .collect();
    let accepted = many.iter().filter(|one| one.is_ok()).count();
    assert_eq!(accepted, 8);
    for refused in many.iter().filter_map(|one| one.as_ref().err()) {
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(
            refused.message().contains("8 captures run already"),
            "{refused}"
        );
    }
    // Their client leaves: all is free again.
    drop(many);
    let free = wait_for(SOON, || {
        let listed = client.captures();
        let running = |info: &&proto::agent::CaptureInfo| info.state() == CaptureState::Running;
        (listed.iter().find(running).is_none()).then_some(())
    });
    free.expect("captures without a client end");
    let next = wait_for(SOON, || {
        client.capture(request(Duration::from_millis(200))).ok()
    });
    let captured = next.expect("a free place").finish().expect("captured");
    assert_eq!(captured.result.state(), CaptureState::Complete);
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_fast_capture_that_the_kernel_throttles_says_so_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let rate = "kernel/perf_event_max_sample_rate";
    let Some(_allowed) = Sysctl::set(rate, 20_000) else {
        return testkit::skip(format_args!("{rate} cannot be set"));
    };
    let cgroup = Cgroup::new("captured");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let _busy = [(), ()].map(|()| c("split.c").start_in(&cgroup, &[]));
    let mut fast = request(SOON * 3);
    fast.rate_hz = 9999;
    let capture = client.capture(fast.clone()).expect("accepted");
    let id = capture.accepted.id;
    wait_for_samples(&client, id);
    // What the kernel does by itself when samples take it long.
    let lowered = Sysctl::set(rate, 2000).expect("as before");
    std::thread::sleep(Duration::from_secs(2));
    client.cancel_capture(id).expect("it runs");
    let captured = capture.finish().expect("captured");
    let told = captured.result.notices.join("; ");
    assert!(told.contains("the kernel throttled sampling"), "{told}");
    let quality = captured.view.info.quality.unwrap_or_default();
    assert!(quality.throttled > 0, "{quality:?}");
    // What was not taken has its place: all of the time is accounted for.
    assert!(quality.lost_samples > 0, "{quality:?}");
    // The next one is told before it starts.
    fast.duration_ns = 200_000_000;
    let next = client.capture(fast).expect("accepted").finish();
    let told = next.expect("captured").result.notices.join("; ");
    assert!(told.contains("2000 Hz instead of 9999"), "{told}");
    drop(lowered);
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_target_that_is_not_there_or_goes_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let mut nobody = request(Duration::from_secs(1));
    nobody.matchers = vec![below("/no/such/cgroup")];
    let refused = client.capture(nobody).err().expect("a refusal");
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("/no/such/cgroup"), "{refused}");
    let cgroup = Cgroup::new("captured");
    let busy = c("split.c").start_in(&cgroup, &[]);
    let mut its = request(SOON * 60);
    its.matchers = vec![equal(key::PID, &busy.pid().to_string())];
    let capture = client.capture(its).expect("accepted");
    drop(busy);
    let result = capture.finish().expect("captured").result;
    assert_eq!(result.state(), CaptureState::Cancelled);
    assert_eq!(result.error, "the captured process ended");
    let mut unknown = request(Duration::from_secs(1));
    unknown.event = "cpu-clok".into();
    let refused = client.capture(unknown).err().expect("a refusal");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("cpu-clock"), "{refused}");
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_cgroup_that_is_removed_and_made_again_is_captured_on_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let cgroup = Cgroup::new("captured");
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let split = c("split.c");
    let first = split.start_in(&cgroup, &[]);
    let mut wanted = request(SOON * 60);
    wanted.matchers = vec![below(cgroup.path())];
    wanted.rate_hz = 199;
    let capture = client.capture(wanted).expect("accepted");
    let id = capture.accepted.id;
    // As many samples as there are, and as many more.
    let samples = || {
        let listed = client.captures();
        let info = listed.iter().find(|info| info.id == id);
        info.and_then(|info| info.progress)
            .map_or(0, |progress| progress.samples)
    };
    wait_for(SOON, || (samples() > 50).then_some(())).expect("samples of the first");
    let gone = first.pid();
    drop(first);
    cgroup.make_again();
    let second = split.start_in(&cgroup, &[]);
    let before = samples();
    wait_for(SOON, || (samples() > before + 100).then_some(())).expect("samples of the second");
    client.cancel_capture(id).expect("it runs");
    let captured = capture.finish().expect("captured");
    for pid in [gone, second.pid()] {
        let pid = pid.to_string();
        let its = captured.view.only(|sample| sample.label(key::PID) == pid);
        let of = its.count();
        eprintln!("{of} samples of process {pid}");
        assert!(of > 50, "{of} of {pid}");
    }
    let notices = &captured.result.notices;
    let told = notices
        .iter()
        .any(|notice| notice.contains("removed and created again once"));
    assert!(told, "{notices:?}");
    daemon.stop();
}

#[test]
fn a_daemon_that_stops_in_the_middle_answers_what_there_is_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let mut daemon = Daemon::start().sampling();
    let client = daemon.client();
    let capture = client.capture(request(SOON * 60)).expect("accepted");
    daemon.signal(rustix::process::Signal::TERM);
    let captured = capture.finish().expect("captured");
    assert_eq!(captured.result.error, "the daemon was stopped");
    let ended = daemon.wait(END).expect("it ends");
    assert!(ended.success(), "{ended}");
    // One that is killed says nothing: its client is told.
    let mut daemon = Daemon::start().sampling();
    let client = daemon.client();
    let capture = client.capture(request(SOON * 60)).expect("accepted");
    daemon.signal(rustix::process::Signal::KILL);
    assert!(capture.finish().is_err());
}

#[test]
fn agent_ctl_writes_a_capture_and_says_what_it_cost_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let cgroup = Cgroup::new("captured");
    let daemon = Daemon::start().sampling();
    let _busy = c("split.c").start_in(&cgroup, &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cpu.folded");
    let file = file.to_str().expect("a path of text");
    let mut args = vec!["capture", "--cgroup", cgroup.path(), "--duration", "2s"];
    args.extend(["--rate", "499", "--reason", "INC-12", "--json", "-o", file]);
    let done = daemon.ctl(&args).ok();
    let told: serde_json::Value = serde_json::from_str(&done.text()).expect("JSON");
    assert_eq!(told["state"], "complete");
    assert_eq!(told["rate_hz"], 499);
    let samples = told["samples"].as_u64().expect("a number");
    assert!(samples > 0, "{told}");
    let folded = std::fs::read_to_string(file).expect("a file");
    let lines = folded.lines();
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    assert!(counts.sum::<u64>() >= samples, "{told}");
    let listed = daemon.ctl(&["captures"]).ok().text();
    assert!(
        listed.contains("complete") && listed.contains("INC-12"),
        "{listed}"
    );
    let none = daemon.ctl(&["captures", "cancel", "1"]);
    assert_ne!(none.code, Some(0), "it is over");
    daemon.stop();
}
