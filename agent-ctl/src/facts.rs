//! The facts in an incident bundle besides the profile: what was queried, where, and how the host
//! samples.

use crate::capture_info;
use crate::look::Look;
use crate::peer::Peer;
use crate::select::{self, Frames, Labels};
use crate::source::{Question, Source};
use crate::units;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use profile::formats::Fact;
use proto::agent::{CaptureInfo, GetStatusResponse, LabelMatcher};
use std::time::Duration;

/// Most degradations listed.
const DEGRADATIONS_MAX: usize = 50;

/// Most notices of a capture listed.
const NOTICES_MAX: usize = 50;

/// One fact.
pub fn fact(group: &str, name: &str, value: impl Into<String>) -> Fact {
    Fact {
        group: group.to_owned(),
        name: name.to_owned(),
        value: value.into(),
    }
}

/// The title that was asked for.
pub fn of_title(look: &Look) -> Option<Fact> {
    let title = look.title.as_ref()?;
    Some(fact("Query", "title", title))
}

/// The question as it was put.
pub fn of_question(
    look: &Look,
    question: &Question,
    labels: &Labels,
    frames: &Frames,
    peer: &Peer,
) -> Vec<Fact> {
    let time = |ns: i64, open: &str| match ns {
        0 => open.to_owned(),
        ns => rfc3339(ns),
    };
    let range = question.range;
    let mut facts: Vec<Fact> = of_title(look).into_iter().collect();
    facts.extend([
        fact(
            "Query",
            "asked",
            format!("{} at {}", peer.kind, peer.target),
        ),
        fact("Query", "from", time(range.start_ns, "the oldest kept")),
        fact("Query", "to", time(range.end_ns, "the time of the query")),
    ]);
    facts.extend(of_selection(labels, frames, &question.samples.matchers));
    if !question.group_by.is_empty() {
        facts.push(fact("Query", "grouped by", question.group_by.join(", ")));
    }
    facts
}

/// Which samples of what was there.
pub fn of_selection(labels: &Labels, frames: &Frames, matchers: &[LabelMatcher]) -> Vec<Fact> {
    let mut facts = Vec::new();
    match matchers {
        [] => facts.push(fact("Query", "samples", "all")),
        matchers => {
            let all: Vec<_> = matchers.iter().map(matcher_text).collect();
            facts.push(fact("Query", "samples", all.join(",")));
        }
    }
    for text in &labels.selector {
        facts.push(fact("Query", "selector as given", text));
    }
    for (name, patterns) in [
        ("keep", &frames.keep),
        ("drop", &frames.drop),
        ("focus", &frames.focus),
        ("collapse", &frames.collapse),
    ] {
        for pattern in patterns {
            facts.push(fact("Query", name, pattern));
        }
    }
    facts
}

fn matcher_text(matcher: &LabelMatcher) -> String {
    let op = select::symbol(matcher);
    format!("{}{op}{:?}", matcher.label, matcher.value)
}

/// What is known of the host or fleet besides, for a file that is read later.
///
/// # Errors
/// When an agent does not answer.
pub async fn of_source(source: &mut Source) -> Result<Vec<Fact>> {
    match source {
        Source::Agent(client) => Ok(of_agent(&client.status().await?)),
        Source::Collector(_) => Ok(Vec::new()),
    }
}

/// The host, and how its daemon samples.
fn of_agent(status: &GetStatusResponse) -> Vec<Fact> {
    let mut facts = vec![
        fact("Host", "name", &status.host),
        fact("Host", "kernel", &status.kernel),
        fact("Host", "fleetprofd", &status.version),
        fact("Host", "daemon started", rfc3339(status.started_unix_ns)),
        fact("Host", "its clock", rfc3339(status.now_unix_ns)),
    ];
    if let Some(sampling) = &status.sampling {
        let cpus = format!("{} of {}", sampling.cpus_sampled, sampling.cpus_online);
        facts.push(fact("Host", "CPUs sampled", cpus));
        let event = format!("{} at {} Hz", sampling.event, sampling.rate_hz);
        facts.push(fact("Host", "event", event));
        facts.push(fact("Host", "stacks by", &sampling.unwind));
        let copied = units::bytes(sampling.stack_bytes.into());
        facts.push(fact("Host", "stack copied", copied));
        if !sampling.reduced.is_empty() {
            facts.push(fact("Host", "reduced", &sampling.reduced));
        }
    }
    for degradation in status.degradations.iter().take(DEGRADATIONS_MAX) {
        facts.push(fact("Degraded", &degradation.id, &degradation.message));
    }
    facts
}

/// What was captured, and what must be known of it. [`of_selection`] says which samples.
pub fn of_capture(info: &CaptureInfo) -> Vec<Fact> {
    let ns = |ns: u64| units::duration(Duration::from_nanos(ns));
    let mut facts = Vec::new();
    if let Some(request) = &info.request {
        facts.extend([
            fact("Capture", "event", capture_info::event(&request.event)),
            fact("Capture", "filter", &request.filter),
            fact("Capture", "asked for", ns(request.duration_ns)),
            fact("Capture", "before it", ns(request.before_ns)),
            fact("Capture", "who", &request.who),
            fact("Capture", "why", &request.reason),
        ]);
    }
    facts.extend([
        fact("Capture", "state", capture_info::state_word(info.state())),
        fact("Capture", "by", &info.peer),
        fact("Capture", "error", &info.error),
    ]);
    facts.retain(|fact| !fact.value.is_empty());
    if info.started_unix_ns != 0 {
        facts.push(fact("Capture", "started", rfc3339(info.started_unix_ns)));
        facts.push(fact("Capture", "ran", ns(info.elapsed_ns)));
    }
    if info.rate_hz != 0 {
        facts.push(fact("Capture", "rate", format!("{} Hz", info.rate_hz)));
    }
    if info.period != 0 {
        facts.push(fact("Capture", "period", info.period.to_string()));
    }
    if let Some(progress) = &info.progress {
        let lost = progress.lost_samples.to_string();
        facts.push(fact("Capture", "samples lost", lost));
        let throttled = progress.throttled.to_string();
        facts.push(fact("Capture", "times throttled", throttled));
        facts.push(fact(
            "Capture",
            "CPU time of the capture",
            ns(progress.cpu_ns),
        ));
    }
    let notices = info.notices.iter().take(NOTICES_MAX);
    facts.extend(notices.map(|notice| fact("Capture", "notice", notice)));
    facts
}

/// When and by what the file was made.
pub fn of_file() -> Vec<Fact> {
    vec![
        fact("This file", "made", rfc3339(Clock::local().now_ns())),
        fact(
            "This file",
            "made by",
            concat!("agent-ctl ", env!("CARGO_PKG_VERSION")),
        ),
    ]
}
