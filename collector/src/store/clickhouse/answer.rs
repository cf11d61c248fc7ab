//! Answers without stacks: labels, lines over time, totals.

use super::client::{Client, Fault, Param, Statement};
use super::keys::{NS_PER_S, STEP_NS, STEP_S, Span};
use super::quality;
use super::select::{Condition, Grouping, Labels, Unit, signed_sum, sum, within};
use crate::store::query::{Beside, FleetActivity, QueryBudget};
use crate::store::{
    Answer, LabelSet, Labelled, Limits, Line, Lines, Rollup, Scope, Step, StoreQuality, TimeRange,
};
use clickhouse::Row;
use profile::{GroupBy, Selector, Value};
use serde::Deserialize;
use std::collections::HashMap;

/// Most steps of a line. Beyond, a page has more points than pixels and the answer more than memory.
const STEPS_MAX: i64 = 100_000;

/// The windows' own step.
pub(super) const RAW: Rollup = Rollup {
    step_ns: STEP_NS as u64,
    by_service: false,
};

/// SQL that leaves out rows whose window is not (or not yet) stored.
pub(super) fn gate(span: Span) -> String {
    format!(
        "(chunk, slot, origin) IN (SELECT chunk, slot, origin FROM windows WHERE {})",
        span.of_chunks()
    )
}

#[derive(Row, Deserialize)]
struct Text {
    text: String,
}

/// Label sets of a range, as a condition on `series`.
fn active(span: Span) -> String {
    format!(
        "series IN (SELECT series FROM totals WHERE {} AND {})",
        span.of_steps(),
        gate(span)
    )
}

async fn texts(client: &Client, ask: &Statement, limits: &Limits) -> Result<Vec<String>, Fault> {
    let (mut texts, mut bytes) = (Vec::new(), 0);
    client
        .each::<Text>(ask, limits, |row| {
            bytes += row.text.len() + size_of::<String>();
            within(bytes, limits)?;
            texts.push(row.text);
            Ok(())
        })
        .await?;
    Ok(texts)
}

/// Names of labels.
pub(super) async fn label_names(
    client: &Client,
    scope: &Scope,
    limits: &Limits,
) -> Result<Vec<String>, Fault> {
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        return Ok(Vec::new());
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    ask.sql = format!(
        "SELECT DISTINCT toString(arrayJoin(mapKeys(labels))) AS text FROM series \
         WHERE {} AND {selected} AND {} ORDER BY text",
        span.of_days(),
        active(span)
    );
    texts(client, &ask, limits).await
}

/// Values of one label.
pub(super) async fn label_values(
    client: &Client,
    scope: &Scope,
    name: &str,
    prefix: &str,
    limit: usize,
    limits: &Limits,
) -> Result<(Vec<String>, bool), Fault> {
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        return Ok((Vec::new(), false));
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    let label = ask.param(Param::Text(name.to_owned()));
    let prefix = ask.param(Param::Text(prefix.to_owned()));
    ask.sql = format!(
        "SELECT DISTINCT labels[{label}] AS text FROM series \
         WHERE {} AND {selected} AND {} AND text != '' AND startsWith(text, {prefix}) \
         ORDER BY text LIMIT {}",
        span.of_days(),
        active(span),
        limit.saturating_add(1)
    );
    let mut values = texts(client, &ask, limits).await?;
    let more = values.len() > limit;
    values.truncate(limit);
    Ok((values, more))
}

/// SQL of the totals of selected label sets: `columns` by `by`.
fn of_totals(
    grouping: &Grouping<'_>,
    span: Span,
    condition: &Condition,
    columns: &str,
    by: &str,
) -> Statement {
    let mut ask = Statement::default();
    let selected = grouping.selected("series", span, condition, &mut ask);
    let narrowed = if condition.is_empty() {
        String::new()
    } else {
        let chosen = condition.sql(&mut ask);
        let days = span.of_days();
        format!(" AND series IN (SELECT series FROM series WHERE {days} AND {chosen})")
    };
    ask.sql = format!(
        "SELECT set.g AS g, toString(set.unit) AS unit, {columns} FROM \
         (SELECT * FROM totals FINAL WHERE {} AND {}{narrowed}) AS total \
         INNER JOIN ({selected}) AS set ON total.series = set.series GROUP BY {by}",
        span.of_steps(),
        gate(span)
    );
    ask
}

/// Steps of a range: the first begin, the length and how many there are.
struct Steps {
    start_s: i64,
    step_s: i64,
    count: usize,
}

