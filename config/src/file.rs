//! Reads the configuration file: trust first, then YAML, key by key against the table.
//!
//! The text is parsed with serde visitors rather than derived code. Only so are unknown keys,
//! repeated keys and values out of range reported with their line, in the same words as for flags
//! and variables.

use crate::key::{Key, nearest_path};
use crate::value::{Kind, Value, items, shown};
use crate::yaml;
use crate::{ConfigError, Configuration, FILE_BYTES_MAX, Place};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Reads a file that a program running as `euid` may believe.
pub(crate) fn read<C: Configuration>(path: &Path, euid: u32) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_path_buf(),
        source,
    };
    let refused = |why: String, remedy: String| ConfigError::Refused {
        path: path.to_path_buf(),
        why,
        remedy,
    };
    // O_NONBLOCK, because opening a FIFO would wait for a writer forever. The checks below are made
    // on the open file, so that it cannot be replaced between check and use.
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
    let reader = Reader {
        euid,
        policy: C::IS_POLICY,
        own_file: path != Path::new(C::DEFAULT_PATH),
    };
    if let Some(why) = reader.distrusts(meta.uid(), meta.gid(), meta.mode()) {
        let remedy = match reader.may_own(meta.uid()) {
            true => format!("chmod go-w '{}'", path.display()),
            false => format!("chown root:root '{0}' && chmod 0644 '{0}'", path.display()),
        };
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

/// Who reads a file.
#[derive(Clone, Copy)]
struct Reader {
    euid: u32,
    /// Whether the file limits others, so that who it limits must not write it.
    policy: bool,
    /// Whether a user may have a file of their own: where it is named, and not the system's.
    own_file: bool,
}

impl Reader {
    fn may_own(self, uid: u32) -> bool {
        uid == 0 || self.own_file && uid == self.euid
    }

    /// Why the file must not be believed; none when it may. Others than root could otherwise choose
    /// what root listens on and which files it reads. A policy is checked whoever runs: the service
    /// is not root, and shares its user with the collector of the same machine.
    fn distrusts(self, uid: u32, gid: u32, mode: u32) -> Option<String> {
        let mode = mode & 0o7777;
        let why = match (self.euid, self.policy) {
            (0, _) => "the program runs as root",
            (_, true) => "it limits what a collector may do on this host",
            (_, false) => return None,
        };
        // A group with the number of the owner is the owner's alone, as most systems make it.
        if !self.may_own(uid) {
            Some(format!(
                "{why}, but user {uid} owns the file and can change it"
            ))
        } else if mode & 0o002 != 0 {
            Some(format!(
                "{why}, but everybody can write the file (mode {mode:04o})"
            ))
        } else if mode & 0o020 != 0 && gid != uid {
            Some(format!(
                "{why}, but group {gid} can write the file (mode {mode:04o})"
            ))
        } else {
            None
        }
    }
}

/// Most errors reported for one file. Finding each takes one more pass over the file.
const ERRORS_MAX: usize = 50;

/// Sets in `config` what `text` says. `path` is for messages.
pub(crate) fn apply<C: Configuration>(
    config: &mut C,
    text: &str,
    path: &Path,
) -> Result<(), ConfigError> {
    let (mut errors, _) = apply_all(config, text, path, 1);
    errors.pop().map_or(Ok(()), Err)
}

/// The same, but returns all errors with their paths; valid values are set.
pub(crate) fn apply_any<C: Configuration>(
    config: &mut C,
    text: &str,
    path: &Path,
) -> (Vec<ConfigError>, BTreeSet<String>) {
    apply_all(config, text, path, ERRORS_MAX)
}

fn apply_all<C: Configuration>(
    config: &mut C,
    text: &str,
    path: &Path,
    most: usize,
) -> (Vec<ConfigError>, BTreeSet<String>) {
    // Text that is not YAML is reported as such, and not by the first key before the place.
    if let Err(error) = yaml::read(text, PhantomData::<de::IgnoredAny>) {
        let error = ConfigError::Syntax {
            place: Place::File(path.to_path_buf(), error.line),
            message: shown_whole(&error.message),
        };
        return (vec![error], BTreeSet::new());
    }
    let mut errors = Vec::new();
    let mut found = Found::default();
    loop {
        let mut read = C::default();
        let root = Section {
            path: "",
            config: &mut read,
            found: &mut found,
        };
        let Err(error) = yaml::read(text, root) else {
            *config = read;
            return (errors, found.told);
        };
        let problem = found.problem.take();
        // Within a list the parser reports where the list or the entry starts.
        let line = match &problem {
            Some(Problem::Item(problem)) if !problem.is_duplicate() => {
                line_of(text, problem.path())
            }
            _ => None,
        };
        let line = line.or(error.line);
        let place = Place::File(path.to_path_buf(), line);
        let about = problem.as_ref().map(Problem::path).unwrap_or_default();
        let is_new = !about.is_empty() && found.told.insert(about.to_owned());
        errors.push(told::<C>(problem, place, &error.message));
        if !is_new || errors.len() >= most {
            return (errors, found.told);
        }
    }
}

/// The error for what is wrong.
fn told<C: Configuration>(problem: Option<Problem<C>>, place: Place, message: &str) -> ConfigError {
    match problem {
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
            message: shown_whole(message),
        },
    }
}

