//! Ids of the profile types of captures: an event and the unit of its weights.

use crate::store::CAPTURED;
use profile::{Info, OFF_CPU, unit};

/// Longest name of an event in an id. Unit: bytes.
const EVENT_BYTES_MAX: usize = 96;

/// The id of the profile type of a capture; empty when it has no unit, and so no samples.
///
/// Its last part is the unit of weights, so weights of two units are never of one type.
pub(in crate::control) fn profile_type(info: &Info) -> String {
    let (unit, _) = unit::base(&info.unit);
    if unit.is_empty() {
        return String::new();
    }
    let event = match info.event.as_str() {
        OFF_CPU => "off_cpu".to_owned(),
        event => plain(event),
    };
    let sample_unit = match unit {
        unit::TIME => unit::TIME,
        _ => "count",
    };
    let unit = plain(unit);
    format!("{CAPTURED}:{event}:{sample_unit}:{event}:{unit}")
}

/// A name without `:`, which separates the parts of an id. Where two names could become one, a
/// checksum of the name is a part of it: `tracepoint/sched/sched_switch`, `std__sort-1d2c3b4a`.
fn plain(name: &str) -> String {
    let keeps = |found: char| found.is_ascii_alphanumeric() || "_.-/".contains(found);
    let is_told = name.len() <= EVENT_BYTES_MAX
        && name.matches(':').count() <= 2
        && name.chars().all(|found| keeps(found) || found == ':');
    let plain = name.chars().take(EVENT_BYTES_MAX).map(|found| match found {
        ':' => '/',
        found if keeps(found) => found,
        _ => '_',
    });
    let plain: String = plain.collect();
    match is_told {
        true if plain.is_empty() => "event".to_owned(),
        true => plain,
        false => format!("{plain}-{:08x}", crc32fast::hash(name.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::is_captured;
    use std::collections::BTreeSet;

    fn id(event: &str, unit: &str) -> String {
        profile_type(&Info {
            event: event.to_owned(),
            unit: unit.to_owned(),
            ..Info::default()
        })
    }

    #[test]
    fn a_type_is_of_one_event_and_one_unit() {
        let time = "captured:off_cpu:nanoseconds:off_cpu:nanoseconds";
        assert_eq!(id("off-cpu", "nanoseconds"), time);
        assert_eq!(id("off-cpu", "microseconds"), time, "a large sum of it");
        assert_eq!(
            id("tracepoint:sched:sched_switch", "events"),
            "captured:tracepoint/sched/sched_switch:count:tracepoint/sched/sched_switch:events"
        );
        assert_ne!(id("cycles", "cycles"), id("cycles", "events"));
        assert_eq!(id("cycles", ""), "", "nothing was weighed");
    }

    #[test]
    fn no_two_events_have_one_id_and_none_has_more_parts() {
        let long = format!("uprobe:/{}:f", "x".repeat(200));
        let longer = format!("uprobe:/{}:g", "x".repeat(200));
        let events = [
            "uprobe:/bin/a:f",
            "uprobe:/bin/a::f",
            "uprobe:/bin/a:f()",
            "uprobe:/bin/a:f<>",
            "uprobe:/bin/ä:f",
            "",
            &long,
            &longer,
        ];
        let ids: BTreeSet<String> = events.iter().map(|event| id(event, "calls")).collect();
        assert_eq!(ids.len(), events.len(), "{ids:?}");
        for id in ids {
            assert!(is_captured(&id) && id.split(':').count() == 5, "{id}");
            assert!(id.len() < 300, "{id}");
        }
    }
}
