//! Unwind rules for generated code without a frame of its own: a function of the runtime jumps to
//! it, and it runs and calls in that function's frame.
//!
//! PHP's compiler works like this: the interpreter's loop `execute_ex` jumps into compiled code.
//! Nothing describes the compiled code, and it keeps no frame pointer, but the unwind information
//! of the body of `execute_ex` says where its caller is. Seen with PHP 8.2 of Debian 12 on x86-64,
//! 2026-11-22: in traces the return address of `execute_ex` is in the same place as in its body.

use crate::target;
use host::ids::FileOffset;
use host::time::thread_cpu;
use std::time::Duration;
use symbolize::budget::{FILE_CPU_MAX, FileBudget};
use symbolize::elf::{self, Headers, SymbolTable};
use symbolize::files::Image;
use symbolize::open;
use unwind::info::module::Module;
use unwind::info::rule::{Rule, Step};
use unwind::process::maps::{self, Map};

/// Files of a process that are looked into. Unit: files. The interpreter is the program or one of
/// its libraries.
const FILES_MAX: usize = 64;

/// Most memory that looking into one of them takes. Unit: bytes. Five helpers may look at a time,
/// next to those who read symbols and unwind information. PHP 8.2 takes 0.9 MiB
/// (Debian 12, the test below); in files of ten times its functions none is found.
const BYTES_MAX: usize = 12 << 20;

/// Most CPU time for all of them together.
const CPU_MAX: Duration = FILE_CPU_MAX;

/// Places of a function at which its rule is looked up: that of its body is the commonest.
const PLACES: u64 = 64;

/// The unwind rule for code that runs in the frame of `function`, if the process `pid` has that
/// function in one of its files. May wait forever: for helpers only.
pub fn rule_of(pid: u32, function: &[u8]) -> Option<Rule> {
    let mut files = maps::executable(target::maps_of(pid).ok()?);
    files.retain(Map::is_file);
    files.sort_by_key(|map| (map.device, map.inode));
    files.dedup_by_key(|map| (map.device, map.inode));
    files.truncate(FILES_MAX);
    let begin = thread_cpu();
    files.iter().find_map(|map| {
        let left = CPU_MAX.checked_sub(thread_cpu().saturating_sub(begin))?;
        let budget = FileBudget::new(BYTES_MAX, left);
        let file = open::open_mapping(pid, map.start, map.end).ok()?;
        let image = Image::open(file).ok()?;
        rule_in(&image, function, &budget)
    })
}

fn rule_in(image: &Image, function: &[u8], budget: &FileBudget<'_>) -> Option<Rule> {
    let headers = elf::read_headers(image).ok()?;
    let (start, size) = [&b".symtab"[..], b".dynsym"].iter().find_map(|table| {
        let segments = &headers.segments;
        let table = SymbolTable::read(image, &headers, table, segments, budget);
        table.ok()??.named(image, function, budget)
    })?;
    let module = Module::of(image, &headers, budget).ok()??;
    let step = (u64::from(size) / PLACES).max(1);
    let mut found: Vec<(Rule, usize)> = Vec::new();
    for place in (0..PLACES).map(|number| start.wrapping_add(number * step)) {
        let Some(offset) = offset_of(&headers, place) else {
            continue;
        };
        let rule = module.rule(offset);
        if !matches!(rule.step, Step::Saved { .. }) {
            continue;
        }
        match found.iter_mut().find(|(known, _)| *known == rule) {
            Some((_, count)) => *count += 1,
            None => found.push((rule, 1)),
        }
    }
    let (rule, count) = found.into_iter().max_by_key(|&(_, count)| count)?;
    // A function with a different frame at each instruction has no body that could lend its frame.
    (count > 1).then_some(rule)
}

fn offset_of(headers: &Headers, address: u64) -> Option<FileOffset> {
    let mut segments = headers.segments.iter();
    let segment = segments.find(|segment| {
        segment.executable && address.wrapping_sub(segment.address) < segment.file_size
    })?;
    Some(FileOffset(address - segment.address + segment.offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_rule_of_a_body_is_found_by_the_name_of_the_function() {
        let text = std::fs::read_to_string("/proc/self/maps").expect("maps");
        if !text.contains("/libc.so") {
            return testkit::skip("no C library of its own file");
        }
        let rule = rule_of(std::process::id(), b"qsort_r");
        let Some(Rule { step, .. }) = rule else {
            panic!("no rule")
        };
        // It saves registers, so its body's frame is larger than the return address.
        assert!(matches!(step, Step::Saved { offset: 16.., .. }), "{step:?}");
    }

    #[test]
    fn a_function_that_is_nowhere_has_no_rule() {
        assert_eq!(
            rule_of(std::process::id(), b"no_such_function_anywhere"),
            None
        );
        assert_eq!(rule_of(u32::MAX, b"execute_ex"), None);
    }

    #[test]
    fn the_loop_of_an_interpreter_is_within_the_budget() {
        let Ok(file) = File::open("/usr/bin/php") else {
            return testkit::skip("no PHP");
        };
        let image = Image::open(file).expect("facts");
        let headers = elf::read_headers(&image).expect("headers");
        if headers.machine != unwind::arch::ELF_MACHINE {
            return testkit::skip("PHP is of another machine");
        }
        let budget = FileBudget::new(BYTES_MAX, CPU_MAX);
        let rule = rule_in(&image, b"execute_ex", &budget);
        eprintln!("{} bytes", budget.most_held());
        let found = matches!(rule.map(|rule| rule.step), Some(Step::Saved { .. }));
        assert!(found, "{:?}", budget.over());
    }
}
