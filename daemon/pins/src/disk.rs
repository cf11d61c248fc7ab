//! The files of pins: a segment for each pin, a segment for its capture, and a note of which
//! collector has a copy.
//!
//! A pin's segment (see [`segment`]) has a description of the pin in its header, and the pin's
//! windows with their times. Tables continue from record to record until one starts from scratch.
//! The capture's segment has the messages of a profile, in order, and appears complete.

use super::{Chunk, Entry, UploadRecord};
use host::private_dir::{DirError, options};
use prost::Message;
use proto::agent as wire;
use proto::wire::ProfileChunk;
use segment::dir::SegmentDir;
use segment::file::{Kind, ReadError, Records, Tail};
use segment::record;
use segment::window::WindowHeader;
use std::io::{self, Read};
use std::path::Path;

/// Segments of pins. Version 2: the records that the spool has too.
const PIN: Kind = Kind {
    magic: *b"FPPIN\0\0",
    version: 2,
    extension: "pin",
};

/// Segments of what was captured with pins.
const CAPTURE: Kind = Kind {
    magic: *b"FPPINC\0",
    version: 2,
    extension: "capture",
};

/// End of the name of the note which collector has a pin.
const UPLOADED: &str = "brought";

/// Longest note of what a collector said. Unit: bytes.
const NOTE_BYTES_MAX: u64 = 256;

/// The messages of a capture's profile, as they are kept.
#[derive(Debug, Default, PartialEq)]
pub struct Evidence {
    messages: Vec<Vec<u8>>,
    bytes: u64,
}

impl Evidence {
    /// Takes the next message.
    pub fn push(&mut self, chunk: &ProfileChunk) {
        let message = chunk.encode_to_vec();
        self.bytes += message.len() as u64;
        self.messages.push(message);
    }

    /// Bytes so far; packed on disk they are fewer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The messages again.
    pub(super) fn messages(&self) -> io::Result<Vec<ProfileChunk>> {
        self.messages.iter().map(|bytes| message(bytes)).collect()
    }
}

fn message(bytes: &[u8]) -> io::Result<ProfileChunk> {
    ProfileChunk::decode(bytes).map_err(|_| damaged("a message is damaged"))
}

pub(super) fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The directory.
#[derive(Debug)]
pub(super) struct Disk {
    dir: SegmentDir,
}

impl Disk {
    /// Opens the directory, makes it where it is missing, and locks it.
    pub fn open(path: &Path) -> Result<Disk, DirError> {
        let dir = SegmentDir::open(path, "directory of pins")?;
        Ok(Disk { dir })
    }

    /// Records which collector has a pin: a checksum, a byte that says whether the capture is
    /// included, and the collector's address.
    pub fn note(&self, id: u64, uploaded: &UploadRecord) -> io::Result<()> {
        let flags = u8::from(uploaded.with_capture);
        let said = [&[flags], uploaded.to.as_bytes()].concat();
        let bytes = [&crc32fast::hash(&said).to_le_bytes(), &said[..]].concat();
        self.dir
            .replace(&self.dir.path(id, UPLOADED), &bytes)
            .map(drop)
    }

    /// The note; none if it makes no sense, so that the pin is uploaded once more.
    fn uploaded(&self, id: u64) -> Option<UploadRecord> {
        let path = self.dir.path(id, UPLOADED);
        let file = options().read(true).open(path).ok()?;
        let mut bytes = Vec::new();
        file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let (sum, said) = bytes.split_first_chunk::<4>()?;
        let (&flags, to) = said.split_first()?;
        let sound = u32::from_le_bytes(*sum) == crc32fast::hash(said) && flags <= 1;
        let to = std::str::from_utf8(to).ok()?;
        sound.then(|| UploadRecord {
            to: to.to_owned(),
            with_capture: flags == 1,
            refused: false,
        })
    }

    /// The newest pins there are, at most so many, and how many files could not be read to their
    /// end. What is beyond, and what makes no sense, is removed; pins of another version, and those
    /// the disk does not give, are set aside.
    pub fn scan(&self, most: usize) -> (Vec<Entry>, u64) {
        let ids = |extension| self.dir.ids(extension).unwrap_or_default();
        let pins = ids(PIN.extension);
        let (beyond, kept) = pins.split_at(pins.len().saturating_sub(most));
        beyond.iter().for_each(|&id| self.remove(id));
        for id in [CAPTURE.extension, UPLOADED].map(ids).concat() {
            if !pins.contains(&id) {
                self.remove(id);
            }
        }
        let mut bad = 0;
        let mut found = Vec::new();
        for &id in kept {
            match self.entry(id) {
                Ok((entry, complete)) => {
                    bad += u64::from(!complete);
                    found.push(entry);
                }
                Err(ReadError::Header) => {
                    bad += 1;
                    tracing::warn!(pin = id, "removed a damaged pin");
                    self.remove(id);
                }
                Err(error) => {
                    bad += 1;
                    tracing::warn!(pin = id, %error, "failed to read a pin: it was set aside");
                    self.quarantine(id);
                }
            }
        }
        (found, bad)
    }

