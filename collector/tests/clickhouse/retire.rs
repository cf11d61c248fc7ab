//! Days that cannot be dropped, or not yet, and what they cost the server.

use super::ages::ageing;
use super::{NOW_NS, asked, fresh_name, server, window};
use crate::front::Front;
use crate::store::SECOND;
use crate::store::draft::{Draft, store_all};
use collector::store::clickhouse::ClickHouseStore;
use collector::store::{StoreStatus, WindowSink};
use metrics::counted;

/// When the samples of both days are over age.
const LATER_NS: i64 = NOW_NS + 2 * 86_400 * SECOND;

/// How the server refuses a partition that is larger than it drops.
const TOO_LARGE: &str = "Code: 359. DB::Exception: Table or Partition was not dropped";

/// A store of two days, 2026-01-14 and 2026-01-15.
fn of_two_days(server: &Front, name: &str) -> ClickHouseStore {
    let store = ageing(server, name);
    let yesterday = Draft::new("a", 1_000, -70_000).row("unit=web", "main;serve", 1);
    store_all(&store, &[yesterday, window(0)]);
    store
}

/// Days that a table has.
fn days(server: &Front, name: &str, table: &str) -> Vec<String> {
    let days = format!(
        "SELECT DISTINCT partition FROM system.parts WHERE active AND table = '{table}' \
         AND database = '{name}' ORDER BY partition"
    );
    let days = server.statement(name, &days);
    days.lines().map(str::to_owned).collect()
}

fn counter(store: &ClickHouseStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let found = counted(&metrics).find(|of| of.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

#[test]
fn a_day_that_cannot_be_dropped_does_not_keep_others() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = of_two_days(server, &name);
    let both = ["20260114", "20260115"];
    assert_eq!(days(server, &name, "samples"), both);
    server.refuse(&name, &["samples DROP PARTITION 20260114"], TOO_LARGE);
    for round in 0..3 {
        let error = store.maintain(LATER_NS).unwrap_err().to_string();
        assert!(error.contains("359"), "round {round}: {error}");
        assert_eq!(days(server, &name, "samples"), both[..1]);
    }
    let kept = counter(&store, "clickhouse_days_of_samples_kept_longer");
    assert_eq!(kept, 1);
    assert_eq!(counter(&store, "clickhouse_partitions_dropped_total"), 1);
    // The server is not asked for it in every round.
    let drops = asked(server, &name, "samples DROP PARTITION 20260114");
    assert_eq!(drops.len(), 1, "{drops:?}");
}

#[test]
fn a_server_without_room_is_asked_for_one_day_a_round() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = of_two_days(server, &name);
    let no_time = "Code: 159. DB::Exception: Timeout exceeded";
    server.refuse(&name, &["samples DROP PARTITION 20260114"], no_time);
    assert!(store.maintain(LATER_NS).is_err());
    let drops = || asked(server, &name, "DROP PARTITION").len();
    assert_eq!(drops(), 1, "it would wait for each as long");
    // The next round goes on with the others.
    assert!(store.maintain(LATER_NS).is_err(), "it is still told");
    assert_eq!(drops(), 2);
    assert_eq!(days(server, &name, "samples"), ["20260114"]);
}

#[test]
fn days_of_any_size_are_dropped() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = of_two_days(server, &name);
    // Every partition is too large, by the engine's own rule.
    server.set(&name, "max_partition_size_to_drop", "1");
    store.maintain(LATER_NS).unwrap();
    assert!(days(server, &name, "samples").is_empty());
    let drops = asked(server, &name, "DROP PARTITION");
    let of_any_size = "max_partition_size_to_drop=0";
    assert!(drops.iter().all(|drop| drop.settings.contains(of_any_size)));
}

#[test]
fn a_server_that_takes_no_size_drops_days_by_its_own() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = of_two_days(server, &name);
    let unknown = "Code: 115. DB::Exception: Unknown setting 'max_partition_size_to_drop'";
    server.refuse(&name, &["max_partition_size_to_drop=0"], unknown);
    store.maintain(LATER_NS).unwrap();
    assert!(days(server, &name, "samples").is_empty());
}

#[test]
fn a_day_that_is_kept_is_looked_at_once() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = of_two_days(server, &name);
    // As after an insert that was repeated.
    let double =
        "INSERT INTO service_1h SELECT * FROM service_1h WHERE toYYYYMMDD(time) = 20260114";
    server.statement(&name, double);
    // The look of the other day is not asked for again either, although the day stays.
    let kept = ["samples DROP PARTITION 20260115", "REPLACE PARTITION"];
    server.refuse(&name, &kept, TOO_LARGE);
    let looks = || asked(server, &name, "-toInt64(rows)").len();
    assert!(store.maintain(LATER_NS).is_err());
    let first = looks();
    // Hours alone of the one, hours and minutes of the other.
    assert_eq!(first, 3);
    for _ in 0..5 {
        assert!(store.maintain(LATER_NS).is_err());
    }
    assert_eq!(looks(), first);
    assert_eq!(days(server, &name, "samples"), ["20260114", "20260115"]);
}
