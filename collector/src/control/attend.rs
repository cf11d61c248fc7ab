//! The stream of one attending agent, from its Hello to its end.
//!
//! Runs as one task, which never blocks. Reports are handed to the fan-out that gave the order;
//! nothing of an agent is kept here. What breaks the protocol ends the stream, and with it the
//! captures of this host alone.

use super::Control;
use super::agent_registry::{Addressee, ConnectedAgent, Outbox, Reported, Ticket};
use super::limits::BYTES_PER_ENCODED;
use crate::identity::{self, Member};
use crate::ingest::stopped;
use crate::ingest::window::host_facts;
use crate::store::{HOST_ID_BYTES_MAX, HostKey};
use prost::Message;
use proto::agent::capture_response::Body;
use proto::collector::{
    AttendRequest, AttendResponse, ControlWelcome, Hello, Report, attend_request, attend_response,
    report,
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
    mut requests: Streaming<AttendRequest>,
    out: Outbox,
    (peer, member): (String, Option<Arc<Member>>),
    place: OwnedSemaphorePermit,
) {
    let ended = serve(&control, &mut requests, &out, &peer, member).await;
    if let Err(End::Cut(status)) = ended {
        if status.code() == Code::InvalidArgument {
            control.0.metrics.control_faults.inc();
            tracing::warn!(%peer, "attending agent cut off: {}", status.message());
        } else {
            tracing::debug!(%peer, code = ?status.code(), "agent attends no more: {}", status.message());
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
    requests: &mut Streaming<AttendRequest>,
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
    let Some(attend_request::Body::Hello(hello)) = body else {
        return Err(fault("the first message must be a Hello"));
    };
    let ticket = begin(control, hello, member.as_ref(), out)?;
    tracing::debug!(%peer, host_id = ticket.attendant.key.host_id, "agent attends");
    // There is room: orders leave two places.
    let _ = out.try_send(Ok(welcome()));
    attend(control, &ticket, requests, member.as_ref(), out).await
}

fn begin(
    control: &Control,
    hello: Hello,
    member: Option<&Arc<Member>>,
    out: &Outbox,
) -> Result<Ticket, End> {
    if hello.host_id.is_empty() || hello.host_id.len() > HOST_ID_BYTES_MAX {
        return Err(fault(format!(
            "a host id has 1 to {HOST_ID_BYTES_MAX} bytes, not {}",
            hello.host_id.len()
        )));
    }
    let Ok(boot_id) = <[u8; 16]>::try_from(hello.boot_id.as_slice()) else {
        let bytes = hello.boot_id.len();
        return Err(fault(format!("a boot id has 16 bytes, not {bytes}")));
    };
    let key = HostKey {
        host_id: hello.host_id,
        boot_id,
    };
    let inner = &control.0;
    let mut facts = hello.facts.unwrap_or_default();
    identity::bind(member, &key.host_id, &mut facts).map_err(End::Cut)?;
    let mut facts = host_facts(facts, &inner.metrics);
    identity::assign(member, &mut facts.labels);
    let ahead = hello.now_unix_ns.saturating_sub(inner.clock.now_unix_ns());
    Ok(inner.attendance.open(key, facts, ahead, out.clone()))
}

fn welcome() -> AttendResponse {
    let body = attend_response::Body::Welcome(ControlWelcome {
        collector_version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    AttendResponse { body: Some(body) }
}

async fn attend(
    control: &Control,
    ticket: &Ticket,
    requests: &mut Streaming<AttendRequest>,
    member: Option<&Arc<Member>>,
    out: &Outbox,
) -> Result<(), End> {
    let attendant = &ticket.attendant;
    let ping = control.0.options.timeouts.ping;
    let mut shutdown = control.0.shutdown.clone();
    let mut heard = Instant::now();
    let mut pings = tokio::time::interval_at(heard + ping, ping);
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut shutdown) => return Err(shutting_down()),
            () = attendant.end.notified() => return Err(ended(control, attendant)),
            () = out.closed() => return Err(End::Gone),
            _ = pings.tick() => {
                if heard.elapsed() >= ping * PINGS_MISSED_MAX {
                    let text = format!("nothing was heard for {} s", heard.elapsed().as_secs());
                    return Err(End::Cut(Status::deadline_exceeded(text)));
                }
                attendant.ping(&control.0.clock);
            }
            message = requests.message() => {
                let request = received(message)?;
                heard = Instant::now();
                match request.body {
                    Some(attend_request::Body::Report(report)) => {
                        take(control, attendant, report).await?;
                        // The agent is not at fault where its report had to wait.
                        heard = Instant::now();
                    }
                    Some(attend_request::Body::Facts(mut facts)) => {
                        let host_id = &attendant.key.host_id;
                        identity::bind(member, host_id, &mut facts).map_err(End::Cut)?;
                        let mut facts = host_facts(facts, &control.0.metrics);
                        identity::assign(member, &mut facts.labels);
                        attendant.set_facts(facts);
                    }
                    Some(attend_request::Body::Pong(pong)) => {
                        attendant.pong(pong, &control.0.clock);
                    }
                    Some(attend_request::Body::Hello(_)) => return Err(fault("a second Hello")),
                    None => return Err(fault("it has no body this version knows")),
                }
            }
        }
    }
}

/// Hands a report to who waits for it.
async fn take(
    control: &Control,
    attendant: &Arc<ConnectedAgent>,
    report: Report,
) -> Result<(), End> {
    let Some(what) = report.what else {
        return Err(fault(format!(
            "the report of order {} says nothing this version knows",
            report.number
        )));
    };
    let last = match &what {
        report::What::Refusal(_) => true,
        report::What::Response(response) => {
            matches!(response.body, Some(Body::Result(_)))
        }
    };
    let waiting = match attendant.addressee(report.number, last) {
        Addressee::Waiting(waiting) => waiting,
        Addressee::Past => {
            control.0.metrics.control_late.inc();
            return Ok(());
        }
        Addressee::Never => {
            return Err(fault(format!(
                "a report of order {}, which was never given",
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
            "a report was not taken within {} s",
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

fn ended(control: &Control, attendant: &ConnectedAgent) -> End {
    let now = control.0.attendance.find(&attendant.key.host_id);
    End::Cut(match now {
        Some(now) if !std::ptr::eq(&*now, attendant) => {
            Status::aborted("another stream of this host has started")
        }
        _ => Status::unavailable("it does not read its orders"),
    })
}

/// A message, or why there is none.
fn received(message: Result<Option<AttendRequest>, Status>) -> Result<AttendRequest, End> {
    match message {
        Ok(Some(request)) => Ok(request),
        Ok(None) => Err(End::Gone),
        Err(status) => Err(match status.code() {
            // Of the decoder: too large, or no message at all. All else is the connection's.
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
    let text = format!("failed to take the message: {what}");
    End::Cut(Status::invalid_argument(text))
}
