//! `agent-ctl doctor`: proves that samples arrive, lists degradations and says how to fix them.
//!
//! As proof, this process burns CPU and looks itself up in the agent's answer. Without an agent the
//! command says how to start one, and checks what the agent would need from this machine.

mod fleet;

use crate::client::Client;
use crate::degradation::{Degradation, Finding, severity};
use crate::form::Form;
use crate::local::{self, Local};
use crate::peer::{Connection, Target};
use crate::terminal::{Out, Tone, clean, hang};
use crate::when::Range;
use crate::{exit, runtimes, summary, units};
use anyhow::Result;
use profile::{Profile, StackEnd, UnnamedReason, key};
use proto::agent::{GetStatusResponse, LabelMatcher, MatchOp, QueryProfileRequest, Severity};
use serde::Serialize;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Proves that samples arrive and names whatever is degraded.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Uses one CPU for a second and looks for itself in the agent's samples. With --collector it shows \
what is wrong with the hosts of a fleet instead, by cause, worst first. Exit codes: 0 all is well, \
5 no agent answers (doctor checks this machine instead), 6 something is degraded.

Examples:
  agent-ctl doctor
  agent-ctl --collector c1 doctor
  agent-ctl doctor --json | jq '.degradations[].remedy'")]
pub struct Args {
    /// How long to use one CPU for the check, at most 30s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = burn_length)]
    burn: Duration,
    #[command(flatten)]
    form: Form,
}

/// Shortest burn taken: a sample at the default rate. Without any there is no proof.
const BURN_MIN: Duration = Duration::from_millis(10);

/// Longest burn taken. Longer proves nothing more and costs a CPU.
const BURN_MAX: Duration = Duration::from_secs(30);

/// Reads `--burn`. What is out of range is refused, for another length than was asked for proves
/// something else.
fn burn_length(text: &str) -> Result<Duration, String> {
    let length = crate::when::duration(text).map_err(|error| error.to_string())?;
    match (BURN_MIN..=BURN_MAX).contains(&length) {
        true => Ok(length),
        false => Err("expected 10ms to 30s".to_owned()),
    }
}

/// Columns by which what belongs to a finding is indented.
const FINDING_COLUMNS: usize = 8;

/// Range of the tables of stack ends and unnamed frames.
const TABLES_SINCE: Duration = Duration::from_secs(300);

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let agent = connection.peer()?;
    if agent.is_collector() {
        return fleet::run(out, connection, &agent, &args).await;
    }
    match Client::connect(connection, &agent).await {
        Ok(mut client) => examine(out, &mut client, &args).await,
        Err(error) => without_agent(out, connection, &error, &args),
    }
}

#[derive(Serialize)]
struct Json<'a> {
    agent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'a Proof>,
    degradations: Vec<Degradation<'a>>,
    stack_ends: &'a [Row],
    unnamed: &'a [Row],
    runtimes: Vec<runtimes::Json<'a>>,
}

/// One row of a table of outcomes.
#[derive(Serialize)]
struct Row {
    reason: &'static str,
    samples: u64,
    share: f64,
    sentence: &'static str,
}

/// Result of burning CPU.
#[derive(Serialize)]
struct Proof {
    /// Whether samples are proven to arrive.
    passed: bool,
    /// CPU time burned here; 0 when the agent is another machine's.
    burned_s: f64,
    /// Samples of this process that the agent has of the burn.
    own_samples: u64,
    /// Samples that were to be expected.
    expected: f64,
    /// Samples of all CPUs that arrived meanwhile.
    all_samples: u64,
}

/// Findings about an agent that answers.
struct Examination {
    status: GetStatusResponse,
    proof: Proof,
    /// The worst first.
    findings: Vec<Finding>,
    /// The samples of the last [`TABLES_SINCE`].
    recent: Profile,
    stack_ends: Vec<Row>,
    unnamed: Vec<Row>,
}

async fn examine(out: &Out, client: &mut Client, args: &Args) -> Result<u8> {
    let before = client.status().await?;
    let proof = prove(client, &before, args.burn).await?;
    let status = client.status().await?;
    let proof = Proof {
        all_samples: taken(&status).saturating_sub(taken(&before)),
        ..proof
    };
    let since = status
        .now_unix_ns
        .saturating_sub(TABLES_SINCE.as_nanos() as i64);
    let recent = client.query(query(since, Vec::new(), Vec::new())).await?;
    let mut findings = findings(&status);
    if !proof.passed {
        findings.insert(0, not_arriving(&proof));
    }
    let examination = Examination {
        stack_ends: stack_ends(&recent),
        unnamed: unnamed_leaves(&recent),
        status,
        proof,
        findings,
        recent,
    };
    let code = match examination.is_degraded() {
        true => exit::PARTIAL,
        false => exit::OK,
    };
    if args.form.is_json() {
        out.write_json(&examination.json())?;
    } else {
        let text = examination.show(out);
        out.write(&hang(&text, out.columns(), FINDING_COLUMNS))?;
    }
    Ok(code)
}

