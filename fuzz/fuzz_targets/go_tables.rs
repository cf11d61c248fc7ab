//! Fuzzes [`targets::go_tables`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::go_tables(data));
