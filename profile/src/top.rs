//! Tables of where the time went: by function, by module, or by the value of a label.

use crate::frame::FrameKind;
use crate::functions::{sum_functions, sum_modules};
use crate::sample::{Profile, Value};
use hashbrown::HashMap;

/// What the rows of a table stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// Functions, told apart by name and module.
    Function,
    /// Modules; functions without one are in the row with the empty name.
    Module,
    /// Values of this label; samples without it are in the row with the empty name.
    Label(String),
}

/// Which column a table is sorted by, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TopSort {
    /// Samples with the function as leaf.
    #[default]
    Own,
    /// Samples with the function anywhere in the stack.
    Total,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopRow {
    /// Function, module or label value, as it is in the profile: escape it where it is shown.
    pub name: String,
    /// Module of a function; empty in other tables.
    pub module: String,
    /// Kind of a function, or the lowest kind in a module; [`FrameKind::Synthetic`] in a table by
    /// label.
    pub kind: FrameKind,
    /// Samples with the function as leaf. By label: all samples of the value.
    pub own: Value,
    /// Samples with the function anywhere; recursion counts once. By label: the same as `own`.
    pub total: Value,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Top {
    /// The rows, sorted; rows of equal weight by name and module.
    pub rows: Vec<TopRow>,
    /// Sum over all samples: what shares are of.
    pub total: Value,
    /// Rows that the limit left out.
    pub omitted: usize,
}

impl Profile {
    /// A table of at most `limit` rows, sorted by weight (count where weights are equal).
    pub fn top(&self, by: &TopBy, sort: TopSort, limit: usize) -> Top {
        let mut rows = match by {
            TopBy::Function => self.function_rows(),
            TopBy::Module => self.module_rows(),
            TopBy::Label(key) => self.label_rows(key),
        };
        let size = |row: &TopRow| match sort {
            TopSort::Own => (row.own.weight, row.own.count, row.total.weight),
            TopSort::Total => (row.total.weight, row.total.count, row.own.weight),
        };
        rows.sort_unstable_by(|left, right| {
            size(right)
                .cmp(&size(left))
                .then_with(|| (&left.name, &left.module).cmp(&(&right.name, &right.module)))
        });
        let omitted = rows.len().saturating_sub(limit);
        rows.truncate(limit);
        Top {
            rows,
            total: self.total(),
            omitted,
        }
    }

    fn function_rows(&self) -> Vec<TopRow> {
        let samples = self
            .samples
            .iter()
            .map(|(key, &value)| (key.stack, [value]));
        sum_functions(&self.dict, samples)
            .into_iter()
            .map(|cost| TopRow {
                name: self.dict.strings.get(cost.function).to_owned(),
                module: self.dict.strings.get(cost.module).to_owned(),
                kind: cost.kind,
                own: cost.own[0],
                total: cost.total[0],
            })
            .collect()
    }

    fn module_rows(&self) -> Vec<TopRow> {
        let samples = self
            .samples
            .iter()
            .map(|(key, &value)| (key.stack, [value]));
        sum_modules(&self.dict, samples)
            .into_iter()
            .map(|cost| TopRow {
                name: self.dict.strings.get(cost.module).to_owned(),
                module: String::new(),
                kind: cost.kind,
                own: cost.own[0],
                total: cost.total[0],
            })
            .collect()
    }

    fn label_rows(&self, key: &str) -> Vec<TopRow> {
        let mut by_set = HashMap::new();
        for (sample, &value) in &self.samples {
            *by_set.entry(sample.labels).or_insert_with(Value::default) += value;
        }
        let mut by_value: HashMap<&str, Value> = HashMap::new();
        for (set, value) in by_set {
            *by_value
                .entry(self.dict.label(set, key).unwrap_or(""))
                .or_default() += value;
        }
        by_value
            .into_iter()
            .map(|(name, value)| TopRow {
                name: name.to_owned(),
                module: String::new(),
                kind: FrameKind::Synthetic,
                own: value,
                total: value,
            })
            .collect()
    }
}
