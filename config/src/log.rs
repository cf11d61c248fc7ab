//! The section `log` of every program: its types, its keys and their descriptions.

use crate::key::{Key, Reload, put_word, word};
use crate::value::Kind;
use serde::Serialize;

/// Lowest level to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what is degraded.
    Warn,
    /// And what happened.
    Info,
    /// And why.
    Debug,
    /// And everything else.
    Trace,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For log stores: one object a line.
    Json,
}

/// Section `log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Lowest level to log.
    pub level: LogLevel,
    /// Form of the lines.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            level: LogLevel::Info,
            format: LogFormat::Text,
        }
    }
}

/// A configuration with a section `log`.
pub trait HasLog {
    /// The section.
    fn log(&self) -> &Log;
    /// The section, to be changed.
    fn log_mut(&mut self) -> &mut Log;
}

const LEVELS: &[(LogLevel, &str)] = &[
    (LogLevel::Error, "error"),
    (LogLevel::Warn, "warn"),
    (LogLevel::Info, "info"),
    (LogLevel::Debug, "debug"),
    (LogLevel::Trace, "trace"),
];

const FORMATS: &[(LogFormat, &str)] = &[(LogFormat::Text, "text"), (LogFormat::Json, "json")];

/// The key `log.level`.
pub const fn level_key<C: HasLog>() -> Key<C> {
    Key {
        path: "log.level",
        kind: Kind::Word(&["error", "warn", "info", "debug", "trace"]),
        unit: "",
        reload: Reload::Live,
        doc: "Lowest level to log.",
        get: |c| word(&c.log().level, LEVELS),
        put: |c, v| put_word(&mut c.log_mut().level, &v, LEVELS),
    }
}

/// The key `log.format`.
pub const fn format_key<C: HasLog>() -> Key<C> {
    Key {
        path: "log.format",
        kind: Kind::Word(&["text", "json"]),
        unit: "",
        reload: Reload::Restart,
        doc: "text for people, or json for log stores (one object a line).",
        get: |c| word(&c.log().format, FORMATS),
        put: |c, v| put_word(&mut c.log_mut().format, &v, FORMATS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    impl HasLog for Log {
        fn log(&self) -> &Log {
            self
        }

        fn log_mut(&mut self) -> &mut Log {
            self
        }
    }

    #[test]
    fn every_word_a_key_admits_is_taken_and_given_back() {
        for key in [level_key::<Log>(), format_key()] {
            let Kind::Word(words) = key.kind else {
                panic!("`{}` has no words", key.path)
            };
            assert_eq!(words.len(), if key.path == "log.level" { 5 } else { 2 });
            for word in words {
                let mut log = Log::default();
                (key.put)(&mut log, Value::Text((*word).to_owned()));
                assert_eq!((key.get)(&log), Value::Text((*word).to_owned()));
            }
        }
    }
}
