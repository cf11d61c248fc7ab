//! The target of a capture: from matchers to existing processes and cgroups.
//!
//! The result lets the sampler skip early what cannot belong to the capture; labels decide in the
//! end. So the scope may contain more than is selected but never less. Cgroups created while the
//! capture runs are let through, because a restarted service is the same service.
//!
//! Reads cgroupfs and /proc, so it must not be called on the sampler's or the server's thread.

use cgroup::containers::Containers;
use cgroup::{Cgroup, Hierarchy, Mode, living};
use host::ids::{CgroupId, Pid};
use host::proc::start_ticks;
use profile::{LabelMatcher, MatchOp, Selector, Withholding, key};
use std::path::PathBuf;
use tonic::Status;

/// Most values that are looked at for the nearest to a name that nobody has. Unit: entries.
const CANDIDATES_MAX: usize = 10_000;

/// Most cgroups that are watched for their end: any of them is enough to say that the target is
/// there.
const WATCHED_MAX: usize = 256;

/// Processes and cgroups that can belong to a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Processes; empty: any.
    pub pids: Vec<Pid>,
    /// Names of threads or processes; empty: any.
    pub names: Vec<String>,
    /// cgroups; `None`: any.
    pub cgroups: Option<Cgroups>,
    /// What must exist for the target to exist.
    pub presence: Presence,
}

/// cgroups of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// Ids of the existing ones.
    pub ids: Vec<CgroupId>,
    /// Paths in the hierarchy: those that are made there or below belong to the scope.
    pub below: Vec<Vec<u8>>,
    /// The one directory with everything below it that the scope is, where it is one.
    pub subtree: Option<PathBuf>,
}

/// Processes and cgroups of which one must exist for a target to exist. Without any it always
/// exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Processes with their start time from /proc, because a pid may be reused.
    processes: Vec<(Pid, u64)>,
    /// Directories.
    cgroups: Vec<PathBuf>,
}

impl Presence {
    /// Says what is gone, when nothing of it is there any more.
    pub fn gone(&self) -> Option<Gone> {
        if !self.processes.is_empty() {
            let lives = |&(pid, started): &(Pid, u64)| started_ticks(pid) == Some(started);
            if !self.processes.iter().any(lives) {
                return Some(Gone::Processes);
            }
        }
        if !self.cgroups.is_empty() && !self.cgroups.iter().any(|path| path.exists()) {
            return Some(Gone::Cgroups);
        }
        None
    }
}

/// Which part of a target is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// All its processes ended: they do not come back.
    Processes,
    /// All its cgroups were removed; what is started again makes new ones.
    Cgroups,
}

/// Where to look for a target, and for whom.
#[derive(Clone, Copy)]
pub struct Sight<'s> {
    /// The tree of cgroups.
    pub hierarchy: &'s Hierarchy,
    /// Metadata of containers.
    pub containers: &'s Containers,
    /// What the asker must not see, not even that it exists.
    pub withhold: &'s Withholding,
}

impl Sight<'_> {
    fn hides_cgroup(&self, cgroup: &Cgroup) -> bool {
        let told = self.containers.of(&cgroup.labels).unwrap_or_default();
        self.withhold
            .hides_labels(|label| cgroup.value(&told, label))
    }

    /// True if the asker may see this process.
    fn sees(&self, pid: Pid) -> bool {
        if self.withhold.is_empty() {
            return true;
        }
        let lines = std::fs::read(format!("/proc/{}/cgroup", pid.0)).ok();
        let path = lines.and_then(|lines| self.hierarchy.path_in(&lines));
        path.is_some_and(|path| !self.hides_cgroup(&Cgroup::new(CgroupId(0), &path)))
    }

    fn processes(&self) -> impl Iterator<Item = Pid> {
        processes().filter(|&pid| self.sees(pid))
    }
}

/// The target is withheld.
fn withheld() -> Status {
    Status::permission_denied(
        "this host withholds the target of the capture from collectors (`withhold`)",
    )
}

