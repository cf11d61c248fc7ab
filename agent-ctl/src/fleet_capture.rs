//! A capture on many hosts through their collector: who is asked, how far each is, and one profile in the end.

mod board;
pub mod command;
pub mod list;

use crate::connection::{self, Route, Transport};
use crate::exit::{self, fail};
use crate::peer::{Connection, Peer};
use crate::profile_cmd::deliver;
use crate::render::{self, Format, Look};
use crate::summary::{self, Covered};
use crate::terminal::{Out, clean};
use crate::units;
use crate::when::Clock;
use anyhow::{Result, anyhow};
use board::{Board, name, state_word};
use profile::Profile;
use proto::agent::CaptureRequest;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_capture_response::Body;
use proto::collector::{
    FleetCaptureInfo, FleetCaptureRequest, FleetCaptureResponse, FleetPlan, HostProgress, HostState,
};
use proto::{ProfileAssembler, wire};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Largest message taken. Unit: bytes. A result tells of a thousand hosts at most, each with a few KiB.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Most hosts of which a failure is told in text; `--json` has all.
const FAILURES_MAX: usize = 20;

/// Most notices that are told in text.
const NOTICES_MAX: usize = 20;

/// Which hosts, and how long they are waited for.
#[derive(Clone, Debug, clap::Args)]
pub struct Fleet {
    /// Hosts with samples of this in the last ten minutes, and what is captured there:
    /// `unit="api.service",zone="a"`; labels of hosts and of samples (with --collector)
    #[arg(long, value_name = "MATCHERS", help_heading = "Fleet")]
    pub select: Vec<String>,
    /// Most hosts that capture at once (with --collector)
    #[arg(
        long,
        value_name = "HOSTS",
        default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=1000),
        help_heading = "Fleet"
    )]
    pub max_hosts: u32,
    /// How long hosts are waited for beyond the duration (with --collector)
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "15s",
        value_parser = crate::when::duration,
        help_heading = "Fleet"
    )]
    pub patience: Duration,
}

/// Where the result goes, and in which form.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Format of the profile.
    pub format: Format,
    /// Its file, `-` for standard output.
    pub output: PathBuf,
    /// How it looks.
    pub look: Look,
    /// Labels that stand as root frames.
    pub root_labels: Vec<String>,
    /// What each host did goes to standard output as JSON; the profile must go elsewhere then.
    pub json: bool,
    /// Nothing is said on standard error but errors.
    pub quiet: bool,
}

/// Captures on the hosts of a fleet. The matchers of `request` are added to those of `fleet`.
///
/// # Errors
/// When the collector refuses, or no host answers.
pub async fn capture(
    out: &Out,
    connection: &Connection,
    peer: &Peer,
    fleet: &Fleet,
    request: CaptureRequest,
    delivery: Delivery,
) -> Result<u8> {
    if delivery.json && delivery.output.as_os_str() == "-" {
        return Err(fail(
            exit::USAGE,
            "failed to use --json: the profile goes to standard output too\ngive a file with -o",
        ));
    }
    let request = asked(fleet, request)?;
    let (transport, route) = connection::open(connection, peer).await?;
    let service = CaptureServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let terminal = std::io::stderr().is_terminal();
    let mut board = Board::new(terminal, delivery.quiet);
    let outcome = Outcome::wait(service, &route, request, &mut board).await;
    board.clear();
    let outcome = outcome?;
    outcome.deliver(out, &delivery).await
}

/// The request, with the selectors that were given. Each is read here so that a slip is told with the words of
/// the command line.
fn asked(fleet: &Fleet, mut request: CaptureRequest) -> Result<FleetCaptureRequest> {
    let mut matchers = Vec::new();
    for text in &fleet.select {
        matchers.extend(crate::select::selected(text)?);
    }
    matchers.append(&mut request.matchers);
    request.matchers = matchers;
    Ok(FleetCaptureRequest {
        selector: String::new(),
        max_hosts: fleet.max_hosts,
        capture: Some(request),
        patience_ns: u64::try_from(fleet.patience.as_nanos()).unwrap_or(u64::MAX),
        host_ids: Vec::new(),
    })
}

/// All that came.
#[derive(Debug)]
struct Outcome {
    plan: FleetPlan,
    result: FleetCaptureInfo,
    profile: Option<Profile>,
    /// Why the past is not in the profile.
    past: Option<String>,
}