    fn quarantine(&self, id: u64) {
        let aside = self.dir.quarantine(&PIN, id);
        if let Err(error) = aside {
            tracing::warn!(pin = id, %error, "failed to set a pin aside");
            return;
        }
        // There may be none.
        let _ = self.dir.quarantine(&CAPTURE, id);
        self.dir.remove(id, &[UPLOADED]);
    }

    /// The description of a pin in its file, and whether the file was complete.
    fn entry(&self, id: u64) -> Result<(Entry, bool), ReadError> {
        let found = self.dir.scan(&PIN, id, true)?;
        let pin = wire::Pin::decode(&found.facts[..]).map_err(|_| ReadError::Header)?;
        let headers = || found.records.iter().map(|record| record.header);
        let start = headers().map(|header| header.start_unix_ns).min();
        let end = headers().map(|header| header.end_unix_ns).max();
        let covered = start.zip(end);
        let covered = covered.map(|(start_unix_ns, end_unix_ns)| wire::TimeRange {
            start_unix_ns,
            end_unix_ns,
        });
        let capture = self.dir.path(id, CAPTURE.extension);
        let capture_bytes = std::fs::symlink_metadata(capture).map_or(0, |meta| meta.len());
        let entry = Entry {
            pin: wire::Pin {
                id,
                // Numbers of captures start again with the daemon; what was captured is in the
                // file.
                capture_id: 0,
                range: covered.or(pin.range),
                ..pin
            },
            file_bytes: found.bytes,
            capture_bytes,
            uploaded: self.uploaded(id),
            ..Entry::default()
        };
        Ok((entry, found.tail == Tail::Complete))
    }

    /// Makes the file of a pin with its first chunks; its length.
    pub fn create(&self, pin: &wire::Pin, chunks: &[Chunk]) -> io::Result<u64> {
        let facts = pin.encode_to_vec();
        let file = self.dir.create(&PIN, pin.id, &facts, chunks)?;
        Ok(file.bytes())
    }

    /// Appends chunks behind the `len` bytes that are complete; its new length. After an error the
    /// next try starts behind the same bytes.
    pub fn append(&self, id: u64, len: u64, chunks: &[Chunk]) -> io::Result<u64> {
        let mut file = self.dir.reopen(&PIN, id, len)?;
        let (_, failed) = file.append_all(chunks);
        failed.map_or(Ok(file.bytes()), Err)
    }

    /// Makes the file of a pin's capture; its length.
    pub fn keep_capture(&self, id: u64, evidence: &Evidence) -> io::Result<u64> {
        let header = WindowHeader::default();
        let packed = evidence.messages.iter();
        let packed = packed.map(|message| record::pack(message, &header, false));
        let records = packed.collect::<io::Result<Vec<_>>>()?;
        let file = self.dir.create(&CAPTURE, id, &[], &records)?;
        Ok(file.bytes())
    }

    /// Removes a pin's files. One that is gone is removed.
    pub fn remove(&self, id: u64) {
        self.dir
            .remove(id, &[UPLOADED, CAPTURE.extension, PIN.extension]);
    }

    /// The windows of a pin's file, of which `len` bytes are complete.
    pub fn windows(&self, id: u64, len: u64) -> io::Result<Records> {
        Ok(self.dir.records(&PIN, id, len)?)
    }

    /// The messages of a pin's capture, at most so many bytes of its file.
    pub fn capture(&self, id: u64, most: u64) -> io::Result<Vec<ProfileChunk>> {
        let mut bytes = 0;
        let records = self.dir.records(&CAPTURE, id, most)?;
        let messages = records.map(|record| {
            let (_, payload) = record?;
            bytes += payload.len();
            match bytes <= READ_BYTES_MAX {
                true => message(&payload),
                false => Err(damaged("it unpacks to more than the limit for a pin")),
            }
        });
        messages.collect()
    }
}

/// Most bytes that the windows of a pin may have, unpacked, and what was captured with it. What has
/// more was not written by this daemon.
pub(super) const READ_BYTES_MAX: usize = 1 << 30;
