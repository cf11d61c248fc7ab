//! A capture on many hosts through their collector: which hosts, the progress of each, and one
//! profile at the end.

mod board;
pub mod get;
pub mod list;

use crate::connection::{self, Route, Transport};
use crate::delivery::{Captured, Delivery};
use crate::exit::{self, fail};
use crate::facts::fact;
use crate::peer::{Connection, Peer};
use crate::select::fleet_option;
use crate::signals::Signals;
use crate::summary::ProfileFacts;
use crate::terminal::{Out, clean};
use crate::units;
use crate::when::Clock;
use anyhow::{Result, anyhow};
use board::{Board, name, one_line, state_word};
use profile::Profile;
use profile::formats::Fact;
use proto::agent::{CaptureInfo, CaptureRequest, CaptureState};
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_capture_response::Body;
use proto::collector::{
    CancelFleetCaptureRequest, FleetCaptureInfo, FleetCaptureRequest, FleetCaptureResponse,
    FleetPlan, HostProgress, HostState,
};
use proto::{ProfileAssembler, wire};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;

/// Largest message taken. Unit: bytes. A result has a thousand hosts at most, a few KiB each.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Most hosts that capture at once when the command line does not say.
const HOSTS_MAX: u32 = 50;

/// How long hosts are waited for beyond the duration when the command line does not say.
const PATIENCE: Duration = Duration::from_secs(15);

/// Most failed hosts listed in text; `--json` has all.
const FAILURES_MAX: usize = 20;

/// Most notices listed in text.
const NOTICES_MAX: usize = 20;

/// Which hosts, and how long they are waited for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Fleet {
    /// Capture these samples, on every host that had some in the last 10 minutes:
    /// `unit="api.service",zone="a"` (with --collector)
    #[arg(long, value_name = "MATCHERS", help_heading = "Fleet")]
    pub select: Vec<String>,
    /// Maximum number of hosts that capture (with --collector) [default: 50]
    #[arg(
        long,
        value_name = "HOSTS",
        value_parser = crate::number::within::<u32>(1, 1_000),
        help_heading = "Fleet"
    )]
    pub max_hosts: Option<u32>,
    /// How long to wait for hosts after the duration (with --collector) [default: 15s]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Fleet"
    )]
    pub patience: Option<Duration>,
    /// Start the capture, print its number and exit; `agent-ctl captures get` gets the profile
    /// later (with --collector)
    #[arg(long, help_heading = "Fleet")]
    pub detach: bool,
}

impl Fleet {
    /// Refuses options that an agent does not understand.
    ///
    /// # Errors
    /// When one was given.
    pub fn refuse_for_agent(&self) -> Result<()> {
        let given = [
            ("--select", !self.select.is_empty()),
            ("--max-hosts", self.max_hosts.is_some()),
            ("--patience", self.patience.is_some()),
            ("--detach", self.detach),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(fleet_option(
                option,
                "an agent captures only on its own host",
            )),
            None => Ok(()),
        }
    }

    /// Adds the selectors that were given. Each is parsed here, so that a mistake is reported
    /// before any host is asked.
    ///
    /// # Errors
    /// When a selector is malformed.
    pub fn select(&self, request: &mut CaptureRequest) -> Result<()> {
        let mut matchers = Vec::new();
        for text in &self.select {
            matchers.extend(crate::select::selected(text)?);
        }
        matchers.append(&mut request.matchers);
        request.matchers = matchers;
        Ok(())
    }

    /// The request to a collector.
    pub fn fleet_request(&self, request: CaptureRequest) -> FleetCaptureRequest {
        let patience = self.patience.unwrap_or(PATIENCE);
        FleetCaptureRequest {
            selector: String::new(),
            max_hosts: self.max_hosts.unwrap_or(HOSTS_MAX),
            capture: Some(request),
            patience_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX),
            host_ids: Vec::new(),
            stays: self.detach,
        }
    }
}

/// Who is asked, and whether scripts are to read what each host did.
pub struct Call<'a> {
    /// Connection to the collector.
    pub connection: &'a Connection,
    /// The collector.
    pub peer: &'a Peer,
    /// What each host did goes to standard output as JSON; the profile goes elsewhere.
    pub json: bool,
}

