//! The commands of one stream: captures started for the collector, and their results.
//!
//! One task per capture passes its messages to the stream. If the stream is slow, progress messages
//! are skipped, and the profile waits in the capture that produces it: nothing is buffered here.
//! When a task ends or is aborted, it drops its end of the capture, which cancels the capture.

use super::{Charge, Control, ControlCounts, request};
use capture::{Asker, Capturing};
use export::Quota;
use profile::text::is_hostile;
use proto::agent::capture_response::Body;
use proto::agent::{CaptureRequest, CaptureResponse};
use proto::collector::control_request::Body as AgentMessage;
use proto::collector::{Command, ControlRequest, Refusal, Report, command, report};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, Id, JoinSet};
use tonic::Status;

/// Captures of a collector at a time. More are refused; what makes captures has a bound of its own
/// over all who ask.
pub const COMMANDS_MAX: usize = 8;

/// Most commands that run or whose last report waits for the stream. A collector that sends more
/// and reads nothing is disconnected.
const UNREAD_MAX: usize = 64;

/// Longest word on who asks that goes into the peer of a capture. Unit: bytes.
const WHO_BYTES_MAX: usize = 256;

/// A command that no collector of this protocol sends.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Numbers grow.
    #[error("the collector sent command `{number}` after `{last}`")]
    Number {
        /// The number of this command.
        number: u64,
        /// The number of the one before.
        last: u64,
    },
    /// It only talks.
    #[error("the collector sends commands but does not read the reports")]
    Unread,
}

/// See the module.
pub struct Commands<'c> {
    control: &'c Control,
    out: mpsc::Sender<ControlRequest>,
    last: u64,
    running: HashMap<u64, Running>,
    tasks: JoinSet<()>,
}

struct Running {
    cancel: watch::Sender<bool>,
    task: AbortHandle,
}

impl<'c> Commands<'c> {
    /// None yet; their reports go to `out`.
    pub fn new(control: &'c Control, out: mpsc::Sender<ControlRequest>) -> Commands<'c> {
        Commands {
            control,
            out,
            last: 0,
            running: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Does what the collector says.
    ///
    /// # Errors
    /// When it makes no sense: the stream cannot go on.
    pub fn take(&mut self, command: Command) -> Result<(), CommandError> {
        let (number, last) = (command.number, self.last);
        if number <= last {
            return Err(CommandError::Number { number, last });
        }
        if self.tasks.len() >= UNREAD_MAX {
            return Err(CommandError::Unread);
        }
        self.last = number;
        match command.what {
            Some(command::What::Capture(request)) => self.capture(number, request),
            Some(command::What::Cancel(of)) => {
                // One that has ended has said so.
                if let Some(running) = self.running.get(&of) {
                    running.cancel.send_replace(true);
                }
            }
            Some(command::What::Drop(of)) => {
                if let Some(running) = self.running.remove(&of) {
                    self.control.counts.given_up.inc();
                    running.task.abort();
                }
            }
            None => {
                let status = Status::unimplemented(
                    "this version of the daemon does not know the \
                    command",
                );
                self.refuse(number, status);
            }
        }
        Ok(())
    }

    /// True when nothing of them is left to be sent.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Completes when a task has ended; never completes without one.
    pub async fn one_ended(&mut self) {
        let ended = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
            None => return std::future::pending().await,
        };
        self.forget(ended);
    }

    fn forget(&mut self, ended: Id) {
        self.running.retain(|_, running| running.task.id() != ended);
    }

    fn capture(&mut self, number: u64, request: CaptureRequest) {
        let collector = self.control.exporter.collector();
        let order = Order {
            collector: collector.to_string(),
            fleet: collector.fleet(),
            who: who(&request.who),
            event: who(&request.event),
        };
        let (request, asker, charge) = match self.admit(request) {
            Ok(admitted) => admitted,
            Err(status) => {
                order.refused(&status);
                return self.refuse(number, status);
            }
        };
        let counts = self.control.counts.clone();
        let (cancel, cancelled) = watch::channel(false);
        let pump = Pump {
            number,
            order,
            out: self.out.clone(),
            capturing: Arc::clone(&self.control.capturing),
            starts: self.control.starts.clone(),
            counts,
            cancelled,
        };
        let task = self.tasks.spawn(async move {
            pump.start(request, asker).await;
            drop(charge);
        });
        self.running.insert(number, Running { cancel, task });
    }

    /// The capture, the asker and the charge, if the policy allows it.
    fn admit(&self, request: CaptureRequest) -> Result<(CaptureRequest, Asker, Charge), Status> {
        if self.running.len() >= COMMANDS_MAX {
            return Err(Status::resource_exhausted(format!(
                "the collector already runs {COMMANDS_MAX} captures on this host, which is the \
                 limit"
            )));
        }
        let (request, charge) = self.control.admit(request)?;
        let address = self.control.exporter.collector();
        let peer = match who(&request.who) {
            who if who.is_empty() => format!("collector {address}"),
            who => format!("collector {address} for {who}"),
        };
        let withhold = self.control.exporter.withhold();
        Ok((request, Asker::elsewhere(peer, withhold), charge))
    }

    /// Says that a command will come to nothing.
    fn refuse(&mut self, number: u64, status: Status) {
        self.control.counts.refused.inc();
        let (out, message) = (self.out.clone(), refusal(number, status));
        // Behind what the stream is slow with.
        self.tasks.spawn(async move {
            let _ = out.send(message).await;
        });
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        self.control
            .counts
            .given_up
            .inc_by(self.running.len() as u64);
    }
}

/// The asker, as one line of bounded plain text that is safe for logs and terminals.
fn who(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(WHO_BYTES_MAX)];
    text.chars().filter(|&c| !is_hostile(c)).collect()
}

fn report(number: u64, what: report::What) -> ControlRequest {
    let what = Some(what);
    request(AgentMessage::Report(Report { number, what }))
}

fn refusal(number: u64, status: Status) -> ControlRequest {
    let what = report::What::Refusal(Refusal {
        code: status.code().into(),
        message: status.message().to_owned(),
    });
    report(number, what)
}

/// What a collector ordered, as the log of this host has it.
struct Order {
    collector: String,
    /// What it has proved, beside what it says.
    fleet: Option<String>,
    who: String,
    event: String,
}

impl Order {
    fn fleet(&self) -> &str {
        let fleet = self.fleet.as_deref();
        fleet.unwrap_or("unknown: not authenticated")
    }

