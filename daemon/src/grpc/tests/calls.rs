//! Tests every call of the service.

use super::*;
use testkit::wait::until;
use tonic::Code;

fn text(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs
        .iter()
        .map(|&(name, count)| (name.to_owned(), count))
        .collect()
}

fn matcher(op: agent::MatchOp, value: &str) -> agent::LabelMatcher {
    agent::LabelMatcher {
        label: key::CGROUP.to_owned(),
        op: op.into(),
        value: value.to_owned(),
    }
}

fn filter(op: agent::FrameFilterOp, regex: &str) -> agent::FrameFilter {
    agent::FrameFilter {
        op: op.into(),
        regex: regex.to_owned(),
    }
}

async fn ask(client: &mut Client, request: agent::QueryProfileRequest) -> Profile {
    let answer = client.query_profile(request).await.expect("answered");
    assemble(answer.into_inner()).await.expect("complete").0
}

#[tokio::test]
async fn status_and_config_are_the_hosts() {
    let (_directory, _running, mut client) = service().await;
    let status = client
        .get_status(agent::GetStatusRequest {})
        .await
        .expect("answered");
    assert_eq!(status.into_inner().version, "fake");
    let config = client
        .get_config(agent::GetConfigRequest {})
        .await
        .expect("answered")
        .into_inner();
    assert_eq!(
        (config.yaml.as_str(), config.path.as_str()),
        ("sampling:\n", "/etc/fake.yaml")
    );
}

#[tokio::test]
async fn reload_says_what_changed_or_why_not() {
    let (_directory, running, mut client) = service().await;
    *running.host.reload.lock().expect("not poisoned") = Ok(ReloadOutcome {
        changed: vec!["log.level".to_owned()],
        needs_restart: vec!["sampling.event".to_owned()],
    });
    let outcome = client
        .reload_config(agent::ReloadConfigRequest {})
        .await
        .expect("answered");
    assert_eq!(outcome.get_ref().changed, ["log.level"]);
    assert_eq!(outcome.get_ref().needs_restart, ["sampling.event"]);
    *running.host.reload.lock().expect("not poisoned") = Err("unknown key `x`".to_owned());
    let error = client
        .reload_config(agent::ReloadConfigRequest {})
        .await
        .expect_err("refused");
    assert_eq!(
        (error.code(), error.message()),
        (Code::FailedPrecondition, "unknown key `x`")
    );
}

#[tokio::test]
async fn cgroups_come_as_a_tree() {
    let (_directory, running, mut client) = service().await;
    running.host.add(true, &[("/a/b", "x", 3), ("/a", "x", 1)]);
    let answer = client
        .list_cgroups(agent::ListCgroupsRequest { range: None })
        .await;
    let answer = answer.expect("answered").into_inner();
    let found: Vec<_> = answer
        .cgroups
        .iter()
        .map(|c| (c.path.as_str(), c.self_count, c.total_count))
        .collect();
    assert_eq!(found, [("/", 0, 4), ("/a", 1, 4), ("/a/b", 3, 3)]);
    assert_eq!(answer.total_weight, 4 * PERIOD);
    assert_eq!(answer.unit, "nanoseconds");
    assert_eq!(answer.quality.expect("quality").taken, 4);
    let covered = answer.covered.expect("a range");
    assert_eq!(covered.end_unix_ns - covered.start_unix_ns, SECOND as i64);
}

#[tokio::test]
async fn a_query_selects_filters_and_groups() {
    let (_directory, running, mut client) = service().await;
    running.host.add(
        true,
        &[("/a", "hot", 5), ("/a", "cold", 1), ("/b", "hot", 7)],
    );
    let request = agent::QueryProfileRequest {
        matchers: vec![matcher(agent::MatchOp::Subtree, "/a")],
        frame_filters: vec![filter(agent::FrameFilterOp::Keep, "^hot$")],
        group_by: vec![key::CGROUP.to_owned()],
        ..Default::default()
    };
    let profile = ask(&mut client, request).await;
    assert_eq!(leaves(&profile), text(&[("hot", 5)]));
    let (key, _) = profile.sorted()[0];
    let labels: Vec<_> = profile.dict.labels(key.labels).collect();
    assert_eq!(labels, [("cgroup", "/a")]);
    let wall = running.host.clock.to_unix_ns(running.host.started);
    assert_eq!(profile.info.start_unix_ns, wall);
    assert_eq!(profile.info.duration_ns, SECOND);
    assert_eq!(
        (profile.info.event.as_str(), profile.info.period),
        ("cpu-clock", PERIOD)
    );
}

