//! The part of `GetStatus` about generated code: each process, and the option that would complete
//! its names or stacks.

use super::Agent;
use agent_config::Jit;
use host::sync::lock;
use jit::runtime::{Facts, Runtime};
use jit::runtimes::RuntimeEntry;
use profile::UnnamedReason;
use proto::agent as wire;

/// Most processes in the answer.
const TOLD_MAX: usize = 64;

/// Fewer samples than this say nothing about shares.
const SAMPLES_MIN: u64 = 20;

/// A larger share of frames without a name, in percent, is worth a sentence.
const UNNAMED_MAX_PERCENT: u64 = 1;

/// Most incomplete stacks without advice, in percent.
const CUT_MAX_PERCENT: u64 = 2;

impl Agent {
    /// See the head of this file.
    pub(super) fn runtimes_status(&self) -> Vec<wire::RuntimeStatus> {
        let jit = lock(&self.settings.active).config.jit.clone();
        let list = self.counters.runtimes.list();
        list.iter()
            .take(TOLD_MAX)
            .map(|entry| status(entry, &jit))
            .collect()
    }
}

fn status(entry: &RuntimeEntry, jit: &Jit) -> wire::RuntimeStatus {
    let counts = &entry.counts;
    let facts = entry.facts.as_ref();
    let version = facts.and_then(|facts| facts.version);
    wire::RuntimeStatus {
        pid: entry.pid.0,
        comm: entry.comm.text().into_owned(),
        runtime: facts.map_or_else(String::new, |facts| facts.runtime.word().to_owned()),
        version: version.map_or_else(String::new, |(major, minor)| format!("{major}.{minor}")),
        samples: counts.samples,
        samples_complete: counts.complete,
        frames: counts.frames,
        frames_named: counts.named,
        source: match facts {
            _ if counts.named == 0 => "none".to_owned(),
            Some(facts) if facts.dump => "jitdump".to_owned(),
            Some(facts) if is_read(facts, jit) => "structures".to_owned(),
            _ => "perf-map".to_owned(),
        },
        reason: match counts.reason {
            UnnamedReason::No => String::new(),
            _ if counts.named == counts.frames => String::new(),
            reason => reason.word().to_owned(),
        },
        asked: match &entry.asked {
            None => String::new(),
            Some(report) => match &report.failure {
                None => "it wrote its map when asked".to_owned(),
                Some(failure) => failure.clone(),
            },
        },
        advice: advice(entry, jit),
    }
}

/// What to do for a process, the most useful first.
fn advice(entry: &RuntimeEntry, jit: &Jit) -> Vec<wire::Advice> {
    let counts = &entry.counts;
    let mut list = Vec::new();
    let Some(facts) = &entry.facts else {
        return list;
    };
    if counts.samples < SAMPLES_MIN {
        return list;
    }
    let over = |part: u64, whole: u64, percent: u64| {
        part.saturating_mul(100) > whole.saturating_mul(percent)
    };
    let unnamed = counts.frames.saturating_sub(counts.named);
    if over(unnamed, counts.frames, UNNAMED_MAX_PERCENT) {
        list.extend(for_names(entry, facts, jit));
    }
    let cut = counts.samples.saturating_sub(counts.complete);
    if over(cut, counts.samples, CUT_MAX_PERCENT) {
        list.extend(for_stacks(facts, jit));
    }
    list
}

/// True for a JVM that needs no switch.
fn is_read(facts: &Facts, jit: &Jit) -> bool {
    jit.hotspot && facts.structures
}

fn told(message: impl Into<String>, remedy: impl Into<String>) -> wire::Advice {
    wire::Advice {
        message: message.into(),
        remedy: remedy.into(),
    }
}

