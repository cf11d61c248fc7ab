//! Files of pprof by series: Pyroscope's push, and Parca's `WriteRaw`.

use super::{Budget, Labels, Refusal, Senders, Sent, identity_of, pprof_types};
use crate::access::Caller;
use crate::pyroscope::push::v1::pusher_service_server::PusherService;
use crate::pyroscope::push::v1::{PushRequest, PushResponse};
use parca::profile_store_service_server::ProfileStoreService;
use parca::{WriteRawRequest, WriteRawResponse};
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

/// A series: its labels, and its files with what tells them apart.
struct Series {
    labels: Vec<(String, String)>,
    files: Vec<(String, Vec<u8>)>,
}

#[tonic::async_trait]
impl PusherService for Senders {
    async fn push(&self, request: Request<PushRequest>) -> Result<Response<PushResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let request = request.into_inner();
        let bytes = prost::Message::encoded_len(&request);
        let all = request.series.into_iter().map(|series| Series {
            labels: series
                .labels
                .into_iter()
                .map(|pair| (pair.name, pair.value))
                .collect(),
            files: series
                .samples
                .into_iter()
                .map(|one| (one.id, one.raw_profile))
                .collect(),
        });
        let all: Vec<_> = all.collect();
        let decoding = move |now| Ok((profiles(all, now)?, ()));
        self.take(&caller, bytes, |metrics| &metrics.sent_push, decoding)
            .await?;
        Ok(Response::new(PushResponse {}))
    }
}

#[tonic::async_trait]
impl ProfileStoreService for Senders {
    async fn write_raw(
        &self,
        request: Request<WriteRawRequest>,
    ) -> Result<Response<WriteRawResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let request = request.into_inner();
        let bytes = prost::Message::encoded_len(&request);
        let all = request.series.into_iter().map(|series| {
            let labels = series.labels.unwrap_or_default().labels.into_iter();
            Series {
                labels: labels.map(|pair| (pair.name, pair.value)).collect(),
                // They have no ids.
                files: series
                    .samples
                    .into_iter()
                    .map(|one| (String::new(), one.raw_profile))
                    .collect(),
            }
        });
        let all: Vec<_> = all.collect();
        let decoding = move |now| Ok((profiles(all, now)?, ()));
        self.take(&caller, bytes, |metrics| &metrics.sent_write_raw, decoding)
            .await?;
        Ok(Response::new(WriteRawResponse {}))
    }
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
