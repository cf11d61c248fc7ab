//! Alerts: rules of the configuration that the collector evaluates on what it stores, and
//! notifications to webhooks.
//!
//! Data flows one way: `judged` has what is known of a rule's groups, `state` decides what
//! becomes of each alert, `book` writes that together with what people are to be told, `deliver`
//! sends it (`notify` words it), `service` shows it. One rule is evaluated at a time, within bounds
//! of time and memory (`limits`); no evaluation waits for a receiver.

mod book;
mod deliver;
mod judged;
pub mod limits;
mod notify;
mod service;
mod state;

pub use deliver::addresses;

use crate::config::{Receiver, Rule};
use crate::database::DatabaseError;
use crate::ingest::stopped;
use crate::measure::Reading;
use crate::measure::limits::{BREAK_TIMES, CELLS_MAX, NODES_MAX, QUERY_TIMEOUT};
use crate::metrics::Metrics;
use crate::query::Queries;
use crate::sync::lock;
use crate::time::Clock;
use book::{About, Book, Round};
use deliver::Delivery;
use judged::{Baselines, Measured, baselines, measure};
use limits::{BASELINE_NS, PRUNE_ROUNDS};
use profile::text::with_causes;
use state::{Alert, Change, Phase, step};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::spawn_blocking;
use tonic::Status;

/// How alerts are evaluated and sent.
#[derive(Clone, Debug)]
pub struct AlertOptions {
    /// Directory of their state.
    pub dir: PathBuf,
    /// The rules.
    pub rules: Vec<Rule>,
    /// Who is notified.
    pub receivers: Vec<Receiver>,
    /// Time between two rounds.
    pub interval: Duration,
    /// How long changes of a rule wait for further ones.
    pub wait: Duration,
    /// Waits between two attempts to send: the first, and the longest.
    pub retry: (Duration, Duration),
    /// For how long resolved alerts are kept. Unit: nanoseconds.
    pub age_ns: i64,
    /// Address of the page.
    pub page: String,
}

/// Evaluates rules, and sends what they find; clones share everything.
#[derive(Clone)]
pub struct Alerts(Arc<Inner>);

struct Inner {
    options: AlertOptions,
    queries: Queries,
    /// Opened when it is first wanted, and tried again until it can be.
    book: OnceCell<Arc<Book>>,
    live: Mutex<Live>,
    /// Rounds are one at a time.
    rounds: tokio::sync::Mutex<Rounds>,
    delivery: Delivery,
    /// Rung when there may be something to send.
    bell: Notify,
    clock: Clock,
    metrics: Arc<Metrics>,
    shutdown: watch::Receiver<bool>,
}

/// What is known now.
#[derive(Default)]
struct Live {
    states: BTreeMap<(String, String), Alert>,
    rules: BTreeMap<String, RuleNow>,
    /// Why nothing is evaluated; empty: it is.
    trouble: String,
}

/// How a rule does.
#[derive(Clone, Debug, Default)]
struct RuleNow {
    evaluated: i64,
    error: String,
    left_out: u64,
}

/// What is remembered from round to round.
#[derive(Default)]
struct Rounds {
    /// When the last one started.
    last: Option<i64>,
    number: u32,
    baselines: HashMap<String, (i64, Baselines)>,
    /// A failure to write was logged.
    is_failing: bool,
}

