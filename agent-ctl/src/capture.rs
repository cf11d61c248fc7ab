//! `agent-ctl capture`: samples anew, by another event or at another rate, for a while: on one host, or through a
//! collector on many (`fleet_capture.rs`).
//!
//! Progress stands on one line of a terminal and nowhere else; what it cost and what its reader must know
//! follows on standard error. Ctrl-C ends the capture with what there is; a second one leaves it.

use crate::client::{CaptureStream, Client};
use crate::exit::{self, fail};
use crate::facts;
use crate::fleet_capture::Fleet;
use crate::group_by;
use crate::look::{Look, MeasureBy};
use crate::output::{choose, deliver, is_stdout};
use crate::peer::Connection;
use crate::render::{self, Format};
use crate::select::{self, Frames, Labels};
use crate::source::Source;
use crate::terminal::{Out, clean, json, write_stdout};
use crate::when::Clock;
use crate::{capture_info, fleet_capture, loss, summary, units};
use anyhow::Result;
use profile::Profile;
use profile::formats::Fact;
use proto::ProfileAssembler;
use proto::agent::{
    CaptureInfo, CaptureProgress, CaptureRequest, CaptureState, capture_response::Body,
};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is captured, apart from who: the same for one host and for a fleet.
#[derive(Clone, Debug, clap::Args)]
pub struct Sampling {
    /// How long
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub duration: Duration,
    /// What is sampled: `cpu-clock`, `cycles`, `cache-misses`, `page-faults`, `context-switches`, `off-cpu`,
    /// `block-io`, `tracepoint:CATEGORY:NAME`, `uprobe:BINARY:FUNCTION`
    #[arg(
        short,
        long,
        value_name = "EVENT",
        default_value = "cpu-clock",
        help_heading = "Capture"
    )]
    pub event: String,
    /// Samples a second on each CPU, 1 to 9999 [default: as the event is best sampled]
    #[arg(
        short,
        long,
        value_name = "HZ",
        conflicts_with = "period",
        value_parser = crate::number::whole::<u32>(1, 9_999),
        help_heading = "Capture"
    )]
    pub rate: Option<u32>,
    /// Or a sample every so many events
    #[arg(
        long,
        value_name = "EVENTS",
        value_parser = crate::number::whole::<u64>(1, u64::MAX),
        help_heading = "Capture"
    )]
    pub period: Option<u64>,
    /// Kernel filter for a tracepoint: `prev_state != 0`
    #[arg(long, value_name = "EXPRESSION", help_heading = "Capture")]
    pub filter: Option<String>,
    /// How stacks are walked: `stack-copy` or `frame-pointer` [default: as the agent is configured]
    #[arg(long, value_name = "MODE", help_heading = "Capture")]
    pub unwind: Option<String>,
    /// Bytes of user stack to copy with each sample [default: as the agent is configured]
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = crate::number::any::<u32>(),
        help_heading = "Capture"
    )]
    pub stack_bytes: Option<u32>,
    /// Leave out waits shorter than this (`off-cpu`)
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub min_wait: Option<Duration>,
    /// Add what the flight recorder has of the time before
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        help_heading = "Capture"
    )]
    pub before: Option<Duration>,
    /// Tell source lines, and inlined functions as frames, of native code with debug information;
    /// text and flame graphs then tell functions apart by line
    #[arg(long, help_heading = "Capture")]
    pub lines: bool,
    /// Do not keep when each sample was taken
    #[arg(long, help_heading = "Capture")]
    pub no_times: bool,
    /// Why, for the list of captures
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        help_heading = "Capture"
    )]
    pub reason: String,
}

