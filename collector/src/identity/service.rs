//! The calls about members: Enroll for hosts, the rest for administrators.

use super::authority::SigningRequest;
use super::registry::{Applicant, Enrolled, Invitation, Listed, Refused};
use super::{Fleet, IdentityError, Member};
use crate::access::{Caller, People, Whom, event};
use crate::audit::{Audit, BEGUN, DONE, Event};
use crate::listen::hostname;
use profile::text::with_causes;
use proto::collector::enrollment_service_server::EnrollmentService;
use proto::collector::fleet_service_server::FleetService;
use proto::collector::{
    EnrollRequest, EnrollResponse, Invitation as WireInvitation, InviteRequest, InviteResponse,
    ListInvitationsRequest, ListInvitationsResponse, ListMembersRequest, ListMembersResponse,
    Member as WireMember, RemoveMemberRequest, RemoveMemberResponse, RevokeInvitationRequest,
    RevokeInvitationResponse,
};
use proto::credential::Credential;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

/// Largest request. Unit: bytes.
pub const REQUEST_BYTES_MAX: usize = 32 << 10;

/// Answers hosts that enroll.
#[derive(Clone)]
pub struct Enrollment {
    fleet: Arc<Fleet>,
    /// Keep those on record that were not let in.
    people: Arc<People>,
    /// Hosts that enroll at a time.
    turns: Arc<Semaphore>,
}

/// Most hosts that enroll at a time: each takes a thread that queries take too.
const TURNS: usize = 2;

/// Longest text of a stranger in the log. Unit: bytes.
const SAID_BYTES_MAX: usize = 128;

impl Enrollment {
    /// For this fleet.
    pub fn new(fleet: Arc<Fleet>, people: Arc<People>) -> Enrollment {
        Enrollment {
            fleet,
            people,
            turns: Arc::new(Semaphore::new(TURNS)),
        }
    }

    fn enroll_now(
        &self,
        asked: &EnrollRequest,
        peer: Option<SocketAddr>,
    ) -> Result<EnrollResponse, Status> {
        let refuse = |invitation: Option<&Credential>, why: &dyn Display, status: Status| {
            self.tell(asked, (peer, invitation), why);
            status
        };
        let wrong =
            |why: &dyn Display| refuse(None, why, Status::invalid_argument(why.to_string()));
        let signing =
            SigningRequest::parse(&asked.signing_request).map_err(|error| wrong(&error))?;
        let credential = match asked.credential.is_empty() {
            true => None,
            false => Some(Credential::parse(&asked.credential).map_err(|error| wrong(&error))?),
        };
        let applicant = Applicant {
            host_id: &asked.host_id,
            hostname: &asked.hostname,
            key: signing.key,
            credential: credential.as_ref(),
        };
        let fleet = &self.fleet;
        let now = fleet.now();
        let enrolled = fleet.registry.enroll(&applicant, now);
        let (member, outcome) =
            enrolled.map_err(|refused| refuse(credential.as_ref(), &refused, status(&refused)))?;
        let signed = fleet
            .authority
            .sign_host((&member.host_id, &signing), now, fleet.host_lasts);
        let issued = signed.map_err(|error| internal(&error))?;
        let told = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let action = match outcome {
            Enrolled::New => Some("join"),
            Enrolled::Renewed => Some("renew"),
            // Whoever asks again and again fills no log.
            Enrolled::Again => None,
        };
        if let Some(action) = action {
            let event = Event::by(&member.name, told, action)
                .with("host_id", member.host_id.as_str())
                .with("key_sha256", hex(&member.key));
            let event = match outcome {
                Enrolled::New => event
                    .with("invitation", member.invitation())
                    .with("labels", labels(&member.labels)),
                _ => event,
            };
            self.people.audit().note(event);
        }
        if outcome == Enrolled::New {
            tracing::info!(
                ?peer,
                host = member.name,
                host_id = member.host_id,
                key = hex(&member.key),
                "host joined the fleet"
            );
        }
        Ok(EnrollResponse {
            certificate: issued.certificate,
            authorities: vec![fleet.authority.certificate().to_vec()],
            fleet_id: fleet.authority.fleet_id().to_owned(),
            name: member.name.clone(),
            labels: member.labels.clone().into_iter().collect(),
            not_after_unix_s: issued.not_after_unix_s,
        })
    }

