//! Tests the service in this process on a real socket, with a fake host: the tests fill a recorder,
//! and everything else is made up.

mod calls;
mod captures;
mod pins;
mod silent;
mod sockets;

use super::*;
use aggregate::recorder::{RecorderOptions, Row, WindowPart};
use host::time::MonotonicTime;
use profile::{FrameRef, Profile, Quality, SampleKey, StackEnd, Value, key};
use proto::agent::agent_service_client::AgentServiceClient;
use proto::convert::ProfileAssembler;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub(super) type Client = AgentServiceClient<Channel>;

const SECOND: u64 = 1_000_000_000;
const PERIOD: u64 = 10_101_010;

/// Not a daemon: what the daemon would say is written down here.
pub(super) struct FakeHost {
    recorder: RwLock<Recorder>,
    clock: WallAnchor,
    started: MonotonicTime,
    flushes: AtomicUsize,
    watchers: Arc<AtomicUsize>,
    reload: Mutex<Result<ReloadOutcome, String>>,
    pins: OnceLock<Arc<Pins>>,
    captures: Arc<FakeCaptures>,
    /// It does not do its work.
    pub sick: std::sync::atomic::AtomicBool,
}

/// Captures with answers that the test sets.
#[derive(Default)]
pub(super) struct FakeCaptures {
    /// Senders of those that started, with who asked.
    pub started: Mutex<Vec<(tokio::sync::mpsc::Sender<agent::CaptureResponse>, String)>>,
}

impl Capturing for FakeCaptures {
    fn start(
        &self,
        request: agent::CaptureRequest,
        asker: ::capture::Asker,
    ) -> Result<tokio::sync::mpsc::Receiver<agent::CaptureResponse>, tonic::Status> {
        if request.duration_ns == 0 {
            return Err(tonic::Status::invalid_argument("no duration"));
        }
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        self.started
            .lock()
            .expect("not poisoned")
            .push((sender, asker.peer));
        Ok(receiver)
    }

    fn cancel(&self, id: u64) -> bool {
        id == 1
    }

    fn list(&self) -> Vec<agent::CaptureInfo> {
        vec![agent::CaptureInfo {
            id: 1,
            ..Default::default()
        }]
    }
}

