//! How right unwind rows are that are derived from instructions: those of every program and library
//! of the machine, as if they had no unwind information, compared with what they have.
//!
//! And what it costs to derive rows where there are none, file by file.

use crate::machine::Machine;
use crate::report::{self, Table, count, number};
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use symbolize::budget::FileBudget;
use symbolize::elf;
use unwind::info::compare::{Agreement, compare};
use unwind::info::module::Module;

/// Where the programs and libraries of the distribution are.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu"];

/// Largest file that is read. Unit: bytes. What it has to be compared with is held in memory.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Time and memory for one file: as much as it takes.
const TIME_MAX: Duration = Duration::from_secs(600);
const MEMORY_MAX: usize = 4 << 30;

/// See the file.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  benches derive                        all programs and libraries, about two minutes
  benches derive /usr/bin/git ./my-app  only these files
  benches derive --rows 50 --markdown   the 50 worst")]
pub struct Args {
    /// Files to read instead of all programs and libraries
    files: Vec<PathBuf>,
    /// Number of rows to print, the worst first
    #[arg(long, default_value_t = 15)]
    rows: usize,
    /// Print a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Write the report as JSON to this file; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    /// Files with unwind information, those with the most wrong rows first.
    rows: Vec<Row>,
    all: Row,
    /// Files with code that nothing describes, those that take longest first.
    costs: Vec<Cost>,
}

/// Bytes of instructions.
#[derive(Clone, Default, Serialize)]
struct Row {
    file: String,
    described: u64,
    derived: u64,
    right: u64,
    wrong: u64,
    wrong_frame_pointer: u64,
}

#[derive(Serialize)]
struct Cost {
    file: String,
    /// Time that deriving adds to reading the file. Unit: seconds.
    seconds: f64,
    /// Functions with rows, before and after.
    functions: [usize; 2],
    bytes: [usize; 2],
}

/// Compares and prints.
///
/// # Errors
/// When the report cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut costs = Vec::new();
    let mut all = Agreement::default();
    for path in files(args) {
        let Ok(image) = File::open(&path) else {
            continue;
        };
        let budget = FileBudget::new(MEMORY_MAX, TIME_MAX);
        if let Ok(Some(found)) = compare(&image, &budget) {
            all += found;
            rows.push(Row::new(&path, found));
        }
        costs.extend(cost(&image, &path));
    }
    rows.sort_by(|a, b| b.wrong_share().total_cmp(&a.wrong_share()));
    costs.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let report = Report {
        machine: Machine::here(),
        rows,
        all: Row::new(Path::new("all"), all),
        costs,
    };
    report::put(&report, args.json.as_deref(), |report| show(report, args))
}

/// The files to read, each once.
fn files(args: &Args) -> Vec<PathBuf> {
    if !args.files.is_empty() {
        return args.files.clone();
    }
    let entries = PLACES.iter().flat_map(fs::read_dir).flatten().flatten();
    let files = entries.filter_map(|entry| {
        let path = entry.path().canonicalize().ok()?;
        let metadata = path.metadata().ok()?;
        (metadata.is_file() && metadata.len() <= FILE_BYTES_MAX).then_some(path)
    });
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files.dedup();
    files
}

/// What deriving adds to what the daemon reads of a file; `None` where all is described.
fn cost(image: &File, path: &Path) -> Option<Cost> {
    let budget = FileBudget::new(MEMORY_MAX, TIME_MAX);
    let headers = elf::read_headers(image).ok()?;
    let mut module = Module::of(image, &headers, &budget).ok()??;
    let before = (module.functions(), module.heap_bytes());
    let begin = Instant::now();
    module.derive(image, &headers, &budget).ok()?;
    let seconds = begin.elapsed().as_secs_f64();
    let after = (module.functions(), module.heap_bytes());
    (after != before).then(|| Cost {
        file: path.display().to_string(),
        seconds,
        functions: [before.0, after.0],
        bytes: [before.1, after.1],
    })
}

impl Row {
    fn new(path: &Path, found: Agreement) -> Row {
        Row {
            file: path.display().to_string(),
            described: found.described,
            derived: found.derived,
            right: found.right,
            wrong: found.wrong,
            wrong_frame_pointer: found.wrong_frame_pointer,
        }
    }

    fn wrong_share(&self) -> f64 {
        self.wrong as f64 / self.derived.max(1) as f64
    }

    fn cells(&self) -> [String; 6] {
        let share = |part: u64, whole: u64| {
            let share = part as f64 / whole.max(1) as f64;
            format!("{} %", number(Some(share * 100.0), 3))
        };
        [
            self.file.clone(),
            count(Some(self.described >> 10)),
            share(self.derived, self.described),
            share(self.right, self.derived),
            share(self.wrong, self.derived),
            share(self.wrong_frame_pointer, self.derived),
        ]
    }
}

fn show(report: &Report, args: &Args) -> String {
    let mut table = Table::new(&[
        "file",
        "KiB described",
        "derived too",
        "right",
        "wrong",
        "frame pointer wrong",
    ]);
    for row in report.rows.iter().take(args.rows) {
        table.row(row.cells());
    }
    table.row(report.all.cells());
    let mut costs = Table::new(&[
        "file",
        "seconds",
        "functions",
        "with derived",
        "KiB",
        "with derived",
    ]);
    for cost in report.costs.iter().take(args.rows) {
        costs.row([
            cost.file.clone(),
            number(Some(cost.seconds), 3),
            count(Some(cost.functions[0] as u64)),
            count(Some(cost.functions[1] as u64)),
            count(Some(cost.bytes[0] as u64 >> 10)),
            count(Some(cost.bytes[1] as u64 >> 10)),
        ]);
    }
    let text = |table: &Table| match args.markdown {
        true => table.markdown(),
        false => table.text(),
    };
    format!(
        "{}\n{} files with unwind information, read as if they had none\n\n{}\n{} files with code \
         that nothing describes\n\n{}",
        report::machine(&report.machine),
        report.rows.len(),
        text(&table),
        report.costs.len(),
        text(&costs)
    )
}
