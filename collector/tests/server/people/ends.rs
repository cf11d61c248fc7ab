//! Tests what ends together with a token or an invitation.

use super::roles::call;
use crate::identity::{now, start};
use crate::rig::{LIMIT, channel};
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::{
    AddUserRequest, InviteRequest, ListInvitationsRequest, ListUsersRequest,
    RevokeInvitationRequest, Role, StatusRequest, UploadSymbolsRequest,
};
use std::time::Duration;
use testkit::fake::member::Host;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_token_started_ends_with_it() {
    let running = start().await;
    let token = running.token("anna", Role::Operator).await;
    let asking = running.as_(&token).await;
    let mut health = HealthClient::new(asking.clone());
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let watched = health.watch(request).await;
    let mut answers = watched.expect("a stream").into_inner();
    answers.message().await.expect("the first").expect("one");
    // One that waits for what its client sends.
    let mut symbols = SymbolServiceClient::new(asking.clone());
    let uploading = tokio::spawn(async move {
        let never = tokio_stream::pending::<UploadSymbolsRequest>();
        symbols.upload(never).await
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!uploading.is_finished());
    running.remove("anna").await;
    let ended = tokio::time::timeout(LIMIT, answers.message()).await;
    let ended = ended.expect("it ends").expect_err("with an error");
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
    let ended = tokio::time::timeout(LIMIT, uploading).await;
    let ended = ended.expect("it ends").expect("no panic");
    let ended = ended.expect_err("with an error");
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
    let refused = QueryServiceClient::new(asking)
        .status(StatusRequest {})
        .await
        .expect_err("refused");
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_token_of_a_name_ends_the_one_before() {
    let running = start().await;
    let first = running.token("anna", Role::Operator).await;
    let again = AddUserRequest {
        name: "anna".to_owned(),
        role: Role::Viewer.into(),
        ..AddUserRequest::default()
    };
    let refused = running.access().await.add_user(again.clone()).await;
    assert_eq!(refused.expect_err("taken").code(), Code::AlreadyExists);
    let second = running
        .add(AddUserRequest {
            replace: true,
            ..again
        })
        .await;
    assert!(
        call(
            running.as_(&first).await,
            "/fleetprof.collector.v1.QueryService/Status"
        )
        .await
        .is_err()
    );
    // Its role is that of the new one, also after a restart.
    let running = running.restart().await;
    let asking = running.as_(&second).await;
    call(
        asking.clone(),
        "/fleetprof.collector.v1.QueryService/Status",
    )
    .await
    .expect("an answer");
    let refused = call(asking, "/fleetprof.collector.v1.CaptureService/Cancel").await;
    assert_eq!(
        refused.expect_err("a viewer").code(),
        Code::PermissionDenied
    );
    let listed = running.access().await.list_users(ListUsersRequest {}).await;
    let listed = listed.expect("a list").into_inner().users;
    let anna = listed.iter().find(|user| user.name == "anna").expect("her");
    assert_eq!(
        (anna.role(), anna.created_by.as_str()),
        (Role::Viewer, "local")
    );
    assert!(anna.used_unix_s > 0 && !anna.expired);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invitation_that_is_taken_back_lets_nobody_in() {
    let running = start().await;
    let invitation = running.invite(InviteRequest::default()).await;
    let used = running.invite(InviteRequest::default()).await;
    let first = Host::new("a");
    let joined = first.join(running.tls(), &used, now()).await;
    joined.expect("a member");
    let mut admin = FleetServiceClient::new(channel(running.at.grpc).await);
    let listed = admin.list_invitations(ListInvitationsRequest {}).await;
    let listed = listed.expect("a list").into_inner().invitations;
    assert_eq!(listed.len(), 1, "one that is used up is none");
    let id = listed[0].id.clone();
    let revoke = RevokeInvitationRequest { id };
    admin
        .revoke_invitation(revoke.clone())
        .await
        .expect("taken back");
    let again = admin.revoke_invitation(revoke).await.expect_err("gone");
    assert_eq!(again.code(), Code::NotFound);
    let refused = Host::new("b").join(running.tls(), &invitation, now()).await;
    assert!(refused.is_err());
    let listed = admin.list_invitations(ListInvitationsRequest {}).await;
    assert!(listed.expect("a list").into_inner().invitations.is_empty());
}
