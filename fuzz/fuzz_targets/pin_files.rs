//! Fuzzes [`targets::pin_files`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::pin_files(data));
