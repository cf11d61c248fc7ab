//! Tests how windows of agents reach the server: about one insert per second and table, packed.

use super::{asked, fresh_name, inserted, open};
use crate::front::{Front, LoggedQuery};
use collector::config::Config;
use collector::server;
use collector::store::OpenStore;
use collector::time::Clock;
use proto::collector::Outcome;
use std::sync::Arc;
use testkit::fake::push::{PushStream, channel, hello};
use testkit::fake::window::{NOW, window};
use tokio::sync::{oneshot, watch};

/// Agents that push at once, and windows of each.
const AGENTS: usize = 6;
const WINDOWS: u64 = 5;

/// A stack of a window: long names that differ in little, as those of programs do.
fn stack(number: usize) -> String {
    let frame = |depth: usize| format!("service::handler::request_{}::poll", depth * number % 7);
    let frames: Vec<String> = (0..20).map(frame).collect();
    format!("main;{};leaf{number}", frames.join(";"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_many_agents_are_an_insert_a_second_and_packed() {
    // An engine of its own: others' statements would stand before those of this test.
    let own = tempfile::tempdir().unwrap();
    let front = match Front::start(own.path(), 0) {
        Ok(front) => front,
        Err(why) => return testkit::skip(format_args!("{why}")),
    };
    let name = fresh_name();
    let url = front.url();
    let store = {
        let name = name.clone();
        let opened = tokio::task::spawn_blocking(move || open(&url, &name));
        OpenStore::of(Arc::new(opened.await.unwrap()))
    };
    let (stop, stopping) = watch::channel(false);
    let (tell, told) = oneshot::channel();
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    directory.path().clone_into(&mut config.data_dir);
    config.listen.grpc.set_port(0);
    config.listen.http.set_port(0);
    let task = tokio::spawn(async move {
        let ready = |at| tell.send(at).unwrap();
        server::serve(&config, store, Clock::new(|| NOW), stopping, ready).await
    });
    let at = told.await.unwrap().grpc;

    let stacks: Vec<String> = (0..80).map(stack).collect();
    let agents = (0..AGENTS).map(|agent| {
        let stacks = stacks.clone();
        tokio::spawn(async move {
            let stacks: Vec<&str> = stacks.iter().map(String::as_str).collect();
            let mut agent_of = PushStream::connect(channel(at).await).await.unwrap();
            agent_of.hello(hello(&format!("h{agent}"), 1)).await;
            for sequence in 0..WINDOWS {
                let ack = agent_of
                    .store_part(window(sequence, &stacks), &stacks)
                    .await;
                assert_eq!(ack.outcome, Outcome::Stored as i32, "{ack:?}");
            }
        })
    });
    for agent in agents.collect::<Vec<_>>() {
        agent.await.unwrap();
    }
    stop.send(true).unwrap();
    task.await.unwrap().unwrap();

    let stored = front.statement(&name, "SELECT count() FROM windows FINAL");
    assert_eq!(stored.trim(), (AGENTS as u64 * WINDOWS).to_string());
    let inserts = inserted(&front, &name);
    let of = |table: &str| -> Vec<&LoggedQuery> {
        let of_table = inserts.iter().filter(|(of, _)| of == table);
        of_table.map(|(_, insert)| insert).collect()
    };
    // This is the last that a push writes, and the first that it asks; in between the collector
    // waits for more windows, however long the server takes for a push.
    let pushes = of("windows");
    let starts = asked(&front, &name, "FROM windows WHERE toDate(chunk) IN");
    let waits_ms = pushes.iter().filter_map(|push| {
        let next = starts.iter().find(|start| start.start_ms >= push.end_ms);
        next.map(|start| start.start_ms - push.end_ms)
    });
    let shortest_ms = waits_ms.min().unwrap();
    assert!(shortest_ms >= 950, "{shortest_ms} ms between two pushes");
    assert_eq!(of("feed").len(), pushes.len(), "one of samples a push");
    // Agents wait together, so a push has windows of most of them.
    assert!(
        pushes.len() <= 2 * WINDOWS as usize,
        "{} pushes",
        pushes.len()
    );

    for (table, insert) in &inserts {
        assert_ne!(insert.sent_bytes, insert.unpacked_bytes, "{table}");
    }
    let sum =
        |of: fn(&LoggedQuery) -> u64| inserts.iter().map(|(_, insert)| of(insert)).sum::<u64>();
    let (sent, unpacked) = (sum(|of| of.sent_bytes), sum(|of| of.unpacked_bytes));
    assert!(sent * 2 < unpacked, "{sent} of {unpacked} bytes");
}
