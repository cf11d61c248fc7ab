//! Finds the hierarchy that owns the `perf_event` controller: samples have the ids of its cgroups.
//!
//! Sources: cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5). A v1 hierarchy with the
//! controller takes precedence over cgroup2, and only `/proc/PID/cgroup` shows that. With the wrong
//! tree, every id would be found under a wrong name.

use host::proc::Mount;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the machine lays out its cgroups, as far as samples are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// cgroup2 alone.
    Cgroup2,
    /// cgroup2 together with v1 controllers; `perf_event` belongs to cgroup2.
    Hybrid,
    /// `perf_event` belongs to a v1 hierarchy.
    V1,
    /// No hierarchy that the daemon can see: names come from `/proc/PID/cgroup`.
    None,
}

impl Mode {
    /// The word in status: `cgroup2`, `hybrid`, `v1`, `none`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Cgroup2 => "cgroup2",
            Mode::Hybrid => "hybrid",
            Mode::V1 => "v1",
            Mode::None => "none",
        }
    }
}

/// The hierarchy that owns `perf_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// How the machine lays out its cgroups.
    pub mode: Mode,
    /// Where it is mounted; none in [`Mode::None`].
    pub mount: Option<PathBuf>,
    /// Path of the mounted directory in the hierarchy, without a `/` at its end; empty for the
    /// root, and where a cgroup namespace hides the path.
    pub prefix: Vec<u8>,
    /// True when the root of the hierarchy is mounted; false when only a part can be seen, as in a
    /// container that has not the host's `/sys/fs/cgroup`.
    pub whole: bool,
    /// True when names are to be read from the v1 line of `/proc/PID/cgroup`.
    pub v1: bool,
}

/// Inode number of a hierarchy's root (kernfs gives 1 to the root of each tree).
pub const ROOT_INODE: u64 = 1;

/// Mount point of a v1 hierarchy by its controller, where its root is mounted.
pub fn mount_of(proc_root: &Path, controller: &str) -> Option<PathBuf> {
    let text = std::fs::read(proc_root.join("self/mountinfo")).ok()?;
    let mut mounts = text.split(|&b| b == b'\n').filter_map(Mount::parse);
    let mount = mounts.find(|mount| {
        mount.kind == b"cgroup"
            && has_word(mount.options, controller.as_bytes())
            && prefix(&mount.root).is_empty()
    })?;
    Some(PathBuf::from(OsString::from_vec(mount.point)))
}

impl Hierarchy {
    /// Looks at the running system. Blocks for three small reads.
    pub fn discover(proc_root: &Path) -> Hierarchy {
        let read = |name: &str| std::fs::read(proc_root.join(name)).unwrap_or_default();
        let mut hierarchy = Hierarchy::parse(&read("self/cgroup"), &read("self/mountinfo"));
        let inode = hierarchy
            .mount
            .as_ref()
            .and_then(|mount| std::fs::metadata(mount).ok());
        hierarchy.whole = inode.is_some_and(|meta| meta.ino() == ROOT_INODE);
        hierarchy
    }

    /// Decides from the text of `/proc/self/cgroup` and `/proc/self/mountinfo`. Sets `whole` if the
    /// mount claims to be complete; only its inode proves it.
    pub fn parse(cgroup: &[u8], mountinfo: &[u8]) -> Hierarchy {
        let lines: Vec<CgroupLine<'_>> = cgroup_lines(cgroup).collect();
        let v1 = lines
            .iter()
            .any(|line| line.is_v1() && line.has("perf_event"));
        let beside = lines.iter().any(CgroupLine::is_v1);
        let mounts = mountinfo.split(|&b| b == b'\n').filter_map(Mount::parse);
        let best = mounts
            .filter(|mount| match v1 {
                true => mount.kind == b"cgroup" && has_word(mount.options, b"perf_event"),
                false => mount.kind == b"cgroup2",
            })
            // The widest view first, then the shortest way there.
            .min_by_key(|mount| (prefix(&mount.root).len(), mount.point.len()));
        let mode = match (&best, v1, beside) {
            (None, ..) => Mode::None,
            (_, true, _) => Mode::V1,
            (_, false, true) => Mode::Hybrid,
            (_, false, false) => Mode::Cgroup2,
        };
        let prefix = best
            .as_ref()
            .map(|mount| prefix(&mount.root))
            .unwrap_or_default();
        Hierarchy {
            mode,
            whole: best.is_some() && prefix.is_empty(),
            mount: best.map(|mount| PathBuf::from(OsString::from_vec(mount.point))),
            prefix,
            v1,
        }
    }

