//! Several collectors with one authority: each has its own list of members, and says so.

use crate::identity::{Running, hello_of, now, refused_push, start, start_in};
use crate::rig::PushStream;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{InviteRequest, RemoveMemberRequest, Role, WhoAmIRequest};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use testkit::fake::member::{EnrollError, Host, Membership, renew};
use tonic::{Code, Status};

/// Another collector with the authority of this one, as from its files.
async fn beside(first: &Running) -> Running {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = dir.path().join("identity");
    std::fs::create_dir(&identity).expect("made");
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&identity, mode(0o700)).expect("its own");
    for file in ["authority.key", "authority.crt"] {
        let from = first.dir.path().join("identity").join(file);
        std::fs::copy(from, identity.join(file)).expect("copied");
    }
    start_in(dir, Arc::default()).await
}

/// How a host's stream starts.
async fn push(running: &Running, host: &Host, membership: &Membership) -> Result<(), Status> {
    let channel = host.connect(running.tls(), membership).await;
    let stream = PushStream::connect(channel.expect("one authority")).await;
    let mut stream = stream?;
    let hello = hello_of(&host.name.hostname);
    let body = proto::collector::push_request::Body::Hello(hello);
    stream.send(body).await;
    stream.next().await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_a_member_where_it_was_invited_and_is_told_so_elsewhere() {
    let first = start().await;
    let second = beside(&first).await;
    let (host, membership) = first.member("web-1").await;
    push(&first, &host, &membership).await.expect("a member");
    // It knows the second for one of its fleet, and is refused there.
    let connected = host.connect(second.tls(), &membership).await;
    let channel = connected.expect("one authority");
    let refused = refused_push(channel, hello_of("web-1")).await;
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let said = refused.message();
    assert!(said.contains("joined another collector"), "{said}");
    assert!(said.contains("`agent-ctl hosts invite`"), "{said}");
    // A certificate is not renewed where the key is not known.
    let elsewhere = Membership {
        collector: second.tls().to_string(),
        ..membership.clone()
    };
    let renewed = renew(&elsewhere, &host.name, &host.key, now()).await;
    assert!(
        matches!(renewed, Err(EnrollError::Refused(_))),
        "{renewed:?}"
    );
    let renewed = renew(&membership, &host.name, &host.key, now()).await;
    renewed.expect("its own collector knows it");
    // Nor does the invitation of one let in at the other.
    let other = Host::new("web-2");
    let invitation = first.invite(InviteRequest::default()).await;
    let refused = other.join(second.tls(), &invitation, now()).await;
    let Err(EnrollError::Refused(status)) = refused else {
        panic!("{refused:?}");
    };
    let said = status.message();
    assert!(said.contains("is not from this collector"), "{said}");
    // Invited there too it is a member of both, by either certificate.
    let invitation = second.invite(InviteRequest::default()).await;
    let joined = host.join(second.tls(), &invitation, now()).await;
    let joined = joined.expect("a member");
    for running in [&first, &second] {
        for membership in [&membership, &joined] {
            push(running, &host, membership).await.expect("a member");
        }
    }
    // And is to be removed from both.
    let remove = RemoveMemberRequest {
        host: "web-1".to_owned(),
    };
    let mut admin = first.admin().await;
    admin.remove_member(remove).await.expect("removed");
    let refused = push(&first, &host, &joined).await.expect_err("removed");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    push(&second, &host, &joined).await.expect("still a member");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_good_where_it_was_made() {
    let first = start().await;
    let second = beside(&first).await;
    let token = first.token("anna", Role::Viewer).await;
    let who = async |running: &Running| {
        let mut asking = AccessServiceClient::new(running.as_(&token).await);
        asking.who_am_i(WhoAmIRequest {}).await
    };
    let known = who(&first).await.expect("known").into_inner();
    assert_eq!(known.name, "anna");
    let refused = who(&second).await.expect_err("nobody there");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
}
