//! QueryService: answers, limits, and what happens when a client goes away.

use crate::rig::{NOW, Options, Rig, SECOND, facts, hash, labels, start, until, window};
use collector::store::WindowSink;
use proto::collector as wire;
use proto::{ProfileAssembler, agent};
use std::time::Duration;
use tonic::Code;

/// A rig with two hosts: `a` has two windows of `main;read` and `main;write`, `b` one of
/// `main;read` and a lost sample.
async fn filled(options: Options) -> Rig {
    let rig = Rig::with(options).await;
    let mut a = rig.agent("a").await;
    for number in [1, 2] {
        a.store(number, &["main;read", "main;write"]).await;
    }
    let mut b = rig.agent("b").await;
    let mut part = window(2, &["main;read"]);
    part.label_sets.push(labels(&[("cgroup", "/user.slice")]));
    part.sample_label_sets = vec![1, 2];
    part.sample_stacks = vec![1, 0];
    part.sample_ends = vec![0, profile::StackEnd::Lost as u32];
    part.sample_counts = vec![3, 1];
    part.facts = Some(facts(2));
    b.part(part).await;
    b.ack().await;
    rig.hosts.flush(&rig.open).expect("stored");
    rig
}

fn selection(selector: &str) -> Option<wire::Selection> {
    Some(wire::Selection {
        range: Some(agent::TimeRange::default()),
        selector: selector.to_owned(),
        ..wire::Selection::default()
    })
}

#[tokio::test]
async fn a_profile_comes_with_its_quality_first() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let request = wire::ProfileRequest {
        selection: selection("unit=\"web.service\""),
        group_by: vec!["host".to_owned()],
        max_nodes: 0,
    };
    let mut parts = client
        .profile(request)
        .await
        .expect("an answer")
        .into_inner();
    let first = parts.message().await.expect("a part").expect("a part");
    let quality = first.quality.expect("quality first");
    assert_eq!(
        (quality.hosts, quality.windows, quality.total_count),
        (2, 3, 7)
    );
    assert_eq!(quality.unit, "nanoseconds");
    let mut assembler = ProfileAssembler::new();
    while let Some(part) = parts.message().await.expect("a part") {
        assembler.push(part.chunk.expect("a chunk")).expect("sound");
    }
    let found = assembler.finish().expect("whole");
    assert_eq!(found.total().weight, 70);
    let ids = found.dict.content_ids();
    assert!(ids.contains(&hash("main;write")));
}

#[tokio::test]
async fn tables_are_by_function_module_and_label() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let mut top = async |by: &str, selector: &str, limit| {
        let request = wire::TopRequest {
            selection: selection(selector),
            by: by.to_owned(),
            sort_by_total: true,
            limit,
        };
        let answer = client.top(request).await.expect("an answer").into_inner();
        let rows = answer.rows.into_iter();
        let rows: Vec<_> = rows.map(|row| (row.name, row.total_count)).collect();
        (rows, answer.rows_left_out)
    };
    let owned = |rows: &[(&str, u64)]| -> Vec<_> {
        let rows = rows.iter();
        rows.map(|&(name, count)| (name.to_owned(), count))
            .collect()
    };
    let web = "unit=\"web.service\"";
    let by_function = owned(&[("main", 7), ("read", 5), ("write", 2)]);
    assert_eq!(top("function", web, 0).await, (by_function, 0));
    assert_eq!(top("function", web, 1).await, (owned(&[("main", 7)]), 2));
    assert_eq!(top("module", web, 0).await.0, owned(&[("app", 7)]));
    assert_eq!(top("host", "", 0).await.0, owned(&[("a", 4), ("b", 4)]));
    let by_unit = owned(&[("web.service", 7), ("", 1)]);
    assert_eq!(top("unit", "", 0).await.0, by_unit);
}

