//! Fuzzes [`targets::ingest_windows`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::ingest_windows(data));
