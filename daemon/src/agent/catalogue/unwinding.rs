//! Metrics of walks by unwind information, and of what is remembered of them.

use super::one;
use crate::agent::Agent;
use host::sync::lock;
use metrics::{Kind, Registry};
use profile::StackEnd;
use sampler::HeldCounts;
use std::sync::Arc;
use unwind::walk::engine::UnwindCounts;

/// Registers them.
pub(super) fn register(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&UnwindCounts) -> u64;
    let metrics: [(&str, &str, Kind, Pick); 35] = [
        (
            "fleetprof_unwind_walks_total",
            "Copies of stacks unwound.",
            Kind::Counter,
            |c| c.walks,
        ),
        (
            "fleetprof_unwind_chains_used_total",
            "Walks whose result was continued or replaced by the kernel's frame-pointer chain.",
            Kind::Counter,
            |c| c.chains_used,
        ),
        (
            "fleetprof_unwind_rule_hits_total",
            "Frames whose rule was in the cache.",
            Kind::Counter,
            |c| c.modules.rule_hits,
        ),
        (
            "fleetprof_unwind_rule_misses_total",
            "Frames whose rule was computed and kept.",
            Kind::Counter,
            |c| c.modules.rule_misses,
        ),
        (
            "fleetprof_unwind_rules_emptied_total",
            "Times all rules in the cache were forgotten because there were too many different ones.",
            Kind::Counter,
            |c| c.modules.rules_emptied,
        ),
        (
            "fleetprof_unwind_rows_computed_total",
            "Frames computed from their row each time: signal frames, realigned stacks.",
            Kind::Counter,
            |c| c.computed,
        ),
        (
            "fleetprof_unwind_frame_pointer_steps_total",
            "Frames without unwind information that were passed by their frame pointer.",
            Kind::Counter,
            |c| c.by_frame_pointer,
        ),
        (
            "fleetprof_unwind_derived_steps_total",
            "Frames passed by unwind rows that were derived from instructions, for want of others.",
            Kind::Counter,
            |c| c.by_derived_rule,
        ),
        (
            "fleetprof_unwind_derived_misled_total",
            "Frames whose derived row led nowhere.",
            Kind::Counter,
            |c| c.derived_misled,
        ),
        (
            "fleetprof_unwind_lent_steps_total",
            "Frames of code without a frame (compiled Haskell) passed by that of the function that entered it.",
            Kind::Counter,
            |c| c.by_lent_frame,
        ),
        (
            "fleetprof_unwind_generated_steps_total",
            "Frames of generated code that were passed by what the runtime told of it.",
            Kind::Counter,
            |c| c.by_generated_rule,
        ),
        (
            "fleetprof_unwind_scans_total",
            "Frames of generated code, of which nothing is known, whose caller was scanned for.",
            Kind::Counter,
            |c| c.scans.attempts,
        ),
        (
            "fleetprof_unwind_scans_found_total",
            "Those where a caller was found from which the stack is complete.",
            Kind::Counter,
            |c| c.scans.found,
        ),
        (
            "fleetprof_unwind_scans_checked_total",
            "Scans of generated code whose caller is known, to compare both.",
            Kind::Counter,
            |c| c.scans.checked,
        ),
        (
            "fleetprof_unwind_scans_wrong_total",
            "Those that found another caller than the known one.",
            Kind::Counter,
            |c| c.scans.wrong,
        ),
        (
            "fleetprof_unwind_holes_total",
            "Places where untouched pages ended copies of stacks, and that were asked to be read.",
            Kind::Counter,
            |c| c.holes.asked,
        ),
        (
            "fleetprof_unwind_holes_refused_total",
            "Such places that were not, because of a bound.",
            Kind::Counter,
            |c| c.holes.refused,
        ),
        (
            "fleetprof_unwind_generated_misled_total",
            "Frames of generated code whose unwinding information led nowhere: code changed meanwhile.",
            Kind::Counter,
            |c| c.generated_misled,
        ),
        (
            "fleetprof_unwind_modules",
            "Files whose unwind information is held.",
            Kind::Gauge,
            |c| c.modules.held,
        ),
        (
            "fleetprof_unwind_module_bytes",
            "Memory of unwind information.",
            Kind::Gauge,
            |c| c.modules.bytes,
        ),
        (
            "fleetprof_unwind_modules_evicted_total",
            "Unwind information dropped to stay under `unwind.cache_mib`.",
            Kind::Counter,
            |c| c.modules.evicted,
        ),
        (
            "fleetprof_unwind_modules_evicted_in_use_total",
            "Those of them that were in use: `unwind.cache_mib` is too small for what runs.",
            Kind::Counter,
            |c| c.modules.evicted_in_use,
        ),
        (
            "fleetprof_unwind_modules_crowded_out_total",
            "Unwind information read and not taken because all that was held was in use.",
            Kind::Counter,
            |c| c.modules.crowded_out,
        ),
        (
            "fleetprof_unwind_modules_refused_total",
            "Files whose unwind information alone is over half of `unwind.cache_mib`.",
            Kind::Counter,
            |c| c.modules.refused,
        ),
        (
            "fleetprof_unwind_modules_over_bound",
            "Files whose unwind information is over half of the bound that is in force now.",
            Kind::Gauge,
            |c| c.modules.over_bound,
        ),
        (
            "fleetprof_unwind_files_over_budget_total",
            "Files whose unwind information takes more memory or time to read than one file may.",
            Kind::Counter,
            |c| c.modules.over_budget,
        ),
        (
            "fleetprof_unwind_files_without_total",
            "Files that have no unwind information, or could not be read.",
            Kind::Counter,
            |c| c.modules.without,
        ),
        (
            "fleetprof_unwind_modules_unread_total",
            "Requests for unwind information dropped because too many files waited to be read.",
            Kind::Counter,
            |c| c.unread,
        ),
        (
            "fleetprof_unwind_modules_untaken_total",
            "Requests for unwind information dropped because the sampler did not keep up.",
            Kind::Counter,
            |c| c.untaken,
        ),
        (
            "fleetprof_unwind_waits_recognized_total",
            "Stacks of waits taken from an earlier walk of the thread that read the same words.",
            Kind::Counter,
            |c| c.recall.exact,
        ),
        (
            "fleetprof_unwind_waits_estimated_total",
            "Stacks of waits whose outer callers are an estimate, taken from an earlier walk of the thread.",
            Kind::Counter,
            |c| c.recall.alike,
        ),
        (
            "fleetprof_unwind_estimates_checked_total",
            "Estimates of outer callers that a large copy of the same wait checked.",
            Kind::Counter,
            |c| c.recall.checked,
        ),
        (
            "fleetprof_unwind_estimates_wrong_total",
            "Those of them that were wrong.",
            Kind::Counter,
            |c| c.recall.wrong,
        ),
        (
            "fleetprof_unwind_waits_forgotten_total",
            "Walks of waiting threads forgotten for want of memory.",
            Kind::Counter,
            |c| c.recall.forgotten,
        ),
        (
            "fleetprof_unwind_waits_bytes",
            "Memory of the walks of waiting threads that are remembered while off-CPU captures run.",
            Kind::Gauge,
            |c| c.recall.bytes,
        ),
    ];
    for (name, help, kind, pick) in metrics {
        one(registry, agent, name, help, kind, move |agent| {
            pick(&lock(&agent.sampling.sampler.facts).unwinding)
        });
    }
    held(registry, agent);
    let weak = Arc::downgrade(agent);
    registry.read(
        "fleetprof_unwind_ends_total",
        "How walks by unwind information ended, before the chain was looked at.",
        Kind::Counter,
        move || {
            let Some(agent) = weak.upgrade() else {
                return Vec::new();
            };
            let ends = lock(&agent.sampling.sampler.facts).unwinding.ends;
            let words = StackEnd::ALL.iter().zip(ends);
            words
                .map(|(end, count)| (vec![("end", end.word().to_owned())], count))
                .collect()
        },
    );
}

fn held(registry: &Registry, agent: &Arc<Agent>) {
    type Pick = fn(&HeldCounts) -> u64;
    let metrics: [(&str, &str, Pick); 4] = [
        (
            "fleetprof_unwind_held_total",
            "Samples whose copy of the stack was kept until a file's unwind information was read, for a second at most.",
            |c| c.held,
        ),
        (
            "fleetprof_unwind_held_walked_total",
            "Those of them that were walked once it was read, or turned out to have none.",
            |c| c.walked_on,
        ),
        (
            "fleetprof_unwind_held_given_up_total",
            "Those whose file was not read in time: their stacks stay cut.",
            |c| c.given_up,
        ),
        (
            "fleetprof_unwind_held_refused_total",
            "Samples that could not wait for want of room: their stacks stay cut.",
            |c| c.refused,
        ),
    ];
    for (name, help, pick) in metrics {
        one(registry, agent, name, help, Kind::Counter, move |agent| {
            pick(&lock(&agent.sampling.sampler.facts).held)
        });
    }
}
