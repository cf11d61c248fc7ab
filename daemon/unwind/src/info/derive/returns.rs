//! Finds which functions return. The code after a call of a function that does not return belongs
//! to another function.
//!
//! A function returns if a path through it leads to a return instruction, past calls of functions
//! that return. Paths wait at calls of functions for which this is not known yet; those that wait
//! forever follow calls of functions that never return.

use super::code::Code;
use iced_x86::{FlowControl, Instruction, Mnemonic};

/// No place, and no waiting way.
const NONE: u32 = u32::MAX;

/// For each of `entries`, which are in order, whether it comes back. `None` when that takes too
/// much.
pub fn coming_back(code: &mut Code<'_, '_>, entries: &[u32]) -> Option<Vec<bool>> {
    let mut search = Search {
        entries,
        visited: vec![0; code.len() as usize],
        waiting: vec![NONE; entries.len()],
        waits: Vec::new(),
        ways: Vec::new(),
        comes_back: vec![false; entries.len()],
    };
    for (number, &entry) in (0..).zip(entries) {
        search.ways.push((number, entry));
        while let Some((function, at)) = search.ways.pop() {
            search.follow(code, function, at)?;
        }
    }
    Some(search.comes_back)
}

/// A way that waits for a function to come back.
struct Wait {
    /// The function that the way belongs to.
    function: u32,
    /// Where it goes on. [`NONE`]: its function comes back where the other does.
    at: u32,
    /// The one that waits for the same function next.
    next: u32,
}

struct Search<'e> {
    entries: &'e [u32],
    /// By address: the number of the function that was there first, and one.
    visited: Vec<u32>,
    /// By function: the first of [`Search::waits`] for it.
    waiting: Vec<u32>,
    waits: Vec<Wait>,
    ways: Vec<(u32, u32)>,
    comes_back: Vec<bool>,
}

impl Search<'_> {
    fn number(&self, at: u32) -> Option<u32> {
        let number = self.entries.binary_search(&at).ok()?;
        Some(number as u32)
    }

    fn found(&mut self, function: u32) {
        let mut found = vec![function];
        while let Some(function) = found.pop() {
            if std::mem::replace(&mut self.comes_back[function as usize], true) {
                continue;
            }
            let mut at = std::mem::replace(&mut self.waiting[function as usize], NONE);
            while let Some(wait) = self.waits.get(at as usize) {
                match wait.at {
                    NONE => found.push(wait.function),
                    place => self.ways.push((wait.function, place)),
                }
                at = wait.next;
            }
        }
    }

    /// A way of `function` goes on, at a place or with its own return, where `other` comes back.
    fn wait(&mut self, function: u32, other: u32, at: u32) {
        match (self.comes_back[other as usize], at) {
            (true, NONE) => self.found(function),
            (true, at) => self.ways.push((function, at)),
            (false, at) => {
                let first = &mut self.waiting[other as usize];
                let next = std::mem::replace(first, self.waits.len() as u32);
                self.waits.push(Wait { function, at, next });
            }
        }
    }

    fn follow(&mut self, code: &mut Code<'_, '_>, function: u32, mut at: u32) -> Option<()> {
        let mut instruction = Instruction::default();
        let mut first = true;
        loop {
            let Some(visited) = self.visited.get_mut(at as usize) else {
                return Some(());
            };
            if *visited == function + 1 {
                return Some(());
            }
            if let Some(other) = visited.checked_sub(1) {
                self.wait(function, other, NONE);
                return Some(());
            }
            // Falling or jumping into another function.
            if !first
                && let Some(other) = self.number(at)
                && other != function
            {
                self.wait(function, other, NONE);
                return Some(());
            }
            first = false;
            self.visited[at as usize] = function + 1;
            if !code.decode(at, &mut instruction)? {
                return Some(());
            }
            let next = at + instruction.len() as u32;
            match instruction.flow_control() {
                FlowControl::Return | FlowControl::IndirectBranch => {
                    self.found(function);
                    return Some(());
                }
                FlowControl::UnconditionalBranch => {
                    match code.place(instruction.near_branch_target()) {
                        Some(target) => at = target,
                        None => {
                            self.found(function);
                            return Some(());
                        }
                    }
                    continue;
                }
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                    match code.place(instruction.near_branch_target()) {
                        // There may be as many as instructions.
                        Some(target) if self.visited.get(target as usize) == Some(&0) => {
                            self.ways.push((function, target));
                        }
                        Some(target) => {
                            if let Some(other) = self.visited[target as usize].checked_sub(1)
                                && other != function
                            {
                                self.wait(function, other, NONE);
                            }
                        }
                        None => self.found(function),
                    }
                }
                FlowControl::Call if instruction.is_call_near() => {
                    let known = code.place(instruction.near_branch_target());
                    if let Some(other) = known.and_then(|known| self.number(known)) {
                        self.wait(function, other, next);
                        return Some(());
                    }
                }
                FlowControl::Interrupt | FlowControl::Exception => return Some(()),
                FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => return Some(()),
                _ => {}
            }
            at = next;
        }
    }
}