/// Why code has no names and which switch gives them.
fn for_names(entry: &RuntimeEntry, facts: &Facts, jit: &Jit) -> Option<wire::Advice> {
    // Code that was gone when it was asked for, as of a class that was unloaded.
    if is_read(facts, jit) {
        return None;
    }
    if !jit.perf_maps {
        return Some(told(
            "generated code has no names: reading perf maps is switched off",
            "set jit.perf_maps to true and restart the agent",
        ));
    }
    match entry.counts.reason {
        UnnamedReason::JitMapRefused => {
            return Some(told(
                "its perf map is refused: it is not a regular file of the process's own user, is \
                 older than the process, or is larger than jit.perf_map_max_mib",
                "remove /tmp/perf-PID.map in its root, or raise jit.perf_map_max_mib",
            ));
        }
        UnnamedReason::JitMapLate => {
            return Some(told(
                "its perf map is read too late: the file system of its /tmp is slow",
                "",
            ));
        }
        // Short-lived: the advice for those that live helps the next one too.
        UnnamedReason::JitProcessGone => return None,
        _ => {}
    }
    let writes = facts.settings.writes;
    let advice = match facts.runtime {
        Runtime::HotSpot => return for_hotspot(entry, facts, jit),
        Runtime::DotNet if !writes && !jit.dotnet_enable => told(
            ".NET writes the names of compiled methods only on request",
            "start it with the environment variable DOTNET_PerfMapEnabled=3, or set jit.dotnet_enable to true \
             and restart the agent",
        ),
        Runtime::DotNet => told(
            for_asked(entry, ".NET does not write the names of all code"),
            "",
        ),
        Runtime::Node if !writes => told(
            "Node writes the names of compiled functions only if it is started with a switch",
            "start it with NODE_OPTIONS=--perf-basic-prof; --interpreted-frames-native-stack names interpreted \
             functions too",
        ),
        Runtime::CPython => match facts.version {
            Some(version) if version < (3, 12) => told(
                "this Python cannot write the names of its functions: 3.12 and later can",
                "run it with Python 3.12 or later and -X perf",
            ),
            _ if !writes => told(
                "Python writes the names of its functions only if it is started with a switch",
                "start it with -X perf, or with PYTHONPERFSUPPORT=1 in its environment",
            ),
            _ => return None,
        },
        Runtime::Beam if !writes => told(
            "Erlang writes the names of compiled functions only if it is started with a switch",
            "start it with +JPperf true, or with ERL_FLAGS=\"+JPperf true\" in its environment",
        ),
        Runtime::Php if !writes => told(
            "PHP writes the names of compiled functions only if its configuration says so",
            "set opcache.jit_debug=0x10 in its configuration, or start it with -d opcache.jit_debug=0x10",
        ),
        Runtime::LuaJit => told(
            "LuaJIT writes the names of its traces only if it was built for that",
            "build it with XCFLAGS=-DLUAJIT_USE_PERFTOOLS",
        ),
        Runtime::Wasmtime if !writes => told(
            "wasmtime writes the names of compiled functions only on request",
            "run it with --profile=perfmap, or set Config::profiler to PerfMap in the program that embeds it",
        ),
        Runtime::Unknown if entry.counts.named == 0 => told(
            "an unknown runtime generates code here and writes no /tmp/perf-PID.map",
            "check whether it has an option for perf maps",
        ),
        _ if writes && entry.counts.named == 0 => told(
            format!(
                "it is set to write the names of its code, but they are not found: {}",
                entry.counts.reason.sentence()
            ),
            "check for /tmp/perf-PID.map in its root, where PID is its own pid inside its \
             namespace",
        ),
        _ => return None,
    };
    Some(advice)
}

