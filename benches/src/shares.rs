//! Shares of complete stacks, of named leaves and of named frames, and why the rest is not.

use crate::stacks::is_complete;
use profile::{FrameKind, StackEnd, UnnamedReason};
use serde::Serialize;
use std::collections::BTreeMap;
use testkit::perf::PerfSample;
use testkit::{ViewFrame, ViewSample};

/// Counts of one program or runtime in one profile.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shares {
    /// Samples taken.
    pub samples: u64,
    /// Samples whose stack reaches its start function, by the profiler's own word.
    pub complete: u64,
    /// The same by the rule that holds for every profiler: see `stacks.rs`.
    pub complete_by_names: u64,
    /// Samples whose leaf has a name.
    pub leaves_named: u64,
    /// Frames of all samples.
    pub frames: u64,
    /// Frames that have a name.
    pub with_name: u64,
    /// Samples by how their stack was cut, frames by why they have no name.
    pub causes: BTreeMap<&'static str, u64>,
    /// Samples by how their stack was cut, leaves by why they have no name.
    pub leaf_causes: BTreeMap<&'static str, u64>,
}

/// The commonest of some reasons, most first.
fn commonest<'a>(causes: &BTreeMap<&'a str, u64>, most: usize) -> Vec<(&'a str, u64)> {
    let mut all: Vec<_> = causes.iter().map(|(&why, &count)| (why, count)).collect();
    all.sort_by_key(|&(why, count)| (std::cmp::Reverse(count), why));
    all.truncate(most);
    all
}

/// Reasons in a cell of a table.
pub fn cell(reasons: &[(&str, u64)]) -> String {
    let reasons = reasons.iter().map(|(why, count)| format!("{count} {why}"));
    reasons.collect::<Vec<_>>().join(", ")
}

impl Shares {
    /// Adds samples of the daemon. What was lost is nobody's stack.
    pub fn add_ours(&mut self, sample: &ViewSample) {
        if sample.end == StackEnd::Lost {
            return;
        }
        let count = sample.count;
        self.samples += count;
        match sample.end.is_complete() {
            true => self.complete += count,
            false => {
                for causes in [&mut self.causes, &mut self.leaf_causes] {
                    *causes.entry(sample.end.word()).or_default() += count;
                }
            }
        }
        let is_real = |frame: &&ViewFrame| frame.kind != FrameKind::Synthetic;
        let frames: Vec<&ViewFrame> = sample.frames.iter().filter(is_real).collect();
        let names = frames.iter().map(|frame| frame.function.as_str());
        self.complete_by_names += count * u64::from(is_complete(names));
        for (depth, frame) in frames.iter().enumerate() {
            let is_leaf = depth == 0;
            self.frames += count;
            match frame.unnamed {
                UnnamedReason::No => {
                    self.with_name += count;
                    self.leaves_named += count * u64::from(is_leaf);
                }
                why => {
                    *self.causes.entry(why.word()).or_default() += count;
                    if is_leaf {
                        *self.leaf_causes.entry(why.word()).or_default() += count;
                    }
                }
            }
        }
    }

    /// Adds a sample of perf. It has no word for how a stack ended: whole is what reaches a start.
    pub fn add_theirs(&mut self, sample: &PerfSample) {
        self.samples += 1;
        let names = || sample.frames.iter().map(|(name, _)| name.as_str());
        let is_named = |name: &&str| *name != "[unknown]";
        let is_whole = u64::from(is_complete(names()));
        self.complete += is_whole;
        self.complete_by_names += is_whole;
        self.leaves_named += u64::from(names().next().as_ref().is_some_and(is_named));
        // perf prints no frame for some samples, although each has an address.
        self.frames += sample.frames.len().max(1) as u64;
        self.with_name += names().filter(is_named).count() as u64;
    }

    /// Share of complete stacks; none without samples.
    pub fn whole(&self) -> Option<f64> {
        self.of_samples(self.complete)
    }

    /// A count as a share of the samples; none without any.
    pub fn of_samples(&self, part: u64) -> Option<f64> {
        (self.samples > 0).then(|| part as f64 / self.samples as f64)
    }

    /// Share of named frames; none without frames.
    pub fn named(&self) -> Option<f64> {
        (self.frames > 0).then(|| self.with_name as f64 / self.frames as f64)
    }

    /// The commonest reasons, most first: those of frames beside those of stacks.
    pub fn reasons(&self, most: usize) -> Vec<(&'static str, u64)> {
        commonest(&self.causes, most)
    }

    /// The same with those of leaves alone.
    pub fn leaf_reasons(&self, most: usize) -> Vec<(&'static str, u64)> {
        commonest(&self.leaf_causes, most)
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: &Shares) {
        self.samples += other.samples;
        self.complete += other.complete;
        self.complete_by_names += other.complete_by_names;
        self.leaves_named += other.leaves_named;
        self.frames += other.frames;
        self.with_name += other.with_name;
        let both = [
            (&mut self.causes, &other.causes),
            (&mut self.leaf_causes, &other.leaf_causes),
        ];
        for (own, other) in both {
            for (&why, &count) in other {
                *own.entry(why).or_default() += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, unnamed: UnnamedReason) -> ViewFrame {
        ViewFrame {
            kind,
            unnamed,
            function: "f".to_owned(),
            system_name: String::new(),
            module: String::new(),
            file: String::new(),
            line: 0,
        }
    }

    #[test]
    fn samples_and_frames_count_by_what_is_known_of_them() {
        let mut shares = Shares::default();
        let mut sample = ViewSample {
            labels: BTreeMap::new(),
            frames: vec![
                frame(FrameKind::Jit, UnnamedReason::JitNotInMap),
                frame(FrameKind::Native, UnnamedReason::No),
                frame(FrameKind::Synthetic, UnnamedReason::No),
            ],
            end: StackEnd::BrokenChain,
            count: 3,
            weight: 3,
        };
        shares.add_ours(&sample);
        sample.end = StackEnd::Complete;
        shares.add_ours(&sample);
        sample.end = StackEnd::Lost;
        shares.add_ours(&sample);
        assert_eq!((shares.whole(), shares.named()), (Some(0.5), Some(0.5)));
        let words = [
            StackEnd::BrokenChain.word(),
            UnnamedReason::JitNotInMap.word(),
        ];
        assert_eq!(shares.reasons(3), [(words[1], 6), (words[0], 3)]);
        assert_eq!(shares.leaf_reasons(3), shares.reasons(3));
        assert_eq!(shares.leaves_named, 0);
    }

    #[test]
    fn perf_has_whole_stacks_and_names_too() {
        let mut shares = Shares::default();
        let frames = [("[unknown]", "a"), ("main", "b")];
        shares.add_theirs(&PerfSample {
            comm: String::new(),
            pid: 1,
            mono_ns: 0,
            leaf_ip: 0,
            frames: frames
                .map(|(name, file)| (name.to_owned(), file.to_owned()))
                .to_vec(),
        });
        assert_eq!((shares.whole(), shares.named()), (Some(1.0), Some(0.5)));
        assert_eq!((shares.complete_by_names, shares.leaves_named), (1, 0));
    }
}
