//! Derives labels from a cgroup path: systemd slice and unit, container, runtime, pod.
//!
//! Works on text only: the runtimes' naming schemes are stable, but their sockets are neither
//! stable nor always accessible. Any user who can create a cgroup can choose its name, so a label
//! is set only if the name consists of the characters that the owner of that name space uses; any
//! other name gets no label rather than a wrong one. The innermost name wins: a service in a
//! container on a node that is itself a container gets the labels of the innermost.

/// Labels from a path; absent if it does not have them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Labels {
    /// Innermost systemd slice: `system.slice`, `app.slice`.
    pub slice: Option<Box<str>>,
    /// Innermost systemd unit, in systemd's own spelling (`\x2d` stays: it is what systemctl
    /// takes): `nginx.service`, `getty@tty1.service`, `session-3.scope`.
    pub unit: Option<Box<str>>,
    /// Container id as its runtime prints it, in full; a name where the runtime has names.
    pub container: Option<Box<str>>,
    /// `docker`, `containerd`, `cri-o`, `podman`, `lxc`, `systemd-nspawn`; absent if the path shows
    /// a container but not its runtime.
    pub runtime: Option<&'static str>,
    /// Kubernetes pod uid, with hyphens.
    pub pod_uid: Option<Box<str>>,
}

/// Most components looked at. Deeper names get the labels of their 128th ancestor.
const COMPONENTS_MAX: usize = 128;

/// Name prefixes of containers, as a scope (`docker-ID.scope`), a directory (`libpod-ID`) or
/// between colons (`SLICE:cri-containerd:ID`).
const PREFIXES: &[(&str, &str)] = &[
    ("cri-containerd", "containerd"),
    ("nerdctl", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
    ("libpod-payload", "podman"),
    ("libpod", "podman"),
];

/// Directories with a runtime's containers as children, named by their full id.
const PARENTS: &[(&str, &str)] = &[
    ("docker", "docker"),
    ("moby", "docker"),
    ("ecs", "docker"),
    ("k8s.io", "containerd"),
];

/// Unit types that have processes of their own (systemd.unit(5)).
const UNIT_TYPES: &[&str] = &[".service", ".scope", ".socket", ".mount", ".swap"];

/// Longest unit name. Unit: bytes (UNIT_NAME_MAX of systemd, less one).
const UNIT_BYTES_MAX: usize = 255;

impl Labels {
    /// Reads a path from the root of its hierarchy.
    pub fn of_path(path: &str) -> Labels {
        let mut labels = Labels::default();
        // Innermost well-known directory above, and whether kubelet's tree was entered.
        let (mut under, mut kubepods) = (None, false);
        let names = path.split('/').filter(|name| !name.is_empty());
        for (depth, name) in names.take(COMPONENTS_MAX).enumerate() {
            if let Some(unit) = unit_name(name) {
                if unit.ends_with(".slice") {
                    labels.slice = Some(unit.into());
                } else {
                    labels.unit = Some(unit.into());
                }
            }
            let (group, rest) = split_colons(name);
            kubepods |= group.trim_end_matches(".slice").ends_with("kubepods");
            if let Some(uid) = pod_uid(group, kubepods) {
                labels.pod_uid = Some(uid);
            }
            if let Some((container, runtime)) = container(name, rest, depth, under) {
                labels.container = Some(container);
                labels.runtime = runtime;
            }
            // `ecs/TASK/ID` has a level between; the others have none.
            if under != Some("ecs") || PARENTS.iter().any(|(parent, _)| *parent == name) {
                under = Some(name);
            }
        }
        labels
    }

    /// The labels that are there, with their keys.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            (profile::key::SLICE, self.slice.as_deref()),
            (profile::key::UNIT, self.unit.as_deref()),
            (profile::key::CONTAINER, self.container.as_deref()),
            (profile::key::RUNTIME, self.runtime),
            (profile::key::POD_UID, self.pod_uid.as_deref()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
    }
}

/// The systemd unit or slice that a directory is named after.
fn unit_name(name: &str) -> Option<&str> {
    // systemd puts `_` before names that a kernel file could have, and takes it off again.
    let name = name.strip_prefix('_').unwrap_or(name);
    let mut types = UNIT_TYPES.iter().chain(&[".slice"]);
    let stem = types.find_map(|suffix| name.strip_suffix(suffix))?;
    let valid = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    // A colon form of runc (`SLICE:PREFIX:NAME`) is no unit, though a unit may have colons.
    let fits = name.len() <= UNIT_BYTES_MAX && !stem.is_empty() && !stem.contains(".slice:");
    (fits && name.bytes().all(valid)).then_some(name)
}

/// Splits runc's `SLICE:PREFIX:NAME` into (slice, (prefix, name)). It becomes the name of a
/// directory if the runtime is set to systemd but runc is not.
fn split_colons(name: &str) -> (&str, Option<(&str, &str)>) {
    let mut parts = name.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(group), Some(prefix), Some(id)) => (group, Some((prefix, id))),
        _ => (name, None),
    }
}