/// Finds what `selector` is about.
///
/// # Errors
/// NOT_FOUND when it names what is not there now, PERMISSION_DENIED when all of it is withheld.
pub fn resolve(selector: &Selector, sight: Sight<'_>) -> Result<Scope, Status> {
    let mut scope = Scope::default();
    let matchers = selector.matchers();
    let of = |label: &str| -> Vec<&LabelMatcher> {
        let all = matchers.iter().filter(|matcher| matcher.label() == label);
        all.filter(|matcher| is_positive(matcher)).collect()
    };
    let pids = of(key::PID);
    if !pids.is_empty() {
        let found = processes().filter(|pid| all_match(&pids, &pid.0.to_string()));
        let found: Vec<(Pid, u64)> = found
            .filter_map(|pid| started_ticks(pid).map(|started| (pid, started)))
            .collect();
        if found.is_empty() {
            return Err(missing("process", &pids, std::iter::empty()));
        }
        if !found.iter().any(|&(pid, _)| sight.sees(pid)) {
            return Err(withheld());
        }
        scope.pids = found.iter().map(|&(pid, _)| pid).collect();
        scope.presence.processes = found;
    }
    let comms = of(key::COMM);
    let exact: Vec<&LabelMatcher> = equal(&comms);
    if !exact.is_empty() {
        let names: Vec<String> = sight.processes().filter_map(comm).collect();
        if !names.iter().any(|name| all_match(&exact, name)) {
            let names = names.iter().map(String::as_str);
            return Err(missing("process named", &exact, names));
        }
        scope.names = exact.iter().map(|one| one.value().to_owned()).collect();
    }
    let threads = of(key::THREAD);
    let exact = equal(&threads);
    if !exact.is_empty() {
        // The narrower of the two: a thread's name, or its process's where both are the same.
        scope.names = exact.iter().map(|one| one.value().to_owned()).collect();
    }
    let wanted = matchers.iter();
    let wanted: Vec<&LabelMatcher> = wanted
        .filter(|matcher| key::is_of_cgroup(matcher.label()))
        .collect();
    if !wanted.is_empty() && sight.hierarchy.mode != Mode::None {
        find_cgroups(&wanted, sight, &mut scope)?;
    }
    Ok(scope)
}

fn find_cgroups(
    wanted: &[&LabelMatcher],
    sight: Sight<'_>,
    scope: &mut Scope,
) -> Result<(), Status> {
    let Sight {
        hierarchy,
        containers,
        ..
    } = sight;
    let all = living(hierarchy);
    let selected = |cgroup: &Cgroup| {
        let known = containers.of(&cgroup.labels).unwrap_or_default();
        let value = |label: &str| cgroup.value(&known, label).unwrap_or_default();
        wanted.iter().all(|one| one.matches(value(one.label())))
    };
    let found: Vec<&(Cgroup, Vec<u8>)> = all.iter().filter(|(one, _)| selected(one)).collect();
    if found.is_empty() {
        let label = wanted[0].label();
        let values = all.iter().flat_map(|(cgroup, _)| cgroup.pairs());
        let values = values.filter(|(name, _)| *name == label);
        let positive: Vec<&LabelMatcher> = wanted.to_vec();
        return Err(missing("cgroup with", &positive, values.map(|pair| pair.1)));
    }
    if found.iter().all(|(one, _)| sight.hides_cgroup(one)) {
        return Err(withheld());
    }
    let directories = found
        .iter()
        .filter_map(|(_, path)| hierarchy.directory(path));
    scope.presence.cgroups = directories.take(WATCHED_MAX).collect();
    let tops = wanted.iter().filter(|one| {
        one.label() == key::CGROUP && matches!(one.op(), MatchOp::Equal | MatchOp::Subtree)
    });
    let mut below: Vec<Vec<u8>> = tops
        .filter_map(|one| {
            let top = all.iter().find(|(cgroup, _)| *cgroup.path == *one.value());
            top.map(|(_, path)| path.clone())
        })
        .collect();
    let subtree = match (wanted, below.first()) {
        ([one], Some(path)) if one.op() == MatchOp::Subtree => hierarchy.directory(path),
        _ => None,
    };
    if below.is_empty() {
        // Whatever is made anywhere may have the labels.
        below.push(b"/".to_vec());
    }
    scope.cgroups = Some(Cgroups {
        ids: found.iter().map(|(cgroup, _)| cgroup.id).collect(),
        below,
        subtree,
    });
    Ok(())
}

