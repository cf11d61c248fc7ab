//! One capture over the fleet: starts it on the hosts, reports their progress to its client, merges
//! the results, and ends when all hosts have ended or the time is over.
//!
//! Runs as a task of its own. It never waits for the client while hosts run: progress that the
//! client does not read is sent later, and for each host only its newest state. Merging runs on a
//! blocking thread, one host after the other.

use super::Control;
use super::cancel::cancel_asked;
use super::captured::profile_type;
use super::history::{CLIENT_LEFT, Slot, count, in_part};
use super::host_capture::{Event, HostCapture};
use super::limits::{KEEP_PATIENCE, LISTED_REQUEST_BYTES_MAX, QUIET_MAX};
use super::merge::{Arrived, Bounds, MergeError, Merged, Span};
use super::peer::PeerCollector;
use super::select::{Checked, Chosen, Place, Plan, to_wire};
use crate::audit::{self, DONE, HOSTS_NAMED};
use crate::evidence;
use crate::ingest::stopped;
use crate::memory::Reservation;
use crate::query::{ANSWER_TIMEOUT, STALL_TIMEOUT};
use profile::{FrameFilter, GroupBy, Profile, Query, Selector};
use proto::collector::{
    FleetCaptureInfo, FleetCaptureRequest, FleetCaptureResponse, FleetPlan, HostProgress,
    HostState, KeptCapture, fleet_capture_response::Body,
};
use proto::{Chunks, wire};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Status;

/// How often a client gets an update.
const TELL_INTERVAL: Duration = Duration::from_millis(250);

/// Part of the patience that other collectors have with their hosts.
const PEER_PATIENCE: f64 = 0.75;

/// Events of hosts that wait for the fan-out, which takes them at once.
const EVENTS_QUEUED: usize = 64;

/// Longest text of a host's rejection in the audit log. Unit: bytes.
const REFUSAL_BYTES_MAX: usize = 256;

/// Messages that wait for the client.
pub const OUTBOX: usize = 4;

/// To the client.
pub type Client = mpsc::Sender<Result<FleetCaptureResponse, Status>>;

/// A fan-out that was planned.
pub struct Fanout {
    /// The control of the collector that asks.
    pub control: Control,
    /// Its place.
    pub slot: Slot,
    /// The request.
    pub checked: Checked,
    /// Who is asked.
    pub plan: Plan,
    /// The audit event with the caller.
    pub event: audit::Event,
    /// It was asked with frame filters.
    pub filtered: bool,
    /// It goes on when its client goes away.
    pub stays: bool,
    /// Whether what comes of it is kept; or why it cannot be.
    pub keeps: Result<bool, String>,
}

/// How the hosts' captures of it ended.
enum End {
    /// All hosts have ended.
    Done,
    /// Nobody needs the result any more.
    Left,
    /// The collector ends.
    Stopped,
}

type Ending = Vec<(usize, HostProgress)>;

/// A host merged: all that came so far, and the states of the hosts it was about.
type MergeDone = (Merged, Ending);

struct Run {
    fanout: Fanout,
    /// Its client has left, and it stays.
    alone: bool,
    hosts: Vec<HostProgress>,
    /// Why hosts refused, in their own words, for the audit log.
    refusals: Vec<String>,
    undone: usize,
    /// Hosts that changed since the last update, and those in the current update.
    changed: BTreeSet<usize>,
    telling: VecDeque<usize>,
    plan: Option<FleetPlan>,
    told: Instant,
    tasks: JoinSet<()>,
    waiting: VecDeque<(Ending, Box<Arrived>)>,
    merging: Option<JoinHandle<MergeDone>>,
    merging_hosts: Vec<usize>,
    merged: Option<Merged>,
    notices: Vec<String>,
    before_ns: i64,
    started_unix_ns: i64,
}

