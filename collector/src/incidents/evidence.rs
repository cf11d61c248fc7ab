//! The files of evidence: what they are about, and who may see them.

use super::limits::{HEAD_BYTES_MAX, PART_BYTES_MAX};
use crate::access::Caller;
use crate::evidence::Facts;
use proto::collector::{IncidentEntryKind, IncidentEvidence};

impl Facts for IncidentEvidence {
    const WHAT: &'static str = "piece of evidence";
    const SUFFIX: &'static str = "evidence";
    const MAGIC: &'static [u8; 8] = b"FPHEVI\0\x01";
    const HEAD_BYTES_MAX: usize = HEAD_BYTES_MAX;
    const PART_BYTES_MAX: usize = PART_BYTES_MAX;
    const ROOM_KEY: &'static str = "incidents.incident_mib";
    // Nobody else has it.
    const SETS_ASIDE: bool = true;

    fn id(&self) -> u64 {
        self.id
    }

    /// Room is checked before something is added, and nothing is removed to make it.
    fn owner(&self) -> &str {
        ""
    }

    fn was_unix_ns(&self) -> i64 {
        self.added_unix_ns
    }

    fn came_unix_ns(&self) -> i64 {
        self.added_unix_ns
    }

    fn is_same(&self, other: &IncidentEvidence) -> bool {
        self.id != 0 && self.id == other.id
    }

    fn listed(self, id: u64, [_, second]: [u64; 2], bytes: u64) -> IncidentEvidence {
        IncidentEvidence {
            id,
            bytes,
            has_baseline: second > 0,
            ..self
        }
    }
}

/// Whether somebody may see the profiles of a piece of evidence: everything that it selects has to
/// be in their scope, and captures are seen by those who see the capture.
pub fn is_seen(caller: &Caller, evidence: &IncidentEvidence) -> bool {
    let Some(scope) = &caller.scope else {
        return true;
    };
    let is_capture = evidence.kind() == IncidentEntryKind::Capture;
    if is_capture && caller.sees_parts_of_hosts() && !evidence.for_parts {
        return false;
    }
    let selector = evidence.selector.parse();
    selector.is_ok_and(|selector: profile::Selector| scope.has(&selector))
}
