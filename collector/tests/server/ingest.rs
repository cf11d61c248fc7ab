//! IngestService: what is taken, and what is refused.

use crate::faults::short;
use crate::memory::{Fault, Memory};
use crate::rig::{
    NOW, Options, PushStream, Rig, SECOND, facts, hash, hello, labels, sequence, start, starting,
    tables, until, window,
};
use collector::ingest::limits::{LABEL_VALUE_BYTES_MAX, ROWS_PER_WINDOW_MAX, WINDOWS_IN_FLIGHT};
use collector::store::{BatchPolicy, LabelSet};
use profile::StackEnd;
use proto::collector as wire;
use proto::collector::{Outcome, push_request, push_response};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

pub const STORED: i32 = Outcome::Stored as i32;
pub const REFUSED: i32 = Outcome::Refused as i32;
pub const REPEATED: i32 = Outcome::Repeated as i32;

/// Short enough for a test that waits for it to come.
pub const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_window_is_stored_once_its_stacks_are_defined() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("web-1").await;
    agent.part(window(1, &["main;read", "main;write"])).await;
    let need = agent.need().await;
    assert_eq!((need.sequence, need.stacks), (sequence(1), vec![1, 2]));
    agent
        .define(sequence(1), &["main;read", "main;write", "something;else"])
        .await;
    let ack = agent.ack().await;
    assert_eq!((ack.sequence, ack.outcome), (sequence(1), STORED));
    // Nothing that was not asked for: the two stacks, their parents, and the empty one.
    assert_eq!(rig.store.stacks(), 4);

    let stored = rig.store.windows().remove(0);
    assert_eq!(stored.range.start_unix_ns, start(1));
    let weights: Vec<_> = stored.rows.iter().map(|row| row.value.weight).collect();
    assert_eq!(weights, [10, 10], "count times period");
    assert_eq!(stored.accounts.len(), 1);

    // Its stacks are known now.
    let again = agent.store(1, &["main;read", "main;write"]).await;
    assert_eq!(again.outcome, REPEATED);
    let next = agent.store(2, &["main;write"]).await;
    assert_eq!(next.outcome, STORED);
    assert_eq!(rig.metrics.windows_needed.get(), 1);
}

#[tokio::test]
async fn labels_of_the_host_are_on_every_sample_and_its_own_host_label_is_not() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("web-1").await;
    agent.store(1, &["main"]).await;
    let expected = LabelSet::new(
        [
            ("cgroup", "/system.slice/web.service"),
            ("host", "web-1"),
            ("region", "north"),
            ("unit", "web.service"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    assert_eq!(rig.store.windows()[0].label_sets, [expected]);
    assert_eq!(rig.metrics.label_hosts.get(), 1);
}

#[tokio::test]
async fn labels_follow_the_facts() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("old").await;
    agent.store(1, &["main"]).await;
    let renamed = hello("new", 1).facts.expect("facts");
    agent.send(push_request::Body::Facts(renamed)).await;
    let mut second = window(2, &["main"]);
    second.new_dictionary = false;
    (second.label_sets, second.stack_hashes) = (Vec::new(), Vec::new());
    agent.part(second).await;
    assert_eq!(agent.ack().await.outcome, STORED);
    let hosts: Vec<String> = rig
        .store
        .windows()
        .iter()
        .map(|window| window.label_sets[0].get("host").to_owned())
        .collect();
    assert_eq!(hosts, ["old", "new"]);
}

#[tokio::test]
async fn parts_make_one_window() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let whole = window(1, &["x", "y"]);
    let first = wire::WindowPart {
        last: false,
        facts: None,
        sample_ends: vec![0, StackEnd::Lost as u32],
        sample_weights: vec![7, 9],
        ..whole
    };
    agent.part(first).await;
    let second = wire::WindowPart {
        sequence: sequence(1),
        last: true,
        label_sets: vec![labels(&[("comm", "z")])],
        stack_hashes: hash("z").0.to_vec(),
        sample_label_sets: vec![2, 0],
        sample_stacks: vec![3, 0],
        sample_counts: vec![5, 1],
        facts: Some(facts(1)),
        ..wire::WindowPart::default()
    };
    agent.part(second).await;
    agent.need().await;
    agent.define(sequence(1), &["x", "y", "z"]).await;
    assert_eq!(agent.ack().await.outcome, STORED);
    let stored = rig.store.windows().remove(0);
    let rows: Vec<_> = stored
        .rows
        .iter()
        .map(|row| (row.value.count, row.value.weight, row.end))
        .collect();
    let complete = StackEnd::Complete;
    let expected = [
        (1, 7, complete),
        (1, 9, StackEnd::Lost),
        (5, 50, complete),
        (1, 10, complete),
    ];
    assert_eq!(rows, expected);
    assert_eq!(stored.label_sets.len(), 3);
}

