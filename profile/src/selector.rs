//! The text form of selectors: `unit="nginx.service",comm=~"ja.*",cgroup^="/system.slice"`.
//!
//! ```text
//! selector = [ "{" ] [ matcher { "," matcher } [ "," ] ] [ "}" ]
//! matcher  = label ( "=" | "!=" | "=~" | "!~" | "^=" ) value
//! label    = letter or "_", then letters, digits, "_", ".", "-", "/" ; or quoted like a value
//! value    = '"' text '"' | "'" text "'" | "`" raw text "`" | bare
//! ```
//! White space may stand between all parts. In double and single quotes a backslash starts an
//! escape: `\\ \" \' \n \r \t \xHH` (below 80), `\uHHHH` and `\u{H…}`; back quotes take text as it
//! is, which suits patterns. A bare value ends at white space, a comma, a quote or a brace, because
//! shells eat quotes: `unit=nginx.service` means what it looks like.

use crate::filter::{FilterError, LabelMatcher, MatchOp, Selector};
use std::fmt;
use std::str::FromStr;

/// Longest selector read. Unit: bytes. It holds the most matchers with patterns of useful length.
pub const SELECTOR_LEN_MAX: usize = 64 << 10;

/// Why a text is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Something else should stand there.
    #[error("failed to parse selector at byte {at}: expected {expected}, found {found}")]
    Syntax {
        /// Byte offset in the text.
        at: usize,
        /// The expected text.
        expected: &'static str,
        /// The text found.
        found: String,
    },
    /// An escape that does not exist.
    #[error(
        "failed to parse selector at byte {at}: unknown escape `{escape}`; write `\\\\` for a \
         backslash, or put the value in back quotes"
    )]
    Escape {
        /// Byte offset of the backslash.
        at: usize,
        /// The escape as written.
        escape: String,
    },
    /// Longer than [`SELECTOR_LEN_MAX`].
    #[error("failed to parse selector: it has {len} bytes, at most {SELECTOR_LEN_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// It reads well but a matcher cannot be built.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Selector, SelectorError> {
        if text.len() > SELECTOR_LEN_MAX {
            return Err(SelectorError::TooLong { len: text.len() });
        }
        let mut parser = Parser { text, at: 0 };
        let mut matchers = Vec::new();
        let braced = parser.take('{');
        loop {
            parser.skip_space();
            if braced && parser.take('}') {
                parser.skip_space();
                if parser.peek().is_some() {
                    return Err(parser.unexpected("the end after `}`"));
                }
                break;
            }
            if !braced && parser.peek().is_none() {
                break;
            }
            matchers.push(parser.matcher()?);
            parser.skip_space();
            match parser.peek() {
                Some(',') => parser.at += 1,
                Some('}') if braced => {}
                None if !braced => {}
                _ if braced => return Err(parser.unexpected("`,` or `}`")),
                _ => return Err(parser.unexpected("`,` or the end")),
            }
        }
        Ok(Selector::new(matchers)?)
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, wanted: char) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn unexpected(&self, expected: &'static str) -> SelectorError {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(found) => format!("`{}`", found.escape_debug()),
        };
        SelectorError::Syntax {
            at: self.at,
            expected,
            found,
        }
    }

    fn matcher(&mut self) -> Result<LabelMatcher, SelectorError> {
        let label = match self.peek() {
            Some('"' | '\'' | '`') => self.quoted()?,
            Some(first) if first.is_ascii_alphabetic() || first == '_' => self
                .run(|c| c.is_ascii_alphanumeric() || "_.-/".contains(c))
                .to_owned(),
            _ => return Err(self.unexpected("a label")),
        };
        self.skip_space();
        let op = self.operator()?;
        self.skip_space();
        let value = match self.peek() {
            Some('"' | '\'' | '`') => self.quoted()?,
            _ => self.bare()?,
        };
        Ok(LabelMatcher::new(label, op, value)?)
    }

    fn operator(&mut self) -> Result<MatchOp, SelectorError> {
        // Two-character operators first: `=` starts `=~`.
        let found = MatchOp::ALL
            .into_iter()
            .filter(|op| self.rest().starts_with(op.symbol()))
            .max_by_key(|op| op.symbol().len());
        let Some(op) = found else {
            return Err(self.unexpected("one of `=`, `!=`, `=~`, `!~`, `^=`"));
        };
        self.at += op.symbol().len();
        Ok(op)
    }

    fn run(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let len = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn bare(&mut self) -> Result<String, SelectorError> {
        let ends = |c: char| c.is_whitespace() || ",{}\"'`".contains(c);
        let value = self.run(|c| !ends(c));
        if value.is_empty() {
            return Err(self.unexpected("a value"));
        }
        Ok(value.to_owned())
    }

    fn quoted(&mut self) -> Result<String, SelectorError> {
        let mut value = String::new();
        let quote = self.peek().unwrap_or('"');
        self.at += 1;
        loop {
            let Some(found) = self.peek() else {
                return Err(self.unexpected("the closing quote"));
            };
            if found == '\\' && quote != '`' {
                value.push(self.escape()?);
                continue;
            }
            self.at += found.len_utf8();
            if found == quote {
                return Ok(value);
            }
            value.push(found);
        }
    }

    fn escape(&mut self) -> Result<char, SelectorError> {
        let (at, body) = (self.at, &self.rest()[1..]);
        let hex = |digits: &str| {
            let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if valid {
                u32::from_str_radix(digits, 16).ok()
            } else {
                None
            }
        };
        let (found, len) = match body.chars().next() {
            Some('n') => (Some('\n'), 1),
            Some('r') => (Some('\r'), 1),
            Some('t') => (Some('\t'), 1),
            Some(same @ ('\\' | '"' | '\'' | '`')) => (Some(same), 1),
            Some('x') => {
                let code = body.get(1..3).and_then(hex).filter(|&code| code < 0x80);
                (code.and_then(char::from_u32), 3)
            }
            Some('u') if !body.starts_with("u{") => {
                let code = body.get(1..5).and_then(hex).and_then(char::from_u32);
                (code, 5)
            }
            Some('u') => {
                let digits = body
                    .strip_prefix("u{")
                    .and_then(|rest| rest.split_once('}'))
                    .map(|(digits, _)| digits)
                    .filter(|digits| digits.len() <= 6);
                let code = digits.and_then(hex).and_then(char::from_u32);
                (code, digits.map_or(1, |digits| digits.len() + 3))
            }
            other => (None, other.map_or(0, char::len_utf8)),
        };
        let Some(found) = found else {
            let mut end = (at + 1 + len).min(self.text.len());
            while !self.text.is_char_boundary(end) {
                end -= 1;
            }
            return Err(SelectorError::Escape {
                at,
                escape: self.text[at..end].to_owned(),
            });
        };
        self.at += 1 + len;
        Ok(found)
    }
}

