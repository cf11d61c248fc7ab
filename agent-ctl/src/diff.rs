//! `agent-ctl diff`: shows what changed between two times, selections, pins, captures or files.

use crate::collector::Samples;
use crate::exit::{self, fail};
use crate::fleet_capture::get;
use crate::look::MeasureBy;
use crate::loss;
use crate::nothing;
use crate::output::{OutputFile, by_name, deliver};
use crate::peer::{Connection, Peer};
use crate::pins;
use crate::render::{self, DiffFormat};
use crate::select::{self, Frames, Labels};
use crate::source::{Answer, Question, Source};
use crate::spread::{self, Spread, Verdict};
use crate::summary::{self, ProfileFacts};
use crate::terminal::{Out, Table, clean};
use crate::when::{Clock, Range};
use anyhow::{Context, Result};
use profile::formats::{Import, Known};
use profile::{Change, Diff, FunctionChange, GroupBy, Info, Profile};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Compares two times, two selections, pins, captures or files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A side is a range `FROM..TO` (either end is optional), a pin `pin:HOST/NUMBER` (`pin-captured:` for \
what was captured with it), a capture `capture:NUMBER` that the collector keeps, or a file that \
`agent-ctl import` reads: pprof, JSON, folded stacks, perf script text, speedscope. Deltas are changes of shares in \
percentage points, with their 95 % error; `*` marks deltas beyond the error. If a collector \
answers for both sides, the error shows how much self time moves between parts of the ranges, as \
on its page. Otherwise, and with --total, the error covers sampling only: real spread between \
hosts and minutes is larger, and about five in a hundred functions are marked by chance.
Exit code 6: a side has no samples, most of its samples were lost, or the collector misses part of \
the data.

Examples:
  agent-ctl diff --before -1h..-30m --after -5m.. --unit nginx
  agent-ctl diff --before-selector 'container=~\"a1.*\"' --after-selector 'container=~\"b2.*\"'
  agent-ctl diff --before monday.pb.gz --after -5m.. -o diff.html
  agent-ctl diff --before pin:3 --after pin:4 -o diff.svg
  agent-ctl --collector c1 diff --before-selector 'host!=\"web-1\"' --after-selector 'host=\"web-1\"'")]
pub struct Args {
    /// First side [default: the same as the second]
    #[arg(
        long,
        value_name = "RANGE|FILE|pin:NAME|capture:ID",
        allow_hyphen_values = true,
        help_heading = "Sides"
    )]
    before: Option<String>,
    /// Second side [default: the last 5 minutes]
    #[arg(
        long,
        value_name = "RANGE|FILE|pin:NAME|capture:ID",
        allow_hyphen_values = true,
        help_heading = "Sides"
    )]
    after: Option<String>,
    /// Label matchers for the first side only
    #[arg(long, value_name = "MATCHERS", help_heading = "Sides")]
    before_selector: Option<String>,
    /// Label matchers for the second side only
    #[arg(long, value_name = "MATCHERS", help_heading = "Sides")]
    after_selector: Option<String>,
    /// Profile type of other senders or of captures in place of CPU time, by its id; both sides are
    /// ranges then (with --collector)
    #[arg(long = "type", value_name = "ID", help_heading = "Sides")]
    profile_type: Option<String>,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Sort by the change of total time instead of self time
    #[arg(long, help_heading = "Output")]
    total: bool,
    /// Show only changes beyond their error
    #[arg(long, help_heading = "Output")]
    significant: bool,
    /// Maximum number of rows in the table
    #[arg(
        long,
        value_name = "ROWS",
        default_value_t = 30,
        value_parser = crate::number::any::<usize>(),
        help_heading = "Output"
    )]
    limit: usize,
    /// Output format [default: by the file name, or text]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<DiffFormat>,
    /// Do not scale the first side to the second's total (folded, svg, html)
    #[arg(long, help_heading = "Output")]
    absolute: bool,
    #[command(flatten)]
    to: OutputFile,
    /// The same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
}

/// Source of one side.
enum Side {
    Range(Range),
    File(PathBuf),
    /// A pin, by its name; with what was captured instead of the minutes.
    Pin(String, bool),
    /// A capture that a collector keeps, by its number.
    Capture(u64),
}

/// How sides start that are neither a range nor a file.
const PIN: &str = "pin:";
const PIN_CAPTURED: &str = "pin-captured:";
const CAPTURE: &str = "capture:";

