//! One rule for all profilers: is a stack whole, and what is a function called?
//!
//! Profilers have words of their own for how a stack ended. Here only the names of its frames
//! count, so that the shares of two can be compared.

/// Functions at which stacks start: of programs, of threads, of Go, and of kernel threads.
const STARTS: &[&str] = &[
    "main",
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "_dl_start",
    "_dl_start_user",
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.mstart",
    "runtime.mstart.abi0",
    "kthread",
    "ret_from_fork",
    "ret_from_fork_asm",
];

/// How many frames at the root end may be the start function. A stripped program's `_start` and the
/// C library's local functions have no name, and yet the stack is complete.
const ROOT_FRAMES: usize = 3;

/// True when a stack, leaf first, reaches a start function.
pub fn is_complete<'a>(leaf_first: impl DoubleEndedIterator<Item = &'a str>) -> bool {
    leaf_first
        .rev()
        .take(ROOT_FRAMES)
        .any(|name| STARTS.contains(&plain(name)))
}

/// A function's name without what one profiler adds and another does not: the version of a symbol,
/// the hash of a Rust path, parameters of C++.
pub fn plain(name: &str) -> &str {
    let name = name.split_once("@@").map_or(name, |(name, _)| name);
    let name = name.split_once("@GLIBC").map_or(name, |(name, _)| name);
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            path
        }
        _ => name,
    }
}

/// Stacks counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// In all.
    pub stacks: u64,
    /// Whole ones.
    pub complete: u64,
}

impl Counted {
    /// Adds `count` stacks like this one.
    pub fn add<'a>(&mut self, leaf_first: impl DoubleEndedIterator<Item = &'a str>, count: u64) {
        self.stacks += count;
        self.complete += if is_complete(leaf_first) { count } else { 0 };
    }

    /// Share of whole ones; none without stacks.
    pub fn share(self) -> Option<f64> {
        (self.stacks > 0).then(|| self.complete as f64 / self.stacks as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_whole_when_a_start_function_is_near_its_root() {
        let whole = [
            "leaf",
            "main",
            "[libc.so.6]",
            "__libc_start_main@@GLIBC_2.34",
        ];
        assert!(is_complete(whole.into_iter()));
        assert!(is_complete(["a", "start_thread", "clone3"].into_iter()));
        assert!(!is_complete(["main", "a", "b", "c"].into_iter()));
        assert!(!is_complete(std::iter::empty()));
    }

    #[test]
    fn names_lose_versions_and_hashes() {
        assert_eq!(plain("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(plain("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(plain("a::hash"), "a::hash");
    }
}
