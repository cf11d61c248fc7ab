//! Metrics of walks by unwind information, of what is remembered of them, and of looks at memory.

use metrics::{Family, gather};
use profile::StackEnd;
use sampler::{Facts, HeldCounts};
use unwind::walk::deep_stacks::LookCounts;
use unwind::walk::engine::UnwindCounts;
use unwind::walk::look::Failure;

/// Reads them.
pub(super) fn families(facts: &Facts) -> impl Iterator<Item = Family> {
    let walks = gather(WALKS, &facts.unwinding).chain(gather(HELD, &facts.held));
    walks.chain(gather(LOOKS, &facts.unwinding.looks))
}

metrics::rows! { WALKS: UnwindCounts;
    /// Copies of stacks unwound.
    Counter fleetprof_unwind_walks_total = |c| c.walks;
    /// Walks whose result was continued or replaced by the kernel's frame-pointer chain.
    Counter fleetprof_unwind_chains_used_total = |c| c.chains_used;
    /// Frames whose rule was in the cache.
    Counter fleetprof_unwind_rule_hits_total = |c| c.modules.rule_hits;
    /// Frames whose rule was computed and kept.
    Counter fleetprof_unwind_rule_misses_total = |c| c.modules.rule_misses;
    /// Times all rules in the cache were forgotten because there were too many different ones.
    Counter fleetprof_unwind_rules_emptied_total = |c| c.modules.rules_emptied;
    /// Frames computed from their row each time: signal frames, realigned stacks.
    Counter fleetprof_unwind_rows_computed_total = |c| c.computed;
    /// Frames without unwind information that were passed by their frame pointer.
    Counter fleetprof_unwind_frame_pointer_steps_total = |c| c.by_frame_pointer;
    /// Frames passed by unwind rows that were derived from instructions, for want of others.
    Counter fleetprof_unwind_derived_steps_total = |c| c.by_derived_rule;
    /// Frames whose derived row led nowhere.
    Counter fleetprof_unwind_derived_misled_total = |c| c.derived_misled;
    /// Frames of code without a frame (compiled Haskell) passed by that of the function that
    /// entered it.
    Counter fleetprof_unwind_lent_steps_total = |c| c.by_lent_frame;
    /// Stacks of Erlang processes, which have stacks of their own.
    Counter fleetprof_unwind_beam_stacks_total = |c| c.beam_stacks;
    /// Frames of generated code that were passed by what the runtime told of it.
    Counter fleetprof_unwind_generated_steps_total = |c| c.by_generated_rule;
    /// Frames of generated code, of which nothing is known, whose caller was scanned for.
    Counter fleetprof_unwind_scans_total = |c| c.scans.attempts;
    /// Those where a caller was found from which the stack is complete.
    Counter fleetprof_unwind_scans_found_total = |c| c.scans.found;
    /// Scans of generated code whose caller is known, to compare both.
    Counter fleetprof_unwind_scans_checked_total = |c| c.scans.checked;
    /// Those that found another caller than the known one.
    Counter fleetprof_unwind_scans_wrong_total = |c| c.scans.wrong;
    /// Places where untouched pages ended copies of stacks, and that were asked to be read.
    Counter fleetprof_unwind_holes_total = |c| c.holes.asked;
    /// Such places that were not, because of a bound.
    Counter fleetprof_unwind_holes_refused_total = |c| c.holes.refused;
    /// Functions at which copies of stacks end whose callers are remembered.
    Gauge fleetprof_unwind_known_callers = |c| c.known_callers.functions;
    /// Stacks completed with such callers.
    Counter fleetprof_unwind_known_callers_used_total = |c| c.known_callers.completed;
    /// Threads whose callers were seen later and compared with those known by then.
    Counter fleetprof_unwind_known_callers_checked_total = |c| c.known_callers.checked;
    /// Those that had other callers: the function is given up.
    Counter fleetprof_unwind_known_callers_wrong_total = |c| c.known_callers.wrong;
    /// Times remembered callers were forgotten because there were too many functions.
    Counter fleetprof_unwind_known_callers_emptied_total = |c| c.known_callers.emptied;
    /// Threads that are not asked for a function's callers, and stacks that are not completed with
    /// them, because of a bound.
    Counter fleetprof_unwind_known_callers_refused_total = |c| c.known_callers.refused;
    /// Frames of generated code whose unwinding information led nowhere: code changed meanwhile.
    Counter fleetprof_unwind_generated_misled_total = |c| c.generated_misled;
    /// Files whose unwind information is held.
    Gauge fleetprof_unwind_modules = |c| c.modules.held;
    /// Memory of unwind information.
    Gauge fleetprof_unwind_module_bytes = |c| c.modules.bytes;
    /// Unwind information dropped to stay under `unwind.cache_mib`.
    Counter fleetprof_unwind_modules_evicted_total = |c| c.modules.evicted;
    /// Those of them that were in use: `unwind.cache_mib` is too small for what runs.
    Counter fleetprof_unwind_modules_evicted_in_use_total = |c| c.modules.evicted_in_use;
    /// Unwind information read and not taken because all that was held was in use.
    Counter fleetprof_unwind_modules_crowded_out_total = |c| c.modules.crowded_out;
    /// Files whose unwind information alone is over half of `unwind.cache_mib`.
    Counter fleetprof_unwind_modules_refused_total = |c| c.modules.refused;
    /// Files whose unwind information is over half of the bound that is in force now.
    Gauge fleetprof_unwind_modules_over_bound = |c| c.modules.over_bound;
    /// Files whose unwind information takes more memory or time to read than one file may.
    Counter fleetprof_unwind_files_over_budget_total = |c| c.modules.over_budget;
    /// Files that have no unwind information, or could not be read.
    Counter fleetprof_unwind_files_without_total = |c| c.modules.without;
    /// Requests for unwind information dropped because too many files waited to be read.
    Counter fleetprof_unwind_modules_unread_total = |c| c.unread;
    /// Requests for unwind information dropped because the sampler did not keep up.
    Counter fleetprof_unwind_modules_untaken_total = |c| c.untaken;
    /// Stacks of waits taken from an earlier walk of the thread that read the same words.
    Counter fleetprof_unwind_waits_recognized_total = |c| c.recall.exact;
    /// Stacks of waits whose outer callers are an estimate, taken from an earlier walk of the
    /// thread.
    Counter fleetprof_unwind_waits_estimated_total = |c| c.recall.alike;
    /// Estimates of outer callers that a large copy of the same wait checked.
    Counter fleetprof_unwind_estimates_checked_total = |c| c.recall.checked;
    /// Those of them that were wrong.
    Counter fleetprof_unwind_estimates_wrong_total = |c| c.recall.wrong;
    /// Walks of waiting threads forgotten for want of memory.
    Counter fleetprof_unwind_waits_forgotten_total = |c| c.recall.forgotten;
    /// Memory of the walks of waiting threads that are remembered while off-CPU captures run.
    Gauge fleetprof_unwind_waits_bytes = |c| c.recall.bytes;
    /// How walks by unwind information ended, before the chain was looked at.
    Counter fleetprof_unwind_ends_total{end} = |c|
        StackEnd::ALL.iter().map(|end| end.word()).zip(c.ends);
}

