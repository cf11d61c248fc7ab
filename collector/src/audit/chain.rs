//! The files of the log: `audit-NUMBER.jsonl`, named by the number of their first line, and
//! `head.json`, which records what the last line was.
//!
//! A line is either on disk or was cut off again. A crash in the middle of a line leaves a part of
//! it, which was never acknowledged: the next start cuts it off and records that in a line of its
//! own.
//!
//! Before each line the file is compared with what was written. If it was replaced, renamed or
//! changed, a line of its own says so first, and the log continues in a file that exists.

use super::Event;
use crate::durable::replace;
use crate::time::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Size at which a file ends and another starts. Unit: bytes.
pub const FILE_BYTES_MAX: u64 = 8 << 20;

/// Longest line. Unit: bytes. Longer ones lose their details.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Placeholder for the hash of the line before the first.
pub(super) const START: &str = "0";

const HEAD: &str = "head.json";

/// The log as it is written.
pub struct Chain {
    dir: PathBuf,
    bytes_max: u64,
    open: Option<Tail>,
    /// What is to be said of how the files were found.
    found: Vec<Event>,
    /// How often they were found damaged.
    damages: u64,
}

/// Its end.
struct Tail {
    file: File,
    path: PathBuf,
    /// How long the file is, counting complete lines only.
    bytes: u64,
    head: Head,
}

/// The last line, and the first stored one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) first: u64,
    pub(super) seq: u64,
    pub(super) hash: String,
}

/// A line, as it is written.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    time: &'a str,
    who: &'a str,
    role: &'a str,
    peer: &'a str,
    action: &'a str,
    what: &'a Map<String, Value>,
    outcome: &'a str,
    prev: &'a str,
}

/// The link of a line to the previous one.
#[derive(Deserialize)]
pub(super) struct Link {
    pub(super) seq: u64,
    #[serde(default)]
    pub(super) time: String,
    pub(super) prev: String,
}

/// The files as they are at one moment.
pub struct Snapshot {
    /// Each with how much of it counts.
    pub(super) files: Vec<(PathBuf, u64)>,
    pub(super) head: Head,
    /// What else is wrong with them, a sentence each.
    pub(super) problems: Vec<String>,
}

impl Snapshot {
    /// All files of a directory, as nobody writes to them. Without `head.json`, which may not have
    /// come along, nothing says where they begin and end.
    ///
    /// # Errors
    /// When there are none, or they cannot be read.
    pub fn of(dir: &Path) -> io::Result<Snapshot> {
        let mut files = Vec::new();
        let all = listed(dir)?;
        let Some((first, _)) = all.first() else {
            let why = "it has no file `audit-NUMBER.jsonl`";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        };
        let unknown = Head {
            first: *first,
            seq: 0,
            hash: START.to_owned(),
        };
        let head = match std::fs::read(dir.join(HEAD)) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => unknown,
            Err(error) => return Err(error),
        };
        for (_, path) in all {
            let bytes = std::fs::metadata(&path)?.len();
            files.push((path, bytes));
        }
        Ok(Snapshot {
            files,
            head,
            problems: Vec::new(),
        })
    }
}

pub(super) fn hash(line: &[u8]) -> String {
    blake3::hash(line).to_hex().to_string()
}

impl Chain {
    /// In this directory, which is made when it is needed.
    pub fn new(dir: &Path, bytes_max: u64) -> Chain {
        Chain {
            dir: dir.to_owned(),
            bytes_max,
            open: None,
            found: Vec::new(),
            damages: 0,
        }
    }

    /// How often the files were found damaged so far.
    pub(super) fn damages(&self) -> u64 {
        self.damages
    }

    /// Puts lines on the disk: all of them, or none.
    ///
    /// # Errors
    /// When the disk does not take them.
    pub(super) fn append(&mut self, events: &[&Event], now_unix_ns: i64) -> io::Result<()> {
        let time = rfc3339(now_unix_ns);
        if let Some(tail) = &self.open
            && let Some(what) = tail.changed()
        {
            let known = tail.head.clone();
            let (tail, found) = Tail::open(&self.dir, Some(known))?;
            self.open = Some(tail);
            self.find(vec![damage(what)]);
            self.find(found);
        }
        self.open(&time)?;
        self.write(events, &time)
    }