impl Fanout {
    /// Runs it to its end.
    pub async fn run(self, client: Client) {
        let (id, started) = (self.slot.id, Instant::now());
        let (events, queue) = mpsc::channel(EVENTS_QUEUED);
        let mut run = Run::start(self, events);
        let end = run.hosts(queue, &client).await;
        match end {
            End::Done => {}
            End::Left => run.fanout.slot.update(|info| {
                // Also where it was cancelled before.
                info.ended_by = CLIENT_LEFT.to_owned();
            }),
            End::Stopped => {
                let status = Status::unavailable("the collector is shutting down");
                run.fanout.slot.update(|info| {
                    info.ended_by = status.message().to_owned();
                });
                let _ = client.try_send(Err(status));
            }
        }
        // What still runs on hosts ends.
        run.tasks.shutdown().await;
        run.note();
        let info = run.fanout.slot.info();
        tracing::info!(
            id,
            asked = info.asked,
            answered = info.answered,
            failed = info.failed,
            lost = info.lost,
            ended_by = info.ended_by,
            seconds = started.elapsed().as_secs_f64(),
            "fleet capture ended"
        );
        match end {
            End::Done => run.answer(info, &client).await,
            End::Left | End::Stopped => record(&run.fanout, &run.refusals, &info),
        }
    }
}

impl Run {
    fn start(mut fanout: Fanout, events: mpsc::Sender<Event>) -> Run {
        let chosen = std::mem::take(&mut fanout.plan.chosen);
        let mut notices = std::mem::take(&mut fanout.plan.notices);
        if fanout.plan.absent > 0 {
            let match_and_are = match fanout.plan.absent {
                1 => "1 host matches and is".to_owned(),
                absent => format!("{absent} hosts match and are"),
            };
            notices.push(format!(
                "{match_and_are} not connected: {}",
                fanout.plan.absent_named.join(", ")
            ));
        }
        if fanout.plan.left_out > 0 {
            let match_beyond = match fanout.plan.left_out {
                1 => "1 host matches".to_owned(),
                more => format!("{more} more hosts match"),
            };
            notices.push(format!(
                "{match_beyond} beyond the limit of {}",
                fanout.checked.hosts_max
            ));
        }
        let inner = &fanout.control.0;
        let mut run = Run {
            alone: false,
            hosts: Vec::with_capacity(chosen.len()),
            refusals: Vec::new(),
            undone: chosen.len(),
            changed: BTreeSet::new(),
            telling: VecDeque::new(),
            plan: None,
            told: Instant::now(),
            tasks: JoinSet::new(),
            waiting: VecDeque::new(),
            merging: None,
            merging_hosts: Vec::new(),
            merged: Some(Merged::new(
                inner.memory.reserve(),
                Bounds::of(inner.memory.bytes_max()),
            )),
            notices,
            before_ns: i64::try_from(fanout.checked.capture.before_ns).unwrap_or(i64::MAX),
            started_unix_ns: inner.clock.now_unix_ns(),
            fanout,
        };
        let mut peers = BTreeMap::new();
        for (at, chosen) in chosen.into_iter().enumerate() {
            run.ask_host(at, chosen, &events, &mut peers);
        }
        for (collector, hosts) in peers {
            run.ask_peer(collector, hosts, &events);
        }
        run.plan = Some(FleetPlan {
            id: run.fanout.slot.id,
            hosts: run.hosts.clone(),
            selected: run.fanout.plan.selected as u32,
            left_out: run.fanout.plan.left_out as u32,
            absent: run.fanout.plan.absent as u32,
            absent_hosts: run.fanout.plan.absent_named.clone(),
        });
        run.note();
        run
    }

