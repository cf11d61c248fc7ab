//! The status of a collector: version, store, what is kept, what is degraded.

use super::json::{Counter, Sandbox};
use super::{Args, VALUE_COLUMN, counters, degradations, sandboxed, store};
use crate::collector::Collector;
use crate::degradation::Degradation;
use crate::exit::{self, fail};
use crate::peer::{Connection, Peer};
use crate::terminal::{Out, Tone, clean, hang};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use proto::agent::{Severity, TimeRange};
use proto::collector::StatusResponse;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Hosts without samples named in the line. JSON has more.
const BLIND_NAMED: usize = 3;

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, peer: &Peer, args: Args) -> Result<u8> {
    if args.cpus {
        return Err(fail(
            exit::USAGE,
            "failed to use --cpus: a collector samples no CPUs\n`agent-ctl hosts` shows its hosts",
        ));
    }
    let status = Collector::connect(connection, peer).await?.status().await?;
    if args.form.is_json() {
        out.write_json(&Json::of(&status))?;
    } else {
        out.write(&show(out, &status, &args))?;
        if status.scoped {
            note!("your login has a scope: what is of the complete fleet is not shown");
        }
    }
    let mut severities = status.degradations.iter().map(|found| found.severity());
    Ok(
        if status.hosts_blind > 0
            || status.hosts_warned > 0
            || severities.any(|severity| severity >= Severity::Warning)
        {
            exit::PARTIAL
        } else {
            exit::OK
        },
    )
}

fn show(out: &Out, status: &StatusResponse, args: &Args) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let name = out.tone(Tone::Strong, &format!("{name:<10}"));
        let _ = writeln!(text, "{name} {value}");
    };
    let clock = Clock::at(status.now_unix_ns);
    let age = |ns: i64| {
        let age = status.now_unix_ns.saturating_sub(ns).max(0).unsigned_abs();
        units::duration(Duration::from_secs(age / 1_000_000_000))
    };
    let up = age(status.started_unix_ns);
    let version = clean(&status.version);
    line(
        "collector",
        format!("fleetprof-collector {version}, up {up}"),
    );
    let engine = clean(&status.store_version);
    line("store", format!("{} ({engine})", clean(&status.store)));
    if !status.scoped {
        let bytes = units::bytes(status.store_bytes);
        let size = match status.store_bytes_max {
            0 => bytes,
            max => format!("{bytes} of {}", units::bytes(max)),
        };
        line("size", size);
    }
    if let Some(archive) = store::archive(out, &status.counters) {
        line("archive", archive);
    }
    if let Some(ceiling) = store::ceiling(&status.counters) {
        line("ceiling", ceiling);
    }
    let kept = match kept(status) {
        None => "nothing yet".to_owned(),
        Some(kept) => format!(
            "{} ({} ago)",
            clock.show_range(kept.start_unix_ns, kept.end_unix_ns),
            age(kept.start_unix_ns),
        ),
    };
    line("kept", kept);
    if !status.scoped {
        let streams = units::count(status.streams);
        line("agents", format!("{streams} connected"));
    }
    if let Some(hosts) = hosts(out, status) {
        line("hosts", hosts);
    }
    if let Some(sandbox) = &status.sandbox {
        line("sandbox", sandboxed(sandbox));
    }
    text.push_str(&degradations(out, &status.degradations));
    text = hang(&text, out.columns(), VALUE_COLUMN);
    if args.counters && !status.scoped {
        let _ = write!(text, "\n{}", counters(&status.counters).show(out));
    }
    text
}

/// Hosts in trouble, in a line; `None` when there are none.
fn hosts(out: &Out, status: &StatusResponse) -> Option<String> {
    let word = |count: u64| if count == 1 { "host" } else { "hosts" };
    let warned = status.hosts_warned.saturating_sub(status.hosts_blind);
    let warned = (warned > 0).then(|| format!("{} with warnings", units::count(warned)));
    let blind = (status.hosts_blind > 0).then(|| {
        let count = status.hosts_blind;
        let named = status.blind_hosts.iter().take(BLIND_NAMED);
        let named: Vec<_> = named.map(|host| clean(&host.hostname)).collect();
        let more = match count.saturating_sub(named.len() as u64) {
            0 => String::new(),
            more => format!(" and {} more", units::count(more)),
        };
        let names = named.join(", ");
        let text = format!(
            "{} {} without samples: {names}{more}",
            units::count(count),
            word(count)
        );
        out.tone(Tone::Bad, &text)
    });
    let all: Vec<_> = blind.into_iter().chain(warned).collect();
    (!all.is_empty()).then(|| format!("{}; see agent-ctl hosts --trouble", all.join(", ")))
}

/// Time that can be asked for; `None` while the store is empty.
fn kept(status: &StatusResponse) -> Option<TimeRange> {
    status
        .kept
        .filter(|kept| kept.end_unix_ns > kept.start_unix_ns)
}

#[derive(Serialize)]
struct Json<'a> {
    version: &'a str,
    store: &'a str,
    store_version: &'a str,
    started: String,
    now: String,
    kept: Option<Kept>,
    /// Whoever asks has a scope: what is of the complete fleet is `null` or empty.
    scoped: bool,
    store_bytes: Option<u64>,
    /// `null`: there is no bound.
    store_bytes_max: Option<u64>,
    streams: Option<u64>,
    hosts_blind: u64,
    hosts_warned: u64,
    blind_hosts: Vec<BlindHost<'a>>,
    /// `null`: whoever asks has a scope.
    sandbox: Option<Sandbox<'a>>,
    degradations: Vec<Degradation<'a>>,
    counters: Vec<Counter<'a>>,
}

#[derive(Serialize)]
struct BlindHost<'a> {
    host: &'a str,
    host_id: &'a str,
    why: Option<Degradation<'a>>,
}

impl<'a> BlindHost<'a> {
    fn of(host: &'a proto::collector::BlindHost) -> BlindHost<'a> {
        BlindHost {
            host: &host.hostname,
            host_id: &host.host_id,
            why: host.why.as_ref().map(Degradation::of),
        }
    }
}

#[derive(Serialize)]
struct Kept {
    start: String,
    end: String,
}

impl<'a> Json<'a> {
    fn of(status: &'a StatusResponse) -> Json<'a> {
        Json {
            version: &status.version,
            store: &status.store,
            store_version: &status.store_version,
            started: rfc3339(status.started_unix_ns),
            now: rfc3339(status.now_unix_ns),
            kept: kept(status).map(|kept| Kept {
                start: rfc3339(kept.start_unix_ns),
                end: rfc3339(kept.end_unix_ns),
            }),
            scoped: status.scoped,
            store_bytes: (!status.scoped).then_some(status.store_bytes),
            store_bytes_max: (status.store_bytes_max > 0).then_some(status.store_bytes_max),
            streams: (!status.scoped).then_some(status.streams),
            hosts_blind: status.hosts_blind,
            hosts_warned: status.hosts_warned,
            blind_hosts: status.blind_hosts.iter().map(BlindHost::of).collect(),
            sandbox: status.sandbox.as_ref().map(Sandbox::of),
            degradations: status.degradations.iter().map(Degradation::of).collect(),
            counters: status.counters.iter().map(Counter::of).collect(),
        }
    }
}
