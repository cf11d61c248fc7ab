//! What the store counts: for metrics, and for saying what was dropped and why.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal;)*) => {
        /// Counters since the store was opened.
        #[derive(Default)]
        pub struct Counters { $($(#[$doc])* pub $field: AtomicU64,)* }

        impl Counters {
            /// All by metric name.
            pub fn all(&self) -> Vec<(String, u64)> {
                vec![$(($name.to_owned(), self.$field.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Windows taken.
    windows_stored = "fleetprof_store_windows_total{outcome=\"stored\"}";
    /// Windows that were there already.
    windows_repeated = "fleetprof_store_windows_total{outcome=\"repeated\"}";
    /// Windows never taken.
    windows_refused = "fleetprof_store_windows_total{outcome=\"refused\"}";
    /// Windows that wait for definitions.
    windows_missing = "fleetprof_store_windows_total{outcome=\"missing\"}";
    /// Partitions read at the start because they had changed since the manifest was written.
    partitions_opened = "fleetprof_store_partitions_opened_at_start";
    /// Partitions that queries read, counted each time.
    partitions_read = "fleetprof_store_partitions_read_total";
    /// Rows flushed into files.
    rows_flushed = "fleetprof_store_rows_flushed_total";
    /// Rows whose stack went under `[other]` at the bound of a partition's dictionary.
    stacks_folded = "fleetprof_store_rows_folded_total";
    /// Label sets that went under `overflow` at the bound.
    label_sets_folded = "fleetprof_store_label_sets_folded_total";
    /// Batches of the write-ahead log.
    log_batches = "fleetprof_store_log_batches_total";
    /// Bytes written to the write-ahead log.
    log_bytes = "fleetprof_store_log_written_bytes_total";
    /// Batches that could not be written.
    log_failures = "fleetprof_store_log_failures_total";
    /// Flushes that failed and are tried again.
    flush_failures = "fleetprof_store_flush_failures_total";
    /// Partitions set aside.
    partitions_damaged = "fleetprof_store_partitions_damaged_total";
    /// Partitions removed for their age.
    partitions_expired = "fleetprof_store_partitions_removed_total{cause=\"age\"}";
    /// Partitions removed for the disk budget.
    partitions_evicted = "fleetprof_store_partitions_removed_total{cause=\"disk_bytes\"}";
    /// Chunks whose parts were put together.
    chunks_compacted = "fleetprof_store_chunks_compacted_total";
    /// Hours added up by service.
    hours_added_up = "fleetprof_store_hours_added_up_total";
    /// Partitions made coarser.
    partitions_downsampled = "fleetprof_store_partitions_coarsened_total";
    /// Compacting or coarsening failed and is tried again.
    compaction_failures = "fleetprof_store_tidy_failures_total";
    /// 1 while something is to be compacted or made coarser and was not for lack of time.
    compaction_pending = "fleetprof_store_tidy_pending";
    /// Size of the coarser file that is being written.
    downsampling_bytes = "fleetprof_store_coarsening_bytes";
    /// Records of the log that could not be replayed at the start.
    records_unusable = "fleetprof_store_log_records_unusable_total";
    /// Records of the log that were there and could not be read at the start.
    records_lost = "fleetprof_store_log_records_lost_total";
    /// Files that had been set aside, removed for the disk budget.
    quarantined_removed = "fleetprof_store_set_aside_removed_total";
    /// Records replayed at the start.
    records_replayed = "fleetprof_store_log_records_replayed_total";
    /// Bytes of a torn tail that the start cut off.
    log_torn_bytes = "fleetprof_store_log_torn_bytes_total";
}
