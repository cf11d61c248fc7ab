//! The part of `status` about stacks: how they ended, why leaves have no symbol, and what would fix
//! it.

use agent_config::{Unwind, UnwindMode};
use aggregate::recorder::Outcomes;
use host::health::{Degradation, Severity};
use perf::plan::Plan;
use profile::{StackEnd, UnnamedReason};
use proto::agent as wire;
use std::sync::atomic::Ordering;
use symbolize::SymbolCounters;
use symbolize::budget::{FILE_BYTES_MAX, FILE_CPU_MAX};
use unwind::process::space::MAPPINGS_MAX;
use unwind::process::{FILES_MAX, ProcessCounts, SPACE_BYTES_MAX};
use unwind::walk::deep_stacks::LookCounts;
use unwind::walk::engine::COPIES;
use unwind::walk::look::Failure;
use unwind::walk::modules::ModuleCounts;

/// Samples below which shares say nothing.
const SAMPLES_MIN: u64 = 1000;

/// Share of stacks that end too early from which it is worth a word: copies of the stack leave a
/// few percent, frame pointers about half on an ordinary distribution. Unit: percent.
const CUT_PERCENT: u64 = 10;

/// The ends that occurred.
pub(super) fn ends(outcomes: &Outcomes) -> Vec<wire::Outcome> {
    let row = |&end: &StackEnd| (end as u32, end.word(), outcomes.ended(end));
    StackEnd::ALL.iter().map(row).filter_map(to_wire).collect()
}

/// The reasons that occurred.
pub(super) fn unnamed_leaves(outcomes: &Outcomes) -> Vec<wire::Outcome> {
    let reasons = UnnamedReason::ALL
        .iter()
        .filter(|&&reason| reason != UnnamedReason::No);
    let row = |&reason: &UnnamedReason| (reason as u32, reason.word(), outcomes.unnamed(reason));
    reasons.map(row).filter_map(to_wire).collect()
}

fn to_wire((id, word, samples): (u32, &str, u64)) -> Option<wire::Outcome> {
    (samples > 0).then(|| wire::Outcome {
        id,
        word: word.into(),
        samples,
    })
}

/// Says when stacks deeper than their copy cannot be completed because nobody may look.
pub(super) fn looks_degradation(counts: &LookCounts) -> Option<Degradation> {
    let failed = |failure: Failure| counts.failed[failure as usize] > 0;
    let (why, remedy) = if counts.taken > 0 {
        return None;
    } else if failed(Failure::Unsupported) {
        ("this machine has no debug registers", "")
    } else if failed(Failure::Denied) {
        (
            "the daemon may not read their memory",
            "give it CAP_SYS_PTRACE and CAP_PERFMON, or set unwind.look to false",
        )
    } else {
        return None;
    };
    let message = format!("stacks deeper than their copy stay incomplete: {why}");
    Some(Degradation::new(
        "no_looks",
        Severity::Info,
        message,
        remedy,
    ))
}

/// The memory for unwind information and what found no room in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnwindCache {
    /// Bound in force. Unit: bytes.
    pub in_force: usize,
    /// Bound configured; more than what is in force when the memory budget lowered it. Unit: bytes.
    pub configured: usize,
    /// Counts of loaded and rejected modules.
    pub modules: ModuleCounts,
}

impl UnwindCache {
    /// Remedy that makes room for a cache of `bytes`.
    fn remedy(&self, bytes: u64) -> String {
        if self.in_force < self.configured && bytes <= self.configured as u64 {
            return "raise budget.memory_mib and reload: agent-ctl config reload".to_owned();
        }
        format!(
            "raise unwind.cache_mib to {} and restart: systemctl restart fleetprofd",
            bytes.div_ceil(1 << 20)
        )
    }

    /// Remedy that admits the largest rejected module: twice its size.
    fn remedy_for_refused(&self) -> String {
        match self.modules.over_bound {
            // Those refused take too much to read: no room helps them.
            0 => String::new(),
            _ => self.remedy(self.modules.over_bound_bytes.saturating_mul(2)),
        }
    }

    /// Remedy that keeps more modules.
    fn remedy_for_crowded(&self) -> String {
        match self.modules.evicted_in_use + self.modules.crowded_out {
            // Nothing is wrong: files are read when their first samples come.
            0 => String::new(),
            _ => self.remedy(self.in_force as u64 * 2),
        }
    }

