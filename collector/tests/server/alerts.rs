//! Alerts against a real receiver on loopback: each notification comes once, whatever happens to
//! the receiver, the collector, its clock, its disk and the hosts.

use crate::program::{Program, push_at};
use crate::rig::{LIMIT, NOW, Options, PushStream, Rig, SECOND, starting, window};
use crate::web::get;
use crate::webhook::{Got, Webhook};
use collector::access::{Caller, Role, Scope};
use collector::alerts::AlertOptions;
use collector::config::alerts::SecretUrl;
use collector::config::{AlertRule, Receiver, Rule};
use proto::agent::TimeRange;
use proto::collector::alert_service_client::AlertServiceClient;
use proto::collector::{self as wire, AlertState};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::SmallDisk;

/// Time between two rounds. Unit: seconds.
const ROUND_S: i64 = 30;

pub fn rule(when: &str, change: impl FnOnce(&mut AlertRule)) -> AlertRule {
    let mut rule = AlertRule {
        name: "api-cpu".to_owned(),
        selector: "unit=\"web.service\"".to_owned(),
        when: when.to_owned(),
        ..AlertRule::default()
    };
    change(&mut rule);
    rule
}

fn receiver(webhook: &Webhook) -> Receiver {
    Receiver {
        name: "oncall".to_owned(),
        format: "alertmanager".to_owned(),
        url: Some(SecretUrl(webhook.url())),
        url_file: None,
    }
}

pub fn options(rules: &[AlertRule], webhook: &Webhook, dir: Option<&Path>) -> Options {
    let parse = |rule| Rule::parse(rule, &["oncall"]).expect("a rule");
    let mut options = Options::default();
    options.alerts = AlertOptions {
        dir: dir.map_or_else(PathBuf::new, Path::to_owned),
        rules: rules.iter().map(parse).collect(),
        receivers: vec![receiver(webhook)],
        retry: (Duration::from_millis(5), Duration::from_millis(20)),
        ..options.alerts
    };
    options
}

/// A collector with its time, and hosts that send windows as it passes.
pub struct Play {
    pub rig: Rig,
    hosts: Vec<(String, PushStream)>,
    /// Up to when windows were sent.
    sent: i64,
}

impl Play {
    pub async fn start(options: Options, hosts: &[&str]) -> Play {
        let rig = Rig::with(options).await;
        let now = rig.clock.load(Ordering::Relaxed);
        Play::on(rig, hosts, now - 120 * SECOND).await
    }

    async fn on(rig: Rig, hosts: &[&str], sent: i64) -> Play {
        let mut streams = Vec::new();
        for host in hosts {
            streams.push(((*host).to_owned(), rig.agent(host).await));
        }
        Play {
            rig,
            hosts: streams,
            sent,
        }
    }

    fn now(&self) -> i64 {
        self.rig.clock.load(Ordering::Relaxed)
    }

    /// Windows of a host up to now, with these cores; none: the host is silent.
    pub async fn send(&mut self, cores: impl Fn(&str) -> Option<f64>) {
        let now = self.now();
        while self.sent + 10 * SECOND <= now {
            for (host, stream) in &mut self.hosts {
                if let Some(cores) = cores(host) {
                    let mut part = window(1, &["main;read"]);
                    let facts = part.facts.as_mut().expect("facts");
                    facts.account_ns = vec![(cores * 1e10) as u64];
                    let part = starting(self.sent, part);
                    stream.store_part(part, &["main;read"]).await;
                }
            }
            self.sent += 10 * SECOND;
        }
    }

    /// Windows of the first host for the next two minutes, with these samples.
    pub async fn send_samples(&mut self, samples: &[(&str, u64)]) {
        self.rig.clock.fetch_add(120 * SECOND, Ordering::Relaxed);
        let stacks: Vec<&str> = samples.iter().map(|(stack, _)| *stack).collect();
        while self.sent + 10 * SECOND <= self.now() {
            let mut part = window(1, &stacks);
            part.sample_counts = samples.iter().map(|(_, count)| *count).collect();
            let sum: u64 = part.sample_counts.iter().sum();
            part.facts.as_mut().expect("facts").account_ns = vec![sum * 10];
            let part = starting(self.sent, part);
            self.hosts[0].1.store_part(part, &stacks).await;
            self.sent += 10 * SECOND;
        }
    }

