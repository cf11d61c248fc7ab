//! `GET /pyroscope/render` and `/pyroscope/render-diff`: flame graphs as JSON of the older API,
//! which Drilldown draws its comparison from.
//!
//! A query is the id of a profile type and a selector. Times are milliseconds since the Unix epoch,
//! or seconds, micro- or nanoseconds by their size, or `now`, or `now-1h`.

use super::profiles::{Wanted, levels_bytes, nodes};
use super::selection::Selection;
use super::series::Asked;
use super::types::ProfileType;
use super::wire::querier::v1 as wire;
use super::{Pyroscope, connect};
use crate::access::Caller;
use crate::query::{Ask, Failed, ResponseSlot, invalid};
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use profile::formats::levels::Levels;
use proto::agent;
use serde::Serialize;
use std::collections::BTreeMap;
use tonic::Status;

/// Path of one profile.
pub(crate) const RENDER_PATH: &str = "/pyroscope/render";

/// Path of two.
pub(crate) const RENDER_DIFF_PATH: &str = "/pyroscope/render-diff";

/// Steps of a time line, at most.
const TIMELINE_STEPS: i64 = 300;

/// Rate at which numbers of CPU time are nanoseconds.
const NANOSECONDS: u32 = 1_000_000_000;

/// Nanoseconds in a millisecond.
const MS: i64 = 1_000_000;

/// An answer, and the place it holds until it is read.
pub(crate) type Rendered = (Response<Bytes>, Option<ResponseSlot>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Flamebearer {
    names: Vec<String>,
    levels: Vec<Vec<i64>>,
    num_ticks: i64,
    max_self: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    format: &'static str,
    spy_name: &'static str,
    sample_rate: u32,
    units: String,
    name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Timeline {
    start_time: i64,
    samples: Vec<u64>,
    duration_delta: i64,
    watermarks: BTreeMap<String, i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    version: u32,
    flamebearer: Flamebearer,
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Timeline>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ticks: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    right_ticks: Option<i64>,
}

impl Page {
    fn of(found: Levels, of: &ProfileType, format: &'static str) -> Page {
        let (units, sample_rate) = match of.sample_type() {
            "cpu" => ("samples", NANOSECONDS),
            "inuse_objects" | "alloc_objects" | "goroutine" | "samples" => ("objects", 100),
            _ => (of.sample_unit(), 100),
        };
        Page {
            version: 1,
            flamebearer: Flamebearer {
                names: found.names,
                levels: found.levels,
                num_ticks: found.total,
                max_self: found.max_self,
            },
            metadata: Metadata {
                format,
                spy_name: "",
                sample_rate,
                units: units.to_owned(),
                name: of.sample_type().to_owned(),
            },
            timeline: None,
            left_ticks: None,
            right_ticks: None,
        }
    }
}

/// Parameters of an address; those that say nothing here are ignored, as clients send more.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn get(&self, names: &[&str]) -> Option<&str> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(name, _)| names.contains(&name.as_str()));
        found.map(|(_, value)| value.as_str())
    }

    fn time(&self, names: &[&str], now_ns: i64) -> Result<i64, Status> {
        let text = self.get(names).unwrap_or("now");
        time(text, now_ns).ok_or_else(|| {
            invalid(format!(
                "failed to use `{}`: expected milliseconds since the Unix epoch, `now` or `now-1h`",
                names[0]
            ))
        })
    }

    fn nodes(&self) -> Result<Option<i64>, Status> {
        let text = self.get(&["max-nodes", "maxNodes"]);
        let parsed = text.filter(|text| !text.is_empty()).map(str::parse);
        parsed
            .transpose()
            .map_err(|_| invalid("failed to use `max-nodes`: expected a number"))
    }
}

