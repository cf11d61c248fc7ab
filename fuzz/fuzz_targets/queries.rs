//! Fuzzes [`targets::queries`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::queries(data));
