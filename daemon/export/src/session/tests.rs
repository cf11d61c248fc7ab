//! Tests how a session handles answers it does not expect.

use super::super::{HostInfo, Options, Settings, Target};
use super::*;
use host::time::WallAnchor;
use segment::window::WindowHeader;

fn exporter() -> Exporter {
    let options = Options {
        collector: Target::Configured(([127, 0, 0, 1], 1).into()),
        outside: None,
        dir: "/nonexistent".into(),
        settings: Settings::default(),
        identity: Identity {
            host_id: "host".to_owned(),
            boot_id: [7; 16],
        },
        host: HostInfo::default(),
    };
    Exporter::new(options, Arc::new(WallAnchor::new())).0
}

/// A session that waits for the answers to windows 1 and 2.
fn session(exporter: &Exporter) -> Session<'_> {
    let mut session = Session::new(exporter, Arc::clone(&exporter.identity));
    for sequence in [1, 2] {
        session.in_flight.push(InFlight {
            picked: Picked {
                segment: 1,
                record: 0,
                header: WindowHeader {
                    sequence,
                    samples: 5,
                    ..WindowHeader::default()
                },
                live: true,
                fresh: true,
            },
            needs: 0,
            sent: Instant::now(),
        });
    }
    session
}

fn answer(sequence: u64, outcome: i32) -> wire::PushResponse {
    let ack = wire::Ack {
        sequence,
        outcome,
        reason: String::new(),
    };
    wire::PushResponse {
        body: Some(Answer::Ack(ack)),
    }
}

#[test]
fn an_outcome_that_is_not_known_ends_the_stream_and_drops_nothing() {
    for outcome in [0, 4, -1, i32::MAX] {
        let exporter = exporter();
        let mut session = session(&exporter);
        session
            .take(answer(1, wire::Outcome::Stored as i32))
            .expect("it is stored");
        assert!(session.worked());
        let error = session.take(answer(2, outcome)).expect_err("nobody knows");
        assert!(error.to_string().contains(&format!("outcome `{outcome}`")));
        assert!(!error.blames_agent(), "the window is not given up for it");
        assert!(!session.worked(), "the next attempt comes later");
        assert_eq!(session.oldest_in_flight().unwrap().header.sequence, 2);
        assert!(exporter.counts().dropped.iter().all(|drop| *drop == (0, 0)));
        let degraded = exporter.degradations(MonotonicTime::now());
        let told = |known: &host::health::Degradation| known.id == "collector_not_understood";
        assert!(degraded.iter().any(told));
    }
}
