//! IngestService: what is remembered of hosts, and told of those in trouble.

use crate::ingest::{REFUSED, REPEATED, STORED};
use crate::rig::{NOW, PushStream, Rig, SECOND, hello, starting, until, window};
use collector::store::HostKey;
use proto::agent::{Degradation, Severity};
use proto::collector as wire;
use proto::collector::push_request;
use std::sync::atomic::Ordering;
use tonic::Code;

fn warnings(rig: &Rig) -> Vec<String> {
    rig.hosts.flush(&rig.open).expect("stored");
    let records = rig.store.host_records();
    let warnings = records
        .iter()
        .flat_map(|record| rig.hosts.verdict(record, 1, false).warnings());
    warnings.collect()
}

#[tokio::test]
async fn a_second_stream_of_a_boot_takes_over_from_the_first() {
    let rig = Rig::start().await;
    let mut first = rig.agent("a").await;
    assert_eq!(first.store(1, &["x"]).await.outcome, STORED);
    let mut second = rig.agent("a").await;
    assert_eq!(first.end().await.code(), Code::Aborted);
    assert_eq!(second.store(1, &["x"]).await.outcome, REPEATED);
    assert_eq!(rig.metrics.cut_superseded.get(), 1);
    // The first had just sent something: it is no leftover of a connection.
    let found = warnings(&rig);
    assert!(
        found.iter().any(|text| text.contains("two agents")),
        "{found:?}"
    );
}

#[tokio::test]
async fn two_boots_of_one_id_at_once_are_told() {
    let rig = Rig::start().await;
    let mut first = rig.agent("a").await;
    first.store(1, &["x"]).await;
    let mut second = PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
    second.hello(hello("a", 2)).await;
    second.store(1, &["x"]).await;
    assert!(warnings(&rig).is_empty(), "a reboot looks like this");
    first.store(2, &["x"]).await;
    let found = warnings(&rig);
    assert!(
        found.iter().any(|text| text.contains("two boots")),
        "{found:?}"
    );
    assert_eq!(rig.store.windows().len(), 3, "all of them are kept");
}

fn degradation(id: &str, severity: Severity) -> Degradation {
    Degradation {
        id: id.to_owned(),
        message: format!("{id} is so"),
        remedy: "do it".to_owned(),
        severity: severity.into(),
        since_unix_ns: NOW - SECOND,
    }
}

#[tokio::test]
async fn a_host_without_samples_is_told_with_why() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    agent.store(1, &["x"]).await;
    let mut well = rig.agent("b").await;
    well.store(1, &["x"]).await;
    let facts = wire::HostFacts {
        health: Some(wire::HostHealth {
            degradations: vec![
                degradation("cpu_budget", Severity::Warning),
                degradation("no_samples", Severity::Error),
            ],
            blind: true,
            stopping: false,
        }),
        ..hello("a", 1).facts.expect("facts")
    };
    agent.send(push_request::Body::Facts(facts)).await;
    // Facts have no answer: what is sent after them has one.
    agent.store(2, &["x"]).await;
    rig.hosts.flush(&rig.open).expect("stored");
    rig.hosts.look();
    let mut client = rig.queries().await;
    let range = Some(proto::agent::TimeRange::default());
    let answer = client.hosts(wire::HostsRequest { range }).await;
    let hosts = answer.expect("an answer").into_inner().hosts;
    let ids: Vec<_> = hosts[0].degradations.iter().map(|of| &*of.id).collect();
    assert_eq!(ids, ["no_samples", "cpu_budget"], "the most severe first");
    assert_eq!(hosts[0].warnings, ["no_samples is so", "cpu_budget is so"]);
    assert_eq!((hosts[0].blind, hosts[1].blind), (true, false));
    let status = client.status(wire::StatusRequest {}).await;
    let status = status.expect("an answer").into_inner();
    assert_eq!((status.hosts_blind, status.hosts_warned), (1, 1));
    let blind = &status.blind_hosts[0];
    assert_eq!((&*blind.host_id, &*blind.hostname), ("id-a", "a"));
    let why = blind.why.clone().expect("why");
    assert_eq!(why, degradation("no_samples", Severity::Error));
}

#[tokio::test]
async fn hosts_are_remembered_with_their_clock_and_the_day_they_came() {
    let rig = Rig::start().await;
    let mut agent = PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
    let late = wire::Hello {
        now_unix_ns: NOW - 90 * SECOND,
        ..hello("a", 1)
    };
    agent.hello(late).await;
    let found = warnings(&rig);
    assert!(found[0].contains("90.0 s behind"), "{found:?}");
    let key = HostKey {
        host_id: "id-a".to_owned(),
        boot_id: [1; 16],
    };
    assert!(rig.hosts.is_connected(&key));
    let record = rig.store.host_records().remove(0);
    assert_eq!(record.key, key);
    assert_eq!(record.facts.hostname, "a");
    assert_eq!(record.clock_ahead_ns, -90 * SECOND);
    rig.clock.store(NOW + SECOND, Ordering::Relaxed);
    agent.store(1, &["x"]).await;
    drop(agent);
    until("it is gone", || !rig.hosts.is_connected(&key)).await;
    rig.hosts.flush(&rig.open).expect("stored");
    let record = rig.store.host_records().remove(0);
    assert_eq!(record.first_seen_unix_ns, NOW);
    assert_eq!(record.last_seen_unix_ns, NOW + SECOND);
}

#[tokio::test]
async fn one_pause_of_an_agent_is_one_alarm() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let said = || {
        rig.hosts.flush(&rig.open).expect("stored");
        let record = rig.store.host_records().remove(0);
        let verdict = rig.hosts.verdict(&record, 1, false);
        let first = verdict.degradations.first();
        first.map(|of| (of.id.clone(), of.message.clone()))
    };
    assert_eq!(agent.store(1, &["x"]).await.outcome, STORED);
    // Answered after the first window was: a window of no length is refused.
    let mut part = window(2, &[]);
    part.facts.as_mut().expect("facts").duration_ns = 0;
    agent.part(part).await;
    assert_eq!(agent.ack().await.outcome, REFUSED);
    assert_eq!(said(), None);

    let alarm = NOW + 46 * SECOND;
    rig.clock.store(alarm, Ordering::Relaxed);
    let (id, message) = said().expect("an alarm");
    assert_eq!(id, "no_windows");
    assert!(
        message.contains("no window has arrived for 46 s"),
        "{message}"
    );
    // What had closed before the pause.
    assert_eq!(agent.store(2, &["x"]).await.outcome, STORED);
    let (id, message) = said().expect("the same alarm");
    assert_eq!(id, "no_windows");
    assert!(message.contains("from before the pause"), "{message}");
    let now = starting(alarm - 5 * SECOND, window(3, &[]));
    assert_eq!(agent.store_part(now, &[]).await.outcome, STORED);
    assert_eq!(said(), None);
}
