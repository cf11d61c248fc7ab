//! Chooses which series of a partition a query reads, and under which kept labels they count.

use super::super::dict::{Dict, NONE};
use super::super::encode::{HEADS_SHARED, period};
use super::super::table::Table;
use super::kept_labels;
use crate::store::LabelSet;
use ::profile::{GroupBy, LabelSetId};
use hashbrown::HashMap;

/// The series, or services, that are read of one table.
pub struct Choice {
    /// The table.
    pub table: Table,
    /// By bundle (group, or service): one of its series is taken.
    pub bundles: Vec<bool>,
    /// How many bundles are.
    pub chosen: usize,
    /// By bundle.
    pub periods: Vec<u64>,
    /// By bundle: its kind of samples.
    pub kinds: Vec<u16>,
    /// By series (or service): its kind of samples.
    pub series_kinds: Vec<u16>,
    /// By kept labels: what they are.
    pub labels: Vec<LabelSet>,
    /// By kept labels: a label set that has them.
    pub sample_of: Vec<LabelSetId>,
    /// By series (or service): its kept labels, or [`NONE`].
    kept: Vec<u32>,
}

impl Choice {
    /// Chooses series by label set: `taken` says which are.
    pub fn new(dict: &Dict, taken: &[bool], group_by: &GroupBy, table: Table) -> Choice {
        let mut index: HashMap<LabelSet, u32> = HashMap::new();
        let mut by_labels: HashMap<LabelSetId, u32> = HashMap::new();
        let (mut labels, mut sample_of) = (Vec::new(), Vec::new());
        let mut kept_of = |of: LabelSetId| {
            if !taken[of.0 as usize] {
                return NONE;
            }
            *by_labels.entry(of).or_insert_with(|| {
                let next = labels.len() as u32;
                let kept = kept_labels(dict, of, group_by);
                let id = *index.entry(kept.clone()).or_insert(next);
                if id == next {
                    labels.push(kept);
                    sample_of.push(of);
                }
                id
            })
        };
        let is_own = matches!(table, Table::Block | Table::Head);
        let all = if is_own { &dict.groups } else { &dict.services };
        let mut bundles = vec![false; all.len()];
        let (mut kept, mut series_kinds) = (Vec::new(), Vec::new());
        if is_own {
            for series in &dict.series {
                let of = kept_of(series.labels);
                bundles[series.group as usize] |= of != NONE;
                kept.push(of);
                series_kinds.push(series.kind);
            }
        } else {
            for (at, service) in dict.services.iter().enumerate() {
                let of = kept_of(service.labels);
                bundles[at] = of != NONE;
                kept.push(of);
                series_kinds.push(service.kind);
            }
        }
        Choice {
            table,
            chosen: bundles.iter().filter(|chosen| **chosen).count(),
            bundles,
            periods: all
                .iter()
                .map(|bundle| period(dict, Some(bundle.kind)))
                .collect(),
            kinds: all.iter().map(|bundle| bundle.kind).collect(),
            series_kinds,
            labels,
            sample_of,
            kept,
        }
    }

    /// True when nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// True when a series of the bundle is taken.
    pub fn wants(&self, bundle: u32) -> bool {
        let chosen = self.bundles.get(bundle as usize);
        chosen.is_some_and(|chosen| *chosen)
    }

    /// By range of bundles that share heads: one of them is wanted.
    pub fn ranges(&self) -> Vec<bool> {
        let ranges = self.bundles.chunks(HEADS_SHARED as usize);
        ranges.map(|range| range.contains(&true)).collect()
    }

    /// The kept labels of a series (or service), or [`NONE`].
    pub fn kept(&self, series: u32) -> u32 {
        self.kept.get(series as usize).copied().unwrap_or(NONE)
    }

    /// The period of a bundle; 0: it varied.
    pub fn period_of(&self, bundle: u32) -> u64 {
        self.periods.get(bundle as usize).copied().unwrap_or(0)
    }

    /// The period of the first samples that are chosen: mostly that of all.
    pub fn period(&self) -> u64 {
        let mut chosen = self.bundles.iter().zip(&self.periods);
        let first = chosen.find(|(chosen, _)| **chosen);
        first.map_or(0, |(_, period)| *period)
    }
}
