//! Captures over the fleet: who is asked, what comes of hosts that fail, leave or lie, and what the
//! client gets.

use crate::rig::{LIMIT, NOW, Options, Rig, SECOND, hello, until};
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::CaptureRequest;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_capture_response::Body;
use proto::collector::{
    CancelFleetCaptureRequest, FleetCaptureInfo, FleetCaptureProfileRequest, FleetCaptureRequest,
    FleetCaptureResponse, FleetPlan, HostProgress, HostState, ListFleetCapturesRequest,
    fleet_capture_profile_response,
};
use std::time::{Duration, Instant};
use testkit::fake::control::{ConnectedAgent, Does, connect};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Patience with many hosts, all of which are simulated on one thread of a busy machine.
const OF_MANY: Duration = Duration::from_secs(30);

/// All that came of a capture.
pub struct Outcome {
    plan: FleetPlan,
    /// States of hosts as they were told.
    told: Vec<HostProgress>,
    past: Option<Profile>,
    own: Option<Profile>,
    pub result: FleetCaptureInfo,
}

impl Outcome {
    fn host(&self, name: &str) -> &HostProgress {
        let mut hosts = self.result.hosts.iter();
        hosts.find(|host| host.hostname == name).expect("a host")
    }

    pub fn counts(&self) -> (u32, u32, u32, u32) {
        let result = &self.result;
        (result.asked, result.answered, result.failed, result.lost)
    }

    pub fn samples(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.total().count)
    }
}

pub fn request(selector: &str, patience: Duration) -> FleetCaptureRequest {
    FleetCaptureRequest {
        selector: selector.to_owned(),
        max_hosts: 1000,
        capture: Some(CaptureRequest {
            duration_ns: 1_000_000,
            who: "ada".to_owned(),
            ..CaptureRequest::default()
        }),
        patience_ns: patience.as_nanos() as u64,
        ..FleetCaptureRequest::default()
    }
}

impl Rig {
    pub async fn captures(&self) -> CaptureServiceClient<Channel> {
        CaptureServiceClient::new(self.channel().await)
    }

    pub async fn started(
        &self,
        request: FleetCaptureRequest,
    ) -> Result<Streaming<FleetCaptureResponse>, Status> {
        Ok(self.captures().await.capture(request).await?.into_inner())
    }

    pub async fn capture(&self, request: FleetCaptureRequest) -> Outcome {
        let stream = self.started(request).await.expect("a stream");
        finish(stream, Vec::new()).await.expect("a result")
    }

    pub async fn list(&self) -> Vec<FleetCaptureInfo> {
        let listed = self
            .captures()
            .await
            .list(ListFleetCapturesRequest::default())
            .await;
        listed.expect("a list").into_inner().captures
    }
}

/// What a kept capture has.
pub struct KeptProfile {
    pub info: FleetCaptureInfo,
    pub profile: Profile,
}

impl Rig {
    pub async fn kept(&self, id: u64, past: bool) -> Result<KeptProfile, Status> {
        let request = FleetCaptureProfileRequest {
            id,
            past,
            group_by: vec!["*".to_owned()],
            times: true,
            ..FleetCaptureProfileRequest::default()
        };
        let mut parts = self.captures().await.profile(request).await?.into_inner();
        let (mut info, mut assembler) = (None, ProfileAssembler::new());
        while let Some(part) = parts.message().await? {
            match part.body.expect("a body") {
                fleet_capture_profile_response::Body::Info(told) => info = Some(told),
                fleet_capture_profile_response::Body::Chunk(chunk) => {
                    assembler.push(chunk).expect("a sound chunk");
                }
            }
        }
        Ok(KeptProfile {
            info: info.expect("it comes first"),
            profile: assembler.finish().expect("a whole profile"),
        })
    }
}

pub async fn next(stream: &mut Streaming<FleetCaptureResponse>) -> Result<Option<Body>, Status> {
    let message = tokio::time::timeout(LIMIT, stream.message()).await;
    Ok(message
        .expect("a message in time")?
        .map(|message| message.body.expect("a body")))
}

