//! Sends notifications: each stays on disk until its receiver has accepted it, in the order in
//! which they were made, one at a time for each receiver.
//!
//! A receiver that accepts one just before the collector dies gets it again, with the same
//! `Idempotency-Key`: HTTP has no way to do better.

use super::book::{Book, Episode, Waiting};
use super::limits::{GIVE_UP, LOOK, REFUSED_MAX};
use super::notify::Notice;
use super::{Alerts, Inner};
use crate::config::Receiver;
use crate::config::alerts::receiver_url;
use crate::ingest::stopped;
use crate::outbound::{Client, Question};
use crate::sync::lock;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::OnceCell;
use tokio::task::{JoinSet, spawn_blocking};

/// Longest file with an address. Unit: bytes.
const URL_BYTES_MAX: u64 = 4096;

/// How the receivers do.
pub(super) struct Delivery {
    pub(super) receivers: Mutex<BTreeMap<String, ReceiverNow>>,
    client: OnceCell<Client>,
    /// Looks at what is to be sent.
    looks: AtomicU64,
}

/// How a receiver does.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiverNow {
    pub(super) sent: u64,
    /// Failed attempts since the last one that worked.
    pub(super) failures: u64,
    pub(super) error: String,
    /// When the first of them was.
    failing: Option<Instant>,
    /// When to try again.
    due: Option<Instant>,
    /// How often it refused the notification that is its turn.
    refused: u32,
    is_busy: bool,
}

/// What became of an attempt.
enum Sent {
    Accepted,
    /// The receiver refuses the content.
    Refused(String),
    Failed(String),
}

impl Delivery {
    pub(super) fn new(receivers: &[Receiver]) -> Delivery {
        let names = receivers.iter().map(|one| one.name.clone());
        Delivery {
            receivers: Mutex::new(names.map(|name| (name, ReceiverNow::default())).collect()),
            client: OnceCell::new(),
            looks: AtomicU64::new(0),
        }
    }
}

impl Alerts {
    /// Sends what is to be sent, until the end. What is being sent then is waited for.
    pub async fn deliver(self) {
        let mut shutdown = self.0.shutdown.clone();
        let mut sending = JoinSet::new();
        // When the changes of each rule were first seen here.
        let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
        let mut is_first = true;
        'deliver: loop {
            self.0.delivery.looks.fetch_add(1, Ordering::Relaxed);
            if self.is_wanted() && self.0.book().await.is_ok() {
                let waiting = self.0.post(&mut seen, is_first).await;
                is_first = false;
                for receiver in self.0.idle(&waiting) {
                    let alerts = self.clone();
                    sending.spawn(async move { alerts.0.send_next(&receiver).await });
                }
            }
            let look = tokio::time::sleep(LOOK);
            tokio::pin!(look);
            loop {
                tokio::select! {
                    () = stopped(&mut shutdown) => break 'deliver,
                    () = self.0.bell.notified() => break,
                    () = &mut look => break,
                    // Whoever has sent all that waited has nothing to do until something changes.
                    Some(_) = sending.join_next() => {}
                }
            }
        }
        while sending.join_next().await.is_some() {}
    }
}

