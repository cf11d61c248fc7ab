//! Fuzzes [`targets::symbol_files`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::symbol_files(data));