/// Sides that share more than one part in this many of the shorter one are not a comparison. Sides
/// that meet share a window at most, which matters only where they are short.
const OVERLAP_PART_MAX: i64 = 10;

/// Range of a side that is not given.
const DEFAULT_RANGE: &str = "-5m..";

/// What a side is to be, as the command line says it.
struct SideArgs<'a> {
    name: &'static str,
    text: &'a str,
    selector: Option<&'a str>,
}

/// What a side was asked of an agent or collector.
type Query = (Range, Samples);

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let sides = args.sides()?;
    let format = match args.json.then_some(DiffFormat::Json).or(args.format) {
        Some(format) => format,
        None => by_name(&args.to.path, DiffFormat::of_path, render::DIFF_ENDINGS)?
            .unwrap_or(DiffFormat::Text),
    };
    if args.profile_type.is_some() {
        select::profile_type(args.profile_type.as_deref(), &connection.peer()?)?;
    }
    let mut asked = connect(connection, &args, &sides).await?;
    let [first, second] = &sides;
    let (mut before, first_query, first_known) = first.read(&args, &mut asked).await?;
    let (mut after, second_query, second_known) = second.read(&args, &mut asked).await?;
    let is_lost = |side: &Answer| loss::of_profile(&side.profile).is_some();
    let lost = is_lost(&before) || is_lost(&after);
    by_name_alone(&mut before.profile, &mut after.profile);
    // One side may be so large that its collector uses a coarser unit.
    profile::equalize(&mut before.profile, &mut after.profile);
    let asks = matches!(format, DiffFormat::Text | DiffFormat::Json) && !args.total;
    let spread = match (&mut asked.source, first_query, second_query) {
        (Some(source), Some(first), Some(second)) if asks => {
            Spread::ask(source, [first, second]).await
        }
        _ => Spread::default(),
    };
    if spread.is_known() {
        spread::without_lost(&mut before.profile);
        spread::without_lost(&mut after.profile);
    }
    let empty = before.profile.samples.is_empty() || after.profile.samples.is_empty();
    let overlapping = overlap(&sides, &before.profile.info, &after.profile.info);
    let diff = Diff::new(&before.profile, &after.profile, &GroupBy::Keys(Vec::new()))
        .map_err(|error| fail(exit::USAGE, error.to_string()))?;
    let comparison = Comparison {
        diff: &diff,
        spread: &spread,
    };
    let text = match format {
        DiffFormat::Json => {
            let json = Json::of(&comparison, &before, &after, &args);
            (crate::terminal::json(&json, true)? + "\n").into_bytes()
        }
        _ if empty => {
            note!("agent-ctl: a side has no samples: nothing to compare, nothing written");
            return Ok(exit::PARTIAL);
        }
        DiffFormat::Text => {
            note!(
                "the error ± covers {}",
                comparison.error(args.total).sentence()
            );
            table(&comparison, &args).show(out).into_bytes()
        }
        format => {
            let measure = measure(&diff, &args, [first_known, second_known]);
            render::write_diff(&diff, format, !args.absolute, measure)?
        }
    };
    deliver(&args.to.path, &text)?;
    let mut fleets = [&before, &after].into_iter().flat_map(|side| &side.fleet);
    let partial = fleets.any(|fleet| fleet.is_partial());
    Ok(if empty || overlapping || partial || lost {
        exit::PARTIAL
    } else {
        exit::OK
    })
}

impl Args {
    /// The sides, the first one first.
    ///
    /// # Errors
    /// When both are the same, or one is none of the profile type.
    fn sides(&self) -> Result<[SideArgs<'_>; 2]> {
        if self.before.is_none() && self.before_selector.is_none() && self.after_selector.is_none()
        {
            return Err(fail(
                exit::USAGE,
                "failed to compare: both sides are identical\ngive --before, --before-selector or \
                 --after-selector",
            ));
        }
        let after = self.after.as_deref().unwrap_or(DEFAULT_RANGE);
        let before = self.before.as_deref().unwrap_or(after);
        let untyped = [before, after].into_iter().find(|text| !is_range(text));
        if let (Some(text), Some(_)) = (untyped, &self.profile_type) {
            return Err(fail(
                exit::USAGE,
                format!(
                    "failed to use --type with `{}`: files, pins and captures are of what they \
                     recorded\ngive a range on both sides, or leave --type out",
                    clean(text)
                ),
            ));
        }
        Ok([
            SideArgs {
                name: "before",
                text: before,
                selector: self.before_selector.as_deref(),
            },
            SideArgs {
                name: "after",
                text: after,
                selector: self.after_selector.as_deref(),
            },
        ])
    }
}

