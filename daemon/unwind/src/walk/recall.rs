//! Remembered walks of waiting threads, used again when the same thread waits at the same place.
//!
//! A thread that waits in a loop has the same stack each time, and there are 100,000 waits a
//! second. The result of a walk depends only on the registers and stack words that it read. So a
//! walk is remembered by these, and if a later copy of the same thread's stack has the same ones,
//! the frames are the same without another walk: this is exact, not an estimate.
//!
//! Most waits have only a small copy. If a walk read words beyond it, those cannot be compared. If
//! all words within the copy are equal (return addresses and saved registers), the outer callers
//! are taken from the remembered walk and the stack ends as [`StackEnd::Alike`], an estimate: a
//! function that is called from two places with equal frames in between looks the same. Large
//! copies of the same waits show how often that is wrong ([`RecallCounts::wrong`]); a place that
//! was wrong once is not estimated again while it is remembered.
//!
//! Memory is bounded by `BYTES_MAX`; the thread that fills it loses its own walks
//! (`Recall::make_room`). A thread's walks are forgotten when it ends, and all walks when no
//! capture records waits any more.
//!
//! Stack bytes may contain secrets, so only the places of words and one keyed hash of all of them
//! are kept. Called by the sampler thread; allocates when a new place is remembered.

use super::StackBuffer;
use crate::arch::RegisterSet;
use crate::info::ALLOCATION_BYTES;
use crate::info::state::{REGISTERS, Registers, StackCopy};
use crate::info::words::Reads;
use crate::process::Process;
use crate::process::space::Mapping;
use hashbrown::{DefaultHashBuilder, HashMap};
use host::frame::RawFrame;
use host::ids::{ProcessId, Tid};
use profile::StackEnd;
use std::hash::{BuildHasher, Hasher};

/// Most memory of what is remembered, tables included. Unit: bytes. A walk of 20 frames takes about
/// 1 KiB. When it is too small walks are forgotten while they matter ([`RecallCounts::forgotten`]);
/// their places come again with the next large copies.
const BYTES_MAX: usize = 16 << 20;

/// Walks remembered of one thread at one place. A function that is called from more places than
/// these with equal frames in between is walked each time.
const VARIANTS_MAX: usize = 8;

/// Counters of recognized waits since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecallCounts {
    /// Walks that were not needed: all they would read is as it was.
    pub exact: u64,
    /// Stacks with estimated outer callers.
    pub alike: u64,
    /// Estimates that a large copy of the same wait checked.
    pub checked: u64,
    /// Checked estimates that were wrong.
    pub wrong: u64,
    /// Walks forgotten because there was no room.
    pub forgotten: u64,
    /// Memory of what is remembered now. Unit: bytes.
    pub bytes: u64,
}

/// A thread of one executable.
type ThreadKey = (ProcessId, Tid);

/// Where a thread waits: its instruction and stack pointers.
type ReturnSite = (u64, u64);

struct Walk {
    registers: RegisterSet,
    /// Words that a small copy has, counted from the stack pointer.
    near: Box<[u16]>,
    /// Hash of these words and the registers.
    hash: u64,
    /// There are no others.
    whole: bool,
    /// Walks with the same words near by went elsewhere.
    refuted: bool,
    /// How often the address space had been replaced when the walk was noted.
    replaced: u32,
    frames: Box<[RawFrame]>,
    files: Box<[Mapping]>,
}

/// The walks of one thread.
#[derive(Default)]
struct Thread {
    places: HashMap<ReturnSite, Vec<Walk>>,
    /// Memory of the walks. Unit: bytes.
    walks: usize,
}

impl Thread {
    /// Memory held apart from itself. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        self.walks + self.places.allocation_size() + ALLOCATION_BYTES
    }
}

/// Memory of the walks of one place. Unit: bytes.
fn bytes_of(walks: &Vec<Walk>) -> usize {
    let of = |walk: &Walk| {
        size_of_val(&*walk.near)
            + size_of_val(&*walk.frames)
            + size_of_val(&*walk.files)
            + 3 * ALLOCATION_BYTES
    };
    walks.capacity() * size_of::<Walk>() + ALLOCATION_BYTES + walks.iter().map(of).sum::<usize>()
}

