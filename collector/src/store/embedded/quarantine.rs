//! Data set aside for people: damaged files of partitions, and segments of the log that could not
//! be used completely. They take space, are reported, and are removed before anything that can be
//! read.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file that was set aside.
pub struct QuarantinedFile {
    /// Its path.
    pub path: PathBuf,
    /// Unit: bytes.
    pub bytes: u64,
    changed: Option<SystemTime>,
}

impl QuarantinedFile {
    /// True for a segment of the log.
    pub fn is_segment(&self) -> bool {
        self.path.extension().is_some_and(|end| end == "unusable")
    }
}

/// Everything set aside in the store's directory, longest unchanged first.
pub fn list(dir: &Path) -> Vec<QuarantinedFile> {
    let folders = [dir.to_owned(), dir.join("partitions"), dir.join("wal")];
    let mut found = Vec::new();
    for folder in folders {
        // What cannot be listed cannot be removed either; the next time it may.
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let end = path.extension().and_then(|end| end.to_str());
            if !matches!(end, Some("damaged" | "unusable")) {
                continue;
            }
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            found.push(QuarantinedFile {
                bytes: metadata.len(),
                changed: metadata.modified().ok(),
                path,
            });
        }
    }
    found.sort_by(|left, right| (left.changed, &left.path).cmp(&(right.changed, &right.path)));
    found
}
