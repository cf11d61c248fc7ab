//! The sampler's part of captures: which run, what each folds, and handing over their batches.
//!
//! A capture has two batches of its own: it folds into one while the other is being named. A
//! batch carries the id of its capture, by which it is sorted when the symbolizer returns it. If
//! none is back in time, folding continues in the current one, as with the continuous profile.
//! Nothing here allocates, except a capture that starts and a cgroup that is created.

use super::command::{CaptureStart, CaptureSwitch, RingSetSwitch, SetOf};
use super::context::{SampleContext, mark_ended};
use super::recent::RecentCgroups;
use super::waits::Waits;
use super::{CLOSING_MAX, Queues, SamplerHandle, keep_newest};
use crate::filter::Filter;
use crate::workers::file_loader::Request;
use aggregate::batch::RawBatch;
use aggregate::fold::Folder;
use aggregate::losses::Losses;
use host::ids::{CaptureId, CgroupId, Tid};
use host::sys::Poller;
use host::time::MonotonicTime;
use offcpu::machine::At;
use offcpu::reading::event;
use perf::loss::LossGap;
use perf::record::Sample;
use perf::rings::Rings;
use perf::rings::sets::{RingSet, SetKey};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, TrySendError};
use std::time::Duration;
use unwind::process::ProcessTable;

/// Most captures at once. Each has two batches of some MiB at high rates, and each sample of a
/// shared set is offered to all of its captures. One that starts beyond it ends at once, with
/// nothing.
pub const CAPTURES_MAX: usize = 32;

/// Room in the queues of batches that captures need, in addition to the continuous profile's: two
/// batches each, and as many for captures that have just ended.
pub const CAPTURE_BATCHES: usize = 4 * CAPTURES_MAX;

/// The captures that run, and the empty batches of all.
#[derive(Default)]
pub(super) struct CaptureFolders {
    list: Vec<Running>,
    /// Empty batches of the continuous profile.
    spare: Vec<RawBatch>,
    /// Sets without captures for which the queue of `fp-files` had no room.
    closing: VecDeque<RingSet>,
    /// For a capture that starts: its list of cgroups is older.
    made: RecentCgroups,
}

/// A set that a capture takes samples of.
struct RingSetSource {
    set: SetKey,
    /// For how long its events had been counted before; see [`RingSet::times`].
    counted_before: (u64, u64),
    /// Samples that are not younger than this belong to another capture.
    since: MonotonicTime,
    /// As is what is younger than this: the set has been followed by another.
    until: Option<MonotonicTime>,
}

impl RingSetSource {
    fn covers(&self, time: MonotonicTime) -> bool {
        time > self.since && self.until.is_none_or(|until| time <= until)
    }
}

struct Running {
    id: CaptureId,
    /// The one in force, and before it those of which records may be in rings still.
    feeds: Vec<RingSetSource>,
    filter: Filter,
    /// Samples of the idle loop say that nothing happened.
    idles: bool,
    folder: Folder,
    losses: Losses,
    waits: Option<Box<Waits>>,
    spare: Option<RawBatch>,
    /// The queue had no room for it.
    unsent: Option<RawBatch>,
    start: MonotonicTime,
    /// The capture was asked to end: younger records do not belong to it.
    until: Option<MonotonicTime>,
    window: Duration,
    next: MonotonicTime,
    /// Its last batch was created.
    closed: bool,
}

impl Running {
    /// Returns this capture's source for a set of rings, if it uses the set.
    fn feed(&self, set: SetKey) -> Option<&RingSetSource> {
        self.feeds.iter().find(|feed| feed.set == set)
    }

    fn covers(&self, set: SetKey, time: MonotonicTime) -> bool {
        let taken =
            !self.closed && time > self.start && self.until.is_none_or(|until| time <= until);
        taken && self.feed(set).is_some_and(|feed| feed.covers(time))
    }