/// A time in nanoseconds.
pub(crate) fn time(text: &str, now_ns: i64) -> Option<i64> {
    if let Ok(number) = text.parse::<i64>() {
        // The unit in which it is nearest to the present.
        return Some(match number.unsigned_abs() {
            0..100_000_000_000 => number.saturating_mul(1_000_000_000),
            100_000_000_000..100_000_000_000_000 => number.saturating_mul(MS),
            100_000_000_000_000..100_000_000_000_000_000 => number.saturating_mul(1000),
            _ => number,
        });
    }
    let ago = text.strip_prefix("now")?;
    if ago.is_empty() {
        return Some(now_ns);
    }
    let length = ago.strip_prefix('-')?;
    let (number, of) = length.split_at_checked(length.len().checked_sub(1)?)?;
    let seconds = match of {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    let number: i64 = number.parse().ok().filter(|number| *number >= 0)?;
    Some(
        now_ns
            .saturating_sub(number.saturating_mul(seconds * 1_000_000_000))
            .max(0),
    )
}

fn rendered(answer: Result<(Page, ResponseSlot), Status>) -> Rendered {
    let (page, place) = match answer {
        Ok(answer) => answer,
        Err(status) => return (connect::failed(&status), None),
    };
    let Ok(text) = serde_json::to_vec(&page) else {
        let status = Status::internal("failed to write JSON");
        return (connect::failed(&status), None);
    };
    let mut response = Response::new(Bytes::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (response, Some(place))
}

/// Answers [`RENDER_PATH`].
pub(crate) async fn single(
    of: &Pyroscope,
    caller: &Caller,
    pairs: Vec<(String, String)>,
) -> Rendered {
    rendered(of.single(caller, &Parameters(pairs)).await)
}

/// Answers [`RENDER_DIFF_PATH`].
pub(crate) async fn diff(
    of: &Pyroscope,
    caller: &Caller,
    pairs: Vec<(String, String)>,
) -> Rendered {
    rendered(of.diff_page(caller, &Parameters(pairs)).await)
}

impl Pyroscope {
    fn query(&self, text: Option<&str>) -> Result<(ProfileType, Selection), Status> {
        let selection = Selection::parse(text.unwrap_or_default())?;
        Ok((selection.profile_type()?, selection))
    }

    async fn single(
        &self,
        caller: &Caller,
        asked: &Parameters,
    ) -> Result<(Page, ResponseSlot), Status> {
        if !matches!(asked.get(&["format"]), None | Some("" | "json")) {
            return Err(Status::unimplemented(
                "this collector renders JSON: use format=json",
            ));
        }
        let (of, selection) = self.query(asked.get(&["query"]))?;
        let now = self.queries.now_unix_ns();
        let range = agent::TimeRange {
            start_unix_ns: asked.time(&["from"], now)?,
            end_unix_ns: asked.time(&["until"], now)?,
        };
        crate::query::check(Some(range))?;
        let wanted = Wanted {
            of: of.clone(),
            selection: selection.clone(),
            range,
            filters: Vec::new(),
            call_site: Vec::new(),
            go_pgo: None,
            is_none: false,
            nodes: nodes(asked.nodes()?, self.queries.nodes())?,
        };
        let mut place = self.queries.response_slot()?;
        let how = (Ask::Profile, self.queries.nodes(), self.queries.lines());
        let asking_of = self.of_type(&of)?;
        let made = asking_of.ask(caller, how, move |asking| {
            let (profile, range) = asking.merged(&wanted)?;
            let found = asking.flame(&profile, wanted.nodes)?;
            let series = Asked {
                of: of.clone(),
                selection,
                group_by: Vec::new(),
                filters: Vec::new(),
            };
            let (start_time, duration_delta, samples) =
                asking.timeline(&series, range, TIMELINE_STEPS)?;
            place.hold(levels_bytes(&found))?;
            let page = Page {
                timeline: Some(Timeline {
                    start_time,
                    samples,
                    duration_delta,
                    watermarks: BTreeMap::new(),
                }),
                ..Page::of(found, &of, "single")
            };
            Ok::<_, Failed>((page, place))
        });
        made.await
    }

    async fn diff_page(
        &self,
        caller: &Caller,
        asked: &Parameters,
    ) -> Result<(Page, ResponseSlot), Status> {
        let max_nodes = asked.nodes()?;
        let now = self.queries.now_unix_ns();
        let side = |query: &str, from: &str, until: &str| {
            let (of, _) = self.query(asked.get(&[query]))?;
            let side = wire::SelectMergeStacktracesRequest {
                profile_type_id: of.id(),
                label_selector: asked.get(&[query]).unwrap_or_default().to_owned(),
                start: asked.time(&[from], now)? / MS,
                end: asked.time(&[until], now)? / MS,
                max_nodes,
                ..wire::SelectMergeStacktracesRequest::default()
            };
            Ok::<_, Status>((of, side))
        };
        let (of, left) = side("leftQuery", "leftFrom", "leftUntil")?;
        let (_, right) = side("rightQuery", "rightFrom", "rightUntil")?;
        let sides = wire::DiffRequest {
            left: Some(left),
            right: Some(right),
        };
        let (found, [left, right], place) = self.diff_of(caller, sides).await?;
        let page = Page {
            left_ticks: Some(left),
            right_ticks: Some(right),
            ..Page::of(found, &of, "double")
        };
        Ok((page, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_any_unit_and_from_now_back() {
        const NOW: i64 = 1_732_272_000_000_000_000;
        for text in [
            "1732272000",
            "1732272000000",
            "1732272000000000",
            "1732272000000000000",
            "now",
            "now-0s",
        ] {
            assert_eq!(time(text, NOW), Some(NOW), "{text}");
        }
        assert_eq!(time("now-1h", NOW), Some(NOW - 3_600_000_000_000));
        assert_eq!(time("now-99999999999999w", NOW), Some(0));
        for text in [
            "", "x", "now-", "now-1", "now-1y", "now+1h", "now--1h", "nowä",
        ] {
            assert_eq!(time(text, NOW), None, "{text}");
        }
    }
}
