//! Fuzzes [`targets::segment_records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::segment_records(data));
