//! A profile as tests look at it: assembled from wire chunks by rules of its own, so that a fault
//! in the product's conversion is not repeated here.

use profile::{FrameKind, StackEnd, UnnamedReason};
use proto::wire::{Info, ProfileChunk};
use std::collections::{BTreeMap, BTreeSet};

/// A frame spelled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewFrame {
    /// See [`profile::Frame::kind`].
    pub kind: FrameKind,
    /// See [`profile::Frame::unnamed`].
    pub unnamed: UnnamedReason,
    /// See [`profile::Frame::function`].
    pub function: String,
    /// See [`profile::Frame::system_name`].
    pub system_name: String,
    /// See [`profile::Frame::module`].
    pub module: String,
    /// See [`profile::Frame::file`].
    pub file: String,
    /// See [`profile::Frame::line`].
    pub line: u32,
}

/// A sample spelled out.
#[derive(Clone, Debug)]
pub struct ViewSample {
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Frames, leaf first.
    pub frames: Vec<ViewFrame>,
    /// How the stack ended.
    pub end: StackEnd,
    /// Number of samples.
    pub count: u64,
    /// What they stand for.
    pub weight: u64,
}

impl ViewSample {
    /// A label's value; empty when it has none.
    pub fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }

    /// The leaf's function name; empty for an empty stack.
    pub fn leaf(&self) -> &str {
        self.frames.first().map_or("", |frame| &frame.function)
    }

    /// True when a frame has this function name.
    pub fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame.function == function)
    }
}

/// A profile spelled out.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Facts about the whole.
    pub info: Info,
    /// The samples in the order they came.
    pub samples: Vec<ViewSample>,
    /// When samples were taken, where that is told; of all of them. Nanoseconds since the Unix
    /// epoch.
    pub times: Vec<i64>,
}

/// Tables of a profile as its chunks come in.
#[derive(Default)]
struct Tables {
    strings: Vec<String>,
    frames: Vec<ViewFrame>,
    stacks: Vec<(u32, u32)>,
    label_sets: Vec<BTreeMap<String, String>>,
}

impl Tables {
    fn string(&self, id: u32) -> String {
        self.strings[id as usize].clone()
    }

    fn append(&mut self, chunk: &ProfileChunk) {
        self.strings.extend(chunk.strings.iter().cloned());
        for frame in &chunk.frames {
            let frame = ViewFrame {
                kind: FrameKind::from_u8(frame.kind as u8).expect("a known frame kind"),
                unnamed: UnnamedReason::from_u8(frame.unnamed as u8).expect("a known reason"),
                function: self.string(frame.function),
                system_name: self.string(frame.system_name),
                module: self.string(frame.module),
                file: self.string(frame.file),
                line: frame.line,
            };
            assert!(
                !frame.function.is_empty(),
                "a frame without a function name"
            );
            self.frames.push(frame);
        }
        assert_eq!(
            chunk.stack_parents.len(),
            chunk.stack_frames.len(),
            "columns of stacks"
        );
        for (&parent, &frame) in chunk.stack_parents.iter().zip(&chunk.stack_frames) {
            assert!(
                parent as usize <= self.stacks.len(),
                "a parent comes before its child"
            );
            self.stacks.push((parent, frame));
        }
        for set in &chunk.label_sets {
            let pairs = set.key_values.chunks_exact(2);
            self.label_sets.push(
                pairs
                    .map(|kv| (self.string(kv[0]), self.string(kv[1])))
                    .collect(),
            );
        }
    }

    fn stack(&self, mut id: u32) -> Vec<ViewFrame> {
        let mut frames = Vec::new();
        while id != 0 {
            let (parent, frame) = self.stacks[id as usize - 1];
            frames.push(self.frames[frame as usize].clone());
            id = parent;
        }
        frames
    }

    fn labels(&self, id: u32) -> BTreeMap<String, String> {
        if id == 0 {
            BTreeMap::new()
        } else {
            self.label_sets[id as usize - 1].clone()
        }
    }
}

