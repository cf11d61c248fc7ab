//! The write-ahead log of one partition: a folder that is created with its first record and removed
//! with the partition.
//!
//! ```text
//! SECONDS/NUMBER.wal     windows that are not in the partition's file yet
//! SECONDS/NUMBER.dict    the dictionary once more, as far as segments that were cut had it
//! SECONDS.removed/       the partition is being removed: its file goes, then this
//! ```
//!
//! Records refer to entries of the dictionary, and each record adds only entries that no earlier
//! one added. Before segments are cut, their entries are appended to the copy. So the log can be
//! replayed without the partition's file at any time, and each entry is written once more in total,
//! not once per segment.
//!
//! A generation is one set of ids: that of a file, or of the file created in its place after it was
//! destroyed. Segments of another generation than the file's are not read: somebody has replaced
//! the file.

use super::codec::{Corrupt, Reader, SectionReader, SectionWriter};
use super::dict::Dict;
use super::dict_version::DictVersion;
use super::wal::{Batch, LogLocation, RECORD_BYTES_MAX, Wal, sync_folder};
use crate::sync::{lock, read};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, RwLock};

/// End of the name of a folder while its partition is being removed.
const REMOVED: &str = "removed";

/// Draws the number of a new generation.
pub fn new_generation() -> u64 {
    use std::hash::BuildHasher as _;
    // Seeded by the system: nothing but chance makes two equal.
    std::collections::hash_map::RandomState::new().hash_one(0u8)
}

/// Folder of the log of the partition that starts at `start`, among those of all.
pub fn folder(logs: &Path, start: i64) -> PathBuf {
    logs.join(start.div_euclid(1_000_000_000).to_string())
}

/// Starts of all partitions that a folder in `logs` is about, and whether each is being removed.
pub fn list(logs: &Path) -> io::Result<Vec<(i64, bool)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(logs)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(entry.file_name().to_str().and_then(parse));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn parse(name: &str) -> Option<(i64, bool)> {
    let (seconds, removed) = match name.split_once('.') {
        None => (name, false),
        Some((seconds, REMOVED)) => (seconds, true),
        Some(_) => return None,
    };
    let start = seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?;
    Some((start, removed))
}

