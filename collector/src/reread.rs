//! What is made of files that somebody else renews: made again when one of them has changed.

use crate::sync::lock;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What tells that a file is another, or has changed.
type Stamp = Option<(i64, i64, u64, u64)>;

/// Files, and what was made of them last.
pub struct Reread<T> {
    files: Vec<PathBuf>,
    made: Mutex<Option<(Vec<Stamp>, Arc<T>)>>,
}

impl<T> Reread<T> {
    /// Of these files, of which nothing was made yet.
    pub fn of(files: Vec<PathBuf>) -> Reread<T> {
        Reread {
            files,
            made: Mutex::default(),
        }
    }

    /// What `make` makes of them now. Where it fails, what it made before, and `kept` is told why:
    /// once for each change, which may be half of one.
    ///
    /// # Errors
    /// Those of `make`, where it never made anything.
    pub fn get<E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        kept: impl FnOnce(E),
    ) -> Result<Arc<T>, E> {
        let now: Vec<Stamp> = self.files.iter().map(|path| stamp(path)).collect();
        let mut made = lock(&self.made);
        if let Some((then, made)) = &*made
            && *then == now
        {
            return Ok(made.clone());
        }
        match (make(), &mut *made) {
            (Ok(new), made) => {
                let new = Arc::new(new);
                *made = Some((now, new.clone()));
                Ok(new)
            }
            (Err(error), Some((then, made))) => {
                *then = now;
                kept(error);
                Ok(made.clone())
            }
            (Err(error), None) => Err(error),
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.size()))
}
