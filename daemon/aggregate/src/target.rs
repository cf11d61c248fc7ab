//! The recorder that receives named samples: the continuous profile's, or a capture's.
//!
//! Each recorder has a dictionary of its own, so the symbolizer's cached ids are kept per recorder.

use super::attribution::{self, Window};
use super::batch::RawBatch;
use cgroup::containers::Containers;
use hashbrown::HashMap;
use host::ids::CaptureId;
use profile::{Dictionary, LabelSetId, Remap, Value};
use std::collections::BTreeMap;

/// The symbolizer's state for one recorder.
#[derive(Default)]
pub(super) struct Target {
    /// From the symbolizer's names to the recorder's dictionary, of the recorder's `epoch`.
    pub names: Remap,
    /// From the symbolizer's label sets to the recorder's dictionary, likewise.
    pub labels: Remap,
    epoch: u64,
    /// Samples of the batch before by cgroup, for one in which everything was lost.
    before: BTreeMap<Box<str>, Value>,
}

impl Target {
    /// Forgets ids of the recorder's dictionary when they are not what they were.
    pub fn follow(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.names = Remap::default();
            self.labels = Remap::default();
            self.epoch = epoch;
        }
    }

    /// Divides what a batch of a capture lost among the cgroups with samples in it. The kernel
    /// accounts for all of a cgroup's time and not for what a capture selects, so only samples can
    /// show the proportions.
    pub fn losses(
        &mut self,
        batch: &RawBatch,
        taken: BTreeMap<Box<str>, Value>,
        containers: &Containers,
        dict: &mut Dictionary,
    ) -> Vec<(LabelSetId, Value)> {
        let window = Window {
            taken: &taken,
            before: &self.before,
            idle: batch.quality.idle,
            accounts: &[],
            is_time: false,
        };
        let losses = attribution::attribute(&batch.losses, &window);
        let losses = losses
            .iter()
            .map(|loss| {
                let labels = super::ledger::label_set(dict, containers, &loss.path);
                (labels, loss.value)
            })
            .collect();
        if !taken.is_empty() {
            self.before = taken;
        }
        losses
    }
}

/// Every recorder that is written to: the continuous profile's, and those of captures.
#[derive(Default)]
pub(super) struct Targets(HashMap<Option<CaptureId>, Target>);

impl Targets {
    /// Returns what is known of the batch's recorder.
    pub fn of(&mut self, capture: Option<CaptureId>) -> &mut Target {
        self.0.entry(capture).or_default()
    }

    /// Forgets those of captures that are over.
    pub fn keep(&mut self, running: &[CaptureId]) {
        self.0
            .retain(|id, _| id.is_none_or(|id| running.contains(&id)));
    }

    /// The symbolizer's names have been forgotten.
    pub fn forget_names(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|target| target.names = Remap::default());
    }

    /// The symbolizer's label sets have been forgotten.
    pub fn forget_labels(&mut self) {
        let all = self.0.values_mut();
        all.for_each(|target| target.labels = Remap::default());
    }
}