#[tokio::test]
async fn a_table_of_a_label_honours_frame_filters() {
    let rig = filled(Options::default()).await;
    let mut selection = selection("").expect("some");
    selection.frame_filters = vec![agent::FrameFilter {
        op: agent::FrameFilterOp::Keep.into(),
        regex: "^write$".to_owned(),
    }];
    let request = wire::TopRequest {
        selection: Some(selection.clone()),
        by: "host".to_owned(),
        ..wire::TopRequest::default()
    };
    let mut client = rig.queries().await;
    let answer = client.top(request).await.expect("an answer").into_inner();
    assert_eq!(answer.rows.len(), 1);
    assert_eq!(
        (answer.rows[0].name.as_str(), answer.rows[0].self_count),
        ("a", 2)
    );
    // Where an answer has no stacks they are refused, not left out.
    let request = wire::LabelNamesRequest {
        selection: Some(selection),
    };
    let refused = client.label_names(request).await.expect_err("no stacks");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_series_of_a_function_tells_when_and_where_it_ran() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let mut series = async |regex: &str, by: &str, step_ns| {
        let request = wire::SeriesRequest {
            selection: Some(wire::Selection {
                range: Some(agent::TimeRange {
                    start_unix_ns: start(0),
                    end_unix_ns: start(4),
                }),
                frame_filters: vec![agent::FrameFilter {
                    op: agent::FrameFilterOp::Keep.into(),
                    regex: regex.to_owned(),
                }],
                ..wire::Selection::default()
            }),
            group_by: vec![by.to_owned()],
            step_ns,
            limit: 5,
            // The kernel accounts for cgroups, not for functions.
            accounted: true,
        };
        client
            .series(request)
            .await
            .map(tonic::Response::into_inner)
    };
    let answer = series("^write$", "host", 0).await.expect("an answer");
    assert_eq!(
        (answer.step_ns, answer.accounted),
        (10 * SECOND as u64, false)
    );
    let lines: Vec<_> = answer
        .lines
        .iter()
        .map(|line| (&line.labels["host"], line.total_weight))
        .collect();
    assert_eq!(lines, [(&"a".to_owned(), 20)]);
    // One in each of the two windows of `a`, nothing before and after.
    let weights = answer.lines[0].weights.iter().filter(|weight| **weight > 0);
    assert_eq!(weights.collect::<Vec<_>>(), [&10, &10]);
    assert_eq!(answer.steps.len(), answer.lines[0].weights.len());
    assert_eq!(answer.quality.expect("quality").total_weight, 20);
    let answer = series("^read$", "unit", 0).await.expect("an answer");
    assert_eq!(answer.lines[0].labels["unit"], "web.service");
    assert_eq!(answer.lines[0].total_weight, 50);
    let refused = series("^read$", "unit", 1).await;
    assert!(refused.is_ok(), "four steps are few");
    let none = series("^nothing$", "host", 0).await.expect("an answer");
    assert!(none.lines.is_empty());
    assert!(
        none.steps.iter().any(|step| step.hosts > 0),
        "data, and not of it"
    );
}

#[tokio::test]
async fn a_diff_shows_what_moved() {
    let rig = filled(Options::default()).await;
    let request = wire::DiffRequest {
        before: selection("host=\"a\",unit=\"web.service\""),
        after: selection("host=\"b\",unit=\"web.service\""),
        ..wire::DiffRequest::default()
    };
    let mut client = rig.queries().await;
    let answer = client.diff(request).await.expect("an answer").into_inner();
    let write = answer.rows.iter().find(|row| row.name == "write");
    let write = write.expect("a row");
    assert!(write.vanished && !write.appeared);
    assert!((write.share_change + 0.5).abs() < 1e-9, "{write:?}");
    // A host against another: what they always differ by is not known.
    assert!(answer.hosts_differ);
    let parts = [answer.before_sampled, answer.after_sampled];
    assert_eq!(parts.map(|side| side.expect("a side").host_parts), [1, 1]);
    assert_eq!(answer.before.expect("quality").total_count, 4);
    assert_eq!(answer.after.expect("quality").total_count, 3);
}

