//! Lists of entries with keys of their own, such as triggers: what each may contain, and reading
//! them.
//!
//! An entry is a map with the rows of a table, as the complete configuration is. A name with a dot
//! is a key of a map in the entry: `capture.event`. Nothing is nested deeper than one level.

use super::{Kind, Value, shown};
use crate::nearest::nearest_word;
use crate::yaml;
use crate::{ConfigError, Place};
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;

/// A key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name; with a dot, a key of a map in the entry.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// True when every entry has to have it; a key of a map in the entry: when the entry has that
    /// map.
    pub required: bool,
    /// The value when it is left out, as written in the file; empty where there is none.
    pub default: &'static str,
    /// What it decides.
    pub doc: &'static str,
}

/// Valid entries of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items {
    /// What an entry is: `trigger`.
    pub what: &'static str,
    /// Most entries.
    pub max: usize,
    /// The keys of an entry, in the order of the sample.
    pub fields: &'static [Field],
    /// An entry that is right, as it stands in a file.
    pub example: &'static str,
}

/// An entry: the keys that it has, in the order given.
pub type Item = Vec<(String, Value)>;

/// What is wrong with a list.
#[derive(Debug)]
pub(crate) enum Problem {
    Unknown(String, Option<&'static str>),
    Duplicate(String),
    Value(String, String, String),
    /// Where, and what.
    Shape(String, String),
}

/// Problems found so far, and which places to skip because they were already reported.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub problem: Option<Problem>,
    /// Paths: `triggers[1].when`.
    pub told: BTreeSet<String>,
}

impl Problem {
    /// What it is about.
    pub(crate) fn path(&self) -> &str {
        match self {
            Problem::Unknown(path, _)
            | Problem::Duplicate(path)
            | Problem::Value(path, ..)
            | Problem::Shape(path, _) => path,
        }
    }

    /// True when it is about the second of two.
    pub(crate) fn is_duplicate(&self) -> bool {
        matches!(self, Problem::Duplicate(_))
    }

    pub(crate) fn at(self, place: Place) -> ConfigError {
        match self {
            Problem::Unknown(key, nearest) => ConfigError::UnknownKey {
                key: shown(&key),
                place,
                nearest,
            },
            Problem::Duplicate(key) => ConfigError::DuplicateKey { key, place },
            Problem::Value(key, value, expected) => ConfigError::Value {
                key,
                value: shown(&value),
                expected,
                place,
            },
            Problem::Shape(_, message) => ConfigError::Syntax { place, message },
        }
    }
}

impl Items {
    pub(crate) fn admit(&self, list: &[Item]) -> bool {
        list.len() <= self.max && list.iter().all(|item| self.admits(item))
    }

    fn admits(&self, item: &Item) -> bool {
        let known = |(name, value): &(String, Value)| {
            let field = self.fields.iter().find(|field| field.name == name);
            field.is_some_and(|field| field.kind.admits(value))
        };
        let once = |(at, (name, _)): (usize, &(String, Value))| {
            !item[..at].iter().any(|(before, _)| before == name)
        };
        item.iter().all(known)
            && item.iter().enumerate().all(once)
            && self.missing(item, &|_| false).is_none()
    }

    /// A key that the entry has to have and has not, and that is not passed over.
    fn missing(&self, item: &Item, passed: &dyn Fn(&str) -> bool) -> Option<&'static str> {
        let has = |name: &str| item.iter().any(|(known, _)| known == name);
        let needed = |field: &&Field| {
            let section = field.name.split_once('.').map(|(section, _)| section);
            let started = section.is_none_or(|section| {
                let inside = |name: &str| name.split_once('.').is_some_and(|(of, _)| of == section);
                item.iter().any(|(name, _)| inside(name))
            });
            field.required && started && !has(field.name) && !passed(field.name)
        };
        self.fields.iter().find(needed).map(|field| field.name)
    }

    /// Reads a list from text: the value of a variable or flag.
    pub(crate) fn read(&'static self, key: &str, text: &str) -> Result<Value, Problem> {
        if text.is_empty() {
            return Ok(Value::Items(Vec::new()));
        }
        let mut found = Found::default();
        let list = ListSeed {
            items: self,
            key,
            found: &mut found,
        };
        let read = yaml::read(text, list);
        match (read, found.problem) {
            (Ok(list), None) => Ok(Value::Items(list)),
            (_, Some(problem)) => Err(problem),
            (Err(_), None) => Err(self.not_a_list(key)),
        }
    }

    fn not_a_list(&'static self, key: &str) -> Problem {
        let message = format!("`{key}` must be {}", Kind::Items(self).expected());
        Problem::Shape(key.to_owned(), message)
    }

    /// Reads the entries of a sequence.
    pub(crate) fn read_seq<'de, A: SeqAccess<'de>>(
        &'static self,
        key: &str,
        mut entries: A,
        found: &mut Found,
    ) -> Result<Vec<Item>, A::Error> {
        let mut list: Vec<Item> = Vec::new();
        loop {
            let path = format!("{key}[{}]", list.len());
            let mut item = Item::new();
            let seed = ItemSeed {
                items: self,
                path: &path,
                within: "",
                item: &mut item,
                found,
            };
            if entries.next_element_seed(seed)?.is_none() {
                return Ok(list);
            }
            if list.len() == self.max {
                let (what, max) = (self.what, self.max);
                let message = format!("`{key}` has more than {max} {what}s");
                found.problem = Some(Problem::Shape(key.to_owned(), message));
                return Err(A::Error::custom("too many"));
            }
            let passed = |name: &str| {
                let is_told = |path: &str| found.told.contains(path);
                is_told(&path) || is_told(&format!("{path}.{name}"))
            };
            if let Some(name) = self.missing(&item, &passed) {
                let message = format!("`{path}` has no `{name}`, which every {} has", self.what);
                found.problem = Some(Problem::Shape(format!("{path}.{name}"), message));
                return Err(A::Error::custom("a key is missing"));
            }
            list.push(item);
        }
    }
}

