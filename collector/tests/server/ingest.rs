//! IngestService: what is taken, what is refused, and what ends a stream.

use crate::memory::Trouble;
use crate::rig::{
    Agent, NOW, Options, Rig, SECOND, begin, facts, hash, hello, labels, tables, until, window,
};
use collector::ingest::limits::{
    LABEL_VALUE_BYTES_MAX, MESSAGE_BYTES_MAX, ROWS_PER_WINDOW_MAX, Timeouts, WINDOWS_IN_FLIGHT,
};
use collector::store::{HostKey, LabelSet};
use profile::StackEnd;
use proto::collector as wire;
use proto::collector::{Outcome, push_request, push_response};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::Code;

const STORED: i32 = Outcome::Stored as i32;
const REFUSED: i32 = Outcome::Refused as i32;
const REPEATED: i32 = Outcome::Repeated as i32;

/// Short enough for a test that waits for it to come.
const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_window_is_stored_once_its_stacks_are_defined() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("web-1").await;
    agent.part(window(1, &["main;read", "main;write"])).await;
    let need = agent.need().await;
    assert_eq!((need.sequence, need.stacks), (1, vec![1, 2]));
    agent
        .define(1, &["main;read", "main;write", "something;else"])
        .await;
    let ack = agent.ack().await;
    assert_eq!((ack.sequence, ack.outcome), (1, STORED));
    // Nothing that was not asked for: the two stacks, their parents, and the empty one.
    assert_eq!(rig.store.stacks(), 4);

    let stored = rig.store.windows().remove(0);
    assert_eq!(stored.range.start_unix_ns, begin(1));
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
        sequence: 1,
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
    agent.define(1, &["x", "y", "z"]).await;
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
                sequence: 2,
                more,
            }))
            .await;
    }
    assert_eq!(agent.ack().await.outcome, STORED);
}