#[tokio::test]
async fn a_diff_is_of_modules_where_they_are_asked_for() {
    let rig = filled(Options::default()).await;
    let by = |by: &str| wire::DiffRequest {
        before: selection("host=\"a\""),
        after: selection("host=\"a\""),
        by: by.to_owned(),
        ..wire::DiffRequest::default()
    };
    let mut client = rig.queries().await;
    let functions = client.diff(by("")).await.expect("an answer").into_inner();
    let modules = client.diff(by("module")).await.expect("an answer");
    let modules = modules.into_inner();
    let sum = |answer: &wire::DiffResponse| {
        let rows = answer.rows.iter();
        rows.map(|row| row.after_self_weight).sum::<u64>()
    };
    assert_eq!(sum(&modules), sum(&functions));
    assert!(modules.rows.len() < functions.rows.len());
    assert!(!modules.hosts_differ);
    let refused = client.diff(by("unit")).await.expect_err("a label");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("Overview"), "{refused:?}");
}

#[tokio::test]
async fn a_diff_is_not_of_pruned_profiles() {
    let mut options = Options::default();
    options.query.nodes = 2;
    let rig = filled(options).await;
    rig.store.fold();
    let request = wire::DiffRequest {
        before: selection("host=\"a\",unit=\"web.service\""),
        after: selection("host=\"b\",unit=\"web.service\""),
        ..wire::DiffRequest::default()
    };
    let answer = rig.queries().await.diff(request).await;
    let rows = answer.expect("an answer").into_inner().rows;
    let of = |name: &str| {
        let row = rows.iter().find(|row| row.name == name).expect("a row");
        (row.before_self_weight, row.after_self_weight)
    };
    // What `read` and `write` cost does not wander to their caller.
    assert_eq!(of("main"), (0, 0));
    assert!(of("read").0 > 0 && of("read").1 > 0 && of("write").0 > 0);
}

#[tokio::test]
async fn selections_of_different_units_are_not_compared() {
    let rig = filled(Options::default()).await;
    let mut c = rig.agent("c").await;
    let mut part = window(30, &["main;read"]);
    part.facts.as_mut().expect("facts").unit = "cycles".to_owned();
    c.part(part).await;
    c.ack().await;
    let of = |number| {
        let range = agent::TimeRange {
            start_unix_ns: start(number),
            end_unix_ns: start(number + 1),
        };
        Some(wire::Selection {
            range: Some(range),
            ..wire::Selection::default()
        })
    };
    let request = wire::DiffRequest {
        before: of(1),
        after: of(30),
        ..wire::DiffRequest::default()
    };
    let refused = rig.queries().await.diff(request).await;
    let refused = refused.expect_err("two units");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("cycles"), "{refused:?}");
}

#[tokio::test]
async fn a_diff_is_of_what_was_sampled() {
    let rig = filled(Options::default()).await;
    // Two windows, and one of them.
    let of = |host: &str| {
        selection(host).map(|selection| wire::Selection {
            range: Some(agent::TimeRange {
                start_unix_ns: start(1),
                end_unix_ns: start(3),
            }),
            ..selection
        })
    };
    let request = wire::DiffRequest {
        before: of("host=\"a\""),
        after: of("host=\"b\""),
        ..wire::DiffRequest::default()
    };
    let mut client = rig.queries().await;
    let answer = client.diff(request).await.expect("an answer").into_inner();
    assert!(answer.rows.iter().all(|row| row.name != "[lost]"));
    let read = answer.rows.iter().find(|row| row.name == "read");
    // One of the four samples of `b` was lost: `read` is all of what is left.
    assert!((read.expect("a row").share_change - 0.5).abs() < 1e-9);
    let (before, after) = (answer.before_sampled, answer.after_sampled);
    let (before, after) = (before.expect("a side"), after.expect("a side"));
    assert_eq!((before.count, before.parts), (4, 2));
    assert_eq!((after.count, after.parts), (3, 1));
    assert_eq!(answer.after.expect("quality").total_count, 4);
}

