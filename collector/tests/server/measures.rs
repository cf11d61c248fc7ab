//! Metrics from profiles: what stands in `/metrics`, and what does not because nobody knows it.

use crate::alerts::Play;
use crate::rig::{Options, SECOND};
use crate::web::get;
use collector::config::MeasureEntry;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn entry(name: &str, change: impl FnOnce(&mut MeasureEntry)) -> MeasureEntry {
    let mut entry = MeasureEntry {
        name: name.to_owned(),
        ..MeasureEntry::default()
    };
    change(&mut entry);
    entry
}

async fn play(measures: Vec<MeasureEntry>, hosts: &[&str]) -> Play {
    let options = Options {
        measures,
        ..Options::default()
    };
    Play::start(options, hosts).await
}

/// The lines of what is measured.
async fn shown(play: &Play) -> Vec<String> {
    let reply = get(&play.rig, "/metrics").await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(reply.body).expect("text");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("fleetprof_measured"));
    lines.map(str::to_owned).collect()
}

/// Two minutes in which hosts do this, and a round.
async fn round(play: &mut Play, cores: impl Fn(&str) -> Option<f64>) {
    play.rig.clock.fetch_add(120 * SECOND, Ordering::Relaxed);
    play.send(&cores).await;
    play.rig.measures.round().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cores_of_each_value_of_a_label_stand_in_the_metrics() {
    let measures = vec![
        entry("cpu", |of| of.by = "unit".into()),
        entry("hosts", |of| {
            (of.by, of.selector) = ("host".into(), "unit=\"web.service\"".into());
        }),
    ];
    let mut play = play(measures, &["a", "b"]).await;
    round(&mut play, |host| Some(if host == "a" { 1.5 } else { 2.0 })).await;
    let expected = [
        "fleetprof_measured_cores{measure=\"cpu\",unit=\"web.service\"} 3.5",
        "fleetprof_measured_cores{measure=\"hosts\",host=\"a\",unit=\"web.service\"} 1.5",
        "fleetprof_measured_cores{measure=\"hosts\",host=\"b\",unit=\"web.service\"} 2.0",
        "fleetprof_measured_dropped{measure=\"cpu\"} 0",
        "fleetprof_measured_dropped{measure=\"hosts\"} 0",
        "fleetprof_measured_unknown{measure=\"cpu\"} 0",
        "fleetprof_measured_unknown{measure=\"hosts\"} 0",
    ];
    assert_eq!(shown(&play).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sum_with_a_silent_host_is_not_shown_as_less() {
    let measures = vec![
        entry("all", |_| ()),
        entry("hosts", |of| of.by = "host".into()),
    ];
    let mut play = play(measures, &["a", "b"]).await;
    round(&mut play, |_| Some(2.0)).await;
    assert!(
        shown(&play)
            .await
            .contains(&"fleetprof_measured_cores{measure=\"all\"} 4.0".to_owned())
    );
    round(&mut play, |host| (host == "a").then_some(2.0)).await;
    let expected = [
        "fleetprof_measured_cores{measure=\"hosts\",host=\"a\"} 2.0",
        "fleetprof_measured_dropped{measure=\"all\"} 0",
        "fleetprof_measured_dropped{measure=\"hosts\"} 0",
        "fleetprof_measured_unknown{measure=\"all\"} 1",
        "fleetprof_measured_unknown{measure=\"hosts\"} 1",
    ];
    assert_eq!(shown(&play).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_is_a_ratio_and_of_nothing_there_is_none() {
    let measures = vec![
        entry("reads", |of| of.function = "read".into()),
        entry("writes", |of| of.function = "/^wri/".into()),
    ];
    let mut play = play(measures, &["a"]).await;
    play.send_samples(&[("main;read", 30), ("main;loop", 90)])
        .await;
    play.rig.measures.round().await;
    let shares = |lines: Vec<String>| -> Vec<String> {
        let shares = lines.into_iter().filter(|line| line.contains("share"));
        shares.collect()
    };
    let expected = [
        "fleetprof_measured_share_ratio{measure=\"reads\"} 0.25",
        "fleetprof_measured_share_ratio{measure=\"writes\"} 0.0",
    ];
    assert_eq!(shares(shown(&play).await), expected);
    // Too little runs to say anything of a share.
    play.send_samples(&[("main;read", 1)]).await;
    play.rig.measures.round().await;
    assert!(shares(shown(&play).await).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_is_refused_leaves_no_old_number() {
    let mut options = Options {
        measures: vec![entry("cpu", |_| ())],
        ..Options::default()
    };
    options.query.timeout = Duration::from_millis(300);
    let mut play = Play::start(options, &["a"]).await;
    round(&mut play, |_| Some(2.0)).await;
    assert!(!shown(&play).await.is_empty());
    play.rig.store.hold(true);
    play.rig.measures.round().await;
    play.rig.store.hold(false);
    assert!(shown(&play).await.is_empty());
    assert_eq!(play.rig.metrics.measurements_failed.get(), 1);
}
