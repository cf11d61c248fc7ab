//! A row of the table of keys, and the search for the row that a name means.

use crate::nearest::nearest;
use crate::value::{Kind, Value, shown};
use crate::{ConfigError, Configuration, Place};
use std::path::PathBuf;

/// When a changed value comes into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// At a reload.
    Live,
    /// At the next start.
    Restart,
}

/// A key.
pub struct Key<C: 'static> {
    /// Section and name: `sampling.rate_hz`.
    pub path: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// Unit; empty where there is none.
    pub unit: &'static str,
    /// When a changed value comes into force.
    pub reload: Reload,
    /// Its meaning, and what happens when it is larger or smaller.
    pub doc: &'static str,
    /// Reads it.
    pub get: fn(&C) -> Value,
    /// Sets it. What `kind` does not admit is ignored; callers check first.
    pub put: fn(&mut C, Value),
}

impl<C> Clone for Key<C> {
    fn clone(&self) -> Key<C> {
        *self
    }
}

// Derived, it would ask for a configuration that can be copied.
impl<C> Copy for Key<C> {}

/// Number of keys in all of `parts`.
pub const fn count<C>(parts: &[&[Key<C>]]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < parts.len() {
        sum += parts[at].len();
        at += 1;
    }
    sum
}

/// The keys of `parts` in one table; `N` is their [`count`].
///
/// # Panics
/// When there are not `N`, while the table is compiled.
pub const fn joined<C, const N: usize>(parts: &[&[Key<C>]]) -> [Key<C>; N] {
    assert!(count(parts) == N, "the table has another length");
    let mut all = [parts[0][0]; N];
    let (mut to, mut part) = (0, 0);
    while part < parts.len() {
        let mut at = 0;
        while at < parts[part].len() {
            all[to] = parts[part][at];
            to += 1;
            at += 1;
        }
        part += 1;
    }
    all
}

impl<C: Configuration> Key<C> {
    /// The key at this path.
    pub fn find(path: &str) -> Option<&'static Key<C>> {
        C::KEYS.iter().find(|key| key.path == path)
    }

    /// The key that is set by one value in the place of this section.
    pub(crate) fn short_for(section: &str) -> Option<&'static Key<C>> {
        let short = C::SHORT.iter().find(|(known, _)| *known == section);
        short.and_then(|(_, path)| Key::find(path))
    }

    /// Section and name apart: (`server.tls`, `cert_file`).
    pub fn split(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
    }

    /// Environment variable that sets it: `FLEETPROF_SAMPLING_RATE_HZ`.
    pub fn env_name(&self) -> String {
        C::ENV_PREFIX.to_owned() + &self.path.replace('.', "_").to_uppercase()
    }

    /// The value when nobody says otherwise.
    pub fn default(&self) -> Value {
        (self.get)(&C::default())
    }

    /// The error for a value that is not admitted.
    pub(crate) fn refuse(&self, value: &str, place: Place) -> ConfigError {
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.unit)
        };
        ConfigError::Value {
            key: self.path.to_owned(),
            value: shown(value),
            expected: self.kind.expected() + &unit,
            place,
        }
    }

    /// Sets the key from a variable or a flag.
    pub(crate) fn put_text(
        &self,
        config: &mut C,
        text: &str,
        place: impl FnOnce() -> Place,
    ) -> Result<(), ConfigError> {
        if let Kind::Items(items) = self.kind {
            let value = items.read(self.path, text.trim());
            (self.put)(config, value.map_err(|problem| problem.at(place()))?);
            return Ok(());
        }
        let value = self.kind.read(text.trim());
        if !self.kind.admits(&value) {
            return Err(self.refuse(text.trim(), place()));
        }
        (self.put)(config, value);
        Ok(())
    }
}

/// True when an environment variable names a section of the configuration, if not a key.
pub(crate) fn is_in_section<C: Configuration>(name: &str) -> bool {
    let rest = name.strip_prefix(C::ENV_PREFIX).unwrap_or_default();
    let section = rest.split('_').next().unwrap_or_default().to_lowercase();
    C::SECTIONS.iter().any(|(known, _)| *known == section)
}

/// The key or section nearest to a path that is none. A right name in the wrong section counts.
pub(crate) fn nearest_path<C: Configuration>(path: &str) -> Option<&'static str> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let names = || {
        C::KEYS
            .iter()
            .map(|key| key.path)
            .chain(C::SECTIONS.iter().map(|(path, _)| *path))
    };
    let siblings: Vec<&'static str> = names()
        .filter(|known| known.rsplit_once('.').map_or("", |(section, _)| section) == section)
        .collect();
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    if let Some(at) = nearest(siblings.iter().map(|known| last(known)), name) {
        return Some(siblings[at]);
    }
    let elsewhere = C::KEYS
        .iter()
        .find(|key| key.split().1 == name)
        .map(|key| key.path);
    elsewhere.or_else(|| {
        // The section that it is in is no better name for it.
        let is_around = |known: &str| {
            path.strip_prefix(known)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        let all: Vec<&'static str> = names().filter(|known| !is_around(known)).collect();
        nearest(all.iter().map(|known| (*known).to_owned()), path).map(|at| all[at])
    })
}

/// The text of a value that is one.
pub fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// A text that may be missing.
pub fn text_or_null(text: &Option<String>) -> Value {
    text.clone().map_or(Value::Null, Value::Text)
}

/// A path that may be missing.
pub fn path_or_null(path: &Option<PathBuf>) -> Value {
    path.as_ref().map_or(Value::Null, |path| {
        Value::Text(path.to_string_lossy().into_owned())
    })
}

/// The word that stands for a value.
pub fn word<T: PartialEq>(value: &T, words: &[(T, &str)]) -> Value {
    let word = words
        .iter()
        .find(|(known, _)| known == value)
        .map_or("", |(_, word)| *word);
    Value::Text(word.to_owned())
}

/// Sets what a word stands for; other values are ignored.
pub fn put_word<T: Copy>(to: &mut T, value: &Value, words: &[(T, &str)]) {
    let known = words.iter().find(|(_, word)| as_text(value) == Some(word));
    if let Some((value, _)) = known {
        *to = *value;
    }
}

/// Sets a number; what does not fit is ignored.
pub fn put_int<T: TryFrom<u64>>(to: &mut T, value: &Value) {
    if let Value::Int(n) = value
        && let Ok(n) = T::try_from(*n)
    {
        *to = n;
    }
}

/// Sets a truth value; others are ignored.
pub fn put_bool(to: &mut bool, value: &Value) {
    if let Value::Bool(b) = value {
        *to = *b;
    }
}
