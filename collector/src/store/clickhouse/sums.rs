//! Sums without stacks: labels, weights over time, totals.

use super::client::Client;
use super::fault::Fault;
use super::keys::{NS_PER_S, STEP_NS, STEP_S, Span};
use super::select::{Condition, Grouping, Labels, signed_sum, sum, within};
use super::statement::{Param, Statement};
use crate::store::query::{AccountSums, Axis, LabelSum, LabelSums, SeriesSums, Units, add_line};
use crate::store::{LabelTotals, Limits, PressureSum, Resolution, Scope, Step, ThrottledCgroup};
use clickhouse::Row;
use hashbrown::HashMap;
use profile::{GroupBy, Selector, Throttling, Value, key};
use serde::Deserialize;

/// The windows' own step.
pub(super) const RAW: Resolution = Resolution {
    step_ns: STEP_NS as u64,
    by_service: false,
};

/// SQL that leaves out rows of windows that are not (or not yet) stored.
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
    // Several shards may have the same.
    texts.sort_unstable();
    texts.dedup();
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

/// Start and step of an axis in seconds, without fractions: steps consist of complete windows.
fn in_seconds(axis: Axis) -> (i64, i64) {
    let step_ns = i64::try_from(axis.step_ns).unwrap_or(i64::MAX);
    (axis.start.div_euclid(NS_PER_S), (step_ns / NS_PER_S).max(1))
}

/// SQL of the step of a row of totals.
fn step_of_total(axis: Axis) -> String {
    let (start_s, step_s) = in_seconds(axis);
    format!(
        "toUInt64(intDiv(toInt64(toUnixTimestamp(total.chunk)) + total.slot * {STEP_S} \
         - ({start_s}), {step_s}))"
    )
}

/// See [`WindowSource::series`](crate::store::query::WindowSource::series).
pub(super) async fn series(
    client: &Client,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    limits: &Limits,
) -> Result<SeriesSums, Fault> {
    #[derive(Row, Deserialize)]
    struct Point {
        g: u64,
        unit: String,
        step: u64,
        n: u64,
        w: u64,
    }
    let mut found = SeriesSums {
        lines: HashMap::new(),
        total: Value::default(),
        units: Units::default(),
        resolution: RAW,
        steps: vec![Step::default(); axis.steps],
    };
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        return Ok(found);
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let grouping = Grouping::new(group_by);
    let ask = of_totals(
        &grouping,
        span,
        &condition,
        &format!(
            "{} AS step, sum(total.n + total.lost_n) AS n, {} AS w",
            step_of_total(axis),
            sum("total.w + total.lost_w")
        ),
        "g, unit, step",
    );
    let mut groups: HashMap<u64, Vec<u64>> = HashMap::new();
    client
        .each::<Point>(&ask, limits, |row| {
            if row.n == 0 && row.w == 0 {
                return Ok(());
            }
            found.units.add(&row.unit)?;
            within((groups.len() + 1) * (axis.steps * 8 + 64), limits)?;
            let line = groups.entry(row.g).or_insert_with(|| vec![0; axis.steps]);
            if let Some(weight) = line.get_mut(row.step as usize) {
                *weight = weight.saturating_add(row.w);
            }
            found.total += Value {
                count: row.n,
                weight: row.w,
            };
            Ok(())
        })
        .await?;
    let names = grouping
        .labels(client, ("series", None), span, &condition, limits)
        .await?;
    // Groups that differ in the unit have the same labels.
    for (group, weights) in groups {
        let labels = names.get(&group).cloned().unwrap_or_default();
        let line = found.lines.entry(labels);
        add_line(line.or_insert_with(|| vec![0; axis.steps]), &weights);
    }
    found.steps = of_steps(client, span, axis, &scope.selector, limits).await?;
    Ok(found)
}

