//! The calls: Add, List and Delete.

use super::check::checked;
use super::limits::{ANNOTATIONS_MAX, LIST_BYTES_MAX, LIST_DEFAULT};
use super::{Annotations, DEPLOY, Inner, NOTE};
use crate::access::Caller;
use crate::audit::DONE;
use prost::Message as _;
use proto::collector::annotation_service_server::AnnotationService;
use proto::collector::{
    AddAnnotationRequest, AddAnnotationResponse, Annotation, DeleteAnnotationRequest,
    DeleteAnnotationResponse, ListAnnotationsRequest, ListAnnotationsResponse,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

impl Annotations {
    /// Keeps what somebody at `peer` adds. Returns it as it is kept, and whether it was there
    /// already.
    ///
    /// # Errors
    /// As the call `Add`.
    pub async fn add(
        &self,
        caller: &Caller,
        peer: String,
        asked: Annotation,
    ) -> Result<(Annotation, bool), Status> {
        let inner = &self.0;
        inner.open().await?;
        let now = inner.clock.now_unix_ns();
        let new = checked(asked, caller, (now, inner.options.age_ns))?;
        let event = caller.event(peer, "annotation-add");
        let event = event
            .with("text", new.text.as_str())
            .with("kind", new.kind.as_str());
        inner.audit.record(event.ended(DONE)).await?;
        let added = self.blocking(move |inner, book| {
            let added = book.add(&new);
            if matches!(added, Ok((_, false))) {
                inner.metrics.annotations_told.inc();
                // One may be too many now.
                inner.prune();
            }
            added
        });
        added.await
    }

    /// What somebody may see of what is asked for.
    ///
    /// # Errors
    /// As the call `List`.
    pub async fn list(
        &self,
        caller: Arc<Caller>,
        asked: ListAnnotationsRequest,
    ) -> Result<ListAnnotationsResponse, Status> {
        if !["", DEPLOY, NOTE].contains(&asked.kind.as_str()) {
            return Err(Status::invalid_argument(format!(
                "failed to use kind `{}`: expected `{DEPLOY}` or `{NOTE}`",
                asked.kind
            )));
        }
        self.0.open().await?;
        let listed = self.blocking(move |_, book| {
            let limit = match asked.limit {
                0 => LIST_DEFAULT,
                limit => (limit as usize).min(ANNOTATIONS_MAX),
            };
            let range = asked.range.map(|range| {
                let end = match range.end_unix_ns {
                    0 => i64::MAX,
                    end => end,
                };
                (range.start_unix_ns, end)
            });
            let (mut annotations, mut left_out, mut bytes) = (Vec::new(), 0, 0);
            book.each(range, caller.scope.as_ref(), |annotation| {
                if !asked.kind.is_empty() && asked.kind != annotation.kind {
                    return;
                }
                bytes += annotation.encoded_len() + 8;
                if annotations.len() < limit && bytes <= LIST_BYTES_MAX {
                    annotations.push(annotation);
                } else {
                    left_out += 1;
                }
            })?;
            Ok(ListAnnotationsResponse {
                annotations,
                left_out,
            })
        });
        listed.await
    }

    async fn delete_one(&self, caller: &Caller, peer: String, id: u64) -> Result<(), Status> {
        self.0.open().await?;
        let none = || Status::not_found(format!("there is no annotation {id}"));
        let scope = caller.scope.clone();
        let found = self.blocking(move |_, book| book.find(id, scope.as_ref()));
        let found = found.await?.ok_or_else(none)?;
        if found.is_part {
            return Err(Status::permission_denied(format!(
                "failed to delete annotation {id}: the deployment was also seen on hosts outside \
                 the scope of your login"
            )));
        }
        let found = found.annotation;
        let event = caller
            .event(peer, "annotation-delete")
            .with("annotation", id);
        let event = event.with("text", found.text.as_str());
        self.0.audit.record(event.ended(DONE)).await?;
        let removed = self.blocking(move |inner, book| {
            let removed = book.remove(id);
            inner.measure(book);
            removed
        });
        match removed.await? {
            true => Ok(()),
            false => Err(none()),
        }
    }

    /// Work with the database, which was opened.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner, &super::Book) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let opened = inner.opened.get();
            let opened = opened.ok_or_else(|| Status::unavailable("they are not open yet"))?;
            work(&inner, &opened.book).map_err(|error| {
                inner.metrics.annotations_failed.inc();
                Status::unavailable(format!(
                    "failed to use the annotation database: {error}\ncheck the disk of the \
                     collector's data_dir"
                ))
            })
        });
        let failed = |_| Status::internal("the call failed in the collector");
        done.await.map_err(failed)?
    }
}

fn peer<T>(request: &Request<T>) -> String {
    let peer = request.remote_addr().map(|peer| peer.to_string());
    peer.unwrap_or_default()
}

#[tonic::async_trait]
impl AnnotationService for Annotations {
    async fn add(
        &self,
        request: Request<AddAnnotationRequest>,
    ) -> Result<Response<AddAnnotationResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        let asked = request.into_inner().annotation.unwrap_or_default();
        let (annotation, repeated) = Annotations::add(self, &caller, peer, asked).await?;
        Ok(Response::new(AddAnnotationResponse {
            annotation: Some(annotation),
            repeated,
        }))
    }

    async fn list(
        &self,
        request: Request<ListAnnotationsRequest>,
    ) -> Result<Response<ListAnnotationsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let listed = Annotations::list(self, caller, request.into_inner()).await?;
        Ok(Response::new(listed))
    }

    async fn delete(
        &self,
        request: Request<DeleteAnnotationRequest>,
    ) -> Result<Response<DeleteAnnotationResponse>, Status> {
        let (caller, peer) = (Caller::of(request.extensions())?, peer(&request));
        self.delete_one(&caller, peer, request.into_inner().id)
            .await?;
        Ok(Response::new(DeleteAnnotationResponse {}))
    }
}
