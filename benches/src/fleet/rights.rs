//! What TLS and rights cost: the same windows to a collector that believes everybody on loopback,
//! and to one whose hosts have certificates and whose people have tokens and a scope.
//!
//! Both are asked in turns within one run, the order turned round each time, so that what else the
//! machine does falls on both. Hosts enroll as real ones do, and number and time their windows so.

use super::agent::Agent;
use super::generate::{Drawn, Fleet, WINDOW_S};
use super::page::Browser;
use super::{SEED, SERVICES, Used, past};
use crate::cost::Usage;
use crate::machine::Machine;
use crate::report::{self, Table, count, median, number};
use anyhow::{Context, ensure};
use proto::agent::TimeRange;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::{AddUserRequest, InviteRequest, Role};
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::fake::member::{Host, Membership};
use testkit::fleet::{Collector, Options};
use testkit::http::free_address;
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, LocalSet};
use tonic::transport::{Channel, Endpoint};

/// Number of hosts that push at the same time.
const STREAMS: usize = 8;
/// Turns of each side that count, after one that brings the names of all stacks.
const TURNS: u64 = 10;
/// Connections of hosts that are opened one after another, each up to its welcome.
const CONNECTIONS: usize = 300;
/// A part of the fleet that is all of it: it is looked at, and the answers are the same.
const SCOPE: &str = r#"host=~"node-.+""#;
/// How the two are called.
const NAMES: [&str; 2] = ["loopback", "TLS and rights"];

/// What is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// Number of hosts
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(8..=500))]
    hosts: u64,
    /// Minutes of the past to fill with data
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(6..=360))]
    minutes: u64,
    /// Number of requests for each answer of the page
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    asks: u64,
    /// Print Markdown tables
    #[arg(long)]
    markdown: bool,
}

/// One of the two collectors.
struct Side {
    collector: Collector,
    /// Number of hosts with their certificates; none where nobody has one.
    members: Vec<(Host, Membership)>,
    /// Streams of hosts, as they take turns.
    agents: Vec<Vec<Agent>>,
    turns: Vec<Turn>,
}

/// A figure of a turn.
type Figure = fn(&Turn) -> f64;

/// What one turn came to.
#[derive(Clone, Copy, Default)]
struct Turn {
    windows: u64,
    rows: u64,
    wall_s: f64,
    cpu_s: f64,
    load_cpu_s: f64,
}

impl Turn {
    fn pushes_s(&self) -> f64 {
        self.windows as f64 / self.wall_s
    }

    fn per_million(&self) -> f64 {
        self.cpu_s * 1e6 / self.rows as f64
    }

    fn load_per_million(&self) -> f64 {
        self.load_cpu_s * 1e6 / self.rows as f64
    }
}