const WHAT: &str = "capture on the fleet";

impl Outcome {
    async fn wait(
        mut service: CaptureServiceClient<Transport>,
        route: &Route,
        request: FleetCaptureRequest,
        board: &mut Board,
    ) -> Result<Outcome> {
        let call = service.capture(request);
        let mut stream = route.answer(WHAT, call).await?;
        let (mut plan, mut result) = (None, None);
        let (mut past, mut own) = (None, None);
        while let Some(FleetCaptureResponse { body }) = route.part(WHAT, stream.message()).await? {
            match body {
                Some(Body::Plan(told)) if plan.is_none() => {
                    board.begin(&told.hosts);
                    plan = Some(told);
                }
                Some(Body::Host(host)) => board.host(host),
                Some(Body::Past(chunk)) => take(&mut past, chunk)?,
                Some(Body::Chunk(chunk)) => take(&mut own, chunk)?,
                Some(Body::Result(info)) if result.is_none() => result = Some(info),
                Some(Body::Plan(_) | Body::Result(_)) => {
                    return Err(anyhow!(
                        "failed to {WHAT}: the collector told the same twice"
                    ));
                }
                // Of a later version.
                None => {}
            }
        }
        let gone = || {
            fail(
                exit::UNREACHABLE,
                format!("failed to {WHAT}: the collector went away before the result"),
            )
        };
        let mut profile = own.map(ProfileAssembler::finish).transpose()?;
        let past = past.map(ProfileAssembler::finish).transpose()?;
        let past = past.and_then(|past| add_past(&mut profile, &past));
        Ok(Outcome {
            plan: plan.ok_or_else(gone)?,
            result: result.ok_or_else(gone)?,
            profile,
            past,
        })
    }

    /// Writes the profile and says what it misses.
    async fn deliver(self, out: &Out, delivery: &Delivery) -> Result<u8> {
        let code = self.code();
        if delivery.json {
            out.write_json(&self.json())?;
        }
        if !delivery.quiet {
            self.note();
        }
        let Some(profile) = self.profile.filter(|_| self.result.answered > 0) else {
            return Err(fail(
                exit::FAILURE,
                format!(
                    "failed to {WHAT}: none of {} hosts answered",
                    self.result.asked
                ),
            ));
        };
        if profile.samples.is_empty() {
            note!("agent-ctl: no samples were taken: nothing written");
            return Ok(exit::PARTIAL);
        }
        let line = summary::line(&profile, &Clock::local());
        let (format, look) = (delivery.format, delivery.look.clone());
        let mut labels = delivery.root_labels.clone();
        labels.retain(|label| label != "*");
        // On a thread of its own, so that Ctrl-C is heard while a large flame graph is laid out.
        let written = move || render::write(&profile, format, &look, labels, None);
        let bytes = tokio::task::spawn_blocking(written).await??;
        deliver(&delivery.output, &bytes)?;
        if !delivery.quiet {
            let place = match delivery.output.as_os_str() == "-" {
                true => String::new(),
                false => format!("{}: ", clean(&delivery.output.to_string_lossy())),
            };
            note!("{place}{line}");
        }
        Ok(code)
    }

    /// Partial where a host that was selected is not in the result, or ended early. Hosts beyond `--max-hosts`
    /// are left out on purpose.
    fn code(&self) -> u8 {
        let early = |host: &HostProgress| host.state() == HostState::Partial;
        let FleetCaptureInfo {
            failed,
            lost,
            hosts,
            ..
        } = &self.result;
        match *failed > 0 || *lost > 0 || self.plan.absent > 0 || hosts.iter().any(early) {
            true => exit::PARTIAL,
            false => exit::OK,
        }
    }

    fn note(&self) {
        let bad = |host: &&HostProgress| !matches!(host.state(), HostState::Done);
        let failures = self.result.hosts.iter().filter(bad);
        for host in failures.clone().take(FAILURES_MAX) {
            let word = state_word(host.state());
            let why = match host.message.is_empty() {
                true => String::new(),
                false => format!(": {}", clean(&host.message)),
            };
            note!("{}: {word}{why}", clean(name(host)));
        }
        let more = failures.count().saturating_sub(FAILURES_MAX);
        if more > 0 {
            note!("and {more} hosts more (--json has all)");
        }
        let mut told = self.notices();
        let more = told.len().saturating_sub(NOTICES_MAX);
        told.truncate(NOTICES_MAX);
        for notice in told {
            note!("{}", clean(&notice));
        }
        if more > 0 {
            note!("and {more} notices more (--json has all)");
        }
        note!("{}", self.summary());
    }

