//! Chooses the table for a query: the samples, or a rollup by service if it is exact.

use super::SERVICE_LABELS;
use super::client::Client;
use super::fault::Fault;
use super::keys::{STEP_NS, Span};
use super::statement::Statement;
use super::sums::{RAW, gate};
use crate::store::{Limits, Resolution, TimeRange};
use clickhouse::Row;
use profile::{GroupBy, Query};
use serde::Deserialize;

/// Rollups, coarsest first: the table and its step in seconds.
const ROLLUPS: [(&str, i64); 2] = [(HOURS, 3600), (MINUTES, 60)];
const HOURS: &str = "service_1h";
const MINUTES: &str = "service_1m";

/// Where samples are read from.
pub(super) struct Source {
    table: Table,
    /// The range in steps of the table.
    pub span: Span,
    /// The resolution stated in answers.
    pub resolution: Resolution,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    /// A rollup that is exact.
    Rollup(&'static str),
    /// Complete hours from one rollup, in seconds since the epoch; the rest from the other.
    HoursAndMinutes(i64, i64),
    /// Samples, which are there once each.
    Samples,
    /// Samples, of which some may be there twice or not count: slower, and right whatever happens.
    Surest,
}

impl Source {
    /// The coarsest table that answers `query` exactly; where samples are gone for their age, the
    /// finest that still answers, over the range widened to its steps.
    pub async fn of(
        client: &Client,
        range: TimeRange,
        query: &Query,
        limits: &Limits,
    ) -> Result<Source, Fault> {
        let surest = Source::surest(range)?;
        let by_service = has_labels(query);
        let exact = candidates(range).filter(|source| source.span.covered == surest.span.covered);
        for source in exact.filter(|_| by_service) {
            if source.still_holds(client, limits).await? {
                return Ok(source);
            }
        }
        let samples = Source {
            table: Table::Samples,
            ..surest
        };
        if samples.still_holds(client, limits).await? {
            return Ok(samples);
        }
        if by_service && samples_start_s(client, limits).await? > samples.span.start_s {
            for source in finest_first(range) {
                if source.still_holds(client, limits).await? {
                    return Ok(source);
                }
            }
        }
        Source::surest(range)
    }