/// Captures on the hosts of a fleet.
///
/// # Errors
/// When the collector refuses, or no host answers.
pub async fn capture(
    out: &Out,
    call: Call<'_>,
    request: FleetCaptureRequest,
    signals: &mut Signals,
    delivery: &Delivery<'_>,
) -> Result<u8> {
    let (transport, route) = connection::open(call.connection, call.peer).await?;
    let service = CaptureServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let terminal = std::io::stderr().is_terminal();
    let mut board = Board::new(terminal, delivery.quiet);
    let outcome = Outcome::wait(service, &route, request, &mut board, signals).await;
    board.clear();
    match outcome? {
        Waited::Ended(outcome) => outcome.deliver(out, call.json, terminal, delivery),
        Waited::Left => Ok(exit::INTERRUPTED),
        Waited::Detached(plan) => {
            let id = plan.id;
            note!(
                "agent-ctl: capture {id} runs on {}; get its profile when it ends: \
                 `agent-ctl captures get {id} -o FILE`",
                match plan.hosts.len() {
                    1 => "one host".to_owned(),
                    hosts => format!("{hosts} hosts"),
                }
            );
            out.write(&format!("{id}\n"))?;
            Ok(exit::OK)
        }
    }
}

/// How waiting for a capture ended.
enum Waited {
    Ended(Box<Outcome>),
    /// Nobody waits for it any more.
    Left,
    /// It goes on without anybody who waits.
    Detached(FleetPlan),
}

/// All that came.
struct Outcome {
    plan: FleetPlan,
    result: FleetCaptureInfo,
    profile: Option<Profile>,
    past: Option<Profile>,
}

const WHAT: &str = "capture on the fleet";

impl Outcome {
    /// Reads a capture to its end, or to its plan where it goes on alone.
    async fn wait(
        mut service: CaptureServiceClient<Transport>,
        route: &Route,
        request: FleetCaptureRequest,
        board: &mut Board,
        signals: &mut Signals,
    ) -> Result<Waited> {
        let detach = request.stays;
        let asking = route.answer(WHAT, service.capture(request));
        let mut stream = tokio::select! {
            stream = asking => stream?,
            _ = signals.next() => return Ok(Waited::Left),
        };
        let (mut plan, mut result) = (None::<FleetPlan>, None);
        let (mut past, mut current) = (None, None);
        let mut cancelled = false;
        loop {
            let message = tokio::select! {
                message = route.part(WHAT, stream.message()) => message?,
                _ = signals.next() => {
                    let (Some(plan), false) = (&plan, cancelled) else {
                        return Ok(Waited::Left);
                    };
                    cancelled = true;
                    board.clear();
                    note!("agent-ctl: ending the capture with the samples so far; press again to \
                        leave it");
                    // It may just have ended by itself.
                    let _ = service.cancel(CancelFleetCaptureRequest { id: plan.id }).await;
                    continue;
                }
            };
            let Some(FleetCaptureResponse { body }) = message else {
                break;
            };
            match body {
                Some(Body::Plan(started)) if detach => return Ok(Waited::Detached(started)),
                Some(Body::Plan(started)) if plan.is_none() => {
                    board.start(&started.hosts);
                    plan = Some(started);
                }
                Some(Body::Host(host)) => board.host(host),
                Some(Body::Past(chunk)) => take(&mut past, chunk)?,
                Some(Body::Chunk(chunk)) => take(&mut current, chunk)?,
                Some(Body::Result(info)) if result.is_none() => {
                    // Only the result has the hosts that ended last.
                    for host in &info.hosts {
                        board.host(host.clone());
                    }
                    result = Some(info);
                }
                Some(Body::Plan(_) | Body::Result(_)) => {
                    return Err(anyhow!(
                        "failed to {WHAT}: the collector sent the same message twice"
                    ));
                }
                // A later version may send others.
                None => {}
            }
        }
        let gone = || {
            fail(
                exit::UNREACHABLE,
                format!("failed to {WHAT}: the collector closed the connection before the result"),
            )
        };
        Ok(Waited::Ended(Box::new(Outcome {
            plan: plan.ok_or_else(gone)?,
            result: result.ok_or_else(gone)?,
            profile: current.map(ProfileAssembler::finish).transpose()?,
            past: past.map(ProfileAssembler::finish).transpose()?,
        })))
    }

    /// Writes the profile and says what it misses. On a terminal the hosts that failed are not to
    /// be seen any more.
    fn deliver(
        mut self,
        out: &Out,
        json: bool,
        terminal: bool,
        delivery: &Delivery<'_>,
    ) -> Result<u8> {
        if json {
            out.write_json(&self.json())?;
        }
        if !delivery.quiet {
            if terminal {
                self.note_failures();
            }
            note!("{}", self.summary());
        }
        if self.profile.is_none() || self.result.answered == 0 {
            let nobody = match self.result.asked {
                1 => "the host did not answer".to_owned(),
                asked => format!("none of {asked} hosts answered"),
            };
            let message = format!("failed to {WHAT}: {nobody}");
            return Err(fail(exit::FAILURE, message));
        }
        let code = self.code();
        let delivery = delivery.with_facts(self.facts());
        let request = self.result.request.take();
        let captured = Captured {
            past: self.past.take(),
            profile: self.profile.take(),
            result: CaptureInfo {
                request: request.and_then(|request| request.capture),
                started_unix_ns: self.result.started_unix_ns,
                elapsed_ns: self.result.elapsed_ns,
                peer: std::mem::take(&mut self.result.peer),
                state: match self.result.hosts.iter().any(is_early) {
                    true => CaptureState::Cancelled.into(),
                    false => CaptureState::Complete.into(),
                },
                notices: self.notices(),
                ..CaptureInfo::default()
            },
        };
        Ok(delivery.deliver(&captured, &Clock::local())?.max(code))
    }

