//! CPU over time from an agent, which is asked for each step: for its ledger where labels are of
//! cgroups, for samples otherwise.

use super::{Line, Series, Steps};
use crate::client::Client;
use crate::collector::Samples;
use crate::exit::{self, fail};
use crate::source::Question;
use crate::units;
use crate::when::Range;
use anyhow::Result;
use profile::key;
use profile::unit::time_unit_ns;
use proto::agent::{GetLedgerRequest, GetLedgerResponse, LedgerRow, QueryProfileRequest};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most steps of an answer: each is a question.
const STEPS_MAX: u64 = 400;

/// Labels that the kernel accounts by.
const ACCOUNTED: [&str; 10] = [
    key::CGROUP,
    key::SLICE,
    key::UNIT,
    key::NAMESPACE,
    key::POD,
    key::POD_UID,
    key::RUNTIME,
    key::IMAGE,
    key::CONTAINER_NAME,
    key::CONTAINER,
];

/// What a step has: weight by values of the labels.
struct Step {
    covered_ns: u64,
    weights: BTreeMap<Vec<String>, u64>,
    /// Weight of a core for a nanosecond.
    unit_ns: f64,
    lost: f64,
}

/// Asks for each step.
///
/// # Errors
/// When there are too many, or the agent does not answer.
pub async fn ask(
    client: &mut Client,
    question: &Question,
    steps: Steps,
    samples: bool,
) -> Result<Series> {
    if steps.count > STEPS_MAX {
        let least = Duration::from_nanos(steps.step_ns * steps.count / STEPS_MAX);
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to use the step: the range would have {} steps, at most {STEPS_MAX} are \
                 allowed\nuse a step of at least {}, or a shorter range",
                units::count(steps.count),
                units::duration(Duration::from_secs(least.as_secs() + 1))
            ),
        ));
    }
    let matchers = question.samples.matchers.iter();
    let labels = matchers.map(|matcher| matcher.label.as_str());
    let mut labels = labels.chain(question.group_by.iter().map(String::as_str));
    let mut accounted = !samples && labels.all(|label| ACCOUNTED.contains(&label));
    let mut found = Vec::new();
    let mut at = 0;
    while at < steps.count {
        let start_ns = steps.start_ns + (at * steps.step_ns) as i64;
        let range = Range {
            start_ns: start_ns.max(1),
            end_ns: start_ns + steps.step_ns as i64,
        };
        let step = match accounted {
            true => of_ledger(client, question, range).await?,
            // One flush brings all that was sampled until now, for every step.
            false => Some(of_samples(client, question, range, question.fresh && at == 0).await?),
        };
        match step {
            Some(step) => found.push(step),
            // This kernel does not account: samples, then, from the start.
            None => {
                accounted = false;
                found.clear();
                at = 0;
                continue;
            }
        }
        at += 1;
    }
    Ok(series(question, steps, &found, accounted))
}

fn series(question: &Question, steps: Steps, found: &[Step], accounted: bool) -> Series {
    let mut lines: BTreeMap<&Vec<String>, Vec<Option<f64>>> = BTreeMap::new();
    let known = |step: &Step| step.covered_ns > 0;
    let nothing: Vec<Option<f64>> = found
        .iter()
        .map(|step| known(step).then_some(0.0))
        .collect();
    for (at, step) in found.iter().enumerate().filter(|(_, step)| known(step)) {
        for (values, &weight) in &step.weights {
            let line = lines.entry(values).or_insert_with(|| nothing.clone());
            line[at] = Some(weight as f64 * step.unit_ns / step.covered_ns as f64);
        }
    }
    let lines = lines.into_iter().map(|(values, cores)| Line {
        values: values.clone(),
        rest: false,
        cores,
    });
    Series {
        start_ns: steps.start_ns,
        step_ns: steps.step_ns,
        labels: question.group_by.clone(),
        lines: lines.collect(),
        rest_lines: 0,
        accounted,
        lost: found.iter().map(|step| step.lost).collect(),
        ..Series::default()
    }
}

/// A step from the kernel's accounting; `None`: this kernel has none.
async fn of_ledger(client: &mut Client, question: &Question, range: Range) -> Result<Option<Step>> {
    let answer = client
        .ledger(GetLedgerRequest {
            range: Some(range.into()),
            matchers: question.samples.matchers.clone(),
        })
        .await?;
    let tally = answer.host.unwrap_or_default();
    let lost = units::share(
        tally.lost_weight,
        tally.lost_weight.saturating_add(tally.taken_weight),
    );
    let weights = match question.group_by.is_empty() {
        true => {
            let Some(expected) = answer.expected else {
                return Ok((answer.windows == 0).then(Step::nothing));
            };
            [(Vec::new(), expected.ns)].into()
        }
        false => {
            let accounted = answer.rows.iter().any(|row| row.expected.is_some());
            if !accounted && !answer.rows.is_empty() {
                return Ok(None);
            }
            by_labels(&answer, &question.group_by)
        }
    };
    Ok(Some(Step {
        covered_ns: length_ns(answer.covered.map(|of| (of.start_unix_ns, of.end_unix_ns))),
        weights,
        unit_ns: 1.0,
        lost,
    }))
}

impl Step {
    fn nothing() -> Step {
        Step {
            covered_ns: 0,
            weights: BTreeMap::new(),
            unit_ns: 1.0,
            lost: 0.0,
        }
    }
}

