//! Builds the answer of `GetLedger`.

use aggregate::recorder::Covered;
use profile::Ledger;
use proto::agent;

/// Most rows of one answer, so that it stays below the 4 MiB that clients take; of more, those with
/// the fewest samples, taken, lost and expected, are left out. A parent has never less than its
/// children.
const ROWS_MAX: usize = 8000;

/// The answer.
pub(super) fn answer(
    ledger: Ledger,
    covered: &Covered,
    range: agent::TimeRange,
    unit: String,
) -> agent::GetLedgerResponse {
    let mut rows = ledger.rows;
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    if left_out > 0 {
        rows.sort_by_key(|row| {
            let samples = row.total.taken.saturating_add(row.total.lost);
            std::cmp::Reverse(samples.max(row.expected.samples))
        });
        rows.truncate(ROWS_MAX);
        rows.sort_by(|a, b| a.path.cmp(&b.path));
    }
    agent::GetLedgerResponse {
        rows: rows.into_iter().map(Into::into).collect(),
        host: Some(ledger.host.into()),
        expected: Some(ledger.expected.into()),
        covered: Some(range),
        quality: Some(covered.quality.into()),
        windows: ledger.windows,
        windows_unmeasured: ledger.windows_unmeasured,
        rows_left_out: left_out as u64,
        unit,
    }
}
