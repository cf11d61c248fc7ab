//! Fuzzes [`targets::perf_script`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::perf_script(data));