    /// Asks a host, or leaves it for its collector.
    fn ask_host(
        &mut self,
        at: usize,
        chosen: Chosen,
        events: &mpsc::Sender<Event>,
        peers: &mut BTreeMap<String, Ending>,
    ) {
        let inner = &self.fanout.control.0;
        let mut progress = HostProgress {
            host_id: chosen.host_id,
            hostname: chosen.hostname,
            state: HostState::Waiting.into(),
            ..HostProgress::default()
        };
        let (agent, request, labels) = match chosen.place {
            Place::Here {
                agent,
                request,
                labels,
            } => (agent, request, labels),
            Place::There { collector } => {
                let hosts = peers.entry(collector).or_default();
                hosts.push((at, progress.clone()));
                self.hosts.push(progress);
                return;
            }
        };
        match agent.capture(*request) {
            Ok(sent) => {
                let capture = HostCapture {
                    at,
                    progress: progress.clone(),
                    labels,
                    agent,
                    clock: inner.clock.clone(),
                    memory: inner.memory.clone(),
                    events: events.clone(),
                    cancel: self.fanout.slot.cancel.clone(),
                    metrics: inner.metrics.clone(),
                };
                self.tasks.spawn(capture.run(sent));
            }
            Err(error) => {
                let gone = error == super::agent_registry::CommandError::Gone;
                let state = if gone {
                    HostState::Lost
                } else {
                    HostState::Failed
                };
                progress.state = state.into();
                progress.message = error.to_string();
                self.undone -= 1;
            }
        }
        self.hosts.push(progress);
    }

    /// Asks another collector.
    fn ask_peer(&mut self, collector: String, hosts: Ending, events: &mpsc::Sender<Event>) {
        let inner = &self.fanout.control.0;
        let checked = &self.fanout.checked;
        let mut capture = checked.capture.clone();
        capture.matchers = checked.selector.matchers().iter().map(to_wire).collect();
        // What it has by then must come here and be merged in time.
        let patience = checked.patience.mul_f64(PEER_PATIENCE);
        let peer = PeerCollector {
            collector,
            request: FleetCaptureRequest {
                capture: Some(capture),
                patience_ns: u64::try_from(patience.as_nanos())
                    .unwrap_or(u64::MAX)
                    .max(1),
                ..FleetCaptureRequest::default()
            },
            hosts,
            memory: inner.memory.clone(),
            events: events.clone(),
            cancel: self.fanout.slot.cancel.clone(),
            metrics: inner.metrics.clone(),
        };
        self.tasks.spawn(peer.run());
    }

    /// Serves the hosts until all have ended, or nobody waits for them.
    async fn hosts(&mut self, mut events: mpsc::Receiver<Event>, client: &Client) -> End {
        let inner = self.fanout.control.0.clone();
        let mut shutdown = inner.shutdown.clone();
        let mut cancel = self.fanout.slot.cancel.clone();
        let duration = Duration::from_nanos(self.fanout.checked.capture.duration_ns);
        let patience = self.fanout.checked.patience;
        let mut deadline = Instant::now() + duration + patience;
        let (mut cancelled, mut listening) = (false, true);
        let mut tick = tokio::time::interval(TELL_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.merge_next();
            if self.undone == 0 && self.merging.is_none() {
                return End::Done;
            }
            let news = self.plan.is_some() || !self.telling.is_empty();
            tokio::select! {
                () = stopped(&mut shutdown) => return End::Stopped,
                // A client that left before it got the number could neither find nor end the
                // capture.
                () = client.closed(), if !self.alone => match self.fanout.stays && self.plan.is_none() {
                    true => self.alone = true,
                    false => return End::Left,
                },
                event = events.recv(), if listening => match event {
                    Some(event) => self.take(event),
                    None => {
                        listening = false;
                        self.lose("the capture of the host failed in the collector");
                    }
                },
                done = merged(&mut self.merging) => self.merge_done(done),
                // The branch above notices a client that has left.
                Ok(permit) = client.reserve(), if news && !self.alone => {
                    if let Some(body) = self.news() {
                        permit.send(Ok(FleetCaptureResponse { body: Some(body) }));
                    }
                }
                () = cancel_asked(&mut cancel), if !cancelled => {
                    cancelled = true;
                    deadline = deadline.min(Instant::now() + patience);
                }
                () = tokio::time::sleep_until(deadline), if self.undone > 0 && listening => {
                    while let Ok(event) = events.try_recv() {
                        self.take(event);
                    }
                    self.tasks.abort_all();
                    self.lose(&late(cancelled, patience));
                }
                _ = tick.tick() => self.tick(),
            }
        }
    }

