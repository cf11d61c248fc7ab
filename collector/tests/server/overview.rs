//! The overview as it is asked for over the network.

use crate::rig::{NOW, Options, Rig, SECOND, starting, window};
use proto::collector as wire;
use proto::{agent, collector::OverviewRow};
use tonic::Code;

/// Cores that the kernel accounts to `web.service` in a window.
fn cores_at(host: &str, number: u64) -> u64 {
    // The second host does more from the 90th window on; load is never quite the same.
    let more = host == "b" && number >= 90;
    let wave = [0, 3, 1, 4, 2][number as usize % 5];
    (if more { 150 } else { 100 }) + wave
}

/// Two hosts with 120 windows each: the first half is the baseline.
async fn filled() -> Rig {
    sent(|_, _| true).await
}

/// As [`filled`], of the windows that a host sent.
async fn sent(is_sent: impl Fn(&str, u64) -> bool) -> Rig {
    let rig = Rig::with(Options::default()).await;
    for host in ["a", "b"] {
        let mut agent = rig.agent(host).await;
        for number in (1..=120u64).filter(|number| is_sent(host, *number)) {
            let mut part = window(number, &["main;read"]);
            part.new_dictionary = number == 1;
            let facts = part.facts.as_mut().expect("facts");
            // Hundredths of a core, for ten seconds.
            facts.account_ns = vec![cores_at(host, number) * 10_000_000 * 10];
            let part = starting(at(number), part);
            agent.store_part(part, &["main;read"]).await;
        }
    }
    rig.hosts.flush(&rig.open).expect("stored");
    rig
}

fn at(number: u64) -> i64 {
    NOW - 1200 * SECOND + (number as i64 - 1) * 10 * SECOND
}

fn range(from: i64, to: i64) -> Option<agent::TimeRange> {
    Some(agent::TimeRange {
        start_unix_ns: from,
        end_unix_ns: to,
    })
}

fn request() -> wire::OverviewRequest {
    wire::OverviewRequest {
        selection: Some(wire::Selection {
            range: range(NOW - 600 * SECOND, NOW),
            ..wire::Selection::default()
        }),
        ..wire::OverviewRequest::default()
    }
}

fn named<'a>(rows: &'a [OverviewRow], name: &str) -> &'a OverviewRow {
    let mut rows = rows.iter();
    rows.find(|row| row.name == name).expect("a row")
}

#[tokio::test]
async fn it_says_what_changed_where_and_since_when() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let answer = client.overview(request()).await.expect("an answer");
    let answer = answer.into_inner();
    assert!(answer.accounted);
    assert_eq!(answer.step_ns, 10 * SECOND as u64);
    let service = named(&answer.services, "web.service");
    assert!((service.baseline_cores - 2.04).abs() < 0.02, "{service:?}");
    let change = service.change.expect("a change");
    assert!(change.significant, "{change:?}");
    assert!((change.cores - 0.5).abs() < 0.02, "{change:?}");
    assert_eq!(change.since_unix_ns, at(90));
    assert_eq!(service.changed_hosts, ["b"]);
    let host = named(&answer.hosts, "b").change.expect("a change");
    assert!(host.significant);
    assert!(
        !named(&answer.hosts, "a")
            .change
            .expect("a change")
            .significant
    );
    let both = [answer.now, answer.baseline].map(|of| of.expect("quality"));
    assert_eq!(both.map(|of| (of.hosts, of.windows)), [(2, 120), (2, 120)]);
}

#[tokio::test]
async fn what_a_silent_host_did_is_not_known() {
    // Of the range, `b` misses the steps 20 to 29.
    let rig = sent(|host, number| host == "a" || !(81..=90).contains(&number)).await;
    let mut client = rig.queries().await;
    let answer = client.overview(request()).await.expect("an answer");
    let answer = answer.into_inner();
    let unknown = |row: &OverviewRow| {
        let steps = row.steps.iter().enumerate();
        steps
            .filter(|(_, cores)| **cores < 0.0)
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        unknown(named(&answer.hosts, "b")),
        (20..30).collect::<Vec<_>>()
    );
    assert!(unknown(named(&answer.hosts, "a")).is_empty());
    // The other host still sent: the sum is known, and does not dip.
    let service = named(&answer.services, "web.service");
    assert!(unknown(service).is_empty());
    assert!(service.steps[25] > 2.0, "{:?}", service.steps);
}

