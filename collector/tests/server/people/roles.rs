//! Who may make which call, with which token.

use super::{ROLES, bearer, may, pinned};
use crate::identity::{Running, hello_of, now, refused_push, start};
use prost_types::FileDescriptorSet;
use proto::PieceCodec;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{AddUserRequest, InviteRequest, Role, StatusRequest, WhoAmIRequest};
use proto::credential::Credential;
use std::time::Duration;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};

/// An empty request; what comes of it.
pub async fn call<S>(service: S, path: &str) -> Result<(), Status>
where
    S: tonic::client::GrpcService<tonic::body::Body>,
    S::ResponseBody: tonic::codegen::Body + Send + 'static,
    <S::ResponseBody as tonic::codegen::Body>::Error: Into<tonic::codegen::StdError> + Send,
{
    let mut client = Grpc::new(service);
    client
        .ready()
        .await
        .map_err(|_| Status::unavailable("it is gone"))?;
    let path = PathAndQuery::try_from(path).expect("a path");
    let codec = PieceCodec::<(), ()>::default();
    let answer = client.server_streaming(Request::new(()), path, codec).await;
    // One message tells enough; a stream of them may be long.
    answer?.into_inner().message().await.map(|_| ())
}

/// Every call of a collector.
pub fn calls() -> Vec<String> {
    let mut calls = Vec::new();
    for set in [proto::DESCRIPTORS, collector::pyroscope::DESCRIPTORS] {
        let set: FileDescriptorSet = prost::Message::decode(set).expect("descriptors");
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                let methods = service.method.iter();
                calls.extend(methods.map(|method| format!("/{name}/{}", method.name())));
            }
        }
    }
    calls.push("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned());
    calls
}

/// True for the calls of Pyroscope's API.
pub fn is_pyroscope(path: &str) -> bool {
    ["/querier.v1.", "/settings.v1.", "/push.v1."]
        .iter()
        .any(|start| path.starts_with(start))
}

/// The least role of people that may make a call; none: no person may.
pub fn least(path: &str) -> Option<Role> {
    let (service, method) = path[1..].split_once('/').expect("a service");
    if service.starts_with("opentelemetry.") || service.starts_with("parca.") {
        return Some(Role::Sender);
    }
    if is_pyroscope(path) {
        return Some(match service {
            "push.v1.PusherService" => Role::Sender,
            _ => Role::Viewer,
        });
    }
    match service.strip_prefix("fleetprof.collector.v1.")? {
        "QueryService" | "PinService" | "AlertService" => Some(Role::Viewer),
        "ViewService" if method == "List" => Some(Role::Viewer),
        "ViewService" => Some(Role::Operator),
        "CaptureService" | "SymbolService" | "AnnotationService" => Some(match method {
            "List" | "Profile" => Role::Viewer,
            _ => Role::Operator,
        }),
        "IncidentService" => Some(match method {
            "List" | "Get" | "Profile" => Role::Viewer,
            "Delete" => Role::Admin,
            _ => Role::Operator,
        }),
        "FleetService" => Some(Role::Admin),
        "AccessService" => Some(match method {
            "WhoAmI" => Role::Metrics,
            "OpenPage" => Role::Viewer,
            _ => Role::Admin,
        }),
        _ => None,
    }
}

