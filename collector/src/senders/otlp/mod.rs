//! OTLP profiles: `ProfilesService/Export` over gRPC, and over HTTP in protocol buffers and JSON.
//!
//! Releases from 1.8 on are read; which one it is, is told by what is sent (`layout.rs`). Profiles
//! become files of pprof in memory (`convert.rs`), whose reader is the one for all that strangers
//! send.

mod convert;
mod layout;
mod tables;

use super::fields;
use super::kinds::name_of;
use super::{
    Budget, LABEL_BYTES_MAX, Labels, PPROF_BYTES_MAX, Refusal, Senders, Sent, Unread, identity_of,
    size,
};
use crate::access::Caller;
use crate::ingest::limits::LABELS_PER_SET_MAX;
use crate::metrics::Metrics;
pub(crate) use crate::otlp::HTTP_PATH as PATH;
use crate::otlp::messages::{JsonRequest, Profile, ResourceProfiles, Scope};
use crate::otlp::wire;
pub(crate) use crate::otlp::wire::ExportProfilesServiceResponse;
use crate::pyroscope::SERVICE_NAME;
use crate::query::RETRY_AFTER;
use bytes::Bytes;
use convert::LOCATIONS_MAX;
use layout::{Generation, Layout};
use metrics::Counter;
use profile::formats::pprof;
use prost::Message;
use std::collections::HashSet;
use tables::Tables;
use tonic::{Code, Request, Status};
use wire::profiles_service_server::{ProfilesService, ProfilesServiceServer};
use wire::{ExportProfilesPartialSuccess, ExportProfilesServiceRequest};

/// Largest request in JSON, whose messages take twenty times their size in memory. Unit: bytes.
const JSON_BYTES_MAX: usize = PPROF_BYTES_MAX;

/// Most resources of a request, with their attributes, scopes and profiles.
const PARTS_MAX: usize = 1 << 20;

/// Most samples of a request: each takes some bytes of it, and 200 in memory.
const SAMPLES_MAX: usize = 1 << 20;

/// Most profiles of a request that have samples: each becomes a window, of some KiB.
const PROFILES_MAX: usize = 16 << 10;

/// Labels that are not the resource's: those of the scope, and those that the collector sets.
const OTHER_LABELS: usize = 8;

/// Attributes of resources that are another for each process, or longer than a label may be.
const LEFT_OUT: [&str; 6] = [
    "process.pid",
    "process.parent_pid",
    "process.command",
    "process.command_line",
    "process.command_args",
    "process.executable.path",
];

/// The same, of attributes with a name of their own behind this.
const LEFT_OUT_BELOW: &str = "process.environment_variable.";

/// The exporter's service as a server of gRPC.
pub type Profiles = ProfilesServiceServer<Senders>;

#[tonic::async_trait]
impl ProfilesService for Senders {
    async fn export(
        &self,
        request: Request<Unread>,
    ) -> Result<tonic::Response<ExportProfilesServiceResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let Unread(bytes) = request.into_inner();
        let answer = self.exported(&caller, Codec::Proto, bytes).await;
        Ok(tonic::Response::new(answer.map_err(retryable)?))
    }
}

impl Senders {
    /// Stores what a request over HTTP has, whose body may be packed.
    ///
    /// # Errors
    /// As [`Senders::take`].
    pub(crate) async fn posted(
        &self,
        caller: &Caller,
        codec: Codec,
        body: Bytes,
    ) -> Result<ExportProfilesServiceResponse, Status> {
        let most = match codec {
            Codec::Proto => self.request_bytes(),
            Codec::Json => self.request_bytes().min(JSON_BYTES_MAX),
        };
        let plain = self.unpacked(body, most).await?;
        self.exported(caller, codec, plain).await
    }

    async fn exported(
        &self,
        caller: &Caller,
        codec: Codec,
        plain: Bytes,
    ) -> Result<ExportProfilesServiceResponse, Status> {
        let metrics = self.0.metrics.clone();
        let bytes = plain.len();
        let decode = move |now| decoded(read(codec, plain)?, now, &metrics);
        let protocol: fn(&Metrics) -> &Counter = |metrics| &metrics.sent_otlp;
        let release = self.take(caller, bytes, protocol, decode).await?;
        // The newest says nothing.
        let partial_success = release.map(|release| ExportProfilesPartialSuccess {
            rejected_profiles: 0,
            error_message: format!(
                "decoded as OTLP profiles {release}, which is older than what this collector \
                 expects (1.10 or later)"
            ),
        });
        Ok(ExportProfilesServiceResponse { partial_success })
    }
}

/// What may come again has another code in OTLP over gRPC: exporters repeat that.
fn retryable(status: Status) -> Status {
    if status.code() == Code::ResourceExhausted && status.metadata().contains_key(RETRY_AFTER) {
        return Status::unavailable(status.message());
    }
    status
}