/// See the module.
#[derive(Default)]
pub struct Recall {
    /// Words read by the current walk.
    pub reads: Reads,
    /// Counters of recognized waits.
    pub counts: RecallCounts,
    threads: HashMap<ThreadKey, Thread>,
    /// Memory of the threads of each process. Unit: bytes.
    processes: HashMap<ProcessId, usize>,
    /// Memory of all processes. Unit: bytes.
    bytes: usize,
    hasher: DefaultHashBuilder,
    /// Words within a small copy, of the walk under way.
    near: Vec<u16>,
}

/// Hash of registers and words; `None` when the copy does not have all of them.
fn hash_of(
    hasher: &DefaultHashBuilder,
    mask: RegisterSet,
    near: &[u16],
    registers: &Registers,
    stack: &StackCopy<'_>,
) -> Option<u64> {
    let mut hash = hasher.build_hasher();
    for number in (0..REGISTERS as u16).filter(|number| mask & 1 << number != 0) {
        hash.write_u64(registers.get(number)?);
    }
    for &at in near {
        let address = registers.sp().wrapping_add(u64::from(at) * 8);
        hash.write_u64(stack.read(address).ok()?);
    }
    Some(hash.finish())
}

impl Recall {
    /// Starts to note what a walk reads.
    pub fn begin(&mut self) {
        self.reads.clear();
    }

    /// Recognizes a stack by the copy of it, and replaces the user frames in `out`, which the
    /// frame-pointer chain gave. Also `None` if the chain shows more than an estimate.
    pub fn find(
        &mut self,
        (process, tid): (&Process, Tid),
        registers: &Registers,
        stack: &StackCopy<'_>,
        out: &mut StackBuffer,
    ) -> Option<StackEnd> {
        let thread = self.threads.get(&(process.id, tid))?;
        let place = (registers.ip(), registers.sp());
        let replaced = process.space().replaced();
        let walk = thread.places.get(&place)?.iter().find(|walk| {
            let same = || hash_of(&self.hasher, walk.registers, &walk.near, registers, stack);
            !walk.refuted && walk.replaced == replaced && same() == Some(walk.hash)
        })?;
        let chain = out.frames.len() - out.user_at;
        if !walk.whole && walk.frames.len() <= chain {
            return None;
        }
        out.frames.truncate(out.user_at);
        out.frames.extend_from_slice(&walk.frames);
        out.files.extend_from_slice(&walk.files);
        let (count, end) = match walk.whole {
            true => (&mut self.counts.exact, StackEnd::Complete),
            false => (&mut self.counts.alike, StackEnd::Alike),
        };
        *count += 1;
        Some(end)
    }

