//! What a partition has of one boot of one host, in memory and in the file.

use super::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_bytes, encode_signed, encode_u64,
};
use super::dict::Dict;
use super::meta::WindowMeta;
use super::sequence_set::SequenceSet;
use crate::store::{HostKey, LabelSet};
use profile::LabelSetId;

/// Data of a partition about one boot of one host.
#[derive(Clone, Debug)]
pub struct HostState {
    /// Labels of the complete host, from its last window.
    pub labels: LabelSet,
    /// Start of the first window.
    pub first_start: i64,
    /// Start of the last one.
    pub last_start: i64,
    /// Latest end of a window.
    pub last_end: i64,
    /// Numbers of windows.
    pub seen: SequenceSet,
    /// Changed since the last flush.
    pub dirty: bool,
}

impl HostState {
    /// Creates it empty, for a host with these labels.
    pub fn new(labels: &LabelSet) -> HostState {
        HostState {
            labels: labels.clone(),
            first_start: i64::MAX,
            last_start: i64::MIN,
            last_end: i64::MIN,
            seen: SequenceSet::default(),
            dirty: true,
        }
    }

    /// Adds a window.
    pub fn note(&mut self, labels: &LabelSet, window: &WindowMeta) {
        let range = window.range;
        self.seen.insert(window.sequence);
        self.first_start = self.first_start.min(range.start_unix_ns);
        if range.start_unix_ns >= self.last_start {
            self.last_start = range.start_unix_ns;
            self.labels.clone_from(labels);
        }
        self.last_end = self.last_end.max(range.end_unix_ns);
        self.dirty = true;
    }
}

impl HostState {
    /// Adds what a file has of the boot, to what came since.
    pub fn merge(&mut self, stored: HostState) {
        let added = std::mem::replace(&mut self.seen, stored.seen);
        self.seen.merge(&added);
        self.first_start = self.first_start.min(stored.first_start);
        if stored.last_start > self.last_start {
            self.last_start = stored.last_start;
            self.labels = stored.labels;
        }
        self.last_end = self.last_end.max(stored.last_end);
    }
}

/// Host and labels of the host that a window's ids stand for; `None` when they are not there.
pub fn named(dict: &Dict, window: &WindowMeta) -> Option<(HostKey, LabelSet)> {
    let host = dict.hosts.get(window.host as usize)?.clone();
    if window.host_labels as usize >= dict.tables.label_sets.len() {
        return None;
    }
    let labels = dict.tables.label_sets.get(LabelSetId(window.host_labels));
    let text = |id| dict.tables.strings.get(id).to_owned();
    let pairs = labels
        .iter()
        .map(|&(name, value)| (text(name), text(value)));
    Some((host, LabelSet::new(pairs)))
}

/// Seals what is kept of a boot.
pub fn encode_host(
    sealer: &mut SectionWriter,
    key: &HostKey,
    state: &HostState,
) -> std::io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    encode_bytes(&mut raw, key.host_id.as_bytes());
    raw.extend_from_slice(&key.boot_id);
    encode_labels(&mut raw, &state.labels);
    for at in [state.first_start, state.last_start, state.last_end] {
        encode_signed(&mut raw, at);
    }
    state.seen.encode(&mut raw);
    let mut out = Vec::new();
    sealer.seal(&mut out, &raw)?;
    Ok(out)
}

/// Reads what [`encode_host`] wrote.
pub fn decode_host(
    opener: &mut SectionReader,
    body: &[u8],
) -> Result<(HostKey, HostState), Corrupt> {
    let mut raw = Vec::new();
    opener.open(&mut Reader::new(body), &mut raw)?;
    let mut input = Reader::new(&raw);
    let key = HostKey {
        host_id: input.decode_str()?.to_owned(),
        boot_id: input.decode_16()?,
    };
    let state = HostState {
        labels: decode_labels(&mut input)?,
        first_start: input.decode_signed()?,
        last_start: input.decode_signed()?,
        last_end: input.decode_signed()?,
        seen: SequenceSet::decode(&mut input)?,
        dirty: false,
    };
    Ok((key, state))
}

/// Appends labels as text.
pub fn encode_labels(out: &mut Vec<u8>, labels: &LabelSet) {
    encode_u64(out, labels.iter().len() as u64);
    for (name, value) in labels.iter() {
        encode_bytes(out, name.as_bytes());
        encode_bytes(out, value.as_bytes());
    }
}

/// Reads what [`encode_labels`] wrote.
pub fn decode_labels(input: &mut Reader<'_>) -> Result<LabelSet, Corrupt> {
    let mut pairs = Vec::new();
    for _ in 0..input.decode_count()? {
        pairs.push((
            input.decode_str()?.to_owned(),
            input.decode_str()?.to_owned(),
        ));
    }
    Ok(LabelSet::new(pairs))
}
