//! Settings that protect the host: what it keeps from the collector, and what the daemon locks
//! itself out of. Their keys are at the top level of the file.

use super::Config;
use config::{Conflict, Key, Kind, Reload, Value, put_word, word};
use profile::Withholding;
use profile::withhold::SELECTORS_MAX;
use serde::Serialize;
use std::sync::Arc;

/// Whether the daemon gives up what it does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// As far as the kernel has it.
    #[default]
    Auto,
    /// No sandbox.
    Off,
}

const SANDBOX: &[(Sandbox, &str)] = &[(Sandbox::Auto, "auto"), (Sandbox::Off, "off")];

/// The key `withhold`.
pub(super) const fn withhold_key() -> Key<Config> {
    Key {
        path: "withhold",
        kind: Kind::Selectors(SELECTORS_MAX),
        unit: "",
        reload: Reload::Live,
        doc: "Processes whose stacks never leave this host: selectors with labels that a process \
            cannot choose itself, such as unit=vault.service, cgroup^=/secret.slice or \
            namespace=bank. Their samples go to the collector with weight and cgroup, but with the \
            single frame [withheld], and a collector may not capture them. On the host itself \
            everything stays visible.",
        get: |c| Value::List(c.withhold.clone()),
        put: |c, v| {
            if let Value::List(selectors) = v {
                c.withhold = selectors;
            }
        },
    }
}

/// The key `sandbox`.
pub(super) const fn sandbox_key() -> Key<Config> {
    Key {
        path: "sandbox",
        kind: Kind::Word(&["auto", "off"]),
        unit: "",
        reload: Reload::Restart,
        doc: "Drop rights that the daemon does not need after its start: system calls such as \
            execve, ptrace, mount and bpf (seccomp), and, for threads that use the network, access \
            to all files except their own (Landlock). auto: as far as the kernel supports it; \
            `agent-ctl status` shows what is active.",
        get: |c| word(&c.sandbox, SANDBOX),
        put: |c, v| put_word(&mut c.sandbox, &v, SANDBOX),
    }
}

impl Config {
    /// The selectors in `withhold`.
    pub fn withholding(&self) -> Arc<Withholding> {
        // It was checked when the configuration was read. If it is invalid anyway, everything is
        // withheld.
        let known = Withholding::parse(&self.withhold);
        Arc::new(known.unwrap_or_else(|_| Withholding::everything()))
    }

    /// The first selector that cannot be.
    pub(super) fn of_withhold(&self) -> Option<Conflict> {
        let (at, error) = Withholding::parse(&self.withhold).err()?;
        let path = format!("withhold[{at}]");
        Some(Conflict {
            key: "withhold",
            about: vec![path.clone(), "withhold".to_owned()],
            path,
            message: format!("cannot be withheld: {error}"),
        })
    }
}
