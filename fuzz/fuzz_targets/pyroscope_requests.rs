//! Fuzzes [`targets::pyroscope_requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::pyroscope_requests(data));
