//! Functions of Go's runtime that treat the stack in a special way.
//!
//! They are recognized by name, because the numbers that the table has for some of them change with
//! every release.

use super::{GoTables, Pieces};
use crate::budget::{FileBudget, Over};
use crate::elf::ReadAt;
use hashbrown::HashMap;

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It has no caller: a goroutine or a thread starts there.
    Starts,
    /// It goes over to the scheduler's stack for good: what it leaves will not be returned to from
    /// there.
    Leaves,
    /// It calls on another stack; its frame pointer leads back.
    Switches,
    /// It calls on another stack, and nothing leads back.
    Loses,
    /// A signal handler returns to it.
    SignalReturn,
    /// The runtime makes it look as if the interrupted instruction had called it.
    Injected,
    /// Its depths are right although it is marked otherwise.
    Plain,
    /// A goroutine that called on another stack looks as if this function had been called; until Go
    /// 1.20 it would return to its first instruction.
    StandsIn,
}

/// Names and what they do. `cgocallback` writes the stack pointer, but has a frame on both stacks.
/// The kernel calls the signal handlers, so their stacks do not end there.
const ROLES: &[(&[u8], Role)] = &[
    (b"_rt0_amd64_linux", Role::Starts),
    (b"runtime.asmcgocall", Role::Switches),
    (b"runtime.asyncPreempt", Role::Injected),
    (b"runtime.cgoSigtramp", Role::Plain),
    (b"runtime.cgocallback", Role::Plain),
    (b"runtime.debugCallV1", Role::Injected),
    (b"runtime.debugCallV2", Role::Injected),
    (b"runtime.goexit", Role::Starts),
    (b"runtime.gogo", Role::Loses),
    (b"runtime.mcall", Role::Leaves),
    (b"runtime.morestack", Role::Loses),
    (b"runtime.mstart", Role::Starts),
    (b"runtime.rt0_go", Role::Starts),
    (b"runtime.sigpanic", Role::Injected),
    (b"runtime.sigprofNonGoWrapper", Role::Plain),
    (b"runtime.sigreturn", Role::SignalReturn),
    (b"runtime.sigreturn__sigaction", Role::SignalReturn),
    (b"runtime.sigtramp", Role::Plain),
    (b"runtime.systemstack", Role::Switches),
    (b"runtime.systemstack_switch", Role::StandsIn),
];

/// Longest of these names, with the byte that ends it.
const NAME_BYTES_MAX: usize = 32;

/// Bytes of names looked through at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Where the names of functions with a role are, as [`Function::name`](super::functions::Function)
/// has them.
///
/// # Errors
/// When reading takes more than `budget` has left.
pub fn roles<R: ReadAt + ?Sized>(
    image: &R,
    tables: &GoTables,
    budget: &FileBudget<'_>,
) -> Result<HashMap<u32, Role>, Over> {
    let _charge = budget.charge(PIECE_BYTES)?;
    let mut names = Pieces::new(image, budget, tables.names, PIECE_BYTES);
    let mut found = HashMap::new();
    let mut at = 0;
    loop {
        let piece = names.up_to(at, PIECE_BYTES)?;
        let is_last = piece.len() < PIECE_BYTES;
        let mut into = 0;
        while let Some(rest) = piece.get(into..).filter(|rest| !rest.is_empty()) {
            let end = rest.iter().position(|&byte| byte == 0);
            let Some(len) = end else { break };
            let name = &rest[..len];
            if let Ok(number) = ROLES.binary_search_by(|(known, _)| (*known).cmp(name))
                && let Ok(place) = u32::try_from(at + into as u64)
                && found.len() < 2 * ROLES.len()
            {
                found.insert(place, ROLES[number].1);
            }
            into += len + 1;
        }
        if is_last {
            return Ok(found);
        }
        // A name across two pieces is complete in the next; longer ones are none of these.
        at += match into {
            0 => (PIECE_BYTES - NAME_BYTES_MAX) as u64,
            into => into as u64,
        };
    }
}

#[cfg(test)]
mod order {
    use super::*;

    #[test]
    fn names_are_in_order_and_fit() {
        assert!(ROLES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(ROLES.iter().all(|(name, _)| name.len() < NAME_BYTES_MAX));
    }
}