    /// Rollups over one day, for a look at whether they have everything.
    pub async fn has_day(client: &Client, day: i64, limits: &Limits) -> Result<bool, Fault> {
        let day_ns = 86_400 * super::keys::NS_PER_S;
        let range = TimeRange {
            start_unix_ns: day.saturating_mul(day_ns),
            end_unix_ns: day.saturating_add(1).saturating_mul(day_ns),
        };
        for (table, step_s) in ROLLUPS {
            let source = Source::rollup(range, table, step_s);
            match source {
                Some(source) if source.still_holds(client, limits).await? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn rollup(range: TimeRange, table: &'static str, step_s: i64) -> Option<Source> {
        let step_ns = step_s * super::keys::NS_PER_S;
        Some(Source {
            table: Table::Rollup(table),
            span: Span::of(range, step_ns)?,
            resolution: Resolution {
                step_ns: step_ns as u64,
                by_service: true,
            },
        })
    }

    /// Minutes; complete hours among them are read as such.
    fn hours_and_minutes(range: TimeRange) -> Option<Source> {
        let minutes = Source::rollup(range, MINUTES, 60)?;
        let from = minutes.span.start_s.checked_add(3599)? / 3600 * 3600;
        let to = minutes.span.end_s / 3600 * 3600;
        (from < to).then_some(Source {
            table: Table::HoursAndMinutes(from, to),
            ..minutes
        })
    }

    /// The table that is right whatever happened and happens.
    pub fn surest(range: TimeRange) -> Result<Source, Fault> {
        let span = Span::of(range, STEP_NS);
        let span = span.ok_or_else(|| Fault::Refused("the range is empty".to_owned()))?;
        Ok(Source {
            table: Table::Surest,
            span,
            resolution: RAW,
        })
    }

    /// Table that has the label sets of its `series`.
    pub fn label_table(&self) -> &'static str {
        match self.table {
            Table::Rollup(_) | Table::HoursAndMinutes(..) => "services",
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
            Table::HoursAndMinutes(from, to) => format!(
                "SELECT series, stack, end, n, w FROM \
                 (SELECT service AS series, stack, end, n, w FROM {HOURS} WHERE {} UNION ALL \
                 SELECT service AS series, stack, end, n, w FROM {MINUTES} WHERE {}) WHERE 1",
                between(from, to),
                edges(span, from, to)
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
    /// that are not stored (yet), and a view that failed lacks rows. Rollups count the rows they
    /// were made of in their own rows, so that a count and its sums always come from the same
    /// insert. Asked before and after reading.
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
            Table::HoursAndMinutes(from, to) => format!(
                "SELECT toStartOfHour(time) AS hour, toInt64(rows) AS rows FROM {HOURS} WHERE {} \
                 UNION ALL SELECT toStartOfHour(time) AS hour, toInt64(rows) AS rows FROM {MINUTES} \
                 WHERE {}",
                between(from, to),
                edges(self.span, from, to)
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
        let mut holds = true;
        client
            .each::<Differ>(&ask, limits, |row| {
                holds &= row.hours == 0;
                Ok(())
            })
            .await?;
        Ok(holds)
    }
}

fn of_time(span: Span) -> String {
    between(span.start_s, span.end_s)
}

fn between(start_s: i64, end_s: i64) -> String {
    format!("time >= toDateTime({start_s}, 'UTC') AND time < toDateTime({end_s}, 'UTC')")
}

/// The parts of a span outside the hours in between.
fn edges(span: Span, from: i64, to: i64) -> String {
    let (before, after) = (between(span.start_s, from), between(to, span.end_s));
    format!("({before} OR {after})")
}

/// Rollups over a range, each widened to its steps; coarsest first.
fn candidates(range: TimeRange) -> impl Iterator<Item = Source> {
    let minutes = Source::rollup(range, MINUTES, 60);
    let both = Source::hours_and_minutes(range);
    let hours = Source::rollup(range, HOURS, 3600);
    [hours, both, minutes].into_iter().flatten()
}

fn finest_first(range: TimeRange) -> impl Iterator<Item = Source> {
    let minutes = Source::rollup(range, MINUTES, 60);
    let both = Source::hours_and_minutes(range);
    let hours = Source::rollup(range, HOURS, 3600);
    [both, minutes, hours].into_iter().flatten()
}

/// Where samples start: what is older was dropped for its age. Unit: seconds since the epoch.
async fn samples_start_s(client: &Client, limits: &Limits) -> Result<i64, Fault> {
    #[derive(Row, Deserialize)]
    struct First {
        rows: u64,
        first_s: u32,
    }
    let ask = Statement::of(
        "SELECT count() AS rows, toUInt32(toUnixTimestamp(min(chunk))) AS first_s FROM samples",
    );
    let mut start_s = i64::MAX;
    client
        .each::<First>(&ask, limits, |row| {
            if row.rows > 0 {
                start_s = start_s.min(row.first_s.into());
            }
            Ok(())
        })
        .await?;
    Ok(start_s)
}

/// The first of `labels` that services do not have, and until when services alone are kept.
pub(super) async fn not_kept(
    client: &Client,
    range: TimeRange,
    labels: &[&str],
    limits: &Limits,
) -> Result<Option<(String, i64)>, Fault> {
    let lost = labels.iter().find(|label| !SERVICE_LABELS.contains(label));
    let (Some(label), Some(kept)) = (lost, super::hosts::kept(client).await?) else {
        return Ok(None);
    };
    let (until, gone) = match samples_start_s(client, limits).await? {
        // None are left of what was there.
        i64::MAX => (kept.end_unix_ns, true),
        start_s => {
            let start = start_s.saturating_mul(super::keys::NS_PER_S);
            // Days are dropped as a whole: on the first known day there may have been none before.
            let day = 86_400 * super::keys::NS_PER_S;
            (start, start.saturating_sub(kept.start_unix_ns) > day)
        }
    };
    let meets = range.start_unix_ns < until && kept.start_unix_ns < range.end_unix_ns;
    Ok((gone && meets).then(|| ((*label).to_owned(), until)))
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