#[tokio::test]
async fn a_diff_has_the_memory_of_one_query() {
    let mut options = Options::default();
    options.query.memory_bytes = 1 << 20;
    let rig = filled(options).await;
    let request = wire::DiffRequest {
        before: selection("host=\"a\""),
        after: selection("host=\"b\""),
        ..wire::DiffRequest::default()
    };
    rig.queries().await.diff(request).await.expect("an answer");
    let allowed = rig.store.allowed();
    assert_eq!(allowed[0], 1 << 20);
    // The other side, and how far both spread, beside what is held of the first.
    assert!(allowed.len() > 2, "{allowed:?}");
    assert!(
        allowed[1..].iter().all(|&bytes| bytes < 1 << 20),
        "{allowed:?}"
    );
}

#[tokio::test]
async fn a_diff_with_nothing_on_one_side_shows_all_of_the_other() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let request = wire::DiffRequest {
        before: selection("host=\"nobody\""),
        after: selection("host=\"b\",unit=\"web.service\""),
        ..wire::DiffRequest::default()
    };
    let answer = client.diff(request).await.expect("an answer").into_inner();
    assert!(!answer.rows.is_empty());
    assert!(answer.rows.iter().all(|row| row.appeared && !row.vanished));
    let request = wire::DiffRequest {
        before: selection("host=\"b\",unit=\"web.service\""),
        after: selection("host=\"nobody\""),
        ..wire::DiffRequest::default()
    };
    let answer = client.diff(request).await.expect("an answer").into_inner();
    assert!(answer.rows.iter().all(|row| row.vanished && !row.appeared));
}

#[tokio::test]
async fn series_have_whole_steps_and_a_rest() {
    let rig = filled(Options::default()).await;
    let request = wire::SeriesRequest {
        selection: Some(wire::Selection {
            range: Some(agent::TimeRange {
                start_unix_ns: start(0),
                end_unix_ns: start(6),
            }),
            ..wire::Selection::default()
        }),
        group_by: vec!["host".to_owned()],
        step_ns: 1,
        limit: 1,
        accounted: false,
    };
    let mut client = rig.queries().await;
    let answer = client
        .series(request)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(answer.step_ns, 10 * SECOND as u64);
    assert_eq!(answer.rest_lines, 1);
    let rest = answer.lines.last().expect("a line");
    assert!(rest.rest && rest.labels.is_empty());
    let weights = answer.lines.iter().map(|line| line.total_weight);
    assert_eq!(weights.sum::<u64>(), 80);
    let steps = answer.steps.iter();
    let steps: Vec<_> = steps
        .map(|step| (step.hosts, step.weight, step.lost_weight))
        .collect();
    assert_eq!(steps.len(), answer.lines[0].weights.len());
    assert_eq!(steps.iter().map(|step| step.1).sum::<u64>(), 80);
    assert_eq!(steps.iter().map(|step| step.2).sum::<u64>(), 10);
}

