//! Values made from files that another tool renews: made again when one of the files has changed.
//!
//! The files may be on a disk that does not answer, so [`Looks`] has only one thread wait for it.

use crate::sync::lock;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longest wait for files. What they said before counts after it.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Shows whether a file was replaced or changed.
type Stamp = Option<(i64, i64, u64, u64)>;

/// Files, and what was made of them last.
pub struct Reread<T> {
    files: Vec<PathBuf>,
    made: Mutex<Option<(Vec<Stamp>, Arc<T>)>>,
}

impl<T> Reread<T> {
    /// Watches these files; nothing was made of them yet.
    pub fn of(files: Vec<PathBuf>) -> Reread<T> {
        Reread {
            files,
            made: Mutex::default(),
        }
    }

    /// The result of `make` for the current files. If that fails, the previous result, and `kept`
    /// gets the reason: once for each change, which may be half of one.
    ///
    /// # Errors
    /// Those of `make`, where it never made anything.
    pub fn get<E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        kept: impl FnOnce(E),
    ) -> Result<Arc<T>, E> {
        let now: Vec<Stamp> = self.files.iter().map(|path| stamp(path)).collect();
        if let Some((then, made)) = &*lock(&self.made)
            && *then == now
        {
            return Ok(made.clone());
        }
        // Whoever asks for what there was before does not wait for files.
        let new = make();
        let mut made = lock(&self.made);
        match (new, &mut *made) {
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

impl<T> Reread<T> {
    /// The latest value.
    pub fn last(&self) -> Option<Arc<T>> {
        let made = lock(&self.made);
        made.as_ref().map(|(_, made)| made.clone())
    }
}

/// Looks at files, one at a time and away from the threads that serve everybody.
pub struct Looks(Arc<Semaphore>);

impl Default for Looks {
    fn default() -> Looks {
        Looks(Arc::new(Semaphore::new(1)))
    }
}

impl Looks {
    /// What `fresh`, which may block, finds; or `last`, where somebody else looks just now or the
    /// files do not answer. None: there is no last.
    pub async fn look<T: Send + 'static>(
        &self,
        fresh: impl FnOnce() -> T + Send + 'static,
        last: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let turn = match self.0.clone().try_acquire_owned() {
            Ok(turn) => turn,
            Err(_) => match last() {
                Some(last) => return Some(last),
                None => self.0.clone().acquire_owned().await.ok()?,
            },
        };
        let looking = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            fresh()
        });
        match timeout(LOOK_MAX, looking).await {
            Ok(Ok(found)) => Some(found),
            _ => last(),
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Instant;

    #[tokio::test]
    async fn a_disk_that_does_not_answer_holds_one_thread_and_nobody_up() {
        let looks = Looks::default();
        assert_eq!(looks.look(|| 1, || None).await, Some(1));
        let (answer, hangs) = sync_channel::<()>(1);
        let begin = Instant::now();
        let hanging = move || {
            let _ = hangs.recv();
            2
        };
        assert_eq!(looks.look(hanging, || Some(1)).await, Some(1));
        assert!(begin.elapsed() >= LOOK_MAX);
        let begin = Instant::now();
        assert_eq!(
            looks.look(|| panic!("a second thread"), || Some(1)).await,
            Some(1)
        );
        assert!(begin.elapsed() < LOOK_MAX, "who comes after does not wait");
        answer.send(()).expect("it hangs");
        // Who has nothing waits for the turn, and has what is found then.
        assert_eq!(looks.look(|| 3, || None).await, Some(3));
    }
}
