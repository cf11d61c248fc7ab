//! The captures of a fake collector: three hosts that answer, one that fails, one that is lost, one
//! that is not connected; or as its behaviour says.

use super::{Fake, HOSTS, everything};
use crate::fake::samples::{Answers, NOW_NS, S, chunks};
use proto::agent::{CaptureProgress, CaptureRequest, LabelMatcher, MatchOp};
use proto::collector::capture_service_server::CaptureService;
use proto::collector::fleet_capture_response::Body;
use proto::collector::*;
use tonic::{Request, Response, Status};

/// The id of its captures.
const ID: u64 = 7;

/// The id of the one that it keeps.
const KEPT: u64 = 5;

fn host(name: &str, state: HostState, message: &str) -> HostProgress {
    HostProgress {
        host_id: format!("id-{name}"),
        hostname: name.to_owned(),
        state: state.into(),
        progress: Some(CaptureProgress {
            samples: 1000,
            elapsed_ns: 2 * S as u64,
            ..CaptureProgress::default()
        }),
        message: message.to_owned(),
        notices: Vec::new(),
    }
}

impl Fake {
    /// The hosts at the end, and how many match and are not connected.
    fn outcome(&self) -> (Vec<HostProgress>, u32) {
        let state = match self.behaviour.empty {
            true => HostState::Failed,
            false => HostState::Done,
        };
        let mut all: Vec<_> = HOSTS
            .iter()
            .map(|(name, _)| host(name, state, ""))
            .collect();
        if self.behaviour.empty {
            all[0].message = "captures are switched off\x1b[2J".to_owned();
        }
        if self.behaviour.healthy || self.behaviour.empty {
            return (all, 0);
        }
        all[0].notices = vec!["the kernel throttled it 3 times\x07".to_owned()];
        all.push(host(
            "db-2",
            HostState::Failed,
            "the target is gone\u{202e}",
        ));
        all.push(host(
            "db-3",
            HostState::Lost,
            "the connection of the host ended",
        ));
        (all, 1)
    }

    fn info(&self, request: FleetCaptureRequest) -> FleetCaptureInfo {
        let (hosts, _) = self.outcome();
        let of = |states: &[HostState]| {
            let found = hosts.iter().filter(|host| states.contains(&host.state()));
            found.count() as u32
        };
        FleetCaptureInfo {
            id: ID,
            request: Some(request),
            peer: "127.0.0.1:5000".to_owned(),
            started_unix_ns: NOW_NS - 60 * S,
            elapsed_ns: 12 * S as u64,
            asked: hosts.len() as u32,
            answered: of(&[HostState::Done]),
            failed: of(&[HostState::Failed]),
            lost: of(&[HostState::Lost]),
            hosts,
            ..FleetCaptureInfo::default()
        }
    }
}

/// A request in a line.
fn shown(request: &FleetCaptureRequest) -> String {
    let capture = request.capture.clone().unwrap_or_default();
    let matchers = capture.matchers.iter().map(|matcher| {
        let op = match matcher.op() {
            MatchOp::Equal => "=",
            MatchOp::Regex => "=~",
            _ => "?",
        };
        format!("{}{op}{}", matcher.label, matcher.value)
    });
    let matchers: Vec<String> = matchers.collect();
    format!(
        "[{}] {} for {} s, at most {} hosts, {} s of patience, by [{}]",
        matchers.join(" "),
        capture.event,
        capture.duration_ns / S as u64,
        request.max_hosts,
        request.patience_ns / S as u64,
        capture.group_by.join(",")
    )
}

#[tonic::async_trait]
impl CaptureService for Fake {
    type CaptureStream = Answers<FleetCaptureResponse>;
    type ProfileStream = Answers<FleetCaptureProfileResponse>;