#[tokio::test]
async fn labels_are_listed_by_prefix_and_limit() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let request = wire::LabelNamesRequest {
        selection: selection(""),
    };
    let names = client.label_names(request).await.expect("an answer");
    let expected = ["cgroup", "host", "region", "unit"];
    assert_eq!(names.into_inner().names, expected);
    let mut request = wire::LabelValuesRequest {
        selection: selection(""),
        name: "host".to_owned(),
        prefix: String::new(),
        limit: 1,
    };
    let values = client
        .label_values(request.clone())
        .await
        .expect("an answer");
    let values = values.into_inner();
    assert_eq!((values.values, values.more), (vec!["a".to_owned()], true));
    request.prefix = "b".to_owned();
    let values = client
        .label_values(request.clone())
        .await
        .expect("an answer");
    let values = values.into_inner();
    assert_eq!((values.values, values.more), (vec!["b".to_owned()], false));
    request.name.clear();
    let refused = client.label_values(request).await.expect_err("no name");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn cgroups_are_rolled_up_over_hosts() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let request = wire::CgroupsRequest {
        selection: selection(""),
    };
    let answer = client
        .cgroups(request)
        .await
        .expect("an answer")
        .into_inner();
    let rows: Vec<_> = answer
        .cgroups
        .iter()
        .map(|row| {
            (
                row.path.as_str(),
                row.self_count,
                row.total_count,
                row.expected_ns,
            )
        })
        .collect();
    let expected = [
        ("/", 0, 8, 120),
        ("/system.slice", 0, 7, 120),
        ("/system.slice/web.service", 7, 7, 120),
        ("/user.slice", 1, 1, 0),
    ];
    assert_eq!(rows, expected);
    let lost = answer.cgroups.iter().map(|row| row.total_lost_count);
    assert_eq!(lost.max(), Some(1));
    // Nor with frame filters, which are answered from stacks.
    let mut filtered = selection("").expect("a selection");
    filtered.frame_filters.push(agent::FrameFilter {
        op: agent::FrameFilterOp::Keep.into(),
        regex: "^write$".to_owned(),
    });
    let answer = client
        .cgroups(wire::CgroupsRequest {
            selection: Some(filtered),
        })
        .await
        .expect("an answer")
        .into_inner();
    let rows: Vec<_> = answer
        .cgroups
        .iter()
        .map(|row| (row.path.as_str(), row.total_count, row.expected_ns))
        .collect();
    let only = [
        ("/", 2, 0),
        ("/system.slice", 2, 0),
        ("/system.slice/web.service", 2, 0),
    ];
    assert_eq!(rows, only);
    // A selection of some of the samples has no expected CPU time.
    let request = wire::CgroupsRequest {
        selection: selection("comm!=\"x\""),
    };
    let answer = client
        .cgroups(request)
        .await
        .expect("an answer")
        .into_inner();
    assert!(answer.cgroups.iter().all(|row| row.expected_ns == 0));
}

#[tokio::test]
async fn hosts_come_with_what_they_did_and_what_is_odd() {
    let rig = filled(Options::default()).await;
    // Another machine of the same name.
    let mut twin = crate::rig::PushStream::connect(rig.channel().await)
        .await
        .expect("a stream");
    twin.hello(wire::Hello {
        host_id: "other".to_owned(),
        ..crate::rig::hello("a", 3)
    })
    .await;
    rig.hosts.flush(&rig.open).expect("stored");
    let mut client = rig.queries().await;
    let range = Some(agent::TimeRange::default());
    let request = wire::HostsRequest { range };
    let answer = client.hosts(request).await.expect("an answer").into_inner();
    let hosts: Vec<_> = answer
        .hosts
        .iter()
        .map(|host| {
            let name = &host.facts.as_ref().expect("facts").hostname;
            (
                host.host_id.as_str(),
                name.as_str(),
                host.windows,
                host.weight,
            )
        })
        .collect();
    let expected = [
        ("id-a", "a", 2, 40),
        ("id-b", "b", 1, 40),
        ("other", "a", 0, 0),
    ];
    assert_eq!(hosts, expected);
    assert_eq!(answer.hosts[0].boot_id, "01".repeat(16));
    let warned: Vec<bool> = answer
        .hosts
        .iter()
        .map(|host| !host.warnings.is_empty())
        .collect();
    assert_eq!(warned, [true, false, true]);
    assert!(answer.hosts[2].connected);
    assert_eq!(answer.quality.expect("quality").windows, 3);
}

/// The units of hosts `a` and `b` and of all of them.
async fn units(rig: &Rig) -> [String; 3] {
    rig.hosts.flush(&rig.open).expect("stored");
    let range = Some(agent::TimeRange::default());
    let answer = rig
        .queries()
        .await
        .hosts(wire::HostsRequest { range })
        .await;
    let answer = answer.expect("an answer").into_inner();
    let [a, b] = &answer.hosts[..] else {
        panic!("two hosts, not {:?}", answer.hosts);
    };
    let all = answer.quality.expect("quality").unit;
    [a.unit.clone(), b.unit.clone(), all]
}

