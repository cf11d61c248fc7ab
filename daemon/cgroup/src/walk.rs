//! Walks a mounted cgroup tree: id and path of each directory, within bounds.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

/// Deepest directory entered. Unit: levels below the mount. Pods in nodes in containers with user
/// managers stay under 20.
const DEPTH_MAX: usize = 64;

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct CgroupWalk {
    /// Id and path below the mount (empty for the mount itself).
    pub directories: Vec<(u64, Vec<u8>)>,
    /// True when a bound or an unreadable directory left something out.
    pub cut: bool,
}

/// Walks the tree at `mount`, level by level, so that the bound cuts the deepest ones. Directories
/// removed meanwhile are left out; symbolic links are not followed (cgroupfs has none).
pub(super) fn walk(mount: &Path, entries_max: usize) -> CgroupWalk {
    let mut found = CgroupWalk::default();
    let Ok(root) = std::fs::metadata(mount) else {
        found.cut = true;
        return found;
    };
    found.directories.push((root.ino(), Vec::new()));
    let mut queue = VecDeque::from([(Vec::new(), 0)]);
    while let Some((below, depth)) = queue.pop_front() {
        let directory = mount.join(OsStr::from_bytes(
            below.strip_prefix(b"/").unwrap_or(&below),
        ));
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                found.cut |= error.kind() != std::io::ErrorKind::NotFound;
                continue;
            }
        };
        // A directory removed while it is read ends the list early; it is gone with all below it.
        for entry in entries.map_while(Result::ok) {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if found.directories.len() >= entries_max || depth >= DEPTH_MAX {
                found.cut = true;
                break;
            }
            let mut path = below.clone();
            path.push(b'/');
            path.extend_from_slice(entry.file_name().as_bytes());
            // The directory's entry has the inode number: no call for each.
            found.directories.push((entry.ino(), path.clone()));
            queue.push_back((path, depth + 1));
        }
    }
    found
}
