//! The time up to which the disk budget has removed partitions: windows for an earlier time are
//! rejected.
//!
//! Without it a late agent would recreate an old partition, which would be removed next, again and
//! again. The time is stored in a file together with the budget it applied to: a larger budget
//! resets it.

use crate::durable::replace;
use std::path::Path;

/// Reads up to when partitions were removed for a budget of `disk_bytes`. Unit: nanoseconds since
/// the Unix epoch; `i64::MIN` when nothing says so.
pub fn load(path: &Path, disk_bytes: u64) -> i64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut words = text.split_whitespace();
    let mut after = |name: &str| (words.next() == Some(name)).then(|| words.next());
    let before = after("before_s").flatten();
    let budget = after("disk_bytes").flatten();
    let before = before.and_then(|text| text.parse::<i64>().ok()?.checked_mul(1_000_000_000));
    let budget = budget.and_then(|text| text.parse::<u64>().ok());
    match (before, budget) {
        (Some(before), Some(budget)) if (1..=budget).contains(&disk_bytes) => before,
        _ => i64::MIN,
    }
}

/// Writes it.
///
/// # Errors
/// When the disk refuses; the next eviction writes it again.
pub fn save(path: &Path, before_unix_ns: i64, disk_bytes: u64) -> std::io::Result<()> {
    let seconds = before_unix_ns.div_euclid(1_000_000_000);
    let text = format!("before_s {seconds}\ndisk_bytes {disk_bytes}\n");
    replace(path, text.as_bytes(), 0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_until_the_budget_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evicted");
        assert_eq!(load(&path, 5), i64::MIN);
        save(&path, -7_000_000_000, 5).unwrap();
        assert_eq!(
            [4, 5].map(|budget| load(&path, budget)),
            [-7_000_000_000; 2]
        );
        assert_eq!([0, 6].map(|budget| load(&path, budget)), [i64::MIN; 2]);
        std::fs::write(&path, "before_s 99999999999999999999 disk_bytes").unwrap();
        assert_eq!(load(&path, 5), i64::MIN);
    }
}
