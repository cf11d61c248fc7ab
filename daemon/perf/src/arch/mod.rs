//! What samples have to say of the architecture: which registers they carry.
//!
//! The one place of this crate that asks which it is. Another architecture is another file here and
//! in `daemon/unwind/src/arch`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::USER_REGS;
#[cfg(target_arch = "x86_64")]
pub use x86_64::USER_REGS;
