//! The text of `perf script`: an event a sample, its stack below it, leaf first.
//!
//! ```text
//! comm pid[/tid] [cpu] seconds.fraction: [period] event:
//! <tab>hexaddress symbol+0xoffset (module)
//! <empty line>
//! ```
//!
//! `stackcollapse-perf.pl`, FlameScope, speedscope and the Firefox Profiler read it, and it is what
//! files of other machines often are. Our own text has no CPU, and addresses that are made up, both
//! of which it says in its heading.

mod read;
mod write;

pub use read::{NAME_BYTES_MAX, PerfScriptError, STACK_FRAMES_MAX, looks_like, read};
pub use write::write;
