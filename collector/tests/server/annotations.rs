//! Annotations: over HTTP as pipelines send them, over gRPC, found in what agents bring, and after
//! a restart.

use crate::rig::{NOW, Options, Rig, SECOND, hello, labels, window};
use crate::web::{get, send};
use proto::collector as wire;
use proto::collector::annotation_service_client::AnnotationServiceClient;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::Code;

const JSON: &str = "Content-Type: application/json\r\n";

async fn list(rig: &Rig) -> Vec<wire::Annotation> {
    let mut client = AnnotationServiceClient::new(rig.channel().await);
    let answer = client.list(wire::ListAnnotationsRequest::default()).await;
    answer.expect("a list").into_inner().annotations
}

/// The annotations, once there are so many.
async fn listed(rig: &Rig, count: usize) -> Vec<wire::Annotation> {
    for _ in 0..1500 {
        let found = list(rig).await;
        if found.len() >= count {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{count} annotations never came: {:?}", list(rig).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_adds_one_by_http_and_it_is_there_once_and_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = || Options {
        annotations_dir: Some(dir.path().to_owned()),
        ..Options::default()
    };
    let rig = Rig::with(options()).await;
    let body = r#"{"text":"api v42","kind":"deploy","labels":{"unit":"api.service"},
        "url":"https://ci.example.net/7","time":"2023-11-14T22:10:00Z"}"#;
    let added = send(&rig, "POST", "/api/annotations", JSON, body).await;
    assert_eq!(added.status, 201, "{}", added.text());
    assert!(added.text().contains(r#""by":"local""#), "{}", added.text());
    let again = send(&rig, "POST", "/api/annotations", JSON, body).await;
    assert_eq!(again.status, 200, "a repeat adds nothing");
    let before = list(&rig).await;
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].start_unix_ns, NOW - 200 * SECOND);
    let shown = get(
        &rig,
        "/api/annotations?from=2023-11-14T22:00:00Z&kind=deploy",
    )
    .await;
    assert!(
        shown.text().contains(r#""time":"2023-11-14T22:10:00Z""#),
        "{}",
        shown.text()
    );
    for path in [
        "?from=2023-11-14T22:11:00Z",
        "?to=2023-11-14T22:10:00Z",
        "?kind=note",
    ] {
        let shown = get(&rig, &format!("/api/annotations{path}")).await;
        assert_eq!(shown.text(), r#"{"annotations":[],"left_out":0}"#, "{path}");
    }
    rig.stop.send(true).expect("it listens");
    let rig = Rig::with(options()).await;
    assert_eq!(list(&rig).await, before);
    let mut client = AnnotationServiceClient::new(rig.channel().await);
    let gone = wire::DeleteAnnotationRequest { id: before[0].id };
    client.delete(gone).await.expect("it is removed");
    let status = client.delete(gone).await.expect_err("it is gone");
    assert_eq!(status.code(), Code::NotFound);
    assert!(list(&rig).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_sites_forms_and_what_is_too_large_add_nothing() {
    let rig = Rig::start().await;
    let body = r#"{"text":"x"}"#;
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(40_000));
    for (what, head, body, status) in [
        ("a form", "Content-Type: text/plain\r\n", body, 415),
        ("nothing said", "", body, 415),
        (
            "another origin",
            "Content-Type: application/json\r\nOrigin: http://evil.example\r\n",
            body,
            403,
        ),
        (
            "another site",
            "Content-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n",
            body,
            403,
        ),
        ("no JSON", JSON, "text=x", 400),
        (
            "a script",
            JSON,
            r#"{"text":"x","url":"javascript:alert(1)"}"#,
            400,
        ),
        ("too large", JSON, &large, 413),
    ] {
        let reply = send(&rig, "POST", "/api/annotations", head, body).await;
        assert_eq!(reply.status, status, "{what}: {}", reply.text());
    }
    assert!(list(&rig).await.is_empty());
}

/// A window whose samples are of an image.
fn of_image(number: u64, image: &str) -> wire::WindowPart {
    let mut part = window(number, &["main"]);
    part.label_sets = vec![labels(&[("cgroup", "/a"), ("image", image)])];
    part
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deploys_are_found_once_over_hosts_and_not_again_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = || Options {
        annotations_dir: Some(dir.path().to_owned()),
        ..Options::default()
    };
    let rig = Rig::with(options()).await;
    // Opened before the agents come.
    assert!(list(&rig).await.is_empty());
    let mut agents = [rig.agent("web-1").await, rig.agent("web-2").await];
    for agent in &mut agents {
        agent.store_part(of_image(1, "api:v41"), &["main"]).await;
    }
    rig.clock.fetch_add(3600 * SECOND, Ordering::Relaxed);
    for agent in &mut agents {
        agent.store_part(of_image(2, "api:v42"), &["main"]).await;
    }
    for version in ["1.0.0", "9.9.9"] {
        let mut facts = hello("web-1", 1).facts.expect("facts");
        facts.agent_version = version.to_owned();
        agents[0].send(wire::push_request::Body::Facts(facts)).await;
    }
    let found = listed(&rig, 2).await;
    let texts: Vec<&str> = found.iter().map(|of| of.text.as_str()).collect();
    assert_eq!(texts[0], "fleetprofd 9.9.9 (was 1.0.0)");
    assert_eq!(texts[1], "api: image v42 (was v41)");
    assert!(
        found
            .iter()
            .all(|of| of.kind == "deploy" && of.by == "collector")
    );
    rig.annotations.close();
    assert_eq!(list(&rig).await[1].hosts, 2);
    rig.stop.send(true).expect("it listens");
    drop(agents);
    let rig = Rig::with(options()).await;
    rig.clock.fetch_add(7200 * SECOND, Ordering::Relaxed);
    assert_eq!(list(&rig).await.len(), 2);
    let mut agent = rig.agent("web-3").await;
    agent.store_part(of_image(3, "api:v42"), &["main"]).await;
    agent.store_part(of_image(4, "api:v41"), &["main"]).await;
    agent.store_part(of_image(5, "api:v43"), &["main"]).await;
    let found = listed(&rig, 3).await;
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().any(|of| of.text == "api: image v43 (was v42)"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_directory_people_are_told_why_and_agents_go_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("annotations");
    std::fs::write(&path, b"in the way").expect("a file");
    let rig = Rig::with(Options {
        annotations_dir: Some(path),
        ..Options::default()
    })
    .await;
    let reply = send(&rig, "POST", "/api/annotations", JSON, r#"{"text":"x"}"#).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.text().contains("data_dir"), "{}", reply.text());
    let mut agent = rig.agent("web-1").await;
    agent.store_part(of_image(1, "api:v41"), &["main"]).await;
}

/// Facts of a host with builds of units.
fn running(host: &str, builds: &[(&str, &str, i64)]) -> wire::HostFacts {
    let builds = builds.iter();
    let programs = builds.map(|&(unit, build_id, since_unix_ns)| wire::Program {
        labels: [("unit".to_owned(), unit.to_owned())].into(),
        module: "api".to_owned(),
        build_id: build_id.to_owned(),
        since_unix_ns,
    });
    wire::HostFacts {
        programs: programs.collect(),
        ..hello(host, 1).facts.expect("facts")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn builds_that_agents_report_are_found_once_with_their_hosts_and_lies_are_not() {
    let rig = Rig::start().await;
    // Opened before the agents come.
    assert!(list(&rig).await.is_empty());
    let (old, new) = ("0a0a0a0a0a0a0a0a", "0b0b0b0b0b0b0b0b");
    let ago = |minutes: i64| NOW - minutes * 60 * SECOND;
    let odd = [
        ("api.service", "no build id", ago(5)),
        ("api.service", "0c0c0c0c0c0c0c0c", 0),
        ("", "0d0d0d0d0d0d0d0d", ago(5)),
    ];
    // A stream that ends is not read to its end.
    let mut agents = Vec::new();
    for name in ["web-1", "web-2", "web-3"] {
        let agent = rig.agent(name).await;
        let say = |builds: &[_]| wire::push_request::Body::Facts(running(name, builds));
        agent.send(say(&[("api.service", old, ago(90))])).await;
        let mut both = vec![("api.service", old, ago(90)), ("api.service", new, ago(10))];
        both.extend(odd);
        if name != "web-3" {
            agent.send(say(&both)).await;
            agent.send(say(&both)).await;
        } else {
            agent.send(say(&[odd[0], odd[1], odd[2]])).await;
        }
        agents.push(agent);
    }
    let mut found = listed(&rig, 1).await;
    for _ in 0..500 {
        if found[0].hosts == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        found = list(&rig).await;
    }
    let [deploy] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        deploy.text,
        "api.service: build 0b0b0b0b0b0b of api (was 0a0a0a0a0a0a)"
    );
    assert_eq!(deploy.start_unix_ns, ago(10));
    assert_eq!(deploy.host_names, ["web-1", "web-2"]);
    let shown = get(&rig, "/api/annotations").await;
    let names = r#""hosts":2,"host_names":["web-1","web-2"]"#;
    assert!(shown.text().contains(names), "{}", shown.text());
}
