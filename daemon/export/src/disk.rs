//! The spool's files: segments of windows, their acknowledgements, the lock.
//!
//! A segment (see [`segment`]) is one generation of a dictionary; its header says which host and
//! boot its windows belong to. Acknowledgements are in a separate file, eight bytes each. A lost
//! acknowledgement only costs a repeated upload.

use super::gaps_file::GapsFile;
use super::identity::Identity;
use host::private_dir::{DirError, options};
use segment::dir::SegmentDir;
use segment::file::{FoundRecord, Kind, RECORDS_MAX, ReadError, SegmentFile, Tail};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Segments of the spool. Version 2: the records that pins have too.
const SEGMENT: Kind = Kind {
    magic: *b"FPSPOOL",
    version: 2,
    extension: "seg",
};

/// End of the name of a segment's acknowledgements.
const ACKS: &str = "ack";

/// The spool's directory, locked.
#[derive(Debug)]
pub struct Dir {
    dir: SegmentDir,
    gaps: Mutex<GapsFile>,
}

impl Dir {
    /// Opens it, makes it where it is missing.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn open(path: &Path) -> Result<Dir, DirError> {
        let dir = SegmentDir::open(path, "spool directory")?;
        Ok(Dir {
            gaps: Mutex::new(GapsFile::new(dir.base())),
            dir,
        })
    }

    /// Numbers of all segments, oldest first.
    pub fn segments(&self) -> io::Result<Vec<u64>> {
        self.dir.ids(SEGMENT.extension)
    }

    /// When a segment was last written to, according to the file system. Unit: nanoseconds since
    /// 1970.
    pub fn modified_unix_ns(&self, id: u64) -> Option<i64> {
        self.dir.modified_unix_ns(&SEGMENT, id)
    }

    /// Sets a segment that cannot be read aside, so that the next start does not count it again.
    ///
    /// # Errors
    /// When it stays where it is.
    pub fn quarantine(&self, id: u64) -> io::Result<()> {
        self.dir.quarantine(&SEGMENT, id)
    }

    fn ack_path(&self, id: u64) -> PathBuf {
        self.dir.path(id, ACKS)
    }

    /// Makes a segment.
    pub fn create(&self, id: u64, identity: &Identity) -> io::Result<SegmentFile> {
        // Notes of an older segment with this number would make new records look acknowledged.
        match std::fs::remove_file(self.ack_path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let none: [&[u8]; 0] = [];
        self.dir.create(&SEGMENT, id, &facts(identity), &none)
    }

    /// Opens a segment created by this run to append to it again, after `len` valid bytes.
    pub fn reopen(&self, id: u64, len: u64) -> io::Result<SegmentFile> {
        self.dir.reopen(&SEGMENT, id, len)
    }

    /// Opens a segment to read from.
    pub fn reader(&self, id: u64) -> io::Result<File> {
        self.dir.reader(&SEGMENT, id)
    }

    /// Removes a segment and its acknowledgements. A segment that is gone counts as removed.
    pub fn remove(&self, id: u64) {
        // The notes first: without them what is left is sent again, which is harmless; left alone
        // they would speak of a later segment with this number.
        self.dir.remove(id, &[ACKS, SEGMENT.extension]);
    }

    /// Notes that a record was acknowledged. The note is not synced: if it is lost, the record is
    /// sent again. For segments that are in memory only, or removed by now, it does nothing.
    pub fn ack(&self, id: u64, record: u32) -> io::Result<()> {
        if !self.dir.path(id, SEGMENT.extension).exists() {
            return Ok(());
        }
        let note = [record.to_le_bytes(), (!record).to_le_bytes()];
        let path = self.ack_path(id);
        let mut file = options().create(true).append(true).open(path)?;
        file.write_all(note.as_flattened())
    }

    fn acks(&self, id: u64) -> Vec<u32> {
        let mut bytes = Vec::new();
        let Ok(file) = options().read(true).open(self.ack_path(id)) else {
            return Vec::new();
        };
        // What cannot be read is sent again.
        let _ = file.take(RECORDS_MAX as u64 * 8).read_to_end(&mut bytes);
        let (words, _) = bytes.as_chunks::<4>();
        let (notes, _) = words.as_chunks::<2>();
        let note = |note: &[[u8; 4]; 2]| {
            let [record, check] = note.map(u32::from_le_bytes);
            (record == !check).then_some(record)
        };
        notes.iter().filter_map(note).collect()
    }

    /// The file of gaps. Whoever holds it writes what is true at that time: no text overtakes
    /// another.
    pub fn gaps(&self) -> MutexGuard<'_, GapsFile> {
        super::lock(&self.gaps)
    }

    /// Looks through a segment: headers only, and the last payload of the newest.
    ///
    /// An incomplete or invalid end of the newest segment was being written when the daemon or the
    /// machine died. In any other segment it is damage. The invalid end is cut off, and damage is
    /// reported once.
    ///
    /// # Errors
    /// When it is of another version, or the disk does not answer.
    pub fn scan(&self, id: u64, newest: bool) -> Result<Scanned, ReadError> {
        let unreadable = Scanned {
            damaged: !newest,
            ..Scanned::default()
        };
        let found = match self.dir.scan(&SEGMENT, id, newest) {
            Err(ReadError::Header) => return Ok(unreadable),
            found => found?,
        };
        let Some(identity) = identity(&found.facts) else {
            return Ok(unreadable);
        };
        let mut acked = vec![false; found.records.len()];
        for record in self.acks(id) {
            if let Some(acked) = acked.get_mut(record as usize) {
                *acked = true;
            }
        }
        Ok(Scanned {
            identity: Some(identity),
            records: found.records.into_iter().zip(acked).collect(),
            bytes: found.bytes,
            damaged: match found.tail {
                Tail::Complete => false,
                Tail::Torn => !newest,
                Tail::Damaged => true,
            },
        })
    }
}

/// What is in a segment.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Owner of the windows; `None` if not even that can be read.
    pub identity: Option<Identity>,
    /// Its records in order, and whether the collector has each.
    pub records: Vec<(FoundRecord, bool)>,
    /// Length of its file up to the end of the last of them.
    pub bytes: u64,
    /// Something after the last of them cannot be read.
    pub damaged: bool,
}

/// An identity as a segment's header has it: the boot, then the host.
fn facts(identity: &Identity) -> Vec<u8> {
    [&identity.boot_id[..], identity.host_id.as_bytes()].concat()
}

fn identity(facts: &[u8]) -> Option<Identity> {
    let (boot_id, host) = facts.split_first_chunk::<16>()?;
    Some(Identity {
        host_id: std::str::from_utf8(host).ok()?.to_owned(),
        boot_id: *boot_id,
    })
}
