//! Finds the separate debug file of an executable, below the daemon's own debug directories only.
//!
//! By build id (`.build-id/ab/cdef….debug`), else by `.gnu_debuglink` (`<dir>/<directory of the
//! executable>/<name>`, `<dir>/<name>`). A file is taken only when its build id equals that of the
//! executable or, when one of them has none, its checksum is the one in the link. Directories of
//! containers are not searched: what is found there is anybody's.

use super::elf::{Headers, ReadAt, read_headers};
use super::files::Image;
use super::open::{Links, Root};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Largest file whose checksum is computed. Unit: bytes. Reading takes about a second a GiB.
const CHECKED_BYTES_MAX: u64 = 1 << 30;

/// Finds the debug file of the executable `image` that ran from `path`.
pub fn find(
    dirs: &[PathBuf],
    headers: &Headers,
    image: &Image,
    path: &[u8],
) -> Option<(Image, Headers)> {
    by_build_id(dirs, headers).or_else(|| by_link(dirs, headers, image, path))
}

fn by_build_id(dirs: &[PathBuf], headers: &Headers) -> Option<(Image, Headers)> {
    let (first, rest) = headers.build_id.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let mut name = format!(".build-id/{first:02x}/");
    for byte in rest {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name.push_str(".debug");
    dirs.iter().find_map(|dir| {
        open(dir, name.as_bytes()).filter(|(_, found)| found.build_id == headers.build_id)
    })
}

fn by_link(
    dirs: &[PathBuf],
    headers: &Headers,
    image: &Image,
    path: &[u8],
) -> Option<(Image, Headers)> {
    let (name, checksum) = headers.debug_link(image)?;
    let parent = &path[..path.iter().rposition(|&byte| byte == b'/').unwrap_or(0)];
    let beside = [parent, b"/", &*name].concat();
    dirs.iter()
        .flat_map(|dir| [(dir, &*beside), (dir, &*name)])
        .find_map(|(dir, name)| {
            let (debug, found) = open(dir, name)?;
            let right = match headers.build_id.is_empty() || found.build_id.is_empty() {
                true => crc32(&debug).is_some_and(|found| found == checksum),
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

/// The checksum that `.gnu_debuglink` holds: CRC-32 as in zlib, over the whole file.
fn crc32<R: ReadAt + ?Sized>(image: &R) -> Option<u32> {
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < CHECKED_BYTES_MAX {
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
        assert_eq!(crc32(&b"123456789"[..]), Some(0xcbf4_3926));
    }
}