/// The parser's own words; they quote the file, so control characters are escaped.
fn shown_whole(message: &str) -> String {
    message
        .chars()
        .filter(|c| !c.is_control())
        .take(300)
        .collect()
}

/// A problem found by a visitor. It is stored separately from serde's error, which has only text
/// and line.
enum Problem<C: 'static> {
    Unknown(String),
    Duplicate(String),
    Value(&'static Key<C>, String),
    Item(items::Problem),
    NotASection(&'static str),
}

impl<C> Problem<C> {
    /// What it is about.
    fn path(&self) -> &str {
        match self {
            Problem::Unknown(path) | Problem::Duplicate(path) => path,
            Problem::Value(key, _) => key.path,
            Problem::Item(problem) => problem.path(),
            Problem::NotASection(path) => path,
        }
    }
}

/// Problems found so far, and which places to skip because they were already reported.
struct Found<C: 'static> {
    problem: Option<Problem<C>>,
    told: BTreeSet<String>,
}

impl<C> Default for Found<C> {
    fn default() -> Found<C> {
        Found {
            problem: None,
            told: BTreeSet::new(),
        }
    }
}

/// Reads one section, its sections included.
struct Section<'a, C: 'static> {
    path: &'static str,
    config: &'a mut C,
    found: &'a mut Found<C>,
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
        if self.found.told.contains(key.path) {
            return Ok(());
        }
        let found = self.found;
        let value = Checked { key, found }.check(value)?;
        (key.put)(self.config, value);
        Ok(())
    }

    fn not_a_section<E: de::Error>(self) -> Result<(), E> {
        self.found.problem = Some(Problem::NotASection(self.path));
        Err(E::custom("not a section"))
    }
}

impl<'de, C: Configuration> Visitor<'de> for Section<'_, C> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a map of keys")
    }

    // A section with all of its keys as comments, or `tls: null`.
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
            found,
        } = self;
        let mut seen = Vec::new();
        while let Some(entry) = map.next_key_seed(Name {
            path,
            seen: &seen,
            found,
        })? {
            match entry {
                Entry::Section(path) => {
                    seen.push(path);
                    map.next_value_seed(Section {
                        path,
                        config,
                        found,
                    })?;
                }
                Entry::Key(key) => {
                    seen.push(key.path);
                    let value = map.next_value_seed(Checked { key, found })?;
                    (key.put)(config, value);
                }
                Entry::Known => map.next_value::<de::IgnoredAny>().map(|_| ())?,
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
    /// The problem was already reported.
    Known,
}

/// Reads the name of a key or section within the section `path`.
struct Name<'a, C: 'static> {
    path: &'static str,
    seen: &'a [&'static str],
    found: &'a mut Found<C>,
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
        if self.found.told.contains(&full) {
            return Ok(Entry::Known);
        }
        let problem = match (key, section) {
            _ if self.seen.contains(&full.as_str()) => Problem::Duplicate(full),
            (Some(key), _) => return Ok(Entry::Key(key)),
            (None, Some((path, _))) => return Ok(Entry::Section(path)),
            (None, None) => Problem::Unknown(full),
        };
        self.found.problem = Some(problem);
        Err(E::custom("refused name"))
    }
}

