//! Fuzzes [`targets::pprof`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::pprof(data));
