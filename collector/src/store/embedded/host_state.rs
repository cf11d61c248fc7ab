//! What a partition has of one boot of one host, in memory and in the file.

use super::codec::{
    Corrupt, Reader, SectionReader, SectionWriter, encode_bytes, encode_signed, encode_u64,
};
use super::dict::Dict;
use super::meta::WindowMeta;
use super::sequence_set::SequenceSet;
use crate::store::{HostKey, LabelSet};
use profile::LabelSetId;

/// Most label sets stored of a boot; beyond it the times of the oldest count under the labels that
/// came next. The labels of a complete host change when somebody sets others.
pub const LABEL_SETS_MAX: usize = 8;

/// Data of a partition about one boot of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// One for each label set of the complete host, that of the last window last.
    pub by_labels: Vec<LabelTimes>,
    /// Numbers of windows.
    pub seen: SequenceSet,
    /// Changed since the last flush.
    pub dirty: bool,
}

/// When a partition has windows of a boot under one label set of the complete host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTimes {
    /// Labels of the complete host.
    pub labels: LabelSet,
    /// Start of the first window.
    pub first_start: i64,
    /// Start of the last one.
    pub last_start: i64,
    /// Latest end of a window.
    pub last_end: i64,
}

impl HostState {
    /// Labels of the complete host, from its last window.
    pub fn labels(&self) -> Option<&LabelSet> {
        self.by_labels.last().map(|last| &last.labels)
    }

    /// Adds a window.
    pub fn note(&mut self, labels: &LabelSet, window: &WindowMeta) {
        let range = window.range;
        self.seen.insert(window.sequence);
        let (start, end) = (range.start_unix_ns, range.end_unix_ns);
        match self
            .by_labels
            .last_mut()
            .filter(|last| last.labels == *labels)
        {
            Some(last) => last.add((start, start, end)),
            None => self.add(LabelTimes {
                labels: labels.clone(),
                first_start: start,
                last_start: start,
                last_end: end,
            }),
        }
        self.dirty = true;
    }

    /// Adds what a file has of the boot, to what came since.
    pub fn merge(&mut self, stored: HostState) {
        let added = std::mem::replace(&mut self.seen, stored.seen);
        self.seen.merge(&added);
        for times in stored.by_labels {
            self.add(times);
        }
    }

    fn add(&mut self, mut added: LabelTimes) {
        let known = self
            .by_labels
            .iter()
            .position(|of| of.labels == added.labels);
        if let Some(at) = known {
            added.add(self.by_labels.remove(at).times());
        }
        let not_later = |of: &LabelTimes| of.last_start <= added.last_start;
        let at = self.by_labels.partition_point(not_later);
        self.by_labels.insert(at, added);
        if self.by_labels.len() > LABEL_SETS_MAX {
            let oldest = self.by_labels.remove(0);
            self.by_labels[0].add(oldest.times());
        }
    }
}

impl LabelTimes {
    /// First start, last start and latest end.
    fn times(&self) -> (i64, i64, i64) {
        (self.first_start, self.last_start, self.last_end)
    }

    fn add(&mut self, (first_start, last_start, last_end): (i64, i64, i64)) {
        self.first_start = self.first_start.min(first_start);
        self.last_start = self.last_start.max(last_start);
        self.last_end = self.last_end.max(last_end);
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
    // Files of earlier versions have the latest labels only, and end with the numbers.
    let latest = state.by_labels.len().saturating_sub(1);
    for times in &state.by_labels[latest..] {
        encode_times(&mut raw, times);
    }
    state.seen.encode(&mut raw);
    for times in &state.by_labels[..latest] {
        encode_times(&mut raw, times);
    }
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
    let last = decode_times(&mut input)?;
    let mut state = HostState {
        seen: SequenceSet::decode(&mut input)?,
        ..HostState::default()
    };
    while !input.is_empty() {
        state.add(decode_times(&mut input)?);
    }
    state.add(last);
    Ok((key, state))
}

fn encode_times(out: &mut Vec<u8>, times: &LabelTimes) {
    encode_labels(out, &times.labels);
    for at in [times.first_start, times.last_start, times.last_end] {
        encode_signed(out, at);
    }
}

fn decode_times(input: &mut Reader<'_>) -> Result<LabelTimes, Corrupt> {
    Ok(LabelTimes {
        labels: decode_labels(input)?,
        first_start: input.decode_signed()?,
        last_start: input.decode_signed()?,
        last_end: input.decode_signed()?,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(team: &str) -> LabelSet {
        LabelSet::new([("team".to_owned(), team.to_owned())])
    }

    fn under(team: &str, times: (i64, i64, i64)) -> LabelTimes {
        LabelTimes {
            labels: labels(team),
            first_start: times.0,
            last_start: times.1,
            last_end: times.2,
        }
    }

    fn state(presences: &[LabelTimes]) -> HostState {
        let mut state = HostState::default();
        for times in presences {
            state.add(times.clone());
        }
        state
    }

    fn key() -> HostKey {
        HostKey {
            host_id: "a".to_owned(),
            boot_id: [7; 16],
        }
    }

    #[test]
    fn each_label_set_has_its_own_times_and_the_last_windows_is_that_of_the_host() {
        let parts = [("a", (0, 0, 10)), ("b", (10, 10, 20)), ("a", (-10, -10, 0))];
        let state = state(&parts.map(|(team, times)| under(team, times)));
        let expected = [under("a", (-10, 0, 10)), under("b", (10, 10, 20))];
        assert_eq!(state.by_labels, expected);
        assert_eq!(state.labels(), Some(&labels("b")));
    }

    #[test]
    fn what_is_written_is_read() {
        let parts = [("a", (0, 0, 10)), ("b", (10, 10, 20)), ("c", (20, 20, 30))];
        for count in 1..=parts.len() {
            let parts = parts.map(|(team, times)| under(team, times));
            let mut state = state(&parts[..count]);
            state.seen.insert(3);
            let mut sealer = SectionWriter::new().unwrap();
            let bytes = encode_host(&mut sealer, &key(), &state).unwrap();
            let mut opener = SectionReader::new().unwrap();
            assert_eq!(decode_host(&mut opener, &bytes).unwrap(), (key(), state));
        }
    }

    #[test]
    fn label_sets_are_bounded_and_no_time_is_forgotten() {
        let parts =
            (0..2 * LABEL_SETS_MAX as i64).map(|at| under(&at.to_string(), (at, at, at + 1)));
        let state = state(&parts.collect::<Vec<_>>());
        assert_eq!(state.by_labels.len(), LABEL_SETS_MAX);
        assert_eq!(state.by_labels[0].first_start, 0);
    }
}
