//! Copies evidence into files of its own: profiles of a selection, pins and captures.

use super::evidence;
use super::limits::{EVIDENCE_MAX, HOSTS_MAX};
use super::{Inner, NO_INCIDENT, Opened};
use crate::access::Caller;
use crate::control::is_for_parts;
use crate::evidence::{KeepError, ProfileKind};
use crate::query::Selected;
use crate::store::QueryResult;
use profile::text::with_causes;
use profile::{Profile, key};
use proto::Chunks;
use proto::agent::TimeRange;
use proto::collector::add_incident_entry_request::Evidence as Asked;
use proto::collector::{IncidentEntryKind, IncidentEvidence, PinProfileRequest, Selection};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use tonic::Status;

/// Evidence that is on disk.
pub(super) struct Kept {
    pub evidence: IncidentEvidence,
    /// Hosts with samples in it.
    pub hosts: Vec<String>,
    /// When it was.
    pub at: i64,
}

/// Profiles that are to be kept.
struct Found {
    about: IncidentEvidence,
    first: Profile,
    second: Option<Profile>,
}

/// Labels that profiles keep: who it was.
const LABELS: [&str; 2] = [key::HOST, "unit"];

impl Inner {
    /// Copies what is asked for.
    pub(super) async fn keep(
        &self,
        caller: &Arc<Caller>,
        incident: u64,
        asked: Asked,
    ) -> Result<Kept, Status> {
        let Ok(_copying) = self.copying.acquire().await else {
            return Err(Status::unavailable("the collector is shutting down"));
        };
        let opened = self.open().await?.clone();
        self.has_room(&opened, incident)?;
        let mut found = match asked {
            Asked::View(selection) => self.view(caller, selection).await?,
            Asked::Diff(diff) => {
                let (Some(before), Some(after)) = (diff.before, diff.after) else {
                    return Err(Status::invalid_argument(
                        "failed to keep the comparison: it needs both sides",
                    ));
                };
                let before = self.view(caller, before).await?;
                let mut after = self.view(caller, after).await?;
                // Who may see both sides may see all of it.
                if before.about.selector != after.about.selector && caller.scope.is_some() {
                    return Err(Status::invalid_argument(
                        "failed to keep the comparison: with a scope both sides need the same \
                         selector",
                    ));
                }
                after.about.kind = IncidentEntryKind::Diff as i32;
                after.about.baseline = before.about.range;
                after.about.title = match before.about.selector == after.about.selector {
                    true => after.about.selector.clone(),
                    false => format!("{} / {}", before.about.selector, after.about.selector),
                };
                if before.about.selector != after.about.selector {
                    // Nobody with a scope has both.
                    after.about.selector = String::new();
                }
                after.second = Some(before.first);
                after
            }
            Asked::Pin(id) => self.pin(caller, id).await?,
            Asked::Capture(id) => self.capture(caller, id).await?,
        };
        found.about.incident = incident;
        found.about.by = caller.name.clone();
        found.about.added_unix_ns = self.clock.now_unix_ns();
        found.about.samples = found.first.total().count;
        let (most, most_of_one) = self.options.bytes;
        let written = spawn_blocking(move || {
            let kept = write(&opened, found)?;
            let of_one: u64 = match incident {
                NO_INCIDENT => 0,
                incident => own(&opened, incident).iter().map(|one| one.bytes).sum(),
            };
            let (_, all) = opened.files.size();
            let sums = [
                (all, most, "incidents.disk_mib"),
                (of_one, most_of_one, "incidents.incident_mib"),
            ];
            if let Some((bytes, most, key)) = sums.into_iter().find(|(sum, most, _)| sum > most) {
                opened.files.remove(kept.evidence.id)?;
                return Err(KeepError::TooLarge { bytes, most, key });
            }
            Ok(kept)
        })
        .await;
        let written = written.map_err(|_| Status::internal("the call failed in the collector"))?;
        let kept = written.map_err(|error| match &error {
            KeepError::TooLarge { bytes, most, key } => Status::resource_exhausted(format!(
                "failed to keep the evidence: with it there are at least {bytes} bytes, more than \
                 the limit of {most} (`{key}`)\nuse a shorter range or fewer hosts"
            )),
            KeepError::Write(_) => {
                self.metrics.incidents_failed.inc();
                Status::unavailable(format!(
                    "failed to keep the evidence: {}\ncheck the disk of the collector's data_dir",
                    with_causes(&error)
                ))
            }
        })?;
        self.metrics.incident_evidence.inc();
        Ok(kept)
    }

    /// Nothing is removed to make room: evidence is kept until somebody deletes it.
    fn has_room(&self, opened: &Opened, incident: u64) -> Result<(), Status> {
        let (most, most_of_one) = self.options.bytes;
        let (_, all) = opened.files.size();
        // Snapshots have nothing in common but the disk.
        let own = match incident {
            NO_INCIDENT => Vec::new(),
            incident => own(opened, incident),
        };
        let bytes: u64 = own.iter().map(|one| one.bytes).sum();
        let (what, fix) = if all >= most {
            (
                "all incidents and snapshots",
                "delete an incident or a snapshot, or raise `incidents.disk_mib`",
            )
        } else if bytes >= most_of_one {
            (
                "the incident",
                "open another incident, or raise `incidents.incident_mib`",
            )
        } else if own.len() >= EVIDENCE_MAX {
            ("the incident", "open another incident")
        } else {
            return Ok(());
        };
        Err(Status::resource_exhausted(format!(
            "failed to keep the evidence: there is no room for more in {what}\n{fix}"
        )))
    }

