//! Tests gRPC connections: who holds a place, and for how long.

use crate::rig::{LIMIT, Options, PushStream, Rig, hello};
use proto::calls::Patience;
use proto::collector::{Outcome, StatusRequest};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Short enough to be waited for.
const SOON: Duration = Duration::from_millis(300);

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

async fn rig(first_call: Duration, idle: Duration) -> Rig {
    let options = Options {
        patience: Patience { first_call, idle },
        ..Options::default()
    };
    Rig::with(options).await
}

/// Waits until a connection is closed for lack of calls and no other is open.
async fn closed(rig: &Rig) {
    let metrics = &rig.metrics;
    let is_closed = async {
        while metrics.connections_silent.get() == 0 || metrics.connections_grpc.get() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, is_closed)
        .await
        .expect("the place comes back");
    assert_eq!(metrics.connections_silent.get(), 1);
}

#[tokio::test]
async fn a_peer_that_answers_pings_and_never_calls_gives_its_place_back() {
    let rig = rig(SOON, NEVER).await;
    // The client library says its preface and answers pings; it calls when it is told to.
    let _silent = rig.channel().await;
    closed(&rig).await;
}

#[tokio::test]
async fn a_peer_that_called_long_ago_gives_its_place_back() {
    let rig = rig(NEVER, SOON).await;
    let mut queries = rig.queries().await;
    let asked = queries.status(StatusRequest {}).await;
    asked.expect("an answer");
    closed(&rig).await;
    // And is welcome again.
    let asked = queries.status(StatusRequest {}).await;
    asked.expect("an answer");
}

#[tokio::test]
async fn a_stream_that_is_open_holds_its_place() {
    let rig = rig(SOON, SOON).await;
    let mut agent = PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
    agent.hello(hello("a", 1)).await;
    sleep(4 * SOON).await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, Outcome::Stored as i32);
    assert_eq!(rig.metrics.connections_silent.get(), 0);
}
