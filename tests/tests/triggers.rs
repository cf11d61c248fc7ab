//! Triggers on the real kernel: a program that is really throttled, the minutes before and after
//! once the recorder has forgotten them, what was captured then, and all of it at the collector.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::agent::{LabelMatcher, MatchOp, Pin, QueryProfileRequest, TimeRange};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use testkit::process::{Output, run, wait_for};
use testkit::{Cgroup, Client, Daemon, Need, beside, ctl, fleet, live, skip};

/// How long something that has to come may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The retention is a minute, and the windows' last ones are kept a little longer.
const RETENTION_LIMIT: Duration = Duration::from_secs(240);

/// A cgroup whose CPU time can be limited: by cgroup2, or by the v1 controller beside it.
struct Limited {
    cgroup: Cgroup,
    /// Directory of the v1 controller; none with cgroup2.
    v1: Option<PathBuf>,
    program: Option<Child>,
}

impl Limited {
    /// None where this machine has no such controller.
    fn new() -> Option<Limited> {
        let cgroup = Cgroup::new("trigger");
        if cgroup.dir().join("cpu.max").exists() {
            return Some(Limited {
                cgroup,
                v1: None,
                program: None,
            });
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, place, "cgroup", options, ..] = fields[..] else {
                return None;
            };
            options
                .split(',')
                .any(|option| option == "cpu")
                .then(|| PathBuf::from(place))
        })?;
        let v1 = mount.join(cgroup.path().trim_start_matches('/'));
        std::fs::create_dir(&v1).ok()?;
        Some(Limited {
            cgroup,
            v1: Some(v1),
            program: None,
        })
    }

    /// Starts a program that uses all CPU time it gets.
    fn burn(&mut self) {
        let mut command = self.cgroup.command("sh");
        command.args(["-c", "while :; do :; done"]);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        if let Some(v1) = &self.v1 {
            std::fs::write(v1.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        self.program = Some(child);
    }

    /// Allows 2 ms in 100, or everything.
    fn limit(&self, on: bool) {
        let (file, text) = match (&self.v1, on) {
            (Some(v1), true) => (v1.join("cpu.cfs_quota_us"), "2000"),
            (Some(v1), false) => (v1.join("cpu.cfs_quota_us"), "-1"),
            (None, true) => (self.cgroup.dir().join("cpu.max"), "2000 100000"),
            (None, false) => (self.cgroup.dir().join("cpu.max"), "max 100000"),
        };
        std::fs::write(file, text).unwrap();
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if let Some(child) = &mut self.program {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(v1) = &self.v1 {
            wait_for(Duration::from_secs(5), || {
                std::fs::remove_dir(v1).is_ok().then_some(())
            });
        }
    }
}

fn start(dir: &Path, cgroup: &str) -> Daemon {
    let yaml = format!(
        "windows: {{length_s: 1}}\n\
         recorder: {{retention_s: 60, pins_dir: {}}}\n\
         triggers:\n\
         - {{name: throttled, target: '{cgroup}', when: nr_throttled > 2/s, for: 2s, clear: 1,\n\
         \x20  cooldown: 0s, max_per_day: 2, keep_before: 5s, keep_after: 5s}}\n",
        dir.join("pins").display()
    );
    Daemon::with().config(&yaml).start().sampling()
}

fn samples(client: &Client, range: (i64, i64), cgroup: &str) -> u64 {
    let view = client.query(QueryProfileRequest {
        range: Some(TimeRange {
            start_unix_ns: range.0,
            end_unix_ns: range.1,
        }),
        matchers: vec![LabelMatcher {
            label: profile::key::CGROUP.to_owned(),
            op: MatchOp::Subtree as i32,
            value: cgroup.to_owned(),
        }],
        ..QueryProfileRequest::default()
    });
    view.unwrap().count()
}

/// Throttles until there are so many pins or a suppressed firing more; then lets go and waits for
/// calm.
fn throttle(client: &Client, limited: &Limited, pins: usize) -> Vec<Pin> {
    let suppressed = || client.counter("fleetprof_trigger_suppressed_total");
    let before = suppressed();
    limited.limit(true);
    let found = wait_for(LIMIT, || {
        let found = client.pins().unwrap();
        (found.len() >= pins || suppressed() > before).then_some(found)
    });
    limited.limit(false);
    // Under `clear` the trigger is armed again: the rate of a second without a limit.
    std::thread::sleep(Duration::from_secs(3));
    found.expect("the trigger fires")
}

/// Until there are minutes before anything is wrong.
fn wait_while_calm(client: &Client, path: &str) {
    let calm = wait_for(LIMIT, || {
        let status = client.status().unwrap();
        let recorder = status.recorder.unwrap_or_default();
        (recorder.windows >= 6 && samples(client, (0, 0), path) > 20).then_some(())
    });
    calm.expect("samples before anything is wrong");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn minutes_around_throttling_outlive_the_retention_and_a_restart_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::Cgroup2]) else {
        return;
    };
    let Some(mut limited) = Limited::new() else {
        return skip("needs a CPU controller that limits");
    };
    let dir = tempfile::tempdir().unwrap();
    let path = limited.cgroup.path().to_owned();
    let daemon = start(dir.path(), &path);
    let client = daemon.client();
    limited.burn();
    wait_while_calm(&client, &path);

    let pins = throttle(&client, &limited, 1);
    assert_eq!((pins.len(), pins[0].cgroup.as_str()), (1, path.as_str()));
    assert!(
        pins[0]
            .cause
            .starts_with("nr_throttled > 2/s for 2s: it was "),
        "{}",
        pins[0].cause
    );
    assert_eq!(throttle(&client, &limited, 2).len(), 2, "it fires again");
    assert_eq!(throttle(&client, &limited, 3).len(), 2, "the daily limit");
    assert_eq!(client.counter("fleetprof_trigger_fired_total"), 2);
    assert_eq!(client.counter("fleetprof_trigger_suppressed_total"), 1);

    let closed = wait_for(LIMIT, || {
        let pins = client.pins().unwrap();
        (!pins.iter().any(|pin| pin.open)).then_some(pins)
    });
    let pin = closed.expect("pins whose time is over").pop().unwrap();
    let range = pin.range.unwrap();
    let (begin, fired, end) = (range.start_unix_ns, pin.fired_unix_ns, range.end_unix_ns);
    assert!(
        fired - begin >= 4_000_000_000 && end - fired >= 4_000_000_000,
        "{pin:?}"
    );
    let forgotten = wait_for(RETENTION_LIMIT, || {
        let recorder = client.status().unwrap().recorder.unwrap_or_default();
        (recorder.oldest_unix_ns > end).then_some(())
    });
    forgotten.expect("the recorder forgets");
    let (before, after) = (
        samples(&client, (begin, fired), &path),
        samples(&client, (fired, end), &path),
    );
    assert!(before > 0 && after > 0, "{before} before, {after} after");
    let outside = samples(
        &client,
        (begin - 3_000_000_000, begin - 1_000_000_000),
        &path,
    );
    assert_eq!(outside, 0, "the minutes beside are gone");

    daemon.stop();
    let daemon = start(dir.path(), &path);
    let client = daemon.client();
    assert_eq!(client.pins().unwrap().len(), 2);
    assert_eq!(samples(&client, (begin, fired), &path), before);
    let id = pin.id.to_string();
    let shown = daemon.ctl(&["pins", "show", &id, "--format", "folded", "--quiet"]);
    let shown = shown.ok().text();
    assert!(shown.lines().any(|line| line.starts_with("sh;")), "{shown}");
    // What fired before the restart counts.
    assert_eq!(throttle(&client, &limited, 3).len(), 2);
    daemon.stop();
}

