//! An agent as it is on the wire: its stream, windows of one sample a stack, and their stacks.

use crate::numbering;
use profile::{ContentId, Dictionary, FrameRef};
use proto::collector as wire;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::{push_request, push_response};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longest that anything here may take. Only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// What the collector's clock says. Unit: nanoseconds.
pub const NOW: i64 = 1_700_000_000_000_000_000;

/// Unit: nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// A connection to `address`.
pub async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

/// A Hello of `host` in boot `boot`.
pub fn hello(host: &str, boot: u8) -> wire::Hello {
    wire::Hello {
        host_id: format!("id-{host}"),
        boot_id: vec![boot; 16],
        facts: Some(wire::HostFacts {
            hostname: host.to_owned(),
            kernel: "6.1".to_owned(),
            labels: [("region".to_owned(), "north".to_owned())].into(),
            ..wire::HostFacts::default()
        }),
        now_unix_ns: NOW,
    }
}

/// An agent's end of a stream.
pub struct Agent {
    /// To the collector.
    pub requests: mpsc::Sender<wire::PushRequest>,
    /// From the collector.
    pub responses: Streaming<wire::PushResponse>,
}

impl Agent {
    /// Opens a stream and says nothing.
    pub async fn connect(channel: Channel) -> Result<Agent, Status> {
        let (requests, queue) = mpsc::channel(64);
        let mut client = IngestServiceClient::new(channel)
            .send_compressed(Zstd)
            .accept_compressed(Zstd);
        let responses = client.push(ReceiverStream::new(queue)).await?.into_inner();
        Ok(Agent {
            requests,
            responses,
        })
    }

    /// Says who it is and takes the Welcome.
    pub async fn hello(&mut self, hello: wire::Hello) -> wire::Welcome {
        self.send(push_request::Body::Hello(hello)).await;
        match self.next().await {
            Ok(push_response::Body::Welcome(welcome)) => welcome,
            other => panic!("no Welcome but {other:?}"),
        }
    }

    /// Sends a message; a stream that has ended is told by the next answer.
    pub async fn send(&self, body: push_request::Body) {
        let _ = self
            .requests
            .send(wire::PushRequest { body: Some(body) })
            .await;
    }

    /// Sends a part of a window.
    pub async fn part(&self, part: wire::WindowPart) {
        self.send(push_request::Body::Part(part)).await;
    }

    /// The next answer, or how the stream ended.
    pub async fn next(&mut self) -> Result<push_response::Body, Status> {
        let next = tokio::time::timeout(LIMIT, self.responses.message()).await;
        match next.expect("an answer in time")? {
            Some(response) => Ok(response.body.expect("a body")),
            None => Err(Status::ok("the stream ended")),
        }
    }

    /// The next answer, which is an Ack.
    pub async fn ack(&mut self) -> wire::Ack {
        match self.next().await {
            Ok(push_response::Body::Ack(ack)) => ack,
            other => panic!("no Ack but {other:?}"),
        }
    }

    /// The next answer, which is a Need.
    pub async fn need(&mut self) -> wire::Need {
        match self.next().await {
            Ok(push_response::Body::Need(need)) => need,
            other => panic!("no Need but {other:?}"),
        }
    }

    /// The next answer, which ends the stream.
    pub async fn end(&mut self) -> Status {
        self.next().await.expect_err("the stream ends")
    }

    /// Answers the Need of this sequence with these stacks.
    pub async fn define(&self, sequence: u64, stacks: &[&str]) {
        self.send(push_request::Body::Definitions(wire::Definitions {
            tables: Some(tables(stacks)),
            sequence,
            more: false,
            ..wire::Definitions::default()
        }))
        .await;
    }

    /// Sends [`window`] `number` of `stacks`, defines what is asked for, and takes the Ack.
    pub async fn store(&mut self, number: u64, stacks: &[&str]) -> wire::Ack {
        self.store_part(window(number, stacks), stacks).await
    }

    /// The same with a part that is there already.
    pub async fn store_part(&mut self, part: wire::WindowPart, stacks: &[&str]) -> wire::Ack {
        self.part(part).await;
        loop {
            match self.next().await {
                Ok(push_response::Body::Ack(ack)) => return ack,
                Ok(push_response::Body::Need(need)) => self.define(need.sequence, stacks).await,
                other => panic!("neither Ack nor Need but {other:?}"),
            }
        }
    }
}

/// Stacks as a dictionary: `a;b` is `a` calling `b`.
pub fn dictionary(stacks: &[&str]) -> Dictionary {
    let mut dict = Dictionary::default();
    for stack in stacks {
        let frames: Vec<_> = stack
            .split(';')
            .map(|function| {
                dict.intern_frame(FrameRef {
                    function,
                    module: "app",
                    ..FrameRef::default()
                })
            })
            .collect();
        dict.stacks.intern(frames);
    }
    dict
}

/// The hash of a stack.
pub fn hash(stack: &str) -> ContentId {
    *dictionary(&[stack]).content_ids().last().expect("a stack")
}

/// Stacks as an answer to a Need.
pub fn tables(stacks: &[&str]) -> proto::wire::ProfileChunk {
    let profile = profile::Profile {
        dict: dictionary(stacks),
        ..profile::Profile::default()
    };
    let mut chunks = proto::Chunks::with_target(profile, usize::MAX);
    let mut chunk = chunks.next().expect("a chunk");
    chunk.info = None;
    chunk
}

/// Start of window `number` of an hour that ends at [`NOW`]. Unit: nanoseconds.
pub fn begin(number: u64) -> i64 {
    NOW - 3600 * SECOND + number as i64 * 10 * SECOND
}

/// The sequence of window `number`.
pub fn sequence(number: u64) -> u64 {
    sequence_at(begin(number))
}

/// The sequence of a window that starts then.
pub fn sequence_at(start_unix_ns: i64) -> u64 {
    numbering::sequence(0, start_unix_ns - NOW)
}

/// Window `number`, complete and with a dictionary of its own: one sample of each stack, in unit
/// `web.service`.
pub fn window(number: u64, stacks: &[&str]) -> wire::WindowPart {
    let ids = 1..=stacks.len() as u32;
    wire::WindowPart {
        sequence: sequence(number),
        last: true,
        new_dictionary: true,
        label_sets: vec![labels(&[
            ("cgroup", "/system.slice/web.service"),
            ("unit", "web.service"),
            ("host", "a lie"),
        ])],
        stack_hashes: stacks.iter().flat_map(|stack| hash(stack).0).collect(),
        sample_label_sets: vec![1; stacks.len()],
        sample_stacks: ids.collect(),
        sample_counts: vec![1; stacks.len()],
        facts: Some(facts(number)),
        ..wire::WindowPart::default()
    }
}

/// A label set.
pub fn labels(pairs: &[(&str, &str)]) -> wire::Labels {
    let pairs = pairs.iter().flat_map(|&(name, value)| [name, value]);
    wire::Labels {
        names_values: pairs.map(str::to_owned).collect(),
    }
}

/// Facts of window `number`, of ten seconds.
pub fn facts(number: u64) -> wire::WindowFacts {
    wire::WindowFacts {
        start_unix_ns: begin(number),
        duration_ns: 10 * SECOND as u64,
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 10,
        account_label_sets: vec![1],
        account_ns: vec![40],
        account_estimated_ns: vec![0],
        ..wire::WindowFacts::default()
    }
}
