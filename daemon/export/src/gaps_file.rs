//! The file of gaps: it is replaced atomically, even on a full disk, by using space reserved
//! earlier.
//!
//! Usually the text goes to a new file that is renamed. If that fails, it goes to one of two slots
//! of `gaps.reserve`, which were allocated when the daemon first found room for them, so that a
//! file system that changes files in place needs no new blocks. On copy-on-write file systems
//! nothing is reserved, and a completely full disk may still fail. Each text has a version, and the
//! newest of the three is read. A slot has a checksum, and a torn write leaves the other slot
//! complete.

use host::private_dir::options;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Largest text. Unit: bytes. [`super::gaps`] bounds it to some 8 KiB.
const TEXT_BYTES_MAX: usize = 15 << 10;

/// A slot of the reserve. Unit: bytes.
const SLOT_BYTES: usize = 16 << 10;

/// Slots of the reserve.
const SLOTS: usize = 2;

/// Start of a slot that holds a text.
const SLOT_MAGIC: &[u8; 8] = b"FPGAPS\0\x01";

/// Magic, version, length, checksum of the text.
const SLOT_HEAD: usize = 8 + 8 + 4 + 4;

/// Start of the last line of the file, which holds the file's version.
const VERSION_LINE: &str = "version ";

/// See the module.
#[derive(Debug)]
pub struct GapsFile {
    base: PathBuf,
    version: u64,
    reserve: Option<File>,
}

impl GapsFile {
    /// Creates it for a directory, without reading or writing anything.
    pub fn new(base: &Path) -> GapsFile {
        GapsFile {
            base: base.to_path_buf(),
            version: 0,
            reserve: None,
        }
    }

    /// The newest text that was saved; empty when there is none.
    pub fn read(&mut self) -> String {
        let path = self.base.join("gaps.reserve");
        let slots = match options().read(true).open(path) {
            Ok(file) => (0..SLOTS)
                .filter_map(|slot| read_slot(&file, slot))
                .collect(),
            Err(_) => Vec::new(),
        };
        let newest = slots
            .into_iter()
            .chain(self.read_file())
            .max_by_key(|(version, _)| *version);
        let (version, text) = newest.unwrap_or_default();
        self.version = self.version.max(version);
        text
    }

    fn read_file(&self) -> Option<(u64, String)> {
        let file = options().read(true).open(self.base.join("gaps")).ok()?;
        let mut text = Vec::new();
        file.take(TEXT_BYTES_MAX as u64)
            .read_to_end(&mut text)
            .ok()?;
        let text = String::from_utf8(text).ok()?;
        let last = text.lines().next_back()?;
        // Files of the first versions have none.
        let version = last.strip_prefix(VERSION_LINE);
        let version = version.and_then(|version| version.parse().ok());
        Some((version.unwrap_or(0), text))
    }

    /// Saves a text atomically.
    ///
    /// # Errors
    /// When neither the disk nor the reserve takes it.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        if text.len() + 32 > TEXT_BYTES_MAX {
            return Err(io::Error::other("the text of the gaps is too long"));
        }
        let version = self.version.saturating_add(1);
        let written = self.write_file(&format!("{text}{VERSION_LINE}{version}\n"));
        if written.is_ok() && self.reserve.is_none() {
            // A disk without room for it has none for much else; it is tried with the next text.
            self.reserve = self.make_reserve().ok();
        }
        if let Err(error) = written {
            self.write_reserve(version, text).map_err(|_| error)?;
        }
        self.version = version;
        Ok(())
    }

    fn write_file(&self, text: &str) -> io::Result<()> {
        let new = self.base.join("gaps.new");
        let mut file = options()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        std::fs::rename(&new, self.base.join("gaps"))
    }

    /// Opens the reserve with all its blocks: zeros are written where there is nothing yet.
    fn make_reserve(&self) -> io::Result<File> {
        let file = options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.base.join("gaps.reserve"))?;
        let have = file.metadata()?.len() as usize;
        if have < SLOTS * SLOT_BYTES {
            file.write_all_at(&vec![0; SLOTS * SLOT_BYTES - have], have as u64)?;
            file.sync_all()?;
        }
        Ok(file)
    }

    fn write_reserve(&mut self, version: u64, text: &str) -> io::Result<()> {
        let file = match self.reserve.take() {
            Some(file) => file,
            None => self.make_reserve()?,
        };
        let mut slot = SLOT_MAGIC.to_vec();
        slot.extend(version.to_le_bytes());
        slot.extend((text.len() as u32).to_le_bytes());
        slot.extend(checksum(version, text).to_le_bytes());
        slot.extend_from_slice(text.as_bytes());
        let at = (version % SLOTS as u64) * SLOT_BYTES as u64;
        file.write_all_at(&slot, at)?;
        file.sync_data()?;
        self.reserve = Some(file);
        Ok(())
    }
}

