//! Which table answers: the samples, or a rollup by service where it is exact.

use super::SERVICE_LABELS;
use super::answer::RAW;
use super::client::{Client, Fault, Statement};
use super::keys::{STEP_NS, Span};
use crate::store::{Limits, Rollup, TimeRange};
use clickhouse::Row;
use profile::{GroupBy, Query};
use serde::Deserialize;

/// Rollups, coarsest first: the table and its step in seconds.
const ROLLUPS: [(&str, i64); 2] = [("service_1h", 3600), ("service_1m", 60)];

/// Where samples are read from.
pub(super) struct Source {
    /// The rollup; `None`: the samples.
    table: Option<&'static str>,
    /// The range in steps of the table.
    pub span: Span,
    /// As it is told.
    pub rollup: Rollup,
}

impl Source {
    /// The coarsest table that answers `query` exactly.
    pub async fn of(
        client: &Client,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<Source, Fault> {
        let Some(raw) = Span::of(range, STEP_NS) else {
            return Err(Fault::Refused("the range is empty".to_owned()));
        };
        if has_labels(query) {
            for (table, step_s) in ROLLUPS {
                let step_ns = step_s * super::keys::NS_PER_S;
                let aligned = Span::of(range, step_ns).filter(|span| span.covered == raw.covered);
                let Some(span) = aligned else { continue };
                if is_exact(client, table, span, limits).await? {
                    let rollup = Rollup {
                        step_ns: step_ns as u64,
                        by_service: true,
                    };
                    return Ok(Source {
                        table: Some(table),
                        span,
                        rollup,
                    });
                }
            }
        }
        Ok(Source {
            table: None,
            span: raw,
            rollup: RAW,
        })
    }

    /// True for the samples themselves.
    pub fn is_raw(&self) -> bool {
        self.table.is_none()
    }

    /// Table that has the label sets of its `series`.
    pub fn label_table(&self) -> &'static str {
        if self.is_raw() { "series" } else { "services" }
    }

    /// SQL of the rollup's rows as if they were samples.
    pub fn sql(&self) -> String {
        let table = self.table.unwrap_or("service_1m");
        format!(
            "SELECT service AS series, stack, end, n, w FROM {table} WHERE {}",
            of_time(self.span)
        )
    }
}

fn of_time(span: Span) -> String {
    format!(
        "time >= toDateTime({}, 'UTC') AND time < toDateTime({}, 'UTC')",
        span.start_s, span.end_s
    )
}

/// True when services have every label that the query looks at.
fn has_labels(query: &Query) -> bool {
    let mut matchers = query.selector().matchers().iter();
    let selected = matchers.all(|matcher| SERVICE_LABELS.contains(&matcher.label()));
    let grouped = match query.group_by() {
        GroupBy::All => false,
        GroupBy::Keys(keys) => keys
            .iter()
            .all(|key| SERVICE_LABELS.contains(&key.as_str())),
    };
    selected && grouped
}

/// True when the rollup was made of each row of each window of the range once, and of no other.
///
/// A repeated insert adds its rows a second time, one that failed half-way adds rows of windows that
/// are not stored (yet), and a view that failed lacks rows. What is counted here is in the rollup's
/// own rows, so it cannot be of another insert than the sums beside it.
async fn is_exact(
    client: &Client,
    table: &str,
    span: Span,
    limits: &Limits,
) -> Result<bool, Fault> {
    #[derive(Row, Deserialize)]
    struct Differs {
        hours: u64,
    }
    let ask = Statement::of(format!(
        "SELECT count() AS hours FROM (SELECT hour, sum(rows) AS rows FROM ( \
           SELECT toStartOfHour(time) AS hour, toInt64(rows) AS rows FROM {table} WHERE {} \
           UNION ALL \
           SELECT toStartOfHour(chunk) AS hour, -toInt64(rows) AS rows FROM windows FINAL WHERE {} \
         ) GROUP BY hour HAVING rows != 0)",
        of_time(span),
        span.of_steps()
    ));
    let mut exact = false;
    client
        .each::<Differs>(&ask, limits, |row| {
            exact = row.hours == 0;
            Ok(())
        })
        .await?;
    Ok(exact)
}
