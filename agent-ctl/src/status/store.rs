//! Lines on a collector's store, from its counters: how near its ceiling it is, and how far behind
//! the archive is.

use crate::terminal::{Out, Tone};
use crate::units;
use proto::agent::Counter;
use std::time::Duration;

/// The value of a counter without labels.
fn value(counters: &[Counter], name: &str) -> Option<u64> {
    let mut counters = counters.iter();
    let found = counters.find(|counter| counter.name == name && counter.labels.is_empty());
    found.map(|counter| counter.value)
}

/// How much of the collector's machine is used; `None` where the store has no such ceiling.
pub fn ceiling(counters: &[Counter]) -> Option<String> {
    let share = |name: &str| value(counters, &format!("fleetprof_store_{name}_used_percent"));
    let (maintenance, memory) = (share("maintenance")?, share("memory")?);
    let disk = share("disk")?;
    Some(format!(
        "{maintenance} % of maintenance, {memory} % of memory, {disk} % of disk"
    ))
}

/// What the archive holds, and whether it has all that is sealed; `None` without an archive.
pub fn archive(out: &Out, counters: &[Counter]) -> Option<String> {
    let of = |name: &str| value(counters, &format!("fleetprof_archive_{name}"));
    if of("configured") != Some(1) {
        return None;
    }
    let (partitions, bytes) = (of("partitions")?, of("bytes")?);
    let held = format!(
        "{} partitions, {}",
        units::count(partitions),
        units::bytes(bytes)
    );
    if of("fenced") == Some(1) {
        return Some(format!("{held}; {}", out.tone(Tone::Bad, "not written to")));
    }
    let (pending, behind_s) = (of("pending_partitions")?, of("behind_seconds")?);
    let state = match pending {
        0 => "up to date".to_owned(),
        1.. => {
            let behind = units::duration(Duration::from_secs(behind_s));
            let waits = units::bytes(of("pending_bytes").unwrap_or(0));
            format!("{} ({waits}) wait, {behind} behind", units::count(pending))
        }
    };
    Some(format!("{held}; {state}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(of: &[(&str, u64)]) -> Vec<Counter> {
        let counter = |&(name, value): &(&str, u64)| Counter {
            name: name.to_owned(),
            labels: String::new(),
            value,
        };
        of.iter().map(counter).collect()
    }

    #[test]
    fn a_store_without_ceiling_and_archive_has_no_lines() {
        let none = counters(&[
            ("fleetprof_store_bytes", 5),
            ("fleetprof_archive_configured", 0),
        ]);
        assert_eq!(ceiling(&none), None);
        assert_eq!(archive(&Out::plain(), &none), None);
    }

    #[test]
    fn the_archive_says_what_waits_and_for_how_long() {
        let line = |pending, fenced| {
            let of = counters(&[
                ("fleetprof_archive_configured", 1),
                ("fleetprof_archive_partitions", 12),
                ("fleetprof_archive_bytes", 3 << 30),
                ("fleetprof_archive_pending_partitions", pending),
                ("fleetprof_archive_pending_bytes", 2 << 20),
                ("fleetprof_archive_behind_seconds", 7200),
                ("fleetprof_archive_fenced", fenced),
            ]);
            archive(&Out::plain(), &of).unwrap()
        };
        assert_eq!(line(0, 0), "12 partitions, 3.0 GiB; up to date");
        assert_eq!(
            line(2, 0),
            "12 partitions, 3.0 GiB; 2 (2.0 MiB) wait, 2 h behind"
        );
        assert_eq!(line(2, 1), "12 partitions, 3.0 GiB; not written to");
    }

    #[test]
    fn the_ceiling_is_three_shares() {
        let of = counters(&[
            ("fleetprof_store_maintenance_used_percent", 12),
            ("fleetprof_store_memory_used_percent", 40),
            ("fleetprof_store_disk_used_percent", 99),
        ]);
        let line = ceiling(&of).unwrap();
        assert_eq!(line, "12 % of maintenance, 40 % of memory, 99 % of disk");
    }
}
