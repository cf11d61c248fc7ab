//! Fuzzes [`targets::store_log`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::store_log(data));
