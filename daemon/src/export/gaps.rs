//! Gaps: windows that were given up, by cause, until the collector has been told of them.
//!
//! A gap travels with a window: it is bound to the window it was first sent with, so that a repeat of
//! the window says the same. Both are kept beside the segments over restarts.

use super::tap::About;
use std::fmt::Write;

/// Why a window was given up. The words are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The bound of bytes was reached.
    SpoolBytes,
    /// It waited longer than it may.
    SpoolAge,
    /// The disk took nothing, or not in time, and memory for such windows was full too.
    DiskFull,
    /// Its bytes on disk are damaged.
    Damaged,
    /// The collector said that it will never take it.
    Refused,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 5] = [
        Cause::SpoolBytes,
        Cause::SpoolAge,
        Cause::DiskFull,
        Cause::Damaged,
        Cause::Refused,
    ];

    /// The word of the protocol, of metrics and of the status.
    pub fn word(self) -> &'static str {
        match self {
            Cause::SpoolBytes => "spool_bytes",
            Cause::SpoolAge => "spool_age",
            Cause::DiskFull => "disk_full",
            Cause::Damaged => "damaged",
            Cause::Refused => "refused",
        }
    }

    fn parse(word: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

/// Time of which windows are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Why.
    pub cause: Cause,
    /// Begin of the first.
    pub start_unix_ns: i64,
    /// End of the last.
    pub end_unix_ns: i64,
    /// How many.
    pub windows: u64,
    /// Samples that were in them.
    pub samples: u64,
}

impl Gap {
    /// One window.
    pub(super) fn of(cause: Cause, about: &About) -> Gap {
        Gap {
            cause,
            start_unix_ns: about.start_unix_ns,
            end_unix_ns: about.end_unix_ns,
            windows: 1,
            samples: about.samples,
        }
    }

    /// Takes in another one.
    pub(super) fn widen(&mut self, other: &Gap) {
        self.start_unix_ns = self.start_unix_ns.min(other.start_unix_ns);
        self.end_unix_ns = self.end_unix_ns.max(other.end_unix_ns);
        self.windows = self.windows.saturating_add(other.windows);
        self.samples = self.samples.saturating_add(other.samples);
    }
}

/// Windows and samples given up, by [`Cause::ALL`].
pub type Totals = [(u64, u64); Cause::ALL.len()];

/// Gaps the collector does not know of yet, and what was given up since the boot.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Gaps {
    /// With the sequence of the window each travels with.
    pending: Vec<(Gap, Option<u64>)>,
    totals: Totals,
    /// Differs from what was saved.
    changed: bool,
}

/// Most gaps kept: one of each cause free, the others bound to a window in flight. Beyond it gaps of
/// a cause become one.
const PENDING_MAX: usize = 64;

/// First line of the file.
const HEAD: &str = "fleetprof gaps 1";

impl Gaps {
    /// Counts what was given up.
    pub fn add(&mut self, gap: Gap) {
        if gap.windows == 0 {
            return;
        }
        self.changed = true;
        let total = &mut self.totals[gap.cause as usize];
        total.0 = total.0.saturating_add(gap.windows);
        total.1 = total.1.saturating_add(gap.samples);
        let full = self.pending.len() >= PENDING_MAX;
        let free = self
            .pending
            .iter_mut()
            .rev()
            .find(|(known, sequence)| known.cause == gap.cause && (sequence.is_none() || full));
        match free {
            Some((known, _)) => known.widen(&gap),
            None => self.pending.push((gap, None)),
        }
    }

    /// The gap that goes with a window; binds one from before it to a window that is `fresh`. The
    /// collector may have another one already, without the gap, and would pass a repeat over.
    pub fn bind(&mut self, sequence: u64, start_unix_ns: i64, fresh: bool) -> Option<Gap> {
        let bound = self.pending.iter().find(|(_, at)| *at == Some(sequence));
        if let Some((gap, _)) = bound {
            return Some(*gap);
        }
        if !fresh {
            return None;
        }
        let free = self
            .pending
            .iter_mut()
            .find(|(gap, at)| at.is_none() && gap.start_unix_ns <= start_unix_ns)?;
        free.1 = Some(sequence);
        self.changed = true;
        Some(free.0)
    }

    /// The collector has the window: it knows of its gap.
    pub fn told(&mut self, sequence: u64) {
        let before = self.pending.len();
        self.pending.retain(|(_, at)| *at != Some(sequence));
        self.changed |= self.pending.len() != before;
    }

    /// The window will not come: another has to tell.
    pub fn release(&mut self, sequence: u64) {
        for (_, at) in &mut self.pending {
            if *at == Some(sequence) {
                *at = None;
                self.changed = true;
            }
        }
    }

    /// Unbinds all gaps whose window does not wait any more.
    pub fn release_unless(&mut self, waits: impl Fn(u64) -> bool) {
        for (_, at) in &mut self.pending {
            if at.is_some_and(|sequence| !waits(sequence)) {
                *at = None;
                self.changed = true;
            }
        }
    }

    /// What was given up since the boot.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The file's text when it has to be written anew.
    pub fn take_unsaved(&mut self, boot: &str) -> Option<String> {
        std::mem::take(&mut self.changed).then(|| self.text(boot))
    }

    /// It could not be written.
    pub fn unsaved(&mut self) {
        self.changed = true;
    }