#[tokio::test]
async fn a_baseline_may_be_of_other_samples() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut one = request();
    let late = range(at(91), NOW);
    let selection = one.selection.as_mut().expect("some");
    (selection.selector, selection.range) = ("host=\"b\"".to_owned(), late);
    one.baseline = late;
    one.baseline_selection = Some(wire::Selection {
        selector: "host=\"a\"".to_owned(),
        ..wire::Selection::default()
    });
    let answer = client.overview(one.clone()).await.expect("an answer");
    let answer = answer.into_inner();
    let service = named(&answer.services, "web.service");
    assert!((service.baseline_cores - 1.02).abs() < 0.02, "{service:?}");
    assert!((service.cores - 1.52).abs() < 0.02, "{service:?}");
    assert!(named(&answer.hosts, "b").change.expect("a change").appeared);
    assert!(named(&answer.hosts, "a").change.expect("a change").vanished);
    // Its range stands elsewhere.
    one.baseline_selection.as_mut().expect("some").range = late;
    let refused = client.overview(one).await.expect_err("two ranges");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_selection_and_a_baseline_are_honoured() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut one = request();
    one.selection.as_mut().expect("some").selector = "host=\"a\"".to_owned();
    let answer = client.overview(one).await.expect("an answer").into_inner();
    assert_eq!(answer.hosts.len(), 1);
    assert!(answer.services.iter().all(|row| {
        let change = row.change.expect("a change");
        !change.significant
    }));
    let mut later = request();
    // After the change: nothing moved.
    later.selection.as_mut().expect("some").range = range(at(106), NOW);
    later.baseline = range(at(90), at(106));
    let answer = client
        .overview(later)
        .await
        .expect("an answer")
        .into_inner();
    let service = named(&answer.services, "web.service");
    assert!(
        !service.change.expect("a change").significant,
        "{service:?}"
    );
}

#[tokio::test]
async fn the_first_window_of_a_fleet_has_its_services() {
    let rig = Rig::with(Options::default()).await;
    let mut agent = rig.agent("a").await;
    let mut part = window(1, &["main;read"]);
    part.facts.as_mut().expect("facts").account_ns = vec![5_000_000_000];
    let part = starting(NOW - 20 * SECOND, part);
    agent.store_part(part, &["main;read"]).await;
    rig.hosts.flush(&rig.open).expect("stored");
    let mut client = rig.queries().await;
    let mut hour = request();
    hour.selection.as_mut().expect("some").range = range(NOW - 3600 * SECOND, NOW);
    let answer = client.overview(hour).await.expect("an answer").into_inner();
    let service = named(&answer.services, "web.service");
    assert!((service.cores - 0.5).abs() < 0.01, "{service:?}");
}

#[tokio::test]
async fn a_baseline_without_data_is_no_change() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut old = request();
    old.baseline = range(NOW - 90_000 * SECOND, NOW - 86_400 * SECOND);
    let answer = client.overview(old).await.expect("an answer").into_inner();
    assert_eq!(answer.baseline.expect("quality").hosts, 0);
    assert!(!answer.services.is_empty());
    let rows = answer.services.iter().chain(&answer.hosts);
    assert!(rows.into_iter().all(|row| row.change.is_none()));
}

#[tokio::test]
async fn what_has_no_accounts_is_of_samples() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut by_comm = request();
    by_comm.service_label = "comm".to_owned();
    let answer = client.overview(by_comm).await.expect("an answer");
    let answer = answer.into_inner();
    assert!(!answer.accounted);
    // One sample of ten nanoseconds in each window of two hosts.
    let row = named(&answer.services, "");
    assert!((row.cores - 2e-9).abs() < 1e-10, "{row:?}");
}

#[tokio::test]
async fn a_series_of_accounts_is_right_where_samples_say_otherwise() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut series = async |by: &str| {
        let request = wire::SeriesRequest {
            selection: request().selection,
            group_by: vec![by.to_owned()],
            accounted: true,
            ..wire::SeriesRequest::default()
        };
        client
            .series(request)
            .await
            .expect("an answer")
            .into_inner()
    };
    let by_unit = series("unit").await;
    assert!(by_unit.accounted);
    assert_eq!(by_unit.lines.len(), 1);
    let ns: u64 = (61..=120)
        .map(|at| cores_at("a", at) + cores_at("b", at))
        .sum();
    assert_eq!(by_unit.lines[0].total_weight, ns * 100_000_000);
    let quality = by_unit.quality.expect("quality");
    assert_eq!(quality.unit, "nanoseconds");
    assert_eq!(
        (quality.total_count, quality.total_weight),
        (120, ns * 100_000_000)
    );
    assert!(by_unit.steps.iter().all(|step| step.hosts == 2));
    let by_comm = series("comm").await;
    assert!(!by_comm.accounted, "the kernel does not account by it");
    assert_eq!(by_comm.lines[0].total_weight, 1200);
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    let mut filtered = request();
    let filter = agent::FrameFilter {
        op: agent::FrameFilterOp::Keep.into(),
        regex: "read".to_owned(),
    };
    filtered.selection.as_mut().expect("some").frame_filters = vec![filter];
    let mut by_host = request();
    by_host.service_label = "host".to_owned();
    let mut reversed = request();
    reversed.baseline = range(10, 5);
    for request in [filtered, by_host, reversed] {
        let refused = client.overview(request).await.expect_err("no sense");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
}
