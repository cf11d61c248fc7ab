//! Opens pins and adds windows to them. Owned by `fp-trigger`; blocks on the disk.

use super::disk::Disk;
use super::{Chunk, Entry, MEMORY_BYTES_MAX, PIN_SHARE, Pins};
use aggregate::recorder::{ClosedWindow, Cursor, Recorder, Row, read};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::{Account, Dictionary, Remap, SampleKey};
use proto::agent as wire;
use segment::record;
use segment::window::{self, EncodedLengths, Facts, Times, Window};
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Most pins that windows are added to at once; a trigger that fires when there are so many gets
/// none.
pub const OPEN_MAX: usize = 8;

/// A window may close this long after its end: its samples are drained, named and added first.
const CLOSING_MAX: Duration = Duration::from_secs(30);

/// Most memory for what the open pins know of names together. Unit: bytes. Beyond it all start
/// again, and say each name once more.
const NAMES_BYTES_MAX: usize = 32 << 20;

/// Time between two tries to write what waits.
const RETRY: Duration = Duration::from_secs(10);

/// What to pin.
#[derive(Clone, Debug, PartialEq)]
pub struct PinRequest {
    /// Name of the trigger.
    pub trigger: String,
    /// What the trigger saw.
    pub cause: String,
    /// The cgroup; empty: the host.
    pub cgroup: String,
    /// When it fired.
    pub fired: MonotonicTime,
    /// How much before.
    pub before: Duration,
    /// How much after.
    pub after: Duration,
}

/// A pin that windows are added to.
struct Open {
    id: u64,
    span: (MonotonicTime, MonotonicTime),
    cursor: Cursor,
    dict: Dictionary,
    encoded: EncodedLengths,
    /// The event and unit of the first window: a pin has one.
    event: Option<(String, String)>,
    /// The sum of its chunks.
    bytes: u64,
    started: bool,
}

/// Why what a capture found is not kept with its pin.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// More than the share of one capture.
    #[error("the capture has {bytes} bytes, more than {most}, a quarter of recorder.pins_mib")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// The pin went meanwhile.
    #[error("the pin of the capture was dropped meanwhile")]
    Dropped,
    /// Open pins leave no room for it.
    #[error(
        "the capture has {bytes} bytes, and open pins leave no room for it in recorder.pins_mib"
    )]
    Room {
        /// Its size.
        bytes: u64,
    },
    /// The disk does not take it, nor has memory room for it until it does.
    #[error("the disk does not accept writes, and the memory for waiting data is used up")]
    Memory,
}

/// A window as it was copied; its names are in the pin's dictionary, its times on the clock of its
/// start.
struct Copied {
    window: Window,
    start: MonotonicTime,
}

/// Why a pin got no further window.
enum Full {
    Share,
    Room,
    Memory,
    Event,
}

/// See the module.
pub struct PinWriter {
    pins: Arc<Pins>,
    open: Vec<Open>,
    tried: Option<MonotonicTime>,
}

impl PinWriter {
    /// Adds to these pins. Makes their directory where it is missing.
    pub fn new(pins: Arc<Pins>) -> PinWriter {
        pins.open_disk();
        PinWriter {
            pins,
            open: Vec::new(),
            tried: None,
        }
    }

    /// Opens a pin and copies what there is; its number, or none when too many are open.
    pub fn open(&mut self, request: &PinRequest, recorder: &RwLock<Recorder>) -> Option<u64> {
        if self.open.len() >= OPEN_MAX {
            return None;
        }
        let before = request.before.as_nanos() as u64;
        let from = MonotonicTime(request.fired.0.saturating_sub(before));
        let to = request.fired.plus(request.after);
        let clock = &self.pins.clock;
        let id = {
            let mut list = lock(&self.pins.list);
            let id = self.pins.next_id(&list, clock.to_unix_ns(request.fired));
            list.push(Entry {
                pin: wire::Pin {
                    id,
                    trigger: request.trigger.clone(),
                    cause: request.cause.clone(),
                    cgroup: request.cgroup.clone(),
                    fired_unix_ns: clock.to_unix_ns(request.fired),
                    range: Some(wire::TimeRange {
                        start_unix_ns: clock.to_unix_ns(from),
                        end_unix_ns: clock.to_unix_ns(to),
                    }),
                    ..wire::Pin::default()
                },
                open: true,
                ..Entry::default()
            });
            id
        };
        self.pins.counts.opened.fetch_add(1, Ordering::Relaxed);
        self.open.push(Open {
            id,
            span: (from, to),
            cursor: Cursor::default(),
            dict: Dictionary::default(),
            encoded: EncodedLengths::default(),
            event: None,
            bytes: 0,
            started: false,
        });
        self.tick(request.fired, recorder);
        Some(id)
    }

