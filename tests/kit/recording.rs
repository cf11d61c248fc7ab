//! One recording that several tests of a suite look at: made by the first that asks, given to all.

use crate::cgroup::Cgroup;
use crate::daemon::Daemon;
use crate::require::{Beside, Live, Need, met};
use crate::view::View;
use profile::StackEnd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long no walk must have waited for unwind information before what is looked at: more than one
/// pass of the sampler.
const QUIET: Duration = Duration::from_secs(4);
/// Longest wait for that. A debug build on a busy machine takes seconds for a large library, and
/// the programs of the test itself keep the CPUs busy.
const LEAD_MAX: Duration = Duration::from_secs(180);

/// Pause between two looks at how many samples there are. Each has the sampler hand over what it
/// has.
const LOOK_EVERY: Duration = Duration::from_secs(4);

/// Holds a recording, or why there is none.
pub struct Shared<T>(OnceLock<Result<T, String>>);

impl<T: Send + Sync> Shared<T> {
    /// Nothing recorded yet.
    #[expect(
        clippy::new_without_default,
        reason = "it stands in statics, where default() cannot"
    )]
    pub const fn new() -> Shared<T> {
        Shared(OnceLock::new())
    }

    /// The recording. Reports a skip where a need is not met; made under [`Live`] by the first that
    /// asks. Everything `record` starts must end with it: what it returns is never dropped.
    ///
    /// # Panics
    /// When recording failed, now or for an earlier test.
    pub fn get(&'static self, needs: &[Need], record: impl FnOnce() -> T) -> Option<&'static T> {
        self.made_under(needs, Live::take, record)
    }

    /// As [`Shared::get`], made under [`Beside`]: for recordings whose names and stacks are looked
    /// at, not their shares.
    ///
    /// # Panics
    /// When recording failed, now or for an earlier test.
    pub fn get_beside(
        &'static self,
        needs: &[Need],
        record: impl FnOnce() -> T,
    ) -> Option<&'static T> {
        self.made_under(needs, Beside::take, record)
    }

    fn made_under<R>(
        &'static self,
        needs: &[Need],
        right: impl FnOnce() -> R,
        record: impl FnOnce() -> T,
    ) -> Option<&'static T> {
        if !met(needs) {
            return None;
        }
        let made = self.0.get_or_init(|| {
            let _right = right();
            catch_unwind(AssertUnwindSafe(record)).map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                text.or(panic.downcast_ref::<&str>().copied())
                    .unwrap_or("a panic")
                    .to_owned()
            })
        });
        match made {
            Ok(recording) => Some(recording),
            Err(reason) => panic!("failed to record: {reason}"),
        }
    }
}

/// What is sampled from now on, until each of these cgroups has `enough` samples, `limit` at the
/// longest: how long that takes depends on who else has the CPUs.
pub fn record(daemon: &Daemon, cgroups: &[&Cgroup], enough: u64, limit: Duration) -> View {
    let start = crate::clock::unix_ns();
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(LOOK_EVERY));
        let view = daemon.client().since(start);
        let is_enough = |cgroup: &&Cgroup| view.in_cgroup(cgroup.path()).count() >= enough;
        if cgroups.iter().all(is_enough) || Instant::now() >= end {
            return view;
        }
    }
}

/// Waits until the daemon has read what it needs of the programs that this one runs in cgroups, as
/// far as it can be had. What others run, and the daemon reads for them, does not count.
pub fn wait_until_read(daemon: &Daemon) {
    let own = format!("-{}-", std::process::id());
    wait_until(daemon, &own);
}

/// Waits until no walk at all was cut for lack of unwind information that is still being read.
pub fn wait_until_idle(daemon: &Daemon) {
    wait_until(daemon, "");
}

fn wait_until(daemon: &Daemon, cgroup: &str) {
    let end = Instant::now() + LEAD_MAX;
    loop {
        let start = crate::clock::unix_ns();
        std::thread::sleep(QUIET);
        let waited = daemon.client().since(start).only(|sample| {
            sample.end == StackEnd::ModuleLoading
                && sample.label(profile::key::CGROUP).contains(cgroup)
        });
        if waited.count() == 0 {
            return;
        }
        if Instant::now() >= end {
            eprintln!(
                "walks still wait for unwind information:\n{}",
                waited.dump()
            );
            return;
        }
    }
}
