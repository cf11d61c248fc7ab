//! The kernel's own symbols, from `/proc/kallsyms`: built in, of modules, and BPF programs.
//!
//! It uses its own table rather than a library's: it keeps the module of each symbol, only text
//! symbols, and names in one arena. Read on the symbolizer's thread, and once by the supervisor for
//! the address ranges of the idle loop. Takes about 50 ms of CPU and 2.4 MiB on a kernel with
//! 64,000 functions (Linux 6.18, 2026-11-21).

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Largest plausible function. Unit: bytes. `kallsyms` has no sizes: without this bound an address
/// after the last symbol of a module would get that symbol's name.
const FUNCTION_BYTES_MAX: u64 = 256 << 10;

/// Most symbols kept. A kernel has 60,000 to 200,000 text symbols; a million BPF programs do not
/// fit into memory.
const SYMBOLS_MAX: usize = 1 << 20;

/// Functions of the idle loop: exact names, and prefixes marked by `*`. Samples in them are idle
/// time, not work.
const IDLE: &[&str] = &[
    "default_idle",
    "default_idle_call",
    "native_safe_halt",
    "pv_native_safe_halt",
    "native_halt",
    "xen_safe_halt",
    "xen_pv_safe_halt",
    "kvm_halt_poll",
    "mwait_idle*",
    "mwait_idle_with_hints*",
    "intel_idle*",
    "amd_e400_idle",
    "acpi_idle*",
    "acpi_safe_halt",
    "acpi_processor_ffh_cstate_enter",
    "haltpoll_enter_idle",
    "poll_idle",
    "cpuidle_*",
    "do_idle",
    "arch_cpu_idle*",
    "cpu_do_idle",
    "cpu_idle_poll*",
    "cpu_startup_entry",
    "psci_enter_idle*",
    "psci_cpu_suspend_enter",
    "tick_nohz_idle_*",
    "tdx_safe_halt",
];

#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: u64,
    name: u32,
    module: u16,
    len: u16,
}

/// The table. Cheap to drop and read again.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    symbols: Vec<Symbol>,
    text: String,
    modules: Vec<Box<str>>,
    hidden: bool,
}

/// A symbol found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSymbol<'a> {
    /// Its index, the same until the table is read again.
    pub index: u32,
    /// Its name.
    pub name: &'a str,
    /// `[kernel]`, the module's name, or `bpf`.
    pub module: &'a str,
}

impl KernelSymbols {
    /// The table of a kernel that shows nothing.
    pub fn none() -> KernelSymbols {
        KernelSymbols {
            hidden: true,
            ..Default::default()
        }
    }

    /// Reads `/proc/kallsyms`.
    ///
    /// # Errors
    /// When it cannot be read. Hidden addresses are no error: see [`KernelSymbols::hidden`].
    pub fn read() -> io::Result<KernelSymbols> {
        KernelSymbols::parse(BufReader::with_capacity(
            64 << 10,
            File::open("/proc/kallsyms")?,
        ))
    }

    /// Reads a table in the format of `/proc/kallsyms`: `address type name[\t[module]]` a line.
    /// Lines that make no sense are skipped.
    ///
    /// # Errors
    /// When reading fails.
    pub fn parse(mut from: impl BufRead) -> io::Result<KernelSymbols> {
        let mut table = KernelSymbols {
            modules: vec!["[kernel]".into()],
            ..Default::default()
        };
        let mut line = Vec::with_capacity(256);
        let (mut lines, mut zeros) = (0u64, 0u64);
        loop {
            line.clear();
            if io::Read::take(&mut from, 4096).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Some((address, kind, name, module)) = split(&line) else {
                continue;
            };
            lines += 1;
            zeros += u64::from(address == 0);
            // Text symbols; lower case is local. `__pfx_` marks the padding before a function, as
            // many as there are functions; nothing runs there.
            let text = matches!(kind, b't' | b'T' | b'w' | b'W') && !name.starts_with(b"__pfx_");
            if address != 0 && text {
                table.push(address, name, module);
            }
        }
        // Without the right to see them every address reads as zero. Per-CPU symbols of a kernel
        // that shows its addresses are near zero too, but not all.
        table.hidden = lines == 0 || zeros == lines;
        table.symbols.sort_by_key(|symbol| symbol.start);
        table.symbols.shrink_to_fit();
        table.text.shrink_to_fit();
        Ok(table)
    }

    fn push(&mut self, start: u64, name: &[u8], module: &[u8]) {
        if self.symbols.len() >= SYMBOLS_MAX {
            return;
        }
        let module = match module {
            b"" => 0,
            _ => self.module(&String::from_utf8_lossy(module)),
        };
        let name = String::from_utf8_lossy(name);
        let name = if name.starts_with("_R") {
            profile::names::readable(name.as_bytes()).into()
        } else {
            name
        };
        let Ok(place) = u32::try_from(self.text.len()) else {
            return;
        };
        self.text.push_str(&name);
        // Names are at most 512 bytes in the kernel; a line is at most 4,096 here.
        self.symbols.push(Symbol {
            start,
            name: place,
            module,
            len: name.len() as u16,
        });
    }

    fn module(&mut self, name: &str) -> u16 {
        // The newest is most likely the same: kallsyms lists module by module.
        if let Some(found) = self.modules.iter().rposition(|module| **module == *name) {
            return found as u16;
        }
        if self.modules.len() > usize::from(u16::MAX) {
            return 0;
        }
        self.modules.push(name.into());
        (self.modules.len() - 1) as u16
    }

