//! Which functions come back: what lies behind a call of one that does not is another function's.
//!
//! A function comes back when a way through it leads to a return, past calls of functions that come
//! back. Ways wait at calls of functions of which that is not known; those that wait for ever are
//! behind calls of functions that never return.

use super::code::Code;
use hashbrown::HashMap;
use iced_x86::{FlowControl, Instruction, Mnemonic};

/// A way that waits for a function to come back: whose it is, and where it goes on. `None`: it
/// comes back where the other does.
type Waiting = (u32, Option<u32>);

/// Functions that come back, by their entries.
pub struct Returns {
    /// Functions by entry.
    numbers: HashMap<u32, u32>,
    comes_back: Vec<bool>,
}

impl Returns {
    /// Finds out about the functions that begin at `entries`. `None` when it takes too much.
    pub fn of(code: &mut Code<'_, '_>, entries: &[u32]) -> Option<Returns> {
        let numbers = entries
            .iter()
            .zip(0..)
            .map(|(&entry, number)| (entry, number));
        let mut search = Search {
            visited: vec![0; code.len() as usize],
            waiting: HashMap::new(),
            ways: Vec::new(),
            returns: Returns {
                numbers: numbers.collect(),
                comes_back: vec![false; entries.len()],
            },
        };
        for (&entry, number) in entries.iter().zip(0..) {
            search.ways.push((number, entry));
            while let Some((function, at)) = search.ways.pop() {
                search.follow(code, function, at)?;
            }
        }
        Some(search.returns)
    }

    /// False for a function that never returns to its caller.
    pub fn comes_back(&self, entry: u32) -> bool {
        let number = self.numbers.get(&entry);
        number.is_none_or(|&number| self.comes_back[number as usize])
    }
}

struct Search {
    /// By address: the number of the function that was there first, and one.
    visited: Vec<u32>,
    waiting: HashMap<u32, Vec<Waiting>>,
    ways: Vec<(u32, u32)>,
    returns: Returns,
}

impl Search {
    fn found(&mut self, function: u32) {
        let mut found = vec![function];
        while let Some(function) = found.pop() {
            if std::mem::replace(&mut self.returns.comes_back[function as usize], true) {
                continue;
            }
            for (waiter, at) in self.waiting.remove(&function).unwrap_or_default() {
                match at {
                    Some(at) => self.ways.push((waiter, at)),
                    None => found.push(waiter),
                }
            }
        }
    }

    /// A way of `function` goes on, at a place or with its own return, where `other` comes back.
    fn wait(&mut self, function: u32, other: u32, at: Option<u32>) {
        match (self.returns.comes_back[other as usize], at) {
            (true, Some(at)) => self.ways.push((function, at)),
            (true, None) => self.found(function),
            (false, at) => self.waiting.entry(other).or_default().push((function, at)),
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
                self.wait(function, other, None);
                return Some(());
            }
            // Falling or jumping into another function.
            if !first
                && let Some(&other) = self.returns.numbers.get(&at)
                && other != function
            {
                self.wait(function, other, None);
                return Some(());
            }
            first = false;
            *visited = function + 1;
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
                        Some(target) => self.ways.push((function, target)),
                        None => self.found(function),
                    }
                }
                FlowControl::Call => {
                    let target = instruction.near_branch_target();
                    let known = code.place(target);
                    if let Some(&other) = known.and_then(|known| self.returns.numbers.get(&known)) {
                        self.wait(function, other, Some(next));
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
