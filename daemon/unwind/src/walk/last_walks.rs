//! The last walk of each thread, of which the next one takes what did not change.
//!
//! Two samples of a thread mostly share their outer frames. What a walk finds from a frame on
//! outwards is a function of the registers that it goes by there, and of the words of the stack
//! that it reads from there on. So a complete walk is remembered by these, frame by frame. The next
//! walk of the thread first compares the words, from the outermost frame inwards; where it then
//! comes to a frame behind which all of them are as they were, the frames from there on are the
//! same without being walked: that is no estimate. Addresses of words are known beforehand then, so
//! that the CPU fetches many at once from a ring that is in none of its caches. A walk waits for
//! each of them in turn, and for what says where the next one is.
//!
//! Only frames with rules of their file's tables are remembered: what is known of generated code,
//! and what is guessed, changes. Stack bytes hold secrets: of words and registers only places and
//! keyed hashes are kept. Memory is bounded by `THREADS` and `BYTES_MAX`. Called by the sampler
//! thread; allocates nothing once its buffers have grown.

use super::StackBuffer;
use crate::info::state::{KEPT_OVER_CALLS, Registers, StackCopy};
use crate::info::words::Reads;
use crate::process::Process;
use crate::process::space::Mapping;
use hashbrown::DefaultHashBuilder;
use host::frame::RawFrame;
use host::ids::{ProcessId, Tid};
use std::hash::BuildHasher;

/// Threads whose last walk is remembered; two whose hash is the same take turns. Those that have
/// samples several times a second are few.
const THREADS: usize = 1 << 10;

/// Frames remembered of a walk, the outermost.
const FRAMES_MAX: usize = 128;

/// Most memory of all. Unit: bytes. A walk of 25 frames takes about 3 KiB. When it is too small all
/// walks are forgotten ([`LastWalkCounts::emptied`]).
const BYTES_MAX: usize = 4 << 20;

/// What was taken from last walks, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWalkCounts {
    /// Walks that came to where the last one of their thread had been.
    pub joined: u64,
    /// Frames that were not walked for that.
    pub frames: u64,
    /// Times all walks were forgotten, as they took too much memory.
    pub emptied: u64,
}

/// A frame that is remembered.
struct Outer {
    ip: u64,
    sp: u64,
    frame: RawFrame,
    /// Of the registers in `needs`, as they were here.
    registers: u64,
    /// Registers that this frame or one further out goes by. All: no walk is joined here.
    needs: u32,
    /// Which of the mappings of the walk it is in.
    mapping: u32,
}

/// What has to be as it was for a frame and all further out.
struct Check {
    /// Of the words that they read.
    hash: u64,
    /// How many words this frame reads.
    words: u32,
}

/// A walk; the outermost frame comes first.
#[derive(Default)]
struct LastWalk {
    thread: Option<(ProcessId, Tid)>,
    /// Of the address space.
    replaced: u32,
    /// The stack pointer where it ended; words are counted from there.
    top: u64,
    checks: Vec<Check>,
    /// How far below `top` each word lies, in the order of `checks`.
    words: Vec<u32>,
    frames: Vec<Outer>,
    mappings: Vec<Mapping>,
}

impl LastWalk {
    fn clear(&mut self) {
        self.checks.clear();
        self.words.clear();
        self.frames.clear();
        self.mappings.clear();
    }

    /// Keeps the outermost `frames` alone.
    fn truncate(&mut self, frames: usize) {
        let words: usize = self.checks[..frames]
            .iter()
            .map(|it| it.words as usize)
            .sum();
        let last = self.frames[..frames].last();
        let mappings = last.map_or(0, |last| last.mapping as usize + 1);
        self.words.truncate(words);
        self.checks.truncate(frames);
        self.frames.truncate(frames);
        self.mappings.truncate(mappings);
    }

    /// Memory held apart from itself. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        self.checks.capacity() * size_of::<Check>()
            + self.words.capacity() * size_of::<u32>()
            + self.frames.capacity() * size_of::<Outer>()
            + self.mappings.capacity() * size_of::<Mapping>()
    }

    /// How many frames, from the outermost on, have their words as they were.
    fn unchanged(&self, stack: &StackCopy<'_>, key: u64) -> usize {
        let (mut hash, mut words) = (key, self.words.iter());
        for (count, check) in self.checks.iter().enumerate() {
            for &below in words.by_ref().take(check.words as usize) {
                match stack.read(self.top.wrapping_sub(u64::from(below))) {
                    Ok(word) => hash = mix(hash, word, key),
                    Err(_) => return count,
                }
            }
            if hash != check.hash {
                return count;
            }
        }
        self.checks.len()
    }
}