fn is_positive(matcher: &LabelMatcher) -> bool {
    // One that takes a missing label says nothing about who is meant.
    matches!(matcher.op(), MatchOp::Equal | MatchOp::Regex) && !matcher.matches("")
}

fn equal<'m>(matchers: &[&'m LabelMatcher]) -> Vec<&'m LabelMatcher> {
    let all = matchers.iter().copied();
    all.filter(|one| one.op() == MatchOp::Equal).collect()
}

fn all_match(matchers: &[&LabelMatcher], text: &str) -> bool {
    matchers.iter().all(|matcher| matcher.matches(text))
}

/// The error when nothing matches.
fn missing<'c>(
    what: &str,
    matchers: &[&LabelMatcher],
    candidates: impl Iterator<Item = &'c str>,
) -> Status {
    let shown: Vec<String> = matchers
        .iter()
        .map(|one| match one.op() {
            MatchOp::Equal if what.starts_with("process") => one.value().escape_debug().to_string(),
            op => format!(
                "{}{}\"{}\"",
                one.label(),
                op.symbol(),
                one.value().escape_debug()
            ),
        })
        .collect();
    let shown = shown.join(",");
    let mut candidates: Vec<String> = candidates.take(CANDIDATES_MAX).map(str::to_owned).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let nearest = config::nearest(candidates.iter().cloned(), matchers[0].value());
    let hint = match nearest {
        Some(at) => format!("\nthe nearest is `{}`", candidates[at].escape_debug()),
        None => String::new(),
    };
    Status::not_found(format!(
        "failed to find the target: there is no {what} `{shown}`{hint}"
    ))
}

/// Processes there are.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
}

fn comm(pid: Pid) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{}/comm", pid.0)).ok()?;
    let name = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Some(String::from_utf8_lossy(name).into_owned())
}

