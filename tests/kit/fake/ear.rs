//! A fake collector that keeps every byte: windows, what captures that it orders bring, and pins.

use super::memory::{Memory, lock};
use proto::agent::capture_response::Body;
use proto::collector as wire;
use proto::collector::control_request::Body as AgentMessage;
use proto::collector::control_response::Body as CollectorMessage;
use proto::collector::control_service_server::ControlService;
use proto::collector::pin_upload_service_server::PinUploadService;
use proto::collector::report::What;
use proto::collector::{command, upload_pin_request};
use proto::convert::ProfileAssembler;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// How often it is looked whether there is something to order.
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Ear {
    pub memory: Arc<Mutex<Memory>>,
}

#[tonic::async_trait]
impl ControlService for Ear {
    type ControlStream = ReceiverStream<Result<wire::ControlResponse, Status>>;

    async fn control(
        &self,
        request: Request<Streaming<wire::ControlRequest>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        let memory = Arc::clone(&self.memory);
        let (say, answers) = mpsc::channel(16);
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            let respond = |body| Ok(wire::ControlResponse { body: Some(body) });
            let welcome = CollectorMessage::Welcome(wire::ControlWelcome::default());
            let _ = say.send(respond(welcome)).await;
            let mut number = 0;
            let mut assembler = ProfileAssembler::new();
            loop {
                let ordered = lock(&memory).heard.orders.pop();
                if let Some(order) = ordered {
                    number += 1;
                    let what = Some(command::What::Capture(order));
                    let command = CollectorMessage::Command(wire::Command { number, what });
                    let _ = say.send(respond(command)).await;
                }
                let next = tokio::time::timeout(LOOK, requests.message()).await;
                let message = match next {
                    Err(_) => continue,
                    Ok(Ok(Some(message))) => message,
                    Ok(_) => return,
                };
                let mut memory = lock(&memory);
                memory.heard.hear(&message);
                let Some(AgentMessage::Report(report)) = message.body else {
                    continue;
                };
                match report.what {
                    Some(What::Refusal(refusal)) => {
                        memory.heard.captures.push(Err(refusal.message));
                    }
                    Some(What::Response(response)) => match response.body {
                        Some(Body::Chunk(chunk)) => assembler.push(chunk).expect("a profile"),
                        Some(Body::Result(_)) => {
                            let whole = std::mem::take(&mut assembler);
                            let profile = whole.finish().expect("a profile");
                            memory.heard.captures.push(Ok(profile));
                        }
                        _ => {}
                    },
                    None => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

#[tonic::async_trait]
impl PinUploadService for Ear {
    async fn upload(
        &self,
        request: Request<Streaming<wire::UploadPinRequest>>,
    ) -> Result<Response<wire::UploadPinResponse>, Status> {
        let mut requests = request.into_inner();
        let mut trigger = String::new();
        let mut parts = 0;
        while let Some(message) = requests.message().await? {
            lock(&self.memory).heard.hear(&message);
            match message.body {
                Some(upload_pin_request::Body::Head(head)) => {
                    trigger = head.pin.unwrap_or_default().trigger;
                }
                _ => parts += 1,
            }
        }
        if parts > 0 {
            lock(&self.memory).heard.pins.push(trigger);
        }
        Ok(Response::new(wire::UploadPinResponse { repeated: false }))
    }
}
