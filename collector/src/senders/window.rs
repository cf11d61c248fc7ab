//! A sent profile as a window of the store of other senders.
//!
//! Where agents have a host, a sender has a series: its token, the labels and the profile type. The
//! window's number in it is its start with a hash of what was sent in the last bits: the same is
//! not stored twice, whoever repeats it, and those that the store remembers are the latest.

use super::{Cause, LABEL_BYTES_MAX, Refusal, Sent, kinds};
use crate::ingest::limits::{LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_PER_SET_MAX};
use crate::metrics::Metrics;
use crate::pyroscope::SERVICE_NAME;
use crate::store::{Defined, HostKey, LabelSet, NewWindow, Origin, PROFILE_TYPE, Row, TimeRange};
use profile::{LabelSetId, Quality, key};
use proto::convert::STACK_DEPTH_MAX;
use std::collections::HashMap;
use std::sync::Arc;

/// Label with the name of the token. The collector sets it.
const SENDER: &str = "sender";

/// Service of what names none.
const UNKNOWN_SERVICE: &str = "unknown_service";

/// Labels that tell which host it was, the first that is there.
const HOST_LABELS: [&str; 5] = ["host", "host.name", "hostname", "node", "instance"];

/// Labels of samples that have another value for each request, thread or CPU: as labels of series
/// they would be one each.
const IDENTITIES: [&str; 7] = [
    "span_id",
    "trace_id",
    "profile_id",
    "span_name",
    "tid",
    "thread.id",
    "cpu.logical_number",
];

/// Most label sets of one profile. Samples with further ones keep the labels of their series.
const LABEL_SETS_MAX: usize = 512;

/// Bits of a window's number that tell profiles apart that start together, within 0.3 s. The store
/// remembers a bounded number of a series, the largest: those of what may still be sent again.
const IDENTITY_BITS: u32 = 28;

/// Length of a profile that says neither when it started nor how long it took. Unit: nanoseconds.
const INSTANT_NS: i64 = 1_000_000_000;