impl Steps {
    fn of(covered: TimeRange, step_ns: u64) -> Result<Steps, Fault> {
        // Whole steps of windows: what begins within one cannot be divided.
        let step_s = (step_ns / NS_PER_S as u64).clamp(STEP_S as u64, i64::MAX as u64 / 2) as i64;
        let step_s = step_s.div_euclid(STEP_S) * STEP_S;
        let wanted = i128::from(step_ns).max(i128::from(STEP_NS));
        let step_s = match i128::from(step_s) * i128::from(NS_PER_S) < wanted {
            true => step_s + STEP_S,
            false => step_s,
        };
        let start_s = covered
            .start_unix_ns
            .div_euclid(NS_PER_S)
            .div_euclid(step_s)
            * step_s;
        let end_s = covered.end_unix_ns.div_euclid(NS_PER_S);
        let end_s = end_s + i64::from(covered.end_unix_ns.rem_euclid(NS_PER_S) > 0);
        let count =
            (i128::from(end_s) - i128::from(start_s) + i128::from(step_s) - 1) / i128::from(step_s);
        if count > i128::from(STEPS_MAX) {
            return Err(Fault::Limit(format!(
                "the range has {count} steps and an answer at most {STEPS_MAX}; \
                 narrow it or take longer steps"
            )));
        }
        Ok(Steps {
            start_s,
            step_s,
            count: count.max(0) as usize,
        })
    }

    fn start_unix_ns(&self) -> i64 {
        self.start_s.saturating_mul(NS_PER_S)
    }

    fn step_ns(&self) -> u64 {
        (self.step_s as u64).saturating_mul(NS_PER_S as u64)
    }
}

/// What is beside an answer about no time at all.
pub(super) fn nothing(range: TimeRange, limits: &Limits) -> Result<StoreQuality, Fault> {
    let beside = Beside {
        covered: range,
        rollup: RAW,
        total: Value::default(),
        unit: String::new(),
        damaged: Vec::new(),
    };
    let nobody = FleetActivity::default();
    Ok(nobody.quality(beside, &mut QueryBudget::new(limits))?)
}

/// Lines over time.
pub(super) async fn series(
    client: &Client,
    scope: &Scope,
    group_by: &GroupBy,
    step_ns: u64,
    limits: &Limits,
) -> Result<Answer<Lines>, Fault> {
    #[derive(Row, Deserialize)]
    struct Point {
        g: u64,
        unit: String,
        step: u64,
        n: u64,
        w: u64,
    }
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        let steps = Steps::of(
            TimeRange {
                end_unix_ns: scope.range.start_unix_ns,
                ..scope.range
            },
            step_ns,
        )?;
        let data = Lines {
            start_unix_ns: steps.start_unix_ns(),
            step_ns: steps.step_ns(),
            lines: Vec::new(),
            rest: Vec::new(),
            rest_lines: 0,
            steps: Vec::new(),
        };
        let quality = nothing(scope.range, limits)?;
        return Ok(Answer { data, quality });
    };
    let steps = Steps::of(span.covered, step_ns)?;
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let grouping = Grouping::new(group_by);
    let ask = of_totals(
        &grouping,
        span,
        &condition,
        &format!(
            "toUInt64(intDiv(toInt64(toUnixTimestamp(total.chunk)) + total.slot * {STEP_S} \
             - ({}), {})) AS step, sum(total.n + total.lost_n) AS n, {} AS w",
            steps.start_s,
            steps.step_s,
            sum("total.w + total.lost_w")
        ),
        "g, unit, step",
    );
    let (mut unit, mut total) = (Unit::default(), Value::default());
    let mut lines: HashMap<u64, Vec<u64>> = HashMap::new();
    client
        .each::<Point>(&ask, limits, |row| {
            if row.n == 0 && row.w == 0 {
                return Ok(());
            }
            unit.add(&row.unit)?;
            within((lines.len() + 1) * (steps.count * 8 + 64), limits)?;
            let line = lines.entry(row.g).or_insert_with(|| vec![0; steps.count]);
            if let Some(weight) = line.get_mut(row.step as usize) {
                *weight = weight.saturating_add(row.w);
            }
            total += Value {
                count: row.n,
                weight: row.w,
            };
            Ok(())
        })
        .await?;
    let names = grouping
        .labels(client, "series", span, &condition, limits)
        .await?;
    let mut data = heaviest_lines(lines, &names, &steps, limits.lines);
    data.steps = of_steps(client, span, &steps, &scope.selector, limits).await?;
    let fleet = quality::activity(client, span, &scope.selector, limits).await?;
    let beside = Beside {
        covered: span.covered,
        rollup: RAW,
        total,
        unit: unit.name(),
        damaged: Vec::new(),
    };
    let quality = fleet.quality(beside, &mut QueryBudget::new(limits))?;
    Ok(Answer { data, quality })
}

