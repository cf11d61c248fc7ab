//! Tests pins over the wire: they are listed, and they answer for what the recorder has dropped.

use super::*;
use ::pins::{Evidence, PinRequest, PinWriter};
use tonic::Code;

const DAY: Duration = Duration::from_secs(86_400);

/// A host that pinned its first two windows of three, with a writer of a capture, and forgot them.
async fn forgetful() -> (tempfile::TempDir, Running, Client) {
    let (directory, running, client) = service().await;
    let host = &running.host;
    for (function, count) in [("first", 1), ("second", 2), ("third", 4)] {
        host.add(true, &[("/a", function, count)]);
    }
    let clock = Arc::new(WallAnchor::new());
    let pins = Arc::new(Pins::new(directory.path().join("pins"), 1 << 20, clock));
    let request = PinRequest {
        trigger: "hot".to_owned(),
        cause: "cpus > 1: it was 2".to_owned(),
        cgroup: "/a".to_owned(),
        fired: host.started.plus(Duration::from_secs(2)),
        before: Duration::from_secs(2),
        after: Duration::ZERO,
    };
    let mut writer = PinWriter::new(Arc::clone(&pins));
    assert_eq!(writer.open(&request, &host.recorder), Some(1));
    assert!(host.pins.set(pins).is_ok());
    let mut recorder = host.recorder.write().expect("not poisoned");
    recorder.set_options(RecorderOptions {
        retention: Duration::from_secs(1),
        ..RecorderOptions::default()
    });
    let start = host.started.plus(DAY);
    recorder.add(WindowPart {
        pressure: None,
        start,
        end: start.plus(Duration::from_secs(1)),
        closes: true,
        period: PERIOD,
        quality: Quality::default(),
        rows: &mut Vec::new(),
        accounts: &[],
        timestamps: &[],
        timestamps_refused: 0,
        timeless: 0,
    });
    drop(recorder);
    (directory, running, client)
}

fn of(running: &Running, from_ms: i64, to_ms: i64) -> agent::QueryProfileRequest {
    let started_unix_ns = running.host.clock.to_unix_ns(running.host.started);
    agent::QueryProfileRequest {
        range: Some(agent::TimeRange {
            start_unix_ns: started_unix_ns + from_ms * 1_000_000,
            end_unix_ns: started_unix_ns + to_ms * 1_000_000,
        }),
        ..Default::default()
    }
}

async fn ask(client: &mut Client, request: agent::QueryProfileRequest) -> Vec<(String, u64)> {
    let answer = client.query_profile(request).await.expect("an answer");
    let (profile, _) = assemble(answer.into_inner()).await.expect("a profile");
    leaves(&profile)
}

fn text(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    let owned = |&(function, count): &(&str, u64)| (function.to_owned(), count);
    expected.iter().map(owned).collect()
}

#[tokio::test]
async fn pins_are_listed() {
    let (_directory, running, mut client) = forgetful().await;
    let answer = client.list_pins(agent::ListPinsRequest {}).await;
    let pins = answer.expect("an answer").into_inner().pins;
    assert_eq!(pins.len(), 1);
    assert_eq!((pins[0].id, pins[0].trigger.as_str()), (1, "hot"));
    assert_eq!((pins[0].cgroup.as_str(), pins[0].open), ("/a", false));
    assert!(pins[0].bytes > 0);
    drop(running);
}

#[tokio::test]
async fn a_host_without_pins_lists_none() {
    let (_directory, _running, mut client) = service().await;
    let answer = client.list_pins(agent::ListPinsRequest {}).await;
    assert!(answer.expect("an answer").into_inner().pins.is_empty());
}

#[tokio::test]
async fn what_the_recorder_forgot_a_pin_answers() {
    let (_directory, running, mut client) = forgetful().await;
    let whole = ask(&mut client, of(&running, 0, 2000)).await;
    assert_eq!(whole, text(&[("first", 1), ("second", 2)]));
    let part = ask(&mut client, of(&running, 1000, 2000)).await;
    assert_eq!(part, text(&[("second", 2)]));
    let wider = ask(&mut client, of(&running, -5000, 60_000)).await;
    assert_eq!(wider, whole, "what there is of a wider range");
    let beside = ask(&mut client, of(&running, 2000, 3000)).await;
    assert_eq!(beside, text(&[]), "what was not pinned is gone");
}

#[tokio::test]
async fn as_long_as_the_recorder_has_it_the_recorder_answers() {
    let (directory, running, mut client) = forgetful().await;
    // Not even looked at: the pin's file is gone.
    std::fs::remove_file(directory.path().join("pins/0000000000000001.pin")).expect("a file");
    let day = DAY.as_millis() as i64;
    assert_eq!(
        ask(&mut client, of(&running, day, day + 1000)).await,
        text(&[])
    );
    let refused = client.query_profile(of(&running, 0, 2000)).await;
    assert_eq!(refused.expect_err("no file").code(), Code::DataLoss);
}

#[tokio::test]
async fn what_was_captured_with_a_pin_is_asked_for_by_its_number() {
    let (_directory, running, mut client) = forgetful().await;
    let request = |pin_capture| agent::QueryProfileRequest {
        pin_capture,
        ..Default::default()
    };
    for unknown in [1, 2] {
        let refused = client.query_profile(request(unknown)).await;
        assert_eq!(
            refused.expect_err("nothing captured").code(),
            Code::NotFound
        );
    }
    let answer = client.query_profile(of(&running, 0, 2000)).await;
    let answer = answer.expect("an answer").into_inner();
    let (captured, _) = assemble(answer).await.expect("a profile");
    let mut evidence = Evidence::default();
    proto::Chunks::new(captured).for_each(|chunk| evidence.push(&chunk));
    assert!(
        running
            .host
            .pins
            .get()
            .expect("pins")
            .keep_capture(1, evidence)
            .is_ok()
    );
    let found = ask(&mut client, request(1)).await;
    assert_eq!(found, text(&[("first", 1), ("second", 2)]));
}