fn is_refused(done: &Result<(), Status>) -> bool {
    let code = done.as_ref().map_err(Status::code).err();
    matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_open_to_the_roles_that_may_make_it_and_to_nobody_else() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let mut people = Vec::new();
    for role in ROLES {
        let token = running.token(role.as_str_name(), role).await;
        people.push((role, running.as_(&token).await));
    }
    let stranger = running.connection().await;
    for path in calls() {
        let enrolls = path.contains("EnrollmentService");
        for (role, asking) in &people {
            let done = call(asking.clone(), &path).await;
            let may = enrolls || least(&path).is_some_and(|least| may(*role, least));
            if path.starts_with("/fleetprof.agent.") || path.starts_with("/grpc.reflection.") {
                // The collector has no such call.
                let status = done.expect_err("no such call");
                assert_eq!(status.code(), Code::Unimplemented, "{path} {role:?}");
                continue;
            }
            assert_eq!(is_refused(&done), !may, "{path} {role:?} {done:?}");
        }
        // Nobody at all.
        let done = call(stranger.clone(), &path).await;
        let unknown = done
            .as_ref()
            .is_err_and(|s| s.code() == Code::Unauthenticated);
        assert_eq!(unknown, !enrolls, "{path} {done:?}");
    }
    // A host of the fleet may nothing of what people may.
    let own = host.connect(running.tls(), &membership).await;
    let own = own.expect("a connection");
    for path in calls().iter().filter(|path| least(path).is_some()) {
        let done = call(own.clone(), path).await;
        let code = done.as_ref().map_err(Status::code).err();
        assert_eq!(code, Some(Code::PermissionDenied), "{path} {done:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_on_the_collectors_machine_needs_no_login() {
    let running = start().await;
    let who = running.access().await.who_am_i(WhoAmIRequest {}).await;
    let who = who.expect("an answer").into_inner();
    assert_eq!((who.name.as_str(), who.role()), ("local", Role::Admin));
    assert!(!who.fleet_id.is_empty());
    // Nobody else has that name, nor one that a proxy gives.
    for name in ["local", "proxy:anna"] {
        let request = AddUserRequest {
            name: name.to_owned(),
            role: Role::Viewer.into(),
            ..AddUserRequest::default()
        };
        let refused = running.access().await.add_user(request).await;
        assert_eq!(refused.expect_err("refused").code(), Code::InvalidArgument);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_a_token_is_its_person_with_its_scope() {
    let running = start().await;
    let token = running
        .add(AddUserRequest {
            name: "anna".to_owned(),
            role: Role::Viewer.into(),
            scope: "team=\"web\"".to_owned(),
            ..AddUserRequest::default()
        })
        .await;
    let mut asking = AccessServiceClient::new(running.as_(&token).await);
    let who = asking.who_am_i(WhoAmIRequest {}).await;
    let who = who.expect("an answer").into_inner();
    assert_eq!((who.name.as_str(), who.role()), ("anna", Role::Viewer));
    assert_eq!(who.scope, "team=\"web\"");
    assert!(who.expires_unix_s > now());
    // What is no selector lets nobody see everything.
    let wrong = AddUserRequest {
        name: "ben".to_owned(),
        role: Role::Viewer.into(),
        scope: "team=\"".to_owned(),
        ..AddUserRequest::default()
    };
    let refused = running.access().await.add_user(wrong).await;
    assert_eq!(refused.expect_err("refused").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_has_no_scope_for_they_could_let_somebody_in_without() {
    let running = start().await;
    let scoped = AddUserRequest {
        name: "anna".to_owned(),
        role: Role::Admin.into(),
        scope: "team=\"web\"".to_owned(),
        ..AddUserRequest::default()
    };
    let refused = running.access().await.add_user(scoped).await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("scope"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_has_no_scope_for_with_one_it_could_not_send() {
    let running = start().await;
    let scoped = AddUserRequest {
        name: "shop-sdk".to_owned(),
        role: Role::Sender.into(),
        scope: "team=\"web\"".to_owned(),
        ..AddUserRequest::default()
    };
    let refused = running.access().await.add_user(scoped.clone()).await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("may not send"), "{refused:?}");
    let scope = String::new();
    running.add(AddUserRequest { scope, ..scoped }).await;
}

/// What a call with these headers comes to.
async fn with(running: &Running, values: &[String]) -> Status {
    let mut client = QueryServiceClient::new(running.connection().await);
    let mut request = Request::new(StatusRequest {});
    for value in values {
        let value: MetadataValue<Ascii> = value.parse().expect("a value");
        request.metadata_mut().append("authorization", value);
    }
    client.status(request).await.expect_err("refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_good_token_of_this_collector_gets_nothing() {
    let (running, other) = (start().await, start().await);
    let token = running.token("anna", Role::Admin).await;
    let foreign = other.token("anna", Role::Admin).await;
    let invitation = running.invite(InviteRequest::default()).await;
    let credential = Credential::parse_token(&token).expect("a token");
    let forged = |change: &dyn Fn(&mut Credential)| {
        let mut forged = credential.clone();
        change(&mut forged);
        forged.reveal_token()
    };
    let expiring = running
        .add(AddUserRequest {
            name: "ben".to_owned(),
            role: Role::Admin.into(),
            lifetime_s: 1,
            ..AddUserRequest::default()
        })
        .await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let bearer = |token: &str| vec![format!("Bearer {token}")];
    for values in [
        bearer(&forged(&|c| c.secret[0] ^= 1)),
        bearer(&forged(&|c| c.id[0] ^= 1)),
        bearer(&forged(&|c| c.authority[0] ^= 1)),
        bearer(&expiring),
        bearer(&foreign),
        bearer(&invitation),
        bearer(""),
        vec![token.clone()],
        vec![format!("Basic {token}")],
        [bearer(&token), bearer(&token)].concat(),
    ] {
        let refused = with(&running, &values).await;
        assert_eq!(refused.code(), Code::Unauthenticated, "{values:?}");
    }
    // Its owner knows before it is shown that another collector answers there.
    let misled = pinned(other.tls(), credential.authority).await;
    assert!(misled.is_err());
    let mut own = QueryServiceClient::new(running.as_(&token).await);
    own.status(StatusRequest {}).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_may_not_push_whatever_connection_they_use() {
    let running = start().await;
    let (host, membership) = running.member("a").await;
    let token = running.token("anna", Role::Admin).await;
    let own = host.connect(running.tls(), &membership).await;
    let own = own.expect("a connection");
    let path = "/fleetprof.collector.v1.IngestService/Push";
    for connection in [running.connection().await, own.clone()] {
        let asking = InterceptedService::new(connection, bearer(&token));
        let refused = call(asking, path).await.expect_err("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    // A bad token makes a host no host.
    let asking = InterceptedService::new(own, bearer("fpu1_x"));
    let refused = call(asking, path).await.expect_err("refused");
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    // Nor does a member of another fleet get in by a token's connection.
    let pushed = refused_push(running.connection().await, hello_of("a")).await;
    assert_eq!(pushed.code(), Code::Unauthenticated, "{pushed}");
}