    async fn view(&self, caller: &Arc<Caller>, selection: Selection) -> Result<Found, Status> {
        let selected = Selected::new(Some(selection))?;
        let query = selected.query(&LABELS.map(str::to_owned))?;
        let selector = match &caller.scope {
            None => selected.selector.clone(),
            Some(scope) => scope
                .and(&selected.selector)
                .map_err(|error| Status::invalid_argument(error.to_string()))?,
        };
        let queries = &self.sources.queries;
        let made = queries.profile(caller, &selected, query, 0, |found, _| Ok(found));
        let QueryResult { data, quality } = made.await?;
        if data.total().count == 0 {
            return Err(Status::failed_precondition(
                "failed to keep the evidence: there are no samples of this selection in this time",
            ));
        }
        let selector = selector.to_string();
        Ok(Found {
            about: IncidentEvidence {
                kind: IncidentEntryKind::View as i32,
                title: selector.clone(),
                selector,
                range: Some(TimeRange {
                    start_unix_ns: quality.covered.start_unix_ns,
                    end_unix_ns: quality.covered.end_unix_ns,
                }),
                ..IncidentEvidence::default()
            },
            first: data,
            second: None,
        })
    }

    async fn pin(&self, caller: &Arc<Caller>, id: u64) -> Result<Found, Status> {
        let all = Caller::local();
        if caller.scope.is_some() {
            return Err(Status::permission_denied(
                "failed to keep the pin: it is of a complete host, and your login has a scope",
            ));
        }
        let asked = |captured| PinProfileRequest {
            id,
            captured,
            group_by: vec!["*".to_owned()],
            times: true,
            ..PinProfileRequest::default()
        };
        let pins = &self.sources.pins;
        let first = pins
            .make(all.clone(), asked(false), |profile, _| Ok(profile))
            .await?;
        // Few have one.
        let second = pins.make(all, asked(true), |profile, _| Ok(profile)).await;
        Ok(Found {
            about: IncidentEvidence {
                kind: IncidentEntryKind::Pin as i32,
                title: format!("pin {id}"),
                range: Some(range_of(&first)),
                ..IncidentEvidence::default()
            },
            first,
            second: second.ok(),
        })
    }

    async fn capture(&self, caller: &Arc<Caller>, id: u64) -> Result<Found, Status> {
        let control = &self.sources.control;
        let part = (id, ProfileKind::Captured);
        let made = control.kept(part, caller.clone(), |kept, profile, _| Ok((kept, profile)));
        let (kept, first) = made.await?;
        let for_parts = is_for_parts(&kept);
        // With the scope of who captured.
        let selector = kept.selection;
        Ok(Found {
            about: IncidentEvidence {
                kind: IncidentEntryKind::Capture as i32,
                title: format!("capture {id} of {selector}"),
                selector,
                for_parts,
                range: Some(range_of(&first)),
                ..IncidentEvidence::default()
            },
            first,
            second: None,
        })
    }
}

/// Evidence of an incident.
pub(super) fn own(opened: &Opened, incident: u64) -> Vec<IncidentEvidence> {
    let (own, _) = opened
        .files
        .list(usize::MAX, |evidence| evidence.incident == incident);
    own
}

fn range_of(profile: &Profile) -> TimeRange {
    let start = profile.info.start_unix_ns;
    let length = i64::try_from(profile.info.duration_ns).unwrap_or(i64::MAX);
    TimeRange {
        start_unix_ns: start,
        end_unix_ns: start.saturating_add(length),
    }
}

fn write(opened: &Opened, found: Found) -> Result<Kept, KeepError> {
    let at = found.about.range.map_or(0, |range| range.start_unix_ns);
    let mut upload = opened.files.start(found.about)?;
    let sides = [
        (ProfileKind::Minutes, Some(&found.first)),
        (ProfileKind::Captured, found.second.as_ref()),
    ];
    for (part, profile) in sides {
        for chunk in profile.map(Chunks::new).into_iter().flatten() {
            upload.push(part, &chunk)?;
        }
    }
    let id = upload.finish()?;
    let evidence = opened.files.get(id).unwrap_or_default();
    Ok(Kept {
        evidence,
        hosts: hosts(&found.first),
        at,
    })
}

fn hosts(profile: &Profile) -> Vec<String> {
    let mut hosts = BTreeSet::new();
    for sample in profile.samples.keys() {
        let labels = profile.dict.labels(sample.labels);
        for (name, value) in labels {
            if name == key::HOST && hosts.len() < HOSTS_MAX {
                hosts.insert(value.to_owned());
            }
        }
    }
    hosts.into_iter().collect()
}

/// What of a piece of evidence a caller may have.
pub(super) fn seen(caller: &Caller, evidence: IncidentEvidence) -> Option<IncidentEvidence> {
    evidence::is_seen(caller, &evidence).then_some(evidence)
}
