//! Defines what a profile is: frames, stacks, label sets and samples, and the operations on them.
//!
//! Everything here is plain data: no I/O, no async, no unsafe. Only this crate defines what a
//! profile is; `proto` converts it to wire form, and the daemon, the collector and the CLI use it.
//!
//! A [`Dictionary`] interns strings, frames, stacks (a trie of (parent, frame)) and label sets to
//! dense 32-bit ids. A [`Profile`] is a dictionary plus sample values keyed by (labels, stack, how
//! the stack ended). Dense ids have a meaning only with their own dictionary; [`Remap`] maps them
//! from one to another. Across machines a stack is identified by its 128-bit [`ContentId`].
#![forbid(unsafe_code)]

mod counters;
mod coverage;
mod dictionary;
mod diff;
mod filter;
pub mod fleet;
pub mod formats;
mod frame;
mod functions;
pub mod heatmap;
mod identity;
mod labels;
mod later;
mod ledger;
mod merge;
pub mod names;
mod outcome;
mod place;
mod profile;
mod quality;
mod query;
mod released;
mod sample;
mod selector;
mod stack;
mod strings;
pub mod text;
mod timestamps;
mod top;
pub mod unit;
mod wakers;
pub mod withhold;

pub use coverage::Coverage;
pub use dictionary::{Dictionary, Remap};
pub use diff::{Change, CostDiff, Diff, FunctionChange, SampleChange, ShareChange, error_95};
pub use filter::{
    FILTERS_MAX, FilterError, FrameFilter, FrameFilterOp, LabelMatcher, MatchOp, PATTERN_LEN_MAX,
    PATTERN_SIZE_MAX, Selector,
};
pub use frame::{Frame, FrameId, FrameKind, FrameRef, FrameTable};
pub use frame::{LOST_FRAME, OTHER_FRAME};
pub use functions::{Shape, WOKEN_BY_HARDIRQ, WOKEN_BY_SOFTIRQ};
pub use identity::{ContentId, ContentIds};
pub use labels::{LabelSetId, LabelSetTable, key};
pub use later::{LaterNames, NameSource, NamedLater};
pub use ledger::{
    Account, Expected, Ledger, LedgerBuilder, LedgerRow, Pressure, Tally, Throttling, ancestors,
    is_mostly_lost,
};
pub use merge::{GroupBy, MIXED_EVENTS, MergeError};
pub use outcome::{StackEnd, UnnamedReason};
pub use place::{Place, build_id_text, is_build_id};
pub use profile::{Info, OFF_CPU, Profile, equalize};
pub use query::{Counted, Query, QueryRunner};
pub use released::Released;
pub use sample::{Quality, SampleKey, Value, Waits};
pub use selector::{SELECTOR_LEN_MAX, SelectorError};
pub use stack::{StackId, StackTrie};
pub use strings::{StrId, StringTable};
pub use timestamps::{Timestamp, Timestamps};
pub use top::{CostBy, Costs, Sums, Top, TopBy, TopRow, TopSort};
pub use withhold::{WithholdError, Withholding};
