//! A fake collector as agents see it: takes windows by the protocol, remembers them over restarts,
//! checks what the agent sends, and behaves as badly as it is told to.

use super::ear::Ear;
use super::memory::{Memory, Stored, lock};
use super::server::Server;
use prost::Message;
use proto::TableAssembler;
use proto::collector as wire;
use proto::collector::control_service_server::ControlServiceServer;
use proto::collector::ingest_service_server::{IngestService, IngestServiceServer};
use proto::collector::pin_upload_service_server::PinUploadServiceServer;
use proto::collector::push_request::Body as Ask;
use proto::collector::push_response::Body as Answer;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status, Streaming};

/// How the collector behaves. Read again for every message.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Ends every stream at once with UNAVAILABLE.
    pub unavailable: bool,
    /// Asks for stacks it does not know; otherwise it takes every hash on trust.
    pub asks: bool,
    /// Asks for stacks that were never sent.
    pub asks_nonsense: bool,
    /// Stores windows and says nothing.
    pub silent: bool,
    /// Refuses every window.
    pub refuses: bool,
    /// Says INVALID_ARGUMENT to every window.
    pub objects: bool,
    /// Ends each stream after so many windows, the last one stored and not acknowledged.
    pub ends_after: Option<usize>,
    /// Largest message it takes.
    pub message_bytes_max: u64,
    /// Windows it admits without an answer.
    pub windows_in_flight: u32,
    /// Stacks after which a new dictionary is to start; 0: no such limit.
    pub dictionary_stacks: u32,
    /// Takes definitions whose callers are named by content.
    pub known_stacks: bool,
    /// Forgets all frames after each window.
    pub forgets: bool,
    /// Keeps every byte it hears, orders captures and takes pins.
    pub hears: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            unavailable: false,
            asks: true,
            asks_nonsense: false,
            silent: false,
            refuses: false,
            objects: false,
            ends_after: None,
            message_bytes_max: 1 << 20,
            windows_in_flight: 4,
            dictionary_stacks: 0,
            known_stacks: true,
            forgets: false,
            hears: false,
        }
    }
}

/// A running collector.
pub struct IngestCollector {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
    behaviour: Arc<Mutex<Behaviour>>,
    server: Option<Server>,
}

impl IngestCollector {
    /// One that behaves.
    pub fn start() -> IngestCollector {
        IngestCollector::with(Behaviour::default())
    }

    /// One that behaves so.
    pub fn with(behaviour: Behaviour) -> IngestCollector {
        let mut collector = IngestCollector {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            memory: Arc::default(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            server: None,
        };
        collector.restart();
        collector
    }

    /// Where it listens; the same after a restart.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it remembers.
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// Changes how it behaves.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.behaviour));
    }

    /// Has the agent capture, of one that hears; what comes of it is in [`Memory::heard`].
    pub fn order(&self, capture: proto::agent::CaptureRequest) {
        self.memory().heard.orders.push(capture);
    }

    /// Ends it at once, connections and all.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again where it was.
    ///
    /// # Panics
    /// When its port is taken.
    pub fn restart(&mut self) {
        self.kill();
        let listener = TcpListener::bind(self.address).expect("the port is free");
        self.address = listener.local_addr().expect("an address");
        let service = Service {
            memory: Arc::clone(&self.memory),
            behaviour: Arc::clone(&self.behaviour),
        };
        let service = IngestServiceServer::new(service)
            .accept_compressed(CompressionEncoding::Zstd)
            .send_compressed(CompressionEncoding::Zstd);
        let mut services = tonic::transport::Server::builder().add_service(service);
        if lock(&self.behaviour).hears {
            let ear = || Ear {
                memory: Arc::clone(&self.memory),
            };
            let zstd = CompressionEncoding::Zstd;
            let control = ControlServiceServer::new(ear());
            let pins = PinUploadServiceServer::new(ear());
            services = services
                .add_service(control.accept_compressed(zstd).send_compressed(zstd))
                .add_service(pins.accept_compressed(zstd).send_compressed(zstd));
        }
        self.server = Some(Server::tcp(listener, services));
    }
}

struct Service {
    memory: Arc<Mutex<Memory>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

#[tonic::async_trait]
impl IngestService for Service {
    type PushStream = ReceiverStream<Result<wire::PushResponse, Status>>;

