//! The flight recorder: the newest hour of named windows, packed, under a byte budget.
//!
//! One [`Dictionary`] is shared by all windows. The symbolizer interns into it and adds the samples
//! of a part of a window; parts accumulate in the open window until one closes it. Closed windows
//! are kept until they are older than the retention, or until the budget forces the oldest to be
//! downsampled (10 s → 1 min → 10 min) and in the end dropped. What the dictionary holds for
//! windows that are gone is collected from time to time, which gives every id a new value.
//!
//! **The contract of ids.** Ids that the symbolizer got from [`Recorder::dict_mut`] are good until
//! the next [`Recorder::add`] or [`Recorder::maintain`] returns: only these collect. When
//! [`Recorder::epoch`] has changed after one of them, every cached id must be forgotten.
//!
//! **Bounds.** Packed windows and the dictionary together are within the budget whenever `add` or
//! `maintain` has returned. Between such calls the dictionary grows by what the symbolizer interns,
//! which [`Recorder::has_room`] bounds to its share of a window, [`WINDOW_SHARE`] unless configured
//! otherwise. While a collection runs, the live part of the dictionary exists twice.
//!
//! Threads: one writer (the symbolizer) and any number of readers behind an `RwLock`. Nothing here
//! blocks; `add` takes milliseconds, a collection or downsampling tenths of a second, a query over
//! an hour of a large machine up to seconds.

mod accounting;
mod accounts;
mod block;
mod compact;
mod cpu_times;
mod growth;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod outcomes;
mod pins;
mod query;
mod sink;
#[cfg(test)]
mod tests;
mod times;
pub mod varint;

use super::batch::RawTimestamp;
use accounts::Accounts;
use block::Block;
use cgroup::usage::UsageStats;
pub use cpu_times::{CpuBy, CpuTimes};
use growth::Growth;
use host::time::MonotonicTime;
use profile::{
    Account, Dictionary, FrameKind, FrameRef, LOST_FRAME, OTHER_FRAME, Pressure, Quality,
    SampleKey, StackId,
};
use std::collections::VecDeque;
use std::time::Duration;
use times::Times;
use tokio::sync::watch;

pub use block::Row;
pub use outcomes::Outcomes;
pub use pins::Cursor;
pub use query::{Covered, QueryError, RecorderAnswer, RecorderQuery, WindowRange, query, read};
pub use sink::{ClosedSink, ClosedWindow};

/// Smallest budget that is taken. Unit: bytes. Below this the fixed cost of a window and of the
/// hash tables would leave no room for samples.
pub const BUDGET_MIN_BYTES: usize = 256 * 1024;

/// Most separate parts of the open window. More are merged, oldest first; a live client that had
/// not read them yet is informed that it missed them. At two parts a second (the shortest interval
/// a client may request) a 10 s window has 20.
pub const PARTS_MAX: usize = 64;

/// A window may use this fraction of the budget (one eighth). The rest of it is folded into
/// `[other]`, so that one process with endless new stacks cannot displace the complete hour.
pub const WINDOW_SHARE: usize = 8;

/// Options of the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderOptions {
    /// Windows that ended longer ago than this are dropped.
    pub retention: Duration,
    /// Most memory for windows and their dictionary, at least [`BUDGET_MIN_BYTES`].
    pub budget_bytes: usize,
    /// Configured length of a window. One left open for twice this long is closed.
    pub window: Duration,
    /// Most memory for the times of samples, in addition to the budget. Unit: bytes; 0: no times
    /// are kept.
    pub times_bytes: usize,
    /// One window may take the budget divided by this; see [`WINDOW_SHARE`].
    pub window_share: usize,
    /// By what CPU time is counted for scrapers; none: it is not.
    pub cpu_by: Option<CpuBy>,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        RecorderOptions {
            retention: Duration::from_secs(3600),
            budget_bytes: 64 * 1024 * 1024,
            window: Duration::from_secs(10),
            times_bytes: 4 * 1024 * 1024,
            window_share: WINDOW_SHARE,
            cpu_by: None,
        }
    }
}

/// Named samples of a part of one window.
#[derive(Debug)]
pub struct WindowPart<'a> {
    /// Start of the part.
    pub start: MonotonicTime,
    /// End of the part.
    pub end: MonotonicTime,
    /// True when the window ends with this part.
    pub closes: bool,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What was taken and missed.
    pub quality: Quality,
    /// The samples, with ids of [`Recorder::dict_mut`], in any order; a key may occur more than
    /// once. Their order and, when the window is cut, their keys are changed.
    pub rows: &'a mut Vec<Row>,
    /// The kernel's accounting of the complete window, with ids of [`Recorder::dict_mut`]. Comes
    /// with the part that closes the window. Empty: nothing was measured.
    pub accounts: &'a [Account],
    /// For how long tasks of the host waited in the complete window; comes with its last part.
    /// `None`: not known.
    pub pressure: Option<Pressure>,
    /// When the samples were taken; rows are places in `rows` as it was given. Either all samples
    /// are here, among those refused or timeless, or no times are kept of the part.
    pub timestamps: &'a [RawTimestamp],
    /// Samples whose time did not fit earlier.
    pub timestamps_refused: u64,
    /// Samples that have no moment: what goes on when a capture ends.
    pub timeless: u64,
}

