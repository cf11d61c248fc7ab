//! One stream to the collector: Hello, Welcome, then windows and their answers until it ends.
//!
//! The newest windows go first, as they close. The backlog fills the rest of the windows in flight,
//! oldest first, at a bounded rate. Everything the collector sends is checked: an answer to an
//! unknown window is ignored, a Need for something never sent ends the stream, and so does silence.
//!
//! It never waits for a disk: windows are read elsewhere (`disk_work`), one ahead.

use super::Exporter;
use super::connect::is_of_connection;
use super::disk_work::{DiskWork, Found, NOTES_AGE_MAX};
use super::gaps::{Cause, SpoolGap};
use super::identity::Identity;
use super::reader::Readers;
use super::spool::Picked;
use super::stream::{MESSAGE_BYTES_MIN, Stream, UnknownStack};
use host::sync::lock;
use host::time::MonotonicTime;
use proto::collector as wire;
use proto::collector::ingest_service_client::IngestServiceClient;
use proto::collector::push_request::Body as Ask;
use proto::collector::push_response::Body as Answer;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Longest wait for an answer while windows are in flight. A collector that stores to a slow disk
/// takes seconds; one that says nothing for so long is gone, or stuck.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Most windows in flight, whatever the collector admits. Each may be asked about.
const IN_FLIGHT_MAX: usize = 16;

/// Shortest time between two windows of the backlog: 20 a second. A day of windows of 10 s takes
/// seven minutes, and a fleet that comes back does not bury its collector.
const BACKLOG_PACE: Duration = Duration::from_millis(50);

/// Times one window may be asked about. Each answer defines all that was asked, so a second
/// question is a restart in between; more is a collector that does not listen.
const NEEDS_MAX: u32 = 8;

/// Messages between the session and the connection.
const OUTGOING: usize = 2;

/// Longest wait at the end of the daemon for the collector to read the last message.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Shortest time between two reports of what waits.
const FACTS_PACE: Duration = Duration::from_secs(60);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The collector ended it with an error.
    #[error("{}: {}", code(.0), .0.message())]
    Status(Status),
    /// The collector ended it.
    #[error("the collector ended the stream")]
    Ended,
    /// It says nothing.
    #[error("the collector has not answered for {} s", ANSWER_MAX.as_secs())]
    Silent,
    /// It does not answer the Hello with a Welcome.
    #[error("the collector did not welcome the agent")]
    NoWelcome,
    /// It takes no message of a useful size.
    #[error("the collector accepts messages of {0} bytes, but {MESSAGE_BYTES_MIN} are needed")]
    SmallMessages(u64),
    /// It asks for what it never got.
    #[error(transparent)]
    UnknownStack(#[from] UnknownStack),
    /// It answers what this version does not know.
    #[error(
        "the collector answered window `{sequence}` with unknown outcome `{outcome}`: the window \
         waits"
    )]
    UnknownOutcome {
        /// The window.
        sequence: u64,
        /// The number.
        outcome: i32,
    },
    /// It asks again and again.
    #[error("the collector asked {NEEDS_MAX} times for the stacks of one window")]
    Needy,
}

impl SessionError {
    /// True when the collector reports a protocol error by the agent: the window in flight may be
    /// to blame.
    pub fn blames_agent(&self) -> bool {
        match self {
            SessionError::Status(status) => {
                matches!(status.code(), Code::InvalidArgument | Code::OutOfRange)
            }
            SessionError::Needy => true,
            _ => false,
        }
    }

    /// True when the next stream should go over another connection.
    pub fn blames_connection(&self) -> bool {
        match self {
            SessionError::Status(status) => is_of_connection(status),
            SessionError::Silent => true,
            _ => false,
        }
    }
}

fn code(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "the collector is unavailable",
        Code::InvalidArgument => "the collector reports a protocol error by the agent",
        Code::ResourceExhausted => "the collector has no room",
        Code::Unimplemented => "the server is not a collector of this version",
        Code::Unauthenticated | Code::PermissionDenied => "the collector does not admit this host",
        _ => "the connection failed",
    }
}

