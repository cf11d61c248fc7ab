//! What a host withholds reaches a collector in no byte, by none of the three ways out: windows,
//! captures that it orders, pins. On the host everything is there.

use profile::key;
use proto::agent::{CaptureRequest, FrameFilter, FrameFilterOp, LabelMatcher, MatchOp};
use std::process::Stdio;
use std::time::Duration;
use testkit::fake::ingest::{Behaviour, IngestCollector};
use testkit::process::wait_for;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, live};

/// How long something that has to come may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(90);

/// What no message may have: functions, and names of processes and threads.
const CANARIES: [&str; 6] = [
    "canary_spend_seventy",
    "canary_run_part",
    "canaryproc",
    "canarythread",
    "canary_knock",
    "canarywaker",
];

/// What a collector may be told.
const PLAIN: &str = "plain_spend_seventy";

fn order(collector: &IngestCollector, request: CaptureRequest) -> Result<profile::Profile, String> {
    let before = collector.memory().heard.captures.len();
    collector.order(CaptureRequest {
        duration_ns: 3_000_000_000,
        group_by: vec!["*".to_owned()],
        ..request
    });
    let over = wait_for(LIMIT, || {
        collector.memory().heard.captures.get(before).cloned()
    });
    over.expect("the capture ends")
}

fn of_cgroup(path: &str) -> Vec<LabelMatcher> {
    vec![LabelMatcher {
        label: key::CGROUP.to_owned(),
        op: MatchOp::Subtree as i32,
        value: path.to_owned(),
    }]
}

/// Names of all frames of samples of a cgroup, and how many samples these are.
fn seen(profile: &profile::Profile, cgroup: &str) -> (Vec<String>, u64) {
    let (mut names, mut count) = (Vec::new(), 0);
    for (key, value) in &profile.samples {
        if profile.dict.label(key.labels, key::CGROUP) != Some(cgroup) {
            continue;
        }
        count += value.count;
        for frame in profile.dict.stacks.leaf_first(key.stack) {
            names.push(profile.dict.frame(frame).function.to_owned());
        }
    }
    names.sort();
    names.dedup();
    (names, count)
}