    async fn push(
        &self,
        request: Request<Streaming<wire::PushRequest>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let (answers, receiver) = mpsc::channel(64);
        let mut talk = Talk {
            memory: Arc::clone(&self.memory),
            behaviour: Arc::clone(&self.behaviour),
            answers,
            host: None,
            labels: Vec::new(),
            stacks: Vec::new(),
            open: BTreeMap::new(),
            assembler: None,
            lacks_callers: false,
            windows: 0,
        };
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            let end = talk.run(&mut requests).await;
            if let Err(status) = end {
                let _ = talk.answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

#[derive(Default)]
struct Window {
    rows: Vec<(u32, u32, u32, u64)>,
    facts: Option<wire::WindowFacts>,
    parts: usize,
}

/// One stream.
struct Talk {
    memory: Arc<Mutex<Memory>>,
    behaviour: Arc<Mutex<Behaviour>>,
    answers: mpsc::Sender<Result<wire::PushResponse, Status>>,
    host: Option<(String, Vec<u8>)>,
    labels: Vec<Vec<String>>,
    stacks: Vec<[u8; 16]>,
    /// Windows that are not complete or wait for definitions.
    open: BTreeMap<u64, Window>,
    assembler: Option<TableAssembler>,
    /// The last definitions named a stack that is not known here.
    lacks_callers: bool,
    windows: usize,
}

impl Talk {
    async fn run(&mut self, requests: &mut Streaming<wire::PushRequest>) -> Result<(), Status> {
        if lock(&self.behaviour).unavailable {
            return Err(Status::unavailable("starting"));
        }
        while let Some(request) = requests.message().await? {
            let behaviour = lock(&self.behaviour).clone();
            let bytes = request.encoded_len() as u64;
            if bytes > behaviour.message_bytes_max {
                self.violation(format!("a message of {bytes} bytes"));
            }
            if behaviour.hears {
                lock(&self.memory).heard.hear(&request);
            }
            match request.body {
                Some(Ask::Hello(hello)) => self.hello(hello, &behaviour).await?,
                Some(Ask::Facts(facts)) => lock(&self.memory).facts.push(facts),
                Some(Ask::Part(part)) => self.part(part, &behaviour).await?,
                Some(Ask::Definitions(tables)) => self.definitions(tables, &behaviour).await?,
                None => self.violation("a request without body".to_owned()),
            }
        }
        Ok(())
    }

    fn violation(&self, what: String) {
        lock(&self.memory).violations.push(what);
    }

    async fn say(&self, body: Answer) -> Result<(), Status> {
        let response = wire::PushResponse { body: Some(body) };
        let sent = self.answers.send(Ok(response)).await;
        sent.map_err(|_| Status::cancelled("the agent is gone"))
    }

    async fn hello(&mut self, hello: wire::Hello, behaviour: &Behaviour) -> Result<(), Status> {
        if self.host.is_some() || hello.host_id.is_empty() || hello.boot_id.len() != 16 {
            self.violation("a bad hello".to_owned());
        }
        self.host = Some((hello.host_id.clone(), hello.boot_id.clone()));
        lock(&self.memory).hellos.push(hello);
        self.say(Answer::Welcome(wire::Welcome {
            now_unix_ns: 0,
            windows_in_flight: behaviour.windows_in_flight,
            message_bytes_max: behaviour.message_bytes_max,
            collector_version: "fake".to_owned(),
            dictionary_stacks: behaviour.dictionary_stacks,
            known_stacks: behaviour.known_stacks,
        }))
        .await
    }

    async fn part(&mut self, part: wire::WindowPart, behaviour: &Behaviour) -> Result<(), Status> {
        if self.host.is_none() {
            self.violation("a window before the hello".to_owned());
        }
        if part.new_dictionary {
            self.labels.clear();
            self.stacks.clear();
        }
        for set in part.label_sets {
            let (pairs, rest) = set.names_values.as_chunks::<2>();
            if !rest.is_empty() || pairs.iter().any(|[_, value]| value.is_empty()) {
                self.violation("a bad label set".to_owned());
            }
            self.labels.push(set.names_values);
        }
        let (hashes, rest) = part.stack_hashes.as_chunks::<16>();
        if !rest.is_empty() {
            self.violation("half a hash".to_owned());
        }
        self.stacks.extend(hashes);
        let rows = part.sample_stacks.len();
        let fits = |len: usize, may_be_empty: bool| len == rows || may_be_empty && len == 0;
        if !fits(part.sample_label_sets.len(), false)
            || !fits(part.sample_counts.len(), false)
            || !fits(part.sample_ends.len(), true)
            || !fits(part.sample_weights.len(), true)
        {
            self.violation("columns differ in length".to_owned());
        }
        let known = |id: u32, len: usize| id as usize <= len;
        if part
            .sample_stacks
            .iter()
            .any(|&id| !known(id, self.stacks.len()))
            || part
                .sample_label_sets
                .iter()
                .any(|&id| !known(id, self.labels.len()))
        {
            self.violation("an id that was not defined".to_owned());
        }
        let window = self.open.entry(part.sequence).or_default();
        window.parts += 1;
        for row in 0..rows {
            let end = part.sample_ends.get(row).copied().unwrap_or(0);
            window.rows.push((
                part.sample_label_sets[row],
                part.sample_stacks[row],
                end,
                part.sample_counts[row],
            ));
        }
        if part.last != part.facts.is_some() {
            self.violation("facts belong into the last part".to_owned());
        }
        if !part.last {
            return Ok(());
        }
        self.open.entry(part.sequence).or_default().facts = part.facts;
        if self.open.len() > behaviour.windows_in_flight as usize {
            self.violation(format!("{} windows in flight", self.open.len()));
        }
        self.complete(part.sequence, behaviour).await
    }

    async fn complete(&mut self, sequence: u64, behaviour: &Behaviour) -> Result<(), Status> {
        if behaviour.objects {
            return Err(Status::invalid_argument("no such window"));
        }
        if behaviour.asks_nonsense {
            let stacks = vec![u32::MAX];
            return self.need(sequence, stacks, false).await;
        }
        let window = self.open.get(&sequence).expect("a window");
        let mut missing: Vec<u32> = Vec::new();
        if behaviour.asks {
            let memory = lock(&self.memory);
            for &(_, stack, ..) in &window.rows {
                let hash = (stack as usize).checked_sub(1).map(|at| self.stacks[at]);
                if hash.is_some_and(|hash| !memory.stacks.contains(&hash)) {
                    missing.push(stack);
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            lock(&self.memory).needs += 1;
            let all_callers = std::mem::take(&mut self.lacks_callers);
            lock(&self.memory).needs_all += u64::from(all_callers);
            return self.need(sequence, missing, all_callers).await;
        }
        self.store(sequence, behaviour).await
    }

    async fn need(&self, sequence: u64, stacks: Vec<u32>, all_callers: bool) -> Result<(), Status> {
        self.say(Answer::Need(wire::Need {
            sequence,
            stacks,
            all_callers,
        }))
        .await
    }

    async fn store(&mut self, sequence: u64, behaviour: &Behaviour) -> Result<(), Status> {
        let window = self.open.remove(&sequence).expect("a window");
        let facts = window.facts.unwrap_or_default();
        let mut stored = Stored {
            quality_taken: facts.quality.map_or(0, |quality| quality.taken),
            start_unix_ns: facts.start_unix_ns,
            duration_ns: facts.duration_ns,
            account_rows: facts.account_ns.len(),
            gap: facts.dropped_before,
            parts: window.parts,
            ..Stored::default()
        };
        let lost = profile::StackEnd::Lost as u32;
        for (labels, _, end, count) in window.rows {
            match end == lost {
                true => stored.lost += count,
                false => stored.taken += count,
            }
            let set = (labels as usize)
                .checked_sub(1)
                .map_or(&[][..], |at| &self.labels[at]);
            for [name, value] in set.as_chunks::<2>().0 {
                if !stored.label_names.contains(name) {
                    stored.label_names.push(name.clone());
                }
                if name == "comm" && !stored.comms.contains(value) {
                    stored.comms.push(value.clone());
                }
            }
        }
        let (host, boot) = self.host.clone().unwrap_or_default();
        let key = (host, boot, sequence);
        let outcome = {
            let mut memory = lock(&self.memory);
            if behaviour.refuses {
                memory.refused += 1;
                wire::Outcome::Refused
            } else if let Some(before) = memory.windows.get(&key) {
                let same = Stored {
                    parts: before.parts,
                    ..stored.clone()
                } == *before;
                memory.repeats += 1;
                if !same {
                    memory
                        .violations
                        .push(format!("window {sequence} came again and was another"));
                }
                wire::Outcome::Repeated
            } else {
                memory.windows.insert(key, stored);
                wire::Outcome::Stored
            }
        };
        self.windows += 1;
        if behaviour.forgets {
            lock(&self.memory).stacks.clear();
        }
        if behaviour
            .ends_after
            .is_some_and(|most| self.windows >= most)
        {
            return Err(Status::unavailable("enough"));
        }
        if behaviour.silent {
            return Ok(());
        }
        let reason = match outcome {
            wire::Outcome::Refused => "it is too old",
            _ => "",
        };
        self.say(Answer::Ack(wire::Ack {
            sequence,
            outcome: outcome.into(),
            reason: reason.to_owned(),
        }))
        .await
    }

    async fn definitions(
        &mut self,
        definitions: wire::Definitions,
        behaviour: &Behaviour,
    ) -> Result<(), Status> {
        let sequence = definitions.sequence;
        let mut assembler = self
            .assembler
            .take()
            .unwrap_or_else(|| TableAssembler::new(64 << 20, behaviour.known_stacks));
        if let Err(error) = assembler.push(&definitions) {
            self.violation(error.to_string());
            return Ok(());
        }
        if definitions.more {
            self.assembler = Some(assembler);
            return Ok(());
        }
        match assembler.finish() {
            Ok(tables) => {
                let mut memory = lock(&self.memory);
                memory.known += tables.known.len() as u64;
                self.lacks_callers = tables.known.iter().any(|id| !memory.stacks.contains(&id.0));
                if !self.lacks_callers {
                    let ids = tables.content_ids();
                    memory.stacks.extend(ids.iter().map(|id| id.0));
                }
            }
            Err(error) => self.violation(error.to_string()),
        }
        match self.open.contains_key(&sequence) {
            true => self.complete(sequence, behaviour).await,
            false => Ok(()),
        }
    }
}
