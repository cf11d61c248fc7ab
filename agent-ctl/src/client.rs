//! Calls to an agent.

use crate::connection::{self, Route, Transport};
use crate::exit;
use crate::peer::{Connection, Peer, Target};
use crate::when::Clock;
use anyhow::Result;
use profile::Profile;
use proto::ProfileAssembler;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::agent::capture_response::Body;
use proto::agent::{
    CancelCaptureRequest, CaptureInfo, CaptureRequest, CaptureResponse, FleetMembership,
    GetConfigRequest, GetConfigResponse, GetLedgerRequest, GetLedgerResponse, GetStatusRequest,
    GetStatusResponse, JoinFleetRequest, LeaveFleetRequest, ListCapturesRequest,
    ListCgroupsRequest, ListCgroupsResponse, ListPinsRequest, Pin, QueryProfileRequest,
    ReloadConfigRequest, ReloadConfigResponse, StreamProfilesRequest, StreamProfilesResponse,
};
use tonic::{Code, Streaming};

/// An open connection to an agent.
#[derive(Clone)]
pub struct Client {
    service: AgentServiceClient<Transport>,
    route: Route,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// See [`connection::open`].
    pub async fn connect(connection: &Connection, agent: &Peer) -> Result<Client> {
        let (transport, route) = connection::open(connection, agent).await?;
        let service = AgentServiceClient::new(transport);
        Ok(Client { service, route })
    }

    /// The clock that relative times count from: the agent's own.
    pub async fn clock(&mut self) -> Result<Clock> {
        let call = self.service.get_status(GetStatusRequest {});
        let status = self.route.answer("query the agent", call).await?;
        Ok(Clock::at(status.now_unix_ns))
    }

    /// True when the agent may be on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self.route.peer.target, Target::Tcp(_))
    }

    /// `GetStatus`.
    pub async fn status(&mut self) -> Result<GetStatusResponse> {
        let call = self.service.get_status(GetStatusRequest {});
        self.route.answer("get status", call).await
    }

    /// `ListCgroups`.
    pub async fn cgroups(&mut self, request: ListCgroupsRequest) -> Result<ListCgroupsResponse> {
        let call = self.service.list_cgroups(request);
        self.route.answer("list cgroups", call).await
    }

    /// `GetLedger`.
    pub async fn ledger(&mut self, request: GetLedgerRequest) -> Result<GetLedgerResponse> {
        let call = self.service.get_ledger(request);
        self.route.answer("get ledger", call).await
    }

    /// `ListPins`.
    pub async fn pins(&mut self) -> Result<Vec<Pin>> {
        let call = self.service.list_pins(ListPinsRequest {});
        let answer = self.route.answer("list pins", call).await?;
        Ok(answer.pins)
    }

    /// `JoinFleet`.
    pub async fn join(&mut self, request: JoinFleetRequest) -> Result<FleetMembership> {
        let call = self.service.join_fleet(request);
        let answer = self.route.answer("join the fleet", call).await?;
        Ok(answer.membership.unwrap_or_default())
    }

    /// `LeaveFleet`.
    pub async fn leave(&mut self) -> Result<()> {
        let call = self.service.leave_fleet(LeaveFleetRequest {});
        self.route.answer("leave the fleet", call).await?;
        Ok(())
    }

    /// `GetConfig`.
    pub async fn config(&mut self) -> Result<GetConfigResponse> {
        let call = self.service.get_config(GetConfigRequest {});
        self.route.answer("get configuration", call).await
    }

    /// `ReloadConfig`.
    pub async fn reload(&mut self) -> Result<ReloadConfigResponse> {
        const WHAT: &str = "reload configuration";
        let call = self.service.reload_config(ReloadConfigRequest {});
        match self.route.within(WHAT, call).await? {
            // Its file is at fault, and not what was asked for.
            Err(status) if status.code() == Code::FailedPrecondition => {
                let refused = self.route.refused(WHAT, &status);
                Err(exit::error(exit::CONFIG, refused.to_string()))
            }
            answer => self.route.answer(WHAT, async { answer }).await,
        }
    }

    /// `QueryProfile`, put together.
    pub async fn query(&mut self, request: QueryProfileRequest) -> Result<Profile> {
        const WHAT: &str = "query profile";
        let call = self.service.query_profile(request);
        let mut stream = self.route.answer(WHAT, call).await?;
        let mut assembler = ProfileAssembler::new();
        while let Some(response) = self.route.part(WHAT, stream.message()).await? {
            assembler.push(response.chunk.unwrap_or_default())?;
        }
        Ok(assembler.finish()?)
    }

    /// `Capture`.
    pub async fn capture(&mut self, request: CaptureRequest) -> Result<CaptureStream> {
        let call = self.service.capture(request);
        let stream = self.route.answer(CaptureStream::WHAT, call).await?;
        Ok(CaptureStream {
            stream,
            route: self.route.clone(),
        })
    }

    /// `CancelCapture`.
    pub async fn cancel_capture(&mut self, id: u64) -> Result<()> {
        let call = self.service.cancel_capture(CancelCaptureRequest { id });
        self.route.answer("cancel", call).await.map(|_| ())
    }

    /// `ListCaptures`.
    pub async fn captures(&mut self) -> Result<Vec<CaptureInfo>> {
        let call = self.service.list_captures(ListCapturesRequest {});
        Ok(self.route.answer("list captures", call).await?.captures)
    }

    /// `StreamProfiles`.
    pub async fn stream(&mut self, request: StreamProfilesRequest) -> Result<ProfileStream> {
        const WHAT: &str = "stream profiles";
        let call = self.service.stream_profiles(request);
        let stream = self.route.answer(WHAT, call).await?;
        Ok(ProfileStream {
            stream,
            route: self.route.clone(),
        })
    }
}

/// A capture as it goes.
pub struct CaptureStream {
    stream: Streaming<CaptureResponse>,
    route: Route,
}

impl CaptureStream {
    const WHAT: &str = "capture";

    /// What it says next; `None` when the agent ends the stream. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Body>> {
        let message = self.route.part(Self::WHAT, self.stream.message()).await?;
        Ok(message.and_then(|message| message.body))
    }
}

/// Profiles as they come.
pub struct ProfileStream {
    stream: Streaming<StreamProfilesResponse>,
    route: Route,
}

impl ProfileStream {
    /// The next profile and how many were missed before it; `None` when the agent ends the stream.
    ///
    /// Waits as long as it takes. Not cancel-safe between the chunks of one profile.
    pub async fn next(&mut self) -> Result<Option<(Profile, u32)>> {
        let mut assembler = ProfileAssembler::new();
        let mut missed = 0u32;
        while !assembler.is_complete() {
            let message = self.stream.message().await;
            match message.map_err(|status| self.route.refused("stream profiles", &status))? {
                Some(response) => {
                    missed = missed.saturating_add(response.missed);
                    assembler.push(response.chunk.unwrap_or_default())?;
                }
                None => return Ok(None),
            }
        }
        Ok(Some((assembler.finish()?, missed)))
    }
}
