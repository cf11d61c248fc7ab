//! How the daemon lives and ends: signals, the service manager, its socket, reloads, metrics and
//! the services beside its own.

use proto::agent::StreamProfilesRequest;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use testkit::http::{free_address, http_get};
use testkit::process::wait_for;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, beside, live};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const SERVICE: &str = "fleetprof.agent.v1.AgentService";
const GRACE_KEY: &str = "shutdown.grace_s=20";
/// That grace and what a loaded machine adds.
const GRACE: Duration = Duration::from_secs(25);

#[test]
fn sigterm_ends_the_daemon_within_its_grace_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = Daemon::with().set(GRACE_KEY).start().sampling();
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    let status = daemon.wait(GRACE).expect("it ends within its grace");
    assert!(
        status.success(),
        "{status} after {:?}: {}",
        begin.elapsed(),
        daemon.log()
    );
    assert!(!daemon.socket().exists(), "the socket is left behind");
}

#[test]
fn sigterm_with_a_client_that_listens_forever_ends_the_daemon_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = Daemon::with()
        .set("windows.length_s=1")
        .set(GRACE_KEY)
        .start()
        .sampling();
    let client = daemon.client();
    let listener = std::thread::spawn(move || {
        client
            .stream(StreamProfilesRequest::default(), usize::MAX)
            .err()
    });
    std::thread::sleep(Duration::from_millis(1500));
    daemon.signal(Signal::TERM);
    let status = daemon.wait(GRACE).expect("it ends within its grace");
    assert!(status.success(), "{status}: {}", daemon.log());
    assert!(listener.join().expect("the stream ends").is_some());
}

#[test]
fn sigterm_with_a_client_that_stands_still_ends_the_daemon_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = Daemon::with().set(GRACE_KEY).start();
    // Its runtime runs only during calls, so it never hears that the daemon says goodbye.
    let client = daemon.client();
    client.status().expect("a status");
    daemon.signal(Signal::TERM);
    let status = daemon.wait(GRACE).expect("it ends within its grace");
    assert!(status.success(), "{status}: {}", daemon.log());
    drop(client);
}

#[test]
fn the_watchdog_is_fed_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = Daemon::with().watchdog(Duration::from_secs(3)).start();
    for _ in 0..2 {
        daemon.forget_notifications();
        assert!(
            daemon.notified("WATCHDOG=1", Duration::from_secs(3)),
            "{}",
            daemon.log()
        );
    }
    daemon.forget_notifications();
    daemon.signal(Signal::TERM);
    assert!(daemon.notified("STOPPING=1", GRACE), "{}", daemon.log());
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let first = Daemon::with().dir(dir.path()).start();
    let mut second = Daemon::with().dir(dir.path()).launch();
    let status = second
        .wait(Duration::from_secs(15))
        .expect("the second ends by itself");
    assert!(!status.success(), "{}", second.log());
    assert!(second.log().contains("agent.sock"), "{}", second.log());
    first.client().status().expect("the first still answers");
}

#[test]
fn a_socket_left_by_a_killed_daemon_is_replaced_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut first = Daemon::with().dir(dir.path()).start();
    first.signal(Signal::KILL);
    first
        .wait(Duration::from_secs(5))
        .expect("a killed process ends");
    assert!(first.socket().exists(), "nothing is left to replace");
    let second = Daemon::with().dir(dir.path()).start();
    second.client().status().expect("the second answers");
}

#[test]
fn the_socket_is_closed_to_others_needs_root() {
    use std::os::unix::fs::PermissionsExt;
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::start();
    let mode = std::fs::metadata(daemon.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660, "{mode:o}");
}

/// The recorder's budget that the daemon works with. Unit: MiB.
fn budget_mib(daemon: &Daemon) -> u64 {
    let status = daemon.client().status().expect("a status");
    status.recorder.expect("the recorder's state").budget_bytes >> 20
}

fn daemon_with_budget(mib: u32) -> Daemon {
    Daemon::with()
        .config(&format!("recorder:\n  budget_mib: {mib}\n"))
        .start()
}

#[test]
fn sighup_puts_a_changed_configuration_in_force_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = daemon_with_budget(32);
    assert_eq!(budget_mib(&daemon), 32);
    std::fs::write(daemon.config_path(), "recorder:\n  budget_mib: 48\n").unwrap();
    daemon.signal(Signal::HUP);
    let changed = wait_for(Duration::from_secs(5), || {
        (budget_mib(&daemon) == 48).then_some(())
    });
    assert!(changed.is_some(), "{}", daemon.log());
}

#[test]
fn a_reload_tells_what_changed_and_what_needs_a_restart_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = daemon_with_budget(32);
    let text = "recorder:\n  budget_mib: 48\nsampling:\n  rate_hz: 49\n";
    std::fs::write(daemon.config_path(), text).unwrap();
    let answer = daemon.client().reload().expect("a reload");
    let told = |keys: &[String], key: &str| keys.iter().any(|found| found == key);
    assert!(told(&answer.changed, "recorder.budget_mib"), "{answer:?}");
    assert!(
        told(&answer.needs_restart, "sampling.rate_hz")
            || told(&answer.changed, "sampling.rate_hz"),
        "{answer:?}"
    );
    assert_eq!(budget_mib(&daemon), 48);
}