impl Examination {
    fn is_degraded(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|found| found.severity >= Severity::Warning)
    }

    fn json(&self) -> Json<'_> {
        Json {
            agent: true,
            error: None,
            proof: Some(&self.proof),
            degradations: self.findings.iter().map(Finding::json).collect(),
            stack_ends: &self.stack_ends,
            unnamed: &self.unnamed,
            runtimes: runtimes::Json::all(&self.status.runtimes),
        }
    }

    fn show(&self, out: &Out) -> String {
        let ok = mark(out, Severity::Unspecified);
        let mut text = format!(
            "{ok} fleetprofd {} answers on {}\n",
            clean(&self.status.version),
            clean(&self.status.host)
        );
        if self.proof.passed {
            let _ = writeln!(text, "{ok} {}", self.proof.sentence());
        }
        show_findings(out, &mut text, &self.findings);
        let _ = writeln!(
            text,
            "\nLast {}: {} samples; {}",
            units::duration(TABLES_SINCE),
            units::count(self.recent.total().count),
            summary::missing(&self.recent.info.quality)
        );
        show_rows(out, &mut text, "How stacks ended", &self.stack_ends);
        show_rows(
            out,
            &mut text,
            "Leaf frames without a symbol",
            &self.unnamed,
        );
        let runtimes = &self.status.runtimes;
        if !runtimes.is_empty() {
            let _ = writeln!(
                text,
                "\n{}\n{}",
                out.tone(Tone::Strong, "Generated code"),
                runtimes::table(out, runtimes).trim_end()
            );
        }
        if !self.is_degraded() {
            // Below lines that say what is missing, "nothing" would contradict them.
            let verdict = match self.findings.is_empty() {
                true => "nothing is degraded",
                false => "nothing else is degraded",
            };
            let _ = writeln!(text, "\n{}", out.tone(Tone::Good, verdict));
        }
        text
    }
}

fn query(start_ns: i64, matchers: Vec<LabelMatcher>, group_by: Vec<String>) -> QueryProfileRequest {
    QueryProfileRequest {
        range: Some(
            Range {
                start_ns,
                end_ns: 0,
            }
            .into(),
        ),
        matchers,
        frame_filters: Vec::new(),
        group_by,
        fresh: true,
        times: false,
        pin_capture: 0,
    }
}

fn taken(status: &GetStatusResponse) -> u64 {
    status.quality.map_or(0, |quality| quality.taken)
}

/// Burns CPU and counts how often the agent saw it.
async fn prove(client: &mut Client, before: &GetStatusResponse, burn: Duration) -> Result<Proof> {
    let rate = before
        .sampling
        .as_ref()
        .map_or(0, |sampling| sampling.rate_hz);
    if client.is_remote() {
        // Whoever runs there is not this process: only the counters can prove it.
        tokio::time::sleep(burn).await;
        let after = client.status().await?;
        let all = taken(&after).saturating_sub(taken(before));
        let arrive = after
            .sampling
            .is_some_and(|sampling| sampling.samples_arrive);
        return Ok(Proof {
            passed: all > 0 || arrive,
            burned_s: 0.0,
            own_samples: 0,
            expected: 0.0,
            all_samples: all,
        });
    }
    let own_before = own_samples(client, before.now_unix_ns).await?;
    let burned = tokio::task::spawn_blocking(move || burn_cpu(burn)).await?;
    let own_after = own_samples(client, before.now_unix_ns).await?;
    let own_samples = own_after.saturating_sub(own_before);
    let expected = burned.as_secs_f64() * f64::from(rate);
    // Half of what is expected is beyond any sampling error once a second was burned: at 99 Hz the
    // standard error is below ten.
    let passed = own_samples > 0 && own_samples as f64 >= expected / 2.0;
    Ok(Proof {
        passed,
        burned_s: burned.as_secs_f64(),
        own_samples,
        expected,
        all_samples: 0,
    })
}

