//! The architecture-specific part of unwinding: numbers of registers, where a frame has its return
//! address, how calls are encoded.
//!
//! The only place in this crate that depends on the architecture. Each file has the same names,
//! constants and small functions, so that the walk itself is written once and costs nothing extra.
//! A new architecture needs a file here and one in `daemon/perf/src/arch`.

pub mod a64;
#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod psabi;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// The frame of a function of Go, by the depth that Go states of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoFrame {
    /// Distance of the CFA from the stack pointer. Unit: bytes.
    pub cfa: i32,
    /// Distance of the return address from the CFA; `None`: in [`LINK_REGISTER`]. Unit: eight
    /// bytes.
    pub returns_at: Option<i32>,
    /// Distance of the caller's frame pointer from the CFA, where there is one. Unit: eight bytes.
    pub frame_pointer_at: Option<i32>,
}

/// What the first instructions of a called function show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// One of them jumps through a pointer.
    pub jumps_on: bool,
    /// It does nothing else: an entry of a linkage table.
    pub is_stub: bool,
}

/// A call through a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerCall {
    /// There is none.
    None,
    /// The pointer is in a linkage table, or may be.
    Linkage,
    /// It is anything else.
    Other,
}
