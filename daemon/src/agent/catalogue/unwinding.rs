//! Metrics of stack walks by unwind information, of remembered walks, and of memory reads.

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
    /// Stack copies unwound.
    Counter fleetprof_unwind_walks_total = |c| c.walks;
    /// Stacks continued or replaced with the kernel's frame-pointer chain.
    Counter fleetprof_unwind_chains_used_total = |c| c.chains_used;
    /// Frames whose unwind rule was in the cache.
    Counter fleetprof_unwind_rule_hits_total = |c| c.modules.rule_hits;
    /// Frames whose unwind rule was computed and cached.
    Counter fleetprof_unwind_rule_misses_total = |c| c.modules.rule_misses;
    /// Times the cache of unwind rules was cleared because it was full.
    Counter fleetprof_unwind_rules_emptied_total = |c| c.modules.rules_emptied;
    /// Frames whose unwind rule cannot be cached: signal frames and realigned stacks.
    Counter fleetprof_unwind_rows_computed_total = |c| c.computed;
    /// Frames without unwind information, unwound with their frame pointer.
    Counter fleetprof_unwind_frame_pointer_steps_total = |c| c.by_frame_pointer;
    /// Frames unwound with rows derived from instructions, because there were no others.
    Counter fleetprof_unwind_derived_steps_total = |c| c.by_derived_rule;
    /// Frames whose derived row did not lead to a caller.
    Counter fleetprof_unwind_derived_misled_total = |c| c.derived_misled;
    /// Frames of compiled Haskell, unwound with the frame of the function that entered it.
    Counter fleetprof_unwind_lent_steps_total = |c| c.by_lent_frame;
    /// Frames whose unwind row reads below the stack pointer, found by the same word in the frame.
    Counter fleetprof_unwind_red_zone_steps_total = |c| c.by_red_zone;
    /// Stacks of Erlang processes, which are separate from thread stacks.
    Counter fleetprof_unwind_beam_stacks_total = |c| c.beam_stacks;
    /// Frames of generated code, unwound with information from the runtime.
    Counter fleetprof_unwind_generated_steps_total = |c| c.by_generated_rule;
    /// Frames of interpreted Java functions, which hold their method.
    Counter fleetprof_unwind_interpreted_steps_total = |c| c.interpreted;
    /// Unknown frames of generated code whose caller was searched on the stack.
    Counter fleetprof_unwind_scans_total = |c| c.scans.attempts;
    /// Searches that found a caller from which the stack is complete.
    Counter fleetprof_unwind_scans_found_total = |c| c.scans.found;
    /// Searches checked against a known caller.
    Counter fleetprof_unwind_scans_checked_total = |c| c.scans.checked;
    /// Checked searches that found a wrong caller.
    Counter fleetprof_unwind_scans_wrong_total = |c| c.scans.wrong;
    /// Requests to read untouched pages that ended copies of stacks.
    Counter fleetprof_unwind_holes_total = |c| c.holes.asked;
    /// Untouched pages that were not read because of a limit.
    Counter fleetprof_unwind_holes_refused_total = |c| c.holes.refused;
    /// Functions at which stack copies end and whose callers are remembered.
    Gauge fleetprof_unwind_known_callers = |c| c.known_callers.functions;
    /// Stacks completed with remembered callers.
    Counter fleetprof_unwind_known_callers_used_total = |c| c.known_callers.completed;
    /// Threads whose callers were checked against the remembered ones.
    Counter fleetprof_unwind_known_callers_checked_total = |c| c.known_callers.checked;
    /// Checked threads that had other callers; their function is not used any more.
    Counter fleetprof_unwind_known_callers_wrong_total = |c| c.known_callers.wrong;
    /// Times remembered callers were dropped because there were too many functions.
    Counter fleetprof_unwind_known_callers_emptied_total = |c| c.known_callers.emptied;
    /// Threads not checked for a function's callers, and stacks not completed with them, because of
    /// a limit.
    Counter fleetprof_unwind_known_callers_refused_total = |c| c.known_callers.refused;
    /// Frames of generated code whose unwind information did not lead to a caller, because the code
    /// had changed.
    Counter fleetprof_unwind_generated_misled_total = |c| c.generated_misled;
    /// Files whose unwind information is in memory.
    Gauge fleetprof_unwind_modules = |c| c.modules.held;
    /// Memory of unwind information.
    Gauge fleetprof_unwind_module_bytes = |c| c.modules.bytes;
    /// Files whose unwind information was dropped to stay below unwind.cache_mib.
    Counter fleetprof_unwind_modules_evicted_total = |c| c.modules.evicted;
    /// Files whose unwind information was dropped while in use: unwind.cache_mib is too small for
    /// the running programs.
    Counter fleetprof_unwind_modules_evicted_in_use_total = |c| c.modules.evicted_in_use;
    /// Files whose unwind information was read but not kept, because everything in memory was in
    /// use.
    Counter fleetprof_unwind_modules_crowded_out_total = |c| c.modules.crowded_out;
    /// Files whose unwind information takes more than half of unwind.cache_mib.
    Counter fleetprof_unwind_modules_refused_total = |c| c.modules.refused;
    /// Files whose unwind information takes more than half of the current limit.
    Gauge fleetprof_unwind_modules_over_bound = |c| c.modules.over_bound;
    /// Files whose unwind information takes more memory or time to read than the limit for a file.
    Counter fleetprof_unwind_files_over_budget_total = |c| c.modules.over_budget;
    /// Files that have no unwind information, or could not be read.
    Counter fleetprof_unwind_files_without_total = |c| c.modules.without;
    /// Requests for unwind information dropped because too many files waited to be read.
    Counter fleetprof_unwind_modules_unread_total = |c| c.unread;
    /// Requests for unwind information dropped because the sampler was too slow.
    Counter fleetprof_unwind_modules_untaken_total = |c| c.untaken;
    /// Stacks of waits reused from an earlier stack of the thread with the same contents.
    Counter fleetprof_unwind_waits_recognized_total = |c| c.recall.exact;
    /// Stacks of waits with estimated outer callers from an earlier stack of the thread.
    Counter fleetprof_unwind_waits_estimated_total = |c| c.recall.alike;
    /// Estimates of outer callers checked against a large copy of the same wait.
    Counter fleetprof_unwind_estimates_checked_total = |c| c.recall.checked;
    /// Checked estimates of outer callers that were wrong.
    Counter fleetprof_unwind_estimates_wrong_total = |c| c.recall.wrong;
    /// Remembered stacks of waiting threads dropped for lack of memory.
    Counter fleetprof_unwind_waits_forgotten_total = |c| c.recall.forgotten;
    /// Memory for remembered stacks of waiting threads while off-CPU captures run.
    Gauge fleetprof_unwind_waits_bytes = |c| c.recall.bytes;
    /// Stacks unwound with unwind information by how they ended, before the frame-pointer chain was
    /// tried.
    Counter fleetprof_unwind_ends_total{end} = |c|
        StackEnd::ALL.iter().map(|end| end.word()).zip(c.ends);
}