    /// Path of a process in this hierarchy, from the text of its `/proc/PID/cgroup`.
    pub fn path_in(&self, cgroup: &[u8]) -> Option<Vec<u8>> {
        let line = match self.v1 {
            true => cgroup_lines(cgroup).find(|line| line.is_v1() && line.has("perf_event")),
            false => cgroup_lines(cgroup).find(|line| !line.is_v1()),
        };
        // On a machine without either, systemd's own hierarchy knows slices and units.
        let line = line.filter(|line| self.mode != Mode::None || line.path != b"/");
        let line =
            line.or_else(|| cgroup_lines(cgroup).find(|line| line.controllers == b"name=systemd"))?;
        let path = line.path.strip_suffix(b" (deleted)").unwrap_or(line.path);
        Some(climb(path))
    }

    /// Path in the hierarchy of a directory below the mount.
    pub fn path_of(&self, below: &[u8]) -> Vec<u8> {
        let path = [self.prefix.as_slice(), below].concat();
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// The directory of a path of the hierarchy, where it can be seen.
    pub fn directory(&self, path: &[u8]) -> Option<PathBuf> {
        let below = path.strip_prefix(self.prefix.as_slice())?;
        if !below.is_empty() && below[0] != b'/' {
            return None;
        }
        // An absolute path or `..` would lead out of the mount; the kernel writes neither here.
        let start = below.iter().position(|&byte| byte != b'/');
        let below = &below[start.unwrap_or(below.len())..];
        if below.split(|&byte| byte == b'/').any(|name| name == b"..") {
            return None;
        }
        Some(
            self.mount
                .as_ref()?
                .join(std::ffi::OsStr::from_bytes(below)),
        )
    }
}

/// A line of `/proc/PID/cgroup`: `7:cpu,cpuacct:/a` (v1) or `0::/a` (cgroup2).
struct CgroupLine<'a> {
    hierarchy: &'a [u8],
    controllers: &'a [u8],
    path: &'a [u8],
}

impl CgroupLine<'_> {
    fn is_v1(&self) -> bool {
        self.hierarchy != b"0"
    }

    fn has(&self, controller: &str) -> bool {
        has_word(self.controllers, controller.as_bytes())
    }
}

/// Splits the file. The kernel refuses names with a newline (cgroup_mkdir), so a line is a line.
fn cgroup_lines(text: &[u8]) -> impl Iterator<Item = CgroupLine<'_>> {
    text.split(|&b| b == b'\n').filter_map(|line| {
        let mut parts = line.splitn(3, |&b| b == b':');
        let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let number = !hierarchy.is_empty() && hierarchy.iter().all(u8::is_ascii_digit);
        (number && path.starts_with(b"/")).then_some(CgroupLine {
            hierarchy,
            controllers,
            path,
        })
    })
}

fn has_word(list: &[u8], word: &[u8]) -> bool {
    list.split(|&b| b == b',').any(|item| item == word)
}

/// The mount's root as a prefix of paths: empty for `/` and for `/../..`, the root as it looks from
/// inside a cgroup namespace.
fn prefix(root: &[u8]) -> Vec<u8> {
    let path = climb(root);
    if path == b"/" { Vec::new() } else { path }
}