/// The heaviest lines, and the sum of the others.
fn heaviest_lines(
    lines: HashMap<u64, Vec<u64>>,
    names: &HashMap<u64, LabelSet>,
    steps: &Steps,
    limit: usize,
) -> Lines {
    let all = |weights: &[u64]| {
        weights
            .iter()
            .fold(0u64, |sum, &weight| sum.saturating_add(weight))
    };
    // Groups told apart by unit have the same labels.
    let mut by_labels: HashMap<LabelSet, Vec<u64>> = HashMap::new();
    for (group, weights) in lines {
        let labels = names.get(&group).cloned().unwrap_or_default();
        let line = by_labels
            .entry(labels)
            .or_insert_with(|| vec![0; steps.count]);
        line.iter_mut()
            .zip(&weights)
            .for_each(|(sum, &more)| *sum = sum.saturating_add(more));
    }
    let mut lines: Vec<Line> = by_labels
        .into_iter()
        .map(|(labels, weights)| Line { labels, weights })
        .collect();
    lines.sort_by(|left, right| {
        let (of_left, of_right) = (all(&left.weights), all(&right.weights));
        of_right
            .cmp(&of_left)
            .then_with(|| left.labels.cmp(&right.labels))
    });
    let left_out = lines.split_off(lines.len().min(limit));
    let mut rest = if left_out.is_empty() {
        Vec::new()
    } else {
        vec![0u64; steps.count]
    };
    for line in &left_out {
        rest.iter_mut()
            .zip(&line.weights)
            .for_each(|(sum, &weight)| *sum = sum.saturating_add(weight));
    }
    Lines {
        start_unix_ns: steps.start_unix_ns(),
        step_ns: steps.step_ns(),
        lines,
        rest,
        rest_lines: left_out.len() as u64,
        steps: Vec::new(),
    }
}

/// What each step is made of, of the hosts that `selector` takes.
async fn of_steps(
    client: &Client,
    span: Span,
    steps: &Steps,
    selector: &Selector,
    limits: &Limits,
) -> Result<Vec<Step>, Fault> {
    #[derive(Row, Deserialize)]
    struct Windows {
        step: u64,
        hosts: u64,
        covered_ns: u64,
        w: u64,
    }
    #[derive(Row, Deserialize)]
    struct Lost {
        step: u64,
        lost_w: u64,
    }
    within(steps.count * size_of::<Step>(), limits)?;
    let mut found = vec![Step::default(); steps.count];
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let (start_ns, step_ns) = (steps.start_unix_ns(), steps.step_ns());
    let mut ask = Statement::default();
    let selected = hosts.sql(&mut ask);
    // A window is in each step that it covers some of; its time and weight are in the first of
    // them, where its samples are.
    ask.sql = format!(
        "SELECT step, uniqExact(host_id) AS hosts, {covered} AS covered_ns, {weight} AS w FROM ( \
           SELECT host_id, w, first, toUInt64(greatest(end_ns - start_ns, 0)) AS length_ns, \
             arrayJoin(range(first, greatest(first, least({count}, last)) + 1)) AS step FROM ( \
             SELECT toString(host_id) AS host_id, set.w AS w, start_ns, end_ns, \
               toUInt64(intDiv(toInt64(toUnixTimestamp(chunk)) + slot * {STEP_S} - ({start_s}), \
                 {step_s})) AS first, \
               toUInt64(greatest(intDiv(end_ns - 1 - ({start_ns}), {step_ns}), 0)) AS last \
             FROM windows AS set FINAL WHERE {inside} AND {selected})) \
         GROUP BY step",
        covered = sum("if(step = first, length_ns, 0)"),
        weight = sum("if(step = first, w, 0)"),
        count = steps.count,
        start_s = steps.start_s,
        step_s = steps.step_s,
        inside = span.of_steps(),
    );
    client
        .each::<Windows>(&ask, limits, |row| {
            if let Some(step) = found.get_mut(row.step as usize) {
                step.hosts = row.hosts;
                step.covered_ns = row.covered_ns;
                step.weight = row.w;
            }
            Ok(())
        })
        .await?;
    let mut ask = Statement::default();
    let selected = hosts.sql(&mut ask);
    ask.sql = format!(
        "SELECT toUInt64(intDiv(toInt64(toUnixTimestamp(chunk)) + slot * {STEP_S} - ({start_s}), \
           {step_s})) AS step, {lost} AS lost_w FROM totals AS total FINAL \
         WHERE total.lost_w > 0 AND {inside} AND (chunk, slot, origin) IN \
           (SELECT chunk, slot, origin FROM windows WHERE {inside} AND {selected}) GROUP BY step",
        lost = sum("total.lost_w"),
        start_s = steps.start_s,
        step_s = steps.step_s,
        inside = span.of_steps(),
    );
    client
        .each::<Lost>(&ask, limits, |row| {
            if let Some(step) = found.get_mut(row.step as usize) {
                step.lost_weight = row.lost_w;
            }
            Ok(())
        })
        .await?;
    Ok(found)
}

