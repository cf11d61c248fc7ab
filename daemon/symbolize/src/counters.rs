//! What naming did and what it dropped, by cause, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $sentence:literal])+ $name:ident,)*) => {
        /// Counters of the file, symbol and perf-map stages. Shared; each only grows.
        #[derive(Debug, Default)]
        pub struct SymbolCounters { $($(#[doc = $sentence])+ pub $name: AtomicU64,)* }

        impl SymbolCounters {
            /// Every counter: name, sentence, value now.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($sentence),+).trim_ascii(), self.$name.load(Ordering::Relaxed)),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Executables opened.
    files_opened,
    /// Executables gone before they could be opened.
    files_gone,
    /// Executables whose path led to another file than the one that ran.
    files_changed,
    /// Executables that could not be opened or read.
    files_unreadable,
    /// Open executables closed to stay under the limit of descriptors.
    files_evicted,
    /// Open executables closed because they had no samples for a while.
    files_closed,
    /// Executables whose file system did not answer in time; taken when it does.
    files_late,
    /// Symbol tables read.
    tables_read,
    /// Symbol tables dropped to stay under the cache limit.
    tables_evicted,
    /// Files without names because reading them takes more memory or time than one file may.
    tables_refused,
    /// Times that a file was not read because the files of its owner had taken more than their
    /// share of time.
    files_put_off,
    /// CPU time spent on files of users and containers, in nanoseconds; of each owner it is
    /// bounded.
    owners_files_cpu_ns,
    /// Separate debug files held open with executables that may need them.
    debug_files_held,
    /// Separate debug files found and used.
    debug_files_used,
    /// Debug files fetched from debuginfod servers.
    debuginfod_fetched,
    /// Times that no debuginfod server had a build.
    debuginfod_absent,
    /// Builds of which debuginfod servers had only files of no use: of another build, without
    /// symbols, too large.
    debuginfod_refused,
    /// Times that a build could not be asked for at all servers.
    debuginfod_failed,
    /// Fetched debug files removed to make room for others.
    debuginfod_removed,
    /// Addresses that got a name.
    addresses_named,
    /// Symbol names read and demangled, because no frame of the dictionary had them yet.
    names_read,
    /// Addresses that got no name, for any reason.
    addresses_unnamed,
    /// Addresses without a name whose place was not kept either, because their file has too many.
    places_refused,
    /// Panics of a library caught while a file was named.
    library_panics,
    /// Files without source lines because their debug information is over a limit or damaged.
    lines_refused,
    /// Times the kernel's symbols were read.
    kernel_reads,
    /// Perf maps opened and read from their start.
    perf_maps_read,
    /// Times a perf map that grew was read on from where it ended.
    perf_maps_tailed,
    /// Perf maps refused: wrong owner, link, not a regular file, too large, older than the process.
    perf_maps_refused,
    /// Perf maps that could not be read in time; taken when they can be.
    perf_maps_late,
    /// Lines of perf maps that make no sense.
    perf_map_lines_skipped,
    /// Processes whose generated code was forgotten to stay under the limits of memory and number.
    perf_maps_evicted,
    /// Jitdumps opened and read from their start.
    jitdumps_read,
    /// Jitdumps refused: gone, not the file that was mapped, wrong owner, more than one name, not a
    /// jitdump.
    jitdumps_refused,
    /// Pieces of generated code that jitdumps told of.
    jitdump_code_loaded,
    /// Records of jitdumps that make no sense.
    jitdump_records_skipped,
    /// Records of jitdumps left out because a child of their process wrote them.
    jitdump_records_foreign,
    /// Records of jitdumps without a time of the sampler's clock, taken to be as old as their
    /// reading.
    jitdump_records_untimed,
    /// Source lines of jitdumps left out: too many, or not of the code they are told of.
    jitdump_lines_dropped,
    /// Unwinding information of jitdumps left out because it is too long.
    jitdump_unwinding_dropped,
    /// Pieces of generated code with unwinding information that was taken.
    code_rules_taken,
    /// Pieces of generated code whose unwinding information makes no sense.
    code_rules_senseless,
    /// Pieces of generated code stepped over by frame pointers because too many have rules already.
    code_rules_refused,
    /// Trampolines of CPython found by their instructions.
    trampolines_found,
    /// Pieces of generated code refused because what is known of their process is over its limit.
    code_refused,
    /// Pieces of generated code that went and were forgotten before all samples had names.
    code_forgotten,
    /// Processes with generated code refused because as many others are active.
    code_processes_refused,
    /// Jitdumps that fp-jit was not told of: more than it takes of one process, or all at once.
    jitdumps_untold,
    /// Times that looking up the generated code of one process took as long as it may: the rest has
    /// no names.
    code_looked_up_too_long,
    /// Samples named as of the end of their batch because their times found no room.
    sample_times_refused,
    /// Rows split because code at their addresses changed while they were sampled.
    rows_split,
    /// Rows not split because too many were: their frames of code that changed have no names.
    rows_unsplit,
    /// Perf maps that runtimes wrote, or started to write, because they were asked.
    attaches_done,
    /// Attempts to have a runtime write its perf map that failed.
    attaches_failed,
    /// Times that a process with samples was not asked because too many are known.
    attaches_over_limit,
    /// Perf maps removed that runtimes had written because they were asked.
    attach_maps_removed,
}

/// Adds one.
pub fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds `more`.
pub fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_listed_with_a_sentence() {
        let counters = SymbolCounters::default();
        bump(&counters.files_opened);
        let all: Vec<_> = counters.all().collect();
        assert_eq!(all[0], ("files_opened", "Executables opened.", 1));
        assert!(all.iter().all(|(_, sentence, _)| sentence.ends_with('.')));
    }
}
