//! Keeps a stream to the collector open, with back-off, and hands on what comes over it.

use super::orders::{OrderError, Orders};
use super::{Control, request};
use export::connect::{ConnectError, Link, backoff, is_of_connection};
use host::time::MonotonicTime;
use profile::text::with_causes;
use proto::collector as wire;
use proto::collector::attend_request::Body as Say;
use proto::collector::attend_response::Body as Told;
use proto::collector::control_service_client::ControlServiceClient;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longest wait for a Welcome.
const WELCOME_MAX: Duration = Duration::from_secs(30);

/// Longest silence of a collector, which asks for signs of life each 30 s.
const SILENCE_MAX: Duration = Duration::from_secs(150);

/// Longest wait, when all is said, for the collector to take it in.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// Messages between the captures and the connection, each up to 256 KiB. More wait with their
/// captures.
const OUTGOING: usize = 4;

/// Largest message of a collector. Unit: bytes. An order is a few KiB.
const ORDER_BYTES_MAX: usize = 1 << 20;

/// Why the agent does not attend.
#[derive(Debug, thiserror::Error)]
enum AttendError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The collector ended the stream with an error.
    #[error("{}: {}", code(.0), .0.message())]
    Status(Status),
    /// The collector ended it.
    #[error("the collector ended the stream")]
    Ended,
    /// The host belongs to another fleet now, or to none.
    #[error("this host has left the fleet of the collector")]
    Moved,
    /// It says nothing.
    #[error("the collector has said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// It does not answer the Hello with a Welcome.
    #[error("the collector did not welcome the agent")]
    NoWelcome,
    /// It gives orders that make no sense.
    #[error(transparent)]
    Order(#[from] OrderError),
}

impl AttendError {
    /// True when the next stream should go over another connection.
    fn blames_connection(&self) -> bool {
        match self {
            AttendError::Status(status) => is_of_connection(status),
            AttendError::Silent(_) => true,
            _ => false,
        }
    }
}

fn code(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "the collector is unavailable",
        Code::InvalidArgument => "the collector says that the agent breaks the protocol",
        Code::Unimplemented => "the collector takes no captures: it is of an older version",
        Code::Aborted => "another agent attends as this host",
        Code::Unauthenticated | Code::PermissionDenied => "the collector does not admit this host",
        _ => "the connection failed",
    }
}

/// Waits until the daemon stops.
async fn stopping(control: &Control) {
    // The sender lives as long as this.
    let _ = control.stop.subscribe().wait_for(Option::is_some).await;
}

/// Waits until the time is over that captures have for their last messages when the daemon stops.
async fn stopped(control: &Control) {
    stopping(control).await;
    let deadline = *control.stop.borrow();
    if let Some(deadline) = deadline {
        sleep(deadline.since(MonotonicTime::now())).await;
    }
}

/// Attends until the end of the daemon.
pub async fn run(control: &Control) {
    let mut attempts = 0;
    let mut told = String::new();
    loop {
        let mut welcomed = false;
        let result = tokio::select! {
            result = attend(control, &mut welcomed) => result,
            () = stopped(control) => Ok(()),
        };
        control.counts.attending.set(0);
        let Err(error) = result else {
            return;
        };
        let reason = bounded(&with_causes(&error));
        // A collector that is away is told each minute at most by the exporter; here once for each
        // reason.
        if welcomed || reason != told {
            tracing::info!(reason, "no captures through the collector for now");
        }
        told = reason;
        if let AttendError::Connect(_) = error {
            // The connection has a back-off of its own.
            continue;
        }
        attempts = if welcomed { 0 } else { attempts + 1 };
        // Two agents as one host take turns; they should not do so twice a second.
        if matches!(&error, AttendError::Status(status) if status.code() == Code::Aborted) {
            attempts = attempts.max(6);
        }
        tokio::select! {
            () = sleep(backoff(attempts)) => {}
            () = stopping(control) => return,
        }
    }
}

fn bounded(reason: &str) -> String {
    let plain = reason.chars().filter(|c| !c.is_control());
    plain.take(300).collect()
}

