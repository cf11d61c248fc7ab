//! Wall time: the one place of the collector where it enters.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Says what time it is. Clones tell the same time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// The machine's clock.
    pub fn system() -> Clock {
        Clock::new(system_unix_ns)
    }

    /// A clock that says what `now_unix_ns` returns: tests set it.
    pub fn new(now_unix_ns: impl Fn() -> i64 + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now_unix_ns))
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now_unix_ns(&self) -> i64 {
        (self.0)()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where wall time enters"
)]
fn system_unix_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
