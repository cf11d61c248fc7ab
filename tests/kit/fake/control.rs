//! An agent with a control stream to a collector: it does with commands what a test wants.

use super::push::{LIMIT, channel};
use super::window::{SECOND, dictionary};
use profile::{Profile, SampleKey, StackEnd, StackId, Timestamp, Value};
use proto::Chunks;
use proto::agent::capture_response::Body;
use proto::agent::{CaptureInfo, CaptureProgress, CaptureRequest, CaptureResponse, CaptureState};
use proto::collector::command::What as Command;
use proto::collector::control_request::Body as AgentMessage;
use proto::collector::control_response::Body as CollectorMessage;
use proto::collector::control_service_client::ControlServiceClient;
use proto::collector::report::What;
use proto::collector::{ControlRequest, ControlResponse, Hello, Pong, Refusal, Report};
use proto::wire::{Frame, Info, ProfileChunk};
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::{Status, Streaming};

/// What an agent does with a command to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Captures so many samples, with their times, at once.
    Answers(u64),
    /// The same with as many of the past.
    AnswersWithPast(u64),
    /// The same as [`Does::Answers`], by a clock that was set an hour ahead after it connected.
    Stepped(u64),
    /// Says that it runs, and captures until it is cancelled.
    Runs(u64),
    /// Refuses.
    Refuses,
    /// Runs and fails.
    Fails,
    /// Says that it runs, and nothing after that.
    Hangs,
    /// Says nothing at all.
    Silent,
    /// Ends its stream.
    Leaves,
    /// Reports of a command that was never sent.
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
    /// By how much its clock is ahead, once it is connected.
    fn clock_ahead_ns(self) -> i64 {
        match self {
            Does::Stepped(_) => 3600 * SECOND,
            _ => 0,
        }
    }
}

/// Commands that came, by what they say.
pub type Commands = Arc<Mutex<Vec<Command>>>;

/// An agent that is connected until it is dropped.
pub struct ConnectedAgent {
    /// What it was told.
    pub commands: Commands,
    task: JoinHandle<Status>,
}

impl Drop for ConnectedAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ConnectedAgent {
    /// How its stream ended.
    ///
    /// # Panics
    /// When it does not within [`LIMIT`].
    pub async fn end(mut self) -> Status {
        let end = tokio::time::timeout(LIMIT, &mut self.task).await;
        end.expect("the stream ends").expect("no panic")
    }

    /// True when it was told to drop a command.
    ///
    /// # Panics
    /// As [`Self::drops`].
    pub fn dropped(&self) -> bool {
        self.drops() > 0
    }

    /// How many commands it was told to drop.
    ///
    /// # Panics
    /// After its stream panicked.
    pub fn drops(&self) -> usize {
        let commands = self.commands.lock().expect("no panic");
        let drops = commands
            .iter()
            .filter(|command| matches!(command, Command::Drop(_)));
        drops.count()
    }

    /// What it was asked to capture, in order.
    ///
    /// # Panics
    /// After its stream panicked.
    pub fn captures(&self) -> Vec<CaptureRequest> {
        let commands = self.commands.lock().expect("no panic");
        let captures = commands.iter().filter_map(|command| match command {
            Command::Capture(request) => Some(request.clone()),
            _ => None,
        });
        captures.collect()
    }
}

/// The clock of an agent. Unit: nanoseconds since the Unix epoch.
pub type Clock = fn() -> i64;

/// Connects as the host of `hello`, and waits for the Welcome.
///
/// # Errors
/// When the collector refuses it.
///
/// # Panics
/// When another answer comes.
pub async fn connect(
    address: impl Display,
    hello: Hello,
    does: Does,
    clock: Clock,
) -> Result<ConnectedAgent, Status> {
    let (requests, queue) = mpsc::channel(64);
    let mut client = ControlServiceClient::new(channel(address).await)
        .send_compressed(Zstd)
        .accept_compressed(Zstd);
    let body = Some(AgentMessage::Hello(hello));
    requests.send(ControlRequest { body }).await.expect("room");
    let call = client.control(ReceiverStream::new(queue)).await?;
    let mut messages = call.into_inner();
    match messages.message().await?.and_then(|message| message.body) {
        Some(CollectorMessage::Welcome(_)) => {}
        other => panic!("no Welcome but {other:?}"),
    }
    let commands = Commands::default();
    let agent = AgentStream {
        requests,
        does,
        clock,
        commands: commands.clone(),
    };
    let task = tokio::spawn(async move { agent.serve(messages).await });
    Ok(ConnectedAgent { commands, task })
}