#[tokio::test]
async fn definitions_may_come_in_pieces_and_only_those_missing_are_asked_for() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    agent.store(1, &["x"]).await;
    agent.part(window(2, &["x", "y", "z"])).await;
    assert_eq!(agent.need().await.stacks, [2, 3]);
    for (stack, more) in [("y", true), ("z", false)] {
        let mut tables = tables(&[stack]);
        if stack == "z" {
            // Ids go on from those before: strings "", y, app; frame 0.
            tables.strings = vec!["z".to_owned()];
            tables.frames[0].function = 3;
            tables.frames[0].module = 2;
            tables.stack_frames = vec![1];
        }
        agent
            .send(push_request::Body::Definitions(wire::Definitions {
                tables: Some(tables),
                sequence: sequence(2),
                more,
                ..wire::Definitions::default()
            }))
            .await;
    }
    assert_eq!(agent.ack().await.outcome, STORED);
}

#[tokio::test]
async fn windows_behind_one_that_waits_for_its_stacks_ask_for_no_stack_twice() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    for number in 1..=u64::from(WINDOWS_IN_FLIGHT) {
        agent.part(window(number, &["x", "y"])).await;
    }
    let need = agent.need().await;
    agent.define(need.sequence, &["x", "y"]).await;
    for _ in 0..WINDOWS_IN_FLIGHT {
        assert_eq!(agent.ack().await.outcome, STORED);
    }
    assert_eq!(rig.metrics.windows_needed.get(), 1);
    assert_eq!(rig.store.samples(), 2 * u64::from(WINDOWS_IN_FLIGHT));
}

#[tokio::test]
async fn a_window_that_cannot_be_kept_is_refused_and_the_stream_goes_on() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let with = |number, change: fn(&mut wire::WindowFacts)| {
        let mut part = window(number, &["x"]);
        change(part.facts.as_mut().expect("facts"));
        part
    };
    let wrong = [
        with(1, |facts| facts.start_unix_ns = -5),
        with(2, |facts| facts.duration_ns = 0),
        with(3, |facts| facts.duration_ns = u64::MAX),
        with(4, |facts| facts.start_unix_ns = i64::MAX - 5),
        with(5, |facts| facts.unit.clear()),
        with(6, |facts| facts.period = 0),
    ];
    for part in wrong {
        let sequence = part.sequence;
        agent.part(part).await;
        let ack = agent.ack().await;
        assert_eq!((ack.sequence, ack.outcome), (sequence, REFUSED));
        assert!(!ack.reason.is_empty());
    }
    // What the store refuses is refused as well: stores take what starts within ten minutes.
    let future = starting(NOW + 601 * SECOND, window(7, &["x"]));
    agent.part(future).await;
    let ack = agent.ack().await;
    assert_eq!(
        (ack.outcome, ack.reason.as_str()),
        (REFUSED, "it is from the future")
    );
    assert_eq!(agent.store(8, &["x"]).await.outcome, STORED);
    assert_eq!(rig.metrics.windows_refused.get(), 7);
}

#[tokio::test]
async fn a_window_of_too_many_rows_is_refused_whole() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let rows = ROWS_PER_WINDOW_MAX / 4 + 1;
    for at in 0..4 {
        let last = at == 3;
        agent
            .part(wire::WindowPart {
                sequence: sequence(1),
                last,
                sample_label_sets: vec![0; rows],
                sample_stacks: vec![0; rows],
                sample_counts: vec![1; rows],
                facts: last.then(|| wire::WindowFacts {
                    account_label_sets: Vec::new(),
                    account_ns: Vec::new(),
                    account_estimated_ns: Vec::new(),
                    ..facts(1)
                }),
                ..wire::WindowPart::default()
            })
            .await;
    }
    assert_eq!(agent.ack().await.outcome, REFUSED);
    assert_eq!(agent.store(2, &["x"]).await.outcome, STORED);
    assert_eq!(rig.store.samples(), 1);
    until("memory is given back", || {
        rig.metrics.ingest_bytes.get() < 1 << 20
    })
    .await;
}

