//! Keeps a stream to the collector open, with back-off, and passes on its commands.

use super::commands::{CommandError, Commands};
use super::{Control, request};
use export::connect::{ConnectError, Link, backoff, is_of_connection};
use host::time::MonotonicTime;
use profile::text::with_causes;
use proto::collector as wire;
use proto::collector::control_request::Body as AgentMessage;
use proto::collector::control_response::Body as CollectorMessage;
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

/// Largest message of a collector. Unit: bytes. A command is a few KiB.
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// Why the agent has no control stream.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The collector ended the stream with an error.
    #[error("{}: {}", code(.0), .0.message())]
    Status(Status),
    /// The collector ended it.
    #[error("the collector ended the stream")]
    Ended,
    /// It says nothing.
    #[error("the collector has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// It does not answer the Hello with a Welcome.
    #[error("the collector did not welcome the agent")]
    NoWelcome,
    /// Its commands make no sense.
    #[error(transparent)]
    Command(#[from] CommandError),
}

impl StreamError {
    /// True when the next stream should go over another connection.
    fn blames_connection(&self) -> bool {
        match self {
            StreamError::Status(status) => is_of_connection(status),
            StreamError::Silent(_) => true,
            _ => false,
        }
    }
}

fn code(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "the collector is unavailable",
        Code::InvalidArgument => "the collector reports a protocol error by the agent",
        Code::Unimplemented => "the collector is an older version without captures",
        Code::Aborted => "another agent is connected with this host's id",
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

/// Keeps a stream open until the end of the daemon.
pub async fn run(control: &Control) {
    let mut attempts = 0;
    let mut logged = String::new();
    loop {
        let mut welcomed = false;
        let result = tokio::select! {
            result = run_stream(control, &mut welcomed) => result,
            () = stopped(control) => Ok(()),
        };
        control.counts.connected.set(0);
        let Err(error) = result else {
            return;
        };
        let reason = bounded(&with_causes(&error));
        // The exporter already logs each minute that the collector is away; here it is logged once
        // per reason.
        if welcomed || reason != logged {
            tracing::info!(
                reason,
                "the control stream ended: the collector cannot capture here \
                for now"
            );
        }
        logged = reason;
        if let StreamError::Connect(_) = error {
            // The connection has a back-off of its own.
            continue;
        }
        attempts = if welcomed { 0 } else { attempts + 1 };
        // Two agents as one host take turns; they should not do so twice a second.
        if matches!(&error, StreamError::Status(status) if status.code() == Code::Aborted) {
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

/// Runs one stream until it ends, or until the daemon stops and everything was sent. Captures
/// requested over it end with it.
async fn run_stream(control: &Control, welcomed: &mut bool) -> Result<(), StreamError> {
    let connection = control.exporter.connection();
    let link = tokio::select! {
        link = connection.link() => link?,
        () = stopping(control) => return Ok(()),
    };
    let result = tokio::select! {
        result = run_stream_on(control, &link, welcomed) => result,
        // Captures that it asked for end with it.
        () = connection.moved(&link) => Err(ConnectError::Moved.into()),
    };
    if result.as_ref().is_err_and(StreamError::blames_connection) {
        connection.give_up(&link);
    }
    result
}

/// The same on this connection.
async fn run_stream_on(
    control: &Control,
    link: &Link,
    welcomed: &mut bool,
) -> Result<(), StreamError> {
    let (out, queue) = mpsc::channel(OUTGOING);
    let mut facts = control.exporter.facts_version();
    // There is room for it.
    let _ = out.try_send(request(AgentMessage::Hello(control.exporter.hello())));
    let mut messages = tokio::select! {
        messages = open(link.channel.clone(), queue) => messages?,
        () = stopping(control) => return Ok(()),
    };
    *welcomed = true;
    control.counts.connected.set(1);
    control.counts.connections.inc();
    tracing::debug!(collector = %control.exporter.collector(), "the control stream is open");
    let mut commands = Commands::new(control, out.clone());
    let mut heard = Instant::now();
    // Messages other than reports: they must not wait for room.
    let (mut pong, mut new_facts) = (None, false);
    let mut ends = false;
    loop {
        if ends && commands.is_empty() {
            break;
        }
        tokio::select! {
            message = messages.message() => {
                let message = message.map_err(StreamError::Status)?.ok_or(StreamError::Ended)?;
                heard = Instant::now();
                match message.body {
                    // What makes captures refuses those that come while it stops.
                    Some(CollectorMessage::Command(command)) => commands.take(command)?,
                    Some(CollectorMessage::Ping(ping)) => {
                        // If two came, the answer to the newer one is enough.
                        pong = Some(ping.number);
                        new_facts = control.exporter.facts_version() != facts;
                    }
                    // What a later version may say.
                    Some(CollectorMessage::Welcome(_)) | None => {}
                }
            }
            permit = out.reserve(), if pong.is_some() || new_facts => {
                let Ok(permit) = permit else {
                    return Err(StreamError::Ended);
                };
                if let Some(number) = pong.take() {
                    let now_unix_ns = control.exporter.now_unix_ns();
                    permit.send(request(AgentMessage::Pong(wire::Pong { number, now_unix_ns })));
                } else {
                    new_facts = false;
                    facts = control.exporter.facts_version();
                    permit.send(request(AgentMessage::Facts(control.exporter.facts())));
                }
            }
            () = commands.one_ended() => {}
            () = stopping(control), if !ends => ends = true,
            () = sleep_until(heard + SILENCE_MAX) => {
                return Err(StreamError::Silent(SILENCE_MAX));
            }
        }
    }
    // The collector has all of it when it ends the stream in its turn.
    drop((commands, out));
    let ended = async { while let Ok(Some(_)) = messages.message().await {} };
    let _ = timeout(LAST_WORD_MAX, ended).await;
    Ok(())
}

async fn open(
    channel: Channel,
    queue: mpsc::Receiver<wire::ControlRequest>,
) -> Result<tonic::Streaming<wire::ControlResponse>, StreamError> {
    let mut client = ControlServiceClient::new(channel)
        .max_decoding_message_size(COMMAND_BYTES_MAX)
        .send_compressed(CompressionEncoding::Zstd)
        .accept_compressed(CompressionEncoding::Zstd);
    let silent = |_| StreamError::Silent(WELCOME_MAX);
    let call = timeout(WELCOME_MAX, client.control(ReceiverStream::new(queue)));
    let response = call.await.map_err(silent)?;
    let mut messages = response.map_err(StreamError::Status)?.into_inner();
    let first = timeout(WELCOME_MAX, messages.message())
        .await
        .map_err(silent)?;
    let first = first.map_err(StreamError::Status)?;
    match first.and_then(|message| message.body) {
        Some(CollectorMessage::Welcome(_)) => Ok(messages),
        _ => Err(StreamError::NoWelcome),
    }
}