    pub(super) fn find(&mut self, found: Vec<Event>) {
        let damages = found.iter().filter(|event| event.action == DAMAGED);
        self.damages += damages.count() as u64;
        self.found.extend(found);
    }

    fn open(&mut self, time: &str) -> io::Result<()> {
        if self.open.is_none() {
            let (tail, found) = Tail::open(&self.dir, None)?;
            self.open = Some(tail);
            self.find(found);
        }
        if self.found.is_empty() {
            return Ok(());
        }
        // Kept until it is on the disk.
        let found = std::mem::take(&mut self.found);
        let written = self.write(&found.iter().collect::<Vec<_>>(), time);
        if written.is_err() {
            self.found = found;
        }
        written
    }

    fn write(&mut self, events: &[&Event], time: &str) -> io::Result<()> {
        let Some(tail) = &mut self.open else {
            return Err(io::Error::other("it is not open"));
        };
        let written = tail.write(events, time);
        if written.is_err() {
            // What is there of it is no line.
            let cut = tail.file.set_len(tail.bytes);
            if cut.and_then(|()| tail.file.sync_data()).is_err() {
                self.open = None;
            }
            return written;
        }
        if tail.bytes >= FILE_BYTES_MAX {
            // The lines are there, whatever comes of this: it is tried again with the next.
            if let Err(error) = tail.rotate(&self.dir, self.bytes_max) {
                tracing::warn!("failed to start another file of the audit log: {error}");
            }
        }
        tail.note_head(&self.dir);
        Ok(())
    }

    /// The files as they are now.
    pub(super) fn snapshot(&mut self, now_unix_ns: i64) -> io::Result<Snapshot> {
        self.open(&rfc3339(now_unix_ns))?;
        let Some(tail) = &self.open else {
            return Err(io::Error::other("it is not open"));
        };
        let problems = tail.changed().into_iter().collect();
        let mut files = Vec::new();
        for (_, path) in listed(&self.dir)? {
            let bytes = match path == tail.path {
                true => tail.bytes,
                false => std::fs::metadata(&path)?.len(),
            };
            files.push((path, bytes));
        }
        Ok(Snapshot {
            files,
            head: tail.head.clone(),
            problems,
        })
    }
}

