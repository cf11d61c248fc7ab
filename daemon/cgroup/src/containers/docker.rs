//! Queries Docker's engine and Podman's service, which use the same HTTP interface. From Podman's
//! own extensions only the pod is needed.

use super::answer::{self, ContainerAnswer};
use super::http::{self, HttpResponse};
use super::socket::Socket;
use super::{Chosen, Error, Inspection, Metadata, Runtime, is_id};

/// Docker's engine.
pub struct Docker {
    socket: Socket,
    chosen: Chosen,
}

impl Docker {
    pub fn new(socket: Socket, chosen: Chosen) -> Docker {
        Docker { socket, chosen }
    }

    /// The container with this id; None where the engine does not know it.
    async fn container(&self, path: &str, id: &str) -> Result<Option<ContainerAnswer>, Error> {
        let Some(HttpResponse { body, cut }) = http::get(&self.socket, path).await? else {
            return Ok(None);
        };
        let found = answer::inspected(&body, cut, &self.chosen)?;
        // Some tools shorten ids in paths; and an answer about another is none.
        let same = found.id.as_deref().is_some_and(|of| of.starts_with(id));
        match same {
            true => Ok(Some(found)),
            false => Err(Error::Malformed("it is about another container".into())),
        }
    }
}

impl Runtime for Docker {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("docker"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(async move {
            let found = self
                .container(&format!("/containers/{id}/json"), id)
                .await?;
            Ok(found.map(|found| found.metadata))
        })
    }
}

/// Podman's service.
pub struct Podman {
    api: Docker,
}

/// Path prefix of Podman's own interface; every version from 4 on accepts it.
const LIBPOD: &str = "/v4.0.0/libpod";

impl Podman {
    pub fn new(socket: Socket, chosen: Chosen) -> Podman {
        Podman {
            api: Docker::new(socket, chosen),
        }
    }

    /// The pod of a container, where it has one.
    async fn pod(&self, id: &str) -> Result<Option<Metadata>, Error> {
        let path = format!("{LIBPOD}/containers/{id}/json");
        let found = self.api.container(&path, id).await?;
        let Some(pod) = found.and_then(|found| found.pod_id).filter(|id| is_id(id)) else {
            return Ok(None);
        };
        let path = format!("{LIBPOD}/pods/{pod}/json");
        let Some(HttpResponse { body, cut }) = http::get(&self.api.socket, &path).await? else {
            return Ok(None);
        };
        Ok(Some(answer::pod(&body, cut, &self.api.chosen)?.metadata))
    }
}

impl Runtime for Podman {
    fn serves(&self, runtime: Option<&str>) -> bool {
        matches!(runtime, None | Some("podman"))
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Inspection<'a> {
        Box::pin(async move {
            let path = format!("/containers/{id}/json");
            let Some(found) = self.api.container(&path, id).await? else {
                return Ok(None);
            };
            let mut metadata = found.metadata;
            // An older Podman has no such interface, and the pod is not worth the rest.
            if let Ok(Some(pod)) = self.pod(id).await {
                metadata.complete(pod);
            }
            Ok(Some(metadata))
        })
    }
}