#[tokio::test]
async fn windows_behind_one_that_waits_for_its_stacks_ask_for_no_stack_twice() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    for sequence in 1..=u64::from(WINDOWS_IN_FLIGHT) {
        agent.part(window(sequence, &["x", "y"])).await;
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
    let with = |sequence, change: fn(&mut wire::WindowFacts)| {
        let mut part = window(sequence, &["x"]);
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
    // What the store refuses is refused as well.
    let mut future = window(7, &["x"]);
    future.facts.as_mut().expect("facts").start_unix_ns = NOW + SECOND;
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
                sequence: 1,
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

/// Sends `body` after a Hello; the stream must end with INVALID_ARGUMENT, and `what` in its text.
async fn faulty(rig: &Rig, body: push_request::Body, what: &str) {
    let mut agent = rig.agent("a").await;
    agent.send(body).await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains(what), "{status:?}");
}

#[tokio::test]
async fn breaches_of_the_protocol_end_the_stream_and_store_nothing() {
    let rig = Rig::start().await;
    let part = |change: &dyn Fn(&mut wire::WindowPart)| {
        let mut part = window(1, &["x"]);
        change(&mut part);
        push_request::Body::Part(part)
    };
    let cases: [(push_request::Body, &str); 13] = [
        (
            part(&|p| p.sample_stacks = vec![2]),
            "`stacks` has no row `2`",
        ),
        (part(&|p| p.sample_stacks = vec![u32::MAX]), "`stacks`"),
        (
            part(&|p| p.sample_label_sets = vec![9]),
            "`label sets` has no row `9`",
        ),
        (part(&|p| p.sample_ends = vec![200]), "`stack ends`"),
        (part(&|p| p.sample_ends = vec![70_000]), "`stack ends`"),
        (
            part(&|p| p.sample_counts = vec![1, 2]),
            "columns of `samples`",
        ),
        (
            part(&|p| p.sample_weights = vec![1, 2]),
            "columns of `samples`",
        ),
        (part(&|p| p.stack_hashes.truncate(15)), "no multiple of 16"),
        (
            part(&|p| p.label_sets[0].names_values.truncate(3)),
            "a name without a value",
        ),
        (part(&|p| p.facts = None), "facts in its last part"),
        (part(&|p| p.last = false), "facts in its last part"),
        (
            part(&|p| {
                if let Some(facts) = &mut p.facts {
                    facts.account_ns.push(1);
                }
            }),
            "columns of `accounts`",
        ),
        (push_request::Body::Hello(hello("a", 1)), "a second Hello"),
    ];
    for (body, what) in cases {
        faulty(&rig, body, what).await;
    }
    let unasked = wire::Definitions {
        sequence: 5,
        ..wire::Definitions::default()
    };
    faulty(
        &rig,
        push_request::Body::Definitions(unasked),
        "were not asked for",
    )
    .await;
    assert!(rig.store.windows().is_empty());
    assert_eq!(rig.metrics.cut_protocol.get(), 14);
    until("all streams are closed", || rig.metrics.streams.get() == 0).await;
}

#[tokio::test]
async fn windows_do_not_interleave_and_keep_their_dictionary() {
    let rig = Rig::start().await;
    let open = |sequence| wire::WindowPart {
        last: false,
        facts: None,
        ..window(sequence, &["x"])
    };
    for second in [window(2, &["x"]), window(1, &["x"])] {
        let mut agent = rig.agent("a").await;
        agent.part(open(1)).await;
        agent.part(second).await;
        assert_eq!(agent.end().await.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn more_windows_than_may_be_unanswered_end_the_stream() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    for sequence in 0..=u64::from(WINDOWS_IN_FLIGHT) {
        agent.part(window(sequence, &["x"])).await;
    }
    agent.need().await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("without an answer"), "{status:?}");
}

#[tokio::test]
async fn who_one_is_comes_first_and_is_checked() {
    let rig = Rig::start().await;
    let mut agent = Agent::connect(rig.channel().await).await.expect("a stream");
    agent.part(window(1, &["x"])).await;
    assert_eq!(agent.end().await.code(), Code::InvalidArgument);
    for (host_id, boot_id) in [
        (String::new(), vec![1; 16]),
        ("x".repeat(129), vec![1; 16]),
        ("x".to_owned(), vec![1; 15]),
    ] {
        let mut agent = Agent::connect(rig.channel().await).await.expect("a stream");
        let hello = wire::Hello {
            host_id,
            boot_id,
            ..hello("x", 1)
        };
        agent.send(push_request::Body::Hello(hello)).await;
        assert_eq!(agent.end().await.code(), Code::InvalidArgument);
    }
    assert!(rig.store.host_records().is_empty());
}

#[tokio::test]
async fn an_oversized_message_ends_the_stream() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    let mut part = window(1, &["x"]);
    part.stack_hashes = vec![0; MESSAGE_BYTES_MAX + 16];
    agent.part(part).await;
    // Zeros compress well: it is the size of the message that counts, not what it took to send.
    assert_eq!(agent.end().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn definitions_that_are_of_no_use_make_the_window_refused() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    for (sequence, given) in [(1, &["y"][..]), (2, &[])] {
        agent.part(window(sequence, &["x"])).await;
        agent.need().await;
        agent.define(sequence, given).await;
        let ack = agent.ack().await;
        assert_eq!(ack.outcome, REFUSED);
        assert!(ack.reason.contains("lack stacks"), "{ack:?}");
    }
    agent.part(window(3, &["x"])).await;
    agent.need().await;
    let mut damaged = tables(&["x"]);
    damaged.stack_parents = vec![7];
    for more in [true, false] {
        agent
            .send(push_request::Body::Definitions(wire::Definitions {
                tables: Some(damaged.clone()),
                sequence: 3,
                more,
            }))
            .await;
    }
    let ack = agent.ack().await;
    assert_eq!(ack.outcome, REFUSED);
    assert!(ack.reason.contains("`stacks` has no row `7`"), "{ack:?}");
    assert_eq!(rig.store.stacks(), 1, "nothing of it was kept");
    assert_eq!(agent.store(4, &["x"]).await.outcome, STORED);
}

fn short(change: impl Fn(&mut Timeouts)) -> Options {
    let mut options = Options::default();
    change(&mut options.ingest.timeouts);
    options
}

#[tokio::test]
async fn agents_that_say_nothing_are_cut_off() {
    let rig = Rig::with(short(|timeouts| timeouts.hello = SOON)).await;
    let mut agent = Agent::connect(rig.channel().await).await.expect("a stream");
    assert_eq!(agent.end().await.code(), Code::DeadlineExceeded);
    assert_eq!(rig.metrics.cut_silent.get(), 1);
}

#[tokio::test]
async fn parts_without_an_end_are_cut_off() {
    let rig = Rig::with(short(|timeouts| timeouts.parts = SOON)).await;
    let mut agent = rig.agent("a").await;
    let mut part = window(1, &["x"]);
    (part.last, part.facts) = (false, None);
    agent.part(part).await;
    assert_eq!(agent.end().await.code(), Code::DeadlineExceeded);
    assert_eq!(rig.metrics.cut_part.get(), 1);
    until("memory is given back", || {
        rig.metrics.ingest_bytes.get() == 0
    })
    .await;
}

#[tokio::test]
async fn a_need_that_is_never_answered_ends_the_stream() {
    let rig = Rig::with(short(|timeouts| timeouts.need = SOON)).await;
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &["x"])).await;
    agent.need().await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("window 1"), "{status:?}");
    assert_eq!(rig.metrics.cut_need.get(), 1);
    until("memory is given back", || {
        rig.metrics.ingest_bytes.get() == 0
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_does_not_read_its_answers_is_cut_off() {
    let rig = Rig::with(short(|timeouts| timeouts.stall = SOON)).await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", rig.grpc));
    let channel = endpoint
        .expect("an address")
        .initial_stream_window_size(1024)
        .connect()
        .await
        .expect("a connection");
    let mut agent = Agent::connect(channel).await.expect("a stream");
    agent.hello(hello("a", 1)).await;
    // Each is refused at once, so that nothing but the answers is in the way.
    let sending = async {
        for sequence in 0..100_000 {
            let mut part = window(sequence, &[]);
            part.facts.as_mut().expect("facts").duration_ns = 0;
            let body = push_request::Body::Part(part);
            let request = wire::PushRequest { body: Some(body) };
            if agent.requests.send(request).await.is_err() {
                break;
            }
        }
    };
    let cut = until("it is cut off", || rig.metrics.cut_stalled.get() == 1);
    tokio::select! {
        () = async { sending.await; std::future::pending().await } => {}
        () = cut => {}
    }
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
    rig.store.set_trouble(Some(Trouble::Unavailable));
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &[])).await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the disk is full"), "{status:?}");
    rig.store.set_trouble(None);
    let mut agent = rig.agent("a").await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, STORED);
}