/// Samples of this process since `start_ns`, which the agent widens to the window's start.
async fn own_samples(client: &mut Client, start_ns: i64) -> Result<u64> {
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let comm = comm.trim_end_matches('\n');
    let matcher = LabelMatcher {
        label: key::COMM.to_owned(),
        op: MatchOp::Equal.into(),
        value: comm.to_owned(),
    };
    let group_by = vec![key::PID.to_owned()];
    let profile = client
        .query(query(start_ns, vec![matcher], group_by))
        .await?;
    let own_pid = std::process::id().to_string();
    let mut by_pid = [0, 0];
    for (sample, value) in &profile.samples {
        let is_own = profile.dict.label(sample.labels, key::PID) == Some(&own_pid);
        by_pid[usize::from(is_own)] += value.count;
    }
    // In a pid namespace of our own the agent knows us by another pid: the name has to do.
    Ok(if by_pid[1] > 0 || !in_pid_namespace() {
        by_pid[1]
    } else {
        by_pid[0]
    })
}

/// True when this process does not see the host's pids. `/proc/1/sched`-like tricks lie; what does
/// not is the inode of the initial pid namespace, a constant of the kernel
/// (include/linux/proc_ns.h).
fn in_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|link| link.to_string_lossy() != "pid:[4026531836]")
}

