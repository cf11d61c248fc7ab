//! Labels to group by: which of them `--group-by` accepts, which suit a format, and which become
//! root frames.

use crate::exit::{self, fail};
use crate::peer::Peer;
use crate::render::Format;
use crate::terminal::clean;
use anyhow::Result;
use profile::{Profile, key};
use std::collections::BTreeSet;

/// Refuses labels of `--group-by` that no agent gives its samples.
///
/// # Errors
/// With the nearest one that agents give.
pub fn known_to_agent(requested: &[String]) -> Result<()> {
    known(requested, &AGENT_LABELS.map(str::to_owned))
}

/// Labels that agents give samples; what holds others before what it holds.
pub const AGENT_LABELS: [&str; 14] = [
    key::CGROUP,
    key::SLICE,
    key::UNIT,
    key::NAMESPACE,
    key::POD,
    key::POD_UID,
    key::RUNTIME,
    key::IMAGE,
    key::CONTAINER_NAME,
    key::CONTAINER,
    key::COMM,
    key::THREAD,
    key::PID,
    key::CONTEXT,
];

/// True for words of `--group-by` that are no label.
pub fn is_word(word: &str) -> bool {
    matches!(word, "*" | "none")
}

/// Labels named in an error.
const LABELS_NAMED: usize = 30;

/// Refuses a label of `--group-by` that no sample has: it would put every sample under
/// `[no LABEL]`, and is most likely a slip of the pen. Where there are no labels there are no
/// samples either, and that is said later.
///
/// # Errors
/// With the nearest label.
pub fn known(requested: &[String], names: &[String]) -> Result<()> {
    for word in requested {
        // Which labels of containers there are is known to nobody here.
        let of_container =
            word.starts_with(key::CONTAINER_LABEL) || word.starts_with(key::POD_LABEL);
        if is_word(word) || of_container || names.is_empty() || names.contains(word) {
            continue;
        }
        let alike = |name: &&String| strsim::jaro_winkler(name, &word.to_lowercase());
        let nearest = names
            .iter()
            .max_by(|a, b| alike(a).total_cmp(&alike(b)))
            .map_or("", String::as_str);
        let mut listed = names[..names.len().min(LABELS_NAMED)].join(", ");
        if names.len() > LABELS_NAMED {
            listed.push_str(", …");
        }
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to group by `{}`: no sample has this label: the nearest is `{}`\n\
                 labels are {}",
                clean(word),
                clean(nearest),
                clean(&listed)
            ),
        ));
    }
    Ok(())
}

/// The labels to keep: what was asked for, or what suits the format.
pub fn labels(requested: &[String], format: Format, peer: &Peer) -> Vec<String> {
    let defaults: &[&str] = match format {
        // A fleet has too many cgroups and threads to keep all of them separate by default.
        Format::Pprof | Format::Json | Format::Parquet if peer.is_collector() => {
            &[key::HOST, key::UNIT, key::CONTAINER, key::COMM]
        }
        // These labels separate their threads.
        Format::Firefox | Format::PerfScript if peer.is_collector() => &[key::COMM],
        Format::Firefox | Format::PerfScript => &[key::COMM, key::PID, key::THREAD],
        Format::Pprof | Format::Json | Format::Parquet => &[
            key::CGROUP,
            key::UNIT,
            key::CONTAINER,
            key::COMM,
            key::THREAD,
        ],
        // A row of the report is a function, unless labels are asked for.
        Format::Top => &[],
        _ => &[key::COMM],
    };
    match requested {
        [] => defaults.iter().map(|&label| label.to_owned()).collect(),
        [none] if none == "none" => Vec::new(),
        _ => requested.to_vec(),
    }
}

/// Labels that stand as frames below the root, for samples grouped by `group_by`: those, or with
/// `*` every label that a sample has, what holds others before what it holds.
pub fn root_labels(group_by: &[String], profile: &Profile) -> Vec<String> {
    if !group_by.iter().any(|label| label == "*") {
        return group_by.to_vec();
    }
    let mut sets: Vec<_> = profile.samples.keys().map(|key| key.labels).collect();
    sets.sort_unstable();
    sets.dedup();
    let mut found = BTreeSet::new();
    for labels in sets {
        found.extend(profile.dict.labels(labels).map(|(key, _)| key.to_owned()));
    }
    ordered(found.into_iter().collect())
}

/// Labels with what holds others before what it holds. What an agent does not give is of its host:
/// its name, its service, its zone.
pub fn ordered(mut labels: Vec<String>) -> Vec<String> {
    let rank = |label: &String| AGENT_LABELS.iter().position(|known| known == label);
    labels.sort_by_key(rank);
    labels
}
