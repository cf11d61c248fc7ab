//! Which file systems answer only as long as another process or machine does.
//!
//! Two ways to tell: of an open file by `fstatfs`, which may itself wait for ever; and of a path in a
//! process by `/proc/PID/mountinfo`, which asks nobody but the kernel.

use super::open;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// Text of mountinfo read. Unit: bytes. A host of containers has thousands of mounts of 200 bytes.
const MOUNTINFO_BYTES_MAX: u64 = 4 << 20;

/// Types, as mountinfo names them, up to a dot: `fuse.sshfs`.
const REMOTE_TYPES: [&str; 16] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "fuseblk",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
];

/// Magic numbers of the same (linux/magic.h; lustre, BeeGFS, ceph: their own sources).
const REMOTE_MAGICS: [i64; 13] = [
    0x0102_1997, // 9p
    0x5346_414f, // afs (openafs)
    0x6b41_4653, // afs (kafs)
    0x1983_0326, // beegfs
    0x00c3_6400, // ceph
    0xff53_4d42, // cifs
    0xfe53_4d42, // smb2
    0x517b,      // smb
    0x6573_5546, // fuse
    0x0116_1970, // gfs2
    0x0bd0_0bd0, // lustre
    0x6969,      // nfs
    0x7461_636f, // ocfs2
];

/// True when the open file is on such a file system. May wait for ever.
pub fn is_remote(file: &File) -> bool {
    open::file_system_magic(file).is_some_and(|magic| REMOTE_MAGICS.contains(&magic))
}

/// True when `path`, as a process sees it, is on such a file system. Links on the way are not
/// followed. False when nothing can be told.
pub fn is_remote_path(pid: u32, path: &[u8]) -> bool {
    mounts(pid).is_some_and(|lines| is_remote_by(lines, path))
}

/// True when `dir`, as a process sees it, or anything mounted below it is on such a file system; `None`
/// when nothing can be told.
pub fn is_remote_below(pid: u32, dir: &[u8]) -> Option<bool> {
    let mut below = false;
    let lines = mounts(pid)?.inspect(|line| below |= is_remote_mount_below(line, dir));
    Some(is_remote_by(lines, dir) || below)
}

fn is_remote_mount_below(line: &[u8], dir: &[u8]) -> bool {
    let point = line.split(|&byte| byte == b' ').nth(4).map(unescaped);
    let inside = point.and_then(|point| Some(point.strip_prefix(dir)?.starts_with(b"/")));
    inside.unwrap_or(false) && kind_of(line).is_some_and(is_remote_kind)
}

/// The lines of a process's table of mounts.
fn mounts(pid: u32) -> Option<impl Iterator<Item = Vec<u8>>> {
    let file = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
    let lines = BufReader::new(file.take(MOUNTINFO_BYTES_MAX)).split(b'\n');
    Some(lines.map_while(Result::ok))
}

/// The type of a mount: optional fields come before a lone dash, the type after it.
fn kind_of(line: &[u8]) -> Option<&[u8]> {
    let fields = line.split(|&byte| byte == b' ');
    fields.skip_while(|field| *field != b"-").nth(1)
}

fn is_remote_kind(kind: &[u8]) -> bool {
    let kind = kind.split(|&byte| byte == b'.').next().unwrap_or(kind);
    REMOTE_TYPES.iter().any(|known| known.as_bytes() == kind)
}

/// The mount a path is on is the one with the longest mount point that leads to it; of several the
/// last, which covers the others.
fn is_remote_by(lines: impl Iterator<Item = Vec<u8>>, path: &[u8]) -> bool {
    let mut found: (usize, bool) = (0, false);
    for line in lines {
        let mut fields = line.split(|&byte| byte == b' ');
        let Some(point) = fields.nth(4).map(unescaped) else {
            continue;
        };
        let inside = path
            .strip_prefix(&point[..])
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || point.ends_with(b"/"));
        if let (true, Some(kind)) = (inside && point.len() >= found.0, kind_of(&line)) {
            found = (point.len(), is_remote_kind(kind));
        }
    }
    found.1
}

/// Octal escapes of proc(5): space, tab, newline, backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code =
            escape.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:27 / /mnt/a\\040b rw shared:2 master:1 - fuse.sshfs host:/ rw
32 22 0:28 / /srv rw - nfs4 server:/srv rw
33 32 0:29 / /srv/local rw - xfs /dev/vdb rw
34 30 0:30 / /tmp rw - fuse none rw
";

    #[test]
    fn the_innermost_and_last_mount_counts() {
        let check = |path: &str, expected| {
            let lines = MOUNTS.lines().map(|line| line.as_bytes().to_vec());
            assert_eq!(is_remote_by(lines, path.as_bytes()), expected, "{path}");
        };
        check("/usr/bin/ls", false);
        check("/tmp", true);
        check("/tmp/perf-1.map", true);
        check("/tmpfile", false);
        check("/mnt/a b/x", true);
        check("/mnt/a", false);
        check("/srv/me/prog", true);
        check("/srv/local/prog", false);
    }

    #[test]
    fn a_mount_table_that_makes_no_sense_says_nothing() {
        for line in [
            "",
            "1 2 3",
            "1 2 0:1 / /",
            "1 2 0:1 / / rw shared:1",
            "1 2 0:1 / / rw -",
        ] {
            assert!(!is_remote_by(
                std::iter::once(line.as_bytes().to_vec()),
                b"/x"
            ));
        }
    }

    #[test]
    fn the_root_of_this_process_is_found() {
        let file = File::open("/proc/self/stat").expect("opens");
        assert!(!is_remote(&file));
        assert!(!is_remote_path(std::process::id(), b"/proc/self/stat"));
    }
}