struct Watching(Arc<AtomicUsize>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Host for FakeHost {
    fn health(&self) -> Result<(), String> {
        match self.sick.load(Ordering::Relaxed) {
            true => Err("no usable samples".to_owned()),
            false => Ok(()),
        }
    }

    fn status(&self) -> agent::GetStatusResponse {
        agent::GetStatusResponse {
            version: "fake".to_owned(),
            ..Default::default()
        }
    }

    fn flush(&self) -> HostFuture {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.add(false, &[("/fresh", "fresh", 1)]);
        Box::pin(std::future::ready(()))
    }

    fn watch(&self, _interval: Duration) -> Box<dyn Send> {
        self.watchers.fetch_add(1, Ordering::SeqCst);
        Box::new(Watching(self.watchers.clone()))
    }

    fn config(&self) -> ActiveConfig {
        ActiveConfig {
            yaml: "sampling:\n".to_owned(),
            path: "/etc/fake.yaml".to_owned(),
        }
    }

    fn reload(&self) -> Result<ReloadOutcome, String> {
        self.reload.lock().expect("not poisoned").clone()
    }

    fn captures(&self) -> Option<Arc<dyn Capturing>> {
        Some(Arc::clone(&self.captures) as Arc<dyn Capturing>)
    }

    fn recorder(&self) -> &RwLock<Recorder> {
        &self.recorder
    }

    fn clock(&self) -> &WallAnchor {
        &self.clock
    }

    fn pins(&self) -> Option<&Pins> {
        self.pins.get().map(|pins| &**pins)
    }
}

impl FakeHost {
    pub(super) fn new() -> Arc<FakeHost> {
        Arc::new(FakeHost {
            recorder: RwLock::new(Recorder::new(RecorderOptions::default())),
            clock: WallAnchor::new(),
            started: MonotonicTime::now(),
            flushes: AtomicUsize::new(0),
            watchers: Arc::default(),
            reload: Mutex::new(Ok(ReloadOutcome::default())),
            pins: OnceLock::new(),
            captures: Arc::default(),
            sick: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// Adds a part of one second after the newest, of (cgroup, function under `main`, count).
    pub(super) fn add(&self, closes: bool, samples: &[(&str, &str, u64)]) {
        let mut recorder = self.recorder.write().expect("not poisoned");
        let start = recorder.stats().newest.unwrap_or(self.started);
        let dict = recorder.dict_mut();
        let mut rows: Vec<Row> = Vec::new();
        for &(cgroup, function, count) in samples {
            let labels = dict.intern_labels([(key::CGROUP, cgroup), (key::COMM, "test")]);
            let mut frame = |function| {
                dict.intern_frame(FrameRef {
                    function,
                    ..FrameRef::default()
                })
            };
            let path = [frame("main"), frame(function)];
            let stack = dict.stacks.intern(path);
            let key = SampleKey {
                labels,
                stack,
                end: StackEnd::Complete,
            };
            rows.push((
                key,
                Value {
                    count,
                    weight: count * PERIOD,
                },
            ));
        }
        let taken = samples.iter().map(|sample| sample.2).sum();
        recorder.add(WindowPart {
            pressure: None,
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
            start,
            end: MonotonicTime(start.0 + SECOND),
            closes,
            period: PERIOD,
            quality: Quality {
                taken,
                ..Quality::default()
            },
            rows: &mut rows,
            accounts: &[],
        });
    }

    /// A window with a profile of many chunks, more than a connection's flow control allows.
    pub(super) fn add_large(&self) {
        let names: Vec<String> = (0..20_000).map(|n| format!("function_{n:0100}")).collect();
        let samples: Vec<_> = names
            .iter()
            .map(|name| ("/large", name.as_str(), 1))
            .collect();
        self.add(true, &samples);
    }
}

/// A server that runs in this test's runtime.
pub(super) struct Running {
    pub host: Arc<FakeHost>,
    pub stop: watch::Sender<bool>,
    pub ended: JoinHandle<Result<(), ServeError>>,
}

pub(super) fn unix_at(path: &Path) -> Listen {
    Listen::Unix {
        path: path.to_owned(),
        mode: 0o660,
        group: None,
    }
}

/// Serves `host`; returns once connections are taken, or the error.
pub(super) async fn start(
    options: ServeOptions,
    host: Arc<FakeHost>,
) -> Result<Running, ServeError> {
    let (stop, stopped) = watch::channel(false);
    let (ready, is_ready) = oneshot::channel();
    let served = host.clone();
    let ended = tokio::spawn(async move {
        serve(options, served, stopped, || {
            let _ = ready.send(());
        })
        .await
    });
    match is_ready.await {
        Ok(()) => Ok(Running { host, stop, ended }),
        Err(_) => Err(ended
            .await
            .expect("no panic")
            .expect_err("it never got ready")),
    }
}

/// A server on a socket in a directory of its own, and a client.
pub(super) async fn service() -> (tempfile::TempDir, Running, Client) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let running = start(ServeOptions::new(unix_at(&path)), FakeHost::new())
        .await
        .expect("started");
    let client = connect(&path).await;
    (directory, running, client)
}

pub(super) async fn channel(path: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).expect("an endpoint");
    endpoint.connect().await.expect("connected")
}

pub(super) async fn connect(path: &Path) -> Client {
    AgentServiceClient::new(channel(path).await)
}

/// The profile of an answer, and the number of its chunks.
pub(super) async fn assemble(
    mut answer: Streaming<agent::QueryProfileResponse>,
) -> Result<(Profile, usize), tonic::Status> {
    let mut assembler = ProfileAssembler::new();
    let mut chunks = 0;
    while let Some(message) = answer.message().await? {
        assembler
            .push(message.chunk.expect("a chunk"))
            .expect("a sound chunk");
        chunks += 1;
    }
    Ok((assembler.finish().expect("a whole profile"), chunks))
}

/// (function of the leaf, count), by name.
pub(super) fn leaves(profile: &Profile) -> Vec<(String, u64)> {
    let mut leaves: Vec<_> = profile
        .samples
        .iter()
        .map(|(key, value)| {
            let leaf = profile
                .dict
                .stacks
                .leaf_first(key.stack)
                .next()
                .expect("a frame");
            (profile.dict.frame(leaf).function.to_owned(), value.count)
        })
        .collect();
    leaves.sort();
    leaves
}
