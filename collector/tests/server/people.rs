//! People with tokens: who may what over the network, what ends with a token, and what is on
//! record of it.

use crate::identity::{Running, hello_of, now, refused_push, start, start_in};
use crate::program::Program;
use crate::rig::{LIMIT, channel, until};
use prost_types::FileDescriptorSet;
use proto::PieceCodec;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::symbol_service_client::SymbolServiceClient;
use proto::collector::{
    AddUserRequest, AuditRequest, CancelFleetCaptureRequest, FleetCaptureRequest, InviteRequest,
    ListInvitationsRequest, ListUsersRequest, RemoveUserRequest, RevokeInvitationRequest, Role,
    StatusRequest, UploadSymbolsRequest, User, VerifyAuditRequest, VerifyAuditResponse,
    WhoAmIRequest,
};
use proto::credential::Credential;
use proto::pin::Pinned;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use testkit::SmallDisk;
use testkit::fake::control::{Does, connect};
use testkit::fake::member::Host;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const ROLES: [Role; 4] = [Role::Metrics, Role::Viewer, Role::Operator, Role::Admin];

/// Somebody's connection: each call has their token.
pub type Asking = InterceptedService<Channel, Bearer>;

/// Adds a token to each call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A connection to the collector of this authority.
async fn pinned(at: SocketAddr, authority: [u8; 32]) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().domain_name(proto::COLLECTOR_NAME);
    Endpoint::from_shared(format!("https://{at}"))?
        .tls_config_with_verifier(tls, Arc::new(Pinned::new(authority)))?
        .connect()
        .await
}

fn bearer(token: &str) -> Bearer {
    Bearer(Some(format!("Bearer {token}").parse().expect("a value")))
}

impl Running {
    async fn access(&self) -> AccessServiceClient<Channel> {
        AccessServiceClient::new(channel(self.at.grpc).await)
    }

    async fn add(&self, request: AddUserRequest) -> String {
        let added = self.access().await.add_user(request).await;
        added.expect("a token").into_inner().token
    }

    /// The token of somebody with this role.
    pub async fn token(&self, name: &str, role: Role) -> String {
        self.add(AddUserRequest {
            name: name.to_owned(),
            role: role.into(),
            ..AddUserRequest::default()
        })
        .await
    }

    /// Why nobody may be called so.
    pub async fn refused_user(&self, name: &str) -> Status {
        let request = AddUserRequest {
            name: name.to_owned(),
            role: Role::Viewer.into(),
            ..AddUserRequest::default()
        };
        let added = self.access().await.add_user(request).await;
        added.expect_err("it is refused")
    }

    /// Who is in.
    pub async fn users(&self) -> Vec<User> {
        let listed = self.access().await.list_users(ListUsersRequest {}).await;
        listed.expect("a list").into_inner().users
    }

    /// Ends somebody's token.
    pub async fn remove(&self, name: &str) {
        let request = RemoveUserRequest {
            name: name.to_owned(),
        };
        let removed = self.access().await.remove_user(request).await;
        removed.expect("removed");
    }

    async fn connection(&self) -> Channel {
        let request = AddUserRequest {
            name: "whoever".to_owned(),
            role: Role::Metrics.into(),
            replace: true,
            ..AddUserRequest::default()
        };
        let token = self.add(request).await;
        let authority = Credential::parse_token(&token).expect("one").authority;
        pinned(self.tls(), authority).await.expect("a connection")
    }

    /// A connection of who has this token.
    pub async fn as_(&self, token: &str) -> Asking {
        InterceptedService::new(self.connection().await, bearer(token))
    }

    /// All that is on record.
    pub async fn audit(&self) -> Vec<Value> {
        let answer = self.access().await.audit(AuditRequest::default()).await;
        let mut answer = answer.expect("a log").into_inner();
        let mut lines = Vec::new();
        while let Some(part) = answer.message().await.expect("a part") {
            let parsed = part.lines.iter();
            lines.extend(parsed.map(|line| serde_json::from_str(line).expect("JSON")));
        }
        lines
    }