/// A frame of the walk under way.
struct Noted {
    registers: Registers,
    /// It was interrupted, and did not call.
    exact: bool,
    /// Where it is in what is found, and its mapping.
    at: usize,
    mapping: usize,
    /// Registers it went by, and those that its caller has from it.
    used: u32,
    kept: u32,
    /// Where its words start among those noted.
    words: usize,
}

/// See the file.
pub struct LastWalks {
    /// What was done.
    pub counts: LastWalkCounts,
    walks: Box<[LastWalk]>,
    bytes: usize,
    hasher: DefaultHashBuilder,
    key: u64,
    /// The walk under way may be joined and is noted.
    active: bool,
    /// Which of `walks` is of its thread.
    slot: usize,
    /// The innermost frame that it may still come to, plus one; 0: none.
    next: usize,
    /// The frame at which it joined the last one, plus one.
    joined: usize,
    noted: Vec<Noted>,
}

impl Default for LastWalks {
    fn default() -> LastWalks {
        let hasher = DefaultHashBuilder::default();
        LastWalks {
            counts: LastWalkCounts::default(),
            walks: (0..THREADS).map(|_| LastWalk::default()).collect(),
            bytes: 0,
            // Odd, so that no word is lost.
            key: hasher.hash_one(0u8) | 1,
            hasher,
            active: false,
            slot: 0,
            next: 0,
            joined: 0,
            noted: Vec::new(),
        }
    }
}

/// A hash with one word more. Who knows the key could make two stacks of its own look alike.
fn mix(hash: u64, word: u64, key: u64) -> u64 {
    let product = u128::from(hash ^ word).wrapping_mul(u128::from(key));
    (product >> 64) as u64 ^ product as u64
}

/// A hash of registers; `None` where one is not known.
fn hash_of(registers: &Registers, mask: u32, key: u64) -> Option<u64> {
    let mut hash = key;
    for number in (0..32u16).filter(|number| mask & 1 << number != 0) {
        hash = mix(hash, registers.get(number)?, key);
    }
    Some(hash)
}

impl LastWalks {
    /// Starts a walk of a thread: compares what its last one read.
    pub fn start(&mut self, (process, tid): (&Process, Tid), stack: &StackCopy<'_>) {
        let thread = Some((process.id, tid));
        self.slot = self.hasher.hash_one(thread) as usize % THREADS;
        let walk = &mut self.walks[self.slot];
        let replaced = process.space().replaced();
        if walk.thread != thread || walk.replaced != replaced {
            walk.clear();
            (walk.thread, walk.replaced) = (thread, replaced);
        }
        self.next = walk.unchanged(stack, self.key);
        self.joined = 0;
        self.active = true;
        self.noted.clear();
    }

    /// Neither joins nor notes the walk any more. True when it did.
    pub fn pause(&mut self) -> bool {
        std::mem::take(&mut self.active)
    }

    /// Goes on after a pause, if it did before.
    pub fn resume(&mut self, was_active: bool) {
        self.active = was_active;
    }

    /// True while the walk under way is noted.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Adds the frames from here on, if the last walk came by here and they are the same. Gives the
    /// stack pointer where it ended.
    pub fn join(
        &mut self,
        registers: &Registers,
        exact: bool,
        depth_max: usize,
        out: &mut StackBuffer,
    ) -> Option<u64> {
        let walk = &self.walks[self.slot];
        // Callers lie further up.
        while let Some(at) = self.next.checked_sub(1)
            && walk.frames[at].sp < registers.sp()
        {
            self.next = at;
        }
        let at = self.next.checked_sub(1)?;
        let outer = &walk.frames[at];
        if exact
            || (outer.sp, outer.ip) != (registers.sp(), registers.ip())
            || out.frames.len() + self.next > depth_max
            || hash_of(registers, outer.needs, self.key) != Some(outer.registers)
        {
            return None;
        }
        let mut mapping = None;
        for outer in walk.frames[..self.next].iter().rev() {
            if mapping != Some(outer.mapping) {
                mapping = Some(outer.mapping);
                let found = walk.mappings[outer.mapping as usize];
                if out.files.last() != Some(&found) {
                    out.files.push(found);
                }
            }
            out.frames.push(outer.frame);
        }
        self.joined = self.next;
        self.counts.joined += 1;
        self.counts.frames += self.next as u64;
        Some(walk.top)
    }

