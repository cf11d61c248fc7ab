//! Records from now on, for the commands that need it: the sampling options, the capture on one
//! host, and its progress. `fleet_capture.rs` captures on many.

use crate::capture_info;
use crate::client::{CaptureStream, Client};
use crate::command::{self, Running};
use crate::delivery::{Captured, Delivery, Rendering};
use crate::exit::{self, fail};
use crate::facts;
use crate::fleet_capture::{self, Fleet};
use crate::group_by;
use crate::look::Look;
use crate::peer::Connection;
use crate::render::Format;
use crate::select::{self, Frames, Labels};
use crate::signals::Signals;
use crate::source::Source;
use crate::terminal::{Out, json, write_stdout};
use crate::units;
use crate::when::Clock;
use anyhow::Result;
use profile::key;
use proto::ProfileAssembler;
use proto::agent::capture_response::Body;
use proto::agent::{
    CaptureInfo, CaptureProgress, CaptureRequest, CaptureState, LabelMatcher, MatchOp,
};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How long lines are recorded when nothing is said: a thousand samples of a busy CPU.
pub const LINES_FOR: Duration = Duration::from_secs(10);

/// What is captured, apart from who: the same for one host and for a fleet.
#[derive(Clone, Debug, clap::Args)]
pub struct Sampling {
    /// How long to capture [default: 30s; with a COMMAND until it ends, at most 1h]
    #[arg(
        short,
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub duration: Option<Duration>,
    /// Event to sample: `cpu-clock`, `cycles`, `cache-misses`, `page-faults`, `context-switches`,
    /// `off-cpu`, `block-io`, `tracepoint:CATEGORY:NAME`, `uprobe:BINARY:FUNCTION`
    #[arg(
        short,
        long,
        value_name = "EVENT",
        default_value = "cpu-clock",
        help_heading = "Capture"
    )]
    pub event: String,
    /// Samples a second on each CPU, 1 to 9999 [default: depends on the event]
    #[arg(
        short,
        long,
        value_name = "HZ",
        conflicts_with = "period",
        value_parser = crate::number::within::<u32>(1, 9_999),
        help_heading = "Capture"
    )]
    pub rate: Option<u32>,
    /// Take a sample every so many events, instead of --rate
    #[arg(
        long,
        value_name = "EVENTS",
        value_parser = crate::number::within::<u64>(1, u64::MAX),
        help_heading = "Capture"
    )]
    pub period: Option<u64>,
    /// Kernel filter for a tracepoint: `prev_state != 0`
    #[arg(long, value_name = "EXPRESSION", help_heading = "Capture")]
    pub filter: Option<String>,
    /// How to walk stacks: `stack-copy` or `frame-pointer` [default: the agent's configuration]
    #[arg(long, value_name = "MODE", help_heading = "Capture")]
    pub unwind: Option<String>,
    /// Bytes of user stack to copy with each sample [default: the agent's configuration]
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = crate::number::any::<u32>(),
        help_heading = "Capture"
    )]
    pub stack_bytes: Option<u32>,
    /// Skip waits shorter than this (`off-cpu`)
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub min_wait: Option<Duration>,
    /// Add this much of the time before, from the flight recorder
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub before: Option<Duration>,
    /// Record source lines and inlined functions of native code with debug information; text and
    /// flame graphs then show each line as a frame of its own
    #[arg(long, help_heading = "Capture")]
    pub lines: bool,
    /// Do not record the time of each sample
    #[arg(long, help_heading = "Capture")]
    pub no_times: bool,
    /// Reason to show in the list of captures
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        help_heading = "Capture"
    )]
    pub reason: String,
}

/// How long is captured when nothing is said.
const CAPTURE_FOR: Duration = Duration::from_secs(30);

impl Sampling {
    /// The CPU's time with source lines, for so long.
    pub fn of_lines(duration: Duration) -> Sampling {
        Sampling {
            duration: Some(duration),
            event: "cpu-clock".to_owned(),
            rate: None,
            period: None,
            filter: None,
            unwind: None,
            stack_bytes: None,
            min_wait: None,
            before: None,
            lines: true,
            no_times: true,
            reason: String::new(),
        }
    }

    /// The request for these samples.
    ///
    /// # Errors
    /// When a selector or pattern is malformed.
    pub fn request(
        &self,
        labels: &Labels,
        frames: &Frames,
        group_by: Vec<String>,
    ) -> Result<CaptureRequest> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(CaptureRequest {
            matchers: labels.matchers()?,
            frame_filters: frames.filters()?,
            group_by,
            duration_ns: ns(self.duration.unwrap_or(CAPTURE_FOR)),
            event: self.event.clone(),
            rate_hz: self.rate.unwrap_or(0),
            period: self.period.unwrap_or(0),
            filter: self.filter.clone().unwrap_or_default(),
            unwind: self.unwind.clone().unwrap_or_default(),
            stack_bytes: self.stack_bytes.unwrap_or(0),
            before_ns: self.before.map_or(0, ns),
            no_times: self.no_times,
            min_wait_ns: self.min_wait.map_or(0, ns),
            who: who(),
            reason: self.reason.clone(),
            lines: self.lines,
            instructions: false,
        })
    }
}

