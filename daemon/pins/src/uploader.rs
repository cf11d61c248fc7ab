//! Uploads pins that have closed to the collector, where they outlive this host.
//!
//! A pin is uploaded as the profile that it answers with, including all labels and times, and with
//! its capture; if the capture finishes later, the pin is uploaded again. A note next to the pin's
//! file says which collector has it, so that it is uploaded once per collector. While the collector
//! is away, pins wait on this host's disk, within their budget. Assembling a pin costs this host's
//! CPU, so after a failure only the head is sent first, and retries back off while the collector
//! answers but rejects the upload.
//!
//! A service on `fp-uplink` does all of it, one pin at a time, newest first, and sleeps when there
//! is none. Work that waits for the disk, or takes long, runs on other threads. Without a collector
//! in the configuration the service does not exist.

use super::{PinError, Pins};
use export::connect::{ConnectError, backoff, is_of_connection};
use export::{Exporter, Quota};
use profile::text::with_causes;
use profile::{Profile, Released};
use prost::Message;
use proto::agent as wire;
use proto::collector::pin_upload_service_client::PinUploadServiceClient;
use proto::collector::upload_pin_request::Body;
use proto::collector::{PinHead, UploadPinRequest};
use proto::convert::Chunks;
use proto::{PIN_HEAP_BYTES_MAX, PIN_PART_BYTES_MAX, Rows};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longest time for one pin: the collector allows as much.
const BRING_MAX: Duration = Duration::from_secs(300);

/// Time between two pins, so that a host that comes back does not bury its collector.
const PACE: Duration = Duration::from_secs(1);

/// Time until the next try where the collector takes no pins for now: a daily limit, an older
/// version.
const LATER: Duration = Duration::from_secs(600);

/// Most failures in a row with a reachable collector until the next try is [`LATER`], because each
/// may have cost assembling a complete pin. A collector that is away costs nothing, and a file that
/// cannot be read little.
const DEAR_TRIES_MAX: u32 = 5;

/// Longest wait for the answer to a head alone. What the collector knows at once, that it has no
/// directory or that it has the pin, it says well within.
const HEAD_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Chunks between the pin and the connection, each up to 256 KiB.
const OUTGOING: usize = 2;

/// Why a pin is not at the collector.
#[derive(Debug, thiserror::Error)]
enum UploadError {
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
    #[error("the collector has not accepted the pin within {} s", BRING_MAX.as_secs())]
    Late,
}

fn code(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "the collector is unavailable",
        Code::InvalidArgument => "the collector refuses the pin",
        Code::ResourceExhausted => "the collector accepts no more pins for now",
        Code::Unimplemented => "the collector is an older version without pins",
        Code::Unauthenticated | Code::PermissionDenied => "the collector does not admit this host",
        _ => "the connection failed",
    }
}

/// What to do with a pin that could not be uploaded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    /// It stays here: it will never be taken.
    Never,
    /// Another try after a while, and a longer one each time.
    Soon,
    /// Another try much later.
    Later,
}

impl UploadError {
    fn next(&self) -> Next {
        match self {
            UploadError::Pin(PinError::Read { source, .. }) => match source.kind() {
                ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound => {
                    Next::Never
                }
                // The disk may come to itself.
                _ => Next::Soon,
            },
            UploadError::Pin(PinError::Decode { .. } | PinError::Assemble { .. }) => Next::Never,
            // Dropped meanwhile, or the thread ends.
            UploadError::Pin(PinError::Unknown(_) | PinError::Query(_)) => Next::Soon,
            UploadError::Status(status) => match status.code() {
                Code::InvalidArgument => Next::Never,
                Code::ResourceExhausted | Code::Unimplemented => Next::Later,
                _ => Next::Soon,
            },
            UploadError::Connect(_) | UploadError::Late => Next::Soon,
        }
    }

    /// True when the next pin should go over another connection.
    fn blames_connection(&self) -> bool {
        match self {
            UploadError::Status(status) => is_of_connection(status),
            UploadError::Late => true,
            UploadError::Connect(_) | UploadError::Pin(_) => false,
        }
    }

    fn is_dear(&self) -> bool {
        matches!(self, UploadError::Status(_) | UploadError::Late)
    }
}

/// Failures since a pin was uploaded.
#[derive(Default)]
struct Failures {
    all: u32,
    dear: u32,
    told: String,
}

impl Failures {
    /// Counts one; the time until the next try.
    fn pause(&mut self, error: &UploadError) -> Duration {
        self.all = self.all.saturating_add(1);
        self.dear = self.dear.saturating_add(u32::from(error.is_dear()));
        match error.next() {
            Next::Later => LATER,
            _ if error.is_dear() && self.dear >= DEAR_TRIES_MAX => LATER,
            // The connection has a back-off of its own.
            _ if matches!(error, UploadError::Connect(_)) => Duration::ZERO,
            _ => backoff(self.all),
        }
    }
}