    /// Says which files' unwind information finds no room at all.
    pub(super) fn degradation(&self) -> Option<Degradation> {
        let ModuleCounts {
            over_bound,
            over_bound_bytes,
            ..
        } = self.modules;
        (over_bound > 0).then(|| {
            Degradation::new(
                "unwind_refused",
                Severity::Warning,
                format!(
                    "{over_bound} files have unwind information of more than half of the {} MiB \
                     for all files, the largest {} MiB: stacks through these files are cut where \
                     frame pointers do not help",
                    self.in_force >> 20,
                    over_bound_bytes.div_ceil(1 << 20)
                ),
                self.remedy_for_refused(),
            )
        })
    }
}

/// Says that files were given up for what reading them costs, or put off for what their owner's
/// cost.
pub(super) fn of_costly_files(
    symbols: &SymbolCounters,
    modules: &ModuleCounts,
) -> Option<Degradation> {
    let refused = symbols.tables_refused.load(Ordering::Relaxed);
    let put_off = symbols.files_put_off.load(Ordering::Relaxed);
    // Being put off is no fault: the file is read later.
    (refused + modules.over_budget > 0).then(|| {
        Degradation::new(
            "files_over_budget",
            Severity::Warning,
            format!(
                "{refused} files have no names and {} no unwind information, because reading a \
                 file may take at most {} MiB and {} s of CPU; {put_off} times a file waited \
                 because other files of its owner had used their share",
                modules.over_budget,
                FILE_BYTES_MAX >> 20,
                FILE_CPU_MAX.as_secs(),
            ),
            "agent-ctl doctor",
        )
    })
}

/// Says what the process table had to refuse. Its bounds are fixed, so there is no key to raise:
/// the message says what is missing because of them.
pub(super) fn of_process_table(counts: &ProcessCounts) -> Vec<Degradation> {
    let remedy = "find who maps so many: grep -c r-xp /proc/[0-9]*/maps | sort -t: -k2 -n | tail";
    let say = |id, message: String| Degradation::new(id, Severity::Warning, message, remedy);
    let files = (counts.files_refused > 0).then(|| {
        let message = format!(
            "{} mappings belong to files beyond the {FILES_MAX} that the daemon can know at once: \
             their time is counted as `[other]` of its cgroup, without a stack. Shares of cgroups \
             are right. Processes that map most lose files first; new files are added again when \
             processes end",
            counts.files_refused
        );
        say("files_refused", message)
    });
    let mappings = (counts.mappings_refused + counts.spaces_forgotten > 0).then(|| {
        let message = format!(
            "{} mappings are beyond the limit of {MAPPINGS_MAX} for a process, and {} times the \
             daemon dropped the mappings of a process because all together take over {} MiB: code \
             in them has no names, and stacks through it may be cut. Shares of cgroups are right",
            counts.mappings_refused,
            counts.spaces_forgotten,
            SPACE_BYTES_MAX >> 20
        );
        say("mappings_refused", message)
    });
    files.into_iter().chain(mappings).collect()
}