/// The agent's end of the stream.
struct AgentStream {
    requests: mpsc::Sender<ControlRequest>,
    does: Does,
    clock: Clock,
    commands: Commands,
}

impl AgentStream {
    async fn serve(&self, mut messages: Streaming<ControlResponse>) -> Status {
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Status::ok("the stream ended"),
                Err(status) => return status,
            };
            match message.body {
                Some(CollectorMessage::Ping(ping)) => {
                    let pong = Pong {
                        number: ping.number,
                        now_unix_ns: (self.clock)() + self.does.clock_ahead_ns(),
                    };
                    self.send(AgentMessage::Pong(pong)).await;
                }
                Some(CollectorMessage::Command(command)) => {
                    let what = command.what.expect("a command says something");
                    self.commands.lock().expect("no panic").push(what.clone());
                    if !self.obey(command.number, what).await {
                        return Status::ok("it left");
                    }
                }
                other => panic!("neither command nor ping but {other:?}"),
            }
        }
    }

    /// Does what it does; false when it leaves.
    async fn obey(&self, number: u64, what: Command) -> bool {
        let request = match what {
            Command::Capture(request) => request,
            Command::Cancel(of) => {
                if let Does::Runs(samples) = self.does {
                    self.answer(of, samples, CaptureState::Cancelled).await;
                }
                return true;
            }
            Command::Drop(_) => return true,
        };
        match self.does {
            Does::Silent => return true,
            Does::Leaves => return false,
            Does::Refuses => {
                let refusal = Refusal {
                    code: tonic::Code::FailedPrecondition.into(),
                    message: "captures are switched off\x1b[2J".to_owned(),
                };
                self.report(number, Some(What::Refusal(refusal))).await;
                return true;
            }
            Does::Lies => {
                let progress = Body::Progress(CaptureProgress::default());
                self.respond(number + 1000, progress).await;
                return true;
            }
            Does::Mumbles => {
                self.report(number, None).await;
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
        self.respond(number, Body::Accepted(accepted)).await;
        let progress = CaptureProgress {
            samples: 1,
            ..CaptureProgress::default()
        };
        self.respond(number, Body::Progress(progress)).await;
        self.capture(number).await;
        true
    }

    /// What comes of a capture that runs.
    async fn capture(&self, number: u64) {
        let complete = CaptureState::Complete;
        match self.does {
            Does::Answers(samples) | Does::Cycles(samples) => {
                let unit = match self.does {
                    Does::Cycles(_) => "cycles",
                    _ => "nanoseconds",
                };
                let chunks = Chunks::with_target(self.profile(samples, unit), 512);
                self.chunks(number, chunks).await;
                self.result(number, complete, "").await;
            }
            Does::Stepped(samples) => {
                let mut profile = self.profile(samples, "nanoseconds");
                profile.info.start_unix_ns += self.does.clock_ahead_ns();
                profile.timestamps.start_unix_ns += self.does.clock_ahead_ns();
                self.chunks(number, Chunks::new(profile)).await;
                self.result(number, complete, "").await;
            }
            Does::AnswersWithPast(samples) => {
                for chunk in Chunks::new(self.profile(samples, "nanoseconds")) {
                    self.respond(number, Body::Past(chunk)).await;
                }
                self.answer(number, samples, complete).await;
            }
            Does::Fails => {
                let failed = CaptureState::Failed;
                self.result(number, failed, "the target is gone").await;
            }
            Does::Scrambles => self.chunks(number, [scrambled()]).await,
            Does::Stops => {
                let chunks = Chunks::with_target(self.profile(9, "nanoseconds"), 1);
                self.chunks(number, chunks.take(1)).await;
                self.result(number, complete, "").await;
            }
            Does::Bloats => self.chunks(number, (0..3).map(bloated)).await,
            Does::Floods => self.chunks(number, (0..200).map(flooding)).await,
            _ => {}
        }
    }

    async fn answer(&self, number: u64, samples: u64, state: CaptureState) {
        let chunks = Chunks::new(self.profile(samples, "nanoseconds"));
        self.chunks(number, chunks).await;
        self.result(number, state, "").await;
    }

    async fn chunks(&self, number: u64, chunks: impl IntoIterator<Item = ProfileChunk>) {
        for chunk in chunks {
            self.respond(number, Body::Chunk(chunk)).await;
        }
    }

    async fn result(&self, number: u64, state: CaptureState, error: &str) {
        let info = CaptureInfo {
            id: 7,
            state: state.into(),
            error: error.to_owned(),
            notices: vec!["the kernel throttled it".to_owned()],
            ..CaptureInfo::default()
        };
        self.respond(number, Body::Result(info)).await;
    }

    async fn respond(&self, number: u64, body: Body) {
        let body = Some(body);
        let response = What::Response(CaptureResponse { body });
        self.report(number, Some(response)).await;
    }

    async fn report(&self, number: u64, what: Option<What>) {
        self.send(AgentMessage::Report(Report { number, what }))
            .await;
    }

    async fn send(&self, body: AgentMessage) {
        let body = Some(body);
        let _ = self.requests.send(ControlRequest { body }).await;
    }

    /// Of the event that was asked for last.
    fn profile(&self, samples: u64, unit: &str) -> Profile {
        let mut profile = profile(samples, unit, (self.clock)());
        let commands = self.commands.lock().expect("no panic");
        let asked = commands.iter().rev().find_map(|command| match command {
            Command::Capture(request) => Some(request.event.clone()),
            _ => None,
        });
        if let Some(event) = asked.filter(|event| !event.is_empty()) {
            profile.info.event = event;
        }
        profile
    }
}

/// A chunk whose stacks have callers that nobody defined.
fn scrambled() -> ProfileChunk {
    ProfileChunk {
        info: Some(Info::default()),
        stack_parents: vec![4_000_000_000],
        stack_frames: vec![1],
        last: true,
        ..ProfileChunk::default()
    }
}

/// Chunk `number` of a profile of very many rows: two bytes each on the wire, and 28 in memory.
fn bloated(number: usize) -> ProfileChunk {
    ProfileChunk {
        frames: vec![Frame::default(); 500_000],
        ..strings(number, Vec::new())
    }
}

/// Chunk `number` of a profile that does not end.
fn flooding(number: usize) -> ProfileChunk {
    strings(number, vec!["x".repeat(60_000); 4])
}

/// Chunk `number` of a profile, with these strings; the first has the facts and the empty string.
fn strings(number: usize, mut strings: Vec<String>) -> ProfileChunk {
    let is_first = number == 0;
    if is_first {
        strings.insert(0, String::new());
    }
    ProfileChunk {
        info: is_first.then(Info::default),
        strings,
        ..ProfileChunk::default()
    }
}

/// So many samples of the second before `end_unix_ns`, each with its time: of two stacks in turn.
pub fn profile(samples: u64, unit: &str, end_unix_ns: i64) -> Profile {
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
        profile.timestamps.list.push(Timestamp {
            at_ns: sample,
            key,
            weight,
        });
    }
    profile.info.unit = unit.to_owned();
    profile.info.event = "cpu-clock".to_owned();
    profile.info.start_unix_ns = end_unix_ns - SECOND;
    profile.info.duration_ns = SECOND.unsigned_abs();
    profile.timestamps.start_unix_ns = profile.info.start_unix_ns;
    profile.timestamps.duration_ns = profile.info.duration_ns;
    profile
}
