//! `agent-ctl capture --list-events`: lists the events that can be sampled on this machine.
//!
//! Software and hardware events have fixed names. Tracepoints are those of the kernel that runs, as
//! tracefs lists them, which only root may read.

use crate::command;
use crate::exit::{self, fail};
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean};
use anyhow::Result;
use regex::Regex;
use std::io::ErrorKind;
use std::path::Path;

/// Events with names of their own, and what a sample of them is. The agent has a table of them too:
/// a test of the repository holds both equal.
pub const NAMED: [(&str, &str); 21] = [
    ("cpu-clock", "time on a CPU"),
    ("task-clock", "time on a CPU, by the clock of each thread"),
    (
        "off-cpu",
        "time that threads wait, with the stack they wait in",
    ),
    ("block-io", "time of requests to disks"),
    ("page-faults", "page faults"),
    ("minor-faults", "page faults without reading a disk"),
    ("major-faults", "page faults that read a disk"),
    (
        "alignment-faults",
        "unaligned accesses that the kernel handled",
    ),
    ("emulation-faults", "instructions that the kernel emulated"),
    ("context-switches", "switches to another thread"),
    ("cpu-migrations", "threads moved to another CPU"),
    ("cycles", "CPU cycles"),
    ("ref-cycles", "CPU cycles at a constant rate"),
    ("bus-cycles", "cycles of the bus"),
    ("instructions", "instructions"),
    ("branches", "branches"),
    ("branch-misses", "mispredicted branches"),
    ("cache-references", "accesses to the last cache"),
    ("cache-misses", "accesses that missed the last cache"),
    (
        "stalled-cycles-frontend",
        "cycles without instructions to issue",
    ),
    ("stalled-cycles-backend", "cycles that waited for resources"),
];

/// Of these, the ones that count in hardware: virtual machines often have none.
const HARDWARE_FROM: usize = 11;

/// Where tracefs is mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Prints the events whose names match.
///
/// # Errors
/// When none does, or another machine is meant.
pub fn list(out: &Out, connection: &crate::peer::Connection, glob: &str) -> Result<u8> {
    of_this_machine(connection)?;
    let pattern = compile(glob)?;
    let has_counters = has_counters();
    let mut table = Table::new(&["EVENT", "A SAMPLE IS OF"]);
    let mut rows = 0usize;
    for (at, (name, what)) in NAMED.iter().enumerate() {
        if pattern.is_match(name) {
            let what = match at >= HARDWARE_FROM && !has_counters {
                true => format!("{what} (not here: this machine has no hardware counters)"),
                false => (*what).to_owned(),
            };
            table.row([(*name).to_owned(), what]);
            rows += 1;
        }
    }
    let mut code = exit::OK;
    match tracepoints() {
        Ok(all) => {
            let mut names: Vec<&str> = all.lines().collect();
            names.sort_unstable();
            for name in names {
                let full = format!("tracepoint:{name}");
                let short = name.split_once(':').map_or("", |(_, short)| short);
                if [full.as_str(), name, short]
                    .iter()
                    .any(|one| pattern.is_match(one))
                {
                    table.row([full, String::new()]);
                    rows += 1;
                }
            }
        }
        Err(error) => {
            code = exit::PARTIAL;
            note!(
                "agent-ctl: tracepoints are not listed: {}",
                match error.kind() {
                    ErrorKind::PermissionDenied => "only root may read them: use sudo".to_owned(),
                    ErrorKind::NotFound => "tracefs is not mounted".to_owned(),
                    _ => error.to_string(),
                }
            );
        }
    }
    if rows == 0 {
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to list events: none matches `{}`\n`*` stands for any characters, as in \
                 'sched*'; any function of a program is uprobe:BINARY:FUNCTION",
                clean(glob)
            ),
        ));
    }
    out.write(&table.show(out))?;
    Ok(code)
}

/// Refuses to list for another machine: events are those of the kernel that runs there.
fn of_this_machine(connection: &Connection) -> Result<()> {
    // Without any agent the list is that of this machine all the same.
    match connection.peer() {
        Ok(peer) if command::check(&peer).is_err() => Err(fail(
            exit::USAGE,
            "failed to list events of another machine: they are those of its kernel\nrun \
             `agent-ctl capture --list-events` there",
        )),
        _ => Ok(()),
    }
}

/// A glob as a regular expression on the complete name.
fn compile(glob: &str) -> Result<Regex> {
    let escaped = regex::escape(glob).replace(r"\*", ".*").replace(r"\?", ".");
    Regex::new(&format!("^(?:{escaped})$")).map_err(|error| fail(exit::USAGE, error.to_string()))
}

/// True where the kernel knows a PMU of a CPU.
fn has_counters() -> bool {
    let Ok(devices) = std::fs::read_dir("/sys/bus/event_source/devices") else {
        return false;
    };
    let mut names = devices.flatten().map(|device| device.file_name());
    names.any(|name| {
        let name = name.to_string_lossy();
        name.starts_with("cpu") || name.starts_with("armv")
    })
}

/// The names of tracepoints, as `--event` takes them, where they may be read.
pub fn tracepoint_names() -> Vec<String> {
    let all = tracepoints().unwrap_or_default();
    all.lines()
        .map(|name| format!("tracepoint:{name}"))
        .collect()
}

/// `CATEGORY:NAME` of each tracepoint, a line each.
fn tracepoints() -> std::io::Result<String> {
    let mut last = ErrorKind::NotFound.into();
    for root in TRACEFS {
        match std::fs::read_to_string(Path::new(root).join("available_events")) {
            Ok(text) => return Ok(text),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_matches_the_complete_name() {
        let matches = |glob, name| compile(glob).unwrap().is_match(name);
        assert!(matches("sched*", "sched:sched_switch"));
        assert!(matches("*", "cycles"));
        assert!(matches("page-fault?", "page-faults"));
        assert!(!matches("sched", "sched:sched_switch"));
        assert!(!matches("a.c", "abc"), "a dot is a dot");
    }

    #[test]
    fn hardware_events_come_last_and_all_names_differ() {
        let names: std::collections::BTreeSet<_> = NAMED.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), NAMED.len());
        assert_eq!(NAMED[HARDWARE_FROM].0, "cycles");
        assert_eq!(NAMED[HARDWARE_FROM - 1].0, "cpu-migrations");
    }
}