    async fn capture(
        &self,
        request: Request<FleetCaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let request = request.into_inner();
        self.admit("capture", shown(&request)).await?;
        let capture = request.capture.clone().unwrap_or_default();
        let (hosts, absent) = self.outcome();
        let mut bodies = vec![Body::Plan(FleetPlan {
            id: ID,
            hosts: hosts
                .iter()
                .map(|one| HostProgress {
                    progress: None,
                    ..host(&one.hostname, HostState::Waiting, "")
                })
                .collect(),
            selected: hosts.len() as u32 + absent,
            left_out: 0,
            absent,
            absent_hosts: vec!["away".to_owned(); absent as usize],
        })];
        let running = hosts
            .iter()
            .map(|one| host(&one.hostname, HostState::Running, ""));
        bodies.extend(running.map(Body::Host));
        // The end of the last is told by the result alone.
        let early = hosts.iter().take(hosts.len() - 1).cloned();
        bodies.extend(early.map(Body::Host));
        // One that nobody asked.
        bodies.push(Body::Host(host("stranger", HostState::Running, "")));
        if !self.behaviour.empty {
            let profile =
                everything(false).group_by(&profile::GroupBy::from_keys(&capture.group_by));
            if capture.before_ns > 0 {
                bodies.extend(chunks(profile.clone()).map(Body::Past));
            }
            bodies.extend(chunks(profile).map(Body::Chunk));
        }
        if self.behaviour.empty_parts {
            bodies.truncate(3);
        } else {
            bodies.push(Body::Result(self.info(request)));
        }
        let all = bodies.into_iter().map(|body| {
            let body = Some(body);
            Ok(FleetCaptureResponse { body })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(
            all.collect::<Vec<_>>(),
        ))))
    }

    async fn cancel(
        &self,
        request: Request<CancelFleetCaptureRequest>,
    ) -> Result<Response<CancelFleetCaptureResponse>, Status> {
        let id = request.into_inner().id;
        self.admit("cancel", id.to_string()).await?;
        match id == ID {
            true => Ok(Response::new(CancelFleetCaptureResponse {})),
            false => Err(Status::not_found(format!("none with id {id} runs"))),
        }
    }

    async fn list(
        &self,
        _: Request<ListFleetCapturesRequest>,
    ) -> Result<Response<ListFleetCapturesResponse>, Status> {
        self.admit("list", String::new()).await?;
        let of = |event: &str, who: &str| FleetCaptureRequest {
            selector: "zone=\"a\"".to_owned(),
            capture: Some(CaptureRequest {
                event: event.to_owned(),
                who: who.to_owned(),
                duration_ns: 10 * S as u64,
                matchers: vec![LabelMatcher {
                    label: "unit".to_owned(),
                    op: MatchOp::Equal.into(),
                    value: "api\x1b".to_owned(),
                }],
                ..CaptureRequest::default()
            }),
            ..FleetCaptureRequest::default()
        };
        let runs = FleetCaptureInfo {
            id: 8,
            running: true,
            ..self.info(of("off-cpu", ""))
        };
        let ended = FleetCaptureInfo {
            ended_by: "the client left".to_owned(),
            ..self.info(of("", "ada\x1b[2J"))
        };
        let kept = FleetCaptureInfo {
            id: KEPT,
            kept: true,
            has_past: true,
            bytes: 310 << 10,
            ..self.info(of("", "grace"))
        };
        Ok(Response::new(ListFleetCapturesResponse {
            captures: vec![runs, ended, kept],
            left_out: 0,
        }))
    }

    async fn profile(
        &self,
        request: Request<FleetCaptureProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        use fleet_capture_profile_response::Body;
        let asked = request.into_inner();
        let side = if asked.past { "past" } else { "own" };
        let by = asked.group_by.join(",");
        self.admit("profile", format!("{} {side} by [{by}]", asked.id))
            .await?;
        if asked.id != KEPT {
            return Err(Status::not_found(format!(
                "there is no capture `{}`",
                asked.id
            )));
        }
        let profile = everything(false).group_by(&profile::GroupBy::from_keys(&asked.group_by));
        let info = FleetCaptureInfo {
            id: KEPT,
            kept: true,
            ..self.info(FleetCaptureRequest::default())
        };
        let bodies = std::iter::once(Body::Info(info)).chain(chunks(profile).map(Body::Chunk));
        let parts = bodies.map(|body| Ok(FleetCaptureProfileResponse { body: Some(body) }));
        let parts = tokio_stream::iter(parts.collect::<Vec<_>>());
        Ok(Response::new(Box::pin(parts)))
    }

    async fn delete(
        &self,
        request: Request<DeleteFleetCaptureRequest>,
    ) -> Result<Response<DeleteFleetCaptureResponse>, Status> {
        let id = request.into_inner().id;
        self.admit("delete", id.to_string()).await?;
        match id == KEPT {
            true => Ok(Response::new(DeleteFleetCaptureResponse {})),
            false => Err(Status::not_found(format!(
                "no capture with ID {id} is kept"
            ))),
        }
    }
}
