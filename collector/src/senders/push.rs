//! Pyroscope's push: files of pprof by series.

use super::{Refusal, Senders, Sent, pprof_types};
use crate::access::Caller;
use crate::pyroscope::push::v1::pusher_service_server::PusherService;
use crate::pyroscope::push::v1::{PushRequest, PushResponse, RawProfileSeries, RawSample};
use tonic::{Request, Response, Status};

/// Label with the name of the profile type.
const NAME: &str = "__name__";

/// Most profiles of a request. SDKs send one.
const PROFILES_MAX: usize = 1000;

#[tonic::async_trait]
impl PusherService for Senders {
    async fn push(&self, request: Request<PushRequest>) -> Result<Response<PushResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let request = request.into_inner();
        let bytes = prost::Message::encoded_len(&request);
        let decoding = move |now| Ok((profiles(request, now)?, ()));
        self.take(&caller, bytes, |metrics| &metrics.sent_push, decoding)
            .await?;
        Ok(Response::new(PushResponse {}))
    }
}

/// The profiles of a request.
fn profiles(request: PushRequest, now_unix_ns: i64) -> Result<Vec<Sent>, Refusal> {
    let all = request.series.iter().map(|series| series.samples.len());
    if all.sum::<usize>() > PROFILES_MAX {
        return Err(Refusal::too_large(format!(
            "failed to read the request: it has more than {PROFILES_MAX} profiles"
        )));
    }
    let mut sent = Vec::new();
    for RawProfileSeries { labels, samples } in request.series {
        let named = labels.iter().find(|pair| pair.name == NAME);
        let Some(name) = named.map(|pair| pair.value.clone()) else {
            return Err(Refusal::malformed(format!(
                "failed to read the request: a series has no label `{NAME}`"
            )));
        };
        let pairs = labels.into_iter().filter(|pair| pair.name != NAME);
        let labels: Vec<_> = pairs.map(|pair| (pair.name, pair.value)).collect();
        for RawSample { raw_profile, id } in samples {
            let mut hasher = blake3::Hasher::new();
            hasher.update(id.as_bytes()).update(&raw_profile);
            let identity = hasher.finalize().into();
            sent.extend(pprof_types(&raw_profile)?.into_iter().map(|typed| Sent {
                name: name.clone(),
                labels: labels.clone(),
                start_unix_ns: now_unix_ns,
                end_unix_ns: 0,
                identity,
                typed,
            }));
        }
    }
    Ok(sent)
}
