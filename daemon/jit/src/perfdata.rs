//! Parses the performance data of a HotSpot JVM: a file that it maps and keeps up to date.
//!
//! Pure: the file's bytes in, text constants out. The layout is that of `perfMemory.hpp`, version
//! 2: a head of 32 bytes, then entries, each with a head of 20 bytes, a name and a value. All of it
//! is untrusted.

/// Largest file looked at. Unit: bytes. HotSpot makes it 32 KiB large.
pub const BYTES_MAX: usize = 256 << 10;

/// Most entries looked at. HotSpot has about 300.
const ENTRIES_MAX: u32 = 4096;

const MAGIC: u32 = 0xcafe_c0c0;

/// The text constant of this name.
pub fn text<'a>(file: &'a [u8], name: &str) -> Option<&'a str> {
    let file = &file[..file.len().min(BYTES_MAX)];
    let magic = u32::from_be_bytes(array(file, 0)?);
    let (little, major) = (*file.get(4)? == 1, *file.get(5)?);
    if magic != MAGIC || major != 2 {
        return None;
    }
    let number = |at: usize| {
        let bytes = array(file, at)?;
        let number = match little {
            true => u32::from_le_bytes(bytes),
            false => u32::from_be_bytes(bytes),
        };
        Some(number as usize)
    };
    let (mut at, entries) = (number(24)?, number(28)? as u32);
    for _ in 0..entries.min(ENTRIES_MAX) {
        let length = number(at)?;
        let (name_at, values) = (number(at + 4)?, number(at + 8)?);
        let (kind, value_at) = (*file.get(at + 12)?, number(at + 16)?);
        let entry = file.get(at..at.checked_add(length)?)?;
        if kind == b'B' && values > 0 && c_text(entry.get(name_at..)?) == Some(name) {
            let value = entry.get(value_at..value_at.checked_add(values)?)?;
            return c_text(value);
        }
        // An entry with length zero would loop forever.
        at = at.checked_add(length.max(1))?;
    }
    None
}

fn array(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok()
}

/// The text before the first NUL.
fn c_text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with these text constants.
    pub(crate) fn file(constants: &[(&str, &str)]) -> Vec<u8> {
        let mut file = vec![0xca, 0xfe, 0xc0, 0xc0, 1, 2, 0, 1];
        file.extend([0; 16]);
        file.extend(32u32.to_le_bytes());
        file.extend((constants.len() as u32).to_le_bytes());
        for (name, value) in constants {
            let (name_len, value_len) = (name.len() + 1, value.len() + 1);
            for number in [20 + name_len + value_len, 20, value_len] {
                file.extend((number as u32).to_le_bytes());
            }
            file.extend([b'B', 0, 5, 1]);
            file.extend((20 + name_len as u32).to_le_bytes());
            file.extend(name.bytes().chain([0]).chain(value.bytes()).chain([0]));
        }
        file
    }

    #[test]
    fn constants_are_found_by_name() {
        let file = file(&[("sun.rt.a", "1100"), ("java.rt.vmArgs", "-Xmx1g -Dx=y")]);
        assert_eq!(text(&file, "sun.rt.a"), Some("1100"));
        assert_eq!(text(&file, "java.rt.vmArgs"), Some("-Xmx1g -Dx=y"));
        assert_eq!(text(&file, "java.rt"), None);
    }

    #[test]
    fn a_file_that_contradicts_itself_says_nothing() {
        let good = file(&[("a", "b"), ("c", "d")]);
        for cut in 0..good.len() {
            assert_eq!(text(&good[..cut], "c"), None, "cut at {cut}");
        }
        let mut endless = good.clone();
        endless[32..36].copy_from_slice(&[0; 4]);
        endless[28..32].copy_from_slice(&[0xff; 4]);
        assert_eq!(text(&endless, "c"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            at in 0usize..80, bytes in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut file = file(&[("sun.rt.a", "1100"), ("java.rt.vmArgs", "-Xmx1g")]);
            let end = (at + bytes.len()).min(file.len());
            file.splice(at.min(end)..end, bytes);
            text(&file, "java.rt.vmArgs");
        }
    }
}
