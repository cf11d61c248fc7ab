//! Certificates of seconds, and a collector that is killed by SIGKILL while hosts push and renew:
//! a process of its own, with TLS and the embedded store on a disk.

use crate::identity::{SECOND, now};
use crate::rig::{LIMIT, PushStream, channel, hello, starting, window};
use collector::config::Config;
use collector::server;
use collector::store::open;
use collector::time::Clock;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::push_response::Body;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{InviteRequest, Selection, TopRequest};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testkit::fake::member::{EnrollError, Host, Membership, renew};
use testkit::process::{Proc, wait_for};
use tokio::sync::watch;

/// Where the child finds its directory, and the ports that it listens on.
const DIR: &str = "FLEETPROF_TEST_ROTATION_DIR";
const PORTS: &str = "FLEETPROF_TEST_ROTATION_PORTS";

/// How long certificates last.
const LASTS: Duration = Duration::from_secs(2);

const STACKS: &[&str] = &["main;spin"];

/// The collector, until it is killed.
#[test]
fn child_of_the_rotation_test() {
    let (Some(dir), Ok(ports)) = (std::env::var_os(DIR), std::env::var(PORTS)) else {
        return;
    };
    let ports: Vec<u16> = ports
        .split(',')
        .map(|port| port.parse().expect("a port"))
        .collect();
    let mut config = Config::default();
    Path::new(&dir).clone_into(&mut config.data_dir);
    config.listen.grpc.set_port(ports[0]);
    config.listen.http.set_port(ports[1]);
    config.listen.tls = Some(([127, 0, 0, 1], ports[2]).into());
    config.identity.host_lasts = LASTS;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let clock = Clock::system();
    let store = open::open(&config, clock.now_unix_ns()).expect("a store");
    let (_stop, stopping) = watch::channel(false);
    let ready = |_| eprintln!("it listens");
    let serving = server::serve(&config, store, clock, stopping, ready);
    runtime.block_on(serving).expect("it serves");
}

/// Where it listens, the same at every start.
#[derive(Clone, Copy)]
struct Ports([u16; 3]);

impl Ports {
    fn free() -> Ports {
        let held = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        Ports(held.map(|listener| listener.local_addr().expect("an address").port()))
    }

    fn grpc(self) -> SocketAddr {
        ([127, 0, 0, 1], self.0[0]).into()
    }

    fn tls(self) -> SocketAddr {
        ([127, 0, 0, 1], self.0[2]).into()
    }

    /// Starts it on this directory, and waits until it listens.
    fn start(self, dir: &Path) -> Proc {
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        command
            .args(["--exact", "rotation::child_of_the_rotation_test"])
            .args(["--nocapture", "--test-threads=1"])
            .env(DIR, dir.join("data"))
            .env(PORTS, self.0.map(|port| port.to_string()).join(","));
        let mut proc = Proc::spawn(&mut command, dir, "rotation");
        let listens = wait_for(LIMIT, || {
            let gone = proc.exited().is_some();
            assert!(!gone, "it ended: {}", proc.stderr());
            proc.stderr().contains("it listens").then_some(())
        });
        listens.expect("it listens");
        proc
    }
}

/// What a host went through.
#[derive(Debug, Default)]
struct Life {
    connections: u64,
    renewals: u64,
}

/// A host that joins, pushes so many windows one after the other, renews its certificate whenever
/// its connection ends, and comes back whatever happens to that.
async fn live(name: String, at: SocketAddr, invitation: String, windows: u64) -> Life {
    let begin = (now() - 6 * 3600) * SECOND;
    let host = Host::new(&name);
    let pause = Duration::from_millis(50);
    let mut membership = loop {
        match host.join(at, &invitation, now()).await {
            Ok(membership) => break membership,
            Err(EnrollError::Refused(status)) if is_final(&status) => panic!("{name}: {status}"),
            Err(_) => tokio::time::sleep(pause).await,
        }
    };
    let (mut life, mut next) = (Life::default(), 1);
    while next <= windows {
        match renewed(&membership, &host).await {
            Some(renewed) => membership = renewed,
            None => {
                tokio::time::sleep(pause).await;
                continue;
            }
        }
        life.renewals += 1;
        let Ok(connected) = host.connect(at, &membership).await else {
            continue;
        };
        let Ok(mut stream) = PushStream::connect(connected).await else {
            continue;
        };
        life.connections += 1;
        let hello = proto::collector::Hello {
            now_unix_ns: now() * SECOND,
            ..hello(&name, 1)
        };
        let hello = proto::collector::push_request::Body::Hello(hello);
        stream.send(hello).await;
        next = push(&mut stream, begin, next, windows).await;
    }
    life
}

