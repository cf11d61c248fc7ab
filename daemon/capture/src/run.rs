//! One capture from its start to its last message, on a thread of its own, `fp-capture`.
//!
//! It wakes four times a second, more often if its target is one cgroup. It reports progress and
//! checks whether the capture is over: the time has passed, somebody cancelled it, the client
//! disconnected, the target is gone for good, or the daemon stops. Then it ends the sampling, waits
//! for the last batch, and answers. Only this thread waits for a slow client; whoever holds the
//! receiver bounds that wait.

use super::backend::PastQuery;
use super::lines;
use super::monitor::CaptureMonitor;
use super::offcpu::{COPIES_HZ, NEAR_BYTES};
use super::past::{Past, PastOutcome};
use super::request::{CaptureSpec, Unwind};
use super::table::{CaptureTable, Running, Slot, message};
use aggregate::recorder::{self, RecorderQuery, RecorderStats, WindowRange, read};
use aggregate::recorders::{BatchTotals, Detail};
use host::sync::lock;
use host::time::MonotonicTime;
use metrics::thread_cpu_ns;
use offcpu::many;
use profile::{Coverage, Profile, Quality, QueryRunner, StackEnd, Waits, Withholding};
use proto::agent::{
    CaptureInfo, CaptureProgress, CaptureResponse, CaptureState, capture_response::Body,
};
use proto::convert::Chunks;
use proto::wire::ProfileChunk;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};

/// How often a capture looks around. Cancelling takes this long at most.
const TICK: Duration = Duration::from_millis(250);

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Longest wait for the last batch. The sampler hands it over within a tenth of a second; a
/// symbolizer that waits for a disk takes longer, and what is not there then is left out, which a
/// notice says.
const LAST_BATCH_MAX: Duration = Duration::from_secs(10);

/// The same while the daemon stops.
const LAST_BATCH_STOPPING: Duration = Duration::from_secs(2);

/// An event of the processor that was not counted for one part in so many of the time, or less, was
/// counted all the time: events are not all switched on and off at one instant.
const COUNTED_PART: u64 = 50;

/// Why a capture is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its duration has passed.
    Time,
    /// Somebody cancelled it.
    Cancelled,
    /// All processes it is about have ended.
    TargetGone,
    /// The daemon stops.
    Stopping,
    /// The sampler ended it.
    Sampler,
    /// It would cost too much.
    OverloadPolicy,
    /// Nobody reads the answer.
    ClientGone,
}

/// The client has gone.
struct ClientGone;

/// See the module. Dropped before its end it ends the capture as failed.
pub(super) struct Run {
    captures: Arc<CaptureTable>,
    running: Arc<Running>,
    wanted: CaptureSpec,
    started_at: MonotonicTime,
    messages: mpsc::Sender<CaptureResponse>,
    cost: Cost,
    selected: Selected,
    course: CaptureMonitor,
    /// The past, while it is asked for and held.
    past: Option<Past>,
    slot: Slot,
}

impl Run {
    pub fn new(
        captures: Arc<CaptureTable>,
        slot: Slot,
        running: Arc<Running>,
        wanted: CaptureSpec,
        course: CaptureMonitor,
        started_at: MonotonicTime,
        messages: mpsc::Sender<CaptureResponse>,
    ) -> Run {
        Run {
            cost: Cost::new(&captures),
            captures,
            running,
            wanted,
            started_at,
            messages,
            selected: Selected::default(),
            course,
            past: None,
            slot,
        }
    }

    /// The body of the thread.
    pub fn run(mut self) {
        self.past = self.ask_past();
        let end = self.sample();
        self.captures.backend.end(self.running.id);
        let sampled = MonotonicTime::now().since(self.started_at);
        if end == End::ClientGone {
            if let Some(past) = &self.past {
                past.cancel();
            }
            return self.finish(CaptureState::Failed, sampled, Vec::new(), "the client left");
        }
        let wait = match self.captures.is_stopping() {
            true => LAST_BATCH_STOPPING,
            false => LAST_BATCH_MAX,
        };
        let whole = self.running.taken.wait_for_end(wait);
        let end = match end {
            // The sampler is as quick to hear of it.
            End::Sampler if self.captures.is_stopping() => End::Stopping,
            end => end,
        };
        let answered = self.answer(end, sampled, whole);
        if answered.is_err() {
            let error = "the client left before the answer was complete";
            self.finish(CaptureState::Failed, sampled, Vec::new(), error);
        }
    }