pub async fn finish(
    mut stream: Streaming<FleetCaptureResponse>,
    mut told: Vec<HostProgress>,
) -> Result<Outcome, Status> {
    let (mut plan, mut result) = (FleetPlan::default(), None);
    let mut profiles = [const { None }; 2];
    while let Some(body) = next(&mut stream).await? {
        assert!(result.is_none(), "the result is the last");
        let (place, chunk) = match body {
            Body::Plan(found) => {
                plan = found;
                continue;
            }
            Body::Host(host) => {
                told.push(host);
                continue;
            }
            Body::Result(info) => {
                result = Some(info);
                continue;
            }
            Body::Past(chunk) => (0, chunk),
            Body::Chunk(chunk) => (1, chunk),
        };
        let assembler = profiles[place].get_or_insert_with(ProfileAssembler::new);
        assembler.push(chunk).expect("a chunk");
    }
    let [past, own] = profiles.map(|one| one.map(|one| one.finish().expect("a whole profile")));
    let result = result.expect("a result");
    Ok(Outcome {
        plan,
        told,
        past,
        own,
        result,
    })
}

/// Hosts `web-000` and on, each doing what `does` says of its number.
pub async fn fleet(rig: &Rig, hosts: usize, does: impl Fn(usize) -> Does) -> Vec<ConnectedAgent> {
    let mut all = Vec::new();
    for at in 0..hosts {
        all.push(rig.host(&format!("web-{at:03}"), does(at)).await);
    }
    all
}

#[tokio::test]
async fn of_two_hundred_hosts_each_tenth_fails_and_each_tenth_is_slow() {
    let rig = Rig::start().await;
    let does = |at| match at % 20 {
        3 => Does::Refuses,
        7 => Does::Fails,
        11 | 13 => Does::Silent,
        _ => Does::Answers(10),
    };
    let fleet = fleet(&rig, 200, does).await;
    let begin = Instant::now();
    let mut stream = rig
        .started(request("unit=\"web.service\"", OF_MANY))
        .await
        .expect("a stream");
    let first = next(&mut stream).await.expect("a message");
    let planned = begin.elapsed();
    assert!(matches!(&first, Some(Body::Plan(plan)) if plan.hosts.len() == 200));
    let outcome = finish(stream, Vec::new()).await.expect("a result");
    println!(
        "200 hosts: plan after {planned:?}, result after {:?}",
        begin.elapsed()
    );
    assert_eq!(outcome.counts(), (200, 160, 20, 20));
    assert!(outcome.result.elapsed_ns >= OF_MANY.as_nanos() as u64);
    let own = outcome.own.as_ref().expect("a profile");
    assert_eq!(own.total().count, 1600);
    assert_eq!(own.timestamps.list.len(), 1600);
    assert_eq!(outcome.host("web-011").state(), HostState::Lost);
    assert_eq!(outcome.host("web-003").state(), HostState::Failed);
    assert!(
        outcome
            .host("web-007")
            .message
            .contains("the target is gone")
    );
    assert_eq!(outcome.host("web-000").notices, ["the kernel throttled it"]);
    assert!(!outcome.told.is_empty());
    // Those that were too late were told, and what was asked names who asked and not the hosts'
    // labels.
    until("dropped", || fleet[11].dropped() && fleet[13].dropped()).await;
    let asked = fleet[0].captures();
    assert_eq!(asked.len(), 1);
    assert!(
        asked[0].who.starts_with("ada at 127.0.0.1:"),
        "{}",
        asked[0].who
    );
    assert_eq!(rig.metrics.fanout_answered.get(), 160);
    until("given back", || rig.metrics.control_bytes.get() == 0).await;
}

#[tokio::test]
async fn progress_comes_while_hosts_run_and_a_cancel_keeps_what_there_is() {
    let rig = Rig::start().await;
    let _fleet = fleet(&rig, 3, |_| Does::Runs(5)).await;
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let mut stream = rig.started(asked).await.expect("a stream");
    let Some(Body::Plan(plan)) = next(&mut stream).await.expect("a message") else {
        panic!("the plan comes first");
    };
    let mut told = Vec::new();
    while let Some(Body::Host(host)) = next(&mut stream).await.expect("a message") {
        let running = host.state() == HostState::Running && host.progress.is_some();
        told.push(host);
        if running {
            break;
        }
    }
    let listed = rig.list().await;
    assert!(listed[0].running && listed[0].id == plan.id);
    let id = plan.id;
    let mut captures = rig.captures().await;
    captures
        .cancel(CancelFleetCaptureRequest { id })
        .await
        .expect("it runs");
    let outcome = finish(stream, told).await.expect("a result");
    assert_eq!(outcome.counts(), (3, 3, 0, 0));
    assert_eq!(outcome.samples(), 15);
    assert!(
        outcome
            .result
            .ended_by
            .starts_with("cancelled by 127.0.0.1")
    );
    let partial = |host: &HostProgress| host.state() == HostState::Partial;
    assert!(outcome.result.hosts.iter().all(partial));
    let refused = captures.cancel(CancelFleetCaptureRequest { id }).await;
    assert_eq!(refused.expect_err("it has ended").code(), Code::NotFound);
}