impl Sampling {
    /// The CPU's time with source lines, for so long.
    pub fn of_lines(duration: Duration) -> Sampling {
        Sampling {
            duration,
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
            duration_ns: ns(self.duration),
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

/// Who asks, as far as the environment tells; the agent knows the user id by itself.
fn who() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"];
    let mut found = named.iter().filter_map(|name| std::env::var(name).ok());
    let name = found.next().unwrap_or_default();
    name.chars().take(WHO_CHARS_MAX).collect()
}

/// Longest name of who asks. An agent takes 256 bytes.
const WHO_CHARS_MAX: usize = 64;

/// Captures on one host, or on many of a fleet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What it covers, misses and costs goes to standard error. Ctrl-C ends it with what there is. Exit code 6: it \
was ended before its time, or there are no samples, and then nothing is written, or most was lost; of a fleet also: not all hosts \
that were selected are in the profile.

Examples:
  agent-ctl capture --unit api --duration 10s --rate 997 -o api.html
  agent-ctl capture --pid 4711 --event page-faults --period 1 -o faults.svg
  agent-ctl capture --cgroup /system.slice/db.service --before 5m --reason INC-12 -o db.pb.gz
  agent-ctl capture --event tracepoint:syscalls:sys_enter_openat --duration 5s
  agent-ctl capture --unit api --lines --duration 10s -o api.svg
  agent-ctl --collector c1 capture --select 'unit=\"api.service\",zone=\"a\"' --max-hosts 20 -o api.html")]
pub struct Args {
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    fleet: Fleet,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to tell samples apart by, as in `agent-ctl profile`
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Format [default: by the file name, or folded]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// Print capture metadata as JSON; the profile goes to the file of -o
    #[arg(long, help_heading = "Output", requires = "output")]
    json: bool,
    /// File to write, `-` for standard output [default: -]
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    look: Look,
    /// Do not say how it goes, and what the profile covers and misses
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// What a capture gave.
#[derive(Default)]
pub struct Taken {
    /// Of the time before.
    pub past: Option<Profile>,
    /// Of the capture.
    pub profile: Option<Profile>,
    /// How it went.
    pub result: CaptureInfo,
}

/// How a profile is written.
pub enum Rendering {
    /// As a file.
    Profile(Format),
    /// By instruction, as this writes it.
    Instructions(WriteProfile),
}

/// Writes a profile as bytes.
pub type WriteProfile = Box<dyn Fn(&Profile) -> Result<Vec<u8>>>;

/// What is recorded from now on, and what becomes of it.
pub struct Order {
    /// How it is sampled.
    pub sampling: Sampling,
    /// Which hosts.
    pub fleet: Fleet,
    /// Which samples.
    pub labels: Labels,
    /// What becomes of their frames.
    pub frames: Frames,
    /// Labels to tell samples apart by, as they were given.
    pub group_by: Vec<String>,
    /// How it is written.
    pub rendering: Rendering,
    /// Metadata goes to standard output as JSON.
    pub json: bool,
    /// File, `-` for standard output.
    pub output: PathBuf,
    /// How it looks.
    pub look: Look,
    /// Nothing is said but what its reader must know.
    pub quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let output = args.output.unwrap_or_else(|| PathBuf::from("-"));
    if args.json && is_stdout(&output) {
        return Err(fail(
            exit::USAGE,
            "failed to use --json: standard output cannot take the profile too\ngive a file with -o",
        ));
    }
    let order = Order {
        rendering: Rendering::Profile(choose(out, args.format, &output)?),
        sampling: args.sampling,
        fleet: args.fleet,
        labels: args.labels,
        frames: args.frames,
        group_by: args.group_by,
        json: args.json,
        output,
        look: args.look,
        quiet: args.quiet,
    };
    record(out, connection, order).await
}

/// Records, and writes what came of it. Hears signals itself: one of them ends the capture and not
/// the command.
///
/// # Errors
/// When the order is malformed, or whoever is asked refuses it.
pub async fn record(out: &Out, connection: &Connection, order: Order) -> Result<u8> {
    let peer = connection.peer()?;
    if !peer.is_collector() {
        order.fleet.refuse_for_agent()?;
        group_by::known_to_agent(&order.group_by)?;
    }
    let (group_by, instructions) = match &order.rendering {
        Rendering::Profile(format) => (group_by::labels(&order.group_by, *format, &peer), false),
        Rendering::Instructions(_) => (order.group_by.clone(), true),
    };
    let sampling = &order.sampling;
    let mut request = sampling.request(&order.labels, &order.frames, group_by.clone())?;
    request.instructions = instructions;
    select::check(&request.matchers, &peer)?;
    if peer.is_collector() {
        order.fleet.select(&mut request)?;
    }
    let mut signals = Signals::new()?;
    let mut facts = Vec::new();
    if matches!(order.rendering, Rendering::Profile(Format::Bundle)) {
        let asked = format!("{} at {}", peer.kind, peer.target);
        facts.extend(facts::of_title(&order.look));
        facts.push(facts::fact("Query", "asked", asked));
        facts.extend(facts::of_selection(
            &order.labels,
            &order.frames,
            &request.matchers,
        ));
        let mut source = Source::connect(connection, &peer).await?;
        facts.extend(facts::of_source(&mut source).await?);
    }
    let written = Written {
        rendering: &order.rendering,
        output: &order.output,
        look: Look {
            lines: sampling.lines,
            ..order.look
        },
        labels: group_by,
        facts,
        quiet: order.quiet,
    };
    if peer.is_collector() {
        let asked = order.fleet.asked(request);
        let call = fleet_capture::Call {
            connection,
            peer: &peer,
            json: order.json,
        };
        return fleet_capture::capture(out, call, asked, &mut signals, &written).await;
    }
    let mut client = Client::connect(connection, &peer).await?;
    let clock = client.clock().await?;
    let stream = client.capture(request).await?;
    let Some(taken) = follow(&mut client, stream, &mut signals, order.quiet).await? else {
        return Ok(exit::INTERRUPTED);
    };
    let code = written.deliver(&taken, &clock)?;
    if order.json {
        let info = capture_info::Json::of(&taken.result);
        write_stdout((json(&info, true)? + "\n").as_bytes())?;
    }
    Ok(code)
}

/// Reads a capture to its end; `None` when it was left.
async fn follow(
    client: &mut Client,
    mut stream: CaptureStream,
    signals: &mut Signals,
    quiet: bool,
) -> Result<Option<Taken>> {
    let mut line = ProgressLine::new(quiet);
    let mut taken = Taken::default();
    let (mut past, mut own) = (ProfileAssembler::new(), ProfileAssembler::new());
    let mut accepted = CaptureInfo::default();
    let mut cancelled = false;
    loop {
        let body = tokio::select! {
            body = stream.next() => body?,
            () = signals.next() => {
                if cancelled {
                    return Ok(None);
                }
                cancelled = true;
                line.clear();
                note!("agent-ctl: ending the capture with what there is; again to leave it");
                // It may just have ended by itself.
                let _ = client.cancel_capture(accepted.id).await;
                continue;
            }
        };
        match body {
            Some(Body::Accepted(info)) => accepted = info,
            Some(Body::Progress(progress)) => line.show(&accepted, &progress),
            Some(Body::Past(chunk)) => {
                let last = chunk.last;
                past.push(chunk)?;
                if last {
                    taken.past = Some(std::mem::take(&mut past).finish()?);
                }
            }
            Some(Body::Chunk(chunk)) => {
                let last = chunk.last;
                own.push(chunk)?;
                if last {
                    taken.profile = Some(std::mem::take(&mut own).finish()?);
                }
            }
            Some(Body::Result(info)) => {
                line.clear();
                taken.result = info;
                return Ok(Some(taken));
            }
            None => {
                line.clear();
                return Err(fail(
                    exit::UNREACHABLE,
                    "failed to go on: the agent ended the capture without a result",
                ));
            }
        }
    }
}

/// SIGINT and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for one of them.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
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
pub fn progress_text(accepted: &CaptureInfo, progress: &CaptureProgress) -> String {
    let request = accepted.request.as_ref();
    let whole = Duration::from_nanos(request.map_or(0, |request| request.duration_ns));
    let elapsed = Duration::from_nanos(progress.elapsed_ns);
    let mut text = format!(
        "{} s of {}, {} samples",
        elapsed.as_secs(),
        units::duration(whole),
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

/// `cost 41 ms of CPU time (0.4 % of a CPU) and 310 KiB in the agent`.
fn cost_text(progress: &CaptureProgress) -> String {
    let mut text = format!(
        "cost {} of CPU time ({} of a CPU) and {} in the agent",
        units::duration(Duration::from_nanos(progress.cpu_ns)),
        units::percent(progress.cpu_ns, progress.elapsed_ns),
        units::bytes(progress.bytes)
    );
    let all = progress.samples_all;
    if all > progress.samples {
        let (all, own) = (units::count(all), units::count(progress.samples));
        text.push_str(&format!("; {own} of {all} samples matched"));
    }
    text
}

/// Where the profile goes, and how.
pub struct Written<'a> {
    /// How it is written.
    pub rendering: &'a Rendering,
    /// Its file, `-` for standard output.
    pub output: &'a Path,
    /// How it looks.
    pub look: Look,
    /// Labels that stand as root frames.
    pub labels: Vec<String>,
    /// What a bundle says besides.
    pub facts: Vec<Fact>,
    /// Nothing is said but what its reader must know.
    pub quiet: bool,
}

impl Written<'_> {
    /// The same, with more for a bundle to say.
    pub fn with_facts(&self, more: Vec<Fact>) -> Self {
        let mut facts = self.facts.clone();
        facts.extend(more);
        Written {
            look: self.look.clone(),
            labels: self.labels.clone(),
            facts,
            ..*self
        }
    }

    /// Writes what there is and says what it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn deliver(&self, taken: &Taken, clock: &Clock) -> Result<u8> {
        let mut look = self.look.clone();
        let mut code = match taken.result.state() {
            CaptureState::Complete => exit::OK,
            _ => exit::PARTIAL,
        };
        let own = taken.profile.clone().unwrap_or_default();
        let mut apart = None;
        let mut whole = own;
        if let Some(past) = &taken.past {
            let rates_differ = past.info.period != whole.info.period;
            let mut merged = past.clone();
            // Time on a CPU and time off it have one unit and no sum.
            let is_same = past.info.event == whole.info.event
                || past.samples.is_empty()
                || whole.samples.is_empty();
            match merged.merge(&whole) {
                Ok(()) if is_same => {
                    whole = merged;
                    if rates_differ && look.measure(&whole.info) == MeasureBy::Count {
                        look.measure = Some(MeasureBy::Weight);
                        self.note(
                            "widths and counts stand for weight: before the capture it was \
                                   sampled at another rate",
                        );
                    }
                }
                Ok(()) | Err(_) => apart = Some(past),
            }
        }
        let written = match whole.samples.is_empty() {
            true => {
                // An agent says it in a notice, with the reason.
                let is_told = |notice: &String| {
                    notice == "nothing was sampled" || notice.starts_with("none of the ")
                };
                if !taken.result.notices.iter().any(is_told) {
                    note!("agent-ctl: no samples: nothing written");
                }
                code = exit::PARTIAL;
                Ok(())
            }
            false => self.write(&whole, self.output, &look, (clock, &taken.result)),
        };
        if let Err(error) = written {
            // What was lost, or ended it early, may be why: of a function there may be no sample.
            self.tell(&taken.result);
            if let Some(why) = loss::of_profile(&whole) {
                loss::note(&why);
            }
            return Err(error);
        }
        // An agent says how far lines are known, in a notice; an older one does not know of them.
        if look.lines && !whole.samples.is_empty() && whole.dict.frames.iter().all(|f| f.line == 0)
        {
            note!("agent-ctl: no frame has a source line: no debug information, or an older agent");
        }
        if let Some(past) = apart {
            code = self.write_apart(past, (clock, &taken.result))?.max(code);
        }
        self.tell(&taken.result);
        if let Some(why) = loss::of_profile(&whole) {
            loss::note(&why);
            code = exit::PARTIAL;
        }
        Ok(code)
    }

    /// The past by another event: in a file of its own.
    fn write_apart(&self, past: &Profile, of: (&Clock, &CaptureInfo)) -> Result<u8> {
        if past.samples.is_empty() {
            self.note("the flight recorder has no samples of the time before");
            return Ok(exit::OK);
        }
        match beside(self.output) {
            Some(path) => {
                self.write(past, &path, &self.look, of)?;
                Ok(exit::OK)
            }
            None => {
                let event = clean(&past.info.event).into_owned();
                note!(
                    "agent-ctl: the time before is of {event}, which does not add up with the \
                     capture's event: left out\ngive a file with -o, and it goes to another next to it"
                );
                Ok(exit::PARTIAL)
            }
        }
    }

    fn write(
        &self,
        profile: &Profile,
        output: &Path,
        look: &Look,
        (clock, result): (&Clock, &CaptureInfo),
    ) -> Result<()> {
        let bytes = match self.rendering {
            Rendering::Instructions(write) => write(profile)?,
            Rendering::Profile(format) => {
                let labels = group_by::root_labels(&self.labels, profile);
                let mut facts = self.facts.clone();
                facts.extend(facts::of_capture(result));
                let extra = render::Extra {
                    root_labels: labels,
                    fleet: None,
                    facts,
                };
                render::write_with(profile, *format, look, extra)?
            }
        };
        deliver(output, &bytes)?;
        let place = match is_stdout(output) {
            true => String::new(),
            false => format!("{}: ", clean(&output.to_string_lossy())),
        };
        self.note(&format!("{place}{}", summary::line(profile, clock)));
        Ok(())
    }

    /// What it cost, and what its reader must know.
    fn tell(&self, result: &CaptureInfo) {
        if let Some(progress) = &result.progress {
            self.note(&cost_text(progress));
        }
        for notice in &result.notices {
            note!("agent-ctl: {}", clean(notice));
        }
        if !result.error.is_empty() {
            let elapsed = units::duration(Duration::from_nanos(result.elapsed_ns));
            note!("agent-ctl: ended after {elapsed}: {}", clean(&result.error));
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            note!("{text}");
        }
    }
}

/// The file for the past beside that of the capture: `db.past.svg` beside `db.svg`. `None` for standard
/// output.
fn beside(output: &Path) -> Option<PathBuf> {
    if is_stdout(output) {
        return None;
    }
    let name = output.file_name()?.to_str()?;
    let name = match name.split_once('.') {
        Some((stem, endings)) => format!("{stem}.past.{endings}"),
        None => format!("{name}.past"),
    };
    Some(output.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_goes_beside_the_capture() {
        for (output, expected) in [
            ("db.svg", Some("db.past.svg")),
            ("/tmp/x/db.pb.gz", Some("/tmp/x/db.past.pb.gz")),
            ("db", Some("db.past")),
            ("-", None),
        ] {
            assert_eq!(beside(Path::new(output)), expected.map(PathBuf::from));
        }
    }

    #[test]
    fn progress_and_cost_are_told_in_a_line() {
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
            samples_all: 11_964,
            cpu_ns: 50_000_000,
            bytes: 310 << 10,
            ..CaptureProgress::default()
        };
        let text = progress_text(&accepted, &progress);
        assert_eq!(text, "12 s of 30 s, 11,964 samples, 0.4 % of a CPU");
        progress.lost_samples = 7;
        progress.samples_all = 20_000;
        let text = progress_text(&accepted, &progress);
        assert_eq!(text, "12 s of 30 s, 11,964 samples, 7 lost, 0.4 % of a CPU");
        assert_eq!(
            cost_text(&progress),
            "cost 50 ms of CPU time (0.4 % of a CPU) and 310 KiB in the agent; \
             11,964 of 20,000 samples matched"
        );
    }
}