impl Tail {
    /// What somebody else did to the file; `None`: nothing. What cannot be asked about is not told:
    /// the next line fails to be written.
    fn changed(&self) -> Option<String> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let own = self.file.metadata().ok()?;
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Some(format!("`{name}` was renamed or removed"));
            }
            Ok(there) if (there.dev(), there.ino()) != (own.dev(), own.ino()) => {
                return Some(format!("`{name}` was replaced by another file"));
            }
            _ => {}
        }
        let (is, was) = (own.len(), self.bytes);
        match is.cmp(&was) {
            Ordering::Equal => None,
            Ordering::Greater => Some(format!(
                "`{name}` has {} bytes behind its last line, which the collector did not write",
                is - was
            )),
            Ordering::Less => Some(format!("`{name}` lacks {} bytes at its end", was - is)),
        }
    }

    /// Opens the newest file. Returns what is to be said of how it was found. `known` is what the
    /// last line was, where this collector wrote it; otherwise that is looked up.
    fn open(dir: &Path, known: Option<Head>) -> io::Result<(Tail, Vec<Event>)> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir)?;
        let noted: Option<Head> = known.clone().or_else(|| {
            let text = std::fs::read(dir.join(HEAD)).ok()?;
            serde_json::from_slice(&text).ok()
        });
        let files = listed(dir)?;
        let mut found = Vec::new();
        let Some((first, path)) = files.last().cloned() else {
            let seq = noted.as_ref().map_or(0, |head| head.seq);
            let head = Head {
                // Noted: that all is missing is no age.
                first: noted.as_ref().map_or(1, |head| head.first),
                seq,
                hash: noted.map_or_else(|| START.to_owned(), |head| head.hash),
            };
            let path = dir.join(name(seq + 1));
            let file = create(&path, dir)?;
            if seq > 0 {
                found.push(damage(format!("all lines up to {seq} are missing")));
            }
            let tail = Tail {
                file,
                path,
                bytes: 0,
                head,
            };
            return Ok((tail, found));
        };
        let read = read_last(&path)?;
        let file = OpenOptions::new().append(true).open(&path)?;
        if read.rest > 0 {
            file.set_len(read.bytes)?;
            file.sync_data()?;
            let text = format!("{} bytes of an unfinished line", read.rest);
            found.push(Event::by("collector", String::new(), "audit-cut").with("cut", text));
        }
        let oldest = files.first().map_or(first, |(first, _)| *first);
        let mut head = Head {
            first: noted.as_ref().map_or(oldest, |head| head.first),
            // A file without a line is named by the number of the line that is to come.
            seq: read.seq.unwrap_or(first.saturating_sub(1)),
            hash: match read.hash {
                Some(hash) => hash,
                None => noted
                    .as_ref()
                    .filter(|head| head.seq + 1 == first)
                    .map_or_else(|| START.to_owned(), |head| head.hash.clone()),
            },
        };
        match noted {
            Some(noted) if noted.seq > head.seq => {
                let (from, to) = (head.seq + 1, noted.seq);
                found.push(damage(format!("lines {from} to {to} are missing")));
                // Their numbers are not given again: who verifies finds the gap.
                head.seq = noted.seq;
            }
            Some(noted) if noted.seq == head.seq && noted.hash != head.hash => {
                found.push(damage(format!("line {} was changed", noted.seq)));
                // The next line names what was written: who verifies finds the difference.
                head.hash = noted.hash;
            }
            _ => {}
        }
        // Lines that somebody added are none: who verifies finds two with one number.
        let head = known.unwrap_or(head);
        let tail = Tail {
            file,
            path,
            bytes: read.bytes,
            head,
        };
        Ok((tail, found))
    }

    fn write(&mut self, events: &[&Event], time: &str) -> io::Result<()> {
        let mut head = self.head.clone();
        let mut bytes = Vec::new();
        let none = Map::new();
        for event in events {
            let mut line = Line {
                seq: head.seq + 1,
                time,
                who: &event.who,
                role: event.role,
                peer: &event.peer,
                action: event.action,
                what: &event.what,
                outcome: &event.outcome,
                prev: &head.hash,
            };
            let mut text = serde_json::to_vec(&line)?;
            if text.len() > LINE_BYTES_MAX {
                line.what = &none;
                text = serde_json::to_vec(&line)?;
            }
            head.hash = hash(&text);
            head.seq += 1;
            bytes.extend_from_slice(&text);
            bytes.push(b'\n');
        }
        self.file.write_all(&bytes)?;
        self.file.sync_data()?;
        self.bytes += bytes.len() as u64;
        self.head = head;
        Ok(())
    }

    /// Starts another file, and removes the oldest ones beyond the bound.
    fn rotate(&mut self, dir: &Path, bytes_max: u64) -> io::Result<()> {
        let path = dir.join(name(self.head.seq + 1));
        self.file = create(&path, dir)?;
        (self.path, self.bytes) = (path, 0);
        let files = listed(dir)?;
        let mut sizes = Vec::new();
        for (_, path) in &files {
            sizes.push(std::fs::metadata(path)?.len());
        }
        let mut all: u64 = sizes.iter().sum();
        for (at, bytes) in sizes.iter().enumerate() {
            let Some((next, _)) = files.get(at + 1) else {
                break;
            };
            // What the file that was started takes at its end counts already.
            if all + FILE_BYTES_MAX <= bytes_max {
                break;
            }
            self.head.first = *next;
            // Noted before: a first line that is missing without a note was taken away.
            self.note_head(dir);
            std::fs::remove_file(&files[at].1)?;
            all -= bytes;
        }
        Ok(())
    }

    /// Notes what the last line is. After a power cut it may be an earlier one, which does no harm.
    fn note_head(&self, dir: &Path) {
        let Ok(text) = serde_json::to_vec(&self.head) else {
            return;
        };
        if let Err(error) = replace(&dir.join(HEAD), &text, 0o600) {
            tracing::debug!(%error, "failed to note the last line of the audit log");
        }
    }
}

