//! Tracks which CPUs are online, which are sampled, and how long each was away.
//!
//! The event of a CPU that goes offline is lost for good. The main thread is notified by the kernel
//! where it may listen, reads the list of CPUs as well, and watches for silence: an event that
//! always ticks and has not for a while is dead. This is bookkeeping only; `agent` acts on it.

use crate::ids::CpuId;
use crate::time::MonotonicTime;
use std::collections::BTreeMap;
use std::time::Duration;

/// A clock event that has not ticked for this long is dead. At 1 Hz, the lowest rate, a tick comes
/// every second.
pub const SILENT: Duration = Duration::from_secs(5);

/// A notification of the kernel about a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuNotice {
    /// The CPU.
    pub cpu: CpuId,
    /// It came, or went.
    pub online: bool,
}

impl CpuNotice {
    /// Reads `offline@/devices/system/cpu/cpu1`, the first line of an event of the kernel's
    /// objects.
    pub fn parse(event: &[u8]) -> Option<CpuNotice> {
        let line = event.split(|&byte| byte == 0).next()?;
        let (action, path) = std::str::from_utf8(line).ok()?.split_once('@')?;
        let online = match action {
            "online" => true,
            "offline" => false,
            _ => return None,
        };
        let number = path.strip_prefix("/devices/system/cpu/cpu")?;
        let cpu = CpuId(number.parse().ok()?);
        Some(CpuNotice { cpu, online })
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its ring is dead.
    Left(CpuId),
    /// It wants a ring.
    Came {
        /// The CPU.
        cpu: CpuId,
        /// Since when it may have run unsampled.
        since: MonotonicTime,
        /// Since when it had been offline; as `since` where it was not.
        left: MonotonicTime,
    },
}

/// State of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// It runs.
    pub online: bool,
    /// It has a ring.
    pub sampled: bool,
    /// When it went offline, or got its ring, or started to run without one.
    since: MonotonicTime,
    /// When it went offline before that; when it has no ring.
    left: MonotonicTime,
    away: Duration,
}

impl Presence {
    /// Time it was offline since the daemon started.
    pub fn away(&self, now: MonotonicTime) -> Duration {
        let current = if self.online {
            Duration::ZERO
        } else {
            now.since(self.since)
        };
        self.away + current
    }
}

/// See the module.
pub struct CpuWatch {
    known: BTreeMap<CpuId, Presence>,
    looked: MonotonicTime,
    /// Time each CPU was busy at the last look, in ticks of the kernel's accounting.
    busy: BTreeMap<CpuId, u64>,
}

/// Ticks of busy time, hundredths of a second, that an event may sleep through between two looks: a
/// clock does not tick on idle CPUs everywhere, so silence is a sign of death on busy ones only.
const BUSY_TICKS: u64 = 20;

/// Ticks of the kernel's accounting (`USER_HZ`, proc_stat(5)).
const TICKS_PER_SECOND: u64 = 100;

/// Busy time of each CPU from `/proc/stat`: user, nice, system, irq, softirq. Lines of no CPU are
/// skipped.
pub fn busy_ticks(stat: &str) -> BTreeMap<CpuId, u64> {
    let lines = stat.lines().filter_map(|line| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = CpuId(words.next()?.parse().ok()?);
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at)).sum();
        Some((cpu, busy))
    });
    lines.collect()
}

/// Samples that busy CPUs must have been worth since the newest one before its age means that none
/// arrive: chance leaves out as many once in 10⁸ times.
const SAMPLES_MISSING: u64 = 20;

/// Distinguishes an event that has died from a CPU that had nothing to do, on which it need not
/// tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    newest: MonotonicTime,
    /// Busy ticks of all CPUs when that sample was first known.
    busy: u64,
}

impl Arrivals {
    /// Whether samples arrive still, or would: `newest` is the time of the newest one, `busy` the
    /// busy ticks of all CPUs, `None` when they are not known. Called from time to time, and when
    /// somebody asks; work before the first call after a sample does not count.
    pub fn still(&mut self, newest: MonotonicTime, busy: Option<u64>, rate_hz: u32) -> bool {
        let Some(busy) = busy else {
            return false;
        };
        if self.newest != newest || self.busy == 0 {
            *self = Arrivals { newest, busy };
        }
        let ticks = busy.saturating_sub(self.busy);
        ticks.saturating_mul(rate_hz.into()) / TICKS_PER_SECOND < SAMPLES_MISSING
    }
}

