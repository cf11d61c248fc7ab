//! IngestService: what agents do wrong, or too late, and how it ends their stream.

use crate::ingest::SOON;
use crate::rig::{Options, PushStream, Rig, hello, sequence, until, window};
use collector::ingest::limits::{MESSAGE_BYTES_MAX, Timeouts, WINDOWS_IN_FLIGHT};
use proto::collector as wire;
use proto::collector::push_request;
use tonic::Code;

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
        (
            part(&|p| p.stack_hashes.truncate(15)),
            "not a multiple of 16",
        ),
        (
            part(&|p| p.label_sets[0].names_values.truncate(3)),
            "a label without a value",
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
        sequence: sequence(5),
        ..wire::Definitions::default()
    };
    faulty(
        &rig,
        push_request::Body::Definitions(unasked),
        "were not requested",
    )
    .await;
    assert!(rig.store.windows().is_empty());
    assert_eq!(rig.metrics.cut_protocol.get(), 14);
    until("all streams are closed", || rig.metrics.streams.get() == 0).await;
}

#[tokio::test]
async fn windows_do_not_interleave_and_keep_their_dictionary() {
    let rig = Rig::start().await;
    let open = |number| wire::WindowPart {
        last: false,
        facts: None,
        ..window(number, &["x"])
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
    for number in 0..=u64::from(WINDOWS_IN_FLIGHT) {
        agent.part(window(number, &["x"])).await;
    }
    agent.need().await;
    let status = agent.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("wait for an answer"),
        "{status:?}"
    );
}

#[tokio::test]
async fn who_one_is_comes_first_and_is_checked() {
    let rig = Rig::start().await;
    let mut agent = PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
    agent.part(window(1, &["x"])).await;
    assert_eq!(agent.end().await.code(), Code::InvalidArgument);
    for (host_id, boot_id) in [
        (String::new(), vec![1; 16]),
        (
            "x".repeat(profile::fleet::HOST_ID_BYTES_MAX + 1),
            vec![1; 16],
        ),
        ("x".to_owned(), vec![1; 15]),
    ] {
        let mut agent = PushStream::connect(rig.channel().await)
            .await
            .expect("a stream");
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

/// Options with other timeouts.
pub fn short(change: impl Fn(&mut Timeouts)) -> Options {
    let mut options = Options::default();
    change(&mut options.ingest.timeouts);
    options
}

#[tokio::test]
async fn agents_that_say_nothing_are_cut_off() {
    let rig = Rig::with(short(|timeouts| timeouts.hello = SOON)).await;
    let mut agent = PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
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
    let named = format!("window {}", sequence(1));
    assert!(status.message().contains(&named), "{status:?}");
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
    let mut agent = PushStream::connect(channel).await.expect("a stream");
    agent.hello(hello("a", 1)).await;
    // Each is refused at once, so that nothing but the answers is in the way.
    let sending = async {
        for number in 0..100_000 {
            let mut part = window(number, &[]);
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
