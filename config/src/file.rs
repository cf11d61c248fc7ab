//! Reads the configuration file: trust first, then YAML, key by key against the table.
//!
//! The text is walked with serde's visitors rather than derived code, because only so an unknown
//! key, a key given twice and a value out of range are told with their line and in the same words
//! as for flags and variables.

use crate::items;
use crate::key::{Key, nearest_path};
use crate::value::{Kind, Value, shown};
use crate::{ConfigError, Configuration, FILE_BYTES_MAX, Place};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Reads a file that a program running as `euid` may believe.
pub(crate) fn read(path: &Path, euid: u32) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_path_buf(),
        source,
    };
    let refused = |why: String, remedy: String| ConfigError::Refused {
        path: path.to_path_buf(),
        why,
        remedy,
    };
    // O_NONBLOCK: opening a FIFO would wait for a writer for ever. The checks below are made on the
    // open file, so that it cannot be exchanged between check and use.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(refused(
            "not a regular file".to_owned(),
            "name a file of YAML".to_owned(),
        ));
    }
    if let Some(why) = distrust(meta.uid(), meta.gid(), meta.mode(), euid) {
        let remedy = format!("chown root:root '{0}' && chmod 0644 '{0}'", path.display());
        return Err(refused(why, remedy));
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("larger than {FILE_BYTES_MAX} bytes");
        return Err(refused(
            why,
            "name a configuration file, not data".to_owned(),
        ));
    }
    String::from_utf8(text).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|&&b| b == b'\n').count();
        ConfigError::Syntax {
            place: Place::File(path.to_path_buf(), Some(line)),
            message: "not UTF-8".to_owned(),
        }
    })
}

/// Why a program running as root must not believe a file; none when it may. Others than root could
/// otherwise choose what root listens on and which files it reads.
fn distrust(uid: u32, gid: u32, mode: u32, euid: u32) -> Option<String> {
    let mode = mode & 0o7777;
    if euid != 0 {
        None
    } else if uid != 0 {
        Some(format!(
            "the program runs as root, but user {uid} owns the file and can change it"
        ))
    } else if mode & 0o002 != 0 {
        Some(format!(
            "the program runs as root, but everybody can write the file (mode {mode:04o})"
        ))
    } else if mode & 0o020 != 0 && gid != 0 {
        Some(format!(
            "the program runs as root, but group {gid} can write the file (mode {mode:04o})"
        ))
    } else {
        None
    }
}

/// Sets in `config` what `text` says. `path` is for messages.
pub(crate) fn apply<C: Configuration>(
    config: &mut C,
    text: &str,
    path: &Path,
) -> Result<(), ConfigError> {
    let mut problem = None;
    let root = Section {
        path: "",
        config,
        problem: &mut problem,
    };
    let Err(error) = root.deserialize(serde_yaml::Deserializer::from_str(text)) else {
        return Ok(());
    };
    let line = error.location().map(|location| location.line());
    let place = Place::File(path.to_path_buf(), line);
    Err(match problem {
        Some(Problem::Unknown(key)) => ConfigError::UnknownKey {
            nearest: nearest_path::<C>(&key),
            key: shown(&key),
            place,
        },
        Some(Problem::Duplicate(key)) => ConfigError::DuplicateKey {
            key: shown(&key),
            place,
        },
        Some(Problem::Value(key, value)) => key.refuse(&value, place),
        Some(Problem::Item(problem)) => problem.at(place),
        Some(Problem::NotASection(section)) => {
            let named = if section.is_empty() {
                "the file"
            } else {
                section
            };
            let short = Key::<C>::short_for(section)
                .map(|key| format!(", or the value of `{}` alone, in quotes", key.path));
            let short = short.unwrap_or_default();
            ConfigError::Syntax {
                place,
                message: format!("`{named}` must be a map of keys{short}"),
            }
        }
        None => ConfigError::Syntax {
            place,
            message: shown_whole(&error.to_string()),
        },
    })
}

/// The parser's own words; they quote the file, so control characters are escaped.
fn shown_whole(message: &str) -> String {
    message
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect()
}

