//! Counters of the store, for metrics and for reporting what was dropped and why.

metrics::counted! {
    /// Counters since the store was opened.
    pub struct Counters;
    /// Windows pushed, by what became of them.
    Counter fleetprof_store_windows_total{outcome} =
        "stored" windows_stored,
        "repeated" windows_repeated,
        "refused" windows_refused,
        "missing" windows_missing;
    /// Partitions read at the start, because they had changed since the manifest was written.
    Gauge fleetprof_store_partitions_opened_at_start = partitions_opened;
    /// Partitions that queries read, counted each time; it does not grow with how long data is
    /// kept.
    Counter fleetprof_store_partitions_read_total = partitions_read;
    /// Time to write chunks of a partition from memory to its file.
    Histogram fleetprof_store_flush_duration_seconds = flush_time [metrics::CALL_SECONDS];
    /// Rows written to partitions.
    Counter fleetprof_store_rows_flushed_total = rows_flushed;
    /// Rows put under `[other]` because a dictionary is full.
    Counter fleetprof_store_rows_folded_total = stacks_folded;
    /// Label sets that kept their host only, because there are too many.
    Counter fleetprof_store_label_sets_folded_total = label_sets_folded;
    /// Batches written to the write-ahead log, one fsync each.
    Counter fleetprof_store_log_batches_total = log_batches;
    /// Time to write a batch to the write-ahead log, fsync included.
    Histogram fleetprof_store_log_write_duration_seconds = log_write_time [metrics::DISK_SECONDS];
    /// Bytes written to the write-ahead log.
    Counter fleetprof_store_log_written_bytes_total = log_bytes;
    /// Times that the write-ahead log could not be written; nothing was acknowledged.
    Counter fleetprof_store_log_failures_total = log_failures;
    /// Times that what is in memory could not be written to its partition.
    Counter fleetprof_store_flush_failures_total = flush_failures;
    /// Partitions set aside because they are damaged.
    Counter fleetprof_store_partitions_damaged_total = partitions_damaged;
    /// Partitions removed, by cause.
    Counter fleetprof_store_partitions_removed_total{cause} =
        "age" partitions_expired,
        "disk_bytes" partitions_evicted,
        "archived" partitions_archived;
    /// Chunks of ten minutes whose parts, one a flush, were put together.
    Counter fleetprof_store_chunks_compacted_total = chunks_compacted;
    /// Time to put the parts of a chunk together.
    Histogram fleetprof_store_compaction_duration_seconds = compaction_time [metrics::CALL_SECONDS];
    /// Sums of an hour by service that were made, once more when windows came late.
    Counter fleetprof_store_service_sums_total = hours_added_up;
    /// Partitions downsampled for their age.
    Counter fleetprof_store_partitions_downsampled_total = partitions_downsampled;
    /// Times that compaction or downsampling failed; the finer data stayed.
    Counter fleetprof_store_compaction_failures_total = compaction_failures;
    /// 1 while something is to be compacted or downsampled and waits for its turn.
    Gauge fleetprof_store_compaction_pending = compaction_pending;
    /// Size of the downsampled partition that is being written, next to the finer one.
    Gauge fleetprof_store_downsampling_bytes = downsampling_bytes;
    /// Records of the write-ahead log that could not be taken over.
    Counter fleetprof_store_log_records_unusable_total = records_unusable;
    /// Records of the write-ahead log that were there and could not be read at the start.
    Counter fleetprof_store_log_records_lost_total = records_lost;
    /// Files that had been set aside, removed because the disk budget was used up.
    Counter fleetprof_store_quarantined_removed_total = quarantined_removed;
    /// Records of the write-ahead log taken over after a start.
    Counter fleetprof_store_log_records_replayed_total = records_replayed;
    /// Bytes at the end of the write-ahead log that a crash had left torn.
    Counter fleetprof_store_log_torn_bytes_total = log_torn_bytes;
}
