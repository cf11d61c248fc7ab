//! Exports profiles to others: what agents pushed, as OTLP, to one receiver.
//!
//! `pending` knows which stretches of which hosts are stored and not sent, and is told of each
//! window that is stored. A round reads what is due from the store, host by host, `encode` makes
//! requests of it and `transport` sends them, one at a time. So what waits for a receiver takes no
//! memory but for its stretches: the backlog is the store. What was sent is in a small file, and a
//! collector goes on where it was; what it sent just before a crash is sent again, under the same
//! `profile_id`.
//!
//! It is a task of the runtime that reads in a place of its own, so neither ingest nor a query
//! waits for it. Nothing of other senders is sent: it asks the store of agents.

#[cfg(test)]
mod conformance;
mod encode;
pub mod limits;
mod pending;
mod transport;

use crate::config::OtlpTarget;
use crate::durable;
use crate::ingest::{Watch, stopped};
use crate::metrics::Metrics;
use crate::query::{Failed, Queries};
use crate::store::{Limits, NewWindow, Scope, StoreQueries, TimeRange};
use crate::sync::lock;
use crate::time::Clock;
use encode::{Encoded, Read, estimate, request};
use limits::{
    BREAK_TIMES, HOSTS_MAX, LOOK, READ_TIMEOUT, REQUEST_BYTES, REQUEST_BYTES_MAX, REQUEST_PIECES,
    SAVE, SLICE_NS,
};
use pending::{Pending, Piece};
use profile::{GroupBy, LabelMatcher, MatchOp, Profile, Query, Selector, key};
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::Code;
use transport::{Sent, Transport, headers};

/// Times that a receiver may say that it has no room before the request counts as too large.
const EXHAUSTED_MAX: u32 = 5;

/// Time that is asked for at once when a collector starts. Unit: nanoseconds.
const RECOVERY_NS: i64 = 3600 * 1_000_000_000;

/// What is exported, and where to.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Directory of the file with what was sent.
    pub dir: PathBuf,
    /// The receiver.
    pub target: OtlpTarget,
    /// Takes the samples.
    pub selector: Selector,
    /// The first of these labels that a sample has is its service.
    pub service_labels: Vec<String>,
    /// Length of the stretches. Unit: nanoseconds.
    pub interval_ns: i64,
    /// Age at which what waits is given up. Unit: nanoseconds.
    pub backlog_ns: i64,
    /// Waits between two attempts: the first, and the longest.
    pub retry: (Duration, Duration),
}

/// Exports; clones share everything.
#[derive(Clone)]
pub struct Export(Arc<Inner>);

