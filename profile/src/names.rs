//! Makes symbol names readable: demangled, printable text, never longer than a limit.
//!
//! The author of a file chooses its names. Mangled names can be written to expand without end, so
//! demangling writes into a buffer that stops at the limit, and a panic of a demangler only costs
//! that one name its demangling.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest function or file name kept. Unit: bytes of UTF-8.
///
/// Longer names are cut and end in `…`. Names of heavy C++ templates reach tens of KiB and give no
/// more information there; a smaller limit makes overloads of one template look like one function.
pub const NAME_BYTES_MAX: usize = 1024;

/// Longest mangled name that is demangled. Unit: bytes. Longer ones are shown as they are, cut.
pub const MANGLED_BYTES_MAX: usize = 8192;

/// Deepest nesting a C++ name may have to be demangled; deeper ones are shown mangled. The library
/// recurses, and the symbolizer's stack is finite.
const CPP_DEPTH_MAX: u32 = 96;

/// Writes up to the limit, then fails, which ends the demangler.
#[derive(Default)]
struct Capped {
    text: String,
    full: bool,
}

impl Write for Capped {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = NAME_BYTES_MAX - self.text.len();
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        self.text.push_str(&more[..more.floor_char_boundary(room)]);
        self.full = true;
        Err(fmt::Error)
    }
}

impl Capped {
    fn finish(mut self) -> String {
        if self.full {
            let keep = NAME_BYTES_MAX - '…'.len_utf8();
            self.text.truncate(self.text.floor_char_boundary(keep));
            self.text.push('…');
        }
        self.text
    }
}

/// A symbol's name for display: Rust (without its hash) and C++ names demangled, bytes that are not
/// UTF-8 replaced, length capped.
pub fn readable(symbol: &[u8]) -> String {
    let text = String::from_utf8_lossy(symbol);
    if text.len() <= MANGLED_BYTES_MAX && may_be_mangled(&text) {
        let demangled = catch_unwind(AssertUnwindSafe(|| demangle(&text)));
        if let Ok(Some(name)) = demangled {
            return name;
        }
    }
    capped(&text)
}

/// `text`, cut at the limit.
pub fn capped(text: &str) -> String {
    let mut out = Capped::default();
    // An error means that the limit was reached, which `finish` marks.
    let _ = out.write_str(text);
    out.finish()
}

/// Bytes from outside as text, cut at the limit.
pub fn capped_bytes(text: &[u8]) -> String {
    capped(&String::from_utf8_lossy(
        &text[..text.len().min(4 * NAME_BYTES_MAX)],
    ))
}

/// Bytes from outside as text that does nothing to who shows it: control characters and bytes that
/// are not UTF-8 replaced, cut at the limit.
pub fn harmless(text: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(text) {
        Ok(plain) if text.len() <= NAME_BYTES_MAX && !plain.contains(char::is_control) => {
            plain.into()
        }
        // The sign is longer than most that it replaces.
        _ => capped(&capped_bytes(text).replace(char::is_control, "\u{fffd}")).into(),
    }
}

fn may_be_mangled(text: &str) -> bool {
    ["_Z", "__Z", "_R", "ZN", "____Z"]
        .iter()
        .any(|prefix| text.starts_with(prefix))
}

fn demangle(text: &str) -> Option<String> {
    let mut out = Capped::default();
    if let Ok(rust) = rustc_demangle::try_demangle(text) {
        let done = write!(out, "{rust:#}");
        return (done.is_ok() || out.full).then(|| out.finish());
    }
    let options = cpp_demangle::ParseOptions::default().recursion_limit(CPP_DEPTH_MAX);
    let symbol = cpp_demangle::BorrowedSymbol::with_tail_and_options(text.as_bytes(), &options);
    let (symbol, tail) = symbol.ok()?;
    let options = cpp_demangle::DemangleOptions::default().recursion_limit(CPP_DEPTH_MAX);
    let done = symbol.structured_demangle(&mut out, &options);
    if done.is_err() && !out.full {
        return None;
    }
    // `.cold`, `.part.0` and the like: which part of the function it is.
    if done.is_ok() && !tail.is_empty() {
        let _ = write!(out, " [clone {}]", String::from_utf8_lossy(tail));
    }
    Some(out.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(symbol: &str, expected: &str) {
        assert_eq!(readable(symbol.as_bytes()), expected);
    }

    #[test]
    fn names_are_demangled() {
        check("main", "main");
        check("_ZN3foo3barEi", "foo::bar(int)");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back(int&&)",
        );
        check(
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
            "core::fmt::Write::write_fmt",
        );
        check(
            "_RNvCskwGfYPst2Cb_3foo16example_function",
            "foo::example_function",
        );
        check("_ZN3foo3barEi.cold", "foo::bar(int) [clone .cold]");
        check("_Zgarbage", "_Zgarbage");
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        assert_eq!(readable(b"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let name = readable("é".repeat(5000).as_bytes());
        assert!(name.len() <= NAME_BYTES_MAX && name.len() > NAME_BYTES_MAX - 4);
        assert!(name.ends_with('…'));
    }

    #[test]
    fn a_name_that_expands_without_end_is_cut() {
        // Each template argument doubles the one before by substitution.
        let mut symbol = String::from("_Z1fI1AIiiE");
        for step in 0..40u32 {
            let reference = match step {
                0 => "S_".to_owned(),
                _ => format!(
                    "S{}_",
                    std::char::from_digit((step - 1).min(35), 36)
                        .expect("digit")
                        .to_ascii_uppercase()
                ),
            };
            symbol.push_str(&format!("S0_I{reference}{reference}E"));
        }
        symbol.push_str("Evv");
        assert!(readable(symbol.as_bytes()).len() <= NAME_BYTES_MAX);
    }

    #[test]
    fn deep_nesting_ends() {
        let symbol = format!("_Z1f{}i", "P".repeat(5000));
        assert!(readable(symbol.as_bytes()).len() <= NAME_BYTES_MAX);
    }
}
