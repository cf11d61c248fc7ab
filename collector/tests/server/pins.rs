//! Pins: uploaded by agents that leave, lie and come again, kept, and shown.

use crate::rig::{LIMIT, NOW, Options, Rig, SECOND, hello};
use crate::web::get;
use collector::pins::Bounds;
use collector::pins::limits::HOST_PINS_PER_DAY_MAX;
use profile::{FrameRef, Profile, SampleKey, StackEnd, StackId, Timestamp, Value};
use proto::agent::{LabelMatcher, MatchOp, Pin, TimeRange};
use proto::collector::pin_service_client::PinServiceClient;
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::upload_pin_request::Body;
use proto::collector::{
    HostPin, ListHostPinsRequest, PinHead, PinProfileRequest, UploadPinRequest,
};
use proto::{Chunks, ProfileAssembler};
use std::sync::atomic::Ordering;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Samples of two programs with their times.
fn profile(name: &str) -> Profile {
    let mut profile = Profile::default();
    for (number, comm) in ["a", "b"].into_iter().enumerate() {
        let frame = profile.dict.intern_frame(FrameRef {
            function: name,
            ..FrameRef::default()
        });
        let key = SampleKey {
            labels: profile.dict.intern_labels([("comm", comm)]),
            stack: profile.dict.stacks.child(StackId::EMPTY, frame),
            end: StackEnd::Complete,
        };
        let (count, weight) = (number as u64 + 1, 10);
        profile.add(key, Value { count, weight });
        profile.timestamps.list.push(Timestamp {
            at_ns: number as u64,
            key,
            weight: 10,
        });
    }
    profile.timestamps.start_unix_ns = NOW;
    profile.timestamps.duration_ns = 10;
    profile
}

fn pin(number: u64) -> Pin {
    Pin {
        id: number,
        trigger: "api-throttled".to_owned(),
        cause: "nr_throttled > 2/s".to_owned(),
        cgroup: "/api.slice".to_owned(),
        fired_unix_ns: NOW - 60 * SECOND,
        range: Some(TimeRange {
            start_unix_ns: NOW - 300 * SECOND,
            end_unix_ns: NOW,
        }),
        ..Pin::default()
    }
}

fn head(host: &str, pin: Pin, has_capture: bool) -> Body {
    Body::Head(PinHead {
        hello: Some(hello(host, 1)),
        pin: Some(pin),
        has_capture,
    })
}

pub fn all(host: &str, number: u64, capture: Option<&Profile>) -> Vec<Body> {
    let mut bodies = vec![head(host, pin(number), capture.is_some())];
    bodies.extend(Chunks::new(&profile("minutes")).map(Body::Minutes));
    bodies.extend(
        capture
            .into_iter()
            .flat_map(Chunks::new)
            .map(Body::Captured),
    );
    bodies
}

pub async fn keep(rig: &Rig, bodies: Vec<Body>) -> Result<bool, Status> {
    let mut client = PinUploadServiceClient::new(rig.channel().await)
        .send_compressed(Zstd)
        .accept_compressed(Zstd);
    let requests = bodies
        .into_iter()
        .map(|body| UploadPinRequest { body: Some(body) });
    let answer = client.upload(tokio_stream::iter(requests.collect::<Vec<_>>()));
    let answer = tokio::time::timeout(LIMIT, answer).await;
    Ok(answer.expect("an answer in time")?.into_inner().repeated)
}

async fn people(rig: &Rig) -> PinServiceClient<Channel> {
    PinServiceClient::new(rig.channel().await).accept_compressed(Zstd)
}

async fn list(rig: &Rig, host: &str) -> Vec<HostPin> {
    let request = ListHostPinsRequest {
        host: host.to_owned(),
        ..ListHostPinsRequest::default()
    };
    let answer = people(rig).await.list(request).await;
    answer.expect("a list").into_inner().pins
}

async fn show(rig: &Rig, request: PinProfileRequest) -> Result<Profile, Status> {
    let mut parts = people(rig).await.profile(request).await?.into_inner();
    let mut assembler = ProfileAssembler::new();
    while let Some(part) = parts.message().await? {
        let pushed = assembler.push(part.chunk.unwrap_or_default());
        pushed.expect("a sound chunk");
    }
    Ok(assembler.finish().expect("a whole profile"))
}