fn checksum(version: u64, text: &str) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&version.to_le_bytes());
    hasher.update(text.as_bytes());
    hasher.finalize()
}

/// The version and text of a slot; none when it is empty or torn.
fn read_slot(file: &File, slot: usize) -> Option<(u64, String)> {
    let mut bytes = vec![0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, (slot * SLOT_BYTES) as u64)
        .ok()?;
    let (head, rest) = bytes.split_first_chunk::<SLOT_HEAD>()?;
    let head = head.strip_prefix(SLOT_MAGIC)?;
    let (version, head) = head.split_first_chunk::<8>()?;
    let (len, sum) = head.split_first_chunk::<4>()?;
    let version = u64::from_le_bytes(*version);
    let text = rest.get(..u32::from_le_bytes(*len) as usize)?;
    let text = std::str::from_utf8(text).ok()?;
    let whole = checksum(version, text).to_le_bytes() == sum[..];
    whole.then(|| (version, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory where no new file can be made or renamed.
    fn full(dir: &Path) {
        std::fs::create_dir_all(dir.join("gaps.new")).unwrap();
    }

    fn read(dir: &Path) -> String {
        let text = GapsFile::new(dir).read();
        text.lines()
            .filter(|line| !line.starts_with(VERSION_LINE))
            .collect()
    }

    #[test]
    fn the_newest_text_is_read_whether_it_is_in_the_file_or_in_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = GapsFile::new(dir.path());
        assert_eq!(file.read(), "");
        file.write("one\n").unwrap();
        assert_eq!(read(dir.path()), "one");
        full(dir.path());
        for text in ["two", "three", "four"] {
            file.write(&format!("{text}\n")).unwrap();
            assert_eq!(read(dir.path()), text);
        }
        // Another run, and the disk takes files again.
        std::fs::remove_dir(dir.path().join("gaps.new")).unwrap();
        let mut later = GapsFile::new(dir.path());
        later.read();
        later.write("five\n").unwrap();
        assert_eq!(read(dir.path()), "five");
    }

    #[test]
    fn a_file_without_a_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("gaps"), "old\n").unwrap();
        assert_eq!(read(dir.path()), "old");
    }

    #[test]
    fn a_slot_torn_at_any_byte_leaves_the_text_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = GapsFile::new(dir.path());
        file.write("one\n").unwrap();
        full(dir.path());
        file.write("two\n").unwrap();
        file.write("three\n").unwrap();
        let path = dir.path().join("gaps.reserve");
        let bytes = std::fs::read(&path).unwrap();
        // The slot that version 3 is in.
        for at in SLOT_BYTES..SLOT_BYTES + SLOT_HEAD + 6 {
            let mut torn = bytes.clone();
            torn[at] ^= 0x55;
            std::fs::write(&path, torn).unwrap();
            assert_eq!(read(dir.path()), "two", "byte {at}");
        }
    }

    #[test]
    fn what_neither_takes_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        full(dir.path());
        std::fs::create_dir(dir.path().join("gaps.reserve")).unwrap();
        let mut file = GapsFile::new(dir.path());
        assert!(file.write("one\n").is_err());
        assert!(file.write(&"x".repeat(TEXT_BYTES_MAX)).is_err());
        assert_eq!(read(dir.path()), "");
    }
}