/// Says when many stacks end too early, why most of them do, and what fixes it.
pub(super) fn degradation(
    outcomes: &Outcomes,
    unwind: &Unwind,
    plan: &Plan,
    cache: &UnwindCache,
) -> Option<Degradation> {
    let all: u64 = StackEnd::ALL.iter().map(|&end| outcomes.ended(end)).sum();
    // Truncated by the unwinder: the depth limit is another's fault.
    let cut = StackEnd::ALL
        .iter()
        .filter(|&&end| end.is_truncated() && end != StackEnd::DepthLimit);
    let early: u64 = cut.clone().map(|&end| outcomes.ended(end)).sum();
    if all < SAMPLES_MIN || early * 100 <= all * CUT_PERCENT {
        return None;
    }
    let most = *cut.max_by_key(|&&end| outcomes.ended(end))?;
    let share = early as f64 * 100.0 / all as f64;
    if plan.stack_bytes == 0 {
        let (why, remedy) = match (unwind.mode, &plan.reduced) {
            (UnwindMode::FramePointer, _) | (_, None) => (
                "code here is built without frame pointers".to_owned(),
                "set unwind.mode to auto and reload: agent-ctl config reload",
            ),
            (_, Some(reason)) => (
                format!(
                    "stacks are not copied ({reason}), and code here is built without frame pointers"
                ),
                "build with -fno-omit-frame-pointer (Rust: -C force-frame-pointers=yes)",
            ),
        };
        let message = format!(
            "{share:.0} % of stacks end before their start function: {why}. Leaf functions and CPU \
             shares are right, callers are missing"
        );
        return Some(Degradation::new(
            "frame_pointers",
            Severity::Info,
            message,
            remedy,
        ));
    }
    let remedy = match most {
        // There is no larger copy.
        StackEnd::CopyTooSmall if plan.stack_bytes >= COPIES[COPIES.len() - 1] => String::new(),
        StackEnd::CopyTooSmall | StackEnd::UnreadableMemory => format!(
            "raise unwind.stack_kib (in force: {}) and reload: agent-ctl config reload",
            plan.stack_bytes >> 10
        ),
        StackEnd::ModuleLoading => cache.remedy_for_crowded(),
        StackEnd::ModuleRefused => cache.remedy_for_refused(),
        StackEnd::NoUnwindInfo | StackEnd::BrokenChain => {
            "build with -fasynchronous-unwind-tables or -fno-omit-frame-pointer".to_owned()
        }
        StackEnd::GeneratedCode => "make the runtime keep frame pointers (java: \
             -XX:+PreserveFramePointer) or write unwind information (python: -X perf; node: \
             --perf-prof --perf-prof-unwinding-info)"
            .to_owned(),
        _ => "report it with the output of agent-ctl doctor --json".to_owned(),
    };
    let message = format!(
        "{share:.0} % of stacks end before their start function, most of them because {}",
        most.sentence()
    );
    Some(Degradation::new(
        "stacks_cut",
        Severity::Info,
        message,
        remedy,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aggregate::recorder::{Recorder, RecorderOptions, WindowPart};
    use host::time::MonotonicTime;
    use profile::{LabelSetId, Quality, SampleKey, StackId, Value};

    fn outcomes(counts: &[(StackEnd, u64)]) -> Outcomes {
        let mut recorder = Recorder::new(RecorderOptions::default());
        let row = |&(end, count): &(StackEnd, u64)| {
            let key = SampleKey {
                labels: LabelSetId(0),
                stack: StackId::EMPTY,
                end,
            };
            (
                key,
                Value {
                    count,
                    weight: count,
                },
            )
        };
        recorder.add(WindowPart {
            pressure: None,
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
            start: MonotonicTime(0),
            end: MonotonicTime(1),
            closes: true,
            period: 1,
            quality: Quality::default(),
            rows: &mut counts.iter().map(row).collect(),
            accounts: &[],
        });
        recorder.outcomes()
    }

    fn plan(stack_bytes: u32) -> Plan {
        Plan {
            rate_hz: 99,
            stack_bytes,
            ring_bytes: 1 << 20,
            watermark_bytes: 1 << 19,
            side_band_bytes: 0,
            reduced: None,
        }
    }

    /// A cache in which one module of 20 MiB finds no room.
    fn refusing(in_force_mib: usize, configured_mib: usize) -> UnwindCache {
        UnwindCache {
            in_force: in_force_mib << 20,
            configured: configured_mib << 20,
            modules: ModuleCounts {
                over_bound: 1,
                over_bound_bytes: 20 << 20,
                ..ModuleCounts::default()
            },
        }
    }

    fn check(counts: &[(StackEnd, u64)], stack_bytes: u32, id: &str, remedy: &str) {
        let unwind = agent_config::Config::default().unwind;
        let cache = refusing(32, 32);
        let found = degradation(&outcomes(counts), &unwind, &plan(stack_bytes), &cache);
        let found = found.expect("something is degraded");
        assert_eq!(found.id, id);
        assert!(found.remedy.contains(remedy), "{}", found.remedy);
    }

    #[test]
    fn the_remedy_is_for_the_most_common_cause() {
        let whole = (StackEnd::Complete, 2000);
        check(
            &[whole, (StackEnd::BrokenChain, 900)],
            0,
            "frame_pointers",
            "unwind.mode",
        );
        let small = (StackEnd::CopyTooSmall, 500);
        check(
            &[whole, small, (StackEnd::NoUnwindInfo, 400)],
            16 << 10,
            "stacks_cut",
            "raise unwind.stack_kib (in force: 16)",
        );
        check(
            &[whole, (StackEnd::ModuleRefused, 900)],
            16 << 10,
            "stacks_cut",
            "raise unwind.cache_mib to 40",
        );
    }

    #[test]
    fn room_for_a_refused_module_is_made_where_the_bound_comes_from() {
        let check = |cache: UnwindCache, expected: &str| {
            let found = cache.degradation().expect("a file is refused");
            assert_eq!(
                (found.id, found.severity),
                ("unwind_refused", Severity::Warning)
            );
            assert!(found.remedy.contains(expected), "{}", found.remedy);
        };
        check(refusing(32, 32), "raise unwind.cache_mib to 40");
        check(refusing(16, 64), "raise budget.memory_mib");
        // The budget lowered the bound, and yet the configured one would not do.
        check(refusing(16, 32), "raise unwind.cache_mib to 40");
        assert!(UnwindCache::default().degradation().is_none());
    }

    #[test]
    fn files_that_cost_too_much_are_reported_once_there_are_any() {
        let symbols = SymbolCounters::default();
        let mut modules = ModuleCounts::default();
        assert!(of_costly_files(&symbols, &modules).is_none());
        modules.over_budget = 3;
        symbols.files_put_off.fetch_add(7, Ordering::Relaxed);
        let found = of_costly_files(&symbols, &modules).expect("a degradation");
        let said = [
            "0 files have no names",
            "3 no unwind information",
            "7 times",
        ];
        assert!(
            said.iter().all(|part| found.message.contains(part)),
            "{}",
            found.message
        );
    }

    #[test]
    fn files_that_were_refused_are_told_with_what_is_missing_for_it() {
        let counts = |files_refused| ProcessCounts {
            files_refused,
            ..ProcessCounts::default()
        };
        let found = &of_process_table(&counts(7))[0];
        assert_eq!(found.id, "files_refused");
        assert!(found.message.starts_with("7 mappings"), "{}", found.message);
        assert!(found.message.contains("`[other]`"), "{}", found.message);
        assert!(of_process_table(&counts(0)).is_empty());
    }

    #[test]
    fn mappings_that_were_refused_or_forgotten_are_told() {
        for (mappings_refused, spaces_forgotten) in [(3, 0), (0, 2)] {
            let found = of_process_table(&ProcessCounts {
                mappings_refused,
                spaces_forgotten,
                ..ProcessCounts::default()
            });
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].id, "mappings_refused");
        }
    }

    #[test]
    fn files_that_are_only_just_read_need_no_larger_cache() {
        let crowded = |evicted_in_use| UnwindCache {
            modules: ModuleCounts {
                evicted_in_use,
                ..ModuleCounts::default()
            },
            ..refusing(32, 32)
        };
        assert_eq!(crowded(0).remedy_for_crowded(), "");
        assert!(
            crowded(3)
                .remedy_for_crowded()
                .contains("unwind.cache_mib to 64")
        );
    }

    #[test]
    fn it_is_said_when_nobody_may_look() {
        let mut counts = LookCounts::default();
        assert!(looks_degradation(&counts).is_none());
        counts.failed[Failure::Denied as usize] = 3;
        let told = looks_degradation(&counts).expect("something is degraded");
        assert!(told.remedy.contains("CAP_SYS_PTRACE"), "{}", told.remedy);
        // One process may be out of reach where others are not.
        counts.taken = 1;
        assert!(looks_degradation(&counts).is_none());
    }

    #[test]
    fn few_cut_stacks_are_nothing_to_speak_of() {
        let unwind = agent_config::Config::default().unwind;
        for counts in [
            [(StackEnd::Complete, 9500), (StackEnd::CopyTooSmall, 500)],
            [(StackEnd::Complete, 100), (StackEnd::CopyTooSmall, 500)],
            [(StackEnd::DepthLimit, 9500), (StackEnd::Lost, 9500)],
            // Not known to be cut.
            [(StackEnd::Complete, 5000), (StackEnd::Unresolved, 5000)],
        ] {
            let cache = UnwindCache::default();
            let found = degradation(&outcomes(&counts), &unwind, &plan(16 << 10), &cache);
            assert!(found.is_none());
        }
    }

    #[test]
    fn only_ends_that_occurred_are_told() {
        let told = ends(&outcomes(&[(StackEnd::Complete, 2), (StackEnd::Lost, 3)]));
        let told: Vec<_> = told
            .iter()
            .map(|row| (row.id, &*row.word, row.samples))
            .collect();
        assert_eq!(told, [(0, "complete", 2), (9, "lost", 3)]);
    }
}
