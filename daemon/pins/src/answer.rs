//! Answers queries about pinned time: a pin's windows are loaded into a recorder of their own,
//! which is then queried as usual.

use super::disk::{READ_BYTES_MAX, damaged};
use super::{Entry, Pins};
use aggregate::recorder::{
    QueryError, Recorder, RecorderAnswer, RecorderOptions, RecorderQuery, Row, WindowPart,
    WindowRange, query,
};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::{Account, Profile, Query, Remap, SampleKey, Withholding};
use proto::{AssembleError, ProfileAssembler};
use segment::record;
use segment::window::{DecodeError, Tables};
use std::io;
use std::sync::RwLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Most memory that a pin takes while it is asked. Unit: bytes. A pin that unpacks to more has its
/// older windows downsampled for the answer, as the recorder does.
const UNPACKED_BYTES_MAX: usize = 128 << 20;

/// Tolerance at the ends of ranges, which are shown to the millisecond. Unit: nanoseconds.
const SLACK_NS: i64 = 1_000_000;

/// Why a pin gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// No such pin, or none of its parts.
    #[error("failed to find pin `{0}`: it does not exist, or has no capture")]
    Unknown(u64),
    /// Its file.
    #[error("failed to read pin `{id}`")]
    Read {
        /// The pin.
        id: u64,
        /// Why.
        source: io::Error,
    },
    /// A window of its file.
    #[error("failed to read pin `{id}`")]
    Decode {
        /// The pin.
        id: u64,
        /// Why.
        source: DecodeError,
    },
    /// Its capture.
    #[error("failed to read the capture of pin `{id}`")]
    Assemble {
        /// The pin.
        id: u64,
        /// Why.
        source: AssembleError,
    },
    /// The question.
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl Pins {
    /// The answer from the newest pin that contains all of the range; `None` if there is none.
    /// Unit: nanoseconds since the Unix epoch. `info.start_unix_ns` of the profile is set.
    ///
    /// # Errors
    /// When its file cannot be read, or the one who asks has gone.
    pub fn within(
        &self,
        range: (i64, i64),
        asked: RecorderQuery<'_>,
        cancel: &AtomicBool,
    ) -> Result<Option<RecorderAnswer>, PinError> {
        self.ask(range, asked, cancel, |(start, end)| {
            start - SLACK_NS <= range.0 && range.1 <= end + SLACK_NS
        })
    }

    /// As [`Pins::within`], of the newest pin that overlaps the range.
    ///
    /// # Errors
    /// As there.
    pub fn overlapping(
        &self,
        range: (i64, i64),
        asked: RecorderQuery<'_>,
        cancel: &AtomicBool,
    ) -> Result<Option<RecorderAnswer>, PinError> {
        self.ask(range, asked, cancel, |(start, end)| {
            start < range.1 && range.0 < end
        })
    }

    fn ask(
        &self,
        (from, to): (i64, i64),
        asked: RecorderQuery<'_>,
        cancel: &AtomicBool,
        fits: impl Fn((i64, i64)) -> bool,
    ) -> Result<Option<RecorderAnswer>, PinError> {
        let found = {
            let list = lock(&self.list);
            let covers = |entry: &&Entry| {
                let range = entry.pin.range.unwrap_or_default();
                fits((range.start_unix_ns, range.end_unix_ns)) && entry.bytes() > 0
            };
            list.iter().rev().find(covers).cloned()
        };
        let Some(entry) = found else {
            return Ok(None);
        };
        self.answered(&entry, (from, to), asked, cancel).map(Some)
    }

    /// All of a pin: every sample with all its labels, and its time.
    pub(super) fn whole(&self, id: u64, cancel: &AtomicBool) -> Result<Profile, PinError> {
        let found = {
            let list = lock(&self.list);
            list.iter().find(|entry| entry.pin.id == id).cloned()
        };
        let entry = found.ok_or(PinError::Unknown(id))?;
        let range = entry.pin.range.unwrap_or_default();
        let asked = RecorderQuery {
            query: &Query::default(),
            times: true,
            withhold: Withholding::nothing(),
        };
        let wall = (range.start_unix_ns, range.end_unix_ns);
        Ok(self.answered(&entry, wall, asked, cancel)?.profile)
    }

    fn answered(
        &self,
        entry: &Entry,
        (from, to): (i64, i64),
        asked: RecorderQuery<'_>,
        cancel: &AtomicBool,
    ) -> Result<RecorderAnswer, PinError> {
        let _one = lock(&self.unpacking);
        let recorder = RwLock::new(self.unpacked(entry)?);
        let time = |unix: i64| MonotonicTime(u64::try_from(unix).unwrap_or(0));
        let span = WindowRange::Time(time(from), time(to));
        let mut answer = query(&recorder, span, asked, cancel)?;
        answer.date(answer.covered.start, |at| at.0 as i64);
        Ok(answer)
    }

    /// A recorder with the windows of a pin; its monotonic clock is wall time.
    fn unpacked(&self, entry: &Entry) -> Result<Recorder, PinError> {
        let id = entry.pin.id;
        let read = |source| PinError::Read { id, source };
        let mut on_disk = None;
        if entry.file_bytes > 0 {
            let disk = self.disk.get().ok_or(PinError::Unknown(id))?;
            on_disk = Some(disk.windows(id, entry.file_bytes).map_err(read)?);
        }
        let waiting = entry.waiting.iter().map(|chunk| record::unpack(chunk));
        let mut recorder = Recorder::new(RecorderOptions {
            retention: Duration::MAX,
            budget_bytes: UNPACKED_BYTES_MAX,
            window: Duration::from_secs(3600),
            times_bytes: UNPACKED_BYTES_MAX,
            window_share: 1,
            cpu_by: None,
        });
        let mut tables = Tables::default();
        let mut bytes = 0;
        for record in on_disk.into_iter().flatten().chain(waiting) {
            let (head, payload) = record.map_err(read)?;
            if head.fresh {
                tables = Tables::default();
            }
            bytes += payload.len();
            if bytes > READ_BYTES_MAX {
                return Err(read(damaged("it unpacks to more than the limit for a pin")));
            }
            let decode = |source| PinError::Decode { id, source };
            tables.take(&payload).map_err(decode)?;
            let window = tables.window(&payload).map_err(decode)?;
            let facts = &window.facts;
            let start = facts.start();
            let times = window.times.unwrap_or_default();
            recorder.set_event(&facts.event, &facts.unit);
            let mut remap = Remap::default();
            let dict = recorder.dict_mut();
            let row = |(key, value): &Row| {
                let key = SampleKey {
                    labels: remap.label_set(&tables.dict, dict, key.labels),
                    stack: remap.stack(&tables.dict, dict, key.stack),
                    end: key.end,
                };
                (key, *value)
            };
            let mut rows: Vec<Row> = window.rows.iter().map(row).collect();
            let account = |account: &Account| Account {
                labels: remap.label_set(&tables.dict, dict, account.labels),
                ..*account
            };
            let accounts: Vec<Account> = window.accounts.iter().map(account).collect();
            recorder.add(WindowPart {
                pressure: None,
                start,
                end: start.plus(Duration::from_nanos(facts.duration_ns)),
                closes: true,
                period: facts.period,
                quality: facts.quality,
                rows: &mut rows,
                accounts: &accounts,
                timestamps: &times.timestamps,
                timestamps_refused: times.refused,
                timeless: 0,
            });
        }
        Ok(recorder)
    }

    /// The messages of what was captured with a pin.
    fn captured(&self, id: u64) -> Result<Vec<proto::wire::ProfileChunk>, PinError> {
        let (known, waiting) = {
            let list = lock(&self.list);
            let found = list.iter().find(|entry| entry.pin.id == id);
            let entry = found.ok_or(PinError::Unknown(id))?;
            (entry.capture_bytes, entry.waiting_capture.clone())
        };
        let messages = match (waiting, self.disk.get()) {
            (Some(waiting), _) => waiting.messages(),
            (None, Some(disk)) if known > 0 => disk.capture(id, known),
            _ => return Err(PinError::Unknown(id)),
        };
        messages.map_err(|source| PinError::Read { id, source })
    }

    /// The capture of a pin.
    ///
    /// # Errors
    /// When there is no such pin, nothing was captured, or it cannot be read.
    pub fn capture(&self, id: u64) -> Result<Profile, PinError> {
        let _one = lock(&self.unpacking);
        let messages = self.captured(id)?;
        let mut assembler = ProfileAssembler::new();
        let taken = messages
            .into_iter()
            .try_for_each(|message| assembler.push(message));
        let profile = taken.and_then(|()| assembler.finish());
        profile.map_err(|source| PinError::Assemble { id, source })
    }
}
