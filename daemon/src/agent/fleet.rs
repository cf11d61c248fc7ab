//! The host as a member of a fleet: joining, leaving, and what there is to say of it.

use super::Agent;
use agent_config::Config;
use export::Target;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::MonotonicTime;
use identity::{EnrollError, HostMember, HostName, JoinError, StoreError};
use profile::text::with_causes;
use proto::agent as wire;
use proto::credential::Credential;
use std::io;
use std::sync::{Arc, OnceLock};
use tonic::Status;

/// Unit: nanoseconds.
const SECOND_NS: i64 = 1_000_000_000;

/// Starts what talks to a collector, when the host joins a fleet while the daemon runs.
type StartUplink = Box<dyn Fn(Target) -> io::Result<()> + Send + Sync>;

/// See the module.
pub struct Fleet {
    /// The host's identity, or why it cannot be read.
    member: Result<Arc<HostMember>, String>,
    start_uplink: OnceLock<StartUplink>,
}

impl Fleet {
    /// Reads the identity that the host has, if it has one.
    pub fn open(config: &Config, host: HostName) -> Fleet {
        let dir = config.collector.identity_dir.clone();
        let member = HostMember::open(dir, host).map(Arc::new);
        if let Err(error) = &member {
            tracing::error!("{}", with_causes(error));
        }
        Fleet {
            member: member.map_err(|error: StoreError| with_causes(&error)),
            start_uplink: OnceLock::new(),
        }
    }

    /// Says how the uplink is started later. Once.
    pub fn set_starter(&self, start: impl Fn(Target) -> io::Result<()> + Send + Sync + 'static) {
        // The supervisor sets it once.
        let _ = self.start_uplink.set(Box::new(start));
    }

    /// Where windows go from the start on: where the configuration says, or else to the fleet that
    /// the host has joined.
    pub fn target(&self, config: &Config) -> Option<Target> {
        if let Some(address) = config.collector.address {
            return Some(Target::Configured(address));
        }
        let member = self.member.as_ref().ok()?;
        member
            .membership()
            .map(|_| Target::Fleet(Arc::clone(member)))
    }

    /// The host's identity.
    pub fn member(&self) -> Option<&Arc<HostMember>> {
        self.member.as_ref().ok()
    }

    /// What the host is in its fleet.
    pub fn status(&self) -> Option<wire::FleetMembership> {
        let member = self.member()?;
        let membership = member.membership()?;
        Some(wire::FleetMembership {
            collector: membership.collector,
            fleet_id: membership.fleet_id,
            name: membership.name,
            labels: membership.labels.into_iter().collect(),
            not_after_unix_s: membership.not_after_unix_s,
            renewal_error: member.renewal().failed.unwrap_or_default(),
        })
    }

    /// What does not work as it should. `now_unix_ns` is wall time.
    pub fn degradations(&self, now_unix_ns: i64) -> Vec<Degradation> {
        let member = match &self.member {
            Ok(member) => member,
            Err(why) => {
                return vec![Degradation {
                    id: "identity_unreadable",
                    message: format!("this host pushes to no fleet: {why}"),
                    remedy:
                        "remove the directory `collector.identity_dir`, restart, and join again"
                            .to_owned(),
                    severity: Severity::Error,
                }];
            }
        };
        let (Some(membership), Some(why)) = (member.membership(), member.renewal().failed) else {
            return Vec::new();
        };
        let left_s = membership.not_after_unix_s - now_unix_ns / SECOND_NS;
        let (severity, when) = match left_s {
            ..=0 => (Severity::Error, "has ended".to_owned()),
            left => (Severity::Warning, format!("ends in {} h", left / 3600)),
        };
        vec![Degradation {
            id: "certificate_not_renewed",
            message: format!("the certificate of this host {when} and cannot be renewed: {why}"),
            remedy: "let the host reach its collector; if it was removed, invite it again with \
                     `agent-ctl hosts invite`"
                .to_owned(),
            severity,
        }]
    }
}

impl Agent {
    /// Joins the fleet that made an invitation; the future does it.
    pub(super) fn join(
        &self,
        collector: String,
        credential: Credential,
    ) -> impl Future<Output = Result<wire::FleetMembership, Status>> + Send + use<> {
        let fleet = Arc::clone(&self.fleet);
        let configured = lock(&self.settings.active).config.collector.address;
        let now_unix_s = self.clock.to_unix_ns(MonotonicTime::now()) / SECOND_NS;
        async move {
            if let Some(address) = configured {
                return Err(Status::failed_precondition(format!(
                    "this host pushes to {address}, which its configuration names: remove \
                     `collector.address` and restart the agent first"
                )));
            }
            let member = fleet.member.as_ref().map_err(|why| {
                Status::failed_precondition(format!("failed to read the host's identity: {why}"))
            })?;
            let joined = member.join(&collector, &credential, now_unix_s).await;
            let membership = joined.map_err(|error| refusal(&error))?;
            if let Some(start) = fleet.start_uplink.get() {
                let target = Target::Fleet(Arc::clone(member));
                start(target).map_err(|error| {
                    Status::internal(format!("joined, but failed to start pushing: {error}"))
                })?;
            }
            tracing::info!(
                fleet = membership.fleet_id,
                collector = membership.collector,
                name = membership.name,
                "this host has joined a fleet"
            );
            fleet
                .status()
                .ok_or_else(|| Status::internal("it was left at the same moment"))
        }
    }

    /// Leaves the fleet; the future does it.
    pub(super) fn leave(&self) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let fleet = Arc::clone(&self.fleet);
        async move {
            let none = || Status::not_found("this host is a member of no fleet");
            let member = fleet.member().ok_or_else(none)?;
            let left = member.membership().ok_or_else(none)?;
            member.leave().await.map_err(|error| refusal(&error))?;
            tracing::info!(fleet = left.fleet_id, "this host has left its fleet");
            Ok(())
        }
    }
}

/// Why a host does not join, for whoever asked.
fn refusal(error: &JoinError) -> Status {
    let text = with_causes(error);
    match error {
        JoinError::Enroll(EnrollError::Refused(status)) => Status::new(status.code(), text),
        JoinError::Enroll(EnrollError::Address { .. }) => Status::invalid_argument(text),
        JoinError::Enroll(EnrollError::WrongFleet { .. }) => Status::unauthenticated(text),
        JoinError::Enroll(_) => Status::unavailable(text),
        JoinError::Store(_) | JoinError::Thread => Status::internal(text),
    }
}