#[tokio::test]
async fn a_range_takes_its_windows_only() {
    let (_directory, running, mut client) = service().await;
    running.host.add(true, &[("/a", "first", 1)]);
    running.host.add(true, &[("/a", "second", 1)]);
    let second = running.host.clock.to_unix_ns(running.host.started) + SECOND as i64;
    let range = Some(agent::TimeRange {
        start_unix_ns: second + 1,
        end_unix_ns: 0,
    });
    let profile = ask(
        &mut client,
        agent::QueryProfileRequest {
            range,
            ..Default::default()
        },
    )
    .await;
    assert_eq!(leaves(&profile), text(&[("second", 1)]));
    let range = Some(agent::TimeRange {
        start_unix_ns: 1,
        end_unix_ns: second,
    });
    let profile = ask(
        &mut client,
        agent::QueryProfileRequest {
            range,
            ..Default::default()
        },
    )
    .await;
    assert_eq!(leaves(&profile), text(&[("first", 1)]));
}

#[tokio::test]
async fn a_recorder_without_windows_answers_an_empty_profile_of_now() {
    let (_directory, running, mut client) = service().await;
    let profile = ask(&mut client, agent::QueryProfileRequest::default()).await;
    assert!(profile.samples.is_empty());
    assert!(profile.info.start_unix_ns >= running.host.clock.to_unix_ns(running.host.started));
}

#[tokio::test]
async fn fresh_takes_what_the_sampler_has() {
    let (_directory, running, mut client) = service().await;
    running.host.add(true, &[("/a", "old", 1)]);
    let stale = ask(&mut client, agent::QueryProfileRequest::default()).await;
    assert_eq!(leaves(&stale), text(&[("old", 1)]));
    assert_eq!(running.host.flushes.load(Ordering::SeqCst), 0);
    let request = agent::QueryProfileRequest {
        fresh: true,
        ..Default::default()
    };
    let fresh = ask(&mut client, request).await;
    assert_eq!(leaves(&fresh), text(&[("fresh", 1), ("old", 1)]));
}

#[tokio::test]
async fn bad_questions_are_told_why() {
    let (_directory, _running, mut client) = service().await;
    let cases = [
        (
            agent::QueryProfileRequest {
                matchers: vec![matcher(agent::MatchOp::Regex, "(")],
                ..Default::default()
            },
            "failed to compile pattern `(`",
        ),
        (
            agent::QueryProfileRequest {
                frame_filters: vec![filter(agent::FrameFilterOp::Drop, "[")],
                ..Default::default()
            },
            "failed to compile pattern `[`",
        ),
        (
            agent::QueryProfileRequest {
                matchers: vec![agent::LabelMatcher {
                    op: 77,
                    ..matcher(agent::MatchOp::Equal, "")
                }],
                ..Default::default()
            },
            "operator 77 is not known",
        ),
        (
            agent::QueryProfileRequest {
                matchers: vec![matcher(agent::MatchOp::Equal, "x"); profile::FILTERS_MAX + 1],
                ..Default::default()
            },
            "failed to use 65 matchers",
        ),
        (
            agent::QueryProfileRequest {
                range: Some(agent::TimeRange {
                    start_unix_ns: 2,
                    end_unix_ns: 1,
                }),
                ..Default::default()
            },
            "it ends before it starts",
        ),
    ];
    for (request, reason) in cases {
        let error = client.query_profile(request).await.expect_err(reason);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(reason), "{error}");
    }
    let request = agent::StreamProfilesRequest {
        interval_ms: 499,
        ..Default::default()
    };
    let error = client
        .stream_profiles(request)
        .await
        .expect_err("too short");
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_large_answer_comes_in_chunks() {
    let (_directory, running, mut client) = service().await;
    running.host.add_large();
    let request = agent::QueryProfileRequest::default();
    let answer = client
        .query_profile(request)
        .await
        .expect("answered")
        .into_inner();
    let (profile, chunks) = assemble(answer).await.expect("complete");
    assert!(chunks > 5, "{chunks}");
    assert_eq!(profile.total().count, 20_000);
}

