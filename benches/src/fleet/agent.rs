//! An agent without a machine: pushes made-up windows as a real one does.

use super::generate::{Drawn, Fleet, PERIOD_NS, WINDOW_S};
use anyhow::{Context, bail, ensure};
use profile::{StackId, key};
use proto::Definer;
use proto::collector::push_request::Body;
use proto::collector::{
    Hello, HostFacts, Labels, Need, Outcome, WindowFacts, WindowPart, push_response,
};
use proto::definitions::dictionary_stacks_max;
use proto::wire::Quality;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testkit::fake::push::PushStream;
use testkit::numbering;
use tonic::transport::{Channel, Endpoint};

/// Size that messages of definitions are filled up to, the agent's. Unit: bytes.
const MESSAGE_BYTES: usize = 512 << 10;
/// Longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What became of one window.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// Rows in it.
    pub rows: usize,
    /// Samples in it.
    pub samples: u64,
    /// When it was handed to the connection.
    pub handed: Instant,
    /// From that moment on.
    pub after: Duration,
    /// Bytes of the window and of the definitions that it needed, as they are sent: compressed.
    pub bytes: usize,
}

/// The sequence of a window, as agents number.
fn sequence(host: usize, window: u64) -> u64 {
    numbering::sequence(host as u64, (window * WINDOW_S * 1_000_000_000) as i64)
}

/// One host's stream.
pub struct Agent {
    host: usize,
    stream: PushStream,
    /// Stream id by stack of the fleet's dictionary.
    ids: HashMap<StackId, u32>,
    /// The other way round; id 0 is the empty stack.
    stacks: Vec<StackId>,
    labels_sent: bool,
    /// Stacks after which the collector wants a new dictionary.
    stacks_told: u32,
    definer: Definer,
}