fn for_hotspot(entry: &RuntimeEntry, facts: &Facts, jit: &Jit) -> Option<wire::Advice> {
    let advice = if facts.structures {
        told(
            "the structures of JVMs are not read",
            "set jit.hotspot to true and restart the agent",
        )
    } else if !jit.hotspot_attach {
        told(
            "a JVM writes the names of compiled methods only on request",
            format!(
                "set jit.hotspot_attach to true and restart the agent, which then asks every JVM by itself; or, \
                 with JDK 17 and later, run once as its user: jcmd {} Compiler.perfmap",
                entry.pid.0
            ),
        )
    } else if facts.settings.no_attach {
        told(
            "attaching to the JVM is disabled",
            "start it without -XX:+DisableAttachMechanism",
        )
    } else {
        let asked = entry.asked.as_ref()?;
        let failure = asked.failure.as_deref();
        // What had no name before it was asked is no fault any more.
        if failure.is_none() && entry.counts.reason != UnnamedReason::JitNotInMap {
            return None;
        }
        let rights = failure.is_some_and(|failure| failure.contains("CAP_SETUID"));
        let remedy = match rights {
            true => {
                "give the agent CAP_SETUID and CAP_SETGID: deploy/systemd/fleetprofd-attach.conf"
            }
            false => "",
        };
        let otherwise = format!(
            "the JVM has compiled new methods since the last map; the agent asks for a map at most \
             every {} s",
            jit.hotspot_refresh_s
        );
        told(for_asked(entry, &otherwise), remedy)
    };
    Some(advice)
}

/// Why asking did not help; `otherwise` where it did.
fn for_asked(entry: &RuntimeEntry, otherwise: &str) -> String {
    let failure = entry
        .asked
        .as_ref()
        .and_then(|report| report.failure.as_deref());
    match failure {
        Some(failure) => format!("it did not give the names of its code: {failure}"),
        None => otherwise.to_owned(),
    }
}

