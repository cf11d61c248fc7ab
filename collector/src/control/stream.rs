//! The control stream of one agent, from its Hello to its end.
//!
//! Runs as one task, which never blocks. Reports are handed to the fan-out that sent the command;
//! nothing of an agent is stored here. A violation of the protocol ends the stream, and with it
//! only the captures of this host.

use super::Control;
use super::agent_registry::{Addressee, ConnectedAgent, Outbox, Reported, StreamGuard};
use super::limits::BYTES_PER_ENCODED;
use crate::identity::{self, Member};
use crate::ingest::stopped;
use crate::ingest::window::host_facts;
use crate::store::{HOST_ID_BYTES_MAX, HostKey};
use prost::Message;
use proto::agent::capture_response::Body;
use proto::collector::{
    ControlRequest, ControlResponse, ControlWelcome, Hello, Report, control_request,
    control_response, report,
};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

/// Pings without a sign of life after which an agent is taken to be gone.
const PINGS_MISSED_MAX: u32 = 3;

/// Why a stream ends.
enum End {
    /// The agent has left.
    Gone,
    /// It is ended from here.
    Cut(Status),
}

/// Serves one stream to its end. `place` is given back then.
pub async fn run(
    control: Control,
    mut requests: Streaming<ControlRequest>,
    out: Outbox,
    (peer, member): (String, Option<Arc<Member>>),
    place: OwnedSemaphorePermit,
) {
    let ended = serve(&control, &mut requests, &out, &peer, member).await;
    if let Err(End::Cut(status)) = ended {
        if status.code() == Code::InvalidArgument {
            control.0.metrics.control_faults.inc();
            tracing::warn!(%peer, "agent cut off: {}", status.message());
        } else {
            tracing::debug!(%peer, code = ?status.code(), "control stream ended: {}", status.message());
        }
        // It may be gone, or not read: then it learns by the end of the connection.
        let _ = out
            .send_timeout(Err(status), control.0.options.timeouts.hello)
            .await;
    }
    drop(place);
}

async fn serve(
    control: &Control,
    requests: &mut Streaming<ControlRequest>,
    out: &Outbox,
    peer: &str,
    member: Option<Arc<Member>>,
) -> Result<(), End> {
    let mut shutdown = control.0.shutdown.clone();
    let hello_max = control.0.options.timeouts.hello;
    let first = tokio::select! {
        first = tokio::time::timeout(hello_max, requests.message()) => first,
        () = stopped(&mut shutdown) => return Err(shutting_down()),
    };
    let Ok(first) = first else {
        let text = format!("no Hello came within {} s", hello_max.as_secs());
        return Err(End::Cut(Status::deadline_exceeded(text)));
    };
    let body = received(first)?.body;
    let Some(control_request::Body::Hello(hello)) = body else {
        return Err(fault("the first message must be a Hello"));
    };
    let guard = open(control, hello, member.as_ref(), out)?;
    tracing::debug!(%peer, host_id = guard.agent.key.host_id, "agent connected");
    // There is room: commands leave two places.
    let _ = out.try_send(Ok(welcome()));
    serve_open(control, &guard, requests, member.as_ref(), out).await
}

fn open(
    control: &Control,
    hello: Hello,
    member: Option<&Arc<Member>>,
    out: &Outbox,
) -> Result<StreamGuard, End> {
    if hello.host_id.is_empty() || hello.host_id.len() > HOST_ID_BYTES_MAX {
        return Err(fault(format!(
            "a host id must have 1 to {HOST_ID_BYTES_MAX} bytes, not {}",
            hello.host_id.len()
        )));
    }
    let Ok(boot_id) = <[u8; 16]>::try_from(hello.boot_id.as_slice()) else {
        let bytes = hello.boot_id.len();
        return Err(fault(format!("a boot id must have 16 bytes, not {bytes}")));
    };
    let mut key = HostKey {
        host_id: hello.host_id,
        boot_id,
    };
    let inner = &control.0;
    let mut facts = hello.facts.unwrap_or_default();
    identity::bind(member, &mut key.host_id, &mut facts).map_err(End::Cut)?;
    let mut facts = host_facts(facts, &inner.metrics);
    identity::assign(member, &mut facts.labels);
    let ahead = hello.now_unix_ns.saturating_sub(inner.clock.now_unix_ns());
    Ok(inner.registry.open(key, facts, ahead, out.clone()))
}

