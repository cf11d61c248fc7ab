//! What operators are told to do about lost records.

/// Remedy if the daemon does not run when it should.
pub(super) const RUN: &str = "make sure that nothing stops the daemon, and give it CPU: systemctl \
    set-property fleetprofd CPUQuota= CPUWeight=1000";
/// Remedy if rings are too small.
pub(super) const RING: &str = "raise sampling.ring_kib and reload: agent-ctl config reload";
/// Remedy for rings that stalled: they were flushed and continue.
pub(super) const STALLED: &str = "nothing if it happened once: the ring was flushed and works \
    again; if the number grows, run systemctl restart fleetprofd and report it as a bug";
/// Nothing is lost for long.
pub(super) const SIDE_BAND: &str = "find the program that forks, maps or renames constantly: agent-ctl top; \
    if that is normal, raise sampling.ring_kib";
/// What fixes throttling.
pub(super) const THROTTLE: &str =
    "sysctl -w kernel.perf_cpu_time_max_percent=25, or lower sampling.rate_hz";