impl Agent {
    /// Connects without a certificate, opens a stream and says hello.
    ///
    /// # Errors
    /// When the collector does not answer, or not with a welcome.
    pub async fn connect(address: &str, fleet: &Fleet, host: usize) -> anyhow::Result<Agent> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect()
            .await
            .with_context(|| format!("failed to connect to `{address}`"))?;
        Agent::over(channel, fleet, host, format!("simulated-{host:05}")).await
    }

    /// The same over a connection that is there, as the host with this id.
    ///
    /// # Errors
    /// As there.
    pub async fn over(
        channel: Channel,
        fleet: &Fleet,
        host: usize,
        host_id: String,
    ) -> anyhow::Result<Agent> {
        let facts = HostFacts {
            hostname: fleet.hosts[host].name.clone(),
            kernel: "6.1.0-simulated".to_owned(),
            arch: "x86_64".to_owned(),
            cpus_online: 32,
            memory_bytes: 128 << 30,
            agent_version: "simulated".to_owned(),
            labels: [("zone".to_owned(), fleet.hosts[host].zone.to_owned())].into(),
            spool: None,
            ..HostFacts::default()
        };
        let hello = Hello {
            host_id,
            boot_id: vec![host as u8; 16],
            facts: Some(facts),
            now_unix_ns: testkit::clock::unix_ns(),
        };
        let mut stream = PushStream::connect(channel).await?;
        stream.send(Body::Hello(hello)).await;
        let welcome = match next(&mut stream).await? {
            push_response::Body::Welcome(welcome) => welcome,
            other => bail!("expected a welcome, got {other:?}"),
        };
        Ok(Agent {
            host,
            stream,
            ids: HashMap::new(),
            stacks: vec![StackId::EMPTY],
            labels_sent: false,
            stacks_told: welcome.dictionary_stacks,
            definer: Definer::new(welcome.known_stacks),
        })
    }

    /// Pushes window number `window`, which started at `start_unix_ns`, and waits until it is
    /// durable.
    ///
    /// # Errors
    /// When the collector refuses it or goes away.
    pub async fn push(
        &mut self,
        fleet: &Fleet,
        window: u64,
        start_unix_ns: i64,
        drawn: &mut Drawn,
    ) -> anyhow::Result<Acked> {
        fleet.draw(self.host, window, drawn);
        let part = self.part(fleet, window, start_unix_ns, drawn);
        let rows = drawn.rows.len();
        let samples = drawn.rows.iter().map(|row| u64::from(row.2)).sum();
        let mut bytes = sent_bytes(&part);
        let begin = Instant::now();
        self.stream.part(part).await;
        loop {
            match next(&mut self.stream).await? {
                push_response::Body::Ack(ack) => {
                    let stored = ack.outcome() == Outcome::Stored;
                    self.definer
                        .answered(&fleet.dictionary, ack.sequence, stored);
                    ensure!(
                        ack.sequence == sequence(self.host, window)
                            && ack.outcome() == Outcome::Stored,
                        "window {window} was not stored: {ack:?}"
                    );
                    return Ok(Acked {
                        rows,
                        samples,
                        handed: begin,
                        after: begin.elapsed(),
                        bytes,
                    });
                }
                push_response::Body::Need(need) => bytes += self.define(fleet, &need).await?,
                push_response::Body::Welcome(_) => bail!("welcomed twice"),
            }
        }
    }

    fn part(
        &mut self,
        fleet: &Fleet,
        window: u64,
        start_unix_ns: i64,
        drawn: &Drawn,
    ) -> WindowPart {
        let host = &fleet.hosts[self.host];
        let mut part = WindowPart {
            sequence: sequence(self.host, window),
            last: true,
            ..WindowPart::default()
        };
        // Nothing is in flight: each window is waited for.
        if self.stacks.len() > dictionary_stacks_max(self.stacks_told, drawn.rows.len()) {
            self.ids.clear();
            self.stacks.truncate(1);
            self.definer.start_dictionary();
            self.labels_sent = false;
            part.new_dictionary = true;
        }
        if !std::mem::replace(&mut self.labels_sent, true) {
            part.label_sets = host
                .containers
                .iter()
                .map(|container| {
                    let service = &fleet.services[container.service].name;
                    let pairs = [
                        (key::CGROUP, container.cgroup.as_str()),
                        (key::SLICE, "kubepods.slice"),
                        (key::CONTAINER, &container.id),
                        (key::RUNTIME, "containerd"),
                        (key::COMM, service),
                        ("service", service),
                    ];
                    let names_values = pairs.iter().flat_map(|(name, value)| [*name, *value]);
                    Labels {
                        names_values: names_values.map(str::to_owned).collect(),
                    }
                })
                .collect();
        }
        for &(container, stack, count) in &drawn.rows {
            let next = self.stacks.len() as u32;
            let id = *self.ids.entry(stack).or_insert(next);
            if id == next {
                self.stacks.push(stack);
                part.stack_hashes
                    .extend_from_slice(&fleet.hashes[stack.0 as usize].0);
            }
            part.sample_label_sets.push(container + 1);
            part.sample_stacks.push(id);
            part.sample_counts.push(count.into());
        }
        let stacks = drawn.rows.iter().map(|row| row.1);
        self.definer.sent(part.sequence, stacks);
        let taken = part.sample_counts.iter().sum();
        part.facts = Some(WindowFacts {
            start_unix_ns,
            duration_ns: WINDOW_S * 1_000_000_000,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: PERIOD_NS,
            quality: Some(Quality {
                taken,
                ..Quality::default()
            }),
            account_label_sets: Vec::new(),
            account_ns: Vec::new(),
            account_estimated_ns: Vec::new(),
            ..WindowFacts::default()
        });
        part
    }

    /// Sends the frames that are asked for; returns their bytes on the wire.
    async fn define(&mut self, fleet: &Fleet, need: &Need) -> anyhow::Result<usize> {
        let mut asked = Vec::with_capacity(need.stacks.len());
        for &id in &need.stacks {
            asked.push(*self.stacks.get(id as usize).context("an id never sent")?);
        }
        let content = |stack: StackId| fleet.hashes[stack.0 as usize];
        let messages = self
            .definer
            .define(&fleet.dictionary, content, need, &asked, MESSAGE_BYTES);
        let mut bytes = 0;
        for definitions in messages {
            bytes += sent_bytes(&definitions);
            self.stream.send(Body::Definitions(definitions)).await;
        }
        Ok(bytes)
    }
}

/// Size of a message on the wire: compressed one by one, as the transport does.
fn sent_bytes(message: &impl prost::Message) -> usize {
    zstd::bulk::compress(&message.encode_to_vec(), 3).map_or(0, |packed| packed.len())
}

async fn next(stream: &mut PushStream) -> anyhow::Result<push_response::Body> {
    let answer = tokio::time::timeout(ANSWER_LIMIT, stream.responses.message()).await;
    let answer = answer.context("no answer in time")??;
    let answer = answer.context("the collector ended the stream")?;
    answer.body.context("an empty answer")
}
