//! Measures what names cost that agents could not find: a profile of functions without names, the
//! first one after their symbols arrived, and the next.
//!
//! `cargo run --release -p fleetprof-collector --example names_figures [FILE [FUNCTIONS]]` takes
//! the symbols of a file with a build id and a symbol table, this program's own by default, and
//! 20,000 of its functions.

use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    Cancel, Found, FrameNaming, HostKey, LabelSet, Limits, Names, NewWindow, Origin, Row,
    StoreQueries, TimeRange, WindowSink,
};
use collector::symbols::{Functions, Table};
use profile::{
    Dictionary, FrameRef, NameSource, Place, Quality, Query, StackEnd, StackId, UnnamedReason,
    Value,
};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;

/// 2026-01-15 00:00:00 UTC.
const BEGIN: i64 = 1_768_435_200 * SECOND;

/// Times each question is asked where the answer stays the same; the least counts.
const ASKED: usize = 5;

type Failed = Box<dyn std::error::Error>;

struct ByTable(Table);

impl Names for ByTable {
    fn version(&self, build_id: &str) -> Option<u64> {
        self.0.version(build_id)
    }

    fn names(&self, build_id: &str, addresses: &[u64]) -> Option<Found> {
        self.0.names(build_id, addresses, BEGIN)
    }

    fn want(&self, _: Vec<String>) {}
}

/// A window with a stack for each of `functions`: the function, called by the one before it.
fn window(functions: &Functions, most: usize) -> (NewWindow, Dictionary) {
    let mut stacks = Dictionary::default();
    let mut rows = Vec::new();
    let step = (functions.list.len() / most).max(1);
    let mut caller = None;
    let mut of_rows = Vec::new();
    for function in functions.list.iter().step_by(step).take(most) {
        let place = Place {
            build_id: &functions.build_id,
            address: function.start,
        };
        let frame = stacks.intern_frame(FrameRef {
            unnamed: UnnamedReason::NoSymbols,
            function: "[program]",
            module: "program",
            system_name: &place.to_string(),
            ..FrameRef::default()
        });
        let called = caller.replace(frame).unwrap_or(frame);
        let stack = stacks.stacks.child(StackId::EMPTY, called);
        of_rows.push(stacks.stacks.child(stack, frame));
    }
    let contents = stacks.content_ids();
    for stack in of_rows {
        let value = Value {
            count: 1,
            weight: 10_101_010,
        };
        rows.push(Row {
            labels: 0,
            stack: contents[stack.0 as usize],
            end: StackEnd::Complete,
            value,
        });
    }
    let window = NewWindow {
        origin: Origin {
            host: HostKey {
                host_id: "host".to_owned(),
                boot_id: [1; 16],
            },
            sequence: 1,
        },
        range: TimeRange {
            start_unix_ns: BEGIN,
            end_unix_ns: BEGIN + 10 * SECOND,
        },
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 10_101_010,
        quality: Quality::default(),
        label_sets: vec![LabelSet::new([("host".to_owned(), "host".to_owned())])],
        rows,
        accounts: Vec::new(),
        pressure: None,
        dropped_before: None,
        stream: None,
    };
    (window, stacks)
}

/// Time for the profile, and how many of its samples have a name that came later.
fn ask(store: &EmbeddedStore) -> Result<(Duration, u64), Failed> {
    let limits = Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 4 << 30,
        nodes: 1 << 24,
        lines: 20,
    };
    let range = TimeRange {
        start_unix_ns: BEGIN,
        end_unix_ns: BEGIN + 60 * SECOND,
    };
    let begin = Instant::now();
    let answer = store.profile(range, &Query::default(), &limits)?;
    Ok((begin.elapsed(), answer.quality.named_later.iter().sum()))
}

fn least(store: &EmbeddedStore) -> Result<Duration, Failed> {
    let mut least = ask(store)?.0;
    for _ in 1..ASKED {
        least = least.min(ask(store)?.0);
    }
    Ok(least)
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let own = std::env::current_exe()?;
    let path = arguments.next().map_or(own, PathBuf::from);
    let most = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let begin = Instant::now();
    let functions = Functions::read(&File::open(&path)?)?;
    let read = begin.elapsed();

    let dir = tempfile::tempdir()?;
    let store = EmbeddedStore::open(&dir.path().join("store"), Options::default(), BEGIN)?;
    let names = Arc::new(ByTable(Table::open(&dir.path().join("symbols"), 4 << 30)?));
    store.name_by(names.clone());
    let (window, stacks) = window(&functions, most);
    let rows = window.rows.len();
    store.push(&[window], &stacks, BEGIN + 20 * SECOND)?;

    let without = least(&store)?;
    let begin = Instant::now();
    let put = names.0.put(&functions, "file", NameSource::Upload, BEGIN)?;
    let kept = begin.elapsed();
    let (first, named) = ask(&store)?;
    let next = least(&store)?;
    let mut disk = 0;
    for file in std::fs::read_dir(dir.path().join("symbols"))? {
        disk += file?.metadata()?.len();
    }

    let ratio = |time: Duration| time.as_secs_f64() / without.as_secs_f64();
    let all = functions.list.len();
    println!(
        "{}: {all} functions read in {read:.1?}, kept in {kept:.1?}",
        path.display()
    );
    println!(
        "{} KiB by our count, {} KiB of files",
        put.bytes >> 10,
        disk >> 10
    );
    println!("{rows} functions in a profile, {named} of them named later");
    println!("without names       {without:>9.2?}");
    println!(
        "the first with      {first:>9.2?}   {:.2} of it",
        ratio(first)
    );
    println!(
        "the next            {next:>9.2?}   {:.2} of it",
        ratio(next)
    );
    let each = first.saturating_sub(next) / u32::try_from(rows.max(1))?;
    println!("looking one up      {each:>9.2?}");
    Ok(())
}