/// Completes when the disk work is done; never completes if there is none.
async fn at_disk(work: &mut Option<DiskWork>) -> (Readers, Option<Found>) {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Lets the collector read what was sent last: dropping its answers would cut the stream off.
async fn flush(answers: &mut tonic::Streaming<wire::PushResponse>) {
    // It ends its side when it has read all.
    let _ = timeout(FLUSH_MAX, answers.message()).await;
}

/// The request side is closed: the answers say why.
async fn end_of(answers: &mut tonic::Streaming<wire::PushResponse>) -> SessionError {
    match timeout(ANSWER_MAX, answers.message()).await {
        Ok(Err(status)) => SessionError::Status(status),
        _ => SessionError::Ended,
    }
}

/// A window without an answer.
struct InFlight {
    picked: Picked,
    needs: u32,
    sent: Instant,
}

/// See the module.
pub struct Session<'a> {
    exporter: &'a Exporter,
    identity: Arc<Identity>,
    stream: Stream,
    readers: Readers,
    /// Disk work in progress; it owns the readers.
    disk_work: Option<DiskWork>,
    in_flight: Vec<InFlight>,
    in_flight_max: usize,
    /// The window that the last stream failed over goes first.
    suspect: Option<u64>,
    /// One window at a time until none waits, so that it is known which window makes the stream
    /// fail.
    careful: bool,
    outgoing: VecDeque<Ask>,
    backlog_at: Instant,
    facts_at: Instant,
    /// Settings and spool as last reported.
    told: (u64, u64, u64),
    /// Version of the health that was last reported.
    health_told: u64,
    /// When the collector last answered or was last asked something new.
    heard: Instant,
    /// A window was answered.
    acked: bool,
    /// A window got an unknown answer.
    misunderstood: bool,
}

impl<'a> Session<'a> {
    /// A session for the windows of `identity`.
    pub fn new(exporter: &'a Exporter, identity: Arc<Identity>) -> Session<'a> {
        let now = Instant::now();
        Session {
            exporter,
            identity,
            stream: Stream::new(MESSAGE_BYTES_MIN, 0, false),
            readers: Readers::default(),
            disk_work: None,
            in_flight: Vec::new(),
            in_flight_max: 1,
            suspect: None,
            careful: false,
            outgoing: VecDeque::new(),
            backlog_at: now,
            facts_at: now,
            told: (0, 0, 0),
            health_told: 0,
            heard: now,
            acked: false,
            misunderstood: false,
        }
    }

    /// The same after a stream that failed over this window, if one did.
    pub fn suspecting(mut self, window: Option<u64>) -> Session<'a> {
        self.suspect = window;
        self.careful = window.is_some();
        self
    }

    /// True when the collector admits another window.
    fn admits_more(&self) -> bool {
        let most = if self.careful { 1 } else { self.in_flight_max };
        self.in_flight.len() < most
    }

    fn is_own(&self) -> bool {
        *self.identity == *self.exporter.identity
    }

    /// The window that has waited longest for its answer.
    pub fn oldest_in_flight(&self) -> Option<Picked> {
        self.in_flight.first().map(|window| window.picked)
    }

