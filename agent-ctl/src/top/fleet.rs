//! `top` for a fleet: the collector adds up, and the rows are queried here. The stacks and
//! processes of a fleet are too many for one profile per second, so each view is a separate query.

use super::Sort;
use super::model::{Row, Rows, View};
use crate::collector::{Collector, Samples};
use crate::fleet::Fleet;
use crate::when::Range;
use anyhow::Result;
use profile::{FrameKind, key};
use proto::agent::Cgroup;
use proto::collector::{ProfileRequest, Selection, TopRequest, TopRow};
use std::time::Duration;

/// Time between questions to a collector: the length of a window, before which there is nothing
/// new.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Question {
    /// How much of the past, up to now.
    pub range: Duration,
    /// Which samples.
    pub samples: Samples,
    /// Most rows.
    pub limit: u32,
}

/// The rows of one view.
pub struct Table {
    /// Which one.
    pub view: View,
    /// The heaviest rows.
    pub rows: Vec<Row>,
    /// Rows beyond the limit.
    pub left_out: u64,
    /// What they are made of.
    pub fleet: Fleet,
}

/// Asks for the rows of a view.
pub async fn ask(
    collector: &mut Collector,
    question: &Question,
    view: View,
    sort: Sort,
) -> Result<Table> {
    let clock = collector.clock().await?;
    let range = Range {
        start_ns: clock.ago_ns(question.range),
        end_ns: 0,
    };
    let selection = question.samples.selection(range);
    let by = match view {
        View::Functions => "function",
        View::Processes => key::COMM,
        View::Hosts => key::HOST,
        // The tree of cgroups is added up without looking at stacks.
        View::Cgroups if !question.samples.filters.is_empty() => {
            return filtered_cgroups(collector, question, selection, sort).await;
        }
        View::Cgroups => {
            let (cgroups, left_out, fleet) = collector.cgroups(selection).await?;
            let mut rows: Vec<Row> = cgroups.into_iter().map(cgroup).collect();
            rows.sort_unstable_by(|left, right| sort.order(left, right));
            let limit = usize::try_from(question.limit).unwrap_or(usize::MAX);
            let beyond = rows.len().saturating_sub(limit) as u64;
            rows.truncate(limit);
            return Ok(Table {
                view,
                rows,
                left_out: left_out.saturating_add(beyond),
                fleet,
            });
        }
    };
    let request = TopRequest {
        selection: Some(selection),
        by: by.to_owned(),
        sort_by_total: sort == Sort::Total,
        limit: question.limit,
    };
    let (rows, left_out, fleet) = collector.top(request).await?;
    Ok(Table {
        view,
        rows: rows.into_iter().map(row).collect(),
        left_out,
        fleet,
    })
}

/// The cgroups of samples with certain frames.
async fn filtered_cgroups(
    collector: &mut Collector,
    question: &Question,
    selection: Selection,
    sort: Sort,
) -> Result<Table> {
    let request = ProfileRequest {
        selection: Some(selection),
        group_by: [key::CGROUP, key::UNIT].map(str::to_owned).into(),
        max_nodes: 0,
    };
    let (profile, fleet) = collector.profile(request).await?;
    let all = Rows::of(&profile);
    let sorted = all.sorted(View::Cgroups, sort);
    let limit = usize::try_from(question.limit).unwrap_or(usize::MAX);
    Ok(Table {
        view: View::Cgroups,
        left_out: sorted.len().saturating_sub(limit) as u64,
        rows: sorted.into_iter().take(limit).cloned().collect(),
        fleet,
    })
}

fn row(row: TopRow) -> Row {
    Row {
        name: row.name,
        detail: row.module,
        own: row.self_weight,
        total: row.total_weight,
        // Labels have a number that is no kind.
        kind: u8::try_from(row.kind).ok().and_then(FrameKind::from_u8),
    }
}

fn cgroup(cgroup: Cgroup) -> Row {
    Row {
        name: cgroup.path,
        detail: cgroup.unit,
        own: cgroup.self_weight,
        total: cgroup.total_weight,
        kind: None,
    }
}
