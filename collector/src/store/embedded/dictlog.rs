//! The log's own copy of a partition's dictionary, and the note that a partition was removed.
//!
//! Records of the log name entries of a dictionary, of which each record brings only what none
//! before it did. Before segments are cut from the log, what they brought is appended here: the log
//! can be replayed without the partition's file at any time, and each entry is written once more in
//! all, not once for each segment. The files lie next to the segments, by start of the partition
//! and generation:
//!
//! ```text
//! SECONDS-GENERATION.dict      entries of a partition that there is
//! SECONDS-GENERATION.removed   records of it that are still in the log are to be passed over
//! ```
//!
//! A generation is one set of ids: of a file, and of the one made in its place when it was
//! destroyed. One file becomes the other by being renamed, which needs no space on a full disk.

use super::codec::{Corrupt, Reader, SectionReader, SectionWriter};
use super::dict::Dict;
use super::dict_version::DictVersion;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Begin of every file: what it is, and the version of its format.
const MAGIC: [u8; 8] = *b"fpdict\0\x01";

/// Length and checksum before each part. Unit: bytes.
const HEAD_LEN: usize = 8;

/// Largest part that is read. Unit: bytes. A dictionary is bounded in memory by far less.
const PART_BYTES_MAX: usize = 1 << 30;

/// A set of ids: begin of the partition, since the Unix epoch in nanoseconds, and generation.
pub type Ids = (i64, u64);

/// Draws the number of a new generation.
pub fn new_generation() -> u64 {
    use std::hash::BuildHasher as _;
    // Seeded by the system: nothing but chance makes two equal.
    std::collections::hash_map::RandomState::new().hash_one(0u8)
}

fn name((start, generation): Ids, end: &str) -> String {
    let seconds = start.div_euclid(1_000_000_000);
    format!("{seconds}-{generation:016x}.{end}")
}

/// Which set of ids a file of this name is about; whether the partition was removed.
fn parse(name: &str) -> Option<(Ids, bool)> {
    let (stem, end) = name.rsplit_once('.')?;
    let removed = match end {
        "dict" => false,
        "removed" => true,
        _ => return None,
    };
    let (seconds, generation) = stem.rsplit_once('-')?;
    let start = seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?;
    let generation = u64::from_str_radix(generation, 16).ok()?;
    Some(((start, generation), removed))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Every set of ids that a file in `folder` is about, and whether its partition was removed.
pub fn list(folder: &Path) -> io::Result<Vec<(Ids, bool)>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(parse));
    }
    found.sort_unstable();
    Ok(found)
}

/// Makes it durable that a partition is removed: what the log still has of it is not replayed.
pub fn write_tombstone(folder: &Path, ids: Ids) -> io::Result<()> {
    let note = folder.join(name(ids, "removed"));
    match std::fs::rename(folder.join(name(ids, "dict")), &note) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => drop(File::create(&note)?),
        renamed => renamed?,
    }
    sync_folder(folder)?;
    // The note is its name; the entries are of no use any more.
    OpenOptions::new().write(true).open(&note)?.set_len(0)
}

/// Removes a note of which the log has no record left.
pub fn remove_tombstone(folder: &Path, ids: Ids) {
    // One that stays is found again at the next start.
    let _ = std::fs::remove_file(folder.join(name(ids, "removed")));
}

/// Removes a dictionary of a partition that is gone in another way.
pub fn remove(folder: &Path, ids: Ids) {
    let _ = std::fs::remove_file(folder.join(name(ids, "dict")));
}

/// See the module.
pub struct DictLog {
    path: PathBuf,
    version: DictVersion,
    /// Where whole parts end.
    bytes: u64,
}

