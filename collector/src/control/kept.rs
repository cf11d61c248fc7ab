//! Stored captures: the result of each, with its profile, in a file on the collector's own disk.
//!
//! They outlive their client and the collector's restarts, up to an age, a size and a number; the
//! oldest are removed first. Ids of captures are never reused, so that a link opens the capture
//! that it was made for, or none.

use super::history::in_part;
use super::limits::{
    KEPT_HEAD_BYTES_MAX, KEPT_HOSTS_LISTED, KEPT_NOTICES_LISTED, RESULT_BYTES_MAX,
};
use crate::access::Caller;
use crate::durable::replace;
use crate::evidence::{Bounds, Facts, Files, KeepError, OpenError, ProfileKind, Removed};
use crate::metrics::Metrics;
use crate::sync::lock;
use crate::time::Clock;
use profile::text::with_causes;
use profile::{OFF_CPU, Profile, Selector};
use prost::Message;
use proto::Chunks;
use proto::collector::{FleetCaptureInfo, HostState, KeptCapture};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tonic::Status;

/// File with the last number given out, next to the captures.
const LAST: &str = "last";

impl Facts for KeptCapture {
    const WHAT: &'static str = "capture";
    const SUFFIX: &'static str = "capture";
    const MAGIC: &'static [u8; 8] = b"FPHCAP\0\x01";
    const HEAD_BYTES_MAX: usize = KEPT_HEAD_BYTES_MAX;
    const PART_BYTES_MAX: usize = RESULT_BYTES_MAX;
    const ROOM_KEY: &'static str = "captures.disk_mib";
    // Nobody else has it.
    const SETS_ASIDE: bool = true;

    fn id(&self) -> u64 {
        self.info.as_ref().map_or(0, |info| info.id)
    }

    /// All are of one: whoever asks for many takes the room of all.
    fn owner(&self) -> &str {
        ""
    }

    fn was_unix_ns(&self) -> i64 {
        self.came_unix_ns()
    }

    /// Time of its end, because a long capture is not old just because it started long ago.
    fn came_unix_ns(&self) -> i64 {
        self.info.as_ref().map_or(0, |info| {
            let elapsed = i64::try_from(info.elapsed_ns).unwrap_or(i64::MAX);
            info.started_unix_ns.saturating_add(elapsed)
        })
    }

    fn is_same(&self, other: &KeptCapture) -> bool {
        self.id() == other.id()
    }

    /// Hosts that answered, and what hosts noted, stay in the file.
    fn listed(mut self, id: u64, [past, _]: [u64; 2], bytes: u64) -> KeptCapture {
        let info = self.info.get_or_insert_default();
        (info.id, info.running, info.kept) = (id, false, true);
        (info.has_past, info.bytes) = (past > 0, bytes);
        info.hosts.retain(|host| host.state() != HostState::Done);
        info.hosts.truncate(KEPT_HOSTS_LISTED);
        for host in &mut info.hosts {
            host.notices.clear();
        }
        info.notices.truncate(KEPT_NOTICES_LISTED);
        self
    }
}

/// What `caller` may see of a stored capture: all of it or nothing, without counts over complete
/// hosts if those are outside their scope.
pub fn shown(mut kept: KeptCapture, caller: &Caller) -> Option<KeptCapture> {
    if !is_shown(&kept, caller) {
        return None;
    }
    let info = kept.info.as_mut()?;
    if caller.sees_parts_of_hosts() {
        info.hosts = std::mem::take(&mut info.hosts)
            .into_iter()
            .map(in_part)
            .collect();
    }
    Some(kept)
}

/// True when `caller` may see a stored capture: if everything that it selects is in their scope,
/// which the hosts enforced while it ran.
pub fn is_shown(kept: &KeptCapture, caller: &Caller) -> bool {
    let Some(scope) = &caller.scope else {
        return true;
    };
    let selection: Option<Selector> = kept.selection.parse().ok();
    if !selection.is_some_and(|selection| scope.has(&selection)) {
        return false;
    }
    !caller.sees_parts_of_hosts() || is_for_parts(kept)
}

/// True when no filter looked at the frames of wakers. Agents apply filters to those, too, and
/// which samples there are would reveal them to somebody who sees parts of hosts.
pub fn is_for_parts(kept: &KeptCapture) -> bool {
    let request = kept.info.as_ref().and_then(|info| info.request.as_ref());
    let capture = request.and_then(|request| request.capture.as_ref());
    capture.is_some_and(|capture| capture.event != OFF_CPU || !kept.filtered || kept.in_part)
}

