//! The events that a capture can sample, by the names people know.
//!
//! Names are those of perf(1): counters of the processor and of the kernel, `block-io`,
//! `tracepoint:CATEGORY:NAME` and `uprobe:BINARY:FUNCTION`. [`Event::parse`] is pure;
//! [`Event::source`] asks the kernel and reads files: on the manager's thread, never on the
//! sampler's.

mod uprobe;

use host::blocking_pool::BlockingPool;
use perf::probe::{Every, Source};
use perf::tracefs::{Tracefs, TracefsError};
use perf_event_open_sys::bindings as sys;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use symbolize::elf::ElfError;
use symbolize::open;
use thiserror::Error;

/// Longest wait for a program in which a uprobe is set: for its symbols, and for the kernel, which
/// reads the instruction. A symbol table on a slow disk takes a second or two; a file system that
/// does not answer takes forever.
pub const FILE_WAIT: Duration = Duration::from_secs(5);

/// Samples a second of events that are sampled by rate, where nobody asks for another.
pub const RATE_HZ: u32 = 499;

/// Longest name of an event. Unit: bytes.
const EVENT_BYTES_MAX: usize = 4096 + 512;

/// Why there is no such event.
#[derive(Debug, Error)]
pub enum EventError {
    /// No event is called so.
    #[error("failed to find event `{name}`{}", suggestion(*nearest))]
    Unknown {
        /// The requested value.
        name: String,
        /// The most similar name.
        nearest: Option<&'static str>,
    },
    /// A name with parts of which some are missing or wrong.
    #[error("failed to read event `{name}`: expected `{form}`")]
    Form {
        /// The requested value.
        name: String,
        /// The expected form.
        form: &'static str,
    },
    /// The event is a tracepoint that cannot be used.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// The kernel has no uprobes.
    #[error(
        "failed to set a uprobe: the kernel has no uprobes (`{}`)",
        uprobe::KIND
    )]
    NoUprobes(#[source] io::Error),
    /// The executable of a uprobe.
    #[error("failed to set a uprobe in `{path}`")]
    Open {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: open::OpenError,
    },
    /// It does not answer.
    #[error(
        "failed to set a uprobe in `{path}`: its file system has not answered for {} s",
        FILE_WAIT.as_secs()
    )]
    Late {
        /// The file.
        path: String,
    },
    /// All helper threads are reading other files, or wait for file systems that do not answer.
    #[error(
        "failed to set a uprobe in `{path}`: all helper threads are busy with other files\n  try again in a moment"
    )]
    Busy {
        /// The file.
        path: String,
    },
    /// It is no executable.
    #[error("failed to look for functions in `{path}`")]
    Image {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: ElfError,
    },
    /// It has no such function.
    #[error("failed to find function `{function}` in `{path}`{hint}")]
    NoFunction {
        /// The file.
        path: String,
        /// The function.
        function: String,
        /// Why that may be.
        hint: &'static str,
    },
}

fn suggestion(nearest: Option<&'static str>) -> String {
    match nearest {
        Some(near) => format!("; the nearest is `{near}`"),
        None => format!(
            "\n  events are `cpu-clock`, `cycles`, `page-faults`, …, `{TRACEPOINT}`, `{UPROBE}`"
        ),
    }
}

const TRACEPOINT: &str = "tracepoint:CATEGORY:NAME";
const UPROBE: &str = "uprobe:BINARY:FUNCTION";

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// An event that the processor or the kernel counts.
    Counted(&'static Counted),
    /// Requests to block devices, as they are given to the driver: a tracepoint.
    BlockIo,
    /// A tracepoint.
    Tracepoint {
        /// Its category.
        category: String,
        /// Its name in the category.
        name: String,
    },
    /// Calls of a function of a program or library.
    Uprobe {
        /// The file, as an absolute path of the host.
        binary: PathBuf,
        /// The function.
        function: String,
    },
}

/// An event that has a number of its own.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Counted {
    /// Its name, the one that profiles have.
    pub name: &'static str,
    /// Another name that is understood.
    alias: &'static str,
    kind: u32,
    config: u64,
    unit: &'static str,
    default: Every,
}

impl Counted {
    const fn hardware(
        name: &'static str,
        alias: &'static str,
        config: u32,
        unit: &'static str,
    ) -> Counted {
        Counted {
            name,
            alias,
            kind: sys::PERF_TYPE_HARDWARE,
            config: config as u64,
            unit,
            default: Every::Rate(RATE_HZ),
        }
    }

