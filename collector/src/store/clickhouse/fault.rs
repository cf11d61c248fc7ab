//! Why a statement was not done: what the errors of the server and of the way to it mean.

use crate::store::StoreError;
use ::clickhouse::error::Error;

/// Most text of an error that is kept. Unit: bytes.
const ERROR_LEN_MAX: usize = 500;

/// Why a statement was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The server cannot be reached, or has no room or time now.
    #[error("{0}")]
    Away(String),
    /// A limit of the query was passed in the engine.
    #[error("{0}")]
    Limit(String),
    /// The caller gave up, or its time is over.
    #[error("the query was cancelled")]
    GivenUp,
    /// The engine does not do it.
    #[error("{0}")]
    Refused(String),
    /// The database was made by a later version.
    #[error(
        "failed to use the database: its schema version is {found}, and this collector supports \
         {}; run a newer collector, or set another database",
        super::SCHEMA_VERSION
    )]
    Newer {
        /// Version in the database.
        found: u32,
    },
    /// The table that carries the key is not as it was made.
    #[error(
        "failed to use the database: the comment of table `identity` is not its key; restore \
        the comment from a backup"
    )]
    NoKey,
    /// Weights of different units.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
}

impl Fault {
    /// True when the server did not do a statement because of a setting that was sent with it: it
    /// does not know the setting, or the user may not change it.
    pub fn is_of_setting(&self) -> bool {
        let (Fault::Away(text) | Fault::Refused(text)) = self else {
            return false;
        };
        code(text).is_some_and(|code| SETTING_REFUSED.contains(&code))
    }

    /// True when the user has no right to do it.
    pub fn is_forbidden(&self) -> bool {
        let (Fault::Away(text) | Fault::Refused(text)) = self else {
            return false;
        };
        code(text) == Some(ACCESS_DENIED)
    }

    /// The same with another text, where the text is the server's.
    pub fn with(self, change: impl FnOnce(String) -> String) -> Fault {
        match self {
            Fault::Away(text) => Fault::Away(change(text)),
            Fault::Limit(text) => Fault::Limit(change(text)),
            Fault::Refused(text) => Fault::Refused(change(text)),
            other => other,
        }
    }

    /// As the trait says it.
    pub fn of(self, operation: &'static str) -> StoreError {
        match self {
            Fault::Away(text) => StoreError::Unavailable(format!("ClickHouse: {text}")),
            Fault::Limit(text) => StoreError::TooLarge(text),
            Fault::GivenUp => StoreError::Cancelled,
            Fault::Units(error) => StoreError::Units(error),
            fault @ (Fault::Refused(_) | Fault::Newer { .. } | Fault::NoKey) => {
                let message = fault.to_string();
                StoreError::Engine { operation, message }
            }
        }
    }
}

/// Codes of exceptions after which the same statement may succeed later: no room in memory or on
/// disk, too many parts or queries, timeouts, read-only tables, no quorum, credentials being
/// changed.
const LATER: &[u32] = &[
    159, 164, 192, 193, 194, 201, 202, 203, 209, 210, 236, 241, 242, 243, 252, 285, 290, 319, 425,
    473, 497, 516, 999,
];
/// Codes that say that a query took more than it may: memory, rows, bytes.
const TOO_MUCH: &[u32] = &[158, 191, 241, 307, 396];
/// Codes of queries that ran out of time or were killed.
const OVER: &[u32] = &[159, 394];

/// Codes of settings that are unknown, may not be changed by a read-only user, or have a bound.
const SETTING_REFUSED: &[u32] = &[115, 164, 452];

/// Code of a right that is missing. It may be given later.
const ACCESS_DENIED: u32 = 497;

/// Number in `Code: 241. DB::Exception: …`.
pub(super) fn code(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Code: ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// An error with its causes, cut.
fn text_of(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error).and_then(|cause| cause.source());
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    if text.len() > ERROR_LEN_MAX {
        let cut = (0..=ERROR_LEN_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}

/// Classifies an error of a write.
pub(super) fn fault_of_write(error: &Error) -> Fault {
    let text = text_of(error);
    match error {
        Error::Network(_) | Error::TimedOut => Fault::Away(text),
        Error::BadResponse(_) => match code(&text) {
            Some(code) if !LATER.contains(&code) => Fault::Refused(text),
            // Without a code it is from something in between: a proxy, a balancer.
            _ => Fault::Away(text),
        },
        _ => Fault::Refused(text),
    }
}

/// Classifies an error of a query.
pub(super) fn fault_of_query(error: &Error) -> Fault {
    let code = match error {
        Error::BadResponse(text) => code(text),
        _ => None,
    };
    match code {
        Some(code) if TOO_MUCH.contains(&code) => Fault::Limit(format!(
            "the query exceeds a limit of ClickHouse; narrow the range or the selection: {}",
            text_of(error)
        )),
        Some(code) if OVER.contains(&code) => Fault::GivenUp,
        _ => fault_of_write(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_from_exceptions() {
        let text = "bad response: Code: 241. DB::Exception: Memory limit exceeded";
        assert_eq!(code(text), Some(241));
        assert_eq!(code("<html>502 Bad Gateway</html>"), None);
        assert_eq!(code("Code: 99999999999."), None);
    }

    #[test]
    fn errors_say_whether_to_come_again() {
        let bad = |text: &str| Error::BadResponse(text.to_owned());
        let away = |fault| matches!(fault, Fault::Away(_));
        assert!(away(fault_of_write(&bad(
            "Code: 252. DB::Exception: Too many parts"
        ))));
        assert!(away(fault_of_write(&bad("502 Bad Gateway"))));
        assert!(away(fault_of_write(&bad(
            "Code: 243. DB::Exception: not enough space"
        ))));
        let refused = fault_of_write(&bad("Code: 62. DB::Exception: Syntax error"));
        assert!(matches!(refused, Fault::Refused(_)));
        let over = fault_of_query(&bad("Code: 159. DB::Exception: Timeout exceeded"));
        assert!(matches!(over, Fault::GivenUp));
        let large = fault_of_query(&bad("Code: 241. DB::Exception: Memory limit"));
        assert!(matches!(large, Fault::Limit(_)));
    }

    #[test]
    fn settings_that_are_refused_are_told_from_statements_that_are() {
        let fault = |text: &str| fault_of_write(&Error::BadResponse(text.to_owned()));
        for of_setting in [
            "Code: 115. DB::Exception: Unknown setting",
            "Code: 164. DB::Exception: Cannot modify setting in readonly mode",
            "Code: 452. DB::Exception: Setting should not be changed",
        ] {
            assert!(fault(of_setting).is_of_setting(), "{of_setting}");
        }
        assert!(!fault("Code: 359. DB::Exception: Size is greater").is_of_setting());
        assert!(!Fault::GivenUp.is_of_setting());
    }

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = text_of(&Error::BadResponse("é".repeat(1000)));
        assert!(text.len() <= ERROR_LEN_MAX + '…'.len_utf8() && text.ends_with('…'));
    }
}
