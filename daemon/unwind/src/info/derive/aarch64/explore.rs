//! Follows the paths through arm64 code and notes the frame at each instruction.
//!
//! The code after a call is followed separately: if the call does not return, something else is
//! there, which mostly contradicts the frame, and then only that part is dropped.

use super::frame::Frame;
use crate::arch::a64::{Flow, Word};
use crate::info::derive::runs::{Derived, Run};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Length of an instruction. Unit: bytes.
pub const WORD_BYTES: u32 = 4;

/// Most distinct frames of one piece of code; what comes beyond them stays unknown.
const FRAMES_MAX: usize = 8 << 10;

/// Longest function that is followed. Unit: instructions. Larger ones stay unknown.
const FUNCTION_MAX: usize = 64 << 10;

/// Longest code that is followed from a guess. Unit: instructions.
const GUESSED_MAX: usize = 4096;

/// Most computed jumps that are remembered.
const SWITCHES_MAX: usize = 32 << 10;

/// Frames of computed jumps that are tried for code behind them.
const SWITCHES_TRIED: usize = 3;

/// Most instructions looked at for each of the code: each once for what is called, once for its
/// frame and a few times for guesses. Code that takes more is made to take long.
const WORK_PER_WORD: usize = 16;

/// Instructions between two looks at the budget.
const AT_ONCE: usize = 4096;

/// Room in the table of what is followed that is kept for the next function. Unit: instructions.
const LOCAL_KEPT: usize = 8 << 10;

/// Nothing is known of a place; above it the number of the frame there.
const NOTHING: u16 = 0;

/// Code as complete instructions at an address.
pub struct Code<'a, 'c> {
    words: &'a [[u8; WORD_BYTES as usize]],
    address: u64,
    work_left: usize,
    check: &'c mut dyn FnMut() -> bool,
}

impl<'a, 'c> Code<'a, 'c> {
    /// `check` says now and then whether to go on. `None` for an address where no instruction is.
    pub fn new(
        bytes: &'a [u8],
        address: u64,
        check: &'c mut dyn FnMut() -> bool,
    ) -> Option<Code<'a, 'c>> {
        let (words, _) = bytes.as_chunks();
        address.is_multiple_of(WORD_BYTES.into()).then_some(Code {
            words,
            address,
            work_left: words.len().saturating_mul(WORK_PER_WORD),
            check,
        })
    }

    fn len(&self) -> u32 {
        self.words.len() as u32
    }

    /// The instruction at a place.
    pub fn word(&self, at: u32) -> Option<Word> {
        let word = self.words.get(at as usize)?;
        Some(Word(u32::from_le_bytes(*word)))
    }

    /// The same, as work: `None` also when that is too much.
    fn read(&mut self, at: u32) -> Option<Word> {
        self.work_left = self.work_left.checked_sub(1)?;
        if self.work_left.is_multiple_of(AT_ONCE) && !(self.check)() {
            self.work_left = 0;
            return None;
        }
        self.word(at)
    }

    fn is_tedious(&self) -> bool {
        self.work_left == 0
    }

    /// The place of an address.
    pub fn place(&self, address: u64) -> Option<u32> {
        let at = address.checked_sub(self.address)?;
        let at = at.is_multiple_of(WORD_BYTES.into()).then_some(at / 4)?;
        (at < self.words.len() as u64).then_some(at as u32)
    }

    /// The place that is so many instructions away.
    fn at_distance(&self, at: u32, distance: i32) -> Option<u32> {
        let at = at.checked_add_signed(distance)?;
        (at < self.len()).then_some(at)
    }

    /// End of the padding that starts at a place.
    pub fn padding_end(&self, at: u32) -> u32 {
        let rest = &self.words[at as usize..];
        let fills = |word: &&[u8; 4]| Word(u32::from_le_bytes(**word)).fills();
        at + rest.iter().take_while(fills).count() as u32
    }