/// Whether a host that was refused so is refused for good.
fn is_final(status: &tonic::Status) -> bool {
    use tonic::Code::{AlreadyExists, InvalidArgument, PermissionDenied, Unauthenticated};
    [
        AlreadyExists,
        InvalidArgument,
        PermissionDenied,
        Unauthenticated,
    ]
    .contains(&status.code())
}

async fn renewed(membership: &Membership, host: &Host) -> Option<Membership> {
    match renew(membership, &host.name, &host.key, now()).await {
        Ok(renewed) => Some(renewed),
        Err(EnrollError::Refused(status)) if is_final(&status) => panic!("{status}"),
        Err(_) => None,
    }
}

/// Pushes from a window on, until all are pushed or the connection ends; the next one to push.
async fn push(stream: &mut PushStream, begin: i64, mut next: u64, windows: u64) -> u64 {
    while next <= windows {
        let start = begin + next as i64 * 10 * SECOND;
        let part = starting(start, window(next, STACKS));
        let sequence = part.sequence;
        stream.part(part).await;
        loop {
            match stream.next().await {
                Ok(Body::Welcome(_)) => {}
                Ok(Body::Need(need)) => stream.define(need.sequence, STACKS).await,
                Ok(Body::Ack(ack)) => {
                    assert_eq!(ack.sequence, sequence);
                    break;
                }
                Err(_) => return next,
            }
        }
        next += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    next
}

/// Samples of each host that the collector has.
async fn counts(ports: Ports) -> Vec<(String, u64)> {
    let mut client = QueryServiceClient::new(channel(ports.grpc()).await);
    let request = TopRequest {
        selection: Some(Selection {
            range: Some(proto::agent::TimeRange::default()),
            ..Selection::default()
        }),
        by: "host".to_owned(),
        ..TopRequest::default()
    };
    let answer = client.top(request).await.expect("an answer").into_inner();
    let rows = answer.rows.into_iter();
    let mut counts: Vec<_> = rows.map(|row| (row.name, row.total_count)).collect();
    counts.sort();
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_seconds_and_a_collector_that_is_killed_in_the_middle() {
    const HOSTS: u64 = 4;
    const WINDOWS: u64 = 300;
    const KILLS: u64 = 4;
    let dir = tempfile::tempdir().expect("a directory");
    let ports = Ports::free();
    let mut proc = ports.start(dir.path());
    let request = InviteRequest {
        hosts_max: HOSTS as u32,
        ..InviteRequest::default()
    };
    let mut admin = FleetServiceClient::new(channel(ports.grpc()).await);
    let invited = admin.invite(request).await.expect("an invitation");
    let invitation = invited.into_inner().credential;
    let hosts: Vec<_> = (0..HOSTS)
        .map(|number| {
            let name = format!("host-{number}");
            tokio::spawn(live(name, ports.tls(), invitation.clone(), WINDOWS))
        })
        .collect();
    for kill in 0..KILLS {
        // Not at a moment that has to do with when certificates end.
        tokio::time::sleep(Duration::from_millis(1300 + 370 * kill)).await;
        proc.signal(Signal::KILL);
        proc.wait(LIMIT).expect("SIGKILL ends a process");
        proc = ports.start(dir.path());
    }
    for host in hosts {
        let ended = tokio::time::timeout(LIMIT, host).await;
        let life = ended.expect("in time").expect("no panic");
        println!("{life:?}");
        assert!(
            life.connections > KILLS && life.renewals > KILLS,
            "{life:?}"
        );
    }
    let expected: Vec<_> = (0..HOSTS).map(|n| (format!("host-{n}"), WINDOWS)).collect();
    assert_eq!(counts(ports).await, expected);
    // The log of the audit is whole, too.
    proc.signal(Signal::KILL);
    proc.wait(LIMIT).expect("SIGKILL ends a process");
    let _last = ports.start(dir.path());
    let mut access = proto::collector::access_service_client::AccessServiceClient::new(
        channel(ports.grpc()).await,
    );
    let request = proto::collector::VerifyAuditRequest {};
    let found = access
        .verify_audit(request)
        .await
        .expect("a verdict")
        .into_inner();
    assert_eq!(found.problems, Vec::<String>::new());
    assert_eq!(counts(ports).await, expected);
}