#[tokio::test]
async fn a_client_that_vanishes_ends_it_on_all_hosts() {
    let rig = Rig::start().await;
    let fleet = fleet(&rig, 5, |_| Does::Runs(5)).await;
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let mut stream = rig.started(asked).await.expect("a stream");
    next(&mut stream).await.expect("the plan");
    until("asked", || {
        fleet.iter().all(|one| !one.captures().is_empty())
    })
    .await;
    drop(stream);
    until("dropped", || fleet.iter().all(ConnectedAgent::dropped)).await;
    until("over", || rig.metrics.fanouts_running.get() == 0).await;
    let listed = rig.list().await;
    assert_eq!(listed[0].ended_by, "the client left");
    assert_eq!(rig.metrics.fanouts_left.get(), 1);
    assert_eq!(rig.metrics.control_streams.get(), 5);
}

#[tokio::test]
async fn agents_that_restart_in_the_middle_are_lost_and_come_again() {
    let rig = Rig::start().await;
    let mut leaving = rig.host("web-1", Does::Leaves).await;
    let _stays = rig.host("web-2", Does::Answers(3)).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!(outcome.counts(), (2, 1, 0, 1));
    assert!(
        outcome
            .host("web-1")
            .message
            .contains("the connection of the host ended")
    );
    assert_eq!(outcome.samples(), 3);
    leaving = {
        drop(leaving);
        rig.connect(hello("web-1", 1), Does::Answers(4)).await
    };
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((2, 2, 0, 0), 7));
    drop(leaving);
}

#[tokio::test]
async fn a_collector_that_ends_tells_client_and_agents() {
    let rig = Rig::start().await;
    let agent = rig.host("web-1", Does::Runs(5)).await;
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let mut stream = rig.started(asked).await.expect("a stream");
    next(&mut stream).await.expect("the plan");
    rig.stop.send(true).expect("it listens");
    let ended = finish(stream, Vec::new()).await.err().expect("no result");
    assert_eq!(ended.code(), Code::Unavailable);
    assert_eq!(agent.end().await.code(), Code::Unavailable);
}

#[tokio::test]
async fn what_a_host_sends_wrong_costs_its_own_part_alone() {
    for (does, state, expected) in [
        (Does::Lies, HostState::Lost, "connection of the host ended"),
        (
            Does::Mumbles,
            HostState::Lost,
            "connection of the host ended",
        ),
        (Does::Scrambles, HostState::Failed, "is invalid"),
        (
            Does::Stops,
            HostState::Failed,
            "before its profile was complete",
        ),
        (Does::Floods, HostState::Failed, "larger than"),
        (
            Does::Cycles(5),
            HostState::Failed,
            "has weights in `cycles`",
        ),
    ] {
        let rig = Rig::start().await;
        let good = rig.host("a", Does::Answers(3)).await;
        let bad = rig.host("b", does).await;
        let outcome = rig.capture(request("", LIMIT)).await;
        // When units differ, the one that comes first wins.
        let (host, other) = match (does, outcome.host("b").state()) {
            (Does::Cycles(_), HostState::Done) => ("a", 5),
            _ => ("b", 3),
        };
        let found = outcome.host(host);
        assert_eq!(found.state(), state, "{does:?}: {found:?}");
        let other_unit = "has weights in `nanoseconds`";
        let told = found.message.contains(expected) || found.message.contains(other_unit);
        assert!(told, "{does:?}: {}", found.message);
        assert_eq!(outcome.samples(), other, "{does:?}");
        if state == HostState::Lost {
            assert_eq!(bad.end().await.code(), Code::InvalidArgument);
            assert_eq!(rig.metrics.control_faults.get(), 1);
        }
        drop(good);
    }
}

#[tokio::test]
async fn results_have_so_much_memory_and_no_more() {
    let mut options = Options::default();
    options.control.memory_bytes = 100 << 10;
    let rig = Rig::with(options).await;
    let _fleet = fleet(&rig, 2, |at| Does::Answers(if at == 0 { 3 } else { 4000 })).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!(outcome.counts(), (2, 1, 1, 0));
    assert_eq!(outcome.samples(), 3);
    let message = &outcome.host("web-001").message;
    assert!(message.contains("takes more than"), "{message}");
}