impl View {
    /// Puts the chunks of one profile together.
    ///
    /// # Panics
    /// When the chunks break the rules of the wire format, or the last is missing.
    pub fn assemble(chunks: impl IntoIterator<Item = ProfileChunk>) -> View {
        let mut tables = Tables::default();
        let mut view = View::default();
        let mut last = false;
        for (number, chunk) in chunks.into_iter().enumerate() {
            assert!(!last, "a chunk after the last");
            assert_eq!(
                chunk.info.is_some(),
                number == 0,
                "the first chunk has the facts"
            );
            last = chunk.last;
            tables.append(&chunk);
            let rows = chunk.sample_stacks.len();
            for column in [chunk.sample_label_sets.len(), chunk.sample_ends.len()] {
                assert_eq!(column, rows, "columns of samples");
            }
            assert_eq!(
                (chunk.sample_counts.len(), chunk.sample_weights.len()),
                (rows, rows)
            );
            for row in 0..rows {
                view.samples.push(ViewSample {
                    labels: tables.labels(chunk.sample_label_sets[row]),
                    frames: tables.stack(chunk.sample_stacks[row]),
                    end: StackEnd::from_u8(chunk.sample_ends[row] as u8).expect("a known end"),
                    count: chunk.sample_counts[row],
                    weight: chunk.sample_weights[row],
                });
            }
            if let Some(info) = chunk.info {
                view.info = info;
            }
            let timestamps = chunk.timestamp_deltas_ns.len();
            for column in [chunk.timestamp_stacks.len(), chunk.timestamp_weights.len()] {
                assert_eq!(column, timestamps, "columns of timestamps");
            }
            let start = view.info.times.map_or(0, |times| times.start_unix_ns);
            for delta in &chunk.timestamp_deltas_ns {
                let before = view.times.last().copied().unwrap_or(start);
                view.times.push(before + *delta as i64);
            }
        }
        assert!(last, "the profile breaks off");
        view
    }

    /// The samples that `keep` says yes to.
    pub fn only(&self, keep: impl Fn(&ViewSample) -> bool) -> View {
        let samples = self
            .samples
            .iter()
            .filter(|sample| keep(sample))
            .cloned()
            .collect();
        View {
            info: self.info.clone(),
            samples,
            times: Vec::new(),
        }
    }

    /// The samples of one cgroup alone.
    pub fn in_cgroup(&self, path: &str) -> View {
        self.only(|sample| sample.label(profile::key::CGROUP) == path)
    }

    /// The samples with a frame of this function.
    pub fn with(&self, function: &str) -> View {
        self.only(|sample| sample.has(function))
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.samples.iter().map(|sample| sample.count).sum()
    }

    /// Samples with a frame of this function.
    pub fn count_with(&self, function: &str) -> u64 {
        self.with(function).count()
    }

    /// Samples by the leaf's function.
    pub fn by_leaf(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for sample in &self.samples {
            *counts.entry(sample.leaf().to_owned()).or_default() += sample.count;
        }
        counts
    }

    /// The values of a label.
    pub fn label_values(&self, key: &str) -> BTreeSet<String> {
        self.samples
            .iter()
            .filter_map(|sample| sample.labels.get(key).cloned())
            .collect()
    }

    /// Every frame, each once.
    pub fn frames(&self) -> BTreeSet<ViewFrame> {
        self.samples
            .iter()
            .flat_map(|sample| sample.frames.iter().cloned())
            .collect()
    }

    /// The heaviest stacks as text, for messages of failed tests.
    pub fn dump(&self) -> String {
        let mut samples: Vec<_> = self.samples.iter().collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.count));
        let mut text = format!("{} samples, the heaviest:\n", self.count());
        for sample in samples.iter().take(25) {
            let frames: Vec<_> = sample
                .frames
                .iter()
                .rev()
                .map(|f| f.function.as_str())
                .collect();
            let comm = sample.label(profile::key::COMM);
            let end = sample.end.word();
            text += &format!("  {} {comm:?} {} ({end})\n", sample.count, frames.join(";"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::wire::{Frame, LabelSet};

    #[test]
    fn chunks_are_appended() {
        let strings = ["", "main", "leaf", "prog", "comm", "tool"]
            .map(str::to_owned)
            .to_vec();
        let frame = |function| Frame {
            function,
            module: 3,
            ..Frame::default()
        };
        let first = ProfileChunk {
            info: Some(Info::default()),
            strings,
            frames: vec![frame(1)],
            stack_parents: vec![0],
            stack_frames: vec![0],
            label_sets: vec![LabelSet {
                key_values: vec![4, 5],
            }],
            ..ProfileChunk::default()
        };
        let second = ProfileChunk {
            frames: vec![frame(2)],
            stack_parents: vec![1],
            stack_frames: vec![1],
            sample_label_sets: vec![1],
            sample_stacks: vec![2],
            sample_ends: vec![0],
            sample_counts: vec![3],
            sample_weights: vec![30],
            last: true,
            ..ProfileChunk::default()
        };
        let view = View::assemble([first, second]);
        assert_eq!(view.count(), 3);
        let sample = &view.samples[0];
        assert_eq!((sample.leaf(), sample.label("comm")), ("leaf", "tool"));
        assert!(sample.has("main"));
    }

    #[test]
    #[should_panic(expected = "breaks off")]
    fn a_profile_without_its_end_is_refused() {
        View::assemble([ProfileChunk {
            info: Some(Info::default()),
            ..ProfileChunk::default()
        }]);
    }
}
