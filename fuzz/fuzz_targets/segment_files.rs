//! Fuzzes [`targets::segment_files`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::segment_files(data));
