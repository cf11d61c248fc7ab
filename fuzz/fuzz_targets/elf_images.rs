//! Fuzzes [`targets::elf_images`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::elf_images(data));
