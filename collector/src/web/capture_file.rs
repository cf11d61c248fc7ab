//! Stored captures as files: `GET /api/capture.FORMAT?id=7`.
//!
//! FORMAT is the same as for profiles. `past=1`: the profile of the time before, in place of the
//! capture's. `frame` and `group_by` are the same as for profiles, but without `group_by` all
//! labels stay that the capture kept.

use super::download::{File, file, filter, finished, format, named, plain_name, too_large};
use crate::access::Caller;
use crate::control::Control;
use crate::evidence::{KeptQuery, ProfileKind};
use crate::query::Queries;
use hyper::body::Bytes;
use proto::agent;
use std::sync::Arc;
use tonic::Status;

/// What is asked for.
#[derive(Debug, Default)]
struct CaptureQuery {
    id: u64,
    past: bool,
    filters: Vec<agent::FrameFilter>,
    group_by: Vec<String>,
}

fn parse(pairs: Vec<(String, String)>) -> Result<CaptureQuery, Status> {
    let mut asked = CaptureQuery::default();
    for (name, value) in pairs {
        match name.as_str() {
            "id" => {
                asked.id = value.parse().map_err(|_| {
                    Status::invalid_argument("failed to use `id`: expected the number of a capture")
                })?;
            }
            "past" => {
                asked.past = match value.as_str() {
                    "1" => true,
                    "0" | "" => false,
                    _ => {
                        return Err(Status::invalid_argument(
                            "failed to use `past`: expected 0 or 1",
                        ));
                    }
                }
            }
            "frame" => asked.filters.push(filter(&value)?),
            "group_by" => {
                let labels = value.split(',').filter(|label| !label.is_empty());
                asked.group_by.extend(labels.map(str::to_owned));
            }
            _ => {
                return Err(Status::invalid_argument(format!(
                    "unknown parameter `{name}`: use id, past, frame or group_by"
                )));
            }
        }
    }
    match asked.id {
        0 => Err(Status::invalid_argument(
            "failed to use `id`: expected the number of a capture",
        )),
        _ => Ok(asked),
    }
}

/// Makes the file `name`.
///
/// # Errors
/// NOT_FOUND when there is no such capture or format, and those of reading it.
pub(super) async fn make(
    queries: &Queries,
    control: &Control,
    caller: Arc<Caller>,
    name: &str,
    pairs: Vec<(String, String)>,
) -> Result<File, Status> {
    let format = format("capture", name)?;
    let CaptureQuery {
        id,
        past,
        filters,
        group_by,
    } = parse(pairs)?;
    let all = ["*".to_owned()];
    let labels = match group_by.is_empty() {
        true => &all[..],
        false => &group_by[..],
    };
    let query = KeptQuery::new((Vec::new(), None), filters, labels, format.has_times())?;
    let mut place = queries.response_slot()?;
    let kind = match past {
        true => ProfileKind::Minutes,
        false => ProfileKind::Captured,
    };
    let made = control.kept((id, kind), caller, move |kept, profile, limits| {
        let answer = query.answer(&profile);
        drop(profile);
        if answer.total().is_capped() {
            return Err(too_large().into());
        }
        let request = kept.info.and_then(|info| info.request);
        let request = request.unwrap_or_default();
        let event = plain_name(&answer.info.event);
        let (side, time) = match past {
            true => ("-before", ": the time before"),
            false => ("", ""),
        };
        let title = match request.selector.as_str() {
            "" => format!("Capture {id} of the fleet{time}"),
            selector => format!("Capture {id} of {selector}{time}"),
        };
        let pieces = file(&answer, format, (title, &group_by[..]), limits)?;
        place.hold(pieces.iter().map(Bytes::len).sum())?;
        let called = format!("capture-{id}{side}-{event}");
        Ok((
            pieces,
            named(called.trim_end_matches('-'), &answer.info),
            place,
        ))
    });
    Ok(finished(format, made.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_or_refused() {
        let pairs = |list: &[(&str, &str)]| {
            let list = list.iter();
            list.map(|(name, value)| (name.to_string(), value.to_string()))
                .collect()
        };
        let found = parse(pairs(&[
            ("id", "7"),
            ("past", "1"),
            ("frame", "keep:^main$"),
            ("group_by", "host,,unit"),
        ]));
        let found = found.expect("valid");
        assert_eq!((found.id, found.past), (7, true));
        assert_eq!(found.group_by, ["host", "unit"]);
        for wrong in [
            &[][..],
            &[("id", "x")],
            &[("id", "0")],
            &[("id", "1"), ("past", "2")],
            &[("id", "1"), ("selector", "a")],
        ] {
            assert!(parse(pairs(wrong)).is_err(), "{wrong:?}");
        }
    }
}
