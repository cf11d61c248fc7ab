//! Translates selectors and groupings to SQL that selects exactly the same.
//!
//! The engine evaluates equality and subtrees. Regular expressions are matched here, against the
//! label's values, because the two regex engines differ in what `\w` and the like mean.

use super::client::Client;
use super::fault::Fault;
use super::keys::Span;
use super::statement::{Param, Statement};
use crate::store::query::memory_exceeded;
use crate::store::{LabelSet, Limits};
use clickhouse::Row;
use profile::{GroupBy, LabelMatcher, MatchOp, Selector, key};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};

/// Most groups that are named one by one in a statement.
const ONLY_MAX: usize = 10_000;

/// Most values of one label that a regular expression is matched against. Unit: values.
const VALUES_MAX: usize = 200_000;

/// Which column has the labels, and what they are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Labels {
    /// All labels of a label set, in `series` or `services`.
    Set(&'static str),
    /// Labels of the host alone, for windows: a matcher on other labels is ignored.
    Host,
}

impl Labels {
    /// Where the values of a label are listed.
    fn table(self) -> &'static str {
        match self {
            Labels::Set(table) => table,
            Labels::Host => "host_days",
        }
    }
}

#[derive(Row, Deserialize)]
struct Value {
    value: String,
}

/// A matcher as it can be asked of the engine.
#[derive(Clone)]
enum Test {
    Always,
    Equal {
        name: String,
        value: String,
        not: bool,
    },
    Subtree {
        name: String,
        path: String,
    },
    Among {
        name: String,
        values: Vec<String>,
        not: bool,
    },
    /// The host is one that the asker may hear of.
    Told {
        hosts: Vec<String>,
    },
}

/// A selector in a form that needs no more look-ups; used in any number of statements.
#[derive(Clone)]
pub(super) struct Condition {
    tests: Vec<Test>,
    of_host: bool,
}

impl Condition {
    /// Resolves `selector` for label sets of the days of `span`.
    pub async fn of(
        client: &Client,
        labels: Labels,
        span: Span,
        selector: &Selector,
        limits: &Limits,
    ) -> Result<Condition, Fault> {
        let mut tests = Vec::new();
        if let (Labels::Host, Some(hosts)) = (labels, &limits.hosts) {
            tests.push(Test::Told {
                hosts: hosts.iter().cloned().collect(),
            });
        }
        for matcher in selector.matchers() {
            let (name, value) = (matcher.label().to_owned(), matcher.value().to_owned());
            tests.push(match matcher.op() {
                MatchOp::Equal => Test::Equal {
                    name,
                    value,
                    not: false,
                },
                MatchOp::NotEqual => Test::Equal {
                    name,
                    value,
                    not: true,
                },
                MatchOp::Subtree => Test::Subtree { name, path: value },
                MatchOp::Regex | MatchOp::NotRegex => {
                    match_values(client, labels, span, matcher, limits).await?
                }
            });
        }
        Ok(Condition {
            tests,
            of_host: matches!(labels, Labels::Host),
        })
    }

    /// True when it takes everything.
    pub fn is_empty(&self) -> bool {
        self.tests.iter().all(|test| matches!(test, Test::Always))
    }

    /// SQL on the column `labels`.
    pub fn sql(&self, statement: &mut Statement) -> String {
        let mut all = String::from("1");
        for test in &self.tests {
            let mut named = |name: &str| {
                let name = statement.param(Param::Text(name.to_owned()));
                format!("labels[{name}]")
            };
            let (label, test) = match test {
                Test::Always => continue,
                Test::Told { hosts } => {
                    let label = named(key::HOST);
                    let hosts = statement.texts(hosts);
                    (None, format!("{label} IN (SELECT arrayJoin({hosts}))"))
                }
                Test::Equal { name, value, not } => {
                    let label = named(name);
                    let value = statement.param(Param::Text(value.clone()));
                    let op = if *not { "!=" } else { "=" };
                    (Some(label.clone()), format!("{label} {op} {value}"))
                }
                Test::Subtree { name, path } if path == "/" => {
                    let label = named(name);
                    (Some(label.clone()), format!("startsWith({label}, '/')"))
                }
                Test::Subtree { name, path } => {
                    let label = named(name);
                    let same = statement.param(Param::Text(path.clone()));
                    let below = statement.param(Param::Text(format!("{path}/")));
                    let test = format!("({label} = {same} OR startsWith({label}, {below}))");
                    (Some(label), test)
                }
                Test::Among { name, values, not } => {
                    let label = named(name);
                    let values = statement.texts(values);
                    let op = if *not { "NOT IN" } else { "IN" };
                    let test = format!("{label} {op} (SELECT arrayJoin({values}))");
                    (Some(label), test)
                }
            };
            match label {
                Some(label) if self.of_host => {
                    all.push_str(&format!(" AND ({label} = '' OR {test})"));
                }
                _ => all.push_str(&format!(" AND {test}")),
            }
        }
        all
    }
}

