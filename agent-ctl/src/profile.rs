//! `agent-ctl profile`: a profile of a time in the recorder, in a file or on standard output.

use crate::client::{Client, Connection};
use crate::exit::{self, fail};
use crate::render::{self, Format, Look};
use crate::select::{Frames, Labels, When};
use crate::summary;
use crate::terminal::{Out, clean};
use anyhow::{Context, Result};
use profile::key;
use proto::agent::QueryProfileRequest;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Saves or prints a profile of a time in the last hour.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A line about what the profile covers and misses goes to standard error. Exit code 6: there are no
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
    if profile.samples.is_empty() {
        eprintln!("agent-ctl: no samples in the range: nothing written");
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
        eprintln!("{place}{summary}");
    }
    Ok(exit::OK)
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
        None if is_stdout(output) => Format::Folded,
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

/// Writes to standard output, or to a file that appears whole or not at all.
pub fn deliver(output: &Path, bytes: &[u8]) -> Result<()> {
    if is_stdout(output) {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        return Ok(stdout.flush()?);
    }
    let failed = || format!("failed to write `{}`", output.display());
    // A device or a pipe cannot be replaced, only written to.
    if output.metadata().is_ok_and(|found| !found.is_file()) {
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
    let mut file = builder.tempfile_in(dir).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.persist(output)
        .map_err(|error| error.error)
        .with_context(failed)?;
    Ok(())
}