    /// One round after [`ROUND_S`], in which hosts do this.
    async fn round(&mut self, cores: impl Fn(&str) -> Option<f64>) {
        self.rig
            .clock
            .fetch_add(ROUND_S * SECOND, Ordering::Relaxed);
        self.send(cores).await;
        self.rig.alerts.round().await;
    }

    /// So many of them.
    pub async fn rounds(&mut self, count: usize, cores: impl Fn(&str) -> Option<f64>) {
        for _ in 0..count {
            self.round(&cores).await;
        }
    }

    async fn list(&self) -> wire::ListAlertsResponse {
        self.list_in(None).await
    }

    async fn list_in(&self, range: Option<TimeRange>) -> wire::ListAlertsResponse {
        let mut client = AlertServiceClient::new(self.rig.channel().await);
        let asked = wire::ListAlertsRequest { range, limit: 0 };
        client.list(asked).await.expect("a list").into_inner()
    }

    async fn states(&self) -> Vec<AlertState> {
        let alerts = self.list().await.alerts;
        alerts.iter().map(wire::Alert::state).collect()
    }

    /// Ends the collector, as a stop does: nothing is being sent any more.
    async fn end(self) {
        self.rig.stop.send(true).expect("it listens");
        self.rig.delivering.await.expect("no panic");
    }

    /// Nothing waits to be sent.
    async fn settled(&self) {
        eventually(async || {
            let listed = self.list().await;
            listed.receivers.iter().all(|one| one.waiting == 0)
        })
        .await;
    }
}

