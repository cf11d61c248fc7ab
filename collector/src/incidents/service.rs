//! The calls: Open, List, Get, AddEntry, Profile, SetState and Delete.

use super::book::NewEntry;
use super::keep::{Kept, own, seen};
use super::limits::{LIST_BYTES_MAX, LIST_DEFAULT, LIST_MAX};
use super::report::{Told, markdown};
use super::unasked::state_word;
use super::{Incidents, Inner, NO_INCIDENT, check, peer};
use crate::access::Caller;
use crate::audit::DONE;
use crate::evidence::{ProfileKind, in_part, refused, send};
use crate::query::{ANSWER_TIMEOUT, Failed, profile_bytes};
use crate::store::Limits;
use profile::Profile;
use prost::Message as _;
use proto::Chunks;
use proto::collector as wire;
use proto::collector::incident_service_server::IncidentService;
use proto::collector::{
    Incident, IncidentEntry, IncidentEntryKind, IncidentEvidence, IncidentState,
};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

impl Incidents {
    /// An incident with its timeline.
    ///
    /// # Errors
    /// As the call `Get`.
    pub async fn get(&self, caller: &Caller, id: u64) -> Result<Told, Status> {
        let inner = &self.0;
        let work = move |opened: &super::Opened| {
            let Some(incident) = opened.book.find(id)? else {
                return Ok(None);
            };
            Ok(Some((incident, opened.book.entries(id)?, own(opened, id))))
        };
        let found = inner.blocking(work).await?;
        let found = found.filter(|(of, ..)| check::is_seen(caller.scope.as_ref(), &of.labels));
        let (mut incident, entries, evidence) = found.ok_or_else(|| unknown(id))?;
        incident.bytes = evidence.iter().map(|one| one.bytes).sum();
        if caller.scope.is_some() {
            (incident.hosts, incident.bytes) = (Vec::new(), 0);
        }
        let is_scoped = caller.scope.is_some();
        let entries = entries.into_iter().map(|(mut entry, number)| {
            let kept = evidence.iter().find(|one| one.id == number).cloned();
            entry.evidence = kept.and_then(|one| seen(caller, one));
            if is_scoped && entry.evidence.is_none() {
                // An address may name what is outside of the scope, as may words about evidence
                // that is.
                entry.address.clear();
                // An alert may tell of other groups of its rule, and a pin of other hosts.
                let tells_of_others = matches!(
                    entry.kind(),
                    IncidentEntryKind::Alert | IncidentEntryKind::Pin
                );
                if number != 0 || tells_of_others {
                    entry.text.clear();
                }
            }
            entry
        });
        Ok(Told {
            entries: entries.collect(),
            incident,
        })
    }

    /// Makes something of a profile of a piece of evidence, in the place of a query.
    ///
    /// # Errors
    /// NOT_FOUND where there is none that the caller may see.
    pub(crate) async fn make<T: Send + 'static>(
        &self,
        caller: Arc<Caller>,
        (id, is_baseline): (u64, bool),
        make: impl FnOnce(IncidentEvidence, Profile, &Limits) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Status> {
        let opened = self.0.open().await?.clone();
        let none = || Status::not_found(format!("there is no evidence {id}, or not this side"));
        let evidence = opened.files.get(id).ok_or_else(none)?;
        if evidence.incident != NO_INCIDENT {
            self.get(&caller, evidence.incident).await?;
        }
        let evidence = seen(&caller, evidence).ok_or_else(none)?;
        let part = match is_baseline {
            true => ProfileKind::Captured,
            false => ProfileKind::Minutes,
        };
        let work = move |limits: &Limits| {
            let gone = || limits.cancel.is_cancelled() || Instant::now() >= limits.deadline;
            let profile = opened.files.read(id, part, limits.memory_bytes, gone);
            let mut profile = profile.map_err(refused)?;
            if caller.sees_parts_of_hosts() {
                profile = in_part(profile);
            }
            make(evidence, profile, limits)
        };
        self.0.sources.queries.work(work).await
    }

