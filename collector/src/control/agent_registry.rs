//! Who attends: agents whose control stream is open, by host id, and the orders they were given.
//!
//! Everything here holds a lock for microseconds; only [`ConnectedAgent::clock_ahead`] waits. An
//! order is a place in a stream: what the agent reports of it comes to who gave it, and giving it
//! up tells the agent.

use super::limits::{CLOCK_WAIT, ORDERS_PER_HOST_MAX, ORDERS_QUEUED, REPORTS_QUEUED};
use crate::memory::Reservation;
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey};
use crate::sync::lock;
use crate::time::Clock;
use profile::key;
use proto::agent;
use proto::collector::{AttendResponse, Order, Ping, Pong, attend_response, order, report};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, mpsc, watch};
use tonic::Status;

/// What an agent's end of the stream gets.
pub type Outbox = mpsc::Sender<Result<AttendResponse, Status>>;

/// Those who attend.
pub struct AgentRegistry {
    inner: Mutex<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Inner {
    by_host: HashMap<String, Arc<ConnectedAgent>>,
    next: u64,
}

/// An agent that attends.
pub struct ConnectedAgent {
    /// The host and its boot.
    pub key: HostKey,
    /// Notified when its stream must end: another took its place, or it does not read.
    pub end: Notify,
    number: u64,
    facts: Mutex<HostFacts>,
    out: Outbox,
    orders: Mutex<Orders>,
    pings: Mutex<Pings>,
    /// The newest ping that was answered; [`NEVER`] once none will be.
    answered: watch::Sender<u64>,
}

#[derive(Default)]
struct Orders {
    last: u64,
    open: HashMap<u64, mpsc::Sender<Reported>>,
    closed: bool,
}

/// What is known of an agent's clock.
struct Pings {
    last: u64,
    /// When the last was sent, on the collector's clock. Unit: nanoseconds since the Unix epoch.
    sent_unix_ns: i64,
    /// By how much the agent's is ahead. Unit: nanoseconds.
    ahead_ns: i64,
}

/// Of a ping that will not be answered.
const NEVER: u64 = u64::MAX;

/// What an agent reported of an order, for who gave it.
pub struct Reported {
    /// This; `None` where there was no memory for it.
    pub what: Option<report::What>,
    /// The memory it takes as long as it waits.
    pub held: Reservation,
}

/// Why an order cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Nobody is there to take it.
    #[error("it does not attend any more")]
    Gone,
    /// It has enough to do.
    #[error("{ORDERS_PER_HOST_MAX} captures that came from here run on it, which is the limit")]
    Busy,
    /// Its connection takes nothing.
    #[error("it does not read its orders")]
    Stalled,
}

/// What an agent's report is about.
#[derive(Clone, Debug)]
pub enum Addressee {
    /// One that waits for it.
    Waiting(mpsc::Sender<Reported>),
    /// An order that was dropped: the report crossed it.
    Past,
    /// None was ever given with this number.
    Never,
}

impl AgentRegistry {
    /// Nobody yet.
    pub fn new(metrics: Arc<Metrics>) -> AgentRegistry {
        AgentRegistry {
            inner: Mutex::default(),
            metrics,
        }
    }

    /// An agent has said who it is. The one that attended with its host id before is told to end:
    /// its connection is most likely gone without a word.
    pub fn open(
        self: &Arc<Self>,
        key: HostKey,
        facts: HostFacts,
        clock_ahead_ns: i64,
        out: Outbox,
    ) -> Ticket {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let attendant = Arc::new(ConnectedAgent {
            end: Notify::new(),
            number: inner.next,
            facts: Mutex::new(facts),
            out,
            orders: Mutex::default(),
            pings: Mutex::new(Pings {
                last: 0,
                sent_unix_ns: 0,
                ahead_ns: clock_ahead_ns,
            }),
            answered: watch::Sender::new(0),
            key,
        });
        let host_id = attendant.key.host_id.clone();
        let older = inner.by_host.insert(host_id, attendant.clone());
        drop(inner);
        if let Some(older) = older {
            self.metrics.control_superseded.inc();
            older.close();
            older.end.notify_one();
        }
        self.metrics.control_streams.inc();
        Ticket {
            attendance: self.clone(),
            attendant,
        }
    }

    /// All who attend, in no order.
    pub fn all(&self) -> Vec<Arc<ConnectedAgent>> {
        lock(&self.inner).by_host.values().cloned().collect()
    }

    /// The agent of this host.
    pub fn find(&self, host_id: &str) -> Option<Arc<ConnectedAgent>> {
        lock(&self.inner).by_host.get(host_id).cloned()
    }
}

