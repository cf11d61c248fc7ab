//! Follows the paths through code and notes the frame at each instruction.

use super::code::Code;
use super::frame::{Accesses, Frame};
use super::returns::coming_back;
use super::runs::{Derived, Run};
use hashbrown::HashMap;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind};
use std::collections::BTreeMap;

/// Most distinct frames of one piece of code. The C library has 1,200, git 3,700; what comes beyond
/// them stays unknown.
const FRAMES_MAX: usize = 8 << 10;

/// Longest function that is followed. Unit: instructions. Larger ones stay unknown.
const FUNCTION_MAX: usize = 64 << 10;

/// Most places that are remembered because code may go on there, and as many computed jumps.
const PLACES_MAX: usize = 32 << 10;

/// Bytes of code for each run of instructions that is kept, at least. Real code has some fifteen.
const RUN_BYTES_MIN: usize = 6;

/// Runs that are kept of the shortest code.
const RUNS_MIN: usize = 64;

/// Room in the table of what is followed that is kept for the next function. Unit: instructions.
const LOCAL_KEPT: usize = 8 << 10;

/// Frames of computed jumps that are tried for code behind them.
const SWITCHES_TRIED: usize = 4;

/// Longest code that is followed from a guess. Unit: instructions. Pieces of functions that only a
/// computed jump leads to are shorter; where it is too small they stay unknown.
const GUESSED_MAX: usize = 4096;

/// What is known of an address.
mod known {
    /// Nothing is known.
    pub const NOTHING: u16 = 0;
    /// It is in the middle of an instruction.
    pub const INSIDE: u16 = 1;
    /// An instruction starts there; from here on, with the frame of this number.
    pub const FIRST: u16 = 2;
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
#[derive(Default)]
struct Outcome {
    confirmed: bool,
    contradicted: bool,
}

impl Outcome {
    /// A way ends where the stack has to be as the caller left it.
    fn leaves(&mut self, frame: &Frame, found: Found) {
        // Assembler may have its own ideas of which registers to keep, where it is known to be
        // called.
        let keeps = found == Found::Called || frame.keeps_registers();
        if frame.outermost {
            // Nobody called, so nothing is to be left.
            return;
        }
        match frame.sp == Frame::ENTERED.sp && keeps {
            true => self.confirmed = true,
            false => self.contradicted = true,
        }
    }
}

struct Explorer<'a, 'c> {
    code: Code<'a, 'c>,
    /// For each of `entries`, whether it comes back.
    comes_back: Vec<bool>,
    accesses: Accesses,
    /// By address; see [`known`].
    known: Vec<u16>,
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u16>,
    /// Where functions start, in order.
    entries: Vec<u32>,
    /// Places that code takes the address of and functions may start at, in order.
    taken: Vec<u32>,
    /// Functions that were guessed.
    guessed: Vec<u32>,
    /// What is followed: number of the frame and length of each instruction.
    local: HashMap<u32, (u16, u8)>,
    ways: Vec<Way>,
    /// Places in it, behind calls, where something else may start.
    local_behind: Vec<Way>,
    /// Jumps in it to a computed address.
    local_switches: Vec<Way>,
    behind: BTreeMap<u32, u16>,
    switches: BTreeMap<u32, u16>,
}

/// The frames of `code`, which the kernel enters at `entry`, if that is in it. `entries`: known
/// starts of functions, besides call targets. `None` if it was cancelled, or the code is too large
/// to start with.
pub fn derive(
    mut code: Code<'_, '_>,
    entry: Option<u32>,
    entries: &[u32],
) -> Option<Derived<Frame>> {
    let mut entries = entries.to_vec();
    entries.extend(entry);
    let mut taken = Vec::new();
    find_calls(&mut code, &mut entries, &mut taken)?;
    taken.sort_unstable();
    taken.dedup();
    entries.retain(|&entry| entry < code.len());
    entries.sort_unstable();
    entries.dedup();
    let comes_back = coming_back(&mut code, &entries)?;
    let len = code.len() as usize;
    let mut explorer = Explorer {
        code,
        comes_back,
        accesses: Accesses::new(),
        known: vec![known::NOTHING; len],
        frames: Vec::new(),
        numbers: HashMap::new(),
        entries,
        taken,
        guessed: Vec::new(),
        local: HashMap::new(),
        ways: Vec::new(),
        local_behind: Vec::new(),
        local_switches: Vec::new(),
        behind: BTreeMap::new(),
        switches: BTreeMap::new(),
    };
    // What takes too long to follow stays unknown.
    let done = explorer
        .follow_entry(entry)
        .and_then(|()| explorer.follow_entries())
        .and_then(|()| explorer.guess());
    if done.is_none() && !explorer.code.is_tedious() {
        return None;
    }
    Some(explorer.finish())
}

/// Adds what direct calls lead to, and to `taken` what the code takes the address of.
fn find_calls(code: &mut Code<'_, '_>, into: &mut Vec<u32>, taken: &mut Vec<u32>) -> Option<()> {
    let mut instruction = Instruction::default();
    let mut at = 0;
    while at < code.len() {
        // What fills up would have its end taken for part of what follows.
        at = code.zeros_end(at);
        if !code.decode(at, &mut instruction)? {
            at += 1;
            continue;
        }
        if instruction.is_call_near()
            && instruction.near_branch_target() != instruction.next_ip()
            && let Some(target) = code.place(instruction.near_branch_target())
        {
            into.push(target);
        }
        if let Some(address) = address_taken(&instruction)
            && let Some(target) = code.place(address)
            && code.is_aligned(target)
        {
            taken.push(target);
        }
        at += instruction.len() as u32;
    }
    Some(())
}

/// True for calls; system calls count as such elsewhere.
fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.flow_control() == FlowControl::IndirectCall
}

