//! Tests uploading pins to a collector that is down, rejects them, or does not read.

use super::super::uploader::PinUploader;
use super::*;
use export::{Exporter, HostInfo, Identity, Options, Settings, Target};
use profile::Profile;
use proto::ProfileAssembler;
use proto::collector::pin_upload_service_server::{PinUploadService, PinUploadServiceServer};
use proto::collector::upload_pin_request::Body;
use proto::collector::{PinHead, UploadPinRequest, UploadPinResponse};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use testkit::fake::server::Server;
use testkit::wait::until_blocking;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::{Code, Request, Response, Status, Streaming};

/// Longest that anything here may take. Only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(60);

/// What a collector got.
struct Got {
    head: PinHead,
    minutes: Profile,
    captured: Option<Profile>,
}

/// A collector that gives these answers in order, and accepts everything afterwards.
struct Collector {
    answers: Mutex<Vec<Code>>,
    got: SyncSender<Got>,
}

#[tonic::async_trait]
impl PinUploadService for Collector {
    async fn upload(
        &self,
        request: Request<Streaming<UploadPinRequest>>,
    ) -> Result<Response<UploadPinResponse>, Status> {
        if let Some(code) = self.answers.lock().unwrap().pop() {
            // Without having read anything.
            return Err(Status::new(code, "as the test wants"));
        }
        let mut requests = request.into_inner();
        let (mut head, mut minutes) = (None, ProfileAssembler::new());
        let mut captured = ProfileAssembler::new();
        while let Some(message) = requests.message().await? {
            match message.body.expect("a body") {
                Body::Head(said) => head = Some(said),
                Body::Minutes(chunk) => minutes.push(chunk).expect("minutes"),
                Body::Captured(chunk) => captured.push(chunk).expect("captured"),
            }
        }
        let head = head.expect("a head");
        let captured = head.has_capture.then(|| captured.finish().expect("whole"));
        let minutes = minutes.finish().expect("whole");
        let got = Got {
            head,
            minutes,
            captured,
        };
        self.got.try_send(got).expect("room");
        Ok(Response::new(UploadPinResponse { repeated: false }))
    }
}

/// A collector, where it listens, and what it got.
fn collector(mut answers: Vec<Code>) -> (Server, SocketAddr, Receiver<Got>) {
    answers.reverse();
    let answers = Mutex::new(answers);
    let (got, received) = sync_channel(16);
    let service = PinUploadServiceServer::new(Collector { answers, got })
        .accept_compressed(Zstd)
        .send_compressed(Zstd);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let services = tonic::transport::Server::builder().add_service(service);
    (Server::tcp(listener, services), address, received)
}

/// Uploads the pins of a host until it is dropped.
struct Uploading {
    uploader: Arc<PinUploader>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Uploading {
    fn new(host: &Host, address: SocketAddr) -> Uploading {
        let options = Options {
            collector: Target::Configured(address),
            outside: None,
            dir: PathBuf::from("/nonexistent"),
            settings: Settings::default(),
            identity: Identity {
                host_id: "id-1".to_owned(),
                boot_id: [7; 16],
            },
            host: HostInfo {
                hostname: "web-1".to_owned(),
                ..HostInfo::default()
            },
        };
        let (exporter, _, _) = Exporter::new(options, Arc::clone(&host.clock));
        let uploader = Arc::new(PinUploader::new(Arc::clone(&host.pins), Arc::new(exporter)));
        let own = Arc::clone(&uploader);
        let thread = Some(std::thread::spawn(move || {
            export::uplink::run(vec![Box::pin(own.upload())])
        }));
        Uploading { uploader, thread }
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        self.uploader.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok_and(|end| end.is_ok()));
        }
    }
}

#[test]
fn a_pin_is_uploaded_once_it_has_closed_with_all_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (_collector, address, got) = collector(Vec::new());
    let mut host = Host::new(dir.path());
    let _bringing = Uploading::new(&host, address);
    host.pass(2);
    let id = host.fire(2, 1).unwrap();
    assert!(got.try_recv().is_err(), "it is open");
    host.pass(1);
    let got = got.recv_timeout(LIMIT).unwrap();
    let hello = got.head.hello.unwrap();
    assert_eq!(
        (hello.host_id.as_str(), got.head.has_capture),
        ("id-1", false)
    );
    let pin = got.head.pin.unwrap();
    assert_eq!(
        (pin.id, pin.trigger.as_str(), pin.cause.as_str()),
        (id, "t", "because")
    );
    assert_eq!(got.minutes.total().count, 1 + 2 + 3);
    assert_eq!(got.minutes.timestamps.list.len(), 6, "with their times");
    assert_ne!(got.minutes.info.coverage, profile::Coverage::default());
    let dict = &got.minutes.dict;
    let mut keys = got.minutes.samples.keys();
    assert!(keys.all(|sample| dict.label(sample.labels, key::CGROUP) == Some("/a")));
    until_blocking("it is told", || host.pins.list()[0].at_collector);
}

