//! Configuration from a table of keys: one row states what a key means, its unit, its range and
//! whether a reload applies it. Files, variables, flags and the sample file all follow it.
//!
//! Precedence: built-in defaults < file < environment (`FLEETPROF_SAMPLING_RATE_HZ`) < flags
//! (`--set sampling.rate_hz=49`). Whatever its source, a value passes the same check, that of its
//! row in [`Configuration::KEYS`]; rules between keys are checked last, in [`Configuration::load`].
//! A configuration is applied completely or not at all. Reading the file blocks, so call it at
//! start and on a thread that may block.
#![forbid(unsafe_code)]

mod file;
mod key;
pub mod log;
mod nearest;
mod reference;
mod sample;
mod value;
mod yaml;

pub use key::{
    Key, Reload, as_text, count, joined, path_or_null, put_bool, put_int, put_word, text_or_null,
    word,
};
pub use nearest::{nearest, nearest_word};
pub use reference::reference_page;
pub use sample::sample_yaml;
pub use value::{
    CpuShare, Field, Item, Items, Kind, Listen, SocketMode, Value, parse_seconds, peer_address,
    show_seconds, shown, socket_address,
};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Largest configuration file. Unit: bytes. The sample with every comment is under 16 KiB; what is
/// larger was not written for this program.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything the operator of one program may decide.
pub trait Configuration: Default + Clone + serde::Serialize + 'static {
    /// File that is read when none is named. It need not exist.
    const DEFAULT_PATH: &'static str;
    /// Prefix of every environment variable that names a key.
    const ENV_PREFIX: &'static str;
    /// Comment at the top of the sample file.
    const HEAD: &'static str;
    /// Sections with a sentence each, in the order of the file.
    const SECTIONS: &'static [(&'static str, &'static str)];
    /// Every key, in the order of the file.
    const KEYS: &'static [Key<Self>];
    /// Whether the file limits what others may do, so that only root may write it, or the user who
    /// names a file of their own: checked whoever the program runs as, not for root alone.
    const IS_POLICY: bool = false;
    /// Sections for which one value may stand instead of a map, each with the key that it sets.
    const SHORT: &'static [(&'static str, &'static str)] = &[];

    /// Checks what one key says about another: all that is wrong.
    fn settle(&mut self) -> Vec<Conflict>;

    /// Warnings about settings that are allowed but dangerous.
    fn dangers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reads the configuration: the file at `path`, else [`Configuration::DEFAULT_PATH`] when it
    /// exists, then `env`, then `sets` (`key=value`). Needs no file at all. `euid` is the user that
    /// the program runs as: root believes only files that root alone can write, and see
    /// [`Configuration::IS_POLICY`].
    ///
    /// # Errors
    /// Says which key, where, what it holds and what it may hold.
    fn load(
        path: Option<&Path>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
        sets: &[String],
        euid: u32,
    ) -> Result<Loaded<Self>, ConfigError> {
        let path = match path {
            Some(path) => Some(path.to_path_buf()),
            None => Some(PathBuf::from(Self::DEFAULT_PATH)).filter(|path| path.exists()),
        };
        let mut config = Self::default();
        let text = match &path {
            Some(path) => file::read::<Self>(path, euid)?,
            None => String::new(),
        };
        if let Some(path) = &path {
            file::apply(&mut config, &text, path)?;
        }
        let mut warnings = apply_env(&mut config, env)?;
        apply_sets(&mut config, sets)?;
        if let Some(conflict) = config.settle().into_iter().next() {
            return Err(conflict.at(path.as_deref().map(|path| (path, &*text))));
        }
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
    /// As [`Configuration::load`].
    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        file::apply(&mut config, text, path)?;
        match config.settle().into_iter().next() {
            Some(conflict) => Err(conflict.at(Some((path, text)))),
            None => Ok(config),
        }
    }

    /// Checks the file at `path` alone, and says what is admitted but should be meant.
    ///
    /// # Errors
    /// All that is wrong with it, in the order of the file; what one key says about another comes
    /// last.
    fn check(path: &Path, euid: u32) -> Result<Vec<String>, Vec<ConfigError>> {
        let text = file::read::<Self>(path, euid).map_err(|error| vec![error])?;
        let mut config = Self::default();
        let (mut errors, told) = file::apply_any(&mut config, &text, path);
        let conflicts = config.settle().into_iter();
        // What hangs on a key that is wrong itself may be right once it is fixed.
        let conflicts = conflicts.filter(|conflict| {
            let about = &conflict.about;
            errors.is_empty() || (!about.is_empty() && !about.iter().any(|of| told.contains(of)))
        });
        let conflicts: Vec<_> = conflicts.collect();
        let conflicts = conflicts.into_iter();
        errors.extend(conflicts.map(|conflict| conflict.at(Some((path, &*text)))));
        errors.dedup_by_key(|error| error.to_string());
        match errors.is_empty() {
            true => Ok(config.dangers()),
            false => Err(errors),
        }
    }

    /// The configuration as YAML, defaults filled in. [`Configuration::parse`] reads it back.
    fn to_yaml(&self) -> String {
        yaml::write(self)
    }

    /// How `other` differs from this configuration.
    fn diff(&self, other: &Self) -> Diff {
        let mut diff = Diff::default();
        for key in Self::KEYS
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

    /// Adopts from `new` what can be applied without a restart. The rest stays, so that this
    /// configuration always shows what is in force.
    fn adopt(&mut self, new: &Self) -> Diff {
        let diff = self.diff(new);
        for key in Self::KEYS
            .iter()
            .filter(|key| diff.changed.contains(&key.path))
        {
            (key.put)(self, (key.get)(new));
        }
        diff
    }
}

