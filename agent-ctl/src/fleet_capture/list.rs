//! Captures over the fleet at a collector: lists running and past ones, and ends one.

use super::MESSAGE_BYTES_MAX;
use crate::capture_info::{self, target};
use crate::connection::{self, Route, Transport};
use crate::peer::{Connection, Peer};
use crate::terminal::{Out, Table, clean};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::{
    CancelFleetCaptureRequest, FleetCaptureInfo, FleetCaptureRequest, ListFleetCapturesRequest,
    ListFleetCapturesResponse,
};
use serde::Serialize;
use std::time::Duration;

/// A client of captures.
///
/// # Errors
/// When there is no connection.
pub async fn service(
    connection: &Connection,
    peer: &Peer,
) -> Result<(CaptureServiceClient<Transport>, Route)> {
    let (transport, route) = connection::open(connection, peer).await?;
    let service = CaptureServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Ok((service, route))
}

/// Ends a capture with what there is.
///
/// # Errors
/// When none of this id runs.
pub async fn cancel(connection: &Connection, peer: &Peer, id: u64) -> Result<()> {
    let (mut service, route) = service(connection, peer).await?;
    let call = service.cancel(CancelFleetCaptureRequest { id });
    route.answer("cancel the capture", call).await?;
    Ok(())
}

/// Captures that run, that ended and that are kept, or the one of a number.
///
/// # Errors
/// When the collector does not answer.
pub async fn listed(
    connection: &Connection,
    peer: &Peer,
    id: u64,
) -> Result<ListFleetCapturesResponse> {
    let (mut service, route) = service(connection, peer).await?;
    let request = ListFleetCapturesRequest {
        id,
        limit: u32::MAX,
    };
    route.answer("list captures", service.list(request)).await
}

/// Prints the captures, newest first.
///
/// # Errors
/// When the collector does not answer.
pub async fn print(out: &Out, connection: &Connection, peer: &Peer, json: bool) -> Result<()> {
    let ListFleetCapturesResponse { captures, left_out } = listed(connection, peer, 0).await?;
    if left_out > 0 {
        note!(
            "agent-ctl: {} older captures are not listed",
            units::count(left_out)
        );
    }
    if json {
        let rows: Vec<_> = captures.iter().map(Row::of).collect();
        return out.write_json(&rows);
    }
    if captures.is_empty() {
        note!("agent-ctl: the collector has no captures");
        return Ok(());
    }
    out.write(&table(&captures, &Clock::local()).show(out))
}

/// The same columns as those of an agent's captures, and what only a fleet has.
fn table(captures: &[FleetCaptureInfo], clock: &Clock) -> Table {
    let mut table = Table::new(&[
        ">ID",
        "STATE",
        "STARTED",
        ">DURATION",
        "EVENT",
        ">HOSTS",
        ">KEPT",
        "WHO",
        "TARGET",
    ]);
    for info in captures {
        let row = Row::of(info);
        let took = Duration::from_nanos(info.elapsed_ns);
        table.row([
            info.id.to_string(),
            row.state.to_owned(),
            clock.show(info.started_unix_ns),
            units::duration(took),
            row.event.to_owned(),
            format!("{}/{}", info.answered, info.asked),
            match info.kept {
                true => units::bytes(info.bytes),
                false => "-".to_owned(),
            },
            row.requester(),
            row.what(),
        ]);
    }
    table.sparing(&["WHO", "DURATION", "STARTED", "EVENT", "KEPT", "HOSTS"])
}

#[derive(Serialize)]
struct Row<'a> {
    id: u64,
    started: String,
    elapsed_s: f64,
    state: &'a str,
    ended_by: &'a str,
    selector: String,
    event: &'a str,
    duration_s: f64,
    who: &'a str,
    reason: &'a str,
    peer: &'a str,
    asked: u32,
    answered: u32,
    failed: u32,
    lost: u32,
    /// The collector has its profile.
    kept: bool,
    has_past: bool,
    bytes: u64,
}

impl<'a> Row<'a> {
    fn of(info: &'a FleetCaptureInfo) -> Row<'a> {
        const NONE: &FleetCaptureRequest = &FleetCaptureRequest {
            selector: String::new(),
            max_hosts: 0,
            capture: None,
            patience_ns: 0,
            host_ids: Vec::new(),
            stays: false,
        };
        let request = info.request.as_ref().unwrap_or(NONE);
        let capture = request.capture.as_ref();
        let event = capture.map_or("", |capture| capture.event.as_str());
        let matchers = capture.map_or(&[][..], |capture| &capture.matchers);
        let mut parts = vec![request.selector.clone()];
        if !matchers.is_empty() {
            parts.push(target(matchers));
        }
        parts.retain(|part| !part.is_empty());
        Row {
            id: info.id,
            started: rfc3339(info.started_unix_ns),
            elapsed_s: info.elapsed_ns as f64 / 1e9,
            state: match (info.running, info.ended_by.as_str()) {
                (true, _) => "running",
                (false, "") => "done",
                (false, _) => "ended",
            },
            ended_by: &info.ended_by,
            selector: parts.join(","),
            event: capture_info::event(event),
            duration_s: capture.map_or(0.0, |capture| capture.duration_ns as f64 / 1e9),
            who: capture.map_or("", |capture| &capture.who),
            reason: capture.map_or("", |capture| &capture.reason),
            peer: &info.peer,
            asked: info.asked,
            answered: info.answered,
            failed: info.failed,
            lost: info.lost,
            kept: info.kept,
            has_past: info.has_past,
            bytes: info.bytes,
        }
    }

    /// What was captured, why, and how it ended where it did not come to its end.
    fn what(&self) -> String {
        let why = match self.reason {
            "" => String::new(),
            reason => format!("for {}", clean(reason)),
        };
        let parts = [clean(&self.selector), why.into(), clean(self.ended_by)];
        let parts = parts.iter().filter(|part| !part.is_empty());
        parts.map(AsRef::as_ref).collect::<Vec<&str>>().join("; ")
    }

    fn requester(&self) -> String {
        match self.who.is_empty() {
            true => clean(self.peer).into_owned(),
            false => format!("{} ({})", clean(self.who), clean(self.peer)),
        }
    }
}
