//! The tables of a request: where their entries lie, which are read when something refers to them.
//!
//! An entry may take two bytes on the wire and a hundred in memory, so tables of strangers stay
//! bytes.

use super::super::Refusal;
use super::super::fields::{Damaged, taken};
use super::layout::Sizes;
use crate::ingest::limits::{LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX};
use crate::otlp::messages::{AnyValue, Attribute, Function, KeyValue, Location, Mapping, Stack};
use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};
use std::borrow::Cow;

/// Longest string. Unit: bytes. Longer ones are cut: a name of C++ may have some thousand, and
/// every reference to one costs its length.
const STRING_BYTES_MAX: usize = 16 << 10;

/// Tables in the order of their fields, which start at 1.
const TABLES: usize = 7;

const MAPPINGS: usize = 0;
const LOCATIONS: usize = 1;
const FUNCTIONS: usize = 2;
const LINKS: usize = 3;
const STRINGS: usize = 4;
const ATTRIBUTES: usize = 5;
const STACKS: usize = 6;

/// See the file.
pub struct Tables {
    bytes: Bytes,
    /// Start and end of the entries of each table.
    entries: [Vec<(u32, u32)>; TABLES],
}

impl Tables {
    /// Finds the entries.
    ///
    /// # Errors
    /// When the bytes are no message.
    pub fn new(bytes: Bytes) -> Result<Tables, Damaged> {
        let mut entries: [Vec<(u32, u32)>; TABLES] = Default::default();
        let mut rest: &[u8] = &bytes;
        while !rest.is_empty() {
            let (tag, kind) = decode_key(&mut rest)?;
            let table = (tag as usize)
                .checked_sub(1)
                .and_then(|at| entries.get_mut(at));
            match (table, kind) {
                (Some(table), WireType::LengthDelimited) => {
                    let entry = taken(&mut rest)?;
                    let end = bytes.len() - rest.len();
                    // Requests are far below 4 GiB.
                    table.push(((end - entry.len()) as u32, end as u32));
                }
                _ => skip_field(kind, tag, &mut rest, DecodeContext::default())?,
            }
        }
        Ok(Tables { bytes, entries })
    }

    /// How large those are that samples refer to.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            attributes: self.entries[ATTRIBUTES].len(),
            links: self.entries[LINKS].len(),
        }
    }

    fn entry(&self, table: usize, index: u64, what: &str) -> Result<&[u8], Refusal> {
        let at = usize::try_from(index).ok();
        let entry = at.and_then(|at| self.entries[table].get(at));
        let entry = entry.and_then(|&(start, end)| self.bytes.get(start as usize..end as usize));
        entry.ok_or_else(|| {
            Refusal::malformed(format!(
                "failed to read the profiles: there is no {what} {index} in the dictionary"
            ))
        })
    }

    fn message<M: Message + Default>(
        &self,
        table: usize,
        index: u64,
        what: &str,
    ) -> Result<M, Refusal> {
        let entry = self.entry(table, index, what)?;
        M::decode(entry)
            .map_err(|error| Refusal::malformed(format!("failed to read {what} {index}: {error}")))
    }

    pub fn mapping(&self, index: u64) -> Result<Mapping, Refusal> {
        self.message(MAPPINGS, index, "mapping")
    }

    pub fn location(&self, index: u64) -> Result<Location, Refusal> {
        self.message(LOCATIONS, index, "location")
    }

    pub fn function(&self, index: u64) -> Result<Function, Refusal> {
        self.message(FUNCTIONS, index, "function")
    }

    pub fn attribute(&self, index: u64) -> Result<Attribute, Refusal> {
        self.message(ATTRIBUTES, index, "attribute")
    }

    pub fn stack(&self, index: u64) -> Result<Stack, Refusal> {
        self.message(STACKS, index, "stack")
    }

    /// A string, up to [`STRING_BYTES_MAX`]. The first is that of what is not set, and may be left
    /// away.
    pub fn string(&self, index: u64) -> Result<&str, Refusal> {
        self.string_up_to(index, STRING_BYTES_MAX)
    }

    fn string_up_to(&self, index: u64, most: usize) -> Result<&str, Refusal> {
        if index == 0 {
            return Ok("");
        }
        let text = self.entry(STRINGS, index, "string")?;
        let start = text.get(..most).unwrap_or(text);
        match std::str::from_utf8(start) {
            Ok(text) => Ok(text),
            // A character was cut in two.
            Err(error) if error.error_len().is_none() && start.len() < text.len() => {
                Ok(std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default())
            }
            Err(_) => {
                let text = format!("failed to read string {index}: not UTF-8");
                Err(Refusal::malformed(text))
            }
        }
    }

    /// The key and the value of an attribute of a resource; `None` when it is no label. References
    /// out of the table leave what is inline.
    pub fn pair(&self, pair: &KeyValue) -> Option<(String, String)> {
        let key = match pair.key_strindex {
            0 => "",
            index => self
                .string_up_to(index_of(index), LABEL_NAME_BYTES_MAX + 1)
                .unwrap_or(""),
        };
        let key = if key.is_empty() { &pair.key } else { key };
        let value = self.text(pair.value.as_ref()?)?.into_owned();
        Some((key.to_owned(), value))
    }

    /// A value as text, up to what a label may have; `None` when it is a list, a map or bytes.
    pub fn text<'a>(&'a self, value: &'a AnyValue) -> Option<Cow<'a, str>> {
        let referred = value.string_value_strindex.filter(|&index| index != 0);
        let most = LABEL_VALUE_BYTES_MAX;
        let referred = referred.and_then(|index| self.string_up_to(index_of(index), most).ok());
        if let Some(text) = referred {
            return Some(text.into());
        }
        if let Some(text) = &value.string_value {
            return Some(text[..text.floor_char_boundary(most)].into());
        }
        let number = value.int_value.map(|number| number.to_string());
        let number = number.or_else(|| value.bool_value.map(|flag| flag.to_string()));
        number
            .or_else(|| value.double_value.map(|number| number.to_string()))
            .map(Cow::from)
    }
}

/// An index of a table; negative ones are in none.
pub fn index_of(index: i32) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}
