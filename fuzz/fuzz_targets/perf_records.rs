//! Fuzzes [`targets::perf_records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::perf_records(data));
