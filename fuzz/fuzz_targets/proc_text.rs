//! Fuzzes [`targets::proc_text`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::proc_text(data));