    /// Addresses that two instructions in a row take, and their places: `adrp; add`.
    pub fn addresses(&self) -> impl Iterator<Item = (u32, u8, u64)> {
        let pairs = self.words.windows(2).enumerate();
        pairs.filter_map(|(at, pair)| {
            let [page, low] = [pair[0], pair[1]].map(u32::from_le_bytes);
            let register = page & 31;
            let names_page = page & 0x9f00_0000 == 0x9000_0000;
            let adds = low & 0xffc0_0000 == 0x9100_0000;
            if !names_page || !adds || low >> 5 & 31 != register || low & 31 != register {
                return None;
            }
            let pages = (page >> 5 & 0x7_ffff) << 2 | page >> 29 & 3;
            let pages = i64::from((pages << 11) as i32 >> 11);
            let own = self.address.wrapping_add(at as u64 * 4) & !0xfff;
            let address = own.wrapping_add_signed(pages << 12);
            let address = address.wrapping_add(u64::from(low >> 10 & 0xfff));
            Some((at as u32, register as u8, address))
        })
    }
}

/// How it is known that code starts somewhere with a certain frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It is called, or entered otherwise.
    Called,
    /// It lies where a function may start, or go on.
    Guessed,
}

/// A way through code that is still to be followed.
#[derive(Clone, Copy)]
struct Way {
    at: u32,
    /// Number of the frame.
    frame: u16,
}

/// Result of following all paths from one place.
#[derive(Clone, Copy, Default)]
struct Outcome {
    confirmed: bool,
    contradicted: bool,
}

impl Outcome {
    /// A way ends where everything has to be as the caller left it.
    fn leaves(&mut self, frame: &Frame) {
        // Where nobody called nothing is to be left.
        if !frame.outermost {
            match frame.is_left() {
                true => self.confirmed = true,
                false => self.contradicted = true,
            }
        }
    }
}

/// Data while following paths from one place.
#[derive(Default)]
struct Local {
    /// Number of the frame of each instruction.
    frames: HashMap<u32, u16>,
    /// Its keys in order of first use.
    order: Vec<u32>,
    /// Ways that are left.
    ways: Vec<Way>,
    /// Ways that start behind calls.
    behind: Vec<Way>,
    /// Jumps to a computed address.
    switches: Vec<Way>,
}

struct Explorer<'a, 'c> {
    code: Code<'a, 'c>,
    /// By place: [`NOTHING`], or the number of a frame.
    known: Vec<u16>,
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u16>,
    /// Where functions start, in order.
    entries: Vec<u32>,
    /// Functions that were guessed.
    guessed: Vec<u32>,
    local: Local,
    /// Jumps to a computed address, and the number of their frame.
    switches: BTreeMap<u32, u16>,
}

/// The frames of `code`, which the kernel enters at `entry`, if that is in it. `entries`: where
/// functions are known to start, next to those that are called.
pub fn derive(code: Code<'_, '_>, entry: Option<u32>, entries: &[u32]) -> Derived<Frame> {
    let len = code.len();
    let mut entries = entries.to_vec();
    entries.extend(entry);
    for at in 0..len {
        if let Some(Flow::Call(Some(distance))) = code.word(at).map(Word::flow) {
            entries.extend(code.at_distance(at, distance));
        }
    }
    entries.sort_unstable();
    entries.dedup();
    let mut explorer = Explorer {
        known: vec![NOTHING; len as usize],
        code,
        frames: Vec::new(),
        numbers: HashMap::new(),
        entries,
        guessed: Vec::new(),
        local: Local::default(),
        switches: BTreeMap::new(),
    };
    explorer.follow_entries(entry);
    explorer.guess();
    explorer.finish()
}

impl Explorer<'_, '_> {
    fn is_entry(&self, at: u32) -> bool {
        self.entries.binary_search(&at).is_ok()
    }

    fn is_unknown(&self, at: u32) -> bool {
        self.known.get(at as usize) == Some(&NOTHING)
    }