    async fn open_one(
        &self,
        caller: &Caller,
        peer: String,
        asked: wire::OpenIncidentRequest,
    ) -> Result<Incident, Status> {
        let inner = &self.0;
        let title = check::title(&asked.title)?;
        check::labels(&asked.labels, caller)?;
        let most = inner.options.count;
        let count = inner.blocking(|opened| opened.book.count()).await?;
        if count >= most {
            return Err(Status::resource_exhausted(format!(
                "failed to open the incident: there are {count}\ndelete one, or raise \
                 `incidents.count_max`"
            )));
        }
        let event = caller.event(peer, "incident-open");
        let event = event.with("title", title.as_str());
        inner.audit.record(event.ended(DONE)).await?;
        let now = inner.clock.now_unix_ns();
        let new = Incident {
            title,
            opened_unix_ns: now,
            opened_by: caller.name.clone(),
            labels: asked.labels,
            ..Incident::default()
        };
        let first = NewEntry {
            at: now,
            kind: IncidentEntryKind::State,
            by: caller.name.clone(),
            text: "opened".to_owned(),
            address: String::new(),
            evidence: 0,
        };
        let add = move |opened: &super::Opened| {
            let id = opened.book.add(&new, None, &first, now)?;
            opened.book.find(id)
        };
        let added = inner.blocking(add).await?;
        inner.metrics.incidents_opened.inc();
        inner.measure().await;
        added.ok_or_else(|| Status::internal("the incident is not there"))
    }

    async fn add(
        &self,
        caller: &Arc<Caller>,
        peer: String,
        asked: wire::AddIncidentEntryRequest,
    ) -> Result<IncidentEntry, Status> {
        let (inner, incident) = (&self.0, asked.incident);
        // Only who sees it may add to it.
        self.get(caller, incident).await?;
        let text = check::text(&asked.text, asked.evidence.is_none())?;
        let address = check::address(&asked.address)?;
        let event = caller.event(peer, "incident-add");
        let event = event.with("incident", incident);
        inner.audit.record(event.ended(DONE)).await?;
        let Some(evidence) = asked.evidence else {
            let note = NewEntry {
                at: inner.clock.now_unix_ns(),
                kind: IncidentEntryKind::Note,
                by: caller.name.clone(),
                text,
                address,
                evidence: 0,
            };
            let add = move |opened: &super::Opened| opened.book.entry(incident, &note, None, &[]);
            return inner.blocking(add).await?.ok_or_else(full);
        };
        let kept = inner.keep(caller, incident, evidence).await?;
        inner
            .attach(incident, kept, (caller.name.clone(), text, address))
            .await
    }

    async fn set(
        &self,
        caller: &Caller,
        peer: String,
        asked: wire::SetIncidentStateRequest,
    ) -> Result<Incident, Status> {
        let (inner, id, state) = (&self.0, asked.id, asked.state());
        if state == IncidentState::Unspecified {
            return Err(Status::invalid_argument(
                "failed to change the incident: `state` is missing",
            ));
        }
        let why = check::text(&asked.text, false)?;
        self.get(caller, id).await?;
        let word = state_word(state);
        let event = caller.event(peer, "incident-state");
        let event = event.with("incident", id).with("state", word);
        inner.audit.record(event.ended(DONE)).await?;
        let entry = NewEntry {
            at: inner.clock.now_unix_ns(),
            kind: IncidentEntryKind::State,
            by: caller.name.clone(),
            text: match why.as_str() {
                "" => word.to_owned(),
                why => format!("{word}: {why}"),
            },
            address: String::new(),
            evidence: 0,
        };
        let set = move |opened: &super::Opened| opened.book.set_state(id, state, &entry);
        match inner.blocking(set).await? {
            true => Ok(self.get(caller, id).await?.incident),
            false => Err(unknown(id)),
        }
    }

    async fn delete_one(&self, caller: &Caller, peer: String, id: u64) -> Result<(), Status> {
        let inner = &self.0;
        let Told { incident, .. } = self.get(caller, id).await?;
        let event = caller.event(peer, "incident-delete");
        let event = event.with("incident", id);
        let event = event.with("title", incident.title.as_str());
        inner.audit.record(event.ended(DONE)).await?;
        let removed = inner
            .changing(move |opened| {
                // Files first: one that stays without its incident would never be found.
                for evidence in own(opened, id) {
                    opened.remove_file(evidence.id)?;
                }
                Ok(opened.book.remove(id)?)
            })
            .await?;
        inner.measure().await;
        match removed {
            true => Ok(()),
            false => Err(unknown(id)),
        }
    }
}