struct ListSeed<'a> {
    items: &'static Items,
    key: &'a str,
    found: &'a mut Found,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = Vec<Item>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Item>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = Vec<Item>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<Vec<Item>, A::Error> {
        self.items.read_seq(self.key, entries, self.found)
    }
}

/// Reads an entry, or a map in it.
struct ItemSeed<'a> {
    items: &'static Items,
    /// Path of the entry: `triggers[0]`.
    path: &'a str,
    /// Name of the map in the entry; empty for the entry itself.
    within: &'a str,
    item: &'a mut Item,
    found: &'a mut Found,
}

impl ItemSeed<'_> {
    fn refuse<E: de::Error>(self) -> Result<(), E> {
        let place = match self.within {
            "" => self.path.to_owned(),
            within => format!("{}.{within}", self.path),
        };
        let message = format!("`{place}` must be a map of keys");
        self.found.problem = Some(Problem::Shape(place, message));
        Err(E::custom("not a map"))
    }
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.found.told.contains(self.path) {
            return de::IgnoredAny::deserialize(deserializer).map(|_| ());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut sections: Vec<String> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let full = match self.within {
                "" => name.clone(),
                within => format!("{within}.{name}"),
            };
            let path = format!("{}.{full}", self.path);
            // A dot in a name would find keys of a map in the entry.
            let plain = !name.contains('.');
            let fields = self.items.fields.iter();
            let field = fields.clone().find(|field| plain && field.name == full);
            let of = |field: &&Field| field.name.split_once('.').is_some_and(|(of, _)| of == full);
            if self.found.told.contains(&path) {
                map.next_value::<de::IgnoredAny>()?;
                continue;
            }
            let twice =
                self.item.iter().any(|(known, _)| *known == full) || sections.contains(&full);
            if twice {
                self.found.problem = Some(Problem::Duplicate(path));
                return Err(A::Error::custom("given twice"));
            }
            if let Some(field) = field {
                let found = &mut *self.found;
                let value = map.next_value_seed(FieldSeed {
                    field,
                    path: &path,
                    found,
                })?;
                self.item.push((full, value));
            } else if plain && self.within.is_empty() && fields.clone().any(|f| of(&f)) {
                map.next_value_seed(ItemSeed {
                    items: self.items,
                    path: self.path,
                    within: &full,
                    item: &mut *self.item,
                    found: &mut *self.found,
                })?;
                sections.push(full);
            } else {
                let near = nearest_word(&self.items.names(self.within), &name);
                self.found.problem = Some(Problem::Unknown(path, near));
                return Err(A::Error::custom("unknown name"));
            }
        }
        Ok(())
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        self.refuse()
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.refuse()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.refuse()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.refuse()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.refuse()
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.refuse()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        self.refuse()
    }
}

impl Items {
    /// Names that may stand in an entry, or in a map of it.
    fn names(&self, within: &str) -> Vec<&'static str> {
        let name = |field: &Field| match field.name.split_once('.') {
            None => within.is_empty().then_some(field.name),
            Some((of, _)) if within.is_empty() => Some(of),
            Some((of, name)) => (of == within).then_some(name),
        };
        let mut names: Vec<&'static str> = self.fields.iter().filter_map(name).collect();
        names.dedup();
        names
    }
}