/// Runs the bench and prints its tables.
///
/// # Errors
/// When a collector cannot be started, goes away, or refuses somebody.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let hosts = args.hosts as usize;
    let fleet = Rc::new(Fleet::new(SEED, hosts, SERVICES));
    let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
    let https = free_address();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let proven = Options::new()
        .with_tls()
        .set(&format!("listen.https={https}"));
    let mut sides = [Options::new(), proven]
        .into_iter()
        .zip(&dirs)
        .map(|(options, dir)| Side {
            collector: options.start(dir.path()),
            members: Vec::new(),
            agents: Vec::new(),
            turns: Vec::new(),
        })
        .collect::<Vec<Side>>();
    let enrolled = runtime.block_on(enroll(&mut sides[1], &fleet))?;
    let windows = args.minutes * 60 / WINDOW_S / (TURNS + 1) * (TURNS + 1);
    let TimeRange {
        start_unix_ns: start,
        end_unix_ns: end,
    } = past(windows);
    push(&runtime, &mut sides, &fleet, (start, windows))?;
    let mut connected = Vec::new();
    for side in &mut sides {
        side.agents.clear();
        connected.push(runtime.block_on(connect(side, &fleet))?);
    }
    let scopes = ["", SCOPE];
    let mut tokens = Vec::new();
    for (name, scope) in ["whole", "scoped"].into_iter().zip(scopes) {
        tokens.push(runtime.block_on(person(&sides[1], name, scope))?);
    }
    let authority = dirs[1].path().join("data/identity/authority.crt");
    let plain = Browser::plain(sides[0].collector.options().http());
    let mut browsers = vec![("loopback", plain, 0)];
    for (what, token) in ["TLS and a token", "with a scope too"]
        .into_iter()
        .zip(tokens)
    {
        let browser = Browser::proven(https.clone(), &authority, token)?;
        browsers.push((what, browser, 1));
    }
    let container = fleet.hosts[0].containers.last().context("no container")?;
    let profile = format!(
        "/api/profile.folded?selector=container%3D%22{}%22&from={start}&to={end}",
        container.id
    );
    let pids = [sides[0].collector.pid(), sides[1].collector.pid()];
    let mut answers = Table::new(&[
        "first byte",
        "median ms",
        "of loopback's",
        "99th, ms",
        "CPU ms of the collector",
    ]);
    for (what, path) in [("/", "/"), ("a container's profile", profile.as_str())] {
        for fresh in [true, false] {
            let asked = ask(&browsers, path, fresh, args.asks, pids)?;
            let connection = if fresh { "new" } else { "kept" };
            for ((by, ..), one) in browsers.iter().zip(&asked) {
                answers.row([
                    format!("{what}, {connection} connection, {by}"),
                    number(Some(one.median_ms), 2),
                    number(Some(one.median_ms / asked[0].median_ms), 2),
                    number(Some(one.late_ms), 2),
                    number(Some(one.cpu_ms), 2),
                ]);
            }
        }
    }
    print!("{}", report::machine(&Machine::here()));
    let rows: u64 = sides[0].turns.iter().map(|turn| turn.rows).sum();
    let pushed: u64 = sides[0].turns.iter().map(|turn| turn.windows).sum();
    println!(
        "load     {hosts} simulated hosts, as fast as they are taken, {STREAMS} at a time: {} windows \
         and {} rows to each collector, in {TURNS} turns",
        count(Some(pushed)),
        count(Some(rows))
    );
    println!(
        "joining  {hosts} hosts in {:.1} s, one after another; {:.2} ms of the collector's CPU each",
        enrolled.0.as_secs_f64(),
        enrolled.1
    );
    let pushes = pushes(&sides, &connected);
    for table in [&pushes, &answers] {
        print!(
            "{}",
            if args.markdown {
                table.markdown()
            } else {
                table.text()
            }
        );
    }
    for side in sides {
        let status = side.collector.stop();
        ensure!(status.success(), "a collector ended with {status}");
    }
    Ok(())
}

/// The table of what hosts do.
fn pushes(sides: &[Side], connected: &[(f64, f64)]) -> Table {
    let mut table = Table::new(&["", NAMES[0], NAMES[1], "ratio", "ratios of turns"]);
    let figures: [(&str, usize, Figure); 3] = [
        ("pushes/s", 0, Turn::pushes_s),
        ("CPU-s per 1M rows", 3, Turn::per_million),
        (
            "the load's own CPU-s per 1M rows",
            3,
            Turn::load_per_million,
        ),
    ];
    for (what, digits, of) in figures {
        let both: Vec<Vec<f64>> = sides
            .iter()
            .map(|side| side.turns.iter().map(of).collect())
            .collect();
        let mut ratios: Vec<f64> = both[1].iter().zip(&both[0]).map(|(b, a)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        table.row([
            what.to_owned(),
            number(Some(median(&both[0])), digits),
            number(Some(median(&both[1])), digits),
            number(Some(median(&ratios)), 2),
            format!(
                "{} to {}",
                number(ratios.first().copied(), 2),
                number(ratios.last().copied(), 2)
            ),
        ]);
    }
    for (what, of) in [
        ("a host connects, ms to its welcome", 0),
        ("a host connects, CPU ms of the collector", 1),
    ] {
        let own = |side: usize| [connected[side].0, connected[side].1][of];
        table.row([
            what.to_owned(),
            number(Some(own(0)), 2),
            number(Some(own(1)), 2),
            number(Some(own(1) / own(0)), 1),
            String::new(),
        ]);
    }
    table
}

/// CPU time of a process's threads. Unit: milliseconds.
fn cpu_ms(pid: u32) -> anyhow::Result<f64> {
    let usage = Usage::of(pid)?;
    Ok(usage.cpu_ns_by_thread.values().sum::<u64>() as f64 / 1e6)
}

async fn on_loopback(side: &Side) -> anyhow::Result<Channel> {
    let address = side.collector.options().grpc();
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect()
        .await?)
}

