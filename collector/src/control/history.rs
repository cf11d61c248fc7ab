//! Running and past captures over the fleet: who started them, for what, from where, and the
//! result.

use super::limits::{
    FANOUTS_MAX, HISTORY_HOSTS, HISTORY_MAX, LIST_BYTES_MAX, LISTED_REQUEST_BYTES_MAX,
    LISTED_TEXT_BYTES_MAX,
};
use crate::access::Caller;
use crate::metrics::Metrics;
use crate::sync::lock;
use profile::{LabelMatcher, Selector};
use prost::Message;
use proto::collector::{FleetCaptureInfo, FleetCaptureRequest, HostProgress, HostState};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::watch;

/// Why a fan-out has ended if its client left.
pub const CLIENT_LEFT: &str = "the client left";

/// Why one that was cancelled has ended; behind it stands who did it.
const CANCELLED: &str = "cancelled by ";

/// All fan-outs of this collector since its start, within bounds.
pub struct Fanouts {
    inner: Mutex<Inner>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    running: BTreeMap<u64, Running>,
    /// Newest first.
    ended: VecDeque<(FleetCaptureInfo, Owner)>,
}

/// The caller and the selection of a capture, which decide who may see it.
pub struct Owner {
    name: String,
    /// Hashes of the matchers of its selector, which themselves may be large.
    matchers: Vec<u64>,
}

impl Owner {
    /// Creates the owner of a capture of what `selector` takes.
    pub fn new(caller: &Caller, selector: &Selector) -> Owner {
        let matchers = selector.matchers().iter();
        Owner {
            name: caller.name.clone(),
            matchers: matchers.map(hash).collect(),
        }
    }

    /// True when `caller` may see it: it is theirs, or all that it selects lies in their scope.
    fn is_shown_to(&self, caller: &Caller) -> bool {
        let Some(scope) = &caller.scope else {
            return true;
        };
        let mut matchers = scope.selector.matchers().iter();
        self.name == caller.name || matchers.all(|one| self.matchers.contains(&hash(one)))
    }
}

/// A number that nobody can find another matcher for: its key is of this process alone.
fn hash(matcher: &LabelMatcher) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one((matcher.label(), matcher.op(), matcher.value()))
}

/// The progress of a host for callers who may see a part of what runs on it: an agent's own
/// messages and counts concern the complete host, so they are removed.
pub fn in_part(mut host: HostProgress) -> HostProgress {
    if let Some(progress) = &mut host.progress {
        progress.samples_all = progress.samples;
        (progress.lost_samples, progress.throttled, progress.cpu_ns) = (0, 0, 0);
    }
    if !host.message.is_empty() {
        host.message = match host.state() {
            HostState::Lost => "the host did not answer in time, or disconnected",
            _ => "the host did not capture; only people who may see the host can see the reason",
        }
        .to_owned();
    }
    host.notices.clear();
    host
}

struct Running {
    owner: Owner,
    info: FleetCaptureInfo,
    started: Instant,
    cancel: watch::Sender<bool>,
}

impl Running {
    fn info(&self) -> FleetCaptureInfo {
        let mut info = self.info.clone();
        info.elapsed_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        info
    }
}

/// The place of a fan-out that runs; dropped, it has ended.
pub struct Slot {
    fanouts: Arc<Fanouts>,
    /// Its id.
    pub id: u64,
    /// True once it is to end with what there is.
    pub cancel: watch::Receiver<bool>,
}

