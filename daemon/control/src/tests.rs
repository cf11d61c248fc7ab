//! Tests the control stream: what a collector may request, what it gets, and what a bad collector
//! costs.

use super::Control;
use super::commands::{CommandError, Commands};
use super::policy::Policy;
use capture::Capturing;
use export::{Exporter, HostInfo, Identity, Options, Settings, Target};
use host::time::{MonotonicTime, WallAnchor};
use proto::agent::capture_response::Body;
use proto::agent::{CaptureInfo, CaptureProgress, CaptureRequest, CaptureResponse, CaptureState};
use proto::collector::control_request::Body as AgentMessage;
use proto::collector::control_response::Body as CollectorMessage;
use proto::collector::control_service_server::{ControlService, ControlServiceServer};
use proto::collector::{
    Command, ControlRequest, ControlResponse, ControlWelcome, Ping, Refusal, command, report,
};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::wait::until;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

mod crowded;

/// Longest that anything here may take. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(30);

/// Makes captures that do what the test does with their senders.
#[derive(Default)]
struct Fake {
    started: Mutex<Vec<StartedCapture>>,
    cancelled: Mutex<Vec<u64>>,
    refuse: Option<Code>,
}

struct StartedCapture {
    peer: String,
    messages: mpsc::Sender<CaptureResponse>,
}

impl Capturing for Fake {
    fn start(
        &self,
        _request: CaptureRequest,
        asker: capture::Asker,
    ) -> Result<mpsc::Receiver<CaptureResponse>, Status> {
        if let Some(code) = self.refuse {
            return Err(Status::new(code, "as the test wants"));
        }
        let (messages, receiver) = mpsc::channel(1);
        self.started.lock().unwrap().push(StartedCapture {
            peer: asker.peer,
            messages,
        });
        Ok(receiver)
    }

    fn cancel(&self, id: u64) -> bool {
        self.cancelled.lock().unwrap().push(id);
        true
    }

    fn list(&self) -> Vec<CaptureInfo> {
        Vec::new()
    }
}

impl Fake {
    /// Waits for so many: they start on threads that may block.
    async fn started(&self, count: usize) {
        until("started", || self.started.lock().unwrap().len() == count).await;
    }

    fn sender(&self, at: usize) -> mpsc::Sender<CaptureResponse> {
        self.started.lock().unwrap()[at].messages.clone()
    }
}

fn control(address: SocketAddr, fake: &Arc<Fake>) -> Arc<Control> {
    let options = Options {
        collector: Target::Configured(address),
        outside: None,
        dir: "/nonexistent".into(),
        settings: Settings {
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            ..Settings::default()
        },
        identity: Identity {
            host_id: "id-1".to_owned(),
            boot_id: [7; 16],
        },
        host: HostInfo {
            hostname: "web-1".to_owned(),
            ..HostInfo::default()
        },
    };
    let (exporter, _, _) = Exporter::new(options, Arc::new(WallAnchor::new()));
    let capturing: Arc<dyn Capturing> = fake.clone();
    let policy = Policy::of(&agent_config::Captures::default());
    Arc::new(Control::new(Arc::new(exporter), capturing, policy))
}

/// A deadline that only a failing test meets.
fn soon() -> MonotonicTime {
    MonotonicTime::now().plus(LIMIT)
}

fn nowhere(fake: &Arc<Fake>) -> Arc<Control> {
    control(([127, 0, 0, 1], 7600).into(), fake)
}

fn capture(number: u64, who: &str) -> Command {
    let request = CaptureRequest {
        who: who.to_owned(),
        ..CaptureRequest::default()
    };
    let what = Some(command::What::Capture(request));
    Command { number, what }
}

fn accepted(id: u64) -> CaptureResponse {
    let info = CaptureInfo {
        id,
        ..CaptureInfo::default()
    };
    CaptureResponse {
        body: Some(Body::Accepted(info)),
    }
}

fn progress() -> CaptureResponse {
    CaptureResponse {
        body: Some(Body::Progress(CaptureProgress::default())),
    }
}

fn result() -> CaptureResponse {
    let info = CaptureInfo {
        state: CaptureState::Complete.into(),
        ..CaptureInfo::default()
    };
    CaptureResponse {
        body: Some(Body::Result(info)),
    }
}

