//! Tables of where the time went: by function, by module, or by the value of a label.

use crate::dictionary::Dictionary;
use crate::frame::{FrameKind, LOST_FRAME};
use crate::functions::{FunctionCost, Shape, WOKEN_BY, sum_functions, sum_modules};
use crate::outcome::StackEnd;
use crate::profile::Profile;
use crate::sample::Value;
use crate::stack::StackId;
use crate::strings::{StrId, StringTable};
use hashbrown::HashMap;

/// What the rows of a table stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// Functions, separate by name and module.
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

impl TopSort {
    fn size(self, own: Value, total: Value) -> (u64, u64, u64) {
        match self {
            TopSort::Own => (own.weight, own.count, total.weight),
            TopSort::Total => (total.weight, total.count, own.weight),
        }
    }
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
        let by = match by {
            TopBy::Function => CostBy::Function,
            TopBy::Module => CostBy::Module,
            TopBy::Label(key) => return sorted(self.label_rows(key), self.total(), sort, limit),
        };
        Costs::of(self, by).into_top(sort, limit)
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

fn sorted(mut rows: Vec<TopRow>, total: Value, sort: TopSort, limit: usize) -> Top {
    let size = |row: &TopRow| sort.size(row.own, row.total);
    rows.sort_unstable_by(|left, right| {
        size(right)
            .cmp(&size(left))
            .then_with(|| (&left.name, &left.module).cmp(&(&right.name, &right.module)))
    });
    let omitted = rows.len().saturating_sub(limit);
    rows.truncate(limit);
    Top {
        rows,
        total,
        omitted,
    }
}

/// What costs are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostBy {
    /// Functions, separate by name and module.
    Function,
    /// Modules.
    Module,
}

/// A table on its way: what functions or modules cost in samples of any number of dictionaries.
pub struct Costs {
    by: CostBy,
    strings: StringTable,
    rows: HashMap<(StrId, StrId), Row>,
    total: Value,
    /// Part of `total`. Nobody knows where these samples were: they are in no row of `rows`.
    lost: Value,
}

/// Sums by function or module that are not in their table yet.
pub struct Sums(Vec<FunctionCost<1>>);

#[derive(Clone, Copy, Debug)]
struct Row {
    kind: FrameKind,
    own: Value,
    total: Value,
}

impl Costs {
    /// An empty table.
    pub fn new(by: CostBy) -> Costs {
        Costs {
            by,
            strings: StringTable::default(),
            rows: HashMap::new(),
            total: Value::default(),
            lost: Value::default(),
        }
    }

    /// The table of a profile.
    pub fn of(profile: &Profile, by: CostBy) -> Costs {
        let mut costs = Costs::new(by);
        let is_lost = |end| end == StackEnd::Lost;
        let samples = profile.samples.iter();
        for (_, &value) in samples.clone().filter(|(key, _)| is_lost(key.end)) {
            costs.add_lost(value);
        }
        let samples = samples.filter(|(key, _)| !is_lost(key.end));
        let samples = samples.map(|(key, &value)| (key.stack, value));
        costs.add(&profile.dict, samples);
        costs
    }

    /// Adds samples that were lost. Their row is `[lost]`, whatever stack they are kept under.
    pub fn add_lost(&mut self, value: Value) {
        self.total += value;
        self.lost += value;
    }

    /// The table of what was sampled alone.
    pub fn without_lost(mut self) -> Costs {
        let lost = std::mem::take(&mut self.lost);
        self.total.count = self.total.count.saturating_sub(lost.count);
        self.total.weight = self.total.weight.saturating_sub(lost.weight);
        self
    }

    /// Adds samples with stacks of `dict`.
    ///
    /// # Panics
    /// When a stack is not of `dict`.
    pub fn add(&mut self, dict: &Dictionary, samples: impl IntoIterator<Item = (StackId, Value)>) {
        let mut sums = self.sum(&Shape::of(dict), samples);
        self.name(dict, &mut sums, usize::MAX);
    }

    /// Sums samples with stacks of `shape`; they are in the table once they are
    /// [named](Costs::name). Takes time and memory by the number of stacks of `shape`, about 50
    /// bytes each while it runs.
    ///
    /// # Panics
    /// When a stack is not of `shape`.
    pub fn sum(
        &mut self,
        shape: &Shape<'_>,
        samples: impl IntoIterator<Item = (StackId, Value)>,
    ) -> Sums {
        let total = &mut self.total;
        let samples = samples.into_iter().map(|(stack, value)| {
            *total += value;
            (stack, [value])
        });
        Sums(match self.by {
            CostBy::Function => sum_functions(shape, samples),
            CostBy::Module => sum_modules(shape, samples),
        })
    }

