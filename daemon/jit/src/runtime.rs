//! Finds out which runtime a process with generated code uses, and how it was started: from its
//! mappings, command line, environment, and data that it publishes itself.
//!
//! Reads `/proc/PID` and files of the process, so helpers do it ([`look`] may wait forever). What
//! is read is bounded. Command line and environment may contain secrets, so only the conclusions
//! are kept.

pub mod switches;

use super::hotspot::Layout;
use super::perfdata;
use super::target::{self, Target};
use host::time::MonotonicTime;
use std::fs::File;
use std::io::{BufRead, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
pub use switches::Settings;
use symbolize::elf;
use symbolize::open::{Links, base_name, open_mapping, without_deleted};
use unwind::process::is_dump_marker;
use unwind::process::maps::{self, Map};

/// Command line and environment read of a process, each. Unit: bytes. What lies beyond is not seen.
const WORDS_BYTES_MAX: u64 = 256 << 10;

/// Longest table of names of a library read. Unit: bytes. libjvm.so has one of 0.1 MB.
const NAMES_BYTES_MAX: u64 = 8 << 20;

/// File from which .NET maps its generated code, unless `DOTNET_EnableWriteXorExecute=0`. It is
/// needed because programs published as one file have no `libcoreclr.so`.
const DOTNET_CODE: &str = "memfd:doublemapper";

/// A symbol that HotSpot's library has and no other JVM's: its own tools find its structures by it.
const HOTSPOT_SYMBOL: &[u8] = b"\0gHotSpotVMStructs\0";

/// The runtime that generates code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    /// OpenJDK's JVM.
    HotSpot,
    /// .NET, 5 or later or Core.
    DotNet,
    /// V8 in Node.
    Node,
    /// Erlang's and Elixir's.
    Beam,
    /// PHP with opcache.
    Php,
    /// LuaJIT.
    LuaJit,
    /// wasmtime.
    Wasmtime,
    /// Python's first implementation.
    CPython,
    /// Any other, or none that is known.
    Unknown,
}

impl Runtime {
    /// Stable word.
    pub fn word(self) -> &'static str {
        match self {
            Runtime::HotSpot => "hotspot",
            Runtime::DotNet => "dotnet",
            Runtime::Node => "node",
            Runtime::Beam => "beam",
            Runtime::Php => "php",
            Runtime::LuaJit => "luajit",
            Runtime::Wasmtime => "wasmtime",
            Runtime::CPython => "cpython",
            Runtime::Unknown => "unknown",
        }
    }

    /// The runtime that a mapped file of this name is. A name is a claim, not a proof.
    fn of_file(name: &str) -> Option<Runtime> {
        let name = name.split(".so").next().unwrap_or(name);
        let versioned = |stem: &str| {
            name.strip_prefix(stem)
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
        };
        let runtime = match name {
            "libjvm" => Runtime::HotSpot,
            "libcoreclr" | DOTNET_CODE => Runtime::DotNet,
            "node" | "nodejs" | "libnode" => Runtime::Node,
            "beam.smp" => Runtime::Beam,
            "libwasmtime" | "wasmtime" => Runtime::Wasmtime,
            _ if ["php", "php-fpm", "php-cgi", "libphp"].map(versioned)[..].contains(&true) => {
                Runtime::Php
            }
            _ if name.starts_with("luajit") || name.starts_with("libluajit") => Runtime::LuaJit,
            _ if versioned("python") || versioned("libpython") => Runtime::CPython,
            _ => return None,
        };
        Some(runtime)
    }
}

/// Facts about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The runtime that generates its code.
    pub runtime: Runtime,
    /// Version, if the name of a file contains it: CPython's.
    pub version: Option<(u32, u32)>,
    /// True when it maps a jitdump.
    pub dump: bool,
    /// True when it is a JVM whose structures can be read.
    pub structures: bool,
    /// How it was started.
    pub settings: Settings,
}

