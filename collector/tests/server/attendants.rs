//! Simulated agents: they attend by the protocol and do with orders what a test wants.

use crate::rig::{LIMIT, NOW, Rig, SECOND, channel, dictionary, hello};
use profile::{Moment, Profile, SampleKey, StackEnd, StackId, Value};
use proto::Chunks;
use proto::agent::capture_response::Body;
use proto::agent::{CaptureInfo, CaptureProgress, CaptureRequest, CaptureResponse, CaptureState};
use proto::collector::attend_request::Body as Say;
use proto::collector::attend_response::Body as Told;
use proto::collector::control_service_client::ControlServiceClient;
use proto::collector::order::What as Order;
use proto::collector::{AttendRequest, Hello, Pong, Refusal, Report, report};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::{Status, Streaming};

/// What an agent does with an order to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Captures so many samples, with their times, at once.
    Answers(u64),
    /// The same with as many of the past.
    AnswersWithPast(u64),
    /// The same as [`Does::Answers`], by a clock that was set an hour ahead after it attended.
    Stepped(u64),
    /// Says that it runs, and captures until it is cancelled.
    Runs(u64),
    /// Refuses.
    Refuses,
    /// Runs and fails.
    Fails,
    /// Says nothing at all.
    Silent,
    /// Ends its stream.
    Leaves,
    /// Reports of an order that was never given.
    Lies,
    /// Sends chunks that are no profile.
    Scrambles,
    /// Says that it has ended before its profile has.
    Stops,
    /// Sends a profile without end.
    Floods,
    /// Sends chunks of very many very small rows.
    Bloats,
    /// Sends a report without content.
    Mumbles,
    /// Weighs its samples in another unit.
    Cycles(u64),
}

impl Does {
    /// By how much its clock is ahead, once it attends.
    fn clock_ahead_ns(self) -> i64 {
        match self {
            Does::Stepped(_) => 3600 * SECOND,
            _ => 0,
        }
    }
}

/// Orders that came, by what they say.
pub type Orders = Arc<Mutex<Vec<Order>>>;

/// An agent that attends until it is dropped.
pub struct ConnectedAgent {
    /// What it was told.
    pub orders: Orders,
    task: JoinHandle<Status>,
}

impl Drop for ConnectedAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ConnectedAgent {
    /// How its stream ended.
    pub async fn end(mut self) -> Status {
        let end = tokio::time::timeout(LIMIT, &mut self.task).await;
        end.expect("the stream ends").expect("no panic")
    }

    /// True when it was told to drop an order.
    pub fn dropped(&self) -> bool {
        self.drops() > 0
    }

    /// How many orders it was told to drop.
    pub fn drops(&self) -> usize {
        let orders = self.orders.lock().expect("no panic");
        let drops = orders
            .iter()
            .filter(|order| matches!(order, Order::Drop(_)));
        drops.count()
    }

    /// What it was asked to capture, in order.
    pub fn captures(&self) -> Vec<CaptureRequest> {
        let orders = self.orders.lock().expect("no panic");
        let captures = orders.iter().filter_map(|order| match order {
            Order::Capture(request) => Some(request.clone()),
            _ => None,
        });
        captures.collect()
    }
}

impl Rig {
    /// A host that attends, with samples of a moment ago.
    pub async fn host(&self, host: &str, does: Does) -> ConnectedAgent {
        self.sampled(host).await;
        self.attend(hello(host, 1), does).await
    }

    /// Samples of a host from a moment ago.
    pub async fn sampled(&self, host: &str) {
        let mut agent = self.agent(host).await;
        // Its window lies a minute back.
        agent.store(354, &["main;read"]).await;
    }

    /// An agent that says this of itself.
    pub async fn attend(&self, hello: Hello, does: Does) -> ConnectedAgent {
        attend(self.grpc, hello, does).await.expect("a welcome")
    }
}