impl Inner {
    /// Adds evidence that is on disk to the timeline, or removes it again.
    pub(super) async fn attach(
        &self,
        incident: u64,
        kept: Kept,
        (by, text, address): (String, String, String),
    ) -> Result<IncidentEntry, Status> {
        let id = kept.evidence.id;
        let entry = NewEntry {
            at: kept.at,
            kind: kept.evidence.kind(),
            by,
            text,
            address,
            evidence: id,
        };
        let hosts = kept.hosts;
        let add = move |opened: &super::Opened| {
            let added = opened.book.entry(incident, &entry, None, &hosts);
            if !matches!(added, Ok(Some(_))) {
                // Nothing leads to it.
                let _ = opened.files.remove(id);
            }
            added
        };
        let added = self.blocking(add).await?.ok_or_else(full)?;
        self.measure().await;
        Ok(IncidentEntry {
            evidence: Some(kept.evidence),
            ..added
        })
    }
}

fn unknown(id: u64) -> Status {
    Status::not_found(format!("there is no incident {id}"))
}

fn full() -> Status {
    Status::resource_exhausted(
        "failed to add to the incident: it has no room for more, or was deleted\nopen another \
         incident",
    )
}

#[tonic::async_trait]
impl IncidentService for Incidents {
    type ProfileStream = ReceiverStream<Result<wire::EvidenceProfileResponse, Status>>;

    async fn open(
        &self,
        request: Request<wire::OpenIncidentRequest>,
    ) -> Result<Response<wire::OpenIncidentResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        let incident = self.open_one(&caller, peer, request.into_inner()).await?;
        Ok(Response::new(wire::OpenIncidentResponse {
            incident: Some(incident),
        }))
    }

    async fn list(
        &self,
        request: Request<wire::ListIncidentsRequest>,
    ) -> Result<Response<wire::ListIncidentsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let limit = match asked.limit {
            0 => LIST_DEFAULT,
            limit => (limit as usize).min(LIST_MAX),
        };
        let listing = self.0.blocking(move |opened| {
            let (mut incidents, mut left_out, mut bytes) = (Vec::new(), 0, 0);
            opened.book.each(asked.open, |mut incident| {
                if check::is_seen(caller.scope.as_ref(), &incident.labels) {
                    if caller.scope.is_some() {
                        incident.hosts = Vec::new();
                    }
                    bytes += incident.encoded_len() + 8;
                    if incidents.len() < limit && bytes <= LIST_BYTES_MAX {
                        incidents.push(incident);
                    } else {
                        left_out += 1;
                    }
                }
            })?;
            Ok(wire::ListIncidentsResponse {
                incidents,
                left_out,
            })
        });
        Ok(Response::new(listing.await?))
    }

    async fn get(
        &self,
        request: Request<wire::GetIncidentRequest>,
    ) -> Result<Response<wire::GetIncidentResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let told = Incidents::get(self, &caller, asked.id).await?;
        let markdown = match asked.markdown {
            true => markdown(&told, &self.0.options.page),
            false => String::new(),
        };
        Ok(Response::new(wire::GetIncidentResponse {
            markdown,
            incident: Some(told.incident),
            entries: told.entries,
        }))
    }

    async fn add_entry(
        &self,
        request: Request<wire::AddIncidentEntryRequest>,
    ) -> Result<Response<wire::AddIncidentEntryResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        let entry = self.add(&caller, peer, request.into_inner()).await?;
        Ok(Response::new(wire::AddIncidentEntryResponse {
            entry: Some(entry),
        }))
    }

    async fn profile(
        &self,
        request: Request<wire::EvidenceProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let queries = self.0.sources.queries.clone();
        let mut place = queries.response_slot()?;
        let made = self.make(caller, (asked.id, asked.baseline), move |_, profile, _| {
            place.hold(profile_bytes(&profile))?;
            Ok((Chunks::new(profile), place))
        });
        let (chunks, place) = made.await?;
        let (tx, parts) = mpsc::channel(1);
        tokio::spawn(async move {
            let parts = chunks.map(|chunk| wire::EvidenceProfileResponse { chunk: Some(chunk) });
            let sending = timeout(ANSWER_TIMEOUT, send(parts, tx));
            if !matches!(sending.await, Ok(true)) {
                queries.count_stalled();
            }
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(parts)))
    }

    async fn set_state(
        &self,
        request: Request<wire::SetIncidentStateRequest>,
    ) -> Result<Response<wire::SetIncidentStateResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        let incident = self.set(&caller, peer, request.into_inner()).await?;
        Ok(Response::new(wire::SetIncidentStateResponse {
            incident: Some(incident),
        }))
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteIncidentRequest>,
    ) -> Result<Response<wire::DeleteIncidentResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        self.delete_one(&caller, peer, request.into_inner().id)
            .await?;
        Ok(Response::new(wire::DeleteIncidentResponse {}))
    }
}
