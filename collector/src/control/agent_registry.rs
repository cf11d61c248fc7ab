//! Connected agents, by host id: those with an open control stream, and the commands sent to them.
//!
//! Everything here holds a lock for microseconds; only [`ConnectedAgent::clock_ahead`] waits. A
//! command is a place in a stream: the agent's reports about it go to its sender, and when the
//! sender drops it, the agent is informed.

use super::limits::{CLOCK_WAIT, COMMANDS_PER_HOST_MAX, COMMANDS_QUEUED, REPORTS_QUEUED};
use crate::memory::Reservation;
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey};
use crate::sync::lock;
use crate::time::Clock;
use profile::key;
use proto::agent;
use proto::collector::{Command, ControlResponse, Ping, Pong, command, control_response, report};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc, watch};
use tonic::Status;

/// Messages to the agent.
pub type Outbox = mpsc::Sender<Result<ControlResponse, Status>>;

/// The agents that are connected.
pub struct AgentRegistry {
    inner: Mutex<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Inner {
    by_host: HashMap<String, Arc<ConnectedAgent>>,
    next: u64,
}

/// An agent with an open control stream.
pub struct ConnectedAgent {
    /// The host and its boot.
    pub key: HostKey,
    /// Notified when its stream must end: another took its place, or it does not read.
    pub end: Notify,
    number: u64,
    facts: Mutex<HostFacts>,
    out: Outbox,
    commands: Mutex<Commands>,
    pings: Mutex<Pings>,
    /// The newest ping that was answered; [`NEVER`] once none will be.
    answered: watch::Sender<u64>,
}

#[derive(Default)]
struct Commands {
    last: u64,
    open: HashMap<u64, mpsc::Sender<Reported>>,
    closed: bool,
}

/// State of an agent's clock.
struct Pings {
    last: u64,
    /// When the last was sent, on the collector's clock. Unit: nanoseconds since the Unix epoch.
    sent_unix_ns: i64,
    /// By how much the agent's is ahead. Unit: nanoseconds.
    ahead_ns: i64,
}

/// Stands for the number of a ping once no ping will be answered any more.
const NEVER: u64 = u64::MAX;

/// A report of an agent about a command, for its sender.
pub struct Reported {
    /// This; `None` where there was no memory for it.
    pub what: Option<report::What>,
    /// The memory it takes as long as it waits.
    pub held: Reservation,
}

/// Why a command cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its receiver is gone.
    #[error("the host is no longer connected")]
    Gone,
    /// It has enough to do.
    #[error(
        "the host already runs {COMMANDS_PER_HOST_MAX} captures of this collector, which is \
        the limit"
    )]
    Busy,
    /// Its connection takes nothing.
    #[error("the host does not read its commands")]
    Stalled,
}

/// The receiver of an agent's report.
#[derive(Clone, Debug)]
pub enum Addressee {
    /// A sender that waits for it.
    Waiting(mpsc::Sender<Reported>),
    /// A command that was dropped: the report crossed it.
    Past,
    /// No command was ever sent with this number.
    Never,
}

impl AgentRegistry {
    /// Creates it empty.
    pub fn new(metrics: Arc<Metrics>) -> AgentRegistry {
        AgentRegistry {
            inner: Mutex::default(),
            metrics,
        }
    }

    /// An agent has identified itself. An earlier connection with its host id is asked to end: it
    /// is most likely gone without a word.
    pub fn open(
        self: &Arc<Self>,
        key: HostKey,
        facts: HostFacts,
        clock_ahead_ns: i64,
        out: Outbox,
    ) -> StreamGuard {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let agent = Arc::new(ConnectedAgent {
            end: Notify::new(),
            number: inner.next,
            facts: Mutex::new(facts),
            out,
            commands: Mutex::default(),
            pings: Mutex::new(Pings {
                last: 0,
                sent_unix_ns: 0,
                ahead_ns: clock_ahead_ns,
            }),
            answered: watch::Sender::new(0),
            key,
        });
        let host_id = agent.key.host_id.clone();
        let older = inner.by_host.insert(host_id, agent.clone());
        drop(inner);
        if let Some(older) = older {
            self.metrics.control_superseded.inc();
            older.close();
            older.end.notify_one();
        }
        self.metrics.control_streams.inc();
        StreamGuard {
            registry: self.clone(),
            agent,
        }
    }

    /// All that are connected, unsorted.
    pub fn all(&self) -> Vec<Arc<ConnectedAgent>> {
        lock(&self.inner).by_host.values().cloned().collect()
    }