/// Totals by label set.
pub(super) async fn totals(
    client: &Client,
    scope: &Scope,
    group_by: &GroupBy,
    limits: &Limits,
) -> Result<Answer<Vec<Labelled>>, Fault> {
    #[derive(Row, Deserialize)]
    struct Sums {
        g: u64,
        unit: String,
        n: u64,
        w: u64,
        lost_n: u64,
        lost_w: u64,
        expected_ns: i64,
        estimated_ns: i64,
    }
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        let (data, quality) = (Vec::new(), nothing(scope.range, limits)?);
        return Ok(Answer { data, quality });
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let grouping = Grouping::new(group_by);
    let columns = format!(
        "sum(total.n) AS n, {} AS w, sum(total.lost_n) AS lost_n, {} AS lost_w, {} AS expected_ns, \
         {} AS estimated_ns",
        sum("total.w"),
        sum("total.lost_w"),
        signed_sum("total.alone_ns"),
        signed_sum("total.alone_estimated_ns")
    );
    let ask = of_totals(&grouping, span, &condition, &columns, "g, unit");
    let (mut unit, mut total) = (Unit::default(), Value::default());
    let mut sums: Vec<(u64, Labelled)> = Vec::new();
    client
        .each::<Sums>(&ask, limits, |row| {
            within((sums.len() + 1) * size_of::<Labelled>(), limits)?;
            let taken = Value {
                count: row.n,
                weight: row.w,
            };
            let lost = Value {
                count: row.lost_n,
                weight: row.lost_w,
            };
            if taken != Value::default() || lost != Value::default() {
                unit.add(&row.unit)?;
            }
            total += taken;
            total += lost;
            sums.push((
                row.g,
                Labelled {
                    labels: LabelSet::default(),
                    taken,
                    lost,
                    expected_ns: row.expected_ns,
                    estimated_ns: row.estimated_ns,
                },
            ));
            Ok(())
        })
        .await?;
    let names = grouping
        .labels(client, "series", span, &condition, limits)
        .await?;
    let data = heaviest_totals(sums, &names, limits.lines);
    let fleet = quality::activity(client, span, &scope.selector, limits).await?;
    let beside = Beside {
        covered: span.covered,
        rollup: RAW,
        total,
        unit: unit.name(),
        damaged: Vec::new(),
    };
    let quality = fleet.quality(beside, &mut QueryBudget::new(limits))?;
    Ok(Answer { data, quality })
}

fn heaviest_totals(
    sums: Vec<(u64, Labelled)>,
    names: &HashMap<u64, LabelSet>,
    limit: usize,
) -> Vec<Labelled> {
    let mut by_labels: HashMap<LabelSet, Labelled> = HashMap::new();
    for (group, row) in sums {
        let labels = names.get(&group).cloned().unwrap_or_default();
        let of = by_labels.entry(labels.clone()).or_insert_with(|| Labelled {
            labels,
            taken: Value::default(),
            lost: Value::default(),
            expected_ns: 0,
            estimated_ns: 0,
        });
        of.taken += row.taken;
        of.lost += row.lost;
        of.expected_ns = of.expected_ns.saturating_add(row.expected_ns);
        of.estimated_ns = of.estimated_ns.saturating_add(row.estimated_ns);
    }
    let mut rows: Vec<Labelled> = by_labels.into_values().collect();
    let weight = |row: &Labelled| row.taken.weight.saturating_add(row.lost.weight);
    rows.sort_by(|left, right| {
        weight(right)
            .cmp(&weight(left))
            .then_with(|| left.labels.cmp(&right.labels))
    });
    rows.truncate(limit);
    rows
}