/// An open stream; its orders have nobody any more when it is dropped.
pub struct Ticket {
    attendance: Arc<AgentRegistry>,
    /// The agent.
    pub attendant: Arc<ConnectedAgent>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inner = lock(&self.attendance.inner);
        let host_id = &self.attendant.key.host_id;
        let own = |found: &Arc<ConnectedAgent>| found.number == self.attendant.number;
        if inner.by_host.get(host_id).is_some_and(own) {
            inner.by_host.remove(host_id);
        }
        drop(inner);
        self.attendant.close();
        self.attendance.metrics.control_streams.dec();
    }
}

impl ConnectedAgent {
    /// What it last said of its host.
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

    /// Gives an order to capture.
    ///
    /// # Errors
    /// When it cannot be given.
    pub fn capture(
        self: &Arc<Self>,
        request: agent::CaptureRequest,
    ) -> Result<Ordered, OrderError> {
        let (reports, receiver) = mpsc::channel(REPORTS_QUEUED);
        let mut orders = lock(&self.orders);
        if orders.closed {
            return Err(OrderError::Gone);
        }
        if orders.open.len() >= ORDERS_PER_HOST_MAX {
            return Err(OrderError::Busy);
        }
        let number = orders.last + 1;
        self.send(number, order::What::Capture(request))?;
        orders.last = number;
        orders.open.insert(number, reports);
        Ok(Ordered {
            attendant: self.clone(),
            number,
            reports: receiver,
        })
    }

    /// Whom a report is for. The last report of an order has nobody waiting behind it.
    pub fn addressee(&self, number: u64, last: bool) -> Addressee {
        let mut orders = lock(&self.orders);
        let found = match last {
            true => orders.open.remove(&number),
            false => orders.open.get(&number).cloned(),
        };
        match found {
            Some(waiting) => Addressee::Waiting(waiting),
            None if number > 0 && number <= orders.last => Addressee::Past,
            None => Addressee::Never,
        }
    }

    /// Who waits for reports learns that none will come.
    fn close(&self) {
        let mut orders = lock(&self.orders);
        orders.closed = true;
        orders.open.clear();
        drop(orders);
        self.answered.send_replace(NEVER);
    }

    /// Asks for a sign of life, and what its clock says: the number of the ping. One that does not
    /// read is told by its silence.
    pub fn ping(&self, clock: &Clock) -> u64 {
        let mut pings = lock(&self.pings);
        pings.last += 1;
        pings.sent_unix_ns = clock.now_unix_ns();
        let number = pings.last;
        let body = Some(attend_response::Body::Ping(Ping { number }));
        let _ = self.out.try_send(Ok(AttendResponse { body }));
        number
    }

    /// It answered. What its clock is ahead is then known but for the time that ping and answer
    /// took: what was known before stays while it agrees with that.
    pub fn pong(&self, pong: Pong, clock: &Clock) {
        let mut pings = lock(&self.pings);
        let last = pings.last;
        if pong.number != last && pong.number != 0 {
            // Of one before: the newer is on its way.
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

    fn send(&self, number: u64, what: order::What) -> Result<(), OrderError> {
        let what = Some(what);
        let body = attend_response::Body::Order(Order { number, what });
        let message = AttendResponse { body: Some(body) };
        self.out.try_send(Ok(message)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => OrderError::Stalled,
            mpsc::error::TrySendError::Closed(_) => OrderError::Gone,
        })
    }
}

/// An order that was given. Dropped before its last report came, it tells the agent that nobody
/// waits.
pub struct Ordered {
    attendant: Arc<ConnectedAgent>,
    number: u64,
    reports: mpsc::Receiver<Reported>,
}

impl Ordered {
    /// The next report; `None` when none will come: the agent has left, or has said its last.
    pub async fn next(&mut self) -> Option<Reported> {
        self.reports.recv().await
    }

    /// Has the capture end with what there is.
    pub fn cancel(&self) {
        let mut orders = lock(&self.attendant.orders);
        if !orders.open.contains_key(&self.number) {
            return;
        }
        orders.last += 1;
        let number = orders.last;
        // An agent that does not read this will be lost when the time is over.
        let _ = self
            .attendant
            .send(number, order::What::Cancel(self.number));
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        let mut orders = lock(&self.attendant.orders);
        if orders.open.remove(&self.number).is_none() {
            return;
        }
        orders.last += 1;
        let number = orders.last;
        if self.attendant.send(number, order::What::Drop(self.number)) == Err(OrderError::Stalled) {
            // The end of its stream ends its captures.
            self.attendant.end.notify_one();
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
        false => configured.get(label).map(String::as_str),
    }
}

/// Orders that wait for the agent to read them, a Welcome, and a Ping of its own and of each
/// capture.
pub const OUTBOX: usize = ORDERS_QUEUED + ORDERS_PER_HOST_MAX + 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    fn attendance() -> Arc<AgentRegistry> {
        Arc::new(AgentRegistry::new(Arc::default()))
    }