/// The window of a profile, with the frames of its stacks.
///
/// # Errors
/// When it counts nothing that has a name, or has too many labels; `label_bytes_left` is what
/// remains of [`LABEL_BYTES_MAX`].
pub(super) fn window(
    sender: &str,
    sent: Sent,
    label_bytes_left: &mut usize,
    metrics: &Metrics,
) -> Result<(NewWindow, Arc<Defined>), Refusal> {
    let typed = &sent.typed;
    let id = kinds::id(&sent.name, &typed.sample_type, &typed.period_type);
    let id = id.map_err(Refusal::malformed)?;
    let profile = &typed.profile;
    if deepest(profile) > STACK_DEPTH_MAX {
        return Err(Refusal::too_large(format!(
            "failed to read the profile: a stack has more than {STACK_DEPTH_MAX} frames"
        )));
    }
    let series = series_labels(sender, &id, &sent.labels, metrics)?;
    let mut label_sets: Vec<LabelSet> = Vec::new();
    let mut places: HashMap<LabelSetId, u32> = HashMap::new();
    let mut known: HashMap<LabelSet, u32> = HashMap::new();
    let contents = profile.dict.content_ids();
    let mut rows = Vec::with_capacity(profile.samples.len());
    for (sample, value) in &profile.samples {
        let labels = match places.get(&sample.labels) {
            Some(&place) => place,
            None => {
                let set = match label_sets.len() < LABEL_SETS_MAX {
                    true => sample_labels(&series, profile.dict.labels(sample.labels), metrics),
                    false => {
                        metrics.sent_labels_dropped.inc();
                        series.clone()
                    }
                };
                let place = match known.get(&set) {
                    Some(&place) => place,
                    None => {
                        let pairs = set.iter();
                        let bytes = pairs.map(|(name, value)| name.len() + value.len());
                        let bytes: usize = bytes.sum();
                        *label_bytes_left = label_bytes_left.checked_sub(bytes).ok_or_else(|| {
                            Refusal::too_large(format!(
                                "failed to read the profile: labels of all its samples have more \
                                 than {LABEL_BYTES_MAX} bytes"
                            ))
                        })?;
                        label_sets.push(set.clone());
                        let place = label_sets.len() as u32 - 1;
                        known.insert(set, place);
                        place
                    }
                };
                places.insert(sample.labels, place);
                place
            }
        };
        rows.push(Row {
            labels,
            stack: contents[sample.stack.0 as usize],
            end: sample.end,
            value: *value,
        });
    }
    let range = range(&sent)?;
    let mut hasher = blake3::Hasher::new();
    for (name, value) in series.iter() {
        for text in [name, value] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
    let host_id = hasher.finalize().to_hex()[..32].to_owned();
    let mut number = [0; 8];
    number.copy_from_slice(&sent.identity[..8]);
    let identity = u64::from_le_bytes(number) & ((1 << IDENTITY_BITS) - 1);
    let moment = range.start_unix_ns as u64 >> IDENTITY_BITS << IDENTITY_BITS;
    let window = NewWindow {
        origin: Origin {
            host: HostKey {
                host_id,
                boot_id: [0; 16],
            },
            sequence: moment | identity,
        },
        range,
        event: typed.sample_type.name.clone(),
        unit: id.split(':').nth(2).unwrap_or_default().to_owned(),
        period: profile.info.period,
        quality: Quality {
            taken: profile.total().count,
            ..Quality::default()
        },
        label_sets,
        rows,
        accounts: Vec::new(),
        pressure: None,
        dropped_before: None,
        stream: None,
    };
    Ok((window, Arc::new(Defined::of(&profile.dict))))
}

/// Frames of the deepest stack.
fn deepest(profile: &profile::Profile) -> u16 {
    let stacks = &profile.dict.stacks;
    let mut depths = vec![0u16; stacks.len() + 1];
    for (stack, parent, _) in stacks.iter() {
        let depth = depths
            .get(parent.0 as usize)
            .map_or(1, |depth| depth.saturating_add(1));
        if let Some(own) = depths.get_mut(stack.0 as usize) {
            *own = depth;
        }
    }
    depths.into_iter().max().unwrap_or(0)
}

/// The time of a profile: its own, or else that of its request.
fn range(sent: &Sent) -> Result<TimeRange, Refusal> {
    let info = &sent.typed.profile.info;
    let duration = i64::try_from(info.duration_ns).unwrap_or(i64::MAX);
    let (start, end) = match (info.start_unix_ns > 0, duration > 0) {
        (true, true) => (
            info.start_unix_ns,
            info.start_unix_ns.saturating_add(duration),
        ),
        _ if sent.end_unix_ns > sent.start_unix_ns => (sent.start_unix_ns, sent.end_unix_ns),
        (true, false) => (
            info.start_unix_ns,
            info.start_unix_ns.saturating_add(INSTANT_NS),
        ),
        (false, _) => (
            sent.start_unix_ns,
            sent.start_unix_ns.saturating_add(duration.max(INSTANT_NS)),
        ),
    };
    if start <= 0 {
        return Err(Refusal {
            cause: Cause::Rejected,
            text: "failed to store the profile: it starts before 1970".to_owned(),
        });
    }
    Ok(TimeRange {
        start_unix_ns: start,
        end_unix_ns: end,
    })
}

/// Whether a sender may set a label of this name.
fn is_own(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LABEL_NAME_BYTES_MAX
        && !name.starts_with("__")
        && name != SENDER
        && !name.chars().any(profile::text::is_hostile)
}

/// A value up to the most bytes that one may have.
fn cut(value: &str) -> &str {
    &value[..value.floor_char_boundary(LABEL_VALUE_BYTES_MAX)]
}

/// The labels of a series: the sender's, and those that the collector sets.
fn series_labels(
    sender: &str,
    id: &str,
    labels: &[(String, String)],
    metrics: &Metrics,
) -> Result<LabelSet, Refusal> {
    let owned = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut pairs = vec![owned(PROFILE_TYPE, id), owned(SENDER, sender)];
    let mut taken = std::collections::HashSet::new();
    for (name, value) in labels {
        if !taken.insert(name.as_str()) {
            return Err(Refusal::malformed(format!(
                "failed to read the labels: `{}` is there twice",
                profile::text::printable(name)
            )));
        }
        match is_own(name) {
            true => pairs.push(owned(name, cut(value))),
            false => {
                metrics.sent_labels_dropped.inc();
            }
        }
    }
    let most = LABELS_PER_SET_MAX;
    if pairs.len() > most {
        return Err(Refusal::malformed(format!(
            "failed to read the labels: there are more than {most}"
        )));
    }
    let of = |name: &str| {
        let found = pairs
            .iter()
            .find(|(own, value)| own == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    };
    let service = of(SERVICE_NAME).unwrap_or_else(|| UNKNOWN_SERVICE.to_owned());
    let host = HOST_LABELS.iter().find_map(|name| of(name));
    let host = host.unwrap_or_else(|| service.clone());
    pairs.push((SERVICE_NAME.to_owned(), service));
    pairs.push((key::HOST.to_owned(), host));
    Ok(LabelSet::new(pairs))
}

/// The labels of a series with those of a sample, which replace none of them.
fn sample_labels<'a>(
    series: &LabelSet,
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    metrics: &Metrics,
) -> LabelSet {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut pairs: Vec<(String, String)> = series.iter().map(owned).collect();
    for (name, value) in labels.filter(|(name, _)| !IDENTITIES.contains(name)) {
        match is_own(name) && pairs.len() < LABELS_PER_SET_MAX {
            true => pairs.push(owned((name, cut(value)))),
            false => {
                metrics.sent_labels_dropped.inc();
            }
        }
    }
    LabelSet::new(pairs)
}
