//! Tests the query engine on a handwritten source: several dictionaries, limits, units.

use super::*;
use crate::store::{Cancel, HostFacts, HostKey, LabelSet, Resolution, Step};
use ::profile::{
    CostBy, Dictionary, FrameRef, GroupBy, Info, LabelSetId, SampleKey, StackEnd, StackId, TopSort,
    Value,
};
use std::time::{Duration, Instant};

/// Samples of one dictionary: stack, root first with `;` between, and weight.
type Batch = (&'static str, Vec<(&'static str, u64)>);

/// A source with given sums.
struct Given {
    /// Units and samples.
    batches: Vec<Batch>,
    /// Weights by step of each unit (a label here).
    series: Vec<(&'static str, Vec<u64>)>,
}

/// A dictionary of its own.
struct Own(Dictionary, Vec<(StackId, StackEnd)>);

impl BatchDict for Own {
    fn read<T>(&self, look: impl FnOnce(&Dictionary, &[(StackId, StackEnd)]) -> T) -> T {
        look(&self.0, &self.1)
    }
}

const RESOLUTION: Resolution = Resolution {
    step_ns: 10,
    by_service: false,
};

fn unit(name: &str) -> LabelSet {
    LabelSet::new([("unit".to_owned(), name.to_owned())])
}

fn host(name: &str) -> HostKey {
    HostKey {
        host_id: name.to_owned(),
        boot_id: [0; 16],
    }
}

fn value(weight: u64) -> Value {
    Value { count: 1, weight }
}

fn batch((unit, samples): &Batch, several: bool) -> SampleBatch<Own> {
    let mut dict = Dictionary::default();
    let (mut leaves, mut list) = (Vec::new(), Vec::new());
    for (leaf, (stack, weight)) in (0..).zip(samples) {
        let frames: Vec<_> = stack
            .split(';')
            .map(|function| {
                dict.intern_frame(FrameRef {
                    function,
                    ..FrameRef::default()
                })
            })
            .collect();
        leaves.push((dict.stacks.intern(frames), StackEnd::Complete));
        list.push((0, leaf, value(*weight)));
    }
    let kind = Info {
        unit: (*unit).to_owned(),
        event: "cpu-clock".to_owned(),
        ..Info::default()
    };
    SampleBatch {
        dict: Own(dict, leaves),
        lists: vec![(vec![LabelSetId::default()], list)],
        kinds: vec![kind],
        is_one_of_several: several,
    }
}

impl WindowSource for Given {
    type Dict = Own;

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        Ok(Some(all()))
    }

    fn covered(&self, range: TimeRange) -> TimeRange {
        TimeRange {
            start_unix_ns: range.start_unix_ns.div_euclid(10) * 10,
            ..range
        }
    }

    fn step_ns(&self, _range: TimeRange) -> u64 {
        10
    }

    fn host_records(&self, _budget: &mut QueryBudget<'_>) -> Result<Vec<HostRecord>, StoreError> {
        let record = |name| HostRecord {
            key: host(name),
            facts: HostFacts::default(),
            first_seen_unix_ns: 0,
            last_seen_unix_ns: 0,
            clock_ahead_ns: 0,
        };
        Ok(["a", "b"].map(record).to_vec())
    }

