//! `agent-ctl symbols`: uploads symbol tables to a collector, and lists those that it has.

use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::form::Form;
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean, clean_lines, fit};
use crate::when::{Clock, rfc3339};
use crate::{exit, units};
use anyhow::{Context, Result};
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::{
    ListSymbolsRequest, ListSymbolsResponse, SymbolFile, UploadSymbolsRequest,
    UploadSymbolsResponse,
};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::{Code, Status};

/// Bytes of a file in one message.
const PIECE_BYTES: usize = 256 << 10;

/// Largest file that a collector takes. Unit: bytes.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// How often a file is sent again while the collector is busy with others, and how long after.
const TRIES: u32 = 10;
const AGAIN: Duration = Duration::from_secs(3);

/// Columns of a name in the list.
const NAME_CELLS: usize = 40;

/// Uploads symbol tables to a collector, so that stripped programs have names there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only a collector keeps symbols: use --collector or FLEETPROF_COLLECTOR. Build, upload the file \
with its symbols, strip it, and ship it: only the build id has to match, and stripping does not \
change it. The collector looks names up when it answers, so stored windows get names too.

Examples:
  agent-ctl --collector c1 symbols upload target/release/api
  agent-ctl --collector c1 symbols upload /usr/lib/debug/.build-id/*/*.debug
  agent-ctl --collector c1 symbols list
  agent-ctl --collector c1 symbols list --json | jq -r '.files[] | select(.source == \"upload\").name'")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// What to do with symbols.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Upload files with symbols; they replace earlier uploads of the same build
    #[command(after_help = "\
A file is a 64-bit program or library with its symbol table, or its separate debug file, of at \
most 4 GiB. The collector keeps the symbol table by GNU build id, not the file. Exit code 1: a \
file was refused; the others are stored.

In CI, before stripping:
  agent-ctl --collector c1 symbols upload target/release/api
  strip target/release/api")]
    Upload {
        /// Files to upload: programs with symbols, or separate debug files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        form: Form,
    },
    /// List the builds that have symbols, most recently used first
    List {
        /// Maximum number of rows
        #[arg(long, value_name = "ROWS", default_value_t = 1000, value_parser = crate::number::within::<u32>(1, 10_000))]
        limit: u32,
        #[command(flatten)]
        form: Form,
    },
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("symbols")?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let mut service = SymbolServiceClient::new(transport);
    match args.action {
        Action::Upload { files, form } => upload_all(out, &mut service, &route, &files, form).await,
        Action::List { limit, form } => {
            let call = service.list(ListSymbolsRequest { limit });
            let answer = route.answer("list symbols", call).await?;
            if form.is_json() {
                out.write_json(&List::of(&answer))?;
                return Ok(exit::OK);
            }
            let clock = Collector::connect(connection, &peer).await?.clock().await?;
            out.write(&show(out, &answer, &clock))?;
            note!("{}", summary(&answer));
            Ok(exit::OK)
        }
    }
}

async fn upload_all(
    out: &Out,
    service: &mut SymbolServiceClient<Transport>,
    route: &Route,
    files: &[PathBuf],
    form: Form,
) -> Result<u8> {
    let mut code = exit::OK;
    let mut taken = Vec::new();
    for path in files {
        match upload(service, route, path).await {
            Ok(answer) => {
                if !form.is_json() {
                    out.write(&line(path, &answer))?;
                }
                taken.push(Uploaded {
                    file: path.display().to_string(),
                    build_id: answer.build_id,
                    functions: answer.functions,
                    stored_bytes: answer.stored_bytes,
                    replaced: answer.replaced,
                });
            }
            // One of many files may be a script, so the others still go up. If nobody answers,
            // nobody will for the next file either.
            Err(error) => {
                note!("agent-ctl: {}", clean_lines(&format!("{error:#}")));
                code = exit::FAILURE;
                if exit::code_of(&error) == exit::UNREACHABLE {
                    code = exit::UNREACHABLE;
                    break;
                }
            }
        }
    }
    if form.is_json() {
        out.write_json(&taken)?;
    }
    Ok(code)
}

fn line(path: &Path, answer: &UploadSymbolsResponse) -> String {
    let path = path.display().to_string();
    let is_new = if answer.replaced { "replaced" } else { "new" };
    format!(
        "{}: {} functions of build {}, {is_new}\n",
        clean(&path),
        units::count(answer.functions),
        clean(&answer.build_id),
    )
}

async fn upload(
    service: &mut SymbolServiceClient<Transport>,
    route: &Route,
    path: &Path,
) -> Result<UploadSymbolsResponse> {
    let what = format!("upload `{}`", path.display());
    let mut tries = 0;
    loop {
        tries += 1;
        match send(service, &what, path).await? {
            Ok(answer) => return Ok(answer),
            // It is busy with other files; or away, which shows in the end.
            Err(status) if status.code() == Code::Unavailable && tries < TRIES => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::ResourceExhausted | Code::DeadlineExceeded => {
                    let (peer, why) = (&route.peer.target, clean(status.message()));
                    let text = format!("failed to {what} at `{peer}`: {why}");
                    return Err(exit::fail(exit::FAILURE, text));
                }
                _ => return Err(route.refused(&what, &status)),
            },
        }
    }
}

/// Sends a file once.
async fn send(
    service: &mut SymbolServiceClient<Transport>,
    what: &str,
    path: &Path,
) -> Result<Result<UploadSymbolsResponse, Status>> {
    let file = open(path).with_context(|| format!("failed to {what}"))?;
    let name = path.file_name().unwrap_or_default();
    let trouble = Arc::new(Mutex::new(None));
    let pieces = Pieces {
        name: Some(name.to_string_lossy().into_owned()),
        file,
        trouble: trouble.clone(),
    };
    // As long as it takes: the collector ends what stands still.
    let answer = service.upload(tokio_stream::iter(pieces)).await;
    let trouble = trouble
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(error) = trouble {
        return Err(error).with_context(|| format!("failed to {what}"));
    }
    Ok(answer.map(|answer| answer.into_inner()))
}

/// Opens a file that may have symbols. What a collector would refuse for sure is not sent.
fn open(path: &Path) -> Result<File> {
    // Before it is opened: a FIFO would wait for somebody to write.
    let about = std::fs::metadata(path)?;
    anyhow::ensure!(about.is_file(), "it is not a regular file");
    let gib = FILE_BYTES_MAX >> 30;
    anyhow::ensure!(about.len() <= FILE_BYTES_MAX, "it has more than {gib} GiB");
    let file = File::open(path)?;
    let mut magic = [0; 4];
    let len = file.read_at(&mut magic, 0)?;
    anyhow::ensure!(magic[..len] == *b"\x7fELF", "it is not an ELF file");
    Ok(file)
}

/// A file as messages.
struct Pieces {
    /// For the first.
    name: Option<String>,
    file: File,
    /// Why it ended early.
    trouble: Arc<Mutex<Option<io::Error>>>,
}

impl Iterator for Pieces {
    type Item = UploadSymbolsRequest;

    fn next(&mut self) -> Option<UploadSymbolsRequest> {
        let mut data = Vec::with_capacity(PIECE_BYTES);
        let read = (&mut self.file)
            .take(PIECE_BYTES as u64)
            .read_to_end(&mut data);
        if let Err(error) = read {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            return None;
        }
        let name = self.name.take();
        (name.is_some() || !data.is_empty()).then(|| UploadSymbolsRequest {
            name: name.unwrap_or_default(),
            data,
        })
    }
}

fn show(out: &Out, answer: &ListSymbolsResponse, clock: &Clock) -> String {
    if answer.files.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "NAME",
        "SOURCE",
        ">FUNCTIONS",
        ">SIZE",
        "ADDED",
        "USED",
        "BUILD",
    ]);
    for file in &answer.files {
        table.row([
            fit(&clean(&file.name), NAME_CELLS).into_owned(),
            clean(&file.source).into_owned(),
            units::count(file.functions),
            units::bytes(file.stored_bytes),
            clock.show(file.added_unix_ns),
            clock.show(file.used_unix_ns),
            clean(&file.build_id).into_owned(),
        ]);
    }
    table.sparing(&["SIZE", "ADDED", "FUNCTIONS"]).show(out)
}

/// The line behind the list.
fn summary(answer: &ListSymbolsResponse) -> String {
    let all = answer.files.len() as u64 + answer.files_left_out;
    let mut text = format!(
        "{} {}, {} of {}",
        units::count(all),
        if all == 1 { "build" } else { "builds" },
        units::bytes(answer.stored_bytes),
        units::bytes(answer.stored_bytes_max)
    );
    if answer.builds_wanted + answer.builds_absent > 0 {
        text.push_str(&format!(
            "; {} more to be asked for, {} on no server",
            units::count(answer.builds_wanted),
            units::count(answer.builds_absent)
        ));
    }
    text
}

/// A file that was taken, as JSON.
#[derive(Serialize)]
struct Uploaded {
    file: String,
    build_id: String,
    functions: u64,
    stored_bytes: u64,
    replaced: bool,
}

/// The list as JSON.
#[derive(Serialize)]
struct List<'a> {
    files: Vec<Listed<'a>>,
    files_left_out: u64,
    stored_bytes: u64,
    stored_bytes_max: u64,
    builds_wanted: u64,
    builds_absent: u64,
}

#[derive(Serialize)]
struct Listed<'a> {
    build_id: &'a str,
    name: &'a str,
    source: &'a str,
    functions: u64,
    stored_bytes: u64,
    added: String,
    used: String,
}

impl<'a> List<'a> {
    fn of(answer: &'a ListSymbolsResponse) -> List<'a> {
        let listed = |file: &'a SymbolFile| Listed {
            build_id: &file.build_id,
            name: &file.name,
            source: &file.source,
            functions: file.functions,
            stored_bytes: file.stored_bytes,
            added: rfc3339(file.added_unix_ns),
            used: rfc3339(file.used_unix_ns),
        };
        List {
            files: answer.files.iter().map(listed).collect(),
            files_left_out: answer.files_left_out,
            stored_bytes: answer.stored_bytes,
            stored_bytes_max: answer.stored_bytes_max,
            builds_wanted: answer.builds_wanted,
            builds_absent: answer.builds_absent,
        }
    }
}
