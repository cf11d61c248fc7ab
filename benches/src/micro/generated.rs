//! Names of generated code: a perf map of 100,000 lines that grows by 100 lines a second, read on,
//! beside reading all of it again each second.

use super::{ALLOCATOR, Lines};
use host::ids::{Pid, ProcessId};
use host::time::MonotonicTime;
use jit::ask::{AskOptions, RuntimeAttacher};
use jit::code::{CodeLookup, CodeMap, When};
use jit::map::MapReader;
use jit::notice::Notice;
use jit::{Options, Watcher};
use stats_alloc::Region;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use symbolize::counters::SymbolCounters;
use unwind::process::ProcessInstance;

/// Lines of the map at the start, and lines that come between two readings.
const LINES: u64 = 100_000;
const GROWTH: u64 = 100;
/// Code of one line. Unit: bytes.
const CODE_BYTES: u64 = 256;
/// Readings in a minute.
const READINGS: f64 = 60.0;

/// The perf map of this program, removed when it is dropped.
struct Map {
    path: PathBuf,
    file: File,
    lines: u64,
}

impl Map {
    fn new() -> anyhow::Result<Map> {
        let path = PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()));
        let file = File::create(&path)?;
        let mut map = Map {
            path,
            file,
            lines: 0,
        };
        map.grow(LINES)?;
        Ok(map)
    }

    /// Lines as Node writes them, one of ten over the code of another.
    fn grow(&mut self, lines: u64) -> anyhow::Result<()> {
        let mut text = String::new();
        for number in self.lines..self.lines + lines {
            let place = match number % 10 {
                0 => number / 2,
                _ => number,
            };
            let start = 0x7f00_0000_0000 + place * CODE_BYTES;
            writeln!(
                text,
                "{start:x} {CODE_BYTES:x} JS:*function{number} file:///srv/app/module{}.js:{}:7",
                number % 331,
                number % 1999,
            )?;
        }
        self.lines += lines;
        self.file.write_all(text.as_bytes())?;
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// All of a map, as it is read for the first time.
fn read_whole(bytes: &[u8]) -> CodeMap {
    let mut code = CodeMap::new(usize::MAX / 2);
    let mut reader = MapReader::default();
    let when = When::between(MonotonicTime(0), MonotonicTime(1));
    bytes
        .chunks(64 << 10)
        .for_each(|piece| reader.feed(piece, when, &mut code));
    code
}

/// Both ways to keep up with a map that grows, look-ups, and memory.
pub fn measure(lines: &mut Lines) -> anyhow::Result<()> {
    let mut map = Map::new()?;
    let bytes = std::fs::read(&map.path)?;
    let region = Region::new(ALLOCATOR);
    let code = read_whole(&bytes);
    let change = region.change();
    let held = change
        .bytes_allocated
        .saturating_sub(change.bytes_deallocated);
    let (counted, pieces) = (code.heap_bytes(), code.len());
    let mut place = 0;
    lines.run("look-up at a time", "address", 1000, || {
        (0..1000)
            .filter(|_| {
                place = (place + 7919) % LINES;
                let address = 0x7f00_0000_0000 + place * CODE_BYTES + 5;
                matches!(code.find(address, MonotonicTime(2)), CodeLookup::Code(..))
            })
            .count()
    });
    drop(code);

    let (rules, _generated) = sync_channel(1);
    let counters = Arc::new(SymbolCounters::default());
    let options = Options {
        // The runs make it grow for much longer than a minute.
        max_bytes: 1 << 30,
        ..Options::default()
    };
    let mut watcher = Watcher::new(
        options,
        RuntimeAttacher::new(AskOptions::default()),
        counters,
        rules,
    );
    let whose = ProcessInstance {
        id: ProcessId(1),
        pid: Pid(std::process::id()),
        started: MonotonicTime(0),
    };
    watcher.take(std::iter::once(Notice::Met(whose)));
    let mut readings = Vec::new();
    for (name, whole) in [("reading of all", true), ("reading of what is new", false)] {
        let before = lines.lines.len();
        let map = &mut map;
        let watcher = &mut watcher;
        lines.with_setup(
            name,
            "reading",
            1,
            || map.grow(GROWTH).map(|()| map.path.clone()),
            |path| match whole {
                true => path.and_then(|path| Ok(read_whole(&std::fs::read(path)?).len())),
                false => {
                    watcher.tick(MonotonicTime::now());
                    Ok(0)
                }
            },
        );
        readings.push(lines.lines[before].median_ns);
    }
    let minute_ms = |reading: f64| reading * READINGS / 1e6;
    lines.note(format!(
        "generated: a map of {LINES} lines that grows by {GROWTH} lines a second costs {:.1} ms a minute \
         when what is new is read, {:.0} ms when all of it is: 1 to {:.0}; {pieces} pieces of code take {held} \
         bytes, {:.0} each ({counted} by its own count)",
        minute_ms(readings[1]),
        minute_ms(readings[0]),
        readings[0] / readings[1],
        held as f64 / pieces as f64,
    ));
    Ok(())
}