/// The user's name, as far as the environment has it; the agent knows the user id by itself.
fn who() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"];
    let mut found = named.iter().filter_map(|name| std::env::var(name).ok());
    let name = found.next().unwrap_or_default();
    name.chars().take(WHO_CHARS_MAX).collect()
}

/// Longest name of who asks. An agent takes 256 bytes.
const WHO_CHARS_MAX: usize = 64;

/// A command that is to be run.
pub struct Words {
    /// Its program and arguments.
    pub words: Vec<OsString>,
    /// It stays root where sudo made this process root.
    pub as_root: bool,
}

/// What is recorded from now on, and what becomes of it.
pub struct Recording {
    /// How it is sampled.
    pub sampling: Sampling,
    /// What is run and captured, and whether as root even under sudo.
    pub command: Option<Words>,
    /// Which hosts.
    pub fleet: Fleet,
    /// Which samples.
    pub labels: Labels,
    /// What becomes of their frames.
    pub frames: Frames,
    /// Labels to group by, as given.
    pub group_by: Vec<String>,
    /// How it is written.
    pub rendering: Rendering,
    /// Metadata goes to standard output as JSON.
    pub json: bool,
    /// File, `-` for standard output.
    pub output: PathBuf,
    /// How it looks.
    pub look: Look,
    /// Notes only what the reader must know.
    pub quiet: bool,
}

/// Records, and writes what came of it. Handles signals itself: the first one ends the capture and
/// not the command.
///
/// # Errors
/// When the recording is malformed, or the peer refuses it.
pub async fn record(out: &Out, connection: &Connection, recording: Recording) -> Result<u8> {
    let peer = connection.peer()?;
    if !peer.is_collector() {
        recording.fleet.refuse_for_agent()?;
        group_by::known_to_agent(&recording.group_by)?;
    }
    let (group_by, instructions) = match &recording.rendering {
        Rendering::Profile(format) => {
            (group_by::labels(&recording.group_by, *format, &peer), false)
        }
        Rendering::Instructions(_) => (recording.group_by.clone(), true),
    };
    let sampling = &recording.sampling;
    let mut request = sampling.request(&recording.labels, &recording.frames, group_by.clone())?;
    request.instructions = instructions;
    if recording.command.is_some() {
        command::check(&peer)?;
        if sampling.duration.is_none() {
            request.duration_ns = u64::try_from(command::LONGEST.as_nanos()).unwrap_or(u64::MAX);
        }
    }
    select::check(&request.matchers, &peer)?;
    if peer.is_collector() {
        recording.fleet.select(&mut request)?;
    }
    let mut signals = Signals::new()?;
    let mut facts = Vec::new();
    if matches!(recording.rendering, Rendering::Profile(Format::Bundle)) {
        let asked = format!("{} at {}", peer.kind, peer.target);
        facts.extend(facts::of_title(&recording.look));
        facts.push(facts::fact("Query", "asked", asked));
        facts.extend(facts::of_selection(
            &recording.labels,
            &recording.frames,
            &request.matchers,
        ));
        let mut source = Source::connect(connection, &peer).await?;
        facts.extend(facts::of_source(&mut source).await?);
    }
    let delivery = Delivery {
        rendering: &recording.rendering,
        output: &recording.output,
        look: Look {
            lines: sampling.lines,
            ..recording.look
        },
        labels: group_by,
        facts,
        quiet: recording.quiet,
    };
    if peer.is_collector() {
        let request = recording.fleet.fleet_request(request);
        let call = fleet_capture::Call {
            connection,
            peer: &peer,
            json: recording.json,
        };
        return fleet_capture::capture(out, call, request, &mut signals, &delivery).await;
    }
    let mut client = Client::connect(connection, &peer).await?;
    let status = client.status().await?;
    let clock = Clock::at(status.now_unix_ns);
    let mut running = None;
    if let Some(Words { words, as_root }) = &recording.command {
        let environment = status.environment.unwrap_or_default();
        let prepared = Running::prepare(words, &environment, *as_root)?;
        request.matchers.push(LabelMatcher {
            label: key::CGROUP.to_owned(),
            op: MatchOp::Subtree.into(),
            value: prepared.cgroup.clone(),
        });
        running = Some(prepared);
    }
    // The command has standard error for itself while it runs.
    let quiet = recording.quiet || running.is_some();
    let captured = match client.capture(request).await {
        Ok(stream) => follow(&mut client, stream, &mut signals, quiet, &mut running).await,
        Err(error) => Err(error),
    };
    if let Some(running) = &mut running {
        // A profile that fails does not end what it is of.
        running.finish(&mut signals).await?;
    }
    let Some(captured) = captured? else {
        let code = running.map(|running| running.code());
        return Ok(code.unwrap_or(exit::INTERRUPTED));
    };
    let delivered = delivery.deliver(&captured, &clock);
    if let Some(running) = &running {
        running.note_rest();
    }
    let code = delivered?;
    if recording.json {
        let info = capture_info::Json::of(&captured.result);
        write_stdout((json(&info, true)? + "\n").as_bytes())?;
    }
    Ok(match running.map(|running| running.code()) {
        None | Some(exit::OK) => code,
        Some(of_command) => of_command,
    })
}

