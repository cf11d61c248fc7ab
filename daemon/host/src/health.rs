//! Degradations: how each stage reports to the status what does not work as it should.

/// Something that does not work as it should, or could work better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degradation {
    /// Stable word.
    pub id: &'static str,
    /// What the situation is and what it means for profiles.
    pub message: String,
    /// Command that fixes it; empty when there is none.
    pub remedy: String,
    /// How bad it is.
    pub severity: Severity,
}

/// How bad a degradation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Profiles miss something.
    Warning,
    /// No profiles.
    Error,
}

impl Degradation {
    /// A degradation.
    pub fn new(
        id: &'static str,
        severity: Severity,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Degradation {
        Degradation {
            id,
            message: message.into(),
            remedy: remedy.into(),
            severity,
        }
    }
}
