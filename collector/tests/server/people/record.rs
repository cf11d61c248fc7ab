//! What is on record of what people did, and that the record shows if somebody changed it.

use crate::identity::{Running, hello_of, now, start, start_in};
use crate::login::{Site, with_https};
use crate::program::Program;
use crate::rig::{channel, until};
use prost::Message;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::{
    AddUserRequest, AuditRequest, CancelFleetCaptureRequest, FleetCaptureRequest, InviteRequest,
    ListSymbolsRequest, Role, StatusRequest, VerifyAuditRequest,
};
use proto::credential::Credential;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use testkit::SmallDisk;
use testkit::fake::control::{Does, connect};
use testkit::fake::member::{EnrollError, Host};
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
    let mut captures = CaptureServiceClient::new(asking.clone());
    let mut code = Code::NotFound;
    for _ in 0..100 {
        // A line that is shorter may still fit.
        let cancel = CancelFleetCaptureRequest { id: 1 };
        code = captures.cancel(cancel).await.expect_err("refused").code();
        if code != Code::NotFound {
            break;
        }
    }
    assert_eq!(code, Code::Unavailable);
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

/// The first line on record that is one, which may take a moment.
async fn line(running: &Running, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..200 {
        if let Some(line) = running.audit().await.into_iter().find(&is_it) {
            return line;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no line of {what}: {:#?}", running.audit().await)
}

fn is_failed(line: &Value, why: &str) -> bool {
    let outcome = line["outcome"].as_str().unwrap_or_default();
    outcome.starts_with("failed: ") && outcome.contains(why)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invitation_and_who_came_by_it_are_on_record_with_labels() {
    let running = start().await;
    let labels = [("cluster".to_owned(), "eu".to_owned())];
    let request = InviteRequest {
        labels: labels.into(),
        lifetime_s: 600,
        ..InviteRequest::default()
    };
    let invitation = running.invite(request).await;
    let host = Host::new("web");
    let joined = host.join(running.tls(), &invitation, now()).await;
    joined.expect("a member");
    let is_of = |action: &'static str| {
        move |line: &Value| line["action"] == action && line["outcome"] == "done"
    };
    let invited = line(&running, "the invitation", is_of("invite")).await;
    assert_eq!(invited["what"]["labels"]["cluster"], "eu");
    assert_eq!(invited["what"]["lifetime_s"], 600);
    let id = invited["what"]["invitation"].as_str().expect("text");
    let joined = line(&running, "the host", is_of("join")).await;
    assert_eq!(joined["what"]["invitation"], id);
    assert_eq!(joined["what"]["labels"]["cluster"], "eu");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_not_let_in_are_on_record() {
    let (running, other) = (start().await, start().await);
    let invite = || running.invite(InviteRequest::default());
    let refused = async |host: &Host, invitation: &str| {
        let joined = host.join(running.tls(), invitation, now()).await;
        assert!(matches!(joined, Err(EnrollError::Refused(_))), "{joined:?}");
    };
    let used = invite().await;
    let first = Host::new("first").join(running.tls(), &used, now()).await;
    first.expect("a member");
    refused(&Host::new("second"), &used).await;
    let short = InviteRequest {
        lifetime_s: 1,
        ..InviteRequest::default()
    };
    let expired = running.invite(short).await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    refused(&Host::new("third"), &expired).await;
    // A copy of the first one's machine, with a key of its own.
    refused(&Host::new("first"), &invite().await).await;
    // An invitation of another collector, whose fingerprint somebody changed to this one's.
    let foreign = other.invite(InviteRequest::default()).await;
    let mut foreign = Credential::parse(&foreign).expect("one");
    foreign.authority = Credential::parse(&used).expect("one").authority;
    refused(&Host::new("fourth"), &foreign.reveal()).await;
    for (host, why) in [
        ("second", "used up"),
        ("third", "expired"),
        ("first", "with another key"),
        ("fourth", "not from this collector"),
    ] {
        let line = line(&running, host, |line| {
            let is_host = line["what"]["hostname"] == host;
            line["action"] == "join" && is_host && is_failed(line, why)
        });
        let line = line.await;
        let peer = line["peer"].as_str().expect("text");
        assert!(peer.starts_with("127.0.0.1:"), "{line}");
        assert!(line["what"]["invitation"].is_string(), "{line}");
    }
    let text = serde_json::to_string(&running.audit().await).expect("text");
    assert!(!text.contains("fpj1_"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_not_let_in_again_and_again_are_a_sum() {
    let running = start().await;
    let used = running.invite(InviteRequest::default()).await;
    let first = Host::new("first").join(running.tls(), &used, now()).await;
    first.expect("a member");
    let second = Host::new("second");
    for _ in 0..40 {
        let joined = second.join(running.tls(), &used, now()).await;
        assert!(joined.is_err());
    }
    // The sum is written when the minute is over, or the collector ends.
    let running = running.restart().await;
    let lines = running.audit().await;
    check_summed(&lines, 40, |line| {
        line["action"] == "join" && is_failed(line, "")
    });
}

/// So many refusals are on record: ten by themselves, the others as sums.
fn check_summed(lines: &[Value], all: u64, is_one: impl Fn(&Value) -> bool) {
    let found: Vec<_> = lines.iter().filter(|line| is_one(line)).collect();
    let counts = found.iter().map(|line| line["what"]["count"].as_u64());
    let counted: u64 = counts.map(|count| count.unwrap_or(1)).sum();
    assert_eq!(counted, all, "{found:#?}");
    assert!(found.len() <= 12, "{found:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_role_may_not_is_on_record_and_summed() {
    let site = Site::with(with_https).await;
    let running = &site.running;
    let token = running.token("vera", Role::Viewer).await;
    let mut admin = FleetServiceClient::new(running.as_(&token).await);
    for _ in 0..40 {
        let refused = admin.invite(InviteRequest::default()).await;
        assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
    }
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["who"] == "vera"
    });
    let denied = denied.await;
    assert_eq!(denied["role"], "viewer");
    assert_eq!(denied["what"]["call"], "FleetService/Invite");
    assert!(is_failed(&denied, "`admin` may"), "{denied}");
    // By the page's listener, too.
    let token = running.token("otto", Role::Viewer).await;
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let posted = site.ask("POST", "/api/annotations", &bearer, "{}").await;
    assert_eq!(posted.status, 403);
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["who"] == "otto"
    });
    assert_eq!(denied.await["what"]["call"], "api/annotations");
    // And a host that asks what people ask.
    let (host, membership) = running.member("a").await;
    let own = host.connect(running.tls(), &membership).await;
    let asked = QueryServiceClient::new(own.expect("a connection"))
        .status(StatusRequest {})
        .await;
    asked.expect_err("refused");
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["who"] == "a"
    });
    assert_eq!(denied.await["what"]["call"], "QueryService/Status");
    let running = site.running.restart().await;
    let lines = running.audit().await;
    check_summed(&lines, 40, |line| {
        line["action"] == "denied" && line["who"] == "vera"
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_scope_leaves_out_is_on_record_and_summed() {
    let site = Site::with(with_https).await;
    let running = &site.running;
    let token = running.add(AddUserRequest {
        name: "olga".to_owned(),
        role: Role::Operator.into(),
        scope: "team=\"web\"".to_owned(),
        ..AddUserRequest::default()
    });
    let token = token.await;
    let mut symbols = SymbolServiceClient::new(running.as_(&token).await);
    for _ in 0..40 {
        let refused = symbols.list(ListSymbolsRequest { limit: 0 }).await;
        assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
    }
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["who"] == "olga"
    });
    let denied = denied.await;
    assert_eq!(denied["role"], "operator");
    assert_eq!(denied["what"]["call"], "SymbolService/List");
    assert!(is_failed(&denied, "complete fleet"), "{denied}");
    // Over HTTP, too.
    let token = running.add(AddUserRequest {
        name: "otto".to_owned(),
        role: Role::Operator.into(),
        scope: "team=\"web\"".to_owned(),
        ..AddUserRequest::default()
    });
    let token = token.await;
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let asked = site.ask("GET", "/metrics", &bearer, "").await;
    assert_eq!(asked.status, 403);
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["who"] == "otto"
    });
    let denied = denied.await;
    assert_eq!(denied["what"]["call"], "metrics");
    assert!(is_failed(&denied, "complete fleet"), "{denied}");
    // And a call of the page.
    let message = FleetCaptureRequest {
        host_ids: vec!["x".to_owned()],
        ..FleetCaptureRequest::default()
    };
    let mut body = vec![
        0,
        0,
        0,
        0,
        u8::try_from(message.encoded_len()).expect("short"),
    ];
    message.encode(&mut body).expect("room");
    let body = String::from_utf8(body).expect("ASCII");
    let head =
        format!("Authorization: Bearer {token}\r\nContent-Type: application/grpc-web+proto\r\n");
    let path = "/fleetprof.collector.v1.CaptureService/Capture";
    let asked = site.ask("POST", path, &head, &body).await;
    assert_eq!(asked.header("grpc-status"), Some("7"), "{asked:?}");
    let denied = line(running, "the refusal", |line| {
        line["action"] == "denied" && line["what"]["call"] == "CaptureService/Capture"
    });
    assert!(is_failed(&denied.await, "host ids"));
    let running = site.running.restart().await;
    let lines = running.audit().await;
    check_summed(&lines, 40, |line| {
        line["action"] == "denied" && line["who"] == "olga"
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_finds_no_host_is_on_record() {
    let running = start().await;
    let token = running.token("anna", Role::Operator).await;
    let mut captures = CaptureServiceClient::new(running.as_(&token).await);
    let request = FleetCaptureRequest {
        selector: "host=\"vault-7\"".to_owned(),
        capture: Some(proto::agent::CaptureRequest {
            duration_ns: 1_000_000,
            reason: "it is slow".to_owned(),
            ..proto::agent::CaptureRequest::default()
        }),
        ..FleetCaptureRequest::default()
    };
    let refused = captures.capture(request).await;
    refused.expect_err("no host");
    let line = line(&running, "the capture", |line| {
        line["action"] == "capture" && is_failed(line, "")
    });
    let line = line.await;
    assert_eq!(line["who"], "anna");
    assert_eq!(line["what"]["reason"], "it is slow");
    assert_eq!(line["what"]["hosts"], 0);
    assert!(
        line["what"]["selector"]
            .as_str()
            .expect("text")
            .contains("vault-7")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_the_record_that_is_replaced_takes_nothing_with_it_and_is_told() {
    let running = start().await;
    running.token("anna", Role::Admin).await;
    let folder = running.dir.path().join("audit");
    let file = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let file = file.expect("a file");
    let other = folder.join("other");
    std::fs::copy(&file, &other).expect("copied");
    std::fs::rename(&other, &file).expect("renamed");
    running.token("ben", Role::Viewer).await;
    let text = std::fs::read_to_string(&file).expect("text");
    assert!(text.contains("\"ben\""), "{text}");
    assert!(text.contains("audit-damaged"), "{text}");
    let mut queries = QueryServiceClient::new(channel(running.at.grpc).await);
    let status = queries.status(StatusRequest {}).await;
    let status = status.expect("an answer").into_inner();
    let damaged = status
        .counters
        .iter()
        .find(|counter| counter.name == "fleetprof_collector_audit_damaged_total");
    assert_eq!(damaged.map(|counter| counter.value), Some(1));
}

#[test]
fn the_program_checks_files_of_a_record_that_were_copied() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = Program::start(dir.path());
    program.end(Signal::TERM);
    let verify = || {
        std::process::Command::new(env!("CARGO_BIN_EXE_fleetprof-collector"))
            .args(["audit", "verify"])
            .arg(dir.path().join("audit"))
            .output()
            .expect("it runs")
    };
    let sound = verify();
    let text = String::from_utf8_lossy(&sound.stdout).into_owned();
    assert!(sound.status.success(), "{sound:?}");
    assert!(text.contains("complete and unchanged"), "{text}");
    let file = std::fs::read_dir(dir.path().join("audit"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let file = file.expect("a file");
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, text.replacen("collector", "collectors", 1)).expect("written");
    let changed = verify();
    assert_eq!(changed.status.code(), Some(1), "{changed:?}");
    assert!(!changed.stdout.is_empty());
}
