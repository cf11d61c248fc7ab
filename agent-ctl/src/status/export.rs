//! The part of the status about uploads to the collector.

use crate::terminal::clean;
use crate::units::{self, SECOND_NS};
use crate::when::rfc3339;
use proto::agent::Export;
use serde::Serialize;

/// Lines for people: the connection, what waits, what was dropped. `age` formats how long ago a
/// time was, counted from `now_unix_ns`.
pub(super) fn lines(export: &Export, now_unix_ns: i64, age: impl Fn(i64) -> String) -> Vec<String> {
    let connection = match export.connected_since_unix_ns {
        0 => {
            let why = match export.last_error.as_str() {
                "" => String::new(),
                why => format!(": {}", clean(why)),
            };
            let collector = clean(&export.collector);
            let away_since = export.away_since_unix_ns;
            match now_unix_ns.saturating_sub(away_since) < SECOND_NS {
                true => format!("{collector}, not reached yet{why}"),
                false => format!("{collector}, not reached for {}{why}", age(away_since)),
            }
        }
        since => format!(
            "{} {}, connected for {}",
            clean(&export.collector),
            clean(&export.collector_version),
            age(since)
        ),
    };
    let last = match export.last_ack_unix_ns {
        0 => "none acknowledged yet".to_owned(),
        at => format!(
            "{} acknowledged, the last {} ago",
            units::count(export.acked_windows),
            age(at)
        ),
    };
    let oldest = match export.oldest_unix_ns {
        0 => String::new(),
        at => format!(", the oldest from {} ago", age(at)),
    };
    let mut lines = vec![
        connection,
        format!(
            "{} windows wait ({} of {}{oldest}), {last}",
            units::count(export.waiting_windows),
            units::bytes(export.waiting_bytes),
            units::bytes(export.bytes_max)
        ),
    ];
    if !export.spool_error.is_empty() {
        lines.push(format!(
            "windows wait in memory: {}",
            clean(&export.spool_error)
        ));
    }
    let dropped: Vec<String> = export
        .dropped
        .iter()
        .map(|drop| format!("{} {}", clean(&drop.cause), units::count(drop.windows)))
        .collect();
    if !dropped.is_empty() {
        lines.push(format!("windows given up: {}", dropped.join(", ")));
    }
    lines
}

/// The same for scripts.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    collector: &'a str,
    collector_version: &'a str,
    host_id: &'a str,
    connected: bool,
    /// Null while there is none.
    connected_since: Option<String>,
    away_since: Option<String>,
    last_error: &'a str,
    last_ack: Option<String>,
    waiting_windows: u64,
    waiting_bytes: u64,
    bytes_max: u64,
    oldest: Option<String>,
    taken_windows: u64,
    taken_samples: u64,
    acked_windows: u64,
    acked_samples: u64,
    dropped: Vec<Drop<'a>>,
    spool_error: &'a str,
}

#[derive(Serialize)]
struct Drop<'a> {
    cause: &'a str,
    windows: u64,
    samples: u64,
}

impl<'a> Json<'a> {
    pub(super) fn of(export: &'a Export) -> Json<'a> {
        let time = |ns: i64| (ns != 0).then(|| rfc3339(ns));
        Json {
            collector: &export.collector,
            collector_version: &export.collector_version,
            host_id: &export.host_id,
            connected: export.connected_since_unix_ns != 0,
            connected_since: time(export.connected_since_unix_ns),
            away_since: time(export.away_since_unix_ns),
            last_error: &export.last_error,
            last_ack: time(export.last_ack_unix_ns),
            waiting_windows: export.waiting_windows,
            waiting_bytes: export.waiting_bytes,
            bytes_max: export.bytes_max,
            oldest: time(export.oldest_unix_ns),
            taken_windows: export.taken_windows,
            taken_samples: export.taken_samples,
            acked_windows: export.acked_windows,
            acked_samples: export.acked_samples,
            dropped: export
                .dropped
                .iter()
                .map(|drop| Drop {
                    cause: &drop.cause,
                    windows: drop.windows,
                    samples: drop.samples,
                })
                .collect(),
            spool_error: &export.spool_error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_was_just_named_is_not_away_for_no_time() {
        let line = |away_since_unix_ns| {
            let export = Export {
                collector: "c1:7601".to_owned(),
                away_since_unix_ns,
                ..Export::default()
            };
            lines(&export, 90 * SECOND_NS, |_| "1 min".to_owned()).swap_remove(0)
        };
        assert_eq!(line(90 * SECOND_NS - 5), "c1:7601, not reached yet");
        assert_eq!(line(90 * SECOND_NS + 5), "c1:7601, not reached yet");
        assert_eq!(line(30 * SECOND_NS), "c1:7601, not reached for 1 min");
    }
}
