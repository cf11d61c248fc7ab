//! Wall time: the only place in the collector that reads it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time. Clones return the same time.
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

/// A time as texts have it; empty if no calendar has it.
pub fn rfc3339(unix_ns: i64) -> String {
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into()).ok();
    let text = time.and_then(|at| {
        at.format(&time::format_description::well_known::Rfc3339)
            .ok()
    });
    text.unwrap_or_default()
}

/// A time as it stands in names of files, such as `20261122T162500Z`.
pub(crate) fn compact(unix_s: i64) -> String {
    let Ok(at) = time::OffsetDateTime::from_unix_timestamp(unix_s) else {
        return String::new();
    };
    let (date, hour) = (at.to_calendar_date(), at.to_hms());
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        date.0,
        u8::from(date.1),
        date.2,
        hour.0,
        hour.1,
        hour.2
    )
}