/// See [`WindowSource::accounted`](crate::store::query::WindowSource::accounted).
pub(super) async fn accounted(
    client: &Client,
    scope: &Scope,
    group_by: &GroupBy,
    axis: Axis,
    limits: &Limits,
) -> Result<AccountSums, Fault> {
    /// The unit is that of samples.
    #[derive(Row, Deserialize)]
    struct Point {
        g: u64,
        #[serde(rename = "unit")]
        _unit: String,
        step: u64,
        ns: i64,
    }
    let mut found = AccountSums {
        lines: HashMap::new(),
        hosts: HashMap::new(),
        pressure: HashMap::new(),
        throttled: Vec::new(),
        throttling_known: false,
        resolution: RAW,
    };
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        return Ok(found);
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let grouping = Grouping::new(group_by);
    let columns = format!(
        "{} AS step, {} AS ns",
        step_of_total(axis),
        signed_sum("total.alone_ns")
    );
    let ask = of_totals(&grouping, span, &condition, &columns, "g, unit, step");
    let mut groups: HashMap<u64, Vec<i128>> = HashMap::new();
    client
        .each::<Point>(&ask, limits, |row| {
            within((groups.len() + 1) * (axis.steps * 16 + 64), limits)?;
            let line = groups.entry(row.g).or_insert_with(|| vec![0; axis.steps]);
            if let Some(sum) = line.get_mut(row.step as usize) {
                *sum += i128::from(row.ns);
            }
            Ok(())
        })
        .await?;
    let names = grouping
        .labels(client, ("series", None), span, &condition, limits)
        .await?;
    for (group, line) in groups {
        let labels = names.get(&group).cloned().unwrap_or_default();
        let sums = found.lines.entry(labels);
        let sums = sums.or_insert_with(|| vec![0; axis.steps]);
        sums.iter_mut().zip(line).for_each(|(sum, ns)| *sum += ns);
    }
    (found.hosts, found.pressure) =
        covered_by_host(client, span, axis, &scope.selector, limits).await?;
    if limits.waiting {
        (found.throttled, found.throttling_known) =
            throttled(client, span, axis, &condition, limits).await?;
    }
    Ok(found)
}

/// Cgroups that their limits held back, and whether that is known of any.
async fn throttled(
    client: &Client,
    span: Span,
    axis: Axis,
    condition: &Condition,
    limits: &Limits,
) -> Result<(Vec<ThrottledCgroup>, bool), Fault> {
    #[derive(Row, Deserialize)]
    struct Whole {
        g: u64,
        #[serde(rename = "unit")]
        _unit: String,
        throttled: u64,
        used: u64,
        most: u64,
    }
    #[derive(Row, Deserialize)]
    struct Point {
        g: u64,
        #[serde(rename = "unit")]
        _unit: String,
        step: u64,
        throttled: u64,
    }
    let grouping = Grouping::new(&GroupBy::All);
    let columns = format!(
        "{} AS throttled, {} AS used, max(total.limit_millicores) AS most",
        sum("total.throttled_ns"),
        sum("total.throttle_used_ns")
    );
    let by = "g, unit HAVING throttled > 0 OR used > 0";
    let ask = of_totals(&grouping, span, condition, &columns, by);
    let (mut known, mut sums) = (false, HashMap::<u64, Throttling>::new());
    client
        .each::<Whole>(&ask, limits, |row| {
            known = true;
            if row.throttled > 0 {
                within((sums.len() + 1) * (axis.steps * 8 + 256), limits)?;
                *sums.entry(row.g).or_default() += Throttling {
                    ns: row.throttled,
                    used_ns: row.used,
                    limit_millicores: row.most,
                };
            }
            Ok(())
        })
        .await?;
    if sums.is_empty() {
        return Ok((Vec::new(), known));
    }
    let columns = format!(
        "{} AS step, {} AS throttled",
        step_of_total(axis),
        sum("total.throttled_ns")
    );
    let by = "g, unit, step HAVING throttled > 0";
    let ask = of_totals(&grouping, span, condition, &columns, by);
    let mut steps: HashMap<u64, Vec<u64>> = HashMap::new();
    client
        .each::<Point>(&ask, limits, |row| {
            let line = steps.entry(row.g).or_insert_with(|| vec![0; axis.steps]);
            if let Some(sum) = line.get_mut(row.step as usize) {
                *sum = sum.saturating_add(row.throttled);
            }
            Ok(())
        })
        .await?;
    let held: Vec<u64> = sums.keys().copied().collect();
    let only = Some(held.as_slice());
    let names = grouping
        .labels(client, ("series", only), span, condition, limits)
        .await?;
    let cgroups = sums.into_iter().map(|(group, sum)| ThrottledCgroup {
        labels: names.get(&group).cloned().unwrap_or_default(),
        sum,
        steps: steps.remove(&group).unwrap_or_else(|| vec![0; axis.steps]),
    });
    Ok((cgroups.collect(), known))
}

