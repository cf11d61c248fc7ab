//! The configuration: typed values, where they come from and what a reload may change.
//!
//! Precedence: built-in defaults < file < environment (`FLEETPROF_SAMPLING_RATE_HZ`) < flags
//! (`--set sampling.rate_hz=49`). Whatever the source, a value passes the same check, the one of
//! its row in [`KEYS`]; what one key says about another is checked last, in [`Config::load`]. A
//! configuration is taken whole or not at all. Reading the file blocks: call it at start and on a
//! thread that may.

mod file;
mod keys;
mod sample;
mod sections;
mod value;

pub use keys::{KEYS, Key, Reload};
pub use sample::sample_yaml;
pub use sections::{
    Budget, Collector, Jit, Log, LogFormat, LogLevel, Metrics, Recorder, Sampling, SamplingEvent,
    Server, Shutdown, Spool, Symbols, Tls, Unwind, UnwindMode, Windows,
};
pub use value::{CpuShare, Kind, Listen, SocketMode, Value};

use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// File that is read when none is named. It need not exist.
pub const DEFAULT_PATH: &str = "/etc/fleetprof/agent.yaml";

/// Largest configuration file. Unit: bytes. The sample with every comment is under 10 KiB; what is
/// larger was not written for this program.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

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
    /// How samples are folded over time.
    pub windows: Windows,
    /// The flight recorder.
    pub recorder: Recorder,
    /// What the daemon may cost.
    pub budget: Budget,
    /// The gRPC server.
    pub server: Server,
    /// The Prometheus endpoint.
    pub metrics: Metrics,
    /// Where closed windows are pushed.
    pub collector: Collector,
    /// The daemon's own log.
    pub log: Log,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

/// A configuration and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// File that was read; none when there was none to read.
    pub file: Option<PathBuf>,
    /// What is worth a log line but no refusal: environment variables that name no key.
    pub warnings: Vec<String>,
}

/// How two configurations differ, as sorted key paths. A key is in one list only.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Diff {
    /// Keys that can be put in force at once.
    pub changed: Vec<&'static str>,
    /// Keys that take a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Why a configuration was refused. The active one stays.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be opened or read.
    #[error("failed to read configuration `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file must not be trusted, or is no configuration file.
    #[error("refused configuration `{}`: {why}\n  {remedy}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// How to mend it.
        remedy: String,
    },
    /// Not YAML, or not of the right shape.
    #[error("failed to parse {place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}` in {place}{}", suggestion(*nearest))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where.
        place: Place,
        /// The known key that looks most like it.
        nearest: Option<&'static str>,
    },
    /// A key given twice in one source.
    #[error("key `{key}` is given twice in {place}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second one is.
        place: Place,
    },
    /// A value of the wrong type or out of range.
    #[error("invalid value `{value}` for `{key}` in {place}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value as given, cut when long.
        value: String,
        /// What it may be.
        expected: String,
        /// Where.
        place: Place,
    },
    /// Keys that are well each by itself, but not together.
    #[error("`{key}` {message}")]
    Conflict {
        /// The key to change.
        key: &'static str,
        /// What is wrong, and how to mend it.
        message: String,
    },
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file, and the line in it (from 1) where that is known.
    File(PathBuf, Option<usize>),
    /// An environment variable.
    Env(String),
    /// A `--set` flag.
    Set,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File(path, Some(line)) => write!(f, "`{}` line {line}", path.display()),
            Place::File(path, None) => write!(f, "`{}`", path.display()),
            Place::Env(name) => write!(f, "environment variable `{name}`"),
            Place::Set => f.write_str("`--set`"),
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

impl Config {
    /// Reads the configuration: the file at `path`, else [`DEFAULT_PATH`] when it exists, then
    /// `env`, then `sets` (`key=value`). Needs no file at all.
    ///
    /// # Errors
    /// Says which key, where, what it holds and what it may hold.
    pub fn load(
        path: Option<&Path>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        sets: &[String],
    ) -> Result<Loaded, ConfigError> {
        let path = match path {
            Some(path) => Some(path.to_path_buf()),
            None => Some(PathBuf::from(DEFAULT_PATH)).filter(|path| path.exists()),
        };
        let mut config = Config::default();
        if let Some(path) = &path {
            let text = file::read(path, crate::perf::environment::effective_uid())?;
            file::apply(&mut config, &text, path)?;
        }
        let mut warnings = apply_env(&mut config, env)?;
        apply_sets(&mut config, sets)?;
        config.settle()?;
        warnings.extend(config.dangers());
        Ok(Loaded {
            config,
            file: path,
            warnings,
        })
    }