    /// Puts on record that a host is not let in. Anybody can come without an invitation, as often
    /// as they like, so each address is told of a few times a minute, and then how often it came.
    fn tell(
        &self,
        asked: &EnrollRequest,
        (peer, invitation): (Option<SocketAddr>, Option<&Credential>),
        why: &dyn Display,
    ) {
        let (host_id, hostname) = (said(&asked.host_id), said(&asked.hostname));
        let told = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let event = Event::by("", told, "join")
            .with("host_id", host_id.as_str())
            .with("hostname", hostname.as_str());
        let event = match invitation {
            Some(invitation) => event.with("invitation", hex(&invitation.id)),
            None => event,
        };
        let whom = Whom::at(peer.map(|peer| peer.ip()));
        if self
            .people
            .unjoined
            .note(whom, event, &why.to_string())
            .first
        {
            tracing::warn!(
                ?peer,
                host_id,
                hostname,
                %why,
                "refused to let a host join the fleet"
            );
        }
    }
}

/// Labels, as the log has them.
fn labels(labels: &BTreeMap<String, String>) -> serde_json::Value {
    let pairs = labels.iter();
    let pairs = pairs.map(|(name, value)| (name.clone(), value.clone().into()));
    serde_json::Value::Object(pairs.collect())
}

#[tonic::async_trait]
impl EnrollmentService for Enrollment {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        let peer = request.remote_addr();
        let asked = request.into_inner();
        let enrollment = self.clone();
        // They wait for each other, and no query waits for them.
        let Ok(_turn) = self.turns.acquire().await else {
            return Err(Status::unavailable("the collector is shutting down"));
        };
        let enrolling = move || enrollment.enroll_now(&asked, peer);
        match tokio::task::spawn_blocking(enrolling).await {
            Ok(answer) => answer.map(Response::new),
            Err(_) => Err(Status::internal("enrolling failed")),
        }
    }
}

/// Text of a stranger, fit for the log.
fn said(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(SAID_BYTES_MAX)];
    text.escape_debug().collect()
}

fn status(refused: &Refused) -> Status {
    match refused {
        Refused::Unknown | Refused::Expired | Refused::UsedUp => {
            Status::unauthenticated(refused.to_string())
        }
        Refused::Taken(_) => Status::already_exists(refused.to_string()),
        Refused::Invalid(_) => Status::invalid_argument(refused.to_string()),
        Refused::Store(error) => internal(error),
    }
}

/// Logs the error, and hides it from the caller.
fn internal(error: &IdentityError) -> Status {
    tracing::error!("{}", with_causes(error));
    Status::internal("the collector failed to store or sign this; see its log")
}

fn hex(key: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(key)
}

/// Answers those who run the fleet.
#[derive(Clone)]
pub struct FleetAdmin {
    fleet: Arc<Fleet>,
    audit: Audit,
    /// Where hosts connect.
    listen: String,
}

impl FleetAdmin {
    /// Creates it for this fleet, with hosts that connect at `listen`.
    pub fn new(fleet: Arc<Fleet>, listen: String, audit: Audit) -> FleetAdmin {
        FleetAdmin {
            fleet,
            audit,
            listen,
        }
    }

    /// Lets somebody in, once it is on record that this is about to be done.
    async fn act<T: Send + 'static>(
        &self,
        event: &Event,
        work: impl FnOnce(&Fleet) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.audit.record(event.clone().ended(BEGUN)).await?;
        self.done(event, work).await
    }

    /// Shuts somebody out. A disk that takes no record keeps nobody in.
    async fn revoke<T: Send + 'static>(
        &self,
        event: &Event,
        work: impl FnOnce(&Fleet) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.audit.try_record(event.clone().ended(BEGUN)).await;
        self.done(event, work).await
    }

    /// Does what was asked on a blocking thread.
    async fn done<T: Send + 'static>(
        &self,
        event: &Event,
        work: impl FnOnce(&Fleet) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let fleet = self.fleet.clone();
        let done = tokio::task::spawn_blocking(move || work(&fleet)).await;
        let done = done.map_err(|_| Status::internal("the call failed in the collector"));
        done.flatten().inspect_err(|status| {
            let outcome = format!("failed: {}", status.message());
            self.audit.note(event.clone().ended(&outcome));
        })
    }
}