    /// The part of a host's progress that the caller may see.
    fn shown(&self, host: HostProgress) -> HostProgress {
        match self.fanout.checked.caller.sees_parts_of_hosts() {
            true => in_part(host),
            false => host,
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Progress(at, progress) => {
                if !is_over(&self.hosts[at]) {
                    self.hosts[at] = self.shown(progress);
                    self.changed.insert(at);
                }
            }
            Event::Ended(ending, None) => self.end(ending),
            Event::Ended(ending, Some(arrived)) => {
                // Its time was over, which was reported.
                if ending.iter().any(|&(at, _)| !is_over(&self.hosts[at])) {
                    self.waiting.push_back((ending, arrived));
                }
            }
        }
    }

    fn end(&mut self, ending: Ending) {
        for (at, progress) in ending {
            if !is_over(&self.hosts[at]) {
                self.note_refusal(&progress);
                self.hosts[at] = self.shown(progress);
                self.changed.insert(at);
                self.undone -= 1;
            }
        }
    }

    /// Records why a host did not capture. The client may see less of it.
    fn note_refusal(&mut self, host: &HostProgress) {
        let refused = !host.message.is_empty() && !matches!(host.state(), HostState::Done);
        if refused && self.refusals.len() < HOSTS_NAMED {
            let cut = host.message.floor_char_boundary(REFUSAL_BYTES_MAX);
            let refusal = format!("{}: {}", host.hostname, &host.message[..cut]);
            self.refusals.push(refusal);
        }
    }

    /// Hosts that have not ended are lost, unless their profile waits to be merged.
    fn lose(&mut self, why: &str) {
        let safe: BTreeSet<usize> = self.safe().collect();
        for at in 0..self.hosts.len() {
            if is_over(&self.hosts[at]) || safe.contains(&at) {
                continue;
            }
            let mut lost = self.hosts[at].clone();
            lost.state = HostState::Lost.into();
            lost.message = why.to_owned();
            self.end(vec![(at, lost)]);
        }
    }

    /// Hosts with a profile that has arrived.
    fn safe(&self) -> impl Iterator<Item = usize> {
        let waiting = self.waiting.iter().flat_map(|(ending, _)| ending);
        waiting
            .map(|&(at, _)| at)
            .chain(self.merging_hosts.iter().copied())
    }

    fn merge_next(&mut self) {
        if self.merging.is_some() {
            return;
        }
        let Some(mut merged) = self.merged.take() else {
            return;
        };
        let Some((mut ending, arrived)) = self.waiting.pop_front() else {
            self.merged = Some(merged);
            return;
        };
        let inner = &self.fanout.control.0;
        let span = Span {
            started_unix_ns: self.started_unix_ns,
            before_ns: self.before_ns,
            now_unix_ns: inner.clock.now_unix_ns(),
        };
        let metrics = inner.metrics.clone();
        self.merging_hosts = ending.iter().map(|&(at, _)| at).collect();
        self.merging = Some(tokio::task::spawn_blocking(move || {
            let mut notices = Vec::new();
            let taken = merged.take(*arrived, span, &mut notices);
            if let Err(MergeError::Memory { .. } | MergeError::Large { .. }) = &taken {
                metrics.control_refused.inc();
            }
            let merged_in =
                |host: &HostProgress| matches!(host.state(), HostState::Done | HostState::Partial);
            for (_, host) in ending.iter_mut().filter(|(_, host)| merged_in(host)) {
                host.notices.extend_from_slice(&notices);
                if let Err(error) = &taken {
                    host.state = HostState::Failed.into();
                    host.message = error.to_string();
                }
            }
            (merged, ending)
        }));
    }