/// Has all hosts join by one invitation. Returns how long it took, and the CPU time of the
/// collector for each, in milliseconds.
async fn enroll(side: &mut Side, fleet: &Fleet) -> anyhow::Result<(Duration, f64)> {
    let mut admin = FleetServiceClient::new(on_loopback(side).await?);
    let request = InviteRequest {
        hosts_max: fleet.hosts.len() as u32,
        ..InviteRequest::default()
    };
    let invitation = admin.invite(request).await?.into_inner().credential;
    let address = side.collector.options().tls().parse()?;
    let pid = side.collector.pid();
    let (begin, before) = (Instant::now(), cpu_ms(pid)?);
    for host in &fleet.hosts {
        let member = Host::new(&host.name);
        let now = testkit::clock::unix_ns() / 1_000_000_000;
        let membership = member.join(address, &invitation, now).await?;
        side.members.push((member, membership));
    }
    let each = (cpu_ms(pid)? - before) / fleet.hosts.len() as f64;
    Ok((begin.elapsed(), each))
}

/// Somebody who may look, within a scope where there is one. Returns their token.
async fn person(side: &Side, name: &str, scope: &str) -> anyhow::Result<String> {
    let mut admin = AccessServiceClient::new(on_loopback(side).await?);
    let request = AddUserRequest {
        name: name.to_owned(),
        role: Role::Viewer.into(),
        scope: scope.to_owned(),
        ..AddUserRequest::default()
    };
    Ok(admin.add_user(request).await?.into_inner().token)
}

/// A host's stream, as this side has it.
async fn open(side: &Side, fleet: &Fleet, host: usize) -> anyhow::Result<Agent> {
    match side.members.get(host) {
        None => Agent::connect(&side.collector.options().grpc(), fleet, host).await,
        Some((member, membership)) => {
            let address = side.collector.options().tls();
            let channel = member.connect(address, membership).await?;
            Agent::over(channel, fleet, host, membership.host_id.clone()).await
        }
    }
}