    /// `default`: by rate where it may happen a million times a second, each one where it is rare.
    const fn software(
        name: &'static str,
        alias: &'static str,
        config: u32,
        unit: &'static str,
        default: Every,
    ) -> Counted {
        Counted {
            name,
            alias,
            kind: sys::PERF_TYPE_SOFTWARE,
            config: config as u64,
            unit,
            default,
        }
    }

    const fn cache(name: &'static str, cache: u32, operation: u32, result: u32) -> Counted {
        Counted {
            name,
            alias: "",
            kind: sys::PERF_TYPE_HW_CACHE,
            config: (cache | operation << 8 | result << 16) as u64,
            unit: if result == MISS { "misses" } else { "accesses" },
            default: Every::Rate(RATE_HZ),
        }
    }
}

const OFTEN: Every = Every::Rate(RATE_HZ);
const EACH: Every = Every::Period(1);

const L1D: u32 = sys::PERF_COUNT_HW_CACHE_L1D;
const L1I: u32 = sys::PERF_COUNT_HW_CACHE_L1I;
const LLC: u32 = sys::PERF_COUNT_HW_CACHE_LL;
const DTLB: u32 = sys::PERF_COUNT_HW_CACHE_DTLB;
const ITLB: u32 = sys::PERF_COUNT_HW_CACHE_ITLB;
const BPU: u32 = sys::PERF_COUNT_HW_CACHE_BPU;
const NODE: u32 = sys::PERF_COUNT_HW_CACHE_NODE;
const READ: u32 = sys::PERF_COUNT_HW_CACHE_OP_READ;
const WRITE: u32 = sys::PERF_COUNT_HW_CACHE_OP_WRITE;
const PREFETCH: u32 = sys::PERF_COUNT_HW_CACHE_OP_PREFETCH;
const ACCESS: u32 = sys::PERF_COUNT_HW_CACHE_RESULT_ACCESS;
const MISS: u32 = sys::PERF_COUNT_HW_CACHE_RESULT_MISS;

