//! Tests the rules of captures without events, in a fake world with handwritten samples.

use super::*;
use crate::backend::{CaptureBackend, Followed, OverloadPolicy, PastQuery, Slowed, Started};
use crate::target::{Presence, Scope, Sight, resolve};
use agent_config as config;
use aggregate::batch::RawTimestamp;
use aggregate::recorder::WindowPart;
use aggregate::recorders::Recorders;
use cgroup::containers::Containers;
use cgroup::{Hierarchy, Mode};
use host::ids::CaptureId;
use host::sync::lock;
use profile::{
    FrameRef, Profile, Quality, SampleKey, Selector, StackEnd, StackId, Value, Withholding, key,
};
use proto::agent::capture_response::Body;
use proto::convert::ProfileAssembler;
use testkit::wait::until_blocking;
use tonic::Code;

const PERIOD: u64 = 1_000_000;

struct Fake {
    limits: Mutex<config::Captures>,
    recorders: Arc<Recorders>,
    ended: Mutex<Vec<u64>>,
    /// What opening events answers.
    refusal: Option<Status>,
    past: Option<Profile>,
    /// What becomes of the cgroup, look by look; then it is bound to none.
    followed: Mutex<Vec<Result<Followed, Status>>>,
    excess: OverloadPolicy,
    /// What becomes of slowing down, try by try.
    slowed: Mutex<Vec<Result<Slowed, Status>>>,
    /// Samples that the event has brought, looked at once a second.
    seen: AtomicU64,
}

struct FakeWorld(Arc<Fake>);

impl CaptureBackend for FakeWorld {
    fn limits(&self) -> config::Captures {
        lock(&self.0.limits).clone()
    }

    fn unix_ns(&self, at: MonotonicTime) -> i64 {
        at.0 as i64
    }

    fn resolve(&self, selector: &Selector, withhold: &Withholding) -> Result<Scope, Status> {
        let nowhere = Hierarchy {
            mode: Mode::None,
            mount: None,
            prefix: Vec::new(),
            whole: false,
            v1: false,
        };
        let sight = Sight {
            hierarchy: &nowhere,
            containers: &Containers::none(),
            withhold,
        };
        resolve(selector, sight)
    }

    fn start(&self, _: CaptureId, wanted: &CaptureSpec, scope: &Scope) -> Result<Started, Status> {
        assert!(scope.pids.is_empty() == (scope.presence == Presence::default()));
        if let Some(refusal) = &self.0.refusal {
            return Err(refusal.clone());
        }
        Ok(Started {
            event: wanted.event.clone(),
            unit: "nanoseconds".into(),
            rate_hz: 1000,
            excess: self.0.excess,
            ..Started::default()
        })
    }

    fn follow(&self, _: CaptureId) -> Result<Followed, Status> {
        let mut followed = lock(&self.0.followed);
        match followed.is_empty() {
            true => Ok(Followed::Unbound),
            false => followed.remove(0),
        }
    }

    fn seen(&self, _: CaptureId) -> u64 {
        self.0.seen.fetch_add(1_000_000, Ordering::Relaxed)
    }

    fn slow_down(&self, _: CaptureId, _: u64) -> Result<Option<Slowed>, Status> {
        let mut slowed = lock(&self.0.slowed);
        match slowed.is_empty() {
            true => Ok(None),
            false => slowed.remove(0).map(Some),
        }
    }

    fn end(&self, id: CaptureId) {
        lock(&self.0.ended).push(id.0);
        // As the symbolizer does with the last batch.
        if let Some(taken) = self.0.recorders.get(id) {
            taken.end();
        }
    }

    fn past(&self, _: &PastQuery, _: &AtomicBool) -> Option<Profile> {
        self.0.past.clone()
    }

    fn stop(&self) {}

    fn cpu_ns(&self) -> u64 {
        0
    }

    fn samples(&self) -> u64 {
        0
    }
}