/// Opens connections one after another, each up to the welcome of its stream. Returns the median of
/// how long that takes, and the CPU time of the collector for each, both in milliseconds.
async fn connect(side: &Side, fleet: &Fleet) -> anyhow::Result<(f64, f64)> {
    let (mut took, before) = (Vec::new(), cpu_ms(side.collector.pid())?);
    for number in 0..CONNECTIONS {
        let begin = Instant::now();
        let agent = open(side, fleet, number % fleet.hosts.len()).await?;
        took.push(begin.elapsed().as_secs_f64() * 1e3);
        drop(agent);
        // What the connection leaves to do is done before the next.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let cpu = cpu_ms(side.collector.pid())? - before;
    Ok((median(&took), cpu / CONNECTIONS as f64))
}

/// Pushes the windows from `start` on to both, in turns.
fn push(
    runtime: &Runtime,
    sides: &mut [Side],
    fleet: &Rc<Fleet>,
    (start_unix_ns, windows): (i64, u64),
) -> anyhow::Result<()> {
    for side in sides.iter_mut() {
        let opening = async {
            let mut agents: Vec<Vec<Agent>> = (0..STREAMS).map(|_| Vec::new()).collect();
            for host in 0..fleet.hosts.len() {
                agents[host % STREAMS].push(open(side, fleet, host).await?);
            }
            anyhow::Ok(agents)
        };
        side.agents = LocalSet::new().block_on(runtime, opening)?;
    }
    let each = windows / (TURNS + 1);
    for turn in 0..=TURNS {
        let of_turn = turn * each..(turn + 1) * each;
        for number in 0..sides.len() {
            // Who is first is second the next time.
            let at = (number + turn as usize) % sides.len();
            let side = &mut sides[at];
            let pushing = fill(side, fleet.clone(), start_unix_ns, of_turn.clone());
            let came = LocalSet::new().block_on(runtime, pushing)?;
            eprintln!(
                "turn {turn}, {}: {:.0} pushes/s, {:.3} CPU-s per 1M rows",
                NAMES[at],
                came.pushes_s(),
                came.per_million()
            );
            // The first brings the names of nearly all stacks.
            if turn > 0 {
                side.turns.push(came);
            }
        }
    }
    Ok(())
}

async fn fill(
    side: &mut Side,
    fleet: Rc<Fleet>,
    start_unix_ns: i64,
    windows: std::ops::Range<u64>,
) -> anyhow::Result<Turn> {
    let (pid, own) = (side.collector.pid(), std::process::id());
    let (begin, cpu_s) = (Instant::now(), Used::of(pid)?.cpu_s);
    let load_cpu_s = Used::of(own)?.cpu_s;
    let mut turn = Turn::default();
    let mut tasks = JoinSet::new();
    for mut agents in std::mem::take(&mut side.agents) {
        let (fleet, windows) = (fleet.clone(), windows.clone());
        tasks.spawn_local(async move {
            let (mut rows, mut pushed, mut drawn) = (0, 0, Drawn::default());
            for window in windows {
                let at = start_unix_ns + (window * WINDOW_S * 1_000_000_000) as i64;
                for agent in &mut agents {
                    let acked = agent.push(&fleet, window + 1, at, &mut drawn).await?;
                    rows += acked.rows as u64;
                    pushed += 1;
                }
            }
            anyhow::Ok((agents, rows, pushed))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        let (agents, rows, pushed) = ended??;
        side.agents.push(agents);
        turn.rows += rows;
        turn.windows += pushed;
    }
    turn.wall_s = begin.elapsed().as_secs_f64();
    turn.cpu_s = Used::of(pid)?.cpu_s - cpu_s;
    turn.load_cpu_s = Used::of(own)?.cpu_s - load_cpu_s;
    Ok(turn)
}

/// How somebody was answered.
struct Answered {
    median_ms: f64,
    late_ms: f64,
    cpu_ms: f64,
}

/// Asks everybody's collector for a path, in turns. All must be sent the same.
fn ask(
    browsers: &[(&str, Browser, usize)],
    path: &str,
    fresh: bool,
    times: u64,
    pids: [u32; 2],
) -> anyhow::Result<Vec<Answered>> {
    let mut took = vec![Vec::new(); browsers.len()];
    let mut cpu = vec![0.0; browsers.len()];
    let mut length = None;
    let mut kept = Vec::new();
    for (_, browser, _) in browsers {
        let mut connection = browser.connect()?;
        browser.ask(&mut connection, path)?;
        kept.push(connection);
    }
    for number in 0..times as usize {
        for turn in 0..browsers.len() {
            let at = (number + turn) % browsers.len();
            let (what, browser, side) = &browsers[at];
            let before = cpu_ms(pids[*side])?;
            let begin = Instant::now();
            let mut opened = match fresh {
                true => Some(browser.connect()?),
                false => None,
            };
            let connection = opened.as_mut().unwrap_or(&mut kept[at]);
            let (first, bytes) = browser.ask(connection, path)?;
            took[at].push(first.duration_since(begin).as_secs_f64() * 1e3);
            drop(opened);
            cpu[at] += cpu_ms(pids[*side])? - before;
            ensure!(
                *length.get_or_insert(bytes) == bytes,
                "{what}: {bytes} bytes of `{path}`, and others have {length:?}"
            );
        }
    }
    Ok(took
        .iter()
        .zip(cpu)
        .map(|(took, cpu)| {
            let mut sorted = took.clone();
            sorted.sort_by(f64::total_cmp);
            let late = sorted.len() * 99 / 100;
            Answered {
                median_ms: median(took),
                late_ms: sorted.get(late).copied().unwrap_or(0.0),
                cpu_ms: cpu / took.len() as f64,
            }
        })
        .collect())
}