#[tokio::test]
async fn definitions_that_are_of_no_use_make_the_window_refused() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    for (number, given) in [(1, &["y"][..]), (2, &[])] {
        agent.part(window(number, &["x"])).await;
        agent.need().await;
        agent.define(sequence(number), given).await;
        let ack = agent.ack().await;
        assert_eq!(ack.outcome, REFUSED);
        assert!(ack.reason.contains("lack requested stacks"), "{ack:?}");
    }
    agent.part(window(3, &["x"])).await;
    agent.need().await;
    let mut damaged = tables(&["x"]);
    damaged.stack_parents = vec![7];
    for more in [true, false] {
        agent
            .send(push_request::Body::Definitions(wire::Definitions {
                tables: Some(damaged.clone()),
                sequence: sequence(3),
                more,
                ..wire::Definitions::default()
            }))
            .await;
    }
    let ack = agent.ack().await;
    assert_eq!(ack.outcome, REFUSED);
    assert!(ack.reason.contains("`stacks` has no row `7`"), "{ack:?}");
    assert_eq!(rig.store.stacks(), 1, "nothing of it was kept");
    assert_eq!(agent.store(4, &["x"]).await.outcome, STORED);
}

#[tokio::test]
async fn memory_that_others_hold_is_waited_for_and_then_denied() {
    let mut options = short(|timeouts| timeouts.memory = SOON);
    options.ingest.memory_bytes = 3 << 10;
    let rig = Rig::with(options).await;
    let mut agent = rig.agent("a").await;
    let stacks: Vec<String> = (0..200).map(|n| format!("f{n}")).collect();
    let stacks: Vec<&str> = stacks.iter().map(String::as_str).collect();
    agent.part(window(1, &stacks)).await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("ingest.memory_mib"), "{status:?}");
    assert_eq!(rig.metrics.cut_memory.get(), 1);
}

#[tokio::test]
async fn a_store_that_is_full_sends_agents_away_until_it_has_room() {
    let rig = Rig::start().await;
    rig.store.set_fault(Some(Fault::Unavailable));
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &[])).await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the disk is full"), "{status:?}");
    rig.store.set_fault(None);
    let mut agent = rig.agent("a").await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, STORED);
}

#[tokio::test]
async fn a_host_that_the_engine_chokes_on_does_not_keep_others_out() {
    let rig = Rig::start().await;
    rig.store.set_fault(Some(Fault::Engine("id-bad")));
    rig.store.hold(true);
    let (mut good, mut bad) = (rig.agent("good").await, rig.agent("bad").await);
    // In one batch, behind a push that is held.
    let first = rig.agent("first").await;
    first.part(window(1, &[])).await;
    until("the push has started", || {
        rig.metrics.queue_windows.get() == 0
    })
    .await;
    good.part(window(1, &[])).await;
    bad.part(window(1, &[])).await;
    rig.store.hold(false);
    assert_eq!(good.ack().await.outcome, STORED);
    assert_eq!(bad.end().await.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_store_that_asks_for_strangers_ends_the_stream_not_the_collector() {
    let rig = Rig::start().await;
    rig.store.set_fault(Some(Fault::AsksForStrangers));
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &["x"])).await;
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    rig.store.set_fault(None);
    let mut agent = rig.agent("a").await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, STORED);
}

#[tokio::test]
async fn all_callers_are_asked_for_when_one_is_not_known_after_all() {
    let store = Arc::new(Memory::default());
    store.set_fault(Some(Fault::ForgetsCallers));
    let rig = Rig::on(store, Options::default()).await;
    let mut agent = PushStream::connect(rig.channel().await).await.unwrap();
    assert!(agent.hello(hello("a", 1)).await.known_stacks);
    agent.part(window(1, &["main;read"])).await;
    assert!(!agent.need().await.all_callers);
    let mut rest = tables(&["read"]);
    rest.stack_parents = vec![1];
    agent
        .send(push_request::Body::Definitions(wire::Definitions {
            sequence: sequence(1),
            known_stacks: hash("main").0.to_vec(),
            tables: Some(rest),
            ..wire::Definitions::default()
        }))
        .await;
    let again = agent.need().await;
    assert_eq!((again.stacks, again.all_callers), (vec![1], true));
    agent.define(sequence(1), &["main;read"]).await;
    assert_eq!(agent.ack().await.outcome, STORED);
    let metrics = &rig.metrics;
    assert_eq!(
        (metrics.windows_needed.get(), metrics.callers_needed.get()),
        (2, 1)
    );
}