/// The next report, while the commands' tasks run.
async fn reported(
    commands: &mut Commands<'_>,
    out: &mut mpsc::Receiver<ControlRequest>,
) -> (u64, report::What) {
    let next = async {
        loop {
            tokio::select! {
                biased;
                message = out.recv() => return message.expect("a report"),
                () = commands.one_ended() => {}
            }
        }
    };
    let message = tokio::time::timeout(LIMIT, next).await.expect("in time");
    match message.body {
        Some(AgentMessage::Report(report)) => {
            (report.number, report.what.expect("it says something"))
        }
        other => panic!("no report but {other:?}"),
    }
}

fn refusal(what: report::What) -> Refusal {
    match what {
        report::What::Refusal(refusal) => refusal,
        other => panic!("no refusal but {other:?}"),
    }
}

/// Runs on a thread, as the supervisor has it do.
fn run(control: &Arc<Control>) -> JoinHandle<std::io::Result<()>> {
    let control = Arc::clone(control);
    std::thread::spawn(move || export::uplink::run(vec![Box::pin(control.run())]))
}

async fn ended(thread: JoinHandle<std::io::Result<()>>) {
    until("ended", || thread.is_finished()).await;
    thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn a_capture_is_started_in_the_name_of_who_asks_and_reported_in_order() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(8);
    let mut commands = Commands::new(&control, out);
    commands
        .take(capture(3, "ada\x1b[2J\n at 10.0.0.1"))
        .unwrap();
    fake.started(1).await;
    assert_eq!(
        fake.started.lock().unwrap()[0].peer,
        "collector 127.0.0.1:7600 for ada[2J at 10.0.0.1"
    );
    let messages = fake.sender(0);
    for message in [accepted(9), progress(), result()] {
        messages.send(message.clone()).await.unwrap();
        let (number, what) = reported(&mut commands, &mut reports).await;
        assert_eq!((number, what), (3, report::What::Response(message)));
    }
    commands.one_ended().await;
    drop(commands);
    assert_eq!(control.counts().captures.get(), 1);
    assert_eq!(control.counts().given_up.get(), 0);
}

#[tokio::test]
async fn what_the_operator_or_the_host_refuses_is_told() {
    let fake = Arc::new(Fake {
        refuse: Some(Code::FailedPrecondition),
        ..Fake::default()
    });
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(8);
    let mut commands = Commands::new(&control, out);
    commands.take(capture(1, "")).unwrap();
    let (number, what) = reported(&mut commands, &mut reports).await;
    let refused = refusal(what);
    assert_eq!((number, refused.code), (1, Code::FailedPrecondition as i32));
    control.allow(Policy::of(&agent_config::Captures {
        remote: agent_config::RemoteCaptures::Off,
        ..agent_config::Captures::default()
    }));
    commands.take(capture(2, "")).unwrap();
    let (_, what) = reported(&mut commands, &mut reports).await;
    assert!(refusal(what).message.contains("`captures.remote`"));
    // A later version may send a command that this one does not know.
    let unknown = Command {
        number: 3,
        what: None,
    };
    commands.take(unknown).unwrap();
    let (_, what) = reported(&mut commands, &mut reports).await;
    assert_eq!(refusal(what).code, Code::Unimplemented as i32);
    assert_eq!(control.counts().refused.get(), 3);
}

#[tokio::test]
async fn a_cancel_waits_for_the_id_and_a_drop_gives_up() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(8);
    let mut commands = Commands::new(&control, out);
    commands.take(capture(1, "")).unwrap();
    let cancel = |number, of| Command {
        number,
        what: Some(command::What::Cancel(of)),
    };
    commands.take(cancel(2, 1)).unwrap();
    // Cancelling a command that never was, or that has ended, does nothing.
    commands.take(cancel(3, 77)).unwrap();
    assert!(fake.cancelled.lock().unwrap().is_empty());
    fake.started(1).await;
    fake.sender(0).send(accepted(9)).await.unwrap();
    reported(&mut commands, &mut reports).await;
    until("cancelled", || *fake.cancelled.lock().unwrap() == [9]).await;
    let drop_it = Command {
        number: 4,
        what: Some(command::What::Drop(1)),
    };
    commands.take(drop_it).unwrap();
    fake.sender(0).closed().await;
    assert_eq!(control.counts().given_up.get(), 1);
    drop(commands);
    assert_eq!(control.counts().given_up.get(), 1);
}