/// How a request over HTTP is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Proto,
    Json,
}

fn read(codec: Codec, plain: Bytes) -> Result<ExportProfilesServiceRequest, Refusal> {
    let wrong = |error: &dyn std::fmt::Display| unread("the request", error);
    match codec {
        Codec::Proto => {
            if fields::count(&plain, 1).map_err(|error| wrong(&error))? > PARTS_MAX {
                return Err(too_many_parts());
            }
            ExportProfilesServiceRequest::decode(plain).map_err(|error| wrong(&error))
        }
        Codec::Json => {
            let request: JsonRequest =
                serde_json::from_slice(&plain).map_err(|error| wrong(&error))?;
            Ok(ExportProfilesServiceRequest {
                resource_profiles: request.resource_profiles,
                dictionary: request.dictionary.encode_to_vec().into(),
            })
        }
    }
}

/// Reads a request, for tests of hostile input; returns how many profiles it has.
///
/// # Errors
/// When it is refused.
#[doc(hidden)]
pub fn read_otlp(is_json: bool, body: &[u8]) -> Result<usize, String> {
    let codec = if is_json { Codec::Json } else { Codec::Proto };
    let text = |refusal: Refusal| refusal.text;
    let request = read(codec, Bytes::copy_from_slice(body)).map_err(text)?;
    let all = profiles(request, 1_700_000_000_000_000_000, &Metrics::default());
    Ok(all.map_err(text)?.0.len())
}

/// The profiles of a request, and its release where that is an older one. What was read is
/// counted by its layout.
fn decoded(
    request: ExportProfilesServiceRequest,
    now_unix_ns: i64,
    metrics: &Metrics,
) -> Result<(Vec<Sent>, Option<&'static str>), Refusal> {
    let (sent, layout, generation) = profiles(request, now_unix_ns, metrics)?;
    let (counter, release) = match (layout, generation) {
        (Layout::New, _) => (&metrics.sent_otlp_new, None),
        (Layout::Either, _) => (&metrics.sent_otlp_either, None),
        (Layout::Old, Generation::V8) => (&metrics.sent_otlp_1_8, Some("1.8")),
        (Layout::Old, _) => (&metrics.sent_otlp_1_9, Some("1.9")),
    };
    counter.inc();
    Ok((sent, release))
}

fn profiles(
    request: ExportProfilesServiceRequest,
    now_unix_ns: i64,
    metrics: &Metrics,
) -> Result<(Vec<Sent>, Layout, Generation), Refusal> {
    // The same when it is sent again.
    let mut hasher = blake3::Hasher::new();
    hasher.update(&request.dictionary);
    let mut resources = Vec::new();
    let mut parts_left = PARTS_MAX;
    for bytes in request.resource_profiles {
        hasher.update(&bytes);
        resources.push(resource(bytes, &mut parts_left)?);
    }
    let generation = generation(&resources, metrics)?;
    let tables = Tables::new(request.dictionary);
    let tables = tables.map_err(|error| unread("the dictionary", &error))?;
    let read = labelled(resources, &tables, metrics)?;
    let samples = read.iter().flat_map(|(_, profile)| &profile.samples);
    let layout = layout::of_all(samples.map(|bytes| &bytes[..]), tables.sizes())?;
    let (mut locations_left, mut budget) = (LOCATIONS_MAX, Budget::new());
    let mut sent = Vec::with_capacity(read.len());
    for (number, (labels, profile)) in read.into_iter().enumerate() {
        let message = convert::pprof(&profile, layout, &tables, &mut locations_left)?;
        drop(profile);
        let types = pprof::Types::new(message).map_err(super::pprof_refusal)?;
        // Of samples of CPU time, the second type is the time.
        let typed = types.read(types.count() - 1);
        let typed = typed.map_err(super::pprof_refusal)?;
        budget.spend(&typed.profile)?;
        let name = match name_of(&[&typed.sample_type.name]) {
            "other" => typed.sample_type.name.clone(),
            name => name.to_owned(),
        };
        sent.push(Sent {
            name,
            labels,
            start_unix_ns: now_unix_ns,
            end_unix_ns: 0,
            identity: identity_of(hasher.clone(), number),
            typed,
        });
    }
    Ok((sent, layout, generation))
}

/// Which generation profiles are of, told by their fields before anything else of them is read.
fn generation(resources: &[ResourceProfiles], metrics: &Metrics) -> Result<Generation, Refusal> {
    let (mut generation, mut samples) = (Generation::Later, 0);
    for bytes in resources.iter().flat_map(all_profiles) {
        let found = layout::generation(bytes).map_err(|error| unread("a profile", &error))?;
        samples += found.1;
        if samples > SAMPLES_MAX {
            return Err(Refusal::too_large(format!(
                "failed to read the profiles: they have more than {SAMPLES_MAX} samples"
            )));
        }
        match found.0 {
            Generation::Before => {
                metrics.sent_otlp_old.inc();
                return Err(Refusal::malformed(
                    "failed to read the profiles: they are of OTLP 1.7 or earlier; this collector \
                     reads 1.8 and later, which OpenTelemetry collectors send from 0.136 on",
                ));
            }
            Generation::V8 => generation = Generation::V8,
            Generation::Later => {}
        }
    }
    Ok(generation)
}