    fn merge_done(&mut self, done: Option<MergeDone>) {
        self.merging = None;
        match done {
            Some((merged, ending)) => {
                self.merged = Some(merged);
                self.merging_hosts.clear();
                self.end(ending);
            }
            None => {
                // It panicked, and all that was merged is gone with it.
                self.waiting.clear();
                self.tasks.abort_all();
                self.merging_hosts.clear();
                let why = "merging failed in the collector";
                self.refusals = vec![format!("all: {why}")];
                for host in &mut self.hosts {
                    host.state = HostState::Failed.into();
                    host.message = why.to_owned();
                }
                self.undone = 0;
            }
        }
    }

    /// The next message for the client.
    fn news(&mut self) -> Option<Body> {
        self.told = Instant::now();
        if let Some(plan) = self.plan.take() {
            return Some(Body::Plan(plan));
        }
        let at = self.telling.pop_front()?;
        Some(Body::Host(self.hosts[at].clone()))
    }

    fn tick(&mut self) {
        if self.alone {
            self.telling.clear();
            self.told = Instant::now();
        }
        if self.telling.is_empty() {
            if self.changed.is_empty() && self.told.elapsed() >= QUIET_MAX {
                let undone = self.hosts.iter().position(|host| !is_over(host));
                self.changed.extend(undone);
            }
            self.telling.extend(std::mem::take(&mut self.changed));
            if !self.telling.is_empty() {
                self.note();
            }
        }
    }

    /// Puts how far it is into the list.
    fn note(&self) {
        self.fanout.slot.update(|info| {
            count(info, &self.hosts);
            info.hosts.clone_from(&self.hosts);
            info.notices.clone_from(&self.notices);
        });
    }

    /// Sends the result, and keeps it.
    async fn answer(mut self, info: FleetCaptureInfo, client: &Client) {
        let merged = self.merged.take();
        let (past, own, held, times_shed) = match merged {
            Some(merged) => (
                merged.past,
                merged.own,
                Some(merged.held),
                merged.times_shed,
            ),
            None => (None, None, None, 0),
        };
        let mut info = FleetCaptureInfo {
            running: false,
            hosts: std::mem::take(&mut self.hosts),
            ..info
        };
        let metrics = self.fanout.control.0.metrics.clone();
        let (mut past, mut own) = (past, own);
        let in_part = self.fanout.checked.caller.sees_parts_of_hosts();
        if in_part {
            let filters = std::mem::take(&mut self.fanout.checked.filters);
            let both = [past.take(), own.take()];
            let cutting = move || both.map(|one| one.map(|one| part_of(one, &filters)));
            // It looks at every stack.
            if let Ok(both) = tokio::task::spawn_blocking(cutting).await {
                [past, own] = both;
            }
        }
        if times_shed > 0 {
            metrics.control_times_shed.inc_by(times_shed);
            info.notices.push(format!(
                "the result has all samples, but no room for the times of {times_shed} of them; \
                 capture fewer hosts, for a shorter time, or with less of the time before"
            ));
        }
        let finished = Arc::new(Finished {
            past,
            own,
            in_part,
            _held: held,
        });
        let Run {
            fanout, refusals, ..
        } = self;
        // A task of its own: whatever becomes of the client, it is kept.
        let keeping = tokio::spawn(keep(fanout, refusals, info.clone(), finished.clone()));
        let sending = send(finished, info, keeping, client);
        if !matches!(
            tokio::time::timeout(ANSWER_TIMEOUT, sending).await,
            Ok(true)
        ) {
            metrics.answers_stalled.inc();
        }
    }
}

/// Result of a capture.
struct Finished {
    past: Option<Profile>,
    own: Option<Profile>,
    in_part: bool,
    _held: Option<Reservation>,
}

/// How a capture that was to be kept is listed now, or why it is not kept; none: it was not to be.
type Outcome = Option<Result<FleetCaptureInfo, String>>;

