//! What is on record of what people did, and that the record shows if somebody changed it.

use crate::identity::{hello_of, now, start, start_in};
use crate::program::Program;
use crate::rig::{channel, until};
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{
    AuditRequest, CancelFleetCaptureRequest, FleetCaptureRequest, InviteRequest, Role,
    StatusRequest, VerifyAuditRequest,
};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::SmallDisk;
use testkit::fake::control::{Does, connect};
use testkit::fake::member::Host;
use tonic::Code;
use tonic::transport::Channel;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_on_record_with_who_did_it() {
    let running = start().await;
    let token = running.token("anna", Role::Admin).await;
    let asking = running.as_(&token).await;
    let mut admin = FleetServiceClient::new(asking.clone());
    let invited = admin.invite(InviteRequest {
        name: "web-1".to_owned(),
        ..InviteRequest::default()
    });
    let invitation = invited.await.expect("one").into_inner().credential;
    let host = Host::new("web");
    let joined = host.join(running.tls(), &invitation, now()).await;
    joined.expect("a member");
    let agent = connect(running.at.grpc, hello_of("db"), Does::Refuses, || {
        now() * 1_000_000_000
    });
    let _agent = agent.await.expect("a welcome");
    let request = FleetCaptureRequest {
        host_ids: vec![hello_of("db").host_id],
        capture: Some(proto::agent::CaptureRequest {
            duration_ns: 1_000_000,
            who: "somebody else".to_owned(),
            reason: "it is slow".to_owned(),
            ..proto::agent::CaptureRequest::default()
        }),
        ..FleetCaptureRequest::default()
    };
    let mut captures = CaptureServiceClient::new(asking);
    let started = captures.capture(request).await;
    let mut stream = started.expect("a stream").into_inner();
    while stream.message().await.expect("a part").is_some() {}
    running.remove("anna").await;
    let expected = [
        ("start", "collector"),
        ("user-add", "local"),
        ("login", "anna"),
        ("invite", "anna"),
        ("join", "web-1"),
        ("capture", "anna"),
        ("user-remove", "local"),
    ];
    // How something ended is written next to the answer, not before it.
    let mut lines = running.audit().await;
    for _ in 0..200 {
        let is_there = |action: &str| {
            let done = |line: &Value| line["action"] == action && line["outcome"] == "done";
            lines.iter().any(done)
        };
        if expected.iter().all(|(action, _)| is_there(action)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        lines = running.audit().await;
    }
    let of = |action: &str, outcome: &str| {
        let found = lines
            .iter()
            .find(|line| line["action"] == action && line["outcome"] == outcome);
        found
            .unwrap_or_else(|| panic!("no {action} {outcome}: {lines:#?}"))
            .clone()
    };
    for (action, who) in expected {
        assert_eq!(of(action, "done")["who"], who, "{action}");
    }
    let begun = of("capture", "started");
    assert_eq!(begun["role"], "admin");
    assert_eq!(begun["what"]["reason"], "it is slow");
    assert_eq!(begun["what"]["hosts"], 1);
    let ended = of("capture", "done");
    assert_eq!(ended["what"]["failed"], 1);
    let refusals = ended["what"]["refusals"].as_array().expect("a list");
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    // No secret is in it.
    let text = serde_json::to_string(&lines).expect("text");
    assert!(!text.contains("fpu1_") && !text.contains("fpj1_"));
    let found = running.verify().await;
    assert_eq!(found.problems, Vec::<String>::new());
    assert!(found.lines >= lines.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_edited_behind_the_collectors_back_is_found() {
    let running = start().await;
    running.token("anna", Role::Admin).await;
    running.token("ben", Role::Viewer).await;
    assert!(running.verify().await.problems.is_empty());
    let folder = running.dir.path().join("audit");
    let file = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let file = file.expect("a file");
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, text.replacen("anna", "emma", 1)).expect("written");
    assert!(!running.verify().await.problems.is_empty());
    let running = running.restart().await;
    assert!(!running.verify().await.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_disk_what_must_be_on_record_is_refused_and_reads_go_on() {
    let Some(disk) = SmallDisk::mount("256k") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(disk.path(), dir.path().join("audit")).expect("a link");
    let running = start_in(dir, Arc::default()).await;
    let token = running.token("anna", Role::Admin).await;
    running.token("ben", Role::Viewer).await;
    let asking = running.as_(&token).await;
    let filler = disk.path().join("filler");
    // Until nothing fits any more.
    let full = std::fs::write(&filler, vec![0; 1 << 20]);
    assert!(full.is_err());
    let mut admin = FleetServiceClient::new(asking.clone());
    let mut refused = None;
    for _ in 0..100 {
        // What is left of the last page takes some lines.
        if let Err(status) = admin.invite(InviteRequest::default()).await {
            refused = Some(status);
            break;
        }
    }
    let refused = refused.expect("refused");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("audit log"), "{refused}");
    let cancel = CancelFleetCaptureRequest { id: 1 };
    let cancelled = CaptureServiceClient::new(asking.clone())
        .cancel(cancel)
        .await;
    assert_eq!(cancelled.expect_err("refused").code(), Code::Unavailable);
    let mut queries = QueryServiceClient::new(asking);
    let status = queries.status(StatusRequest {}).await;
    let status = status.expect("reads go on").into_inner();
    let failing = status
        .counters
        .iter()
        .find(|counter| counter.name == "fleetprof_collector_audit_failing");
    assert_eq!(failing.map(|counter| counter.value), Some(1));
    // A disk that is full keeps nobody in.
    running.remove("ben").await;
    // With room it goes on, and nothing of what failed is in the way.
    std::fs::remove_file(&filler).expect("removed");
    admin.invite(InviteRequest::default()).await.expect("one");
    let found = running.verify().await;
    assert_eq!(found.problems, Vec::<String>::new());
}

/// How often each action is on record.
async fn actions(access: &mut AccessServiceClient<Channel>) -> BTreeMap<String, u64> {
    let answer = access.audit(AuditRequest::default()).await;
    let mut answer = answer.expect("a log").into_inner();
    let mut counts = BTreeMap::new();
    while let Some(part) = answer.message().await.expect("a part") {
        for line in part.lines {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            let action = line["action"].as_str().expect("text").to_owned();
            *counts.entry(action).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_killed_in_the_middle_of_a_line_keeps_the_chain() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = 0_u64;
    for _ in 0..3 {
        let program = Program::start(dir.path());
        let connection = channel(program.grpc).await;
        let (tell, told) = tokio::sync::watch::channel(0_u64);
        let mut writers = Vec::new();
        for _ in 0..8 {
            let (mut client, tell) = (CaptureServiceClient::new(connection.clone()), tell.clone());
            writers.push(tokio::spawn(async move {
                loop {
                    // Refused as unknown, and on record before that.
                    let cancel = CancelFleetCaptureRequest { id: 7 };
                    match client.cancel(cancel).await {
                        Err(status) if status.code() == Code::NotFound => {
                            tell.send_modify(|count| *count += 1);
                        }
                        _ => return,
                    }
                }
            }));
        }
        until("some are written", || *told.borrow() > 50).await;
        program.end(Signal::KILL);
        for writer in writers {
            writer.await.expect("no panic");
        }
        acknowledged += *told.borrow();
    }
    let program = Program::start(dir.path());
    let mut access = AccessServiceClient::new(channel(program.grpc).await);
    let found = access.verify_audit(VerifyAuditRequest {}).await;
    let found = found.expect("a verdict").into_inner();
    assert_eq!(found.problems, Vec::<String>::new());
    // Nobody waits for the line of a start.
    let mut counts = actions(&mut access).await;
    while counts["start"] < 4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        counts = actions(&mut access).await;
    }
    assert!(counts["capture-cancel"] >= acknowledged, "{counts:?}");
}