    /// The agent of this host.
    pub fn find(&self, host_id: &str) -> Option<Arc<ConnectedAgent>> {
        lock(&self.inner).by_host.get(host_id).cloned()
    }
}

/// An open stream; its commands have nobody any more when it is dropped.
pub struct StreamGuard {
    registry: Arc<AgentRegistry>,
    /// The agent.
    pub agent: Arc<ConnectedAgent>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let mut inner = lock(&self.registry.inner);
        let host_id = &self.agent.key.host_id;
        let own = |found: &Arc<ConnectedAgent>| found.number == self.agent.number;
        if inner.by_host.get(host_id).is_some_and(own) {
            inner.by_host.remove(host_id);
        }
        drop(inner);
        self.agent.close();
        self.registry.metrics.control_streams.dec();
    }
}

impl ConnectedAgent {
    /// The latest facts about its host.
    pub fn facts(&self) -> HostFacts {
        lock(&self.facts).clone()
    }

    /// It said something else.
    pub fn set_facts(&self, facts: HostFacts) {
        *lock(&self.facts) = facts;
    }

    /// Its name, as its windows have it.
    pub fn hostname(&self) -> String {
        lock(&self.facts).name(&self.key.host_id).to_owned()
    }

    /// Sends a command to capture.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn capture(
        self: &Arc<Self>,
        request: agent::CaptureRequest,
    ) -> Result<SentCommand, CommandError> {
        let (reports, receiver) = mpsc::channel(REPORTS_QUEUED);
        let mut commands = lock(&self.commands);
        if commands.closed {
            return Err(CommandError::Gone);
        }
        if commands.open.len() >= COMMANDS_PER_HOST_MAX {
            return Err(CommandError::Busy);
        }
        let number = commands.last + 1;
        self.send(number, command::What::Capture(request))?;
        commands.last = number;
        commands.open.insert(number, reports);
        Ok(SentCommand {
            agent: self.clone(),
            number,
            reports: receiver,
        })
    }

    /// The receiver of a report. After the last report of a command nobody waits any more.
    pub fn addressee(&self, number: u64, last: bool) -> Addressee {
        let mut commands = lock(&self.commands);
        let found = match last {
            true => commands.open.remove(&number),
            false => commands.open.get(&number).cloned(),
        };
        match found {
            Some(waiting) => Addressee::Waiting(waiting),
            None if number > 0 && number <= commands.last => Addressee::Past,
            None => Addressee::Never,
        }
    }

    /// Informs those who wait for reports that none will come.
    fn close(&self) {
        let mut commands = lock(&self.commands);
        commands.closed = true;
        commands.open.clear();
        drop(commands);
        self.answered.send_replace(NEVER);
    }

    /// Sends a ping, which asks for a sign of life and the agent's clock, and returns its number.
    /// An agent that does not read is detected by its silence.
    pub fn ping(&self, clock: &Clock) -> u64 {
        let mut pings = lock(&self.pings);
        pings.last += 1;
        pings.sent_unix_ns = clock.now_unix_ns();
        let number = pings.last;
        let body = Some(control_response::Body::Ping(Ping { number }));
        let _ = self.out.try_send(Ok(ControlResponse { body }));
        number
    }

    /// It answered. What its clock is ahead is then known but for the time that ping and answer
    /// took: what was known before stays while it agrees with that.
    pub fn pong(&self, pong: Pong, clock: &Clock) {
        let mut pings = lock(&self.pings);
        let last = pings.last;
        if pong.number != last && pong.number != 0 {
            // It answers an earlier ping; the answer to the newer one is on its way.
            return;
        }
        if pong.number != 0 && pong.now_unix_ns != 0 {
            let ahead_of = |time: i64| pong.now_unix_ns.saturating_sub(time);
            let (a, b) = (ahead_of(clock.now_unix_ns()), ahead_of(pings.sent_unix_ns));
            // The collector's clock may have been set in between.
            let (low, high) = (a.min(b), a.max(b));
            if !(low..=high).contains(&pings.ahead_ns) {
                pings.ahead_ns = low.midpoint(high);
            }
        }
        drop(pings);
        self.answered.send_if_modified(|answered| {
            let newer = *answered < last;
            *answered = (*answered).max(last);
            newer
        });
    }

    /// By how much its clock is ahead of the collector's now. Unit: nanoseconds. Asks it, and takes
    /// what was last known where it has left or does not answer within [`CLOCK_WAIT`].
    pub async fn clock_ahead(&self, clock: &Clock) -> i64 {
        let mut answered = self.answered.subscribe();
        let number = self.ping(clock);
        let told = answered.wait_for(|&answered| answered >= number);
        // Late or not: what is known is what counts.
        let _ = tokio::time::timeout(CLOCK_WAIT, told).await;
        lock(&self.pings).ahead_ns
    }

    fn send(&self, number: u64, what: command::What) -> Result<(), CommandError> {
        let what = Some(what);
        let body = control_response::Body::Command(Command { number, what });
        let message = ControlResponse { body: Some(body) };
        self.out.try_send(Ok(message)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => CommandError::Stalled,
            mpsc::error::TrySendError::Closed(_) => CommandError::Gone,
        })
    }
}

