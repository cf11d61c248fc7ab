//! Messages of OTLP profiles, as far as anything here reads or writes them, in protocol buffers and
//! JSON.
//!
//! Fields have the numbers of 1.10, which are those of 1.8 and 1.9 except in samples
//! (`senders/otlp/layout.rs`). Profiles and samples stay bytes until their layout is known; JSON
//! has names in place of numbers, and becomes bytes of the newest layout. Links, columns and the
//! like are left out: nothing shows them.
//!
//! Source: github.com/open-telemetry/opentelemetry-proto, `profiles/v1development`.

use bytes::Bytes;
use prost::Message;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};

/// Profiles of one resource: a process, a service, a host.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// [`Profile`]s.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    #[serde(deserialize_with = "encoded::<_, Profile>")]
    pub profiles: Vec<Bytes>,
}

/// What made the profiles.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// An attribute. From 1.10 on its key may be in the table of strings.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
    #[prost(int32, tag = "3")]
    #[serde(deserialize_with = "number")]
    pub key_strindex: i32,
}

/// A value: one of these, or one that is no label (lists, maps, bytes).
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AnyValue {
    #[prost(string, optional, tag = "1")]
    pub string_value: Option<String>,
    #[prost(bool, optional, tag = "2")]
    pub bool_value: Option<bool>,
    #[prost(int64, optional, tag = "3")]
    #[serde(deserialize_with = "optional_number")]
    pub int_value: Option<i64>,
    #[prost(double, optional, tag = "4")]
    pub double_value: Option<f64>,
    #[prost(int32, optional, tag = "8")]
    #[serde(deserialize_with = "optional_number")]
    pub string_value_strindex: Option<i32>,
}

/// A name and a unit, in the table of strings.
#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ValueType {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub type_strindex: i32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "number")]
    pub unit_strindex: i32,
}

/// A profile. What has another number in each release is not read.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Profile {
    #[prost(message, optional, tag = "1")]
    pub sample_type: Option<ValueType>,
    /// Samples, in the layout of the request.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    #[serde(alias = "sample", deserialize_with = "encoded::<_, Sample>")]
    pub samples: Vec<Bytes>,
    #[prost(fixed64, tag = "3")]
    #[serde(deserialize_with = "number")]
    pub time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    #[serde(deserialize_with = "number")]
    pub duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    #[serde(deserialize_with = "number")]
    pub period: i64,
}

/// The field of a profile that only exports write, because its number means something else in 1.8.
/// Its bytes come after those of the [`Profile`], which makes one message of both.
#[derive(Clone, PartialEq, Message)]
pub struct ProfileId {
    /// 16 bytes, the same for the same samples.
    #[prost(bytes = "bytes", tag = "7")]
    pub profile_id: Bytes,
}

/// A sample in the layout of 1.10.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sample {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    #[serde(deserialize_with = "numbers")]
    pub attribute_indices: Vec<i32>,
    #[prost(int32, tag = "3")]
    #[serde(deserialize_with = "number")]
    pub link_index: i32,
    #[prost(int64, repeated, tag = "4")]
    #[serde(deserialize_with = "numbers")]
    pub values: Vec<i64>,
    #[prost(fixed64, repeated, tag = "5")]
    #[serde(deserialize_with = "numbers")]
    pub timestamps_unix_nano: Vec<u64>,
}

/// The tables that profiles refer to, from JSON; `tables.rs` reads the same from bytes.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    pub mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    pub location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    pub link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    pub stack_table: Vec<Stack>,
}

/// A file in memory.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Mapping {
    #[prost(int32, tag = "4")]
    #[serde(deserialize_with = "number")]
    pub filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    #[serde(deserialize_with = "numbers")]
    pub attribute_indices: Vec<i32>,
}

/// A place in code. Without lines it is one of a file without symbols.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Location {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub mapping_index: i32,
    #[prost(uint64, tag = "2")]
    #[serde(deserialize_with = "number")]
    pub address: u64,
    /// What was inlined first, and that into which all of it was inlined last.
    #[prost(message, repeated, tag = "3")]
    #[serde(alias = "line")]
    pub lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    #[serde(deserialize_with = "numbers")]
    pub attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Line {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub function_index: i32,
    #[prost(int64, tag = "2")]
    #[serde(deserialize_with = "number")]
    pub line: i64,
}

#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Function {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub name_strindex: i32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "number")]
    pub system_name_strindex: i32,
    #[prost(int32, tag = "3")]
    #[serde(deserialize_with = "number")]
    pub filename_strindex: i32,
    #[prost(int64, tag = "4")]
    #[serde(deserialize_with = "number")]
    pub start_line: i64,
}

/// A span of a trace; only how many there are is of use here.
#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default)]
pub struct Link {}

/// An attribute of samples and locations.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Attribute {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "number")]
    pub key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A stack: its locations, leaf first.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Stack {
    #[prost(int32, repeated, tag = "1")]
    #[serde(deserialize_with = "numbers")]
    pub location_indices: Vec<i32>,
}

/// A request in JSON.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JsonRequest {
    #[serde(deserialize_with = "encoded::<_, ResourceProfiles>")]
    pub resource_profiles: Vec<Bytes>,
    pub dictionary: Dictionary,
}

/// Messages in JSON as their bytes.
fn encoded<'de, D, M>(from: D) -> Result<Vec<Bytes>, D::Error>
where
    D: Deserializer<'de>,
    M: Message + DeserializeOwned,
{
    let all = Vec::<M>::deserialize(from)?;
    let bytes = all
        .into_iter()
        .map(|message| message.encode_to_vec().into());
    Ok(bytes.collect())
}

/// A number of JSON: long ones are texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Signed(i64),
    Unsigned(u64),
    Text(String),
}

impl Number {
    fn get<T: TryFrom<i128>, E: Error>(self) -> Result<T, E> {
        let number = match self {
            Number::Signed(number) => Some(i128::from(number)),
            Number::Unsigned(number) => Some(i128::from(number)),
            Number::Text(text) => text.parse().ok(),
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| E::custom("expected a whole number of the field's size"))
    }
}

fn number<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<T, D::Error> {
    Number::deserialize(from)?.get()
}

fn optional_number<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    let found = Option::<Number>::deserialize(from)?;
    found.map(Number::get).transpose()
}

fn numbers<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    let all = Vec::<Number>::deserialize(from)?;
    all.into_iter().map(Number::get).collect()
}
