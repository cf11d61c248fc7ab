//! Finds the cgroups that the target of a trigger names.
//!
//! A path of names and patterns is followed through the mounted hierarchy; directories are listed
//! only where there is a pattern. Bounds: `ENTRIES_MAX` directories examined, `DEPTH_MAX` levels,
//! [`CGROUPS_MAX`] found. Names come from the kernel and cannot lead out of the mount, and cgroupfs
//! has no links.

use super::CGROUPS_MAX;
use agent_config::triggers::target::Part;
use cgroup::Hierarchy;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most directories looked at for one target. Reading one takes some 10 µs, and this is done every
/// ten seconds.
const ENTRIES_MAX: usize = 8192;

/// Deepest directory looked at. Unit: levels below the mount.
const DEPTH_MAX: usize = 32;

/// A cgroup that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedCgroup {
    /// Path in the hierarchy.
    pub path: String,
    /// Inode of its directory: a path made again is another cgroup.
    pub inode: u64,
}

/// The cgroups of a target.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MatchedCgroups {
    /// The found cgroups, ordered by path.
    pub places: Vec<MatchedCgroup>,
    /// True when a bound left some out.
    pub cut: bool,
}

/// Looks for the cgroups of `parts`. Blocks on reads of cgroupfs.
pub fn find(hierarchy: &Hierarchy, parts: &[Part]) -> MatchedCgroups {
    let mut found = MatchedCgroups::default();
    let Some(mount) = &hierarchy.mount else {
        return found;
    };
    let mut at = closure(parts, vec![0]);
    // What lies above the mount is not seen, but it is part of paths.
    let prefix = String::from_utf8_lossy(&hierarchy.prefix).into_owned();
    for name in prefix.split('/').filter(|name| !name.is_empty()) {
        at = advance(parts, &at, name);
    }
    let mut walk = Walk {
        parts,
        entries: 0,
        found: &mut found,
    };
    walk.enter(mount, &prefix, &at, 0);
    found.places.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    found
}

struct Walk<'a> {
    parts: &'a [Part],
    entries: usize,
    found: &'a mut MatchedCgroups,
}

impl Walk<'_> {
    /// Goes on below a directory, `at` being where in the parts it stands.
    fn enter(&mut self, directory: &Path, path: &str, at: &[usize], depth: usize) {
        if depth > DEPTH_MAX {
            self.found.cut = true;
            return;
        }
        let open = |&&at: &&usize| at < self.parts.len();
        let next: Vec<&Part> = at.iter().filter(open).map(|&at| &self.parts[at]).collect();
        if next.is_empty() {
            return;
        }
        let literal = |part: &&Part| match part {
            Part::Name(name) => Some(name.clone()),
            _ => None,
        };
        let literals: Option<Vec<String>> = next.iter().map(literal).collect();
        match literals {
            Some(names) => {
                for name in names {
                    let below = directory.join(&name);
                    if let Ok(meta) = std::fs::symlink_metadata(&below)
                        && meta.is_dir()
                    {
                        self.visit(&below, path, &name, meta.ino(), at, depth);
                    }
                }
            }
            None => self.list(directory, path, at, depth),
        }
    }

    fn list(&mut self, directory: &Path, path: &str, at: &[usize], depth: usize) {
        // A directory that is gone, or may not be read, has nothing to look at.
        let Ok(entries) = std::fs::read_dir(directory) else {
            return;
        };
        for entry in entries.map_while(Result::ok) {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            self.visit(&entry.path(), path, name, meta.ino(), at, depth);
            if self.entries >= ENTRIES_MAX {
                self.found.cut = true;
                return;
            }
        }
    }

    fn visit(
        &mut self,
        directory: &Path,
        above: &str,
        name: &str,
        inode: u64,
        at: &[usize],
        depth: usize,
    ) {
        self.entries += 1;
        let at = advance(self.parts, at, name);
        if at.is_empty() || self.entries > ENTRIES_MAX {
            return;
        }
        let path = format!("{above}/{name}");
        if at.contains(&self.parts.len()) {
            if self.found.places.len() >= CGROUPS_MAX {
                self.found.cut = true;
                return;
            }
            let path = path.clone();
            self.found.places.push(MatchedCgroup { path, inode });
        }
        self.enter(directory, &path, &at, depth + 1);
    }
}

/// Indices of the parts that may follow after a name.
fn advance(parts: &[Part], at: &[usize], name: &str) -> Vec<usize> {
    let mut next = Vec::new();
    for &at in at {
        match parts.get(at) {
            Some(Part::Any) => next.push(at),
            Some(Part::Name(wanted)) if wanted == name => next.push(at + 1),
            Some(Part::Pattern(pattern)) if is_like(pattern, name) => next.push(at + 1),
            _ => {}
        }
    }
    closure(parts, next)
}