impl DictLog {
    /// The file of a new set of ids.
    pub fn create(folder: &Path, ids: Ids) -> io::Result<DictLog> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(name(ids, "dict"));
        let mut file = File::create(&path)?;
        file.write_all(&MAGIC)?;
        file.sync_all()?;
        sync_folder(folder)?;
        Ok(DictLog {
            path,
            version: DictVersion::EMPTY,
            bytes: MAGIC.len() as u64,
        })
    }

    /// The file of known ids, with what of it is whole; an empty one when it is not there.
    pub fn open(folder: &Path, ids: Ids) -> DictLog {
        let path = folder.join(name(ids, "dict"));
        let bytes = std::fs::read(&path).unwrap_or_default();
        let (mut version, mut end) = (DictVersion::EMPTY, 0);
        each_part(&bytes, |to, _, at| {
            (version, end) = (to, at);
            Ok(())
        });
        DictLog {
            path,
            version,
            bytes: end,
        }
    }

    /// What it has.
    pub fn version(&self) -> DictVersion {
        self.version
    }

    /// What a dictionary has more, ready to be [written](DictLog::write); `None` when there is
    /// nothing.
    pub fn encode(&self, dict: &Dict) -> io::Result<Option<(DictVersion, Vec<u8>)>> {
        let to = dict.version();
        if self.version.includes(to) {
            return Ok(None);
        }
        let mut part = vec![0; HEAD_LEN];
        to.encode(&mut part);
        let mut entries = Vec::new();
        dict.encode_logged(self.version, to, &mut entries);
        SectionWriter::new()?.seal(&mut part, &entries)?;
        let len = u32::try_from(part.len() - HEAD_LEN)
            .map_err(|_| io::Error::other("a dictionary is too large to be kept"))?;
        part[..4].copy_from_slice(&len.to_le_bytes());
        let crc = crc32fast::hash(&part[HEAD_LEN..]);
        part[4..HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
        Ok(Some((to, part)))
    }

    /// Adds what was encoded last, durably.
    pub fn write(&mut self, (to, part): (DictVersion, Vec<u8>)) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        let file = file.open(&self.path)?;
        // What an earlier attempt left behind the last whole part goes first.
        file.set_len(self.bytes)?;
        if self.bytes < MAGIC.len() as u64 {
            file.write_all_at(&MAGIC, 0)?;
            self.bytes = MAGIC.len() as u64;
        }
        file.write_all_at(&part, self.bytes)?;
        file.sync_all()?;
        if let Some(folder) = self.path.parent() {
            sync_folder(folder)?;
        }
        self.bytes += part.len() as u64;
        self.version = to;
        Ok(())
    }

    /// Adds what it has to a dictionary; what is known there already changes nothing.
    pub fn load(&self, dict: &mut Dict) -> Result<(), Corrupt> {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let mut opener = SectionReader::new().map_err(|_| Corrupt("zstd got no memory"))?;
        let (mut raw, mut done) = (Vec::new(), Ok(()));
        each_part(&bytes, |_, sealed, _| {
            done = opener
                .open(&mut Reader::new(sealed), &mut raw)
                .and_then(|()| dict.apply_logged(&mut Reader::new(&raw)));
            done
        });
        done
    }
}

/// Reads the bytes of one file as a start does.
pub fn read_any(bytes: &[u8]) {
    let mut before = 0;
    each_part(bytes, |_, sealed, end| {
        assert!(end > before && end <= bytes.len() as u64 && sealed.len() <= bytes.len());
        before = end;
        Ok(())
    });
}

/// Complete parts in order: the version after it, sealed entries, and where it ends. Ends at what
/// is torn.
fn each_part(bytes: &[u8], mut part: impl FnMut(DictVersion, &[u8], u64) -> Result<(), Corrupt>) {
    let mut input = Reader::new(bytes);
    if input.decode_exact(MAGIC.len()) != Ok(&MAGIC[..]) {
        return;
    }
    let mut next = || -> Result<(), Corrupt> {
        let (len, crc) = (
            input.decode_fixed_u32()? as usize,
            input.decode_fixed_u32()?,
        );
        if len > PART_BYTES_MAX {
            return Err(Corrupt("a part is too large"));
        }
        let body = input.decode_exact(len)?;
        if crc32fast::hash(body) != crc {
            return Err(Corrupt("a checksum is wrong"));
        }
        let mut body = Reader::new(body);
        let version = DictVersion::decode(&mut body)?;
        let end = bytes.len() - input.rest().len();
        part(version, body.rest(), end as u64)
    };
    while next().is_ok() {}
}