    /// True while windows are added, or wait to be written.
    pub fn is_busy(&self) -> bool {
        let waits = |entry: &Entry| !entry.is_written();
        !self.open.is_empty() || lock(&self.pins.list).iter().any(waits)
    }

    /// Adds windows that have closed, closes pins at the end of their time, writes, and keeps the
    /// budget.
    pub fn tick(&mut self, now: MonotonicTime, recorder: &RwLock<Recorder>) {
        let mut open = std::mem::take(&mut self.open);
        open.retain_mut(|pin| match self.add_windows(pin, now, recorder) {
            Ok(done) => {
                if done {
                    self.pins.close(pin.id);
                }
                !done
            }
            Err(full) => {
                let why = match full {
                    Full::Share => "the pin has reached its share of recorder.pins_mib",
                    Full::Room => "open pins have used up recorder.pins_mib",
                    Full::Memory => "too much data waits for the disk",
                    Full::Event => "the daemon now samples another event",
                };
                tracing::warn!(pin = pin.id, why, "the pin ends early");
                self.pins.counts.cut.fetch_add(1, Ordering::Relaxed);
                self.pins.close(pin.id);
                false
            }
        });
        let names: usize = open.iter().map(|pin| pin.dict.heap_bytes()).sum();
        if names > NAMES_BYTES_MAX {
            for pin in &mut open {
                (pin.dict, pin.encoded) = (Dictionary::default(), EncodedLengths::default());
            }
        }
        self.open = open;
        self.write(now);
        self.pins.keep_budget();
    }

    /// True when its time is over.
    fn add_windows(
        &self,
        pin: &mut Open,
        now: MonotonicTime,
        recorder: &RwLock<Recorder>,
    ) -> Result<bool, Full> {
        loop {
            // One window for each time the lock is held: the symbolizer gets its turn in between.
            let (copied, newest) = {
                let recorder = read(recorder);
                let (mut cursor, span) = (pin.cursor, pin.span);
                let copy = |window: &ClosedWindow<'_>| self.copy(pin, window);
                let copied = recorder.next_closed(&mut cursor, span, copy);
                pin.cursor = cursor;
                (copied, recorder.newest_closed())
            };
            let Some(copied) = copied else {
                let closed = newest.is_some_and(|end| end >= pin.span.1);
                return Ok(closed || now.since(pin.span.1) > CLOSING_MAX);
            };
            let (chunk, range) = encode(pin, copied?)?;
            let share = self.pins.budget_bytes.load(Ordering::Relaxed) / PIN_SHARE;
            if pin.bytes + chunk.len() as u64 > share {
                return Err(Full::Share);
            }
            pin.bytes += chunk.len() as u64;
            self.pins.add(pin.id, chunk, range, !pin.started)?;
            pin.started = true;
        }
    }

    /// Copies a window out of the recorder, which is locked meanwhile: the rest is done without it.
    fn copy(&self, pin: &mut Open, window: &ClosedWindow<'_>) -> Result<Copied, Full> {
        let (event, unit) = (window.event, window.unit);
        let first = pin.event.get_or_insert_with(|| (event.into(), unit.into()));
        if (first.0.as_str(), first.1.as_str()) != (event, unit) {
            return Err(Full::Event);
        }
        let mut remap = Remap::default();
        let dict = &mut pin.dict;
        // As they come: times say which row they are of by its place.
        let mut rows: Vec<Row> = Vec::new();
        for (key, value) in window.rows() {
            let key = SampleKey {
                labels: remap.label_set(window.dict, dict, key.labels),
                stack: remap.stack(window.dict, dict, key.stack),
                end: key.end,
            };
            rows.push((key, value));
        }
        let accounts = window.accounts().map(|account| Account {
            labels: remap.label_set(window.dict, dict, account.labels),
            ..account
        });
        let accounts = accounts.collect();
        let times = window.timestamps();
        let clock = &self.pins.clock;
        let facts = Facts {
            sequence: clock.to_boot_ns(window.start),
            start_unix_ns: clock.to_unix_ns(window.start),
            duration_ns: window.end.since(window.start).as_nanos() as u64,
            event: event.to_owned(),
            unit: unit.to_owned(),
            period: window.period,
            quality: window.quality,
            // Answers of pins do not say it, and that of a merged window is of its last part.
            pressure: None,
        };
        Ok(Copied {
            window: Window {
                facts,
                rows,
                accounts,
                times: times.map(|(timestamps, refused)| Times {
                    timestamps,
                    refused,
                }),
            },
            start: window.start,
        })
    }

