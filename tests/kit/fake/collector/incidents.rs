//! The incidents of a fake collector: each that is opened has number 17, and everything is kept.

use super::Fake;
use crate::fake::samples::{Answers, NOW_NS, S};
use proto::agent::TimeRange;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::incident_service_server::IncidentService;
use proto::collector::*;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// A range as seconds before now.
fn ago(range: Option<TimeRange>) -> String {
    let range = range.unwrap_or_default();
    let seconds = |unix_ns: i64| (NOW_NS - unix_ns) / S;
    let end = match range.end_unix_ns {
        0 => 0,
        end => seconds(end),
    };
    format!("{}..{end}", seconds(range.start_unix_ns))
}

/// A selection as text.
pub(super) fn selected(of: Option<Selection>) -> String {
    let of = of.unwrap_or_default();
    format!("`{}` {}", of.selector, ago(of.range))
}

#[tonic::async_trait]
impl IncidentService for Fake {
    type ProfileStream = Answers<EvidenceProfileResponse>;

    async fn open(
        &self,
        request: Request<OpenIncidentRequest>,
    ) -> Result<Response<OpenIncidentResponse>, Status> {
        let OpenIncidentRequest { title, labels } = request.into_inner();
        let labels: BTreeMap<_, _> = labels.iter().collect();
        self.admit("open_incident", format!("`{title}` {labels:?}"))
            .await?;
        let incident = Incident {
            id: 17,
            title,
            state: IncidentState::Open.into(),
            ..Incident::default()
        };
        Ok(Response::new(OpenIncidentResponse {
            incident: Some(incident),
        }))
    }

    async fn list(
        &self,
        _: Request<ListIncidentsRequest>,
    ) -> Result<Response<ListIncidentsResponse>, Status> {
        self.admit("incidents", String::new()).await?;
        Ok(Response::new(Default::default()))
    }

    async fn get(
        &self,
        request: Request<GetIncidentRequest>,
    ) -> Result<Response<GetIncidentResponse>, Status> {
        let id = request.into_inner().id;
        self.admit("incident", id.to_string()).await?;
        Err(Status::not_found(format!("there is no incident {id}")))
    }

    async fn add_entry(
        &self,
        request: Request<AddIncidentEntryRequest>,
    ) -> Result<Response<AddIncidentEntryResponse>, Status> {
        let request = request.into_inner();
        let what = match request.evidence {
            None => "note".to_owned(),
            Some(Evidence::View(of)) => format!("view {}", selected(Some(of))),
            Some(Evidence::Diff(of)) => {
                format!("diff {} {}", selected(of.before), selected(of.after))
            }
            Some(Evidence::Pin(id)) => format!("pin {id}"),
            Some(Evidence::Capture(id)) => format!("capture {id}"),
        };
        let details = format!("{} {what} `{}`", request.incident, request.text);
        self.admit("add_entry", details).await?;
        let evidence = IncidentEvidence {
            samples: 1200,
            bytes: 90_000,
            ..IncidentEvidence::default()
        };
        Ok(Response::new(AddIncidentEntryResponse {
            entry: Some(IncidentEntry {
                evidence: Some(evidence),
                ..IncidentEntry::default()
            }),
        }))
    }

    async fn profile(
        &self,
        _: Request<EvidenceProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        self.admit("evidence", String::new()).await?;
        Err(Status::not_found("there is no evidence"))
    }

    async fn set_state(
        &self,
        request: Request<SetIncidentStateRequest>,
    ) -> Result<Response<SetIncidentStateResponse>, Status> {
        let SetIncidentStateRequest { id, state, .. } = request.into_inner();
        self.admit("set_state", id.to_string()).await?;
        let incident = Incident {
            id,
            state,
            ..Incident::default()
        };
        Ok(Response::new(SetIncidentStateResponse {
            incident: Some(incident),
        }))
    }

    async fn delete(
        &self,
        request: Request<DeleteIncidentRequest>,
    ) -> Result<Response<DeleteIncidentResponse>, Status> {
        let id = request.into_inner().id;
        self.admit("delete_incident", id.to_string()).await?;
        Ok(Response::new(Default::default()))
    }
}