    /// Starts the query to the flight recorder.
    fn ask_past(&self) -> Option<Past> {
        if self.wanted.before.is_zero() {
            return None;
        }
        let before = self.wanted.before.as_nanos() as u64;
        let asked = PastQuery {
            from: MonotonicTime(self.started_at.0.saturating_sub(before)),
            until: self.started_at,
            query: self.wanted.query.clone(),
            times: self.wanted.times,
            withhold: Arc::clone(&self.running.taken.withhold),
        };
        Past::ask(
            Arc::clone(&self.captures.backend),
            asked,
            self.slot.past_bytes(),
        )
    }

    /// Waits for the end and reports progress.
    fn sample(&mut self) -> End {
        let deadline = self.started_at.plus(self.wanted.duration);
        let mut tell_at = self.started_at;
        loop {
            let now = MonotonicTime::now();
            if now >= tell_at {
                if self.tell(now).is_err() {
                    return End::ClientGone;
                }
                tell_at = now.plus(PROGRESS_INTERVAL);
            }
            if self.messages.is_closed() {
                return End::ClientGone;
            }
            if self.running.cancelled.load(Ordering::Acquire) {
                return End::Cancelled;
            }
            if self.captures.is_stopping() {
                return End::Stopping;
            }
            if now >= deadline {
                return End::Time;
            }
            if self.course.is_excessive() {
                return End::OverloadPolicy;
            }
            if !self.course.look(now, &self.captures) {
                return End::TargetGone;
            }
            let next = deadline.min(self.course.next());
            let pause = next.since(now).min(TICK);
            if self.running.taken.wait_for_end(pause) {
                return End::Sampler;
            }
        }
    }

    /// Reports progress. A message that does not fit the queue is skipped.
    fn tell(&mut self, now: MonotonicTime) -> Result<(), ClientGone> {
        let progress = self.progress(now.since(self.started_at));
        let slowed = self.course.count(now, &self.captures);
        {
            let mut info = lock(&self.running.info);
            info.progress = Some(progress);
            info.elapsed_ns = progress.elapsed_ns;
            if let Some(period) = slowed {
                info.period = period;
            }
        }
        match self.messages.try_send(message(Body::Progress(progress))) {
            Err(TrySendError::Closed(_)) => Err(ClientGone),
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
        }
    }

    fn progress(&mut self, elapsed: Duration) -> CaptureProgress {
        let recorder = read(&self.running.taken.recorder);
        let withhold = &self.running.taken.withhold;
        self.selected.count(&recorder, &self.wanted, withhold);
        let (quality, stats) = (recorder.totals_of_quality(), recorder.stats());
        drop(recorder);
        let naming_ns = self.running.taken.naming_ns();
        let share = self.cost.share(&self.captures, quality.taken);
        let share = share.saturating_add(naming_ns);
        self.running.cpu_ns.store(share, Ordering::Relaxed);
        let thread = thread_cpu_ns(Path::new("/proc/thread-self")).unwrap_or(0);
        let past = self.past.as_ref().map_or(0, Past::bytes);
        CaptureProgress {
            elapsed_ns: elapsed.as_nanos() as u64,
            samples: self.selected.samples,
            samples_all: quality.taken + self.running.taken.beside().passed_over,
            lost_samples: quality.lost_samples,
            throttled: quality.throttled,
            cpu_ns: share.saturating_add(thread),
            bytes: (stats.bytes + stats.times_bytes) as u64 + past,
        }
    }

    /// Sends all that there is.
    fn answer(&mut self, end: End, sampled: Duration, whole: bool) -> Result<(), ClientGone> {
        let mut notices = Vec::new();
        if !whole {
            notices.push(
                "the daemon was too late to name the last samples: they are \
                    missing"
                    .to_owned(),
            );
        }
        if !self.wanted.before.is_zero() {
            notices.extend(self.send_past()?);
        }
        let profile = self.profile();
        let progress = self.progress(sampled);
        lock(&self.running.info).progress = Some(progress);
        let stats = read(&self.running.taken.recorder).stats();
        self.notice(&profile, stats, &mut notices);
        self.send_profile(profile, Body::Chunk)?;
        let (state, error) = match end {
            End::Time => (CaptureState::Complete, ""),
            End::TargetGone => (CaptureState::Cancelled, "the captured process ended"),
            End::Stopping => (CaptureState::Cancelled, "the daemon was stopped"),
            End::Sampler => (CaptureState::Cancelled, "sampling ended"),
            End::OverloadPolicy => (
                CaptureState::Cancelled,
                "threads switch more often than `captures.switches_max` allows",
            ),
            End::Cancelled | End::ClientGone => (CaptureState::Cancelled, "cancelled"),
        };
        self.finish(state, sampled, notices, error);
        let result = lock(&self.running.info).clone();
        self.send(Body::Result(result))
    }

