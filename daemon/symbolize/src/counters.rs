//! Counters of naming and of what it dropped, by cause, for the metrics.

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
    /// Executables that were removed before they could be opened.
    files_gone,
    /// Executables whose path led to another file than the one that ran.
    files_changed,
    /// Executables that could not be opened or read.
    files_unreadable,
    /// Open executables closed to stay below the limit of descriptors.
    files_evicted,
    /// Open executables closed because they had no samples for a while.
    files_closed,
    /// Executables whose file system did not answer in time; they are read later.
    files_late,
    /// Symbol tables read.
    tables_read,
    /// Symbol tables dropped to stay below the cache limit.
    tables_evicted,
    /// Files without names because reading them takes more memory or time than the limit for a
    /// file.
    tables_refused,
    /// Times a file was not read because the files of its owner had used more than their share of
    /// time.
    files_put_off,
    /// CPU time spent on files of users and containers; each owner has a limit.
    owners_files_cpu_ns,
    /// Separate debug files held open with executables that may need them.
    debug_files_held,
    /// Separate debug files found and used.
    debug_files_used,
    /// Debug files fetched from debuginfod servers.
    debuginfod_fetched,
    /// Times no debuginfod server had a build.
    debuginfod_absent,
    /// Builds for which debuginfod servers had only unusable files: another build, no symbols, or
    /// too large.
    debuginfod_refused,
    /// Times some debuginfod server could not be asked for a build.
    debuginfod_failed,
    /// Fetched debug files removed to make room.
    debuginfod_removed,
    /// Addresses that got a name.
    addresses_named,
    /// Symbol names read and demangled, because no frame of the dictionary had them yet.
    names_read,
    /// Addresses that got no name, for any reason.
    addresses_unnamed,
    /// Addresses without a name that were not cached, because their file has too many.
    places_refused,
    /// Panics of a library caught while reading a file.
    library_panics,
    /// Files without source lines because their debug information is over a limit or damaged.
    lines_refused,
    /// Times the kernel's symbols were read.
    kernel_reads,
    /// Perf maps opened and read from their start.
    perf_maps_read,
    /// Times the new part of a growing perf map was read.
    perf_maps_tailed,
    /// Perf maps refused: wrong owner, link, not a regular file, too large, older than the process.
    perf_maps_refused,
    /// Perf maps that could not be read in time; they are read later.
    perf_maps_late,
    /// Invalid lines of perf maps.
    perf_map_lines_skipped,
    /// Processes whose generated code was dropped to stay below the limits of memory and number.
    perf_maps_evicted,
    /// Jitdumps opened and read from their start.
    jitdumps_read,
    /// Jitdumps refused: removed, not the mapped file, wrong owner, more than one name, or not a
    /// jitdump.
    jitdumps_refused,
    /// Pieces of generated code in jitdumps.
    jitdump_code_loaded,
    /// Invalid records of jitdumps.
    jitdump_records_skipped,
    /// Records of jitdumps skipped because a child of their process wrote them.
    jitdump_records_foreign,
    /// Records of jitdumps without a time of the sampler's clock; the time of reading is used
    /// instead.
    jitdump_records_untimed,
    /// Source lines of jitdumps skipped: too many, or outside their code.
    jitdump_lines_dropped,
    /// Unwind information of jitdumps skipped because it is too long.
    jitdump_unwinding_dropped,
    /// Pieces of generated code with usable unwind information.
    code_rules_taken,
    /// Pieces of generated code with invalid unwind information.
    code_rules_senseless,
    /// Pieces of generated code unwound with frame pointers because too many already have rules.
    code_rules_refused,
    /// Trampolines of CPython found by their instructions.
    trampolines_found,
    /// Pieces of generated code refused because their process exceeds its limit.
    code_refused,
    /// Pieces of generated code that were dropped before all samples had names.
    code_forgotten,
    /// Processes with generated code refused because too many others are active.
    code_processes_refused,
    /// Jitdumps skipped because a process has too many, or too many came at once.
    jitdumps_untold,
    /// Times the lookup of generated code of a process reached its time limit; the rest has no
    /// names.
    code_looked_up_too_long,
    /// Samples named with the code at the end of their batch, for lack of room for their times.
    sample_times_refused,
    /// Rows split because code at their addresses changed while they were sampled.
    rows_split,
    /// Rows not split because there were too many; their frames in changed code have no names.
    rows_unsplit,
    /// Perf maps that runtimes wrote, or started to write, on request.
    attaches_done,
    /// Failed requests to a runtime to write its perf map.
    attaches_failed,
    /// Times a process with samples was not asked for its perf map because there are too many
    /// processes.
    attaches_over_limit,
    /// Perf maps removed that runtimes had written on request.
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
