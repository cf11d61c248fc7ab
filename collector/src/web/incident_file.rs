//! Incidents as files: `GET /api/incident.md?id=…`, `.html`; and their evidence:
//! `GET /api/evidence.FORMAT?id=…`.
//!
//! FORMAT is the same as for `profile.FORMAT` (`download.rs`). `id` is the number of the incident
//! or of the evidence at this collector; `baseline=1` returns the second profile of a comparison,
//! or what a pin's trigger captured.

use super::download::{File, cut, file, finished, format, named, too_large};
use crate::access::Caller;
use crate::incidents::limits::{PICTURES_BYTES_MAX, PICTURES_MAX};
use crate::incidents::{Incidents, Picture, html, markdown};
use crate::query::Queries;
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderValue,
};
use profile::formats::Format;
use profile::{CostBy, Costs, TopSort};
use std::sync::Arc;
use tonic::Status;

/// Functions that a bundle names for each profile.
const TOP: usize = 10;

#[derive(Debug, Default)]
struct Asked {
    id: u64,
    baseline: bool,
    group_by: Vec<String>,
}

fn parse(pairs: Vec<(String, String)>) -> Result<Asked, Status> {
    let mut asked = Asked::default();
    for (name, value) in pairs {
        match name.as_str() {
            "id" => {
                asked.id = value.parse().map_err(|_| {
                    Status::invalid_argument("failed to use `id`: expected a number")
                })?;
            }
            "baseline" => asked.baseline = value == "1",
            "group_by" => {
                let labels = value.split(',').filter(|label| !label.is_empty());
                asked.group_by.extend(labels.map(str::to_owned));
            }
            _ => {
                return Err(Status::invalid_argument(format!(
                    "unknown parameter `{name}`: use id, baseline or group_by"
                )));
            }
        }
    }
    match asked.id {
        0 => Err(Status::invalid_argument("`id` is missing, such as id=7")),
        _ => Ok(asked),
    }
}

/// Makes the file `name` of a piece of evidence.
///
/// # Errors
/// NOT_FOUND when there is none that the caller may see, or no such format.
pub(super) async fn evidence(
    (queries, incidents): (&Queries, &Incidents),
    caller: Arc<Caller>,
    name: &str,
    pairs: Vec<(String, String)>,
) -> Result<File, Status> {
    let format = format("evidence", name)?;
    let Asked {
        id,
        baseline,
        group_by,
    } = parse(pairs)?;
    let mut place = queries.response_slot()?;
    let made = incidents.make(caller, (id, baseline), move |about, profile, limits| {
        if profile.total().is_capped() {
            return Err(too_large().into());
        }
        let side = if baseline { "-baseline" } else { "" };
        let of = match about.incident {
            0 => "Snapshot".to_owned(),
            incident => format!("Incident {incident}"),
        };
        let title = format!("{of}: {}", about.title);
        let pieces = file(&profile, format, (title, &group_by[..]), limits)?;
        place.hold(pieces.iter().map(Bytes::len).sum())?;
        let of = of.to_lowercase().replace(' ', "-");
        let called = format!("{of}-evidence-{id}{side}");
        Ok((pieces, named(&called, &profile.info), place))
    });
    Ok(finished(format, made.await?))
}

/// Makes the file `name` of an incident.
///
/// # Errors
/// NOT_FOUND when there is none that the caller may see, or no such format.
pub(super) async fn incident(
    (queries, incidents): (&Queries, &Incidents),
    caller: Arc<Caller>,
    (name, page): (&str, &str),
    pairs: Vec<(String, String)>,
) -> Result<File, Status> {
    let id = parse(pairs)?.id;
    // Before anything is drawn for it.
    let mut place = queries.response_slot()?;
    let told = incidents.get(&caller, id).await?;
    let (content, kind, ending) = match name {
        "incident.md" => {
            let text = markdown(&told, page).into_bytes();
            place.hold(text.len())?;
            (text, "text/markdown; charset=utf-8", "md")
        }
        "incident.html" => {
            let (mut pictures, mut bytes) = (Vec::new(), 0);
            for evidence in told
                .entries
                .iter()
                .filter_map(|entry| entry.evidence.as_ref())
            {
                for (is_baseline, is_there) in [(false, true), (true, evidence.has_baseline)] {
                    let has_room = pictures.len() < PICTURES_MAX && bytes < PICTURES_BYTES_MAX;
                    if is_there && has_room {
                        let made = picture(incidents, &caller, (evidence.id, is_baseline)).await?;
                        bytes += made.svg.len();
                        place.hold(made.svg.len())?;
                        pictures.push(made);
                    }
                }
            }
            let page = html(&told, &pictures);
            place.hold(page.len())?;
            place.release(bytes);
            (page, "text/html; charset=utf-8", "html")
        }
        _ => {
            return Err(Status::not_found("use incident.md or incident.html"));
        }
    };
    let mut head = Response::new(());
    let headers = head.headers_mut();
    // So that a file that was interrupted in the middle does not look complete.
    headers.insert(CONTENT_LENGTH, HeaderValue::from(content.len()));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A page of its own: it is kept, not opened here.
    let policy = HeaderValue::from_static("default-src 'none'; sandbox");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    let called = format!("attachment; filename=\"fleetprof-incident-{id}.{ending}\"");
    if let Ok(called) = HeaderValue::from_str(&called) {
        headers.insert(CONTENT_DISPOSITION, called);
    }
    Ok(File {
        head,
        pieces: cut(content),
        place,
    })
}

async fn picture(
    incidents: &Incidents,
    caller: &Arc<Caller>,
    (id, is_baseline): (u64, bool),
) -> Result<Picture, Status> {
    let made = incidents.make(
        caller.clone(),
        (id, is_baseline),
        move |about, profile, limits| {
            let title = about.title.clone();
            let pieces = file(&profile, Format::Svg, (title, &[]), limits)?;
            let svg = pieces.concat();
            let whole = profile.total().weight.max(1) as f64;
            let top = Costs::of(&profile, CostBy::Function).into_top(TopSort::Own, TOP);
            let rows = top.rows.into_iter();
            Ok(Picture {
                id,
                side: match is_baseline {
                    true => "baseline",
                    false => "at the time",
                },
                svg,
                top: rows
                    .map(|row| (row.name, 100.0 * row.own.weight as f64 / whole))
                    .collect(),
            })
        },
    );
    made.await
}