/// A configuration and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<C> {
    /// The configuration.
    pub config: C,
    /// File that was read; none when there was none to read.
    pub file: Option<PathBuf>,
    /// Warnings that are logged and not errors: environment variables that name no key.
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
    #[error("failed to use configuration `{}`: {why}\n  {remedy}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// How to fix it.
        remedy: String,
    },
    /// Not YAML, or not of the right shape.
    #[error("failed to parse {place}: {message}")]
    Syntax {
        /// Where the value came from.
        place: Place,
        /// The error.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}` in {place}{}", suggestion(*nearest))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where the value came from.
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
        /// The valid values.
        expected: String,
        /// Where the value came from.
        place: Place,
    },
    /// Keys that are well each by itself, but not together.
    #[error("`{key}` {message}{}", place.as_ref().map(|place| format!(" (in {place})")).unwrap_or_default())]
    Conflict {
        /// The key to change.
        key: &'static str,
        /// What is wrong, and how to fix it.
        message: String,
        /// Where the key is, or the section that it is missing from.
        place: Option<Place>,
    },
}

/// A contradiction between keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The key to change.
    pub key: &'static str,
    /// Where that is in the file: `triggers[1].when`.
    pub path: String,
    /// What is wrong, and how to fix it.
    pub message: String,
    /// Paths of all keys that have to do with it; empty: any may.
    pub about: Vec<String>,
}

impl Conflict {
    /// Creates the conflict of a key with others.
    pub fn new(key: &'static str, message: String) -> Conflict {
        Conflict {
            key,
            path: key.to_owned(),
            message,
            about: Vec::new(),
        }
    }

    /// The error, of a file with this text.
    fn at(self, file: Option<(&Path, &str)>) -> ConfigError {
        let place = file.and_then(|(path, text)| {
            let line = file::line_of(text, &self.path)?;
            Some(Place::File(path.to_path_buf(), Some(line)))
        });
        ConfigError::Conflict {
            key: self.key,
            message: self.message,
            place,
        }
    }
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

/// Sets the keys that `env` names. Variables that look like a key but are none are returned as
/// warnings, not refused: service managers and orchestrators put names of their own there
/// (`FLEETPROF_SERVER_PORT` for a Kubernetes service called fleetprof-server).
fn apply_env<C: Configuration>(
    config: &mut C,
    env: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>, ConfigError> {
    let mut warnings = Vec::new();
    for (name, text) in env {
        let Some(name) = name.to_str().filter(|name| name.starts_with(C::ENV_PREFIX)) else {
            continue;
        };
        let Some(key) = C::KEYS.iter().find(|key| key.env_name() == name) else {
            if key::is_in_section::<C>(name) {
                let nearest = nearest::nearest(C::KEYS.iter().map(Key::env_name), name);
                let hint =
                    nearest.map(|at| format!("; did you mean `{}`?", C::KEYS[at].env_name()));
                let hint = hint.unwrap_or_default();
                warnings.push(format!(
                    "failed to use environment variable `{name}`: there is no \
                    such key{hint}"
                ));
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
fn apply_sets<C: Configuration>(config: &mut C, sets: &[String]) -> Result<(), ConfigError> {
    for set in sets {
        let Some((path, text)) = set.split_once('=') else {
            let message = format!("`{}` is not `key=value`", value::shown(set));
            return Err(ConfigError::Syntax {
                place: Place::Set,
                message,
            });
        };
        let Some(key) = Key::<C>::find(path.trim()).or_else(|| Key::short_for(path.trim())) else {
            return Err(ConfigError::UnknownKey {
                key: value::shown(path.trim()),
                place: Place::Set,
                nearest: key::nearest_path::<C>(path.trim()),
            });
        };
        key.put_text(config, text, || Place::Set)?;
    }
    Ok(())
}