/// One profile of a live stream and how many were missed before it.
async fn next(stream: &mut Streaming<agent::StreamProfilesResponse>) -> (Profile, u32) {
    let mut assembler = ProfileAssembler::new();
    let mut missed = 0;
    loop {
        let message = stream
            .message()
            .await
            .expect("no error")
            .expect("not at its end");
        missed += message.missed;
        let chunk = message.chunk.expect("a chunk");
        let last = chunk.last;
        assembler.push(chunk).expect("a sound chunk");
        if last {
            return (assembler.finish().expect("a whole profile"), missed);
        }
    }
}

/// Waits until the task of a new live stream has subscribed.
async fn subscribed(running: &Running) {
    let recorder = &running.host.recorder;
    until("it has subscribed", || {
        recorder.read().expect("not poisoned").listeners() > 0
    })
    .await;
}

#[tokio::test]
async fn each_window_is_streamed_as_it_closes() {
    let (_directory, running, mut client) = service().await;
    running.host.add(true, &[("/a", "before", 1)]);
    let request = agent::StreamProfilesRequest::default();
    let mut stream = client
        .stream_profiles(request)
        .await
        .expect("answered")
        .into_inner();
    subscribed(&running).await;
    running.host.add(false, &[("/a", "part", 1)]);
    running.host.add(true, &[("/a", "rest", 2)]);
    let (profile, missed) = next(&mut stream).await;
    assert_eq!(
        (leaves(&profile), missed),
        (text(&[("part", 1), ("rest", 2)]), 0)
    );
    running.host.add(true, &[("/a", "second", 1)]);
    assert_eq!(leaves(&next(&mut stream).await.0), text(&[("second", 1)]));
}

#[tokio::test]
async fn an_interval_is_streamed_in_parts_while_the_host_is_watched() {
    let (_directory, running, mut client) = service().await;
    let request = agent::StreamProfilesRequest {
        interval_ms: 1000,
        matchers: vec![matcher(agent::MatchOp::Equal, "/a")],
        ..Default::default()
    };
    let mut stream = client
        .stream_profiles(request)
        .await
        .expect("answered")
        .into_inner();
    subscribed(&running).await;
    assert_eq!(running.host.watchers.load(Ordering::SeqCst), 1);
    running
        .host
        .add(false, &[("/a", "part", 1), ("/b", "other", 1)]);
    assert_eq!(leaves(&next(&mut stream).await.0), text(&[("part", 1)]));
    running.host.add(true, &[("/a", "rest", 2)]);
    assert_eq!(leaves(&next(&mut stream).await.0), text(&[("rest", 2)]));
    drop(stream);
    let watchers = &running.host.watchers;
    until("nobody watches", || watchers.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn a_live_client_that_was_slow_is_told_what_it_missed() {
    let (_directory, running, mut client) = service().await;
    let request = agent::StreamProfilesRequest::default();
    let mut stream = client
        .stream_profiles(request)
        .await
        .expect("answered")
        .into_inner();
    subscribed(&running).await;
    // All before the stream's task can run: this runtime has one thread.
    for _ in 0..20 {
        running.host.add(true, &[("/a", "x", 1)]);
    }
    assert_eq!(next(&mut stream).await.1, 14);
    assert_eq!(next(&mut stream).await.1, 0);
}

#[tokio::test]
async fn more_streams_than_there_are_places_are_refused() {
    let (directory, running, _client) = service().await;
    let path = directory.path().join("agent.sock");
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        let mut client = connect(&path).await;
        let request = agent::StreamProfilesRequest::default();
        open.push(client.stream_profiles(request).await.expect("answered"));
    }
    let mut client = connect(&path).await;
    let request = agent::QueryProfileRequest::default();
    let error = client.query_profile(request).await.expect_err("refused");
    assert_eq!(error.code(), Code::ResourceExhausted);
    drop(running);
}