    /// What the reader of the profile must know: of the whole, and of hosts, each text once.
    fn notices(&self) -> Vec<String> {
        let mut all = self.result.notices.clone();
        all.extend(self.past.clone());
        let mut of_hosts: Vec<(String, Vec<&str>)> = Vec::new();
        for host in &self.result.hosts {
            for notice in &host.notices {
                match of_hosts.iter_mut().find(|(text, _)| text == notice) {
                    Some((_, hosts)) => hosts.push(name(host)),
                    None => of_hosts.push((notice.clone(), vec![name(host)])),
                }
            }
        }
        all.extend(of_hosts.into_iter().map(|(text, hosts)| match hosts[..] {
            [host] => format!("{host}: {text}"),
            [first, ..] => format!("{first} and {} more: {text}", hosts.len() - 1),
            [] => text,
        }));
        all
    }

    /// `47 of 50 hosts answered: 2 failed, 1 lost`.
    fn summary(&self) -> String {
        let FleetCaptureInfo {
            asked,
            answered,
            failed,
            lost,
            elapsed_ns,
            ..
        } = self.result;
        let parts = [
            (failed, "failed"),
            (lost, "lost"),
            (self.plan.absent, "do not attend"),
            (self.plan.left_out, "left out by --max-hosts"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        let hosts = if asked == 1 { "host" } else { "hosts" };
        let mut text = format!("{answered} of {asked} {hosts} answered");
        if !parts.is_empty() {
            text.push_str(&format!(": {}", parts.join(", ")));
        }
        let elapsed = units::duration(Duration::from_nanos(elapsed_ns));
        text.push_str(&format!("; {elapsed}"));
        if !self.result.ended_by.is_empty() {
            text.push_str(&format!("; {}", clean(&self.result.ended_by)));
        }
        text
    }

    fn json(&self) -> Json<'_> {
        let result = &self.result;
        Json {
            id: result.id,
            selected: self.plan.selected,
            asked: result.asked,
            answered: result.answered,
            failed: result.failed,
            lost: result.lost,
            absent: self.plan.absent,
            absent_hosts: &self.plan.absent_hosts,
            left_out: self.plan.left_out,
            elapsed_s: result.elapsed_ns as f64 / 1e9,
            ended_by: &result.ended_by,
            notices: result.notices.iter().chain(&self.past).collect(),
            hosts: result.hosts.iter().map(HostJson::of).collect(),
            profile: self.profile.as_ref().map(Covered::of),
        }
    }
}

/// What came of a capture, for scripts.
#[derive(Serialize)]
struct Json<'a> {
    id: u64,
    selected: u32,
    asked: u32,
    answered: u32,
    failed: u32,
    lost: u32,
    absent: u32,
    absent_hosts: &'a [String],
    left_out: u32,
    elapsed_s: f64,
    ended_by: &'a str,
    notices: Vec<&'a String>,
    hosts: Vec<HostJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Covered>,
}

/// What a host did, for scripts.
#[derive(Serialize)]
struct HostJson<'a> {
    host: &'a str,
    host_id: &'a str,
    state: &'static str,
    message: &'a str,
    samples: u64,
    lost_samples: u64,
    throttled: u64,
    cpu_s: f64,
    notices: &'a [String],
}