/// The pod of `pod<uid>` below kubepods and of `…kubepods-burstable-pod<uid>.slice`.
fn pod_uid(name: &str, kubepods: bool) -> Option<Box<str>> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) if slice.contains("kubepods") => slice.rsplit_once("-pod")?.1,
        Some(_) => return None,
        None if kubepods => name.strip_prefix("pod")?,
        None => return None,
    };
    let uid = uid.replace('_', "-");
    // Pods from the API have a UUID, pods from files on the node a hash without hyphens.
    let uuid = uid.len() == 36 && uid.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    let digits = uid.bytes().all(|b| is_hex(b) || (uuid && b == b'-'));
    ((uuid || uid.len() == 32) && digits).then(|| uid.into())
}

/// The container that a directory is named after, and its runtime.
fn container(
    name: &str,
    colons: Option<(&str, &str)>,
    depth: usize,
    under: Option<&str>,
) -> Option<(Box<str>, Option<&'static str>)> {
    if let Some((prefix, id)) = colons {
        let (_, runtime) = PREFIXES.iter().find(|(known, _)| *known == prefix)?;
        return is_id(id).then(|| (id.into(), Some(*runtime)));
    }
    let stem = name.strip_suffix(".scope").unwrap_or(name);
    // `crio-conmon-ID` and `libpod-conmon-ID` fall through here: `conmon-ID` is no id. They are
    // the runtime's helpers, not in the container.
    for (prefix, runtime) in PREFIXES {
        let rest = stem
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('-'));
        if let Some(id) = rest.filter(|id| is_id(id)) {
            return Some((id.into(), Some(*runtime)));
        }
    }
    if name.len() == 64 && name.bytes().all(is_hex) {
        let parent = PARENTS.iter().find(|(parent, _)| under == Some(*parent));
        return Some((name.into(), parent.map(|(_, runtime)| *runtime)));
    }
    if under == Some("ecs") && is_fargate_id(name) {
        return Some((name.into(), None));
    }
    lxc(name, depth, under)
        .map(|name| (name.into(), Some("lxc")))
        .or_else(|| nspawn(name).map(|name| (name, Some("systemd-nspawn"))))
}

/// `lxc/NAME`, `lxc.payload/NAME`, `lxc.payload.NAME`; `lxc.monitor.NAME` is the helper outside.
fn lxc<'a>(name: &'a str, depth: usize, under: Option<&str>) -> Option<&'a str> {
    let named = match under {
        Some("lxc" | "lxc.payload") if depth == 1 => Some(name),
        _ => name.strip_prefix("lxc.payload."),
    };
    named.filter(|name| is_name(name))
}

/// `machine-NAME.scope` and `systemd-nspawn@NAME.service`. Virtual machines of libvirt have the
/// same scopes and are no containers.
fn nspawn(name: &str) -> Option<Box<str>> {
    let scope = name
        .strip_prefix("machine-")
        .and_then(|rest| rest.strip_suffix(".scope"));
    let service = name
        .strip_prefix("systemd-nspawn@")
        .and_then(|rest| rest.strip_suffix(".service"));
    let machine = unescape(scope.or(service)?)?;
    (is_name(&machine) && !machine.starts_with("qemu-")).then(|| machine.into())
}

/// Undoes systemd's escaping of a name in a unit name: `\x2d` → `-`, `-` → `/`
/// (systemd-escape(1)). None when it is not escaped right.
fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |b: &u8| (*b as char).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                rest = after;
            }
            (b'\\', _) => return None,
            (b'-', _) => bytes.push(b'/'),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).ok()
}

fn is_hex(b: u8) -> bool {
    matches!(b, b'0'..=b'9' | b'a'..=b'f')
}

/// An id after a runtime's prefix: 64 hex digits with every runtime known; some tools shorten it.
fn is_id(text: &str) -> bool {
    (12..=64).contains(&text.len()) && text.bytes().all(is_hex)
}