/// Whoever is asked for sides that are no files.
struct Asked<'a> {
    connection: &'a Connection,
    peer: Option<Peer>,
    source: Option<Source>,
    clock: Clock,
}

/// Connects when a side is no file; the clock is then that of the source.
async fn connect<'a>(
    connection: &'a Connection,
    args: &Args,
    sides: &[SideArgs<'_>; 2],
) -> Result<Asked<'a>> {
    if sides.iter().all(|side| is_file(side.text)) {
        return Ok(Asked {
            connection,
            peer: None,
            source: None,
            clock: Clock::local(),
        });
    }
    let peer = connection.peer()?;
    // Refuse what cannot be asked before anything is.
    for side in sides {
        let samples = samples(args, side.selector)?;
        if is_range(side.text) {
            select::check(&samples.matchers, &peer)?;
        }
        if side.text.starts_with(CAPTURE) && !peer.is_collector() {
            return Err(fail(
                exit::USAGE,
                "failed to compare a capture: an agent keeps none\ngive --collector HOST:PORT, or \
                 the file that was written",
            ));
        }
    }
    let mut source = Source::connect(connection, &peer).await?;
    let clock = source.clock().await?;
    Ok(Asked {
        connection,
        peer: Some(peer),
        source: Some(source),
        clock,
    })
}

impl SideArgs<'_> {
    /// Reads the side's profile and notes what it covers and misses.
    async fn read(
        &self,
        args: &Args,
        asked: &mut Asked<'_>,
    ) -> Result<(Answer, Option<Query>, Known)> {
        let Asked {
            connection,
            peer,
            source,
            clock,
        } = asked;
        let clock = &*clock;
        let mut known = Known::ALL;
        let mut widened = None;
        let mut query = None;
        let mut missing = None;
        let answer = match (side(self.text, clock)?, source) {
            (Side::Pin(name, captured), _) => {
                let peer = peer.as_ref().context(NOBODY)?;
                let samples = samples(args, self.selector)?;
                let profile = pins::read(connection, peer, &name, samples, captured).await?;
                Answer {
                    profile,
                    fleet: None,
                }
            }
            (Side::Capture(id), _) => {
                let peer = peer.as_ref().context(NOBODY)?;
                let samples = samples(args, self.selector)?;
                let profile = get::read(connection, peer, id, samples).await?;
                Answer {
                    profile,
                    fleet: None,
                }
            }
            (Side::File(path), _) => {
                let (answer, found) = from_file(&path, args, self.selector)?;
                known = found;
                answer
            }
            (Side::Range(range), Some(source)) => {
                let samples = samples(args, self.selector)?;
                query = Some((range, samples.clone()));
                let asked = question(range, samples);
                let answer = source.profile(asked.clone()).await?;
                if answer.profile.samples.is_empty() {
                    missing = Some(nothing::why_or_time(source, &asked, clock).await?);
                }
                let Info { start_unix_ns, .. } = answer.profile.info;
                let covered = (start_unix_ns, summary::end_ns(&answer.profile.info));
                widened = summary::widened(range, covered, clock);
                answer
            }
            (Side::Range(_), None) => unreachable!("a range always has a source"),
        };
        let name = self.name;
        match answer.profile.samples.is_empty() {
            true => match missing {
                Some(why) => note!("{name}: {why}, in {}", clean(self.text)),
                None => note!("{name}: no samples in {}", clean(self.text)),
            },
            false => note!(
                "{name}: {}",
                summary::line_of_file(&answer.profile, known, clock)
            ),
        }
        if let Some(widened) = widened {
            note!("{name}: {widened}");
        }
        if let Some(why) = loss::of_profile(&answer.profile) {
            note!("agent-ctl: {name}: {why}: what is left misleads");
        }
        if let Some(fleet) = &answer.fleet {
            note!("{name}: {} {}", fleet.heading(), fleet.line());
            fleet.note_damage();
        }
        Ok((answer, query, known))
    }
}

/// What is counted in a graph of both: samples, unless one side has none of equal weight. Others
/// send weights, and some files have nothing else.
fn measure(diff: &Diff, args: &Args, known: [Known; 2]) -> MeasureBy {
    let weighs = args.profile_type.is_some()
        || known.iter().any(|known| !known.samples)
        || diff.before.has_variable_weight()
        || diff.after.has_variable_weight();
    match weighs {
        true => MeasureBy::Weight,
        false => MeasureBy::Count,
    }
}