fn of(id: u64) -> PinProfileRequest {
    PinProfileRequest {
        id,
        group_by: vec!["*".to_owned()],
        ..PinProfileRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_is_kept_listed_and_shown_and_outlives_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = || Options {
        pins_dir: Some(dir.path().to_owned()),
        ..Options::default()
    };
    let captured = profile("captured");
    let before = {
        let rig = Rig::with(options()).await;
        assert!(
            !keep(&rig, all("web-1", 7, Some(&captured)))
                .await
                .expect("kept")
        );
        assert!(!keep(&rig, all("web-2", 7, None)).await.expect("kept"));
        let pins = list(&rig, "").await;
        rig.stop.send(true).expect("it listens");
        rig.ingest.drained().await;
        pins
    };
    let hosts: Vec<&str> = before.iter().map(|pin| pin.hostname.as_str()).collect();
    assert_eq!(hosts, ["web-2", "web-1"], "the newest first");
    let first = before[1].pin.as_ref().expect("facts");
    assert_eq!((first.id, first.cgroup.as_str()), (7, "/api.slice"));
    assert_eq!(
        (first.trigger.as_str(), first.open),
        ("api-throttled", false)
    );
    assert!(first.capture_bytes > 0 && first.bytes > first.capture_bytes);
    assert_eq!(before[1].received_unix_ns, NOW);
    let rig = restarted(options).await;
    assert_eq!(list(&rig, "").await, before);
    assert_eq!(list(&rig, "id-web-1").await, before[1..]);
    let id = before[1].id;
    let minutes = show(&rig, of(id)).await.expect("its minutes");
    assert_eq!(
        (minutes.total().count, minutes.timestamps.list.len()),
        (3, 0)
    );
    let asked = PinProfileRequest {
        captured: true,
        times: true,
        matchers: vec![LabelMatcher {
            label: "comm".to_owned(),
            op: MatchOp::Equal as i32,
            value: "b".to_owned(),
        }],
        ..of(id)
    };
    let shown = show(&rig, asked).await.expect("its capture");
    assert_eq!((shown.total().count, shown.timestamps.list.len()), (2, 1));
    assert_eq!(rig.metrics.pins.get(), 2);
}

/// The files are locked until the last of the one before has ended.
async fn restarted(options: impl Fn() -> Options) -> Rig {
    for _ in 0..200 {
        let rig = Rig::with(options()).await;
        let asked = people(&rig)
            .await
            .list(ListHostPinsRequest::default())
            .await;
        match asked {
            Ok(_) => return rig,
            Err(status) => assert_eq!(status.code(), Code::Unavailable),
        }
        rig.stop.send(true).expect("it listens");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the files stay locked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_that_comes_again_is_passed_over_unless_it_has_its_capture_now() {
    let rig = Rig::start().await;
    let captured = profile("captured");
    assert!(!keep(&rig, all("a", 1, None)).await.expect("kept"));
    assert!(keep(&rig, all("a", 1, None)).await.expect("there already"));
    // Nothing is read of it: not even that it makes no sense.
    let odd = vec![
        head("a", pin(1), false),
        Body::Captured(Chunks::new(&captured).next().expect("one")),
    ];
    assert!(keep(&rig, odd).await.expect("there already"));
    assert!(
        !keep(&rig, all("a", 1, Some(&captured)))
            .await
            .expect("kept")
    );
    assert!(
        keep(&rig, all("a", 1, Some(&captured)))
            .await
            .expect("there already")
    );
    let pins = list(&rig, "").await;
    assert_eq!(pins.len(), 1);
    let asked = PinProfileRequest {
        captured: true,
        ..of(pins[0].id)
    };
    assert_eq!(show(&rig, asked).await.expect("a profile").total().count, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_and_leaves_nothing() {
    let rig = Rig::start().await;
    let minutes = || {
        Chunks::new(&profile("f"))
            .map(Body::Minutes)
            .collect::<Vec<_>>()
    };
    let captured = || {
        Chunks::new(&profile("f"))
            .map(Body::Captured)
            .collect::<Vec<_>>()
    };
    let mut odd = minutes();
    if let Body::Minutes(chunk) = &mut odd[0] {
        chunk.sample_stacks = vec![4_000_000; chunk.sample_stacks.len()];
    }
    let mut backwards = pin(1);
    backwards.range = Some(TimeRange {
        start_unix_ns: 5,
        end_unix_ns: 4,
    });
    let mut nobody = hello("a", 1);
    nobody.host_id = "x".repeat(profile::fleet::HOST_ID_BYTES_MAX + 1);
    let nobody = Body::Head(PinHead {
        hello: Some(nobody),
        pin: Some(pin(1)),
        has_capture: false,
    });
    let with = |head: Body, parts: Vec<Vec<Body>>| {
        let mut bodies = vec![head];
        bodies.extend(parts.into_iter().flatten());
        bodies
    };
    let plain = |has_capture| head("a", pin(1), has_capture);
    let cases = [
        ("no head", minutes()),
        ("nothing", Vec::new()),
        ("no profile", with(plain(false), vec![])),
        ("two heads", with(plain(false), vec![vec![plain(false)]])),
        (
            "more after the end",
            with(plain(false), vec![minutes(), minutes()]),
        ),
        (
            "a capture that was not told",
            with(plain(false), vec![minutes(), captured()]),
        ),
        ("no capture though told", with(plain(true), vec![minutes()])),
        (
            "the capture first",
            with(plain(true), vec![captured(), minutes()]),
        ),
        ("ids of nothing", with(plain(false), vec![odd])),
        (
            "a range that ends before it starts",
            with(head("a", backwards, false), vec![minutes()]),
        ),
        ("a host id without end", with(nobody, vec![minutes()])),
    ];
    let number = cases.len() as u64;
    for (what, bodies) in cases {
        let status = keep(&rig, bodies).await.expect_err(what);
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
    }
    assert_eq!(rig.metrics.pins_refused.get(), number);
    assert!(list(&rig, "").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_leaves_in_the_middle_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(Options {
        pins_dir: Some(dir.path().to_owned()),
        ..Options::default()
    })
    .await;
    let (say, queue) = tokio::sync::mpsc::channel(1);
    let mut client = PinUploadServiceClient::new(rig.channel().await);
    let call = tokio::spawn(async move {
        let requests = tokio_stream::wrappers::ReceiverStream::new(queue);
        client.upload(requests).await
    });
    let mut bodies = vec![head("a", pin(1), false)];
    bodies.extend(
        Chunks::with_target(&profile("f"), 1)
            .map(Body::Minutes)
            .take(2),
    );
    for body in bodies {
        say.send(UploadPinRequest { body: Some(body) })
            .await
            .expect("it reads");
    }
    let files = || std::fs::read_dir(dir.path()).expect("a directory").count();
    let until = async |count: usize| {
        let end = std::time::Instant::now() + LIMIT;
        while files() != count {
            assert!(std::time::Instant::now() < end, "{} files", files());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    // The lock, and what was started.
    until(2).await;
    call.abort();
    drop(say);
    until(1).await;
    assert!(list(&rig, "").await.is_empty());
    assert!(!keep(&rig, all("a", 1, None)).await.expect("it comes again"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_may_bring_so_many_a_day_and_others_go_on() {
    let rig = Rig::start().await;
    for number in 0..u64::from(HOST_PINS_PER_DAY_MAX) {
        keep(&rig, all("noisy", number, None)).await.expect("kept");
    }
    let status = keep(&rig, all("noisy", 999, None))
        .await
        .expect_err("the limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    keep(&rig, all("other", 1, None)).await.expect("kept");
    rig.clock.fetch_add(86_400 * SECOND, Ordering::Relaxed);
    keep(&rig, all("noisy", 999, None))
        .await
        .expect("the next day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_can_never_fit_is_refused_and_unknown_ones_are_told() {
    let mut options = Options::default();
    options.pins = Bounds {
        owner_bytes: 64,
        ..options.pins
    };
    let rig = Rig::with(options).await;
    let status = keep(&rig, all("a", 1, None)).await.expect_err("too large");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("pins.host_mib"), "{status}");
    let status = show(&rig, of(1)).await.err().expect("there is none");
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_directory_agents_are_told_to_come_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pins");
    std::fs::write(&path, b"in the way").expect("a file");
    let rig = Rig::with(Options {
        pins_dir: Some(path),
        ..Options::default()
    })
    .await;
    let status = keep(&rig, all("a", 1, None)).await.expect_err("no room");
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_is_a_file_in_every_format_and_lists_are_of_a_time() {
    let rig = Rig::start().await;
    let captured = profile("captured");
    keep(&rig, all("web-1", 7, Some(&captured)))
        .await
        .expect("kept");
    let id = list(&rig, "").await[0].id;
    let folded = get(&rig, &format!("/api/pin.folded?id={id}&group_by=comm")).await;
    assert_eq!(folded.status, 200);
    assert!(folded.text().contains("minutes"), "{}", folded.text());
    let one = format!("/api/pin.folded?id={id}&captured=1&selector=comm%3Db");
    let one = get(&rig, &one).await;
    assert!(
        one.text().contains("captured 20") || one.text().contains("captured 10"),
        "{}",
        one.text()
    );
    let timed = get(&rig, &format!("/api/pin.json?id={id}")).await;
    assert!(timed.text().contains("timestamps"), "{}", timed.text());
    for (path, status) in [
        ("/api/pin.folded?id=99".to_owned(), 404),
        ("/api/pin.folded".to_owned(), 400),
        (format!("/api/pin.exe?id={id}"), 404),
        (format!("/api/pin.folded?id={id}&selector=%7B"), 400),
        (format!("/api/pin.folded?id={id}&x=1"), 400),
    ] {
        assert_eq!(get(&rig, &path).await.status, status, "{path}");
    }
    let fired = NOW - 60 * SECOND;
    for (start, end, count) in [(fired, fired + 1, 1), (fired + 1, NOW, 0), (0, fired, 0)] {
        let request = ListHostPinsRequest {
            range: Some(TimeRange {
                start_unix_ns: start,
                end_unix_ns: end,
            }),
            ..ListHostPinsRequest::default()
        };
        let answer = people(&rig).await.list(request).await;
        assert_eq!(answer.expect("a list").into_inner().pins.len(), count);
    }
}
