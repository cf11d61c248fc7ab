//! Sums that 64 bits of cycles do not hold, as every call answers with them.

use crate::rig::{NOW, Options, Rig, SECOND, starting, window};
use crate::web::get;
use proto::collector as wire;
use proto::{ProfileAssembler, agent};

/// Cycles of each host: two of them overflow, each in an hour of its own does not.
const CYCLES: u64 = 1 << 63;

/// The same in the answers' unit.
const KILOCYCLES: u64 = 9_223_372_036_854_776;

/// A rig whose hosts `a`, `b` and `c` have a window each, an hour apart, and `d` one of little.
async fn filled() -> Rig {
    let rig = Rig::with(Options::default()).await;
    for (host, hours_ago, weight) in [
        ("a", 3, CYCLES),
        ("b", 2, CYCLES),
        ("c", 1, CYCLES),
        ("d", 0, 4600),
    ] {
        let mut part = starting(start(hours_ago), window(1, &["main;read"]));
        part.facts.as_mut().expect("facts").unit = "cycles".to_owned();
        part.sample_weights = vec![weight];
        let ack = rig.agent(host).await.store_part(part, &["main;read"]).await;
        assert_eq!(ack.outcome, wire::Outcome::Stored as i32, "{}", ack.reason);
    }
    rig.hosts.flush(&rig.open).expect("stored");
    rig
}

/// A time in the middle of an hour.
fn start(hours_ago: i64) -> i64 {
    (NOW / (3600 * SECOND) - hours_ago) * 3600 * SECOND + 300 * SECOND
}

fn selection(hosts: &str) -> Option<wire::Selection> {
    Some(wire::Selection {
        range: Some(agent::TimeRange {
            start_unix_ns: start(4),
            end_unix_ns: NOW,
        }),
        selector: format!("host=~\"{hosts}\""),
        ..wire::Selection::default()
    })
}

/// The quality of an answer about all of `a`, `b` and `c`.
fn assert_exact(quality: Option<wire::DataQuality>) {
    let quality = quality.expect("quality");
    assert_eq!(quality.unit, "kilocycles");
    assert_eq!(
        (quality.total_weight, quality.total_count),
        (3 * KILOCYCLES, 3)
    );
    assert!(!quality.weights_capped);
}

#[tokio::test]
async fn tables_and_charts_of_large_sums_add_up() {
    let rig = filled().await;
    let mut client = rig.queries().await;
    for by in ["function", "module", "unit"] {
        let request = wire::TopRequest {
            selection: selection("[abc]"),
            by: by.to_owned(),
            ..wire::TopRequest::default()
        };
        let top = client.top(request).await.expect("an answer").into_inner();
        assert_exact(top.quality);
        assert_eq!(top.rows[0].self_weight, 3 * KILOCYCLES, "{by}");
    }
    let request = wire::CgroupsRequest {
        selection: selection("[abc]"),
    };
    let cgroups = client.cgroups(request).await.expect("an answer");
    let cgroups = cgroups.into_inner();
    assert_exact(cgroups.quality);
    assert!(
        cgroups
            .cgroups
            .iter()
            .all(|row| row.total_weight == 3 * KILOCYCLES)
    );
    let request = wire::SeriesRequest {
        selection: selection("[abc]"),
        step_ns: 12 * 3600 * SECOND as u64,
        ..wire::SeriesRequest::default()
    };
    let series = client.series(request).await.expect("an answer");
    let series = series.into_inner();
    assert_eq!(series.lines[0].total_weight, 3 * KILOCYCLES);
    assert!(!series.quality.expect("quality").weights_capped);
}

#[tokio::test]
async fn hosts_that_overflow_together_are_told_in_one_unit() {
    let rig = filled().await;
    let range = Some(agent::TimeRange {
        start_unix_ns: start(4),
        end_unix_ns: NOW,
    });
    let request = wire::HostsRequest { range };
    let hosts = rig.queries().await.hosts(request).await;
    let hosts = hosts.expect("an answer").into_inner();
    let quality = hosts.quality.expect("quality");
    assert_eq!(quality.unit, "kilocycles");
    assert_eq!(quality.total_weight, 3 * KILOCYCLES + 5);
    assert!(!quality.weights_capped);
    let rows = hosts
        .hosts
        .iter()
        .map(|host| (host.unit.as_str(), host.weight));
    let large = ("kilocycles", KILOCYCLES);
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [large, large, large, ("kilocycles", 5)]
    );
}

#[tokio::test]
async fn sides_of_a_comparison_meet_in_one_unit() {
    let rig = filled().await;
    let request = wire::DiffRequest {
        before: selection("[abc]"),
        after: selection("d"),
        ..wire::DiffRequest::default()
    };
    let diff = rig.queries().await.diff(request).await;
    let diff = diff.expect("an answer").into_inner();
    assert_exact(diff.before);
    let after = diff.after.expect("quality");
    assert_eq!((after.unit.as_str(), after.total_weight), ("kilocycles", 5));
    let row = diff.rows.iter().find(|row| row.name == "read");
    let row = row.expect("the function that ran");
    assert_eq!(row.before_self_weight, 3 * KILOCYCLES);
    assert_eq!((row.after_self_weight, row.share_change), (5, 0.0));
}

#[tokio::test]
async fn profiles_of_large_sums_are_whole() {
    let rig = filled().await;
    let request = wire::ProfileRequest {
        selection: selection("[abc]"),
        ..wire::ProfileRequest::default()
    };
    let parts = rig.queries().await.profile(request).await;
    let mut parts = parts.expect("an answer").into_inner();
    let (mut quality, mut assembler) = (None, ProfileAssembler::default());
    while let Some(part) = parts.message().await.expect("a part") {
        quality = quality.or(part.quality);
        if let Some(chunk) = part.chunk {
            assembler.push(chunk).expect("a chunk");
        }
    }
    assert_exact(quality);
    let profile = assembler.finish().expect("a profile");
    assert_eq!(profile.info.unit, "kilocycles");
    assert_eq!(profile.total().weight, 3 * KILOCYCLES);
}

#[tokio::test]
async fn files_of_large_sums_are_written() {
    let rig = filled().await;
    // They were refused while sums stood at the largest number.
    for (format, text) in [
        ("pprof", ""),
        ("json", "\"unit\":\"kilocycles\""),
        ("svg", "kilocycles"),
        ("folded", "main;read"),
    ] {
        let path = format!("/api/profile.{format}?from={}&to={NOW}", start(4));
        let reply = get(&rig, &path).await;
        assert_eq!(reply.status, 200, "{format}: {}", reply.text());
        assert!(reply.text().contains(text), "{format}: {}", reply.text());
    }
}
