//! Finds the common unit of what was added up.

use profile::MergeError;

/// Units of what was added up: one, or none.
#[derive(Clone, Debug, Default)]
pub struct Units(Option<String>);

impl Units {
    /// Takes one more.
    ///
    /// # Errors
    /// When it is another than before.
    pub fn add(&mut self, unit: &str) -> Result<(), MergeError> {
        match &self.0 {
            None => self.0 = Some(unit.to_owned()),
            Some(left) if left == unit => {}
            Some(left) => {
                return Err(MergeError::UnitMismatch {
                    left: left.clone(),
                    right: unit.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The unit; empty when there was nothing.
    pub fn into_text(self) -> String {
        self.0.unwrap_or_default()
    }
}
