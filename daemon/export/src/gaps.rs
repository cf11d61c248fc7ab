//! Gaps: dropped windows, by cause, until the collector has been informed.
//!
//! A gap is sent with a window and stays bound to the window with which it was first sent, so that
//! a repeat of the window says the same; a bound gap never changes. Gaps are stored next to the
//! segments across restarts, together with what a killed run can no longer report: which windows it
//! has only in memory, and that it has not ended properly.

use segment::window::WindowHeader;
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
    /// The daemon ended without keeping it: it was killed, or it could write nothing any more.
    Unsaved,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 6] = [
        Cause::SpoolBytes,
        Cause::SpoolAge,
        Cause::DiskFull,
        Cause::Damaged,
        Cause::Refused,
        Cause::Unsaved,
    ];

    /// The word of the protocol, of metrics and of the status.
    pub fn word(self) -> &'static str {
        match self {
            Cause::SpoolBytes => "spool_bytes",
            Cause::SpoolAge => "spool_age",
            Cause::DiskFull => "disk_full",
            Cause::Damaged => "damaged",
            Cause::Refused => "refused",
            Cause::Unsaved => "unsaved",
        }
    }

    fn parse(word: &str) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.word() == word)
    }
}

/// Time of which windows are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolGap {
    /// Why.
    pub cause: Cause,
    /// Start of the first.
    pub start_unix_ns: i64,
    /// End of the last.
    pub end_unix_ns: i64,
    /// How many.
    pub windows: u64,
    /// Samples that were in them.
    pub samples: u64,
}

impl SpoolGap {
    /// One window.
    pub(super) fn of(cause: Cause, header: &WindowHeader) -> SpoolGap {
        SpoolGap {
            cause,
            start_unix_ns: header.start_unix_ns,
            end_unix_ns: header.end_unix_ns,
            windows: 1,
            samples: header.samples,
        }
    }

    /// Adds another one.
    pub(super) fn widen(&mut self, other: &SpoolGap) {
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
    /// With the sequence of the window each travels with; of each cause at most one is free.
    pending: Vec<(SpoolGap, Option<u64>)>,
    totals: Totals,
    /// Differs from what was saved.
    changed: bool,
    /// The run has come to its end, and says what it could not keep.
    ended: bool,
    /// Windows in memory only, as they were last saved.
    saved_memory: Option<SpoolGap>,
}

/// The file's record of the run that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Earlier {
    /// It was of this boot and did not come to its end.
    pub broke_off: bool,
    /// End of the last window it is known to have taken in this boot.
    pub end_unix_ns: Option<i64>,
}

/// Most gaps that are bound to windows in flight. While so many are, gaps of a cause become one and
/// wait: with a free one of each cause no more than 64 are kept.
const BOUND_MAX: usize = 58;

/// First line of the file.
const HEAD: &str = "fleetprof gaps 1";

impl Gaps {
    /// Counts what was given up.
    pub fn add(&mut self, gap: SpoolGap) {
        if gap.windows == 0 {
            return;
        }
        let total = &mut self.totals[gap.cause as usize];
        total.0 = total.0.saturating_add(gap.windows);
        total.1 = total.1.saturating_add(gap.samples);
        self.wait(gap);
    }

    /// Puts a gap to the free one of its cause. A bound one may have been sent: it stays as it is.
    fn wait(&mut self, gap: SpoolGap) {
        self.changed = true;
        let mut free = self.pending.iter_mut().filter(|(_, at)| at.is_none());
        match free.find(|(known, _)| known.cause == gap.cause) {
            Some((known, _)) => known.widen(&gap),
            None => self.pending.push((gap, None)),
        }
    }

