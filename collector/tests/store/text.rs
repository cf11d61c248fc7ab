//! Answers without dense ids and order, so that those of two engines can be compared.

use collector::store::{LabelSet, LabelTotals, QueryResult, TimeSeries};
use profile::{Profile, StackEnd};
use std::collections::BTreeMap;

/// Labels, frames root first, and how the stack ended.
pub type SampleText = (Vec<(String, String)>, Vec<String>, StackEnd);

/// The samples of a profile.
pub fn samples(profile: &Profile) -> BTreeMap<SampleText, (u64, u64)> {
    let mut all = BTreeMap::new();
    let mut path = Vec::new();
    for (key, value) in profile.sorted() {
        let mut labels: Vec<_> = profile.dict.labels(key.labels).map(owned).collect();
        labels.sort();
        profile.dict.stacks.root_first(key.stack, &mut path);
        let frames = path
            .iter()
            .map(|&id| format!("{:?}", profile.dict.frame(id)));
        let sum = all
            .entry((labels, frames.collect(), key.end))
            .or_insert((0u64, 0u64));
        sum.0 += value.count;
        sum.1 += value.weight;
    }
    all
}

/// The samples of a profile as `labels stack end → count`, labels of the host left out.
pub fn short(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    let mut path = Vec::new();
    for (key, value) in profile.sorted() {
        profile.dict.stacks.root_first(key.stack, &mut path);
        let frames = path.iter().map(|&id| profile.dict.frame(id).function);
        let frames = frames.collect::<Vec<_>>().join(";");
        let labels = profile.dict.labels(key.labels);
        let mut labels: Vec<_> = labels
            .filter(|(name, _)| *name != "host")
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        labels.sort();
        lines.push(format!(
            "{{{}}} {frames} {} {}",
            labels.join(","),
            key.end.word(),
            value.count
        ));
    }
    lines.sort();
    lines
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Taken (count, weight), lost (count, weight), expected, estimated.
pub type Figures = ((u64, u64), (u64, u64), i64, i64);

/// The figures of label sets, without rows of nothing.
pub fn totals(rows: &[LabelTotals]) -> BTreeMap<LabelSet, Figures> {
    let rows = rows.iter().map(|row| {
        let figures = (
            (row.taken.count, row.taken.weight),
            (row.lost.count, row.lost.weight),
            row.expected_ns,
            row.estimated_ns,
        );
        (row.labels.clone(), figures)
    });
    rows.filter(|(_, of)| *of != Figures::default()).collect()
}

/// Lines by labels, without lines of nothing; the rest has no labels.
pub fn lines(lines: &TimeSeries) -> BTreeMap<LabelSet, Vec<u64>> {
    let all = lines.lines.iter();
    all.filter(|line| line.weights.iter().any(|&weight| weight > 0))
        .map(|line| (line.labels.clone(), line.weights.clone()))
        .collect()
}

/// Asserts that the total of an answer is the sum of its samples.
pub fn assert_adds_up(answer: &QueryResult<Profile>) {
    assert_eq!(answer.data.total(), answer.quality.total);
}
