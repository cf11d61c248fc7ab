//! The destination and format of a profile: the options for them, and writing the file.

use crate::exit::{self, fail};
use crate::look::Look;
use crate::render::Format;
use crate::terminal::{Out, write_stdout};
use anyhow::{Context, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The arguments of a command that writes a file.
#[derive(Clone, Debug, clap::Args)]
pub struct OutputFile {
    /// File to write, `-` for standard output
    #[arg(
        id = "output",
        short = 'o',
        long = "output",
        value_name = "FILE",
        default_value = "-",
        help_heading = "Output"
    )]
    pub path: PathBuf,
}

/// The options of commands that write a profile in any format.
#[derive(Clone, Debug, clap::Args)]
pub struct Output {
    /// Format [default: by the file name; else top on a terminal, folded elsewhere]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// Where it goes.
    #[command(flatten)]
    file: OutputFile,
    /// How it looks.
    #[command(flatten)]
    pub look: Look,
}

impl Output {
    /// The format to write.
    ///
    /// # Errors
    /// As [`choose`].
    pub fn format(&mut self, out: &Out) -> Result<Format> {
        choose(out, self.format, &self.file.path, &mut self.look)
    }

    /// Writes the bytes to the file, or to standard output.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn deliver(&self, bytes: &[u8]) -> Result<()> {
        deliver(&self.file.path, bytes)
    }
}

/// The format asked for, by name, by the options of the report or by the file's name; else the
/// report on a terminal and folded stacks elsewhere. Refuses to send bytes to a terminal. `look`
/// gets to know where it is shown.
///
/// # Errors
/// When nothing tells it, a terminal cannot take it, or options of the report are given for another
/// format.
pub fn choose(out: &Out, format: Option<Format>, output: &Path, look: &mut Look) -> Result<Format> {
    look.report.check()?;
    let is_stdout = is_stdout(output);
    look.shown = is_stdout.then_some(*out);
    let by_default = match (look.report.is_asked(), is_stdout && out.is_terminal()) {
        (true, _) | (_, true) => Format::Top,
        _ => Format::Folded,
    };
    let format = match format {
        Some(format) => format,
        None if look.report.is_asked() && is_text_file(output) => Format::Top,
        None => by_name(output, Format::of_path, ENDINGS)?.unwrap_or(by_default),
    };
    if look.report.is_asked() && format != Format::Top {
        return Err(fail(
            exit::USAGE,
            "failed to use --cum, --callers, --callees or --limit: they are for the report\n\
             give --format top, or a file that ends in .txt",
        ));
    }
    if let Some(name) = format.binary()
        && is_stdout
        && out.is_terminal()
    {
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to print {name}: it is binary, and standard output is a terminal\n\
                 give a file with -o"
            ),
        ));
    }
    Ok(format)
}

/// The format asked for; with source lines, which the report does not have, folded stacks where
/// nothing else is asked for.
pub fn with_lines(
    format: Option<Format>,
    lines: bool,
    output: &Path,
    look: &Look,
) -> Option<Format> {
    let by_default = lines && is_stdout(output) && !look.report.is_asked();
    format.or(by_default.then_some(Format::Folded))
}

/// Endings of the formats of a profile.
const ENDINGS: &str = ".folded .pb.gz .speedscope.json .svg .html .json .firefox.json .perf.txt \
                       .bundle.html .parquet";

/// The format that a file's name implies, as `of_path` reads it; `None` for standard output, a
/// device or a pipe, with names that imply nothing.
///
/// # Errors
/// When the name has none of the `endings`.
pub fn by_name<F>(
    output: &Path,
    of_path: impl Fn(&Path) -> Option<F>,
    endings: &str,
) -> Result<Option<F>> {
    if is_stdout(output) || is_special(output) {
        return Ok(None);
    }
    let found = of_path(output).ok_or_else(|| {
        let output = output.display();
        let message = format!(
            "failed to derive the format from the file name `{output}`\n\
             give --format, or one of {endings}"
        );
        fail(exit::USAGE, message)
    });
    found.map(Some)
}

/// True for `-`.
pub fn is_stdout(output: &Path) -> bool {
    output.as_os_str() == "-"
}

/// The error without the name of the temporary file, which nobody asked for: `tempfile` puts it
/// behind the system's words and gives neither alone.
fn without_place(error: std::io::Error) -> std::io::Error {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((words, _)) => std::io::Error::new(error.kind(), words.to_owned()),
        None => error,
    }
}

/// True for the name of a text file.
fn is_text_file(output: &Path) -> bool {
    let ending = output.extension();
    ending.is_some_and(|ending| ending.eq_ignore_ascii_case("txt"))
}

/// True for a device or a pipe: what is there, is no file, and can be written to.
fn is_special(output: &Path) -> bool {
    let found = output.metadata();
    found.is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Writes to standard output, or to a file that is written atomically.
///
/// # Errors
/// When it cannot be written.
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