/// Attends and waits for the Welcome.
pub async fn attend(
    address: SocketAddr,
    hello: Hello,
    does: Does,
) -> Result<ConnectedAgent, Status> {
    let (say, queue) = mpsc::channel(64);
    let mut client = ControlServiceClient::new(channel(address).await)
        .send_compressed(Zstd)
        .accept_compressed(Zstd);
    let say_hello = AttendRequest {
        body: Some(Say::Hello(hello)),
    };
    say.send(say_hello).await.expect("room");
    let call = client.attend(ReceiverStream::new(queue)).await?;
    let mut told = call.into_inner();
    match told.message().await?.and_then(|message| message.body) {
        Some(Told::Welcome(_)) => {}
        other => panic!("no Welcome but {other:?}"),
    }
    let orders = Orders::default();
    let seen = orders.clone();
    let task = tokio::spawn(async move { serve(told, say, does, seen).await });
    Ok(ConnectedAgent { orders, task })
}

async fn serve(
    mut told: Streaming<proto::collector::AttendResponse>,
    say: mpsc::Sender<AttendRequest>,
    does: Does,
    orders: Orders,
) -> Status {
    loop {
        let message = match told.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Status::ok("the stream ended"),
            Err(status) => return status,
        };
        match message.body {
            Some(Told::Ping(ping)) => {
                let pong = Pong {
                    number: ping.number,
                    now_unix_ns: NOW + does.clock_ahead_ns(),
                };
                let body = Some(Say::Pong(pong));
                let _ = say.send(AttendRequest { body }).await;
            }
            Some(Told::Order(order)) => {
                let what = order.what.expect("an order says something");
                orders.lock().expect("no panic").push(what.clone());
                if !obey(&say, order.number, what, does).await {
                    return Status::ok("it left");
                }
            }
            other => panic!("neither order nor ping but {other:?}"),
        }
    }
}

/// Does what it does; false when it leaves.
async fn obey(say: &mpsc::Sender<AttendRequest>, number: u64, what: Order, does: Does) -> bool {
    let request = match what {
        Order::Capture(request) => request,
        Order::Cancel(of) => {
            if let Does::Runs(samples) = does {
                answer(say, of, samples, CaptureState::Cancelled).await;
            }
            return true;
        }
        Order::Drop(_) => return true,
    };
    match does {
        Does::Silent => return true,
        Does::Leaves => return false,
        Does::Refuses => {
            let what = report::What::Refusal(Refusal {
                code: tonic::Code::FailedPrecondition.into(),
                message: "captures are switched off\x1b[2J".to_owned(),
            });
            tell(say, number, what).await;
            return true;
        }
        Does::Lies => {
            respond(
                say,
                number + 1000,
                Body::Progress(CaptureProgress::default()),
            )
            .await;
            return true;
        }
        Does::Mumbles => {
            let body = Some(Say::Report(Report { number, what: None }));
            let _ = say.send(AttendRequest { body }).await;
            return true;
        }
        _ => {}
    }
    let accepted = CaptureInfo {
        id: 7,
        state: CaptureState::Running.into(),
        request: Some(request),
        ..CaptureInfo::default()
    };
    respond(say, number, Body::Accepted(accepted)).await;
    let progress = CaptureProgress {
        samples: 1,
        ..CaptureProgress::default()
    };
    respond(say, number, Body::Progress(progress)).await;
    match does {
        Does::Answers(samples) | Does::Cycles(samples) => {
            let unit = match does {
                Does::Cycles(_) => "cycles",
                _ => "nanoseconds",
            };
            for chunk in Chunks::with_target(profile(samples, unit), 512) {
                respond(say, number, Body::Chunk(chunk)).await;
            }
            result(say, number, CaptureState::Complete, "").await;
        }
        Does::Stepped(samples) => {
            let mut profile = profile(samples, "nanoseconds");
            profile.info.start_unix_ns += does.clock_ahead_ns();
            profile.moments.start_unix_ns += does.clock_ahead_ns();
            for chunk in Chunks::new(profile) {
                respond(say, number, Body::Chunk(chunk)).await;
            }
            result(say, number, CaptureState::Complete, "").await;
        }
        Does::AnswersWithPast(samples) => {
            for chunk in Chunks::new(profile(samples, "nanoseconds")) {
                respond(say, number, Body::Past(chunk)).await;
            }
            answer(say, number, samples, CaptureState::Complete).await;
        }
        Does::Fails => result(say, number, CaptureState::Failed, "the target is gone").await,
        Does::Scrambles => {
            let chunk = proto::wire::ProfileChunk {
                info: Some(proto::wire::Info::default()),
                stack_parents: vec![4_000_000_000],
                stack_frames: vec![1],
                last: true,
                ..proto::wire::ProfileChunk::default()
            };
            respond(say, number, Body::Chunk(chunk)).await;
        }
        Does::Stops => {
            let chunk = Chunks::with_target(profile(9, "nanoseconds"), 1).next();
            respond(say, number, Body::Chunk(chunk.expect("a chunk"))).await;
            result(say, number, CaptureState::Complete, "").await;
        }
        Does::Bloats => {
            let mut info = Some(proto::wire::Info::default());
            for _ in 0..3 {
                let mut strings = Vec::new();
                if info.is_some() {
                    strings.push(String::new());
                }
                // Two bytes each, and 28 in memory.
                let chunk = proto::wire::ProfileChunk {
                    info: info.take(),
                    strings,
                    frames: vec![proto::wire::Frame::default(); 500_000],
                    ..proto::wire::ProfileChunk::default()
                };
                respond(say, number, Body::Chunk(chunk)).await;
            }
        }
        Does::Floods => {
            let mut info = Some(proto::wire::Info::default());
            for _ in 0..200 {
                let mut strings = vec!["x".repeat(60_000); 4];
                if info.is_some() {
                    strings.insert(0, String::new());
                }
                let chunk = proto::wire::ProfileChunk {
                    info: info.take(),
                    strings,
                    ..proto::wire::ProfileChunk::default()
                };
                respond(say, number, Body::Chunk(chunk)).await;
            }
        }
        _ => {}
    }
    true
}