/// A sent command. If it is dropped before its last report came, the agent is informed that nobody
/// waits.
pub struct SentCommand {
    agent: Arc<ConnectedAgent>,
    number: u64,
    reports: mpsc::Receiver<Reported>,
}

impl SentCommand {
    /// The next report; `None` when none will come: the agent has left, or has said its last.
    pub async fn next(&mut self) -> Option<Reported> {
        self.reports.recv().await
    }

    /// Ends the capture and keeps what it has.
    pub fn cancel(&self) {
        let mut commands = lock(&self.agent.commands);
        if !commands.open.contains_key(&self.number) {
            return;
        }
        commands.last += 1;
        let number = commands.last;
        // An agent that does not read this will be lost when the time is over.
        let _ = self.agent.send(number, command::What::Cancel(self.number));
    }
}

impl Drop for SentCommand {
    fn drop(&mut self) {
        let mut commands = lock(&self.agent.commands);
        if commands.open.remove(&self.number).is_none() {
            return;
        }
        commands.last += 1;
        let number = commands.last;
        if self.agent.send(number, command::What::Drop(self.number)) == Err(CommandError::Stalled) {
            // The end of its stream ends its captures.
            self.agent.end.notify_one();
        }
    }
}

/// The value of a label of a host: its name, or one of those that its configuration gives. `None`
/// for labels that its samples may have themselves.
pub fn host_label<'a>(
    configured: &'a BTreeMap<String, String>,
    name: &'a str,
    label: &str,
) -> Option<&'a str> {
    match label == key::HOST {
        true => Some(name),
        false if key::is_of_cgroup(label) => None,
        false => configured.get(label).map(String::as_str),
    }
}