/// The values of its label that a regular expression takes.
async fn match_values(
    client: &Client,
    labels: Labels,
    span: Span,
    matcher: &LabelMatcher,
    limits: &Limits,
) -> Result<Test, Fault> {
    let name = matcher.label().to_owned();
    let mut ask = Statement::default();
    let label = ask.param(Param::Text(name.clone()));
    let time = match labels {
        Labels::Set(_) => span.of_days(),
        // Hosts may have been alive before and after the range only.
        Labels::Host => "1".to_owned(),
    };
    ask.sql = format!(
        "SELECT DISTINCT labels[{label}] AS value FROM {} WHERE {time} LIMIT {}",
        labels.table(),
        VALUES_MAX + 1
    );
    let (mut takes, mut leaves, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    client
        .each::<Value>(&ask, limits, |row| {
            count += 1;
            if count > VALUES_MAX {
                return Err(Fault::Limit(format!(
                    "the label `{name}` has more than {VALUES_MAX} values in the range: select \
                     with `=` or `^=`, or narrow the range"
                )));
            }
            // A label selects only among the hosts that have it.
            if labels == Labels::Host && row.value.is_empty() {
                return Ok(());
            }
            let side = if matcher.matches(&row.value) {
                &mut takes
            } else {
                &mut leaves
            };
            side.insert(row.value);
            Ok(())
        })
        .await?;
    let not_seen = takes.is_empty() && leaves.is_empty();
    let nothing_left = leaves.is_empty() && !takes.is_empty();
    if nothing_left || (not_seen && (labels == Labels::Host || matcher.matches(""))) {
        return Ok(Test::Always);
    }
    let not = leaves.len() < takes.len();
    let values = if not { leaves } else { takes };
    let values = values.into_iter().collect();
    Ok(Test::Among { name, values, not })
}

/// How label sets are put together.
pub(super) struct Grouping<'g> {
    group_by: &'g GroupBy,
    /// Key of the hash by which groups are distinguished, different for each query, so that nobody
    /// can choose labels that fall into one group.
    key: (u64, u64),
}

impl<'g> Grouping<'g> {
    /// By the labels that `group_by` keeps.
    pub fn new(group_by: &'g GroupBy) -> Grouping<'g> {
        use std::hash::{BuildHasher, RandomState};
        let random = || RandomState::new().hash_one(0);
        Grouping {
            group_by,
            key: (random(), random()),
        }
    }

    /// True when no label stays.
    pub fn is_one(&self) -> bool {
        matches!(self.group_by, GroupBy::Keys(keys) if keys.is_empty())
    }

    /// SQL for the group of a row of `series` or `services`.
    pub fn sql(&self, statement: &mut Statement) -> String {
        match self.group_by {
            GroupBy::All => "series".to_owned(),
            GroupBy::Keys(keys) if keys.is_empty() => "toUInt64(0)".to_owned(),
            GroupBy::Keys(keys) => {
                let names = statement.texts(keys);
                let (left, right) = self.key;
                format!(
                    "sipHash64Keyed((toUInt64({left}), toUInt64({right})), \
                     arrayMap(name -> labels[name], {names}))"
                )
            }
        }
    }

    /// The labels of groups, as [`Grouping::sql`] names them. `only`: of these, where each label
    /// set is a group of its own; many are not told apart from all.
    pub async fn labels(
        &self,
        client: &Client,
        (table, only): (&str, Option<&[u64]>),
        span: Span,
        condition: &Condition,
        limits: &Limits,
    ) -> Result<HashMap<u64, LabelSet>, Fault> {
        #[derive(Row, Deserialize)]
        struct Group {
            g: u64,
            kept: Vec<(String, String)>,
        }
        let mut groups = HashMap::new();
        if self.is_one() {
            groups.insert(0, LabelSet::default());
            return Ok(groups);
        }
        let mut ask = Statement::default();
        let (group, selected) = (self.sql(&mut ask), condition.sql(&mut ask));
        let kept = match self.group_by {
            GroupBy::All => "labels".to_owned(),
            GroupBy::Keys(keys) => {
                let names = ask.texts(keys);
                format!("mapFilter((name, value) -> has({names}, name), labels)")
            }
        };
        let is_each = matches!(self.group_by, GroupBy::All);
        let only = match only {
            Some(ids) if is_each && ids.len() <= ONLY_MAX => {
                format!(" AND series IN (SELECT arrayJoin({}))", ask.numbers(ids))
            }
            _ => String::new(),
        };
        ask.sql = format!(
            "SELECT {group} AS g, any({kept}) AS kept FROM {table} \
             WHERE {} AND {selected}{only} GROUP BY g",
            span.of_days()
        );
        let mut bytes = 0usize;
        client
            .each::<Group>(&ask, limits, |row| {
                let pairs = row.kept.iter();
                bytes += 64
                    + pairs
                        .map(|(name, value)| name.len() + value.len() + 48)
                        .sum::<usize>();
                within(bytes, limits)?;
                groups.insert(row.g, LabelSet::new(row.kept));
                Ok(())
            })
            .await?;
        Ok(groups)
    }

    /// SQL of the label sets that are selected: `series`, `g`, `unit`.
    pub fn selected(
        &self,
        table: &str,
        span: Span,
        condition: &Condition,
        statement: &mut Statement,
    ) -> String {
        let (group, selected) = (self.sql(statement), condition.sql(statement));
        format!(
            "SELECT series, any({group}) AS g, any(unit) AS unit FROM {table} \
             WHERE {} AND {selected} GROUP BY series",
            span.of_days()
        )
    }
}

/// SQL of a sum of weights. It stops at the largest number, which answers report, instead of
/// wrapping around.
pub(super) fn sum(of: &str) -> String {
    let most = u64::MAX;
    format!("toUInt64(least(sum(toUInt128({of})), toUInt128({most})))")
}

/// The same of numbers with a sign.
pub(super) fn signed_sum(of: &str) -> String {
    let (least, most) = (i64::MIN + 1, i64::MAX);
    format!("toInt64(greatest(least(sum(toInt128({of})), toInt128({most})), toInt128({least})))")
}

/// Fails when an answer passes the memory it may take.
pub(super) fn within(bytes: usize, limits: &Limits) -> Result<(), Fault> {
    if bytes > limits.memory_bytes {
        return Err(Fault::Limit(memory_exceeded(limits)));
    }
    Ok(())
}