/// Keeps what came of a capture, puts that on record, and gives its place to another.
async fn keep(
    fanout: Fanout,
    refusals: Vec<String>,
    mut info: FleetCaptureInfo,
    finished: Arc<Finished>,
) -> Outcome {
    let outcome = match (&fanout.keeps, &finished.own) {
        (Ok(false), _) | (_, None) => None,
        (Err(reason), Some(_)) => Some(Err(lost(&fanout, reason.clone()))),
        (Ok(true), Some(own)) => {
            let head = KeptCapture {
                info: Some(info.clone()),
                selection: selection(&fanout.checked.selector),
                filtered: fanout.filtered,
                in_part: finished.in_part,
                owner: fanout.checked.caller.name.clone(),
                profile_type: profile_type(&own.info),
            };
            let kept = fanout.control.0.kept.clone();
            let file = finished.clone();
            let write = move || kept.keep(head, file.past.as_ref(), file.own.as_ref());
            let kept = tokio::task::spawn_blocking(write).await;
            Some(kept.unwrap_or_else(|_| {
                Err(lost(
                    &fanout,
                    "the capture failed in the collector".to_owned(),
                ))
            }))
        }
    };
    match &outcome {
        Some(Ok(kept)) => info.kept = kept.kept,
        Some(Err(reason)) => {
            let notice = not_kept(reason);
            fanout.slot.update(|info| info.notices.push(notice));
        }
        None => {}
    }
    record(&fanout, &refusals, &info);
    outcome
}

/// Counts and logs a capture with a file that was not even started.
fn lost(fanout: &Fanout, reason: String) -> String {
    fanout.control.0.metrics.captures_kept_failed.inc();
    tracing::warn!(id = fanout.slot.id, reason, "failed to keep a capture");
    reason
}

/// The stored text of the selector; nothing if it is too long, and then callers with a scope do not
/// see the capture.
fn selection(selector: &Selector) -> String {
    let text = selector.to_string();
    match text.len() <= LISTED_REQUEST_BYTES_MAX {
        true => text,
        false => String::new(),
    }
}

fn not_kept(reason: &str) -> String {
    format!("the collector does not keep the profile of this capture, so save it: {reason}")
}

/// Puts on record what came of it, and which hosts refused.
fn record(fanout: &Fanout, refusals: &[String], info: &FleetCaptureInfo) {
    let outcome = match info.ended_by.as_str() {
        "" => DONE,
        other => other,
    };
    let event = fanout.event.clone();
    let event = event
        .with("asked", info.asked)
        .with("answered", info.answered)
        .with("failed", info.failed)
        .with("lost", info.lost)
        .with("kept", info.kept)
        .with("refusals", refusals.to_vec())
        .ended(outcome);
    fanout.control.0.audit.note(event);
}

/// The part of a captured profile for callers who may see a part of the host: without wakers, and
/// without counts over all of the host.
fn part_of(profile: Profile, filters: &[FrameFilter]) -> Profile {
    // Filters find nothing that is not shown, but they count again over the complete host.
    let part = evidence::in_part(profile);
    if filters.is_empty() {
        return part;
    }
    match Query::new(Selector::default(), filters.to_vec(), GroupBy::All) {
        Ok(query) => evidence::in_part(part.query(&query)),
        Err(_) => part,
    }
}

/// Sends the profiles, waits until they are kept, and sends the result; false when the client does
/// not read them.
async fn send(
    finished: Arc<Finished>,
    mut info: FleetCaptureInfo,
    mut keeping: JoinHandle<Outcome>,
    client: &Client,
) -> bool {
    let past = chunks(finished.past.as_ref()).map(Body::Past);
    let own = chunks(finished.own.as_ref()).map(Body::Chunk);
    for body in past.chain(own) {
        match tell(client, body).await {
            Delivery::Read => {}
            Delivery::Left => return true,
            Delivery::Stalled => return false,
        }
    }
    let end = Instant::now() + KEEP_PATIENCE;
    let outcome = loop {
        tokio::select! {
            outcome = &mut keeping => break outcome.unwrap_or_default(),
            () = tokio::time::sleep_until(end) => {
                let seconds = KEEP_PATIENCE.as_secs();
                break Some(Err(format!("the disk did not store it within {seconds} s")));
            }
            () = tokio::time::sleep(QUIET_MAX) => {}
        }
        // So that the client does not think that nobody is there.
        let Some(host) = info.hosts.first() else {
            continue;
        };
        match tell(client, Body::Host(host.clone())).await {
            Delivery::Read => {}
            Delivery::Left => return true,
            Delivery::Stalled => return false,
        }
    };
    match outcome {
        Some(Ok(kept)) => {
            (info.kept, info.has_past, info.bytes) = (true, kept.has_past, kept.bytes);
        }
        Some(Err(reason)) => info.notices.push(not_kept(&reason)),
        None => {}
    }
    !matches!(tell(client, Body::Result(info)).await, Delivery::Stalled)
}

