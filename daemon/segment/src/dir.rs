//! The private directory of segments: creates, finalizes, sets aside and removes files, which are
//! named by number and kind.
//!
//! All files are accessed through the open directory, so nobody can replace its path in between.

use super::file::{Kind, ReadError, Records, Scanned, SegmentFile, header, scan};
use host::private_dir::{DirError, PrivateDir, options};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Most files of a kind that are set aside because they could not be read; beyond it the oldest go.
pub const QUARANTINED_MAX: usize = 4;

/// End of the name of a file that is not complete yet.
const UNFINISHED: &str = "tmp";

/// The directory, locked.
#[derive(Debug)]
pub struct SegmentDir {
    dir: PrivateDir,
}

impl SegmentDir {
    /// Opens it, makes it where it is missing, and removes what was never complete. `what` is its
    /// name in errors.
    ///
    /// # Errors
    /// [`DirError`].
    pub fn open(path: &Path, what: &'static str) -> Result<SegmentDir, DirError> {
        let dir = SegmentDir {
            dir: PrivateDir::open(path, what)?,
        };
        let entries = std::fs::read_dir(dir.base()).into_iter().flatten();
        for entry in entries.map_while(Result::ok) {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == UNFINISHED) {
                // Nobody reads it, and the next one replaces it.
                let _ = std::fs::remove_file(path);
            }
        }
        Ok(dir)
    }

    /// The path by which its files are reached.
    pub fn base(&self) -> &Path {
        self.dir.base()
    }

    /// The path of a file.
    pub fn path(&self, id: u64, extension: &str) -> PathBuf {
        self.base().join(format!("{id:016x}.{extension}"))
    }

    /// Numbers of all files with this end of their names, in order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn ids(&self, extension: &str) -> io::Result<Vec<u64>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(self.base())? {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.split_once('.'));
            let number = name.filter(|(_, end)| *end == extension);
            ids.extend(number.and_then(|(id, _)| u64::from_str_radix(id, 16).ok()));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// When a file was last written to, according to the file system. Unit: nanoseconds since 1970.
    pub fn modified_unix_ns(&self, kind: &Kind, id: u64) -> Option<i64> {
        let meta = std::fs::symlink_metadata(self.path(id, kind.extension)).ok()?;
        let since = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_nanos()).ok()
    }

    /// Makes a segment with its first records, in the place of one that is there.
    ///
    /// # Errors
    /// When the disk does not take it; nothing of it stays then.
    pub fn create(
        &self,
        kind: &Kind,
        id: u64,
        facts: &[u8],
        records: &[impl AsRef<[u8]>],
    ) -> io::Result<SegmentFile> {
        let mut bytes = header(kind, facts);
        for record in records {
            bytes.extend(record.as_ref());
        }
        let file = self.replace(&self.path(id, kind.extension), &bytes)?;
        Ok(SegmentFile::new(file, bytes.len() as u64))
    }

    /// Opens a segment that this run made to append to it again, behind `len` complete bytes.
    ///
    /// # Errors
    /// When it cannot be opened, `NotFound` when it is gone.
    pub fn reopen(&self, kind: &Kind, id: u64, len: u64) -> io::Result<SegmentFile> {
        let file = self.open_to_write(kind, id)?;
        file.set_len(len)?;
        Ok(SegmentFile::new(file, len))
    }

    /// Opens a segment to read from.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn reader(&self, kind: &Kind, id: u64) -> io::Result<File> {
        options().read(true).open(self.path(id, kind.extension))
    }

    /// The records of the first `len` bytes of a segment.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn records(&self, kind: &Kind, id: u64, len: u64) -> Result<Records, ReadError> {
        Records::of(self.reader(kind, id)?, kind, len)
    }

    /// Looks through a segment: see [`scan`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn scan(&self, kind: &Kind, id: u64, check_tail: bool) -> Result<Scanned, ReadError> {
        scan(&self.open_to_write(kind, id)?, kind, check_tail)
    }

    fn open_to_write(&self, kind: &Kind, id: u64) -> io::Result<File> {
        let path = self.path(id, kind.extension);
        options().read(true).write(true).open(path)
    }

    /// Writes a file complete or not at all, in the place of one that is there; durable when it
    /// returns.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        // Each file has its own: those of one pin are written by several threads.
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".");
        unfinished.push(UNFINISHED);
        let unfinished = PathBuf::from(unfinished);
        let mut renamed = false;
        let written = (|| {
            let mut file = options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&unfinished, path)?;
            renamed = true;
            self.dir.sync()?;
            Ok(file)
        })();
        if written.is_err() {
            // What is not durable takes room that others need.
            let _ = std::fs::remove_file(if renamed { path } else { &unfinished });
        }
        written
    }

    /// Sets a file that cannot be read aside, so that the next start does not count it again. A few
    /// stay, for people.
    ///
    /// # Errors
    /// When it stays where it is.
    pub fn quarantine(&self, kind: &Kind, id: u64) -> io::Result<()> {
        let aside = format!("{}.bad", kind.extension);
        std::fs::rename(self.path(id, kind.extension), self.path(id, &aside))?;
        let ids = self.ids(&aside)?;
        for &id in &ids[..ids.len().saturating_sub(QUARANTINED_MAX)] {
            std::fs::remove_file(self.path(id, &aside))?;
        }
        Ok(())
    }

    /// Removes files of a number, in this order. One that is gone is removed.
    pub fn remove(&self, id: u64, extensions: &[&str]) {
        for extension in extensions {
            match std::fs::remove_file(self.path(id, extension)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let file = format!("{id:016x}.{extension}");
                    tracing::warn!(file, %error, "failed to remove a file");
                }
                _ => {}
            }
        }
    }
}
