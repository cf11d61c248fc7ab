//! Implements what the gRPC server needs of the agent: fresh data, live streams, configuration.

use super::Agent;
use crate::grpc::{ActiveConfig, Host, HostFuture, ReloadOutcome};
use agent_config::Configuration;
use aggregate::recorder::Recorder;
use capture::Capturing;
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use pins::Pins;
use profile::text::with_causes;
use proto::agent as wire;
use proto::credential::Credential;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tonic::Status;

/// Longest wait for fresh data. Draining and naming take tens of milliseconds; a symbolizer that
/// waits for a disk takes longer, and the answer then holds what there is.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// The intervals at which live clients want parts of windows.
#[derive(Default)]
pub struct Watchers {
    intervals: Vec<(u64, Duration)>,
    next: u64,
    /// A task is flushing the sampler for them.
    beating: bool,
}

/// Removes its interval when dropped.
struct Watching {
    watchers: Arc<Mutex<Watchers>>,
    id: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        lock(&self.watchers)
            .intervals
            .retain(|&(id, _)| id != self.id);
    }
}

impl Host for Agent {
    fn status(&self) -> wire::GetStatusResponse {
        self.status_now()
    }

    fn flush(&self) -> HostFuture {
        let asked = MonotonicTime::now();
        let recorder = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
        let mut progress = recorder.subscribe();
        drop(recorder);
        self.sampling.sampler.flush();
        Box::pin(async move {
            // The part that answers ends a horizon before it was drained, which was after `asked`.
            let fresh = MonotonicTime(
                asked
                    .0
                    .saturating_sub(perf::rings::HORIZON.as_nanos() as u64),
            );
            // Late or gone: the answer holds what there is.
            let _ = tokio::time::timeout(
                FLUSH_MAX,
                progress.wait_for(|progress| progress.end >= fresh),
            )
            .await;
        })
    }

    fn join_fleet(
        &self,
        collector: String,
        credential: Credential,
    ) -> HostFuture<Result<wire::FleetMembership, Status>> {
        Box::pin(self.join(collector, credential))
    }

    fn leave_fleet(&self) -> HostFuture<Result<(), Status>> {
        Box::pin(self.leave())
    }

    fn watch(&self, interval: Duration) -> Box<dyn Send> {
        let mut watchers = lock(&self.watchers);
        let id = watchers.next;
        watchers.next += 1;
        watchers.intervals.push((id, interval));
        if !watchers.beating {
            watchers.beating = true;
            let (watchers, sampler) = (
                Arc::clone(&self.watchers),
                Arc::clone(&self.sampling.sampler),
            );
            tokio::spawn(async move {
                loop {
                    let shortest = {
                        let mut watchers = lock(&watchers);
                        let shortest = watchers.intervals.iter().map(|&(_, every)| every).min();
                        watchers.beating = shortest.is_some();
                        shortest
                    };
                    let Some(interval) = shortest else { return };
                    tokio::time::sleep(interval).await;
                    sampler.flush();
                }
            });
        }
        drop(watchers);
        Box::new(Watching {
            watchers: Arc::clone(&self.watchers),
            id,
        })
    }

    fn config(&self) -> ActiveConfig {
        let active = lock(&self.settings.active);
        let path = active.file.as_ref().map(|path| path.display().to_string());
        ActiveConfig {
            yaml: active.config.to_yaml(),
            path: path.unwrap_or_default(),
        }
    }

    fn reload(&self) -> Result<ReloadOutcome, String> {
        match Agent::reload(self) {
            Ok(done) => {
                let owned = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
                let outcome = ReloadOutcome {
                    changed: owned(done.changed),
                    needs_restart: owned(done.needs_restart),
                };
                tracing::info!(
                    changed = outcome.changed.join(" "),
                    needs_restart = outcome.needs_restart.join(" "),
                    "configuration reloaded by a client"
                );
                Ok(outcome)
            }
            Err(error) => Err(with_causes(&error)),
        }
    }

    fn captures(&self) -> Option<Arc<dyn Capturing>> {
        let captures = self.captures.get()?;
        Some(Arc::new(Arc::clone(captures)))
    }

    fn recorder(&self) -> &RwLock<Recorder> {
        &self.recorder
    }

    fn clock(&self) -> &WallAnchor {
        &self.clock
    }

    fn health(&self) -> Result<(), String> {
        Agent::health(self)
    }

    fn pins(&self) -> Option<&Pins> {
        Some(&self.pins)
    }
}