/// The profiles that have samples, each with the labels of its resource.
fn labelled(
    resources: Vec<ResourceProfiles>,
    tables: &Tables,
    metrics: &Metrics,
) -> Result<Vec<(Labels, Profile)>, Refusal> {
    let mut read = Vec::new();
    let mut label_bytes = 0;
    for resource in resources {
        let base = labels(&resource, tables, metrics);
        for scoped in resource.scope_profiles {
            let labels: Labels = with_scope(&base, scoped.scope).into();
            label_bytes += size(&labels);
            if label_bytes > LABEL_BYTES_MAX {
                return Err(Refusal::too_large(format!(
                    "failed to read the resources: their attributes have more than \
                     {LABEL_BYTES_MAX} bytes"
                )));
            }
            for bytes in scoped.profiles {
                let profile = Profile::decode(bytes);
                let profile = profile.map_err(|error| unread("a profile", &error))?;
                if profile.samples.is_empty() {
                    continue;
                }
                if read.len() == PROFILES_MAX {
                    return Err(Refusal::too_large(format!(
                        "failed to read the profiles: they are more than {PROFILES_MAX}"
                    )));
                }
                read.push((labels.clone(), profile));
            }
        }
    }
    Ok(read)
}

fn unread(what: &str, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::malformed(format!("failed to read {what}: {error}"))
}

/// Reads a resource whose parts are not too many: they take up to eighty times their size in
/// memory.
fn resource(bytes: Bytes, parts_left: &mut usize) -> Result<ResourceProfiles, Refusal> {
    let wrong = |error: &dyn std::fmt::Display| unread("the resources", error);
    let mut parts = 1;
    let mut rest: &[u8] = &bytes;
    while !rest.is_empty() {
        let (part, of) = fields::next(&mut rest).map_err(|error| wrong(&error))?;
        // Attributes of the resource, or profiles of a scope.
        parts += 1 + match of {
            1 => fields::count(part, 1),
            2 => fields::count(part, 2),
            _ => Ok(0),
        }
        .map_err(|error| wrong(&error))?;
    }
    *parts_left = parts_left.checked_sub(parts).ok_or_else(too_many_parts)?;
    ResourceProfiles::decode(bytes).map_err(|error| wrong(&error))
}

fn too_many_parts() -> Refusal {
    Refusal::too_large(format!(
        "failed to read the resources: they have more than {PARTS_MAX} attributes, scopes and \
         profiles"
    ))
}

fn all_profiles(resource: &ResourceProfiles) -> impl Iterator<Item = &Bytes> {
    resource
        .scope_profiles
        .iter()
        .flat_map(|scoped| &scoped.profiles)
}

/// The labels of a resource.
fn labels(
    resource: &ResourceProfiles,
    tables: &Tables,
    metrics: &Metrics,
) -> Vec<(String, String)> {
    let attributes = resource.resource.iter().flat_map(|own| &own.attributes);
    let (mut found, mut taken) = (Vec::new(), HashSet::new());
    let (mut service, mut program) = (None, None);
    for (key, value) in attributes.filter_map(|pair| tables.pair(pair)) {
        match key.as_str() {
            "service.name" => service = Some(value.clone()),
            "process.executable.name" => program = Some(value.clone()),
            _ => {}
        }
        let is_left_out = LEFT_OUT.contains(&&*key) || key.starts_with(LEFT_OUT_BELOW);
        if is_left_out || value.is_empty() || !taken.insert(key.clone()) {
            continue;
        }
        if found.len() + OTHER_LABELS > LABELS_PER_SET_MAX {
            metrics.sent_labels_dropped.inc();
            continue;
        }
        found.push((key, value));
    }
    let service = service.filter(|service| !service.is_empty());
    let service = service.or_else(|| program.map(|program| format!("unknown_service:{program}")));
    if let Some(service) = service.filter(|_| !taken.contains(SERVICE_NAME)) {
        found.push((SERVICE_NAME.to_owned(), service));
    }
    found
}

/// The same with those of what made the profiles.
fn with_scope(labels: &[(String, String)], scope: Option<Scope>) -> Vec<(String, String)> {
    let mut all = labels.to_vec();
    let Scope { name, version } = scope.unwrap_or_default();
    for (key, value) in [("otel.scope.name", name), ("otel.scope.version", version)] {
        if !value.is_empty() && !all.iter().any(|(own, _)| own == key) {
            all.push((key.to_owned(), value));
        }
    }
    all
}
