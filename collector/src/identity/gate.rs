//! Who may call what on the port for other hosts: members what agents call, everybody else
//! enrollment and health. What is not named here is refused.

use super::MemberPeer;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// Paths of services that everybody may call.
const OPEN: [&str; 2] = [
    "/fleetprof.collector.v1.EnrollmentService/",
    "/grpc.health.v1.Health/",
];

/// Paths of services that members may call.
const MEMBERS: [&str; 3] = [
    "/fleetprof.collector.v1.IngestService/",
    "/fleetprof.collector.v1.ControlService/",
    "/fleetprof.collector.v1.EvidenceService/",
];

/// See the file.
#[derive(Clone, Copy)]
pub struct MembersOnly;

impl<S> Layer<S> for MembersOnly {
    type Service = Gate<S>;

    fn layer(&self, service: S) -> Gate<S> {
        Gate(service)
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct Gate<S>(S);

impl<S, Req, Res> Service<Request<Req>> for Gate<S>
where
    S: Service<Request<Req>, Response = Response<Res>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Res: Default + Send + 'static,
{
    type Response = Response<Res>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let peer = request.extensions().get::<MemberPeer>();
        let caller = match peer {
            Some(peer) if peer.member.is_some() => Caller::Member,
            Some(peer) if peer.was_member => Caller::Removed,
            _ => Caller::Stranger,
        };
        match refusal(request.uri().path(), caller) {
            None => Box::pin(self.0.call(request)),
            Some(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}

/// Who calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A host of the fleet.
    Member,
    /// One that was.
    Removed,
    /// Anybody else.
    Stranger,
}

/// Why a call is refused; none when it is not.
fn refusal(path: &str, caller: Caller) -> Option<Status> {
    let of = |services: &[&str]| services.iter().any(|service| path.starts_with(service));
    match caller {
        _ if of(&OPEN) => None,
        Caller::Member if of(&MEMBERS) => None,
        Caller::Member => Some(Status::permission_denied(
            "a host of the fleet may not call this; people ask on the collector's own machine",
        )),
        Caller::Removed => Some(Status::unauthenticated(
            "this host was removed from the fleet: invite it again (`agent-ctl hosts invite`)",
        )),
        Caller::Stranger => Some(Status::unauthenticated(
            "this is the port for hosts of the fleet: join it first (`agent-ctl join`)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::FileDescriptorSet;
    use proto::DESCRIPTORS;

    /// Every call of the protocol, and who may make it here. A call that is not in this table fails
    /// the test, so that nobody adds one without deciding that.
    const TABLE: [(&str, bool, bool); 8] = [
        // Service, who is no member, members.
        ("fleetprof.collector.v1.EnrollmentService", true, true),
        ("fleetprof.collector.v1.IngestService", false, true),
        ("fleetprof.collector.v1.ControlService", false, true),
        ("fleetprof.collector.v1.EvidenceService", false, true),
        ("fleetprof.collector.v1.QueryService", false, false),
        ("fleetprof.collector.v1.CaptureService", false, false),
        ("fleetprof.collector.v1.PinService", false, false),
        ("fleetprof.collector.v1.SymbolService", false, false),
    ];

    #[test]
    fn every_call_is_allowed_to_those_of_the_table() {
        let set: FileDescriptorSet = prost::Message::decode(DESCRIPTORS).expect("descriptors");
        let mut calls = 0;
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                let row = TABLE.iter().find(|row| row.0 == name);
                let (anybody, member) = match row {
                    Some(&(_, anybody, member)) => (anybody, member),
                    // For those who run the fleet, and the agent's own services, which no collector
                    // has.
                    None if name == "fleetprof.collector.v1.FleetService" => (false, false),
                    None if name.starts_with("fleetprof.agent.v1.") => (false, false),
                    None => panic!("{name} is not in the table"),
                };
                for method in &service.method {
                    let path = format!("/{name}/{}", method.name());
                    for (caller, may) in [
                        (Caller::Stranger, anybody),
                        (Caller::Removed, anybody),
                        (Caller::Member, member),
                    ] {
                        assert_eq!(refusal(&path, caller).is_none(), may, "{path}");
                    }
                    calls += 1;
                }
            }
        }
        assert!(calls > 20, "{calls} calls");
    }

    #[test]
    fn what_is_no_call_of_ours_is_refused() {
        for path in [
            "/",
            "",
            "/fleetprof.collector.v1.IngestServiceX/Push",
            "/fleetprof.collector.v1.QueryService/Profile",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/metrics",
        ] {
            for caller in [Caller::Stranger, Caller::Removed, Caller::Member] {
                assert!(refusal(path, caller).is_some(), "{path}");
            }
        }
    }
}