    /// Adds for how long the events of the feeds that are `over` were counted, where the processor
    /// counts them: once, before such a feed goes, for each is a call of the kernel's on each CPU.
    fn note_times(&mut self, sets: &[RingSet], over: impl Fn(&RingSetSource) -> bool) {
        for feed in self.feeds.iter().filter(|feed| over(feed)) {
            let set = sets.iter().find(|set| set.key == feed.set);
            if let Some((enabled, running)) = set.and_then(RingSet::times) {
                let (before, ran) = feed.counted_before;
                let counted = &mut self.folder.batch().counted_ns;
                counted.0 += enabled.saturating_sub(before);
                counted.1 += running.saturating_sub(ran);
            }
        }
    }

    /// Adds what is known of waits to the batch; those that go on too, when the capture ends.
    fn note_waits(&mut self, end: Option<MonotonicTime>, processes: &ProcessTable) {
        if let Some(waits) = &mut self.waits {
            if let Some(end) = end {
                waits.finish(end, &mut self.folder, processes);
            }
            self.folder.batch().waits = waits.take_counts();
        }
    }

    /// True when it is time to hand over: by the clock, or before something finds no room.
    fn is_due(&self, reached: MonotonicTime) -> bool {
        reached >= self.next || self.folder.is_half_full()
    }
}

/// The symbolizer is gone.
pub(super) struct SymbolizerGone;

