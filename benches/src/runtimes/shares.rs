//! Shares of whole stacks and of named frames, and why the rest is not.

use crate::stacks::is_complete;
use fixtures::ViewSample;
use fixtures::perf::PerfSample;
use profile::{FrameKind, StackEnd, Unnamed};
use serde::Serialize;
use std::collections::BTreeMap;

/// Counts of one runtime in one profile.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shares {
    /// Samples taken.
    pub samples: u64,
    /// Of those, with a stack that is there up to its start function.
    pub complete: u64,
    /// Frames of all samples.
    pub frames: u64,
    /// Of those, with a name.
    pub with_name: u64,
    /// Samples by how their stack was cut, frames by why they have no name.
    pub causes: BTreeMap<&'static str, u64>,
}

/// One runtime, in both profiles.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name, and `alone` in namespaces of its own.
    pub name: String,
    /// As the daemon saw it.
    pub daemon: Shares,
    /// As perf saw it.
    pub perf: Shares,
}

impl Shares {
    /// Adds samples of the daemon. What was lost is nobody's stack.
    pub fn add_ours(&mut self, sample: &ViewSample) {
        if sample.end == StackEnd::Lost {
            return;
        }
        self.samples += sample.count;
        match sample.end.is_complete() {
            true => self.complete += sample.count,
            false => *self.causes.entry(sample.end.word()).or_default() += sample.count,
        }
        for frame in &sample.frames {
            if frame.kind == FrameKind::Synthetic {
                continue;
            }
            self.frames += sample.count;
            match frame.unnamed {
                Unnamed::No => self.with_name += sample.count,
                why => *self.causes.entry(why.word()).or_default() += sample.count,
            }
        }
    }

    /// Adds a sample of perf. It has no word for how a stack ended: whole is what reaches a start.
    pub fn add_theirs(&mut self, sample: &PerfSample) {
        self.samples += 1;
        let names = || sample.frames.iter().map(|(name, _)| name.as_str());
        self.complete += u64::from(is_complete(names()));
        // Of some samples it prints no frame, although each has an address.
        self.frames += sample.frames.len().max(1) as u64;
        self.with_name += names().filter(|&name| name != "[unknown]").count() as u64;
    }

    /// Share of whole stacks; none without samples.
    pub fn whole(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.complete as f64 / self.samples as f64)
    }

    /// Share of named frames; none without frames.
    pub fn named(&self) -> Option<f64> {
        (self.frames > 0).then(|| self.with_name as f64 / self.frames as f64)
    }

    /// The commonest reasons, most first.
    pub fn reasons(&self, most: usize) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self
            .causes
            .iter()
            .map(|(&why, &count)| (why, count))
            .collect();
        all.sort_by_key(|&(why, count)| (std::cmp::Reverse(count), why));
        all.truncate(most);
        all
    }

    fn extend(&mut self, other: &Shares) {
        self.samples += other.samples;
        self.complete += other.complete;
        self.frames += other.frames;
        self.with_name += other.with_name;
        for (&why, &count) in &other.causes {
            *self.causes.entry(why).or_default() += count;
        }
    }
}

impl Row {
    /// All rows together.
    pub fn sum(name: &str, rows: &[Row]) -> Row {
        let mut sum = Row {
            name: name.to_owned(),
            daemon: Shares::default(),
            perf: Shares::default(),
        };
        for row in rows {
            sum.daemon.extend(&row.daemon);
            sum.perf.extend(&row.perf);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fixtures::ViewFrame;

    fn frame(kind: FrameKind, unnamed: Unnamed) -> ViewFrame {
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
                frame(FrameKind::Jit, Unnamed::JitNotInMap),
                frame(FrameKind::Native, Unnamed::No),
                frame(FrameKind::Synthetic, Unnamed::No),
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
        let words = [StackEnd::BrokenChain.word(), Unnamed::JitNotInMap.word()];
        assert_eq!(shares.reasons(3), [(words[1], 6), (words[0], 3)]);
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
    }
}