/// Size of all files. Unit: bytes.
pub fn bytes(folder: &Path) -> u64 {
    let all = list(folder).unwrap_or_default();
    let sizes = all.into_iter().filter_map(|(ids, removed)| {
        let end = if removed { "removed" } else { "dict" };
        std::fs::metadata(folder.join(name(ids, end))).ok()
    });
    sizes.map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{HostKey, LabelSet};

    const IDS: Ids = (-7_000_000_000, 0xab);

    fn append(log: &mut DictLog, dict: &Dict) {
        let part = log.encode(dict).unwrap().unwrap();
        log.write(part).unwrap();
        assert!(log.encode(dict).unwrap().is_none());
    }

    fn grow(dict: &mut Dict, at: u32) {
        dict.host(&HostKey {
            host_id: format!("host {at}"),
            boot_id: [1; 16],
        });
        dict.labels(&LabelSet::new([("unit".to_owned(), format!("u{at}"))]));
        let other = dict.other_stack();
        dict.leaf(other, profile::StackEnd::Complete);
    }

    #[test]
    fn what_is_appended_is_loaded_whatever_is_torn_off() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = DictLog::create(folder.path(), IDS).unwrap();
        let (mut dict, mut ends) = (Dict::new(&[], true), vec![(DictVersion::EMPTY, 0)]);
        for at in 0..3 {
            grow(&mut dict, at);
            append(&mut log, &dict);
            ends.push((dict.version(), log.bytes));
        }
        let bytes = std::fs::read(&log.path).unwrap();
        for len in (8..=bytes.len()).rev() {
            std::fs::write(&log.path, &bytes[..len]).unwrap();
            let whole = ends.iter().rfind(|(_, end)| *end <= len as u64).unwrap();
            let opened = DictLog::open(folder.path(), IDS);
            assert_eq!((opened.version(), opened.bytes), *whole);
            let mut loaded = Dict::new(&[], true);
            opened.load(&mut loaded).unwrap();
            assert_eq!(loaded.version(), whole.0);
        }
        // What was torn off is appended again.
        let mut opened = DictLog::open(folder.path(), IDS);
        append(&mut opened, &dict);
        let mut loaded = Dict::new(&[], true);
        DictLog::open(folder.path(), IDS).load(&mut loaded).unwrap();
        assert_eq!(loaded.version(), dict.version());
        assert_eq!(loaded.other_stack(), dict.other_stack());
        assert_eq!(loaded.tables.content_ids(), dict.tables.content_ids());
    }

    #[test]
    fn a_partition_that_was_removed_is_noted_with_or_without_its_dictionary() {
        let folder = tempfile::tempdir().unwrap();
        let other = (3_000_000_000, u64::MAX);
        DictLog::create(folder.path(), IDS).unwrap();
        assert_eq!(list(folder.path()).unwrap(), [(IDS, false)]);
        write_tombstone(folder.path(), IDS).unwrap();
        write_tombstone(folder.path(), other).unwrap();
        assert_eq!(list(folder.path()).unwrap(), [(IDS, true), (other, true)]);
        assert_eq!(bytes(folder.path()), 0);
        remove_tombstone(folder.path(), other);
        assert_eq!(list(folder.path()).unwrap(), [(IDS, true)]);
    }

    #[test]
    fn any_bytes_are_read_or_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name(IDS, "dict"));
        for bytes in [
            &b""[..],
            b"fpdict",
            b"fpdict\0\x01\xff\xff\xff\xff\0\0\0\0x",
        ] {
            std::fs::write(&path, bytes).unwrap();
            let log = DictLog::open(folder.path(), IDS);
            assert_eq!(log.version(), DictVersion::EMPTY);
            assert_eq!(log.load(&mut Dict::new(&[], true)), Ok(()));
        }
    }
}
