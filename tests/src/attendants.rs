//! Simulated agents of a fleet: each pushes a window, so that its host is known by its samples, and attends; what it
//! does with an order to capture is up to the test. They speak the protocol over connections of their own.

use crate::clock::unix_ns;
use profile::{ContentId, FrameRef, Moment, Profile, SampleKey, StackEnd, Value};
use proto::Chunks;
use proto::agent::capture_response::Body;
use proto::agent::{CaptureInfo, CaptureProgress, CaptureResponse, CaptureState};
use proto::collector::attend_request::Body as Say;
use proto::collector::attend_response::Body as Told;
use proto::collector::control_service_client::ControlServiceClient;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::order::What as Order;
use proto::collector::{
    AttendRequest, Definitions, Hello, HostFacts, Labels, Pong, PushRequest, Refusal, Report,
    WindowFacts, WindowPart, push_request, push_response, report,
};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

/// What an agent does with an order to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Captures so many samples, with their times.
    Answers(u64),
    /// Refuses.
    Refuses,
    /// Says that it runs, and nothing after that.
    Hangs,
}

/// Length of the window that each pushes. Unit: nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// Longest wait for all of them to attend.
const ATTEND: Duration = Duration::from_secs(120);

/// Agents that attend until they are dropped.
pub struct Attendants {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Attendants {
    /// Has each host push a window of unit `api.service` and attend at `collector`; returns when all do.
    ///
    /// # Panics
    /// When the collector does not take one.
    pub fn start(collector: &str, hosts: Vec<(String, Does)>) -> Attendants {
        let collector = collector.to_owned();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let mut tasks = JoinSet::new();
                for (host, does) in hosts {
                    push(&collector, &host).await;
                    let (attends, welcomed) = oneshot::channel();
                    let collector = collector.clone();
                    tasks.spawn(async move { serve(&collector, &host, does, attends).await });
                    welcomed.await.expect("it is welcome");
                }
                let _ = ready.send(());
                let _ = stopped.await;
            });
        });
        is_ready.recv_timeout(ATTEND).expect("all attend");
        Attendants {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Attendants {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn channel(collector: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{collector}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

fn hello(host: &str) -> Hello {
    Hello {
        host_id: format!("id-{host}"),
        boot_id: vec![1; 16],
        facts: Some(HostFacts {
            hostname: host.to_owned(),
            ..HostFacts::default()
        }),
        now_unix_ns: unix_ns(),
    }
}

/// A second of a program that spins in `main` calling `spin`.
fn profile(samples: u64) -> Profile {
    let mut profile = Profile::default();
    let frames = ["main", "spin"].map(|function| {
        profile.dict.intern_frame(FrameRef {
            function,
            module: "app",
            ..FrameRef::default()
        })
    });
    let key = SampleKey {
        labels: profile.dict.intern_labels([("comm", "api")]),
        stack: profile.dict.stacks.intern(frames),
        end: StackEnd::Complete,
    };
    let start = unix_ns() - 1_000_000_000;
    for sample in 0..samples {
        let weight = 1_000_000;
        profile.add(key, Value { count: 1, weight });
        let at_ns = sample * 1_000_000;
        profile.moments.list.push(Moment { at_ns, key, weight });
    }
    profile.info.unit = "nanoseconds".to_owned();
    profile.info.event = "cpu-clock".to_owned();
    (profile.info.start_unix_ns, profile.info.duration_ns) = (start, 1_000_000_000);
    profile.moments.start_unix_ns = start;
    profile.moments.duration_ns = 1_000_000_000;
    profile
}

/// Pushes one window of the last ten seconds and waits for the acknowledgement.
async fn push(collector: &str, host: &str) {
    let (requests, queue) = mpsc::channel(8);
    let send = async |body| {
        let _ = requests.send(PushRequest { body: Some(body) }).await;
    };
    send(push_request::Body::Hello(hello(host))).await;
    let mut client = IngestServiceClient::new(channel(collector).await);
    let call = client.push(ReceiverStream::new(queue)).await;
    let mut answers = call.expect("a stream").into_inner();
    let sampled = profile(10);
    let ids = sampled.dict.content_ids();
    let stack: &ContentId = ids.last().expect("a stack");
    let part = WindowPart {
        sequence: 1,
        last: true,
        new_dictionary: true,
        label_sets: vec![Labels {
            names_values: ["unit", "api.service"].map(str::to_owned).to_vec(),
        }],
        stack_hashes: stack.0.to_vec(),
        sample_label_sets: vec![1],
        sample_stacks: vec![1],
        sample_counts: vec![10],
        facts: Some(WindowFacts {
            start_unix_ns: unix_ns() - WINDOW_NS as i64,
            duration_ns: WINDOW_NS,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: 1_000_000,
            ..WindowFacts::default()
        }),
        ..WindowPart::default()
    };
    loop {
        let answer = answers.message().await.expect("an answer");
        match answer.and_then(|answer| answer.body) {
            Some(push_response::Body::Welcome(_)) => {
                send(push_request::Body::Part(part.clone())).await;
            }
            Some(push_response::Body::Need(need)) => {
                let tables = Profile {
                    dict: sampled.dict.clone(),
                    ..Profile::default()
                };
                let mut chunk = Chunks::new(tables).next().expect("a chunk");
                chunk.info = None;
                chunk.label_sets.clear();
                send(push_request::Body::Definitions(Definitions {
                    tables: Some(chunk),
                    sequence: need.sequence,
                    ..Definitions::default()
                }))
                .await;
            }
            Some(push_response::Body::Ack(ack)) => {
                assert_eq!(ack.outcome, 1, "{}", ack.reason);
                return;
            }
            None => panic!("the collector ended the stream"),
        }
    }
}

/// Attends until the stream ends.
async fn serve(collector: &str, host: &str, does: Does, ready: oneshot::Sender<()>) {
    let (say, queue) = mpsc::channel(64);
    let request = |body| AttendRequest { body: Some(body) };
    let _ = say.send(request(Say::Hello(hello(host)))).await;
    let mut client = ControlServiceClient::new(channel(collector).await);
    let call = client.attend(ReceiverStream::new(queue)).await;
    let mut told = call.expect("a stream").into_inner();
    let mut ready = Some(ready);
    while let Ok(Some(message)) = told.message().await {
        match message.body {
            Some(Told::Welcome(_)) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(());
                }
            }
            Some(Told::Ping(ping)) => {
                let pong = Pong {
                    number: ping.number,
                    now_unix_ns: unix_ns(),
                };
                let _ = say.send(request(Say::Pong(pong))).await;
            }
            Some(Told::Order(order)) => {
                if let Some(Order::Capture(_)) = order.what {
                    for what in answers(does) {
                        let number = order.number;
                        let what = Some(what);
                        let _ = say
                            .send(request(Say::Report(Report { number, what })))
                            .await;
                    }
                }
            }
            None => {}
        }
    }
}

/// What an agent reports of an order to capture.
fn answers(does: Does) -> Vec<report::What> {
    let response = |body| report::What::Response(CaptureResponse { body: Some(body) });
    let info = |state: CaptureState| CaptureInfo {
        id: 1,
        state: state.into(),
        ..CaptureInfo::default()
    };
    let samples = match does {
        Does::Refuses => {
            return vec![report::What::Refusal(Refusal {
                code: tonic::Code::PermissionDenied.into(),
                message: "captures are switched off here".to_owned(),
            })];
        }
        Does::Hangs => 0,
        Does::Answers(samples) => samples,
    };
    let progress = CaptureProgress {
        samples,
        ..CaptureProgress::default()
    };
    let mut all = vec![
        response(Body::Accepted(info(CaptureState::Running))),
        response(Body::Progress(progress)),
    ];
    if let Does::Answers(samples) = does {
        all.extend(Chunks::new(profile(samples)).map(|chunk| response(Body::Chunk(chunk))));
        all.push(response(Body::Result(info(CaptureState::Complete))));
    }
    all
}
