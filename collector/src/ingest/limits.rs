//! Limits on what one agent, and all together, may cost, and what happens at each.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Largest message of an agent. Unit: bytes, decompressed.
///
/// A window of a busy host of 512 CPUs is about 3 MiB and may come in parts. Decoded, a message
/// takes up to twelve times this for a moment. Larger ones end the stream with the transport's own
/// error.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Most unanswered windows of one agent, sent in `Welcome`. Enough to keep the disk busy while one
/// is on its way; each may take a window's memory.
pub const WINDOWS_IN_FLIGHT: u32 = 4;

/// Most rows of a window. Unit: rows.
///
/// 512 CPUs at 990 Hz take 5 million samples in 10 s, which fold to a tenth. A window with more is
/// refused: the agent counts it as dropped and goes on.
pub const ROWS_PER_WINDOW_MAX: usize = 1_000_000;

/// Most label sets of a window, those of accounts included. More are refused as too many rows are.
pub const LABEL_SETS_PER_WINDOW_MAX: usize = 65_536;

/// Most label sets of a stream's dictionary. At the bound the stream ends with INVALID_ARGUMENT:
/// the agent is to start a new dictionary, as it does on every new stream.
pub const LABEL_SETS_PER_STREAM_MAX: usize = 1 << 18;

/// Number of stacks after which an agent should start a new dictionary, in a large fleet and in a
/// small one; sent in `Welcome`. Unit: stacks, 20 bytes each on this side.
///
/// A window has some thousands of stacks, and a host keeps having new ones. With less, stacks that
/// are still in use travel again, 16 bytes each; with more, thousands of streams take memory for
/// stacks that are gone. Agents with large windows may use up to four times as many.
pub const DICTIONARY_STACKS: RangeInclusive<u32> = 1 << 15..=1 << 17;

/// Memory that streams share for stacks beyond the least that each may have. Unit: bytes.
const DICTIONARIES_BYTES: u64 = 256 << 20;

/// Bytes of a stack that a stream remembers.
const STACK_BYTES: u64 = 20;

/// The value sent to the agent of a new stream if this many are open, including its own.
pub fn dictionary_stacks(streams: u64) -> u32 {
    let share = DICTIONARIES_BYTES / STACK_BYTES / streams.max(1);
    let (least, most) = DICTIONARY_STACKS.into_inner();
    share.clamp(least.into(), most.into()) as u32
}

/// Most stacks of a stream's dictionary. At the bound as with label sets. An agent that starts new
/// dictionaries when it should never reaches it.
pub const STACKS_PER_STREAM_MAX: usize =
    proto::definitions::dictionary_stacks_max(*DICTIONARY_STACKS.end(), usize::MAX)
        + ROWS_PER_WINDOW_MAX;

/// Most labels of a set. If there are more, those that sort last by name are left out and counted.
pub const LABELS_PER_SET_MAX: usize = 32;

/// Longest name of a label. Unit: bytes. A longer one is left out, and counted.
pub const LABEL_NAME_BYTES_MAX: usize = 128;

/// Longest value of a label. Unit: bytes. As long as the longest path of a cgroup; a longer one is
/// cut, and counted.
pub const LABEL_VALUE_BYTES_MAX: usize = 4096;

/// Longest text of facts: names, versions, events, units, causes. Unit: bytes; longer ones are cut.
pub const FACT_BYTES_MAX: usize = profile::fleet::HOST_NAME_BYTES_MAX;

/// Most degradations of an agent that are kept, the most severe first. Agents have some fifty
/// kinds, of which few hold at a time.
pub const DEGRADATIONS_MAX: usize = 32;

/// Longest message or remedy of a degradation. Unit: bytes; longer ones are cut. Agents write one
/// or two sentences. With [`DEGRADATIONS_MAX`] a host takes 40 KiB at most, and some hundred bytes
/// when it is well.
pub const DEGRADATION_BYTES_MAX: usize = 512;

/// Most bytes that all hosts together may take for what agents say of their own work. Unit: bytes.
/// A host that is well takes a few, one in trouble some hundred; with less, a fleet in trouble
/// loses its reasons earlier, and keeps that it is blind or stops.
pub const HEALTH_BYTES_MAX: usize = 64 << 20;

/// Most labels from an agent's configuration.
pub const HOST_LABELS_MAX: usize = 16;

/// Largest answer to one `Need`. Unit: encoded bytes over all its messages.
///
/// The stacks of a window at its bounds, deep and with long names, are some tens of MiB. With
/// more the window is refused.
pub const DEFINITIONS_BYTES_MAX: usize = 64 << 20;