/// Removes the `/..` that lead out of the daemon's cgroup namespace. If the path leads to an
/// ancestor below the root, the names in between are unknown and missing from it; unit and
/// container, which are at its end, are still right.
fn climb(path: &[u8]) -> Vec<u8> {
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"/..") {
        if !rest.is_empty() && rest[0] != b'/' {
            break;
        }
        path = rest;
    }
    if path.is_empty() {
        b"/".to_vec()
    } else {
        path.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CGROUP2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw shared:1 master:2 - cgroup2 cgroup2 rw\n";
    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        33 31 0:30 / /sys/fs/cgroup/net_cls,perf_event rw - cgroup cgroup rw,net_cls,perf_event\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn parse(cgroup: &str, mounts: &str) -> (Mode, String, String, bool) {
        let found = Hierarchy::parse(cgroup.as_bytes(), mounts.as_bytes());
        let mount = found
            .mount
            .map(|mount| mount.display().to_string())
            .unwrap_or_default();
        (
            found.mode,
            mount,
            String::from_utf8(found.prefix).unwrap(),
            found.whole,
        )
    }

    fn check(cgroup: &str, mounts: &str, mode: Mode, mount: &str, prefix: &str) {
        let whole = mode != Mode::None && prefix.is_empty();
        let expected = (mode, mount.to_owned(), prefix.to_owned(), whole);
        assert_eq!(parse(cgroup, mounts), expected, "{cgroup}{mounts}");
    }

    #[test]
    fn the_hierarchy_of_perf_event_is_found() {
        check("0::/\n", CGROUP2, Mode::Cgroup2, "/sys/fs/cgroup", "");
        check(
            "2:cpu,cpuacct:/\n0::/\n",
            HYBRID,
            Mode::Hybrid,
            "/sys/fs/cgroup/unified",
            "",
        );
        let v1 = "4:net_cls,perf_event:/\n2:cpu:/\n0::/\n";
        check(v1, V1, Mode::V1, "/sys/fs/cgroup/net_cls,perf_event", "");
        check("", "", Mode::None, "", "");
    }

    #[test]
    fn a_v1_hierarchy_that_is_not_mounted_is_not_replaced_by_cgroup2() {
        check("4:perf_event:/\n0::/\n", CGROUP2, Mode::None, "", "");
    }

    #[test]
    fn a_container_sees_a_part_or_the_whole_from_below() {
        let part = "31 23 0:28 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        check(
            "0::/docker/ab\n",
            part,
            Mode::Cgroup2,
            "/sys/fs/cgroup",
            "/docker/ab",
        );
        let above = "31 23 0:28 /../.. /host/cgroup ro - cgroup2 cgroup2 rw\n";
        check("0::/\n", above, Mode::Cgroup2, "/host/cgroup", "");
        // The host's tree is wider than the container's own.
        check(
            "0::/\n",
            &(part.to_owned() + above),
            Mode::Cgroup2,
            "/host/cgroup",
            "",
        );
        let beside = "31 23 0:28 /../other /host/cgroup ro - cgroup2 cgroup2 rw\n";
        check("0::/\n", beside, Mode::Cgroup2, "/host/cgroup", "/other");
    }

    #[test]
    fn mount_points_with_spaces_and_broken_lines_are_read() {
        let text = "nonsense\n\n31 23 0:28 / /mnt/a\\040b\\134 rw - cgroup2 none rw\n31 23 0:2 /\n";
        check("0::/\n", text, Mode::Cgroup2, "/mnt/a b\\", "");
    }

    #[test]
    fn paths_of_processes_come_from_the_right_line() {
        let path = |cgroup: &str, mounts: &str, text: &str| {
            let found = Hierarchy::parse(cgroup.as_bytes(), mounts.as_bytes());
            found
                .path_in(text.as_bytes())
                .map(|path| String::from_utf8(path).unwrap())
        };
        let text = "4:net_cls,perf_event:/v1\n1:name=systemd:/s/a.service\n0::/v2\n";
        assert_eq!(
            path("4:net_cls,perf_event:/\n0::/\n", V1, text).as_deref(),
            Some("/v1")
        );
        assert_eq!(path("0::/\n", CGROUP2, text).as_deref(), Some("/v2"));
        // perf_event on no hierarchy: whatever names there are.
        assert_eq!(
            path("2:cpu:/\n", "", "2:cpu:/x\n1:name=systemd:/s\n").as_deref(),
            Some("/s")
        );
        assert_eq!(
            path("", "", "1:name=systemd:/s\n0::/\n").as_deref(),
            Some("/s")
        );
        assert_eq!(
            path("0::/\n", CGROUP2, "0::/gone (deleted)\n").as_deref(),
            Some("/gone")
        );
        assert_eq!(
            path("0::/\n", CGROUP2, "0::/../../a/b\n").as_deref(),
            Some("/a/b")
        );
        assert_eq!(path("0::/\n", CGROUP2, "0::/..\n").as_deref(), Some("/"));
        assert_eq!(
            path("0::/\n", CGROUP2, "0::/..a/b\n").as_deref(),
            Some("/..a/b")
        );
        assert_eq!(path("0::/\n", CGROUP2, ""), None);
    }

    #[test]
    fn directories_and_paths_match_each_other() {
        let part = "31 23 0:28 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let found = Hierarchy::parse(b"0::/docker/ab\n", part.as_bytes());
        assert_eq!(found.path_of(b"/x"), b"/docker/ab/x");
        assert_eq!(found.path_of(b""), b"/docker/ab");
        assert_eq!(
            found.directory(b"/docker/ab/x"),
            Some(PathBuf::from("/sys/fs/cgroup/x"))
        );
        assert_eq!(found.directory(b"/elsewhere"), None);
        assert_eq!(found.directory(b"/docker/abc"), None);
        assert_eq!(
            found.directory(b"/docker/ab//etc"),
            Some(PathBuf::from("/sys/fs/cgroup/etc"))
        );
        assert_eq!(found.directory(b"/docker/ab/x/../../y"), None);
        assert_eq!(
            Hierarchy::parse(b"0::/\n", CGROUP2.as_bytes()).path_of(b""),
            b"/"
        );
    }
}
