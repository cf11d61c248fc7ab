//! The night that the page is for: a new version of one of three services makes a function 40 %
//! slower on a third of its hosts. From the overview to the function, the version, the time and
//! the hosts without typing, in a browser.
//!
//! What is clicked and looked at stands in `collector/ui/tests/e2e/story.test.ts`, which says how
//! many clicks and seconds it took and where its pictures are. Hosts are simulated: they number,
//! label and time what they send as agents do, and report the builds of their programs. The long
//! version adds this machine with a real daemon, which joins the same deploy.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::collector::annotation_service_client::AnnotationServiceClient;
use proto::collector::{
    Annotation, Hello, HostFacts, ListAnnotationsRequest, Outcome, Program, WindowFacts,
    WindowPart, push_request,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testkit::fake::push::{PushStream, channel};
use testkit::fake::window::{hash, labels};
use testkit::fleet::{Collector, Options};
use testkit::process::wait_for;
use testkit::workload::bare_c;
use testkit::{Cgroup, Daemon, Need, beside, browser, clock, numbering, skip};

const SECOND: i64 = 1_000_000_000;
/// Length of a window.
const WINDOW_NS: i64 = 10 * SECOND;
/// Windows that each host sends: two hours, of which the page shows the last.
const WINDOWS: i64 = 720;
/// How long ago the new version came.
const DEPLOYED_AGO_NS: i64 = 25 * 60 * SECOND;
/// From one host to the next: the rollout takes a while.
const ROLLOUT_STEP_NS: i64 = 30 * SECOND;
/// Time between two samples on a busy CPU.
const PERIOD_NS: u64 = 10_101_010;
/// How much slower the function is.
const SLOWER: f64 = 1.4;

const OLD_BUILD: &str = "4be1c20d0f6f0c1c9f6ad1e0b7d3c2a1908f7e6d";
const NEW_BUILD: &str = "91d7a3e45c0b2f8e6a7d1c3b5e9f0a2d4c6b8e1f";

/// The service that changes, its program and the function.
const SERVICE: &str = "api.service";
const PROGRAM: &str = "api";
const FUNCTION: &str = "render_page";

/// Services: cores of each stack on a host.
const SERVICES: [(&str, &[(&str, f64)]); 3] = [
    (
        SERVICE,
        &[
            ("main;serve;parse_request", 0.35),
            ("main;serve;render_page", 0.70),
            ("main;serve;render_page;escape_html", 0.25),
            ("main;serve;write_reply", 0.20),
        ],
    ),
    (
        "db.service",
        &[
            ("main;query;scan_index", 1.1),
            ("main;query;sort_rows", 0.4),
        ],
    ),
    (
        "cache.service",
        &[("main;loop;lookup", 0.25), ("main;loop;evict", 0.05)],
    ),
];

/// A host of the fleet.
struct Host {
    number: usize,
    /// When it got the new version, if it did.
    deployed_unix_ns: Option<i64>,
}

impl Host {
    fn name(&self) -> String {
        format!("web-{:02}", self.number)
    }

    fn facts(&self, programs: Vec<Program>) -> HostFacts {
        HostFacts {
            hostname: self.name(),
            kernel: "6.12.0".to_owned(),
            cpus_online: 8,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            programs,
            ..HostFacts::default()
        }
    }
}

fn program(build_id: &str, since_unix_ns: i64) -> Program {
    Program {
        labels: [("unit".to_owned(), SERVICE.to_owned())].into(),
        module: PROGRAM.to_owned(),
        build_id: build_id.to_owned(),
        since_unix_ns,
    }
}

/// Numbers that depend on nothing but the seed (SplitMix64).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Around 0, with a standard deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// Sends two hours of a host, as its agent would have sent them.
async fn push(address: String, host: Host, first_unix_ns: i64) {
    let mut stream = PushStream::connect(channel(&address).await).await.unwrap();
    let old = program(OLD_BUILD, first_unix_ns);
    let hello = Hello {
        host_id: format!("story-{:04}", host.number),
        boot_id: vec![host.number as u8 + 1; 16],
        facts: Some(host.facts(vec![old.clone()])),
        now_unix_ns: clock::unix_ns(),
    };
    stream.hello(hello).await;
    let stacks: Vec<&str> = SERVICES
        .iter()
        .flat_map(|(_, stacks)| stacks.iter().map(|(stack, _)| *stack))
        .collect();
    let mut random = Random(7 * (host.number as u64 + 1));
    // Traffic of each service fades within minutes, on each host by itself.
    let mut waves = [0.0; SERVICES.len()];
    // Hosts of a fleet are not alike.
    let level: Vec<f64> = (0..SERVICES.len())
        .map(|_| 0.85 + 0.3 * random.unit())
        .collect();
    let mut is_told = host.deployed_unix_ns.is_none();
    for number in 0..WINDOWS {
        let start_unix_ns = first_unix_ns + number * WINDOW_NS;
        let is_new = host.deployed_unix_ns.is_some_and(|at| start_unix_ns >= at);
        let (mut ns, mut counts) = (Vec::new(), Vec::new());
        for (at, (service, stacks)) in SERVICES.iter().enumerate() {
            waves[at] = 0.8 * waves[at] + 0.04 * random.normal();
            let mut all = 0.0;
            for (stack, cores) in *stacks {
                let slower = match *service == SERVICE && is_new && stack.contains(FUNCTION) {
                    true => SLOWER,
                    false => 1.0,
                };
                let used = cores * slower * level[at] * (1.0 + waves[at]).max(0.1);
                let expected = used * WINDOW_NS as f64 / PERIOD_NS as f64;
                // So many samples fall into it by chance.
                let count = (expected + expected.sqrt() * random.normal()).max(0.0);
                counts.push(count.round() as u64);
                all += used;
            }
            ns.push((all * WINDOW_NS as f64) as u64);
        }
        let part = part(&host, (start_unix_ns, first_unix_ns), &ns, &counts);
        let ack = stream.store_part(part, &stacks).await;
        assert_eq!(ack.outcome(), Outcome::Stored, "{}", ack.reason);
        if is_new && !is_told {
            // As agents do: after the second window, with both builds.
            is_told = true;
            let both = vec![old.clone(), program(NEW_BUILD, start_unix_ns)];
            stream
                .send(push_request::Body::Facts(host.facts(both)))
                .await;
        }
    }
}

fn part(
    host: &Host,
    (start_unix_ns, first_unix_ns): (i64, i64),
    ns: &[u64],
    counts: &[u64],
) -> WindowPart {
    let is_first = start_unix_ns == first_unix_ns;
    let sets = SERVICES.map(|(unit, _)| {
        let cgroup = format!("/system.slice/{unit}");
        labels(&[
            ("cgroup", cgroup.as_str()),
            ("unit", unit),
            ("comm", unit.trim_end_matches(".service")),
        ])
    });
    let stacks = SERVICES.iter().enumerate().flat_map(|(at, (_, stacks))| {
        let of = stacks.iter().map(move |(stack, _)| (at as u32 + 1, *stack));
        of.collect::<Vec<_>>()
    });
    let stacks: Vec<(u32, &str)> = stacks.collect();
    WindowPart {
        sequence: numbering::sequence(host.number as u64, start_unix_ns - first_unix_ns),
        last: true,
        new_dictionary: is_first,
        label_sets: match is_first {
            true => sets.to_vec(),
            false => Vec::new(),
        },
        stack_hashes: match is_first {
            true => stacks.iter().flat_map(|(_, stack)| hash(stack).0).collect(),
            false => Vec::new(),
        },
        sample_label_sets: stacks.iter().map(|(set, _)| *set).collect(),
        sample_stacks: (1..=stacks.len() as u32).collect(),
        sample_counts: counts.to_vec(),
        facts: Some(WindowFacts {
            start_unix_ns,
            duration_ns: WINDOW_NS as u64,
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            period: PERIOD_NS,
            account_label_sets: (1..=SERVICES.len() as u32).collect(),
            account_ns: ns.to_vec(),
            account_estimated_ns: vec![0; SERVICES.len()],
            ..WindowFacts::default()
        }),
        ..WindowPart::default()
    }
}

/// The fleet's last two hours, in a collector.
fn play(collector: &Collector, hosts: usize) -> Story {
    let end = clock::unix_ns() / WINDOW_NS * WINDOW_NS;
    let first = end - WINDOWS * WINDOW_NS;
    let deployed = (end - DEPLOYED_AGO_NS) / WINDOW_NS * WINDOW_NS;
    let fleet: Vec<Host> = (0..hosts)
        .map(|number| Host {
            number,
            // Every third, one after the other.
            deployed_unix_ns: number
                .is_multiple_of(3)
                .then_some(deployed + number as i64 / 3 * ROLLOUT_STEP_NS),
        })
        .collect();
    let slower = fleet.iter().filter(|host| host.deployed_unix_ns.is_some());
    let story = Story {
        deployed_unix_ns: deployed,
        slower: slower.map(Host::name).collect(),
        hosts,
    };
    runtime().block_on(async {
        let pushing = fleet.into_iter().map(|host| {
            let address = collector.options().grpc();
            tokio::spawn(push(address, host, first))
        });
        for host in pushing.collect::<Vec<_>>() {
            host.await.unwrap();
        }
    });
    story
}

/// What the page has to say.
struct Story {
    deployed_unix_ns: i64,
    slower: Vec<String>,
    hosts: usize,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Deploys that the collector found.
fn deploys(collector: &Collector) -> Vec<Annotation> {
    runtime().block_on(async {
        let channel = channel(collector.options().grpc()).await;
        let mut client = AnnotationServiceClient::new(channel);
        let request = ListAnnotationsRequest::default();
        client.list(request).await.unwrap().into_inner().annotations
    })
}

/// Waits until the one deploy was seen on so many hosts.
fn the_deploy(collector: &Collector, hosts: u64, limit: Duration) -> Annotation {
    let found = wait_for(limit, || {
        let all = deploys(collector);
        (all.len() == 1 && all[0].hosts == hosts).then(|| all[0].clone())
    });
    found.unwrap_or_else(|| panic!("{:?}\n{}", deploys(collector), collector.log()))
}

/// Where the browser's pictures go: `FLEETPROF_SHOTS`, or a directory that goes with the test.
fn shots(dir: &Path) -> PathBuf {
    std::env::var_os("FLEETPROF_SHOTS").map_or_else(|| dir.join("shots"), PathBuf::from)
}

/// Has the browser find it out.
fn look(collector: &Collector, story: &Story, dir: &Path) {
    let expected = serde_json::json!({
        "service": SERVICE,
        "function": FUNCTION,
        "build": &NEW_BUILD[..12],
        "deployedMs": story.deployed_unix_ns / 1_000_000,
        "slower": story.slower,
        "hosts": story.hosts,
        "shots": shots(dir),
    });
    let url = format!("http://{}", collector.options().http());
    let said = browser::page_test("tests/e2e/story.test.ts", &url, &expected.to_string());
    eprintln!("{said}");
}

#[test]
fn the_story_is_found_out_without_typing() {
    if let Some(why) = browser::missing() {
        return skip(why);
    }
    let dir = tempfile::tempdir().unwrap();
    let collector = Options::new().start(dir.path());
    let story = play(&collector, 6);
    let deploy = the_deploy(&collector, 2, Duration::from_secs(30));
    let text = format!("{SERVICE}: build {} of {PROGRAM}", &NEW_BUILD[..12]);
    assert!(deploy.text.starts_with(&text), "{}", deploy.text);
    assert_eq!(deploy.start_unix_ns, story.deployed_unix_ns);
    assert_eq!(deploy.host_names, story.slower);
    look(&collector, &story, dir.path());
}

#[test]
#[ignore = "takes long: make test-slow"]
fn the_story_with_this_machine_in_the_fleet_needs_root() {
    let Some(_live) = beside(&[Need::Root, Need::Program("cc"), Need::Cgroup2]) else {
        return;
    };
    if let Some(why) = browser::missing() {
        return skip(why);
    }
    let dir = tempfile::tempdir().unwrap();
    let collector = Options::new().start(dir.path());
    let story = play(&collector, 12);
    the_deploy(&collector, 4, Duration::from_secs(30));
    // The same version on this machine: the real agent reports the same build of the same service.
    let slice = Cgroup::new("story");
    let unit = slice.child(SERVICE);
    let build = format!("-Wl,--build-id=0x{NEW_BUILD}");
    let _api = bare_c("split.c", &[build.as_str()])
        .named(PROGRAM)
        .start_in(&unit, &[]);
    let daemon = Daemon::with()
        .set("windows.length_s=2")
        .set("collector.host_id=under-test")
        .set(&format!("collector.address={}", collector.options().grpc()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .start()
        .sampling();
    let deploy = the_deploy(&collector, 5, Duration::from_secs(90));
    assert_eq!(
        deploy.start_unix_ns,
        story.deployed_unix_ns,
        "{}",
        daemon.log()
    );
    // It stays one, and the fleet's, however the real host differs.
    look(&collector, &story, dir.path());
}