/// Facts from the mappings of a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    runtime: Option<Runtime>,
    version: Option<(u32, u32)>,
    dump: bool,
    /// The executable mapping of the library that is the runtime.
    library: Option<Map>,
    /// Performance data of a JVM.
    perf_data: Option<Map>,
}

/// The very file that is mapped: by its path within the root, else through the mapping itself.
fn open(map: &Map, pid: u32, target: &Target) -> Option<File> {
    let path = without_deleted(&map.path);
    let by_path = target.root.open(path, Links::Inside).ok();
    let same = |file: &File| file.metadata().is_ok_and(|facts| facts.ino() == map.inode);
    by_path
        .filter(same)
        .or_else(|| open_mapping(pid, map.start, map.end).ok())
}

/// Finds out what a process is; `None` if it is gone or its pid was reused. May wait forever.
pub fn look(pid: u32, started_by: MonotonicTime) -> Option<Facts> {
    let target = Target::look(pid, started_by)?;
    let facts = look_at(pid, &target);
    // What was read was the same process's.
    Target::look(pid, started_by)?;
    Some(facts)
}

/// The same for a process that the caller has verified.
pub fn look_at(pid: u32, target: &Target) -> Facts {
    let mapped = target::maps_of(pid).map_or_else(|_| Mapped::default(), Mapped::of);
    let mut runtime = mapped.runtime.unwrap_or(Runtime::Unknown);
    if runtime == Runtime::HotSpot {
        let library = mapped.library.as_ref();
        let file = library.and_then(|library| open(library, pid, target));
        if !file.is_some_and(|file| is_hotspot(&file)) {
            runtime = Runtime::Unknown;
        }
    }
    let command = words(&format!("/proc/{pid}/cmdline"));
    let environment = words(&format!("/proc/{pid}/environ"));
    let perf_data = match (runtime, &mapped.perf_data) {
        (Runtime::HotSpot, Some(map)) => open(map, pid, target).and_then(|file| content(&file)),
        _ => None,
    };
    Facts {
        runtime,
        version: mapped.version,
        dump: mapped.dump,
        structures: runtime == Runtime::HotSpot && matches!(Layout::look(pid), Ok(Some(_))),
        settings: Settings::of(runtime, &command, &environment, perf_data.as_deref()),
    }
}

/// True when the library has HotSpot's own symbol.
fn is_hotspot(file: &File) -> bool {
    let Ok(headers) = elf::read_headers(file) else {
        return false;
    };
    let Some(names) = headers.section(b".dynstr") else {
        return false;
    };
    if names.size > NAMES_BYTES_MAX {
        return false;
    }
    let mut text = vec![0; names.size as usize];
    file.read_exact_at(&mut text, names.offset).is_ok()
        && text
            .windows(HOTSPOT_SYMBOL.len())
            .any(|window| window == HOTSPOT_SYMBOL)
}

fn content(file: &File) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = file.take(perfdata::BYTES_MAX as u64);
    limited.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The words of a file in which NUL ends each. What cannot be read has none.