/// Spins until `burn` has passed; returns the CPU time it really got.
#[inline(never)]
fn burn_cpu(burn: Duration) -> Duration {
    let cpu = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok()
    };
    let (started, cpu_before) = (Instant::now(), cpu());
    let mut seed = 1u64;
    while started.elapsed() < burn {
        for _ in 0..10_000 {
            seed =
                std::hint::black_box(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    match (cpu_before, cpu()) {
        // A kernel without schedstat always reports 0.
        (Some(before), Some(after)) if after > before => Duration::from_nanos(after - before),
        _ => started.elapsed(),
    }
}

impl Proof {
    fn sentence(&self) -> String {
        if self.burned_s == 0.0 {
            return format!(
                "samples arrive: {} from all CPUs",
                units::count(self.all_samples)
            );
        }
        format!(
            "samples arrive: {} from this process in {:.2} s of CPU time (about {:.0} expected), \
             {} in total",
            self.own_samples,
            self.burned_s,
            self.expected,
            units::count(self.all_samples)
        )
    }
}

fn not_arriving(proof: &Proof) -> Finding {
    let (message, severity) = if proof.own_samples == 0 && proof.all_samples == 0 {
        (
            "no sample arrived while one CPU was busy".to_owned(),
            Severity::Error,
        )
    } else {
        (
            format!("too few samples arrive: {}", proof.sentence()),
            Severity::Warning,
        )
    };
    Finding {
        id: "samples".to_owned(),
        message,
        remedy: "systemctl restart fleetprofd; if it comes back, report it with the output of \
                 agent-ctl status --json"
            .to_owned(),
        severity,
    }
}

/// A collector that cannot be reached now. The agent itself reports it only after minutes.
fn collector_away(status: &GetStatusResponse) -> Option<Finding> {
    let export = status.export.as_ref()?;
    let is_away = |found: &proto::agent::Degradation| found.id == "collector_away";
    if export.connected_since_unix_ns != 0 || status.degradations.iter().any(is_away) {
        return None;
    }
    let why = match export.last_error.as_str() {
        "" => "no connection so far",
        why => why,
    };
    Some(Finding {
        id: "collector_away".to_owned(),
        message: format!(
            "the collector at {} is unreachable ({why}): {} windows wait for it",
            export.collector,
            units::count(export.waiting_windows)
        ),
        remedy: String::new(),
        severity: Severity::Info,
    })
}

/// The agent's own degradations, worst first, and conclusions from its numbers.
fn findings(status: &GetStatusResponse) -> Vec<Finding> {
    let mut findings: Vec<Finding> = status
        .degradations
        .iter()
        .map(|found| Finding {
            id: found.id.clone(),
            message: found.message.clone(),
            remedy: found.remedy.clone(),
            severity: found.severity(),
        })
        .collect();
    findings.extend(collector_away(status));
    let sampling = status.sampling.clone().unwrap_or_default();
    if sampling.cpus_sampled < sampling.cpus_online
        && !findings.iter().any(|found| found.id.contains("cpu"))
    {
        findings.push(Finding {
            id: "cpus".to_owned(),
            message: format!(
                "only {} of {} CPUs are sampled",
                sampling.cpus_sampled, sampling.cpus_online
            ),
            remedy: String::new(),
            severity: Severity::Warning,
        });
    }
    findings.extend(runtimes::findings(&status.runtimes));
    findings.sort_by_key(|found| std::cmp::Reverse(found.severity));
    findings
}

/// Samples by how their stack ended, most first.
fn stack_ends(profile: &Profile) -> Vec<Row> {
    count(
        profile,
        StackEnd::ALL.len(),
        |key| key.end as usize,
        |id| {
            let end = StackEnd::ALL[id];
            (end.word(), end.sentence())
        },
    )
}

/// Samples with a leaf without symbol, by reason, most first.
fn unnamed_leaves(profile: &Profile) -> Vec<Row> {
    let reason = |key: &profile::SampleKey| {
        let leaf = profile.dict.stacks.node(key.stack).map(|(_, frame)| frame);
        let unnamed = leaf.map_or(UnnamedReason::No, |frame| profile.dict.frame(frame).unnamed);
        UnnamedReason::ALL
            .iter()
            .position(|&row| row == unnamed)
            .unwrap_or(0)
    };
    let mut rows = count(profile, UnnamedReason::ALL.len(), reason, |id| {
        (
            UnnamedReason::ALL[id].word(),
            UnnamedReason::ALL[id].sentence(),
        )
    });
    rows.retain(|row| row.reason != UnnamedReason::No.word());
    rows
}

fn count(
    profile: &Profile,
    kinds: usize,
    kind: impl Fn(&profile::SampleKey) -> usize,
    name: impl Fn(usize) -> (&'static str, &'static str),
) -> Vec<Row> {
    let mut counts = vec![0u64; kinds];
    for (key, value) in &profile.samples {
        counts[kind(key)] = counts[kind(key)].saturating_add(value.count);
    }
    let total = profile.total().count;
    let mut rows: Vec<Row> = counts
        .into_iter()
        .enumerate()
        .filter(|&(_, samples)| samples > 0)
        .map(|(id, samples)| {
            let (reason, sentence) = name(id);
            Row {
                reason,
                samples,
                share: units::share(samples, total),
                sentence,
            }
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.samples));
    rows
}

fn show_rows(out: &Out, text: &mut String, heading: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", out.tone(Tone::Strong, heading));
    for row in rows {
        // Not a table: a sentence must wrap, not be cut.
        let share = format!("{:.1} %", row.share * 100.0);
        let _ = writeln!(text, "{share:>8}  {}: {}", row.reason, row.sentence);
    }
}

fn mark(out: &Out, severity_of: Severity) -> String {
    match severity_of {
        Severity::Unspecified => out.tone(Tone::Good, "ok     "),
        other => {
            let (word, tone) = severity(other);
            out.tone(tone, &format!("{word:<7}"))
        }
    }
}

fn show_findings(out: &Out, text: &mut String, findings: &[Finding]) {
    for found in findings {
        let severity = found.severity.max(Severity::Info);
        let _ = writeln!(
            text,
            "{} {}: {}",
            mark(out, severity),
            clean(&found.id),
            clean(&found.message)
        );
        if !found.remedy.is_empty() {
            let _ = writeln!(text, "        {}{}", exit::REMEDY, clean(&found.remedy));
        }
    }
}

/// No agent answers: says so, how to start one, and what it would find here.
fn without_agent(
    out: &Out,
    connection: &Connection,
    error: &anyhow::Error,
    args: &Args,
) -> Result<u8> {
    let code = exit::code_of(error);
    // Anything but an absent agent is the caller's to fix: a wrong option, a socket not for them.
    if code != exit::UNREACHABLE {
        return Err(exit::fail(code, format!("{error:#}")));
    }
    let findings = match &connection.agent {
        Target::Unix(_) => local::findings(&Local::read("/".as_ref())),
        Target::Tcp(_) => Vec::new(),
    };
    if args.form.is_json() {
        out.write_json(&Json {
            agent: false,
            error: Some(format!("{error:#}")),
            proof: None,
            degradations: findings.iter().map(Finding::json).collect(),
            stack_ends: &[],
            unnamed: &[],
            runtimes: Vec::new(),
        })?;
        return Ok(code);
    }
    let mut text = String::new();
    // The first line alone: the others say to call doctor.
    let why = format!("{error:#}");
    let why = why.lines().next().unwrap_or_default();
    let _ = writeln!(text, "{} {}", mark(out, Severity::Error), clean(why));
    if let Target::Unix(path) = &connection.agent {
        let _ = writeln!(
            text,
            "        start it: systemctl enable --now fleetprofd\n        \
             or in a terminal: fleetprofd --listen unix:{}",
            clean(&path.to_string_lossy())
        );
        let _ = writeln!(
            text,
            "\n{}",
            out.tone(Tone::Strong, "What the agent would find on this machine")
        );
        if findings.is_empty() {
            let _ = writeln!(
                text,
                "{} no problem found",
                mark(out, Severity::Unspecified)
            );
        }
        show_findings(out, &mut text, &findings);
    }
    out.write(&hang(&text, out.columns(), FINDING_COLUMNS))?;
    Ok(code)
}