#[tokio::test]
async fn what_agents_send_is_weighed_as_it_lies_in_memory() {
    let mut options = Options::default();
    options.control.memory_bytes = 8 << 20;
    let rig = Rig::with(options).await;
    let _good = rig.host("a", Does::Answers(3)).await;
    // A message of 1 MB that takes 14 MB.
    let bad = rig.host("b", Does::Bloats).await;
    // One within that bound, whose profile takes more than a host has.
    let large = rig.host("c", Does::Answers(60_000)).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((3, 1, 2, 0), 3));
    let message = &outcome.host("b").message;
    assert!(message.contains("no memory"), "{message}");
    let message = &outcome.host("c").message;
    assert!(message.contains("takes more than 2 MiB"), "{message}");
    assert_eq!(rig.metrics.control_refused.get(), 2);
    until("dropped", || bad.dropped() && large.dropped()).await;
    until("given back", || rig.metrics.control_bytes.get() == 0).await;
}

#[tokio::test]
async fn times_that_find_no_room_are_left_out_and_told() {
    let mut options = Options::default();
    // Room for 7200 times on each side.
    options.control.memory_bytes = 1350 << 10;
    let rig = Rig::with(options).await;
    let _fleet = fleet(&rig, 3, |_| Does::AnswersWithPast(2500)).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((3, 3, 0, 0), 7500));
    let notices = &outcome.result.notices;
    let (past, own) = (outcome.past.expect("a past"), outcome.own.expect("one"));
    assert_eq!(past.total().count, 7500);
    let shed = past.timestamps.dropped + own.timestamps.dropped;
    assert!(shed >= 2500, "{shed}");
    let told = format!("no room for the times of {shed} of them");
    assert!(notices.iter().any(|one| one.contains(&told)), "{notices:?}");
    assert_eq!(rig.metrics.control_times_shed.get(), shed);
    let of_hosts = outcome.result.hosts.iter().flat_map(|host| &host.notices);
    let told = "samples: they are left out";
    assert!(of_hosts.into_iter().any(|one| one.contains(told)));
}

#[tokio::test]
async fn a_clock_that_was_set_after_its_agent_connected_is_set_right() {
    let rig = Rig::start().await;
    let _fleet = fleet(&rig, 2, |at| match at {
        0 => Does::Stepped(3),
        _ => Does::Answers(2),
    })
    .await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((2, 2, 0, 0), 5));
    let notices = &outcome.host("web-000").notices;
    let told = "the clock of the host is 3600.0 s ahead of the collector's";
    assert!(notices.iter().any(|one| one.contains(told)), "{notices:?}");
    let own = outcome.own.expect("a profile");
    assert_eq!(own.timestamps.start_unix_ns, NOW - SECOND);
    assert_eq!(own.timestamps.duration_ns, SECOND as u64);
    assert_eq!(own.timestamps.list.len(), 5);
}

#[tokio::test]
async fn of_two_hundred_captures_asked_for_at_once_a_few_run_and_the_others_may_come_again() {
    let rig = Rig::start().await;
    let fleet = fleet(&rig, 3, |_| Does::Runs(5)).await;
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let captures = rig.captures().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (mut captures, asked) = (captures.clone(), asked.clone());
        calls.spawn(async move { captures.capture(asked).await });
    }
    let (mut begun, mut refused) = (Vec::new(), 0);
    while let Some(call) = calls.join_next().await {
        match call.expect("no panic") {
            Ok(stream) => begun.push(stream.into_inner()),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                assert!(status.message().contains("8 fleet captures run"));
                assert!(status.metadata().contains_key("retry-after"));
                refused += 1;
            }
        }
    }
    assert_eq!((begun.len(), refused), (8, 192));
    assert_eq!(rig.metrics.fanouts_refused.get(), 192);
    let at_work = || fleet.iter().all(|one| one.captures().len() == 8);
    until("asked", at_work).await;
    drop(begun);
    until("over", || rig.metrics.fanouts_running.get() == 0).await;
    until("dropped", || fleet.iter().all(|one| one.drops() == 8)).await;
    let again = rig.started(asked).await;
    assert!(again.is_ok(), "there is room again");
}

