//! The saved views of a fake collector: one, with a hostile name; everything is saved.

use super::Fake;
use super::incidents::selected;
use crate::fake::samples::{NOW_NS, S};
use proto::collector::save_view_request::Snapshot;
use proto::collector::view_service_server::ViewService;
use proto::collector::*;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl ViewService for Fake {
    async fn save(
        &self,
        request: Request<SaveViewRequest>,
    ) -> Result<Response<SaveViewResponse>, Status> {
        let request = request.into_inner();
        let kept = match request.snapshot {
            None => "nothing".to_owned(),
            Some(Snapshot::View(of)) => format!("view {}", selected(Some(of))),
            Some(Snapshot::Diff(of)) => {
                format!("diff {} {}", selected(of.before), selected(of.after))
            }
        };
        let details = format!("`{}` {} {kept}", request.name, request.address);
        self.admit("save_view", details).await?;
        let evidence = IncidentEvidence {
            samples: 1200,
            bytes: 90_000,
            ..IncidentEvidence::default()
        };
        let view = SavedView {
            id: 3,
            snapshot: (kept != "nothing").then_some(evidence),
            ..SavedView::default()
        };
        Ok(Response::new(SaveViewResponse { view: Some(view) }))
    }

    async fn list(
        &self,
        _: Request<ListViewsRequest>,
    ) -> Result<Response<ListViewsResponse>, Status> {
        self.admit("views", String::new()).await?;
        let view = SavedView {
            id: 3,
            name: "api\x1b[2J".into(),
            address: "#view=profile".into(),
            by: "anna".into(),
            saved_unix_ns: NOW_NS - 60 * S,
            snapshot: None,
        };
        let views = match self.behaviour.empty {
            true => Vec::new(),
            false => vec![view],
        };
        Ok(Response::new(ListViewsResponse { views, left_out: 0 }))
    }

    async fn delete(
        &self,
        request: Request<DeleteViewRequest>,
    ) -> Result<Response<DeleteViewResponse>, Status> {
        let id = request.into_inner().id;
        self.admit("delete_view", id.to_string()).await?;
        Ok(Response::new(DeleteViewResponse {}))
    }
}