#[tokio::test]
async fn a_stream_that_ends_gives_up_all_it_asked_for() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, _reports) = mpsc::channel(8);
    let mut commands = Commands::new(&control, out);
    for number in 1..=3 {
        commands.take(capture(number, "")).unwrap();
    }
    fake.started(3).await;
    drop(commands);
    for at in 0..3 {
        let closed = tokio::time::timeout(LIMIT, async { fake.sender(at).closed().await });
        closed.await.expect("given up");
    }
    assert_eq!(control.counts().given_up.get(), 3);
}

#[tokio::test]
async fn a_collector_that_does_not_read_gets_the_profile_later_and_no_progress() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(1);
    let mut commands = Commands::new(&control, out);
    commands.take(capture(1, "")).unwrap();
    fake.started(1).await;
    let messages = fake.sender(0);
    messages.send(accepted(9)).await.unwrap();
    for _ in 0..10 {
        // The one who makes the capture is not held up by progress that nobody reads.
        messages.send(progress()).await.unwrap();
    }
    messages.send(result()).await.unwrap();
    until("skipped", || control.counts().skipped.get() >= 9).await;
    let mut last = None;
    while !matches!(
        &last,
        Some(report::What::Response(CaptureResponse {
            body: Some(Body::Result(_))
        }))
    ) {
        last = Some(reported(&mut commands, &mut reports).await.1);
    }
}

#[tokio::test]
async fn a_capture_without_a_result_is_told_as_failed() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(8);
    let mut commands = Commands::new(&control, out);
    commands.take(capture(1, "")).unwrap();
    fake.started(1).await;
    fake.started.lock().unwrap().clear();
    let (_, what) = reported(&mut commands, &mut reports).await;
    assert_eq!(refusal(what).code, Code::Internal as i32);
}

#[tokio::test]
async fn commands_are_bounded_and_their_numbers_grow() {
    let fake = Arc::new(Fake::default());
    let control = nowhere(&fake);
    let (out, mut reports) = mpsc::channel(1);
    let mut commands = Commands::new(&control, out);
    for number in 1..=8 {
        commands.take(capture(number, "")).unwrap();
    }
    commands.take(capture(9, "")).unwrap();
    let (number, what) = reported(&mut commands, &mut reports).await;
    assert_eq!(
        (number, refusal(what).code),
        (9, Code::ResourceExhausted as i32)
    );
    for number in [9, 0] {
        let refused = commands.take(capture(number, ""));
        assert!(matches!(refused, Err(CommandError::Number { .. })));
    }
    let flood = (10..200).try_for_each(|number| commands.take(capture(number, "")));
    assert!(matches!(flood, Err(CommandError::Unread)));
}

/// A collector that hands each stream to the test.
struct Collector(mpsc::Sender<AgentStream>);

struct AgentStream {
    requests: Streaming<ControlRequest>,
    tell: mpsc::Sender<Result<ControlResponse, Status>>,
}

impl AgentStream {
    async fn said(&mut self) -> Option<AgentMessage> {
        let message = tokio::time::timeout(LIMIT, self.requests.message()).await;
        message.expect("in time").ok()??.body
    }

    async fn tell(&self, body: CollectorMessage) {
        let message = ControlResponse { body: Some(body) };
        self.tell.send(Ok(message)).await.expect("it reads");
    }

    async fn welcome(&mut self) -> proto::collector::Hello {
        let Some(AgentMessage::Hello(hello)) = self.said().await else {
            panic!("the agent says who it is first");
        };
        self.tell(CollectorMessage::Welcome(ControlWelcome::default()))
            .await;
        hello
    }
}

#[tonic::async_trait]
impl ControlService for Collector {
    type ControlStream = ReceiverStream<Result<ControlResponse, Status>>;

    async fn control(
        &self,
        request: Request<Streaming<ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let (tell, told) = mpsc::channel(8);
        let requests = request.into_inner();
        let _ = self.0.send(AgentStream { requests, tell }).await;
        Ok(Response::new(ReceiverStream::new(told)))
    }
}

async fn collector() -> (SocketAddr, mpsc::Receiver<AgentStream>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, streams) = mpsc::channel(4);
    let service = ControlServiceServer::new(Collector(sender))
        .accept_compressed(tonic::codec::CompressionEncoding::Zstd)
        .send_compressed(tonic::codec::CompressionEncoding::Zstd);
    let serving = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(serving);
    (address, streams)
}