#[tokio::test]
async fn hosts_are_those_with_samples_and_the_labels_that_are_connected() {
    let rig = Rig::start().await;
    let mut zone_b = hello("b", 1);
    zone_b.facts.as_mut().expect("facts").labels = [("zone".to_owned(), "b".to_owned())].into();
    rig.sampled("b").await;
    let b = rig.connect(zone_b, Does::Answers(2)).await;
    let a = rig.host("a", Does::Answers(1)).await;
    // It is connected, and has nothing of what is selected.
    let _idle = rig.connect(hello("idle", 1), Does::Answers(9)).await;
    // It has, and is not connected.
    rig.sampled("away").await;
    let outcome = rig.capture(request("unit=\"web.service\"", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((2, 2, 0, 0), 3));
    let plan = &outcome.plan;
    assert_eq!((plan.selected, plan.absent, plan.left_out), (3, 1, 0));
    assert_eq!(plan.absent_hosts, ["away"]);
    assert!(outcome.result.notices[0].contains("is not connected: away"));
    let matchers = &a.captures()[0].matchers;
    assert_eq!((matchers.len(), matchers[0].label.as_str()), (1, "unit"));

    // A region is a label of hosts: `b` lost it from its facts, its samples have it still.
    let outcome = rig
        .capture(request("region=\"north\",host=~\"a|b\"", LIMIT))
        .await;
    assert_eq!(outcome.plan.hosts.len(), 2);
    assert!(a.captures()[1].matchers.is_empty());
    assert_eq!(b.captures()[1].matchers[0].label, "region");

    let few = FleetCaptureRequest {
        max_hosts: 1,
        ..request("", LIMIT)
    };
    let outcome = rig.capture(few).await;
    assert_eq!(outcome.counts().0, 1);
    assert_eq!(outcome.plan.left_out, 1);

    for (selector, expected) in [
        ("unit=\"nobody\"", "no host has samples"),
        ("host=\"away\"", "none is connected (away)"),
    ] {
        let refused = rig.started(request(selector, LIMIT)).await;
        let Err(status) = refused else {
            panic!("nobody is there to be asked");
        };
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let old = request("", LIMIT);
    rig.clock
        .store(NOW + 3600 * SECOND, std::sync::atomic::Ordering::Relaxed);
    assert!(
        rig.started(old).await.is_err(),
        "samples of an hour ago select nobody"
    );
}

#[tokio::test]
async fn samples_have_the_labels_of_their_host_that_are_grouped_by() {
    let rig = Rig::start().await;
    let _fleet = fleet(&rig, 2, |_| Does::AnswersWithPast(3)).await;
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").group_by = vec!["host".to_owned(), "comm".to_owned()];
    let outcome = rig.capture(asked).await;
    for profile in [outcome.past, outcome.own] {
        let profile = profile.expect("a profile");
        assert_eq!(profile.total().count, 6);
        let hosts = profile.samples.keys().map(|key| {
            assert_eq!(profile.dict.label(key.labels, "comm"), Some("api"));
            profile.dict.label(key.labels, "host").expect("a host")
        });
        let hosts: std::collections::BTreeSet<_> = hosts.collect();
        assert_eq!(
            hosts.into_iter().collect::<Vec<_>>(),
            ["web-000", "web-001"]
        );
    }
}

#[tokio::test]
async fn the_newer_stream_of_a_host_counts() {
    let rig = Rig::start().await;
    let old = rig.host("a", Does::Answers(1)).await;
    let _new = rig.connect(hello("a", 2), Does::Answers(2)).await;
    assert_eq!(old.end().await.code(), Code::Aborted);
    assert_eq!(rig.capture(request("", LIMIT)).await.samples(), 2);
    assert_eq!(rig.metrics.control_superseded.get(), 1);
    assert_eq!(rig.metrics.control_streams.get(), 1);
}

#[tokio::test]
async fn hellos_that_make_no_sense_are_refused() {
    let rig = Rig::start().await;
    let no_id = proto::collector::Hello {
        host_id: String::new(),
        ..hello("a", 1)
    };
    let short = proto::collector::Hello {
        boot_id: vec![1],
        ..hello("a", 1)
    };
    for wrong in [no_id, short] {
        let refused = connect(rig.grpc, wrong, Does::Silent, || NOW).await;
        let status = refused.err().expect("no welcome");
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    assert_eq!(rig.metrics.control_streams.get(), 0);
}

#[tokio::test]
async fn an_agent_that_answers_no_ping_is_gone() {
    let mut options = Options::default();
    options.control.timeouts.ping = Duration::from_millis(50);
    let rig = Rig::with(options).await;
    let alive = rig.connect(hello("alive", 1), Does::Silent).await;
    let (say, queue) = tokio::sync::mpsc::channel(4);
    let mut client =
        proto::collector::control_service_client::ControlServiceClient::new(rig.channel().await);
    let body = Some(proto::collector::control_request::Body::Hello(hello(
        "mute", 1,
    )));
    say.send(proto::collector::ControlRequest { body })
        .await
        .expect("room");
    let stream = tokio_stream::wrappers::ReceiverStream::new(queue);
    let mut told = client.control(stream).await.expect("a stream").into_inner();
    let end = loop {
        match tokio::time::timeout(LIMIT, told.message())
            .await
            .expect("an end")
        {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(end.expect_err("cut off").code(), Code::DeadlineExceeded);
    assert_eq!(rig.metrics.control_streams.get(), 1);
    drop(alive);
}

#[tokio::test]
async fn a_collector_asks_the_agents_of_another_on_the_same_store() {
    let one = Rig::start().await;
    let other = Rig::on(one.store.clone(), Options::default()).await;
    let _here = one.host("here", Does::AnswersWithPast(1)).await;
    let there = other.host("there", Does::AnswersWithPast(2)).await;
    let _fails = other.host("there-too", Does::Fails).await;
    let gone = other.host("gone", Does::Answers(9)).await;
    // One that nobody answers for.
    let nowhere = Rig::on(one.store.clone(), Options::default()).await;
    let _lost = nowhere.host("lost", Does::Answers(9)).await;
    other
        .control
        .announce_once(&other.grpc.to_string())
        .await
        .expect("told");
    nowhere
        .control
        .announce_once("127.0.0.1:1")
        .await
        .expect("told");
    drop(gone);
    until("left", || other.metrics.control_streams.get() == 2).await;

    let mut asked = request("unit=\"web.service\"", LIMIT);
    asked.capture.as_mut().expect("one").group_by = vec!["host".to_owned()];
    let outcome = one.capture(asked).await;
    assert_eq!(outcome.counts(), (5, 2, 1, 2), "{:?}", outcome.result.hosts);
    assert_eq!(outcome.samples(), 3);
    assert_eq!(outcome.past.as_ref().expect("a past").total().count, 3);
    let own = outcome.own.as_ref().expect("a profile");
    let hosts = own
        .samples
        .keys()
        .map(|key| own.dict.label(key.labels, "host"));
    let hosts: std::collections::BTreeSet<_> = hosts.flatten().collect();
    assert_eq!(hosts.into_iter().collect::<Vec<_>>(), ["here", "there"]);
    assert!(outcome.host("lost").message.contains("cannot be reached"));
    assert!(outcome.host("gone").message.contains("no longer connected"));
    assert!(
        outcome
            .host("there-too")
            .message
            .contains("the target is gone")
    );
    let who = &there.captures()[0].who;
    assert!(who.starts_with("ada at 127.0.0.1:"), "{who}");

    // What was told too long ago is not believed.
    let later = NOW + 61 * SECOND;
    one.clock.store(later, std::sync::atomic::Ordering::Relaxed);
    let outcome = one.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts().0, outcome.plan.absent), (1, 4));
}

#[tokio::test]
async fn a_client_that_vanishes_ends_it_at_other_collectors_too() {
    let one = Rig::start().await;
    let other = Rig::on(one.store.clone(), Options::default()).await;
    let there = other.host("there", Does::Runs(2)).await;
    other
        .control
        .announce_once(&other.grpc.to_string())
        .await
        .expect("told");
    let mut asked = request("", LIMIT);
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let stream = one.started(asked.clone()).await.expect("a stream");
    until("asked", || there.captures().len() == 1).await;
    drop(stream);
    until("dropped", || there.dropped()).await;

    let mut stream = one.started(asked).await.expect("a stream");
    let Some(Body::Plan(plan)) = next(&mut stream).await.expect("a message") else {
        panic!("the plan comes first");
    };
    until("asked", || there.captures().len() == 2).await;
    let id = plan.id;
    let mut captures = one.captures().await;
    captures
        .cancel(CancelFleetCaptureRequest { id })
        .await
        .expect("it runs");
    let outcome = finish(stream, Vec::new()).await.expect("a result");
    assert_eq!((outcome.counts(), outcome.samples()), ((1, 1, 0, 0), 2));
    assert_eq!(outcome.host("there").state(), HostState::Partial);
}
