//! Questions to the recorder: a quarter of an hour of windows merged into one answer.

use super::Lines;
use super::folding::PERIOD;
use super::synthetic::Synthetic;
use aggregate::recorder::{Recorder, RecorderOptions, WindowPart, WindowRange, query};
use host::time::MonotonicTime;
use profile::{
    Dictionary, FrameRef, GroupBy, LabelSetId, Quality, Query, SampleKey, StackEnd, StackId, Value,
    key,
};
use std::collections::HashMap;
use std::sync::RwLock;
use std::sync::atomic::AtomicBool;

/// Windows of 10 s.
const WINDOWS: u64 = 90;
/// Samples of each: two CPUs at 99 Hz.
const SAMPLES: usize = 1_980;
/// Unit: nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// The synthetic samples in a dictionary: one row a key.
pub fn rows(synthetic: &Synthetic, dict: &mut Dictionary) -> Vec<(SampleKey, Value)> {
    let mut ids = HashMap::<usize, StackId>::new();
    let mut labels = HashMap::<u32, LabelSetId>::new();
    let mut rows = HashMap::<SampleKey, Value>::new();
    for sample in &synthetic.samples {
        let labels = *labels.entry(sample.pid).or_insert_with(|| {
            let (pid, unit) = (
                sample.pid.to_string(),
                format!("job-{}.service", sample.cgroup),
            );
            let cgroup = format!("/system.slice/{unit}");
            dict.intern_labels([
                (key::CGROUP, cgroup.as_str()),
                (key::UNIT, unit.as_str()),
                (key::COMM, "worker"),
                (key::PID, pid.as_str()),
            ])
        });
        let stack = *ids.entry(sample.stack).or_insert_with(|| {
            let root_first = synthetic.stacks[sample.stack].iter().rev();
            root_first.fold(StackId::EMPTY, |parent, &function| {
                let frame = dict.intern_frame(FrameRef {
                    function: &Synthetic::name(function),
                    module: "worker",
                    ..FrameRef::default()
                });
                dict.stacks.child(parent, frame)
            })
        });
        let key = SampleKey {
            labels,
            stack,
            end: StackEnd::Complete,
        };
        *rows.entry(key).or_default() += Value {
            count: 1,
            weight: PERIOD,
        };
    }
    rows.into_iter().collect()
}

/// Everything, and one service by process name.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    let mut recorder = Recorder::new(RecorderOptions::default());
    let synthetic = Synthetic::new(SAMPLES);
    let mut total = 0;
    for window in 0..WINDOWS {
        let mut rows = rows(&synthetic, recorder.dict_mut());
        total += rows.len() as u64;
        recorder.add(WindowPart {
            pressure: None,
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
            accounts: &[],
            start: MonotonicTime(window * WINDOW_NS),
            end: MonotonicTime((window + 1) * WINDOW_NS),
            closes: true,
            period: PERIOD,
            quality: Quality::default(),
            rows: &mut rows,
        });
    }
    let bytes = recorder.stats().window_bytes;
    let recorder = RwLock::new(recorder);
    let never = AtomicBool::new(false);
    let span = || WindowRange::Time(MonotonicTime(0), MonotonicTime(WINDOWS * WINDOW_NS));
    let all = Query::default();
    let one = Query::new(
        r#"unit="job-3.service""#.parse()?,
        Vec::new(),
        GroupBy::from_keys(&[key::COMM]),
    )?;
    for (name, question) in [("query of all", &all), ("query of one service", &one)] {
        lines.run(name, "row", total, || {
            query(&recorder, span(), question, &never).map(|answer| answer.profile)
        });
    }
    lines.note(format!(
        "recorder: {WINDOWS} windows, {total} rows in {bytes} bytes"
    ));
    Ok(())
}