    /// The function that an address is in.
    pub fn find(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.start <= address);
        let mut index = after.checked_sub(1)?;
        let start = self.symbols[index].start;
        if address - start >= FUNCTION_BYTES_MAX {
            return None;
        }
        // The first listed of several aliases wins, as in the kernel's own tools.
        while index > 0 && self.symbols[index - 1].start == start {
            index -= 1;
        }
        Some(self.symbol(index))
    }

    fn symbol(&self, index: usize) -> KernelSymbol<'_> {
        let symbol = self.symbols[index];
        let place = symbol.name as usize;
        KernelSymbol {
            index: index as u32,
            name: &self.text[place..place + usize::from(symbol.len)],
            module: &self.modules[usize::from(symbol.module)],
        }
    }

    /// Sorted address ranges, start and end, of all functions with a matching name.
    pub fn ranges_of(&self, predicate: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (index, symbol) in self.symbols.iter().enumerate() {
            if !predicate(self.symbol(index).name) {
                continue;
            }
            let later = &self.symbols[index..];
            let next = later
                .iter()
                .map(|other| other.start)
                .find(|&start| start > symbol.start);
            let most = symbol.start.saturating_add(FUNCTION_BYTES_MAX);
            let end = next.unwrap_or(most).min(most);
            match ranges.last_mut() {
                Some(last) if last.1 >= symbol.start => last.1 = last.1.max(end),
                _ => ranges.push((symbol.start, end)),
            }
        }
        ranges
    }

    /// Address ranges of the idle loop; empty when symbols are hidden.
    pub fn idle_ranges(&self) -> Vec<(u64, u64)> {
        self.ranges_of(is_idle)
    }

    /// True when the kernel shows no addresses: `kernel.kptr_restrict`, or no `CAP_SYSLOG`.
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// Number of symbols.
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.symbols.capacity() * size_of::<Symbol>() + self.text.capacity()
    }
}

/// True for functions of the idle loop.
pub fn is_idle(name: &str) -> bool {
    // Compilers split parts off: `do_idle.cold`, `cpuidle_enter.constprop.0`.
    let name = name.split('.').next().unwrap_or(name);
    IDLE.iter().any(|idle| match idle.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *idle,
    })
}

/// Splits a line into address, type, name and module (without brackets).
fn split(line: &[u8]) -> Option<(u64, u8, &[u8], &[u8])> {
    let mut parts = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|part| !part.is_empty());
    let address = u64::from_str_radix(std::str::from_utf8(parts.next()?).ok()?, 16).ok()?;
    let kind = parts.next()?;
    let name = parts.next()?;
    let module = parts.next().unwrap_or(b"");
    let module = module
        .strip_prefix(b"[")
        .and_then(|module| module.strip_suffix(b"]"));
    (kind.len() == 1).then(|| (address, kind[0], name, module.unwrap_or(b"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000ff0 T __pfx_do_idle\n\
        ffffffff81001000 T do_idle\n\
        ffffffff81001100 t do_idle.cold\n\
        ffffffff81002000 T schedule\n\
        ffffffff81002000 T schedule_alias\n\
        broken\n\
        ffffffff82000000 D jiffies\n\
        ffffffffa0000000 t nft_do_chain\t[nf_tables]\n\
        ffffffffa0100000 t bpf_prog_6deef7357e7b4530_probe\t[bpf]\n";

    fn table() -> KernelSymbols {
        KernelSymbols::parse(SAMPLE.as_bytes()).expect("reads from memory")
    }

    fn check(address: u64, expected: Option<(&str, &str)>) {
        let table = table();
        assert_eq!(
            table.find(address).map(|found| (found.name, found.module)),
            expected
        );
    }

    #[test]
    fn addresses_are_named_with_their_module() {
        check(0xffffffff81001010, Some(("do_idle", "[kernel]")));
        check(0xffffffff81000ff8, Some(("_stext", "[kernel]")));
        check(0xffffffff81002abc, Some(("schedule", "[kernel]")));
        check(0xffffffffa0000010, Some(("nft_do_chain", "nf_tables")));
        check(
            0xffffffffa0100000,
            Some(("bpf_prog_6deef7357e7b4530_probe", "bpf")),
        );
        check(0xffffffffa0200000, None);
        check(0x1000, None);
    }

    #[test]
    fn idle_ranges_join_neighbours() {
        assert_eq!(
            table().idle_ranges(),
            [(0xffffffff81001000, 0xffffffff81002000)]
        );
    }

    #[test]
    fn addresses_that_are_all_zero_are_hidden() {
        let zeros = "0000000000000000 T _stext\n0000000000000000 T do_idle\n";
        let table = KernelSymbols::parse(zeros.as_bytes()).expect("reads from memory");
        assert!(table.hidden() && table.is_empty() && table.idle_ranges().is_empty());
        assert!(!self::table().hidden());
    }

    #[test]
    fn an_empty_table_is_hidden() {
        assert!(
            KernelSymbols::parse(&b""[..])
                .expect("reads from memory")
                .hidden()
        );
    }

    #[test]
    fn lines_without_end_are_cut() {
        let long = format!("ffffffff81000000 T {}\n", "x".repeat(100_000));
        let table = KernelSymbols::parse(long.as_bytes()).expect("reads from memory");
        assert!(table.text.len() <= 4096);
    }

    #[test]
    fn names_of_the_running_kernel() {
        let table = KernelSymbols::read().expect("kallsyms is readable");
        if table.hidden() {
            testkit::skip("kernel symbols are hidden");
            return;
        }
        let range = table.ranges_of(|name| name == "schedule");
        assert_eq!(range.len(), 1);
        assert_eq!(
            table.find(range[0].0 + 1).map(|found| found.name),
            Some("schedule")
        );
        assert!(!table.idle_ranges().is_empty());
    }
}