/// How far the recorder has come. Sequence numbers start at 1 and never skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of the newest closed window; 0 before the first.
    pub window: u64,
    /// Number of the newest part; 0 before the first.
    pub part: u64,
    /// End of the newest part.
    pub end: MonotonicTime,
}

/// Sizes and counters, for status and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RecorderStats {
    /// Start of the oldest window, or of the open one.
    pub oldest: Option<MonotonicTime>,
    /// End of the newest part.
    pub newest: Option<MonotonicTime>,
    /// Closed windows.
    pub windows: usize,
    /// Windows among these that were merged from several.
    pub downsampled_windows: usize,
    /// Rows of all windows and parts.
    pub rows: u64,
    /// Memory of packed rows and their windows.
    pub window_bytes: usize,
    /// Memory of the dictionary.
    pub dict_bytes: usize,
    /// Memory in all; at most `budget_bytes`.
    pub bytes: usize,
    /// The budget.
    pub budget_bytes: usize,
    /// Memory of the times of samples, in addition to `bytes`.
    pub times_bytes: usize,
    /// Most of it.
    pub times_budget_bytes: usize,
    /// Since when it is known when each sample was taken; `None`: of none.
    pub times_since: Option<MonotonicTime>,
    /// What was dropped or folded since the start, and the work of keeping the budget.
    pub totals: RecorderTotals,
}

/// What happened to windows since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RecorderTotals {
    /// Windows closed.
    pub windows_closed: u64,
    /// Windows dropped because they were older than the retention.
    pub dropped_by_age: u64,
    /// Windows dropped because the budget was used up.
    pub dropped_by_budget: u64,
    /// Windows merged into a longer one.
    pub downsampled: u64,
    /// Samples folded into `[other]` because their window was over its share of the budget.
    pub folded_samples: u64,
    /// Collections of the dictionary.
    pub collections: u64,
    /// Time the longest of them took. Unit: nanoseconds.
    pub longest_collection_ns: u64,
    /// Samples that lost their time because the memory for times was full.
    pub times_dropped: u64,
}

/// A part of a window, by itself.
#[derive(Debug)]
struct Part {
    /// Numbers of the parts it holds, more than one when they were added up.
    parts: (u64, u64),
    start: MonotonicTime,
    end: MonotonicTime,
    period: u64,
    quality: Quality,
    block: Block,
    accounts: Accounts,
    pressure: Option<Pressure>,
    times: Times,
}

/// A closed window.
#[derive(Debug)]
struct Window {
    /// Numbers of the windows it holds, more than one when it is downsampled.
    windows: (u64, u64),
    /// Everything else, as if it were one part.
    whole: Part,
}

/// See the module.
pub struct Recorder {
    options: RecorderOptions,
    event: String,
    unit: String,
    dict: Dictionary,
    epoch: u64,
    /// Changes when windows are merged or ids change.
    generation: u64,
    /// Closed, in order of time.
    windows: VecDeque<Window>,
    /// The open window.
    open: VecDeque<Part>,
    /// The parts of the window closed last, when it had several: live clients may not have read
    /// them yet.
    recent: Vec<Part>,
    growth: Growth,
    /// Windows were dropped or cut since the last collection.
    garbage: bool,
    /// Size of the dictionary after the last collection.
    collected_bytes: usize,
    totals: RecorderTotals,
    /// Sum of the qualities of all parts since the start.
    quality: Quality,
    outcomes: Outcomes,
    usage: UsageStats,
    cpu_times: CpuTimes,
    progress: watch::Sender<Progress>,
    sink: Option<Box<dyn ClosedSink>>,
}

impl Recorder {
    /// An empty recorder of `cpu-clock` samples.
    pub fn new(options: RecorderOptions) -> Recorder {
        let budget_bytes = options.budget_bytes.max(BUDGET_MIN_BYTES);
        let dict = Dictionary::default();
        Recorder {
            options: RecorderOptions {
                budget_bytes,
                ..options
            },
            event: "cpu-clock".to_owned(),
            unit: "nanoseconds".to_owned(),
            epoch: 0,
            generation: 0,
            windows: VecDeque::new(),
            open: VecDeque::new(),
            recent: Vec::new(),
            growth: Growth::new(&dict),
            dict,
            garbage: false,
            collected_bytes: 0,
            totals: RecorderTotals::default(),
            quality: Quality::default(),
            outcomes: Outcomes::default(),
            usage: UsageStats::default(),
            cpu_times: CpuTimes::default(),
            progress: watch::Sender::new(Progress::default()),
            sink: None,
        }
    }