    /// Adds at most `most` of the sums to the table, under their names in `dict`, which may only
    /// have grown since its shape was taken. Returns false if these were all.
    pub fn name(&mut self, dict: &Dictionary, sums: &mut Sums, most: usize) -> bool {
        if self.rows.is_empty() {
            self.strings.reserve(sums.0.len());
            self.rows.reserve(sums.0.len());
        }
        let rest = sums.0.len().saturating_sub(most);
        for cost in sums.0.drain(rest..) {
            let mut text = |id| self.strings.intern(dict.text(id));
            let key = match self.by {
                CostBy::Function => (text(cost.function), text(cost.module)),
                CostBy::Module => (text(cost.module), StrId::EMPTY),
            };
            let row = self.rows.entry(key).or_insert(Row {
                kind: cost.kind,
                own: Value::default(),
                total: Value::default(),
            });
            row.kind = row.kind.min(cost.kind);
            row.own += cost.own[0];
            row.total += cost.total[0];
        }
        rest > 0
    }

    /// What it is added up by.
    pub fn by(&self) -> CostBy {
        self.by
    }

    /// The sum over all samples.
    pub fn total(&self) -> Value {
        self.total
    }

    /// Weighs in the coarser unit, each row rounded to the nearest: see [`crate::unit`].
    pub fn rescale(&mut self) {
        for row in self.rows.values_mut() {
            row.own = row.own.rescaled();
            row.total = row.total.rescaled();
        }
        self.total = self.total.rescaled();
        self.lost = self.lost.rescaled();
    }

    /// Adds a table of other samples, by the same and in the same unit.
    pub fn merge(&mut self, other: &Costs) {
        for (key, row) in &other.rows {
            let mut text = |id| self.strings.intern(other.strings.get(id));
            let key = (text(key.0), text(key.1));
            let sum = self.rows.entry(key).or_insert(Row {
                kind: row.kind,
                own: Value::default(),
                total: Value::default(),
            });
            sum.kind = sum.kind.min(row.kind);
            sum.own += row.own;
            sum.total += row.total;
        }
        self.total += other.total;
        self.lost += other.lost;
    }

    /// True when a row says who ended waits. Tables of modules do not say what they are of.
    pub fn has_wakers(&self) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|((name, _), row)| {
            row.kind == FrameKind::Synthetic && self.strings.get(*name).starts_with(WOKEN_BY)
        })
    }

    /// Memory held, in bytes; an estimate.
    pub fn heap_bytes(&self) -> usize {
        self.strings.heap_bytes() + self.rows.allocation_size()
    }

    /// At most `limit` rows, sorted by weight (count where weights are equal).
    pub fn into_top(mut self, sort: TopSort, limit: usize) -> Top {
        if self.lost != Value::default() {
            let name = match self.by {
                CostBy::Function => self.strings.intern(LOST_FRAME),
                CostBy::Module => StrId::EMPTY,
            };
            let row = self.rows.entry((name, StrId::EMPTY)).or_insert(Row {
                kind: FrameKind::Synthetic,
                own: Value::default(),
                total: Value::default(),
            });
            row.own += self.lost;
            row.total += self.lost;
        }
        let text = |id| self.strings.get(id);
        let mut order: Vec<_> = self.rows.iter().collect();
        let rank = |left: &(&(StrId, StrId), &Row), right: &(&(StrId, StrId), &Row)| {
            let names = |key: &(StrId, StrId)| (text(key.0), text(key.1));
            let size = |row: &Row| sort.size(row.own, row.total);
            let by_size = size(right.1).cmp(&size(left.1));
            by_size.then_with(|| names(left.0).cmp(&names(right.0)))
        };
        let omitted = order.len().saturating_sub(limit);
        if omitted > 0 {
            // Most rows are never seen: only those that are get sorted and their texts copied.
            order.select_nth_unstable_by(limit, rank);
            order.truncate(limit);
        }
        order.sort_unstable_by(rank);
        let rows = order.into_iter().map(|(key, row)| TopRow {
            name: text(key.0).to_owned(),
            module: text(key.1).to_owned(),
            kind: row.kind,
            own: row.own,
            total: row.total,
        });
        Top {
            rows: rows.collect(),
            total: self.total,
            omitted,
        }
    }
}
