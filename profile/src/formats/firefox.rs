//! JSON for the Firefox Profiler: its processed profile, by the crate `fxprof-processed-profile`.
//!
//! The version of the format is [`VERSION`]; the profiler upgrades older ones when it opens them. A
//! thread is a combination of comm, process and thread name; a category is a kind of frame. Samples
//! with a known time are placed at it; others are spread evenly, which the product's name says.
//! With [`Measure::Weight`] of time, samples weigh milliseconds; otherwise they count.

use super::timeline::Timeline;
use super::{Format, FormatError, Measure, Options, RootFrame, TRUNCATED_FRAME, root_frames};
use crate::frame::{FrameId, FrameKind};
use crate::labels::{LabelSetId, key};
use crate::profile::Profile;
use crate::stack::StackId;
use crate::text::printable;
use crate::unit::time_unit_ns;
use fxprof_processed_profile as fx;
use hashbrown::HashMap;
use std::io::Write;
use std::time::Duration;

/// `preprocessedProfileVersion` of the files.
pub const VERSION: u64 = 55;

/// Most threads. Those with the fewest samples beyond share one: a browser draws a track for each.
pub const THREADS_MAX: usize = 1_000;

/// Name of the thread of all others.
const OTHERS: &str = "[other threads]";

/// Key of a thread.
type ThreadKey = (String, u32, String);

/// Writes the profile. Takes [`Options::title`], `measure`, `mark_cut`, `annotations`.
///
/// # Errors
/// When `out` fails or a sample counts for more than 2³¹.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let options = &Options {
        root_labels: Vec::new(),
        ..options.clone()
    };
    let timeline = Timeline::of(profile);
    let mut writer = Writer::new(profile, options, &timeline);
    let threads = writer.threads(&timeline);
    for event in &timeline.events {
        let thread = threads[&event.key.labels];
        let stack = writer.stack(thread, event.key);
        let at = fx::Timestamp::from_nanos_since_reference(event.at_ns);
        let weight = match writer.per_ms {
            Some(per_ms) => writer.milliseconds(thread, event.value.weight, per_ms),
            None => event.value.count,
        };
        let weight = i32::try_from(weight).map_err(|_| FormatError::TotalTooLarge {
            format: Format::Firefox,
        })?;
        writer
            .file
            .add_sample(thread, at, stack, fx::CpuDelta::ZERO, weight);
    }
    serde_json::to_writer(&mut *out, &writer.file)?;
    out.write_all(b"\n")?;
    Ok(())
}

struct Writer<'p> {
    profile: &'p Profile,
    options: &'p Options,
    file: fx::Profile,
    /// By [`FrameKind`].
    categories: Vec<fx::CategoryHandle>,
    strings: HashMap<FrameId, fx::StringHandle>,
    stacks: HashMap<(fx::ThreadHandle, bool, StackId), Option<fx::StackHandle>>,
    /// Remaining time of a thread that is less than a millisecond, in the profile's unit.
    left: HashMap<fx::ThreadHandle, u64>,
    /// Weight of a millisecond, where weights are shown and are time.
    per_ms: Option<u64>,
}