    /// Names the event that is sampled and the unit of weights, for the answers.
    pub fn set_event(&mut self, event: &str, unit: &str) {
        event.clone_into(&mut self.event);
        unit.clone_into(&mut self.unit);
    }

    /// Takes a new retention, budget and window length; in force at the next [`Recorder::add`].
    pub fn set_options(&mut self, options: RecorderOptions) {
        let budget_bytes = options.budget_bytes.max(BUDGET_MIN_BYTES);
        if options.cpu_by != self.options.cpu_by {
            self.cpu_times = CpuTimes::default();
        }
        self.options = RecorderOptions {
            budget_bytes,
            ..options
        };
    }

    /// The dictionary of all windows.
    pub fn dict(&self) -> &Dictionary {
        &self.dict
    }

    /// The dictionary, to intern what the next part needs. See the module for how long ids live.
    pub fn dict_mut(&mut self) -> &mut Dictionary {
        &mut self.dict
    }

    /// Counts the times ids changed their meaning.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True while the open window may bring new entries into the dictionary.
    ///
    /// When false, the symbolizer puts samples with stacks that are not interned yet under
    /// [`Recorder::other`] and counts them in [`Quality::folded`]. Without this check the part
    /// would still be cut, but only after the dictionary has grown. It is cheap enough to call for
    /// each stack.
    pub fn has_room(&mut self) -> bool {
        // The rest is for the rows, and for the stack being added.
        self.growth.used(&self.dict) < self.window_share() / 8 * 7
    }

    /// The stack `[other]`.
    pub fn other(&mut self) -> StackId {
        self.synthetic(OTHER_FRAME)
    }

    /// The stack `[lost]`, for rows that end with [`StackEnd::Lost`](profile::StackEnd::Lost).
    pub fn lost(&mut self) -> StackId {
        self.synthetic(LOST_FRAME)
    }

    fn synthetic(&mut self, function: &str) -> StackId {
        let frame = self.dict.intern_frame(FrameRef {
            kind: FrameKind::Synthetic,
            function,
            ..FrameRef::default()
        });
        self.dict.stacks.child(StackId::EMPTY, frame)
    }

    /// True when a part that ends at `end` closes the open window whether it says so or not: one
    /// that grows for twice its length must not grow on.
    pub fn is_overdue(&self, start: MonotonicTime, end: MonotonicTime) -> bool {
        let opened = self.open.front().map_or(start, |part| part.start);
        end.since(opened) >= 2 * self.options.window
    }

    /// Adds a part to the open window, and closes the window if the part says so or it has to be
    /// closed.
    ///
    /// Parts come in order of time. May collect: ids from before are void when
    /// [`Recorder::epoch`] changed.
    pub fn add(&mut self, part: WindowPart<'_>) {
        let WindowPart {
            start,
            end,
            closes,
            period,
            mut quality,
            rows,
            accounts,
            pressure,
            timestamps,
            timestamps_refused,
            timeless,
        } = part;
        self.outcomes.add(rows, &self.dict);
        if let Some(by) = self.options.cpu_by {
            self.cpu_times.add(by, accounts, &self.dict);
        }
        let known = timestamps.len() as u64 + timestamps_refused + timeless >= quality.taken;
        let keeps_times = known && self.options.times_bytes > 0;
        let given: Vec<SampleKey> = match keeps_times {
            true => rows.iter().map(|row| row.0).collect(),
            false => Vec::new(),
        };
        let folded = self.fit(rows);
        quality.folded += folded;
        self.totals.folded_samples += folded;
        self.quality += quality;
        let mut progress = *self.progress.borrow();
        progress.part += 1;
        let end = end.max(start);
        let block = Block::seal(rows, period);
        let times = match keeps_times {
            true => Times::seal(timestamps, &given, timestamps_refused, start, &block),
            false => Times::default(),
        };
        self.open.push_back(Part {
            parts: (progress.part, progress.part),
            start,
            end,
            period,
            quality,
            block,
            accounts: Accounts::seal(accounts.iter().copied(), self.accounts_max()),
            pressure,
            times,
        });
        progress.end = end;
        if closes || self.is_overdue(start, end) {
            progress.window += 1;
            self.close(progress.window);
        } else if self.open.len() > PARTS_MAX {
            let oldest: Vec<Part> = self.open.drain(..PARTS_MAX / 2).collect();
            if let Some(merged) = Part::merge(oldest.iter()) {
                self.open.push_front(merged);
            }
        }
        self.maintain();
        self.progress.send_replace(progress);
    }

