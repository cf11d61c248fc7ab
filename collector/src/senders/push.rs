//! Files of pprof by series: Pyroscope's push, and Parca's `WriteRaw`.

use super::fields::{self, Damaged};
use super::{Budget, Labels, Refusal, Senders, Sent, Unread, identity_of, pprof_types};
use crate::access::Caller;
use crate::metrics::Metrics;
use crate::pyroscope::push::v1::pusher_service_server::PusherService;
use crate::pyroscope::push::v1::{PushResponse, RawProfileSeries};
use metrics::Counter;
use parca::WriteRawResponse;
use parca::profile_store_service_server::ProfileStoreService;
use prost::{DecodeError, Message};
use tonic::{Request, Response, Status};

/// Label with the name of the profile type.
const NAME: &str = "__name__";

/// Most profiles of a request. SDKs send one.
const PROFILES_MAX: usize = 1000;

/// The generated messages and service of Parca.
#[expect(clippy::allow_attributes, reason = "generated")]
pub(super) mod parca {
    tonic::include_proto!("parca.profilestore.v1alpha1");
}

/// Most series, labels and profiles of a request: each takes some bytes of it, and a hundred in
/// memory.
const PARTS_MAX: usize = 64 << 10;

/// A series: its labels, and its files with what tells them apart.
struct Series {
    labels: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
}

/// Whose messages a request has.
#[derive(Clone, Copy)]
enum Dialect {
    Pyroscope,
    Parca,
}

impl Dialect {
    /// Number of the field with the series.
    fn series(self) -> u32 {
        match self {
            Dialect::Pyroscope => 1,
            Dialect::Parca => 2,
        }
    }

    /// How many labels and files a series has.
    fn parts(self, series: &[u8]) -> Result<usize, Damaged> {
        let (mut rest, mut parts) = (series, 0);
        while !rest.is_empty() {
            parts += match (self, fields::next(&mut rest)?) {
                (Dialect::Parca, (labels, 1)) => fields::count(labels, 1)?,
                _ => 1,
            };
        }
        Ok(parts)
    }

    fn decode(self, series: &[u8]) -> Result<Series, DecodeError> {
        Ok(match self {
            Dialect::Pyroscope => {
                let RawProfileSeries { labels, samples } = Message::decode(series)?;
                let labels = labels.into_iter().map(|pair| (pair.name, pair.value));
                let files = samples.into_iter().map(|one| (one.id, one.raw_profile));
                Series {
                    labels: labels.collect(),
                    files: files.collect(),
                }
            }
            Dialect::Parca => {
                let parca::RawProfileSeries { labels, samples } = Message::decode(series)?;
                let labels = labels.unwrap_or_default().labels.into_iter();
                // They have no ids.
                let files = samples
                    .into_iter()
                    .map(|one| (String::new(), one.raw_profile));
                Series {
                    labels: labels.map(|pair| (pair.name, pair.value)).collect(),
                    files: files.collect(),
                }
            }
        })
    }
}

#[tonic::async_trait]
impl PusherService for Senders {
    async fn push(&self, request: Request<Unread>) -> Result<Response<PushResponse>, Status> {
        self.pushed(request, Dialect::Pyroscope, |metrics| &metrics.sent_push)
            .await?;
        Ok(Response::new(PushResponse {}))
    }
}

#[tonic::async_trait]
impl ProfileStoreService for Senders {
    async fn write_raw(
        &self,
        request: Request<Unread>,
    ) -> Result<Response<WriteRawResponse>, Status> {
        self.pushed(request, Dialect::Parca, |metrics| &metrics.sent_write_raw)
            .await?;
        Ok(Response::new(WriteRawResponse {}))
    }
}

impl Senders {
    async fn pushed(
        &self,
        request: Request<Unread>,
        dialect: Dialect,
        protocol: fn(&Metrics) -> &Counter,
    ) -> Result<(), Status> {
        let caller = Caller::of(request.extensions())?;
        let Unread(bytes) = request.into_inner();
        let size = bytes.len();
        let decoding = move |now| Ok((profiles(series(&bytes, dialect)?, now)?, ()));
        self.take(&caller, size, protocol, decoding).await
    }
}

/// Reads a request, for tests of hostile input; returns how many profiles it has.
///
/// # Errors
/// When it is refused.
#[doc(hidden)]
pub fn read_push(is_parca: bool, body: &[u8]) -> Result<usize, String> {
    let dialect = match is_parca {
        true => Dialect::Parca,
        false => Dialect::Pyroscope,
    };
    let sent = series(body, dialect).and_then(|all| profiles(all, 1_700_000_000_000_000_000));
    sent.map(|sent| sent.len()).map_err(|refusal| refusal.text)
}

/// The series of a request, which are counted before anything of them is decoded.
fn series(request: &[u8], dialect: Dialect) -> Result<Vec<Series>, Refusal> {
    let wrong = |error: &dyn std::fmt::Display| {
        Refusal::malformed(format!("failed to read the request: {error}"))
    };
    let (mut rest, mut all, mut parts) = (request, Vec::new(), 0);
    while !rest.is_empty() {
        let (part, field) = fields::next(&mut rest).map_err(|error| wrong(&error))?;
        if field != dialect.series() {
            continue;
        }
        parts += 1 + dialect.parts(part).map_err(|error| wrong(&error))?;
        if parts > PARTS_MAX {
            return Err(Refusal::too_large(format!(
                "failed to read the request: it has more than {PARTS_MAX} series, labels and \
                 profiles"
            )));
        }
        all.push(dialect.decode(part).map_err(|error| wrong(&error))?);
    }
    Ok(all)
}

/// The profiles of a request.
fn profiles(all: Vec<Series>, now_unix_ns: i64) -> Result<Vec<Sent>, Refusal> {
    if all.iter().map(|series| series.files.len()).sum::<usize>() > PROFILES_MAX {
        return Err(Refusal::too_large(format!(
            "failed to read the request: it has more than {PROFILES_MAX} profiles"
        )));
    }
    let (mut sent, mut budget) = (Vec::new(), Budget::new());
    for Series { mut labels, files } in all {
        let named = labels.iter().position(|(name, _)| name == NAME);
        let Some(named) = named else {
            return Err(Refusal::malformed(format!(
                "failed to read the request: a series has no label `{NAME}`"
            )));
        };
        let (_, name) = labels.remove(named);
        let labels: Labels = labels.into();
        for (id, file) in files {
            let mut hasher = blake3::Hasher::new();
            hasher.update(id.as_bytes()).update(&file);
            let types = pprof_types(&file, &mut budget)?.into_iter().enumerate();
            sent.extend(types.map(|(at, typed)| Sent {
                name: name.clone(),
                labels: labels.clone(),
                start_unix_ns: now_unix_ns,
                end_unix_ns: 0,
                identity: identity_of(hasher.clone(), at),
                typed,
            }));
        }
    }
    Ok(sent)
}
