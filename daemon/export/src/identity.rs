//! The identity and facts of this host that the collector receives.

use host::facts::Environment;
use proto::collector as wire;
use std::path::Path;

/// Context with which the machine id is hashed. The machine id itself is a secret of the host
/// (machine-id(5)): nobody can derive it from our id, or match it with the ids of other programs.
const HOST_ID_CONTEXT: &str = "fleetprof 2026-11-21 host id of exported windows";

/// Longest host id. Unit: bytes; the protocol's bound.
const HOST_ID_MAX: usize = 128;

/// A host and one of its boots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Stays over reboots.
    pub host_id: String,
    /// Another after every boot.
    pub boot_id: [u8; 16],
}

impl Identity {
    /// The id of this machine; `configured` takes precedence over the derived one.
    pub fn of_this_host(configured: Option<&str>, hostname: &str) -> Identity {
        Identity::read(Path::new("/"), configured, hostname)
    }

    fn read(root: &Path, configured: Option<&str>, hostname: &str) -> Identity {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let host_id = match configured {
            Some(id) => id.to_owned(),
            None => {
                let machine = text("etc/machine-id").and_then(|text| machine_id(&text));
                machine.map_or_else(|| fallback(hostname), |id| derive(&id))
            }
        };
        let boot = text("proc/sys/kernel/random/boot_id");
        Identity {
            host_id,
            boot_id: boot.and_then(|text| parse_uuid(&text)).unwrap_or_default(),
        }
    }

    /// The boot in hexadecimal digits.
    pub fn boot(&self) -> String {
        self.boot_id.iter().map(|b| format!("{b:02x}")).collect()
    }
}

fn machine_id(text: &str) -> Option<String> {
    let id = text.trim();
    let digits = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    // All zeros, or `uninitialized`, is no identity.
    (digits && id.bytes().any(|b| b != b'0')).then(|| id.to_ascii_lowercase())
}

fn derive(machine_id: &str) -> String {
    let key = blake3::derive_key(HOST_ID_CONTEXT, machine_id.as_bytes());
    key[..16].iter().map(|b| format!("{b:02x}")).collect()
}

fn fallback(hostname: &str) -> String {
    let plain = |c: char| match c.is_ascii_graphic() {
        true => c,
        false => '_',
    };
    let name: String = hostname.chars().map(plain).take(HOST_ID_MAX - 5).collect();
    format!("name:{name}")
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|&b| b != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}

/// Facts about the host, without settings and spool.
#[derive(Clone, Debug, Default)]
pub struct HostInfo {
    /// Its name.
    pub hostname: String,
    /// Release of its kernel.
    pub kernel: String,
    /// CPUs that run.
    pub cpus_online: u32,
    /// Unit: bytes.
    pub memory_bytes: u64,
}

impl HostInfo {
    /// Collects the facts of this machine.
    pub fn of(environment: &Environment) -> HostInfo {
        HostInfo {
            hostname: environment.host.clone(),
            kernel: environment.kernel.clone(),
            cpus_online: environment.cpus_online.len() as u32,
            memory_bytes: environment.memory_bytes.unwrap_or_default(),
        }
    }

    /// As it is sent.
    pub(super) fn to_wire(&self) -> wire::HostFacts {
        wire::HostFacts {
            hostname: self.hostname.clone(),
            kernel: self.kernel.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            cpus_online: self.cpus_online,
            memory_bytes: self.memory_bytes,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..wire::HostFacts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "0123456789abcdef0123456789abcdef";

    fn host_id(machine: Option<&str>, configured: Option<&str>) -> String {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        if let Some(text) = machine {
            std::fs::write(root.path().join("etc/machine-id"), text).unwrap();
        }
        Identity::read(root.path(), configured, "web 1").host_id
    }

    #[test]
    fn the_machine_id_is_hashed_never_sent() {
        let id = host_id(Some(MACHINE), None);
        assert_eq!(id.len(), 32);
        assert_eq!(id, host_id(Some(&format!("{MACHINE}\n")), None));
        assert_ne!(id, MACHINE);
    }

    #[test]
    fn without_a_machine_id_the_name_stands_in() {
        for machine in [
            None,
            Some("uninitialized\n"),
            Some("00000000000000000000000000000000"),
        ] {
            assert_eq!(host_id(machine, None), "name:web_1");
        }
    }

    #[test]
    fn what_is_configured_goes_first() {
        assert_eq!(host_id(Some(MACHINE), Some("rack7")), "rack7");
    }

    #[test]
    fn the_boot_is_16_bytes() {
        let uuid = "00112233-4455-6677-8899-aabbccddeeff\n";
        assert_eq!(parse_uuid(uuid).map(|id| id[15]), Some(0xff));
        for bad in ["", "0011", "zz112233-4455-6677-8899-aabbccddeeff", "é"] {
            assert_eq!(parse_uuid(bad), None);
        }
    }
}