/// By name of the host, a line over time.
type ByHost<T> = HashMap<String, Vec<T>>;

/// The time of the windows that start in each step, by name of the hosts that `selector` takes, and
/// for how long their tasks waited.
async fn covered_by_host(
    client: &Client,
    span: Span,
    axis: Axis,
    selector: &Selector,
    limits: &Limits,
) -> Result<(ByHost<u64>, ByHost<PressureSum>), Fault> {
    #[derive(Row, Deserialize)]
    struct Covered {
        host: String,
        step: u64,
        ns: u64,
        known: u64,
        cpu: u64,
        memory: u64,
        io: u64,
    }
    let condition = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let mut ask = Statement::default();
    let selected = condition.sql(&mut ask);
    let (start_s, step_s) = in_seconds(axis);
    ask.sql = format!(
        "SELECT toString(labels['{host}']) AS host, \
           toUInt64(intDiv(toInt64(toUnixTimestamp(chunk)) + slot * {STEP_S} - ({start_s}), \
             {step_s})) AS step, {ns} AS ns, {known} AS known, {cpu} AS cpu, {memory} AS memory, \
           {io} AS io \
         FROM windows AS set FINAL WHERE {inside} AND {selected} GROUP BY host, step",
        host = key::HOST,
        known = sum("pressure_known_ns"),
        cpu = sum("pressure_cpu_ns"),
        memory = sum("pressure_memory_ns"),
        io = sum("pressure_io_ns"),
        ns = sum("toUInt64(greatest(end_ns - start_ns, 0))"),
        inside = span.of_steps(),
    );
    let (mut hosts, mut pressure): (ByHost<u64>, ByHost<PressureSum>) = Default::default();
    client
        .each::<Covered>(&ask, limits, |row| {
            let line_bytes = axis.steps * (8 + size_of::<PressureSum>());
            within(
                (hosts.len() + 1) * (line_bytes + row.host.len() + 64),
                limits,
            )?;
            if row.known > 0 {
                let line = pressure.entry(row.host.clone());
                let line = line.or_insert_with(|| vec![PressureSum::default(); axis.steps]);
                if let Some(sum) = line.get_mut(row.step as usize) {
                    *sum += PressureSum {
                        covered_ns: row.known,
                        cpu_ns: row.cpu,
                        memory_ns: row.memory,
                        io_ns: row.io,
                    };
                }
            }
            let line = hosts.entry(row.host);
            let line = line.or_insert_with(|| vec![0; axis.steps]);
            if let Some(sum) = line.get_mut(row.step as usize) {
                *sum = sum.saturating_add(row.ns);
            }
            Ok(())
        })
        .await?;
    Ok((hosts, pressure))
}

