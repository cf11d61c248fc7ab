//! Takes profiles that no agent took: of SDKs, scrapers and agents of others.
//!
//! Each protocol has a room: Pyroscope's push and Parca's `WriteRaw` (`push.rs`), Pyroscope's
//! `/ingest` (`ingest.rs`), and OpenTelemetry's (`otlp`). All of them make `Sent` profiles, which
//! become windows (`window.rs`) of the store of other senders. That is another store than that of
//! agents ([`crate::store::OfType`]), so nothing here can change what is said of CPU time of the
//! fleet.
//!
//! A sender is the token it comes with. Its requests are bounded in number (`places.rs`), size,
//! rate and number of series (`accounts.rs`); what is over a bound is refused with a sentence and
//! counted.

mod accounts;
mod fields;
mod ingest;
mod kinds;
pub(crate) mod otlp;
mod places;
mod push;
mod unread;
mod window;

pub use ingest::read_ingest;
pub(crate) use ingest::{INGEST_PATH, INGEST_PATH_LONG, ingested};
pub use otlp::read_otlp;
pub(crate) use places::steady;
pub use push::read_push;
pub use unread::Unread;

use crate::access::Caller;
use crate::gunzip::{GunzipError, gunzip};
use crate::metrics::Metrics;
use crate::pyroscope::push::v1::pusher_service_server::PusherServiceServer;
use crate::query::RETRY_AFTER;
use crate::store::{PushOutcome, StoreError, WindowSink};
use crate::time::Clock;
use accounts::Accounts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use metrics::Counter;
use places::{Places, REQUEST_TIMEOUT};
use profile::formats::pprof::{self, Typed};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::{Code, Status};

/// Requests that are decoded at a time. A file of pprof that is made to hurt takes forty times its
/// size in memory.
const DECODED_MAX: usize = 2;

/// Largest file of pprof, unpacked. Unit: bytes. Those of SDKs have some hundred KiB.
pub(crate) const PPROF_BYTES_MAX: usize = 16 << 20;

/// Most bytes of all labels of a request, in every set that has them: samples of some bytes may
/// each have the labels of their series and one of their own.
pub(crate) const LABEL_BYTES_MAX: usize = 64 << 20;

/// Most memory of all profiles of a request, decoded. Unit: bytes. What is small on the wire may be
/// large: names that many profiles refer to, places with thousands of inlined functions.
const DECODED_BYTES_MAX: usize = 128 << 20;

/// When it is worth trying again. Unit: seconds.
const AGAIN_S: u64 = 5;

/// Limits for other senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderOptions {
    /// One request, unpacked. Unit: bytes.
    pub request_bytes: usize,
    /// What one sender may send in a minute, unpacked. Unit: bytes.
    pub bytes_per_minute: u64,
    /// Series of one sender in an hour.
    pub series: usize,
}

/// Takes profiles; clones share everything.
#[derive(Clone)]
pub struct Senders(Arc<Inner>);

struct Inner {
    store: Arc<dyn WindowSink>,
    options: SenderOptions,
    accounts: Accounts,
    places: Places,
    decoding: Arc<Semaphore>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// Labels as they were sent; many profiles of a request may have the same.
pub(crate) type Labels = Arc<[(String, String)]>;

/// Memory of labels. Unit: bytes.
pub(crate) fn size(labels: &Labels) -> usize {
    let sizes = labels.iter().map(|(name, value)| name.len() + value.len());
    sizes.sum()
}

/// A profile with what its protocol says besides.
pub(crate) struct Sent {
    /// First part of the id of the profile type: `memory`.
    pub name: String,
    /// Labels of the series.
    pub labels: Labels,
    /// Its time where the profile itself has none. Unit: nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// The end of that.
    pub end_unix_ns: i64,
    /// What tells it from all others of its series: the same when it is sent again.
    pub identity: [u8; 32],
    /// The samples of one of its types.
    pub typed: Typed,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Malformed,
    TooLarge,
    Rate,
    Series,
    Rejected,
    Busy,
    Unavailable,
}

impl Cause {
    fn counter(self, metrics: &Metrics) -> &Counter {
        match self {
            Cause::Malformed => &metrics.sent_malformed,
            Cause::TooLarge => &metrics.sent_too_large,
            Cause::Rate => &metrics.sent_rate,
            Cause::Series => &metrics.sent_series,
            Cause::Rejected => &metrics.sent_rejected,
            Cause::Busy => &metrics.sent_busy,
            Cause::Unavailable => &metrics.sent_unavailable,
        }
    }
}

/// What a request may still cost while it is decoded, which nothing interrupts from outside.
pub(crate) struct Budget {
    bytes_left: usize,
    until: Instant,
}

impl Budget {
    pub fn new() -> Budget {
        Budget {
            bytes_left: DECODED_BYTES_MAX,
            until: Instant::now() + REQUEST_TIMEOUT,
        }
    }