impl Fanouts {
    /// None yet.
    pub fn new(metrics: Arc<Metrics>) -> Fanouts {
        Fanouts {
            inner: Mutex::default(),
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Makes new numbers start after `last`.
    pub fn go_on_from(&self, last: u64) {
        let mut inner = self.lock();
        inner.last = inner.last.max(last);
    }

    /// A place for one more; `None` when there are enough.
    pub fn start(self: &Arc<Self>, mut info: FleetCaptureInfo, owner: Owner) -> Option<Slot> {
        let mut inner = self.lock();
        if inner.running.len() >= FANOUTS_MAX {
            self.metrics.fanouts_refused.inc();
            return None;
        }
        if let Some(request) = &mut info.request {
            shorten(request);
        }
        inner.last += 1;
        let id = inner.last;
        (info.id, info.running) = (id, true);
        let (cancel, cancelled) = watch::channel(false);
        let started = Instant::now();
        let running = Running {
            owner,
            info,
            started,
            cancel,
        };
        inner.running.insert(id, running);
        self.metrics.fanouts_running.inc();
        Some(Slot {
            fanouts: self.clone(),
            id,
            cancel: cancelled,
        })
    }

    /// Ends one with what there is; false if none of this id runs. A caller with a scope can end
    /// only their own, and does not learn whether others run.
    pub fn cancel(&self, id: u64, peer: &str, caller: &Caller) -> bool {
        let mut inner = self.lock();
        let Some(running) = inner.running.get_mut(&id) else {
            return false;
        };
        if caller.scope.is_some() && running.owner.name != caller.name {
            return false;
        }
        if running.info.ended_by.is_empty() {
            running.info.ended_by = format!("{CANCELLED}{peer}");
        }
        // It may have come to its end this moment.
        let _ = running.cancel.send(true);
        true
    }

    /// Captures that `caller` may see, newest first, as many as fit an answer.
    pub fn list(&self, caller: &Caller) -> Vec<FleetCaptureInfo> {
        let inner = self.lock();
        let running = inner.running.values().rev();
        let running = running.filter(|running| running.owner.is_shown_to(caller));
        let ended = inner.ended.iter();
        let ended = ended.filter(|(_, owner)| owner.is_shown_to(caller));
        let ended = ended.map(|(info, _)| info.clone());
        let mut all: Vec<_> = running.map(Running::info).chain(ended).collect();
        drop(inner);
        if caller.sees_parts_of_hosts() {
            for info in &mut all {
                info.hosts = std::mem::take(&mut info.hosts)
                    .into_iter()
                    .map(in_part)
                    .collect();
            }
        }
        // Those that run have the first claim: without their ids nobody could end them.
        let mut left = LIST_BYTES_MAX;
        let mut kept: Vec<_> = all
            .into_iter()
            .filter_map(|info| {
                left = left.checked_sub(info.encoded_len() + 8)?;
                Some(info)
            })
            .collect();
        kept.sort_by_key(|info| std::cmp::Reverse(info.id));
        kept
    }
}

/// Keeps of a request what a list has room for: nobody pushes others out of it by a long one.
fn shorten(request: &mut FleetCaptureRequest) {
    let cut = |text: &mut String| text.truncate(text.floor_char_boundary(LISTED_TEXT_BYTES_MAX));
    request.host_ids.clear();
    cut(&mut request.selector);
    if let Some(capture) = &mut request.capture {
        for text in [
            &mut capture.event,
            &mut capture.filter,
            &mut capture.unwind,
            &mut capture.who,
            &mut capture.reason,
        ] {
            cut(text);
        }
    }
    if request.encoded_len() > LISTED_REQUEST_BYTES_MAX
        && let Some(capture) = &mut request.capture
    {
        capture.matchers.clear();
        capture.frame_filters.clear();
        capture.group_by.clear();
    }
}

impl Slot {
    /// Notes how far it is.
    pub fn update(&self, change: impl FnOnce(&mut FleetCaptureInfo)) {
        if let Some(running) = self.fanouts.lock().running.get_mut(&self.id) {
            change(&mut running.info);
        }
    }

    /// As it is now.
    pub fn info(&self) -> FleetCaptureInfo {
        let inner = self.fanouts.lock();
        inner
            .running
            .get(&self.id)
            .map(Running::info)
            .unwrap_or_default()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.fanouts.lock();
        let Some(running) = inner.running.remove(&self.id) else {
            return;
        };
        let mut info = running.info();
        info.running = false;
        let metrics = &self.fanouts.metrics;
        metrics.fanouts_running.dec();
        match info.ended_by.as_str() {
            "" => metrics.fanouts_done.inc(),
            CLIENT_LEFT => metrics.fanouts_left.inc(),
            other if other.starts_with(CANCELLED) => metrics.fanouts_cancelled.inc(),
            _ => metrics.fanouts_failed.inc(),
        };
        metrics.fanout_answered.inc_by(info.answered.into());
        metrics.fanout_failed.inc_by(info.failed.into());
        metrics.fanout_lost.inc_by(info.lost.into());
        info.hosts.retain(|host| host.state() != HostState::Done);
        info.hosts.truncate(HISTORY_HOSTS);
        inner.ended.push_front((info, running.owner));
        inner.ended.truncate(HISTORY_MAX);
    }
}

/// Counts hosts by what came of them.
pub fn count(info: &mut FleetCaptureInfo, hosts: &[HostProgress]) {
    let of = |states: &[HostState]| {
        let found = hosts.iter().filter(|host| states.contains(&host.state()));
        found.count() as u32
    };
    info.asked = hosts.len() as u32;
    info.answered = of(&[HostState::Done, HostState::Partial]);
    info.failed = of(&[HostState::Failed]);
    info.lost = of(&[HostState::Lost]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Scope;

    fn caller(name: &str, scope: &str) -> Caller {
        Caller {
            name: name.to_owned(),
            scope: Some(Scope::parse(scope).expect("a scope")),
            ..Caller::clone(&Caller::local())
        }
    }

    fn owner(name: &str) -> Owner {
        Owner::new(&caller(name, "team=a"), &Selector::default())
    }

    #[test]
    fn a_capture_is_shown_to_its_owner_and_to_those_in_whose_scope_all_of_it_is() {
        let fanouts = Arc::new(Fanouts::new(Arc::default()));
        let own = Owner::new(
            &Caller::local(),
            &"namespace=n,comm=x".parse().expect("valid"),
        );
        let slot = fanouts
            .start(FleetCaptureInfo::default(), own)
            .expect("room");
        let mut noisy = host(HostState::Failed);
        noisy.message = "canary".to_owned();
        noisy.notices = vec!["canary".to_owned()];
        slot.update(|info| info.hosts = vec![noisy]);
        let shown = |name, scope| fanouts.list(&caller(name, scope)).len();
        assert_eq!(shown("eve", "namespace=n"), 1);
        assert_eq!(shown("eve", "namespace=~n"), 0);
        assert_eq!(shown("eve", "namespace=n,team=a"), 0);
        assert_eq!(shown("local", "namespace=other"), 1);
        let told = fanouts.list(&caller("eve", "namespace=n"));
        assert!(!format!("{told:?}").contains("canary"), "{told:?}");
        assert!(!fanouts.cancel(slot.id, "a", &caller("eve", "namespace=n")));
        assert!(fanouts.cancel(slot.id, "a", &caller("local", "namespace=other")));
    }

    fn host(state: HostState) -> HostProgress {
        HostProgress {
            state: state.into(),
            ..HostProgress::default()
        }
    }

    #[test]
    fn long_requests_push_nobody_out_of_the_list() {
        let fanouts = Arc::new(Fanouts::new(Arc::default()));
        let runs = fanouts
            .start(FleetCaptureInfo::default(), owner("ada"))
            .expect("room");
        for _ in 0..HISTORY_MAX {
            let capture = proto::agent::CaptureRequest {
                reason: "ä".repeat(1 << 20),
                group_by: vec!["label".to_owned(); 100_000],
                ..Default::default()
            };
            let request = FleetCaptureRequest {
                capture: Some(capture),
                ..FleetCaptureRequest::default()
            };
            let info = FleetCaptureInfo {
                request: Some(request),
                ..FleetCaptureInfo::default()
            };
            drop(fanouts.start(info, owner("ada")).expect("room"));
        }
        let listed = fanouts.list(&Caller::local());
        assert_eq!(listed.len(), HISTORY_MAX + 1);
        assert!(listed.iter().any(|info| info.id == runs.id && info.running));
    }

    #[test]
    fn what_ended_stays_listed_with_the_hosts_that_did_not_answer() {
        let metrics = Arc::new(Metrics::default());
        let fanouts = Arc::new(Fanouts::new(metrics.clone()));
        let info = FleetCaptureInfo {
            peer: "10.0.0.1:7".to_owned(),
            ..FleetCaptureInfo::default()
        };
        let slot = fanouts.start(info, owner("ada")).expect("room");
        slot.update(|info| {
            info.hosts = vec![
                host(HostState::Done),
                host(HostState::Lost),
                host(HostState::Failed),
            ];
            let hosts = info.hosts.clone();
            count(info, &hosts);
        });
        assert!(fanouts.list(&Caller::local())[0].running);
        drop(slot);
        let listed = fanouts.list(&Caller::local()).remove(0);
        assert_eq!(
            (listed.running, listed.peer.as_str()),
            (false, "10.0.0.1:7")
        );
        assert_eq!((listed.asked, listed.answered), (3, 1));
        assert_eq!((listed.failed, listed.lost, listed.hosts.len()), (1, 1, 2));
        assert_eq!(metrics.fanout_lost.get(), 1);
        assert_eq!(metrics.fanouts_done.get(), 1);
    }

    #[test]
    fn they_are_bounded_and_the_oldest_are_forgotten() {
        let fanouts = Arc::new(Fanouts::new(Arc::default()));
        let start = || fanouts.start(FleetCaptureInfo::default(), owner("ada"));
        let slots: Vec<_> = (0..FANOUTS_MAX).map(|_| start().expect("room")).collect();
        assert!(start().is_none());
        drop(slots);
        for _ in 0..HISTORY_MAX {
            drop(start());
        }
        let listed = fanouts.list(&Caller::local());
        assert_eq!(listed.len(), HISTORY_MAX);
        assert_eq!(listed[0].id, (FANOUTS_MAX + HISTORY_MAX) as u64);
        assert!(listed.is_sorted_by_key(|info| std::cmp::Reverse(info.id)));
    }

    #[test]
    fn one_that_runs_can_be_cancelled_once() {
        let fanouts = Arc::new(Fanouts::new(Arc::default()));
        let slot = fanouts
            .start(FleetCaptureInfo::default(), owner("ada"))
            .expect("room");
        assert!(
            fanouts.cancel(slot.id, "a", &Caller::local())
                && fanouts.cancel(slot.id, "b", &Caller::local())
        );
        assert!(*slot.cancel.borrow());
        assert_eq!(slot.info().ended_by, "cancelled by a");
        let id = slot.id;
        drop(slot);
        assert!(!fanouts.cancel(id, "a", &Caller::local()));
    }
}
