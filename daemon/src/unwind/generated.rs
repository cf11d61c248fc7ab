//! How to step over generated code: rules by address for the code of one process.
//!
//! Nothing in a file describes generated code. Some runtimes write unwinding information beside it (jitdump),
//! and some of it is known by its shape (CPython's trampolines). `fp-jit` gathers both in a
//! [`RulesBuilder`] for each process and hands what it has to the sampler as [`GeneratedRules`].

use super::rule::Rule;
use crate::ids::{Avma, Pid, ProcessId};
use crate::jit::code::{CodeMap, When};
use std::ops::Range;
use std::sync::Arc;

/// Rules that wait for the sampler, which takes them at every pass. Unit: processes.
pub const QUEUED_MAX: usize = 64;

/// Rules for the generated code of one process, in place of those it had.
#[derive(Debug)]
pub struct Generated {
    /// Whose.
    pub process: ProcessId,
    /// Its pid.
    pub pid: Pid,
    /// The rules.
    pub rules: Arc<GeneratedRules>,
}

/// Rules by address. Never changed once made.
#[derive(Debug, Default)]
pub struct GeneratedRules {}

impl GeneratedRules {
    /// The rule of an address; [`Rule::UNKNOWN`] where nothing is known. `exact` as in the engine: the
    /// address is that of an instruction, not of a call.
    pub fn rule(&self, _address: Avma, _exact: bool) -> Rule {
        Rule::UNKNOWN
    }
}

/// Gathers rules of one process.
#[derive(Debug, Default)]
pub struct RulesBuilder {}

impl RulesBuilder {
    /// Unwinding information of code that came at `when`: the content of `.eh_frame_hdr` and `.eh_frame` as
    /// the runtime wrote them.
    pub fn load(&mut self, _range: Range<u64>, _unwinding: &[u8], _when: When) {}

    /// Looks for code that is known by its shape among what was named. May read the memory of the process,
    /// and so may wait for ever: for helpers.
    pub fn look_at(&mut self, _pid: Pid, _code: &CodeMap) {}

    /// The rules, when they are others than at the last call.
    pub fn take(&mut self) -> Option<Arc<GeneratedRules>> {
        None
    }
}
