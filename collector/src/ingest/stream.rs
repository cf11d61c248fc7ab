//! One agent's stream, from its Hello to its end.
//!
//! Runs as one task, which never blocks: it reads, decodes, hands windows to the store's queue and
//! writes answers. It stops reading while the queue is full, memory is short or too many windows
//! wait for an answer, which slows the agent down.
//!
//! While frames of one window are requested, later windows wait here: most of what they lack comes
//! with the same answer.

use super::Ingest;
use super::batch::{Answered, Job};
use super::hosts::StreamGuard;
use super::limits::{
    DEFINITIONS_BYTES_MAX, MESSAGE_BYTES_MAX, NEEDS_PER_WINDOW_MAX, Timeouts, WINDOWS_IN_FLIGHT,
    dictionary_stacks,
};
use super::window::{Cost, Decoded, Decoder, Fault, Pending, cost, host_facts, programs};
use crate::identity::{self, Member};
use crate::memory::Reservation;
use crate::metrics::Metrics;
use crate::store::{Defined, HOST_ID_BYTES_MAX, HostKey, PushOutcome};
use hashbrown::{HashMap, HashSet};
use metrics::Counter;
use profile::ContentId;
use proto::TableAssembler;
use proto::collector::{
    Ack, Definitions, Hello, Need, Outcome, PushRequest, PushResponse, Welcome, WindowPart,
    push_request, push_response,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Duration, Instant};
use tonic::{Code, Status, Streaming};

/// An agent that sent something so lately is alive when another stream takes its place.
const ALIVE: Duration = Duration::from_secs(30);

/// Messages to the agent.
pub type Outbox = mpsc::Sender<Result<PushResponse, Status>>;

/// Answers that wait for an agent to read them: one for each window that may be without one, and a
/// Welcome.
pub const OUTBOX: usize = WINDOWS_IN_FLIGHT as usize + 1;

/// Why a stream ends.
enum End {
    /// The agent has said all, and has its answers.
    Done,
    /// Its connection is gone.
    Gone,
    /// It is ended from here.
    Cut(Status),
}

/// Serves one stream to its end. `place` is given back then.
pub async fn run(
    ingest: Ingest,
    mut requests: Streaming<PushRequest>,
    out: Outbox,
    (peer, member): (String, Option<Arc<Member>>),
    place: OwnedSemaphorePermit,
) {
    let end = serve(&ingest, &mut requests, &out, &peer, member).await;
    if let Err(End::Cut(status)) = end {
        tracing::debug!(%peer, code = ?status.code(), "stream ended: {}", status.message());
        // It may be gone, or not read: then it learns by the end of the connection.
        let _ = out
            .send_timeout(Err(status), ingest.options.timeouts.stall)
            .await;
    }
    drop(place);
}

async fn serve(
    ingest: &Ingest,
    requests: &mut Streaming<PushRequest>,
    out: &Outbox,
    peer: &str,
    member: Option<Arc<Member>>,
) -> Result<(), End> {
    let mut shutdown = ingest.shutdown.clone();
    let timeouts = ingest.options.timeouts;
    let first = tokio::select! {
        first = tokio::time::timeout(timeouts.hello, requests.message()) => first,
        () = super::stopped(&mut shutdown) => return Err(shutting_down()),
    };
    let Ok(first) = first else {
        let text = format!("no Hello came within {} s", timeouts.hello.as_secs());
        return Err(ingest.cut(|m| &m.cut_silent, Status::deadline_exceeded(text)));
    };
    let body = received(ingest, first)?.ok_or(End::Done)?.body;
    let Some(push_request::Body::Hello(hello)) = body else {
        return Err(ingest.fault("the first message must be a Hello"));
    };
    let mut session = Session::start(ingest, hello, member, out)?;
    tracing::debug!(%peer, host_id = session.host.host_id, "agent connected");
    let welcome = push_response::Body::Welcome(Welcome {
        now_unix_ns: ingest.clock.now_unix_ns(),
        windows_in_flight: WINDOWS_IN_FLIGHT,
        message_bytes_max: MESSAGE_BYTES_MAX as u64,
        collector_version: env!("CARGO_PKG_VERSION").to_owned(),
        dictionary_stacks: dictionary_stacks(ingest.metrics.streams.get()),
        known_stacks: ingest.known_stacks,
    });
    session.send(welcome).await?;
    let end = session.run(requests).await;
    if let Err(End::Cut(status)) = &end
        && status.code() == Code::InvalidArgument
    {
        let host_id = &session.host.host_id;
        tracing::warn!(%peer, host_id, "agent cut off: {}", status.message());
    }
    end
}

