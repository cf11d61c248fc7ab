//! `agent-ctl profile`: a profile of a time in the recorder, in a file or on standard output.

use crate::client::{Client, Connection};
use crate::exit::{self, fail};
use crate::render::{self, Format, Look};
use crate::select::{Frames, Labels, When};
use crate::summary;
use crate::terminal::{Out, clean, write_stdout};
use anyhow::{Context, Result};
use profile::key;
use proto::agent::QueryProfileRequest;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Saves or prints a profile of a time in the last hour.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Lines about what the profile covers and misses go to standard error. Exit code 6: there are no
samples in the range; nothing is written.

Examples:
  agent-ctl profile --since 5m -o cpu.svg
  agent-ctl profile --from 14:03 --to 14:08 --unit nginx -o nginx.pb.gz
  agent-ctl profile --container 3f2a --focus '^handle_' --format folded
  agent-ctl profile --selector 'comm=~\"java|node\"' --group-by comm,thread -o jit.html")]
pub struct Args {
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to tell samples apart by, `*` for all, `none` for none; in text and flame graphs they
    /// become root frames. Left out: `comm` there, and cgroup, unit, container, comm and thread in
    /// pprof and JSON
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        value_parser = label,
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Format; left out, the file name says it, or else folded
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// File to write, `-` for standard output
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "-",
        help_heading = "Output"
    )]
    output: PathBuf,
    /// Only windows that are closed, without what was sampled since
    #[arg(long, help_heading = "Time")]
    closed: bool,
    #[command(flatten)]
    look: Look,
    /// Do not say what the profile covers and misses
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let format = choose(out, args.format, &args.output)?;
    let group_by = group_by(args.group_by, format);
    let matchers = args.labels.matchers()?;
    let frame_filters = args.frames.filters()?;
    let mut client = Client::connect(connection).await?;
    let clock = client.clock().await?;
    let range = args.when.range(&clock)?;
    let request = QueryProfileRequest {
        range: Some(range.into()),
        matchers,
        frame_filters,
        group_by: group_by.clone(),
        fresh: !args.closed,
    };
    let profile = client.query(request).await?;
    let summary = summary::line(&profile, &clock);
    let coverage = summary::coverage(&profile.info.coverage);
    if profile.samples.is_empty() {
        note!("agent-ctl: no samples in the range: nothing written");
        return Ok(exit::PARTIAL);
    }
    // On a thread of its own, so that Ctrl-C is heard while a large flame graph is laid out.
    let mut labels = group_by;
    labels.retain(|label| label != "*");
    let look = args.look;
    let written = move || render::write(&profile, format, &look, labels);
    let bytes = tokio::task::spawn_blocking(written).await??;
    deliver(&args.output, &bytes)?;
    if !args.quiet {
        let place = match is_stdout(&args.output) {
            true => String::new(),
            false => format!("{}: ", clean(&args.output.to_string_lossy())),
        };
        note!("{place}{summary}");
        if let Some(coverage) = coverage {
            note!("coverage {coverage}");
        }
    }
    Ok(exit::OK)
}

/// Labels that agents give samples.
const LABELS: [&str; 10] = [
    key::CGROUP,
    key::SLICE,
    key::UNIT,
    key::CONTAINER,
    key::RUNTIME,
    key::POD_UID,
    key::COMM,
    key::THREAD,
    key::PID,
    key::CONTEXT,
];

/// Reads one word of `--group-by`. A label that no agent gives would put every sample under
/// `[no LABEL]`: most likely a slip of the pen.
fn label(word: &str) -> Result<String, String> {
    if matches!(word, "*" | "none") || LABELS.contains(&word) {
        return Ok(word.to_owned());
    }
    let alike = |label: &&str| strsim::jaro_winkler(label, &word.to_lowercase());
    let nearest = LABELS
        .into_iter()
        .max_by(|a, b| alike(a).total_cmp(&alike(b)))
        .unwrap_or_default();
    Err(format!(
        "no sample has this label: the nearest is `{nearest}`; labels are {}",
        LABELS.join(", ")
    ))
}

/// The labels to keep: what was asked for, or what suits the format.
fn group_by(asked: Vec<String>, format: Format) -> Vec<String> {
    let defaults: &[&str] = match format {
        Format::Pprof | Format::Json => &[
            key::CGROUP,
            key::UNIT,
            key::CONTAINER,
            key::COMM,
            key::THREAD,
        ],
        _ => &[key::COMM],
    };
    match asked.as_slice() {
        [] => defaults.iter().map(|&label| label.to_owned()).collect(),
        [none] if none == "none" => Vec::new(),
        _ => asked,
    }
}

/// The format asked for, by name or by the file's; refuses to send bytes to a terminal.
pub fn choose(out: &Out, format: Option<Format>, output: &Path) -> Result<Format> {
    let format = match format {
        Some(format) => format,
        // The name of a device or pipe says nothing.
        None if is_stdout(output) || is_special(output) => Format::Folded,
        None => Format::of_path(output).ok_or_else(|| {
            let output = output.display();
            let message = format!(
                "failed to tell the format of `{output}` by its name\n\
                 give --format, or one of .folded .pb.gz .speedscope.json .svg .html .json"
            );
            fail(exit::USAGE, message)
        })?,
    };
    if format.is_binary() && is_stdout(output) && out.is_terminal() {
        return Err(fail(
            exit::USAGE,
            "failed to print pprof: it is binary and standard output is a terminal\n\
             give a file with -o",
        ));
    }
    Ok(format)
}

fn is_stdout(output: &Path) -> bool {
    output.as_os_str() == "-"
}

/// The error without the name of the temporary file, which nobody asked for: `tempfile` puts it behind
/// the system's words and gives neither alone.
fn without_place(error: std::io::Error) -> std::io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((words, _)) => std::io::Error::new(error.kind(), words.to_owned()),
        None => error,
    }
}

/// True for a device or a pipe: what is there, is no file, and can be written to.
fn is_special(output: &Path) -> bool {
    let found = output.metadata();
    found.is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Writes to standard output, or to a file that appears whole or not at all.
pub fn deliver(output: &Path, bytes: &[u8]) -> Result<()> {
    if is_stdout(output) {
        return write_stdout(bytes);
    }
    let failed = || format!("failed to write `{}`", output.display());
    // A device or a pipe cannot be replaced, only written to.
    if is_special(output) {
        return std::fs::write(output, bytes).with_context(failed);
    }
    let dir = match output.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".agent-ctl-");
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: what the umask leaves of it.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder
        .tempfile_in(dir)
        .map_err(without_place)
        .with_context(failed)?;
    file.write_all(bytes)
        .map_err(without_place)
        .with_context(failed)?;
    file.persist(output)
        .map_err(|error| error.error)
        .with_context(failed)?;
    Ok(())
}