    /// Takes a profile that was decoded.
    ///
    /// # Errors
    /// When all of them are too large, or took too long.
    pub fn spend(&mut self, profile: &profile::Profile) -> Result<(), Refusal> {
        let left = self.bytes_left.checked_sub(profile.heap_bytes());
        self.bytes_left = left.ok_or_else(|| {
            Refusal::too_large(format!(
                "failed to decode the request: its profiles take more than {DECODED_BYTES_MAX} \
                 bytes of memory"
            ))
        })?;
        if Instant::now() > self.until {
            let seconds = REQUEST_TIMEOUT.as_secs();
            return Err(Refusal::too_large(format!(
                "failed to decode the request: it took more than {seconds} s"
            )));
        }
        Ok(())
    }
}

/// A refusal: why, in which counter, and whether coming again helps.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub cause: Cause,
    pub text: String,
}

impl Refusal {
    pub fn malformed(text: impl ToString) -> Refusal {
        Refusal {
            cause: Cause::Malformed,
            text: text.to_string(),
        }
    }

    pub fn too_large(text: impl ToString) -> Refusal {
        Refusal {
            cause: Cause::TooLarge,
            text: text.to_string(),
        }
    }

    fn status(self) -> Status {
        let code = match self.cause {
            Cause::Malformed | Cause::Rejected => Code::InvalidArgument,
            Cause::TooLarge => Code::OutOfRange,
            Cause::Rate | Cause::Series | Cause::Busy => Code::ResourceExhausted,
            Cause::Unavailable => Code::Unavailable,
        };
        let mut status = Status::new(code, self.text);
        if matches!(self.cause, Cause::Rate | Cause::Busy | Cause::Unavailable) {
            status.metadata_mut().insert(RETRY_AFTER, AGAIN_S.into());
        }
        status
    }
}

/// The pusher as a server of gRPC.
pub type Pusher = PusherServiceServer<Senders>;

/// Parca's service as a server of gRPC.
pub type Parca = push::parca::profile_store_service_server::ProfileStoreServiceServer<Senders>;

impl Senders {
    /// Stores in `store` what it takes.
    pub fn new(
        store: Arc<dyn WindowSink>,
        options: SenderOptions,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Senders {
        Senders(Arc::new(Inner {
            store,
            accounts: Accounts::new(options.bytes_per_minute, options.series),
            options,
            places: Places::new(),
            decoding: Arc::new(Semaphore::new(DECODED_MAX)),
            clock,
            metrics,
        }))
    }

    /// As a server of gRPC, of OTLP.
    pub fn profiles(self) -> otlp::Profiles {
        let most = self.0.options.request_bytes;
        otlp::Profiles::new(self)
            .max_decoding_message_size(most)
            .accept_compressed(Gzip)
    }

    /// As a server of gRPC, of Parca's call.
    pub fn parca(self) -> Parca {
        let most = self.0.options.request_bytes;
        Parca::new(self)
            .max_decoding_message_size(most)
            .accept_compressed(Gzip)
    }

    /// As a server of gRPC, of Pyroscope's push.
    pub fn pusher(self) -> Pusher {
        let most = self.0.options.request_bytes;
        PusherServiceServer::new(self)
            .max_decoding_message_size(most)
            .accept_compressed(Gzip)
    }

    /// Largest request, unpacked. Unit: bytes.
    pub(crate) fn request_bytes(&self) -> usize {
        self.0.options.request_bytes
    }

    /// The body of a request.
    ///
    /// # Errors
    /// OUT_OF_RANGE when it is too large, INVALID_ARGUMENT when it ended early.
    pub(crate) async fn body<B: Body>(&self, body: B) -> Result<Bytes, Status>
    where
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let most = self.0.options.request_bytes;
        let body = Limited::new(steady(body), most)
            .collect()
            .await
            .map_err(|error| {
                self.refuse(match error.is::<LengthLimitError>() {
                    true => Refusal::too_large(format!(
                        "failed to read the request: it has more than {most} bytes \
                     (`senders.request_mib`)"
                    )),
                    false => Refusal::malformed("failed to read the request: it ended early"),
                })
            })?;
        Ok(body.to_bytes())
    }

    /// Unpacks what starts as gzip does, whatever a header says of it, up to `most` bytes.
    ///
    /// # Errors
    /// OUT_OF_RANGE when it is too large, INVALID_ARGUMENT when it is damaged.
    pub(crate) async fn unpacked(&self, body: Bytes, most: usize) -> Result<Bytes, Status> {
        let too_large = || {
            Refusal::too_large(format!(
                "failed to read the request: it has more than {most} bytes, unpacked \
                 (`senders.request_mib`)"
            ))
        };
        let unpacked = match (body.starts_with(&[0x1f, 0x8b]), body.len() > most) {
            (false, true) => Err(too_large()),
            (false, false) => Ok(body),
            (true, _) => {
                let unpacking = tokio::task::spawn_blocking(move || gunzip(&body, most));
                let unpacked = unpacking.await;
                let unpacked = unpacked.map_err(|_| Status::internal("failed to unpack"))?;
                unpacked.map(Bytes::from).map_err(|error| match error {
                    GunzipError::TooLarge => too_large(),
                    GunzipError::Damaged(error) => {
                        Refusal::malformed(format!("failed to unpack the request: {error}"))
                    }
                })
            }
        };
        unpacked.map_err(|refusal| self.refuse(refusal))
    }

