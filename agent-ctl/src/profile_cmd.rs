//! `agent-ctl profile`: writes a profile of a time range in the recorder to a file or standard
//! output. With `--lines` it records from now on, because past windows have no instruction
//! addresses.

use crate::collector::Samples;
use crate::delivery::Rendering;
use crate::exit::{self, fail};
use crate::facts;
use crate::fleet::{self, Fleet};
use crate::fleet_capture;
use crate::group_by;
use crate::look::{Look, MeasureBy};
use crate::loss;
use crate::nothing;
use crate::output::{OutputFile, choose, deliver, is_stdout, with_lines};
use crate::peer::{Connection, Peer};
use crate::record::{self, LINES_FOR, Recording, Sampling};
use crate::render::{self, Format};
use crate::select::{self, Frames, Labels, When, fleet_option};
use crate::source::{Answer, Question, Source};
use crate::steps;
use crate::summary;
use crate::terminal::{Out, clean};
use crate::when::{Clock, Range};
use anyhow::Result;
use profile::key;
use std::path::Path;
use std::time::Duration;

/// Saves or prints a profile of a time in the past.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Coverage and losses go to standard error. Exit code 6: there are no samples in the range and \
nothing is written, most samples were lost, or the collector misses part of the data.

Examples:
  agent-ctl profile --since 30m --unit api
  agent-ctl profile --from '20 min ago' --until '10 min ago' --cum --limit 50
  agent-ctl profile --since yesterday --callers '^malloc$'
  agent-ctl profile --since 5m -o cpu.svg
  agent-ctl profile --from 14:03 --to 14:08 --unit nginx -o nginx.pb.gz
  agent-ctl profile --container 3f2a --focus '^handle_' --format folded
  agent-ctl profile --since 2m --cgroup /system.slice -o incident.bundle.html
  agent-ctl profile --selector 'comm=~\"java|node\"' --group-by comm,thread -o jit.html
  agent-ctl profile --lines --for 10s --unit api -o api.svg
  agent-ctl --collector c1 profile --since 1h --service checkout -o checkout.svg
  agent-ctl --collector c1 profile --since 1h --step 1m --group-by host,unit -o hour.parquet
  agent-ctl --collector c1 profile --host web-1 --host web-2 --group-by host -o web.html")]
pub struct Args {
    #[command(flatten)]
    when: When,
    /// Record new samples, with source lines and inlined functions of native code that has debug
    /// information. Past samples have functions only
    #[arg(long, help_heading = "Time")]
    lines: bool,
    /// How long to record (with --lines) [default: 10s]
    #[arg(
        long = "for",
        value_name = "DURATION",
        requires = "lines",
        value_parser = crate::when::duration,
        help_heading = "Time"
    )]
    length: Option<Duration>,
    /// Profile type of other senders or of captures in place of CPU time, by its id; `list` lists
    /// them (with --collector)
    #[arg(long = "type", value_name = "ID", help_heading = "Samples")]
    profile_type: Option<String>,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to group samples by, `*` for all, `none` for none; in text and flame graphs they
    /// become root frames [default: `comm` in text and flame graphs; cgroup, unit, container, comm
    /// and thread in pprof, JSON and parquet; host, unit, container and comm from a collector]
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Maximum number of stacks from a collector; the lightest beyond it are merged into their
    /// callers [default: 200,000]
    #[arg(
        long,
        value_name = "STACKS",
        value_parser = crate::number::within::<u32>(1, u32::MAX.into()),
        help_heading = "Output"
    )]
    max_nodes: Option<u32>,
    /// Length of the stretches of time that rows are of (parquet, with --collector) [default: the
    /// complete range]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = crate::when::duration,
        conflicts_with_all = ["lines", "max_nodes"],
        help_heading = "Output"
    )]
    step: Option<Duration>,
    /// Format [default: by the file name; else top on a terminal, folded elsewhere]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// The same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    to: OutputFile,
    /// Use only closed windows, as a collector always does
    #[arg(long, help_heading = "Time")]
    closed: bool,
    /// Include the time of each sample, if the agent still has it (json; firefox, perf-script and
    /// bundle always include it)
    #[arg(long, help_heading = "Output")]
    times: bool,
    #[command(flatten)]
    look: Look,
    /// Suppress the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

