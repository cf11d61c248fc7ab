//! The calls of saved views: Save, List and Delete. What a snapshot keeps is evidence of no
//! incident.

use super::keep::{own, seen};
use super::limits::{LIST_BYTES_MAX, VIEWS_MAX};
use super::shelf::Shelved;
use super::{Incidents, NO_INCIDENT, Opened, check, peer};
use crate::access::{Caller, Role};
use crate::audit::DONE;
use prost::Message as _;
use proto::collector as wire;
use proto::collector::SavedView;
use proto::collector::add_incident_entry_request::Evidence;
use proto::collector::save_view_request::Snapshot;
use proto::collector::view_service_server::ViewService;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Whether somebody sees a view. Its address may name what is outside of their scope, unless it
/// was saved with the same one.
fn is_shown(caller: &Caller, view: &Shelved) -> bool {
    let scope = caller.scope.as_ref();
    scope.is_none_or(|scope| scope.text == view.scope)
}

fn shown(caller: &Caller, opened: &Opened, view: Shelved) -> SavedView {
    let kept = opened.files.get(view.evidence);
    SavedView {
        id: view.id,
        name: view.name,
        address: view.address,
        by: view.by,
        saved_unix_ns: view.saved,
        snapshot: kept.and_then(|evidence| seen(caller, evidence)),
    }
}

/// Removes snapshots that no view leads to: the collector ended after it had kept one, and before
/// it saved the view.
pub(super) fn remove_lost_snapshots(opened: &Opened) -> rusqlite::Result<()> {
    let views = opened.book.shelved()?;
    for kept in own(opened, NO_INCIDENT) {
        if views.iter().all(|view| view.evidence != kept.id)
            && let Err(error) = opened.files.remove(kept.id)
        {
            tracing::warn!(id = kept.id, %error, "failed to delete a snapshot without a view");
        }
    }
    Ok(())
}

impl Incidents {
    async fn save_one(
        &self,
        caller: &Arc<Caller>,
        peer: String,
        asked: wire::SaveViewRequest,
    ) -> Result<SavedView, Status> {
        let inner = &self.0;
        let name = check::name(&asked.name)?;
        let address = check::address(&asked.address)?;
        if address.is_empty() {
            return Err(Status::invalid_argument(
                "failed to save the view: `address` is missing",
            ));
        }
        let count = inner.blocking(|opened| opened.book.count_shelved()).await?;
        if count >= VIEWS_MAX {
            return Err(Status::resource_exhausted(format!(
                "failed to save the view: there are {count}, which is the limit\ndelete one"
            )));
        }
        let event = caller.event(peer, "view-save");
        let event = event.with("name", name.as_str());
        inner.audit.record(event.ended(DONE)).await?;
        let evidence = match asked.snapshot {
            None => 0,
            Some(snapshot) => {
                let asked = match snapshot {
                    Snapshot::View(of) => Evidence::View(of),
                    Snapshot::Diff(of) => Evidence::Diff(of),
                };
                inner.keep(caller, NO_INCIDENT, asked).await?.evidence.id
            }
        };
        let view = Shelved {
            id: 0,
            name,
            address,
            by: caller.name.clone(),
            saved: inner.clock.now_unix_ns(),
            scope: caller
                .scope
                .as_ref()
                .map_or_else(String::new, |scope| scope.text.clone()),
            evidence,
        };
        let caller = caller.clone();
        let save = move |opened: &Opened| match opened.book.shelve(&view) {
            Ok(id) => Ok(shown(&caller, opened, Shelved { id, ..view })),
            Err(error) => {
                // Nothing leads to it.
                let _ = opened.files.remove(view.evidence);
                Err(error)
            }
        };
        let saved = inner.blocking(save).await?;
        inner.measure().await;
        Ok(saved)
    }

    async fn delete_view(&self, caller: &Caller, peer: String, id: u64) -> Result<(), Status> {
        let inner = &self.0;
        let none = || Status::not_found(format!("there is no view {id}"));
        let found = inner.blocking(move |opened| opened.book.find_shelved(id));
        let view = found.await?.filter(|view| is_shown(caller, view));
        let view = view.ok_or_else(none)?;
        if caller.role < Role::Admin && view.by != caller.name {
            return Err(Status::permission_denied(format!(
                "failed to delete view {id}: `{}` saved it\nask them, or an administrator of the \
                 collector",
                view.by
            )));
        }
        let event = caller.event(peer, "view-delete");
        let event = event.with("view", id).with("name", view.name.as_str());
        inner.audit.record(event.ended(DONE)).await?;
        let delete = move |opened: &Opened| {
            // Its file first: one that stays without its view would never be found.
            if view.evidence != 0 {
                opened.remove_file(view.evidence)?;
            }
            Ok(opened.book.unshelve(id)?)
        };
        let gone = inner.changing(delete).await?;
        inner.measure().await;
        match gone {
            true => Ok(()),
            false => Err(none()),
        }
    }
}

#[tonic::async_trait]
impl ViewService for Incidents {
    async fn save(
        &self,
        request: Request<wire::SaveViewRequest>,
    ) -> Result<Response<wire::SaveViewResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let peer = peer(&request);
        let view = self.save_one(&caller, peer, request.into_inner()).await?;
        Ok(Response::new(wire::SaveViewResponse { view: Some(view) }))
    }

    async fn list(
        &self,
        request: Request<wire::ListViewsRequest>,
    ) -> Result<Response<wire::ListViewsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let list = move |opened: &Opened| {
            let (mut answer, mut bytes) = (wire::ListViewsResponse::default(), 0);
            for view in opened.book.shelved()? {
                if !is_shown(&caller, &view) {
                    continue;
                }
                let view = shown(&caller, opened, view);
                bytes += view.encoded_len() + 8;
                match bytes <= LIST_BYTES_MAX {
                    true => answer.views.push(view),
                    false => answer.left_out += 1,
                }
            }
            Ok(answer)
        };
        Ok(Response::new(self.0.blocking(list).await?))
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteViewRequest>,
    ) -> Result<Response<wire::DeleteViewResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let peer = peer(&request);
        let id = request.into_inner().id;
        self.delete_view(&caller, peer, id).await?;
        Ok(Response::new(wire::DeleteViewResponse {}))
    }
}
