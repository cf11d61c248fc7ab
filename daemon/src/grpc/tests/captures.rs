//! Tests calls about captures, with fake captures.

use super::*;
use proto::agent::capture_response::Body;
use proto::agent::{
    CancelCaptureRequest, CaptureInfo, CaptureRequest, CaptureResponse, ListCapturesRequest,
};
use tonic::Code;

fn request() -> CaptureRequest {
    CaptureRequest {
        duration_ns: 1,
        ..CaptureRequest::default()
    }
}

fn said(body: Body) -> CaptureResponse {
    CaptureResponse { body: Some(body) }
}

fn started(running: &Running) -> (tokio::sync::mpsc::Sender<CaptureResponse>, String) {
    let mut started = running.host.captures.started.lock().unwrap();
    started.pop().unwrap()
}

#[tokio::test]
async fn a_capture_is_told_as_it_goes_until_its_result() {
    let (_directory, running, mut client) = service().await;
    let mut answer = client.capture(request()).await.unwrap().into_inner();
    let (sender, peer) = started(&running);
    assert!(peer.starts_with("uid="), "{peer}");
    let info = CaptureInfo {
        id: 7,
        ..CaptureInfo::default()
    };
    for body in [Body::Accepted(info.clone()), Body::Result(info)] {
        sender.send(said(body.clone())).await.unwrap();
        assert_eq!(answer.message().await.unwrap(), Some(said(body)));
    }
    drop(sender);
    assert_eq!(answer.message().await.unwrap(), None);
}

#[tokio::test]
async fn a_capture_that_ends_without_a_result_failed() {
    let (_directory, running, mut client) = service().await;
    let mut answer = client.capture(request()).await.unwrap().into_inner();
    drop(started(&running));
    assert_eq!(answer.message().await.unwrap_err().code(), Code::Internal);
}

#[tokio::test]
async fn a_client_that_goes_gives_its_capture_up() {
    let (_directory, running, mut client) = service().await;
    let answer = client.capture(request()).await.unwrap();
    let (sender, _) = started(&running);
    drop((answer, client));
    sender.closed().await;
}

#[tokio::test]
async fn what_captures_refuse_is_told() {
    let (_directory, _running, mut client) = service().await;
    let refused = client.capture(CaptureRequest::default()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, "no duration")
    );
}

#[tokio::test]
async fn captures_are_listed_and_cancelled() {
    let (_directory, _running, mut client) = service().await;
    let listed = client.list_captures(ListCapturesRequest {}).await.unwrap();
    assert_eq!(listed.into_inner().captures[0].id, 1);
    assert!(
        client
            .cancel_capture(CancelCaptureRequest { id: 1 })
            .await
            .is_ok()
    );
    let unknown = client.cancel_capture(CancelCaptureRequest { id: 2 }).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
}