/// What a visitor found wrong. Kept beside serde's error, which carries text and line only.
enum Problem<C: 'static> {
    Unknown(String),
    Duplicate(String),
    Value(&'static Key<C>, String),
    Item(items::Problem),
    NotASection(&'static str),
}

/// Reads one section, its sections included.
struct Section<'a, C: 'static> {
    path: &'static str,
    config: &'a mut C,
    problem: &'a mut Option<Problem<C>>,
}

impl<'de, C: Configuration> DeserializeSeed<'de> for Section<'_, C> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<C: Configuration> Section<'_, C> {
    /// One value in the place of the section's keys.
    fn scalar<E: de::Error>(self, value: Value) -> Result<(), E> {
        let Some(key) = Key::<C>::short_for(self.path) else {
            return self.not_a_section();
        };
        let problem = self.problem;
        let value = Checked { key, problem }.check(value)?;
        (key.put)(self.config, value);
        Ok(())
    }

    fn not_a_section<E: de::Error>(self) -> Result<(), E> {
        *self.problem = Some(Problem::NotASection(self.path));
        Err(E::custom("not a section"))
    }
}

impl<'de, C: Configuration> Visitor<'de> for Section<'_, C> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of keys")
    }

    // A section whose keys are all comments, or `tls: null`.
    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    // A file without any.
    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Section {
            path,
            config,
            problem,
        } = self;
        let mut seen = Vec::new();
        while let Some(entry) = map.next_key_seed(Name {
            path,
            seen: &seen,
            problem,
        })? {
            match entry {
                Entry::Section(path) => {
                    seen.push(path);
                    map.next_value_seed(Section {
                        path,
                        config,
                        problem,
                    })?;
                }
                Entry::Key(key) => {
                    seen.push(key.path);
                    let value = map.next_value_seed(Checked { key, problem })?;
                    (key.put)(config, value);
                }
            }
        }
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.scalar(Value::Text(value.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.scalar(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.scalar(Value::Int(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        self.not_a_section()
    }
}

enum Entry<C: 'static> {
    Section(&'static str),
    Key(&'static Key<C>),
}

/// Reads the name of a key or section within the section `path`.
struct Name<'a, C: 'static> {
    path: &'static str,
    seen: &'a [&'static str],
    problem: &'a mut Option<Problem<C>>,
}

impl<'de, C: Configuration> DeserializeSeed<'de> for Name<'_, C> {
    type Value = Entry<C>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Entry<C>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<C: Configuration> Visitor<'_> for Name<'_, C> {
    type Value = Entry<C>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the name of a key")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Entry<C>, E> {
        let full = if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        };
        // A dot in a name would find keys of other sections.
        let plain = !name.contains('.');
        let key = C::KEYS.iter().find(|key| plain && key.path == full);
        let section = C::SECTIONS.iter().find(|(path, _)| plain && *path == full);
        let problem = match (key, section) {
            _ if self.seen.contains(&full.as_str()) => Problem::Duplicate(full),
            (Some(key), _) => return Ok(Entry::Key(key)),
            (None, Some((path, _))) => return Ok(Entry::Section(path)),
            (None, None) => Problem::Unknown(full),
        };
        *self.problem = Some(problem);
        Err(E::custom("refused name"))
    }
}

/// Reads the value of a key and checks it.
struct Checked<'a, C: 'static> {
    key: &'static Key<C>,
    problem: &'a mut Option<Problem<C>>,
}

impl<'de, C: Configuration> DeserializeSeed<'de> for Checked<'_, C> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<C: Configuration> Checked<'_, C> {
    fn check<E: de::Error>(self, value: Value) -> Result<Value, E> {
        if self.key.kind.admits(&value) {
            return Ok(value);
        }
        self.refuse(value.to_string())
    }

    fn refuse<T, E: de::Error>(self, shown: String) -> Result<T, E> {
        *self.problem = Some(Problem::Value(self.key, shown));
        Err(E::custom("refused value"))
    }
}

impl<'de, C: Configuration> Visitor<'de> for Checked<'_, C> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.key.kind.expected())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        match self.key.kind {
            // A list whose entries are all comments.
            Kind::Items(_) => Ok(Value::Items(Vec::new())),
            _ => self.check(Value::Null),
        }
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.check(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.check(Value::Int(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.refuse(value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.refuse(value.to_string())
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        self.refuse(value.to_string())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.check(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        if let Kind::Items(kind) = self.key.kind {
            let mut problem = None;
            let read = kind.read_seq(self.key.path, items, &mut problem);
            *self.problem = problem.map(Problem::Item);
            return read.map(Value::Items);
        }
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<String>()? {
            list.push(item);
        }
        self.check(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Kind::Labels(max, _) = self.key.kind else {
            return self.refuse("{…}".to_owned());
        };
        let mut labels: Vec<(String, String)> = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, String>()? {
            if labels.iter().any(|(known, _)| *known == name) {
                *self.problem = Some(Problem::Duplicate(format!("{}.{name}", self.key.path)));
                return Err(de::Error::custom("given twice"));
            }
            // What is over the bound is refused whole, not kept.
            if labels.len() > max {
                return self.refuse("{…}".to_owned());
            }
            labels.push((name, value));
        }
        self.check(Value::Map(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::distrust;

    #[test]
    fn root_trusts_only_files_that_root_alone_can_write() {
        let trusted = |uid, gid, mode, euid| distrust(uid, gid, mode, euid).is_none();
        assert!(trusted(0, 0, 0o100_644, 0));
        assert!(trusted(0, 0, 0o100_664, 0));
        assert!(!trusted(0, 0, 0o100_646, 0));
        assert!(!trusted(0, 50, 0o100_664, 0));
        assert!(!trusted(1000, 0, 0o100_600, 0));
        assert!(trusted(1000, 1000, 0o100_666, 1000));
    }
}