/// One stream, until it ends, or until the daemon stops and all is said. What was asked for over it
/// ends with it.
async fn attend(control: &Control, welcomed: &mut bool) -> Result<(), AttendError> {
    let connection = control.exporter.connection();
    let link = tokio::select! {
        link = connection.link() => link?,
        () = stopping(control) => return Ok(()),
    };
    let result = tokio::select! {
        result = attend_on(control, &link, welcomed) => result,
        // Captures that it asked for end with it.
        () = connection.moved(&link) => Err(AttendError::Moved),
    };
    if result.as_ref().is_err_and(AttendError::blames_connection) {
        connection.give_up(&link);
    }
    result
}

/// The same on this connection.
async fn attend_on(control: &Control, link: &Link, welcomed: &mut bool) -> Result<(), AttendError> {
    let (say, queue) = mpsc::channel(OUTGOING);
    let mut facts = control.exporter.facts_version();
    // There is room for it.
    let _ = say.try_send(request(Say::Hello(control.exporter.hello())));
    let mut told = tokio::select! {
        told = open(link.channel.clone(), queue) => told?,
        () = stopping(control) => return Ok(()),
    };
    *welcomed = true;
    control.counts.attending.set(1);
    control.counts.connections.inc();
    tracing::debug!(collector = %control.exporter.collector(), "attending");
    let mut orders = Orders::new(control, say.clone());
    let mut heard = Instant::now();
    // What is said beside reports: it must not wait for their room.
    let (mut pong, mut new_facts) = (None, false);
    let mut ends = false;
    loop {
        if ends && orders.is_empty() {
            break;
        }
        tokio::select! {
            message = told.message() => {
                let message = message.map_err(AttendError::Status)?.ok_or(AttendError::Ended)?;
                heard = Instant::now();
                match message.body {
                    // What makes captures refuses those that come while it stops.
                    Some(Told::Order(order)) => orders.take(order)?,
                    Some(Told::Ping(ping)) => {
                        // Of two the newer tells the time as well.
                        pong = Some(ping.number);
                        new_facts = control.exporter.facts_version() != facts;
                    }
                    // What a later version may say.
                    Some(Told::Welcome(_)) | None => {}
                }
            }
            permit = say.reserve(), if pong.is_some() || new_facts => {
                let Ok(permit) = permit else {
                    return Err(AttendError::Ended);
                };
                if let Some(number) = pong.take() {
                    let now_unix_ns = control.exporter.now_unix_ns();
                    permit.send(request(Say::Pong(wire::Pong { number, now_unix_ns })));
                } else {
                    new_facts = false;
                    facts = control.exporter.facts_version();
                    permit.send(request(Say::Facts(control.exporter.facts())));
                }
            }
            () = orders.one_ended() => {}
            () = stopping(control), if !ends => ends = true,
            () = sleep_until(heard + SILENCE_MAX) => {
                return Err(AttendError::Silent(SILENCE_MAX));
            }
        }
    }
    // The collector has all of it when it ends the stream in its turn.
    drop((orders, say));
    let ended = async { while let Ok(Some(_)) = told.message().await {} };
    let _ = timeout(LAST_WORD_MAX, ended).await;
    Ok(())
}

async fn open(
    channel: Channel,
    queue: mpsc::Receiver<wire::AttendRequest>,
) -> Result<tonic::Streaming<wire::AttendResponse>, AttendError> {
    let mut client = ControlServiceClient::new(channel)
        .max_decoding_message_size(ORDER_BYTES_MAX)
        .send_compressed(CompressionEncoding::Zstd)
        .accept_compressed(CompressionEncoding::Zstd);
    let silent = |_| AttendError::Silent(WELCOME_MAX);
    let call = timeout(WELCOME_MAX, client.attend(ReceiverStream::new(queue)));
    let response = call.await.map_err(silent)?;
    let mut told = response.map_err(AttendError::Status)?.into_inner();
    let first = timeout(WELCOME_MAX, told.message()).await.map_err(silent)?;
    let first = first.map_err(AttendError::Status)?;
    match first.and_then(|message| message.body) {
        Some(Told::Welcome(_)) => Ok(told),
        _ => Err(AttendError::NoWelcome),
    }
}