    /// Writes what waits; after a failure only now and then.
    fn write(&mut self, now: MonotonicTime) {
        let failing = lock(&self.pins.error).is_some();
        let recent = self.tried.is_some_and(|tried| now.since(tried) < RETRY);
        if failing && recent {
            return;
        }
        let waiting: Vec<Entry> = {
            let list = lock(&self.pins.list);
            let waits = list.iter().filter(|entry| !entry.is_written());
            waits.cloned().collect()
        };
        if waiting.is_empty() {
            return;
        }
        self.tried = Some(now);
        let Some(disk) = self.pins.open_disk() else {
            return;
        };
        for entry in waiting {
            let written = write_entry(disk, &entry);
            if self.pins.remove_dropped(disk, entry.pin.id) {
                continue;
            }
            match written {
                Ok((len, capture)) => {
                    self.pins.change(entry.pin.id, |known| {
                        known.file_bytes = len;
                        let written = entry.waiting.len().min(known.waiting.len());
                        known.waiting.drain(..written);
                        if let Some(bytes) = capture {
                            (known.capture_bytes, known.waiting_capture) = (bytes, None);
                        }
                    });
                    self.pins.wrote();
                }
                Err(error) if entry.file_bytes > 0 && error.kind() == ErrorKind::NotFound => {
                    // Removed by somebody else: what goes on from it is worth nothing.
                    self.pins.forget(entry.pin.id);
                    self.open.retain(|open| open.id != entry.pin.id);
                }
                Err(error) => {
                    self.pins.failed(error.to_string());
                    return;
                }
            }
        }
    }
}

/// Writes what waits of a pin; the length of its file, and of its capture's if that waited.
fn write_entry(disk: &Disk, entry: &Entry) -> io::Result<(u64, Option<u64>)> {
    let id = entry.pin.id;
    let len = match (entry.file_bytes, entry.waiting.as_slice()) {
        (0, chunks) => disk.create(&entry.pin, chunks)?,
        (len, []) => len,
        (len, chunks) => disk.append(id, len, chunks)?,
    };
    let capture = entry.waiting_capture.as_ref();
    let capture = capture.map(|evidence| disk.keep_capture(id, evidence));
    Ok((len, capture.transpose()?))
}

/// A copied window as a chunk of its pin, and its range.
fn encode(pin: &mut Open, copied: Copied) -> Result<(Chunk, (i64, i64)), Full> {
    let Copied { mut window, start } = copied;
    let wall = window.facts.start();
    for timestamp in window
        .times
        .iter_mut()
        .flat_map(|times| &mut times.timestamps)
    {
        timestamp.time = wall.plus(timestamp.time.since(start));
    }
    let fresh = pin.encoded == EncodedLengths::default();
    let (mut tables, mut body) = (Vec::new(), Vec::new());
    window::encode_tables(&mut tables, &pin.dict, &mut pin.encoded);
    window::encode_body(&mut body, &window);
    let header = window.facts.header();
    let chunk = record::pack(&window::join(&tables, &body), &header, fresh);
    let chunk = chunk.map_err(|_| Full::Share)?;
    Ok((chunk.into(), (header.start_unix_ns, header.end_unix_ns)))
}

impl Pins {
    /// Removes the files of a pin that was dropped while they were written: what was removed then
    /// is here again. True when it was.
    pub(super) fn remove_dropped(&self, disk: &Disk, id: u64) -> bool {
        let dropped = !lock(&self.list).iter().any(|entry| entry.pin.id == id);
        if dropped {
            disk.remove(id);
        }
        dropped
    }

    fn forget(&self, id: u64) {
        let mut list = lock(&self.list);
        let before = list.len();
        list.retain(|entry| entry.pin.id != id);
        let gone = (before - list.len()) as u64;
        self.counts.damaged.fetch_add(gone, Ordering::Relaxed);
    }

