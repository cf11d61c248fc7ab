//! An index of which hosts were present when, over all partitions. Pushes and queries use it for
//! partitions that they otherwise need not read.
//!
//! Every stored window is added, and removed partitions are cut out. The size depends on the boots
//! of hosts and their interruptions, not on the retention: a host that runs for a year without a
//! gap has one span and one run of numbers.

use super::codec::{Corrupt, Reader, encode_bytes, encode_signed, encode_u64};
use super::host_state::{HostState, decode_labels, encode_labels};
use super::meta::WindowMeta;
use super::sequence_set::SequenceSet;
use crate::store::query::ABSENT_NS_MIN;
use crate::store::{HostKey, LabelSet};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Most spans stored of a boot: one more for each interruption. Beyond it the two oldest are
/// joined, so a gap that long ago is not reported at the edge of a range.
const SPANS_MAX: usize = 4096;

/// Most runs of numbers kept of a boot: one for each start of its agent. An agent that is started
/// again every ten seconds reaches it after half a day.
const RUNS_MAX: usize = 4096;

/// Most runs and spans kept of a series of another sender, which has no boot: one each for nearly
/// every profile. Those of an hour at one in fifteen seconds.
const SERIES_MAX: usize = 256;

/// Most label sets stored of a boot; beyond it the ones seen first are forgotten. The labels of a
/// complete host change when somebody sets others.
const LABEL_SETS_MAX: usize = 8;

/// One boot of one host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// Numbers of its windows.
    pub seen: SequenceSet,
    /// Labels of the complete host.
    pub labels: Vec<LabelSet>,
    /// Start of the last window.
    pub last_start: i64,
    /// When windows are there: ordered, and joined where nothing is missing between them.
    spans: VecDeque<(i64, i64)>,
}

impl Boot {
    fn add(&mut self, labels: &LabelSet, (start, end): (i64, i64), last_start: i64) {
        if self.labels.last() != Some(labels) {
            self.labels.retain(|known| known != labels);
            if self.labels.len() == LABEL_SETS_MAX {
                self.labels.remove(0);
            }
            self.labels.push(labels.clone());
        }
        self.last_start = match self.spans.is_empty() {
            true => last_start,
            false => self.last_start.max(last_start),
        };
        self.cover(start, end);
    }

    /// Forgets what is too old of a boot of this key.
    fn bound(&mut self, key: &HostKey) {
        if key.boot_id != [0; 16] {
            return self.seen.keep_runs(RUNS_MAX);
        }
        // Whoever sends for many processes under the same labels sends in any order: what is not
        // known any more is better counted again than lost.
        self.seen.forget_runs(SERIES_MAX);
        while self.spans.len() > SERIES_MAX
            && let Some(oldest) = self.spans.pop_front()
        {
            self.spans[0].0 = oldest.0;
        }
    }

    fn cover(&mut self, mut start: i64, mut end: i64) {
        let first = self
            .spans
            .partition_point(|span| start.saturating_sub(span.1) >= ABSENT_NS_MIN);
        let mut after = first;
        while let Some(span) = self.spans.get(after)
            && span.0.saturating_sub(end) < ABSENT_NS_MIN
        {
            start = start.min(span.0);
            end = end.max(span.1);
            after += 1;
        }
        if after == first {
            self.spans.insert(first, (start, end));
        } else {
            self.spans[first] = (start, end);
            self.spans.drain(first + 1..after);
        }
        if self.spans.len() > SPANS_MAX
            && let Some(oldest) = self.spans.pop_front()
        {
            self.spans[0].0 = oldest.0;
        }
    }

    fn cut(&mut self, from: i64, to: i64) {
        let spans = std::mem::take(&mut self.spans);
        self.spans = spans
            .into_iter()
            .flat_map(|(start, end)| [(start, end.min(from)), (start.max(to), end)])
            .filter(|(start, end)| start < end)
            .collect();
    }

    /// Start of the first window.
    pub fn first_start(&self) -> i64 {
        self.spans.front().map_or(i64::MAX, |span| span.0)
    }

    /// End of the last window.
    pub fn last_end(&self) -> i64 {
        self.spans.back().map_or(i64::MIN, |span| span.1)
    }

