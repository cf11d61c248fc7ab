//! Fuzzes [`targets::perf_data`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::perf_data(data));
