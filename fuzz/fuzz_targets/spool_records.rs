//! Fuzzes [`targets::spool_records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::spool_records(data));
