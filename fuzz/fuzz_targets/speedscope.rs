//! Fuzzes [`targets::speedscope`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::speedscope(data));
