//! Pages in the middle of stacks that were never touched, and requests to read them.
//!
//! The kernel copies a stack without waiting for pages: at the first missing page the copy ends,
//! with everything further out. Functions with large local arrays leave such pages for as long as
//! their thread lives. Reading one through `/proc/PID/mem` makes it present, as a page of zeros
//! that takes no memory, and the copies of later samples continue past it. `fp-look` does that
//! (`workers/stack_reader.rs`), for the other threads of the process as well. Called by the sampler
//! thread; never blocks.

use super::look::Thread;
use hashbrown::HashMap;
use host::ids::Pid;
use host::time::MonotonicTime;
use std::time::Duration;

/// Address range read at a hole, one byte of each page. Unit: bytes. As large as the largest copy;
/// anything still missing then is the next hole.
pub const HOLE_BYTES: u64 = 64 << 10;

/// Holes remembered, of all threads. Unit: holes, of 24 bytes each. Beyond it all are forgotten,
/// and may be read again.
const KNOWN_MAX: usize = 4096;

/// Shortest time between two readings at one place. Where copies still end there it is no hole.
const AGAIN: Duration = Duration::from_secs(60);

/// Holes asked for in a second. Each costs some hundred microseconds of `fp-look` and of a helper;
/// with the process's other stacks 50 ms at most.
const PER_SECOND: u32 = 32;

/// Where a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The thread that owns the stack.
    pub thread: Thread,
    /// The process's pid.
    pub pid: Pid,
    /// First address that was not copied.
    pub start: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoleCounts {
    /// Holes that were to be read.
    pub asked: u64,
    /// Holes met and not asked for because of a bound.
    pub refused: u64,
}

/// See the file.
#[derive(Debug, Default)]
pub struct Holes {
    /// Whether reads are requested at all.
    pub on: bool,
    known: HashMap<(Thread, u64), MonotonicTime>,
    wanted: Vec<Hole>,
    /// The second of the last hole, and how many it had.
    second: (u64, u32),
    counts: HoleCounts,
}

impl Holes {
    /// Counters.
    pub fn counts(&self) -> HoleCounts {
        self.counts
    }

    /// Notes that a walk needed what lies behind a hole. True when it is going to be read.
    pub fn met(&mut self, hole: Hole, now: MonotonicTime) -> bool {
        if !self.on {
            return false;
        }
        let key = (hole.thread, hole.start);
        if let Some(&last) = self.known.get(&key)
            && now.since(last) < AGAIN
        {
            return false;
        }
        let second = now.0 / 1_000_000_000;
        let asked = if self.second.0 == second {
            self.second.1
        } else {
            0
        };
        if asked >= PER_SECOND {
            self.counts.refused += 1;
            return false;
        }
        self.second = (second, asked + 1);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(key, now);
        self.wanted.push(hole);
        true
    }

    /// Asks for what was met; `send` returns false when nobody can be asked now.
    pub fn ask(&mut self, mut send: impl FnMut(Hole) -> bool) {
        for hole in self.wanted.drain(..) {
            match send(hole) {
                true => self.counts.asked += 1,
                false => {
                    self.known.remove(&(hole.thread, hole.start));
                    self.counts.refused += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::ids::{ProcessId, Tid};

    fn hole(start: u64) -> Hole {
        Hole {
            thread: (ProcessId(1), Tid(1)),
            pid: Pid(1),
            start,
        }
    }

    fn asked(holes: &mut Holes) -> usize {
        let mut asked = 0;
        holes.ask(|_| {
            asked += 1;
            true
        });
        asked
    }

    fn seconds(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    #[test]
    fn a_hole_is_asked_for_once_a_while() {
        let mut holes = Holes {
            on: true,
            ..Holes::default()
        };
        holes.met(hole(0x1000), seconds(1));
        holes.met(hole(0x1000), seconds(2));
        assert_eq!(asked(&mut holes), 1);
        holes.met(hole(0x1000), seconds(3));
        assert_eq!(asked(&mut holes), 0);
        holes.met(hole(0x1000), seconds(1).plus(AGAIN));
        assert_eq!(asked(&mut holes), 1);
    }

    #[test]
    fn what_found_nobody_to_ask_is_met_again() {
        let mut holes = Holes {
            on: true,
            ..Holes::default()
        };
        holes.met(hole(0x1000), seconds(1));
        holes.ask(|_| false);
        holes.met(hole(0x1000), seconds(2));
        assert_eq!(asked(&mut holes), 1);
        assert_eq!(
            holes.counts(),
            HoleCounts {
                asked: 1,
                refused: 1
            }
        );
    }

    #[test]
    fn what_is_remembered_and_asked_for_is_bounded() {
        let mut holes = Holes {
            on: true,
            ..Holes::default()
        };
        for start in 0..2 * KNOWN_MAX as u64 {
            holes.met(hole(start << 12), seconds(start / 16));
            asked(&mut holes);
        }
        assert!(holes.known.len() <= KNOWN_MAX);
        for start in 0..100 {
            holes.met(hole(start << 32), seconds(1_000_000));
        }
        assert_eq!(asked(&mut holes), PER_SECOND as usize);
        assert!(holes.counts().refused > 0);
    }
}