    /// Runs until the stream fails, or, at the end of the daemon or for another boot's windows,
    /// until all are sent.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn run(&mut self, channel: Channel) -> Result<(), SessionError> {
        let (requests, receiver) = mpsc::channel(OUTGOING);
        let send = |body| wire::PushRequest { body: Some(body) };
        let hello = send(Ask::Hello(self.hello()));
        // There is room for it.
        let _ = requests.try_send(hello);
        let mut client = IngestServiceClient::new(channel)
            .send_compressed(CompressionEncoding::Zstd)
            .accept_compressed(CompressionEncoding::Zstd);
        let call = timeout(ANSWER_MAX, client.push(ReceiverStream::new(receiver)));
        let response = call.await.map_err(|_| SessionError::Silent)?;
        let mut answers = response.map_err(SessionError::Status)?.into_inner();
        let first = timeout(ANSWER_MAX, answers.message())
            .await
            .map_err(|_| SessionError::Silent)?;
        let first = first.map_err(SessionError::Status)?;
        match first.and_then(|response| response.body) {
            Some(Answer::Welcome(welcome)) => self.welcome(&welcome)?,
            _ => return Err(SessionError::NoWelcome),
        }
        let mut stop = self.exporter.shared.stop.subscribe();
        loop {
            let idle = self.fill();
            if idle && self.is_finished() || self.is_late() {
                drop(requests);
                if self.is_own() && !self.is_late() {
                    flush(&mut answers).await;
                }
                return Ok(());
            }
            let until = self.next_deadline();
            tokio::select! {
                biased;
                answer = answers.message() => {
                    let answer = answer.map_err(SessionError::Status)?.ok_or(SessionError::Ended)?;
                    self.take(answer)?;
                }
                permit = requests.reserve(), if !self.outgoing.is_empty() => {
                    let Ok(permit) = permit else {
                        return Err(end_of(&mut answers).await);
                    };
                    if let Some(body) = self.outgoing.pop_front() {
                        permit.send(send(body));
                    }
                }
                (readers, found) = at_disk(&mut self.disk_work), if self.disk_work.is_some() => {
                    self.disk_work = None;
                    self.readers = readers;
                    if let Some(found) = found {
                        self.pack(found);
                    }
                }
                () = self.exporter.shared.wake.notified(), if self.is_own() => {}
                changed = stop.changed() => {
                    // The sender is part of what this session borrows.
                    let _ = changed;
                }
                () = sleep_until(until) => {
                    if !self.in_flight.is_empty() && self.heard.elapsed() >= ANSWER_MAX {
                        return Err(SessionError::Silent);
                    }
                }
            }
        }
    }

    fn hello(&mut self) -> wire::Hello {
        wire::Hello {
            host_id: self.identity.host_id.clone(),
            boot_id: self.identity.boot_id.to_vec(),
            facts: Some(self.facts()),
            now_unix_ns: self.exporter.clock.to_unix_ns(MonotonicTime::now()),
        }
    }

    fn facts(&mut self) -> wire::HostFacts {
        let shared = &self.exporter.shared;
        let version = shared.settings_version();
        let settings = shared.settings();
        let (waiting, dropped) = {
            let index = lock(&shared.index);
            (index.waiting(), index.gaps.totals())
        };
        let dropped_windows = dropped.iter().map(|(windows, _)| windows).sum();
        self.told = (version, waiting.windows, dropped_windows);
        self.health_told = shared.health_version.load(Ordering::Acquire);
        let health = lock(&shared.health).clone();
        let programs = self.exporter.programs(&settings);
        self.facts_at = Instant::now() + FACTS_PACE;
        wire::HostFacts {
            labels: settings.labels.into_iter().collect(),
            spool: Some(wire::SpoolState {
                windows: waiting.windows,
                bytes: waiting.bytes,
                bytes_max: settings.max_bytes,
                oldest_unix_ns: waiting.oldest_unix_ns.unwrap_or(0),
                dropped_windows,
            }),
            health: Some(health),
            programs,
            ..self.exporter.host.to_wire()
        }
    }

    fn welcome(&mut self, welcome: &wire::Welcome) -> Result<(), SessionError> {
        if welcome.message_bytes_max < MESSAGE_BYTES_MIN {
            return Err(SessionError::SmallMessages(welcome.message_bytes_max));
        }
        self.stream = Stream::new(
            welcome.message_bytes_max,
            welcome.dictionary_stacks,
            welcome.known_stacks,
        );
        self.in_flight_max = (welcome.windows_in_flight as usize).clamp(1, IN_FLIGHT_MAX);
        self.heard = Instant::now();
        if !self.is_own() {
            return Ok(());
        }
        let version: String = welcome.collector_version.chars().take(64).collect();
        tracing::info!(collector = %self.exporter.collector(), version, "connected to the collector");
        let mut progress = lock(&self.exporter.shared.progress);
        progress.connected_since = Some(MonotonicTime::now());
        progress.away_since = None;
        progress.connections += 1;
        progress.collector_version = version;
        Ok(())
    }

    /// Puts the next messages into `outgoing`; true when there is nothing to send.
    fn fill(&mut self) -> bool {
        if self.outgoing.is_empty() {
            self.tell_facts();
            if self.careful && self.in_flight.is_empty() {
                let index = lock(&self.exporter.shared.index);
                self.careful = index.has_waiting(&self.identity);
            }
        }
        if self.disk_work.is_some() {
            return false;
        }
        let mut picked = None;
        if self.outgoing.is_empty() && self.admits_more() {
            let full = self.stream.is_full();
            // Questions about windows in flight are asked in ids of the old dictionary.
            if !full || self.in_flight.is_empty() {
                if full {
                    self.stream.start_dictionary();
                }
                picked = self.pick();
            }
        }
        let noted_by = self.exporter.shared.notes_due();
        if picked.is_some() || noted_by.is_some_and(|due| due <= Instant::now()) {
            let readers = std::mem::take(&mut self.readers);
            let stream = (self.stream.epoch(), self.is_own());
            self.disk_work = Some(self.exporter.at_disk(readers, picked, stream));
        }
        self.outgoing.is_empty() && self.disk_work.is_none()
    }

    fn pick(&mut self) -> Option<Picked> {
        if let Some(sequence) = self.suspect.take() {
            let picked = lock(&self.exporter.shared.index).pick_window(&self.identity, sequence);
            if picked.is_some() {
                return picked;
            }
        }
        let backlog = Instant::now() >= self.backlog_at && self.takes_backlog();
        let picked = lock(&self.exporter.shared.index).pick(&self.identity, backlog)?;
        if !picked.live || !self.is_own() {
            self.backlog_at = Instant::now() + BACKLOG_PACE;
        }
        Some(picked)
    }

    fn pack(&mut self, found: Found) {
        let Found {
            picked,
            window,
            gap,
        } = found;
        let Some(reader) = self.readers.latest() else {
            return;
        };
        let parts = self
            .stream
            .parts(&reader.tables, &mut reader.remap, &window, gap);
        self.outgoing.extend(parts.into_iter().map(Ask::Part));
        if self.in_flight.is_empty() {
            self.heard = Instant::now();
        }
        self.in_flight.push(InFlight {
            picked,
            needs: 0,
            sent: Instant::now(),
        });
    }

    fn tell_facts(&mut self) {
        if !self.is_own() {
            return;
        }
        let shared = &self.exporter.shared;
        let health = shared.health_version.load(Ordering::Acquire);
        let changed = shared.settings_version() != self.told.0 || health != self.health_told;
        if !changed && Instant::now() < self.facts_at {
            return;
        }
        let now = {
            let index = lock(&shared.index);
            let dropped = index.gaps.totals().iter().map(|(windows, _)| windows).sum();
            (self.told.0, index.waiting().windows, dropped)
        };
        if changed || now != self.told {
            let facts = self.facts();
            self.outgoing.push_back(Ask::Facts(facts));
        }
    }

    fn take(&mut self, answer: wire::PushResponse) -> Result<(), SessionError> {
        match answer.body {
            Some(Answer::Ack(ack)) => return self.acked(&ack),
            Some(Answer::Need(need)) => return self.need(&need),
            // What a later version may say.
            Some(Answer::Welcome(_)) | None => {}
        }
        Ok(())
    }

    fn acked(&mut self, ack: &wire::Ack) -> Result<(), SessionError> {
        let waits = |window: &InFlight| window.picked.header.sequence == ack.sequence;
        let Some(at) = self.in_flight.iter().position(waits) else {
            return Ok(());
        };
        let outcome = ack.outcome();
        if outcome == wire::Outcome::Unspecified {
            // A later version sent it, or there is none at all. Whatever it means, the window is
            // neither said to be safe nor said never to be.
            self.misunderstood = true;
            lock(&self.exporter.shared.progress).unknown_outcomes += 1;
            return Err(SessionError::UnknownOutcome {
                sequence: ack.sequence,
                outcome: ack.outcome,
            });
        }
        let InFlight { picked, sent, .. } = self.in_flight.remove(at);
        let took = sent.elapsed().as_secs_f64();
        self.exporter.shared.times.push.observe(took);
        // What a repeat was made of need not be where new windows go.
        let stored = outcome == wire::Outcome::Stored;
        self.stream.answered(ack.sequence, stored);
        self.heard = Instant::now();
        self.acked = true;
        match outcome {
            wire::Outcome::Refused => self.exporter.refused(&picked, &ack.reason),
            outcome => {
                let repeated = outcome == wire::Outcome::Repeated;
                self.exporter.acked(&picked, repeated);
            }
        }
        Ok(())
    }

    /// True if the connection was useful: the back-off then starts again. A connection to a
    /// collector that does not speak this protocol is not useful, or it would be tried twice a
    /// second forever.
    pub fn worked(&self) -> bool {
        self.acked && !self.misunderstood
    }

    fn need(&mut self, need: &wire::Need) -> Result<(), SessionError> {
        let waits = |window: &&mut InFlight| window.picked.header.sequence == need.sequence;
        let Some(window) = self.in_flight.iter_mut().find(waits) else {
            return Ok(());
        };
        window.needs += 1;
        if window.needs > NEEDS_MAX {
            return Err(SessionError::Needy);
        }
        let messages = self.stream.definitions(need)?;
        lock(&self.exporter.shared.progress).definitions += messages.len() as u64;
        self.heard = Instant::now();
        // Before parts of windows behind it: it is the one that waits.
        for message in messages.into_iter().rev() {
            self.outgoing.push_front(Ask::Definitions(message));
        }
        Ok(())
    }

    /// At the end of the daemon the backlog stays where it is, unless that is memory.
    fn takes_backlog(&self) -> bool {
        !self.is_stopping() || lock(&self.exporter.shared.index).only_in_memory().is_some()
    }

    fn is_stopping(&self) -> bool {
        self.exporter.shared.stop.borrow().is_some()
    }

    /// The time for the last windows is over.
    fn is_late(&self) -> bool {
        let deadline = *self.exporter.shared.stop.borrow();
        deadline.is_some_and(|deadline| MonotonicTime::now() >= deadline)
    }

    /// Whether there is nothing left to send.
    fn is_finished(&self) -> bool {
        let shared = &self.exporter.shared;
        if !self.in_flight.is_empty() {
            return false;
        }
        match (self.is_own(), self.is_stopping()) {
            (true, false) => false,
            (true, true) => shared.written.load(Ordering::Acquire),
            (false, stopping) => stopping || !lock(&shared.index).has_waiting(&self.identity),
        }
    }

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3600);
        let mut until = far;
        if !self.in_flight.is_empty() {
            until = until.min(self.heard + ANSWER_MAX);
        }
        if self.disk_work.is_none()
            && let Some(due) = self.exporter.shared.notes_due()
        {
            until = until.min(due);
        }
        let room = self.outgoing.is_empty()
            && self.disk_work.is_none()
            && self.admits_more()
            && !self.stream.is_full()
            && self.takes_backlog();
        if room && lock(&self.exporter.shared.index).has_waiting(&self.identity) {
            until = until.min(self.backlog_at);
        }
        if let Some(deadline) = *self.exporter.shared.stop.borrow() {
            until = until.min(Instant::now() + deadline.since(MonotonicTime::now()));
        }
        until
    }
}

