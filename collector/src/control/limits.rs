//! Limits of control streams, captures over the fleet and their results, and what happens at each.

use std::time::Duration;

/// Largest message of an agent. Unit: bytes, decompressed. Chunks of profiles are 256 KiB and,
/// where a string is long, a little more; a larger message ends the stream with the transport's own
/// error.
pub const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Commands that wait for an agent to read them. At the bound a capture is refused on this host;
/// one that cannot be dropped any more ends the stream, which ends its captures.
pub const COMMANDS_QUEUED: usize = 32;

/// Captures at a time on one host that came from here. More are refused on it.
pub const COMMANDS_PER_HOST_MAX: usize = 8;

/// Reports of one command that wait for its fan-out, which takes them at once. At the bound the
/// agent's stream is not read.
pub const REPORTS_QUEUED: usize = 4;

/// How often collectors with one store announce their connected agents to each other.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);

/// How long that is believed. Unit: nanoseconds: three times as long.
pub const ANNOUNCED_FOR_NS: i64 = 60_000_000_000;

/// Most hosts connected to any collector of the store that are looked at. Beyond it the fan-out
/// goes on with these, and says so.
pub const ELSEWHERE_MAX: usize = 65_536;

/// Largest profile of another collector's hosts, past and capture each. Unit: encoded bytes.
pub const PEER_BYTES_MAX: usize = RESULT_BYTES_MAX;

/// Largest message of another collector. Unit: bytes. Its result reports a thousand hosts, each
/// with up to 9 KiB.
pub const PEER_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Time to reach another collector.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Fan-outs at a time. More are refused, with when to come again.
pub const FANOUTS_MAX: usize = 8;

/// Hosts of a fan-out when the request does not say.
pub const HOSTS_DEFAULT: usize = 50;

/// Most hosts of a fan-out, whatever the request says.
pub const HOSTS_MAX: usize = 1000;

/// Most names of hosts that are taken from the store for one selector. Beyond it the fan-out goes
/// on with these, and says so.
pub const NAMES_MAX: usize = 20_000;

/// Names of hosts in a plan that match and are not connected.
pub const ABSENT_NAMED: usize = 20;

/// How far back a host must have samples of what is selected. Unit: nanoseconds.
pub const SELECT_RANGE_NS: i64 = 600_000_000_000;

/// Longest capture, as of agents. Unit: nanoseconds.
pub const DURATION_NS_MAX: u64 = 3_600_000_000_000;

/// Most of the past that is asked for. Unit: nanoseconds: a day, more than any recorder holds.
pub const BEFORE_NS_MAX: u64 = 86_400_000_000_000;

/// Time a host has beyond the duration when the request does not say.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Most of it.
pub const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// Largest profile of one host, past and capture each. Unit: encoded bytes. An hour at 9,999 Hz
/// with times passes it, with which the host counts as failed.
pub const HOST_BYTES_MAX: usize = 32 << 20;

/// Part of the memory of all results that what one host sends may take, until it is merged. More,
/// and the host has failed: no agent takes the room of all others.
pub const HOST_MEMORY_PART: usize = 4;

/// Memory that a message of an agent other than of a profile may take for each encoded byte: the
/// emptiest string is two bytes there, and 24 here in a list that has doubled.
pub const BYTES_PER_ENCODED: usize = 24;

/// Memory of the time of a sample in a result: 32 bytes in the list, and half of it again while two
/// lists are put in order. Unit: bytes.
pub const TIMESTAMP_BYTES: usize = 48;

/// Times of a result take at most this part of the memory of all results: those of captures one,
/// and those of the time before another. So half of the memory stays for samples.
pub const TIMES_PART: usize = 4;

/// Most times of samples in one result, of captures and of the time before each, however much
/// memory there is. The times of further hosts are left out, and the result says so.
pub const TIMESTAMPS_MAX: usize = 2_000_000;

/// Largest profile of a result, past and capture each. Unit: encoded bytes; as readers take. Beyond
/// it times are left out, and then hosts.
pub const RESULT_BYTES_MAX: usize = proto::convert::PROFILE_BYTES_MAX;

/// How long to wait for an agent that has answered to send its clock once more. If it does not, the
/// last known value is used.
pub const CLOCK_WAIT: Duration = Duration::from_secs(2);

/// How far the times of a host may lie outside of its capture before its clock is taken to be
/// wrong, and they are left out. Unit: nanoseconds.
pub const CLOCK_SLACK_NS: i64 = 60_000_000_000;

/// Longest text of a host that is passed on: a notice, an error. Unit: bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// Most notices of a host that are passed on.
pub const NOTICES_MAX: usize = 16;

/// Longest word of a client on who asks and why. Unit: bytes; as agents take.
pub const WHO_BYTES_MAX: usize = 256;

/// Fan-outs that ended and are still listed.
pub const HISTORY_MAX: usize = 64;

/// Hosts that did not answer, listed with each of them.
pub const HISTORY_HOSTS: usize = 64;

/// Largest answer to List. Unit: encoded bytes; older fan-outs are left out beyond it.
pub const LIST_BYTES_MAX: usize = 3 << 20;

/// Longest head of the file of a kept capture. Unit: bytes. Beyond it what hosts noted is left out.
pub const KEPT_HEAD_BYTES_MAX: usize = 2 << 20;

/// Hosts that did not answer, listed with each kept capture; its file has all.
pub const KEPT_HOSTS_LISTED: usize = 16;

/// Notices listed with each kept capture; its file has all.
pub const KEPT_NOTICES_LISTED: usize = 16;

/// Captures in a list when the request does not say.
pub const LIST_DEFAULT: usize = 1000;

/// Most captures in a list.
pub const LIST_MAX: usize = 10_000;

/// How long a client waits for the disk to store a capture. Then it is informed that the capture
/// may not be stored.
pub const KEEP_PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether captures have reached their age.
pub const PRUNE_INTERVAL: Duration = Duration::from_secs(600);

/// Longest text of a request that is listed. Unit: bytes; longer ones are cut.
pub const LISTED_TEXT_BYTES_MAX: usize = 512;

/// Largest request that is listed with its matchers and filters. Unit: encoded bytes.
pub const LISTED_REQUEST_BYTES_MAX: usize = 16 << 10;

/// Longest silence towards a client; then the state of a host is repeated.
pub const QUIET_MAX: Duration = Duration::from_secs(2);

/// For how long agents are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To say who it is.
    pub hello: Duration,
    /// Between two signs of life asked of an agent; it is cut off after three without one.
    pub ping: Duration,
    /// An agent's report may wait for its fan-out; a fan-out that takes longer is stuck.
    pub report: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            hello: Duration::from_secs(15),
            ping: Duration::from_secs(30),
            report: Duration::from_secs(30),
        }
    }
}