impl Alerts {
    /// How often it looked at what is to be sent: after each round, and once a second.
    pub fn looks(&self) -> u64 {
        self.0.delivery.looks.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Makes notifications of changes that have waited for long enough. `is_all`: of all of them,
    /// because they have waited since before the start. Returns what waits, by receiver.
    async fn post(
        &self,
        seen: &mut BTreeMap<String, Instant>,
        is_all: bool,
    ) -> BTreeMap<String, (u64, i64)> {
        let Ok(news) = self.blocking(|book| book.news()).await else {
            return BTreeMap::new();
        };
        seen.retain(|rule, _| news.contains_key(rule));
        for rule in news.into_keys() {
            let first = *seen.entry(rule.clone()).or_insert_with(Instant::now);
            if !is_all && first.elapsed() < self.options.wait {
                continue;
            }
            let receivers = self.options.receivers.clone();
            let (page, now) = (self.options.page.clone(), self.clock.now_unix_ns());
            let name = rule.clone();
            let work = move |book: &Book| {
                let (changed, others) = book.told(&name)?;
                let mut notifications = Vec::new();
                for receiver in &receivers {
                    let is_told = |one: &Episode| one.about.receivers.contains(&receiver.name);
                    let own = |all: &[Episode]| -> Vec<_> {
                        all.iter().filter(|one| is_told(one)).cloned().collect()
                    };
                    let (changed, others) = (own(&changed), own(&others));
                    if changed.is_empty() {
                        continue;
                    }
                    let key = key(&receiver.name, &changed);
                    let notice = Notice {
                        key: &key,
                        receiver: &receiver.name,
                        rule: &name,
                        changed: &changed,
                        others: &others,
                        page: &page,
                    };
                    notifications.push(Waiting {
                        id: 0,
                        receiver: receiver.name.clone(),
                        body: notice.body(&receiver.format),
                        key,
                    });
                }
                book.post((&name, &changed), now, &notifications)
            };
            if let Ok(dropped) = self.blocking(work).await {
                seen.remove(&rule);
                if dropped > 0 {
                    self.metrics.notifications_dropped.inc_by(dropped);
                    tracing::error!(
                        dropped,
                        "too many notifications wait: the oldest are dropped"
                    );
                }
            }
        }
        let Ok(waiting) = self.blocking(|book| book.waiting()).await else {
            return BTreeMap::new();
        };
        let sum = waiting.values().map(|(count, _)| count).sum();
        self.metrics.notifications_waiting.set(sum);
        waiting
    }

    /// Receivers that something waits for and that may be sent it now; they count as busy from
    /// here on.
    fn idle(&self, waiting: &BTreeMap<String, (u64, i64)>) -> Vec<Receiver> {
        let now = Instant::now();
        let mut states = lock(&self.delivery.receivers);
        let mut idle = Vec::new();
        for receiver in &self.options.receivers {
            if let Some(state) = states.get_mut(&receiver.name)
                && waiting.contains_key(&receiver.name)
                && !state.is_busy
                && state.due.is_none_or(|due| due <= now)
            {
                state.is_busy = true;
                idle.push(receiver.clone());
            }
        }
        idle
    }

    /// Sends what waits for a receiver, until nothing does or an attempt fails.
    async fn send_next(&self, receiver: &Receiver) {
        loop {
            let name = receiver.name.clone();
            let next = self.blocking(move |book| book.next(&name)).await;
            let Ok(Some(waiting)) = next else { break };
            let sent = self.send(receiver, &waiting).await;
            let is_over = self.judge(&receiver.name, sent);
            if !is_over {
                break;
            }
            let id = waiting.id;
            let mut shutdown = self.shutdown.clone();
            // It was accepted: it must not be sent again because the disk is full for a moment.
            while self.blocking(move |book| book.sent(id)).await.is_err() {
                tokio::select! {
                    () = stopped(&mut shutdown) => return,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            if *self.shutdown.borrow() {
                break;
            }
        }
        if let Some(state) = lock(&self.delivery.receivers).get_mut(&receiver.name) {
            state.is_busy = false;
        }
    }

    /// Notes what became of an attempt. True: the notification is done with.
    fn judge(&self, receiver: &str, sent: Sent) -> bool {
        let metrics = &self.metrics;
        let (first, longest) = self.options.retry;
        let mut states = lock(&self.delivery.receivers);
        let Some(state) = states.get_mut(receiver) else {
            return false;
        };
        let (why, is_refused) = match sent {
            Sent::Accepted => {
                metrics.notifications_sent.inc();
                if state.failures > 0 {
                    tracing::info!(receiver, "notifications are accepted again");
                }
                *state = ReceiverNow {
                    sent: state.sent + 1,
                    is_busy: true,
                    ..ReceiverNow::default()
                };
                return true;
            }
            Sent::Refused(why) => (why, true),
            Sent::Failed(why) => (why, false),
        };
        metrics.attempts_failed.inc();
        if state.failures == 0 {
            tracing::warn!(
                receiver,
                why,
                "failed to send a notification; the collector retries"
            );
        }
        let now = Instant::now();
        let failing = *state.failing.get_or_insert(now);
        state.error = why;
        state.refused += u32::from(is_refused);
        let times = u32::try_from(state.failures.min(16)).unwrap_or(16);
        state.failures += 1;
        let wait = first
            .saturating_mul(2u32.saturating_pow(times))
            .min(longest);
        state.due = Some(now + wait);
        let given_up = match () {
            () if state.refused >= REFUSED_MAX => &metrics.notifications_refused,
            () if failing.elapsed() >= GIVE_UP => &metrics.notifications_given_up,
            () => return false,
        };
        given_up.inc();
        tracing::error!(receiver, why = state.error, "a notification is given up");
        state.refused = 0;
        state.failing = Some(now);
        true
    }

    async fn send(&self, receiver: &Receiver, waiting: &Waiting) -> Sent {
        let own = receiver.clone();
        let to = match spawn_blocking(move || address(&own)).await {
            Ok(Ok(to)) => to,
            Ok(Err(why)) => return Sent::Failed(why),
            Err(_) => return Sent::Failed("its address cannot be read".to_owned()),
        };
        let client = || async {
            let made = spawn_blocking(|| Client::new(None)).await;
            made.unwrap_or_else(|_| Err("the client cannot be made".to_owned()))
        };
        let client = match self.delivery.client.get_or_try_init(client).await {
            Ok(client) => client,
            Err(why) => return Sent::Failed(why),
        };
        let Ok(key) = HeaderValue::from_str(&waiting.key) else {
            return Sent::Failed("its key is no header".to_owned());
        };
        let question = Question {
            to: &to,
            form: Some(waiting.body.clone()),
            headers: vec![
                (CONTENT_TYPE, HeaderValue::from_static("application/json")),
                (HeaderName::from_static("idempotency-key"), key),
            ],
        };
        match client.status(question).await {
            Ok(status) if status.is_success() => Sent::Accepted,
            Ok(status) if status.is_redirection() => Sent::Failed(format!(
                "it answered {status}, and redirects are not followed: configure the address that \
                 it leads to"
            )),
            Ok(
                status @ (StatusCode::BAD_REQUEST
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNPROCESSABLE_ENTITY),
            ) => Sent::Refused(format!("it answered {status}")),
            Ok(status) => Sent::Failed(format!("it answered {status}")),
            Err(why) => Sent::Failed(why),
        }
    }
}

/// Where a receiver is.
fn address(receiver: &Receiver) -> Result<hyper::Uri, String> {
    let text = match (&receiver.url, &receiver.url_file) {
        (Some(url), _) => url.0.clone(),
        (None, Some(path)) => {
            let failed = |why: std::io::Error| format!("failed to read `url_file`: {why}");
            let file = std::fs::File::open(path).map_err(failed)?;
            let mut text = String::new();
            let read = file.take(URL_BYTES_MAX).read_to_string(&mut text);
            read.map_err(failed)?;
            text
        }
        (None, None) => return Err("it has no address".to_owned()),
    };
    receiver_url(&text).map_err(|why| format!("its address {why}"))
}

/// What a notification is known by: the same for the same changes.
fn key(receiver: &str, changed: &[Episode]) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(receiver.as_bytes());
    for one in changed {
        hash.update(one.rule.as_bytes());
        hash.update(&one.id.to_le_bytes());
        hash.update(&one.fired.to_le_bytes());
        hash.update(&one.resolved.to_le_bytes());
    }
    hash.finalize().to_hex()[..32].to_owned()
}

/// Ports that receivers are at, for the sandbox: addresses in files as they are now.
pub fn addresses(receivers: &[Receiver]) -> Vec<String> {
    let known = receivers.iter().filter_map(|one| address(one).ok());
    known.map(|uri| uri.to_string()).collect()
}