struct Inner {
    options: ExportOptions,
    queries: Queries,
    pending: Mutex<Pending>,
    trouble: Mutex<String>,
    /// Something of before was lost: known until the next start.
    damage: Option<String>,
    rounds: tokio::sync::Mutex<Rounds>,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

/// What is remembered from round to round.
#[derive(Default)]
struct Rounds {
    /// What was stored since the last write of the file is found again.
    is_recovered: bool,
    /// The store did not answer, which is told.
    is_store_away: bool,
    client: Option<Transport>,
    /// Failures in a row.
    failures: u32,
    /// Of these, for want of room, of the same request.
    exhausted: u32,
    /// No attempt before then.
    due: Option<Instant>,
    saved: Option<Instant>,
    /// The last write of the file failed, which is told.
    is_unsaved: bool,
    /// What the receiver said last of what it took.
    said: String,
}

/// Why a piece could not be read.
enum Unread {
    /// It is too much for one answer, or of several kinds.
    Cut(String),
    /// The store has it no longer as it was.
    Coarse,
    /// Now; it can be later.
    Later(String),
}

/// The round is over: it goes on after a wait.
struct Stop;

impl Export {
    /// Reads what was sent, which is small. What is stored before the first start is not sent.
    pub fn open(
        options: ExportOptions,
        queries: Queries,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Export {
        let (pending, damage) = opened(&options.dir, clock.now_unix_ns());
        if let Some(damage) = &damage {
            tracing::error!("{damage}");
        }
        let export = Export(Arc::new(Inner {
            options,
            queries: queries.clone(),
            pending: Mutex::new(pending),
            trouble: Mutex::default(),
            damage,
            rounds: tokio::sync::Mutex::default(),
            clock,
            metrics,
            shutdown,
        }));
        // Not itself: it has the queries.
        let told = Arc::downgrade(&export.0);
        queries.warned_by(move || {
            let inner = told.upgrade();
            inner.map_or(Vec::new(), |inner| inner.issues())
        });
        export
    }

    /// Exports until the end.
    pub async fn keep(self) {
        let mut shutdown = self.0.shutdown.clone();
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = self.round() => {}
            }
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Sends what is due, unless the receiver is to be left alone for a while.
    pub async fn round(&self) {
        let inner = &self.0;
        let mut rounds = inner.rounds.lock().await;
        if rounds.due.is_none_or(|due| Instant::now() >= due) {
            // Why it stopped is known.
            let _ = inner.send_due(&mut rounds).await;
        }
        inner.save(&mut rounds).await;
        let waiting = lock(&inner.pending).waiting();
        inner.metrics.export_waiting.set(waiting);
    }

    /// Writes what was sent, at the end of the collector. Blocks.
    pub fn close(&self) {
        let written = lock(&self.0.pending).written();
        if let Err(error) = write(&self.0.options.dir, &written) {
            self.0.metrics.export_state_failed.inc();
            tracing::warn!(%error, "failed to write what was exported: some of it is sent again");
        }
    }
}

/// What waits, and what is wrong with the file that says it.
fn opened(dir: &Path, now_unix_ns: i64) -> (Pending, Option<String>) {
    let path = file(dir);
    let why = match std::fs::read(&path) {
        Ok(bytes) => match Pending::read(&bytes) {
            Ok(pending) => return (pending, None),
            Err(why) => why,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return (Pending::new(now_unix_ns), None);
        }
        Err(error) => error.to_string(),
    };
    let aside = path.with_extension("damaged");
    let kept = std::fs::rename(&path, &aside);
    let kept = kept.map_or("could not be moved", |()| "is kept as `otlp.damaged`");
    let damage = format!(
        "failed to read `{}`: {why}. What was stored before this start is not exported; the file \
         {kept}",
        path.display()
    );
    (Pending::new(now_unix_ns), Some(damage))
}

fn file(dir: &Path) -> PathBuf {
    dir.join("otlp.json")
}

fn write(dir: &Path, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    durable::replace(&file(dir), bytes, 0o600)
}

impl Inner {
    /// What is wrong, in sentences for people.
    fn issues(&self) -> Vec<String> {
        let trouble = lock(&self.trouble).clone();
        let waiting = lock(&self.pending).waiting();
        let trouble = (!trouble.is_empty()).then(|| {
            format!(
                "profiles are not exported to `{}`: {trouble}. {} min of hosts wait",
                config::shown(&self.options.target.url.to_string()),
                waiting * SLICE_NS.unsigned_abs() / 60_000_000_000
            )
        });
        trouble.into_iter().chain(self.damage.clone()).collect()
    }

    /// Notes what is wrong, or that nothing is.
    fn tell(&self, trouble: &str) {
        let mut known = lock(&self.trouble);
        self.metrics
            .export_failing
            .set(u64::from(!trouble.is_empty()));
        if *known == trouble {
            return;
        }
        match trouble {
            "" => tracing::info!("profiles are exported again"),
            why => tracing::warn!(why, "profiles are not exported"),
        }
        trouble.clone_into(&mut known);
    }

