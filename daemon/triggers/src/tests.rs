//! Tests the stage as its thread runs it: reloads, pins, captures.

use super::*;
use agent_config::{Seconds, Trigger, TriggerCapture};
use aggregate::recorder::{RecorderOptions, WindowPart};
use cgroup::Mode;
use proto::agent as wire;
use tokio::sync::mpsc;
use tonic::Status;

/// Starts captures that find nothing, and remembers who asked.
#[derive(Default)]
struct Fake {
    asked: Mutex<Vec<(wire::CaptureRequest, String)>>,
}

impl Capturing for Fake {
    fn start(
        &self,
        request: wire::CaptureRequest,
        asker: capture::Asker,
    ) -> Result<mpsc::Receiver<wire::CaptureResponse>, Status> {
        lock(&self.asked).push((request, asker.peer));
        let (sender, receiver) = mpsc::channel(4);
        let info = wire::CaptureInfo {
            id: 5,
            ..wire::CaptureInfo::default()
        };
        let chunks = proto::Chunks::new(profile::Profile::default());
        let chunks = chunks.map(wire::capture_response::Body::Chunk);
        let accepted = wire::capture_response::Body::Accepted(info.clone());
        let ended = wire::capture_response::Body::Result(info);
        for body in std::iter::once(accepted).chain(chunks).chain([ended]) {
            let body = Some(body);
            sender
                .try_send(wire::CaptureResponse { body })
                .map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(receiver)
    }

    fn cancel(&self, _: u64) -> bool {
        false
    }

    fn list(&self) -> Vec<wire::CaptureInfo> {
        Vec::new()
    }
}

/// With a window that ends after all that is pinned, so that pins do not wait for one.
fn recorder() -> RwLock<Recorder> {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let now = MonotonicTime::now();
    recorder.add(WindowPart {
        pressure: None,
        start: now,
        end: now.plus(Duration::from_secs(3600)),
        closes: true,
        period: 1,
        quality: profile::Quality::default(),
        rows: &mut Vec::new(),
        accounts: &[],
        timestamps: &[],
        timestamps_refused: 0,
        timeless: 0,
    });
    RwLock::new(recorder)
}

struct Bench {
    dir: tempfile::TempDir,
    triggers: Arc<Triggers>,
    pins: Arc<Pins>,
    captures: Arc<Fake>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("cgroup/a")).unwrap();
        let clock = Arc::new(WallAnchor::new());
        let path = dir.path().join("pins");
        let pins = Arc::new(Pins::new(path, 1 << 20, Arc::clone(&clock)));
        let triggers: Arc<Triggers> = Arc::default();
        let captures: Arc<Fake> = Arc::default();
        triggers.set_capturing(Arc::clone(&captures) as Arc<dyn Capturing>);
        let (stage_triggers, stage_pins) = (Arc::clone(&triggers), Arc::clone(&pins));
        let mount = dir.path().join("cgroup");
        triggers.set_starter(move || {
            let stage = Stage {
                triggers: Arc::clone(&stage_triggers),
                pins: Arc::clone(&stage_pins),
                hierarchy: Hierarchy {
                    mode: Mode::Cgroup2,
                    mount: Some(mount.clone()),
                    prefix: Vec::new(),
                    whole: true,
                    v1: false,
                },
                clock: Arc::clone(&clock),
            };
            // It never ends: left behind with the test.
            let thread = std::thread::Builder::new();
            thread.spawn(move || stage.run(&recorder())).map(drop)
        });
        Bench {
            dir,
            triggers,
            pins,
            captures,
        }
    }

    fn pressure(&self, value: u32) {
        let text = format!("some avg10={value}.00 avg60=0.00 avg300=0.00 total=0\n");
        std::fs::write(self.dir.path().join("cgroup/a/cpu.pressure"), text).unwrap();
    }

    fn configure(&self, triggers: &[Trigger]) {
        self.triggers
            .configure(Rule::all(triggers).unwrap())
            .unwrap();
    }

    #[track_caller]
    fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Bench) -> bool) {
        for _ in 0..1000 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!(
            "{what}: {:?} {:?}",
            self.triggers.tallies(),
            self.pins.list()
        );
    }
}

fn trigger() -> Trigger {
    Trigger {
        name: "t".to_owned(),
        target: "/a".to_owned(),
        when: "psi.cpu.some.avg10 > 40".to_owned(),
        cooldown: Seconds(0),
        keep_after: Seconds(0),
        ..Trigger::default()
    }
}

#[test]
fn a_trigger_that_comes_true_pins_and_captures() {
    let bench = Bench::new();
    bench.pressure(0);
    let capture = TriggerCapture {
        event: "off-cpu".to_owned(),
        ..TriggerCapture::default()
    };
    bench.configure(&[Trigger {
        capture: Some(capture),
        ..trigger()
    }]);
    let looked = |bench: &Bench| bench.triggers.looks.load(Ordering::Relaxed) > 0;
    bench.wait_for("a look", looked);
    assert!(bench.pins.is_empty());
    bench.pressure(50);
    bench.wait_for("a pin", |bench| bench.pins.len() == 1);
    bench.wait_for("what was captured", |bench| {
        bench.pins.list()[0].capture_bytes > 0
    });
    let pin = bench.pins.list().remove(0);
    assert_eq!((pin.trigger.as_str(), pin.cgroup.as_str()), ("t", "/a"));
    assert_eq!(pin.cause, "psi.cpu.some.avg10 > 40%: it was 50.0");
    assert_eq!(pin.capture_id, 5);
    let asked = lock(&bench.captures.asked);
    let (request, peer) = &asked[0];
    assert_eq!(
        (peer.as_str(), request.event.as_str()),
        ("trigger t", "off-cpu")
    );
    assert_eq!(request.matchers[0].value, "/a");
    assert_eq!(bench.triggers.tallies()["t"].fired, 1);
}

#[test]
fn triggers_come_and_go_with_a_reload() {
    let bench = Bench::new();
    bench.pressure(50);
    bench.configure(&[]);
    assert!(
        !lock(&bench.triggers.wanted).running,
        "no thread without triggers"
    );
    bench.configure(&[trigger()]);
    bench.wait_for("a pin", |bench| bench.pins.len() == 1);
    bench.configure(&[]);
    bench.wait_for("rest", |bench| {
        let looks = || bench.triggers.looks.load(Ordering::Relaxed);
        let before = looks();
        std::thread::sleep(Duration::from_millis(2500));
        looks() == before
    });
    let other = Trigger {
        name: "other".to_owned(),
        ..trigger()
    };
    bench.configure(&[other]);
    bench.wait_for("another pin", |bench| bench.pins.len() == 2);
    assert!(!bench.triggers.tallies().contains_key("t"));
}

#[test]
fn what_a_trigger_does_not_see_is_told_with_what_mends_it() {
    let bench = Bench::new();
    bench.configure(&[trigger()]);
    bench.wait_for("a degradation", |bench| {
        !bench.triggers.degradations().is_empty()
    });
    let told = bench.triggers.degradations().remove(0);
    assert_eq!(told.id, "trigger_blind");
    assert!(
        told.message
            .contains("trigger `t`, `/a`: the kernel does not account")
    );
    assert!(told.remedy.contains("psi=1"));
}