#[cfg(test)]
mod tests {
    use crate::batch::{RawBatch, RawLoss};
    use crate::batch_symbolizer::BatchSymbolizer;
    use crate::fold::{Folder, SampleInfo};
    use crate::recorder::{Recorder, RecorderOptions, RecorderQuery, WindowRange, query};
    use crate::recorders::{CaptureRecording, Detail, Recorders};
    use cgroup::CgroupTable;
    use host::frame::RawFrame;
    use host::ids::{CaptureId, CgroupId, Comm, Pid, Tid};
    use host::time::MonotonicTime;
    use jit::JitSymbolLookup;
    use profile::{GroupBy, Query, Selector, StackEnd, key};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, RwLock};
    use symbolize::files::FileStore;
    use symbolize::{SymbolCounters, SymbolOptions, Symbolizer};
    use unwind::process::ProcessTable;

    const CAPTURE: CaptureId = CaptureId(7);

    struct Rig {
        symbolizer: BatchSymbolizer,
        captures: Arc<Recorders>,
        own: RwLock<Recorder>,
        table: ProcessTable,
    }

    fn rig() -> Rig {
        let counters = Arc::new(SymbolCounters::default());
        let store = Arc::new(FileStore::new(None, Arc::clone(&counters)));
        let symbolizer = Symbolizer::new(SymbolOptions::default(), Arc::clone(&store), counters);
        let captures = Arc::<Recorders>::default();
        let symbolizer = BatchSymbolizer::new(
            symbolizer,
            store,
            JitSymbolLookup::closed(),
            CgroupTable::discover(),
        );
        let mut table = ProcessTable::new();
        table.fork(
            Pid(4_194_999),
            Tid(4_194_999),
            Pid(0),
            Tid(0),
            MonotonicTime(1),
        );
        Rig {
            symbolizer: symbolizer.capturing(Arc::clone(&captures)),
            captures,
            own: RwLock::new(Recorder::new(RecorderOptions::default())),
            table,
        }
    }

    impl Rig {
        /// A second of samples at these times, by name of thread.
        fn batch(
            &self,
            capture: Option<CaptureId>,
            closes: bool,
            samples: &[(u64, &str)],
        ) -> RawBatch {
            let mut folder = match capture {
                Some(id) => Folder::of_capture(id, MonotonicTime(0), RawBatch::default()),
                None => Folder::new(MonotonicTime(0)),
            };
            folder.keep_timestamps = true;
            let process = self.table.get(Pid(4_194_999)).unwrap();
            for &(at, thread) in samples {
                let sampled = SampleInfo {
                    time: MonotonicTime(at),
                    cgroup: CgroupId(0),
                    thread: Comm::from_bytes(thread.as_bytes()),
                    end: StackEnd::Complete,
                    weight: 10,
                };
                folder.add(process, &sampled, &[RawFrame::Kernel(at)]);
            }
            folder.take(MonotonicTime(1_000_000_000), closes, RawBatch::default())
        }
    }

    /// Names of threads in order of time.
    fn threads(recorder: &RwLock<Recorder>) -> Vec<String> {
        let by_thread = GroupBy::from_keys(&[key::THREAD]);
        let which = Query::new(Selector::default(), Vec::new(), by_thread).unwrap();
        let asked = RecorderQuery {
            query: &which,
            times: true,
            withhold: profile::Withholding::nothing(),
        };
        let span = WindowRange::Time(MonotonicTime(0), MonotonicTime(u64::MAX));
        let never = AtomicBool::new(false);
        let answer = query(recorder, span, asked, &never).unwrap();
        let dict = &answer.profile.dict;
        let name =
            |key: profile::SampleKey| dict.label(key.labels, key::THREAD).unwrap().to_owned();
        let timestamps = answer.profile.timestamps.list.iter();
        timestamps.map(|timestamp| name(timestamp.key)).collect()
    }

    #[test]
    fn a_capture_goes_into_its_recorder_and_the_profile_into_its_own() {
        let mut rig = rig();
        let taken = Arc::new(CaptureRecording::new(
            Recorder::new(RecorderOptions::default()),
            Detail::Functions,
        ));
        rig.captures.insert(CAPTURE, Arc::clone(&taken));
        for (capture, closes, samples) in [
            (None, false, &[(5_000_000, "own")][..]),
            (Some(CAPTURE), false, &[(6_000_000, "z"), (7_000_000, "a")]),
            (None, true, &[(8_000_000, "own")]),
            (Some(CAPTURE), true, &[(9_000_000, "b"), (9_500_000, "z")]),
        ] {
            let mut batch = rig.batch(capture, closes, samples);
            rig.symbolizer.take(&mut batch, &rig.own);
        }
        assert!(
            taken.wait_for_end(std::time::Duration::ZERO),
            "the last batch closed it"
        );
        assert_eq!(threads(&taken.recorder), ["z", "a", "b", "z"]);
        assert_eq!(threads(&rig.own), ["own", "own"]);
        assert_eq!(rig.captures.samples(), 4);
    }

    #[test]
    fn what_lines_are_read_from_is_held_while_captures_with_lines_run() {
        let mut rig = rig();
        let detail = [(CAPTURE, Detail::Lines), (CaptureId(8), Detail::Functions)];
        for (id, detail) in detail {
            let taken = CaptureRecording::new(Recorder::new(RecorderOptions::default()), detail);
            rig.captures.insert(id, Arc::new(taken));
        }
        for (capture, has_lines) in [
            (None, false),
            (Some(CaptureId(8)), false),
            (Some(CAPTURE), true),
            (None, true),
        ] {
            let mut batch = rig.batch(capture, false, &[(5, "a")]);
            rig.symbolizer.take(&mut batch, &rig.own);
            assert_eq!(rig.captures.lines_bytes() > 0, has_lines, "{capture:?}");
        }
        assert!(rig.captures.naming_ns() > 0);
        rig.captures.remove(CAPTURE);
        let mut batch = rig.batch(None, false, &[(6, "a")]);
        rig.symbolizer.take(&mut batch, &rig.own);
        assert_eq!(rig.captures.lines_bytes(), 0);
        assert_eq!(threads(&rig.own), ["a", "a", "a"]);
    }

    #[test]
    fn samples_of_a_capture_that_is_gone_are_let_go() {
        let mut rig = rig();
        let mut batch = rig.batch(Some(CAPTURE), true, &[(5, "a")]);
        rig.symbolizer.take(&mut batch, &rig.own);
        assert!(threads(&rig.own).is_empty());
    }

    #[test]
    fn what_a_capture_lost_goes_where_its_samples_are() {
        let mut rig = rig();
        let taken = Arc::new(CaptureRecording::new(
            Recorder::new(RecorderOptions::default()),
            Detail::Functions,
        ));
        rig.captures.insert(CAPTURE, Arc::clone(&taken));
        let mut batch = rig.batch(Some(CAPTURE), true, &[(5, "a")]);
        batch.losses.push(RawLoss {
            from: MonotonicTime(0),
            until: MonotonicTime(1),
            samples: 12,
            period: 10,
        });
        rig.symbolizer.take(&mut batch, &rig.own);
        let quality = taken.recorder.read().unwrap().totals_of_quality();
        assert_eq!((quality.taken, quality.lost_samples), (1, 12));
    }

    /// A daemon that is behind hands over no end of a window for long.
    #[test]
    fn a_window_that_grew_too_long_is_held_against_the_kernel_too() {
        let mut rig = rig();
        let length = 2 * RecorderOptions::default().window;
        let mut folder = Folder::new(MonotonicTime::now());
        for _ in 0..2 {
            let end = MonotonicTime(folder.batch().start.0 + length.as_nanos() as u64);
            let mut batch = folder.take(end, false, RawBatch::default());
            rig.symbolizer.take(&mut batch, &rig.own);
        }
        let own = rig.own.read().unwrap();
        let never = AtomicBool::new(false);
        let whole = (MonotonicTime(0), MonotonicTime(u64::MAX));
        let (ledger, covered) = own.ledger(whole, &Selector::default(), &never).unwrap();
        assert_eq!((covered.windows, ledger.windows), (2, 2));
        assert_eq!(ledger.windows_unmeasured, 0);
    }
}