/// True, and noted, when both sides are ranges of the same samples and hold too much of the same
/// time.
fn overlap([first, second]: &[SideArgs<'_>; 2], before: &Info, after: &Info) -> bool {
    let overlap_ns = overlap_ns(before, after);
    let shorter_ns = before.duration_ns.min(after.duration_ns) as i64;
    let ranges = is_range(first.text) && is_range(second.text);
    let overlapping = ranges
        && overlap_ns > shorter_ns / OVERLAP_PART_MAX
        && first.text != second.text
        && first.selector == second.selector;
    if overlapping {
        note!(
            "agent-ctl: both sides share {:.1} s: windows are not split, so leave at least a \
             window's length between the ranges",
            overlap_ns as f64 * 1e-9
        );
    }
    overlapping
}

/// Leaves the names of functions alone where one side has no modules, as folded stacks have none:
/// every function would be new in one side and vanished in the other.
fn by_name_alone(before: &mut Profile, after: &mut Profile) {
    if before.samples.is_empty() || after.samples.is_empty() {
        return;
    }
    let side = match (before.has_modules(), after.has_modules()) {
        (false, true) => "before",
        (true, false) => "after",
        _ => return,
    };
    note!("agent-ctl: `{side}` has no modules: functions are compared by name only");
    *before = before.by_name_alone();
    *after = after.by_name_alone();
}

/// How long both sides cover the same time.
fn overlap_ns(a: &profile::Info, b: &profile::Info) -> i64 {
    let start = a.start_unix_ns.max(b.start_unix_ns);
    summary::end_ns(a).min(summary::end_ns(b)) - start
}

/// Sides that are asked for have somebody who is asked: see [`connect`].
const NOBODY: &str = "failed to compare: there is nobody to ask";

/// True for a pin or a capture.
fn is_kept(text: &str) -> bool {
    [PIN, PIN_CAPTURED, CAPTURE]
        .iter()
        .any(|start| text.starts_with(start))
}

/// A range never is a file and the other way round: `..` as a part of a path is one only when the
/// file is there.
fn is_file(text: &str) -> bool {
    !is_kept(text) && (!text.contains("..") || Path::new(text).is_file())
}

fn is_range(text: &str) -> bool {
    !is_kept(text) && !is_file(text)
}

fn side(text: &str, clock: &Clock) -> Result<Side> {
    if let Some(name) = text.strip_prefix(PIN) {
        return Ok(Side::Pin(name.to_owned(), false));
    }
    if let Some(name) = text.strip_prefix(PIN_CAPTURED) {
        return Ok(Side::Pin(name.to_owned(), true));
    }
    if let Some(number) = text.strip_prefix(CAPTURE) {
        let number = crate::number::any()(number).map_err(|why| {
            let message = format!("failed to use capture `{}`: {why}", clean(number));
            fail(exit::USAGE, message)
        })?;
        return Ok(Side::Capture(number));
    }
    if is_file(text) {
        return Ok(Side::File(text.into()));
    }
    let found = clock
        .parse_range(text)
        .map_err(|error| fail(exit::USAGE, error.to_string()))?;
    Ok(Side::Range(found.noted()))
}

fn labels(args: &Args, selector: Option<&str>) -> Labels {
    let mut labels = args.labels.clone();
    labels.selector.extend(selector.map(str::to_owned));
    labels
}

fn samples(args: &Args, selector: Option<&str>) -> Result<Samples> {
    Ok(Samples {
        matchers: labels(args, selector).matchers()?,
        filters: args.frames.filters()?,
        profile_type: args.profile_type.clone().unwrap_or_default(),
    })
}

fn question(range: Range, samples: Samples) -> Question {
    Question {
        range,
        samples,
        group_by: Vec::new(),
        fresh: true,
        max_nodes: 0,
        times: false,
    }
}

/// Reads a file and selects in it what the agent would have selected.
fn from_file(path: &Path, args: &Args, selector: Option<&str>) -> Result<(Answer, Known)> {
    let Import { profile, known, .. } = render::read(path)?;
    let Samples {
        matchers, filters, ..
    } = samples(args, selector)?;
    let query = render::query(&matchers, &filters, GroupBy::Keys(Vec::new()))?;
    let answer = Answer {
        profile: profile.query(&query),
        fleet: None,
    };
    Ok((answer, known))
}

/// A comparison and how sure its changes are.
struct Comparison<'a> {
    diff: &'a Diff,
    spread: &'a Spread,
}

