//! Fuzzes [`targets::perf_maps`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::perf_maps(data));