/// The handle of the service: what the supervisor sees of it.
pub struct PinUploader {
    pins: Arc<Pins>,
    exporter: Arc<Exporter>,
    /// Work of assembling pins, or noting on disk.
    disk: Quota,
    cancel: AtomicBool,
    stop: watch::Sender<bool>,
}

impl PinUploader {
    /// Creates it without starting uploads.
    pub fn new(pins: Arc<Pins>, exporter: Arc<Exporter>) -> PinUploader {
        PinUploader {
            pins,
            exporter,
            disk: Quota::new(1),
            cancel: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        }
    }

    /// Uploads, a service of the uplink: ends soon after [`PinUploader::stop`].
    pub async fn upload(self: Arc<Self>) {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            () = self.bring_all() => {}
            _ = stop.wait_for(|&stop| stop) => {}
        }
        // What is being read is given up soon, and what the collector took is noted.
        self.disk.run(|| ()).await;
    }

    /// Ends the service. An interrupted upload is repeated after the next start.
    pub fn stop(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
    }

    async fn bring_all(self: &Arc<Self>) {
        // One that fails again and again goes behind the others.
        let mut tries: HashMap<u64, u32> = HashMap::new();
        let mut failures = Failures::default();
        loop {
            let to = self.exporter.collector().to_string();
            let Some((pin, has_capture)) = self.pins.next_to_bring(&to, &tries) else {
                tries.clear();
                self.pins.closed.notified().await;
                continue;
            };
            let id = pin.id;
            let counts = &self.pins.counts;
            let head_first = failures.dear > 0;
            let error = match self.upload_pin(pin, has_capture, head_first).await {
                Ok(()) => {
                    counts.uploaded.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(pin = id, "the collector has the pin");
                    self.note(id, to, has_capture, false).await;
                    failures = Failures::default();
                    sleep(PACE).await;
                    continue;
                }
                Err(error) => error,
            };
            let reason: String = with_causes(&error).chars().take(300).collect();
            if error.next() == Next::Never {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(pin = id, ?reason, "the pin stays only on this host");
                self.note(id, to, has_capture, true).await;
                continue;
            }
            counts.upload_failures.fetch_add(1, Ordering::Relaxed);
            if reason != failures.told {
                tracing::info!(pin = id, ?reason, "pins wait for the collector");
            }
            failures.told = reason;
            *tries.entry(id).or_default() += 1;
            sleep(failures.pause(&error)).await;
        }
    }

    /// Notes what became of a pin.
    async fn note(&self, id: u64, to: String, with_capture: bool, refused: bool) {
        let pins = Arc::clone(&self.pins);
        let note = move || pins.note(id, &to, with_capture, refused);
        self.disk.run(note).await;
    }

    async fn upload_pin(
        self: &Arc<Self>,
        pin: wire::Pin,
        has_capture: bool,
        head_first: bool,
    ) -> Result<(), UploadError> {
        let connection = self.exporter.connection();
        let link = connection.link().await?;
        let channel = link.channel.clone();
        let result = tokio::select! {
            result = self.bring_over(channel, pin, has_capture, head_first) => result,
            // Not to a fleet that the host has just left.
            () = connection.moved(&link) => Err(UploadError::Connect(ConnectError::Moved)),
        };
        if result.as_ref().is_err_and(UploadError::blames_connection) {
            connection.give_up(&link);
        }
        result
    }

    async fn bring_over(
        self: &Arc<Self>,
        channel: Channel,
        pin: wire::Pin,
        has_capture: bool,
        head_first: bool,
    ) -> Result<(), UploadError> {
        let mut client = PinUploadServiceClient::new(channel)
            .send_compressed(CompressionEncoding::Zstd)
            .accept_compressed(CompressionEncoding::Zstd);
        let head = |pin, has_capture| PinHead {
            hello: Some(self.exporter.hello()),
            pin: Some(pin),
            has_capture,
        };
        if head_first && ask(&mut client, head(pin.clone(), has_capture)).await? {
            return Ok(());
        }
        let (id, own) = (pin.id, Arc::clone(self));
        let read = move || own.read(id, has_capture);
        let (minutes, captured) = self.disk.run(read).await?;
        let head = head(pin, captured.is_some());
        let (say, queue) = mpsc::channel(OUTGOING);
        let feed = async move {
            let minutes = Chunks::new(minutes.into_inner()).map(Body::Minutes);
            let captured = captured.into_iter().map(Released::into_inner);
            let captured = captured.flat_map(Chunks::new).map(Body::Captured);
            for body in std::iter::once(Body::Head(head))
                .chain(minutes)
                .chain(captured)
            {
                let request = UploadPinRequest { body: Some(body) };
                if say.send(request).await.is_err() {
                    // The answer says why it wants no more.
                    return;
                }
            }
        };
        let answered = async {
            let call = client.upload(ReceiverStream::new(queue));
            tokio::pin!(call);
            tokio::select! {
                answer = &mut call => answer,
                () = feed => call.await,
            }
        };
        let answer = timeout(BRING_MAX, answered).await;
        let answer = answer.map_err(|_| UploadError::Late)?;
        answer.map(drop).map_err(UploadError::Status)
    }

    /// Puts a pin together: its minutes, and what was captured. Blocks.
    fn read(&self, id: u64, has_capture: bool) -> Result<(Released, Option<Released>), PinError> {
        let withhold = self.exporter.withhold();
        let mut minutes = withhold.release(self.pins.whole(id, &self.cancel)?);
        let shed = fit(&mut minutes, PIN_PART_BYTES_MAX, PIN_HEAP_BYTES_MAX);
        if shed > 0 {
            tracing::info!(
                pin = id,
                shed,
                "the pin is uploaded without the times of its samples"
            );
        }
        let captured = match has_capture {
            // What cannot be read keeps nobody from the minutes.
            true => match self.pins.capture(id) {
                Ok(captured) => Some(withhold.release(captured)),
                Err(error) => {
                    tracing::warn!(pin = id, %error, "the pin is uploaded without its capture");
                    None
                }
            },
            false => None,
        };
        Ok((minutes, captured))
    }
}

