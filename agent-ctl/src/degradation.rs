//! Shows degradations: problems of the agent, the collector or this machine, with their severity
//! and the fix.

use crate::terminal::Tone;
use crate::when::rfc3339;
use proto::agent::Severity;
use serde::Serialize;

/// A found problem, on this machine or said by the agent.
pub struct Finding {
    /// Stable word.
    pub id: String,
    /// What is so and what it means.
    pub message: String,
    /// Command that fixes it; may be empty.
    pub remedy: String,
    /// How bad.
    pub severity: Severity,
}

impl Finding {
    /// As JSON.
    pub fn json(&self) -> Degradation<'_> {
        Degradation::new(&self.id, self.severity, &self.message, &self.remedy)
    }
}

/// A degradation as JSON.
#[derive(Serialize)]
pub struct Degradation<'a> {
    id: &'a str,
    severity: &'static str,
    message: &'a str,
    remedy: &'a str,
    /// Since when it holds, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

impl<'a> Degradation<'a> {
    /// One of the status.
    pub fn of(found: &'a proto::agent::Degradation) -> Degradation<'a> {
        let since = found.since_unix_ns;
        Degradation {
            since: (since != 0).then(|| rfc3339(since)),
            ..Degradation::new(&found.id, found.severity(), &found.message, &found.remedy)
        }
    }

    /// One from its parts.
    pub fn new(id: &'a str, found: Severity, message: &'a str, remedy: &'a str) -> Degradation<'a> {
        Degradation {
            id,
            severity: severity(found).0,
            message,
            remedy,
            since: None,
        }
    }
}

/// The word and tone of a severity.
pub fn severity(severity: Severity) -> (&'static str, Tone) {
    match severity {
        Severity::Error => ("error", Tone::Bad),
        Severity::Warning => ("warning", Tone::Warn),
        Severity::Info | Severity::Unspecified => ("info", Tone::Dim),
    }
}
