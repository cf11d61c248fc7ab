//! Captures of a daemon, read to their end without waiting forever.

use crate::client::Client;
use crate::view::View;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::agent::{
    CancelCaptureRequest, CaptureInfo, CaptureProgress, CaptureRequest, CaptureResponse,
    LabelMatcher, ListCapturesRequest, MatchOp, capture_response::Body,
};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// A capture that runs. Dropped, its client has gone.
pub struct Capture<'c> {
    client: &'c Client,
    stream: Streaming<CaptureResponse>,
    started: Instant,
    /// What the daemon said at its start.
    pub accepted: CaptureInfo,
}

/// A capture that ended.
pub struct Captured {
    /// What was told on the way.
    pub progress: Vec<CaptureProgress>,
    /// From the question to the first of it.
    pub first_progress_after: Option<Duration>,
    /// The time before.
    pub past: Option<View>,
    /// What was captured.
    pub view: View,
    /// How it ended.
    pub result: CaptureInfo,
}

/// A request for samples of all labels.
pub fn request(duration: Duration) -> CaptureRequest {
    CaptureRequest {
        duration_ns: duration.as_nanos() as u64,
        group_by: vec!["*".into()],
        ..CaptureRequest::default()
    }
}

/// A matcher of one value.
pub fn equal(label: &str, value: &str) -> LabelMatcher {
    matcher(label, MatchOp::Equal, value)
}

/// A matcher of a cgroup and what is below it.
pub fn below(path: &str) -> LabelMatcher {
    matcher(profile::key::CGROUP, MatchOp::Subtree, path)
}

fn matcher(label: &str, op: MatchOp, value: &str) -> LabelMatcher {
    LabelMatcher {
        label: label.to_owned(),
        op: op.into(),
        value: value.to_owned(),
    }
}

impl Client {
    fn captures_service(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel())
    }

    /// Capture, until it is accepted.
    ///
    /// # Errors
    /// As the daemon refuses it.
    ///
    /// # Panics
    /// When the first message says something else.
    pub fn capture(&self, request: CaptureRequest) -> Result<Capture<'_>, Status> {
        let started = Instant::now();
        self.block_on(async {
            let mut stream = self.captures_service().capture(request).await?.into_inner();
            let first = stream.message().await?.and_then(|message| message.body);
            let Some(Body::Accepted(accepted)) = first else {
                panic!("not accepted but {first:?}");
            };
            Ok(Capture {
                client: self,
                stream,
                started,
                accepted,
            })
        })
    }

    /// CancelCapture.
    ///
    /// # Errors
    /// When none of this id runs.
    pub fn cancel_capture(&self, id: u64) -> Result<(), Status> {
        let call = async {
            let request = CancelCaptureRequest { id };
            self.captures_service().cancel_capture(request).await
        };
        self.block_on(call).map(|_| ())
    }

    /// ListCaptures.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub fn captures(&self) -> Vec<CaptureInfo> {
        let call = async {
            let request = ListCapturesRequest {};
            self.captures_service().list_captures(request).await
        };
        let listed = self.block_on(call).expect("a list");
        listed.into_inner().captures
    }
}

impl Capture<'_> {
    /// Reads it to its end.
    ///
    /// # Errors
    /// When its stream ends with an error.
    ///
    /// # Panics
    /// When messages come in another order than they should.
    pub fn finish(mut self) -> Result<Captured, Status> {
        let mut progress = Vec::new();
        let mut first_progress_after = None;
        let (mut past, mut own) = (Vec::new(), Vec::new());
        let mut result = None;
        let started = self.started;
        self.client.block_on(async {
            while let Some(message) = self.stream.message().await? {
                assert!(result.is_none(), "something came after the result");
                match message.body.expect("a body") {
                    Body::Accepted(_) => panic!("accepted twice"),
                    Body::Progress(now) => {
                        first_progress_after.get_or_insert(started.elapsed());
                        progress.push(now);
                    }
                    Body::Past(chunk) => {
                        assert!(own.is_empty(), "the past comes first");
                        past.push(chunk);
                    }
                    Body::Chunk(chunk) => own.push(chunk),
                    Body::Result(info) => result = Some(info),
                }
            }
            Ok::<(), Status>(())
        })?;
        Ok(Captured {
            progress,
            first_progress_after,
            past: (!past.is_empty()).then(|| View::assemble(past)),
            view: View::assemble(own),
            result: result.expect("a result"),
        })
    }
}
