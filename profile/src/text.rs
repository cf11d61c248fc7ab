//! Untrusted text: one reversible escaping for line formats, one safe form for display.
//!
//! Anybody who runs code on the machine chooses function names, comms and cgroup paths. They may
//! contain separators, terminal escapes, and characters that reorder what a reader sees.
//!
//! The escaping of folded stacks, in full:
//!
//! | text | written |
//! |---|---|
//! | `\` | `\\` |
//! | `;` | `\:` |
//! | newline, carriage return, tab | `\n`, `\r`, `\t` |
//! | other characters below U+0080 that [`is_hostile`] names | `\xHH` |
//! | all other characters that [`is_hostile`] names | `\u{H…}` |
//! | white space at the start or end; a space before only digits and dots | `\x20`, `\u{H…}` |
//! | the `#` of text that is `#` or starts with `# ` | `\x23` |
//! | the `[` of an ending that reads like an annotation (`_[k]`) | `\x5b` |
//!
//! The last three prevent a name from being taken for a count (`frame 12`), for a comment line, or
//! for a frame of another kind. When reading, a backslash that starts none of these stands for
//! itself, so files of other tools are read correctly.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The number with commas between thousands: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Text within an element of HTML or XML.
pub fn markup(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The error and what caused it, each once.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        // Some errors say what their cause says.
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

/// True for characters that no output may carry as they are: control characters (C0, DEL, C1), line
/// and paragraph separators, bidirectional controls, the byte order mark, and non-characters, which
/// XML forbids.
pub fn is_hostile(found: char) -> bool {
    found.is_control()
        || matches!(
            found,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fdd0}'..='\u{fdef}'
        )
        || u32::from(found) & 0xfffe == 0xfffe
}

/// The text with hostile characters shown as `\xHH` or `\u{H…}`: for terminals, tables and labels.
/// Not reversible: a backslash stays as it is, so that names read as they were written.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for found in text.chars() {
        if is_hostile(found) {
            push_code(&mut out, found)
        } else {
            out.push(found)
        }
    }
    Cow::Owned(out)
}