#[tonic::async_trait]
impl FleetService for FleetAdmin {
    async fn invite(
        &self,
        request: Request<InviteRequest>,
    ) -> Result<Response<InviteResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("invite hosts")?;
        let peer = request.remote_addr();
        let event = event(&request, "invite")?;
        let asked = request.into_inner();
        let invitation = Invitation {
            name: asked.name,
            labels: asked.labels.into_iter().collect(),
            lifetime_s: asked.lifetime_s,
            hosts_max: asked.hosts_max,
            replaces: asked.replace,
        };
        let event = event
            .with("name", invitation.name.as_str())
            .with("labels", labels(&invitation.labels))
            .with("lifetime_s", invitation.lasts_s())
            .with("hosts", invitation.hosts_max.max(1))
            .with("replace", invitation.replaces);
        let inviting = move |fleet: &Fleet| {
            let authority = fleet.authority.key_hash();
            let made = fleet.registry.invite(&invitation, authority, fleet.now());
            made.map(|made| (made, invitation))
                .map_err(|refused| status(&refused))
        };
        let ((credential, expires_unix_s), invitation) = self.act(&event, inviting).await?;
        let id = data_encoding::HEXLOWER.encode(&credential.id);
        self.audit.note(event.with("invitation", id).ended(DONE));
        tracing::info!(
            ?peer,
            invitation = data_encoding::HEXLOWER.encode(&credential.id),
            name = invitation.name,
            hosts = invitation.hosts_max.max(1),
            "invitation created"
        );
        Ok(Response::new(InviteResponse {
            credential: credential.reveal(),
            expires_unix_s,
            listen: self.listen.clone(),
            hostname: hostname(),
        }))
    }

    async fn list_members(
        &self,
        request: Request<ListMembersRequest>,
    ) -> Result<Response<ListMembersResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let mut members = self.fleet.registry.members();
        members.retain(|member| caller.sees_host(&member.name, &member.labels));
        Ok(Response::new(ListMembersResponse {
            fleet_id: self.fleet.authority.fleet_id().to_owned(),
            authority_key_sha256: self.fleet.authority.key_hash().to_vec(),
            members: members.iter().map(|member| wire(member)).collect(),
        }))
    }

    async fn remove_member(
        &self,
        request: Request<RemoveMemberRequest>,
    ) -> Result<Response<RemoveMemberResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("remove a host")?;
        let peer = request.remote_addr();
        let event = event(&request, "host-remove")?;
        let host = request.into_inner().host;
        let event = event.with("host", host.as_str());
        let removing = move |fleet: &Fleet| {
            let removed = fleet.registry.remove(&host, fleet.now());
            removed.map_err(|error| internal(&error))?.ok_or_else(|| {
                let text = format!("no host of the fleet has the name or id `{host}`");
                Status::not_found(text)
            })
        };
        let member = self.revoke(&event, removing).await?;
        self.audit.note(event.ended(DONE));
        tracing::info!(?peer, host = member.name, "host removed from the fleet");
        Ok(Response::new(RemoveMemberResponse {
            member: Some(wire(&member)),
        }))
    }

    async fn list_invitations(
        &self,
        request: Request<ListInvitationsRequest>,
    ) -> Result<Response<ListInvitationsResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("list invitations")?;
        let fleet = self.fleet.clone();
        let listing = move || fleet.registry.invitations(fleet.now());
        let listed = tokio::task::spawn_blocking(listing).await;
        let listed = listed.map_err(|_| Status::internal("the call failed in the collector"))?;
        let listed = listed.map_err(|error| internal(&error))?;
        Ok(Response::new(ListInvitationsResponse {
            invitations: listed.into_iter().map(wire_invitation).collect(),
        }))
    }

    async fn revoke_invitation(
        &self,
        request: Request<RevokeInvitationRequest>,
    ) -> Result<Response<RevokeInvitationResponse>, Status> {
        Caller::of(request.extensions())?.sees_all("revoke an invitation")?;
        let event = event(&request, "invitation-revoke")?;
        let id = request.into_inner().id;
        let event = event.with("invitation", id.as_str());
        let revoking = move |fleet: &Fleet| {
            let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(id.as_bytes());
            let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
            let revoked = match bytes {
                Some(bytes) => fleet.registry.revoke(bytes, fleet.now()),
                None => Ok(None),
            };
            revoked.map_err(|error| internal(&error))?.ok_or_else(|| {
                let text = format!("no valid invitation has the id `{id}`");
                Status::not_found(text)
            })
        };
        let revoked = self.revoke(&event, revoking).await?;
        self.audit.note(event.ended(DONE));
        Ok(Response::new(RevokeInvitationResponse {
            invitation: Some(wire_invitation(revoked)),
        }))
    }
}

fn wire_invitation(listed: Listed) -> WireInvitation {
    let Listed {
        id,
        invitation,
        made,
        expires,
        hosts,
    } = listed;
    WireInvitation {
        id: data_encoding::HEXLOWER.encode(&id),
        name: invitation.name,
        labels: invitation.labels.into_iter().collect(),
        replace: invitation.replaces,
        made_unix_s: made,
        expires_unix_s: expires,
        hosts_max: invitation.hosts_max,
        hosts,
    }
}

fn wire(member: &Member) -> WireMember {
    WireMember {
        host_id: member.host_id.clone(),
        name: member.name.clone(),
        labels: member.labels.clone().into_iter().collect(),
        key_sha256: match member.is_outside() {
            true => Vec::new(),
            false => member.key.to_vec(),
        },
        enrolled_unix_s: member.enrolled,
        renewed_unix_s: member.renewed(),
    }
}
