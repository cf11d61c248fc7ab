//! The part of the fleet that somebody may see: matchers that are added to whatever they ask.

use profile::Selector;

/// A selector that is added to everything its owner asks.
#[derive(Clone, Debug)]
pub struct Scope {
    /// As it was written.
    pub text: String,
    /// Its matchers.
    pub selector: Selector,
}

impl Scope {
    /// Reads a selector.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Scope, String> {
        let selector: Selector = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Scope {
            text: text.to_owned(),
            selector,
        })
    }
}
