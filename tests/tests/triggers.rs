//! Triggers on the real kernel: a program that is really throttled, and the minutes before and after once the
//! recorder has forgotten them.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use fixtures::process::wait_for;
use fixtures::{Cgroup, Client, Daemon, Need, live, skip};
use proto::agent::{LabelMatcher, MatchOp, Pin, QueryProfileRequest, TimeRange};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

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

/// Throttles until there are so many pins or a suppressed firing more; then lets go and waits for calm.
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

#[test]
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
    let calm = wait_for(LIMIT, || {
        let status = client.status().unwrap();
        let recorder = status.recorder.unwrap_or_default();
        (recorder.windows >= 6 && samples(&client, (0, 0), &path) > 20).then_some(())
    });
    calm.expect("samples before anything is wrong");

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