/// Commands that wait for the agent to read them, a Welcome, and a Ping of its own and of each
/// capture.
pub const OUTBOX: usize = COMMANDS_QUEUED + COMMANDS_PER_HOST_MAX + 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    fn registry() -> Arc<AgentRegistry> {
        Arc::new(AgentRegistry::new(Arc::default()))
    }

    fn key(boot: u8) -> HostKey {
        HostKey {
            host_id: "a".to_owned(),
            boot_id: [boot; 16],
        }
    }

    type Inbox = mpsc::Receiver<Result<ControlResponse, Status>>;

    fn connect(registry: &Arc<AgentRegistry>, boot: u8) -> (StreamGuard, Inbox) {
        let (out, inbox) = mpsc::channel(OUTBOX);
        let guard = registry.open(key(boot), HostFacts::default(), 0, out);
        (guard, inbox)
    }

    fn command(inbox: &mut Inbox) -> Option<(u64, command::What)> {
        let message = inbox.try_recv().ok()?.ok()?;
        match message.body? {
            control_response::Body::Command(command) => Some((command.number, command.what?)),
            _ => None,
        }
    }

    #[tokio::test]
    async fn the_newer_of_one_host_wins_whatever_ends_first() {
        let registry = registry();
        let (old, _old_inbox) = connect(&registry, 1);
        let mut waiting = old.agent.capture(Default::default()).expect("room");
        let (new, mut inbox) = connect(&registry, 2);
        assert!(waiting.next().await.is_none());
        old.agent.end.notified().await;
        drop(old);
        let found = registry.find("a").expect("the newer");
        assert_eq!(found.key.boot_id, [2; 16]);
        let _ordered = found.capture(Default::default()).expect("room");
        assert!(matches!(
            command(&mut inbox),
            Some((1, command::What::Capture(_)))
        ));
        drop(new);
        assert!(registry.find("a").is_none());
        assert_eq!(
            found.capture(Default::default()).err(),
            Some(CommandError::Gone)
        );
    }

    #[tokio::test]
    async fn a_command_given_up_is_dropped_and_its_late_reports_are_told_from_lies() {
        let registry = registry();
        let (guard, mut inbox) = connect(&registry, 1);
        let agent = &guard.agent;
        let sent = agent.capture(Default::default()).expect("room");
        command(&mut inbox);
        assert!(matches!(agent.addressee(1, false), Addressee::Waiting(_)));
        drop(sent);
        assert_eq!(command(&mut inbox), Some((2, command::What::Drop(1))));
        assert!(matches!(agent.addressee(1, false), Addressee::Past));
        for never in [0, 3, u64::MAX] {
            assert!(matches!(agent.addressee(never, false), Addressee::Never));
        }
        // One that has ended needs no drop.
        let sent = agent.capture(Default::default()).expect("room");
        command(&mut inbox);
        agent.addressee(3, true);
        drop(sent);
        assert_eq!(command(&mut inbox), None);
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_is_given_nothing_and_cut_off() {
        let registry = registry();
        let (out, _inbox) = mpsc::channel(1);
        let guard = registry.open(key(1), HostFacts::default(), 0, out);
        let agent = &guard.agent;
        let first = agent.capture(Default::default()).expect("room for one");
        assert_eq!(
            agent.capture(Default::default()).err(),
            Some(CommandError::Stalled)
        );
        drop(first);
        agent.end.notified().await;
    }

    fn pong(number: u64, now_unix_ns: i64) -> Pong {
        Pong {
            number,
            now_unix_ns,
        }
    }

    /// A clock of a collector that a test sets.
    fn clock() -> (Arc<AtomicI64>, Clock) {
        let now = Arc::new(AtomicI64::new(1_000_000));
        let told = now.clone();
        (now, Clock::new(move || told.load(Ordering::Relaxed)))
    }

    #[tokio::test]
    async fn a_clock_that_is_set_is_known_with_the_next_answer() {
        let (now, clock) = clock();
        let registry = registry();
        let (guard, _inbox) = connect(&registry, 1);
        let agent = &guard.agent;
        for (sent, answered, agents, ahead) in [
            // What was known agrees with the time that the answer took.
            (1_000, 1_400, 1_300, 0),
            (2_000, 2_400, 12_200, 10_000),
            // An answer that took long says nothing against it.
            (3_000, 9_000, 13_500, 10_000),
            (4_000, 4_200, 100, -4_000),
        ] {
            now.store(sent, Ordering::Relaxed);
            let number = agent.ping(&clock);
            now.store(answered, Ordering::Relaxed);
            agent.pong(pong(number, agents), &clock);
            assert_eq!(lock(&agent.pings).ahead_ns, ahead, "asked at {sent}");
        }
        // None of these counts: the answer to an earlier ping, to one that was not sent, or from an
        // older version.
        let number = agent.ping(&clock);
        for (number, agents) in [(number - 1, 77), (number + 1, 77), (0, 0), (number, 0)] {
            agent.pong(pong(number, agents), &clock);
            assert_eq!(lock(&agent.pings).ahead_ns, -4_000);
        }
        for (number, agents) in [(number, i64::MIN), (number, i64::MAX)] {
            agent.pong(pong(number, agents), &clock);
        }
    }

    #[tokio::test]
    async fn who_asks_for_a_clock_waits_for_an_answer_and_not_for_one_that_left() {
        let (now, clock) = clock();
        let registry = registry();
        let (guard, mut inbox) = connect(&registry, 1);
        let agent = guard.agent.clone();
        let answers = tokio::spawn({
            let (agent, clock) = (agent.clone(), clock.clone());
            async move {
                let message = inbox.recv().await.expect("a ping").expect("no error");
                let Some(control_response::Body::Ping(ping)) = message.body else {
                    panic!("no ping");
                };
                agent.pong(pong(ping.number, 5_000_000), &clock);
                inbox
            }
        });
        assert_eq!(agent.clock_ahead(&clock).await, 4_000_000);
        let _inbox = answers.await.expect("no panic");
        // Nobody answers this: what was known counts.
        now.store(0, Ordering::Relaxed);
        assert_eq!(agent.clock_ahead(&clock).await, 4_000_000);
        drop(guard);
        assert_eq!(agent.clock_ahead(&clock).await, 4_000_000);
    }

    #[tokio::test]
    async fn a_host_has_so_many_captures_and_no_more() {
        let registry = registry();
        let (guard, _inbox) = connect(&registry, 1);
        let agent = &guard.agent;
        let all: Vec<_> = (0..COMMANDS_PER_HOST_MAX)
            .map(|_| agent.capture(Default::default()).expect("room"))
            .collect();
        assert_eq!(
            agent.capture(Default::default()).err(),
            Some(CommandError::Busy)
        );
        drop(all);
        agent.capture(Default::default()).expect("room again");
    }
}
