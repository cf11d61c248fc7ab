//! Brings pins that have closed to the collector, where they outlive this host.
//!
//! A pin goes as the profile that it answers with, all labels and times in it, and with what was captured; again when
//! its capture came later. What the collector took is noted beside the pin's file, so that it goes once, and anew to
//! another collector. While the collector is away pins wait where they are: on this host's disk, within their budget.
//!
//! `fp-pins` does all of it, one pin at a time, the newest first, and sleeps when there is none. Blocks on the disk.
//! Without a collector in the configuration it does not exist.

use super::{PinError, Pins};
use crate::agent::with_causes;
use crate::export::Exporter;
use crate::export::connect::{self, ConnectError, backoff};
use proto::agent as wire;
use proto::collector::evidence_service_client::EvidenceServiceClient;
use proto::collector::keep_request::Body;
use proto::collector::{KeepRequest, PinHead};
use proto::convert::Chunks;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Status};

/// Longest time for one pin: the collector allows as much.
const BRING_MAX: Duration = Duration::from_secs(300);

/// Time between two pins, so that a host that comes back does not bury its collector.
const PACE: Duration = Duration::from_secs(1);

/// Time until the next try where the collector takes no pins for now: a daily limit, an older version.
const LATER: Duration = Duration::from_secs(600);

/// Chunks between the pin and the connection, each up to 256 KiB.
const OUTGOING: usize = 2;

/// Why a pin is not at the collector.
#[derive(Debug, thiserror::Error)]
enum BringError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its own file.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The collector says no.
    #[error("{}: {}", code(.0), .0.message())]
    Status(Status),
    /// It took too long.
    #[error("the collector has not taken it within {} s", BRING_MAX.as_secs())]
    Late,
}

fn code(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "the collector is unavailable",
        Code::InvalidArgument => "the collector refuses it",
        Code::ResourceExhausted => "the collector takes no more for now",
        Code::Unimplemented => "the collector takes no pins: it is of an older version",
        Code::Unauthenticated | Code::PermissionDenied => "the collector does not admit this host",
        _ => "the connection failed",
    }
}

/// What becomes of a pin that could not be brought.
enum Next {
    /// It stays here: it will never be taken.
    Never,
    /// Another try after a while, and a longer one each time.
    Soon,
    /// Another try much later.
    Later,
}

impl BringError {
    fn next(&self) -> Next {
        match self {
            BringError::Pin(PinError::Query(_)) => Next::Soon,
            BringError::Pin(_) => Next::Never,
            BringError::Status(status) => match status.code() {
                Code::InvalidArgument | Code::OutOfRange => Next::Never,
                Code::ResourceExhausted | Code::Unimplemented => Next::Later,
                _ => Next::Soon,
            },
            BringError::Connect(_) | BringError::Late => Next::Soon,
        }
    }
}

/// The handle of the thread: what the supervisor sees of it.
pub struct Bringer {
    pins: Arc<Pins>,
    exporter: Arc<Exporter>,
    cancel: AtomicBool,
    stop: watch::Sender<bool>,
}

impl Bringer {
    /// One whose thread does not run yet.
    pub fn new(pins: Arc<Pins>, exporter: Arc<Exporter>) -> Bringer {
        Bringer {
            pins,
            exporter,
            cancel: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        }
    }

    /// The body of `fp-pins`: ends soon after [`Bringer::stop`].
    ///
    /// # Errors
    /// When the runtime cannot be made.
    pub fn run(&self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut stop = self.stop.subscribe();
            tokio::select! {
                () = self.bring_all() => {}
                _ = stop.wait_for(|&stop| stop) => {}
            }
        });
        Ok(())
    }

    /// Has the thread end. What is on its way is brought again after the next start.
    pub fn stop(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
    }

    async fn bring_all(&self) {
        let address = self.exporter.address();
        // One that fails again and again goes behind the others.
        let mut tries: HashMap<u64, u32> = HashMap::new();
        let (mut attempts, mut told) = (0, String::new());
        loop {
            let Some((pin, has_capture)) = self.pins.next_to_bring(address, &tries) else {
                tries.clear();
                self.pins.closed.notified().await;
                continue;
            };
            let id = pin.id;
            let counts = &self.pins.counts;
            let error = match self.bring(address, pin, has_capture).await {
                Ok(()) => {
                    counts.brought.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(pin = id, "the collector has the pin");
                    self.pins.note_brought(id, address, has_capture);
                    (attempts, told) = (0, String::new());
                    sleep(PACE).await;
                    continue;
                }
                Err(error) => error,
            };
            let next = error.next();
            let reason: String = with_causes(&error).chars().take(300).collect();
            if matches!(next, Next::Never) {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(pin = id, ?reason, "the pin stays on this host alone");
                self.pins.note_refused(id, address, has_capture);
                continue;
            }
            counts.bring_failures.fetch_add(1, Ordering::Relaxed);
            if reason != told {
                tracing::info!(pin = id, ?reason, "pins wait for the collector");
            }
            told = reason;
            attempts += 1;
            *tries.entry(id).or_default() += 1;
            sleep(match next {
                Next::Later => LATER,
                _ => backoff(attempts),
            })
            .await;
        }
    }

    async fn bring(
        &self,
        address: SocketAddr,
        pin: wire::Pin,
        has_capture: bool,
    ) -> Result<(), BringError> {
        let channel = connect::channel(address).await?;
        let id = pin.id;
        let minutes = self.pins.whole(id, &self.cancel)?;
        let captured = match has_capture {
            // What cannot be read keeps nobody from the minutes.
            true => self.pins.captured(id).unwrap_or_else(|error| {
                tracing::warn!(pin = id, %error, "the pin is brought without its capture");
                Vec::new()
            }),
            false => Vec::new(),
        };
        let head = PinHead {
            hello: Some(self.exporter.hello()),
            pin: Some(pin),
            has_capture: !captured.is_empty(),
        };
        let (say, queue) = mpsc::channel(OUTGOING);
        let feed = async move {
            let minutes = Chunks::new(minutes).map(Body::Minutes);
            let captured = captured.into_iter().map(Body::Captured);
            for body in std::iter::once(Body::Head(head))
                .chain(minutes)
                .chain(captured)
            {
                let request = KeepRequest { body: Some(body) };
                if say.send(request).await.is_err() {
                    // The answer says why it wants no more.
                    return;
                }
            }
        };
        let mut client = EvidenceServiceClient::new(channel)
            .send_compressed(CompressionEncoding::Zstd)
            .accept_compressed(CompressionEncoding::Zstd);
        let answered = async {
            let call = client.keep(ReceiverStream::new(queue));
            tokio::pin!(call);
            tokio::select! {
                answer = &mut call => answer,
                () = feed => call.await,
            }
        };
        let answer = timeout(BRING_MAX, answered).await;
        let answer = answer.map_err(|_| BringError::Late)?;
        answer.map(drop).map_err(BringError::Status)
    }
}
