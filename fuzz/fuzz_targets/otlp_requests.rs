//! Fuzzes [`targets::otlp_requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::otlp_requests(data));