/// The files, opened when they are first wanted, and tried again until they can be.
pub struct KeptCaptures {
    dir: PathBuf,
    bounds: Bounds,
    files: OnceCell<Files<KeptCapture>>,
    /// The number that was put on the disk last.
    used: Mutex<u64>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl KeptCaptures {
    /// Creates it for a directory.
    pub fn new(
        (dir, bounds): (PathBuf, Bounds),
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> KeptCaptures {
        KeptCaptures {
            dir,
            bounds,
            files: OnceCell::new(),
            used: Mutex::default(),
            clock,
            metrics,
        }
    }

    /// The files. `first` gets the last number given out, once they are open.
    ///
    /// # Errors
    /// UNAVAILABLE with the reason, while they cannot be used.
    pub async fn open(&self, first: impl FnOnce(u64)) -> Result<&Files<KeptCapture>, Status> {
        let open = async move {
            let (dir, bounds) = (self.dir.clone(), self.bounds);
            // Heads alone are read.
            let opened = spawn_blocking(move || -> Result<_, OpenError> {
                let files = Files::<KeptCapture>::open(&dir, bounds)?;
                let last = std::fs::read_to_string(dir.join(LAST)).unwrap_or_default();
                let last = last.trim().parse::<u64>().unwrap_or(0).max(files.last());
                Ok((files, last))
            });
            let opened = opened.await;
            let opened = opened.map_err(|_| Status::internal("the captures cannot be opened"))?;
            let (files, last) = opened.map_err(|error| {
                let reason = with_causes(&error);
                Status::unavailable(format!("this collector keeps no captures: {reason}"))
            })?;
            first(last);
            self.metrics.captures_damaged.inc_by(files.damaged);
            self.measure(&files);
            Ok(files)
        };
        self.files.get_or_try_init(|| open).await
    }

    /// The files, for those that block, and once they are open.
    ///
    /// # Errors
    /// UNAVAILABLE when they are not.
    pub fn files(&self) -> Result<&Files<KeptCapture>, Status> {
        let opened = self.files.get();
        opened.ok_or_else(|| Status::unavailable("this collector keeps no captures"))
    }

    /// Notes that a number was given. Blocks.
    pub fn use_up(&self, id: u64) {
        let path = self.dir.join(LAST);
        // Several captures start at a time: the highest number is what stays.
        let mut used = lock(&self.used);
        if id <= *used {
            return;
        }
        match replace(&path, format!("{id}\n").as_bytes(), 0o600) {
            Ok(()) => *used = id,
            Err(error) => tracing::warn!(
                file = %path.display(),
                %error,
                "failed to store the number of a capture: after a restart another capture may get \
                 the same number"
            ),
        }
    }

    /// Writes one; how it is listed. Blocks.
    ///
    /// # Errors
    /// With the reason in words.
    pub fn keep(
        &self,
        kept: KeptCapture,
        past: Option<&Profile>,
        own: Option<&Profile>,
    ) -> Result<FleetCaptureInfo, String> {
        let id = kept.id();
        match self.write(kept, past, own) {
            Ok(info) => {
                self.metrics.captures_kept.inc();
                self.prune();
                Ok(info)
            }
            Err(error) => {
                let reason = with_causes(&error);
                match error {
                    KeepError::TooLarge { .. } => self.metrics.captures_kept_refused.inc(),
                    KeepError::Write(_) => self.metrics.captures_kept_failed.inc(),
                };
                tracing::warn!(id, reason, "failed to keep a capture");
                Err(reason)
            }
        }
    }

    fn write(
        &self,
        kept: KeptCapture,
        past: Option<&Profile>,
        own: Option<&Profile>,
    ) -> Result<FleetCaptureInfo, KeepError> {
        let files = self.files().map_err(std::io::Error::other)?;
        let id = kept.id();
        let mut upload = files.start(fitted(kept))?;
        let sides = [(ProfileKind::Minutes, past), (ProfileKind::Captured, own)];
        for (part, profile) in sides {
            for chunk in profile.map(Chunks::new).into_iter().flatten() {
                upload.push(part, &chunk)?;
            }
        }
        upload.finish()?;
        let listed = files.get(id).and_then(|kept| kept.info);
        Ok(listed.unwrap_or_default())
    }

    /// Removes one; false when there is none. Blocks.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn remove(&self, id: u64) -> Result<bool, Status> {
        let files = self.files()?;
        let removed = files.remove(id).map_err(|error| {
            tracing::warn!(id, %error, "failed to delete the file of a removed capture: the \
                capture is back after a restart");
            Status::unavailable(format!(
                "failed to remove the file of capture `{id}`: {error}"
            ))
        });
        self.measure(files);
        if matches!(removed, Ok(true)) {
            self.metrics.captures_deleted.inc();
        }
        removed
    }

    /// Removes what is over its bounds. Blocks.
    pub fn prune(&self) {
        let Ok(files) = self.files() else {
            return;
        };
        let Removed {
            age,
            owner,
            disk,
            count,
        } = files.prune(self.clock.now_unix_ns());
        self.metrics.captures_aged.inc_by(age);
        self.metrics.captures_over_disk.inc_by(disk + owner);
        self.metrics.captures_over_count.inc_by(count);
        if disk + owner + count > 0 {
            tracing::info!(disk, count, "removed captures: the disk budget is used up");
        }
        self.measure(files);
    }

    fn measure(&self, files: &Files<KeptCapture>) {
        let (captures, bytes) = files.size();
        self.metrics.captures_here.set(captures);
        self.metrics.captures_bytes.set(bytes);
    }
}

/// Leaves out what a head has no room for: what hosts noted, of a thousand of them.
fn fitted(mut kept: KeptCapture) -> KeptCapture {
    let info = kept.info.get_or_insert_default();
    (info.running, info.kept) = (false, true);
    if kept.encoded_len() > KEPT_HEAD_BYTES_MAX
        && let Some(info) = &mut kept.info
    {
        for host in &mut info.hosts {
            host.notices.clear();
        }
        info.notices
            .push("the file has no room for the notices of hosts: they are left out".to_owned());
    }
    kept
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