    async fn verify(&self) -> VerifyAuditResponse {
        let found = self
            .access()
            .await
            .verify_audit(VerifyAuditRequest {})
            .await;
        found.expect("a verdict").into_inner()
    }
}

/// An empty request; what comes of it.
async fn call<S>(service: S, path: &str) -> Result<(), Status>
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
fn calls() -> Vec<String> {
    let set: FileDescriptorSet = prost::Message::decode(proto::DESCRIPTORS).expect("descriptors");
    let mut calls = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            let methods = service.method.iter();
            calls.extend(methods.map(|method| format!("/{name}/{}", method.name())));
        }
    }
    calls.push("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned());
    calls
}

/// The least role of people that may make a call; none: no person may.
fn least(path: &str) -> Option<Role> {
    let (service, method) = path[1..].split_once('/').expect("a service");
    match service.strip_prefix("fleetprof.collector.v1.")? {
        "QueryService" | "PinService" => Some(Role::Viewer),
        "CaptureService" | "SymbolService" => Some(match method {
            "List" => Role::Viewer,
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
            let may = enrolls || least(&path).is_some_and(|least| *role >= least);
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
async fn ten_thousand_guesses_are_bounded_and_lock_nobody_out() {
    let running = start().await;
    let token = running.token("anna", Role::Viewer).await;
    let credential = Credential::parse_token(&token).expect("a token");
    let mut connection = running.connection().await;
    let before = running.audit().await.len();
    let (mut told, mut limited) = (0, 0);
    let mut number = 0_u32;
    while number < 10_000 {
        let mut guess = credential.clone();
        guess.secret[..4].copy_from_slice(&number.to_be_bytes());
        let asking = InterceptedService::new(connection.clone(), bearer(&guess.reveal_token()));
        let refused = QueryServiceClient::new(asking)
            .status(StatusRequest {})
            .await
            .expect_err("refused");
        match refused.code() {
            Code::Unauthenticated => told += 1,
            Code::ResourceExhausted => limited += 1,
            // A connection that nobody proves who they are on is closed after a while.
            Code::Unknown | Code::Unavailable => {
                connection = running.connection().await;
                continue;
            }
            other => panic!("{other:?} {refused}"),
        }
        number += 1;
    }
    // Ten a minute, and the test may take some.
    assert!(told <= 40 && limited >= 9_960, "{told} {limited}");
    let lines = running.audit().await;
    assert!(lines.len() - before < 20, "{} lines", lines.len() - before);
    assert!(lines.iter().any(|line| {
        line["action"] == "login"
            && line["outcome"]
                .as_str()
                .expect("text")
                .starts_with("failed")
    }));
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
async fn one_person_takes_so_many_calls_and_no_more() {
    let running = start().await;
    let (anna, ben) = (
        running.token("anna", Role::Viewer).await,
        running.token("ben", Role::Viewer).await,
    );
    let mut streams = Vec::new();
    let mut limited = None;
    'all: for _ in 0..4 {
        // So many calls as one connection takes.
        let asking = running.as_(&anna).await;
        for _ in 0..12 {
            let mut health = HealthClient::new(asking.clone());
            let request = HealthCheckRequest {
                service: String::new(),
            };
            match health.watch(request).await {
                Ok(stream) => streams.push(stream),
                Err(status) => {
                    limited = Some(status);
                    break 'all;
                }
            }
        }
    }
    let limited = limited.expect("a limit");
    assert_eq!(limited.code(), Code::ResourceExhausted);
    assert_eq!(streams.len(), 32);
    let status = "/fleetprof.collector.v1.QueryService/Status";
    call(running.as_(&ben).await, status)
        .await
        .expect("his own");
    drop(streams);
    let asking = running.as_(&anna).await;
    for _ in 0..100 {
        if call(asking.clone(), status).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the places do not come back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_people_outlast_those_of_strangers() {
    let running = start().await;
    let token = running.token("anna", Role::Viewer).await;
    let status = "/fleetprof.collector.v1.QueryService/Status";
    let asking = running.as_(&token).await;
    call(asking.clone(), status).await.expect("an answer");
    // Strangers take all of their places, and none of those of people.
    let connection = running.connection().await;
    let mut strangers = Vec::new();
    for _ in 0..100 {
        let stream = tokio::net::TcpStream::connect(running.tls()).await;
        strangers.push(stream.expect("a connection"));
    }
    drop(connection);
    call(asking, status).await.expect("an answer");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_is_on_record_with_who_did_it() {
    let running = start().await;
    let token = running.token("anna", Role::Admin).await;
    let asking = running.as_(&token).await;
    let mut admin = FleetServiceClient::new(asking.clone());
    let invited = admin.invite(InviteRequest {
        name: "web-1".to_owned(),
        ..InviteRequest::default()
    });
    let invitation = invited.await.expect("one").into_inner().credential;
    let host = Host::new("web");
    let joined = host.join(running.tls(), &invitation, now()).await;
    joined.expect("a member");
    let agent = connect(running.at.grpc, hello_of("db"), Does::Refuses, || {
        now() * 1_000_000_000
    });
    let _agent = agent.await.expect("a welcome");
    let request = FleetCaptureRequest {
        host_ids: vec![hello_of("db").host_id],
        capture: Some(proto::agent::CaptureRequest {
            duration_ns: 1_000_000,
            who: "somebody else".to_owned(),
            reason: "it is slow".to_owned(),
            ..proto::agent::CaptureRequest::default()
        }),
        ..FleetCaptureRequest::default()
    };
    let mut captures = CaptureServiceClient::new(asking);
    let started = captures.capture(request).await;
    let mut stream = started.expect("a stream").into_inner();
    while stream.message().await.expect("a part").is_some() {}
    running.remove("anna").await;
    let expected = [
        ("start", "collector"),
        ("user-add", "local"),
        ("login", "anna"),
        ("invite", "anna"),
        ("join", "web-1"),
        ("capture", "anna"),
        ("user-remove", "local"),
    ];
    // How something ended is written next to the answer, not before it.
    let mut lines = running.audit().await;
    for _ in 0..200 {
        let is_there = |action: &str| {
            let done = |line: &Value| line["action"] == action && line["outcome"] == "done";
            lines.iter().any(done)
        };
        if expected.iter().all(|(action, _)| is_there(action)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        lines = running.audit().await;
    }
    let of = |action: &str, outcome: &str| {
        let found = lines
            .iter()
            .find(|line| line["action"] == action && line["outcome"] == outcome);
        found
            .unwrap_or_else(|| panic!("no {action} {outcome}: {lines:#?}"))
            .clone()
    };
    for (action, who) in expected {
        assert_eq!(of(action, "done")["who"], who, "{action}");
    }
    let begun = of("capture", "begun");
    assert_eq!(begun["role"], "admin");
    assert_eq!(begun["what"]["reason"], "it is slow");
    assert_eq!(begun["what"]["hosts"], 1);
    let ended = of("capture", "done");
    assert_eq!(ended["what"]["failed"], 1);
    let refusals = ended["what"]["refusals"].as_array().expect("a list");
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    // No secret is in it.
    let text = serde_json::to_string(&lines).expect("text");
    assert!(!text.contains("fpu1_") && !text.contains("fpj1_"));
    let found = running.verify().await;
    assert_eq!(found.problems, Vec::<String>::new());
    assert!(found.lines >= lines.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_edited_behind_the_collectors_back_is_found() {
    let running = start().await;
    running.token("anna", Role::Admin).await;
    running.token("ben", Role::Viewer).await;
    assert!(running.verify().await.problems.is_empty());
    let folder = running.dir.path().join("audit");
    let file = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let file = file.expect("a file");
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, text.replacen("anna", "emma", 1)).expect("written");
    assert!(!running.verify().await.problems.is_empty());
    let running = running.restart().await;
    assert!(!running.verify().await.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_disk_what_must_be_on_record_is_refused_and_reads_go_on() {
    let Some(disk) = SmallDisk::mount("256k") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(disk.path(), dir.path().join("audit")).expect("a link");
    let running = start_in(dir, Arc::default()).await;
    let token = running.token("anna", Role::Admin).await;
    running.token("ben", Role::Viewer).await;
    let asking = running.as_(&token).await;
    let filler = disk.path().join("filler");
    // Until nothing fits any more.
    let full = std::fs::write(&filler, vec![0; 1 << 20]);
    assert!(full.is_err());
    let mut admin = FleetServiceClient::new(asking.clone());
    let mut refused = None;
    for _ in 0..100 {
        // What is left of the last page takes some lines.
        if let Err(status) = admin.invite(InviteRequest::default()).await {
            refused = Some(status);
            break;
        }
    }
    let refused = refused.expect("refused");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("audit log"), "{refused}");
    let cancel = CancelFleetCaptureRequest { id: 1 };
    let cancelled = CaptureServiceClient::new(asking.clone())
        .cancel(cancel)
        .await;
    assert_eq!(cancelled.expect_err("refused").code(), Code::Unavailable);
    let mut queries = QueryServiceClient::new(asking);
    let status = queries.status(StatusRequest {}).await;
    let status = status.expect("reads go on").into_inner();
    let failing = status
        .counters
        .iter()
        .find(|counter| counter.name == "fleetprof_collector_audit_failing");
    assert_eq!(failing.map(|counter| counter.value), Some(1));
    // A disk that is full keeps nobody in.
    running.remove("ben").await;
    // With room it goes on, and nothing of what failed is in the way.
    std::fs::remove_file(&filler).expect("removed");
    admin.invite(InviteRequest::default()).await.expect("one");
    let found = running.verify().await;
    assert_eq!(found.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_killed_in_the_middle_of_a_line_keeps_the_chain() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = 0_u64;
    for _ in 0..3 {
        let program = Program::start(dir.path());
        let connection = channel(program.grpc).await;
        let (tell, told) = tokio::sync::watch::channel(0_u64);
        let mut writers = Vec::new();
        for _ in 0..8 {
            let (mut client, tell) = (CaptureServiceClient::new(connection.clone()), tell.clone());
            writers.push(tokio::spawn(async move {
                loop {
                    // Refused as unknown, and on record before that.
                    let cancel = CancelFleetCaptureRequest { id: 7 };
                    match client.cancel(cancel).await {
                        Err(status) if status.code() == Code::NotFound => {
                            tell.send_modify(|count| *count += 1);
                        }
                        _ => return,
                    }
                }
            }));
        }
        until("some are written", || *told.borrow() > 50).await;
        program.end(Signal::KILL);
        for writer in writers {
            writer.await.expect("no panic");
        }
        acknowledged += *told.borrow();
    }
    let program = Program::start(dir.path());
    let mut access = AccessServiceClient::new(channel(program.grpc).await);
    let found = access.verify_audit(VerifyAuditRequest {}).await;
    let found = found.expect("a verdict").into_inner();
    assert_eq!(found.problems, Vec::<String>::new());
    let answer = access.audit(AuditRequest::default()).await;
    let mut answer = answer.expect("a log").into_inner();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(part) = answer.message().await.expect("a part") {
        for line in part.lines {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            let action = line["action"].as_str().expect("text").to_owned();
            *counts.entry(action).or_default() += 1;
        }
    }
    assert_eq!(counts["start"], 4, "{counts:?}");
    assert!(counts["capture-cancel"] >= acknowledged, "{counts:?}");
}