    /// Decodes a request of so many bytes and stores what is in it: all of it, or nothing. Returns
    /// what else `decode` found.
    ///
    /// # Errors
    /// When anything of it is refused; the sender is informed by the sentence.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        caller: &Caller,
        bytes: usize,
        protocol: fn(&Metrics) -> &Counter,
        decode: impl FnOnce(i64) -> Result<(Vec<Sent>, T), Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        caller.sees_all("send profiles")?;
        let now = self.0.clock.now_unix_ns();
        let inner = self.0.clone();
        let sender = caller.name.clone();
        let admitted = inner.accounts.bytes(&sender, bytes as u64, now);
        admitted.map_err(|refusal| self.refuse(refusal))?;
        let Ok(place) = inner.decoding.clone().acquire_owned().await else {
            return Err(Status::unavailable("the collector is shutting down"));
        };
        let storing = tokio::task::spawn_blocking(move || {
            let _place = place;
            let (sent, found) = decode(now)?;
            inner.store(&sender, sent, now, protocol)?;
            Ok(found)
        });
        let stored = storing.await.unwrap_or_else(|_| {
            tracing::error!("a request of a sender panicked");
            Err(Refusal {
                cause: Cause::Unavailable,
                text: "the request failed in the collector".to_owned(),
            })
        });
        stored.map_err(|refusal| self.refuse(refusal))
    }
}

impl Inner {
    fn store(
        &self,
        sender: &str,
        sent: Vec<Sent>,
        now: i64,
        protocol: fn(&Metrics) -> &Counter,
    ) -> Result<(), Refusal> {
        let mut windows = Vec::new();
        let mut definitions = Vec::new();
        let mut label_bytes_left = LABEL_BYTES_MAX;
        for one in sent {
            let (window, defined) =
                window::window(sender, one, &mut label_bytes_left, &self.metrics)?;
            // A profile without samples says that there were none, which is what is there without
            // it.
            if !window.rows.is_empty() {
                windows.push(window);
                definitions.push(defined);
            }
        }
        if windows.is_empty() {
            return Ok(());
        }
        let series = windows.iter().map(|window| &*window.origin.host.host_id);
        self.accounts.series(sender, series, now)?;
        let outcomes = self.store.push_defined(&windows, &definitions, now);
        let outcomes = outcomes.map_err(|error| Refusal {
            cause: match error {
                StoreError::TooLarge(_) => Cause::TooLarge,
                _ => Cause::Unavailable,
            },
            text: error.to_string(),
        })?;
        let mut refused = None;
        for outcome in outcomes {
            let (cause, text) = match outcome {
                PushOutcome::Stored => {
                    protocol(&self.metrics).inc();
                    continue;
                }
                PushOutcome::Duplicate => {
                    self.metrics.sent_repeated.inc();
                    continue;
                }
                PushOutcome::Rejected(why) => (
                    Cause::Rejected,
                    format!("failed to store the profile: {why}"),
                ),
                PushOutcome::Unavailable(why) => (Cause::Unavailable, why),
                PushOutcome::NeedStacks(_) | PushOutcome::NeedCallers(_) => (
                    Cause::Unavailable,
                    "the store does not know the stacks of the profile".to_owned(),
                ),
            };
            refused.get_or_insert(Refusal { cause, text });
        }
        refused.map_or(Ok(()), Err)
    }
}

/// The types of a file of pprof.
fn pprof_types(bytes: &[u8], budget: &mut Budget) -> Result<Vec<Typed>, Refusal> {
    let types = pprof::Types::decode(bytes, PPROF_BYTES_MAX as u64).map_err(pprof_refusal)?;
    let each = (0..types.count()).map(|place| {
        let typed = types.read(place).map_err(pprof_refusal)?;
        budget.spend(&typed.profile)?;
        Ok(typed)
    });
    each.collect()
}

/// What tells the profile of one type of a file from those of others: two may have the same id.
fn identity_of(mut of_file: blake3::Hasher, number: usize) -> [u8; 32] {
    of_file.update(&number.to_le_bytes());
    of_file.finalize().into()
}

fn pprof_refusal(error: pprof::DecodeError) -> Refusal {
    let causes = std::iter::successors(std::error::Error::source(&error), |of| of.source());
    let chain = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    match error {
        pprof::DecodeError::TooLarge { .. } | pprof::DecodeError::TooManyFrames { .. } => {
            Refusal::too_large(chain)
        }
        _ => Refusal::malformed(chain),
    }
}