impl CaptureFolders {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.closing.is_empty()
    }

    /// True while one makes waits.
    pub(super) fn make_waits(&self) -> bool {
        self.list.iter().any(|running| running.waits.is_some())
    }

    /// Starts one. Without its set, or beyond [`CAPTURES_MAX`], it ends at once.
    pub(super) fn start(
        &mut self,
        capture: CaptureStart,
        rings: &mut Rings,
        poller: &Poller,
        now: MonotonicTime,
    ) {
        let [first, spare] = capture.batches;
        let (set, known) = (capture.set.key(), rings.sets());
        let known = known.iter().find(|known| known.key == set);
        let idles = match &capture.set {
            SetOf::New(set) => set.idles,
            SetOf::Open(_) => known.is_some_and(|known| known.idles),
        };
        let counted_before = known.and_then(RingSet::times).unwrap_or_default();
        let known = known.is_some();
        let running = self.list.iter().filter(|it| it.until.is_none()).count();
        let mut refused =
            running >= CAPTURES_MAX || matches!(capture.set, SetOf::Open(_)) && !known;
        let start = match capture.set {
            SetOf::New(set) if refused => {
                self.closing.push_back(*set);
                now
            }
            SetOf::New(set) => {
                let start = set.start;
                refused = !self.listen(*set, rings, poller);
                start
            }
            SetOf::Open(_) => now,
        };
        let mut folder = Folder::of_capture(capture.id, start, first);
        folder.batch().period = capture.period;
        folder.keep_timestamps = capture.keep_times;
        let mut filter = capture.filter;
        let made = self.made.of(now);
        let refused_of_made = made.filter(|&(id, path)| !filter.note_created(id, path));
        folder.batch().cgroups_refused = refused_of_made.count() as u64;
        if filter.is_of_cgroups() {
            // They may have been its own.
            folder.batch().cgroups_refused += self.made.forgotten();
        }
        self.list.push(Running {
            id: capture.id,
            feeds: vec![RingSetSource {
                set,
                counted_before,
                since: MonotonicTime(0),
                until: None,
            }],
            filter,
            idles,
            losses: Losses::default(),
            waits: capture.waits,
            spare: Some(spare),
            unsent: refused.then(|| folder.take(start, true, RawBatch::default())),
            folder,
            start,
            until: None,
            window: capture.window,
            next: start.plus(capture.window),
            closed: refused,
        });
    }

    /// Makes a capture continue with another set. Without one, the capture ends with what it has.
    pub(super) fn follow(
        &mut self,
        follow: CaptureSwitch,
        rings: &mut Rings,
        poller: &Poller,
        now: MonotonicTime,
    ) {
        let CaptureSwitch { id, set, .. } = follow;
        let key = set.key();
        let mut counted_before = (0, 0);
        let listens = match set {
            // The next command may add captures that share it; unused sets are removed later.
            SetOf::New(set) => self.listen(*set, rings, poller),
            SetOf::Open(key) => {
                let known = rings.sets().iter().find(|known| known.key == key);
                counted_before = known.and_then(RingSet::times).unwrap_or_default();
                known.is_some()
            }
        };
        if !listens {
            return self.end(id, now);
        }
        let Some(running) = self.list.iter_mut().find(|running| running.id == id) else {
            return;
        };
        let since = match follow.seam {
            RingSetSwitch::Cut => now,
            RingSetSwitch::Apart => MonotonicTime(0),
        };
        for feed in &mut running.feeds {
            feed.until.get_or_insert(now);
        }
        running.feeds.push(RingSetSource {
            set: key,
            counted_before,
            since,
            until: None,
        });
        running.folder.batch().period = follow.period;
    }

    /// Takes over a set. False if the kernel does not allow waiting for its rings, which is no
    /// reason for the daemon to end.
    fn listen(&mut self, set: RingSet, rings: &mut Rings, poller: &Poller) -> bool {
        let refused = set.fds().position(|fd| poller.add_edge(fd, 0).is_err());
        if let Some(done) = refused {
            for fd in set.fds().take(done) {
                // It was added a moment ago.
                let _ = poller.remove(fd);
            }
            self.closing.push_back(set);
            return false;
        }
        rings.add_set(set);
        true
    }

    /// Ends a capture with what it has so far. An unknown capture has already ended.
    pub(super) fn end(&mut self, id: CaptureId, now: MonotonicTime) {
        if let Some(running) = self.list.iter_mut().find(|running| running.id == id) {
            running.until.get_or_insert(now.max(running.start));
        }
    }

    /// A CPU came at `since`, on which captures have no ring: who runs there is not seen.
    pub(super) fn cpu_came(&mut self, since: MonotonicTime) {
        self.cpu_changed();
        for waits in self.list.iter_mut().filter_map(|it| it.waits.as_mut()) {
            waits.lost_from(since);
        }
    }

    /// A CPU came or went.
    pub(super) fn cpu_changed(&mut self) {
        for running in &mut self.list {
            running.folder.batch().cpus_changed += 1;
        }
    }

    /// A cgroup was made.
    pub(super) fn note_created(&mut self, time: MonotonicTime, id: CgroupId, path: &[u8]) {
        self.made.note(time, id, path);
        for running in &mut self.list {
            let known = running.filter.note_created(id, path);
            running.folder.batch().cgroups_refused += u64::from(!known);
        }
    }

    /// Samples are missing in a set.
    pub(super) fn add_gap(&mut self, set: SetKey, event: u8, gap: LossGap) {
        for running in &mut self.list {
            let Some(feed) = running.feed(set) else {
                continue;
            };
            let (_, gap) = gap.split(feed.since);
            let gap = feed.until.map_or(gap, |until| gap.split(until).0);
            if let Some(waits) = &mut running.waits {
                // What the waits were of which a record is missing cannot be estimated.
                waits.lost(event, gap.from, gap.until);
                continue;
            }
            let (_, gap) = gap.split(running.start);
            let gap = running.until.map_or(gap, |until| gap.split(until).0);
            if !running.closed {
                running.losses.add(gap);
            }
        }
    }

    /// Gives a sample of a set to the captures that want it.
    pub(super) fn fold(
        &mut self,
        (set, event): (SetKey, u8),
        sample: &Sample<'_>,
        is_idle: bool,
        main: &mut Folder,
        way: &mut SampleContext<'_>,
    ) {
        // It is looked up and unwound once, for the first that wants it.
        let (mut names, mut end) = (None, None);
        for running in &mut self.list {
            if !running.covers(set, sample.time) {
                continue;
            }
            if let Some(waits) = &mut running.waits {
                let whose = (&running.filter, &mut running.folder);
                waits.take(event, sample, whose, main, way);
                continue;
            }
            let batch = running.folder.batch();
            if is_idle && running.idles {
                batch.quality.idle += 1;
                continue;
            }
            let names = *names.get_or_insert_with(|| way.names(sample));
            if !running.filter.passes(sample.pid, names, sample.cgroup) {
                batch.passed_over += 1;
                continue;
            }
            let end = *end.get_or_insert_with(|| way.unwind(sample));
            way.add(sample, names[0], end, &mut running.folder);
        }
        if end.is_some() {
            way.announce(sample, main);
        }
    }

    /// Reports to the captures of waits that a thread arrived on a CPU.
    pub(super) fn arrive(&mut self, set: SetKey, at: At, tid: Tid, processes: &ProcessTable) {
        for running in &mut self.list {
            if !running.covers(set, at.time) {
                continue;
            }
            if let Some(waits) = &mut running.waits {
                waits.arrives(at, tid, &mut running.folder, processes);
            }
        }
    }

    /// Adds what the last drain learned about the rings of captures, and makes CPUs report arrivals
    /// if their idle task records no switches.
    pub(super) fn take_news(&mut self, rings: &mut Rings) {
        for running in &mut self.list {
            let Some(waits) = &mut running.waits else {
                continue;
            };
            while let Some(cpu) = waits.silent_cpu() {
                for feed in &running.feeds {
                    if let Some(set) = rings.set_mut(feed.set) {
                        // Where the kernel refuses the capture says what it does not know.
                        let _ = set.tell_arrivals(event::READY, cpu);
                    }
                }
            }
        }
        for set in rings.sets() {
            let stats = set.stats;
            let its = |running: &&mut Running| running.feed(set.key).is_some();
            for running in self.list.iter_mut().filter(its) {
                let batch = running.folder.batch();
                batch.dropped += stats.dropped;
                batch.quality.lost += stats.lost;
                batch.quality.throttled += stats.throttled;
                batch.quality.malformed += stats.malformed;
            }
        }
    }

    /// Receives batches that the symbolizer has finished.
    pub(super) fn take_back(&mut self, queues: &Queues) -> Result<(), SymbolizerGone> {
        loop {
            let batch = match queues.recycled.try_recv() {
                Ok(batch) => batch,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(SymbolizerGone),
            };
            match batch.capture {
                None => self.spare.push(batch),
                Some(id) => {
                    // That of a capture which has ended is done with.
                    if let Some(running) = self.list.iter_mut().find(|it| it.id == id) {
                        running.spare = Some(batch);
                    }
                }
            }
        }
    }

    /// An empty batch for the continuous profile.
    pub(super) fn spare(&mut self) -> Option<RawBatch> {
        self.spare.pop()
    }

    /// Hands over what is due when everything up to `reached` has been folded, and closes the
    /// captures that end before.
    pub(super) fn hand_over(
        &mut self,
        reached: MonotonicTime,
        main: &mut Folder,
        (processes, sets): (&ProcessTable, &[RingSet]),
        queues: &Queues,
        shared: &SamplerHandle,
    ) -> Result<(), SymbolizerGone> {
        for running in &mut self.list {
            let drained = |feed: &RingSetSource| feed.until.is_some_and(|until| until <= reached);
            if !running.closed {
                running.note_times(sets, drained);
            }
            running.feeds.retain(|feed| !drained(feed));
            if running.unsent.is_none() && !running.closed {
                let end = running.until.filter(|&until| until <= reached);
                let (end, empty) = match end {
                    Some(end) => (end, Some(RawBatch::default())),
                    None if running.is_due(reached) => (reached, running.spare.take()),
                    None => continue,
                };
                let Some(empty) = empty else {
                    shared.deferred_batches.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                running.closed = running.until.is_some_and(|until| until <= reached);
                running.next = end.plus(running.window);
                running.note_waits(running.closed.then_some(end), processes);
                if running.closed {
                    running.note_times(sets, |_| true);
                }
                let batch = running.folder.batch();
                running.losses.take(end, batch);
                complete(batch, main.batch(), processes);
                let closed = running.closed;
                running.unsent = Some(running.folder.take(end, closed, empty));
            }
            if let Some(batch) = running.unsent.take() {
                match queues.batches.try_send(batch) {
                    Ok(()) => {}
                    Err(TrySendError::Full(batch)) => running.unsent = Some(batch),
                    Err(TrySendError::Disconnected(_)) => return Err(SymbolizerGone),
                }
            }
        }
        Ok(())
    }

    /// Drops captures with a sent last batch, and sets that nobody uses any more.
    pub(super) fn sweep(
        &mut self,
        rings: &mut Rings,
        poller: &Poller,
        (queues, shared): (&Queues, &SamplerHandle),
    ) -> io::Result<()> {
        self.list
            .retain(|running| !running.closed || running.unsent.is_some());
        let list = &self.list;
        let uses = |it: &Running, set: SetKey| it.feed(set).is_some() && !it.closed;
        let unused = |set: &&RingSet| !list.iter().any(|it| uses(it, set.key));
        while let Some(key) = rings.sets().iter().find(unused).map(|set| set.key) {
            let Some(set) = rings.take_set(key) else {
                break;
            };
            for fd in set.fds() {
                poller.remove(fd)?;
            }
            self.closing.push_back(set);
        }
        while let Some(set) = self.closing.pop_front() {
            let sent = queues.file_loader.try_send(Request::Close(Box::new(set)));
            if let Err(TrySendError::Full(Request::Close(set))) = sent {
                self.closing.push_front(*set);
                break;
            }
        }
        // Sets come and go as captures are asked for: while `fp-files` stands still they would pile
        // up.
        let beyond = keep_newest(&mut self.closing, CLOSING_MAX);
        shared.rings_closed.fetch_add(beyond, Ordering::Relaxed);
        Ok(())
    }

    /// When something can be handed over next. Where the symbolizer has both batches, or no room,
    /// nothing can.
    pub(super) fn due(&self) -> Option<MonotonicTime> {
        let open = |it: &&Running| !it.closed && it.unsent.is_none();
        let due = |it: &Running| it.until.or(it.spare.is_some().then_some(it.next));
        self.list.iter().filter(open).filter_map(due).min()
    }

    /// Sampling is over: every capture ends with what it has.
    pub(super) fn finish(
        mut self,
        end: MonotonicTime,
        main: &mut Folder,
        (processes, sets): (&ProcessTable, &[RingSet]),
        queues: &Queues,
    ) -> Result<(), SymbolizerGone> {
        for running in &mut self.list {
            let unsent = running.unsent.take();
            let last = (!running.closed).then(|| {
                running.note_times(sets, |_| true);
                running.note_waits(Some(end), processes);
                let batch = running.folder.batch();
                let end = end.max(running.start);
                running.losses.take(end, batch);
                complete(batch, main.batch(), processes);
                running.folder.take(end, true, RawBatch::default())
            });
            for batch in unsent.into_iter().chain(last) {
                queues.batches.send(batch).map_err(|_| SymbolizerGone)?;
            }
        }
        Ok(())
    }
}

/// Adds to a batch what the symbolizer must know before it names it, and what the next batch of the
/// continuous profile would report too late.
fn complete(batch: &mut RawBatch, main: &mut RawBatch, processes: &ProcessTable) {
    mark_ended(batch, processes);
    batch.files_announced = main.files_announced;
    batch.cgroups.append(&mut main.cgroups);
    batch.cgroup_bytes += std::mem::take(&mut main.cgroup_bytes);
    batch.kernel_changed |= std::mem::take(&mut main.kernel_changed);
}
