//! Fuzzes [`targets::unwinding`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::unwinding(data));