/// A message, the end of the stream, or why there is neither.
fn received(
    ingest: &Ingest,
    message: Result<Option<PushRequest>, Status>,
) -> Result<Option<PushRequest>, End> {
    message.map_err(|status| match status.code() {
        // The decoder reports these: the message is too large, or is no message at all. All other
        // errors come from the connection.
        Code::OutOfRange | Code::ResourceExhausted | Code::Internal | Code::Unimplemented => {
            ingest.fault(status.message())
        }
        _ => End::Gone,
    })
}

fn shutting_down() -> End {
    End::Cut(Status::unavailable("the collector is shutting down"))
}

impl Ingest {
    fn cut(&self, cause: impl Fn(&Metrics) -> &Counter, status: Status) -> End {
        cause(&self.metrics).inc();
        End::Cut(status)
    }

    fn fault(&self, what: impl std::fmt::Display) -> End {
        let text = format!("failed to use the message: {what}");
        self.cut(|m| &m.cut_protocol, Status::invalid_argument(text))
    }
}

/// A window that the store is to get.
struct Ready {
    pending: Box<Pending>,
    definitions: Option<Arc<Defined>>,
}

/// The window that waits for requested stacks.
struct Needing {
    pending: Box<Pending>,
    missing: HashSet<ContentId>,
    tables: TableAssembler,
    /// Why what came cannot be used; the rest of it is not looked at.
    unusable: Option<String>,
    held: Reservation,
    deadline: Instant,
}

impl Needing {
    /// The window with the frames it needs and no others; or why they are not there.
    fn picked(self) -> Result<(Box<Pending>, Defined), String> {
        if let Some(reason) = self.unusable {
            return Err(reason);
        }
        let all = self.tables.finish().map_err(|error| error.to_string())?;
        let wanted = Defined::new(all, &self.missing).ok_or(
            "the definitions lack requested stacks, or their frames do not match the hashes",
        )?;
        let mut pending = self.pending;
        pending.held.join(self.held);
        Ok((pending, wanted))
    }
}

struct Session<'s> {
    ingest: &'s Ingest,
    out: &'s Outbox,
    host: HostKey,
    /// The owner of the connection's certificate.
    member: Option<Arc<Member>>,
    decoder: Decoder,
    guard: StreamGuard,
    answer: mpsc::Sender<Answered>,
    answers: mpsc::Receiver<Answered>,
    /// Windows that wait here, oldest first.
    ready: VecDeque<Ready>,
    /// Windows with the store.
    in_store: usize,
    /// Those that contained frames.
    defining: usize,
    needing: Option<Needing>,
    /// When the unfinished window must be complete.
    parts_deadline: Option<Instant>,
    last_message: Instant,
}

