//! The pins of a fake collector: those of the fake agent, one of each of two hosts.

use super::{Fake, HOSTS};
use crate::fake::agent::pins;
use crate::fake::samples::{Answers, NOW_NS, chunks, profile, select};
use proto::collector::pin_service_server::PinService;
use proto::collector::*;
use tonic::{Request, Response, Status};

#[tonic::async_trait]
impl PinService for Fake {
    type ProfileStream = Answers<PinProfileResponse>;

    async fn list(
        &self,
        request: Request<ListHostPinsRequest>,
    ) -> Result<Response<ListHostPinsResponse>, Status> {
        let request = request.into_inner();
        let details = match request.id {
            0 => format!("host=[{}] trigger=[{}]", request.host, request.trigger),
            id => format!("id={id}"),
        };
        self.admit("pins", details).await?;
        let pins = match self.behaviour.empty {
            true => Vec::new(),
            false => pins(),
        };
        let of_host = |(at, pin): (usize, proto::agent::Pin)| HostPin {
            id: 40 + at as u64,
            host_id: format!("id-{at}"),
            hostname: HOSTS[2 * at].0.to_owned(),
            pin: Some(pin),
            received_unix_ns: NOW_NS,
            clock_ahead_ns: 0,
        };
        Ok(Response::new(ListHostPinsResponse {
            pins: pins
                .into_iter()
                .enumerate()
                .map(of_host)
                .filter(|pin| request.id == 0 || pin.id == request.id)
                .collect(),
            left_out: 2 * u64::from(self.behaviour.damaged),
        }))
    }

    async fn profile(
        &self,
        request: Request<PinProfileRequest>,
    ) -> Result<Response<Self::ProfileStream>, Status> {
        let request = request.into_inner();
        let details = format!(
            "{} captured={} times={}",
            request.id, request.captured, request.times
        );
        self.admit("pin", details).await?;
        let found = select(
            &profile(1),
            &request.matchers,
            &request.frame_filters,
            &request.group_by,
        )?;
        let parts = chunks(found).map(|chunk| Ok(PinProfileResponse { chunk: Some(chunk) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }
}
