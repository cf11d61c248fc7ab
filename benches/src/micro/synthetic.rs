//! A synthetic load of realistic shape: a few hundred programs' worth of functions, stacks that
//! share their roots, and samples of which a few stacks make the most.

/// Functions in all.
const FUNCTIONS: u64 = 6_000;
/// Distinct stacks.
const STACKS: usize = 4_000;
/// Frames of a stack, least and most.
const DEPTHS: std::ops::Range<u64> = 6..42;

/// Random numbers that are the same in every run.
pub struct Random(u64);

impl Random {
    /// From a seed other than zero.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }

    /// Below `limit`, small numbers more often: the squared share of a uniform one.
    pub fn skewed(&mut self, limit: u64) -> u64 {
        let (x, limit) = (self.below(1 << 20), limit.max(1));
        (((x * x) >> 20) * limit) >> 20
    }
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Which stack.
    pub stack: usize,
    /// Which process, from 1.
    pub pid: u32,
    /// Which cgroup.
    pub cgroup: u64,
}

/// The load.
pub struct Synthetic {
    /// Stacks of function numbers, leaf first.
    pub stacks: Vec<Vec<u64>>,
    /// Samples in order of time.
    pub samples: Vec<Sample>,
    /// Processes.
    pub processes: u32,
}

impl Synthetic {
    /// Makes one with so many samples.
    pub fn new(samples: usize) -> Synthetic {
        let mut random = Random::new(0x2545_f491_4f6c_dd1d);
        let mut stacks: Vec<Vec<u64>> = Vec::with_capacity(STACKS);
        for _ in 0..STACKS {
            let depth = DEPTHS.start + random.below(DEPTHS.end - DEPTHS.start);
            // Root first; it starts as an earlier stack does.
            let mut frames = Vec::new();
            if !stacks.is_empty() {
                let earlier = &stacks[random.below(stacks.len() as u64) as usize];
                let shared = random.below(depth) as usize;
                frames.extend(earlier.iter().rev().take(shared));
            }
            while (frames.len() as u64) < depth {
                frames.push(random.below(FUNCTIONS));
            }
            frames.reverse();
            stacks.push(frames);
        }
        let processes = 60;
        let sample = |_| {
            let pid = 1 + random.skewed(processes.into()) as u32;
            Sample {
                stack: random.skewed(STACKS as u64) as usize,
                pid,
                cgroup: u64::from(1 + pid % 24),
            }
        };
        let samples = (0..samples).map(sample).collect();
        Synthetic {
            stacks,
            samples,
            processes,
        }
    }

    /// A name like those of C++ and Rust programs.
    pub fn name(function: u64) -> String {
        const WORDS: [&str; 8] = [
            "request", "parse", "buffer", "flush", "poll", "insert", "visit", "decode",
        ];
        let word = |shift: u32| WORDS[(function >> shift) as usize % WORDS.len()];
        format!("{}::{}<T>::{}_{function}", word(0), word(3), word(6))
    }

    /// The text that `perf script` would print for the samples.
    pub fn perf_script(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, sample) in self.samples.iter().enumerate() {
            let pid = sample.pid;
            let _ = writeln!(
                text,
                "worker {pid}/{pid} [000] {}.{:09}: cpu-clock:",
                100 + number / 1000,
                number % 1000
            );
            for &function in &self.stacks[sample.stack] {
                let address = 0x40_0000 + function * 64;
                let _ = writeln!(
                    text,
                    "\t{address:>16x} {} (/usr/bin/worker)",
                    Self::name(function)
                );
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_every_time_and_skewed() {
        let (one, two) = (Synthetic::new(5_000), Synthetic::new(5_000));
        assert_eq!(one.stacks, two.stacks);
        let first_tenth = one.samples.iter().filter(|s| s.stack < STACKS / 10).count();
        assert!(first_tenth > 1_000, "{first_tenth} of 5,000");
        assert!(
            one.samples
                .iter()
                .all(|s| s.stack < STACKS && s.pid <= one.processes)
        );
    }
}