/// When a process started, in ticks since the boot; `None`: it is not there, or all that is left of
/// it is that nobody has waited for it.
fn started_ticks(pid: Pid) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.0)).ok()?;
    // The state stands behind the name, which may hold anything.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    match stat.get(name_end + 2)? {
        b'Z' | b'X' => None,
        _ => start_ticks(&stat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Hierarchy {
        Hierarchy {
            mode: Mode::None,
            mount: None,
            prefix: Vec::new(),
            whole: false,
            v1: false,
        }
    }

    /// A tree of directories in place of cgroupfs.
    fn tree(paths: &[&str]) -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        for path in paths {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let hierarchy = Hierarchy {
            mode: Mode::Cgroup2,
            mount: Some(dir.path().to_path_buf()),
            ..nowhere()
        };
        (dir, hierarchy)
    }

    fn find(selector: &str, hierarchy: &Hierarchy) -> Result<Scope, Status> {
        find_withholding(selector, hierarchy, &Withholding::default())
    }

    fn find_withholding(
        selector: &str,
        hierarchy: &Hierarchy,
        withhold: &Withholding,
    ) -> Result<Scope, Status> {
        let sight = Sight {
            hierarchy,
            containers: &Containers::none(),
            withhold,
        };
        resolve(&selector.parse().unwrap(), sight)
    }

    fn refused(selector: &str, hierarchy: &Hierarchy) -> String {
        let error = find(selector, hierarchy).unwrap_err();
        assert_eq!(error.code(), tonic::Code::NotFound);
        error.message().to_owned()
    }

    #[test]
    fn who_is_withheld_is_no_target_of_a_collector() {
        let (_dir, hierarchy) = tree(&["system.slice/vault.service", "system.slice/shop.service"]);
        let withhold = Withholding::parse(&["unit=vault.service"]).unwrap();
        let find = |selector| find_withholding(selector, &hierarchy, &withhold);
        for selector in ["unit=vault.service", "cgroup^=/system.slice/vault.service"] {
            let refused = find(selector).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied);
            assert!(refused.message().contains("`withhold`"));
        }
        assert!(find("unit=shop.service").is_ok());
        assert!(find("slice=system.slice").is_ok(), "others are in it");
        let own = format!("pid={}", std::process::id());
        assert!(find(&own).is_ok());
        let withhold = Withholding::parse(&["cgroup^=/"]).unwrap();
        let refused = find_withholding(&own, &hierarchy, &withhold).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    }

    #[test]
    fn a_process_is_itself_as_long_as_it_lives() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let scope = find(&format!("pid=\"{}\"", child.id()), &nowhere()).unwrap();
        assert_eq!(scope.pids, [Pid(child.id())]);
        assert_eq!(scope.presence.gone(), None);
        child.kill().unwrap();
        // Not yet waited for: it has ended all the same.
        let gone = || scope.presence.gone() == Some(Gone::Processes);
        while !gone() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(gone());
    }

    #[test]
    fn a_process_may_be_called_anything() {
        use std::os::unix::{ffi::OsStrExt, process::CommandExt};
        let sleep = std::env::var_os("PATH").unwrap_or_default();
        let sleep = std::env::split_paths(&sleep).map(|place| place.join("sleep"));
        let sleep = sleep.into_iter().find(|path| path.exists()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join(std::ffi::OsStr::from_bytes(b"\xff) Z 1"));
        std::os::unix::fs::symlink(sleep, &name).unwrap();
        let mut called = std::process::Command::new(&name);
        let mut child = called.arg0("sleep").arg("1000").spawn().unwrap();
        let scope = find(&format!("pid=\"{}\"", child.id()), &nowhere());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(scope.unwrap().pids, [Pid(child.id())]);
    }

    #[test]
    fn a_process_that_is_not_there_is_told() {
        let found = refused("pid=\"4194999\"", &nowhere());
        assert_eq!(
            found,
            "failed to find the target: there is no process `4194999`"
        );
    }

    #[test]
    fn a_name_that_no_process_has_is_told_with_the_nearest() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        while comm(Pid(child.id())).as_deref() != Some("sleep") {
            std::thread::yield_now();
        }
        let found = refused("comm=\"slepp\"", &nowhere());
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = "failed to find the target: there is no process named `slepp`\n\
                        the nearest is `sleep`";
        assert_eq!(found, expected);
    }

    #[test]
    fn names_by_pattern_may_come_later() {
        let scope = find("comm=~\"no-such.*\"", &nowhere()).unwrap();
        assert_eq!(scope, Scope::default());
    }

    #[test]
    fn a_subtree_is_its_cgroups_and_what_is_made_in_it() {
        let (dir, hierarchy) = tree(&["a/b", "a/c", "ab"]);
        let scope = find("cgroup^=\"/a\"", &hierarchy).unwrap();
        let cgroups = scope.cgroups.unwrap();
        assert_eq!(cgroups.ids.len(), 3);
        assert_eq!(cgroups.below, [b"/a".to_vec()]);
        assert_eq!(cgroups.subtree, Some(dir.path().join("a")));
        assert_eq!(scope.presence.gone(), None);
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert_eq!(scope.presence.gone(), Some(Gone::Cgroups));
    }

    #[test]
    fn a_unit_may_be_started_again_anywhere() {
        let (_dir, hierarchy) = tree(&["system.slice/api.service", "system.slice/db.service"]);
        let scope = find("unit=\"api.service\"", &hierarchy).unwrap();
        let cgroups = scope.cgroups.unwrap();
        assert_eq!((cgroups.ids.len(), cgroups.subtree), (1, None));
        assert_eq!(cgroups.below, [b"/".to_vec()]);
    }

    #[test]
    fn a_unit_that_is_not_there_is_told_with_the_nearest() {
        let (_dir, hierarchy) = tree(&["system.slice/api.service", "system.slice/db.service"]);
        let found = refused("unit=\"apj.service\"", &hierarchy);
        let expected = "failed to find the target: there is no cgroup with \
                        `unit=\"apj.service\"`\nthe nearest is `api.service`";
        assert_eq!(found, expected);
    }

    #[test]
    fn where_cgroups_cannot_be_seen_labels_alone_decide() {
        let scope = find("unit=\"api.service\"", &nowhere()).unwrap();
        assert_eq!(scope, Scope::default());
    }
}
