//! The daemon's configuration: its keys, and the rules between keys. The crate `config` reads and
//! checks the files.
#![forbid(unsafe_code)]

mod fleet;
mod keys;
mod metrics;
mod protection;
mod sections;
mod tables;
pub mod triggers;

pub use config::log::{Log, LogFormat, LogLevel};
pub use config::{
    ConfigError, Configuration, Conflict, CpuShare, Diff, Key, Kind, Listen, Place, Reload,
    SocketMode, Value, sample_yaml,
};
pub use fleet::CollectorTls;
pub use keys::{KEYS, SOURCE_KINDS};
pub use metrics::{CpuMetrics, Metrics};
pub use protection::Sandbox;
pub use sections::{
    Budget, Captures, Collector, Containers, Jit, Recorder, RemoteCaptures, Sampling,
    SamplingEvent, Server, Shutdown, Spool, Symbols, Tls, Unwind, UnwindMode, Windows,
};
pub use triggers::{Seconds, Trigger, TriggerCapture};

use serde::Serialize;

/// Everything the operator may decide. [`KEYS`] has the meaning, unit and range of each field.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Config {
    /// What is sampled and how often.
    pub sampling: Sampling,
    /// How user stacks are walked.
    pub unwind: Unwind,
    /// How native and kernel addresses get names.
    pub symbols: Symbols,
    /// How generated code gets names.
    pub jit: Jit,
    /// Metadata of containers.
    pub containers: Containers,
    /// How samples are folded over time.
    pub windows: Windows,
    /// The flight recorder.
    pub recorder: Recorder,
    /// Captures on demand.
    pub captures: Captures,
    /// Selectors of processes whose stacks never leave the host.
    pub withhold: Vec<String>,
    /// Conditions that pin the recorder's minutes.
    pub triggers: Vec<Trigger>,
    /// The daemon's budget.
    pub budget: Budget,
    /// The gRPC server.
    pub server: Server,
    /// The Prometheus endpoint.
    pub metrics: Metrics,
    /// Where closed windows are pushed.
    pub collector: Collector,
    /// Whether the daemon gives up what it does not need.
    pub sandbox: Sandbox,
    /// The daemon's own log.
    pub log: Log,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

const HEAD: &str = "\
# Configuration of fleetprofd. Every key is here with its default: delete what you do not change.
# The daemon needs no file; it reads /etc/fleetprof/agent.yaml when that exists, or --config FILE.
#
# Any key can also be given as an environment variable (FLEETPROF_SAMPLING_RATE_HZ=49) or as a flag
# (--set sampling.rate_hz=49). A flag wins over the environment, the environment over the file.
# `agent-ctl config check FILE` checks a file; `agent-ctl config reload` or SIGHUP applies it,
# except for keys that say \"at the next start\".
";

impl config::log::HasLog for Config {
    fn log(&self) -> &Log {
        &self.log
    }

    fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }
}

/// A configuration of the daemon and where it came from.
pub type Loaded = config::Loaded<Config>;

impl Configuration for Config {
    const DEFAULT_PATH: &'static str = "/etc/fleetprof/agent.yaml";
    const ENV_PREFIX: &'static str = "FLEETPROF_";
    const HEAD: &'static str = HEAD;
    const SECTIONS: &'static [(&'static str, &'static str)] = keys::SECTIONS;
    const KEYS: &'static [Key<Config>] = KEYS;
    const SHORT: &'static [(&'static str, &'static str)] = &[("collector", "collector.address")];
    // `captures.remote*` and `withhold` are the host's last word.
    const IS_POLICY: bool = true;

    fn dangers(&self) -> Vec<String> {
        let mode = self.server.socket_mode;
        let open = matches!(self.server.listen, Listen::Unix(_)) && mode.0 & 0o002 != 0;
        let danger = open.then(|| {
            format!(
                "`server.socket_mode` is {mode}: every user of this machine may query the daemon \
                 and reload its configuration. Use 0660 with `server.socket_group` to allow only a \
                 group"
            )
        });
        danger.into_iter().collect()
    }

    fn settle(&mut self) -> Vec<Conflict> {
        let mut found: Vec<Conflict> = self.of_server().into_iter().collect();
        found.extend(self.of_withhold());
        found.extend(self.of_collector_tls());
        if self.recorder.retention_s < self.windows.length_s {
            let message = format!(
                "is {} s, shorter than one window: make it at least `windows.length_s`, {} s",
                self.recorder.retention_s, self.windows.length_s
            );
            found.push(Conflict::new("recorder.retention_s", message));
        }
        let faults = triggers::Rule::faults(&self.triggers).into_iter();
        found.extend(faults.map(|(at, field, error)| {
            Conflict {
                key: "triggers",
                path: format!("triggers[{at}].{field}"),
                message: error.to_string(),
                about: ["", ".name", ".target", ".when", ".clear"]
                    .map(|field| format!("triggers[{at}]{field}"))
                    .into(),
            }
        }));
        found
    }
}

impl Config {
    /// The first contradiction between keys of the server.
    fn of_server(&mut self) -> Option<Conflict> {
        let conflict = |key, message: String| Some(Conflict::new(key, message));
        if self
            .server
            .tls
            .as_ref()
            .is_some_and(|tls| *tls == Tls::default())
        {
            self.server.tls = None;
        }
        if let Some(tls) = &self.server.tls {
            for (key, path, other) in [
                (
                    "server.tls.cert_file",
                    &tls.cert_file,
                    "server.tls.key_file",
                ),
                ("server.tls.key_file", &tls.key_file, "server.tls.cert_file"),
            ] {
                if path.as_os_str().is_empty() {
                    return conflict(
                        key,
                        format!("is missing: TLS needs both this key and `{other}`"),
                    );
                }
            }
        }
        if let Listen::Tcp(address) = self.server.listen {
            if self.server.token_file.is_none() {
                let message = format!(
                    "must be set to listen on TCP (`server.listen` is `{address}`): profiles show \
                     what runs on the machine, and a TCP port has no file permissions. Create a \
                     token that only the daemon can read, or listen on \
                     `unix:/run/fleetprof/agent.sock`"
                );
                return conflict("server.token_file", message);
            }
            if !address.ip().is_loopback() && self.server.tls.is_none() {
                let message = format!(
                    "must be set to listen beyond loopback (`server.listen` is `{address}`): the \
                     token would cross the network in the clear. Set `server.tls.cert_file` and \
                     `server.tls.key_file`, or listen on 127.0.0.1"
                );
                return conflict("server.tls", message);
            }
        } else if self.server.tls.is_some() {
            let message = "has no effect on a unix socket: remove it, or listen on TCP".to_owned();
            return conflict("server.tls", message);
        }
        None
    }
}

#[cfg(test)]
mod tests;
