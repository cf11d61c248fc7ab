//! Reads the files in which runtimes keep container data, for when their sockets are missing or not
//! accessible.
//!
//! The directories belong to root and are normally on local disks. Still, they are read through
//! [`SerialCalls`], so that a disk that does not answer delays no other runtime. Only regular files
//! owned by root count, and a link at the end of a path is not followed.

use super::answer;
use super::serial_calls::SerialCalls;
use super::{ANSWER_BYTES_MAX, Chosen, Error, Inspection, Runtime};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of the list of all containers. One has about 600; beyond some thousands the last ones
/// stay without a name.
const LIST_BYTES_MAX: usize = 4 * ANSWER_BYTES_MAX;

/// Reads a file; whether there was more.
async fn read(
    calls: &SerialCalls,
    path: PathBuf,
    bytes_max: usize,
) -> Result<(Vec<u8>, bool), Error> {
    calls.run(move || read_now(&path, bytes_max)).await
}

fn read_now(path: &Path, bytes_max: usize) -> Result<(Vec<u8>, bool), Error> {
    let failed = |error| Error::opening(path, error);
    let file = open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(Error::Strange(path.into()));
    }
    let uid = meta.uid();
    if uid != 0 && !cfg!(test) {
        let path = path.into();
        return Err(Error::Untrusted { path, uid });
    }
    let mut bytes = Vec::new();
    let mut file = file.take(bytes_max as u64 + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    let cut = bytes.len() > bytes_max;
    bytes.truncate(bytes_max);
    Ok((bytes, cut))
}

fn open(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// `None` if a file is missing: containers of other runtimes have none.
fn there<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::Absent(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Docker's `containers/ID/config.v2.json`.
pub struct DockerFiles {
    /// Docker's data root.
    pub dir: Box<Path>,
    /// Where it is read.
    pub calls: SerialCalls,
    /// Labels that are taken.
    pub chosen: Chosen,
}

impl Runtime for DockerFiles {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("docker"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(async move {
            let path = self.dir.join("containers").join(id).join("config.v2.json");
            let Some((bytes, cut)) = there(read(&self.calls, path, ANSWER_BYTES_MAX).await)? else {
                return Ok(None);
            };
            let found = answer::inspected(&bytes, cut, &self.chosen)?;
            let same = found.id.as_deref() == Some(id);
            Ok(same.then_some(found.metadata))
        })
    }
}

/// `config.json` of the bundles of containerd (`DIR/ID/`) and CRI-O (`DIR/ID/userdata/`).
pub struct Bundles {
    /// Where the bundles are.
    pub dir: Box<Path>,
    /// Where they are read.
    pub calls: SerialCalls,
    /// Labels that are taken.
    pub chosen: Chosen,
}

impl Runtime for Bundles {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("containerd" | "cri-o"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(async move {
            let dir = self.dir.join(id);
            for path in [dir.join("config.json"), dir.join("userdata/config.json")] {
                let Some((bytes, cut)) = there(read(&self.calls, path, ANSWER_BYTES_MAX).await)?
                else {
                    continue;
                };
                let found = answer::bundle(&bytes, cut, &self.chosen)?;
                let known = !found.metadata.is_empty();
                return Ok(known.then_some(found.metadata));
            }
            Ok(None)
        })
    }
}

/// `overlay-containers/containers.json` of Podman's storage.
pub struct Storage {
    /// The storage's root.
    pub dir: Box<Path>,
    /// Where it is read.
    pub calls: SerialCalls,
}

impl Runtime for Storage {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("podman"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(async move {
            let path = self.dir.join("overlay-containers/containers.json");
            let Some((bytes, cut)) = there(read(&self.calls, path, LIST_BYTES_MAX).await)? else {
                return Ok(None);
            };
            let found = answer::stored(&bytes, cut, id)?;
            Ok(found.map(|found| found.metadata))
        })
    }
}