    /// Sends the past. Returns what its reader must know.
    fn send_past(&mut self) -> Result<Option<String>, ClientGone> {
        let vain = || Some("the flight recorder did not answer".to_owned());
        let Some(past) = self.past.take() else {
            return Ok(vain());
        };
        let asked = past.asked.clone();
        let found = match past.found(self.messages.closed()) {
            Ok(found) => found.ok_or(ClientGone)?,
            Err(error) => {
                tracing::error!(%error, "failed to wait for the past of a capture");
                return Ok(vain());
            }
        };
        match found {
            PastOutcome::Packed(packed) => {
                for chunk in packed.chunks() {
                    match chunk {
                        Ok(chunk) => self.send(Body::Past(chunk))?,
                        Err(error) => {
                            tracing::error!(%error, "failed to unpack the past of a capture");
                            return Ok(vain());
                        }
                    }
                }
                Ok(None)
            }
            PastOutcome::TooLarge => {
                let never = AtomicBool::new(false);
                let Some(profile) = self.captures.backend.past(&asked, &never) else {
                    return Ok(vain());
                };
                self.send_profile(profile, Body::Past)?;
                Ok(Some(
                    "the time before was too large to hold while the capture ran: it was read at \
                     the end from what the recorder still had, and may reach some seconds into the \
                     capture"
                        .to_owned(),
                ))
            }
            PastOutcome::Nothing => Ok(vain()),
        }
    }

    /// The captured profile, as requested.
    fn profile(&self) -> Profile {
        let recorder = &self.running.taken.recorder;
        let asked = RecorderQuery {
            query: &self.wanted.query,
            times: self.wanted.times,
            withhold: &self.running.taken.withhold,
        };
        let everything = WindowRange::Time(MonotonicTime(0), MonotonicTime(u64::MAX));
        let never = AtomicBool::new(false);
        let Ok(mut answer) = recorder::query(recorder, everything, asked, &never) else {
            return Profile::default();
        };
        let start = match answer.covered.windows {
            0 => self.started_at,
            _ => answer.covered.start,
        };
        answer.date(start, |at| self.captures.backend.unix_ns(at));
        let mut profile = answer.profile;
        // The kernel accounts for cgroups, not for what a capture selects of them.
        profile.info.coverage = Coverage::default();
        if profile.info.is_waiting() {
            let waits = self.running.taken.beside().waits;
            profile.info.waits = waits_of(&profile, waits.summary());
            profile.info.waits_cause = waits.cause();
        }
        profile
    }

    /// Notices for the reader of the profile.
    fn notice(&self, profile: &Profile, stats: RecorderStats, notices: &mut Vec<String>) {
        let recorder = read(&self.running.taken.recorder);
        let (all, totals) = (recorder.totals_of_quality(), stats.totals);
        drop(recorder);
        notices.extend(self.course.notices());
        let waits = profile.info.is_waiting();
        notices.extend(quality_notices(&all, self.course.is_bound()));
        notices.extend(beside_notices(&self.running.taken.beside(), waits));
        if waits {
            let copy_all = self.wanted.unwind == Unwind::StackCopy;
            notices.extend(stack_notices(&profile.info.waits, copy_all));
        }
        if self.wanted.detail != Detail::Functions {
            notices.extend(lines::notice(profile));
        }
        if totals.dropped_by_budget > 0 {
            notices.push(format!(
                "`captures.memory_mib` was used up: the oldest {} windows of 10 s are missing",
                totals.dropped_by_budget
            ));
        }
        if totals.folded_samples + all.folded > 0 {
            let folded = totals.folded_samples.max(all.folded);
            notices.push(format!(
                "`captures.memory_mib` was used up: {folded} samples are counted as [other]"
            ));
        }
        let untimed = totals.times_dropped + profile.timestamps.dropped;
        if self.wanted.times && untimed > 0 {
            notices.push(format!(
                "the times of the {untimed} oldest samples are left out for lack of memory"
            ));
        }
        if profile.samples.is_empty() {
            notices.push(match all.taken {
                0 => "nothing was sampled".to_owned(),
                taken => format!(
                    "none of the {taken} samples matches the selection and the frame filters"
                ),
            });
        }
    }