/// Waits for the end of a command; for ever where none runs.
async fn end_of(running: &mut Option<Running>) -> Result<()> {
    match running {
        Some(running) if !running.has_ended() => running.end().await,
        _ => std::future::pending().await,
    }
}

/// Reads a capture to its end; `None` when it was left.
async fn follow(
    client: &mut Client,
    mut stream: CaptureStream,
    signals: &mut Signals,
    quiet: bool,
    running: &mut Option<Running>,
) -> Result<Option<Captured>> {
    let mut line = ProgressLine::new(quiet);
    let mut captured = Captured::default();
    let (mut past, mut current) = (ProfileAssembler::new(), ProfileAssembler::new());
    let mut accepted = CaptureInfo::default();
    let mut cancelled = false;
    loop {
        let body = tokio::select! {
            body = stream.next() => body?,
            ended = end_of(running), if !cancelled => {
                ended?;
                cancelled = true;
                // It may just have ended by itself.
                let _ = client.cancel_capture(accepted.id).await;
                continue;
            }
            signal = signals.next() => {
                if let Some(running) = running && !running.has_ended() {
                    running.hand_on(signal);
                    continue;
                }
                if cancelled {
                    return Ok(None);
                }
                cancelled = true;
                line.clear();
                note!("agent-ctl: ending the capture with the samples so far; press again to leave \
                    it");
                // It may just have ended by itself.
                let _ = client.cancel_capture(accepted.id).await;
                continue;
            }
        };
        match body {
            Some(Body::Accepted(info)) => {
                accepted = info;
                if let Some(running) = running {
                    running.go()?;
                }
            }
            Some(Body::Progress(progress)) => line.show(&accepted, &progress),
            Some(Body::Past(chunk)) => {
                let last = chunk.last;
                past.push(chunk)?;
                if last {
                    captured.past = Some(std::mem::take(&mut past).finish()?);
                }
            }
            Some(Body::Chunk(chunk)) => {
                let last = chunk.last;
                current.push(chunk)?;
                if last {
                    captured.profile = Some(std::mem::take(&mut current).finish()?);
                }
            }
            Some(Body::Result(info)) => {
                line.clear();
                captured.result = info;
                let by_command = running.as_ref().is_some_and(Running::has_ended);
                if by_command && captured.result.state() == CaptureState::Cancelled {
                    // It went on for as long as there was something to capture.
                    captured.result.state = CaptureState::Complete.into();
                    captured.result.error.clear();
                }
                return Ok(Some(captured));
            }
            None => {
                line.clear();
                return Err(fail(
                    exit::UNREACHABLE,
                    "failed to finish the capture: the agent ended it without a result",
                ));
            }
        }
    }
}

/// One line on the terminal of standard error; nothing where that is none.
struct ProgressLine {
    on: bool,
    shown: bool,
}

impl ProgressLine {
    fn new(quiet: bool) -> ProgressLine {
        ProgressLine {
            on: !quiet && std::io::stderr().is_terminal(),
            shown: false,
        }
    }

    fn show(&mut self, accepted: &CaptureInfo, progress: &CaptureProgress) {
        if !self.on {
            return;
        }
        let line = progress_text(accepted, progress);
        self.shown = true;
        // A terminal that takes nothing is no reason to end a capture.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// `12 s of 30 s, 11,964 samples, 0.4 % of a CPU`.
fn progress_text(accepted: &CaptureInfo, progress: &CaptureProgress) -> String {
    let request = accepted.request.as_ref();
    let duration = Duration::from_nanos(request.map_or(0, |request| request.duration_ns));
    let elapsed = Duration::from_nanos(progress.elapsed_ns);
    let mut text = format!(
        "{} s of {}, {} samples",
        elapsed.as_secs(),
        units::duration(duration),
        units::count(progress.samples)
    );
    if progress.lost_samples > 0 {
        text.push_str(&format!(", {} lost", units::count(progress.lost_samples)));
    }
    text.push_str(&format!(
        ", {} of a CPU",
        units::percent(progress.cpu_ns, progress.elapsed_ns)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_a_line() {
        let accepted = CaptureInfo {
            request: Some(CaptureRequest {
                duration_ns: 30_000_000_000,
                ..CaptureRequest::default()
            }),
            ..CaptureInfo::default()
        };
        let mut progress = CaptureProgress {
            elapsed_ns: 12_400_000_000,
            samples: 11_964,
            cpu_ns: 50_000_000,
            ..CaptureProgress::default()
        };
        let text = progress_text(&accepted, &progress);
        assert_eq!(text, "12 s of 30 s, 11,964 samples, 0.4 % of a CPU");
        progress.lost_samples = 7;
        let text = progress_text(&accepted, &progress);
        assert_eq!(text, "12 s of 30 s, 11,964 samples, 7 lost, 0.4 % of a CPU");
    }
}