struct FieldSeed<'a> {
    field: &'static Field,
    path: &'a str,
    found: &'a mut Found,
}

impl FieldSeed<'_> {
    fn check<E: de::Error>(self, value: Value) -> Result<Value, E> {
        let kind = self.field.kind;
        // A plain number of YAML is a number of ours, whatever it looks like.
        let value = match (kind, value) {
            (Kind::Decimal, Value::Int(n)) => Value::Text(n.to_string()),
            (_, value) => value,
        };
        if kind.admits(&value) {
            return Ok(value);
        }
        self.refuse(value.to_string())
    }

    fn refuse<T, E: de::Error>(self, value: String) -> Result<T, E> {
        let expected = self.field.kind.expected();
        self.found.problem = Some(Problem::Value(self.path.to_owned(), value, expected));
        Err(E::custom("refused value"))
    }
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field.kind.expected())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.check(Value::Null)
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
        self.check(Value::Text(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.check(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        self.refuse("[…]".to_owned())
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        self.refuse("{…}".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[Field] = &[
        Field {
            name: "name",
            kind: Kind::Text(8),
            required: true,
            default: "",
            doc: "Its name.",
        },
        Field {
            name: "for",
            kind: Kind::Duration(0, 3600),
            required: false,
            default: "0s",
            doc: "How long.",
        },
        Field {
            name: "clear",
            kind: Kind::Decimal,
            required: false,
            default: "",
            doc: "When over.",
        },
        Field {
            name: "capture.event",
            kind: Kind::Text(20),
            required: true,
            default: "",
            doc: "Which.",
        },
        Field {
            name: "capture.rate_hz",
            kind: Kind::Int(1, 9),
            required: false,
            default: "",
            doc: "How often.",
        },
    ];
    static ITEMS: Items = Items {
        what: "thing",
        max: 2,
        fields: FIELDS,
        example: "name: a",
    };

    fn read(text: &str) -> Result<Vec<Item>, String> {
        match ITEMS.read("things", text) {
            Ok(Value::Items(list)) => Ok(list),
            Ok(other) => Err(format!("{other:?}")),
            Err(problem) => Err(problem.at(Place::Set).to_string()),
        }
    }

    fn refused(text: &str) -> String {
        read(text).expect_err("must be refused")
    }

    #[test]
    fn entries_are_read_with_the_maps_in_them() {
        let text = "[{name: a, for: 5m, clear: 0.5, capture: {event: x, rate_hz: 3}}, {name: b, clear: 2}]";
        let list = read(text).unwrap();
        assert!(ITEMS.admit(&list));
        let names: Vec<&str> = list[0].iter().map(|(name, _)| name.as_str()).collect();
        let all = ["name", "for", "clear", "capture.event", "capture.rate_hz"];
        assert_eq!(names, all);
        assert_eq!(list[0][2].1, Value::Text("0.5".to_owned()));
        assert_eq!(list[1][1].1, Value::Text("2".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_the_nearest_name() {
        let check = |text: &str, expected: &str| assert_eq!(refused(text), expected, "{text}");
        check(
            "[{nmae: a}]",
            "unknown key `things[0].nmae` in `--set`; did you mean `name`?",
        );
        check(
            "[{name: a}, {name: b, capture: {evnt: x}}]",
            "unknown key `things[1].capture.evnt` in `--set`; did you mean `event`?",
        );
        check(
            "[{name: a, for: soon}]",
            "invalid value `soon` for `things[0].for` in `--set`: expected a time from 0s to 1h, \
             such as 30s, 5m or 2h",
        );
        check(
            "[{name: a, name: b}]",
            "key `things[0].name` is given twice in `--set`",
        );
        check(
            "[{for: 5m}]",
            "failed to parse `--set`: `things[0]` has no `name`, which every thing has",
        );
        check(
            "[{name: a, capture: {rate_hz: 2}}]",
            "failed to parse `--set`: `things[0]` has no `capture.event`, which every thing has",
        );
        check(
            "[{name: a, capture: 3}]",
            "failed to parse `--set`: `things[0].capture` must be a map of keys",
        );
        check(
            "[a]",
            "failed to parse `--set`: `things[0]` must be a map of keys",
        );
        check(
            "[{name: a}, {name: b}, {name: c}]",
            "failed to parse `--set`: `things` has more than 2 things",
        );
        check(
            "a: b",
            "failed to parse `--set`: `things` must be a list of at most 2 things",
        );
        check(
            "[{name: a, capture.event: x}]",
            "unknown key `things[0].capture.event` in `--set`; did you mean `capture`?",
        );
    }
}