/// Removes a folder with all that is in it, if it is there.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes it durable that a partition is being removed: from now on nothing of its log is replayed,
/// and a start completes the removal. Needs no space on a full disk.
pub fn start_removal(folder: &Path) -> io::Result<()> {
    let removed = removed_folder(folder);
    remove_folder(&removed)?;
    match std::fs::rename(folder, &removed) {
        // Without a log there is nothing to replay.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    folder.parent().map_or(Ok(()), sync_folder)
}

/// Ends a removal once the partition's file is gone.
pub fn end_removal(folder: &Path) -> io::Result<()> {
    remove_folder(&removed_folder(folder))
}

/// True when a removal was not ended.
pub fn is_being_removed(folder: &Path) -> bool {
    removed_folder(folder).exists()
}

fn removed_folder(folder: &Path) -> PathBuf {
    folder.with_extension(REMOVED)
}

/// The log of a generation in a folder.
fn place(folder: &Path, ending: &'static str, generation: u64) -> LogLocation {
    LogLocation {
        folder: folder.to_owned(),
        ending,
        generation,
    }
}

/// The place of the windows of a partition.
pub fn windows_place(folder: &Path, generation: u64) -> LogLocation {
    place(folder, "wal", generation)
}

/// Reads the bytes of one part of the copy of a dictionary as a start does.
pub fn read_any(payload: &[u8]) {
    let (mut input, mut raw) = (Reader::new(payload), Vec::new());
    if DictVersion::decode(&mut input).is_err() {
        return;
    }
    if let Ok(mut opener) = SectionReader::new()
        && opener.open(&mut input, &mut raw).is_ok()
    {
        let _ = Dict::new(&[], true).apply_logged(&mut Reader::new(&raw));
    }
}

/// The copy of a dictionary: a log with records of a version and sealed entries.
struct DictCopy {
    wal: Wal,
    version: DictVersion,
}

impl DictCopy {
    /// What of a copy is complete; an empty one where it cannot be read.
    fn open(place: LogLocation, mut part: impl FnMut(&[u8])) -> DictCopy {
        let mut version = DictVersion::EMPTY;
        let opened = Wal::open(place.clone(), |_, payload| {
            let mut input = Reader::new(payload);
            let decoded = DictVersion::decode(&mut input);
            if let Ok(to) = decoded {
                version = to;
                part(input.rest());
            }
            decoded.is_ok()
        });
        let (wal, found) = match opened {
            Ok(opened) => opened,
            // What was read so far is no base for what comes: the next part is complete again.
            Err(error) => {
                let wal = Wal::closed(place);
                let folder = wal.folder().display();
                tracing::warn!("rewriting the copy of a dictionary in `{folder}`: {error}");
                let version = DictVersion::EMPTY;
                return DictCopy { wal, version };
            }
        };
        let mut copy = DictCopy { wal, version };
        if found.records_lost > 0 || found.segments_unusable > 0 {
            copy.start_again("a part of it is missing");
        }
        copy
    }

    /// Forgets all of it: the next part has the complete dictionary.
    fn start_again(&mut self, reason: &str) {
        let folder = self.wal.folder().display();
        tracing::warn!("rewriting the copy of a dictionary in `{folder}`: {reason}");
        // What stays is found again at the next start, and is no harm: entries may come twice.
        let _ = self.wal.cut(u64::MAX);
        self.version = DictVersion::EMPTY;
    }

    /// Opens a copy and adds all that it has to a dictionary; what is known there already changes
    /// nothing.
    fn load(place: LogLocation, dict: &mut Dict) -> (DictCopy, Result<(), Corrupt>) {
        let (mut raw, mut done) = (Vec::new(), Ok(()));
        let mut opener = SectionReader::new().map_err(|_| Corrupt("zstd got no memory"));
        let copy = DictCopy::open(place, |sealed| {
            if done.is_err() {
                return;
            }
            done = opener.as_mut().map_err(|error| *error).and_then(|opener| {
                opener.open(&mut Reader::new(sealed), &mut raw)?;
                dict.apply_logged(&mut Reader::new(&raw))
            });
        });
        (copy, done)
    }

    /// What a dictionary has more, ready to be [appended](DictCopy::append).
    fn encode(&self, dict: &Dict) -> io::Result<(DictVersion, Vec<u8>)> {
        let to = dict.version();
        let (mut part, mut entries) = (Vec::new(), Vec::new());
        to.encode(&mut part);
        dict.encode_logged(self.version, to, &mut entries);
        SectionWriter::new()?.seal(&mut part, &entries)?;
        if part.len() > RECORD_BYTES_MAX {
            return Err(io::Error::other("a dictionary is too large to be kept"));
        }
        Ok((to, part))
    }

    /// Adds what was encoded last, durably.
    fn append(&mut self, (to, part): (DictVersion, Vec<u8>)) -> io::Result<()> {
        let mut batch = Batch::default();
        batch.add(self.wal.next(), &part);
        self.wal.write(&batch).map_err(io::Error::other)?;
        self.version = to;
        Ok(())
    }
}

/// See the module.
pub struct PartitionLog {
    folder: PathBuf,
    generation: u64,
    /// Windows. Its lock is held while they are written and synced.
    pub wal: Mutex<Wal>,
    /// What of the dictionary the log has, for as long as it has records that need it. Changed by
    /// the thread that pushes.
    pub logged: Mutex<DictVersion>,
    /// The copy of the dictionary, once it was looked at.
    copy: Mutex<Option<DictCopy>>,
    /// Size of the copy as long as it was not looked at. Unit: bytes.
    unread_bytes: OnceLock<u64>,
}

impl PartitionLog {
    /// A log of which nothing was read yet, and of which nothing needs to be replayed. It goes on
    /// after this record.
    pub fn new(folder: PathBuf, generation: u64, last_record: u64) -> PartitionLog {
        let mut wal = Wal::closed(windows_place(&folder, generation));
        wal.skip_to(last_record.saturating_add(1));
        PartitionLog {
            folder,
            generation,
            wal: Mutex::new(wal),
            logged: Mutex::new(DictVersion::EMPTY),
            copy: Mutex::new(None),
            unread_bytes: OnceLock::new(),
        }
    }

    /// Where all of it is.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Where its windows are.
    pub fn place(&self) -> LogLocation {
        windows_place(&self.folder, self.generation)
    }

    fn copy_place(&self) -> LogLocation {
        place(&self.folder, "dict", self.generation)
    }

    /// What the copy of the dictionary has.
    pub fn copy_version(&self) -> DictVersion {
        let mut copy = lock(&self.copy);
        copy.get_or_insert_with(|| DictCopy::open(self.copy_place(), |_| {}))
            .version
    }

    /// Adds what the copy has more than a dictionary that was read from the file: its ids are given
    /// away, also those of windows that a crash kept from being logged. The next record brings all
    /// that the copy has not.
    pub fn load_copy(&self, dict: &mut Dict) {
        let mut slot = lock(&self.copy);
        let is_known = |copy: &DictCopy| dict.version().includes(copy.version);
        if !slot.as_ref().is_some_and(is_known) {
            let (copy, loaded) = DictCopy::load(self.copy_place(), dict);
            let copy = slot.insert(copy);
            if let Err(damage) = loaded {
                copy.start_again(damage.0);
            }
        }
        let version = slot.as_ref().map(|copy| copy.version);
        *lock(&self.logged) = version.unwrap_or(DictVersion::EMPTY);
    }

    /// Brings the copy of the dictionary up to date: what only records had may be cut then. No push
    /// waits for the disk meanwhile.
    pub fn keep_dict(&self, dict: &RwLock<Dict>) -> io::Result<()> {
        let logged = *lock(&self.logged);
        let mut slot = lock(&self.copy);
        let copy = slot.get_or_insert_with(|| DictCopy::open(self.copy_place(), |_| {}));
        if copy.version.includes(logged) {
            // No record has more: the dictionary of a partition that was only read, for one.
            return Ok(());
        }
        let part = copy.encode(&read(dict))?;
        copy.append(part)
    }

    /// Removes all of it, when everything is in the file. It can be written to again.
    pub fn clear(&self) -> io::Result<()> {
        lock(&self.wal).cut(u64::MAX).map_err(io::Error::other)?;
        *lock(&self.copy) = Some(DictCopy {
            wal: Wal::closed(self.copy_place()),
            version: DictVersion::EMPTY,
        });
        *lock(&self.logged) = DictVersion::EMPTY;
        remove_folder(&self.folder)
    }

    /// Size of the windows. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        lock(&self.wal).bytes()
    }

    /// Size of the copy of the dictionary. Unit: bytes.
    pub fn copy_bytes(&self) -> u64 {
        let unread = || self.copy_place().bytes();
        match &*lock(&self.copy) {
            Some(copy) => copy.wal.bytes(),
            None => *self.unread_bytes.get_or_init(unread),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{HostKey, LabelSet};
    use crate::sync::write;

    const GENERATION: u64 = 0xab;

    fn grow(dict: &mut Dict, at: u32) {
        dict.host(&HostKey {
            host_id: format!("host {at}"),
            boot_id: [1; 16],
        });
        dict.labels(&LabelSet::new([("unit".to_owned(), format!("u{at}"))]));
        let other = dict.other_stack();
        dict.leaf(other, profile::StackEnd::Complete);
    }

    /// As when a record had all of the dictionary.
    fn keep(log: &PartitionLog, dict: &RwLock<Dict>) {
        let version = read(dict).version();
        *lock(&log.logged) = version;
        log.keep_dict(dict).unwrap();
        assert_eq!(log.copy_version(), version);
    }

    #[test]
    fn what_is_appended_is_loaded_whatever_is_torn_off() {
        let folder = tempfile::tempdir().unwrap();
        let open = || PartitionLog::new(folder.path().join("0"), GENERATION, 0);
        let log = open();
        let dict = RwLock::new(Dict::new(&[], true));
        let mut ends = vec![(DictVersion::EMPTY, 0)];
        for at in 0..3 {
            grow(&mut write(&dict), at);
            keep(&log, &dict);
            ends.push((read(&dict).version(), log.copy_bytes()));
        }
        let path = folder.path().join("0/0000000000000001.dict");
        let bytes = std::fs::read(&path).unwrap();
        for len in (24..=bytes.len()).rev() {
            std::fs::write(&path, &bytes[..len]).unwrap();
            let (whole, _) = ends.iter().rfind(|(_, end)| *end <= len as u64).unwrap();
            let opened = open();
            assert_eq!(opened.copy_bytes(), len as u64);
            assert_eq!(opened.copy_version(), *whole);
            let mut loaded = Dict::new(&[], true);
            opened.load_copy(&mut loaded);
            assert_eq!((loaded.version(), *lock(&opened.logged)), (*whole, *whole));
        }
        // What was torn off is appended again.
        keep(&open(), &dict);
        let mut loaded = Dict::new(&[], true);
        open().load_copy(&mut loaded);
        let mut own = write(&dict);
        assert_eq!(loaded.version(), own.version());
        assert_eq!(loaded.other_stack(), own.other_stack());
        assert_eq!(loaded.tables.content_ids(), own.tables.content_ids());
        drop(own);
        let log = open();
        log.clear().unwrap();
        assert_eq!(
            (log.copy_bytes(), folder.path().join("0").exists()),
            (0, false)
        );
        keep(&log, &dict);
    }

    #[test]
    fn a_removal_is_known_until_it_is_ended() {
        let logs = tempfile::tempdir().unwrap();
        let start = -7_000_000_000;
        let log = folder(logs.path(), start);
        start_removal(&log).unwrap();
        assert!(!is_being_removed(&log), "there is nothing to be replayed");
        std::fs::create_dir(&log).unwrap();
        assert_eq!(list(logs.path()).unwrap(), [(start, false)]);
        start_removal(&log).unwrap();
        assert!(is_being_removed(&log));
        assert_eq!(list(logs.path()).unwrap(), [(start, true)]);
        // Made again, and removed again before the first removal was ended.
        std::fs::create_dir(&log).unwrap();
        start_removal(&log).unwrap();
        end_removal(&log).unwrap();
        assert_eq!(list(logs.path()).unwrap(), []);
    }
}