    fn text(&self, boot: &str) -> String {
        let mut text = format!("{HEAD}\nboot {boot}\n");
        for (cause, (windows, samples)) in Cause::ALL.iter().zip(self.totals) {
            let _ = writeln!(text, "total {} {windows} {samples}", cause.word());
        }
        for (gap, at) in &self.pending {
            let _ = writeln!(
                text,
                "gap {} {} {} {} {} {}",
                gap.cause.word(),
                gap.start_unix_ns,
                gap.end_unix_ns,
                gap.windows,
                gap.samples,
                at.unwrap_or(0)
            );
        }
        text
    }

    /// Takes in what an earlier run had saved. Lines that make no sense are passed over; totals count
    /// only when they are of this boot.
    pub fn load(&mut self, text: &str, boot: &str) {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return;
        }
        let mut this_boot = false;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["boot", of] => this_boot = of == boot,
                ["total", cause, windows, samples] if this_boot => {
                    let numbers = (Cause::parse(cause), windows.parse(), samples.parse());
                    if let (Some(cause), Ok(windows), Ok(samples)) = numbers {
                        let total: &mut (u64, u64) = &mut self.totals[cause as usize];
                        total.0 = total.0.saturating_add(windows);
                        total.1 = total.1.saturating_add(samples);
                    }
                }
                ["gap", cause, start, end, windows, samples, at] => {
                    let gap = || {
                        let gap = Gap {
                            cause: Cause::parse(cause)?,
                            start_unix_ns: start.parse().ok()?,
                            end_unix_ns: end.parse().ok()?,
                            windows: windows.parse().ok()?,
                            samples: samples.parse().ok()?,
                        };
                        let at: u64 = at.parse().ok()?;
                        Some((gap, (at != 0).then_some(at)))
                    };
                    if self.pending.len() < PENDING_MAX {
                        self.pending.extend(gap());
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(cause: Cause, start: i64, windows: u64) -> Gap {
        Gap {
            cause,
            start_unix_ns: start,
            end_unix_ns: start + 10,
            windows,
            samples: windows * 100,
        }
    }

    #[test]
    fn a_gap_stays_with_the_window_it_was_first_sent_with() {
        let mut gaps = Gaps::default();
        gaps.add(gap(Cause::SpoolAge, 5, 2));
        assert_eq!(gaps.bind(7, 100, true), Some(gap(Cause::SpoolAge, 5, 2)));
        gaps.add(gap(Cause::SpoolAge, 30, 1));
        assert_eq!(gaps.bind(7, 100, true), Some(gap(Cause::SpoolAge, 5, 2)));
        assert_eq!(gaps.bind(8, 100, true), Some(gap(Cause::SpoolAge, 30, 1)));
        gaps.told(7);
        gaps.release(8);
        assert_eq!(gaps.bind(9, 100, true), Some(gap(Cause::SpoolAge, 30, 1)));
        assert_eq!(gaps.totals()[Cause::SpoolAge as usize], (3, 300));
    }

    #[test]
    fn a_window_that_may_have_been_sent_takes_no_new_gap() {
        let mut gaps = Gaps::default();
        gaps.add(gap(Cause::DiskFull, 5, 1));
        assert_eq!(gaps.bind(7, 100, false), None);
        assert!(gaps.bind(8, 100, true).is_some());
        assert!(gaps.bind(8, 100, false).is_some(), "a repeat says the same");
    }

    #[test]
    fn a_window_from_before_a_gap_does_not_tell_of_it() {
        let mut gaps = Gaps::default();
        gaps.add(gap(Cause::Refused, 50, 1));
        assert_eq!(gaps.bind(1, 20, true), None);
        assert!(gaps.bind(2, 60, true).is_some());
    }

    #[test]
    fn what_was_saved_is_taken_in_again() {
        let mut gaps = Gaps::default();
        gaps.add(gap(Cause::SpoolBytes, 5, 3));
        gaps.add(gap(Cause::Damaged, 1, 1));
        gaps.bind(9, 100, true);
        let text = gaps.take_unsaved("b1").expect("it has changed");
        assert_eq!(gaps.take_unsaved("b1"), None);
        let mut same = Gaps::default();
        same.load(&text, "b1");
        assert_eq!(same, gaps);
        let mut later = Gaps::default();
        later.load(&text, "b2");
        assert_eq!(later.pending, gaps.pending);
        assert_eq!(later.totals, Totals::default());
    }

    #[test]
    fn gaps_are_bounded_and_none_is_forgotten() {
        let mut gaps = Gaps::default();
        for number in 0..1000 {
            gaps.add(gap(Cause::Refused, number, 1));
            gaps.bind(number as u64 + 1, i64::MAX, true);
        }
        assert!(gaps.pending.len() <= PENDING_MAX);
        let windows: u64 = gaps.pending.iter().map(|(gap, _)| gap.windows).sum();
        assert_eq!(windows, 1000);
    }

    #[test]
    fn nonsense_in_the_file_is_passed_over() {
        let mut gaps = Gaps::default();
        gaps.load(
            "fleetprof gaps 1\nboot b\ntotal x y z\ngap refused 1 2\n\0\n",
            "b",
        );
        assert_eq!(gaps, Gaps::default());
        gaps.load("something else\ngap refused 1 2 3 4 0", "b");
        assert_eq!(gaps, Gaps::default());
    }
}