/// Every event with a number of its own, by perf's names.
pub static COUNTED: &[Counted] = &[
    Counted::software(
        "cpu-clock",
        "",
        sys::PERF_COUNT_SW_CPU_CLOCK,
        "nanoseconds",
        OFTEN,
    ),
    Counted::software(
        "task-clock",
        "",
        sys::PERF_COUNT_SW_TASK_CLOCK,
        "nanoseconds",
        OFTEN,
    ),
    Counted::hardware(
        "cycles",
        "cpu-cycles",
        sys::PERF_COUNT_HW_CPU_CYCLES,
        "cycles",
    ),
    Counted::hardware(
        "ref-cycles",
        "",
        sys::PERF_COUNT_HW_REF_CPU_CYCLES,
        "cycles",
    ),
    Counted::hardware("bus-cycles", "", sys::PERF_COUNT_HW_BUS_CYCLES, "cycles"),
    Counted::hardware(
        "stalled-cycles-frontend",
        "idle-cycles-frontend",
        sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND,
        "cycles",
    ),
    Counted::hardware(
        "stalled-cycles-backend",
        "idle-cycles-backend",
        sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND,
        "cycles",
    ),
    Counted::hardware(
        "instructions",
        "",
        sys::PERF_COUNT_HW_INSTRUCTIONS,
        "instructions",
    ),
    Counted::hardware(
        "branches",
        "branch-instructions",
        sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
        "branches",
    ),
    Counted::hardware(
        "branch-misses",
        "",
        sys::PERF_COUNT_HW_BRANCH_MISSES,
        "misses",
    ),
    Counted::hardware(
        "cache-references",
        "",
        sys::PERF_COUNT_HW_CACHE_REFERENCES,
        "references",
    ),
    Counted::hardware(
        "cache-misses",
        "",
        sys::PERF_COUNT_HW_CACHE_MISSES,
        "misses",
    ),
    Counted::software(
        "page-faults",
        "faults",
        sys::PERF_COUNT_SW_PAGE_FAULTS,
        "faults",
        OFTEN,
    ),
    Counted::software(
        "minor-faults",
        "",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MIN,
        "faults",
        OFTEN,
    ),
    Counted::software(
        "major-faults",
        "",
        sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ,
        "faults",
        EACH,
    ),
    Counted::software(
        "alignment-faults",
        "",
        sys::PERF_COUNT_SW_ALIGNMENT_FAULTS,
        "faults",
        OFTEN,
    ),
    Counted::software(
        "emulation-faults",
        "",
        sys::PERF_COUNT_SW_EMULATION_FAULTS,
        "faults",
        OFTEN,
    ),
    Counted::software(
        "context-switches",
        "cs",
        sys::PERF_COUNT_SW_CONTEXT_SWITCHES,
        "switches",
        OFTEN,
    ),
    Counted::software(
        "cpu-migrations",
        "migrations",
        sys::PERF_COUNT_SW_CPU_MIGRATIONS,
        "migrations",
        EACH,
    ),
    Counted::cache("L1-dcache-loads", L1D, READ, ACCESS),
    Counted::cache("L1-dcache-load-misses", L1D, READ, MISS),
    Counted::cache("L1-dcache-stores", L1D, WRITE, ACCESS),
    Counted::cache("L1-dcache-store-misses", L1D, WRITE, MISS),
    Counted::cache("L1-dcache-prefetches", L1D, PREFETCH, ACCESS),
    Counted::cache("L1-dcache-prefetch-misses", L1D, PREFETCH, MISS),
    Counted::cache("L1-icache-loads", L1I, READ, ACCESS),
    Counted::cache("L1-icache-load-misses", L1I, READ, MISS),
    Counted::cache("L1-icache-prefetches", L1I, PREFETCH, ACCESS),
    Counted::cache("L1-icache-prefetch-misses", L1I, PREFETCH, MISS),
    Counted::cache("LLC-loads", LLC, READ, ACCESS),
    Counted::cache("LLC-load-misses", LLC, READ, MISS),
    Counted::cache("LLC-stores", LLC, WRITE, ACCESS),
    Counted::cache("LLC-store-misses", LLC, WRITE, MISS),
    Counted::cache("LLC-prefetches", LLC, PREFETCH, ACCESS),
    Counted::cache("LLC-prefetch-misses", LLC, PREFETCH, MISS),
    Counted::cache("dTLB-loads", DTLB, READ, ACCESS),
    Counted::cache("dTLB-load-misses", DTLB, READ, MISS),
    Counted::cache("dTLB-stores", DTLB, WRITE, ACCESS),
    Counted::cache("dTLB-store-misses", DTLB, WRITE, MISS),
    Counted::cache("dTLB-prefetches", DTLB, PREFETCH, ACCESS),
    Counted::cache("dTLB-prefetch-misses", DTLB, PREFETCH, MISS),
    Counted::cache("iTLB-loads", ITLB, READ, ACCESS),
    Counted::cache("iTLB-load-misses", ITLB, READ, MISS),
    Counted::cache("branch-loads", BPU, READ, ACCESS),
    Counted::cache("branch-load-misses", BPU, READ, MISS),
    Counted::cache("node-loads", NODE, READ, ACCESS),
    Counted::cache("node-load-misses", NODE, READ, MISS),
    Counted::cache("node-stores", NODE, WRITE, ACCESS),
    Counted::cache("node-store-misses", NODE, WRITE, MISS),
    Counted::cache("node-prefetches", NODE, PREFETCH, ACCESS),
    Counted::cache("node-prefetch-misses", NODE, PREFETCH, MISS),
];

/// The tracepoint behind `block-io`.
const BLOCK_IO: (&str, &str) = ("block", "block_rq_issue");