impl<'a> HostJson<'a> {
    fn of(host: &'a HostProgress) -> HostJson<'a> {
        let progress = host.progress.unwrap_or_default();
        HostJson {
            host: name(host),
            host_id: &host.host_id,
            state: state_word(host.state()),
            message: &host.message,
            samples: progress.samples,
            lost_samples: progress.lost_samples,
            throttled: progress.throttled,
            cpu_s: progress.cpu_ns as f64 / 1e9,
            notices: &host.notices,
        }
    }
}

fn take(assembler: &mut Option<ProfileAssembler>, chunk: wire::ProfileChunk) -> Result<()> {
    assembler
        .get_or_insert_with(ProfileAssembler::new)
        .push(chunk)?;
    Ok(())
}

/// Adds the past to what was captured, where both were sampled by the same event; says why not otherwise.
fn add_past(profile: &mut Option<Profile>, past: &Profile) -> Option<String> {
    if past.samples.is_empty() {
        return Some("the flight recorders had no samples of the time before".to_owned());
    }
    let Some(profile) = profile else {
        *profile = Some(past.clone());
        return None;
    };
    if !profile.info.event.is_empty() && profile.info.event != past.info.event {
        return Some(format!(
            "the time before is left out: the flight recorders have `{}`, which is not added to `{}`",
            past.info.event, profile.info.event
        ));
    }
    let merged = profile.merge(past);
    merged.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(hostname: &str, state: HostState, message: &str) -> HostProgress {
        HostProgress {
            hostname: hostname.to_owned(),
            state: state.into(),
            message: message.to_owned(),
            ..HostProgress::default()
        }
    }

    fn outcome(hosts: Vec<HostProgress>) -> Outcome {
        let of = |states: &[HostState]| {
            let found = hosts.iter().filter(|host| states.contains(&host.state()));
            found.count() as u32
        };
        Outcome {
            result: FleetCaptureInfo {
                asked: hosts.len() as u32,
                answered: of(&[HostState::Done, HostState::Partial]),
                failed: of(&[HostState::Failed]),
                lost: of(&[HostState::Lost]),
                elapsed_ns: 31_400_000_000,
                hosts,
                ..FleetCaptureInfo::default()
            },
            plan: FleetPlan::default(),
            profile: None,
            past: None,
        }
    }

    #[test]
    fn the_summary_says_how_many_of_how_many() {
        let mut hosts = vec![host("a", HostState::Done, ""); 47];
        hosts.extend(vec![host("b", HostState::Failed, "x"); 2]);
        hosts.push(host("c", HostState::Lost, "y"));
        let mut outcome = outcome(hosts);
        assert_eq!(
            outcome.summary(),
            "47 of 50 hosts answered: 2 failed, 1 lost; 31.4 s"
        );
        outcome.plan.absent = 3;
        outcome.plan.left_out = 7;
        outcome.result.ended_by = "cancelled by 10.0.0.1:7\x1b".to_owned();
        assert_eq!(
            outcome.summary(),
            "47 of 50 hosts answered: 2 failed, 1 lost, 3 do not attend, 7 left out by --max-hosts; \
             31.4 s; cancelled by 10.0.0.1:7\\x1b"
        );
    }

    #[test]
    fn partial_is_not_success_and_fewer_hosts_on_purpose_are() {
        let done = || host("a", HostState::Done, "");
        assert_eq!(outcome(vec![done()]).code(), exit::OK);
        for state in [HostState::Partial, HostState::Failed, HostState::Lost] {
            let outcome = outcome(vec![done(), host("b", state, "")]);
            assert_eq!(outcome.code(), exit::PARTIAL, "{state:?}");
        }
        let mut absent = outcome(vec![done()]);
        absent.plan.left_out = 5;
        assert_eq!(absent.code(), exit::OK);
        absent.plan.absent = 1;
        assert_eq!(absent.code(), exit::PARTIAL);
    }

    #[test]
    fn what_many_hosts_say_is_said_once() {
        let mut hosts = vec![host("a", HostState::Done, ""); 3];
        for host in &mut hosts {
            host.notices = vec!["throttled".to_owned()];
        }
        hosts[0].notices.push("alone".to_owned());
        assert_eq!(
            outcome(hosts).notices(),
            ["a and 2 more: throttled", "a: alone"]
        );
    }

    #[test]
    fn the_past_is_added_to_the_same_event_only() {
        let of = |event: &str| {
            let mut profile = Profile::default();
            let key = profile::SampleKey {
                labels: profile.dict.intern_labels([("comm", "x")]),
                stack: profile::StackId::EMPTY,
                end: profile::StackEnd::Complete,
            };
            let value = profile::Value {
                count: 1,
                weight: 1,
            };
            profile.add(key, value);
            profile.info.event = event.to_owned();
            profile.info.unit = "nanoseconds".to_owned();
            profile
        };
        let mut same = Some(of("cpu-clock"));
        assert_eq!(add_past(&mut same, &of("cpu-clock")), None);
        assert_eq!(same.expect("a profile").total().count, 2);
        let mut other = Some(of("off-cpu"));
        assert!(add_past(&mut other, &of("cpu-clock")).is_some());
        assert_eq!(other.expect("a profile").total().count, 1);
    }
}
