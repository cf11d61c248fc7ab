//! The quality of an answer, from its source.

use super::activity::AnswerFacts;
use super::{FleetActivity, QueryBudget, WindowSource};
use crate::store::{DataQuality, Scope, StoreError};

/// The quality of an answer: facts of it, what hosts did in its time, and what could not be read.
pub(super) fn quality<S: WindowSource>(
    source: &S,
    scope: &Scope,
    facts: AnswerFacts,
    budget: &mut QueryBudget<'_>,
) -> Result<DataQuality, StoreError> {
    let activity = source.activity(scope, budget)?;
    quality_of(source, scope, (activity, facts), budget)
}

/// The same, with what hosts did as it is known.
pub(super) fn quality_of<S: WindowSource>(
    source: &S,
    scope: &Scope,
    (activity, facts): (FleetActivity, AnswerFacts),
    budget: &mut QueryBudget<'_>,
) -> Result<DataQuality, StoreError> {
    let mut quality = activity.quality(scope.range, facts, budget)?;
    // Last: what is read for an answer may be what finds a partition damaged.
    quality.damaged = source.unreadable(scope.range);
    quality.damaged.extend(budget.left_out().map(str::to_owned));
    Ok(quality)
}
