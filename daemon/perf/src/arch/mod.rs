//! The architecture-specific part of samples: which registers they contain.
//!
//! The only place in this crate that depends on the architecture. A new architecture needs a file
//! here and one in `daemon/unwind/src/arch`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::USER_REGS;
#[cfg(target_arch = "x86_64")]
pub use x86_64::USER_REGS;
