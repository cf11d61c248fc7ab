//! Finds the separate debug file of an executable.
//!
//! It is looked up by build id (`.build-id/ab/cdef….debug`), else by `.gnu_debuglink`
//! (`<dir>/<directory of the executable>/<name>`, `<dir>/<name>`). A file is accepted only if its
//! build id equals that of the executable or, if one of them has none, its checksum matches the one
//! in the link.
//!
//! When an executable is opened, its debug file is looked up and held open with it: below the
//! daemon's own debug directories, else in the root of the process that runs it, where a container
//! has its own. There only an equal build id counts. Anybody who can create such a file could as
//! well have put its names into the executable itself, so it is trusted as much as that.

use super::budget::FileBudget;
use super::elf::{Headers, ReadAt, read_headers};
use super::image::Image;
use super::open::{Links, Root};
use host::ids::Pid;
use std::path::{Path, PathBuf};

/// Largest file for which a checksum is computed. Unit: bytes. Reading takes about a second per
/// GiB.
const CHECKED_BYTES_MAX: u64 = 1 << 30;

/// Options for debug files when executables are opened.
#[derive(Clone, Debug, Default)]
pub struct DebugFileOptions {
    /// The daemon's own debug directories.
    pub dirs: Vec<PathBuf>,
    /// Debug files of executables that have symbols and no source lines, too.
    pub lines: bool,
}

/// Finds the debug file of the executable `image` that runs from `path` in the root of `pid`, if it
/// may be needed. May wait forever.
pub fn at_first_sight(
    wanted: &DebugFileOptions,
    image: &Image,
    pid: Pid,
    path: &[u8],
) -> Option<Image> {
    if matches!(image, Image::Memory(_)) {
        return None;
    }
    let headers = read_headers(image).ok()?;
    let has = |name: &[u8]| headers.section(name).is_some();
    let needed = !has(b".symtab") || wanted.lines && !has(b".debug_info");
    if !needed || headers.build_id.len() < 2 {
        return None;
    }
    by_build_id(&wanted.dirs, &headers)
        .map(|(debug, _)| debug)
        .or_else(|| inside(&headers, image, pid, path))
}

/// Looks in the root of a process, where debug files of distributions and of debuggers lie.
fn inside(headers: &Headers, image: &Image, pid: Pid, path: &[u8]) -> Option<Image> {
    let root = Root::of_process(pid.0).ok()?;
    let mut places = vec![[b"/usr/lib/debug/", build_id_place(headers)?.as_bytes()].concat()];
    if let Some((name, _)) = headers.debug_link(image) {
        let parent = parent(path);
        places.extend([
            [parent, b"/.debug/", &*name].concat(),
            [parent, b"/", &*name].concat(),
            [b"/usr/lib/debug", parent, b"/", &*name].concat(),
        ]);
    }
    places.iter().find_map(|place| {
        let debug = Image::open(root.open(place, Links::Inside).ok()?).ok()?;
        let found = read_headers(&debug).ok()?;
        (found.build_id == headers.build_id).then_some(debug)
    })
}

/// The debug file of the executable `image` that ran from `path`: the one `held` with it, while
/// nobody wrote to that, else one that is found now.
pub fn find(
    held: Option<&Image>,
    dirs: &[PathBuf],
    headers: &Headers,
    image: &Image,
    path: &[u8],
    budget: &FileBudget<'_>,
) -> Option<(Image, Headers)> {
    let held = held.filter(|held| held.unchanged());
    held.and_then(|held| Some((held.clone(), read_headers(held).ok()?)))
        .or_else(|| by_build_id(dirs, headers))
        .or_else(|| by_link(dirs, headers, image, path, budget))
}

fn by_build_id(dirs: &[PathBuf], headers: &Headers) -> Option<(Image, Headers)> {
    let name = build_id_place(headers)?;
    dirs.iter().find_map(|dir| {
        open(dir, name.as_bytes()).filter(|(_, found)| found.build_id == headers.build_id)
    })
}

/// Path of a build ID's file in a debug directory.
fn build_id_place(headers: &Headers) -> Option<String> {
    place(&profile::build_id_text(&headers.build_id))
}

/// The same for a build ID in hexadecimal.
pub(super) fn place(build_id: &str) -> Option<String> {
    let (first, rest) = build_id.split_at_checked(2)?;
    (!rest.is_empty()).then(|| format!(".build-id/{first}/{rest}.debug"))
}

/// The folder of a path, without a slash at its end.
fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)]
}

fn by_link(
    dirs: &[PathBuf],
    headers: &Headers,
    image: &Image,
    path: &[u8],
    budget: &FileBudget<'_>,
) -> Option<(Image, Headers)> {
    let (name, checksum) = headers.debug_link(image)?;
    let parent = parent(path);
    let beside = [parent, b"/", &*name].concat();
    dirs.iter()
        .flat_map(|dir| [(dir, &*beside), (dir, &*name)])
        .find_map(|(dir, name)| {
            let (debug, found) = open(dir, name)?;
            let right = match headers.build_id.is_empty() || found.build_id.is_empty() {
                true => crc32(&debug, budget).is_some_and(|found| found == checksum),
                false => found.build_id == headers.build_id,
            };
            right.then_some((debug, found))
        })
}

fn open(dir: &Path, name: &[u8]) -> Option<(Image, Headers)> {
    let file = Root::of_dir(dir)
        .and_then(|root| root.open(name, Links::Inside))
        .ok()?;
    let image = Image::open(file).ok()?;
    let headers = read_headers(&image).ok()?;
    Some((image, headers))
}

/// The checksum that `.gnu_debuglink` holds: CRC-32 as in zlib, over the complete file. `None` when
/// that takes more than the budget.
fn crc32<R: ReadAt + ?Sized>(image: &R, budget: &FileBudget<'_>) -> Option<u32> {
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < CHECKED_BYTES_MAX {
        budget.reads(buffer.len()).ok()?;
        let len = image.read_some_at(&mut buffer, at).ok()?;
        if len == 0 {
            return Some(crc.sum());
        }
        crc.update(&buffer[..len]);
        at += len as u64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_zlib() {
        let checksum = crc32(&b"123456789"[..], &FileBudget::default());
        assert_eq!(checksum, Some(0xcbf4_3926));
    }
}