    /// True when windows, or a time between windows, lie in `[from, to)`.
    pub fn meets(&self, from: i64, to: i64) -> bool {
        self.first_start() < to && self.last_end() > from
    }

    /// What is nearest before and after the partitions from `from` to `to`, in which the boot
    /// covers `own`: without it, the end of the one and the start of the other would look like
    /// gaps.
    pub fn around(&self, (from, to): (i64, i64), own: Option<(i64, i64)>) -> Vec<(i64, i64)> {
        let before = self.spans.partition_point(|span| span.0 < from);
        let before = before.checked_sub(1).map(|at| self.spans[at]);
        // A span that goes on into the partitions ends, for this purpose, where they start.
        let before =
            before.map(|(start, end)| (start, own.map_or(end, |(first, _)| end.min(first))));
        let covered = own.map_or(to, |(_, last)| last);
        let after = self.spans.partition_point(|span| span.1 <= covered);
        let after = self.spans.get(after).filter(|span| span.0 >= to);
        let after = after.map(|span| (span.0, span.0));
        before.into_iter().chain(after).collect()
    }
}

/// Every boot that has windows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HostIndex {
    boots: HashMap<HostKey, Boot>,
}

impl HostIndex {
    /// True when a window is stored, whatever its time.
    pub fn has(&self, host: &HostKey, sequence: u64) -> bool {
        let boot = self.boots.get(host);
        boot.is_some_and(|boot| boot.seen.contains(sequence))
    }

    /// Adds a window.
    pub fn add_window(&mut self, host: &HostKey, labels: &LabelSet, window: &WindowMeta) {
        let boot = self.boots.entry_ref(host).or_default();
        let range = window.range;
        boot.seen.insert(window.sequence);
        let span = (range.start_unix_ns, range.end_unix_ns);
        boot.add(labels, span, range.start_unix_ns);
        boot.bound(host);
    }

    /// Adds what a partition has of a boot.
    pub fn add_state(&mut self, host: &HostKey, state: &HostState) {
        let boot = self.boots.entry_ref(host).or_default();
        boot.seen.merge(&state.seen);
        let span = (state.first_start, state.last_end);
        boot.add(&state.labels, span, state.last_start);
        boot.bound(host);
    }

    /// Forgets what a partition that is removed had: windows that start in `[from, to)`. Their
    /// numbers stay known as long as the boot has others, because windows of that time are refused
    /// from now on.
    pub fn cut(&mut self, from: i64, to: i64) {
        self.boots.retain(|_, boot| {
            boot.cut(from, to);
            !boot.spans.is_empty()
        });
    }