/// The action of a line that says so.
const DAMAGED: &str = "audit-damaged";

fn damage(text: String) -> Event {
    tracing::error!("the audit log is damaged: {text}");
    Event::by("collector", String::new(), DAMAGED).with("found", text)
}

fn name(first: u64) -> String {
    format!("audit-{first:012}.jsonl")
}

fn create(path: &Path, dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    File::open(dir)?.sync_all()?;
    Ok(file)
}

/// The files of the log, oldest first, each with the number of its first line.
pub(super) fn listed(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name
            .and_then(|name| name.strip_prefix("audit-")?.strip_suffix(".jsonl"))
            .and_then(|number| number.parse().ok());
        if let Some(first) = first {
            files.push((first, path));
        }
    }
    files.sort();
    Ok(files)
}

/// The last complete line of a file.
#[derive(Default)]
struct Last {
    /// Bytes of complete lines, and of what comes after them.
    bytes: u64,
    rest: u64,
    seq: Option<u64>,
    hash: Option<String>,
}

fn read_last(path: &Path) -> io::Result<Last> {
    let mut last = Last::default();
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(last);
        }
        if line.pop() != Some(b'\n') {
            last.rest = read as u64;
            return Ok(last);
        }
        last.bytes += read as u64;
        last.hash = Some(hash(&line));
        last.seq = match serde_json::from_slice::<Link>(&line) {
            Ok(link) => Some(link.seq),
            // Not one of ours; verification reports it.
            Err(_) => Some(last.seq.unwrap_or(0) + 1),
        };
    }
}

/// Hands each line of a file to `take` until it has enough; a line that is too long comes cut.
pub(super) fn each_line(
    path: &Path,
    bytes: u64,
    take: &mut dyn FnMut(&[u8], bool) -> bool,
) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?.take(bytes));
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut within = (&mut reader).take(LINE_BYTES_MAX as u64 + 1);
        if within.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let whole = line.pop_if(|last| *last == b'\n').is_some();
        if !take(&line, whole) {
            return Ok(());
        }
    }
}

/// See [`super::Audit::lines`].
pub(super) fn lines(
    snapshot: &Snapshot,
    since_unix_ns: i64,
    limit: usize,
    take: &mut dyn FnMut(String) -> bool,
) -> io::Result<()> {
    let since = OffsetDateTime::from_unix_timestamp_nanos(since_unix_ns.into())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let asked = |line: &[u8]| match serde_json::from_slice::<Link>(line) {
        Ok(link) => OffsetDateTime::parse(&link.time, &Rfc3339).is_ok_and(|time| time >= since),
        Err(_) => false,
    };
    let mut skip = 0;
    if limit > 0 {
        let mut all = 0_usize;
        for (path, bytes) in &snapshot.files {
            each_line(path, *bytes, &mut |line, _| {
                all += usize::from(asked(line));
                true
            })?;
        }
        skip = all.saturating_sub(limit);
    }
    for (path, bytes) in &snapshot.files {
        let mut more = true;
        each_line(path, *bytes, &mut |line, _| {
            if !asked(line) {
                return true;
            }
            if skip > 0 {
                skip -= 1;
                return true;
            }
            more = take(String::from_utf8_lossy(line).into_owned());
            more
        })?;
        if !more {
            break;
        }
    }
    Ok(())
}