/// Name of a container on AWS Fargate: 32 hex digits of the task, a hyphen, decimal digits.
fn is_fargate_id(name: &str) -> bool {
    name.split_once('-').is_some_and(|(task, number)| {
        task.len() == 32
            && task.bytes().all(is_hex)
            && (1..=20).contains(&number.len())
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// A name that an administrator gives to a machine: as a host name, with underscores.
fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const ID2: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
    const UID: &str = "2ab5d5c4-9f2c-4f4e-8a1e-0123456789ab";
    const UID_: &str = "2ab5d5c4_9f2c_4f4e_8a1e_0123456789ab";

    /// Compares with `slice=… unit=…` in that order; `{id}`, `{id2}`, `{uid}`, `{uid_}` stand for
    /// the constants.
    fn check(path: &str, expected: &str) {
        let fill = |text: &str| {
            text.replace("{id}", ID)
                .replace("{id2}", ID2)
                .replace("{uid}", UID)
                .replace("{uid_}", UID_)
        };
        let labels = Labels::of_path(&fill(path));
        let text: Vec<String> = labels
            .pairs()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(text.join(" "), fill(expected), "{path}");
    }

    #[test]
    fn systemd_slices_and_units() {
        check("/", "");
        check("/init.scope", "unit=init.scope");
        check("/system.slice", "slice=system.slice");
        check(
            "/system.slice/nginx.service",
            "slice=system.slice unit=nginx.service",
        );
        check(
            "/system.slice/system-getty.slice/getty@tty1.service",
            "slice=system-getty.slice unit=getty@tty1.service",
        );
        check(
            "/system.slice/systemd-udevd.service/udev",
            "slice=system.slice unit=systemd-udevd.service",
        );
        check(
            "/system.slice/dbus.socket",
            "slice=system.slice unit=dbus.socket",
        );
        check(
            "/system.slice/dev-disk-by\\x2dlabel-swap.swap",
            "slice=system.slice unit=dev-disk-by\\x2dlabel-swap.swap",
        );
        check(
            "/system.slice/_cpu.service",
            "slice=system.slice unit=cpu.service",
        );
    }

    #[test]
    fn users_sessions_and_their_services() {
        check(
            "/user.slice/user-1000.slice/session-3.scope",
            "slice=user-1000.slice unit=session-3.scope",
        );
        check(
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/\
             vte-spawn-1.scope",
            "slice=app-org.gnome.Terminal.slice unit=vte-spawn-1.scope",
        );
        check(
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "slice=user-1000.slice unit=init.scope",
        );
    }

    #[test]
    fn docker() {
        check("/docker/{id}", "container={id} runtime=docker");
        check(
            "/docker/{id}/init.scope",
            "unit=init.scope container={id} runtime=docker",
        );
        check("/moby/{id}", "container={id} runtime=docker");
        check(
            "/system.slice/docker-{id}.scope",
            "slice=system.slice unit=docker-{id}.scope container={id} runtime=docker",
        );
        check("/system.slice:docker:{id}", "container={id} runtime=docker");
        check("/teams/blue/{id}", "container={id}");
        check(
            "/system.slice/docker.service",
            "slice=system.slice unit=docker.service",
        );
        check("/docker/buildkit", "");
    }

    #[test]
    fn kubernetes_with_the_systemd_driver() {
        check(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/\
             cri-containerd-{id}.scope",
            "slice=kubepods-burstable-pod{uid_}.slice unit=cri-containerd-{id}.scope \
             container={id} runtime=containerd pod_uid={uid}",
        );
        check(
            "/kubepods.slice/kubepods-pod{uid_}.slice/crio-{id}.scope/container",
            "slice=kubepods-pod{uid_}.slice unit=crio-{id}.scope container={id} runtime=cri-o \
             pod_uid={uid}",
        );
        check(
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/\
             crio-conmon-{id}.scope",
            "slice=kubepods-besteffort-pod{uid_}.slice unit=crio-conmon-{id}.scope pod_uid={uid}",
        );
        check(
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/\
             docker-{id}.scope",
            "slice=kubepods-besteffort-pod{uid_}.slice unit=docker-{id}.scope container={id} \
             runtime=docker pod_uid={uid}",
        );
        check(
            "/system.slice/containerd.service/kubepods-burstable-pod{uid_}.slice:cri-containerd:{id}",
            "slice=system.slice unit=containerd.service container={id} runtime=containerd \
             pod_uid={uid}",
        );
    }

    #[test]
    fn kubernetes_with_the_cgroupfs_driver() {
        check(
            "/kubepods/burstable/pod{uid}/{id}",
            "container={id} pod_uid={uid}",
        );
        check("/kubepods/pod{uid}/{id}", "container={id} pod_uid={uid}");
        check(
            "/kubepods/besteffort/pod{uid}/crio-{id}",
            "container={id} runtime=cri-o pod_uid={uid}",
        );
        // A pod from a file on the node has a hash for a uid.
        check(
            "/kubepods/burstable/pod0123456789abcdef0123456789abcdef/{id}",
            "container={id} pod_uid=0123456789abcdef0123456789abcdef",
        );
        check("/k8s.io/{id}", "container={id} runtime=containerd");
        check("/podcast/pod{uid}", "");
    }

    #[test]
    fn a_node_that_is_a_container_itself() {
        check(
            "/docker/{id}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod{uid_}.slice/cri-containerd-{id2}.scope",
            "slice=kubelet-kubepods-burstable-pod{uid_}.slice unit=cri-containerd-{id2}.scope \
             container={id2} runtime=containerd pod_uid={uid}",
        );
        check(
            "/kubepods/burstable/pod{uid}/{id}/docker/{id2}",
            "container={id2} runtime=docker pod_uid={uid}",
        );
        check(
            "/docker/{id}/system.slice/nginx.service",
            "slice=system.slice unit=nginx.service container={id} runtime=docker",
        );
    }

    #[test]
    fn podman() {
        check(
            "/machine.slice/libpod-{id}.scope/container",
            "slice=machine.slice unit=libpod-{id}.scope container={id} runtime=podman",
        );
        check(
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope",
            "slice=user.slice unit=libpod-{id}.scope container={id} runtime=podman",
        );
        check(
            "/libpod_parent/libpod-{id}",
            "container={id} runtime=podman",
        );
        check(
            "/machine.slice/machine-libpod_pod_{id2}.slice/libpod-{id}.scope",
            "slice=machine-libpod_pod_{id2}.slice unit=libpod-{id}.scope container={id} \
             runtime=podman",
        );
        check(
            "/system.slice/web.service/libpod-payload-{id}",
            "slice=system.slice unit=web.service container={id} runtime=podman",
        );
        check(
            "/machine.slice/libpod-conmon-{id}.scope",
            "slice=machine.slice unit=libpod-conmon-{id}.scope",
        );
        check("/libpod_parent/conmon", "");
    }

    #[test]
    fn machines_and_other_runtimes() {
        check("/lxc/web1", "container=web1 runtime=lxc");
        check(
            "/lxc.payload.web1/system.slice/a.service",
            "slice=system.slice unit=a.service container=web1 runtime=lxc",
        );
        check("/lxc.payload/web1", "container=web1 runtime=lxc");
        check("/lxc.monitor.web1", "");
        check(
            "/machine.slice/machine-web\\x2d1.scope/payload",
            "slice=machine.slice unit=machine-web\\x2d1.scope container=web-1 \
             runtime=systemd-nspawn",
        );
        check(
            "/machine.slice/systemd-nspawn@web.service/payload",
            "slice=machine.slice unit=systemd-nspawn@web.service container=web \
             runtime=systemd-nspawn",
        );
        check(
            "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope",
            "slice=machine.slice unit=machine-qemu\\x2d1\\x2dvm.scope",
        );
        check(
            "/ecs/0123456789abcdef0123456789abcdef/{id}",
            "container={id} runtime=docker",
        );
        check(
            "/ecs/cluster/0123456789abcdef0123456789abcdef/{id}",
            "container={id} runtime=docker",
        );
        check(
            "/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-3458764513",
            "container=0123456789abcdef0123456789abcdef-3458764513",
        );
        check(
            "/ecs.slice/ecstasks.slice/ecstasks-0123456789abcdef0123456789abcdef.slice/\
             docker-{id}.scope",
            "slice=ecstasks-0123456789abcdef0123456789abcdef.slice unit=docker-{id}.scope \
             container={id} runtime=docker",
        );
    }

    #[test]
    fn hostile_names_get_no_labels() {
        check("/docker/{id}\n", "");
        check("/docker/{id}a", "");
        check(
            "/docker/0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
            "",
        );
        check("/a;b.service", "");
        check("/\u{1b}[31m.service", "");
        check("/a\nb.slice", "");
        check("/.service", "");
        check("/.slice", "");
        check("/lxc/a\u{7}b", "");
        check("/lxc.payload.", "");
        check("/machine-\\x0a.scope", "unit=machine-\\x0a.scope");
        check("/machine-\\x.scope", "unit=machine-\\x.scope");
        check("/docker-.scope", "unit=docker-.scope");
        check("/kubepods/pod2ab5d5c4-9f2c-4f4e-8a1e-0123456789aZ", "");
        check("[unknown cgroup 7]", "");
        assert_eq!(
            Labels::of_path(&format!("/{}.service", "a".repeat(300))),
            Labels::default()
        );
        let deep = "/a".repeat(100_000) + "/nginx.service";
        assert_eq!(Labels::of_path(&deep), Labels::default());
    }

    proptest! {
        /// No path yields a label with a character that a terminal, a log or a folded stack minds.
        #[test]
        fn labels_are_plain_text(
            parts in prop::collection::vec("(docker|lxc|ecs|kubepods|pod|libpod-|machine-|[\\PC\\n\u{1b}]{0,5}|[0-9a-f]{64}|\\.scope|\\.slice|:){1,3}", 0..6),
        ) {
            let path = "/".to_owned() + &parts.join("/");
            for (_, value) in Labels::of_path(&path).pairs() {
                prop_assert!(!value.is_empty() && value.len() <= 255);
                prop_assert!(value.bytes().all(|b| b.is_ascii_graphic() && b != b';'), "{value:?}");
            }
        }
    }
}