    fn send_profile(
        &self,
        profile: Profile,
        wrap: impl Fn(ProfileChunk) -> Body,
    ) -> Result<(), ClientGone> {
        Chunks::new(profile).try_for_each(|chunk| self.send(wrap(chunk)))
    }

    /// Waits for room.
    fn send(&self, body: Body) -> Result<(), ClientGone> {
        let sent = self.messages.blocking_send(message(body));
        sent.map_err(|_| ClientGone)
    }

    /// Notes how it ended, and gives back what it held.
    fn finish(
        &mut self,
        state: CaptureState,
        sampled: Duration,
        notices: Vec<String>,
        error: &str,
    ) {
        let info = {
            let mut info = lock(&self.running.info);
            info.state = state.into();
            info.elapsed_ns = sampled.as_nanos() as u64;
            add_new(&mut info.notices, notices);
            error.clone_into(&mut info.error);
            info.clone()
        };
        self.captures.close(&self.running, info);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A capture that ended normally is closed already, and this does nothing.
        let info = CaptureInfo {
            state: CaptureState::Failed.into(),
            error: "the capture ended without a result: see the daemon's log".to_owned(),
            ..lock(&self.running.info).clone()
        };
        self.captures.close(&self.running, info);
    }
}

/// What was missed while sampling, for people.
///
/// `is_bound`: the events were bound to one cgroup. Such events tick only while it runs, so no
/// clock shows how many samples there should be.
fn quality_notices(all: &Quality, is_bound: bool) -> Vec<String> {
    let mut notices = Vec::new();
    if all.throttled > 0 {
        let missing = match all.lost_samples == 0 || is_bound {
            true => "and their number is not known",
            false => "and are counted as [lost]",
        };
        notices.push(format!(
            "the kernel throttled sampling {} times: samples are missing where it was busiest, \
             {missing}; kernel.perf_event_max_sample_rate and perf_cpu_time_max_percent limit the \
             rate",
            all.throttled
        ));
    }
    if all.lost_samples > 0 {
        notices.push(format!(
            "{} samples were lost: they are counted as [lost]",
            all.lost_samples
        ));
    }
    if all.malformed > 0 {
        notices.push(format!("{} damaged records were skipped", all.malformed));
    }
    notices
}

/// Adds those that are not there yet: rings that are opened again say once more what they hold.
fn add_new(notices: &mut Vec<String>, more: Vec<String>) {
    for notice in more {
        if !notices.contains(&notice) {
            notices.push(notice);
        }
    }
}

/// Statistics of the waits of a profile, including those from its stacks.
fn waits_of(profile: &Profile, mut waits: Waits) -> Waits {
    for (key, value) in &profile.samples {
        let (count, ns) = match key.end {
            StackEnd::Alike => (&mut waits.alike, &mut waits.alike_ns),
            end if end.is_truncated() => (&mut waits.cut, &mut waits.cut_ns),
            _ => continue,
        };
        *count += value.count;
        *ns += value.weight;
    }
    waits
}

/// Notices about the quality of waits' stacks.
fn stack_notices(waits: &Waits, copy_all: bool) -> Vec<String> {
    let share = |ns: u64| ns as f64 * 100.0 / waits.taken_ns().max(1) as f64;
    let mut notices = Vec::new();
    if waits.cut > 0 {
        let why = match copy_all {
            true => "the copy is too small, or the stack cannot be unwound".to_owned(),
            false => format!(
                "stacks deeper than {NEAR_BYTES} bytes are copied {COPIES_HZ} times a second on \
                 each CPU, the others are walked by frame pointers; --unwind stack-copy copies \
                 all, at a higher cost"
            ),
        };
        let share = share(waits.cut_ns);
        notices.push(format!(
            "cut stacks: {} ({share:.1} % of the time waited): {why}",
            many(waits.cut, "wait", "waits")
        ));
    }
    if waits.alike > 0 {
        notices.push(format!(
            "estimated outer callers: {} ({:.1} % of the time waited), taken from a larger copy of \
             the same thread's stack with the same registers and return addresses; {} such \
             estimates were checked with a copy, and {} were wrong",
            many(waits.alike, "wait", "waits"),
            share(waits.alike_ns),
            waits.alike_checked,
            waits.alike_wrong
        ));
    }
    notices
}

