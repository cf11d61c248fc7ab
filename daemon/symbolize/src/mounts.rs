//! Finds which file systems depend on another process or machine to answer, and which contain what
//! the host has installed.
//!
//! The first is found in two ways: for an open file by `fstatfs`, which may itself wait forever,
//! and for a path in a process by `/proc/PID/mountinfo`, which asks nobody but the kernel. The
//! second is found among the mounts of the host's first process, because the daemon may itself run
//! in a container.

use super::open;
use host::proc::Mount;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// The first process of the host, where `/proc` is the host's.
const INIT: u32 = 1;

/// Directories of what is installed on a host: what is mounted there or below is a part of it. Not
/// `/var`, where the files of containers are.
const INSTALLED: [&[u8]; 5] = [b"/usr", b"/opt", b"/nix", b"/gnu", b"/snap"];

/// Types of mounts below them that are not looked at: the root directories of containers, wherever
/// those are kept, and what is mounted by looking at it.
const NOT_INSTALLED: [&[u8]; 2] = [b"overlay", b"autofs"];

/// Devices (`st_dev`) of the file systems that hold what the host has installed: of its root
/// directory and of `INSTALLED`. Where the mounts of the first process cannot be read, that of the
/// daemon's own root directory.
pub fn host_devices() -> Vec<u64> {
    let device = |path: &Path| Some(std::fs::metadata(path).ok()?.dev());
    let root = format!("/proc/{INIT}/root");
    // By a look at the directory, where that is allowed: of btrfs the table of mounts has other
    // numbers.
    let of_host = |point: &[u8]| {
        let inside = open::as_path(point).strip_prefix("/").ok()?;
        device(&Path::new(&root).join(inside))
    };
    let mut devices = mounts(INIT).map_or(Vec::new(), |lines| installed(lines, of_host));
    if devices.is_empty() {
        devices.extend(device(Path::new("/")));
    }
    devices
}

/// Devices of the mounts of what is installed, each once. `device` gives that of a mount point;
/// where it does not, the table's own number counts.
fn installed(
    lines: impl Iterator<Item = Vec<u8>>,
    device: impl Fn(&[u8]) -> Option<u64>,
) -> Vec<u64> {
    let is_part = |line: &[u8]| {
        let mount = Mount::parse(line)?;
        let (point, kind) = (&mount.point[..], mount.kind);
        let in_place = |rest: &[u8]| match rest.first() {
            None => kind != b"autofs",
            Some(b'/') => !NOT_INSTALLED.contains(&kind),
            Some(_) => false,
        };
        let mut below = INSTALLED.iter().filter_map(|dir| point.strip_prefix(*dir));
        let part = point == b"/" || !is_remote_kind(kind) && below.any(in_place);
        part.then(|| device(point).or_else(|| device_of(mount.device)))?
    };
    let mut devices: Vec<u64> = lines.filter_map(|line| is_part(&line)).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// The device of a mount by the table: `MAJOR:MINOR`.
fn device_of(field: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// True if the open file is on such a file system. May wait forever.
pub fn is_remote(file: &File) -> bool {
    open::file_system_magic(file).is_some_and(|magic| REMOTE_MAGICS.contains(&magic))
}

/// True if `path`, as a process sees it, is on such a file system. Links on the way are not
/// followed. False if it is unknown.
pub fn is_remote_path(pid: u32, path: &[u8]) -> bool {
    mounts(pid).is_some_and(|lines| is_remote_by(lines, path))
}

/// True if `dir`, as a process sees it, or anything mounted below it is on such a file system;
/// `None` if it is unknown.
pub fn is_remote_below(pid: u32, dir: &[u8]) -> Option<bool> {
    let mut below = false;
    let lines = mounts(pid)?.inspect(|line| below |= is_remote_mount_below(line, dir));
    Some(is_remote_by(lines, dir) || below)
}

fn is_remote_mount_below(line: &[u8], dir: &[u8]) -> bool {
    Mount::parse(line).is_some_and(|mount| {
        let inside = mount.point.strip_prefix(dir);
        inside.is_some_and(|inside| inside.starts_with(b"/")) && is_remote_kind(mount.kind)
    })
}

/// The lines of a process's table of mounts.
fn mounts(pid: u32) -> Option<impl Iterator<Item = Vec<u8>>> {
    let file = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
    let lines = BufReader::new(file.take(MOUNTINFO_BYTES_MAX)).split(b'\n');
    Some(lines.map_while(Result::ok))
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
        let Some(Mount { point, kind, .. }) = Mount::parse(&line) else {
            continue;
        };
        let inside = path
            .strip_prefix(&point[..])
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || point.ends_with(b"/"));
        if inside && point.len() >= found.0 {
            found = (point.len(), is_remote_kind(kind));
        }
    }
    found.1
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
    fn what_the_host_has_installed_is_told_from_containers_and_users() {
        const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 254:1 / /usr ro,relatime shared:2 - erofs /dev/mapper/usr ro
24 23 254:2 / /usr/local rw - btrfs /dev/vdb rw
25 22 7:0 / /snap/core/1 ro,nodev - squashfs /dev/loop0 ro
26 22 254:3 / /var rw - xfs /dev/vdc rw
27 26 0:50 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw
28 22 0:51 / /opt/docker/overlay2/b/merged rw - overlay overlay rw
29 22 0:52 / /opt/shared rw - nfs4 server:/opt rw
30 22 0:53 / /opt/more rw - autofs systemd-1 rw
31 22 254:4 / /home rw - ext4 /dev/vdd rw
32 22 8:17 / /media/me/stick rw,nosuid,nodev - ext4 /dev/sdb1 rw
33 22 0:54 / /usrlocal rw - tmpfs tmpfs rw
34 22 254:2 / /opt/same rw - btrfs /dev/vdb rw
";
        let lines = || MOUNTS.lines().map(|line| line.as_bytes().to_vec());
        // The device of a mount is its id here.
        let device = |wanted: &[u8]| {
            let line = MOUNTS.lines().find(|line| {
                let point = line.split(' ').nth(4);
                point.is_some_and(|point| point.as_bytes() == wanted)
            });
            match line?.split(' ').next()?.parse().ok()? {
                34 => Some(24),
                id => Some(id),
            }
        };
        assert_eq!(installed(lines(), device), [22, 23, 24, 25]);
        let numbers = [(7, 0), (254, 0), (254, 1), (254, 2)];
        let numbers = numbers.map(|(major, minor)| libc::makedev(major, minor));
        assert_eq!(installed(lines(), |_| None), numbers);
    }

    #[test]
    fn a_system_file_is_on_a_device_of_the_host_and_proc_is_not() {
        let device = |path: &str| std::fs::metadata(path).expect("it is there").dev();
        let devices = host_devices();
        assert!(devices.contains(&device("/usr")), "{devices:?}");
        assert!(!devices.contains(&device("/proc")), "{devices:?}");
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