/// Longest wait for a pin to reach a collector that came back: a back-off of up to a minute.
const ARRIVE: Duration = Duration::from_secs(180);

fn ask(collector: &str, args: &[&str]) -> Output {
    let mut all = vec!["--collector", collector];
    all.extend(args);
    run(&mut ctl::command(all), LIMIT)
}

/// The pins of a collector, as agent-ctl lists them.
fn pins_at(collector: &str) -> Vec<serde_json::Value> {
    let output = ask(collector, &["pins", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&output.text()).unwrap_or_default();
    listed["pins"].as_array().cloned().unwrap_or_default()
}

/// Total of folded lines.
fn folded(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.rsplit_once(' '));
    counts
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

#[test]
#[ignore = "takes long: make test-slow"]
fn what_a_trigger_captured_and_its_minutes_reach_a_collector_that_was_away_needs_root() {
    let Some(_live) = beside(&[Need::Root, Need::Cgroup2]) else {
        return;
    };
    let Some(mut limited) = Limited::new() else {
        return skip("needs a CPU controller that limits");
    };
    let dir = tempfile::tempdir().unwrap();
    let path = limited.cgroup.path().to_owned();
    let options = fleet::Options::new();
    let address = options.grpc();
    let config = format!(
        "windows: {{length_s: 1}}\n\
         recorder: {{pins_dir: {pins}}}\n\
         collector: {{address: {address}, spool: {{dir: {spool}}}}}\n\
         triggers:\n\
         - {{name: throttled, target: '{path}', when: nr_throttled > 2/s, for: 2s, clear: 1,\n\
         \x20  cooldown: 1h, keep_before: 5s, keep_after: 10s,\n\
         \x20  capture: {{event: cpu-clock, duration: 4s, rate_hz: 499}}}}\n",
        pins = dir.path().join("pins").display(),
        spool = dir.path().join("spool").display(),
    );
    let daemon = Daemon::with().config(&config).start().sampling();
    let client = daemon.client();
    limited.burn();
    wait_while_calm(&client, &path);
    let pins = throttle(&client, &limited, 1);
    assert_eq!(pins.len(), 1);
    let closed = wait_for(LIMIT, || {
        let pin = client.pins().unwrap().pop().unwrap();
        (!pin.open && pin.capture_bytes > 0).then_some(pin)
    });
    let pin = closed.unwrap_or_else(|| panic!("{}", daemon.log()));
    let own = pin.id.to_string();
    let show = |id: &str, more: &[&str]| {
        let mut args = vec!["pins", "show", id, "--format", "folded", "--quiet"];
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let here = |more: &[&str]| {
        let args = show(&own, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        daemon.ctl(&args).ok().text()
    };
    let (minutes, captured) = (here(&[]), here(&["--captured"]));
    assert!(
        captured.lines().any(|line| line.starts_with("sh;")),
        "{captured}"
    );
    // The capture has only the target; the minutes have everything.
    assert!(
        captured.lines().all(|line| line.starts_with("sh")),
        "{captured}"
    );
    println!(
        "pin of {} bytes, its capture {}: weights {} and {}",
        pin.bytes,
        pin.capture_bytes,
        folded(&minutes),
        folded(&captured)
    );
    assert!(!pin.at_collector, "there is none yet");

    let collector = options.start(dir.path());
    let there = wait_for(ARRIVE, || pins_at(&address).pop());
    let there = there.unwrap_or_else(|| panic!("{}\n{}", daemon.log(), collector.log()));
    assert_eq!(there["trigger"], "throttled");
    assert_eq!(there["cgroup"], path.as_str());
    assert!(there["capture_bytes"].as_u64().unwrap() > 0, "{there}");
    let noted = wait_for(LIMIT, || {
        client.pins().unwrap()[0].at_collector.then_some(())
    });
    noted.expect("the agent knows");
    daemon.stop();
    assert!(collector.stop().success());

    // The host is gone, the collector starts again: what the agent said is what the collector says.
    let collector = options.start(dir.path());
    let pin = &pins_at(&address)[0]["pin"];
    let id = pin.as_str().expect("its name").to_owned();
    for (more, expected) in [(&[][..], &minutes), (&["--captured"][..], &captured)] {
        let args = show(&id, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        assert_eq!(&ask(&address, &args).ok().text(), expected);
    }
    let page = dir.path().join("incident.html");
    let asked = ask(
        &address,
        &["pins", "show", &id, "-o", page.to_str().unwrap()],
    );
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(!page.is_empty());
    assert!(collector.stop().success());
}

/// A file system of 4 MiB.
struct Small<'a>(&'a Path);

impl Small<'_> {
    fn mounted(at: &Path) -> Option<Small<'_>> {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(at);
        mount.status().ok()?.success().then_some(Small(at))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let mut unmount = std::process::Command::new("umount");
        let _ = unmount.arg("-l").arg(self.0).status();
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn on_a_full_disk_pins_wait_in_memory_and_are_written_when_there_is_room_needs_root() {
    let Some(_live) = beside(&[Need::Root, Need::Program("mount")]) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let Some(_small) = Small::mounted(place.path()) else {
        return skip("needs the right to mount a file system");
    };
    let filler = place.path().join("filler");
    assert!(
        std::fs::write(&filler, vec![7; 8 << 20]).is_err(),
        "it is full"
    );
    let config = format!(
        "windows: {{length_s: 1}}\n\
         recorder: {{pins_dir: {}}}\n\
         triggers:\n\
         - {{name: always, target: host, when: cpus > 0.001, cooldown: 1h, keep_before: 5s,\n\
         \x20  keep_after: 3s, capture: {{event: cpu-clock, duration: 1s}}}}\n",
        place.path().join("pins").display()
    );
    let daemon = Daemon::with().config(&config).start().sampling();
    let client = daemon.client();
    let waits = wait_for(LIMIT, || {
        let pin = client.pins().unwrap().pop()?;
        (!pin.open && pin.capture_bytes > 0).then_some(pin)
    });
    let pin = waits.unwrap_or_else(|| panic!("{}", daemon.log()));
    let status = client.status().unwrap();
    let told = status.degradations.iter().find(|d| d.id == "pins_disk");
    let told = told.unwrap_or_else(|| panic!("{:?}", status.degradations));
    assert!(told.message.contains("No space left"), "{}", told.message);
    let show = |daemon: &Daemon, more: &[&str]| {
        let id = pin.id.to_string();
        let mut args = vec!["pins", "show", &id, "--format", "folded", "--quiet"];
        args.extend(more);
        daemon.ctl(&args).ok().text()
    };
    let before = (show(&daemon, &[]), show(&daemon, &["--captured"]));
    std::fs::remove_file(&filler).unwrap();
    let written = wait_for(LIMIT, || {
        let status = client.status().unwrap();
        (!status.degradations.iter().any(|d| d.id == "pins_disk")).then_some(())
    });
    written.expect("it is written when there is room");
    daemon.stop();
    let daemon = Daemon::with().config(&config).start().sampling();
    let client = daemon.client();
    assert!(client.pins().unwrap().iter().any(|kept| kept.id == pin.id));
    assert_eq!((show(&daemon, &[]), show(&daemon, &["--captured"])), before);
    daemon.stop();
}