/// Notices about what batches reported besides their samples.
///
/// `waits`: it was a capture of waits, which has no rate.
fn beside_notices(beside: &BatchTotals, waits: bool) -> Vec<String> {
    let mut notices = Vec::new();
    if beside.dropped > 0 {
        let (records, remedy) = match waits {
            true => (
                "records of switches and wake-ups",
                "name a target, so that fewer stacks are unwound",
            ),
            false => ("samples", "capture at a lower rate"),
        };
        notices.push(format!(
            "{} {records} were dropped because the sampler was too busy: {remedy}",
            beside.dropped
        ));
    }
    if beside.cpus_changed > 0 {
        notices.push(format!(
            "a CPU went online or offline {} times: it was sampled for part of the time",
            beside.cpus_changed
        ));
    }
    if beside.cgroups_refused > 0 {
        notices.push(format!(
            "{} cgroups created during the capture are missing for lack of room",
            beside.cgroups_refused
        ));
    }
    let (enabled, counted) = beside.counted_ns;
    if counted < enabled - enabled / COUNTED_PART {
        notices.push(format!(
            "the event was counted for {:.0} % of the time, because other users needed the \
             processor's counters: weights cover only that time",
            counted as f64 / enabled as f64 * 100.0
        ));
    }
    notices.extend(beside.waits.notices());
    notices
}

/// Counts samples of what is selected, batch by batch.
#[derive(Default)]
struct Selected {
    samples: u64,
    /// Number of the last part counted.
    part: u64,
}

impl Selected {
    fn count(
        &mut self,
        recorder: &recorder::Recorder,
        wanted: &CaptureSpec,
        withhold: &Withholding,
    ) {
        let newest = recorder.subscribe().borrow().part;
        if newest == self.part {
            return;
        }
        let mut runner = QueryRunner::withholding(&wanted.query, withhold);
        let never = AtomicBool::new(false);
        let mut samples = 0;
        let span = WindowRange::Parts(self.part, newest);
        let scanned = recorder.scan(span, &never, |dict, key, value| {
            if key.end != StackEnd::Lost && runner.selects(dict, key.labels) {
                samples += value.count;
            }
        });
        if scanned.is_ok() {
            self.samples += samples;
            self.part = newest;
        }
    }
}

/// Cost of a capture: its share, by samples, of the CPU time of the threads that sample and name,
/// plus its own thread. A sample of a capture costs as much as one of the continuous profile,
/// except for source lines, which are counted separately.
struct Cost {
    cpu_ns: u64,
    samples: u64,
}

impl Cost {
    fn new(captures: &CaptureTable) -> Cost {
        Cost {
            cpu_ns: Cost::shared_ns(captures),
            samples: captures.backend.samples() + captures.recorders.samples(),
        }
    }

    /// CPU time of those threads without naming by line.
    fn shared_ns(captures: &CaptureTable) -> u64 {
        let naming_ns = captures.recorders.naming_ns();
        captures.backend.cpu_ns().saturating_sub(naming_ns)
    }

    /// Returns its share of what the threads that sample and name took since the start, with so
    /// many samples of its own.
    fn share(&self, captures: &CaptureTable, own: u64) -> u64 {
        let cpu_ns = Cost::shared_ns(captures).saturating_sub(self.cpu_ns);
        let all = captures.backend.samples() + captures.recorders.samples();
        let all = all.saturating_sub(self.samples).max(own).max(1);
        (u128::from(cpu_ns) * u128::from(own) / u128::from(all)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rings_say_again_is_said_once() {
        let mut notices = vec!["rings hold 143 ms".to_owned()];
        let more = ["one event in 20", "rings hold 143 ms"].map(str::to_owned);
        add_new(&mut notices, more.to_vec());
        assert_eq!(notices, ["rings hold 143 ms", "one event in 20"]);
    }

    #[test]
    fn an_event_that_was_counted_for_a_part_of_the_time_is_told() {
        let told = |counted_ns| {
            let beside = BatchTotals {
                counted_ns,
                ..BatchTotals::default()
            };
            beside_notices(&beside, false)
        };
        assert!(told((0, 0)).is_empty(), "no event of the processor");
        assert!(told((1000, 985)).is_empty());
        let notice = &told((1000, 250))[0];
        assert!(
            notice.starts_with("the event was counted for 25 % of the time"),
            "{notice}"
        );
    }
}