/// [`Part::Any`] may stand for nothing.
fn closure(parts: &[Part], mut at: Vec<usize>) -> Vec<usize> {
    let mut look = 0;
    while let Some(&place) = at.get(look) {
        if parts.get(place) == Some(&Part::Any) && !at.contains(&(place + 1)) {
            at.push(place + 1);
        }
        look += 1;
    }
    at.sort_unstable();
    at.dedup();
    at
}

/// True when a name is like a pattern. Takes time in proportion to both lengths at worst.
fn is_like(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last `*` does not fit.
    let mut back: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                back = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut back {
                Some((star, taken)) => {
                    *taken += 1;
                    (p, n) = (*star + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// The directory of a path in a v1 hierarchy of another controller.
pub fn below(mount: &Path, path: &str) -> Option<PathBuf> {
    let below = path.strip_prefix('/')?;
    let sound = |name: &str| name != ".." && name != ".";
    below.split('/').all(sound).then(|| mount.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_config::triggers::target::{Target, TargetError};
    use cgroup::Mode;

    fn tree(paths: &[&str]) -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        for path in paths {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let hierarchy = Hierarchy {
            mode: Mode::Cgroup2,
            mount: Some(dir.path().to_path_buf()),
            prefix: Vec::new(),
            whole: true,
            v1: false,
        };
        (dir, hierarchy)
    }

    fn paths(hierarchy: &Hierarchy, target: &str) -> Vec<String> {
        let Target::Cgroups(parts) = Target::parse(target).unwrap() else {
            panic!("the host");
        };
        let found = find(hierarchy, &parts);
        assert!(!found.cut);
        found.places.into_iter().map(|place| place.path).collect()
    }

    #[test]
    fn targets_name_cgroups_by_path_pattern_and_unit() {
        let (_dir, hierarchy) = tree(&[
            "system.slice/api.service",
            "system.slice/api2.service/worker",
            "user.slice/a.slice/api.service",
            "kube/pod1/app",
            "kube/pod2/app",
        ]);
        let check = |target: &str, expected: &[&str]| {
            assert_eq!(paths(&hierarchy, target), expected, "{target}");
        };
        check("/system.slice/api.service", &["/system.slice/api.service"]);
        check("/system.slice/nothing.service", &[]);
        check(
            "/system.slice/*.service",
            &["/system.slice/api.service", "/system.slice/api2.service"],
        );
        check("/kube/pod?/app/", &["/kube/pod1/app", "/kube/pod2/app"]);
        check(
            "api.service",
            &[
                "/system.slice/api.service",
                "/user.slice/a.slice/api.service",
            ],
        );
        check("/**/app", &["/kube/pod1/app", "/kube/pod2/app"]);
    }

    #[test]
    fn a_part_of_the_hierarchy_is_seen_under_its_whole_path() {
        let (_dir, mut hierarchy) = tree(&["b/c"]);
        hierarchy.prefix = b"/docker/ab".to_vec();
        hierarchy.whole = false;
        assert_eq!(paths(&hierarchy, "/docker/*/b"), ["/docker/ab/b"]);
        assert_eq!(paths(&hierarchy, "/b"), [""; 0]);
    }

    #[test]
    fn more_cgroups_than_the_bound_are_cut_and_said() {
        let names: Vec<String> = (0..=CGROUPS_MAX).map(|n| format!("g{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_dir, hierarchy) = tree(&names);
        let found = find(&hierarchy, &[Part::of("g*")]);
        assert_eq!((found.places.len(), found.cut), (CGROUPS_MAX, true));
    }

    #[test]
    fn links_are_not_followed() {
        let (dir, hierarchy) = tree(&["a/x"]);
        std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("link")).unwrap();
        assert_eq!(paths(&hierarchy, "/link/x"), [""; 0]);
        assert_eq!(paths(&hierarchy, "/*/x"), ["/a/x"]);
    }

    #[test]
    fn what_is_no_target_is_refused() {
        let check = |text: &str, expected| assert_eq!(Target::parse(text), Err(expected), "{text}");
        check("", TargetError::Form);
        check("hots", TargetError::Form);
        check("a/b.service", TargetError::Form);
        check(".service", TargetError::Form);
        check("/", TargetError::Root);
        check("/a/../b", TargetError::Dots);
        check("/a/**", TargetError::Open);
    }

    #[test]
    fn patterns_match_whole_names() {
        let check = |pattern: &str, name: &str, expected| {
            assert_eq!(is_like(pattern, name), expected, "{pattern} {name}");
        };
        check("*", "", true);
        check("a*c*e", "abcde", true);
        check("a*c*e", "abcdef", false);
        check("?", "ä", true);
        check("?", "", false);
        check("*.service", "a.service.service", true);
        check(&"*a".repeat(30), &"a".repeat(29), false);
    }
}