#[tokio::test]
async fn hosts_say_in_which_unit_they_count() {
    let rig = Rig::start().await;
    let send = async |host: &str, unit: &str| {
        let mut part = window(1, &["main"]);
        part.facts.as_mut().expect("facts").unit = unit.to_owned();
        let mut agent = rig.agent(host).await;
        let ack = agent.store_part(part, &["main"]).await;
        assert_eq!(ack.outcome, wire::Outcome::Stored as i32, "{}", ack.reason);
    };
    send("a", "cycles").await;
    rig.agent("b").await;
    assert_eq!(units(&rig).await, ["cycles"; 3]);
    send("b", "nanoseconds").await;
    assert_eq!(units(&rig).await, ["cycles", "nanoseconds", ""]);
}

#[tokio::test]
async fn a_collector_that_started_again_asks_its_store_for_the_unit() {
    let rig = filled(Options::default()).await;
    assert_eq!(units(&rig).await, ["nanoseconds"; 3]);
    let restarted = Rig::start().await;
    for window in rig.store.windows() {
        let given = rig.store.dictionary();
        restarted
            .store
            .push(&[window], &given, NOW)
            .expect("stored");
    }
    for record in rig.store.host_records() {
        restarted
            .store
            .put_hosts(std::slice::from_ref(&record))
            .expect("stored");
    }
    assert_eq!(units(&restarted).await, ["nanoseconds"; 3]);
}

#[tokio::test]
async fn status_says_what_this_is() {
    let rig = filled(Options::default()).await;
    let mut client = rig.queries().await;
    let request = wire::StatusRequest {};
    let status = client
        .status(request)
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(
        (status.store.as_str(), status.store_version.as_str()),
        ("memory", "1")
    );
    assert_eq!((status.store_bytes, status.store_bytes_max), (4096, 7));
    assert_eq!((status.started_unix_ns, status.now_unix_ns), (NOW, NOW));
    assert_eq!(status.kept.expect("kept").start_unix_ns, start(1));
    let stored = status
        .counters
        .iter()
        .find(|counter| counter.labels == "outcome=\"stored\"");
    assert_eq!(stored.expect("a counter").value, 3);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_reason() {
    let rig = Rig::start().await;
    let mut client = rig.queries().await;
    let mut check = async |selection: Option<wire::Selection>, group_by: &[&str], what: &str| {
        let request = wire::SeriesRequest {
            selection,
            group_by: group_by.iter().map(|&label| label.to_owned()).collect(),
            ..wire::SeriesRequest::default()
        };
        let refused = client.series(request).await.expect_err(what);
        assert_eq!(refused.code(), Code::InvalidArgument, "{what}");
        assert!(refused.message().contains(what), "{refused:?}");
    };
    check(selection("unit="), &[], "expected a value").await;
    check(selection("unit=~\"(\""), &[], "failed to compile pattern").await;
    let backwards = wire::Selection {
        range: Some(agent::TimeRange {
            start_unix_ns: 9,
            end_unix_ns: 5,
        }),
        ..wire::Selection::default()
    };
    check(Some(backwards), &[], "ends before it starts").await;
    let many = wire::Selection {
        matchers: vec![agent::LabelMatcher::default(); 65],
        ..wire::Selection::default()
    };
    check(Some(many), &[], "at most 64").await;
    check(None, &[""], "name a label").await;
}

#[tokio::test]
async fn a_year_in_short_steps_is_too_much() {
    let rig = Rig::start().await;
    let mut client = rig.queries().await;
    let request = wire::SeriesRequest {
        selection: Some(wire::Selection {
            range: Some(agent::TimeRange {
                start_unix_ns: NOW - 365 * 86_400 * SECOND,
                end_unix_ns: NOW,
            }),
            ..wire::Selection::default()
        }),
        step_ns: 10 * SECOND as u64,
        ..wire::SeriesRequest::default()
    };
    let refused = client.series(request).await.expect_err("too much");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("longer steps"), "{refused:?}");
}

#[tokio::test]
async fn limits_of_the_store_are_told_as_limits() {
    let mut options = Options::default();
    options.query.nodes = 2;
    let rig = filled(options).await;
    let request = wire::ProfileRequest {
        selection: selection(""),
        ..wire::ProfileRequest::default()
    };
    let mut client = rig.queries().await;
    let refused = match client.profile(request).await {
        Ok(parts) => parts.into_inner().message().await.map(|_| ()),
        Err(refused) => Err(refused),
    };
    let refused = refused.expect_err("too many");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(rig.metrics.queries_limited.get(), 1);
}