/// The text of one frame as it stands in a folded stack; see the table above.
pub fn escape_folded(text: &str) -> Cow<'_, str> {
    let annotation = annotation_at(text);
    let number = number_at(text);
    let plain = |at: usize, found: char| match found {
        '\\' | ';' => false,
        '#' => at != 0 || !(text == "#" || text.starts_with("# ")),
        found if found.is_whitespace() => {
            let at_border = at == 0 || at + found.len_utf8() == text.len();
            !at_border && Some(at) != number && !is_hostile(found)
        }
        '[' => Some(at) != annotation,
        found => !is_hostile(found),
    };
    if text.char_indices().all(|(at, found)| plain(at, found)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for (at, found) in text.char_indices() {
        match found {
            found if plain(at, found) => out.push(found),
            '\\' => out.push_str("\\\\"),
            ';' => out.push_str("\\:"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            found => push_code(&mut out, found),
        }
    }
    Cow::Owned(out)
}

/// Undoes [`escape_folded`].
pub fn unescape_folded(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let body = &rest[at + 1..];
        let (found, len) = read_escape(body).unwrap_or(('\\', 0));
        out.push(found);
        rest = &body[len..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The character that an escape stands for, and the escape's length after the backslash.
fn read_escape(body: &str) -> Option<(char, usize)> {
    let hex = |digits: &str| {
        let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if valid {
            u32::from_str_radix(digits, 16)
                .ok()
                .and_then(char::from_u32)
        } else {
            None
        }
    };
    match body.as_bytes().first()? {
        b'\\' => Some(('\\', 1)),
        b':' => Some((';', 1)),
        b'n' => Some(('\n', 1)),
        b'r' => Some(('\r', 1)),
        b't' => Some(('\t', 1)),
        b'x' => hex(body.get(1..3)?).map(|found| (found, 3)),
        b'u' => {
            let digits = body.strip_prefix("u{")?.split_once('}')?.0;
            if digits.len() > 6 {
                return None;
            }
            hex(digits).map(|found| (found, digits.len() + 3))
        }
        _ => None,
    }
}

fn push_code(out: &mut String, found: char) {
    let code = u32::from(found);
    // Writing to a String cannot fail.
    let _ = if code < 0x80 {
        write!(out, "\\x{code:02x}")
    } else {
        write!(out, "\\u{{{code:x}}}")
    };
}

/// Where the `[` of a trailing `_[x]` stands.
fn annotation_at(text: &str) -> Option<usize> {
    let (head, tail) = text.rsplit_once("_[")?;
    let one = tail.strip_suffix(']')?;
    (one.len() == 1).then_some(head.len() + 1)
}

/// Where the last space stands when only digits and dots follow it.
fn number_at(text: &str) -> Option<usize> {
    let (head, tail) = text.rsplit_once(' ')?;
    let number = tail
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    number.then_some(head.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(escape_folded(text), expected);
        assert_eq!(unescape_folded(expected), text);
    }

    #[derive(Debug)]
    struct Chain(&'static [&'static str], Option<Box<Chain>>);

    impl Chain {
        fn of(words: &'static [&'static str]) -> Chain {
            let rest = (words.len() > 1).then(|| Box::new(Chain::of(&words[1..])));
            Chain(words, rest)
        }
    }

    impl std::fmt::Display for Chain {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0[0])
        }
    }

    impl std::error::Error for Chain {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|it| it as _)
        }
    }

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let told = with_causes(&Chain::of(&[
            "transport error",
            "tcp connect error",
            "tcp connect error",
            "Connection refused (os error 111)",
        ]));
        assert_eq!(
            told,
            "transport error: tcp connect error: Connection refused (os error 111)"
        );
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn separators_and_controls_are_escaped() {
        check("plain::name<T>(int) const", "plain::name<T>(int) const");
        check("Lfoo;::bar", "Lfoo\\:::bar");
        check("a\nb\rc\td", "a\\nb\\rc\\td");
        check("\x1b[31mred", "\\x1b[31mred");
        check("\u{202e}gnp.exe", "\\u{202e}gnp.exe");
        check("\u{9b}31m\u{2028}", "\\u{9b}31m\\u{2028}");
        check(r"App\Kernel\new", r"App\\Kernel\\new");
    }

    #[test]
    fn a_name_is_not_taken_for_a_count_or_an_annotation() {
        check("worker 12", "worker\\x2012");
        check("v 1.5", "v\\x201.5");
        check("worker 12x", "worker 12x");
        check(" padded ", "\\x20padded\\x20");
        check("\u{3000}wide", "\\u{3000}wide");
        check("# note", "\\x23 note");
        // A space and the count follow it.
        check("#", "\\x23");
        check("#private", "#private");
        check("fake_[k]", "fake_\\x5bk]");
        check("array_[12]", "array_[12]");
    }

    #[test]
    fn foreign_backslashes_stand_for_themselves() {
        assert_eq!(unescape_folded(r"App\Controller"), r"App\Controller");
        assert_eq!(unescape_folded(r"a\"), r"a\");
        assert_eq!(unescape_folded(r"\u{110000}\xzz"), r"\u{110000}\xzz");
    }

    #[test]
    fn printable_text_keeps_backslashes() {
        assert_eq!(printable("a\\b;c"), "a\\b;c");
        assert_eq!(printable("\x1b[2J\u{202e}"), "\\x1b[2J\\u{202e}");
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in any::<String>()) {
            let escaped = escape_folded(&text);
            prop_assert!(!escaped.chars().any(|found| found == ';' || is_hostile(found)));
            prop_assert_eq!(unescape_folded(&escaped), text.as_str());
        }

        #[test]
        fn text_made_of_escapes_comes_back(text in r"[\\:;nrtxu{}0-9a-f \n_\[\]k]{0,24}") {
            prop_assert_eq!(unescape_folded(&escape_folded(&text)).into_owned(), text);
        }
    }
}
