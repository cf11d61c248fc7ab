//! Tests captures on a connection with other streams that the collector does not read.

use super::*;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::ingest_service_server::{IngestService, IngestServiceServer};
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::pin_upload_service_server::{PinUploadService, PinUploadServiceServer};
use proto::collector::{HostFacts, PushRequest, PushResponse, UploadPinRequest, UploadPinResponse};
use proto::collector::{push_request, upload_pin_request};
use proto::wire::ProfileChunk;
use proto::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES, STREAMS_PER_AGENT};
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic::transport::Channel;

/// Length of a message that nobody reads. Unit: bytes.
const MESSAGE_BYTES: usize = 64 << 10;

/// Messages after which a stream that is not read is full, with one that waits to be sent.
const FILLING: usize = STREAM_WINDOW_BYTES as usize / MESSAGE_BYTES + 1;

/// Reads no windows and no pins, and ends none of their streams.
struct Unreading;

#[tonic::async_trait]
impl IngestService for Unreading {
    type PushStream = ReceiverStream<Result<PushResponse, Status>>;

    async fn push(
        &self,
        request: Request<Streaming<PushRequest>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let _held = request.into_inner();
        std::future::pending().await
    }
}

#[tonic::async_trait]
impl PinUploadService for Unreading {
    async fn upload(
        &self,
        request: Request<Streaming<UploadPinRequest>>,
    ) -> Result<Response<UploadPinResponse>, Status> {
        let _held = request.into_inner();
        std::future::pending().await
    }
}

async fn collector() -> (SocketAddr, mpsc::Receiver<AgentStream>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, streams) = mpsc::channel(4);
    let service = ControlServiceServer::new(Collector(sender))
        .accept_compressed(tonic::codec::CompressionEncoding::Zstd)
        .send_compressed(tonic::codec::CompressionEncoding::Zstd);
    // As collectors serve.
    let serving = tonic::transport::Server::builder()
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .add_service(service)
        .add_service(IngestServiceServer::new(Unreading))
        .add_service(PinUploadServiceServer::new(Unreading))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(serving);
    (address, streams)
}

/// Fills a stream, and counts its messages.
async fn fill<T: Send + 'static>(say: mpsc::Sender<T>, sent: Arc<AtomicUsize>, text: fn() -> T) {
    while say.send(text()).await.is_ok() {
        sent.fetch_add(1, Ordering::Relaxed);
    }
}

fn window() -> PushRequest {
    let facts = HostFacts {
        hostname: "x".repeat(MESSAGE_BYTES),
        ..HostFacts::default()
    };
    PushRequest {
        body: Some(push_request::Body::Facts(facts)),
    }
}

fn pin() -> UploadPinRequest {
    UploadPinRequest {
        body: Some(upload_pin_request::Body::Minutes(chunk())),
    }
}

fn chunk() -> ProfileChunk {
    ProfileChunk {
        strings: vec!["x".repeat(MESSAGE_BYTES)],
        ..ProfileChunk::default()
    }
}

async fn push(channel: Channel, sent: Arc<AtomicUsize>) {
    let (say, queue) = mpsc::channel(1);
    let mut client = IngestServiceClient::new(channel);
    let call = client.push(ReceiverStream::new(queue));
    let _ = tokio::join!(call, fill(say, sent, window));
}

async fn keep(channel: Channel, sent: Arc<AtomicUsize>) {
    let (say, queue) = mpsc::channel(1);
    let mut client = PinUploadServiceClient::new(channel);
    let call = client.upload(ReceiverStream::new(queue));
    let _ = tokio::join!(call, fill(say, sent, pin));
}

/// Windows of this boot, windows of another, and a pin fill their streams until the daemon stops.
async fn crowd(control: Arc<Control>, sent: Vec<Arc<AtomicUsize>>) {
    let link = control.exporter.connection().link().await.unwrap();
    let [own, others, pin] = [0, 1, 2].map(|at| Arc::clone(&sent[at]));
    let crowd = async {
        let channel = || link.channel.clone();
        tokio::join!(
            push(channel(), own),
            push(channel(), others),
            keep(channel(), pin)
        );
    };
    let mut stop = control.stop.subscribe();
    tokio::select! {
        () = crowd => panic!("a stream has ended"),
        _ = stop.wait_for(Option::is_some) => {}
    }
}

#[tokio::test]
async fn a_capture_runs_and_is_answered_while_the_collector_reads_nothing_else() {
    let (address, mut streams) = collector().await;
    let fake = Arc::new(Fake::default());
    let control = control(address, &fake);
    let sent: Vec<Arc<AtomicUsize>> = (1..STREAMS_PER_AGENT).map(|_| Arc::default()).collect();
    let services: Vec<export::uplink::Service> = vec![
        Box::pin(Arc::clone(&control).run()),
        Box::pin(crowd(Arc::clone(&control), sent.clone())),
    ];
    let thread = std::thread::spawn(move || export::uplink::run(services));
    let mut stream = next(&mut streams).await;
    stream.welcome().await;
    until("full", || {
        let full = |sent: &Arc<AtomicUsize>| sent.load(Ordering::Relaxed) >= FILLING;
        sent.iter().all(full)
    })
    .await;
    stream.tell(CollectorMessage::Command(capture(1, ""))).await;
    fake.started(1).await;
    let messages = fake.sender(0);
    let profile = CaptureResponse {
        body: Some(Body::Chunk(chunk())),
    };
    for message in [accepted(9)]
        .into_iter()
        .chain(vec![profile; 20])
        .chain([result()])
    {
        messages.send(message.clone()).await.unwrap();
        match stream.said().await {
            Some(AgentMessage::Report(report)) => {
                assert_eq!(report.what, Some(report::What::Response(message)));
            }
            other => panic!("no report but {other:?}"),
        }
    }
    control.stop(soon());
    drop(stream);
    ended(thread).await;
}