#[tokio::test]
async fn what_functions_cost_is_not_of_a_pruned_profile() {
    let mut options = Options::default();
    options.query.nodes = 2;
    let rig = filled(options).await;
    let request = wire::TopRequest {
        selection: selection(""),
        ..wire::TopRequest::default()
    };
    let top = rig.queries().await.top(request).await;
    assert!(top.is_ok_and(|top| !top.into_inner().rows.is_empty()));
}

#[tokio::test]
async fn an_answer_says_that_its_weights_were_cut() {
    let rig = Rig::with(Options::default()).await;
    let mut agent = rig.agent("a").await;
    let capped = async || {
        let request = wire::TopRequest {
            selection: selection(""),
            ..wire::TopRequest::default()
        };
        let top = rig.queries().await.top(request).await;
        let quality = top.expect("an answer").into_inner().quality;
        quality.expect("quality").weights_capped
    };
    for (number, expected) in [(1, false), (2, true)] {
        let mut part = window(number, &["main;read"]);
        part.facts.as_mut().expect("facts").unit = "cycles".to_owned();
        part.sample_weights = vec![u64::MAX / 2 + 1];
        agent.store_part(part, &["main;read"]).await;
        assert_eq!(capped().await, expected);
    }
}

#[tokio::test]
async fn a_query_that_takes_too_long_is_given_up() {
    let mut options = Options::default();
    options.query.timeout = Duration::from_millis(200);
    let rig = filled(options).await;
    rig.store.hold(true);
    let request = wire::TopRequest::default();
    let refused = rig
        .queries()
        .await
        .top(request)
        .await
        .expect_err("too long");
    assert_eq!(refused.code(), Code::DeadlineExceeded);
    assert!(refused.message().contains("query.timeout_s"), "{refused:?}");
    assert_eq!(rig.store.cancelled(), 1);
    assert_eq!(rig.metrics.queries_late.get(), 1);
}

#[tokio::test]
async fn a_query_ends_when_its_client_goes() {
    let rig = filled(Options::default()).await;
    rig.store.hold(true);
    let mut client = rig.queries().await;
    let asking = tokio::spawn(async move { client.top(wire::TopRequest::default()).await });
    until("it runs", || rig.metrics.queries_running.get() == 1).await;
    asking.abort();
    until("it is given up", || rig.store.cancelled() == 1).await;
    until("its place is free", || {
        rig.metrics.queries_running.get() == 0
    })
    .await;
    assert_eq!(rig.metrics.queries_cancelled.get(), 1);
}

#[tokio::test]
async fn queries_beyond_the_limit_wait_for_a_place() {
    let rig = filled(Options::default()).await;
    rig.store.hold(true);
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let mut client = rig.queries().await;
        asking.spawn(async move { client.top(wire::TopRequest::default()).await });
    }
    until("two run", || rig.metrics.queries_running.get() == 2).await;
    // Status does not stand in that line.
    let status = rig.queries().await.status(wire::StatusRequest {}).await;
    assert!(status.is_ok());
    rig.store.hold(false);
    for answer in asking.join_all().await {
        assert!(answer.is_ok());
    }
}

#[tokio::test]
async fn health_and_reflection_are_there() {
    let rig = Rig::start().await;
    let channel = rig.channel().await;
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    for service in [
        "fleetprof.collector.v1.IngestService",
        "fleetprof.collector.v1.QueryService",
    ] {
        let request = tonic_health::pb::HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = health.check(request).await.expect("an answer").into_inner();
        assert_eq!(
            answer.status(),
            tonic_health::ServingStatus::Serving.into(),
            "{service}"
        );
    }
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .expect("an answer")
        .into_inner();
    let answer = answers.message().await.expect("one").expect("one");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list but {answer:?}");
    };
    let found = list
        .service
        .iter()
        .any(|one| one.name.ends_with("IngestService"));
    assert!(found, "{list:?}");
}