impl<'s> Session<'s> {
    fn start(
        ingest: &'s Ingest,
        hello: Hello,
        member: Option<Arc<Member>>,
        out: &'s Outbox,
    ) -> Result<Session<'s>, End> {
        if hello.host_id.is_empty() || hello.host_id.len() > HOST_ID_BYTES_MAX {
            return Err(ingest.fault(format!(
                "a host id must have 1 to {HOST_ID_BYTES_MAX} bytes, not {}",
                hello.host_id.len()
            )));
        }
        let Ok(boot_id) = <[u8; 16]>::try_from(hello.boot_id.as_slice()) else {
            let bytes = hello.boot_id.len();
            return Err(ingest.fault(format!("a boot id must have 16 bytes, not {bytes}")));
        };
        let mut host = HostKey {
            host_id: hello.host_id,
            boot_id,
        };
        let mut facts = hello.facts.unwrap_or_default();
        identity::bind(member.as_ref(), &mut host.host_id, &mut facts).map_err(End::Cut)?;
        let programs = programs(&mut facts, &ingest.metrics);
        let mut facts = host_facts(facts, &ingest.metrics);
        identity::assign(member.as_ref(), &mut facts.labels);
        let ahead = hello.now_unix_ns.saturating_sub(ingest.clock.now_unix_ns());
        let assigned = member.as_ref().map(|member| member.labels.clone());
        let assigned = assigned.unwrap_or_default();
        let decoder = Decoder::new(host.clone(), &facts, &assigned, ingest.metrics.clone());
        for watch in ingest.watch.get().into_iter().flatten() {
            watch.host(&host, &facts, &programs);
        }
        let guard = ingest.hosts.open(&host, facts, ahead);
        let (answer, answers) = mpsc::channel(WINDOWS_IN_FLIGHT as usize);
        Ok(Session {
            ingest,
            out,
            host,
            member,
            decoder,
            guard,
            answer,
            answers,
            ready: VecDeque::new(),
            in_store: 0,
            defining: 0,
            needing: None,
            parts_deadline: None,
            last_message: Instant::now(),
        })
    }

    async fn run(&mut self, requests: &mut Streaming<PushRequest>) -> Result<(), End> {
        let mut shutdown = self.ingest.shutdown.clone();
        let superseded = self.guard.superseded.clone();
        // The agent has ended its side, or the collector stops: what came is brought to its end.
        let (mut finished, mut draining) = (false, false);
        let mut owes_answer = false;
        loop {
            self.submit().await?;
            let owed_answer = std::mem::replace(&mut owes_answer, self.waiting() > 0);
            if owed_answer && !owes_answer {
                self.guard.answered();
            }
            let idle = self.in_store == 0 && (self.ready.is_empty() || self.needing.is_some());
            if idle && draining {
                return Err(shutting_down());
            }
            if idle && finished {
                return Ok(());
            }
            let reads = !finished
                && !draining
                && (self.waiting() < WINDOWS_IN_FLIGHT as usize || self.needing.is_some());
            let deadline = self.deadline();
            tokio::select! {
                biased;
                () = super::stopped(&mut shutdown), if !draining => draining = true,
                () = superseded.notified() => return Err(self.superseded()),
                () = self.out.closed() => return Err(End::Gone),
                Some(answered) = self.answers.recv() => self.answered(answered).await?,
                () = sleep_until(deadline), if deadline.is_some() && !draining => {
                    return Err(self.too_late());
                }
                message = requests.message(), if reads => {
                    match received(self.ingest, message)? {
                        Some(request) => self.message(request).await?,
                        None => finished = true,
                    }
                }
            }
        }
    }

    fn timeouts(&self) -> Timeouts {
        self.ingest.options.timeouts
    }

    /// Windows without an answer.
    fn waiting(&self) -> usize {
        self.in_store + self.ready.len() + usize::from(self.needing.is_some())
    }

    fn deadline(&self) -> Option<Instant> {
        let need = self.needing.as_ref().map(|needing| needing.deadline);
        match (self.parts_deadline, need) {
            (Some(parts), Some(need)) => Some(parts.min(need)),
            (parts, need) => parts.or(need),
        }
    }

    fn too_late(&self) -> End {
        let now = Instant::now();
        let need = self.needing.as_ref();
        if let Some(needing) = need.filter(|needing| needing.deadline <= now) {
            let sequence = needing.pending.window.origin.sequence;
            let status = Status::deadline_exceeded(format!(
                "the stacks of window {sequence} were not defined within {} s",
                self.timeouts().need.as_secs()
            ));
            return self.ingest.cut(|m| &m.cut_need, status);
        }
        let sequence = self.decoder.unfinished().unwrap_or_default();
        let status = Status::deadline_exceeded(format!(
            "the last part of window {sequence} did not arrive within {} s",
            self.timeouts().parts.as_secs()
        ));
        self.ingest.cut(|m| &m.cut_part, status)
    }

    fn superseded(&self) -> End {
        self.guard
            .was_superseded(self.last_message.elapsed() < ALIVE);
        let status = Status::aborted("another stream of this host and boot has started");
        self.ingest.cut(|m| &m.cut_superseded, status)
    }

    async fn message(&mut self, request: PushRequest) -> Result<(), End> {
        self.last_message = Instant::now();
        match request.body {
            Some(push_request::Body::Part(part)) => self.part(part).await,
            Some(push_request::Body::Definitions(definitions)) => self.define(definitions).await,
            Some(push_request::Body::Facts(mut facts)) => {
                identity::bind_facts(self.member.as_ref(), &mut facts);
                let programs = programs(&mut facts, &self.ingest.metrics);
                let mut facts = host_facts(facts, &self.ingest.metrics);
                identity::assign(self.member.as_ref(), &mut facts.labels);
                self.decoder.set_facts(&facts);
                for watch in self.ingest.watch.get().into_iter().flatten() {
                    watch.host(&self.host, &facts, &programs);
                }
                self.guard.facts(facts);
                Ok(())
            }
            Some(push_request::Body::Hello(_)) => Err(self.ingest.fault("a second Hello")),
            None => Err(self.ingest.fault("this version does not know its body")),
        }
    }

    async fn part(&mut self, part: WindowPart) -> Result<(), End> {
        let starts = self.decoder.unfinished().is_none();
        if starts && self.waiting() >= WINDOWS_IN_FLIGHT as usize {
            return Err(self.ingest.fault(format!(
                "more than {WINDOWS_IN_FLIGHT} windows wait for an answer"
            )));
        }
        let cost = cost(&part, self.decoder.host_bytes());
        let held = Cost {
            tables: self.memory(cost.tables).await?,
            rows: self.memory(cost.rows).await?,
        };
        let decoded = self.decoder.part(part, held);
        match decoded.map_err(|fault: Fault| self.ingest.fault(fault))? {
            Decoded::More => {
                let deadline = Instant::now() + self.timeouts().parts;
                self.parts_deadline.get_or_insert(deadline);
            }
            Decoded::Whole(pending) => {
                self.parts_deadline = None;
                let window = &pending.window;
                self.guard.seen(&window.unit, window.range, window.counts());
                let definitions = None;
                self.ready.push_back(Ready {
                    pending,
                    definitions,
                });
            }
            Decoded::Refused { sequence, reason } => {
                self.parts_deadline = None;
                self.ingest.metrics.windows_refused.inc();
                self.ack(sequence, Outcome::Refused, reason).await?;
            }
        }
        Ok(())
    }

    /// Waits for memory. The answers to windows of this stream are taken meanwhile: they hold some.
    async fn memory(&mut self, bytes: usize) -> Result<Reservation, End> {
        let memory = self.ingest.memory.clone();
        let take = memory.take(bytes);
        tokio::pin!(take);
        let deadline = Instant::now() + self.timeouts().memory;
        loop {
            let held = tokio::select! {
                biased;
                held = &mut take => held,
                Some(answered) = self.answers.recv() => {
                    self.answered(answered).await?;
                    continue;
                }
                () = tokio::time::sleep_until(deadline) => None,
            };
            return held.ok_or_else(|| {
                let text = "the memory for windows (`ingest.memory_mib`) is used up by other \
                    agents";
                self.ingest
                    .cut(|m| &m.cut_memory, Status::unavailable(text))
            });
        }
    }

    /// Hands windows to the store's queue, unless one that came before waits for its stacks.
    async fn submit(&mut self) -> Result<(), End> {
        while self.needing.is_none()
            && let Some(mut ready) = self.ready.pop_front()
        {
            ready.pending.defines = ready.definitions.is_some();
            self.defining += usize::from(ready.pending.defines);
            let job = Job {
                pending: ready.pending,
                definitions: ready.definitions,
                answer: self.answer.clone(),
            };
            if self.ingest.jobs.send(job).await.is_err() {
                return Err(shutting_down());
            }
            self.in_store += 1;
        }
        Ok(())
    }

    async fn answered(&mut self, answered: Answered) -> Result<(), End> {
        self.in_store -= 1;
        let Answered { pending, outcome } = answered;
        self.defining -= usize::from(pending.defines);
        let sequence = pending.window.origin.sequence;
        if let Ok(PushOutcome::Stored | PushOutcome::Duplicate | PushOutcome::Rejected(_)) =
            &outcome
        {
            let took = pending.arrived.elapsed();
            self.ingest.metrics.window_time.observe(took.as_secs_f64());
        }
        match outcome {
            Ok(PushOutcome::Stored) => {
                for watch in self.ingest.watch.get().into_iter().flatten() {
                    watch.stored(&pending.window);
                }
                self.ack(sequence, Outcome::Stored, String::new()).await
            }
            Ok(PushOutcome::Duplicate) => {
                self.ack(sequence, Outcome::Repeated, String::new()).await
            }
            Ok(PushOutcome::Rejected(reason)) => self.ack(sequence, Outcome::Refused, reason).await,
            Ok(PushOutcome::NeedStacks(missing)) if self.may_ask() => {
                self.need(pending, missing, false).await
            }
            Ok(PushOutcome::NeedCallers(missing)) if self.may_ask() => {
                self.need(pending, missing, true).await
            }
            Ok(PushOutcome::NeedStacks(_) | PushOutcome::NeedCallers(_)) => {
                // Stacks are on their way, from the agent or to the store: most likely these too.
                // It comes to the store after them.
                let at = self.ready.partition_point(|ready| {
                    ready.pending.window.range.start_unix_ns <= pending.window.range.start_unix_ns
                });
                let definitions = None;
                self.ready.insert(
                    at,
                    Ready {
                        pending,
                        definitions,
                    },
                );
                Ok(())
            }
            Ok(PushOutcome::Unavailable(text)) | Err(text) => Err(self
                .ingest
                .cut(|m| &m.cut_unavailable, Status::unavailable(text))),
        }
    }

    /// True when no stacks are on their way, neither from the agent nor to the store.
    fn may_ask(&self) -> bool {
        self.needing.is_none() && self.defining == 0
    }

    /// Asks the agent for the frames of stacks.
    async fn need(
        &mut self,
        mut pending: Box<Pending>,
        missing: Vec<ContentId>,
        all_callers: bool,
    ) -> Result<(), End> {
        pending.asked.extend(missing);
        let missing = pending.asked.clone();
        let sequence = pending.window.origin.sequence;
        pending.needs += 1;
        let numbers = pending.window.stream.iter().flat_map(|stream| &stream.ids);
        let stacks = pending.window.rows.iter().zip(numbers);
        let ids: HashMap<ContentId, u32> = stacks
            .filter(|(row, _)| missing.contains(&row.stack))
            .map(|(row, &id)| (row.stack, id))
            .collect();
        if pending.needs > NEEDS_PER_WINDOW_MAX || ids.len() != missing.len() || ids.is_empty() {
            // Nothing the agent could fix: the store asks for what the window does not have, or
            // for the same again and again.
            let text = format!("the store rejects the stacks of window {sequence}");
            return Err(self
                .ingest
                .cut(|m| &m.cut_unavailable, Status::unavailable(text)));
        }
        let mut stacks: Vec<u32> = ids.into_values().collect();
        stacks.sort_unstable();
        self.needing = Some(Needing {
            pending,
            missing,
            tables: TableAssembler::new(
                DEFINITIONS_BYTES_MAX,
                self.ingest.known_stacks && !all_callers,
            ),
            unusable: None,
            held: Reservation::default(),
            deadline: Instant::now() + self.timeouts().need,
        });
        self.ingest.metrics.windows_needed.inc();
        if all_callers {
            self.ingest.metrics.callers_needed.inc();
        }
        self.send(push_response::Body::Need(Need {
            sequence,
            stacks,
            all_callers,
        }))
        .await
    }

    /// Takes frames the agent was asked for. Nothing waits for memory here: a window that waits for
    /// its frames holds memory that others may wait for.
    ///
    /// If frames cannot be used the window is rejected, not the stream, because the agent would
    /// come back with the same window forever.
    async fn define(&mut self, definitions: Definitions) -> Result<(), End> {
        let (sequence, parts) = (definitions.sequence, self.timeouts().parts);
        let asked = |needing: &&mut Needing| needing.pending.window.origin.sequence == sequence;
        let Some(needing) = self.needing.as_mut().filter(asked) else {
            return Err(self.ingest.fault(format!(
                "the agent sent definitions for window {sequence}, which were not requested"
            )));
        };
        if needing.unusable.is_none() {
            let before = needing.tables.bytes();
            if let Err(error) = needing.tables.push(&definitions) {
                needing.unusable = Some(error.to_string());
            }
            let more = needing.tables.bytes() - before;
            let Some(held) = self.ingest.memory.try_take(more) else {
                let text = "the memory for windows (`ingest.memory_mib`) is used up by other \
                    agents";
                return Err(self
                    .ingest
                    .cut(|m| &m.cut_memory, Status::unavailable(text)));
            };
            needing.held.join(held);
        }
        if definitions.more {
            needing.deadline = needing.deadline.max(Instant::now() + parts);
            return Ok(());
        }
        let Some(needing) = self.needing.take() else {
            return Ok(());
        };
        match needing.picked() {
            Ok((pending, wanted)) => {
                let definitions = Some(Arc::new(wanted));
                self.ready.push_front(Ready {
                    pending,
                    definitions,
                });
                Ok(())
            }
            Err(reason) => {
                self.ingest.metrics.windows_refused.inc();
                self.ack(sequence, Outcome::Refused, reason).await
            }
        }
    }

    async fn ack(&mut self, sequence: u64, outcome: Outcome, reason: String) -> Result<(), End> {
        let outcome = outcome.into();
        self.send(push_response::Body::Ack(Ack {
            sequence,
            outcome,
            reason,
        }))
        .await
    }

    async fn send(&mut self, body: push_response::Body) -> Result<(), End> {
        use mpsc::error::SendTimeoutError::{Closed, Timeout};
        let response = Ok(PushResponse { body: Some(body) });
        match self.out.send_timeout(response, self.timeouts().stall).await {
            Ok(()) => Ok(()),
            Err(Closed(_)) => Err(End::Gone),
            Err(Timeout(_)) => {
                let status = Status::deadline_exceeded("the agent does not read answers");
                Err(self.ingest.cut(|m| &m.cut_stalled, status))
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