/// Reads the value of a key and checks it.
struct Checked<'a, C: 'static> {
    key: &'static Key<C>,
    found: &'a mut Found<C>,
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
        self.found.problem = Some(Problem::Value(self.key, shown));
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
            // A list with all of its entries as comments.
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
            let mut found = items::Found {
                problem: None,
                told: std::mem::take(&mut self.found.told),
            };
            let read = kind.read_seq(self.key.path, items, &mut found);
            self.found.told = found.told;
            self.found.problem = found.problem.map(Problem::Item);
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
                let path = format!("{}.{name}", self.key.path);
                if self.found.told.contains(&path) {
                    continue;
                }
                self.found.problem = Some(Problem::Duplicate(path));
                return Err(de::Error::custom("given twice"));
            }
            // A list over the bound is rejected completely, not shortened.
            if labels.len() > max {
                return self.refuse("{…}".to_owned());
            }
            labels.push((name, value));
        }
        self.check(Value::Map(labels))
    }
}

/// The line (from 1) on which the value at `path` starts (`triggers[1].when`), or that of the
/// nearest map or list around it that is there.
pub(crate) fn line_of(text: &str, path: &str) -> Option<usize> {
    let dotted = path.replace('[', ".").replace(']', "");
    let names: Vec<&str> = dotted.split('.').collect();
    (1..=names.len()).rev().find_map(|depth| {
        let found = yaml::read(text, Walk(&names[..depth]));
        found.err()?.line
    })
}

/// Goes to a value and fails there: only errors say where they are.
struct Walk<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    fn end<E: de::Error>(self) -> Result<(), E> {
        match self.0 {
            [] => Err(E::custom("here")),
            _ => Ok(()),
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((name, rest)) = self.0.split_first() else {
            return self.end();
        };
        while let Some(found) = map.next_key::<String>()? {
            match found == *name {
                true => map.next_value_seed(Walk(rest))?,
                false => map.next_value::<de::IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((at, rest)) = self.0.split_first() else {
            return self.end();
        };
        let at = at.parse().unwrap_or(usize::MAX);
        for index in 0.. {
            let more = match index == at {
                true => items.next_element_seed(Walk(rest))?.is_some(),
                false => items.next_element::<de::IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.end()
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        self.end()
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.end()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.end()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.end()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.end()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, line_of};

    #[test]
    fn a_value_is_found_by_its_path() {
        let text = "a: 1\nb:\n  c: x\n  d: [1, 2]\nt:\n- n: 1\n  w: 2\n- {n: 3,\n   w: 4}\n";
        for (path, line) in [
            ("a", Some(1)),
            ("b.c", Some(3)),
            ("b.d", Some(4)),
            ("b.none", Some(3)),
            ("t[0].w", Some(7)),
            ("t[1]", Some(8)),
            ("t[1].w", Some(9)),
            ("t[1].none", Some(8)),
            ("none.at.all", None),
        ] {
            assert_eq!(line_of(text, path), line, "{path}");
        }
    }

    #[test]
    fn root_trusts_only_files_that_root_alone_can_write() {
        for policy in [false, true] {
            let root = Reader {
                euid: 0,
                policy,
                own_file: true,
            };
            let trusted = |uid, gid, mode| root.distrusts(uid, gid, mode).is_none();
            assert!(trusted(0, 0, 0o100_644));
            assert!(trusted(0, 0, 0o100_664));
            assert!(!trusted(0, 0, 0o100_646));
            assert!(!trusted(0, 50, 0o100_664));
            assert!(!trusted(1000, 0, 0o100_600));
        }
        let user = Reader {
            euid: 1000,
            policy: false,
            own_file: false,
        };
        assert!(user.distrusts(1000, 1000, 0o100_666).is_none());
        assert!(user.distrusts(1001, 1001, 0o100_666).is_none());
    }

    #[test]
    fn a_policy_is_roots_whoever_runs_or_a_users_own_file() {
        let service = Reader {
            euid: 998,
            policy: true,
            own_file: false,
        };
        let user = Reader {
            own_file: true,
            ..service
        };
        for (uid, gid, mode, by_service, by_user) in [
            (0, 0, 0o100_644, true, true),
            (0, 998, 0o100_640, true, true),
            (0, 998, 0o100_660, false, false),
            (0, 0, 0o100_666, false, false),
            (998, 998, 0o100_600, false, true),
            (998, 998, 0o100_664, false, true),
            (998, 50, 0o100_664, false, false),
            (998, 998, 0o100_646, false, false),
            (1000, 1000, 0o100_644, false, false),
        ] {
            let case = format!("{uid}:{gid} {mode:o}");
            let service = service.distrusts(uid, gid, mode);
            assert_eq!(service.is_none(), by_service, "{case} {service:?}");
            let user = user.distrusts(uid, gid, mode);
            assert_eq!(user.is_none(), by_user, "{case} {user:?}");
        }
    }
}