fn chunks(profile: Option<&Profile>) -> impl Iterator<Item = wire::ProfileChunk> {
    profile.map(Chunks::new).into_iter().flatten()
}

/// Result of sending a message.
enum Delivery {
    Read,
    /// The client went away, which is its own affair.
    Left,
    Stalled,
}

async fn tell(client: &Client, body: Body) -> Delivery {
    let message = FleetCaptureResponse { body: Some(body) };
    match client.send_timeout(Ok(message), STALL_TIMEOUT).await {
        Ok(()) => Delivery::Read,
        Err(mpsc::error::SendTimeoutError::Closed(_)) => Delivery::Left,
        Err(mpsc::error::SendTimeoutError::Timeout(_)) => Delivery::Stalled,
    }
}

fn is_over(host: &HostProgress) -> bool {
    matches!(
        host.state(),
        HostState::Done | HostState::Partial | HostState::Failed | HostState::Lost
    )
}

fn late(cancelled: bool, patience: Duration) -> String {
    let seconds = patience.as_secs_f64();
    match cancelled {
        true => format!(
            "the host did not answer within {seconds} s after the capture was \
            cancelled"
        ),
        false => {
            format!("the host did not answer within {seconds} s after the capture's end (patience)")
        }
    }
}

/// The end of the merge that runs; never without one. `None`: it panicked.
async fn merged(merging: &mut Option<JoinHandle<MergeDone>>) -> Option<MergeDone> {
    match merging {
        Some(merging) => merging.await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{
        FrameFilterOp, FrameKind, FrameRef, OFF_CPU, SampleKey, StackEnd, StackId, Value,
    };

    #[test]
    fn of_a_part_of_a_host_wakers_are_cut_off_before_filters_look() {
        let mut profile = Profile::default();
        for text in ["main;poll;[woken by canary];secret", "main;run"] {
            let stack = text.split(';').fold(StackId::EMPTY, |stack, function| {
                let frame = profile.dict.intern_frame(FrameRef {
                    function,
                    kind: match function.starts_with('[') {
                        true => FrameKind::Synthetic,
                        false => FrameKind::Native,
                    },
                    ..FrameRef::default()
                });
                profile.dict.stacks.child(stack, frame)
            });
            let labels = profile.dict.intern_labels([("unit", "a")]);
            let end = StackEnd::Complete;
            let key = SampleKey { labels, stack, end };
            let (count, weight) = (1, 1);
            profile.add(key, Value { count, weight });
        }
        profile.info.event = OFF_CPU.to_owned();
        profile.info.quality.lost = 7;
        profile.info.coverage.expected_ns = 7;
        let count = |op, regex| {
            let filter = FrameFilter::new(op, regex).expect("valid");
            let part = part_of(profile.clone(), &[filter]);
            let whole = (part.info.quality.lost, part.info.coverage.expected_ns);
            assert_eq!(whole, (0, 0));
            part.total().count
        };
        assert_eq!(count(FrameFilterOp::Keep, "secret|canary"), 0);
        assert_eq!(count(FrameFilterOp::Drop, "secret|canary"), 2);
        assert_eq!(count(FrameFilterOp::Keep, "poll"), 1);
        assert_eq!(part_of(profile.clone(), &[]).total().count, 2);
    }
}