/// The collector's answer to the head alone: true if it has the pin, an error if it rejects it, and
/// false if it waits for more.
async fn ask(
    client: &mut PinUploadServiceClient<Channel>,
    head: PinHead,
) -> Result<bool, UploadError> {
    let (say, queue) = mpsc::channel(1);
    let body = Some(Body::Head(head));
    // There is room for one, and the call takes it before it ends. `say` lives as long as the call:
    // what ends before its chunks would be refused.
    let _ = say.try_send(UploadPinRequest { body });
    let call = client.upload(ReceiverStream::new(queue));
    match timeout(HEAD_ANSWER_MAX, call).await {
        Err(_) => Ok(false),
        Ok(Ok(answer)) => Ok(answer.get_ref().repeated),
        Ok(Err(status)) => Err(UploadError::Status(status)),
    }
}

/// Leaves out the times of the samples where a collector would refuse the profile for its size,
/// encoded or in memory; how many these were. Unit of the bounds: bytes.
fn fit(released: &mut Released, encoded_max: usize, heap_max: usize) -> u64 {
    let minutes = released.profile();
    // Tables that grow, as the collector's do, take up to twice what is in them.
    let fits = 2 * minutes.heap_bytes() <= heap_max
        && (Rows::of(minutes).encoded_bytes_max() <= encoded_max
            // The bound is about twice what there is: only where it says no it is worth to measure.
            || encoded_bytes(minutes) <= encoded_max);
    match fits {
        true => 0,
        false => released.shed_timestamps(),
    }
}

fn encoded_bytes(profile: &Profile) -> usize {
    let chunks = Chunks::new(profile);
    chunks.map(|chunk| chunk.encoded_len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{LabelSetId, SampleKey, StackEnd, StackId, Timestamp, Withholding};

    fn status(code: Code) -> UploadError {
        UploadError::Status(Status::new(code, "as the test wants"))
    }

    #[test]
    fn a_collector_that_answers_and_takes_nothing_is_asked_seldom() {
        let mut failures = Failures::default();
        for _ in 1..DEAR_TRIES_MAX {
            assert!(failures.pause(&status(Code::Unavailable)) < LATER);
        }
        assert_eq!(failures.pause(&status(Code::Unavailable)), LATER);
        assert_eq!(failures.pause(&status(Code::Internal)), LATER);
    }

    #[test]
    fn only_what_can_never_be_taken_is_given_up() {
        let read = |kind: ErrorKind| {
            let source = kind.into();
            UploadError::Pin(PinError::Read { id: 1, source }).next()
        };
        assert_eq!(read(ErrorKind::InvalidData), Next::Never);
        assert_eq!(read(ErrorKind::PermissionDenied), Next::Soon);
        assert_eq!(status(Code::InvalidArgument).next(), Next::Never);
        assert_eq!(status(Code::OutOfRange).next(), Next::Soon);
        assert_eq!(UploadError::Pin(PinError::Unknown(1)).next(), Next::Soon);
    }

    #[test]
    fn times_that_a_collector_has_no_room_for_are_left_out_and_counted() {
        let key = SampleKey {
            labels: LabelSetId::default(),
            stack: StackId::EMPTY,
            end: StackEnd::Complete,
        };
        let (at_ns, weight) = (0, u64::MAX);
        let timestamp = Timestamp { at_ns, key, weight };
        let mut minutes = Profile::default();
        minutes.timestamps.list = vec![timestamp; 1000];
        let (encoded, heap) = (encoded_bytes(&minutes), 2 * minutes.heap_bytes());
        let mut minutes = Withholding::nothing().release(minutes);
        assert_eq!(fit(&mut minutes, encoded, heap), 0);
        assert_eq!(fit(&mut minutes.clone(), encoded - 1, heap), 1000);
        assert_eq!(fit(&mut minutes, encoded, heap - 1), 1000);
        let timestamps = minutes.into_inner().timestamps;
        assert_eq!((timestamps.list.len(), timestamps.dropped), (0, 1000));
    }
}