impl Event {
    /// Reads the name of an event; empty: the CPU clock. `off-cpu` is none: it is made of several.
    ///
    /// # Errors
    /// [`EventError::Unknown`] and [`EventError::Form`].
    pub fn parse(text: &str) -> Result<Event, EventError> {
        if text.is_empty() {
            return Ok(Event::Counted(&COUNTED[0]));
        }
        let shown = || text.chars().take(256).collect::<String>();
        let wrong = |form| EventError::Form {
            name: shown(),
            form,
        };
        if let Some(rest) = text.strip_prefix("tracepoint:") {
            let (category, name) = rest.split_once(':').ok_or_else(|| wrong(TRACEPOINT))?;
            let known = |part: &str| !part.is_empty() && !part.contains([':', '/', '\0']);
            if !known(category) || !known(name) || text.len() > EVENT_BYTES_MAX {
                return Err(wrong(TRACEPOINT));
            }
            let (category, name) = (category.to_owned(), name.to_owned());
            return Ok(Event::Tracepoint { category, name });
        }
        if let Some(rest) = text.strip_prefix("uprobe:") {
            let (binary, function) = rest.split_once(':').ok_or_else(|| wrong(UPROBE))?;
            let sound = binary.starts_with('/') && !function.is_empty() && !rest.contains('\0');
            if !sound || text.len() > EVENT_BYTES_MAX {
                return Err(wrong("uprobe:/ABSOLUTE/PATH:FUNCTION"));
            }
            let (binary, function) = (binary.into(), function.to_owned());
            return Ok(Event::Uprobe { binary, function });
        }
        if ["block-io", "block"].contains(&text) {
            return Ok(Event::BlockIo);
        }
        let mut counted = COUNTED.iter();
        let called = |event: &&Counted| event.name == text || event.alias == text;
        counted.find(called).map(Event::Counted).ok_or_else(|| {
            let names = || COUNTED.iter().map(|event| event.name).chain(OTHERS);
            let nearest = config::nearest(names().map(str::to_owned), text);
            EventError::Unknown {
                name: shown(),
                nearest: nearest.and_then(|at| names().nth(at)),
            }
        })
    }

    /// Its name as profiles have it.
    pub fn name(&self) -> String {
        match self {
            Event::Counted(event) => event.name.to_owned(),
            Event::BlockIo => "block-io".to_owned(),
            Event::Tracepoint { category, name } => format!("tracepoint:{category}:{name}"),
            Event::Uprobe { binary, function } => {
                format!("uprobe:{}:{function}", binary.display())
            }
        }
    }

    /// Unit of the weights of its samples.
    pub fn unit(&self) -> &'static str {
        match self {
            Event::Counted(event) => event.unit,
            Event::BlockIo => "requests",
            Event::Tracepoint { .. } => "events",
            Event::Uprobe { .. } => "calls",
        }
    }

    /// How it is best sampled.
    pub fn default_every(&self) -> Every {
        match self {
            Event::Counted(_) if self.is_dense() => EACH,
            Event::Counted(event) => event.default,
            Event::BlockIo | Event::Tracepoint { .. } | Event::Uprobe { .. } => EACH,
        }
    }

    /// True for what the kernel counts itself and may happen a million times a second. It is
    /// sampled each time at first, and more rarely where that is too often: the kernel's own rate
    /// follows bursts and then takes a few samples of thousands of events.
    pub fn is_dense(&self) -> bool {
        match self {
            Event::Counted(event) => {
                let source = Source {
                    kind: event.kind,
                    config: event.config,
                    uprobe: None,
                };
                let is_rate = matches!(event.default, Every::Rate(_));
                is_rate && event.kind == sys::PERF_TYPE_SOFTWARE && !source.is_clock()
            }
            Event::BlockIo | Event::Tracepoint { .. } | Event::Uprobe { .. } => false,
        }
    }

    /// True when it takes a filter of the kernel's.
    pub fn takes_filter(&self) -> bool {
        matches!(self, Event::BlockIo | Event::Tracepoint { .. })
    }

    /// Fields that the kernel's filter may use; empty if there are none or they cannot be read.
    /// Blocks.
    pub fn fields(&self) -> Vec<String> {
        let (category, name) = match self {
            Event::BlockIo => BLOCK_IO,
            Event::Tracepoint { category, name } => (category.as_str(), name.as_str()),
            Event::Counted(_) | Event::Uprobe { .. } => return Vec::new(),
        };
        Tracefs::find().map_or_else(|_| Vec::new(), |tracefs| tracefs.fields(category, name))
    }

    /// The kernel's event to open. Blocks: reads tracefs, or waits for one of `files` to read the
    /// executable.
    ///
    /// # Errors
    /// [`EventError`].
    pub fn source(&self, files: &BlockingPool) -> Result<Source, EventError> {
        match self {
            Event::Counted(event) => Ok(Source {
                kind: event.kind,
                config: event.config,
                uprobe: None,
            }),
            Event::BlockIo => Ok(tracepoint(BLOCK_IO.0, BLOCK_IO.1)?),
            Event::Tracepoint { category, name } => Ok(tracepoint(category, name)?),
            Event::Uprobe { binary, function } => uprobe::source(binary, function, files),
        }
    }
}

/// Names that are no counted events, for suggestions.
const OTHERS: [&str; 4] = ["block-io", "off-cpu", TRACEPOINT, UPROBE];