/// Writes the text form; what it writes is read back as an equal selector.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, matcher) in self.matchers().iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            fmt::Display::fmt(matcher, f)?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.label();
        let plain = label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if plain {
            f.write_str(label)?;
        } else {
            write_quoted(f, label)?;
        }
        f.write_str(self.op().symbol())?;
        write_quoted(f, self.value())
    }
}

fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    use fmt::Write as _;
    f.write_str("\"")?;
    for found in text.chars() {
        match found {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            found if crate::text::is_hostile(found) => write!(f, "\\u{{{:x}}}", u32::from(found))?,
            found => f.write_char(found)?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &[(&str, MatchOp, &str)]) {
        let selector: Selector = text.parse().unwrap();
        let found: Vec<_> = selector
            .matchers()
            .iter()
            .map(|m| (m.label(), m.op(), m.value()))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    fn refused(text: &str) -> String {
        text.parse::<Selector>().unwrap_err().to_string()
    }

    #[test]
    fn labels_of_containers_need_no_quotes() {
        let label = "container.label/app.kubernetes.io/part-of";
        check(
            &format!("{label}=shop,\"{label}\"!=x,pod.label/a-b=~`c`"),
            &[
                (label, MatchOp::Equal, "shop"),
                (label, MatchOp::NotEqual, "x"),
                ("pod.label/a-b", MatchOp::Regex, "c"),
            ],
        );
    }

    #[test]
    fn every_operator_is_read() {
        check(
            r#"unit="nginx.service",comm=~"ja.*",cgroup^="/system.slice",pid!="1",thread!~"w-.""#,
            &[
                ("unit", MatchOp::Equal, "nginx.service"),
                ("comm", MatchOp::Regex, "ja.*"),
                ("cgroup", MatchOp::Subtree, "/system.slice"),
                ("pid", MatchOp::NotEqual, "1"),
                ("thread", MatchOp::NotRegex, "w-."),
            ],
        );
    }

    #[test]
    fn braces_space_and_a_last_comma_are_optional() {
        check("", &[]);
        check("{}", &[]);
        check(" { } ", &[]);
        let one = [("comm", MatchOp::Equal, "x")];
        check("{comm=\"x\"}", &one);
        check(" { comm = 'x' , } ", &one);
        check("comm=`x`,", &one);
    }

    #[test]
    fn bare_values_survive_a_shell() {
        check(
            "unit=nginx.service, cgroup^=/a/b,comm=~ja.*",
            &[
                ("unit", MatchOp::Equal, "nginx.service"),
                ("cgroup", MatchOp::Subtree, "/a/b"),
                ("comm", MatchOp::Regex, "ja.*"),
            ],
        );
    }

    #[test]
    fn escapes_are_read() {
        check(
            r#"comm="a\"\\\n\t\x41\u{20ac}\u00e9",thread=~`\d+"`"#,
            &[
                ("comm", MatchOp::Equal, "a\"\\\n\tA€é"),
                ("thread", MatchOp::Regex, r#"\d+""#),
            ],
        );
    }

    #[test]
    fn errors_say_where_and_what() {
        insta::assert_snapshot!(
            [
                "unit",
                "unit>1",
                "=\"x\"",
                "unit=",
                "unit=\"x",
                "unit=\"x\" comm=\"y\"",
                "{unit=\"x\"",
                "{unit=\"x\"} y",
                "unit=\"x\"}",
                r#"comm=~"\d+""#,
                r#"comm="\u{110000}""#,
                r#"comm="\xé""#,
                "comm=~\"(\"",
                "cgroup^=\"\"",
            ]
            .map(|text| format!("{text}\n    {}", refused(text)))
            .join("\n"),
            @r#"
unit
    failed to parse selector at byte 4: expected one of `=`, `!=`, `=~`, `!~`, `^=`, found the end
unit>1
    failed to parse selector at byte 4: expected one of `=`, `!=`, `=~`, `!~`, `^=`, found `>`
="x"
    failed to parse selector at byte 0: expected a label, found `=`
unit=
    failed to parse selector at byte 5: expected a value, found the end
unit="x
    failed to parse selector at byte 7: expected the closing quote, found the end
unit="x" comm="y"
    failed to parse selector at byte 9: expected `,` or the end, found `c`
{unit="x"
    failed to parse selector at byte 9: expected `,` or `}`, found the end
{unit="x"} y
    failed to parse selector at byte 11: expected the end after `}`, found `y`
unit="x"}
    failed to parse selector at byte 8: expected `,` or the end, found `}`
comm=~"\d+"
    failed to parse selector at byte 7: unknown escape `\d`; write `\\` for a backslash, or put the value in back quotes
comm="\u{110000}"
    failed to parse selector at byte 6: unknown escape `\u{110000}`; write `\\` for a backslash, or put the value in back quotes
comm="\xé"
    failed to parse selector at byte 6: unknown escape `\xé`; write `\\` for a backslash, or put the value in back quotes
comm=~"("
    failed to compile pattern `(`: unclosed group
cgroup^=""
    failed to use matcher `cgroup^=""`: a subtree needs a path, `/` for all
"#
        );
    }

    #[test]
    fn length_is_bounded() {
        let text = format!("comm=\"{}\"", "x".repeat(SELECTOR_LEN_MAX));
        assert!(refused(&text).contains("at most"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(pairs in prop::collection::vec((".+", ".*"), 0..4)) {
            let matchers = pairs
                .iter()
                .map(|(label, value)| LabelMatcher::new(label, MatchOp::Equal, value).unwrap())
                .collect();
            let selector = Selector::new(matchers).unwrap();
            prop_assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
        }

        #[test]
        fn any_text_is_read_or_refused(text in r#"[{}a-c=!~^,"'`\\ux0-9é \n]{0,40}"#) {
            let _ = text.parse::<Selector>();
        }
    }
}