async fn answer(say: &mpsc::Sender<AttendRequest>, number: u64, samples: u64, state: CaptureState) {
    for chunk in Chunks::new(profile(samples, "nanoseconds")) {
        respond(say, number, Body::Chunk(chunk)).await;
    }
    result(say, number, state, "").await;
}

async fn result(say: &mpsc::Sender<AttendRequest>, number: u64, state: CaptureState, error: &str) {
    let info = CaptureInfo {
        id: 7,
        state: state.into(),
        error: error.to_owned(),
        notices: vec!["the kernel throttled it".to_owned()],
        ..CaptureInfo::default()
    };
    respond(say, number, Body::Result(info)).await;
}

async fn respond(say: &mpsc::Sender<AttendRequest>, number: u64, body: Body) {
    let response = CaptureResponse { body: Some(body) };
    tell(say, number, report::What::Response(response)).await;
}

async fn tell(say: &mpsc::Sender<AttendRequest>, number: u64, what: report::What) {
    let what = Some(what);
    let body = Some(Say::Report(Report { number, what }));
    let _ = say.send(AttendRequest { body }).await;
}

/// So many samples of the last second, each with its time.
pub fn profile(samples: u64, unit: &str) -> Profile {
    let mut profile = Profile {
        dict: dictionary(&["main;read", "main;write"]),
        ..Profile::default()
    };
    let labels = profile.dict.intern_labels([("comm", "api")]);
    for sample in 0..samples {
        let key = SampleKey {
            labels,
            stack: StackId(2 + (sample % 2) as u32),
            end: StackEnd::Complete,
        };
        let weight = 10;
        profile.add(key, Value { count: 1, weight });
        profile.moments.list.push(Moment {
            at_ns: sample,
            key,
            weight,
        });
    }
    let second = Duration::from_secs(1).as_nanos() as u64;
    profile.info.unit = unit.to_owned();
    profile.info.event = "cpu-clock".to_owned();
    (profile.info.start_unix_ns, profile.info.duration_ns) = (NOW - SECOND, second);
    profile.moments.start_unix_ns = NOW - SECOND;
    profile.moments.duration_ns = second;
    profile
}