#[tokio::test]
async fn a_store_that_panics_ends_pushing() {
    let rig = Rig::start().await;
    rig.store.set_fault(Some(Fault::Panic));
    let agent = rig.agent("a").await;
    agent.part(window(1, &["x"])).await;
    let ended = tokio::time::timeout(crate::rig::LIMIT, rig.pushing).await;
    assert!(
        ended
            .expect("in time")
            .expect("no panic of its own")
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_share_their_pushes() {
    const STREAMS: u64 = 200;
    const WINDOWS: u64 = 5;
    let rig = Rig::start().await;
    let mut agents = tokio::task::JoinSet::new();
    for stream in 0..STREAMS {
        let mut agent = rig.agent(&format!("host-{stream}")).await;
        agents.spawn(async move {
            for number in 0..WINDOWS {
                let own = format!("main;f{}", stream % 7);
                assert_eq!(agent.store(number, &["main", &own]).await.outcome, STORED);
            }
            agent
        });
    }
    let agents = agents.join_all().await;
    assert_eq!(rig.metrics.streams.get(), STREAMS);
    assert_eq!(rig.store.windows().len() as u64, STREAMS * WINDOWS);
    assert_eq!(rig.store.samples(), 2 * STREAMS * WINDOWS);
    let pushes = rig.store.batches().len() as u64;
    assert!(pushes < STREAMS * WINDOWS / 2, "{pushes} pushes");
    drop(agents);
    until("all streams are closed", || rig.metrics.streams.get() == 0).await;
}

#[tokio::test]
async fn windows_wait_for_one_another_as_the_store_asks() {
    let store = Arc::new(Memory::default());
    store.set_batch_policy(BatchPolicy {
        linger: Duration::from_secs(3600),
        windows: 3,
    });
    let rig = Rig::on(store, Options::default()).await;
    let stacks = &["main;read"];
    let (mut a, mut b) = (rig.agent("a").await, rig.agent("b").await);
    let mut c = rig.agent("c").await;
    tokio::join!(a.store(1, stacks), b.store(1, stacks), c.store(1, stacks));
    assert_eq!(rig.store.batches(), [3]);
}

#[tokio::test]
async fn more_agents_than_places_come_again_later() {
    let mut options = Options::default();
    options.ingest.streams = 1;
    let rig = Rig::with(options).await;
    let first = rig.agent("a").await;
    let refused = PushStream::connect(rig.channel().await).await;
    let status = refused.err().expect("no place");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("ingest.streams_max"),
        "{status:?}"
    );
    drop(first);
    until("the place is free", || rig.metrics.streams.get() == 0).await;
    let again = PushStream::connect(rig.channel().await).await;
    assert!(again.is_ok());
}

#[tokio::test]
async fn labels_beyond_bounds_are_cut_and_counted() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let mut part = window(1, &[]);
    let long = "é".repeat(LABEL_VALUE_BYTES_MAX);
    let mut pairs = vec![("long".to_owned(), long), ("n".repeat(200), "x".to_owned())];
    pairs.extend((0..100).map(|n| (format!("z{n:03}"), "v".to_owned())));
    part.label_sets[0] = wire::Labels {
        names_values: pairs.into_iter().flat_map(|(k, v)| [k, v]).collect(),
    };
    part.sample_label_sets = vec![1];
    part.sample_stacks = vec![0];
    part.sample_counts = vec![1];
    agent.part(part).await;
    assert_eq!(agent.ack().await.outcome, STORED);
    let stored = rig.store.windows().remove(0);
    let set = &stored.label_sets[0];
    assert_eq!(set.get("long").len(), LABEL_VALUE_BYTES_MAX);
    assert_eq!(set.iter().len(), 34, "32 of its own, host and region");
    assert_eq!(rig.metrics.labels_cut.get(), 1);
    assert_eq!(rig.metrics.labels_dropped.get(), 70);
}

#[tokio::test]
async fn what_was_sent_before_the_end_is_answered() {
    let rig = Rig::start().await;
    rig.store.hold(true);
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &[])).await;
    agent.part(window(2, &[])).await;
    until("they are on their way", || {
        rig.metrics.ingest_bytes.get() > 0
    })
    .await;
    rig.stop.send(true).expect("it listens");
    rig.store.hold(false);
    // Both, or the first alone when the second was not read yet; then the end.
    let mut acked = 0;
    let status = loop {
        match agent.next().await {
            Ok(push_response::Body::Ack(ack)) => {
                assert_eq!(ack.outcome, STORED);
                acked += 1;
            }
            Ok(other) => panic!("no Ack but {other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("shutting down"), "{status:?}");
    assert_eq!(rig.store.windows().len(), acked);
    rig.ingest.drained().await;
}