    /// Remembers a walk of a copy that was complete, by what a copy of `near_bytes` has of the
    /// words it read; and sees whether it went as an estimate would have said.
    pub fn remember(
        &mut self,
        (process, tid): (&Process, Tid),
        registers: &Registers,
        stack: &StackCopy<'_>,
        near_bytes: u64,
        walked: &StackBuffer,
    ) {
        let Recall {
            reads,
            counts,
            threads,
            processes,
            bytes,
            hasher,
            near,
        } = self;
        let Some(words) = reads
            .words
            .try_borrow()
            .ok()
            .filter(|_| !reads.spoiled.get())
        else {
            return;
        };
        near.clear();
        for &word in words.iter() {
            let at = word.wrapping_sub(registers.sp());
            // Words of a copy are aligned with each other, not always to eight.
            match u16::try_from(at / 8) {
                Ok(number) if at % 8 == 0 && at.saturating_add(8) <= near_bytes => {
                    near.push(number)
                }
                _ if at.saturating_add(8) <= near_bytes => return,
                _ => {}
            }
        }
        let whole = near.len() == words.len();
        drop(words);
        let mask = reads.registers.get();
        let Some(hash) = hash_of(hasher, mask, near, registers, stack) else {
            return;
        };
        let replaced = process.space().replaced();
        let thread = threads.entry((process.id, tid)).or_default();
        // A thread that is new is not counted yet.
        let before = match thread.places.is_empty() {
            true => 0,
            false => thread.heap_bytes(),
        };
        let place = (registers.ip(), registers.sp());
        let walks = thread.places.entry(place).or_default();
        let mut known = walks.iter_mut().filter(|walk| walk.replaced == replaced);
        let known = known.find(|walk| {
            // What an estimate would have gone by, which need not be what this walk read.
            hash_of(hasher, walk.registers, &walk.near, registers, stack) == Some(walk.hash)
        });
        if let Some(known) = known {
            if !known.whole {
                let wrong = known.frames[..] != walked.frames[..];
                counts.checked += u64::from(!known.refuted);
                counts.wrong += u64::from(wrong && !known.refuted);
                known.refuted |= wrong;
            }
            return;
        }
        let gone = match walks.is_empty() {
            true => 0,
            false => bytes_of(walks),
        };
        walks.retain(|walk| walk.replaced == replaced);
        if walks.len() >= VARIANTS_MAX {
            walks.remove(0);
        }
        // Most places have one.
        walks.reserve_exact(1);
        walks.push(Walk {
            registers: mask,
            near: near[..].into(),
            hash,
            whole,
            refuted: false,
            replaced,
            frames: walked.frames[..].into(),
            files: walked.files[..].into(),
        });
        thread.walks = thread.walks - gone + bytes_of(walks);
        let now = thread.heap_bytes();
        let of_process = processes.entry(process.id).or_default();
        *of_process = *of_process - before + now;
        *bytes = *bytes - before + now;
        self.make_room();
    }

    /// Counters of recognized waits since the start, and of what is remembered now.
    pub fn counts(&self) -> RecallCounts {
        let bytes = self.heap_bytes() as u64;
        RecallCounts {
            bytes,
            ..self.counts
        }
    }

    /// Forgets a thread that ended.
    pub fn forget(&mut self, thread: ThreadKey) {
        if let Some(gone) = self.threads.remove(&thread) {
            self.gave_back(thread.0, gone.heap_bytes());
        }
    }

    /// Forgets all: nobody asks for waits any more.
    pub fn clear(&mut self) {
        if self.heap_bytes() > 0 {
            *self = Recall {
                counts: self.counts,
                ..Recall::default()
            };
        }
    }

    /// Memory held. Unit: bytes.
    fn heap_bytes(&self) -> usize {
        self.bytes + self.threads.allocation_size() + self.processes.allocation_size()
    }

    /// If there is too much, forgets every second place of the process that has most, so that a
    /// process that waits in ever new places takes nothing from others.
    fn make_room(&mut self) {
        while self.heap_bytes() > BYTES_MAX {
            let most = self.processes.iter().max_by_key(|(_, bytes)| **bytes);
            let Some((&process, _)) = most else { break };
            let (mut keeps, mut given_back) = (true, 0);
            let forgotten = &mut self.counts.forgotten;
            self.threads.retain(|key, thread| {
                if key.0 != process {
                    return true;
                }
                let before = thread.heap_bytes();
                thread.places.retain(|_, walks| {
                    keeps = !keeps;
                    if !keeps {
                        *forgotten += walks.len() as u64;
                        thread.walks -= bytes_of(walks);
                    }
                    keeps
                });
                thread.places.shrink_to_fit();
                let is_left = !thread.places.is_empty();
                given_back += before - if is_left { thread.heap_bytes() } else { 0 };
                is_left
            });
            self.gave_back(process, given_back);
            if self.threads.capacity() > 4 * self.threads.len() {
                self.threads.shrink_to_fit();
                self.processes.shrink_to_fit();
            }
        }
    }

    fn gave_back(&mut self, process: ProcessId, bytes: usize) {
        self.bytes -= bytes;
        if let Some(of_process) = self.processes.get_mut(&process) {
            *of_process -= bytes;
            if *of_process == 0 {
                self.processes.remove(&process);
            }
        }
    }
}

#[cfg(test)]
mod tests;
