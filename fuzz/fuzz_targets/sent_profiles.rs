//! Fuzzes [`targets::sent_profiles`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::sent_profiles(data));