/// Waits until it holds.
async fn eventually(holds: impl AsyncFn() -> bool) {
    let start = std::time::Instant::now();
    while !holds().await {
        assert!(start.elapsed() < LIMIT, "it never came to it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What each notification says: its status, and the state of each of its alerts by host.
fn told(got: &[Got]) -> Vec<(String, Vec<(String, String)>)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    got.iter()
        .map(|got| {
            let alerts = got.body["alerts"].as_array().expect("alerts");
            let alerts = alerts
                .iter()
                .map(|alert| (text(&alert["labels"]["host"]), text(&alert["status"])));
            (text(&got.body["status"]), alerts.collect())
        })
        .collect()
}

fn statuses(webhook: &Webhook) -> Vec<String> {
    told(&webhook.got())
        .into_iter()
        .map(|(status, _)| status)
        .collect()
}

/// Every notification that was sent has a key of its own.
fn assert_once(webhook: &Webhook) {
    let mut keys: Vec<_> = webhook.got().into_iter().map(|got| got.key).collect();
    let all = keys.len();
    keys.sort();
    keys.dedup();
    assert!(
        keys.len() == all && keys.iter().all(|key| key.len() == 32),
        "{keys:?}"
    );
}

const HIGH: Option<f64> = Some(5.0);
const LOW: Option<f64> = Some(1.0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_fires_holds_and_is_resolved_and_each_is_told_once() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| of.hold = 60)];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.send(|_| LOW).await;
    play.rounds(2, |_| LOW).await;
    assert_eq!(play.states().await, [], "nothing holds");
    // Values are means over a minute that ends 30 s ago.
    play.rounds(4, |_| HIGH).await;
    assert_eq!(play.states().await, [AlertState::Pending]);
    assert_eq!(webhook.attempts(), 0);
    play.rounds(10, |_| HIGH).await;
    let firing = play.list().await.alerts;
    assert_eq!(firing[0].state(), AlertState::Firing);
    assert_eq!(
        (firing[0].value, firing[0].threshold),
        (Some(5.0), Some(4.0))
    );
    assert_eq!(firing[0].labels["unit"], "web.service");
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing"], "it holds, and is told once");
    play.rounds(6, |_| LOW).await;
    play.settled().await;
    assert_eq!(play.states().await, []);
    assert_eq!(statuses(&webhook), ["firing", "resolved"]);
    assert_once(&webhook);
    let all = TimeRange {
        start_unix_ns: 0,
        end_unix_ns: 0,
    };
    let past = play.list_in(Some(all)).await.alerts;
    assert_eq!(past[0].state(), AlertState::Resolved);
    assert!(past[0].resolved_unix_ns > past[0].fired_unix_ns);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_down_for_ten_minutes_gets_all_of_it_in_order_and_once() {
    let webhook = Webhook::start().await;
    webhook.answers(503);
    let rules = [rule("cores > 4", |of| of.keep_firing = 0)];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    play.rounds(5, |_| LOW).await;
    play.rounds(5, |_| HIGH).await;
    play.rounds(5, |_| LOW).await;
    eventually(async || webhook.attempts() > 3).await;
    let receiver = &play.list().await.receivers[0];
    assert_eq!(receiver.waiting, 4);
    assert!(
        receiver.failures > 0 && receiver.error.contains("503"),
        "{receiver:?}"
    );
    webhook.answers(200);
    play.settled().await;
    assert_eq!(
        statuses(&webhook),
        ["firing", "resolved", "firing", "resolved"]
    );
    assert_once(&webhook);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_neither_repeats_nor_loses_what_was_to_be_told() {
    let webhook = Webhook::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let rules = [rule("cores > 4", |of| of.keep_firing = 0)];
    let mut play = Play::start(options(&rules, &webhook, Some(dir.path())), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    play.settled().await;
    webhook.answers(500);
    play.rounds(5, |_| LOW).await;
    let (now, store) = (play.now(), play.rig.store.clone());
    play.end().await;
    let again = |webhook: &Webhook| options(&rules, webhook, Some(dir.path()));
    let rig = Rig::on(store.clone(), again(&webhook)).await;
    rig.clock.store(now, Ordering::Relaxed);
    webhook.answers(200);
    let mut play = Play::on(rig, &["a"], now).await;
    play.rounds(2, |_| LOW).await;
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing", "resolved"]);
    play.rounds(5, |_| HIGH).await;
    play.settled().await;
    let now = play.now();
    play.end().await;
    let rig = Rig::on(store, again(&webhook)).await;
    rig.clock.store(now, Ordering::Relaxed);
    let mut play = Play::on(rig, &["a"], now).await;
    play.rounds(3, |_| HIGH).await;
    play.settled().await;
    assert_eq!(play.states().await, [AlertState::Firing], "it fires on");
    assert_eq!(statuses(&webhook), ["firing", "resolved", "firing"]);
    assert_once(&webhook);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_is_removed_while_it_fires_is_resolved_once() {
    let webhook = Webhook::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let rules = [rule("cores > 4", |_| ())];
    let mut play = Play::start(options(&rules, &webhook, Some(dir.path())), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    play.settled().await;
    play.end().await;
    let play = Play::start(options(&[], &webhook, Some(dir.path())), &[]).await;
    play.rig.alerts.round().await;
    eventually(async || webhook.got().len() == 2).await;
    let last = &webhook.got()[1].body;
    assert_eq!(last["status"], "resolved");
    let why = &last["alerts"][0]["annotations"]["ended"];
    assert_eq!(why, "the rule was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_go_silent_are_not_hosts_that_do_nothing() {
    let webhook = Webhook::start().await;
    let rules = [
        rule("cores > 4", |of| of.keep_firing = 0),
        rule("cores < 3", |of| of.name = "too-little".to_owned()),
    ];
    let mut play = Play::start(options(&rules, &webhook, None), &["a", "b"]).await;
    play.rounds(5, |_| Some(2.5)).await;
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing"], "5 cores are too many");
    let one = |host: &str| (host == "a").then_some(2.5);
    play.rounds(10, one).await;
    let alerts = play.list().await.alerts;
    let by = |name: &str| alerts.iter().find(|alert| alert.rule == name).expect(name);
    assert_eq!(by("api-cpu").state(), AlertState::Firing, "{alerts:?}");
    assert!(
        by("api-cpu")
            .no_data
            .contains("1 of 2 hosts sends nothing: b"),
        "{alerts:?}"
    );
    assert_eq!(by("too-little").state(), AlertState::NoData);
    assert_eq!(
        statuses(&webhook).len(),
        1,
        "nothing is resolved by silence"
    );
    // After a quarter of an hour it counts as removed: what is left is all there is.
    play.rounds(32, one).await;
    play.settled().await;
    let mut after = statuses(&webhook).split_off(1);
    after.sort();
    assert_eq!(after, ["firing", "resolved"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_alerts_of_their_own_and_one_notification() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| {
        (of.by, of.keep_firing) = ("host".to_owned(), 0);
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a", "b", "c"]).await;
    let high =
        |hosts: &'static str| move |host: &str| if hosts.contains(host) { HIGH } else { LOW };
    play.rounds(5, high("ab")).await;
    play.settled().await;
    let own = |text: &str| text.to_owned();
    let pair = |host: &str, state: &str| (own(host), own(state));
    let both = vec![pair("a", "firing"), pair("b", "firing")];
    assert_eq!(told(&webhook.got()), [(own("firing"), both)]);
    play.rounds(5, high("bc")).await;
    play.settled().await;
    // The one that fires on is named, so that nobody takes all of it for resolved.
    let all: Vec<_> = told(&webhook.got()).split_off(1);
    let mut seen: Vec<_> = all.iter().flat_map(|(_, alerts)| alerts.clone()).collect();
    assert!(all.iter().all(|(status, _)| status == "firing"), "{all:?}");
    seen.sort();
    seen.dedup();
    let expected = [
        pair("a", "resolved"),
        pair("b", "firing"),
        pair("c", "firing"),
    ];
    assert!(expected.iter().all(|one| seen.contains(one)), "{seen:?}");
    play.rounds(5, |_| LOW).await;
    play.settled().await;
    assert_eq!(
        statuses(&webhook).last().map(String::as_str),
        Some("resolved")
    );
    assert_once(&webhook);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_is_one_alert() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| {
        (of.clear, of.keep_firing) = (Some("3".to_owned()), 120);
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    for _ in 0..6 {
        play.rounds(3, |_| HIGH).await;
        play.rounds(3, |_| LOW).await;
    }
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_neither_fires_nor_resolves() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| {
        (of.hold, of.keep_firing) = (600, 600);
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    assert_eq!(play.states().await, [AlertState::Pending]);
    for hours in [24, -24] {
        play.rig
            .clock
            .fetch_add(hours * 3600 * SECOND, Ordering::Relaxed);
        play.rig.alerts.round().await;
        assert_eq!(play.states().await, [AlertState::Pending], "{hours}");
    }
    play.rounds(24, |_| HIGH).await;
    assert_eq!(play.states().await, [AlertState::Firing]);
    for hours in [24, -24] {
        play.rig
            .clock
            .fetch_add(hours * 3600 * SECOND, Ordering::Relaxed);
        play.rig.alerts.round().await;
        assert_eq!(play.states().await, [AlertState::Firing], "{hours}");
    }
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_told_that_a_full_disk_did_not_take_and_nothing_is_lost() {
    let Some(disk) = SmallDisk::mount("512k") else {
        return;
    };
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| of.hold = 60)];
    let dir = disk.path().join("alerts");
    let mut play = Play::start(options(&rules, &webhook, Some(&dir)), &["a"]).await;
    play.rounds(2, |_| LOW).await;
    let filler = disk.path().join("filler");
    // Whatever is left of the disk.
    let _ = std::fs::write(&filler, vec![0; 1 << 20]);
    play.rounds(8, |_| HIGH).await;
    assert!(
        play.rig.metrics.alert_state_failed.get() > 0,
        "the disk is full"
    );
    assert_eq!(webhook.attempts(), 0);
    std::fs::remove_file(&filler).expect("removed");
    play.rounds(1, |_| HIGH).await;
    play.settled().await;
    eventually(async || webhook.got().len() == 1).await;
    play.rounds(3, |_| HIGH).await;
    play.settled().await;
    assert_eq!(
        statuses(&webhook),
        ["firing"],
        "once, as soon as it can be kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_of_a_function_is_judged_where_there_are_samples() {
    let webhook = Webhook::start().await;
    let rules = [rule("share > 12%", |of| {
        (of.function, of.keep_firing) = ("malloc".to_owned(), 0);
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    let stacks = ["main;malloc", "main;read"];
    // Percent of malloc, and the share of the CPU time that has samples.
    let round = async |play: &mut Play, malloc: u64, sampled: u64| {
        play.rig
            .clock
            .fetch_add(ROUND_S * SECOND, Ordering::Relaxed);
        while play.sent + 10 * SECOND <= play.now() {
            let mut part = window(1, &stacks);
            part.sample_counts = vec![malloc, 100 - malloc];
            let facts = part.facts.as_mut().expect("facts");
            facts.account_ns = vec![100 * 10 * 100 / sampled];
            let part = starting(play.sent, part);
            play.hosts[0].1.store_part(part, &stacks).await;
            play.sent += 10 * SECOND;
        }
        play.rig.alerts.round().await;
    };
    for _ in 0..5 {
        round(&mut play, 10, 100).await;
    }
    assert_eq!(play.states().await, []);
    for _ in 0..5 {
        round(&mut play, 20, 100).await;
    }
    let alerts = play.list().await.alerts;
    assert_eq!(
        (alerts[0].state(), alerts[0].value),
        (AlertState::Firing, Some(20.0))
    );
    assert_eq!(
        (alerts[0].unit.as_str(), alerts[0].function.as_str()),
        ("percent", "malloc")
    );
    // Half of the time has no samples: 10 percent of the rest may be 55 of all.
    for _ in 0..5 {
        round(&mut play, 10, 50).await;
    }
    let alerts = play.list().await.alerts;
    assert_eq!(alerts[0].state(), AlertState::Firing);
    assert!(
        alerts[0].no_data.contains("50 % of the CPU time"),
        "{alerts:?}"
    );
    for _ in 0..5 {
        round(&mut play, 10, 100).await;
    }
    play.settled().await;
    assert_eq!(statuses(&webhook), ["firing", "resolved"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_baseline_is_the_hour_before() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > baseline x 1.5", |_| ())];
    let rig = Rig::with(options(&rules, &webhook, None)).await;
    let mut play = Play::on(rig, &["a"], NOW - 5400 * SECOND).await;
    play.send(|_| Some(2.0)).await;
    play.rounds(3, |_| Some(2.9)).await;
    assert_eq!(play.states().await, []);
    play.rounds(5, |_| Some(4.0)).await;
    let alert = play.list().await.alerts.remove(0);
    assert_eq!(alert.state(), AlertState::Firing);
    let baseline = alert.baseline.expect("one");
    assert!((2.0..2.3).contains(&baseline), "{alert:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_baseline_nothing_is_compared() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > baseline x 1.5", |of| {
        of.baseline = "yesterday".to_owned()
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    let alert = play.list().await.alerts.remove(0);
    assert_eq!(alert.state(), AlertState::NoData);
    assert!(alert.no_data.contains("baseline"), "{alert:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_a_receiver_is_shown_nowhere_and_no_redirect_is_followed() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |_| ())];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    webhook.answers(302);
    play.rounds(5, |_| HIGH).await;
    eventually(async || webhook.attempts() > 1).await;
    let listed = play.list().await;
    assert!(
        listed.receivers[0]
            .error
            .contains("redirects are not followed")
    );
    let page = get(&play.rig, "/api/alerts").await.text();
    let metrics = get(&play.rig, "/metrics").await.text();
    for shown in [format!("{listed:?}"), page, metrics] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let debug = format!("{:?}", receiver(&webhook));
    assert!(!debug.contains("s3cret"), "{debug}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_a_receiver_refuses_does_not_block_what_comes_after() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| of.keep_firing = 0)];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    webhook.answers(400);
    play.rounds(5, |_| HIGH).await;
    play.settled().await;
    assert_eq!(webhook.attempts(), 3);
    assert_eq!(play.rig.metrics.notifications_refused.get(), 1);
    webhook.answers(204);
    play.rounds(5, |_| LOW).await;
    play.settled().await;
    assert_eq!(statuses(&webhook), ["resolved"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_wakes_for_a_round_and_once_a_second_and_for_nothing_else() {
    let begun = std::time::Instant::now();
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| of.keep_firing = 0)];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    // Nothing waits; then all is accepted; then nothing is.
    play.rounds(5, |_| LOW).await;
    play.rounds(5, |_| HIGH).await;
    play.settled().await;
    webhook.answers(503);
    play.rounds(5, |_| LOW).await;
    eventually(async || webhook.attempts() > 2).await;
    let looks = play.rig.alerts.looks();
    let (rounds, seconds) = (15, begun.elapsed().as_secs());
    assert!(looks > 2, "it does look");
    // One at the start, and one for the second that is not over.
    let most = rounds + seconds + 2;
    assert!(looks <= most, "{looks} looks, where {most} have a reason");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_sees_the_alerts_of_its_part_alone() {
    let webhook = Webhook::start().await;
    let rules = [
        rule("cores > 4", |_| ()),
        rule("cores > 4", |of| {
            (of.name, of.selector, of.by) = ("all".into(), String::new(), "unit".into());
        }),
        rule("cores > 4", |of| {
            (of.name, of.selector) = ("fleet".into(), String::new())
        }),
    ];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    let seen = async |scope: &str| {
        let caller = Caller {
            name: "eve".to_owned(),
            role: Role::Viewer,
            scope: Some(Scope::parse(scope).expect("a scope")),
        };
        let listed = play
            .rig
            .alerts
            .list(&caller, wire::ListAlertsRequest::default());
        let listed = listed.await.expect("a list");
        assert!(listed.receivers.is_empty());
        let mut names: Vec<_> = listed.alerts.into_iter().map(|alert| alert.rule).collect();
        names.sort();
        names
    };
    assert_eq!(seen("unit=web.service").await, ["all", "api-cpu"]);
    assert_eq!(seen("unit=db.service").await, Vec::<String>::new());
    assert_eq!(play.list().await.alerts.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_without_its_label_is_told_as_what_it_is() {
    let webhook = Webhook::start().await;
    let rules = [rule("cores > 4", |of| {
        (of.selector, of.by) = (String::new(), "namespace".into());
    })];
    let mut play = Play::start(options(&rules, &webhook, None), &["a"]).await;
    play.rounds(5, |_| HIGH).await;
    let alert = play.list().await.alerts.remove(0);
    assert_eq!((alert.state(), alert.labels.len()), (AlertState::Firing, 0));
    assert_eq!(alert.selector, "namespace=\"\"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_killed_sends_what_it_had_to_and_once() {
    let dir = tempfile::tempdir().expect("a directory");
    // Nobody listens there yet.
    let address = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        listener.local_addr().expect("an address")
    };
    let rules = "alerts=[{name: api-cpu, selector: 'unit=\"web.service\"', when: cores < 1}]";
    let receivers = format!(
        "receivers=[{{name: oncall, format: alertmanager, url: 'http://{address}/hook/s3cret-token'}}]"
    );
    let args = [
        "--set",
        rules,
        "--set",
        &receivers,
        "--set",
        "alerting.interval_s=10",
        "--set",
        "alerting.wait_s=0",
    ];
    let program = Program::start_with(dir.path(), &args);
    // Ten minutes up to now.
    push_at(&program, (0..62).map(|number| number * 10 * SECOND)).await;
    let waiting = async |program: &Program| {
        let mut client = AlertServiceClient::new(crate::rig::channel(program.grpc).await);
        let listed = client.list(wire::ListAlertsRequest::default()).await;
        listed.expect("a list").into_inner().receivers[0].waiting
    };
    eventually(async || waiting(&program).await == 1).await;
    assert!(!program.log().contains("s3cret"), "{}", program.log());
    program.end(Signal::KILL);
    let webhook = Webhook::at(address).await;
    let program = Program::start_with(dir.path(), &args);
    eventually(async || webhook.got().len() == 1 && waiting(&program).await == 0).await;
    program.end(Signal::KILL);
    let program = Program::start_with(dir.path(), &args);
    // A round and a look at what waits have passed when it says how it does.
    eventually(async || {
        let mut client = AlertServiceClient::new(crate::rig::channel(program.grpc).await);
        let listed = client.list(wire::ListAlertsRequest::default()).await;
        let listed = listed.expect("a list").into_inner();
        listed.rules.iter().all(|rule| rule.evaluated_unix_ns != 0)
    })
    .await;
    assert_eq!(statuses(&webhook), ["firing"]);
    assert!(program.end(Signal::TERM).success());
}
