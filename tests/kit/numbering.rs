//! How tests number windows: as agents do, see `WindowPart.sequence` in `ingest.proto`. The store's
//! indexes and key columns are made for such numbers; small ones that count up would flatter them.

/// A day and a bit. Unit: nanoseconds. No multiple of any window: windows start where they meet in
/// wall time, and the boot was at any moment.
const DAY_NS: u64 = 86_400_000_000_123;

/// How long the first host is up when a test's time starts; each further one is a day longer.
const UPTIME_DAYS: u64 = 30;

/// The sequence of a window that starts `start_ns` after the start of a test's time.
///
/// # Panics
/// When that is before the host's boot.
pub fn sequence(host: u64, start_ns: i64) -> u64 {
    let uptime_ns = (UPTIME_DAYS + host) * DAY_NS;
    let sequence = uptime_ns.checked_add_signed(start_ns);
    sequence.expect("a window starts after the host's boot")
}
