//! Shows an agent's report on generated code: a line for `status`, a table and advice for `doctor`,
//! everything as JSON.

use crate::degradation::Finding;
use crate::terminal::{Out, Table, clean};
use crate::units;
use proto::agent::{RuntimeStatus, Severity};
use serde::Serialize;
use std::collections::BTreeMap;

/// Most rows of the table for people. JSON has all.
const ROWS_MAX: usize = 20;

/// Most processes named in one piece of advice.
const NAMED_MAX: usize = 3;

/// A process with generated code, as JSON.
#[derive(Serialize)]
pub struct Json<'a> {
    pid: u32,
    comm: &'a str,
    runtime: &'a str,
    version: &'a str,
    samples: u64,
    /// Share of the samples.
    complete_share: f64,
    frames: u64,
    /// Share of the frames in generated code.
    named_share: f64,
    source: &'a str,
    reason: &'a str,
    asked: &'a str,
    advice: Vec<AdviceJson<'a>>,
}

#[derive(Serialize)]
struct AdviceJson<'a> {
    message: &'a str,
    remedy: &'a str,
}

impl<'a> Json<'a> {
    /// All of them.
    pub fn all(runtimes: &'a [RuntimeStatus]) -> Vec<Json<'a>> {
        runtimes.iter().map(Json::of).collect()
    }

    fn of(found: &'a RuntimeStatus) -> Json<'a> {
        let advice = found.advice.iter();
        Json {
            pid: found.pid,
            comm: &found.comm,
            runtime: &found.runtime,
            version: &found.version,
            samples: found.samples,
            complete_share: units::share(found.samples_complete, found.samples),
            frames: found.frames,
            named_share: units::share(found.frames_named, found.frames),
            source: &found.source,
            reason: &found.reason,
            asked: &found.asked,
            advice: advice
                .map(|advice| AdviceJson {
                    message: &advice.message,
                    remedy: &advice.remedy,
                })
                .collect(),
        }
    }
}

/// The runtime's name as people write it.
fn name(runtime: &str) -> &str {
    match runtime {
        "hotspot" => "Java (HotSpot)",
        "dotnet" => ".NET",
        "node" => "Node",
        "beam" => "Erlang",
        "php" => "PHP",
        "luajit" => "LuaJIT",
        "wasmtime" => "wasmtime",
        "cpython" => "Python",
        "" => "not inspected yet",
        _ => "not known",
    }
}

/// One line: how many processes of which runtime, and how much of their code has names.
pub fn line(runtimes: &[RuntimeStatus]) -> String {
    let mut sums: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for found in runtimes {
        let (processes, frames, named) = sums.entry(name(&found.runtime)).or_default();
        *processes += 1;
        *frames = frames.saturating_add(found.frames);
        *named = named.saturating_add(found.frames_named);
    }
    let one = |(runtime, (processes, frames, named)): (&str, (u64, u64, u64))| {
        let plural = if processes == 1 { "" } else { "es" };
        format!(
            "{runtime}: {processes} process{plural}, {} named",
            units::percent(named, frames)
        )
    };
    sums.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A row a process, those with the most samples first, and how many are left out.
pub fn table(out: &Out, runtimes: &[RuntimeStatus]) -> String {
    let headings = [
        ">PID",
        "COMM",
        "RUNTIME",
        ">SAMPLES",
        ">NAMED",
        ">COMPLETE",
        "NAMES",
        "WHY NOT",
    ];
    let mut table = Table::new(&headings);
    for found in runtimes.iter().take(ROWS_MAX) {
        let runtime = match found.version.as_str() {
            "" => name(&found.runtime).to_owned(),
            version => format!("{} {}", name(&found.runtime), clean(version)),
        };
        table.row([
            found.pid.to_string(),
            clean(&found.comm).into_owned(),
            runtime,
            units::count(found.samples),
            units::percent(found.frames_named, found.frames),
            units::percent(found.samples_complete, found.samples),
            clean(&found.source).into_owned(),
            clean(&found.reason).into_owned(),
        ]);
    }
    let more = runtimes.len().saturating_sub(ROWS_MAX);
    let more = match more {
        0 => String::new(),
        more => format!("and {more} processes with fewer samples\n"),
    };
    format!("{}{more}", table.show(out))
}

/// The agent's advice, each piece once for all processes that it concerns.
pub fn findings(runtimes: &[RuntimeStatus]) -> Vec<Finding> {
    // In the order in which they come: of the process with the most samples first.
    let mut groups: Vec<(&str, &str, Vec<&RuntimeStatus>)> = Vec::new();
    for found in runtimes {
        for advice in &found.advice {
            // A command names the process it is for: that of the first one stands for all.
            let same = |group: &&mut (&str, &str, Vec<&RuntimeStatus>)| group.0 == advice.message;
            match groups.iter_mut().find(same) {
                Some((.., processes)) => processes.push(found),
                None => groups.push((&advice.message, &advice.remedy, vec![found])),
            }
        }
    }
    let finding = |(message, remedy, processes): (&str, &str, Vec<&RuntimeStatus>)| Finding {
        id: "generated_code".to_owned(),
        message: format!("{}: {message}", list(&processes)),
        remedy: remedy.to_owned(),
        severity: Severity::Info,
    };
    groups.into_iter().map(finding).collect()
}

/// `java (pid 12), java (pid 13) and 4 more`.
fn list(processes: &[&RuntimeStatus]) -> String {
    let named = processes
        .iter()
        .take(NAMED_MAX)
        .map(|found| format!("{} (pid {})", found.comm, found.pid));
    let named: Vec<String> = named.collect();
    match processes.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::agent::Advice;

    fn process(pid: u32, runtime: &str, named: u64, advice: &str) -> RuntimeStatus {
        RuntimeStatus {
            pid,
            comm: "app".to_owned(),
            runtime: runtime.to_owned(),
            frames: 100,
            frames_named: named,
            advice: vec![Advice {
                message: advice.to_owned(),
                remedy: format!("do something with {pid}"),
            }],
            ..RuntimeStatus::default()
        }
    }

    #[test]
    fn a_line_has_each_runtime_once() {
        let all = [
            process(1, "node", 100, ""),
            process(2, "node", 50, ""),
            process(3, "hotspot", 0, ""),
        ];
        assert_eq!(
            line(&all),
            "Java (HotSpot): 1 process, 0.0 % named; Node: 2 processes, 75.0 % named"
        );
        assert_eq!(line(&[]), "");
    }

    #[test]
    fn advice_is_given_once_for_all_it_is_for() {
        let all: Vec<RuntimeStatus> = (1..=5)
            .map(|pid| process(pid, "node", 0, "no names"))
            .collect();
        let found = findings(&all);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].message,
            "app (pid 1), app (pid 2), app (pid 3) and 2 more: no names"
        );
        assert_eq!(found[0].remedy, "do something with 1");
    }
}
