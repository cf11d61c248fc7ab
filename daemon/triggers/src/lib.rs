//! Triggers: conditions on cgroups and the host, checked once a second. When one comes true, it
//! pins the recorder's minutes around that moment and may start a capture.
//!
//! `config` (texts) → [`Rule`] → [`find`] (which cgroups) → [`read`] (numbers) → [`state`] (when) →
//! pins ([`pins`]), captures ([`evidence`]). Code that reads files is separate from code that
//! decides.
//!
//! Threads: `fp-trigger` does all of it and blocks on small reads of cgroupfs and /proc and on the
//! disk of pins. It starts with the first trigger and stays. A helper (`fp-blocking`) per capture,
//! at most [`evidence::RUNNING_MAX`], waits for the profile.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod find;
pub mod read;
pub mod state;
pub mod watcher;

use agent_config::triggers::Rule;
use aggregate::recorder::Recorder;
use capture::Capturing;
use cgroup::Hierarchy;
use evidence::TriggerCaptures;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use pins::{PinRequest, PinWriter, Pins};
use read::Sources;
use state::{TriggerValue, Verdict, Why};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use watcher::{Event, Issue, Issues, Past, Watcher};

/// Most cgroups of one trigger. Further ones are not watched, and the trigger says so.
pub const CGROUPS_MAX: usize = 64;

/// How often targets are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Nanoseconds of a day of UTC.
const DAY_NS: i64 = 86_400_000_000_000;

/// How often one trigger fired and was kept from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Fired.
    pub fired: u64,
    /// Kept from it by its cooldown.
    pub cooled: u64,
    /// How many times since it last fired.
    pub cooled_since: u64,
    /// Kept from it by its daily limit.
    pub limited: u64,
    /// Fired without a pin, because too many were open.
    pub unpinned: u64,
}

/// Starts the thread.
type Starter = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

#[derive(Default)]
struct Configured {
    rules: Vec<Rule>,
    /// Changes with the rules.
    version: u64,
    running: bool,
}

/// The part of triggers that other threads use; see the module.
pub struct Triggers {
    wanted: Mutex<Configured>,
    changed: Condvar,
    starter: OnceLock<Starter>,
    capturing: OnceLock<Arc<dyn Capturing>>,
    tallies: Mutex<BTreeMap<String, Tally>>,
    issues: Mutex<Issues>,
    /// Looks at all targets.
    pub looks: AtomicU64,
    /// Captures that could not be started or kept.
    pub captures_failed: AtomicU64,
    /// Captures that run, or that are being kept.
    capturing_now: Mutex<usize>,
    /// Notified when one of them has ended.
    kept: Condvar,
}

impl Default for Triggers {
    fn default() -> Self {
        Triggers {
            wanted: Mutex::default(),
            changed: Condvar::new(),
            starter: OnceLock::new(),
            capturing: OnceLock::new(),
            tallies: Mutex::default(),
            issues: Mutex::default(),
            looks: AtomicU64::new(0),
            captures_failed: AtomicU64::new(0),
            capturing_now: Mutex::new(0),
            kept: Condvar::new(),
        }
    }
}

impl Triggers {
    /// Says how the thread is started; once, before [`Triggers::configure`].
    pub fn set_starter(&self, start: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
        // Nobody else sets it.
        let _ = self.starter.set(Box::new(start));
    }

    /// Sets what runs captures; call it once. Without it, a trigger's `capture` is reported as
    /// failed.
    pub fn set_capturing(&self, capturing: Arc<dyn Capturing>) {
        // Nobody else sets it.
        let _ = self.capturing.set(capturing);
    }

