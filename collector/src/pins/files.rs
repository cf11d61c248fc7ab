//! The facts in the file of a pin.

use super::limits::{HEAD_BYTES_MAX, PART_BYTES_MAX};
use crate::evidence::Facts;
use proto::collector::HostPin;

impl Facts for HostPin {
    const WHAT: &'static str = "pin";
    const SUFFIX: &'static str = "pin";
    const MAGIC: &'static [u8; 8] = b"FPHPIN\0\x01";
    const HEAD_BYTES_MAX: usize = HEAD_BYTES_MAX;
    const PART_BYTES_MAX: usize = PART_BYTES_MAX;
    const ROOM_KEY: &'static str = "pins.host_mib";
    // Agents have theirs still, and those of a host that is gone would only take room.
    const SETS_ASIDE: bool = false;

    fn id(&self) -> u64 {
        self.id
    }

    fn owner(&self) -> &str {
        &self.host_id
    }

    /// When it fired: agents upload their newest first, so numbers of this collector say nothing of
    /// age.
    fn was_unix_ns(&self) -> i64 {
        self.pin.as_ref().map_or(0, |pin| pin.fired_unix_ns)
    }

    fn came_unix_ns(&self) -> i64 {
        self.received_unix_ns
    }

    /// Numbers of agents may start again, but not at the same nanosecond.
    fn is_same(&self, other: &HostPin) -> bool {
        let of = |pin: &HostPin| {
            let pin = pin.pin.as_ref();
            pin.map(|pin| (pin.id, pin.fired_unix_ns))
        };
        self.host_id == other.host_id && of(self) == of(other)
    }

    fn listed(self, id: u64, [_, captured]: [u64; 2], bytes: u64) -> HostPin {
        let mut pin = HostPin { id, ..self };
        let own = pin.pin.get_or_insert_default();
        (own.bytes, own.capture_bytes) = (bytes, captured);
        pin
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
