//! The place of code without a symbol, by which its name can be looked up later.

use std::fmt;

/// Longest build id that is kept. Unit: hexadecimal digits. Linkers write 16, 32 or 40.
const BUILD_ID_DIGITS_MAX: usize = 64;

/// Fewest digits of a build ID. Fewer do not identify a file.
const BUILD_ID_DIGITS_MIN: usize = 8;

/// A function of a file, wherever that file is.
///
/// It is written to [`Frame::system_name`](crate::Frame::system_name) of frames without a symbol,
/// as `BUILD_ID+0xADDRESS`. So it is part of the frame's identity, and functions without names stay
/// separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Place<'a> {
    /// The GNU build id in lower-case hexadecimal.
    pub build_id: &'a str,
    /// Where the function starts, or where the sample was where that is not known. It counts as the
    /// file's symbols do, not from the file's first byte: separate debug files share the one and
    /// not the other.
    pub address: u64,
}

impl<'a> Place<'a> {
    /// The place that a text says, if it is one.
    pub fn parse(text: &'a str) -> Option<Place<'a>> {
        let (build_id, address) = text.split_once("+0x")?;
        let fits = (1..=16).contains(&address.len()) && is_hex(address);
        let address = u64::from_str_radix(address, 16).ok().filter(|_| fits)?;
        is_build_id(build_id).then_some(Place { build_id, address })
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.build_id, self.address)
    }
}

/// A build id as [`Place`] has it.
pub fn build_id_text(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True for a text that is a build id as [`Place`] has it.
pub fn is_build_id(text: &str) -> bool {
    (BUILD_ID_DIGITS_MIN..=BUILD_ID_DIGITS_MAX).contains(&text.len())
        && text.len().is_multiple_of(2)
        && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn a_place_comes_back_from_its_text() {
        for address in [0, 0x4a20, u64::MAX] {
            let place = Place {
                build_id: ID,
                address,
            };
            assert_eq!(Place::parse(&place.to_string()), Some(place));
        }
    }

    #[test]
    fn what_is_no_place_is_none() {
        let long = format!("{}+0x1", "ab".repeat(33));
        for text in [
            "",
            "+0x1",
            "main",
            "0123+0x1",
            "0123456789+1",
            "0123456789+0x",
            "0123456789+0x+1",
            "0123456789+0xG",
            "0123456789+0x11111111111111111",
            "0123456789A+0x1",
            "012345678+0x1",
            "operator+0x10",
            &long,
        ] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }
}
