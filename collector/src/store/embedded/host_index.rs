//! An index of which hosts were present when, over all partitions. Pushes and queries use it for
//! partitions that they otherwise need not read.
//!
//! Every stored window is added, and removed partitions are cut out. The size depends on the boots
//! of hosts and their interruptions, not on the retention: a host that runs for a year without a
//! gap has one span and one run of numbers.

use super::codec::{Corrupt, Reader, encode_bytes, encode_signed, encode_u64};
use super::host_state::{HostState, LABEL_SETS_MAX, decode_labels, encode_labels};
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

/// One boot of one host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// Numbers of its windows.
    pub seen: SequenceSet,
    /// One for each label set of the complete host, the one that was added to last at the end.
    pub by_labels: Vec<LabelSpans>,
}

impl Boot {
    fn add(&mut self, labels: &LabelSet, (start, end): (i64, i64), last_start: i64) {
        if self
            .by_labels
            .last()
            .is_none_or(|last| last.labels != *labels)
        {
            let known = self.by_labels.iter().position(|of| of.labels == *labels);
            let under = match known {
                Some(at) => self.by_labels.remove(at),
                None => LabelSpans::new(labels.clone()),
            };
            self.by_labels.push(under);
        }
        if let Some(under) = self.by_labels.last_mut() {
            under.last_start = under.last_start.max(last_start);
            under.cover(start, end);
        }
        if self.by_labels.len() > LABEL_SETS_MAX {
            let oldest = self.by_labels.remove(0);
            let next = &mut self.by_labels[0];
            next.last_start = next.last_start.max(oldest.last_start);
            for (start, end) in oldest.spans {
                next.cover(start, end);
            }
        }
    }

    /// Forgets what is too old of a boot of this key.
    fn bound(&mut self, key: &HostKey) {
        if key.boot_id != [0; 16] {
            return self.seen.keep_runs(RUNS_MAX);
        }
        // Whoever sends for many processes under the same labels sends in any order: what is not
        // known any more is better counted again than lost.
        self.seen.forget_runs(SERIES_MAX);
        for under in &mut self.by_labels {
            under.keep_spans(SERIES_MAX);
        }
    }

    fn cut(&mut self, from: i64, to: i64) {
        for under in &mut self.by_labels {
            under.cut(from, to);
        }
        self.by_labels.retain(|under| !under.spans.is_empty());
    }

    /// Start of the first window.
    pub fn first_start(&self) -> i64 {
        let starts = self.by_labels.iter().map(LabelSpans::first_start);
        starts.min().unwrap_or(i64::MAX)
    }

    /// End of the last window.
    pub fn last_end(&self) -> i64 {
        let ends = self.by_labels.iter().map(LabelSpans::last_end);
        ends.max().unwrap_or(i64::MIN)
    }
}

/// When a boot has windows under one label set of the complete host.
#[derive(Debug, PartialEq, Eq)]
pub struct LabelSpans {
    /// Labels of the complete host.
    pub labels: LabelSet,
    /// Start of the last window.
    pub last_start: i64,
    /// When windows are there: ordered, and joined where nothing is missing between them.
    spans: VecDeque<(i64, i64)>,
}

impl LabelSpans {
    fn new(labels: LabelSet) -> LabelSpans {
        LabelSpans {
            labels,
            last_start: i64::MIN,
            spans: VecDeque::new(),
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
        self.keep_spans(SPANS_MAX);
    }

    /// Joins the oldest spans until only so many are left.
    fn keep_spans(&mut self, most: usize) {
        while self.spans.len() > most
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
        for of in &state.by_labels {
            boot.add(&of.labels, (of.first_start, of.last_end), of.last_start);
        }
        boot.bound(host);
    }

    /// Forgets what a partition that is removed had: windows that start in `[from, to)`. Their
    /// numbers stay known as long as the boot has others, because windows of that time are refused
    /// from now on.
    pub fn cut(&mut self, from: i64, to: i64) {
        self.boots.retain(|_, boot| {
            boot.cut(from, to);
            !boot.by_labels.is_empty()
        });
    }

    /// Appends every boot.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, self.boots.len() as u64);
        for (host, boot) in &self.boots {
            encode_bytes(out, host.host_id.as_bytes());
            out.extend_from_slice(&host.boot_id);
            boot.seen.encode(out);
            encode_u64(out, boot.by_labels.len() as u64);
            for under in &boot.by_labels {
                encode_labels(out, &under.labels);
                encode_signed(out, under.last_start);
                encode_u64(out, under.spans.len() as u64);
                for &(start, end) in &under.spans {
                    encode_signed(out, start);
                    encode_signed(out, end);
                }
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
            let mut boot = Boot {
                seen: SequenceSet::decode(input)?,
                by_labels: Vec::new(),
            };
            for _ in 0..input.decode_count()? {
                let mut under = LabelSpans::new(decode_labels(input)?);
                under.last_start = input.decode_signed()?;
                for _ in 0..input.decode_count()? {
                    let span = (input.decode_signed()?, input.decode_signed()?);
                    let after = under.spans.back().is_none_or(|before| before.1 < span.0);
                    if !after || span.0 >= span.1 {
                        return Err(Corrupt("times of a boot are out of order"));
                    }
                    under.spans.push_back(span);
                }
                boot.by_labels.push(under);
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
        let spans = boot.by_labels.iter().flat_map(|of| &of.spans);
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
    fn labels_that_changed_do_not_stand_for_the_time_after() {
        let mut boot = Boot::default();
        let of = |team: &str| LabelSet::new([("team".to_owned(), team.to_owned())]);
        for (team, at) in [("a", 0), ("a", 10), ("b", 20), ("b", 30)] {
            boot.add(&of(team), (at, at + 10), at);
        }
        let times = boot.by_labels.iter();
        let times = times.map(|of| (of.first_start(), of.last_start, of.last_end()));
        assert_eq!(times.collect::<Vec<_>>(), [(0, 10, 20), (20, 30, 40)]);
        assert_eq!((boot.first_start(), boot.last_end()), (0, 40));
    }

    #[test]
    fn label_sets_of_a_boot_are_bounded() {
        let mut boot = Boot::default();
        for at in 0..2 * LABEL_SETS_MAX {
            let labels = LabelSet::new([("at".to_owned(), at.to_string())]);
            boot.add(&labels, (at as i64, at as i64 + 1), at as i64);
        }
        assert_eq!(boot.by_labels.len(), LABEL_SETS_MAX);
        assert_eq!(boot.first_start(), 0);
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
            let labels = LabelSet::new([("host".to_owned(), host.to_owned())]);
            boot.add(&labels, (5, 6), 5);
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
        let mut under = LabelSpans::new(LabelSet::default());
        for at in 0..SPANS_MAX as i64 + 100 {
            under.cover(at * 20 * SECOND, at * 20 * SECOND + SECOND);
        }
        let kept = (under.spans.len(), under.first_start());
        assert_eq!(kept, (SPANS_MAX, 0));
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
        let under = &boot.by_labels[0];
        let around = under.around((100 * SECOND, 200 * SECOND), own);
        let around = around.into_iter();
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