impl Args {
    /// True when it is recorded from now on.
    pub fn records(&self) -> bool {
        self.lines
    }

    /// What is recorded.
    fn recording(self, format: Format) -> Result<Recording> {
        let of_the_past = [
            ("--since", self.when.since.is_some()),
            ("--from", self.when.from.is_some()),
            ("--to", self.when.to.is_some()),
            ("--closed", self.closed),
        ];
        if let Some((option, _)) = of_the_past.iter().find(|(_, given)| *given) {
            return Err(fail(
                exit::USAGE,
                format!(
                    "failed to use {option} with --lines: past samples have functions only, \
                     without source lines\nrecord new samples with --for, or leave --lines out"
                ),
            ));
        }
        if self.max_nodes.is_some() {
            return Err(fail(
                exit::USAGE,
                "failed to use --max-nodes with --lines: a capture has every sampled stack\nleave \
                 --max-nodes out",
            ));
        }
        Ok(Recording {
            sampling: Sampling {
                no_times: !(self.times || format.needs_times()),
                ..Sampling::of_lines(self.length.unwrap_or(LINES_FOR))
            },
            command: None,
            fleet: fleet_capture::Fleet::default(),
            labels: self.labels,
            frames: self.frames,
            group_by: self.group_by,
            rendering: Rendering::Profile(format),
            json: false,
            output: self.to.path,
            look: self.look,
            quiet: self.quiet,
        })
    }
}

/// What asks for the profile types in place of a profile.
const LIST: &str = "list";

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, mut args: Args) -> Result<u8> {
    let format = args.json.then_some(Format::Json).or(args.format);
    let format = with_lines(format, args.lines, &args.to.path, &args.look);
    let format = choose(out, format, &args.to.path, &mut args.look)?;
    let peer = connection.peer()?;
    check(&args, &peer)?;
    steps::check(args.step, &args.group_by, format, &peer)?;
    if args.lines {
        return record::record(out, connection, args.recording(format)?).await;
    }
    let samples = Samples {
        matchers: args.labels.matchers()?,
        filters: args.frames.filters()?,
        profile_type: select::profile_type(args.profile_type.as_deref(), &peer)?,
    };
    select::check(&samples.matchers, &peer)?;
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    let range = args.when.range(&clock)?;
    if let (Source::Collector(collector), LIST) = (&mut source, samples.profile_type.as_str()) {
        let ids = collector.profile_types(range).await?;
        let lines = ids.iter().map(|id| format!("{}\n", clean(id)));
        out.write(&lines.collect::<String>())?;
        return Ok(if ids.is_empty() {
            exit::PARTIAL
        } else {
            exit::OK
        });
    }
    let of = samples.profile_type.as_str();
    refuse_unknown_labels(&args.group_by, &mut source, range, of).await?;
    // What others sent counts no samples of equal weight.
    if !of.is_empty() {
        args.look.measure.get_or_insert(MeasureBy::Weight);
    }
    let question = Question {
        range,
        samples,
        group_by: group_by::labels(&args.group_by, format, &peer),
        fresh: !args.closed,
        max_nodes: args.max_nodes.unwrap_or(0),
        times: args.times || format.needs_times(),
    };
    if let (Some(step), Source::Collector(collector)) = (args.step, &mut source) {
        let found = steps::table(collector, &question, step, clock.now_ns()).await?;
        return steps::deliver(&args.to.path, found, args.quiet, &clock);
    }
    let mut facts = Vec::new();
    if format == Format::Bundle {
        facts = facts::of_question(&args.look, &question, &args.labels, &args.frames, &peer);
        facts.extend(facts::of_source(&mut source).await?);
    }
    let asked_now = (!peer.is_collector() && question.fresh).then_some(range);
    let Answer { profile, fleet } = source.profile(question.clone()).await?;
    let summary = summary::line(&profile, &clock);
    let coverage = summary::coverage(&profile.info.coverage, &profile.info.unit);
    let end_ns = summary::end_ns(&profile.info);
    let covered = (profile.info.start_unix_ns, end_ns);
    let widened = summary::widened(range, covered, &clock);
    let late = asked_now.and_then(|asked| loss::of_time(asked, end_ns, &clock));
    let of_fleet = fleet.as_ref().and_then(Fleet::loss);
    let missing = loss::of_profile(&profile).or(of_fleet).or(late);
    let code = match missing {
        Some(_) => exit::PARTIAL,
        None => fleet::code(profile.samples.is_empty(), fleet.as_ref()),
    };
    if profile.samples.is_empty() {
        note_nothing(&mut source, &question, fleet.as_ref(), &clock).await?;
        if let Some(why) = &missing {
            loss::note(why);
        }
        return Ok(code);
    }
    if question.times && fleet.is_none() && profile.timestamps.is_absent() {
        note!("agent-ctl: no sample times for that range: the agent keeps the last minutes only");
    }
    if let Some(fleet) = &fleet {
        let heading = match fleet.heading() {
            "senders" => "Senders",
            _ => "Fleet",
        };
        facts.push(facts::fact(heading, "made of", fleet.line()));
    }
    let extra = render::Extra {
        root_labels: group_by::root_labels(&question.group_by, &profile),
        fleet: fleet.clone(),
        facts,
    };
    let bytes = render::write_on_thread(profile, format, args.look, extra).await?;
    deliver(&args.to.path, &bytes)?;
    if !args.quiet {
        if let Some(widened) = widened {
            note!("{widened}");
        }
        note_written(&args.to.path, &summary, coverage.as_deref(), fleet.as_ref());
    }
    // An answer of which most is missing says so even when it is to be quiet.
    if let Some(why) = &missing {
        loss::note(why);
    }
    Ok(code)
}