    /// Reads a configuration from text, as if it stood in the file `path`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        file::apply(&mut config, text, path)?;
        config.settle()?;
        Ok(config)
    }

    /// The configuration as YAML, defaults filled in. [`Config::parse`] reads it back.
    pub fn to_yaml(&self) -> String {
        // The types have string keys and plain scalars only, which serde_yaml always can write.
        serde_yaml::to_string(self).unwrap_or_default()
    }

    /// How `other` differs from this configuration.
    pub fn diff(&self, other: &Config) -> Diff {
        let mut diff = Diff::default();
        for key in KEYS
            .iter()
            .filter(|key| (key.get)(self) != (key.get)(other))
        {
            match key.reload {
                Reload::Live => diff.changed.push(key.path),
                Reload::Restart => diff.needs_restart.push(key.path),
            }
        }
        diff.changed.sort_unstable();
        diff.needs_restart.sort_unstable();
        diff
    }

    /// Takes over from `new` what can be put in force without a restart. The rest stays, so that
    /// this configuration keeps saying what is in force.
    pub fn adopt(&mut self, new: &Config) -> Diff {
        let diff = self.diff(new);
        for key in KEYS.iter().filter(|key| diff.changed.contains(&key.path)) {
            (key.put)(self, (key.get)(new));
        }
        diff
    }

    /// What is admitted, but should be meant.
    fn dangers(&self) -> Option<String> {
        let mode = self.server.socket_mode;
        let open = matches!(self.server.listen, Listen::Unix(_)) && mode.0 & 0o002 != 0;
        open.then(|| {
            format!(
                "`server.socket_mode` is {mode}: every user of this machine may ask what runs on it \
                 and reload the configuration. 0660 with `server.socket_group` lets some"
            )
        })
    }

    /// Checks what one key says about another.
    fn settle(&mut self) -> Result<(), ConfigError> {
        let conflict = |key, message: String| Err(ConfigError::Conflict { key, message });
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
                    return conflict(key, format!("is missing: TLS needs it beside `{other}`"));
                }
            }
        }
        if let Listen::Tcp(address) = self.server.listen {
            if self.server.token_file.is_none() {
                let message = format!(
                    "must be set to listen on TCP (`server.listen` is `{address}`): profiles tell \
                     what runs on the machine, and a TCP port has no owner to check. Create a \
                     token readable by the daemon only, or listen on `unix:/run/fleetprof/agent.sock`"
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
        if self.recorder.retention_s < self.windows.length_s {
            let message = format!(
                "is {} s, shorter than one window: make it at least `windows.length_s`, {} s",
                self.recorder.retention_s, self.windows.length_s
            );
            return conflict("recorder.retention_s", message);
        }
        Ok(())
    }
}

/// Begin of every environment variable that names a key.
const ENV_PREFIX: &str = "FLEETPROF_";

/// Sets the keys that `env` names. Variables that look like a key but are none are returned as
/// warnings, not refused: service managers and orchestrators put names of their own there
/// (`FLEETPROF_SERVER_PORT` for a Kubernetes service called fleetprof-server).
fn apply_env(
    config: &mut Config,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for (name, text) in env {
        let Some(name) = name.to_str().filter(|name| name.starts_with(ENV_PREFIX)) else {
            continue;
        };
        let Some(key) = KEYS.iter().find(|key| key.env_name() == name) else {
            if keys::is_in_section(name) {
                let nearest = keys::nearest(KEYS.iter().map(Key::env_name), name);
                let hint = nearest.map(|at| format!("; did you mean `{}`?", KEYS[at].env_name()));
                let hint = hint.unwrap_or_default();
                warnings.push(format!("environment variable `{name}` names no key{hint}"));
            }
            continue;
        };
        let place = || Place::Env(name.to_owned());
        let Some(text) = text.to_str() else {
            return Err(key.refuse(&text.to_string_lossy(), place()));
        };
        key.put_text(config, text, place)?;
    }
    Ok(warnings)
}

/// Sets the keys that `--set` flags name; a later flag wins.
fn apply_sets(config: &mut Config, sets: &[String]) -> Result<(), ConfigError> {
    for set in sets {
        let Some((path, text)) = set.split_once('=') else {
            let message = format!("`{}` is not of the form `key=value`", value::shown(set));
            return Err(ConfigError::Syntax {
                place: Place::Set,
                message,
            });
        };
        let Some(key) = Key::find(path.trim()) else {
            return Err(ConfigError::UnknownKey {
                key: value::shown(path.trim()),
                place: Place::Set,
                nearest: keys::nearest_path(path.trim()),
            });
        };
        key.put_text(config, text, || Place::Set)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