fn words(path: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // Part of it is better than nothing.
        let _ = file.take(WORDS_BYTES_MAX).read_to_end(&mut bytes);
    }
    let words = bytes.split(|&byte| byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

impl Mapped {
    fn of(text: impl BufRead) -> Mapped {
        let mut found = Mapped::default();
        maps::files(text, |map, executable| found.take(map, executable));
        found
    }

    fn take(&mut self, map: Map, executable: bool) {
        if is_perf_data(without_deleted(&map.path)) {
            self.perf_data = Some(map);
        } else if executable && is_dump_marker(&map.path) {
            self.dump = true;
        } else if executable
            && let Ok(name) = std::str::from_utf8(base_name(&map.path))
            && let Some(runtime) = Runtime::of_file(name)
            // The order of the list: what embeds another comes first.
            && self.runtime.is_none_or(|known| runtime < known)
        {
            self.runtime = Some(runtime);
            self.version = version(name);
            self.library = Some(map);
        }
    }
}

/// True for `hsperfdata_<user>/<pid>`.
fn is_perf_data(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/');
    let name = parts.next().unwrap_or_default();
    let dir = parts.next().unwrap_or_default();
    dir.starts_with(b"hsperfdata_") && !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

/// Major and minor number in a name such as `libpython3.12.so.1.0`.
fn version(name: &str) -> Option<(u32, u32)> {
    let name = name.split(".so").next()?;
    let (major, minor) = name
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: Option<Runtime>) {
        let lines: Vec<String> = names
            .iter()
            .map(|name| format!("10-20 r-xp 00000000 fe:00 42      {name}\n"))
            .collect();
        let mapped = Mapped::of(lines.concat().as_bytes());
        assert_eq!(mapped.runtime, expected, "{names:?}");
    }

    #[test]
    fn a_runtime_is_known_by_what_it_maps() {
        check(&["/usr/bin/cat", "/usr/lib/libc.so.6"], None);
        check(&["/a/jre/lib/server/libjvm.so"], Some(Runtime::HotSpot));
        check(&["/usr/share/dotnet/libcoreclr.so"], Some(Runtime::DotNet));
        check(
            &["/srv/app", "/memfd:doublemapper (deleted)"],
            Some(Runtime::DotNet),
        );
        check(&["/usr/bin/node"], Some(Runtime::Node));
        check(
            &["/usr/lib/x86_64-linux-gnu/libnode.so.108"],
            Some(Runtime::Node),
        );
        check(
            &["/usr/lib/erlang/erts-13.1.5/bin/beam.smp"],
            Some(Runtime::Beam),
        );
        check(&["/usr/bin/php8.2"], Some(Runtime::Php));
        check(
            &["/usr/sbin/apache2", "/usr/lib/apache2/modules/libphp8.2.so"],
            Some(Runtime::Php),
        );
        check(
            &["/usr/bin/luajit-2.1.0-beta3 (deleted)"],
            Some(Runtime::LuaJit),
        );
        check(&["/opt/wasmtime"], Some(Runtime::Wasmtime));
        check(
            &["/usr/lib/libpython3.12.so.1.0", "/usr/bin/python3.12"],
            Some(Runtime::CPython),
        );
        check(&["/usr/bin/phpstorm", "/x/pythonic"], None);
    }

    #[test]
    fn what_embeds_another_comes_first() {
        let names = ["/usr/bin/python3.11", "/jdk/lib/server/libjvm.so"];
        check(&names, Some(Runtime::HotSpot));
        check(&[names[1], names[0]], Some(Runtime::HotSpot));
    }

    #[test]
    fn only_executable_mappings_count() {
        let mapped = Mapped::of(&b"10-20 r--p 00000000 fe:00 42      /usr/bin/node\n"[..]);
        assert_eq!(mapped.runtime, None);
    }

    #[test]
    fn markers_and_versions_are_found() {
        let maps = "\
10-20 rw-s 00000000 fe:00 7     /tmp/hsperfdata_a b/812
20-30 r-xp 00000000 fe:00 8     /tmp/jit-812.dump
30-40 r-xp 00000000 fe:00 9     /usr/lib/libpython3.12.so.1.0
40-50 r-xp 00000000 fe:00 9     /tmp/jit-x.dump
nonsense
";
        let mapped = Mapped::of(maps.as_bytes());
        assert!(mapped.dump);
        assert_eq!(mapped.version, Some((3, 12)));
        let perf_data = mapped.perf_data.expect("is mapped");
        assert_eq!(
            (perf_data.inode, &*perf_data.path),
            (7, &b"/tmp/hsperfdata_a b/812"[..])
        );
    }

    #[test]
    fn this_process_is_no_runtime() {
        let facts = look(std::process::id(), MonotonicTime::now()).expect("is alive");
        assert_eq!((facts.runtime, facts.dump), (Runtime::Unknown, false));
        assert!(
            look(std::process::id(), MonotonicTime(0)).is_none(),
            "started later"
        );
    }
}