    fn activity(
        &self,
        _scope: &Scope,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<FleetActivity, StoreError> {
        let mut fleet = FleetActivity::default();
        let inside = HostRange {
            windows: 3,
            taken: value(7),
            ..HostRange::default()
        };
        let activity = HostActivity {
            inside,
            spans: vec![(0, 10), (5_000_000_000, 6_000_000_000)],
            ..HostActivity::default()
        };
        fleet.hosts.insert(host("a"), activity);
        Ok(fleet)
    }

    fn label_names(
        &self,
        _scope: &Scope,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    fn label_values(
        &self,
        _scope: &Scope,
        _name: &str,
        _prefix: &str,
        _limit: usize,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<(Vec<String>, bool), StoreError> {
        Ok((Vec::new(), false))
    }

    fn series(
        &self,
        _scope: &Scope,
        _group_by: &GroupBy,
        axis: Axis,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<SeriesSums, StoreError> {
        let lines = self.series.iter();
        let mut units = Units::default();
        units.add("nanoseconds")?;
        Ok(SeriesSums {
            lines: lines
                .map(|(name, weights)| (unit(name), weights.clone()))
                .collect(),
            total: value(100),
            units,
            resolution: RESOLUTION,
            steps: vec![Step::default(); axis.steps],
        })
    }

    fn accounted(
        &self,
        _scope: &Scope,
        _group_by: &GroupBy,
        _axis: Axis,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<AccountSums, StoreError> {
        let signed = |weights: &Vec<u64>| weights.iter().map(|&of| i128::from(of) - 10).collect();
        let lines = self.series.iter();
        Ok(AccountSums {
            lines: lines
                .map(|(name, weights)| (unit(name), signed(weights)))
                .collect(),
            hosts: [("a".to_owned(), vec![10, 0])].into(),
            pressure: Default::default(),
            throttled: Vec::new(),
            throttling_known: false,
            resolution: RESOLUTION,
        })
    }

    fn totals(
        &self,
        _scope: &Scope,
        _group_by: &GroupBy,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<LabelSums, StoreError> {
        let sum = |(name, weights): &(&str, Vec<u64>)| {
            let sum = LabelSum {
                taken: value(weights.iter().sum()),
                expected_ns: i128::MAX,
                estimated_ns: i128::MIN,
                ..LabelSum::default()
            };
            (unit(name), sum)
        };
        Ok(LabelSums {
            rows: self.series.iter().map(sum).collect(),
            units: Units::default(),
            resolution: RESOLUTION,
        })
    }

    fn samples(
        &self,
        range: TimeRange,
        _query: &Query,
        budget: &mut QueryBudget<'_>,
        each: &mut EachBatch<'_, Own>,
    ) -> Result<SamplesRead, StoreError> {
        for of in &self.batches {
            each(batch(of, self.batches.len() > 1), budget)?;
        }
        Ok(SamplesRead {
            covered: self.covered(range),
            resolution: RESOLUTION,
        })
    }
}

fn all() -> TimeRange {
    TimeRange {
        start_unix_ns: 3,
        end_unix_ns: 6_000_000_000,
    }
}

fn limits() -> Limits {
    Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 1 << 20,
        nodes: 100,
        lines: 100,
    }
}

fn two() -> Given {
    Given {
        batches: vec![
            (
                "nanoseconds",
                vec![("main;a", 50), ("main;b", 30), ("c", 1)],
            ),
            ("nanoseconds", vec![("main;b", 30), ("d", 2), ("main;a", 5)]),
        ],
        series: vec![("x", vec![1, 2]), ("y", vec![5, 5]), ("z", vec![0, 4])],
    }
}

/// Stacks of a profile with their weights.
fn stacks(profile: &Profile) -> Vec<(String, u64)> {
    let name = |key: &SampleKey| {
        let mut path: Vec<&str> = profile
            .dict
            .stacks
            .leaf_first(key.stack)
            .map(|frame| profile.dict.frame(frame).function)
            .collect();
        path.reverse();
        path.join(";")
    };
    let samples = profile.samples.iter();
    let mut stacks: Vec<_> = samples
        .map(|(key, value)| (name(key), value.weight))
        .collect();
    stacks.sort();
    stacks
}

fn expected(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter()
        .map(|&(name, weight)| (name.to_owned(), weight))
        .collect()
}

#[test]
fn accounts_below_nothing_are_nothing() {
    let source = Given {
        batches: Vec::new(),
        series: vec![("x", vec![5, 30]), ("y", vec![10, 11])],
    };
    let scope = Scope {
        range: TimeRange {
            start_unix_ns: 0,
            end_unix_ns: 20,
        },
        selector: Default::default(),
    };
    let by = ["unit".to_owned()];
    let found = StoreQueries::accounted(&source, &scope, &by, 10, &limits());
    let QueryResult { data, quality } = found.expect("an answer");
    let lines = data.lines.iter();
    let lines: Vec<_> = lines
        .map(|line| (line.labels.get("unit"), &line.weights[..]))
        .collect();
    assert_eq!(lines, [("x", &[0, 20][..]), ("y", &[0, 1][..])]);
    assert_eq!(
        (quality.total.weight, quality.unit.as_str()),
        (21, "nanoseconds")
    );
    assert_eq!(data.hosts["a"], [10, 0]);
}

#[test]
fn samples_of_several_dictionaries_are_one_profile() {
    let found = two().profile(all(), &Query::default(), &limits()).unwrap();
    let merged = [("c", 1), ("d", 2), ("main;a", 55), ("main;b", 60)];
    assert_eq!(stacks(&found.data), expected(&merged));
    assert_eq!(found.quality.total.weight, 118);
    assert_eq!(
        (found.quality.pruned_weight, found.quality.unit.as_str()),
        (0, "nanoseconds")
    );
    assert_eq!(found.quality.covered.start_unix_ns, 0);
}

#[test]
fn stacks_beyond_the_limit_are_folded_once_whatever_dictionary_they_are_of() {
    let few = Limits {
        nodes: 2,
        ..limits()
    };
    let found = two().profile(all(), &Query::default(), &few).unwrap();
    let folded = [("", 3), ("main", 55), ("main;b", 60)];
    assert_eq!(stacks(&found.data), expected(&folded));
    assert_eq!(found.quality.pruned_weight, 58);
    assert_eq!(found.quality.total.weight, 118);
}

#[test]
fn costs_are_of_all_stacks() {
    let few = Limits {
        nodes: 2,
        ..limits()
    };
    let found = two().costs(all(), &Query::default(), CostBy::Function, &few);
    let found = found.unwrap();
    assert_eq!(
        (found.quality.total.weight, found.quality.pruned_weight),
        (118, 0)
    );
    let top = found.data.into_top(TopSort::Own, 10).rows;
    let own: Vec<_> = top
        .iter()
        .map(|row| (row.name.as_str(), row.own.weight))
        .collect();
    assert_eq!(own[..2], [("b", 60), ("a", 55)]);
}

#[test]
fn dictionaries_of_different_units_are_not_added_up() {
    let mut mixed = two();
    mixed.batches[1].0 = "cycles";
    let refused = mixed.profile(all(), &Query::default(), &limits());
    let refused = refused.map(|found| found.quality);
    assert!(matches!(refused, Err(StoreError::Units(_))), "{refused:?}");
}

#[test]
fn a_query_is_held_to_its_memory_and_its_caller() {
    let small = Limits {
        memory_bytes: 100,
        ..limits()
    };
    let refused = two().profile(all(), &Query::default(), &small);
    let refused = refused.map(|found| found.quality);
    assert!(
        matches!(refused, Err(StoreError::TooLarge(_))),
        "{refused:?}"
    );
    let gone = limits();
    gone.cancel.cancel();
    let given_up = two().costs(all(), &Query::default(), CostBy::Function, &gone);
    let given_up = given_up.map(|found| found.quality);
    assert!(
        matches!(given_up, Err(StoreError::Cancelled)),
        "{given_up:?}"
    );
}

#[test]
fn series_have_steps_that_the_source_tells_apart_and_the_heaviest_lines() {
    let scope = Scope {
        range: all(),
        selector: Default::default(),
    };
    let few = Limits {
        lines: 1,
        ..limits()
    };
    let by = ["unit".to_owned()];
    let found = StoreQueries::series(&two(), &scope, &by, 3_000_000_001, &few).unwrap();
    assert_eq!(
        (found.data.start_unix_ns, found.data.step_ns),
        (0, 3_000_000_010)
    );
    assert_eq!(found.data.lines[0].labels, unit("y"));
    assert_eq!((found.data.rest, found.data.rest_lines), (vec![1, 6], 2));
    assert_eq!(found.data.steps.len(), 2);
    let totals = StoreQueries::totals(&two(), &scope, &by, &few).unwrap();
    assert_eq!(totals.data.len(), 1);
    assert_eq!(
        (totals.data[0].expected_ns, totals.data[0].estimated_ns),
        (i64::MAX, i64::MIN)
    );
    assert_eq!(totals.quality.total.weight, 17);
}

#[test]
fn a_series_without_reports_asks_for_nothing_of_hosts() {
    let scope = Scope {
        range: all(),
        selector: Default::default(),
    };
    let series = |limits: &Limits| {
        let found = StoreQueries::series(&two(), &scope, &[], 3_000_000_000, limits);
        found.expect("an answer")
    };
    let full = series(&limits());
    assert_eq!((full.quality.windows, full.quality.gaps_total), (3, 1));
    let bare = series(&Limits {
        reports: false,
        ..limits()
    });
    assert_eq!(bare.data, full.data);
    assert_eq!(
        (
            bare.quality.windows,
            bare.quality.gaps_total,
            bare.quality.hosts_alive
        ),
        (0, 0, 0)
    );
    assert_eq!(bare.quality.total, full.quality.total);
    assert_eq!(bare.quality.unit, full.quality.unit);
}

#[test]
fn hosts_have_what_they_did_and_their_gaps() {
    let found = two().hosts(all(), &limits()).unwrap();
    let did: Vec<_> = found
        .iter()
        .map(|(record, did)| (record.key.host_id.as_str(), did.windows, did.gap_ns))
        .collect();
    assert_eq!(did, [("a", 3, 4_999_999_990), ("b", 0, 0)]);
}