/// How the errors of changes are computed.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum ErrorKind {
    Sampling,
    Spread,
}

impl ErrorKind {
    fn sentence(self) -> &'static str {
        match self {
            ErrorKind::Sampling => "sampling only: real spread between hosts and minutes is larger",
            ErrorKind::Spread => "how much shares move between parts of the ranges",
        }
    }
}

impl Comparison<'_> {
    /// What the errors of own shares, or of those with callees, are of.
    fn error(&self, total: bool) -> ErrorKind {
        match self.spread.is_known() && !total {
            true => ErrorKind::Spread,
            false => ErrorKind::Sampling,
        }
    }

    fn rows(&self, args: &Args) -> impl Iterator<Item = (&FunctionChange, Verdict, Verdict)> {
        let Comparison { diff, spread } = *self;
        let by_total = args.total;
        let of = move |row: &FunctionChange| if by_total { row.total } else { row.own };
        let mut rows: Vec<&FunctionChange> = diff.functions.iter().collect();
        if by_total {
            let moved = |row: &FunctionChange| diff.share(row.total).delta.abs();
            rows.sort_by(|left, right| moved(right).total_cmp(&moved(left)));
        }
        let significant = args.significant;
        rows.into_iter()
            .filter(move |row| of(row) != Change::default())
            .map(|row| {
                let own = spread.judge(row, diff.share(row.own));
                (row, own, Verdict::of_sampling(diff.share(row.total)))
            })
            .filter(move |(_, own, total)| {
                !significant || if by_total { total } else { own }.is_significant
            })
    }
}

fn table(comparison: &Comparison<'_>, args: &Args) -> Table {
    let heading = if args.total {
        ">TOTAL BEFORE"
    } else {
        ">SELF BEFORE"
    };
    let mut table = Table::new(&[heading, ">AFTER", ">DELTA", ">±", "", "FUNCTION", "MODULE"]);
    for (row, own, total) in comparison.rows(args).take(args.limit) {
        let Verdict {
            share,
            error_95,
            is_significant,
        } = if args.total { total } else { own };
        let note = match (row.is_new(), row.is_vanished(), is_significant) {
            (true, ..) => "new",
            (_, true, _) => "vanished",
            (.., true) => "*",
            _ => "",
        };
        table.row([
            format!("{:.1} %", share.before * 100.0),
            format!("{:.1} %", share.after * 100.0),
            format!("{:+.1}", share.delta * 100.0),
            format!("{:.1}", error_95 * 100.0),
            note.to_owned(),
            row.function.clone(),
            row.module.clone(),
        ]);
    }
    table.sparing(&["MODULE", "±", "AFTER"])
}

#[derive(Serialize)]
struct Json {
    before: ProfileFacts,
    after: ProfileFacts,
    /// What the errors of own shares are of; those of totals are of sampling alone.
    errors: ErrorKind,
    functions: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    function: String,
    module: String,
    kind: &'static str,
    is_new: bool,
    is_vanished: bool,
    #[serde(rename = "self")]
    own: JsonShare,
    total: JsonShare,
}

#[derive(Serialize)]
struct JsonShare {
    before_count: u64,
    after_count: u64,
    before: f64,
    after: f64,
    delta: f64,
    error_95: f64,
    significant: bool,
}

impl JsonShare {
    fn of(change: Change, verdict: Verdict) -> JsonShare {
        let share = verdict.share;
        JsonShare {
            before_count: change.before.count,
            after_count: change.after.count,
            before: share.before,
            after: share.after,
            delta: share.delta,
            error_95: verdict.error_95,
            significant: verdict.is_significant,
        }
    }
}

impl Json {
    fn of(comparison: &Comparison<'_>, before: &Answer, after: &Answer, args: &Args) -> Json {
        let row = |(row, own, total): (&FunctionChange, Verdict, Verdict)| JsonRow {
            function: row.function.clone(),
            module: row.module.clone(),
            kind: row.kind.word(),
            is_new: row.is_new(),
            is_vanished: row.is_vanished(),
            own: JsonShare::of(row.own, own),
            total: JsonShare::of(row.total, total),
        };
        Json {
            before: ProfileFacts::of(&before.profile).with(before.fleet.as_ref()),
            after: ProfileFacts::of(&after.profile).with(after.fleet.as_ref()),
            errors: comparison.error(false),
            functions: comparison.rows(args).map(row).collect(),
        }
    }
}