#[tokio::test]
async fn a_host_that_the_engine_chokes_on_does_not_keep_others_out() {
    let rig = Rig::start().await;
    rig.store.set_trouble(Some(Trouble::Engine("id-bad")));
    rig.store.hold(true);
    let (mut good, mut bad) = (rig.agent("good").await, rig.agent("bad").await);
    // In one batch, behind a push that is held.
    let first = rig.agent("first").await;
    first.part(window(1, &[])).await;
    until("the push has begun", || {
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
    rig.store.set_trouble(Some(Trouble::AsksForStrangers));
    let mut agent = rig.agent("a").await;
    agent.part(window(1, &["x"])).await;
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    rig.store.set_trouble(None);
    let mut agent = rig.agent("a").await;
    assert_eq!(agent.store(1, &["x"]).await.outcome, STORED);
}

#[tokio::test]
async fn a_store_that_panics_ends_pushing() {
    let rig = Rig::start().await;
    rig.store.set_trouble(Some(Trouble::Panic));
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
            for sequence in 0..WINDOWS {
                let own = format!("main;f{}", stream % 7);
                assert_eq!(agent.store(sequence, &["main", &own]).await.outcome, STORED);
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
async fn more_agents_than_places_come_again_later() {
    let mut options = Options::default();
    options.ingest.streams = 1;
    let rig = Rig::with(options).await;
    let first = rig.agent("a").await;
    let refused = Agent::connect(rig.channel().await).await;
    let status = refused.err().expect("no place");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("ingest.streams_max"),
        "{status:?}"
    );
    drop(first);
    until("the place is free", || rig.metrics.streams.get() == 0).await;
    let again = Agent::connect(rig.channel().await).await;
    assert!(again.is_ok());
}

fn warnings(rig: &Rig) -> Vec<String> {
    rig.hosts.flush(&*rig.store).expect("stored");
    let records = rig.store.host_records();
    let warnings = records
        .iter()
        .flat_map(|record| rig.hosts.warnings(record, 1));
    warnings.collect()
}

#[tokio::test]
async fn a_second_stream_of_a_boot_takes_over_from_the_first() {
    let rig = Rig::start().await;
    let mut first = rig.agent("a").await;
    assert_eq!(first.store(1, &["x"]).await.outcome, STORED);
    let mut second = rig.agent("a").await;
    assert_eq!(first.end().await.code(), Code::Aborted);
    assert_eq!(second.store(1, &["x"]).await.outcome, REPEATED);
    assert_eq!(rig.metrics.cut_superseded.get(), 1);
    // The first had just sent something: it is no leftover of a connection.
    let found = warnings(&rig);
    assert!(
        found.iter().any(|text| text.contains("two agents")),
        "{found:?}"
    );
}

#[tokio::test]
async fn two_boots_of_one_id_at_once_are_told() {
    let rig = Rig::start().await;
    let mut first = rig.agent("a").await;
    first.store(1, &["x"]).await;
    let mut second = Agent::connect(rig.channel().await).await.expect("a stream");
    second.hello(hello("a", 2)).await;
    second.store(1, &["x"]).await;
    assert!(warnings(&rig).is_empty(), "a reboot looks like this");
    first.store(2, &["x"]).await;
    let found = warnings(&rig);
    assert!(
        found.iter().any(|text| text.contains("two boots")),
        "{found:?}"
    );
    assert_eq!(rig.store.windows().len(), 3, "all of them are kept");
}

#[tokio::test]
async fn hosts_are_remembered_with_their_clock_and_the_day_they_came() {
    let rig = Rig::start().await;
    let mut agent = Agent::connect(rig.channel().await).await.expect("a stream");
    let late = wire::Hello {
        now_unix_ns: NOW - 90 * SECOND,
        ..hello("a", 1)
    };
    agent.hello(late).await;
    let found = warnings(&rig);
    assert!(found[0].contains("90.0 s behind"), "{found:?}");
    let key = HostKey {
        host_id: "id-a".to_owned(),
        boot_id: [1; 16],
    };
    assert!(rig.hosts.is_connected(&key));
    let record = rig.store.host_records().remove(0);
    assert_eq!(record.key, key);
    assert_eq!(record.facts.hostname, "a");
    assert_eq!(record.clock_ahead_ns, -90 * SECOND);
    rig.clock.store(NOW + SECOND, Ordering::Relaxed);
    agent.store(1, &["x"]).await;
    drop(agent);
    until("it is gone", || !rig.hosts.is_connected(&key)).await;
    rig.hosts.flush(&*rig.store).expect("stored");
    let record = rig.store.host_records().remove(0);
    assert_eq!(record.first_seen_unix_ns, NOW);
    assert_eq!(record.last_seen_unix_ns, NOW + SECOND);
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