/// Refuses labels to group by that no sample of a collector has. Those of agents are known without
/// asking.
async fn refuse_unknown_labels(
    group_by: &[String],
    source: &mut Source,
    range: Range,
    profile_type: &str,
) -> Result<()> {
    let is_unknown = |label: &String| !group_by::is_word(label) && label != key::HOST;
    match source {
        Source::Collector(collector) if group_by.iter().any(is_unknown) => {
            group_by::known(group_by, &collector.label_names(range, profile_type).await?)
        }
        _ => Ok(()),
    }
}

/// Says that nothing is written, and why there are no samples.
async fn note_nothing(
    source: &mut Source,
    question: &Question,
    fleet: Option<&Fleet>,
    clock: &Clock,
) -> Result<()> {
    let why = nothing::why_or_time(source, question, clock).await?;
    note!("agent-ctl: {why}: nothing written");
    if let Some(fleet) = fleet {
        fleet.note();
    }
    Ok(())
}

/// Says what was written, and what it covers and misses.
fn note_written(output: &Path, summary: &str, coverage: Option<&str>, fleet: Option<&Fleet>) {
    let place = match is_stdout(output) {
        true => String::new(),
        false => format!("{}: ", clean(&output.to_string_lossy())),
    };
    note!("{place}{summary}");
    if let Some(coverage) = coverage {
        note!("coverage {coverage}");
    }
    if let Some(fleet) = fleet {
        fleet.note();
    }
}

/// Refuses options that the one who is asked does not understand.
fn check(args: &Args, peer: &Peer) -> Result<()> {
    if peer.is_collector() {
        return match (args.closed, args.times) {
            (true, _) => Err(fail(
                exit::USAGE,
                "failed to use --closed: a collector has only closed windows\nleave --closed out",
            )),
            (_, true) => Err(fail(
                exit::USAGE,
                "failed to use --times: a collector keeps no sample times\nuse --agent",
            )),
            (false, false) => Ok(()),
        };
    }
    if args.max_nodes.is_some() {
        let why = "an agent answers with every stack it has";
        return Err(fleet_option("--max-nodes", why));
    }
    if args.group_by.iter().any(|label| label == key::HOST) {
        return Err(fleet_option(
            "--group-by host",
            "an agent knows only its own host",
        ));
    }
    group_by::known_to_agent(&args.group_by)
}