#[test]
fn an_invalid_reload_keeps_the_configuration_in_force_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = daemon_with_budget(32);
    let before = daemon.client().config().expect("a configuration");
    std::fs::write(
        daemon.config_path(),
        "recorder:\n  budget_mib: 48\n  budget: 1\n",
    )
    .unwrap();
    let refused = daemon
        .client()
        .reload()
        .expect_err("an unknown key is refused");
    assert_eq!(
        refused.code(),
        tonic::Code::FailedPrecondition,
        "{refused:?}"
    );
    assert!(refused.message().contains("budget"), "{refused:?}");
    let out = daemon.ctl(&["config", "reload"]);
    assert_eq!(out.code, Some(testkit::ctl::CONFIG), "{out:?}");
    daemon.signal(Signal::HUP);
    assert!(daemon.notified("READY=1", Duration::from_secs(5)));
    assert_eq!(daemon.client().config().expect("a configuration"), before);
    assert_eq!(budget_mib(&daemon), 32);
}

#[test]
fn a_bad_setting_ends_the_start_with_the_configuration_code_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let mut daemon = Daemon::with().set("sampling.rate_hz=0").launch();
    let status = daemon
        .wait(Duration::from_secs(10))
        .expect("it ends by itself");
    assert_eq!(
        status.code(),
        Some(testkit::ctl::CONFIG),
        "{}",
        daemon.log()
    );
    assert!(daemon.log().contains("rate_hz"), "{}", daemon.log());
}

#[test]
fn the_rate_of_the_start_is_the_rate_of_samples_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC, Need::Cgroup2]) else {
        return;
    };
    let cgroup = Cgroup::new("rate");
    let daemon = Daemon::with()
        .set("sampling.rate_hz=499")
        .start()
        .sampling();
    let mut split = c("split.c").start_in(&cgroup, &["-t", "2"]);
    let ended = wait_for(Duration::from_secs(60), || split.proc().exited());
    assert!(ended.is_some(), "two seconds of CPU time take a minute");
    let view = daemon.client().everything().in_cgroup(cgroup.path());
    let spent: u64 = split.finish("split").iter().sum();
    let wanted = spent as f64 * 1e-9 * 499.0;
    let ratio = view.count() as f64 / wanted;
    assert!(
        (0.94..1.06).contains(&ratio),
        "{} samples, {wanted:.0} expected",
        view.count()
    );
}

#[test]
fn metrics_tell_own_cost_and_every_drop_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let address = free_address();
    let _daemon = Daemon::with().metrics(&address).start().sampling();
    let text = http_get(&address, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let body = text.split("\r\n\r\n").nth(1).expect("a body");
    for word in ["cpu", "lost", "throttled", "resident_memory_bytes"] {
        assert!(body.contains(word), "no `{word}` in:\n{body}");
    }
    for line in body
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        // Chunk sizes of the transfer stand on lines of their own.
        let Some((name, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let own = name.starts_with("fleetprof_") || name.starts_with("process_");
        assert!(own && value.parse::<f64>().is_ok(), "{line:?}");
    }
}

#[test]
fn metrics_refuse_other_paths_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let address = free_address();
    let _daemon = Daemon::with().metrics(&address).start();
    assert!(http_get(&address, "/other").starts_with("HTTP/1.1 404"));
    assert!(http_get(&address, "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn the_health_service_answers_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::start().sampling();
    let client = daemon.client();
    let mut health = HealthClient::new(client.channel());
    for service in ["", SERVICE] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer: HealthCheckResponse = client
            .block_on(health.check(request))
            .expect("a state")
            .into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
}

#[test]
fn reflection_lists_the_service_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut reflection = ServerReflectionClient::new(client.channel());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer: Option<ServerReflectionResponse> = client.block_on(async {
        let stream = reflection
            .server_reflection_info(tokio_stream::once(request))
            .await;
        stream
            .expect("a stream")
            .into_inner()
            .message()
            .await
            .expect("an answer")
    });
    let message = answer.and_then(|answer| answer.message_response);
    let Some(MessageResponse::ListServicesResponse(list)) = message else {
        panic!("{message:?}")
    };
    assert!(
        list.service.iter().any(|service| service.name == SERVICE),
        "{list:?}"
    );
}

#[test]
fn windows_are_streamed_as_they_close_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC, Need::Cgroup2]) else {
        return;
    };
    let cgroup = Cgroup::new("stream");
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let split = c("split.c").start_in(&cgroup, &[]);
    let windows = daemon
        .client()
        .stream(StreamProfilesRequest::default(), 4)
        .expect("four windows");
    let ends: Vec<i64> = windows
        .iter()
        .map(|view| view.info.start_unix_ns + view.info.duration_ns as i64)
        .collect();
    for (at, view) in windows.iter().enumerate().skip(1) {
        assert!(view.info.start_unix_ns >= ends[at - 1], "windows overlap");
        // A window gets longer by whole ones while the one before is still being named.
        let length_ms = (view.info.duration_ns + 500_000) / 1_000_000;
        assert!(
            length_ms >= 1000 && length_ms % 1000 < 10,
            "{:?}",
            view.info
        );
        assert!(view.count_with("spend_seventy") > 0, "{}", view.dump());
    }
    split.finish("split");
}