    fn key(boot: u8) -> HostKey {
        HostKey {
            host_id: "a".to_owned(),
            boot_id: [boot; 16],
        }
    }

    type Inbox = mpsc::Receiver<Result<AttendResponse, Status>>;

    fn attend(attendance: &Arc<AgentRegistry>, boot: u8) -> (Ticket, Inbox) {
        let (out, inbox) = mpsc::channel(OUTBOX);
        let ticket = attendance.open(key(boot), HostFacts::default(), 0, out);
        (ticket, inbox)
    }

    fn order(inbox: &mut Inbox) -> Option<(u64, order::What)> {
        let message = inbox.try_recv().ok()?.ok()?;
        match message.body? {
            attend_response::Body::Order(order) => Some((order.number, order.what?)),
            _ => None,
        }
    }

    #[tokio::test]
    async fn the_newer_of_one_host_wins_whatever_ends_first() {
        let attendance = attendance();
        let (old, _old_inbox) = attend(&attendance, 1);
        let mut waiting = old.attendant.capture(Default::default()).expect("room");
        let (new, mut inbox) = attend(&attendance, 2);
        assert!(waiting.next().await.is_none());
        old.attendant.end.notified().await;
        drop(old);
        let found = attendance.find("a").expect("the newer");
        assert_eq!(found.key.boot_id, [2; 16]);
        let _ordered = found.capture(Default::default()).expect("room");
        assert!(matches!(
            order(&mut inbox),
            Some((1, order::What::Capture(_)))
        ));
        drop(new);
        assert!(attendance.find("a").is_none());
        assert_eq!(
            found.capture(Default::default()).err(),
            Some(OrderError::Gone)
        );
    }

    #[tokio::test]
    async fn an_order_given_up_is_dropped_and_its_late_reports_are_told_from_lies() {
        let attendance = attendance();
        let (ticket, mut inbox) = attend(&attendance, 1);
        let agent = &ticket.attendant;
        let ordered = agent.capture(Default::default()).expect("room");
        order(&mut inbox);
        assert!(matches!(agent.addressee(1, false), Addressee::Waiting(_)));
        drop(ordered);
        assert_eq!(order(&mut inbox), Some((2, order::What::Drop(1))));
        assert!(matches!(agent.addressee(1, false), Addressee::Past));
        for never in [0, 3, u64::MAX] {
            assert!(matches!(agent.addressee(never, false), Addressee::Never));
        }
        // One that has ended needs no drop.
        let ordered = agent.capture(Default::default()).expect("room");
        order(&mut inbox);
        agent.addressee(3, true);
        drop(ordered);
        assert_eq!(order(&mut inbox), None);
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_is_given_nothing_and_cut_off() {
        let attendance = attendance();
        let (out, _inbox) = mpsc::channel(1);
        let ticket = attendance.open(key(1), HostFacts::default(), 0, out);
        let agent = &ticket.attendant;
        let first = agent.capture(Default::default()).expect("room for one");
        assert_eq!(
            agent.capture(Default::default()).err(),
            Some(OrderError::Stalled)
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
        let attendance = attendance();
        let (ticket, _inbox) = attend(&attendance, 1);
        let agent = &ticket.attendant;
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
        // Of a ping that another has followed, of none, of an older version.
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
        let attendance = attendance();
        let (ticket, mut inbox) = attend(&attendance, 1);
        let agent = ticket.attendant.clone();
        let answers = tokio::spawn({
            let (agent, clock) = (agent.clone(), clock.clone());
            async move {
                let message = inbox.recv().await.expect("a ping").expect("no error");
                let Some(attend_response::Body::Ping(ping)) = message.body else {
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
        drop(ticket);
        assert_eq!(agent.clock_ahead(&clock).await, 4_000_000);
    }

    #[tokio::test]
    async fn a_host_has_so_many_captures_and_no_more() {
        let attendance = attendance();
        let (ticket, _inbox) = attend(&attendance, 1);
        let agent = &ticket.attendant;
        let all: Vec<_> = (0..ORDERS_PER_HOST_MAX)
            .map(|_| agent.capture(Default::default()).expect("room"))
            .collect();
        assert_eq!(
            agent.capture(Default::default()).err(),
            Some(OrderError::Busy)
        );
        drop(all);
        agent.capture(Default::default()).expect("room again");
    }
}
