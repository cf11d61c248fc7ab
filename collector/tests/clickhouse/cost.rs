//! Tests that the cost of pushes and queries does not grow with the retention.

use super::{NOW_NS, asked, fresh_name, host, inserted, open, server, window};
use crate::front::Front;
use crate::store::draft::{Draft, definitions, push, store_all, windows};
use crate::store::{SECOND, ample, bare, hour, range, scope};
use collector::store::clickhouse::ClickHouseStore;
use collector::store::{Gap, HostRecord, Limits, PushOutcome, StoreQueries, WindowSink};
use profile::Query;
use std::collections::BTreeSet;

/// Unit: seconds.
const DAY: i64 = 86_400;

/// Days that are added, four and more before the tests' day.
const DAYS: u64 = 60;

/// What each of them has, of stacks and windows, and of hosts but for the first day, which has one.
const OF_A_DAY: u64 = 1_000;

/// Adds days of the same host and of others, with gaps.
fn add_older_days(server: &Front, name: &str) {
    let rows = DAYS * OF_A_DAY;
    let day = format!("toDate('2026-01-11') - intDiv(number, {OF_A_DAY})");
    let stacks = format!(
        "INSERT INTO stacks SELECT {day}, number + 1, toFixedString('', 16), [number] \
         FROM numbers({rows})"
    );
    // With sequences around those of the tests' windows, so that the key alone leaves nothing out.
    let of_host = format!(
        "INSERT INTO windows (chunk, host, sequence, host_id, start_ns, end_ns) \
         SELECT toDateTime({day}, 'UTC') AS chunk, (SELECT any(host) FROM windows), \
         (SELECT any(sequence) FROM windows) + number * 7 - {rows}, 'id-of-a', \
         toUnixTimestamp(chunk) * 1000000000 AS start_ns, start_ns + 10000000000 \
         FROM numbers({rows})"
    );
    let of_others = format!(
        "INSERT INTO windows (chunk, host, sequence, host_id, start_ns, end_ns) \
         SELECT toDateTime({day}, 'UTC') AS chunk, number % {OF_A_DAY}, number, \
         toString(number % {OF_A_DAY}), toUnixTimestamp(chunk) * 1000000000 AS start_ns, \
         start_ns + 10000000000 FROM numbers({})",
        rows - OF_A_DAY
    );
    let gaps = "INSERT INTO gaps (chunk, host, sequence, host_id, from_ns, to_ns) \
                SELECT chunk, host, sequence, host_id, start_ns - 10000000000, start_ns \
                FROM windows WHERE chunk < '2026-01-12'";
    for sql in [&*stacks, &*of_host, &*of_others, gaps] {
        server.statement(name, sql);
    }
}

/// Rows that statements with `part` in them read while `work` is done.
fn rows_read(server: &Front, name: &str, part: &str, work: impl FnOnce()) -> u64 {
    let sum = || -> u64 {
        let all = asked(server, name, part);
        all.iter().map(|statement| statement.rows_read).sum()
    };
    let count = || asked(server, name, part).len();
    let (before, asked_before) = (sum(), count());
    work();
    assert!(count() > asked_before, "nothing was asked with `{part}`");
    sum() - before
}

/// What `work` reads by statements with `part` in them is small, and as much after older days
/// were added. `work` is told which time it is.
fn check(part: &str, work: impl Fn(&ClickHouseStore, u64)) {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let lost = Draft::new("a", 2, 30)
        .row("unit=web", "main;serve", 1)
        .with(|window| window.dropped_before = Some(gap(20, 30)));
    store_all(&store, &[window(0), lost]);
    let before = rows_read(server, &name, part, || work(&store, 0));
    add_older_days(server, &name);
    let after = rows_read(server, &name, part, || work(&store, 1));
    assert!(before > 0, "`{part}` reads something");
    // What the first time stored, and the first and last day of each day's part.
    let few = before + 20 + 6 * DAYS;
    assert!(after <= few, "{before} rows, then {after}");
}

fn gap(start_s: i64, end_s: i64) -> Gap {
    Gap {
        range: range(start_s, end_s),
        windows: 1,
        samples: 10,
        cause: "disk_full".to_owned(),
    }
}

/// A window with a stack that no other has.
fn store_new_stack(store: &ClickHouseStore, time: u64) {
    let number = 10 + time;
    let stack = format!("main;new{time}");
    let new = Draft::new("a", number, number as i64 * 10).row("unit=web", &stack, 1);
    assert_eq!(push(store, &[new]), [PushOutcome::Stored]);
}

#[test]
fn whether_a_window_is_stored_is_asked_of_days_near_it() {
    check("FROM windows WHERE toDate(chunk) IN", store_new_stack);
}

#[test]
fn stacks_are_looked_for_on_days_near_their_window() {
    check(
        "SELECT DISTINCT day, stack, hash FROM stacks",
        store_new_stack,
    );
}

#[test]
fn what_is_kept_is_known_without_a_look_at_windows() {
    check("FROM host_days AS told", |store, time| {
        let first = [at_s(0), at_s(-(3 + DAYS as i64) * DAY - 10 * 3600)];
        let kept = store.kept().unwrap().unwrap();
        assert_eq!(kept.start_unix_ns, first[time as usize]);
        assert_eq!(kept.end_unix_ns, at_s(40));
    });
}