metrics::rows! { HELD: HeldCounts;
    /// Samples whose stack copy waited, for at most two seconds, until a file's unwind information
    /// or an Erlang process was read.
    Counter fleetprof_unwind_held_total = |c| c.held;
    /// Waiting samples that were unwound after the read, or whose file had no unwind information.
    Counter fleetprof_unwind_held_walked_total = |c| c.walked_on;
    /// Waiting samples whose read was too late; their stacks stay cut.
    Counter fleetprof_unwind_held_given_up_total = |c| c.given_up;
    /// Samples that could not wait for lack of room; their stacks stay cut.
    Counter fleetprof_unwind_held_refused_total = |c| c.refused;
}

metrics::rows! { LOOKS: LookCounts;
    /// Reads of thread memory requested to complete stacks that the copy cuts.
    Counter fleetprof_looks_asked_total = |c| c.asked;
    /// Reads that found the callers of a cut frame.
    Counter fleetprof_looks_taken_total = |c| c.taken;
    /// Reads delayed or dropped because of a limit on number, rate or memory.
    Counter fleetprof_looks_refused_total = |c| c.refused;
    /// Reads dropped because their call had returned.
    Counter fleetprof_looks_outlived_total = |c| c.outlived;
    /// Reads dropped because their thread or program ended, or no sample needed them.
    Counter fleetprof_looks_dropped_total = |c| c.dropped;
    /// Reads that are kept now, each with one debug register of its thread.
    Gauge fleetprof_looks_held = |c| c.held;
    /// Memory for the reads that are kept now.
    Gauge fleetprof_look_bytes = |c| c.bytes;
    /// Samples whose stack was completed by a read of thread memory.
    Counter fleetprof_look_samples_completed_total = |c| c.completed;
    /// Reads of thread memory that failed, by cause.
    Counter fleetprof_looks_failed_total{cause} = |c|
        Failure::ALL.iter().map(|cause| cause.word()).zip(c.failed);
}