    pub(super) fn change(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        let mut list = lock(&self.list);
        if let Some(entry) = list.iter_mut().find(|entry| entry.pin.id == id) {
            change(entry);
        }
    }

    /// Adds a chunk to write. The first one sets the start of the pin.
    fn add(&self, id: u64, chunk: Chunk, range: (i64, i64), first: bool) -> Result<(), Full> {
        let mut list = lock(&self.list);
        let waiting: u64 = list.iter().map(Entry::waiting_bytes).sum();
        if waiting + chunk.len() as u64 > MEMORY_BYTES_MAX && lock(&self.error).is_some() {
            return Err(Full::Memory);
        }
        if self.opened_bytes(&list) + chunk.len() as u64 > self.bytes_max() {
            return Err(Full::Room);
        }
        if let Some(entry) = list.iter_mut().find(|entry| entry.pin.id == id) {
            entry.waiting.push(chunk);
            let covered = entry.covered.get_or_insert(range);
            *covered = (covered.0.min(range.0), covered.1.max(range.1));
            let known = entry.pin.range.get_or_insert_default();
            if first {
                known.start_unix_ns = range.0;
            }
            known.end_unix_ns = known.end_unix_ns.max(range.1);
        }
        Ok(())
    }

    fn bytes_max(&self) -> u64 {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the pins that are open: those that make room for nobody.
    fn opened_bytes(&self, list: &[Entry]) -> u64 {
        let open = list.iter().filter(|entry| entry.open);
        open.map(Entry::bytes).sum()
    }

    /// No more windows come: the pin's range is what is there, whatever was planned.
    fn close(&self, id: u64) {
        self.change(id, |entry| {
            entry.open = false;
            let fired = entry.pin.fired_unix_ns;
            let (start_unix_ns, end_unix_ns) = entry.covered.unwrap_or((fired, fired));
            entry.pin.range = Some(wire::TimeRange {
                start_unix_ns,
                end_unix_ns,
            });
        });
        self.closed.notify_one();
    }

    /// Says which capture belongs to a pin.
    pub fn set_capture(&self, id: u64, capture_id: u64) {
        self.change(id, |entry| entry.pin.capture_id = capture_id);
    }

    /// Keeps what a capture found with its pin: on disk, or in memory until the disk takes it.
    ///
    /// # Errors
    /// Why it is not kept.
    pub fn keep_capture(&self, id: u64, evidence: super::Evidence) -> Result<(), KeepError> {
        let (bytes, most) = (evidence.bytes(), self.evidence_max());
        if bytes > most {
            return Err(KeepError::TooLarge { bytes, most });
        }
        {
            let list = lock(&self.list);
            let entry = list.iter().find(|entry| entry.pin.id == id);
            let entry = entry.ok_or(KeepError::Dropped)?;
            if entry.open && self.opened_bytes(&list) + bytes > self.bytes_max() {
                return Err(KeepError::Room { bytes });
            }
        }
        let written = match self.disk.get() {
            Some(disk) => disk.keep_capture(id, &evidence).map_err(|source| {
                self.failed(source.to_string());
            }),
            // The reason was already reported.
            None => Err(()),
        };
        let kept = match written {
            Ok(bytes) => self.keep(id, |entry| entry.capture_bytes = bytes),
            Err(()) => self.wait(id, evidence),
        };
        if matches!(kept, Err(KeepError::Dropped))
            && let Some(disk) = self.disk.get()
        {
            disk.remove(id);
        }
        self.keep_budget();
        self.closed.notify_one();
        kept
    }

    fn keep(&self, id: u64, change: impl FnOnce(&mut Entry)) -> Result<(), KeepError> {
        let mut known = Err(KeepError::Dropped);
        self.change(id, |entry| {
            change(entry);
            known = Ok(());
        });
        known
    }

    fn wait(&self, id: u64, evidence: super::Evidence) -> Result<(), KeepError> {
        let waiting: u64 = lock(&self.list).iter().map(Entry::waiting_bytes).sum();
        if waiting + evidence.bytes() > MEMORY_BYTES_MAX {
            return Err(KeepError::Memory);
        }
        self.keep(id, |entry| entry.waiting_capture = Some(Arc::new(evidence)))
    }
}
