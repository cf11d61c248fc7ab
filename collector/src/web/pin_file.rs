//! Profiles of pins as files: `GET /api/pin.FORMAT?id=…`.
//!
//! FORMAT is the same as for `profile.FORMAT` (`download.rs`). `id` is the collector's id of the
//! pin; `captured=1` returns its trigger's capture instead of the minutes; `selector`, `frame` and
//! `group_by` mean the same as there. Formats that support times of samples contain them.

use super::download::{File, file, filter, finished, format, named, too_large};
use crate::access::Caller;
use crate::pins::Pins;
use crate::query::Queries;
use hyper::body::Bytes;
use profile::Selector;
use proto::collector::PinProfileRequest;
use std::sync::Arc;
use tonic::Status;

fn parse(pairs: Vec<(String, String)>) -> Result<PinProfileRequest, Status> {
    let mut asked = PinProfileRequest::default();
    for (name, value) in pairs {
        match name.as_str() {
            "id" => {
                asked.id = value.parse().map_err(|_| {
                    Status::invalid_argument("failed to use `id`: expected the number of a pin")
                })?;
            }
            "captured" => asked.captured = value == "1",
            "selector" => {
                let selector: Selector = value
                    .parse()
                    .map_err(|error| Status::invalid_argument(format!("{error}")))?;
                asked.matchers = proto::query::matchers(&selector);
            }
            "frame" => asked.frame_filters.push(filter(&value)?),
            "group_by" => {
                let labels = value.split(',').filter(|label| !label.is_empty());
                asked.group_by.extend(labels.map(str::to_owned));
            }
            _ => {
                return Err(Status::invalid_argument(format!(
                    "unknown parameter `{name}`: use id, captured, selector, frame or group_by"
                )));
            }
        }
    }
    if asked.id == 0 {
        return Err(Status::invalid_argument(
            "`id` is missing: give the number of the pin at this collector, such as id=7",
        ));
    }
    Ok(asked)
}

/// Makes the file `name`.
///
/// # Errors
/// As the call; NOT_FOUND when there is no such file.
pub(super) async fn make(
    (queries, pins): (&Queries, &Pins),
    caller: Arc<Caller>,
    name: &str,
    pairs: Vec<(String, String)>,
) -> Result<File, Status> {
    let format = format("pin", name)?;
    let mut asked = parse(pairs)?;
    asked.times = format.has_times();
    let (id, group_by) = (asked.id, asked.group_by.clone());
    let (part, time) = match asked.captured {
        true => ("-captured", ": the capture"),
        false => ("", ""),
    };
    let mut place = queries.response_slot()?;
    let made = pins.make(caller, asked, move |profile, limits| {
        if profile.total().is_capped() {
            return Err(too_large().into());
        }
        let title = format!("Pin {id}{time}");
        let pieces = file(&profile, format, (title, &group_by[..]), limits)?;
        place.hold(pieces.iter().map(Bytes::len).sum())?;
        let name = named(&format!("pin-{id}{part}"), &profile.info);
        Ok((pieces, name, place))
    });
    Ok(finished(format, made.await?))
}