    /// Drops what is too old and keeps the budget. [`Recorder::add`] does this too; call it when
    /// options changed or nothing was added for long.
    pub fn maintain(&mut self) {
        self.retire();
        self.forget_times();
        if self.garbage_is_worth_collecting() {
            self.collect(None);
        }
        if self.bytes() > self.options.budget_bytes {
            self.shrink();
        }
    }

    /// Subscribes to every part added and window closed. A receiver sees only the newest state; the
    /// difference of the sequence numbers says how many it missed.
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Number of receivers from [`Recorder::subscribe`].
    pub fn listeners(&self) -> usize {
        self.progress.receiver_count()
    }

    /// What was taken and missed since the start, including dropped windows.
    pub fn totals_of_quality(&self) -> Quality {
        self.quality
    }

    /// How stacks ended and why leaves have no symbol, since the start.
    pub fn outcomes(&self) -> Outcomes {
        self.outcomes
    }

    /// Sets the counters of the kernel's accounting, for [`Recorder::usage`].
    pub fn note_usage(&mut self, usage: UsageStats) {
        self.usage = usage;
    }

    /// Counters of the kernel's accounting since the start.
    pub fn usage(&self) -> UsageStats {
        self.usage
    }

    /// CPU time by unit or container since the start, or since that was asked for.
    pub fn cpu_times(&self) -> &CpuTimes {
        &self.cpu_times
    }

    /// Sizes and counters.
    pub fn stats(&self) -> RecorderStats {
        let whole = || self.windows.iter().map(|window| &window.whole);
        let all = || whole().chain(&self.open);
        RecorderStats {
            oldest: all().next().map(|part| part.start),
            newest: all().next_back().map(|part| part.end),
            windows: self.windows.len(),
            downsampled_windows: self
                .windows
                .iter()
                .filter(|window| window.is_downsampled())
                .count(),
            rows: all().map(|part| part.block.rows() as u64).sum(),
            window_bytes: self.window_bytes(),
            dict_bytes: self.dict.heap_bytes(),
            bytes: self.bytes(),
            budget_bytes: self.options.budget_bytes,
            times_bytes: self.times_bytes(),
            times_budget_bytes: self.options.times_bytes,
            times_since: self.times_since(),
            totals: self.totals,
        }
    }

    fn close(&mut self, number: u64) {
        self.recent.clear();
        let whole = if self.open.len() == 1 {
            self.open.pop_front()
        } else {
            let merged = Part::merge(self.open.iter());
            self.recent.extend(self.open.drain(..));
            merged
        };
        if let Some(whole) = whole {
            self.show(&whole);
            self.windows.push_back(Window {
                windows: (number, number),
                whole,
            });
            self.totals.windows_closed += 1;
        }
        self.growth.restart(&self.dict);
    }

    /// Most accounts of one window: an eighth of its share.
    fn accounts_max(&self) -> usize {
        self.window_share() / 8 / accounts::ROW_BYTES
    }

    fn window_share(&self) -> usize {
        self.options.budget_bytes / self.options.window_share.max(1)
    }

    fn window_bytes(&self) -> usize {
        let parts = self.open.iter().chain(&self.recent);
        parts
            .chain(self.windows.iter().map(|window| &window.whole))
            .map(Part::bytes)
            .sum()
    }

    fn bytes(&self) -> usize {
        self.window_bytes() + self.dict.heap_bytes()
    }
}

impl Part {
    /// Adds up parts that follow each other; `None` when there is none.
    fn merge<'a>(parts: impl Iterator<Item = &'a Part> + Clone) -> Option<Part> {
        let first = parts.clone().next()?;
        let mut whole = Part {
            parts: first.parts,
            start: first.start,
            end: first.end,
            period: first.period,
            quality: Quality::default(),
            block: Block::default(),
            accounts: Accounts::default(),
            pressure: None,
            times: Times::default(),
        };
        for part in parts.clone() {
            whole.parts.1 = part.parts.1;
            whole.start = whole.start.min(part.start);
            whole.end = whole.end.max(part.end);
            if part.period != whole.period {
                whole.period = 0;
            }
            whole.quality += part.quality;
            // Of a window that has just closed it is in the last part; it is not asked for later.
            whole.pressure = part.pressure;
        }
        let period = parts.clone().last().map_or(0, |part| part.block.period());
        whole.block = Block::merge(parts.clone().map(|part| &part.block), period);
        whole.times = Times::merge(parts.clone(), whole.start, &whole.block);
        let accounts = parts.flat_map(|part| part.accounts.iter());
        whole.accounts = Accounts::seal(accounts, accounts::ROWS_MAX);
        Some(whole)
    }

    fn bytes(&self) -> usize {
        size_of::<Window>() + self.block.heap_bytes() + self.accounts.heap_bytes()
    }
}

impl Window {
    fn is_downsampled(&self) -> bool {
        self.windows.0 != self.windows.1
    }
}