    /// Appends every boot.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, self.boots.len() as u64);
        for (host, boot) in &self.boots {
            encode_bytes(out, host.host_id.as_bytes());
            out.extend_from_slice(&host.boot_id);
            encode_u64(out, boot.labels.len() as u64);
            boot.labels
                .iter()
                .for_each(|labels| encode_labels(out, labels));
            boot.seen.encode(out);
            encode_signed(out, boot.last_start);
            encode_u64(out, boot.spans.len() as u64);
            for &(start, end) in &boot.spans {
                encode_signed(out, start);
                encode_signed(out, end);
            }
        }
    }

    /// Reads what [`HostIndex::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<HostIndex, Corrupt> {
        let mut index = HostIndex::default();
        for _ in 0..input.decode_count()? {
            let host = HostKey {
                host_id: input.decode_str()?.to_owned(),
                boot_id: input.decode_16()?,
            };
            let labels: Result<Vec<_>, _> = (0..input.decode_count()?)
                .map(|_| decode_labels(input))
                .collect();
            let mut boot = Boot {
                labels: labels?,
                seen: SequenceSet::decode(input)?,
                last_start: input.decode_signed()?,
                spans: VecDeque::new(),
            };
            for _ in 0..input.decode_count()? {
                let span = (input.decode_signed()?, input.decode_signed()?);
                let after = boot.spans.back().is_none_or(|before| before.1 < span.0);
                if !after || span.0 >= span.1 {
                    return Err(Corrupt("times of a boot are out of order"));
                }
                boot.spans.push_back(span);
            }
            index.boots.insert(host, boot);
        }
        Ok(index)
    }

    /// Every boot.
    pub fn iter(&self) -> impl Iterator<Item = (&HostKey, &Boot)> {
        self.boots.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn boot(spans: &[(i64, i64)]) -> Boot {
        let mut boot = Boot::default();
        for &(start, end) in spans {
            let span = (start * SECOND, end * SECOND);
            boot.add(&LabelSet::default(), span, span.0);
        }
        boot
    }

    fn check_spans(boot: &Boot, expected: &[(i64, i64)]) {
        let spans = boot.spans.iter();
        let spans: Vec<_> = spans
            .map(|span| (span.0 / SECOND, span.1 / SECOND))
            .collect();
        assert_eq!(spans, expected);
    }

    #[test]
    fn windows_in_any_order_are_joined_where_nothing_is_missing() {
        check_spans(&boot(&[(0, 10), (10, 20), (20, 30)]), &[(0, 30)]);
        check_spans(&boot(&[(20, 30), (0, 10), (10, 20)]), &[(0, 30)]);
        check_spans(&boot(&[(0, 10), (12, 20)]), &[(0, 10), (12, 20)]);
        check_spans(&boot(&[(0, 10), (20, 30), (40, 50), (5, 45)]), &[(0, 50)]);
        check_spans(&boot(&[(0, 50), (10, 20)]), &[(0, 50)]);
    }

    #[test]
    fn what_is_written_is_read() {
        let mut index = HostIndex::default();
        for (host, spans) in [("a", &[(0, 10), (30, 40)][..]), ("b", &[(-5, 5)])] {
            let key = HostKey {
                host_id: host.to_owned(),
                boot_id: [7; 16],
            };
            let mut boot = boot(spans);
            boot.seen.insert(u64::MAX);
            boot.labels = vec![LabelSet::new([("host".to_owned(), host.to_owned())])];
            index.boots.insert(key, boot);
        }
        let mut bytes = Vec::new();
        index.encode(&mut bytes);
        assert_eq!(HostIndex::decode(&mut Reader::new(&bytes)).unwrap(), index);
        for len in 0..bytes.len() {
            assert!(HostIndex::decode(&mut Reader::new(&bytes[..len])).is_err());
        }
    }

    #[test]
    fn a_year_of_interruptions_is_bounded() {
        let mut boot = Boot::default();
        for at in 0..SPANS_MAX as i64 + 100 {
            boot.cover(at * 20 * SECOND, at * 20 * SECOND + SECOND);
        }
        assert_eq!((boot.spans.len(), boot.first_start()), (SPANS_MAX, 0));
    }

    #[test]
    fn what_is_cut_is_not_covered() {
        let mut boot = boot(&[(0, 100), (200, 300)]);
        boot.cut(50 * SECOND, 250 * SECOND);
        check_spans(&boot, &[(0, 50), (250, 300)]);
        boot.cut(0, 1000 * SECOND);
        check_spans(&boot, &[]);
    }

    fn check_around(boot: &Boot, own: Option<(i64, i64)>, expected: &[(i64, i64)]) {
        let own = own.map(|(from, to)| (from * SECOND, to * SECOND));
        let around = boot.around((100 * SECOND, 200 * SECOND), own).into_iter();
        let around: Vec<_> = around
            .map(|span| (span.0 / SECOND, span.1 / SECOND))
            .collect();
        assert_eq!(around, expected);
    }

    #[test]
    fn the_nearest_before_and_after_are_found() {
        let steady = boot(&[(0, 300)]);
        check_around(&steady, Some((105, 205)), &[(0, 105)]);
        let with_gaps = boot(&[(0, 50), (60, 90), (250, 260), (270, 280)]);
        check_around(&with_gaps, None, &[(60, 90), (250, 250)]);
        let with_gaps = boot(&[(0, 50), (60, 90), (120, 130), (250, 260), (270, 280)]);
        check_around(&with_gaps, Some((120, 130)), &[(60, 90), (250, 250)]);
        check_around(&boot(&[(120, 130)]), Some((120, 130)), &[]);
    }
}
