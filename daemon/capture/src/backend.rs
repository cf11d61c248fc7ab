//! The trait through which captures use the daemon, so that their rules can be tested without one.

pub use super::engine::Followed;
use super::request::CaptureSpec;
use super::target::Scope;
use agent_config as config;
use host::ids::CaptureId;
use host::time::MonotonicTime;
use profile::{Profile, Query, Selector, Withholding};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tonic::Status;

/// How the sampling of a capture was set up in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// The event that runs.
    pub event: String,
    /// Unit of weights.
    pub unit: String,
    /// Samples a second on each CPU; 0: by period.
    pub rate_hz: u32,
    /// Events a sample; 0: by rate.
    pub period: u64,
    /// Bytes copied of each stack.
    pub stack_bytes: u32,
    /// What to do if its event occurs too often.
    pub excess: OverloadPolicy,
    /// Notices about what is less than requested.
    pub notices: Vec<String>,
}

/// What to do with a capture if its event occurs too often: nothing in the kernel bounds what each
/// occurrence costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverloadPolicy {
    /// They are bounded as they are.
    #[default]
    Bounded,
    /// Above so many a second, of all CPUs together, the event is sampled more rarely.
    Slows(u64),
    /// Above so many the capture ends with what it has: it needs each of them.
    Ends(u64),
}

/// A capture that is sampled more rarely from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slowed {
    /// Events a sample.
    pub period: u64,
    /// Notices about what is less than before.
    pub notices: Vec<String>,
}

/// A query to the flight recorder.
#[derive(Clone, Debug)]
pub struct PastQuery {
    /// Since when.
    pub from: MonotonicTime,
    /// Until when: where the capture starts.
    pub until: MonotonicTime,
    /// The query.
    pub query: Query,
    /// Say when each sample was taken.
    pub times: bool,
    /// What the answer must withhold.
    pub withhold: Arc<Withholding>,
}

/// See the module. All of it may block for tenths of a second; [`CaptureBackend::start`] for
/// seconds, where a file that it needs is on a file system that does not answer.
pub trait CaptureBackend: Send + Sync + 'static {
    /// The limits in force.
    fn limits(&self) -> config::Captures;

    /// Wall time of a moment, nanoseconds since the Unix epoch.
    fn unix_ns(&self, at: MonotonicTime) -> i64;

    /// Finds the target of a selector for a caller who must not see what is withheld.
    ///
    /// # Errors
    /// NOT_FOUND when it names what is not there; PERMISSION_DENIED when all of it is withheld.
    fn resolve(&self, selector: &Selector, withhold: &Withholding) -> Result<Scope, Status>;

    /// Opens events and has them sampled. Batches of the capture come until
    /// [`CaptureBackend::end`], the last one closes.
    ///
    /// # Errors
    /// As `AgentService.Capture` documents.
    fn start(&self, id: CaptureId, wanted: &CaptureSpec, scope: &Scope) -> Result<Started, Status>;

    /// Looks whether the one cgroup that the events of a capture are bound to was made again, and
    /// goes on with the new one. A few microseconds where it was not.
    ///
    /// # Errors
    /// Why the new one is not sampled.
    fn follow(&self, id: CaptureId) -> Result<Followed, Status>;

    /// Samples that the events of a capture brought since they were opened, lost ones too, whoever
    /// they are of and whether they are named by now.
    fn seen(&self, id: CaptureId) -> u64;

    /// Multiplies the sampling period of a capture's event by this; `None` if it is sampled by
    /// rate.
    ///
    /// # Errors
    /// Why it goes on as it was.
    fn slow_down(&self, id: CaptureId, times: u64) -> Result<Option<Slowed>, Status>;

    /// Ends the sampling of a capture, if it has not ended yet.
    fn end(&self, id: CaptureId);

    /// The flight recorder's profile of a time, including the last second; `None` if cancelled.
    fn past(&self, asked: &PastQuery, cancel: &AtomicBool) -> Option<Profile>;

    /// Lets go of what other threads wait for the end of: no capture starts any more.
    fn stop(&self);

    /// CPU time of the threads that sample and name, since their start. Unit: nanoseconds.
    fn cpu_ns(&self) -> u64;

    /// Samples of the continuous profile since the start.
    fn samples(&self) -> u64;
}
