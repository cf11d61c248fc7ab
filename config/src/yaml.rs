//! The only module that uses the YAML parser: no other module names serde_yaml, so that it can be
//! replaced.

use serde::Serialize;
use serde::de::DeserializeSeed;

/// What the parser, or a visitor under it, refuses.
pub(crate) struct YamlError {
    /// Where, from 1; none where the parser does not know.
    pub line: Option<usize>,
    /// In its own words.
    pub message: String,
}

/// Reads one document the way `seed` does.
pub(crate) fn read<'de, T: DeserializeSeed<'de>>(
    text: &'de str,
    seed: T,
) -> Result<T::Value, YamlError> {
    let read = seed.deserialize(serde_yaml::Deserializer::from_str(text));
    read.map_err(|error| YamlError {
        line: error.location().map(|location| location.line()),
        message: error.to_string(),
    })
}

/// Writes a value with string keys and plain scalars, which always can be written.
pub(crate) fn write(value: &impl Serialize) -> String {
    serde_yaml::to_string(value).unwrap_or_default()
}