/// What the kernel accounts to each cgroup itself, by its labels: rows have sums with all below. Of
/// a cgroup that was gone before it was read there are samples alone.
fn by_labels(answer: &GetLedgerResponse, labels: &[String]) -> BTreeMap<Vec<String>, u64> {
    let unit_ns = time_unit_ns(&answer.unit).unwrap_or(0);
    let of = |row: &LedgerRow| match (&row.expected, &row.total) {
        (Some(expected), _) => expected.ns,
        (None, Some(total)) => {
            let weight = total.taken_weight.saturating_add(total.lost_weight);
            weight.saturating_mul(unit_ns)
        }
        (None, None) => 0,
    };
    let mut own: BTreeMap<&str, u64> = answer
        .rows
        .iter()
        .map(|row| (row.path.as_str(), of(row)))
        .collect();
    for row in &answer.rows {
        let Some((above, _)) = row.path.rsplit_once('/').filter(|_| row.path != "/") else {
            continue;
        };
        let above = match above {
            "" => "/",
            above => above,
        };
        if let Some(sum) = own.get_mut(above) {
            *sum = sum.saturating_sub(of(row));
        }
    }
    let mut weights = BTreeMap::new();
    for row in &answer.rows {
        let weight = own.get(row.path.as_str()).copied().unwrap_or(0);
        if weight == 0 {
            continue;
        }
        let values = labels.iter().map(|label| value(row, label).to_owned());
        let sum: &mut u64 = weights.entry(values.collect()).or_default();
        *sum = sum.saturating_add(weight);
    }
    weights
}

fn value<'r>(row: &'r LedgerRow, label: &str) -> &'r str {
    match label {
        key::CGROUP => &row.path,
        key::SLICE => &row.slice,
        key::UNIT => &row.unit,
        key::NAMESPACE => &row.namespace,
        key::POD => &row.pod,
        key::POD_UID => &row.pod_uid,
        key::RUNTIME => &row.runtime,
        key::IMAGE => &row.image,
        key::CONTAINER_NAME => &row.container_name,
        key::CONTAINER => &row.container,
        _ => "",
    }
}

async fn of_samples(
    client: &mut Client,
    question: &Question,
    range: Range,
    fresh: bool,
) -> Result<Step> {
    let samples = Samples::by_labels(question.samples.matchers.clone());
    let profile = client
        .query(QueryProfileRequest {
            range: Some(range.into()),
            matchers: samples.matchers,
            frame_filters: samples.filters,
            group_by: question.group_by.clone(),
            fresh,
            times: false,
            pin_capture: 0,
        })
        .await?;
    let info = &profile.info;
    let Some(unit_ns) = time_unit_ns(&info.unit).or(profile.samples.is_empty().then_some(1)) else {
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to show cores: the agent samples {}, which is no time\nuse labels of \
                 cgroups, which have the kernel's accounting",
                crate::terminal::clean(&info.unit)
            ),
        ));
    };
    let mut weights: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (sample, value) in &profile.samples {
        let label = |label: &String| profile.dict.label(sample.labels, label).unwrap_or("");
        let values = question.group_by.iter().map(|one| label(one).to_owned());
        let sum = weights.entry(values.collect()).or_default();
        *sum = sum.saturating_add(value.weight);
    }
    let quality = &info.quality;
    let end_ns = crate::summary::end_ns(info);
    Ok(Step {
        covered_ns: length_ns(Some((info.start_unix_ns, end_ns))),
        weights,
        unit_ns: unit_ns as f64,
        lost: units::share(
            quality.lost_samples,
            quality.lost_samples.saturating_add(quality.taken),
        ),
    })
}

fn length_ns(covered: Option<(i64, i64)>) -> u64 {
    let (start_ns, end_ns) = covered.unwrap_or_default();
    end_ns.saturating_sub(start_ns).max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::agent::{Expected, Tally};

    #[test]
    fn each_cgroup_has_its_own_part_of_what_is_accounted_above_it() {
        let row = |path: &str, unit: &str, ns| LedgerRow {
            path: path.to_owned(),
            unit: unit.to_owned(),
            expected: Some(Expected {
                ns,
                ..Expected::default()
            }),
            ..LedgerRow::default()
        };
        let gone = LedgerRow {
            path: "/gone".to_owned(),
            total: Some(Tally {
                taken_weight: 3,
                lost_weight: 1,
                ..Tally::default()
            }),
            ..LedgerRow::default()
        };
        let answer = GetLedgerResponse {
            unit: "nanoseconds".to_owned(),
            rows: vec![
                gone,
                row("/", "", 100),
                row("/a.service", "a.service", 60),
                row("/a.service/worker", "a.service", 50),
                row("/b.service", "b.service", 30),
            ],
            ..GetLedgerResponse::default()
        };
        let by_unit = by_labels(&answer, &[key::UNIT.to_owned()]);
        let expected = [("", 10), ("a.service", 60), ("b.service", 30)];
        let expected = expected.map(|(unit, ns)| (vec![unit.to_owned()], ns));
        assert_eq!(by_unit, expected.into());
        let sum: u64 = by_labels(&answer, &[key::CGROUP.to_owned()]).values().sum();
        assert_eq!(sum, 100);
    }
}