#[test]
fn what_is_withheld_is_in_no_byte_that_a_collector_gets_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC]) else {
        return;
    };
    let (secret, open) = (Cgroup::new("vault"), Cgroup::new("shop"));
    let split = |prefix, name| c("split.c").named(name).prefixed(prefix);
    let _canary =
        split("canary_", "canaryproc").start_in(&secret, &["-c", "canarythread", "-p", "40"]);
    let _plain = split("plain_", "plainproc").start_in(&open, &["-p", "40"]);
    let dir = tempfile::tempdir().unwrap();
    let door = dir.path().join("door");
    let made = std::process::Command::new("mkfifo").arg(&door).status();
    assert!(made.unwrap().success());
    let reads = format!("while read -N 1 _; do :; done < {}", door.display());
    let mut reader = open.command("bash");
    reader.args(["-c", &reads]).stdin(Stdio::null());
    let _reader = Workload::spawn(&mut reader);
    let knock = c("waker.c").named("canarywaker").prefixed("canary_");
    let _waker = knock.start_in(&secret, &[door.to_str().unwrap()]);

    let collector = IngestCollector::with(Behaviour {
        hears: true,
        ..Behaviour::default()
    });
    let yaml = format!(
        "windows: {{length_s: 1}}\n\
         recorder: {{pins_dir: {pins}}}\n\
         withhold: ['cgroup^=\"{secret}\"']\n\
         collector: {{address: '{address}', host_id: under-test, drop_labels: [], spool: {{dir: {spool}}}}}\n\
         triggers:\n\
         - {{name: busy, target: host, when: cpus > 0.01, for: 1s, cooldown: 0s, max_per_day: 1,\n\
         \x20  keep_before: 4s, keep_after: 2s, capture: {{event: off-cpu, duration: 2s}}}}\n",
        pins = dir.path().join("pins").display(),
        spool = dir.path().join("spool").display(),
        secret = secret.path(),
        address = collector.address(),
    );
    let daemon = Daemon::with().config(&yaml).start().sampling();

    // Windows.
    let enough = wait_for(LIMIT, || {
        let export = daemon.export();
        (export.acked_windows >= 4).then_some(export)
    });
    enough.expect("windows arrive");
    let local = daemon.client().everything();
    assert!(
        local
            .in_cgroup(secret.path())
            .count_with("canary_spend_seventy")
            > 0
    );
    assert!(local.label_values(key::COMM).contains("canarythread"));

    // Captures.
    let asked = order(&collector, CaptureRequest::default()).expect("it runs");
    let (names, count) = seen(&asked, secret.path());
    assert_eq!(names, ["[withheld]"]);
    assert!(count > 50, "its time is counted: {count}");
    assert!(seen(&asked, open.path()).0.iter().any(|name| name == PLAIN));
    let back = CaptureRequest {
        before_ns: 5_000_000_000,
        ..CaptureRequest::default()
    };
    order(&collector, back).expect("it runs, with the time before");
    let oracle = CaptureRequest {
        frame_filters: vec![FrameFilter {
            op: FrameFilterOp::Keep as i32,
            regex: "canary_spend".to_owned(),
        }],
        ..CaptureRequest::default()
    };
    let filtered = order(&collector, oracle).expect("it runs");
    assert_eq!(filtered.total().count, 0, "a filter says nothing either");
    let waits = CaptureRequest {
        event: "off-cpu".to_owned(),
        matchers: of_cgroup(open.path()),
        ..CaptureRequest::default()
    };
    let waits = order(&collector, waits).expect("it runs");
    let (names, _) = seen(&waits, open.path());
    assert!(
        names
            .iter()
            .any(|name| name == "[woken by a withheld thread]"),
        "{names:?}"
    );
    let about = |cgroup: &Cgroup| CaptureRequest {
        matchers: of_cgroup(cgroup.path()),
        ..CaptureRequest::default()
    };
    let refused = order(&collector, about(&secret)).err();
    let refused = refused.expect("it is refused");
    assert!(refused.contains("`withhold`"), "{refused}");
    assert!(
        daemon.log().contains("`withhold`"),
        "the host logs it as well"
    );

    // Pins.
    let pinned = wait_for(LIMIT, || {
        (!collector.memory().heard.pins.is_empty()).then_some(())
    });
    pinned.expect("the pin arrives");

    // The same on the host has all of it.
    let own = dir.path().join("own.folded");
    let own = own.to_str().unwrap();
    let args = [
        "capture",
        "--event",
        "off-cpu",
        "--duration",
        "3s",
        "-o",
        own,
    ];
    let output = daemon.ctl(&args);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let folded = std::fs::read_to_string(own).unwrap();
    assert!(folded.contains("[woken by canarywaker]"), "{folded}");
    assert!(folded.contains("canary_knock"), "{folded}");

    let memory = collector.memory();
    assert_eq!(memory.violations, Vec::<String>::new());
    for (key, window) in &memory.windows {
        assert_eq!(window.taken, window.quality_taken, "window {key:?}");
    }
    assert!(memory.heard.has(PLAIN) && memory.heard.has("plainproc"));
    assert!(memory.heard.has("[withheld]") && memory.heard.has(secret.path()));
    for canary in CANARIES {
        assert!(!memory.heard.has(canary), "{canary} is told");
    }
    drop(memory);
    // A reload puts another list in force, in both directions.
    let other = yaml.replace(secret.path(), open.path());
    std::fs::write(daemon.config_path(), other).unwrap();
    assert_eq!(daemon.ctl(&["config", "reload"]).code, Some(0));
    let refused = order(&collector, about(&open)).err();
    assert!(refused.is_some_and(|why| why.contains("`withhold`")));
    let told = order(&collector, about(&secret)).expect("it runs");
    let (names, _) = seen(&told, secret.path());
    assert!(names.iter().any(|name| name == CANARIES[0]), "{names:?}");
    daemon.stop();
}