    /// Puts rules in force. Starts the thread with the first ones.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn configure(&self, rules: Vec<Rule>) -> io::Result<()> {
        let mut wanted = lock(&self.wanted);
        {
            let mut tallies = lock(&self.tallies);
            tallies.retain(|name, _| rules.iter().any(|rule| rule.name == *name));
            for rule in &rules {
                tallies.entry(rule.name.clone()).or_default();
            }
        }
        let start = !rules.is_empty() && !wanted.running;
        wanted.rules = rules;
        wanted.version += 1;
        if let (true, Some(starter)) = (start, self.starter.get()) {
            starter()?;
            wanted.running = true;
        }
        drop(wanted);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until no capture of a trigger runs, or is being kept with its pin, until `deadline` at
    /// most. Returns how many still do.
    pub fn wait_until_kept(&self, deadline: MonotonicTime) -> usize {
        let wait = deadline.since(MonotonicTime::now());
        let now = lock(&self.capturing_now);
        let waited = self.kept.wait_timeout_while(now, wait, |now| *now > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// How often each trigger fired, by name.
    pub fn tallies(&self) -> BTreeMap<String, Tally> {
        lock(&self.tallies).clone()
    }

    /// Degradations of what triggers can see.
    pub fn degradations(&self) -> Vec<Degradation> {
        let issues = lock(&self.issues).clone();
        issues.iter().map(degradation).collect()
    }

    fn count(&self, trigger: &str, change: impl FnOnce(&mut Tally)) {
        if let Some(tally) = lock(&self.tallies).get_mut(trigger) {
            change(tally);
        }
    }

    /// Waits until it is time to look again; returns the rules when they have changed.
    fn wait(&self, until: MonotonicTime, idle: bool, version: &mut u64) -> Option<Vec<Rule>> {
        let mut wanted = lock(&self.wanted);
        while wanted.version == *version {
            let left = until.since(MonotonicTime::now());
            if left.is_zero() && !idle {
                return None;
            }
            let guard = match idle {
                true => self.changed.wait(wanted),
                false => {
                    let waited = self.changed.wait_timeout(wanted, left);
                    waited.map(|(guard, _)| guard).map_err(|error| {
                        let (guard, _) = error.into_inner();
                        PoisonError::new(guard)
                    })
                }
            };
            wanted = guard.unwrap_or_else(PoisonError::into_inner);
        }
        *version = wanted.version;
        Some(wanted.rules.clone())
    }

    /// Publishes what is missing; each is logged when it appears.
    fn tell(&self, issues: Issues) {
        let mut known = lock(&self.issues);
        for (issue, path) in &issues {
            if !known.contains_key(issue) {
                let reason = degradation((issue, path)).message;
                tracing::warn!(
                    trigger = issue.0,
                    reason,
                    "the trigger cannot check everything"
                );
            }
        }
        *known = issues;
    }
}

fn degradation(((trigger, issue), path): (&(String, Issue), &String)) -> Degradation {
    let whom = match path.as_str() {
        "" => "the host".to_owned(),
        path => format!("`{path}`"),
    };
    let (severity, message, remedy) = match issue {
        Issue::Missing(missing) => {
            let message = format!("trigger `{trigger}`, {whom}: {}", missing.message());
            (Severity::Warning, message, missing.remedy())
        }
        Issue::Nothing => {
            let message = format!("trigger `{trigger}`: no cgroup matches its target");
            (Severity::Info, message, "agent-ctl cgroups")
        }
        Issue::TooMany => {
            let message = format!(
                "trigger `{trigger}`: more than {CGROUPS_MAX} cgroups match its target; the others \
                 are not checked"
            );
            (Severity::Warning, message, "")
        }
    };
    Degradation::new("trigger_blind", severity, message, remedy)
}

/// Parts that the thread works with.
pub struct Stage {
    /// The part for other threads.
    pub triggers: Arc<Triggers>,
    /// The pins.
    pub pins: Arc<Pins>,
    /// The cgroup hierarchy of this machine.
    pub hierarchy: Hierarchy,
    /// The anchor of wall time.
    pub clock: Arc<WallAnchor>,
}

impl Past for Stage {
    fn today(&self, trigger: &str, day: i64) -> u32 {
        self.pins.fired_since(trigger, day.saturating_mul(DAY_NS))
    }

    fn last_fired(&self, trigger: &str, cgroup: &str) -> Option<MonotonicTime> {
        let fired = self.pins.last_fired(trigger, cgroup)?;
        let then = self.clock.to_mono(fired);
        // Before this boot, or by a clock that was ahead: as long ago as there is time.
        (then.0 > 0 && then <= MonotonicTime::now()).then_some(then)
    }
}

impl Stage {
    /// The body of `fp-trigger`: checks all targets once a second in an endless loop. `recorder` is
    /// pinned.
    pub fn run(self, recorder: &RwLock<Recorder>) {
        let sources = Sources::new(self.hierarchy.clone(), Path::new("/proc"));
        let mut watcher = Watcher::new(sources);
        let mut writer = PinWriter::new(Arc::clone(&self.pins));
        let captures = TriggerCaptures::new(Arc::clone(&self.triggers), Arc::clone(&self.pins));
        let (mut version, mut rules) = (0, 0);
        let mut next = MonotonicTime::now();
        loop {
            let idle = rules == 0 && !writer.is_busy();
            if let Some(new) = self.triggers.wait(next, idle, &mut version) {
                rules = new.len();
                watcher.set_rules(&new, self.day(), &self);
            }
            let now = MonotonicTime::now();
            if now < next {
                continue;
            }
            // After a pause it goes on from now: what was missed cannot be looked at any more.
            next = next.plus(INTERVAL).max(now);
            let (events, issues) = watcher.tick(now, self.day(), &self);
            self.triggers.looks.fetch_add(1, Ordering::Relaxed);
            self.triggers.tell(issues);
            for event in events {
                if let Some(rule) = watcher.rule(&event) {
                    self.take(rule, &event, now, &mut writer, &captures, recorder);
                }
            }
            writer.tick(MonotonicTime::now(), recorder);
        }
    }

    fn day(&self) -> i64 {
        self.clock
            .to_unix_ns(MonotonicTime::now())
            .div_euclid(DAY_NS)
    }

    fn take(
        &self,
        rule: &Rule,
        event: &Event,
        now: MonotonicTime,
        writer: &mut PinWriter,
        captures: &TriggerCaptures,
        recorder: &RwLock<Recorder>,
    ) {
        let (trigger, cgroup) = (rule.name.as_str(), event.cgroup.as_str());
        match event.verdict {
            Verdict::Quiet => {}
            Verdict::Suppressed(Why::Cooldown) => {
                let mut times = 0;
                self.triggers.count(trigger, |tally| {
                    tally.cooled += 1;
                    tally.cooled_since += 1;
                    times = tally.cooled_since;
                });
                let text = "trigger suppressed by its cooldown";
                // Near its threshold it may fire and stop each second: the number is reported when
                // it fires.
                match times {
                    1 => tracing::info!(trigger, cgroup, "{text}"),
                    _ => tracing::debug!(trigger, cgroup, times, "{text}"),
                }
            }
            Verdict::Suppressed(Why::Daily) => {
                self.triggers.count(trigger, |tally| tally.limited += 1);
                tracing::info!(trigger, cgroup, "trigger suppressed by its daily limit");
            }
            Verdict::Fire(seen) => self.fire(rule, cgroup, seen, now, writer, captures, recorder),
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one thread, which has no other use for a type that holds them"
    )]
    fn fire(
        &self,
        rule: &Rule,
        cgroup: &str,
        seen: TriggerValue,
        now: MonotonicTime,
        writer: &mut PinWriter,
        captures: &TriggerCaptures,
        recorder: &RwLock<Recorder>,
    ) {
        let trigger = rule.name.as_str();
        let mut cooled = 0;
        self.triggers.count(trigger, |tally| {
            cooled = std::mem::take(&mut tally.cooled_since);
        });
        if cooled > 1 {
            tracing::info!(
                trigger,
                times = cooled,
                "trigger suppressed by its cooldown"
            );
        }
        let cause = watcher::cause(rule, seen);
        let request = PinRequest {
            trigger: trigger.to_owned(),
            cause: cause.clone(),
            cgroup: cgroup.to_owned(),
            fired: now,
            before: rule.keep_before,
            after: rule.keep_after,
        };
        let pin = writer.open(&request, recorder);
        self.triggers.count(trigger, |tally| {
            tally.fired += 1;
            tally.unpinned += u64::from(pin.is_none());
        });
        tracing::info!(trigger, cgroup, cause, pin, "the trigger fired");
        if let Some(wanted) = &rule.capture {
            let capturing = self.triggers.capturing.get();
            captures.start(capturing, wanted, (trigger, cgroup, &cause), pin);
        }
    }
}

#[cfg(test)]
mod tests;
