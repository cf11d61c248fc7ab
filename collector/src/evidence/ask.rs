//! Queries on stored profiles, and their answers.

use super::ReadError;
use crate::query::{Failed, STALL_TIMEOUT, of_samples};
use profile::text::with_causes;
use profile::{Coverage, GroupBy, Profile, Query, Selector, Timestamps};
use proto::agent::{FrameFilter, LabelMatcher};
use tokio::sync::mpsc;
use tonic::Status;

/// A query on a profile.
pub(crate) struct KeptQuery {
    query: Query,
    times: bool,
}

impl KeptQuery {
    /// Looks at a question. `within`: matchers that are added to those that were asked for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the reason.
    pub fn new(
        (matchers, within): (Vec<LabelMatcher>, Option<Selector>),
        frame_filters: Vec<FrameFilter>,
        group_by: &[String],
        times: bool,
    ) -> Result<KeptQuery, Status> {
        let invalid = |error: &dyn std::fmt::Display| Status::invalid_argument(error.to_string());
        let mut selector = proto::query::selector(matchers).map_err(|e| invalid(&e))?;
        if let Some(within) = within {
            let all = within.matchers().iter().chain(selector.matchers());
            selector = Selector::new(all.cloned().collect()).map_err(|e| invalid(&e))?;
        }
        let filters = proto::query::frame_filters(frame_filters).map_err(|e| invalid(&e))?;
        let count = proto::query::check_count("labels to group by", group_by.len());
        count.map_err(|e| invalid(&e))?;
        let group_by = GroupBy::from_keys(group_by);
        let query = Query::new(selector, filters, group_by).map_err(|e| invalid(&e))?;
        Ok(KeptQuery { query, times })
    }

    /// Its result.
    pub fn answer(&self, profile: &Profile) -> Profile {
        let mut answer = profile.query(&self.query);
        if !self.times {
            answer.timestamps = Timestamps::default();
        }
        if !self.query.selector().is_empty() {
            // What the kernel accounts is known for all of it alone.
            answer.info.coverage = Coverage::default();
        }
        answer
    }
}

/// The part of a profile for callers who may see a part of its hosts, before their scope is
/// applied: without wakers, and without counts over all of a host.
pub(crate) fn in_part(profile: Profile) -> Profile {
    let mut part = profile.without_wakers().unwrap_or(profile);
    part.info.quality = of_samples(part.info.quality);
    part.info.coverage = Coverage::default();
    part.info.waits_cause.clear();
    part.timestamps.dropped = 0;
    part
}

/// The error for evidence that cannot be read.
pub(crate) fn refused(error: ReadError) -> Failed {
    let text = error.to_string();
    if matches!(error, ReadError::Read { .. } | ReadError::Assemble { .. }) {
        tracing::warn!("{}", with_causes(&error));
    }
    Failed::from(match error {
        ReadError::Unknown { .. } => Status::not_found(text),
        ReadError::Memory { .. } => Status::resource_exhausted(text),
        ReadError::Cancelled => Status::deadline_exceeded(text),
        ReadError::Read { .. } | ReadError::Assemble { .. } => Status::data_loss(text),
    })
}

/// Sends all parts; false when the client does not read them.
pub(crate) async fn send<T>(
    parts: impl Iterator<Item = T>,
    tx: mpsc::Sender<Result<T, Status>>,
) -> bool {
    for part in parts {
        match tx.send_timeout(Ok(part), STALL_TIMEOUT).await {
            Ok(()) => {}
            // It went away, which is its own affair.
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return true,
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => return false,
        }
    }
    true
}
