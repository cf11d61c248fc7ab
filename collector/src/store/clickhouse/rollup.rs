//! Which table answers: the samples, or a rollup by service where it is exact.

use super::SERVICE_LABELS;
use super::answer::{RAW, gate};
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
    table: Table,
    /// The range in steps of the table.
    pub span: Span,
    /// As it is told.
    pub rollup: Rollup,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    /// A rollup that is exact.
    Rollup(&'static str),
    /// Samples, which are there once each.
    Samples,
    /// Samples, of which some may be there twice or not count: slower, and right whatever happens.
    Surest,
}

impl Source {
    /// The coarsest table that answers `query` exactly.
    pub async fn of(
        client: &Client,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<Source, Fault> {
        let surest = Source::surest(range)?;
        let rollups = if has_labels(query) { &ROLLUPS[..] } else { &[] };
        for &(table, step_s) in rollups {
            let step_ns = step_s * super::keys::NS_PER_S;
            let span = Span::of(range, step_ns);
            let rollup = Rollup {
                step_ns: step_ns as u64,
                by_service: true,
            };
            if let Some(span) = span.filter(|span| span.covered == surest.span.covered) {
                let table = Table::Rollup(table);
                let source = Source {
                    table,
                    span,
                    rollup,
                };
                if source.still_holds(client, limits).await? {
                    return Ok(source);
                }
            }
        }
        let samples = Source {
            table: Table::Samples,
            ..surest
        };
        if samples.still_holds(client, limits).await? {
            return Ok(samples);
        }
        Source::surest(range)
    }

    /// The table that is right whatever happened and happens.
    pub fn surest(range: TimeRange) -> Result<Source, Fault> {
        let span = Span::of(range, STEP_NS);
        let span = span.ok_or_else(|| Fault::Refused("the range is empty".to_owned()))?;
        Ok(Source {
            table: Table::Surest,
            span,
            rollup: RAW,
        })
    }

    /// Table that has the label sets of its `series`.
    pub fn label_table(&self) -> &'static str {
        match self.table {
            Table::Rollup(_) => "services",
            Table::Samples | Table::Surest => "series",
        }
    }

    /// SQL of its rows as samples; ends in a condition.
    pub fn sql(&self) -> String {
        let span = self.span;
        let samples = "SELECT series, stack, end, n, n * period + extra AS w FROM samples";
        match self.table {
            Table::Rollup(table) => format!(
                "SELECT service AS series, stack, end, n, w FROM {table} WHERE {}",
                of_time(span)
            ),
            Table::Samples => format!("{samples} WHERE {}", span.of_steps()),
            Table::Surest => format!(
                "{samples} FINAL WHERE {} AND {}",
                span.of_steps(),
                gate(span)
            ),
        }
    }

    /// True when the table has each row of each window of the range once, and no other.
    ///
    /// A repeated insert adds its rows a second time, one that failed half-way adds rows of windows
    /// that are not stored (yet), and a view that failed lacks rows. Rollups count the rows they were
    /// made of in their own rows, so that the count cannot be of another insert than the sums beside
    /// it. Asked before and after reading.
    pub async fn still_holds(&self, client: &Client, limits: &Limits) -> Result<bool, Fault> {
        #[derive(Row, Deserialize)]
        struct Differ {
            hours: u64,
        }
        let counted = match self.table {
            Table::Surest => return Ok(true),
            Table::Rollup(table) => format!(
                "SELECT toStartOfHour(time) AS hour, toInt64(rows) AS rows FROM {table} WHERE {}",
                of_time(self.span)
            ),
            Table::Samples => format!(
                "SELECT toStartOfHour(chunk) AS hour, toInt64(count()) AS rows FROM samples \
                 WHERE {} GROUP BY hour",
                self.span.of_steps()
            ),
        };
        let ask = Statement::of(format!(
            "SELECT count() AS hours FROM (SELECT hour, sum(rows) AS differ FROM ({counted} \
             UNION ALL SELECT toStartOfHour(chunk) AS hour, -toInt64(rows) AS rows \
             FROM windows FINAL WHERE {}) GROUP BY hour HAVING differ != 0)",
            self.span.of_steps()
        ));
        let mut holds = false;
        client
            .each::<Differ>(&ask, limits, |row| {
                holds = row.hours == 0;
                Ok(())
            })
            .await?;
        Ok(holds)
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