#[test]
fn a_capture_that_comes_later_is_uploaded_too_and_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (_collector, address, got) = collector(Vec::new());
    let mut host = Host::new(dir.path());
    let bringing = Uploading::new(&host, address);
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    host.pass(1);
    assert!(got.recv_timeout(LIMIT).unwrap().captured.is_none());
    let evidence = host.evidence();
    host.pins.keep_capture(id, evidence).unwrap();
    let again = got.recv_timeout(LIMIT).unwrap();
    assert_eq!(again.captured.unwrap().total().count, 3);
    until_blocking("it is noted", || {
        dir.path().join(format!("{id:016x}.brought")).exists()
    });
    let uploaded = || host.pins.counts.uploaded.load(Ordering::Relaxed);
    until_blocking("both are counted", || uploaded() == 2);
    until_blocking("the second is noted", || {
        host.pins
            .next_to_bring(&address.to_string(), &HashMap::new())
            .is_none()
    });
    drop(bringing);
    drop(host);
    // After a restart another pin goes, the first stays where it is; to another collector both go.
    let mut host = Host::new(dir.path());
    assert!(host.pins.list()[0].at_collector);
    let bringing = Uploading::new(&host, address);
    host.pass(2);
    let second = host.fire(2, 0).unwrap();
    host.pass(1);
    let pin = got.recv_timeout(LIMIT).unwrap().head.pin.unwrap();
    assert_eq!(pin.id, second);
    until_blocking("the second is told", || host.pins.list()[0].at_collector);
    drop(bringing);
    assert!(got.try_recv().is_err());
    let (_other, other, others) = collector(Vec::new());
    let _bringing = Uploading::new(&host, other);
    let ids = [(); 2].map(|()| others.recv_timeout(LIMIT).unwrap().head.pin.unwrap().id);
    assert_eq!(ids, [second, id], "the newest first");
}

#[test]
fn pins_wait_for_a_collector_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let (_collector, address, got) = collector(vec![Code::Unavailable, Code::Unavailable]);
    let mut host = Host::new(dir.path());
    host.pass(2);
    host.fire(2, 0).unwrap();
    host.pass(1);
    let _bringing = Uploading::new(&host, address);
    assert!(got.recv_timeout(LIMIT).is_ok());
    let failures = host.pins.counts.upload_failures.load(Ordering::Relaxed);
    assert_eq!(failures, 2);
}

#[test]
fn one_that_is_refused_stays_and_does_not_hold_up_others() {
    let dir = tempfile::tempdir().unwrap();
    let (_collector, address, got) = collector(vec![Code::InvalidArgument]);
    let mut host = Host::new(dir.path());
    host.pass(2);
    let first = host.fire(2, 0).unwrap();
    host.pass(1);
    let second = host.fire(2, 0).unwrap();
    host.pass(1);
    let bringing = Uploading::new(&host, address);
    let pin = got.recv_timeout(LIMIT).unwrap().head.pin.unwrap();
    assert_eq!(pin.id, first, "the newest was refused");
    until_blocking("it is told", || {
        let list = host.pins.list();
        list[0].id == second && !list[0].at_collector && list[1].at_collector
    });
    assert_eq!(host.pins.counts.refused.load(Ordering::Relaxed), 1);
    drop(bringing);
    drop(host);
    let host = Host::new(dir.path());
    let _bringing = Uploading::new(&host, address);
    let pin = got.recv_timeout(LIMIT).unwrap().head.pin.unwrap();
    assert_eq!(pin.id, second, "a start asks once more");
}

#[test]
fn one_that_cannot_be_read_is_left_and_one_whose_note_is_damaged_goes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_collector, address, got) = collector(Vec::new());
    let mut host = Host::new(dir.path());
    host.pass(2);
    let first = host.fire(2, 0).unwrap();
    host.pass(1);
    host.fire(2, 0).unwrap();
    host.pass(1);
    let clock = Arc::clone(&host.clock);
    drop(host);
    let note = dir.path().join(format!("{first:016x}.brought"));
    std::fs::write(&note, b"rubbish").unwrap();
    // The byte before the last head is part of a window, so the window's checksum becomes wrong;
    // heads are right.
    let path = file(dir.path(), 2);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.windows(4).rposition(|at| at == b"FPR2").unwrap();
    bytes[last - 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut host = Host::new(dir.path());
    host.clock = clock;
    let _bringing = Uploading::new(&host, address);
    let pin = got.recv_timeout(LIMIT).unwrap().head.pin.unwrap();
    assert_eq!(pin.id, first);
    assert_eq!(host.pins.counts.refused.load(Ordering::Relaxed), 1);
}
