//! Fuzzes [`targets::store_blocks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::store_blocks(data));