/// Why stacks are cut in its code and which option completes them.
fn for_stacks(facts: &Facts, jit: &Jit) -> Option<wire::Advice> {
    let jvm = facts.runtime == Runtime::HotSpot && !is_read(facts, jit);
    (jvm && !facts.settings.frame_pointers).then(|| {
        told(
            "stacks end in the first compiled method: this JVM keeps no frame pointers",
            "start it with -XX:+PreserveFramePointer, or with JAVA_TOOL_OPTIONS=-XX:+PreserveFramePointer in its \
             environment",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::ids::{Comm, Pid};
    use jit::runtime::Settings;
    use jit::runtimes::{AskReport, StackCounts};

    fn entry(runtime: Runtime, settings: Settings) -> RuntimeEntry {
        let facts = Facts {
            runtime,
            version: None,
            dump: false,
            structures: false,
            settings,
        };
        let mut counts = StackCounts::default();
        (counts.samples, counts.complete, counts.frames) = (100, 100, 1000);
        counts.reason = UnnamedReason::JitNoMap;
        RuntimeEntry::new(Pid(42), Comm::from_bytes(b"app"), Some(facts), counts)
    }

    fn remedies(entry: &RuntimeEntry, jit: &Jit) -> Vec<String> {
        let list = advice(entry, jit);
        assert!(list.iter().all(|advice| !advice.message.is_empty()));
        list.into_iter().map(|advice| advice.remedy).collect()
    }

    #[test]
    fn each_runtime_has_its_switch() {
        let switches = [
            (Runtime::HotSpot, "jit.hotspot_attach"),
            (Runtime::DotNet, "DOTNET_PerfMapEnabled=3"),
            (Runtime::Node, "NODE_OPTIONS=--perf-basic-prof"),
            (Runtime::CPython, "-X perf"),
            (Runtime::Beam, "+JPperf true"),
            (Runtime::Php, "opcache.jit_debug=0x10"),
            (Runtime::LuaJit, "LUAJIT_USE_PERFTOOLS"),
            (Runtime::Wasmtime, "--profile=perfmap"),
        ];
        for (runtime, switch) in switches {
            let told = remedies(&entry(runtime, Settings::default()), &Jit::default());
            assert_eq!(told.len(), 1, "{runtime:?}");
            assert!(told[0].contains(switch), "{runtime:?}: {}", told[0]);
        }
    }

    #[test]
    fn what_has_names_and_whole_stacks_needs_nothing() {
        let mut entry = entry(Runtime::Node, Settings::default());
        entry.counts.named = 995;
        assert!(remedies(&entry, &Jit::default()).is_empty());
        entry.counts.named = 900;
        entry.counts.samples = SAMPLES_MIN - 1;
        assert!(
            remedies(&entry, &Jit::default()).is_empty(),
            "too few to say"
        );
    }

    #[test]
    fn a_jvm_without_frame_pointers_is_told_of_them_when_its_stacks_are_cut() {
        let mut entry = entry(Runtime::HotSpot, Settings::default());
        entry.counts.named = 1000;
        entry.counts.complete = 4;
        let told = remedies(&entry, &Jit::default());
        assert!(told[0].contains("-XX:+PreserveFramePointer"), "{told:?}");
        if let Some(facts) = &mut entry.facts {
            facts.settings.frame_pointers = true;
        }
        assert!(remedies(&entry, &Jit::default()).is_empty());
    }

    #[test]
    fn a_jvm_whose_structures_are_read_needs_nothing() {
        let mut entry = entry(Runtime::HotSpot, Settings::default());
        (entry.counts.named, entry.counts.complete) = (900, 4);
        if let Some(facts) = &mut entry.facts {
            facts.structures = true;
        }
        let mut jit = Jit::default();
        assert!(remedies(&entry, &jit).is_empty());
        assert_eq!(status(&entry, &jit).source, "structures");
        jit.hotspot = false;
        let told = remedies(&entry, &jit);
        assert!(told[0].contains("jit.hotspot to true"), "{told:?}");
        assert_eq!(status(&entry, &jit).source, "perf-map");
    }

    #[test]
    fn what_came_of_asking_is_said() {
        let jit = Jit {
            hotspot_attach: true,
            ..Jit::default()
        };
        let mut entry = entry(Runtime::HotSpot, Settings::default());
        assert!(advice(&entry, &jit).is_empty(), "it will be");
        entry.asked = Some(AskReport::written());
        assert!(advice(&entry, &jit).is_empty(), "from now on it has names");
        entry.counts.reason = UnnamedReason::JitNotInMap;
        assert!(advice(&entry, &jit)[0].message.contains("every 60 s"));
        entry.asked = Some(AskReport::failed("needs CAP_SETUID".into()));
        let told = &advice(&entry, &jit)[0];
        assert!(
            told.message
                .ends_with("names of its code: needs CAP_SETUID")
        );
        assert!(told.remedy.contains("fleetprofd-attach.conf"));
    }

    #[test]
    fn a_runtime_that_writes_what_is_not_found_is_told_of() {
        let writes = Settings {
            writes: true,
            ..Settings::default()
        };
        let found = advice(&entry(Runtime::Node, writes), &Jit::default());
        assert!(found[0].message.contains("not found"), "{found:?}");
    }

    #[test]
    fn an_old_python_cannot_be_switched() {
        let mut entry = entry(Runtime::CPython, Settings::default());
        if let Some(facts) = &mut entry.facts {
            facts.version = Some((3, 11));
        }
        assert!(remedies(&entry, &Jit::default())[0].contains("3.12 or later"));
    }

    #[test]
    fn a_status_has_words_for_all() {
        let mut entry = entry(Runtime::Node, Settings::default());
        let none = status(&entry, &Jit::default());
        assert_eq!(
            (&*none.runtime, &*none.source, &*none.reason),
            ("node", "none", "jit_no_map")
        );
        entry.counts.named = entry.counts.frames;
        let all = status(&entry, &Jit::default());
        assert_eq!((&*all.source, &*all.reason), ("perf-map", ""));
        entry.facts = None;
        assert_eq!(status(&entry, &Jit::default()).runtime, "");
    }
}
