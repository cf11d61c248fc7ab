//! Answers queries from pins: profiles of times that the recorder no longer has, or has only in
//! downsampled windows.

use super::Host;
use super::held::Hold;
use super::service::{Service, TIMES, answer, blocking, status};
use aggregate::recorder::{RecorderQuery, WindowRange, read};
use host::time::MonotonicTime;
use pins::PinError;
use profile::text::with_causes;
use profile::{Coverage, Profile, Query, QueryRunner, Withholding};
use proto::agent::TimeRange;
use proto::convert::Chunks;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tonic::Status;

/// The requested range in wall time; an open end is the largest possible time.
pub(super) fn wall(range: Option<TimeRange>) -> (i64, i64) {
    let range = range.unwrap_or_default();
    match range.end_unix_ns {
        0 => (range.start_unix_ns, i64::MAX),
        end => (range.start_unix_ns, end),
    }
}

fn refused(error: PinError) -> Status {
    match error {
        PinError::Query(error) => status(error),
        PinError::Unknown(_) => Status::not_found(error.to_string()),
        _ => Status::data_loss(with_causes(&error)),
    }
}

/// The answer to a query over a complete stored profile, with the times of its samples.
fn selected(profile: &Profile, query: &Query) -> Profile {
    let mut runner = QueryRunner::new(query);
    for (key, value) in profile.sorted() {
        runner.add(&profile.dict, key, value);
    }
    for &timestamp in &profile.timestamps.list {
        runner.add_timestamp(&profile.dict, timestamp);
    }
    let mut answer = runner.finish(profile.info.clone());
    let timestamps = &profile.timestamps;
    answer.timestamps.start_unix_ns = timestamps.start_unix_ns;
    answer.timestamps.duration_ns = timestamps.duration_ns;
    answer.timestamps.dropped = timestamps.dropped;
    if !query.selector().is_empty() {
        // What the kernel accounts is known for all that was captured alone.
        answer.info.coverage = Coverage::default();
    }
    answer
}

impl Service {
    /// As [`Service::profile`] over a span of time, which is `wall` in wall time: the recorder
    /// answers as long as it has the time as it was taken, then the pin in which all of it lies,
    /// then the recorder with what it has, and at last a pin that has a part of it.
    pub(super) async fn profile_or_pin(
        &self,
        span: (MonotonicTime, MonotonicTime),
        wall: (i64, i64),
        query: Arc<Query>,
        times: bool,
    ) -> Result<(Chunks<Profile>, Hold), Status> {
        let held = self.held.clone();
        let ready = move |profile: Profile| {
            let hold = held.hold(&profile)?;
            // Sorts the samples: too long for the runtime's thread.
            Ok((Chunks::new(profile), hold))
        };
        let work = move |host: &dyn Host, cancel: &AtomicBool| {
            let (from, to) = span;
            let pins = host.pins().filter(|pins| !pins.is_empty());
            let asked = RecorderQuery {
                query: &query,
                times,
                withhold: Withholding::nothing(),
            };
            if let Some(pins) = pins
                && !read(host.recorder()).holds_fine(from, to)
                && let Some(answer) = pins.within(wall, asked, cancel).map_err(refused)?
            {
                return ready(answer.profile);
            }
            let answer = answer(host, WindowRange::Time(from, to), asked, cancel)?;
            if let (0, Some(pins)) = (answer.covered.windows, pins)
                && let Some(answer) = pins.overlapping(wall, asked, cancel).map_err(refused)?
            {
                return ready(answer.profile);
            }
            ready(answer.profile)
        };
        let (answer, _) = blocking(self, &TIMES.pin, &self.queries, work).await?;
        Ok(answer)
    }

    /// The capture of a pin.
    pub(super) async fn pinned_capture(
        &self,
        pin: u64,
        query: Arc<Query>,
    ) -> Result<(Chunks<Profile>, Hold), Status> {
        let held = self.held.clone();
        let work = move |host: &dyn Host, _: &AtomicBool| {
            let pins = host.pins();
            let pins = pins.ok_or_else(|| Status::not_found("this daemon keeps no pins"))?;
            let profile = pins.capture(pin).map_err(refused)?;
            let answer = selected(&profile, &query);
            let hold = held.hold(&answer)?;
            Ok((Chunks::new(answer), hold))
        };
        let (answer, _) = blocking(self, &TIMES.pin, &self.queries, work).await?;
        Ok(answer)
    }
}