/// Times that stacks are asked for before a window is stored. A window needs one; a second when the
/// store started another partition meanwhile.
pub const NEEDS_PER_WINDOW_MAX: u32 = 4;

/// Most CPUs that a host may say were busy all the time of a window. Twice what any kernel
/// supports.
pub const CPUS_MAX: u128 = 16_384;

/// Time to say who one is.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(15);

/// Time from the first part of a window to its last.
pub const PARTS_TIMEOUT: Duration = Duration::from_secs(60);

/// Time to answer a `Need`.
pub const NEED_TIMEOUT: Duration = Duration::from_secs(60);

/// Time an agent may leave an answer unread.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time a stream waits for memory that others hold.
pub const MEMORY_TIMEOUT: Duration = Duration::from_secs(20);

/// Windows that wait for the store, over all streams. At the bound streams are not read.
pub const QUEUE_WINDOWS_MAX: usize = 256;

/// Rows from which on no more windows are added to a call of the store. How many windows, and for
/// how long they are waited for, is the store's to say: [`BatchPolicy`](crate::store::BatchPolicy).
pub const BATCH_ROWS_MAX: usize = 1_000_000;

/// Least time between two times that an unchanged host is remembered again.
pub const HOST_INTERVAL: Duration = Duration::from_secs(60);

/// Most hosts remembered with one write, about 1 KiB each.
pub const HOSTS_TOGETHER: usize = 1024;

/// Most hosts that are known by name and state. Unit: (host id, boot id) pairs, about 1 KiB each;
/// health is bounded by [`HEALTH_BYTES_MAX`].
pub const HOSTS_MAX: usize = 65_536;

/// Difference of clocks that is worth a warning. Unit: nanoseconds. Agents below it keep time
/// badly, but their windows still fall where they belong, within one window.
pub const CLOCK_WARNING_NS: i64 = 5_000_000_000;

/// A host that was not heard of for so long is silent. Unit: nanoseconds. Agents send a window at
/// least once a minute, and another collector's hosts are noted once in [`HOST_INTERVAL`], so three
/// minutes are no hiccup.
pub const SILENT_FOR_NS: i64 = 180_000_000_000;

/// After so long a silent host is gone, and no longer worth a warning. Unit: nanoseconds.
pub const SILENT_MAX_NS: i64 = 86_400_000_000_000;

/// An agent that announced its stop and has been silent for this long should be back. Unit:
/// nanoseconds. A restart, an upgrade or a reboot takes minutes; with less they are reported as
/// trouble, with more a new version that does not start on any host looks healthy for longer.
pub const STOPPED_MAX_NS: i64 = 900_000_000_000;

/// How often hosts are looked at for trouble. Blindness is known by the agent within seconds.
pub const SURVEY_INTERVAL: Duration = Duration::from_secs(4);

/// How often a store that other collectors use is asked what they know of their hosts.
pub const OTHERS_INTERVAL: Duration = Duration::from_secs(15);

/// Most blind hosts listed one by one in the status and in the log; beyond it only their number is
/// given.
pub const BLIND_HOSTS_MAX: usize = 20;

/// How long a warning about an id in double use stays after it was last seen.
pub const TWINS_FOR: Duration = Duration::from_secs(3600);

/// For how long an agent is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// See [`HELLO_TIMEOUT`].
    pub hello: Duration,
    /// See [`PARTS_TIMEOUT`].
    pub parts: Duration,
    /// See [`NEED_TIMEOUT`].
    pub need: Duration,
    /// See [`STALL_TIMEOUT`].
    pub stall: Duration,
    /// See [`MEMORY_TIMEOUT`].
    pub memory: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            hello: HELLO_TIMEOUT,
            parts: PARTS_TIMEOUT,
            need: NEED_TIMEOUT,
            stall: STALL_TIMEOUT,
            memory: MEMORY_TIMEOUT,
        }
    }
}

/// Most programs that are taken from a host at a time. Agents report as many.
pub const PROGRAMS_MAX: usize = 128;

/// Labels of a program: those that name its service.
pub const PROGRAM_LABELS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::dictionary_stacks;

    #[test]
    fn streams_share_what_may_be_remembered_of_their_stacks() {
        assert_eq!([1, 100].map(dictionary_stacks), [1 << 17; 2]);
        assert_eq!(dictionary_stacks(200), 67_108);
        assert_eq!([1000, u64::MAX].map(dictionary_stacks), [1 << 15; 2]);
    }
}
