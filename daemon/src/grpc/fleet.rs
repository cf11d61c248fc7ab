//! The calls that decide to which collector the host's profiles go. Only root and the daemon's own
//! user may make them; the kernel identifies the caller on the unix socket. A group that may look
//! at this host must not be able to send its samples elsewhere.

use super::Host;
use super::listen::Peer;
use host::facts::effective_uid;
use proto::agent;
use proto::credential::Credential;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

/// Longest address. Unit: bytes.
const ADDRESS_BYTES_MAX: usize = 300;

/// `JoinFleet`.
pub(super) async fn join(
    host: &dyn Host,
    calls: &Semaphore,
    request: Request<agent::JoinFleetRequest>,
) -> Result<Response<agent::JoinFleetResponse>, Status> {
    check(&request)?;
    let asked = request.into_inner();
    if asked.collector.is_empty() || asked.collector.len() > ADDRESS_BYTES_MAX {
        let text = "the address of a collector is HOST:PORT";
        return Err(Status::invalid_argument(text));
    }
    let credential = Credential::parse(&asked.credential)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let _one = one(calls).await?;
    let membership = host.join_fleet(asked.collector, credential).await?;
    Ok(Response::new(agent::JoinFleetResponse {
        membership: Some(membership),
    }))
}

/// `LeaveFleet`.
pub(super) async fn leave(
    host: &dyn Host,
    calls: &Semaphore,
    request: Request<agent::LeaveFleetRequest>,
) -> Result<Response<agent::LeaveFleetResponse>, Status> {
    check(&request)?;
    let _one = one(calls).await?;
    host.leave_fleet().await?;
    Ok(Response::new(agent::LeaveFleetResponse {}))
}

/// One such call at a time.
async fn one(calls: &Semaphore) -> Result<tokio::sync::SemaphorePermit<'_>, Status> {
    let one = calls.acquire().await;
    one.map_err(|_| Status::unavailable("the daemon is shutting down"))
}

fn check<T>(request: &Request<T>) -> Result<(), Status> {
    let uid = request.extensions().get::<Peer>().and_then(|peer| peer.uid);
    match uid {
        Some(uid) if uid == 0 || uid == effective_uid() => Ok(()),
        _ => Err(Status::permission_denied(
            "only root may choose the fleet of a host: run this with sudo on the host itself",
        )),
    }
}