fn welcome() -> ControlResponse {
    let body = control_response::Body::Welcome(ControlWelcome {
        collector_version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    ControlResponse { body: Some(body) }
}

async fn serve_open(
    control: &Control,
    guard: &StreamGuard,
    requests: &mut Streaming<ControlRequest>,
    member: Option<&Arc<Member>>,
    out: &Outbox,
) -> Result<(), End> {
    let agent = &guard.agent;
    let ping = control.0.options.timeouts.ping;
    let mut shutdown = control.0.shutdown.clone();
    let mut heard = Instant::now();
    let mut pings = tokio::time::interval_at(heard + ping, ping);
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut shutdown) => return Err(shutting_down()),
            () = agent.end.notified() => return Err(ended(control, agent)),
            () = out.closed() => return Err(End::Gone),
            _ = pings.tick() => {
                if heard.elapsed() >= ping * PINGS_MISSED_MAX {
                    let text = format!("the agent has been silent for {} s", heard.elapsed().as_secs());
                    return Err(End::Cut(Status::deadline_exceeded(text)));
                }
                agent.ping(&control.0.clock);
            }
            message = requests.message() => {
                let request = received(message)?;
                heard = Instant::now();
                match request.body {
                    Some(control_request::Body::Report(report)) => {
                        take(control, agent, report).await?;
                        // The agent is not at fault where its report had to wait.
                        heard = Instant::now();
                    }
                    Some(control_request::Body::Facts(mut facts)) => {
                        identity::bind_facts(member, &mut facts);
                        let mut facts = host_facts(facts, &control.0.metrics);
                        identity::assign(member, &mut facts.labels);
                        agent.set_facts(facts);
                    }
                    Some(control_request::Body::Pong(pong)) => {
                        agent.pong(pong, &control.0.clock);
                    }
                    Some(control_request::Body::Hello(_)) => return Err(fault("a second Hello")),
                    None => return Err(fault("this version does not know its body")),
                }
            }
        }
    }
}

/// Hands a report to who waits for it.
async fn take(control: &Control, agent: &Arc<ConnectedAgent>, report: Report) -> Result<(), End> {
    let Some(what) = report.what else {
        return Err(fault(format!(
            "this version does not know the content of the report of command {}",
            report.number
        )));
    };
    let last = match &what {
        report::What::Refusal(_) => true,
        report::What::Response(response) => {
            matches!(response.body, Some(Body::Result(_)))
        }
    };
    let waiting = match agent.addressee(report.number, last) {
        Addressee::Waiting(waiting) => waiting,
        Addressee::Past => {
            control.0.metrics.control_late.inc();
            return Ok(());
        }
        Addressee::Never => {
            return Err(fault(format!(
                "the agent reports command {}, which was never sent",
                report.number
            )));
        }
    };
    // From here on it may wait for its fan-out, and does so with the memory that results have.
    let mut held = control.0.memory.reserve();
    let has_room = held.grow(heap_bytes(&what));
    let what = has_room.then_some(what);
    let reported = Reported { what, held };
    let stuck = control.0.options.timeouts.report;
    match waiting.send_timeout(reported, stuck).await {
        Ok(()) => Ok(()),
        // It was dropped this moment.
        Err(SendTimeoutError::Closed(_)) => {
            control.0.metrics.control_late.inc();
            Ok(())
        }
        Err(SendTimeoutError::Timeout(_)) => Err(End::Cut(Status::unavailable(format!(
            "a report was not processed within {} s",
            stuck.as_secs()
        )))),
    }
}

/// Heap memory of a report, at most about. Unit: bytes.
fn heap_bytes(what: &report::What) -> usize {
    match what {
        report::What::Response(response) => match &response.body {
            Some(Body::Past(chunk) | Body::Chunk(chunk)) => proto::chunk_heap_bytes(chunk),
            Some(Body::Accepted(info) | Body::Result(info)) => {
                info.encoded_len().saturating_mul(BYTES_PER_ENCODED)
            }
            Some(Body::Progress(_)) | None => 0,
        },
        report::What::Refusal(refusal) => refusal.message.capacity(),
    }
}

fn ended(control: &Control, agent: &ConnectedAgent) -> End {
    let now = control.0.registry.find(&agent.key.host_id);
    End::Cut(match now {
        Some(now) if !std::ptr::eq(&*now, agent) => {
            Status::aborted("another stream of this host has started")
        }
        _ => Status::unavailable("the agent does not read its commands"),
    })
}

/// A message, or why there is none.
fn received(message: Result<Option<ControlRequest>, Status>) -> Result<ControlRequest, End> {
    match message {
        Ok(Some(request)) => Ok(request),
        Ok(None) => Err(End::Gone),
        Err(status) => Err(match status.code() {
            // The decoder reports these: the message is too large, or is no message at all. All
            // other errors come from the connection.
            Code::OutOfRange | Code::ResourceExhausted | Code::Internal | Code::Unimplemented => {
                fault(status.message())
            }
            _ => End::Gone,
        }),
    }
}

fn shutting_down() -> End {
    End::Cut(Status::unavailable("the collector is shutting down"))
}

fn fault(what: impl std::fmt::Display) -> End {
    let text = format!("failed to use the message: {what}");
    End::Cut(Status::invalid_argument(text))
}