async fn next(streams: &mut mpsc::Receiver<AgentStream>) -> AgentStream {
    let next = tokio::time::timeout(LIMIT, streams.recv()).await;
    next.expect("it connects in time").expect("a stream")
}

#[tokio::test]
async fn it_connects_answers_pings_and_comes_again_after_a_restart() {
    let (address, mut streams) = collector().await;
    let fake = Arc::new(Fake::default());
    let control = control(address, &fake);
    let thread = run(&control);
    let mut stream = next(&mut streams).await;
    let hello = stream.welcome().await;
    assert_eq!(hello.host_id, "id-1");
    let facts = hello.facts.expect("facts");
    assert_eq!((&*facts.hostname, &*facts.labels["zone"]), ("web-1", "a"));
    stream
        .tell(CollectorMessage::Ping(Ping { number: 5 }))
        .await;
    match stream.said().await {
        Some(AgentMessage::Pong(pong)) => {
            assert_eq!(pong.number, 5);
            assert!(pong.now_unix_ns >= hello.now_unix_ns, "{pong:?}");
        }
        other => panic!("no pong but {other:?}"),
    }
    control.exporter.configure(Settings::default());
    stream.tell(CollectorMessage::Ping(Ping::default())).await;
    assert!(matches!(stream.said().await, Some(AgentMessage::Pong(_))));
    match stream.said().await {
        Some(AgentMessage::Facts(facts)) => assert!(facts.labels.is_empty()),
        other => panic!("no facts but {other:?}"),
    }
    stream
        .tell(CollectorMessage::Command(capture(1, "ada")))
        .await;
    fake.started(1).await;
    // The collector restarts: what it asked for ends, and the agent comes again.
    drop(stream);
    let closed = tokio::time::timeout(LIMIT, async { fake.sender(0).closed().await });
    closed.await.expect("given up");
    let mut stream = next(&mut streams).await;
    stream.welcome().await;
    stream.tell(CollectorMessage::Command(capture(1, ""))).await;
    fake.started(2).await;
    assert_eq!(control.counts().connections.get(), 2);
    // Commands that make no sense end the stream.
    stream.tell(CollectorMessage::Command(capture(1, ""))).await;
    let mut stream = next(&mut streams).await;
    stream.welcome().await;
    control.stop(soon());
    ended(thread).await;
    assert_eq!(control.counts().connected.get(), 0);
}

#[tokio::test]
async fn what_captures_have_left_is_sent_before_the_end() {
    let (address, mut streams) = collector().await;
    let fake = Arc::new(Fake::default());
    let control = control(address, &fake);
    let thread = run(&control);
    let mut stream = next(&mut streams).await;
    stream.welcome().await;
    stream.tell(CollectorMessage::Command(capture(1, ""))).await;
    fake.started(1).await;
    control.stop(soon());
    // The capture ends meanwhile with what it has.
    let messages = fake.sender(0);
    messages.send(accepted(9)).await.unwrap();
    messages.send(result()).await.unwrap();
    drop(messages);
    fake.started.lock().unwrap().clear();
    let mut last = None;
    while let Some(said) = stream.said().await {
        last = Some(said);
    }
    let Some(AgentMessage::Report(report)) = last else {
        panic!("no report but {last:?}");
    };
    let is_result = matches!(
        report.what,
        Some(report::What::Response(CaptureResponse {
            body: Some(Body::Result(_))
        }))
    );
    assert!(is_result);
    drop(stream);
    ended(thread).await;
    assert_eq!(control.counts().given_up.get(), 0);
}

#[tokio::test]
async fn a_capture_that_does_not_end_is_given_up_at_the_deadline() {
    let (address, mut streams) = collector().await;
    let fake = Arc::new(Fake::default());
    let control = control(address, &fake);
    let thread = run(&control);
    let mut stream = next(&mut streams).await;
    stream.welcome().await;
    stream.tell(CollectorMessage::Command(capture(1, ""))).await;
    fake.started(1).await;
    control.stop(MonotonicTime::now());
    ended(thread).await;
    assert_eq!(control.counts().given_up.get(), 1);
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_collector_that_is_away() {
    let fake = Arc::new(Fake::default());
    // Nobody listens there.
    let control = control(([127, 0, 0, 1], 1).into(), &fake);
    let thread = run(&control);
    control.stop(soon());
    ended(thread).await;
}
