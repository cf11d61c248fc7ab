//! Fuzzes [`targets::container_metadata`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::container_metadata(data));