impl Alerts {
    /// Alerts of these rules. While their directory cannot be used nothing is evaluated, and
    /// callers get the reason.
    pub fn new(
        options: AlertOptions,
        queries: Queries,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Alerts {
        let delivery = Delivery::new(&options.receivers);
        Alerts(Arc::new(Inner {
            options,
            queries,
            book: OnceCell::new(),
            live: Mutex::default(),
            rounds: tokio::sync::Mutex::default(),
            delivery,
            bell: Notify::new(),
            clock,
            metrics,
            shutdown,
        }))
    }

    /// Evaluates all rules again and again, until the end.
    pub async fn keep(self) {
        let mut shutdown = self.0.shutdown.clone();
        loop {
            let started = Instant::now();
            if self.is_wanted() {
                self.round().await;
            }
            let took = started.elapsed();
            let pause = self.0.options.interval.saturating_sub(took);
            let pause = pause.max(took.saturating_mul(BREAK_TIMES));
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// False where there is no rule and never was one: then there are no files either.
    fn is_wanted(&self) -> bool {
        let options = &self.0.options;
        !options.rules.is_empty() || options.dir.join("alerts.sqlite").exists()
    }

    /// Evaluates every rule once.
    pub async fn round(&self) {
        let inner = &self.0;
        let mut rounds = inner.rounds.lock().await;
        let opened = inner.book().await;
        lock(&inner.live).trouble = match &opened {
            Ok(_) => String::new(),
            Err(status) => status.message().to_owned(),
        };
        if let Err(status) = opened {
            inner.metrics.alert_state_failed.inc();
            if !rounds.is_failing {
                tracing::error!(reason = status.message(), "no alert is evaluated");
            }
            rounds.is_failing = true;
            return;
        }
        let started = Instant::now();
        let now = inner.clock.now_unix_ns();
        let most = 2 * inner.options.interval.as_nanos() as i64;
        let elapsed = rounds.last.map_or(0, |last| now.saturating_sub(last));
        let elapsed = elapsed.clamp(0, most).unsigned_abs();
        rounds.last = Some(now);
        let mut failed = false;
        for rule in &inner.options.rules {
            let measured = inner.measured(rule, now, &mut rounds.baselines).await;
            let (now_of_rule, measured) = match measured {
                Ok(measured) => {
                    inner.metrics.alert_evaluations.inc();
                    let now_of_rule = RuleNow {
                        evaluated: now,
                        error: String::new(),
                        left_out: measured.cut.len() as u64,
                    };
                    (now_of_rule, measured)
                }
                Err(status) => {
                    inner.metrics.alert_evaluations_failed.inc();
                    let why = format!("the query failed: {}", status.message());
                    (
                        RuleNow {
                            evaluated: now,
                            error: why.clone(),
                            left_out: 0,
                        },
                        unknown(rule, &why),
                    )
                }
            };
            let known = lock(&inner.live)
                .rules
                .insert(rule.name.clone(), now_of_rule.clone());
            if known.is_none_or(|known| known.error != now_of_rule.error)
                && !now_of_rule.error.is_empty()
            {
                tracing::warn!(
                    rule = rule.name,
                    error = now_of_rule.error,
                    "an alert has no value"
                );
            }
            failed |= !inner.apply(rule, measured, (now, elapsed)).await;
        }
        if failed && !rounds.is_failing {
            tracing::error!(
                "failed to write the state of alerts: nothing fires or is resolved until the disk \
                 takes it"
            );
        }
        rounds.is_failing = failed;
        rounds.number = rounds.number.wrapping_add(1);
        if rounds.number % PRUNE_ROUNDS == 1 {
            inner.prune(now).await;
        }
        inner.count();
        inner
            .metrics
            .alert_round
            .observe(started.elapsed().as_secs_f64());
        inner.bell.notify_one();
    }
}

/// A rule of which nothing could be found out.
fn unknown(rule: &Rule, why: &str) -> Measured {
    let reading = Reading::unknown(why);
    let groups = match rule.measure.by {
        None => BTreeMap::from([(String::new(), reading.clone())]),
        Some(_) => BTreeMap::new(),
    };
    Measured {
        groups,
        cut: BTreeSet::new(),
        absent: reading,
        baselines: None,
    }
}

impl Inner {
    /// The database, which is opened where it is not yet.
    async fn book(&self) -> Result<&Arc<Book>, Status> {
        let open = || async {
            let dir = self.options.dir.clone();
            let receivers: Vec<String> = self.receivers().map(str::to_owned).collect();
            let rules = self.options.rules.iter();
            let rules: BTreeSet<String> = rules.map(|rule| rule.name.clone()).collect();
            let now = self.clock.now_unix_ns();
            let opening = spawn_blocking(move || {
                let book = Book::open(&dir)?;
                let mut states = book.states()?;
                end_removed(&book, &mut states, &rules, now)?;
                let names: Vec<&str> = receivers.iter().map(String::as_str).collect();
                let orphaned = book.forget_others(&names)?;
                Ok::<_, DatabaseError>((book, states, orphaned))
            });
            let opened = opening.await;
            let opened = opened.map_err(|_| Status::internal("the alerts cannot be opened"))?;
            let (book, states, orphaned) = opened.map_err(|error| {
                let reason = with_causes(&error);
                Status::unavailable(format!(
                    "this collector evaluates no alerts: {reason}\ncheck the directory `alerts` in \
                     the collector's data_dir"
                ))
            })?;
            self.metrics.notifications_orphaned.inc_by(orphaned);
            lock(&self.live).states = states;
            Ok(Arc::new(book))
        };
        self.book.get_or_try_init(open).await
    }

    fn receivers(&self) -> impl Iterator<Item = &str> {
        self.options.receivers.iter().map(|one| one.name.as_str())
    }

    /// What is known of a rule now.
    async fn measured(
        &self,
        rule: &Rule,
        now: i64,
        cache: &mut HashMap<String, (i64, Baselines)>,
    ) -> Result<Measured, Status> {
        let fresh = |at: i64| (0..BASELINE_NS).contains(&now.saturating_sub(at));
        let cached = cache.get(&rule.name).filter(|(at, _)| fresh(*at));
        let cached = cached.map(|(_, baselines)| baselines.clone());
        let of = rule.clone();
        let work = move |store: &dyn crate::store::StoreQueries, limits: &crate::store::Limits| {
            let known = match cached {
                Some(known) => Some(known),
                None => baselines(store, &of, now, limits)?,
            };
            let measured = measure(store, &of, known.as_ref(), now, limits)?;
            Ok((known, measured))
        };
        let bounds = (NODES_MAX, CELLS_MAX);
        let (known, measured) = self.queries.evaluate(QUERY_TIMEOUT, bounds, work).await?;
        if let Some(known) = known {
            let at = cache.get(&rule.name).map_or(now, |(at, _)| *at);
            let at = if fresh(at) { at } else { now };
            cache.insert(rule.name.clone(), (at, known));
        }
        Ok(measured)
    }

    /// Takes every alert of a rule one step further. False when what changed could not be written:
    /// then it changes in the next round.
    async fn apply(&self, rule: &Rule, measured: Measured, time: (i64, u64)) -> bool {
        let before: BTreeMap<String, Alert> = {
            let live = lock(&self.live);
            let of_rule = live
                .states
                .iter()
                .filter(|((name, _), _)| *name == rule.name);
            of_rule
                .map(|((_, part), alert)| (part.clone(), alert.clone()))
                .collect()
        };
        let parts: BTreeSet<&String> = before.keys().chain(measured.groups.keys()).collect();
        let (mut after, mut changes) = (BTreeMap::new(), Vec::new());
        for part in parts {
            let reading = measured.reading(rule, part);
            let (alert, change) = step(rule, before.get(part), &reading, time);
            changes.extend(change.map(|change| (part.clone(), change)));
            if let Some(alert) = alert {
                after.insert(part.clone(), alert);
            }
        }
        let round = self.round_of(rule, &before, &after, &changes, time.0).await;
        let resolved = |part: &String| {
            let is =
                |(name, change): &(String, Change)| name == part && *change == Change::Resolved;
            changes.iter().any(is)
        };
        let written = match round.is_empty() {
            true => Some(BTreeMap::new()),
            false => {
                let name = rule.name.clone();
                let work = move |book: &Book| book.write(&name, &round);
                self.blocking(work).await.ok()
            }
        };
        let mut live = lock(&self.live);
        live.states.retain(|(name, _), _| *name != rule.name);
        match &written {
            Some(numbers) => {
                for (part, mut alert) in after {
                    if resolved(&part) {
                        continue;
                    }
                    if let Some(&id) = numbers.get(&part) {
                        alert.episode = id;
                    }
                    live.states.insert((rule.name.clone(), part), alert);
                }
            }
            None => {
                // What changed stays as it was, and changes again; what only waits goes on.
                let changed = |part: &String| changes.iter().any(|(name, _)| name == part);
                let kept = before.iter().filter(|(part, _)| changed(part));
                let kept = kept.map(|(part, alert)| (part.clone(), alert.clone()));
                let others = after.into_iter().filter(|(part, _)| !changed(part));
                for (part, alert) in others.chain(kept) {
                    live.states.insert((rule.name.clone(), part), alert);
                }
            }
        }
        written.is_some()
    }

    /// What of a round is to be written.
    async fn round_of(
        &self,
        rule: &Rule,
        before: &BTreeMap<String, Alert>,
        after: &BTreeMap<String, Alert>,
        changes: &[(String, Change)],
        now: i64,
    ) -> Round {
        let mut round = Round::default();
        let mut resolved = BTreeSet::new();
        for (part, change) in changes {
            let Some(alert) = after.get(part) else {
                continue;
            };
            let about = About::of(rule, part, alert);
            match change {
                Change::Fired => round.fired.push((part.clone(), now, about)),
                Change::Resolved => {
                    resolved.insert(part);
                    round.resolved.push((alert.episode, now, about));
                }
            }
        }
        for (part, alert) in after {
            // What is dark is found again by the first round after a start.
            let is_kept = alert.phase != Phase::Dark && !resolved.contains(part);
            if is_kept && before.get(part) != Some(alert) {
                round.states.push((part.clone(), Some(alert.clone())));
            }
        }
        for (part, alert) in before {
            let is_over = !after.contains_key(part) || resolved.contains(part);
            if is_over && alert.phase != Phase::Dark {
                round.states.push((part.clone(), None));
            }
        }
        round
    }

    async fn prune(&self, now: i64) {
        let age = self.options.age_ns;
        // What cannot be removed now is removed later.
        let _ = self.blocking(move |book| book.prune(now, age)).await;
    }

    /// Work with the database, which was opened.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Book) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let book = self.book().await?.clone();
        let done = spawn_blocking(move || work(&book)).await;
        let done = done.map_err(|_| Status::internal("the call failed in the collector"))?;
        done.map_err(|error| {
            self.metrics.alert_state_failed.inc();
            Status::unavailable(format!(
                "failed to use the database of alerts: {error}\ncheck the disk of the collector's \
                 data_dir"
            ))
        })
    }

    fn count(&self) {
        let live = lock(&self.live);
        let of = |phase| {
            live.states
                .values()
                .filter(|alert| alert.phase == phase)
                .count() as u64
        };
        self.metrics.alerts_pending.set(of(Phase::Pending));
        self.metrics.alerts_firing.set(of(Phase::Firing));
        self.metrics.alerts_dark.set(of(Phase::Dark));
        let left_out = live.rules.values().map(|rule| rule.left_out).sum();
        self.metrics.alert_groups_left_out.set(left_out);
    }
}

/// Resolves what fires of rules that are not configured any more. Blocks.
fn end_removed(
    book: &Book,
    states: &mut BTreeMap<(String, String), Alert>,
    rules: &BTreeSet<String>,
    now: i64,
) -> Result<(), DatabaseError> {
    if states.keys().all(|(rule, _)| rules.contains(rule)) {
        return Ok(());
    }
    let mut firing: BTreeMap<u64, About> = BTreeMap::new();
    book.each(None, |episode| {
        firing.insert(episode.id, episode.about);
    })?;
    let mut gone: BTreeMap<String, Round> = BTreeMap::new();
    for ((rule, part), alert) in states.iter() {
        if rules.contains(rule) {
            continue;
        }
        let round = gone.entry(rule.clone()).or_default();
        round.states.push((part.clone(), None));
        if let Some(mut about) = firing.remove(&alert.episode) {
            about.ended = "the rule was removed".to_owned();
            round.resolved.push((alert.episode, now, about));
        }
    }
    for (rule, round) in gone {
        book.write(&rule, &round)?;
    }
    states.retain(|(rule, _), _| rules.contains(rule));
    Ok(())
}

impl About {
    fn of(rule: &Rule, part: &str, alert: &Alert) -> About {
        About {
            fingerprint: rule.fingerprint(part),
            labels: rule.measure.labels(part),
            selector: rule.measure.selector_of(part),
            condition: rule.condition.clone(),
            unit: rule.measure.unit().to_owned(),
            function: rule.measure.function().to_owned(),
            severity: rule.severity.clone(),
            summary: rule.summary.clone(),
            value: alert.value,
            threshold: alert.threshold,
            baseline: alert.baseline,
            ended: alert.missing.clone(),
            opens_incident: rule.opens_incident,
            receivers: rule.receivers.clone(),
        }
    }
}