struct Rig {
    fake: Arc<Fake>,
    captures: Arc<CaptureTable>,
}

impl Rig {
    fn with(change: impl FnOnce(&mut Fake)) -> Rig {
        let recorders = Arc::<Recorders>::default();
        let mut fake = Fake {
            limits: Mutex::default(),
            recorders: Arc::clone(&recorders),
            ended: Mutex::default(),
            refusal: None,
            past: None,
            followed: Mutex::default(),
            excess: OverloadPolicy::Bounded,
            slowed: Mutex::default(),
            seen: AtomicU64::new(0),
        };
        change(&mut fake);
        let fake = Arc::new(fake);
        let world = Arc::new(FakeWorld(Arc::clone(&fake)));
        let captures = CaptureTable::new(world, recorders);
        Rig { fake, captures }
    }

    fn new() -> Rig {
        Rig::with(|_| {})
    }

    fn start(&self, request: agent::CaptureRequest) -> mpsc::Receiver<agent::CaptureResponse> {
        self.captures.start(request, Asker::here("test")).unwrap()
    }

    /// Samples of a capture as the symbolizer would add them: by thread name, one a millisecond.
    fn sample(&self, id: u64, start_ms: u64, comms: &[&str]) {
        let taken = self.fake.recorders.get(CaptureId(id)).unwrap();
        let mut recorder = taken.recorder.write().unwrap();
        let mut rows = Vec::new();
        let mut timestamps = Vec::new();
        for (number, comm) in comms.iter().enumerate() {
            let dict = recorder.dict_mut();
            let frame = dict.intern_frame(FrameRef {
                function: "work",
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: dict.intern_labels([(key::COMM, *comm)]),
                stack: dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            let value = Value {
                count: 1,
                weight: PERIOD,
            };
            timestamps.push(RawTimestamp {
                row: rows.len() as u32,
                time: MonotonicTime((start_ms + number as u64) * 1_000_000),
                weight: PERIOD,
            });
            rows.push((key, value));
        }
        recorder.add(WindowPart {
            pressure: None,
            start: MonotonicTime(start_ms * 1_000_000),
            end: MonotonicTime((start_ms + 1000) * 1_000_000),
            closes: false,
            period: PERIOD,
            quality: Quality {
                taken: comms.len() as u64,
                ..Quality::default()
            },
            rows: &mut rows,
            accounts: &[],
            timestamps: &timestamps,
            timestamps_refused: 0,
            timeless: 0,
        });
    }
}

fn request(duration: Duration) -> agent::CaptureRequest {
    agent::CaptureRequest {
        duration_ns: duration.as_nanos() as u64,
        group_by: vec!["*".into()],
        ..agent::CaptureRequest::default()
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// What came, in order.
#[derive(Default)]
struct CaptureOutput {
    accepted: Option<CaptureInfo>,
    progress: Vec<agent::CaptureProgress>,
    past: Option<Profile>,
    profile: Option<Profile>,
    result: Option<CaptureInfo>,
}

fn all(messages: &mut mpsc::Receiver<agent::CaptureResponse>) -> CaptureOutput {
    let mut told = CaptureOutput::default();
    let (mut past, mut own) = (ProfileAssembler::new(), ProfileAssembler::new());
    while let Some(message) = messages.blocking_recv() {
        match message.body.unwrap() {
            Body::Accepted(info) => told.accepted = Some(info),
            Body::Progress(progress) => told.progress.push(progress),
            Body::Past(chunk) => {
                let last = chunk.last;
                past.push(chunk).unwrap();
                if last {
                    told.past = Some(std::mem::take(&mut past).finish().unwrap());
                }
            }
            Body::Chunk(chunk) => {
                let last = chunk.last;
                own.push(chunk).unwrap();
                if last {
                    told.profile = Some(std::mem::take(&mut own).finish().unwrap());
                }
            }
            Body::Result(info) => {
                assert!(messages.blocking_recv().is_none(), "the result is the last");
                told.result = Some(info);
            }
        }
    }
    told
}

#[test]
fn a_capture_is_accepted_goes_on_and_ends_with_what_was_sampled() {
    let rig = Rig::new();
    let mut messages = rig.start(request(Duration::from_millis(300)));
    rig.sample(1, 5000, &["a", "b", "a"]);
    let told = all(&mut messages);
    let accepted = told.accepted.unwrap();
    assert_eq!((accepted.id, accepted.state()), (1, CaptureState::Running));
    assert_eq!((accepted.peer.as_str(), accepted.rate_hz), ("test", 1000));
    assert!(!told.progress.is_empty());
    let profile = told.profile.unwrap();
    assert_eq!(profile.total().count, 3);
    assert_eq!(profile.info.start_unix_ns, 5_000_000_000);
    let times: Vec<u64> = profile.timestamps.list.iter().map(|at| at.at_ns).collect();
    assert_eq!(times, [0, 1_000_000, 2_000_000]);
    assert_eq!(profile.timestamps.start_unix_ns, 5_000_000_000);
    let result = told.result.unwrap();
    assert_eq!(result.state(), CaptureState::Complete);
    assert!(result.notices.is_empty(), "{:?}", result.notices);
    assert!(result.elapsed_ns >= 300_000_000);
    let progress = result.progress.unwrap();
    assert_eq!((progress.samples, progress.samples_all), (3, 3));
    assert_eq!(rig.captures.list(), [result]);
}

#[test]
fn only_what_is_selected_counts() {
    let rig = Rig::new();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    let mut asked = request(Duration::from_millis(200));
    asked.matchers = vec![agent::LabelMatcher {
        label: key::COMM.into(),
        op: agent::MatchOp::Equal.into(),
        value: comm.trim_end().into(),
    }];
    let mut messages = rig.start(asked);
    rig.sample(1, 5000, &[comm.trim_end(), "other", "other"]);
    let told = all(&mut messages);
    let progress = told.result.unwrap().progress.unwrap();
    assert_eq!((progress.samples, progress.samples_all), (1, 3));
    let profile = told.profile.unwrap();
    assert_eq!(
        (profile.total().count, profile.timestamps.list.len()),
        (1, 1)
    );
}

#[test]
fn cancelling_keeps_what_there_is() {
    let rig = Rig::new();
    let mut messages = rig.start(request(HOUR));
    rig.sample(1, 5000, &["a"]);
    assert!(rig.captures.cancel(1));
    let told = all(&mut messages);
    assert_eq!(told.profile.unwrap().total().count, 1);
    let result = told.result.unwrap();
    assert_eq!(
        (result.state(), result.error.as_str()),
        (CaptureState::Cancelled, "cancelled")
    );
    assert!(!rig.captures.cancel(1), "it is over");
    assert!(!rig.captures.cancel(7), "there never was one");
}

#[test]
fn a_client_that_vanishes_frees_everything() {
    let rig = Rig::new();
    drop(rig.start(request(HOUR)));
    until_blocking("all places are free", || rig.captures.held().0 == 0);
    assert_eq!(rig.captures.running(), 0);
    assert_eq!(rig.captures.held().1, 0);
    assert!(rig.fake.recorders.get(CaptureId(1)).is_none());
    assert!(lock(&rig.fake.ended).contains(&1));
    let listed = rig.captures.list();
    assert_eq!(listed[0].state(), CaptureState::Failed);
    assert_eq!(listed[0].error, "the client left");
}

#[test]
fn of_two_hundred_at_once_as_many_run_as_are_allowed() {
    let rig = Rig::new();
    let all: Vec<_> = (0..200)
        .map(|_| rig.captures.start(request(HOUR), Asker::here("test")))
        .collect();
    let refused: Vec<&Status> = all.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(refused.len(), 192);
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted);
        let told = status.message().lines().next().unwrap();
        assert_eq!(
            told,
            "failed to start the capture: 8 captures run already, the limit of `captures.max`"
        );
    }
    assert_eq!(rig.captures.running(), 8);
    assert_eq!(
        rig.captures.counts.refused_limit.load(Ordering::Relaxed),
        192
    );
    drop(all);
    until_blocking("all places are free", || rig.captures.held().0 == 0);
    assert_eq!(rig.captures.held().1, 0);
    let listed = rig.captures.list();
    assert_eq!(listed.len(), 8, "refused ones are in the log alone");
}

#[test]
fn captures_share_the_memory_there_is() {
    let rig = Rig::new();
    lock(&rig.fake.limits).memory_mib = 2;
    let _running: Vec<_> = (0..4).map(|_| rig.start(request(HOUR))).collect();
    assert_eq!(rig.captures.held().1, 2 << 20);
    let fifth = rig
        .captures
        .start(request(HOUR), Asker::here("test"))
        .unwrap_err();
    assert_eq!(fifth.code(), Code::ResourceExhausted);
    assert!(fifth.message().contains("`captures.memory_mib`"), "{fifth}");
}

#[test]
fn no_captures_at_all_can_be_configured() {
    let rig = Rig::new();
    lock(&rig.fake.limits).max = 0;
    let refused = rig
        .captures
        .start(request(HOUR), Asker::here("test"))
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[test]
fn the_past_comes_before_what_was_sampled() {
    let rig = Rig::with(|fake| {
        let mut past = Profile::default();
        past.info.start_unix_ns = 77;
        fake.past = Some(past);
    });
    let mut asked = request(Duration::from_millis(100));
    asked.before_ns = 1_000_000_000;
    let told = all(&mut rig.start(asked));
    assert_eq!(told.past.unwrap().info.start_unix_ns, 77);
    assert!(told.profile.is_some());
}

#[test]
fn a_process_that_ends_ends_its_capture() {
    let rig = Rig::new();
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let mut asked = request(HOUR);
    asked.matchers = vec![agent::LabelMatcher {
        label: key::PID.into(),
        op: agent::MatchOp::Equal.into(),
        value: child.id().to_string(),
    }];
    let mut messages = rig.start(asked);
    child.kill().unwrap();
    child.wait().unwrap();
    let result = all(&mut messages).result.unwrap();
    assert_eq!(result.state(), CaptureState::Cancelled);
    assert_eq!(result.error, "the captured process ended");
    assert_eq!(result.notices, ["nothing was sampled"]);
}

#[test]
fn a_cgroup_that_is_made_again_is_followed_and_told() {
    let again = |ms| Followed::Again {
        unseen: Some(Duration::from_millis(ms)),
        notices: vec!["rings are small".into()],
    };
    let refusal = Status::failed_precondition("no memory");
    let looks = vec![
        Ok(Followed::Same),
        Ok(Followed::Gone),
        Ok(again(12)),
        Err(refusal),
        Ok(again(30)),
        Ok(Followed::Gone),
    ];
    let rig = Rig::with(|fake| fake.followed = Mutex::new(looks));
    let mut messages = rig.start(request(HOUR));
    rig.sample(1, 5000, &["a"]);
    until_blocking("all were followed", || lock(&rig.fake.followed).is_empty());
    rig.captures.cancel(1);
    let result = all(&mut messages).result.unwrap();
    let [rings, followed, gone, ..] = &result.notices[..] else {
        panic!("{:?}", result.notices);
    };
    assert_eq!(rings, "rings are small", "once");
    let expected = "the cgroup was removed and created again 2 times: the capture followed it, and at least 42 ms of CPU time of the new cgroup are missing";
    assert_eq!(followed, expected);
    assert!(gone.starts_with("the target disappeared after "), "{gone}");
}

#[test]
fn an_event_that_happens_too_often_is_sampled_more_rarely_from_then_on() {
    let rig = Rig::with(|fake| {
        fake.excess = OverloadPolicy::Slows(10);
        *lock(&fake.slowed) = vec![
            // Its cgroup is just made again.
            Err(Status::not_found("no such cgroup")),
            Ok(Slowed {
                period: 3000,
                notices: vec!["rings are small".into()],
            }),
        ];
    });
    let mut messages = rig.start(request(HOUR));
    // Nothing is named yet: how often an event happens does not depend on that.
    let period = || rig.captures.list().remove(0).period;
    until_blocking("the period is told", || period() == 3000);
    rig.captures.cancel(1);
    let result = all(&mut messages).result.unwrap();
    let told = &result.notices[0];
    assert!(told.contains("more than 10 on all CPUs"), "{told}");
    assert!(told.contains("one event in 3000 was sampled"), "{told}");
    assert_eq!(result.notices[1], "rings are small");
}

#[test]
fn waits_that_come_too_often_end_their_capture_with_what_there_is() {
    let rig = Rig::with(|fake| fake.excess = OverloadPolicy::Ends(10));
    let mut messages = rig.start(request(HOUR));
    let result = all(&mut messages).result.unwrap();
    assert_eq!(result.state(), CaptureState::Cancelled);
    let error = "threads switch more often than `captures.switches_max` allows";
    assert_eq!(result.error, error);
    let told = &result.notices[0];
    assert!(told.contains("exceed the 10 that"), "{told}");
}

#[test]
fn an_event_that_cannot_be_had_leaves_nothing_behind() {
    let rig = Rig::with(|fake| fake.refusal = Some(Status::failed_precondition("no such event")));
    let refused = rig
        .captures
        .start(request(HOUR), Asker::here("test"))
        .unwrap_err();
    assert_eq!(refused.message(), "no such event");
    assert!(rig.fake.recorders.ids().is_empty());
    assert_eq!(rig.captures.held().0, 0);
    assert!(rig.captures.list().is_empty());
    assert_eq!(
        rig.captures.counts.refused_request.load(Ordering::Relaxed),
        1
    );
}

#[test]
fn a_daemon_that_stops_answers_what_there_is() {
    let rig = Rig::new();
    let mut messages = rig.start(request(HOUR));
    rig.sample(1, 5000, &["a"]);
    rig.captures.stop();
    let told = all(&mut messages);
    assert_eq!(told.profile.unwrap().total().count, 1);
    assert_eq!(told.result.unwrap().error, "the daemon was stopped");
    let late = rig
        .captures
        .start(request(HOUR), Asker::here("test"))
        .unwrap_err();
    assert_eq!(late.code(), Code::Unavailable);
}

#[test]
fn the_newest_are_remembered() {
    let rig = Rig::new();
    lock(&rig.fake.limits).history = 2;
    for _ in 0..3 {
        all(&mut rig.start(request(Duration::from_millis(10))));
    }
    let ids: Vec<u64> = rig.captures.list().iter().map(|info| info.id).collect();
    assert_eq!(ids, [3, 2]);
}

#[test]
fn a_large_request_is_not_remembered_whole() {
    let rig = Rig::new();
    let mut asked = request(Duration::from_millis(10));
    asked.group_by = vec!["x".repeat(5000)];
    all(&mut rig.start(asked));
    let listed = rig.captures.list();
    assert!(listed[0].request.as_ref().unwrap().encoded_len() < 200);
}

#[test]
fn a_slow_reader_gets_all_of_the_answer() {
    let rig = Rig::new();
    let mut messages = rig.start(request(Duration::from_millis(1500)));
    rig.sample(1, 5000, &["a", "b"]);
    // The queue fills up with progress meanwhile.
    let is_full = || messages.len() == MESSAGES_MAX;
    until_blocking("it ends", || rig.captures.running() == 0 || is_full());
    let told = all(&mut messages);
    assert_eq!(told.profile.unwrap().total().count, 2);
    assert!(told.result.is_some());
}
