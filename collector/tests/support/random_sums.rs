//! Tests sums of random weights over the model, compared with sums in 128 bits.

use crate::store::draft::{Draft, frame, store_all};
use crate::store::model::Model;
use crate::store::{ample, query, range, scope};
use collector::store::{Exact, LabelSet, StoreQueries};
use profile::unit::WEIGHT_MAX;
use profile::{CostBy, StackEnd, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Samples of any weight at any time of two days: the total is that of 128 bits, in nanoseconds
/// where it fits, and an hour that overflows by itself is told.
#[test]
fn random_sums_are_those_of_128_bits() {
    let weight = prop_oneof![
        Just(0u64),
        0u64..2000,
        (1u64 << 60)..(1 << 63),
        any::<u64>()
    ];
    let rows = proptest::collection::vec((0i64..48 * 360, weight), 0..60);
    let range = (0i64..48 * 360, 0i64..48 * 360);
    let mut runner = TestRunner::new(Config::with_cases(300));
    runner
        .run(&(rows, range), |(rows, (from, length))| {
            random_sum_is_right(&rows, from * 10, (from + length) * 10)
        })
        .expect("an answer");
}

fn random_sum_is_right(rows: &[(i64, u64)], from_s: i64, to_s: i64) -> Result<(), TestCaseError> {
    // Seconds since an hour that is two days before the tests' time.
    let start_s = -48 * 3600;
    let model = Model::default();
    let drafts: Vec<Draft> = rows
        .iter()
        .enumerate()
        .map(|(at, &(slot, weight))| {
            let draft = Draft::new("h", at as u64 + 1, start_s + slot * 10);
            let value = Value { count: 1, weight };
            draft.sample(
                &LabelSet::default(),
                &[frame("f")],
                StackEnd::Complete,
                value,
            )
        })
        .collect();
    store_all(&model, &drafts);
    let store = Exact::new(Arc::new(model));
    let asked = range(start_s + from_s, start_s + to_s);
    let taken = rows
        .iter()
        .filter(|(slot, _)| (from_s..to_s).contains(&(slot * 10)));
    let mut hours: BTreeMap<i64, u128> = BTreeMap::new();
    for (slot, weight) in taken {
        *hours.entry(slot / 360).or_default() += u128::from(*weight);
    }
    let total: u128 = hours.values().sum();
    let most = hours.values().copied().max().unwrap_or(0);
    let found = store
        .profile(asked, &query("", &[]), &ample())
        .expect("an answer")
        .quality;
    let costs = store
        .costs(asked, &query("", &[]), CostBy::Module, &ample())
        .expect("an answer");
    let totals = store
        .totals(&scope(asked, ""), &[], &ample())
        .expect("an answer");
    let capped = most >= u64::MAX.into();
    let off_most = 500 * rows.len() as u128;
    for quality in [found, costs.quality, totals.quality] {
        let Value { weight, .. } = quality.total;
        prop_assert_eq!(quality.total.is_capped(), capped);
        if capped {
            continue;
        }
        let by = match quality.unit.as_str() {
            "microseconds" => 1000,
            _ => 1,
        };
        // What the kernel accounts may have had to be told in the coarser unit by itself.
        prop_assert!(by == 1000 || total <= WEIGHT_MAX.into());
        let off = (u128::from(weight) * by).abs_diff(total);
        prop_assert!(
            off <= off_most * (by - 1).min(1),
            "{} off by {}",
            weight,
            off
        );
    }
    Ok(())
}
