//! Fuzzes [`targets::spool_segments`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::spool_segments(data));