fn at_s(seconds: i64) -> i64 {
    crate::store::at(seconds)
}

#[test]
fn gaps_are_looked_for_around_their_range() {
    check("FROM gaps AS set", |store, _| {
        let quality = store
            .profile(hour(), &Query::default(), &ample())
            .unwrap()
            .quality;
        let dropped = |(_, found): &&(_, Gap)| found.cause == "disk_full";
        let dropped: Vec<_> = quality.gaps.iter().filter(dropped).collect();
        assert_eq!(dropped.len(), 1);
        assert_eq!(dropped[0].1.range, range(20, 30));
    });
}

#[test]
fn a_gap_that_is_told_later_is_found_and_ends_after_a_month() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    // The host was there five weeks ago, and has been without its collector since.
    let days_ago = |days: i64| -days * DAY;
    let first = "INSERT INTO windows (chunk, host, sequence, host_id, boot, start_ns, end_ns) \
                 SELECT chunk - INTERVAL 35 DAY, host, sequence - 1, host_id, boot, \
                 start_ns - 35 * 86400 * 1000000000, end_ns - 35 * 86400 * 1000000000 FROM windows";
    let late = Draft::new("a", 1, 0)
        .row("unit=web", "main;serve", 1)
        .with(|window| window.dropped_before = Some(gap(days_ago(35) + 10, 0)));
    store_all(&store, &[late]);
    server.statement(&name, first);
    let causes = |start_s: i64, end_s: i64| {
        let quality = store
            .totals(&scope(range(start_s, end_s), ""), &[], &ample())
            .unwrap()
            .quality;
        let causes = quality.gaps.into_iter().map(|(_, gap)| gap.cause);
        causes.collect::<BTreeSet<String>>()
    };
    let only = |cause: &str| BTreeSet::from([cause.to_owned()]);
    assert_eq!(causes(days_ago(1), days_ago(1) + 3600), only("disk_full"));
    assert_eq!(causes(days_ago(30), days_ago(30) + 3600), only("disk_full"));
    assert_eq!(causes(days_ago(33), days_ago(33) + 3600), only("absent"));
}

#[test]
fn stacks_of_yesterday_need_not_come_again_and_older_ones_are_asked_for() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let of = |number: u64, day: i64, stack: &str| {
        Draft::new("a", number, day * DAY + number as i64 * 10).row("unit=web", stack, 1)
    };
    store_all(&store, &[of(0, -1, "main;query"), of(1, -5, "main;old")]);
    let alone = |store: &ClickHouseStore, drafts: &[Draft]| {
        let none = Default::default();
        store.push(&windows(drafts), &none, NOW_NS).unwrap()
    };
    let old = of(0, 0, "main;old").window.rows[0].stack;
    let asked_for = || PushOutcome::NeedStacks(vec![old]);
    // A collector that has seen neither.
    let other = open(&server.url(), &name);
    let taken = alone(&other, &[of(10, 0, "main;query"), of(11, 0, "main;old")]);
    assert_eq!(taken, [PushOutcome::Stored, asked_for()]);
    // And the one that has seen both: what it knows of another day says nothing of today.
    let taken = alone(
        &store,
        &[
            of(20, 0, "main;query"),
            of(21, -5, "main;old"),
            of(22, 0, "main;old"),
        ],
    );
    assert_eq!(
        taken,
        [PushOutcome::Stored, PushOutcome::Stored, asked_for()]
    );
    let again = [of(12, 0, "main;old")];
    let taken = other.push(&windows(&again), &definitions(&again), NOW_NS);
    assert_eq!(taken.unwrap(), [PushOutcome::Stored]);
    let names = |sql: &str| server.statement(&name, sql);
    let of_today = "SELECT DISTINCT function, system_name FROM frames WHERE day = '2026-01-15' \
                    ORDER BY function";
    // Copied with all that is known of them.
    assert_eq!(names(of_today), "main\t\nold\t\nquery\tJS:*query db.js\n");
    let answer = store.profile(hour(), &Query::default(), &ample()).unwrap();
    assert_eq!(answer.data.total().count, 3);
    assert!(answer.data.dict.strings.find("[unknown stack]").is_none());
}

#[test]
fn a_thousand_hosts_are_two_inserts() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    let hosts: Vec<HostRecord> = (0..1_000).map(|number| host(&number.to_string())).collect();
    store.put_hosts(&hosts).unwrap();
    let inserts = inserted(server, &name);
    let tables: Vec<&str> = inserts.iter().map(|(table, _)| &**table).collect();
    assert_eq!(tables, ["host_health", "hosts"]);
    assert_eq!(store.hosts(hour(), &ample()).unwrap().len(), 1_000);
}

#[test]
fn a_series_without_reports_is_two_statements() {
    let Some(server) = server() else { return };
    let name = fresh_name();
    let store = open(&server.url(), &name);
    store_all(&store, &[window(0)]);
    let statements = |limits: &Limits| {
        let before = asked(server, &name, "SELECT").len();
        let found = store.series(&scope(hour(), "unit=web"), &[], 10 * SECOND as u64, limits);
        assert_eq!(found.unwrap().data.lines.len(), 1);
        asked(server, &name, "SELECT").len() - before
    };
    // What was lost in each step, and four of what hosts did.
    assert_eq!((statements(&ample()), statements(&bare())), (7, 2));
}