impl CpuWatch {
    /// The CPUs that have been busy since the last call.
    pub fn were_busy(&mut self, busy: BTreeMap<CpuId, u64>) -> Vec<CpuId> {
        let before = std::mem::replace(&mut self.busy, busy);
        let grown = |(cpu, now): (&CpuId, &u64)| {
            let before = before.get(cpu)?;
            (now.saturating_sub(*before) > BUSY_TICKS).then_some(*cpu)
        };
        self.busy.iter().filter_map(grown).collect()
    }

    /// All of `sampled` are online and have rings.
    pub fn new(now: MonotonicTime, sampled: impl IntoIterator<Item = CpuId>) -> CpuWatch {
        let present = Presence {
            online: true,
            sampled: true,
            since: now,
            left: now,
            away: Duration::ZERO,
        };
        CpuWatch {
            known: sampled.into_iter().map(|cpu| (cpu, present)).collect(),
            looked: now,
            busy: BTreeMap::new(),
        }
    }

    /// Every CPU that was ever there.
    pub fn known(&self) -> impl Iterator<Item = (CpuId, Presence)> + '_ {
        self.known.iter().map(|(&cpu, &presence)| (cpu, presence))
    }

    /// Returns what has changed: from the current list of CPUs, from the kernel's notifications
    /// since the last look, and from CPUs with a silent event, with the time of their last sample.
    pub fn look(
        &mut self,
        now: MonotonicTime,
        online: &[CpuId],
        notices: &[CpuNotice],
        silent: &[(CpuId, MonotonicTime)],
    ) -> Vec<Change> {
        let looked = std::mem::replace(&mut self.looked, now);
        for &cpu in online {
            // New to us: it was offline when the daemon started, and then is no time away.
            self.known.entry(cpu).or_insert(Presence {
                online: false,
                sampled: false,
                since: now,
                left: now,
                away: Duration::ZERO,
            });
        }
        let mut changes = Vec::new();
        for (&cpu, presence) in &mut self.known {
            let said = |up: bool| notices.iter().any(|n| n.cpu == cpu && n.online == up);
            let runs = online.contains(&cpu);
            if presence.online && (!runs || said(false)) {
                presence.online = false;
                presence.sampled = false;
                presence.since = now;
                changes.push(Change::Left(cpu));
            }
            if !presence.online && runs {
                // The kernel speaks as it happens; without it only the last look is known.
                let came = if said(true) { now } else { looked };
                let came = came.max(presence.since);
                presence.away += came.since(presence.since);
                presence.online = true;
                presence.left = presence.since;
                presence.since = came;
            }
            let dead = silent.iter().find(|(silent, _)| *silent == cpu);
            if let Some(&(_, last)) = dead
                && presence.sampled
                && now.since(presence.since) > SILENT
            {
                presence.sampled = false;
                presence.since = last;
                presence.left = last;
            }
            if presence.online && !presence.sampled {
                let Presence { since, left, .. } = *presence;
                changes.push(Change::Came { cpu, since, left });
            }
        }
        changes
    }

    /// The CPU has a ring.
    pub fn sampled(&mut self, cpu: CpuId, now: MonotonicTime) {
        if let Some(presence) = self.known.get_mut(&cpu) {
            presence.sampled = true;
            presence.since = now;
        }
    }

    /// CPUs that run, and those of them with a ring.
    pub fn numbers(&self) -> (usize, usize) {
        let online = self.known.values().filter(|presence| presence.online);
        let sampled = online.clone().filter(|presence| presence.sampled);
        (online.count(), sampled.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: [CpuId; 2] = [CpuId(0), CpuId(1)];

    fn s(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    fn said(online: bool) -> CpuNotice {
        CpuNotice {
            cpu: CpuId(1),
            online,
        }
    }

    fn away(watch: &CpuWatch, now: u64) -> u64 {
        let found = watch.known().find(|(cpu, _)| *cpu == CpuId(1));
        found.map_or(0, |(_, presence)| presence.away(s(now)).as_secs())
    }

    fn came(left: u64, since: u64) -> Change {
        Change::Came {
            cpu: CpuId(1),
            since: s(since),
            left: s(left),
        }
    }

    #[test]
    fn a_cpu_is_busy_when_its_time_grows() {
        let stat =
            |busy: u64| busy_ticks(&format!("cpu 9 9\ncpu1 {busy} 0 0 500 0 7 0 0\nintr 5\n"));
        let mut watch = CpuWatch::new(s(0), CPUS);
        assert_eq!(watch.were_busy(stat(100)), []);
        assert_eq!(watch.were_busy(stat(110)), []);
        assert_eq!(watch.were_busy(stat(200)), [CpuId(1)]);
    }

    #[test]
    fn samples_of_idle_cpus_are_not_missed() {
        let mut arrivals = Arrivals::default();
        for ticks in [5_000, 5_002, 5_010, 5_020] {
            assert!(arrivals.still(s(10), Some(ticks), 99));
        }
        // A fifth of a second of work is worth twenty samples at 99 Hz, and none at 1 Hz.
        assert!(!arrivals.still(s(10), Some(5_021), 99));
        assert!(arrivals.still(s(10), Some(5_021), 1));
    }

    #[test]
    fn a_new_sample_starts_again() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.still(s(10), Some(5_000), 99));
        assert!(!arrivals.still(s(10), Some(9_000), 99));
        assert!(arrivals.still(s(11), Some(9_000), 99));
    }

    #[test]
    fn without_the_kernels_accounting_silence_is_taken_for_death() {
        assert!(!Arrivals::default().still(s(10), None, 99));
    }

    #[test]
    fn notices_of_other_things_are_none() {
        let event = b"offline@/devices/system/cpu/cpu17\0ACTION=offline\0";
        let notice = CpuNotice {
            cpu: CpuId(17),
            online: false,
        };
        assert_eq!(CpuNotice::parse(event), Some(notice));
        for event in [
            &b"add@/devices/system/cpu/cpu1\0"[..],
            b"online@/devices/system/memory/memory1\0",
            b"online@/devices/system/cpu/cpu\0",
            b"online@/devices/system/cpu/cpu1/cache\0",
            b"\xff@",
            b"",
        ] {
            assert_eq!(CpuNotice::parse(event), None);
        }
    }

    #[test]
    fn a_cpu_that_goes_and_comes_is_sampled_again_from_when_it_came() {
        let mut watch = CpuWatch::new(s(0), CPUS);
        let left = watch.look(s(10), &CPUS[..1], &[said(false)], &[]);
        assert_eq!(left, [Change::Left(CpuId(1))]);
        assert_eq!((watch.numbers(), away(&watch, 14)), ((1, 1), 4));
        assert_eq!(watch.look(s(15), &CPUS, &[said(true)], &[]), [came(10, 15)]);
        assert_eq!(watch.numbers(), (2, 1));
        watch.sampled(CpuId(1), s(15));
        assert_eq!((watch.numbers(), away(&watch, 99)), ((2, 2), 5));
        assert_eq!(watch.look(s(16), &CPUS, &[], &[]), []);
    }

    #[test]
    fn without_a_word_of_the_kernel_the_last_look_tells_since_when_it_may_have_run() {
        let mut watch = CpuWatch::new(s(0), CPUS);
        watch.look(s(10), &CPUS[..1], &[], &[]);
        watch.look(s(12), &CPUS[..1], &[], &[]);
        assert_eq!(watch.look(s(14), &CPUS, &[], &[]), [came(10, 12)]);
        assert_eq!(away(&watch, 99), 2);
    }

    #[test]
    fn a_cpu_that_was_away_between_two_looks_needs_a_new_ring() {
        let mut watch = CpuWatch::new(s(0), CPUS);
        let changes = watch.look(s(10), &CPUS, &[said(false), said(true)], &[]);
        assert_eq!(changes, [Change::Left(CpuId(1)), came(10, 10)]);
    }

    #[test]
    fn a_silent_event_is_replaced_and_given_time_to_speak() {
        let mut watch = CpuWatch::new(s(0), CPUS);
        let silent = [(CpuId(1), s(10))];
        assert_eq!(watch.look(s(20), &CPUS, &[], &silent), [came(10, 10)]);
        watch.sampled(CpuId(1), s(20));
        assert_eq!(watch.look(s(21), &CPUS, &[], &silent), []);
    }

    #[test]
    fn a_ring_that_could_not_be_opened_is_tried_again() {
        let mut watch = CpuWatch::new(s(0), [CpuId(0)]);
        assert_eq!(watch.look(s(10), &CPUS, &[said(true)], &[]), [came(10, 10)]);
        assert_eq!(watch.look(s(12), &CPUS, &[], &[]), [came(10, 10)]);
        assert_eq!(watch.numbers(), (2, 1));
    }
}