    /// The number of a frame, from 1 on.
    fn number(&mut self, frame: Frame) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&frame) {
            return Some(number);
        }
        if self.frames.len() >= FRAMES_MAX {
            return None;
        }
        self.frames.push(frame);
        let number = self.frames.len() as u16;
        self.numbers.insert(frame, number);
        Some(number)
    }

    fn frame(&self, number: u16) -> Frame {
        self.frames[usize::from(number) - 1]
    }

    fn follow_entries(&mut self, entry: Option<u32>) {
        // Nobody calls what the kernel enters.
        if let Some(entry) = entry
            && !self.follow(entry, Frame::ENTRY, Found::Called).contradicted
        {
            self.keep();
        }
        for at in 0..self.entries.len() {
            let entry = self.entries[at];
            if self.is_unknown(entry)
                && !self
                    .follow(entry, Frame::ENTERED, Found::Called)
                    .contradicted
            {
                self.keep();
            }
        }
    }

    /// Keeps what was followed last.
    fn keep(&mut self) {
        for (&at, &number) in &self.local.frames {
            self.known[at as usize] = number;
        }
        for Way { at, frame } in self.local.switches.drain(..) {
            if self.switches.len() < SWITCHES_MAX {
                self.switches.insert(at, frame);
            }
        }
    }

    /// Guesses at what nothing known leads to.
    fn guess(&mut self) {
        let addresses = self.code.addresses();
        let mut taken: Vec<u32> = addresses
            .filter_map(|(_, _, address)| self.code.place(address))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        while at < self.code.len() && !self.code.is_tedious() {
            if !self.is_unknown(at) {
                at += 1;
                continue;
            }
            let end = self.code.padding_end(at);
            if end > at {
                at = end;
            } else if !self.guess_at(at, taken.binary_search(&at).is_ok()) {
                at = self.next_break(at);
            }
        }
    }

    /// Where code that cannot be followed ends: what comes next in it fails as it did.
    fn next_break(&mut self, mut at: u32) -> u32 {
        while self.is_unknown(at) {
            let word = self.code.read(at);
            at += 1;
            match word.map(Word::flow) {
                Some(Flow::Next | Flow::Call(_) | Flow::Branch(_)) => {}
                _ => break,
            }
        }
        at
    }

    /// Tries frames that code may start with; true when one is confirmed. `taken`: other code has
    /// the address.
    fn guess_at(&mut self, at: u32, taken: bool) -> bool {
        let switches = self.switches.range(..at).rev().take(SWITCHES_TRIED);
        let mut guesses = vec![Frame::ENTERED];
        for frame in switches.map(|(_, &number)| self.frame(number)) {
            if !guesses.contains(&frame) {
                guesses.push(frame);
            }
        }
        for frame in guesses {
            let outcome = self.follow(at, frame, Found::Guessed);
            // Functions that never return, or go on somewhere computed, are confirmed by nothing.
            let passed = frame == Frame::ENTERED && taken;
            if !outcome.contradicted && (outcome.confirmed || passed) {
                if frame == Frame::ENTERED {
                    self.guessed.push(at);
                }
                self.keep();
                return true;
            }
        }
        false
    }

    /// Follows all ways from a place on.
    fn follow(&mut self, start: u32, frame: Frame, found: Found) -> Outcome {
        let Local {
            frames,
            order,
            ways,
            behind,
            switches,
        } = &mut self.local;
        // Clearing a large table takes as long as it is large.
        match frames.capacity() > LOCAL_KEPT {
            true => *frames = HashMap::new(),
            false => frames.clear(),
        }
        order.clear();
        ways.clear();
        behind.clear();
        switches.clear();
        let most = match found {
            Found::Called => FUNCTION_MAX,
            Found::Guessed => GUESSED_MAX,
        };
        let Some(frame) = self.number(frame) else {
            return Outcome {
                contradicted: true,
                confirmed: false,
            };
        };
        let first = Way { at: start, frame };
        let mut outcome = self.follow_part(first, (start, most));
        if outcome.contradicted {
            return outcome;
        }
        while let Some(way) = self.local.behind.pop() {
            let local = &self.local;
            let kept = [local.order.len(), local.behind.len(), local.switches.len()];
            let part = self.follow_part(way, (start, most));
            match part.contradicted {
                false => outcome.confirmed |= part.confirmed,
                true => self.local.forget(kept),
            }
        }
        outcome
    }

    /// Follows all ways from a place on, up to behind calls.
    fn follow_part(&mut self, first: Way, whole: (u32, usize)) -> Outcome {
        let mut outcome = Outcome::default();
        self.local.ways.clear();
        self.local.ways.push(first);
        while let Some(way) = self.local.ways.pop() {
            self.follow_way(way, whole, &mut outcome);
            if outcome.contradicted {
                break;
            }
        }
        outcome
    }

    fn follow_way(&mut self, way: Way, (start, most): (u32, usize), outcome: &mut Outcome) {
        let mut frame = self.frame(way.frame);
        let mut at = way.at;
        loop {
            match self.meet(at, &frame, start) {
                Meeting::Nothing => {}
                Meeting::Agrees(confirms) => {
                    outcome.confirmed |= confirms;
                    return;
                }
                Meeting::Contradicts => {
                    outcome.contradicted = true;
                    return;
                }
            }
            let (word, number) = (self.code.read(at), self.number(frame));
            let (Some(word), Some(number)) = (word, number) else {
                outcome.contradicted = true;
                return;
            };
            if self.local.order.len() >= most || frame.is_left_for(word) {
                outcome.contradicted = true;
                return;
            }
            self.local.frames.insert(at, number);
            self.local.order.push(at);
            let here = frame;
            frame.step(word);
            if !frame.is_followed() || frame.sp.is_some_and(|sp| sp < 0) {
                outcome.contradicted = true;
                return;
            }
            match word.flow() {
                Flow::Next => {}
                Flow::Call(_) => {
                    if let Some(frame) = self.number(frame) {
                        self.local.behind.push(Way { at: at + 1, frame });
                    }
                    return;
                }
                Flow::Jump(distance) => {
                    let target = self.code.at_distance(at, distance);
                    match target.filter(|&target| !self.is_entry(target)) {
                        Some(target) => self.push(target, frame),
                        // It goes on as another function.
                        None => outcome.leaves(&here),
                    }
                    return;
                }
                Flow::Branch(distance) => {
                    let target = self.code.at_distance(at, distance);
                    match target.filter(|&target| !self.is_entry(target)) {
                        Some(target) => self.push(target, frame),
                        // Parts that are hardly run lie elsewhere.
                        None if target.is_none() => {}
                        None => outcome.leaves(&here),
                    }
                    if outcome.contradicted {
                        return;
                    }
                }
                Flow::PointerJump => {
                    // One as another function may be just that.
                    if !here.is_left() {
                        self.local.switches.push(Way { at, frame: number });
                    }
                    return;
                }
                Flow::Return => {
                    outcome.leaves(&here);
                    return;
                }
                Flow::Nowhere => return,
            }
            at += 1;
        }
    }

    fn push(&mut self, at: u32, frame: Frame) {
        if let Some(frame) = self.number(frame) {
            self.local.ways.push(Way { at, frame });
        }
    }

    /// What is known of a place that a path reaches.
    fn meet(&self, at: u32, frame: &Frame, start: u32) -> Meeting {
        if let Some(&number) = self.local.frames.get(&at) {
            return match self.frame(number).holds_for(frame) {
                true => Meeting::Agrees(false),
                false => Meeting::Contradicts,
            };
        }
        match self.known.get(at as usize) {
            // Behind the end of the piece the code goes on.
            None => Meeting::Agrees(false),
            Some(&NOTHING) if at != start && self.is_entry(at) && !frame.is_left() => {
                // What it came from does not return.
                Meeting::Agrees(false)
            }
            Some(&NOTHING) => Meeting::Nothing,
            Some(&number) => match self.frame(number).holds_for(frame) {
                true => Meeting::Agrees(*frame != Frame::ENTERED),
                false if self.is_entry(at) => Meeting::Agrees(false),
                false => Meeting::Contradicts,
            },
        }
    }

    fn finish(self) -> Derived<Frame> {
        let mut starts = self.entries;
        starts.extend(self.guessed);
        starts.sort_unstable();
        let mut runs: Vec<Run> = Vec::new();
        for (at, &number) in (0..).zip(&self.known) {
            let Some(frame) = number.checked_sub(1) else {
                continue;
            };
            let entry = starts.binary_search(&at).is_ok();
            let [start, end] = [at, at + 1].map(|at| at * WORD_BYTES);
            match runs.last_mut() {
                Some(last) if last.end == start && last.frame == frame && !entry => last.end = end,
                _ => runs.push(Run {
                    start,
                    end,
                    frame,
                    entry,
                }),
            }
        }
        Derived {
            runs,
            frames: self.frames,
        }
    }
}

impl Local {
    /// Forgets what came after it had so many instructions, ways behind calls and switches.
    fn forget(&mut self, [order, behind, switches]: [usize; 3]) {
        for at in self.order.drain(order..) {
            self.frames.remove(&at);
        }
        self.behind.truncate(behind);
        self.switches.truncate(switches);
    }
}

/// What a path meets.
enum Meeting {
    /// Nothing is known there.
    Nothing,
    /// It agrees with what is known; true if that confirms a guess.
    Agrees(bool),
    Contradicts,
}
