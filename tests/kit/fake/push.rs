//! An agent that pushes windows to a collector: its end of the stream.

use super::window::{NOW, tables, window};
use proto::collector as wire;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::{push_request, push_response};
use std::fmt::Display;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longest that anything here may take. Only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A connection to `address`.
///
/// # Panics
/// When nobody listens there.
pub async fn channel(address: impl Display) -> Channel {
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

/// An agent's end of a stream of windows.
pub struct PushStream {
    /// To the collector.
    pub requests: mpsc::Sender<wire::PushRequest>,
    /// From the collector.
    pub responses: Streaming<wire::PushResponse>,
}

impl PushStream {
    /// Opens a stream and says nothing.
    ///
    /// # Errors
    /// When the collector refuses it.
    pub async fn connect(channel: Channel) -> Result<PushStream, Status> {
        let (requests, queue) = mpsc::channel(64);
        let mut client = IngestServiceClient::new(channel)
            .send_compressed(Zstd)
            .accept_compressed(Zstd);
        let responses = client.push(ReceiverStream::new(queue)).await?.into_inner();
        Ok(PushStream {
            requests,
            responses,
        })
    }

    /// Says who it is and takes the Welcome.
    ///
    /// # Panics
    /// When another answer comes.
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

    /// The next answer.
    ///
    /// # Errors
    /// With how the stream ended.
    ///
    /// # Panics
    /// When none comes within [`LIMIT`].
    pub async fn next(&mut self) -> Result<push_response::Body, Status> {
        let next = tokio::time::timeout(LIMIT, self.responses.message()).await;
        match next.expect("an answer in time")? {
            Some(response) => Ok(response.body.expect("a body")),
            None => Err(Status::ok("the stream ended")),
        }
    }

    /// The next answer, which is an Ack.
    ///
    /// # Panics
    /// When it is another.
    pub async fn ack(&mut self) -> wire::Ack {
        match self.next().await {
            Ok(push_response::Body::Ack(ack)) => ack,
            other => panic!("no Ack but {other:?}"),
        }
    }

    /// The next answer, which is a Need.
    ///
    /// # Panics
    /// When it is another.
    pub async fn need(&mut self) -> wire::Need {
        match self.next().await {
            Ok(push_response::Body::Need(need)) => need,
            other => panic!("no Need but {other:?}"),
        }
    }

    /// The next answer, which ends the stream.
    ///
    /// # Panics
    /// When the stream goes on.
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
    ///
    /// # Panics
    /// When the stream ends first.
    pub async fn store(&mut self, number: u64, stacks: &[&str]) -> wire::Ack {
        self.store_part(window(number, stacks), stacks).await
    }

    /// The same with a window that is there already.
    ///
    /// # Panics
    /// When the stream ends first.
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
