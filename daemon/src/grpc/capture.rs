//! The stream of a capture: its messages as they come, until the last one or until the client
//! disconnects.

use super::answer::Outlet;
use proto::agent::{CaptureResponse, capture_response::Body};
use tokio::sync::mpsc;
use tonic::Status;

/// Sends the messages of a capture. Ends when the client disconnects, which ends the capture: its
/// receiver is dropped.
pub(super) async fn forward(
    mut messages: mpsc::Receiver<CaptureResponse>,
    outlet: Outlet<CaptureResponse>,
) {
    let mut ended = false;
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            () = outlet.closed() => return,
        };
        let Some(message) = message else { break };
        ended = matches!(message.body, Some(Body::Result(_)));
        if outlet.send(Ok(message)).await.is_err() {
            return;
        }
    }
    if !ended {
        let failed = Status::internal("the capture ended without a result: see the daemon's log");
        // A client that has gone does not need to hear it.
        let _ = outlet.send(Err(failed)).await;
    }
}
