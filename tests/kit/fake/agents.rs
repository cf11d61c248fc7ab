//! A fleet of agents on a thread of its own, for tests that run the collector as a process: each
//! pushes a window, so that its host is known by its samples, and connects.

use super::control::{Does, connect};
use super::push::{PushStream, channel, hello};
use super::window::{SECOND, labels, starting, window};
use crate::clock::unix_ns;
use proto::collector::{Hello, Outcome};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest wait for all of them to connect.
const CONNECT: Duration = Duration::from_secs(120);

/// The one stack of their windows.
const STACKS: &[&str] = &["main;spin"];

/// Agents that are connected until they are dropped.
pub struct Agents {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agents {
    /// Has each host push a window of unit `api.service` and connect to `collector`; returns when
    /// all do.
    ///
    /// # Panics
    /// When the collector does not take one.
    pub fn start(collector: &str, hosts: Vec<(String, Does)>) -> Agents {
        let collector = collector.to_owned();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let mut connected = Vec::new();
                for (host, does) in hosts {
                    push(&collector, &host).await;
                    let agent = connect(&collector, now(&host), does, unix_ns).await;
                    connected.push(agent.expect("a welcome"));
                }
                let _ = ready.send(());
                let _ = stopped.await;
            });
        });
        is_ready.recv_timeout(CONNECT).expect("all connect");
        Agents {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A Hello by the real clock.
fn now(host: &str) -> Hello {
    Hello {
        now_unix_ns: unix_ns(),
        ..hello(host, 1)
    }
}

/// Pushes one window of the last ten seconds and waits for the acknowledgement.
async fn push(collector: &str, host: &str) {
    let stream = PushStream::connect(channel(collector).await).await;
    let mut agent = stream.expect("a stream");
    agent.hello(now(host)).await;
    let mut part = starting(unix_ns() - 10 * SECOND, window(0, STACKS));
    part.label_sets = vec![labels(&[("unit", "api.service")])];
    let ack = agent.store_part(part, STACKS).await;
    assert_eq!(ack.outcome(), Outcome::Stored, "{}", ack.reason);
}
