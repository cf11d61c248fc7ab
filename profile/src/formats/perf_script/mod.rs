//! The text of `perf script`: one event per sample, its stack below it, leaf first.
//!
//! ```text
//! comm pid[/tid] [cpu] seconds.fraction: [period] event:
//! <tab>hexaddress symbol+0xoffset (module)
//! <empty line>
//! ```
//!
//! `stackcollapse-perf.pl`, FlameScope, speedscope and the Firefox Profiler read it, and files from
//! other machines often have this format. Our own text has no CPU and made-up addresses, and says
//! so in its heading.

mod read;
mod write;

pub use read::{
    NAME_BYTES_MAX, PerfScriptError, STACK_FRAMES_MAX, event_and_unit, looks_like, read,
};
pub use write::write;
