//! Who attends: agents whose control stream is open, by host id, and the orders they were given.
//!
//! Everything here holds a lock for microseconds and never waits. An order is a place in a stream: what the
//! agent reports of it comes to who gave it, and giving it up tells the agent.

use super::limits::{ORDERS_PER_HOST_MAX, ORDERS_QUEUED, REPORTS_QUEUED};
use crate::metrics::Metrics;
use crate::store::{HostFacts, HostKey};
use profile::key;
use proto::agent;
use proto::collector::{AttendResponse, Order, attend_response, order, report};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};
use tonic::Status;

/// What an agent's end of the stream gets.
pub type Outbox = mpsc::Sender<Result<AttendResponse, Status>>;

/// Those who attend.
pub struct Attendance {
    inner: Mutex<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Inner {
    by_host: HashMap<String, Arc<Attendant>>,
    next: u64,
}

/// An agent that attends.
pub struct Attendant {
    /// The host and its boot.
    pub key: HostKey,
    /// By how much its clock was ahead of the collector's. Unit: nanoseconds.
    pub clock_ahead_ns: i64,
    /// Notified when its stream must end: another took its place, or it does not read.
    pub end: Notify,
    number: u64,
    facts: Mutex<HostFacts>,
    out: Outbox,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    last: u64,
    open: HashMap<u64, mpsc::Sender<report::What>>,
    closed: bool,
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
    Waiting(mpsc::Sender<report::What>),
    /// An order that was dropped: the report crossed it.
    Past,
    /// None was ever given with this number.
    Never,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change leaves the maps whole, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attendance {
    /// Nobody yet.
    pub fn new(metrics: Arc<Metrics>) -> Attendance {
        Attendance {
            inner: Mutex::default(),
            metrics,
        }
    }

    /// An agent has said who it is. The one that attended with its host id before is told to end: its
    /// connection is most likely gone without a word.
    pub fn open(
        self: &Arc<Self>,
        key: HostKey,
        facts: HostFacts,
        clock_ahead_ns: i64,
        out: Outbox,
    ) -> Ticket {
        let mut inner = lock(&self.inner);
        inner.next += 1;
        let attendant = Arc::new(Attendant {
            clock_ahead_ns,
            end: Notify::new(),
            number: inner.next,
            facts: Mutex::new(facts),
            out,
            orders: Mutex::default(),
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
    pub fn all(&self) -> Vec<Arc<Attendant>> {
        lock(&self.inner).by_host.values().cloned().collect()
    }

    /// The agent of this host.
    pub fn find(&self, host_id: &str) -> Option<Arc<Attendant>> {
        lock(&self.inner).by_host.get(host_id).cloned()
    }
}

/// An open stream; its orders have nobody any more when it is dropped.
pub struct Ticket {
    attendance: Arc<Attendance>,
    /// The agent.
    pub attendant: Arc<Attendant>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inner = lock(&self.attendance.inner);
        let host_id = &self.attendant.key.host_id;
        let own = |found: &Arc<Attendant>| found.number == self.attendant.number;
        if inner.by_host.get(host_id).is_some_and(own) {
            inner.by_host.remove(host_id);
        }
        drop(inner);
        self.attendant.close();
        self.attendance.metrics.control_streams.sub(1);
    }
}

impl Attendant {
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

/// An order that was given. Dropped before its last report came, it tells the agent that nobody waits.
pub struct Ordered {
    attendant: Arc<Attendant>,
    number: u64,
    reports: mpsc::Receiver<report::What>,
}

impl Ordered {
    /// The next report; `None` when none will come: the agent has left, or has said its last.
    pub async fn next(&mut self) -> Option<report::What> {
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

/// The value of a label of a host: its name, or one of those that its configuration gives. `None` for labels
/// that its samples may have themselves.
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

/// Orders that wait for the agent to read them, a Welcome and a Ping.
pub const OUTBOX: usize = ORDERS_QUEUED + 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn attendance() -> Arc<Attendance> {
        Arc::new(Attendance::new(Arc::default()))
    }

    fn key(boot: u8) -> HostKey {
        HostKey {
            host_id: "a".to_owned(),
            boot_id: [boot; 16],
        }
    }

    type Inbox = mpsc::Receiver<Result<AttendResponse, Status>>;

    fn attend(attendance: &Arc<Attendance>, boot: u8) -> (Ticket, Inbox) {
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