    async fn send_due(&self, rounds: &mut Rounds) -> Result<(), Stop> {
        if !rounds.is_recovered {
            if let Err(why) = self.recover().await {
                self.tell(&format!("the store does not say what is new: {why}"));
                rounds.is_store_away = true;
                return Err(Stop);
            }
            rounds.is_recovered = true;
        }
        let now = self.clock.now_unix_ns();
        let mut pieces = {
            let mut pending = lock(&self.pending);
            let aged = pending.prune(now, self.options.backlog_ns);
            self.metrics.export_too_old.inc_by(aged);
            pending.due(now, self.options.interval_ns)
        };
        pieces.sort();
        let mut pieces = VecDeque::from(pieces);
        let (mut reads, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = pieces.pop_front() {
            let started = Instant::now();
            match self.read(&piece).await {
                Ok(Some((profile, size))) => {
                    bytes += size;
                    reads.push(Read { piece, profile });
                }
                Ok(None) => self.done(&piece, &self.metrics.export_empty),
                Err(Unread::Coarse) => self.done(&piece, &self.metrics.export_coarse),
                Err(Unread::Cut(why)) => self.cut(piece, &mut pieces, &why),
                Err(Unread::Later(why)) => {
                    self.tell(&format!("the store does not answer: {why}"));
                    rounds.is_store_away = true;
                    return Err(Stop);
                }
            }
            tokio::time::sleep(started.elapsed() * BREAK_TIMES).await;
            let is_full = bytes >= REQUEST_BYTES || reads.len() >= REQUEST_PIECES;
            if !reads.is_empty() && (is_full || pieces.is_empty()) {
                self.send_all(std::mem::take(&mut reads), &mut pieces, rounds)
                    .await?;
                bytes = 0;
                self.save(rounds).await;
            }
        }
        if std::mem::take(&mut rounds.is_store_away) {
            self.tell("");
        }
        Ok(())
    }

    /// Sends these in as many requests as they need.
    async fn send_all(
        &self,
        reads: Vec<Read>,
        pieces: &mut VecDeque<Piece>,
        rounds: &mut Rounds,
    ) -> Result<(), Stop> {
        let mut batches = vec![reads];
        while let Some(batch) = batches.pop() {
            let labels = self.options.service_labels.clone();
            let encoding = spawn_blocking(move || {
                let encoded = request(&batch, &labels);
                let bytes = encoded.request.encoded_len();
                (batch, encoded, bytes)
            });
            let Ok((mut batch, encoded, bytes)) = encoding.await else {
                self.tell("a request cannot be made");
                return Err(Stop);
            };
            if bytes <= REQUEST_BYTES_MAX {
                let of = batch.into_iter().map(|read| read.piece).collect();
                self.send(of, encoded, bytes, rounds).await?;
                continue;
            }
            let half = batch.split_off(batch.len() / 2);
            if batch.is_empty() {
                let why = format!("{bytes} bytes in a request");
                for read in half {
                    self.cut(read.piece, pieces, &why);
                }
            } else {
                batches.push(half);
                batches.push(batch);
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        pieces: Vec<Piece>,
        Encoded { request, profiles }: Encoded,
        bytes: usize,
        rounds: &mut Rounds,
    ) -> Result<(), Stop> {
        let metrics = &self.metrics;
        let mut sent = match self.client(rounds).await {
            Ok((client, headers)) => {
                metrics.export_bytes.inc_by(bytes as u64);
                client.send(headers, request).await
            }
            Err(why) => Sent::Failed(why, None),
        };
        if let Sent::Exhausted(why) = sent {
            rounds.exhausted += 1;
            sent = match rounds.exhausted {
                EXHAUSTED_MAX.. => Sent::Refused(why),
                _ => Sent::Failed(why, None),
            };
        }
        match sent {
            Sent::Accepted { rejected, message } => {
                metrics.export_requests.inc();
                let rejected = rejected.min(profiles);
                metrics.export_profiles.inc_by(profiles - rejected);
                metrics.export_profiles_rejected.inc_by(rejected);
                if message != rounds.said && !message.is_empty() {
                    let message = config::shown(&message);
                    tracing::warn!(
                        rejected,
                        message,
                        "the receiver of exports has taken profiles"
                    );
                }
                rounds.said = message;
                self.all_done(&pieces, &metrics.export_sent);
                self.tell("");
            }
            Sent::Refused(why) => {
                metrics.export_requests_refused.inc();
                metrics.export_profiles_refused.inc_by(profiles);
                self.all_done(&pieces, &metrics.export_refused);
                self.tell(&format!(
                    "the receiver refuses them: {}",
                    config::shown(&why)
                ));
            }
            Sent::Failed(why, after) => {
                metrics.export_requests_failed.inc();
                // Files may be others, and connections gone.
                rounds.client = None;
                let (first, longest) = self.options.retry;
                let wait = first.saturating_mul(2u32.saturating_pow(rounds.failures.min(16)));
                let wait = after.unwrap_or_else(|| wait.min(longest));
                rounds.failures += 1;
                rounds.due = Some(Instant::now() + wait);
                self.tell(config::shown(&why).as_ref());
                return Err(Stop);
            }
            // It became one of the others.
            Sent::Exhausted(_) => {}
        }
        (rounds.failures, rounds.exhausted, rounds.due) = (0, 0, None);
        Ok(())
    }

    /// The client, and the headers of a request.
    async fn client(&self, rounds: &mut Rounds) -> Result<(Transport, hyper::HeaderMap), String> {
        let (target, known) = (self.options.target.clone(), rounds.client.clone());
        let making = spawn_blocking(move || {
            let client = match known {
                Some(known) => known,
                None => Transport::new(&target)?,
            };
            Ok((client, headers(target.headers_file.as_deref())?))
        });
        let made = making.await;
        let made = made.unwrap_or_else(|_| Err("the client cannot be made".to_owned()))?;
        rounds.client = Some(made.0.clone());
        Ok(made)
    }

    fn all_done(&self, pieces: &[Piece], counter: &metrics::Counter) {
        for piece in pieces {
            self.done(piece, counter);
        }
    }

    /// A piece is done with, and counted.
    fn done(&self, piece: &Piece, counter: &metrics::Counter) {
        lock(&self.pending).remove(piece);
        counter.inc_by(piece.slices());
    }

    /// Takes half of what is too large; a slice that is, is dropped.
    fn cut(&self, piece: Piece, pieces: &mut VecDeque<Piece>, why: &str) {
        match piece.clone().halves() {
            Some((first, second)) => {
                pieces.push_front(second);
                pieces.push_front(first);
            }
            None => {
                let host = &piece.host;
                tracing::error!(
                    host,
                    why,
                    "ten seconds of a host are too much to be exported"
                );
                self.done(&piece, &self.metrics.export_too_large);
            }
        }
    }

    /// The samples of a piece, and about how large they are in a request; `None` without any.
    async fn read(&self, piece: &Piece) -> Result<Option<(Profile, usize)>, Unread> {
        let host = LabelMatcher::new(key::HOST, MatchOp::Equal, piece.host.as_str());
        let mut matchers = self.options.selector.matchers().to_vec();
        // Without it all hosts would be sent as one, and what is wrong is wrong for all of them.
        let unasked = |why: &dyn std::fmt::Display| Unread::Later(why.to_string());
        matchers.push(host.map_err(|why| unasked(&why))?);
        let selector = Selector::new(matchers).map_err(|why| unasked(&why))?;
        let query = Query::new(selector, Vec::new(), GroupBy::All);
        let query = query.map_err(|why| unasked(&why))?;
        let range = piece.range();
        let work = move |store: &dyn StoreQueries, limits: &Limits| {
            let found = store.profile(range, &query, limits)?;
            let size = estimate(&found.data);
            Ok((found, size))
        };
        let bounds = (usize::MAX, 0);
        let read = self.queries.export(READ_TIMEOUT, bounds, work).await;
        let (read, size) = read.map_err(|status| match status.code() {
            Code::ResourceExhausted | Code::InvalidArgument => {
                Unread::Cut(status.message().to_owned())
            }
            // It took too long, which half of it may not. For a slice it is waited.
            Code::Cancelled | Code::DeadlineExceeded if piece.slices() > 1 => {
                Unread::Cut(format!("no answer within {} s", READ_TIMEOUT.as_secs()))
            }
            _ => Unread::Later(status.message().to_owned()),
        })?;
        match () {
            () if read.quality.covered != range => Err(Unread::Coarse),
            () if read.data.samples.is_empty() => Ok(None),
            () => Ok(Some((read.data, size))),
        }
    }

    /// Finds what was stored after the file was written, of the hosts in it: other collectors may
    /// export the other hosts of the store.
    async fn recover(&self) -> Result<(), String> {
        let now = self.clock.now_unix_ns();
        let (mut from, hosts) = {
            let pending = lock(&self.pending);
            let hosts = pending.hosts();
            let hosts = hosts.map(|(name, id)| (name.to_owned(), id.to_owned()));
            (
                pending.frontier_unix_ns(),
                hosts.collect::<BTreeMap<_, _>>(),
            )
        };
        from = from.max(now.saturating_sub(self.options.backlog_ns));
        while from < now && !hosts.is_empty() {
            let to = from.saturating_add(RECOVERY_NS).min(now);
            let scope = Scope {
                range: TimeRange {
                    start_unix_ns: from,
                    end_unix_ns: to,
                },
                selector: self.options.selector.clone(),
            };
            let work = move |store: &dyn StoreQueries, limits: &Limits| {
                let by = [key::HOST.to_owned()];
                Ok::<_, Failed>(store.series(&scope, &by, SLICE_NS.unsigned_abs(), limits)?)
            };
            let read = self.queries.export(READ_TIMEOUT, (0, HOSTS_MAX), work);
            let series = read
                .await
                .map_err(|status| status.message().to_owned())?
                .data;
            let mut pending = lock(&self.pending);
            for line in &series.lines {
                let host = line.labels.get(key::HOST);
                let Some(id) = hosts.get(host) else { continue };
                for (_, at) in line
                    .weights
                    .iter()
                    .zip(0..)
                    .filter(|(weight, _)| **weight > 0)
                {
                    let step = series.step(at);
                    for start in (step.start_unix_ns..step.end_unix_ns).step_by(SLICE_NS as usize) {
                        pending.add(host, id, start);
                    }
                }
            }
            drop(pending);
            from = to;
        }
        Ok(())
    }

    /// Writes what was sent, unless that was just done.
    async fn save(&self, rounds: &mut Rounds) {
        let is_due = rounds.saved.is_none_or(|saved| saved.elapsed() >= SAVE);
        if !is_due {
            return;
        }
        rounds.saved = Some(Instant::now());
        let (dir, pending) = (self.options.dir.clone(), lock(&self.pending).clone());
        let written = spawn_blocking(move || write(&dir, &pending.written())).await;
        let why = match written {
            Ok(Ok(())) => {
                rounds.is_unsaved = false;
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its writer panicked".to_owned(),
        };
        self.metrics.export_state_failed.inc();
        if !std::mem::replace(&mut rounds.is_unsaved, true) {
            let dir = self.options.dir.display();
            tracing::warn!(%dir, why, "failed to write what was exported: a crash repeats it");
        }
    }
}

impl Watch for Export {
    fn stored(&self, window: &NewWindow) {
        let Some(labels) = window
            .label_sets
            .first()
            .filter(|_| !window.rows.is_empty())
        else {
            return;
        };
        let (host, id) = (labels.get(key::HOST), &window.origin.host.host_id);
        let start = window.range.start_unix_ns;
        if !lock(&self.0.pending).add(host, id, start) {
            self.0.metrics.export_no_room.inc();
        }
    }
}
