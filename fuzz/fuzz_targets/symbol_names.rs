//! Fuzzes [`targets::symbol_names`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::symbol_names(data));