/// The address that an instruction puts into a register.
pub fn address_taken(instruction: &Instruction) -> Option<u64> {
    match (instruction.mnemonic(), instruction.op1_kind()) {
        (Mnemonic::Lea, _) if instruction.is_ip_rel_memory_operand() => {
            Some(instruction.memory_displacement64())
        }
        (Mnemonic::Mov, OpKind::Immediate32) => Some(instruction.immediate32().into()),
        (Mnemonic::Mov, OpKind::Immediate32to64) => {
            u64::try_from(instruction.immediate32to64()).ok()
        }
        _ => None,
    }
}

impl Explorer<'_, '_> {
    fn is_entry(&self, at: u32) -> bool {
        self.entries.binary_search(&at).is_ok()
    }

    /// True when no other instruction that is kept starts between these two.
    fn is_free(&self, at: u32, next: u32) -> bool {
        let inside = self.known.get(at as usize + 1..next as usize);
        inside.is_some_and(|inside| inside.iter().all(|&known| known < known::FIRST))
    }

    fn is_unknown(&self, at: u32) -> bool {
        self.known.get(at as usize) == Some(&known::NOTHING)
    }

    fn number(&mut self, frame: Frame) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&frame) {
            return Some(number);
        }
        if self.frames.len() >= FRAMES_MAX {
            return None;
        }
        let number = self.frames.len() as u16;
        self.frames.push(frame);
        self.numbers.insert(frame, number);
        Some(number)
    }

    /// Follows what the kernel enters: nobody called it, and no return address is there.
    fn follow_entry(&mut self, entry: Option<u32>) -> Option<()> {
        if let Some(entry) = entry
            && !self
                .follow(entry, Frame::ENTRY, Found::Called)?
                .contradicted
        {
            self.keep();
        }
        Some(())
    }

    fn follow_entries(&mut self) -> Option<()> {
        for at in 0..self.entries.len() {
            let entry = self.entries[at];
            if self.is_unknown(entry) {
                let outcome = self.follow(entry, Frame::ENTERED, Found::Called)?;
                if !outcome.contradicted {
                    self.keep();
                }
            }
        }
        Some(())
    }

    /// Keeps what was followed last.
    fn keep(&mut self) {
        for (&at, &(_, len)) in &self.local {
            let inside = at as usize + 1..at as usize + usize::from(len);
            self.known[inside].fill(known::INSIDE);
        }
        // Instructions may lie within others: where they start counts.
        for (&at, &(number, _)) in &self.local {
            self.known[at as usize] = known::FIRST + number;
        }
        for Way { at, frame } in self.local_behind.drain(..) {
            if self.behind.len() < PLACES_MAX {
                self.behind.entry(at).or_insert(frame);
            }
        }
        for Way { at, frame } in self.local_switches.drain(..) {
            if self.switches.len() < PLACES_MAX {
                self.switches.insert(at, frame);
            }
        }
    }

    /// Guesses at what nothing known leads to.
    fn guess(&mut self) -> Option<()> {
        let mut at = 0;
        while at < self.code.len() {
            if !self.is_unknown(at) {
                at += 1;
                continue;
            }
            let end = self.code.padding_end(at)?;
            if end > at {
                at = end;
            } else if !self.guess_at(at)? {
                at = self.next_break(at)?;
            }
        }
        Some(())
    }

    /// Where code that cannot be followed ends: what comes next in it fails as it did.
    fn next_break(&mut self, mut at: u32) -> Option<u32> {
        let mut instruction = Instruction::default();
        while self.is_unknown(at) {
            if !self.code.decode(at, &mut instruction)? {
                return Some(at + 1);
            }
            at += instruction.len() as u32;
            match instruction.flow_control() {
                FlowControl::Next
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::ConditionalBranch => {}
                _ => break,
            }
        }
        Some(at)
    }

    /// Tries frames that code may start with; true when one is confirmed.
    fn guess_at(&mut self, at: u32) -> Option<bool> {
        let mut guesses: Vec<Frame> = Vec::with_capacity(SWITCHES_TRIED + 2);
        let frame_of = |number: &u16| self.frames[usize::from(*number)];
        guesses.extend(self.behind.get(&at).map(frame_of));
        if self.code.is_aligned(at) {
            guesses.push(Frame::ENTERED);
        }
        let switches = self.switches.range(..at).rev();
        for frame in switches
            .map(|(_, number)| frame_of(number))
            .take(SWITCHES_TRIED)
        {
            if !guesses.contains(&frame) {
                guesses.push(frame);
            }
        }
        if !guesses.contains(&Frame::ENTERED) {
            guesses.push(Frame::ENTERED);
        }
        for frame in guesses {
            let outcome = self.follow(at, frame, Found::Guessed)?;
            // Functions that never return, or go on somewhere computed, are confirmed by nothing.
            let passed = frame == Frame::ENTERED && self.taken.binary_search(&at).is_ok();
            if !outcome.contradicted && (outcome.confirmed || passed) {
                if frame == Frame::ENTERED {
                    self.guessed.push(at);
                }
                self.keep();
                return Some(true);
            }
        }
        Some(false)
    }

    /// Follows all ways from a place on.
    fn follow(&mut self, start: u32, frame: Frame, found: Found) -> Option<Outcome> {
        // Clearing a large table takes as long as it is large.
        match self.local.capacity() > LOCAL_KEPT {
            true => self.local = HashMap::new(),
            false => self.local.clear(),
        }
        self.local_behind.clear();
        self.local_switches.clear();
        self.ways.clear();
        let mut outcome = Outcome::default();
        match self.number(frame) {
            Some(frame) => self.ways.push(Way { at: start, frame }),
            None => outcome.contradicted = true,
        }
        while let Some(way) = self.ways.pop() {
            self.follow_way((start, found), way, &mut outcome)?;
            if outcome.contradicted {
                break;
            }
        }
        // What is reached some other way does not depend on whether a call returns.
        let (local, known) = (&self.local, &self.known);
        self.local_behind.retain(|way| {
            !local.contains_key(&way.at) && known.get(way.at as usize) == Some(&known::NOTHING)
        });
        Some(outcome)
    }

    fn follow_way(
        &mut self,
        (start, found): (u32, Found),
        way: Way,
        outcome: &mut Outcome,
    ) -> Option<()> {
        let Way { mut at, frame } = way;
        let mut frame = self.frames[usize::from(frame)];
        let most = match found {
            Found::Called => FUNCTION_MAX,
            Found::Guessed => GUESSED_MAX,
        };
        let mut instruction = Instruction::default();
        // How far the CFA is from the stack pointer where it is what it was compared with.
        let mut compared = None;
        loop {
            if !self.meet(at, &mut frame, outcome) {
                return Some(());
            }
            let number = match self.code.decode(at, &mut instruction)? {
                true => self.number(frame),
                false => None,
            };
            let next = at + instruction.len() as u32;
            let Some(number) = number.filter(|_| self.local.len() < most && self.is_free(at, next))
            else {
                outcome.contradicted = true;
                return Some(());
            };
            self.local.insert(at, (number, instruction.len() as u8));
            match instruction.flow_control() {
                FlowControl::Return => {
                    outcome.leaves(&frame, found);
                    return Some(());
                }
                FlowControl::UnconditionalBranch => {
                    match self.code.place(instruction.near_branch_target()) {
                        Some(target) if target != start && self.is_entry(target) => {
                            outcome.leaves(&frame, found);
                            return Some(());
                        }
                        Some(target) => at = target,
                        None => return Some(()),
                    }
                    continue;
                }
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                    if let Some(at) = self.code.place(instruction.near_branch_target()) {
                        self.ways.push(Way { at, frame: number });
                    }
                    if instruction.mnemonic() == Mnemonic::Jne {
                        frame.sp = compared.or(frame.sp);
                    }
                }
                FlowControl::IndirectBranch => {
                    if frame.sp != Frame::ENTERED.sp {
                        self.local_switches.push(Way { at, frame: number });
                    }
                    return Some(());
                }
                FlowControl::Call if !self.comes_back(&instruction) => return Some(()),
                FlowControl::Call | FlowControl::IndirectCall if is_call(&instruction) => {
                    frame.step(&instruction, &mut self.accesses);
                    // Behind a call that may not return another function may start.
                    let end = self.code.padding_end(next)?;
                    let starts = end > next && self.code.is_aligned(end);
                    if starts || self.is_entry(end) {
                        if let Some(frame) = self.number(frame) {
                            self.local_behind.push(Way { at: end, frame });
                        }
                        return Some(());
                    }
                    at = next;
                    continue;
                }
                FlowControl::Interrupt | FlowControl::Exception => return Some(()),
                _ if instruction.mnemonic() == Mnemonic::Hlt => return Some(()),
                _ => {}
            }
            compared = match instruction.mnemonic() {
                Mnemonic::Cmp => frame.compared_with_sp(&instruction),
                _ => None,
            };
            frame.step(&instruction, &mut self.accesses);
            if next != start && self.is_entry(next) && frame.sp != Frame::ENTERED.sp {
                // It would fall into another function.
                outcome.contradicted = true;
                return Some(());
            }
            at = next;
        }
    }

    /// A way comes to a place with a frame; false when it ends there. The frame loses what is not
    /// the same on another way that came there.
    fn meet(&self, at: u32, frame: &mut Frame, outcome: &mut Outcome) -> bool {
        let known = self.known.get(at as usize).copied();
        let (number, other_function) = match (known, self.local.get(&at)) {
            (None | Some(known::INSIDE), _) => {
                outcome.contradicted = true;
                return false;
            }
            (Some(known::NOTHING), None) => return true,
            (Some(known::NOTHING), Some(&(number, _))) => (number, false),
            (Some(known), _) => (known - known::FIRST, true),
        };
        let there = self.frames[usize::from(number)];
        if there.holds_for(frame) {
            outcome.confirmed |= other_function;
            return false;
        }
        match there.met_by(frame) {
            Some(both) if !other_function => {
                *frame = both;
                true
            }
            _ => {
                outcome.contradicted = true;
                false
            }
        }
    }

    /// False for the call of a function that never returns.
    fn comes_back(&self, call: &Instruction) -> bool {
        let target = match call.is_call_near() {
            true => self.code.place(call.near_branch_target()),
            false => None,
        };
        let number = target.and_then(|target| self.entries.binary_search(&target).ok());
        number.is_none_or(|number| self.comes_back[number])
    }

    fn finish(self) -> Derived<Frame> {
        let Explorer {
            known: all,
            frames,
            mut entries,
            guessed,
            ..
        } = self;
        entries.extend(guessed);
        entries.sort_unstable();
        let most = all.len() / RUN_BYTES_MIN + RUNS_MIN;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while let Some(&known) = all.get(at)
            && runs.len() < most
        {
            let inside = all[at + 1..].iter();
            let end = at + 1 + inside.take_while(|&&known| known == known::INSIDE).count();
            if known >= known::FIRST {
                let run = Run {
                    start: at as u32,
                    end: end as u32,
                    frame: known - known::FIRST,
                    entry: entries.binary_search(&(at as u32)).is_ok(),
                };
                match runs.last_mut() {
                    Some(last)
                        if last.end == run.start && last.frame == run.frame && !run.entry =>
                    {
                        last.end = run.end;
                    }
                    _ => runs.push(run),
                }
            }
            at = end;
        }
        Derived { runs, frames }
    }
}