    /// The gap that goes with a window; binds one from before it to a window that is `fresh`. The
    /// collector may have another one already, without the gap, and would pass a repeat over.
    pub fn bind(&mut self, sequence: u64, start_unix_ns: i64, fresh: bool) -> Option<SpoolGap> {
        let bound = self.pending.iter().find(|(_, at)| *at == Some(sequence));
        if let Some((gap, _)) = bound {
            return Some(*gap);
        }
        let bound = self.pending.iter().filter(|(_, at)| at.is_some());
        if !fresh || bound.count() >= BOUND_MAX {
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

    /// The window will not be sent: another one has to report the gap.
    pub fn release(&mut self, sequence: u64) {
        self.release_unless(|at| at != sequence);
    }

    /// Unbinds all gaps bound to a window that does not wait any more.
    pub fn release_unless(&mut self, waits: impl Fn(u64) -> bool) {
        let gone = |(_, at): &mut (SpoolGap, Option<u64>)| at.is_some_and(|at| !waits(at));
        let released: Vec<_> = self.pending.extract_if(.., gone).collect();
        for (gap, _) in released {
            self.wait(gap);
        }
    }

    /// What was dropped since the boot.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The run is over: what is in memory from now on is lost with it.
    pub fn end(&mut self) {
        self.ended = true;
        self.changed = true;
    }

    /// The file's text when it has to be rewritten. `memory` is what is lost when the daemon
    /// ends now, `last` the newest window: its sequence and end.
    pub fn take_unsaved(
        &mut self,
        boot: &str,
        memory: Option<SpoolGap>,
        last: Option<(u64, i64)>,
    ) -> Option<String> {
        self.changed |= memory != self.saved_memory;
        self.saved_memory = memory;
        std::mem::take(&mut self.changed).then(|| self.text(boot, last))
    }

    /// It could not be written.
    pub fn unsaved(&mut self) {
        self.changed = true;
    }

    fn text(&self, boot: &str, last: Option<(u64, i64)>) -> String {
        let mut text = format!("{HEAD}\nboot {boot}\n");
        let run = if self.ended { "ended" } else { "open" };
        let _ = writeln!(text, "run {run}");
        if let Some((sequence, end_unix_ns)) = last {
            let _ = writeln!(text, "last {sequence} {end_unix_ns}");
        }
        for (cause, (windows, samples)) in Cause::ALL.iter().zip(self.totals) {
            let _ = writeln!(text, "total {} {windows} {samples}", cause.word());
        }
        let memory = self.saved_memory.map(|gap| ("memory", gap, None));
        let pending = self.pending.iter().map(|&(gap, at)| ("gap", gap, at));
        for (word, gap, at) in pending.chain(memory) {
            let _ = writeln!(
                text,
                "{word} {} {} {} {} {} {}",
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

    /// Loads what an earlier run saved. Lines that make no sense are skipped. Totals count only if
    /// they are of this boot. Gaps stay bound only to windows of this boot; other windows are sent
    /// without.
    pub fn load(&mut self, text: &str, boot: &str) -> Earlier {
        let mut earlier = Earlier::default();
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return earlier;
        }
        let mut this_boot = false;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["boot", of] => this_boot = of == boot,
                ["run", state] => earlier.broke_off = this_boot && state == "open",
                ["last", _, end] if this_boot => earlier.end_unix_ns = end.parse().ok(),
                ["total", cause, windows, samples] if this_boot => {
                    self.load_total(cause, windows, samples);
                }
                ["memory", ..] => {
                    if let Some((gap, _)) = read_gap(&words[1..]) {
                        let end = earlier.end_unix_ns.map(|end| end.max(gap.end_unix_ns));
                        earlier.end_unix_ns = end.or(Some(gap.end_unix_ns)).filter(|_| this_boot);
                        match this_boot {
                            true => self.add(gap),
                            false => self.wait(gap),
                        }
                    }
                }
                ["gap", ..] => match read_gap(&words[1..]) {
                    Some((gap, at)) if this_boot && at != 0 && self.pending.len() < BOUND_MAX => {
                        self.pending.push((gap, Some(at)));
                    }
                    Some((gap, _)) => self.wait(gap),
                    None => {}
                },
                _ => {}
            }
        }
        earlier
    }

    fn load_total(&mut self, cause: &str, windows: &str, samples: &str) {
        let numbers = (Cause::parse(cause), windows.parse(), samples.parse());
        if let (Some(cause), Ok(windows), Ok(samples)) = numbers {
            let total: &mut (u64, u64) = &mut self.totals[cause as usize];
            total.0 = total.0.saturating_add(windows);
            total.1 = total.1.saturating_add(samples);
        }
    }
}

/// A gap and the sequence it is bound to, 0 for none.
fn read_gap(words: &[&str]) -> Option<(SpoolGap, u64)> {
    let [cause, start, end, windows, samples, at] = *words else {
        return None;
    };
    let gap = SpoolGap {
        cause: Cause::parse(cause)?,
        start_unix_ns: start.parse().ok()?,
        end_unix_ns: end.parse().ok()?,
        windows: windows.parse().ok()?,
        samples: samples.parse().ok()?,
    };
    Some((gap, at.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most gaps kept: those bound, and a free one of each cause.
    const PENDING_MAX: usize = BOUND_MAX + Cause::ALL.len();

    fn gap(cause: Cause, start: i64, windows: u64) -> SpoolGap {
        SpoolGap {
            cause,
            start_unix_ns: start,
            end_unix_ns: start + 10,
            windows,
            samples: windows * 100,
        }
    }

    fn saved(gaps: &mut Gaps, memory: Option<SpoolGap>) -> Option<String> {
        gaps.take_unsaved("b1", memory, None)
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
        let text = saved(&mut gaps, None).expect("it has changed");
        assert_eq!(saved(&mut gaps, None), None);
        let mut same = Gaps::default();
        let earlier = same.load(&text, "b1");
        assert_eq!((&same.pending, same.totals), (&gaps.pending, gaps.totals));
        assert!(earlier.broke_off);
    }

    #[test]
    fn after_a_reboot_gaps_travel_with_other_windows_and_totals_start_again() {
        let mut gaps = Gaps::default();
        gaps.add(gap(Cause::SpoolBytes, 5, 3));
        gaps.bind(9, 100, true);
        let text = saved(&mut gaps, Some(gap(Cause::DiskFull, 50, 4))).unwrap();
        let mut later = Gaps::default();
        let earlier = later.load(&text, "b2");
        assert_eq!(earlier, Earlier::default());
        assert_eq!(later.totals, Totals::default());
        let told = [gap(Cause::SpoolBytes, 5, 3), gap(Cause::DiskFull, 50, 4)];
        assert_eq!(later.pending, told.map(|gap| (gap, None)));
    }

    #[test]
    fn windows_in_memory_of_a_run_that_was_killed_are_a_gap() {
        let mut gaps = Gaps::default();
        let text = saved(&mut gaps, Some(gap(Cause::DiskFull, 5, 3))).expect("it has changed");
        let mut later = Gaps::default();
        let earlier = later.load(&text, "b1");
        assert_eq!(later.totals()[Cause::DiskFull as usize], (3, 300));
        assert_eq!(later.bind(7, 100, true), Some(gap(Cause::DiskFull, 5, 3)));
        assert_eq!((earlier.broke_off, earlier.end_unix_ns), (true, Some(15)));
        // They arrived after all.
        let text = saved(&mut gaps, None).expect("it has changed again");
        assert_eq!(Gaps::default().load(&text, "b1").end_unix_ns, None);
    }

    #[test]
    fn a_run_that_ended_does_not_look_broken_off() {
        let mut gaps = Gaps::default();
        gaps.end();
        let text = gaps.take_unsaved("b1", None, Some((8, 77))).unwrap();
        let earlier = Gaps::default().load(&text, "b1");
        assert_eq!((earlier.broke_off, earlier.end_unix_ns), (false, Some(77)));
    }

    #[test]
    fn a_gap_that_may_have_been_sent_never_changes() {
        let mut gaps = Gaps::default();
        let windows = 0..2 * PENDING_MAX as i64;
        let sent: Vec<Option<SpoolGap>> = windows
            .clone()
            .map(|number| {
                gaps.add(gap(Cause::Refused, number, 1));
                gaps.bind(number as u64 + 1, i64::MAX, true)
            })
            .collect();
        assert!(sent.iter().flatten().count() >= 50);
        for (number, sent) in windows.zip(sent) {
            if sent.is_some() {
                assert_eq!(gaps.bind(number as u64 + 1, i64::MAX, true), sent);
            }
        }
    }

    #[test]
    fn gaps_whose_windows_will_not_come_become_one() {
        let mut gaps = Gaps::default();
        for number in 0..40 {
            gaps.add(gap(Cause::Refused, number, 1));
            gaps.bind(number as u64 + 1, i64::MAX, true);
        }
        gaps.release_unless(|sequence| sequence <= 2);
        assert_eq!(gaps.pending.len(), 3);
        assert_eq!(gaps.bind(99, i64::MAX, true).unwrap().windows, 38);
    }

    #[test]
    fn gaps_are_bounded_and_none_is_forgotten() {
        let mut gaps = Gaps::default();
        for number in 0..1000 {
            let cause = Cause::ALL[number as usize % Cause::ALL.len()];
            gaps.add(gap(cause, number, 1));
            gaps.bind(number as u64 + 1, i64::MAX, true);
            if number % 100 == 99 {
                gaps.release_unless(|sequence| sequence % 3 == 0);
            }
            assert!(gaps.pending.len() <= PENDING_MAX);
        }
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
        let earlier = gaps.load(
            "something else\nboot b\nrun open\ngap refused 1 2 3 4 0",
            "b",
        );
        assert_eq!(earlier, Earlier::default());
        assert_eq!(gaps, Gaps::default());
    }
}
