//! Fuzzes [`targets::wire_chunks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::wire_chunks(data));