    fn started(&self) {
        tracing::info!(
            collector = self.collector,
            fleet = self.fleet(),
            who = self.who,
            event = self.event,
            "capture from the collector started"
        );
    }

    /// Also of what is found out only when its target is looked for: that all of it is withheld.
    fn refused(&self, status: &Status) {
        tracing::warn!(
            collector = self.collector,
            fleet = self.fleet(),
            who = self.who,
            event = self.event,
            reason = status.message(),
            "capture from the collector refused"
        );
    }
}

/// Forwards the messages of one capture to the stream.
struct Pump {
    number: u64,
    order: Order,
    out: mpsc::Sender<ControlRequest>,
    capturing: Arc<dyn Capturing>,
    starts: Quota,
    counts: ControlCounts,
    cancelled: watch::Receiver<bool>,
}

impl Pump {
    /// Starts the capture where blocking is allowed: a file that it needs may not answer, and
    /// others go on.
    async fn start(self, request: CaptureRequest, asker: Asker) {
        let capturing = Arc::clone(&self.capturing);
        let start = move || {
            let started = catch_unwind(AssertUnwindSafe(|| capturing.start(request, asker)));
            started.unwrap_or_else(|_| Err(Status::internal("failed to start the capture")))
        };
        match self.starts.run(start).await {
            Ok(messages) => {
                self.order.started();
                self.counts.captures.inc();
                self.run(messages).await;
            }
            Err(status) => {
                self.order.refused(&status);
                self.counts.refused.inc();
                let _ = self.out.send(refusal(self.number, status)).await;
            }
        }
    }

    async fn run(mut self, mut messages: mpsc::Receiver<CaptureResponse>) {
        let mut id = None;
        let mut asked = false;
        let ended = loop {
            let message = tokio::select! {
                message = messages.recv() => message,
                _ = self.cancelled.wait_for(|&cancelled| cancelled), if !asked && id.is_some() => {
                    asked = true;
                    if let Some(id) = id {
                        // One that has just ended needs none.
                        self.capturing.cancel(id);
                    }
                    continue;
                }
            };
            let Some(message) = message else {
                break false;
            };
            let last = matches!(message.body, Some(Body::Result(_)));
            let progress = matches!(message.body, Some(Body::Progress(_)));
            if let Some(Body::Accepted(info)) = &message.body {
                id = Some(info.id);
            }
            let message = report(self.number, report::What::Response(message));
            let sent = match progress {
                true => self.try_send(message),
                false => self.out.send(message).await.is_ok(),
            };
            if last || !sent {
                break true;
            }
        };
        if !ended {
            let status = Status::internal("the capture ended without a result");
            let _ = self.out.send(refusal(self.number, status)).await;
        }
    }

    /// Leaves out what finds no room; false when the stream has ended.
    fn try_send(&self, message: ControlRequest) -> bool {
        match self.out.try_send(message) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.counts.skipped.inc();
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}