metrics::rows! { HELD: HeldCounts;
    /// Samples whose copy of the stack was kept until a file's unwind information was read, or an
    /// Erlang process was looked at, for two seconds at most.
    Counter fleetprof_unwind_held_total = |c| c.held;
    /// Those of them that were walked once that was done, or turned out to have none.
    Counter fleetprof_unwind_held_walked_total = |c| c.walked_on;
    /// Those for which it was not done in time: their stacks stay cut.
    Counter fleetprof_unwind_held_given_up_total = |c| c.given_up;
    /// Samples that could not wait for want of room: their stacks stay cut.
    Counter fleetprof_unwind_held_refused_total = |c| c.refused;
}

metrics::rows! { LOOKS: LookCounts;
    /// Looks at the memory of threads asked for, to complete stacks that the copy cuts.
    Counter fleetprof_looks_asked_total = |c| c.asked;
    /// Looks that brought the callers of a cut frame.
    Counter fleetprof_looks_taken_total = |c| c.taken;
    /// Looks put off or dropped because of a bound on their number, rate or memory.
    Counter fleetprof_looks_refused_total = |c| c.refused;
    /// Looks dropped because the call they were of had returned.
    Counter fleetprof_looks_outlived_total = |c| c.outlived;
    /// Looks dropped because their thread or program ended, or no sample needed them.
    Counter fleetprof_looks_dropped_total = |c| c.dropped;
    /// Looks held now, each with one debug register of its thread.
    Gauge fleetprof_looks_held = |c| c.held;
    /// Memory of the looks held now.
    Gauge fleetprof_look_bytes = |c| c.bytes;
    /// Samples whose stack was completed by a look.
    Counter fleetprof_look_samples_completed_total = |c| c.completed;
    /// Looks that could not be had, by cause.
    Counter fleetprof_looks_failed_total{cause} = |c|
        Failure::ALL.iter().map(|cause| cause.word()).zip(c.failed);
}