impl Exporter {
    fn acked(&self, picked: &Picked, repeated: bool) {
        let there = self.finish(picked, None);
        let mut progress = lock(&self.shared.progress);
        progress.last_ack = Some(MonotonicTime::now());
        if there {
            progress.acked_windows += 1;
            progress.acked_samples += picked.header.samples;
            progress.repeated_windows += u64::from(repeated);
        }
    }

    /// A window that the collector will never take.
    pub(super) fn refused(&self, picked: &Picked, reason: &str) {
        let reason: String = reason
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect();
        // Said before it is counted: whoever sees windows refused finds why.
        {
            let mut progress = lock(&self.shared.progress);
            if progress.last_refusal.is_empty() {
                tracing::warn!(reason, "the collector refused a window");
            }
            progress.last_refusal = match reason.is_empty() {
                true => "of an unknown reason".to_owned(),
                false => reason,
            };
        }
        self.finish(picked, Some(SpoolGap::of(Cause::Refused, &picked.header)));
    }

    /// Removes a window from the spool; true if it was there.
    fn finish(&self, picked: &Picked, lost: Option<SpoolGap>) -> bool {
        let sequence = picked.header.sequence;
        let done = {
            let mut index = lock(&self.shared.index);
            let done = index.done(picked.segment, picked.record);
            match lost {
                Some(gap) if done.is_some_and(|done| done.there) => {
                    index.gaps.release(sequence);
                    index.gaps.add(gap);
                }
                _ => index.gaps.told(sequence),
            }
            done
        };
        if lost.is_some() {
            // A restart that knows the gap must not have the window too.
            self.shared.note_gaps(Duration::ZERO);
        }
        let record = vec![picked.record as u32];
        match done {
            Some(done) if done.there => self.shared.note(done, record),
            Some(done) => self.shared.note(done, Vec::new()),
            None => self.shared.note_gaps(NOTES_AGE_MAX),
        }
        done.is_some_and(|done| done.there)
    }
}

#[cfg(test)]
mod tests;
