//! People with tokens: who may what over the network, what ends with a token, and what is on
//! record of it.

mod ends;
mod http;
mod limits;
mod record;
mod roles;

use crate::identity::Running;
use crate::rig::channel;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{
    AddUserRequest, AuditRequest, ListUsersRequest, RemoveUserRequest, Role, User,
    VerifyAuditRequest, VerifyAuditResponse,
};
use proto::credential::Credential;
use proto::pin::Pinned;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

const ROLES: [Role; 5] = [
    Role::Sender,
    Role::Metrics,
    Role::Viewer,
    Role::Operator,
    Role::Admin,
];

/// Whether a role may do what is for `least` and those after it. What is for senders is for them
/// and for admins; a sender may do nothing else.
fn may(role: Role, least: Role) -> bool {
    match (role, least) {
        (Role::Sender, Role::Sender) | (Role::Admin, _) => true,
        (Role::Sender, _) | (_, Role::Sender) => false,
        _ => role >= least,
    }
}

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
pub async fn pinned(
    at: SocketAddr,
    authority: [u8; 32],
) -> Result<Channel, tonic::transport::Error> {
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
