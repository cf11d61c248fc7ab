//! One recording that several tests of a suite look at: made by the first that asks, given to all.

use crate::require::{Live, Need, met};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// Holds a recording, or why there is none.
pub struct Shared<T>(OnceLock<Result<T, String>>);

impl<T: Send + Sync> Shared<T> {
    /// Nothing recorded yet.
    #[expect(
        clippy::new_without_default,
        reason = "it stands in statics, where default() cannot"
    )]
    pub const fn new() -> Shared<T> {
        Shared(OnceLock::new())
    }

    /// The recording. Reports a skip where a need is not met; made under [`Live`] by the first that
    /// asks. Everything `record` starts must end with it: what it returns is never dropped.
    ///
    /// # Panics
    /// When recording failed, now or for an earlier test.
    pub fn get(&'static self, needs: &[Need], record: impl FnOnce() -> T) -> Option<&'static T> {
        if !met(needs) {
            return None;
        }
        let made = self.0.get_or_init(|| {
            let _live = Live::take();
            catch_unwind(AssertUnwindSafe(record)).map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                text.or(panic.downcast_ref::<&str>().copied())
                    .unwrap_or("a panic")
                    .to_owned()
            })
        });
        match made {
            Ok(recording) => Some(recording),
            Err(reason) => panic!("failed to record: {reason}"),
        }
    }
}