impl<'p> Writer<'p> {
    fn new(profile: &'p Profile, options: &'p Options, timeline: &Timeline) -> Writer<'p> {
        let title = printable(&options.title);
        let product = match timeline.spread {
            0 => title.into_owned(),
            _ => format!("{title}: {}", timeline.note()),
        };
        let start = timeline.start_unix_ns.max(0).unsigned_abs();
        let start =
            fx::ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(start));
        let unit_ns = time_unit_ns(&profile.info.unit);
        let interval = match (profile.info.period, unit_ns) {
            (period, Some(unit_ns)) if period > 0 => period.saturating_mul(unit_ns),
            _ => 10_000_000,
        };
        let by_weight = options.measure == Measure::Weight;
        let mut file =
            fx::Profile::new(&product, start, fx::SamplingInterval::from_nanos(interval));
        // Names are there; nothing is to be looked up.
        file.set_symbolicated(true);
        file.set_os_name("Linux");
        let mut colour = |kind: FrameKind| {
            let colour = match kind {
                FrameKind::Native => fx::CategoryColor::Yellow,
                FrameKind::Kernel => fx::CategoryColor::Orange,
                FrameKind::Jit => fx::CategoryColor::Green,
                FrameKind::Interpreted => fx::CategoryColor::Blue,
                FrameKind::Inlined => fx::CategoryColor::LightBlue,
                FrameKind::Synthetic => fx::CategoryColor::Gray,
            };
            file.add_category(kind.word(), colour)
        };
        let categories = FrameKind::ALL.into_iter().map(&mut colour).collect();
        Writer {
            profile,
            options,
            file,
            categories,
            strings: HashMap::new(),
            stacks: HashMap::new(),
            left: HashMap::new(),
            per_ms: unit_ns
                .filter(|_| by_weight)
                .map(|unit_ns| 1_000_000 / unit_ns),
        }
    }

    /// The thread of each label set that events have.
    fn threads(&mut self, timeline: &Timeline) -> HashMap<LabelSetId, fx::ThreadHandle> {
        let mut sizes: HashMap<ThreadKey, u64> = HashMap::new();
        let mut keys: HashMap<LabelSetId, ThreadKey> = HashMap::new();
        for event in &timeline.events {
            let labels = event.key.labels;
            let key = keys
                .entry(labels)
                .or_insert_with(|| self.thread_key(labels));
            let size = sizes.entry_ref(key).or_default();
            *size = size.saturating_add(event.value.count);
        }
        let mut largest: Vec<(ThreadKey, u64)> = sizes.into_iter().collect();
        largest.sort_by(|(left, a), (right, b)| b.cmp(a).then_with(|| left.cmp(right)));
        let beyond = largest.split_off(largest.len().min(THREADS_MAX));
        let mut handles: HashMap<ThreadKey, fx::ThreadHandle> = HashMap::new();
        let start = fx::Timestamp::from_nanos_since_reference(0);
        for (at, (key, _)) in largest.into_iter().enumerate() {
            let (comm, pid, thread) = &key;
            let process = self.file.add_process(comm, *pid, start);
            // Threads have no numbers here; the profiler wants each to have one.
            let handle = self.file.add_thread(process, at as u32 + 1, start, false);
            let name = if thread.is_empty() { comm } else { thread };
            self.file.set_thread_name(handle, name);
            self.weigh(handle);
            handles.insert(key, handle);
        }
        if !beyond.is_empty() {
            let process = self.file.add_process(OTHERS, 0, start);
            let handle = self.file.add_thread(process, 0, start, false);
            let name = format!("{OTHERS}: {}", beyond.len());
            self.file.set_thread_name(handle, &name);
            self.weigh(handle);
            for (key, _) in beyond {
                handles.insert(key, handle);
            }
        }
        keys.into_iter()
            .map(|(labels, key)| (labels, handles[&key]))
            .collect()
    }

    fn weigh(&mut self, thread: fx::ThreadHandle) {
        if self.per_ms.is_some() {
            self.file
                .set_thread_samples_weight_type(thread, fx::WeightType::TracingMs);
        }
    }

    fn thread_key(&self, labels: LabelSetId) -> ThreadKey {
        let label = |key| self.profile.dict.label(labels, key);
        let text = |text: Option<&str>| printable(text.unwrap_or("")).into_owned();
        let comm = match label(key::COMM) {
            Some(comm) => text(Some(comm)),
            None => "[no comm]".to_owned(),
        };
        let pid = label(key::PID).and_then(|pid| pid.parse().ok());
        (comm, pid.unwrap_or(0), text(label(key::THREAD)))
    }

    fn stack(
        &mut self,
        thread: fx::ThreadHandle,
        key: crate::SampleKey,
    ) -> Option<fx::StackHandle> {
        let dict = &self.profile.dict;
        let mut roots = root_frames(dict, self.options, key.labels, key.end);
        let is_cut = roots.any(|root| matches!(root, RootFrame::Truncated));
        let mut path = Vec::new();
        let mut at = key.stack;
        let mut known = loop {
            if let Some(&found) = self.stacks.get(&(thread, is_cut, at)) {
                break found;
            }
            let Some((parent, frame)) = dict.stacks.node(at) else {
                let bottom = is_cut.then(|| {
                    let name = self.file.intern_string(TRUNCATED_FRAME);
                    self.frame(thread, name, FrameKind::Synthetic, None)
                });
                self.stacks.insert((thread, is_cut, at), bottom);
                break bottom;
            };
            path.push((at, frame));
            at = parent;
        };
        for (stack, frame) in path.into_iter().rev() {
            let name = self.name(frame);
            let kind = self.profile.dict.frame(frame).kind;
            known = Some(self.frame(thread, name, kind, known));
            self.stacks.insert((thread, is_cut, stack), known);
        }
        known
    }

    fn name(&mut self, frame: FrameId) -> fx::StringHandle {
        if let Some(&known) = self.strings.get(&frame) {
            return known;
        }
        let found = self.profile.dict.frame(frame);
        let mut text = printable(found.function).into_owned();
        text.push_str(self.options.annotations.suffix(found.kind));
        // Labels have no library of their own: what the profiler shows is the name.
        if !found.module.is_empty() && !text.starts_with('[') {
            text.push_str(" (");
            text.push_str(&printable(found.module));
            text.push(')');
        }
        let name = self.file.intern_string(&text);
        self.strings.insert(frame, name);
        name
    }

    fn frame(
        &mut self,
        thread: fx::ThreadHandle,
        name: fx::StringHandle,
        kind: FrameKind,
        parent: Option<fx::StackHandle>,
    ) -> fx::StackHandle {
        let frame = fx::FrameInfo {
            frame: fx::Frame::Label(name),
            category_pair: self.categories[kind as usize].into(),
            flags: fx::FrameFlags::empty(),
        };
        let frame = self.file.intern_frame(thread, frame);
        self.file.intern_stack(thread, parent, frame)
    }

    /// Full milliseconds of a sample plus what its thread had left over.
    fn milliseconds(&mut self, thread: fx::ThreadHandle, weight: u64, per_ms: u64) -> u64 {
        let left = self.left.entry(thread).or_default();
        let sum = left.saturating_add(weight);
        *left = sum % per_ms;
        sum / per_ms
    }
}