impl FromStr for Event {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Event, EventError> {
        Event::parse(text)
    }
}

/// A tracepoint as a source of samples. Blocks: reads tracefs.
///
/// # Errors
/// [`TracefsError`].
pub fn tracepoint(category: &str, name: &str) -> Result<Source, TracefsError> {
    Ok(Source {
        kind: sys::PERF_TYPE_TRACEPOINT,
        config: Tracefs::find()?.id(category, name)?,
        uprobe: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> BlockingPool {
        BlockingPool::new("test")
    }

    fn told(text: &str) -> String {
        Event::parse(text).expect_err("none").to_string()
    }

    #[test]
    fn every_event_is_found_by_its_name_and_says_it_again() {
        let names = COUNTED.iter().map(|event| event.name);
        let others = [
            "block-io",
            "tracepoint:sched:sched_switch",
            "uprobe:/bin/sh:main",
        ];
        for name in names.chain(others) {
            assert_eq!(Event::parse(name).expect("known").name(), name);
        }
    }

    #[test]
    fn nothing_said_is_the_cpu_clock() {
        let event = Event::parse("").expect("known");
        assert_eq!(
            (event.name().as_str(), event.unit()),
            ("cpu-clock", "nanoseconds")
        );
        assert!(event.source(&files()).expect("a number").is_clock());
    }

    #[test]
    fn what_the_kernel_counts_is_sampled_each_time_at_first_and_clocks_by_rate() {
        let every = |name| Event::parse(name).expect("known").default_every();
        for name in [
            "page-faults",
            "minor-faults",
            "major-faults",
            "alignment-faults",
            "context-switches",
            "cpu-migrations",
            "block-io",
            "tracepoint:sched:sched_switch",
        ] {
            assert_eq!(every(name), EACH, "{name}");
        }
        for name in ["cpu-clock", "task-clock", "cycles", "LLC-load-misses"] {
            assert_eq!(every(name), OFTEN, "{name}");
        }
        let dense = |name| Event::parse(name).expect("known").is_dense();
        assert!(dense("page-faults") && dense("cs") && !dense("cpu-migrations"));
    }

    #[test]
    fn caches_have_the_kernels_numbers() {
        let source = |name| {
            Event::parse(name)
                .expect("known")
                .source(&files())
                .expect("a number")
        };
        assert_eq!(source("L1-dcache-load-misses").config, 0x1_0000);
        assert_eq!(source("LLC-store-misses").config, 0x1_0102);
        assert_eq!(source("dTLB-prefetches").config, 0x0203);
        assert!(source("node-loads").is_hardware());
    }

    #[test]
    fn a_name_that_is_none_is_told_with_the_nearest() {
        assert_eq!(
            told("cycels"),
            "failed to find event `cycels`; the nearest is `cycles`"
        );
        assert_eq!(
            told("context-switch"),
            "failed to find event `context-switch`; the nearest is `context-switches`"
        );
        assert!(told("zzz").contains("events are `cpu-clock`"));
    }

    #[test]
    fn parts_that_are_missing_are_told() {
        for text in [
            "tracepoint:sched",
            "tracepoint::x",
            "tracepoint:a:b:c",
            "tracepoint:../a:b",
        ] {
            assert!(
                told(text).ends_with("expected `tracepoint:CATEGORY:NAME`"),
                "{text}"
            );
        }
        for text in ["uprobe:/bin/sh", "uprobe:sh:main", "uprobe:/bin/sh:"] {
            assert!(told(text).contains("expected `uprobe:"), "{text}");
        }
        assert!(told(&format!("uprobe:/{}:main", "x".repeat(5000))).len() < 400);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_it_takes_it_gives_back(
            text in "(tracepoint:|uprobe:/|)[a-z0-9:/.\\x00-]{0,20}|.{0,40}"
        ) {
            if let Ok(event) = Event::parse(&text) {
                proptest::prop_assert_eq!(Event::parse(&event.name()).ok(), Some(event));
            }
        }
    }

    #[test]
    fn a_function_of_a_path_with_its_own_colons_is_whole() {
        let event = Event::parse("uprobe:/opt/a b:std::rt::main").expect("sound");
        let (binary, function) = ("/opt/a b".into(), "std::rt::main".to_owned());
        assert_eq!(event, Event::Uprobe { binary, function });
    }
}
