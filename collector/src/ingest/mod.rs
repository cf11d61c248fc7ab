//! IngestService: takes the windows of agents and acknowledges them when they are durable.
//!
//! [`Ingest`] is the state shared by all streams. A stream is a task (`stream.rs`); windows go
//! through one bounded queue to one thread that calls the store (`batch.rs`). All limits are in
//! `limits.rs`; everything from an agent is checked in `window/` and, for frames, in `proto`.

mod batch;
mod hosts;
mod judge;
pub mod limits;
mod stream;
pub mod window;

pub use crate::memory::Reservation;
pub use batch::{StorePanicked, THREAD};
pub use hosts::{Hosts, Survey};
pub use judge::Verdict;
pub(crate) use judge::without_text;

use crate::identity;
use crate::memory::MemoryPool;
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey, NewWindow, WindowSink};
use crate::time::Clock;
use proto::collector::ingest_service_server::IngestService;
use proto::collector::{PushRequest, PushResponse};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Limits of ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestOptions {
    /// Most open streams. Further agents must retry later.
    pub streams: usize,
    /// Memory for windows on their way and for what streams carry. Unit: bytes.
    pub memory_bytes: usize,
    /// For how long agents are waited for.
    pub timeouts: limits::Timeouts,
}

/// A program of a service on a host, within the bounds of labels and facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The service, by labels of samples.
    pub labels: Vec<(String, String)>,
    /// Base name of its file.
    pub module: String,
    /// See [`profile::is_build_id`].
    pub build_id: String,
    /// Start of the first window with samples of it.
    pub since_unix_ns: i64,
}

/// Is informed of what agents send. Streams call it, so it must not block.
pub trait Watch: Send + Sync {
    /// A host has connected, or says something new of itself.
    fn host(&self, _host: &HostKey, _facts: &HostFacts, _programs: &[Program]) {}
    /// A window is in the store.
    fn stored(&self, window: &NewWindow);
}

/// Answers agents; clones share everything.
#[derive(Clone)]
pub struct Ingest {
    hosts: Arc<Hosts>,
    memory: Arc<MemoryPool>,
    jobs: mpsc::Sender<batch::Job>,
    places: Arc<Semaphore>,
    options: IngestOptions,
    /// The store finds callers by their content, so agents need not send them.
    known_stacks: bool,
    watch: Arc<OnceLock<Vec<Arc<dyn Watch>>>>,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

/// The task that calls the store. It ends when every [`Ingest`] is gone.
pub type Pushing = JoinHandle<Result<(), StorePanicked>>;

impl Ingest {
    /// Starts to push into `store`, from a thread of its own. Streams end when `shutdown` becomes
    /// true, with the answers to what they had sent.
    pub fn start(
        store: Arc<dyn WindowSink>,
        hosts: Arc<Hosts>,
        options: IngestOptions,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> std::io::Result<(Ingest, Pushing)> {
        let (jobs, queue) = mpsc::channel(limits::QUEUE_WINDOWS_MAX);
        let known_stacks = store.knows_callers();
        let pusher = batch::Pusher::start(store, clock.clone(), metrics.clone())?;
        let pushing = batch::run(pusher, queue, metrics.clone());
        let ingest = Ingest {
            hosts,
            memory: MemoryPool::new(options.memory_bytes, metrics.clone(), |m| &m.ingest_bytes),
            jobs,
            places: Arc::new(Semaphore::new(options.streams)),
            options,
            known_stacks,
            watch: Arc::default(),
            clock,
            metrics,
            shutdown,
        };
        Ok((ingest, tokio::spawn(pushing)))
    }

    /// Sets who is informed of what agents send, from now on.
    pub fn watched_by(&self, watch: Vec<Arc<dyn Watch>>) {
        // There is one for the life of a collector.
        let _ = self.watch.set(watch);
    }

    /// Done when no stream is open.
    pub async fn drained(&self) {
        let all = u32::try_from(self.options.streams).unwrap_or(u32::MAX);
        // An error would mean that the semaphore was closed, which it never is.
        let _ = self.places.acquire_many(all).await;
    }
}

#[tonic::async_trait]
impl IngestService for Ingest {
    type PushStream = ReceiverStream<Result<PushResponse, Status>>;

    async fn push(
        &self,
        request: Request<Streaming<PushRequest>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.metrics.cut_places.inc();
            let streams = self.options.streams;
            return Err(Status::unavailable(format!(
                "{streams} agents are already connected, which is the limit (`ingest.streams_max`)"
            )));
        };
        let peer = request
            .remote_addr()
            .map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let who = (peer, identity::member(&request));
        let (out, responses) = mpsc::channel(stream::OUTBOX);
        let requests = request.into_inner();
        tokio::spawn(stream::run(self.clone(), requests, out, who, place));
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// Done when `shutdown` is true, or nobody is left who could make it so.
pub(crate) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|&stop| stop).await;
}