    /// What a bundle says of the hosts.
    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![fact("Fleet", "hosts", self.answered())];
        let bad = |host: &&HostProgress| host.state() != HostState::Done;
        let failures = self.result.hosts.iter().filter(bad);
        for host in failures.clone().take(FAILURES_MAX) {
            let word = state_word(host.state());
            let why = match host.message.is_empty() {
                true => word.to_owned(),
                false => format!("{word}: {}", one_line(&host.message)),
            };
            facts.push(fact("Fleet", name(host), why));
        }
        let more = failures.count().saturating_sub(FAILURES_MAX);
        if more > 0 {
            facts.push(fact("Fleet", "and", format!("{more} more hosts")));
        }
        if !self.result.ended_by.is_empty() {
            facts.push(fact("Fleet", "ended", &self.result.ended_by));
        }
        facts
    }

    /// Partial where a host that was selected is not in the result, or ended early. Hosts beyond
    /// `--max-hosts` are left out on purpose.
    fn code(&self) -> u8 {
        let FleetCaptureInfo {
            failed,
            lost,
            hosts,
            ..
        } = &self.result;
        match *failed > 0 || *lost > 0 || self.plan.absent > 0 || hosts.iter().any(is_early) {
            true => exit::PARTIAL,
            false => exit::OK,
        }
    }

    /// Says why hosts did not answer.
    fn note_failures(&self) {
        let bad = |host: &&HostProgress| !matches!(host.state(), HostState::Done);
        let failures = self.result.hosts.iter().filter(bad);
        for host in failures.clone().take(FAILURES_MAX) {
            let word = state_word(host.state());
            let why = match host.message.is_empty() {
                true => String::new(),
                false => format!(": {}", one_line(&host.message)),
            };
            note!("{}: {word}{why}", clean(name(host)));
        }
        let more = failures.count().saturating_sub(FAILURES_MAX);
        if more > 0 {
            note!("and {more} more hosts (--json has all)");
        }
    }

    /// Notices for the reader of the profile, about the capture and about hosts, each text once.
    fn notices(&self) -> Vec<String> {
        let mut all = self.result.notices.clone();
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
        let more = all.len().saturating_sub(NOTICES_MAX);
        all.truncate(NOTICES_MAX);
        if more > 0 {
            all.push(format!("and {more} more notices (--json has all)"));
        }
        all
    }

    /// `47 of 50 hosts answered: 2 failed, 1 lost; 31.4 s`.
    fn summary(&self) -> String {
        let mut text = self.answered();
        let elapsed = units::duration(Duration::from_nanos(self.result.elapsed_ns));
        text.push_str(&format!("; {elapsed}"));
        if !self.result.ended_by.is_empty() {
            text.push_str(&format!("; {}", clean(&self.result.ended_by)));
        }
        text
    }

    /// `47 of 50 hosts answered: 2 failed, 1 lost`.
    fn answered(&self) -> String {
        let FleetCaptureInfo {
            asked,
            answered,
            failed,
            lost,
            ..
        } = self.result;
        let parts = [
            (failed, "failed"),
            (lost, "lost"),
            (self.plan.absent, "not connected"),
            (self.plan.left_out, "skipped by --max-hosts"),
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
            notices: result.notices.iter().collect(),
            hosts: result.hosts.iter().map(HostJson::of).collect(),
            past: self.past.as_ref().map(ProfileFacts::of),
            profile: self.profile.as_ref().map(ProfileFacts::of),
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
    /// The time before the capture; the file has both.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<ProfileFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileFacts>,
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

/// Whether a host ended before its time, with what it had.
fn is_early(host: &HostProgress) -> bool {
    host.state() == HostState::Partial
}

fn take(assembler: &mut Option<ProfileAssembler>, chunk: wire::ProfileChunk) -> Result<()> {
    assembler
        .get_or_insert_with(ProfileAssembler::new)
        .push(chunk)?;
    Ok(())
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
            "47 of 50 hosts answered: 2 failed, 1 lost, 3 not connected, 7 skipped by --max-hosts; \
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
}