    /// Notes where a step starts. What is behind the leaf alone can be joined.
    pub fn note_start(
        &mut self,
        registers: &mut Registers,
        exact: bool,
        reads: &Reads,
        out: &StackBuffer,
    ) {
        registers.see_changes();
        self.noted.push(Noted {
            registers: *registers,
            exact,
            at: out.frames.len(),
            mapping: 0,
            used: 0,
            kept: 0,
            words: reads.len(),
        });
        reads.registers.set(0);
    }

    /// Notes that the step came to a caller by a rule of its file, or to the end.
    pub fn note_step(&mut self, caller: Option<&Registers>, reads: &Reads, out: &StackBuffer) {
        let Some(noted) = self.noted.last_mut() else {
            return;
        };
        // The end of a stack by a return address of zero has no frame of its own.
        if out.frames.len() == noted.at {
            self.noted.pop();
            return;
        }
        noted.mapping = out.files.len().saturating_sub(1);
        noted.used = reads.registers.get();
        noted.kept = caller.map_or(0, Registers::unchanged);
    }

    /// Notes that the step came to its caller in another way: nothing up to there is remembered.
    pub fn note_guess(&mut self) {
        self.noted.clear();
    }

    /// Remembers the walk, which is complete and ended at the stack pointer `top`.
    pub fn remember(&mut self, top: u64, stack: &StackCopy<'_>, reads: &Reads, out: &StackBuffer) {
        let (Ok(words), Some(innermost)) = (reads.words.try_borrow(), self.noted.first()) else {
            return;
        };
        let below = |address: u64| u32::try_from(top.wrapping_sub(address)).ok();
        // Where a stack is in two places, as in a signal handler, it is not remembered.
        let mut of_walk = words[innermost.words..].iter();
        if reads.spoiled.get() || !of_walk.all(|&address| below(address).is_some()) {
            return;
        }
        let walk = &mut self.walks[self.slot];
        let before = walk.heap_bytes();
        walk.truncate(self.joined);
        walk.top = top;
        let mut hash = walk.checks.last().map_or(self.key, |check| check.hash);
        let mut needs = walk.frames.last().map_or(0, |outer| outer.needs);
        let mut end = words.len();
        for noted in self.noted.iter().rev() {
            let Some(&mapping) = out.files.get(noted.mapping) else {
                break;
            };
            if walk.frames.len() >= FRAMES_MAX {
                break;
            }
            let of_frame = &words[noted.words..end];
            for &address in of_frame {
                hash = mix(hash, stack.read(address).unwrap_or_default(), self.key);
            }
            walk.words
                .extend(of_frame.iter().filter_map(|&address| below(address)));
            walk.checks.push(Check {
                hash,
                words: of_frame.len() as u32,
            });
            end = noted.words;
            needs = noted.used | needs & noted.kept;
            let is_caller = !noted.exact && needs & !KEPT_OVER_CALLS == 0;
            let registers = hash_of(&noted.registers, needs, self.key).filter(|_| is_caller);
            if walk.mappings.last() != Some(&mapping) {
                walk.mappings.push(mapping);
            }
            walk.frames.push(Outer {
                ip: noted.registers.ip(),
                sp: noted.registers.sp(),
                frame: out.frames[noted.at],
                registers: registers.unwrap_or_default(),
                needs: if registers.is_some() { needs } else { u32::MAX },
                mapping: walk.mappings.len() as u32 - 1,
            });
        }
        self.bytes = self.bytes - before + walk.heap_bytes();
        if self.bytes > BYTES_MAX {
            self.counts.emptied += 1;
            self.bytes = 0;
            self.walks.fill_with(LastWalk::default);
        }
    }
}

#[cfg(test)]
mod tests;