/// What each step is made of, of the hosts that `selector` takes.
async fn of_steps(
    client: &Client,
    span: Span,
    axis: Axis,
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
    let mut found = vec![Step::default(); axis.steps];
    let hosts = Condition::of(client, Labels::Host, span, selector, limits).await?;
    let (start_ns, step_ns) = (axis.start, axis.step_ns);
    let (start_s, step_s) = in_seconds(axis);
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
        count = axis.steps,
        inside = span.of_steps(),
    );
    client
        .each::<Windows>(&ask, limits, |row| {
            if let Some(step) = found.get_mut(row.step as usize) {
                step.hosts += row.hosts;
                if !limits.reports {
                    return Ok(());
                }
                step.covered_ns = step.covered_ns.saturating_add(row.covered_ns);
                step.weight = step.weight.saturating_add(row.w);
            }
            Ok(())
        })
        .await?;
    if !limits.reports {
        return Ok(found);
    }
    let mut ask = Statement::default();
    let selected = hosts.sql(&mut ask);
    ask.sql = format!(
        "SELECT toUInt64(intDiv(toInt64(toUnixTimestamp(chunk)) + slot * {STEP_S} - ({start_s}), \
           {step_s})) AS step, {lost} AS lost_w FROM totals AS total FINAL \
         WHERE total.lost_w > 0 AND {inside} AND (chunk, slot, origin) IN \
           (SELECT chunk, slot, origin FROM windows WHERE {inside} AND {selected}) GROUP BY step",
        lost = sum("total.lost_w"),
        inside = span.of_steps(),
    );
    client
        .each::<Lost>(&ask, limits, |row| {
            if let Some(step) = found.get_mut(row.step as usize) {
                step.lost_weight = step.lost_weight.saturating_add(row.lost_w);
            }
            Ok(())
        })
        .await?;
    Ok(found)
}

/// See [`WindowSource::totals`](crate::store::query::WindowSource::totals).
pub(super) async fn totals(
    client: &Client,
    scope: &Scope,
    group_by: &GroupBy,
    limits: &Limits,
) -> Result<LabelSums, Fault> {
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
        throttled: u64,
        used: u64,
        most: u64,
    }
    let mut found = LabelSums {
        rows: HashMap::new(),
        units: Units::default(),
        resolution: RAW,
    };
    let Some(span) = Span::of(scope.range, STEP_NS) else {
        return Ok(found);
    };
    let labels = Labels::Set("series");
    let condition = Condition::of(client, labels, span, &scope.selector, limits).await?;
    let grouping = Grouping::new(group_by);
    let columns = format!(
        "sum(total.n) AS n, {} AS w, sum(total.lost_n) AS lost_n, {} AS lost_w, {} AS expected_ns, \
         {} AS estimated_ns, {} AS throttled, {} AS used, max(total.limit_millicores) AS most",
        sum("total.w"),
        sum("total.lost_w"),
        signed_sum("total.alone_ns"),
        signed_sum("total.alone_estimated_ns"),
        sum("total.throttled_ns"),
        sum("total.throttle_used_ns")
    );
    let ask = of_totals(&grouping, span, &condition, &columns, "g, unit");
    let mut groups: Vec<(u64, LabelSum)> = Vec::new();
    client
        .each::<Sums>(&ask, limits, |row| {
            within((groups.len() + 1) * size_of::<LabelTotals>(), limits)?;
            let taken = Value {
                count: row.n,
                weight: row.w,
            };
            let lost = Value {
                count: row.lost_n,
                weight: row.lost_w,
            };
            if taken != Value::default() || lost != Value::default() {
                found.units.add(&row.unit)?;
            }
            let sum = LabelSum {
                taken,
                lost,
                expected_ns: row.expected_ns.into(),
                estimated_ns: row.estimated_ns.into(),
                throttling: Throttling {
                    ns: row.throttled,
                    used_ns: row.used,
                    limit_millicores: row.most,
                },
            };
            groups.push((row.g, sum));
            Ok(())
        })
        .await?;
    let names = grouping
        .labels(client, ("series", None), span, &condition, limits)
        .await?;
    for (group, sum) in groups {
        let labels = names.get(&group).cloned().unwrap_or_default();
        *found.rows.entry(labels).or_default() += sum;
    }
    Ok(found)
}
