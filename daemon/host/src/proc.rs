//! Parses text of `/proc` as untrusted input: tables of mounts, `status`, `stat`.
//!
//! Sources: proc_pid_mountinfo(5), proc_pid_status(5), proc_pid_stat(5). `unwind` parses maps,
//! where the kernel escapes nothing but newlines.

/// A line of a table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Major and minor number of its device, as they stand there.
    pub device: &'a [u8],
    /// What of its file system is mounted.
    pub root: Vec<u8>,
    /// Its mount point.
    pub point: Vec<u8>,
    /// Type of the file system.
    pub kind: &'a [u8],
    /// Options of the file system; empty where there are none.
    pub options: &'a [u8],
}

impl Mount<'_> {
    /// `31 23 0:28 ROOT POINT OPTIONS [TAG…] - TYPE SOURCE SUPER_OPTIONS`; none where it makes no
    /// sense.
    pub fn parse(line: &[u8]) -> Option<Mount<'_>> {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = fields.nth(2)?;
        let (root, point) = (fields.next()?, fields.next()?);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        Some(Mount {
            device,
            root: unescape(root),
            point: unescape(point),
            kind: rest.next()?,
            options: rest.nth(1).unwrap_or_default(),
        })
    }
}

/// Undoes the kernel's `\040` for space, tab, newline and backslash.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let digits = tail.first_chunk().filter(|_| *first == b'\\');
        match digits.and_then(octal) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The byte that three octal digits stand for.
fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0u8, |byte, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        byte.checked_mul(8)?.checked_add(digit)
    })
}

/// The value of `name` in `/proc/PID/status`.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim_ascii)
}

/// The effective of the four ids of `Uid` or `Gid` in `/proc/PID/status`.
pub fn effective_id(status: &str, name: &str) -> Option<u32> {
    let ids = status_field(status, name)?;
    ids.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Start time from `/proc/PID/stat`, in ticks since boot: the 22nd field. The second, the name in
/// parentheses, may hold anything, `)` included.
pub fn start_ticks(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_octal_digits_are_a_byte_and_nothing_else_is() {
        let check = |escaped: &str, expected: &str| {
            assert_eq!(unescape(escaped.as_bytes()), expected.as_bytes());
        };
        check(r"/mnt/a\040b\134c\011\012", "/mnt/a b\\c\t\n");
        check(r"\04", r"\04");
        check(r"\048\+12\777\", r"\048\+12\777\");
    }

    #[test]
    fn a_line_of_mounts_has_its_fields_behind_any_tags() {
        let line = b"31 22 0:27 / /mnt/a\\040b rw shared:2 master:1 - fuse.sshfs host:/ rw,x";
        let mount = Mount::parse(line).unwrap();
        assert_eq!((mount.device, &mount.root[..]), (&b"0:27"[..], &b"/"[..]));
        assert_eq!(mount.point, b"/mnt/a b");
        assert_eq!(
            (mount.kind, mount.options),
            (&b"fuse.sshfs"[..], &b"rw,x"[..])
        );
        for line in [
            "",
            "1 2 0:1 /",
            "1 2 0:1 / / rw shared:1",
            "1 2 0:1 / / rw -",
        ] {
            assert_eq!(Mount::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn fields_of_a_status_are_found_by_their_complete_name() {
        let status = "Name:\tPid:\nNSpid:\t7\t1\nPid:\t 42\nUid:\t1\t2\t3\t4\nGid:\t5\n";
        assert_eq!(status_field(status, "Pid"), Some("42"));
        assert_eq!(status_field(status, "NSpid"), Some("7\t1"));
        assert_eq!(status_field(status, "pid"), None);
        assert_eq!(effective_id(status, "Uid"), Some(2));
        assert_eq!(effective_id(status, "Gid"), None);
    }

    #[test]
    fn start_time_is_found_behind_any_name() {
        let stat = b"42 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20 21";
        assert_eq!(start_ticks(stat), Some(777));
        assert_eq!(start_ticks(b"42 (a"), None);
        assert_eq!(start_ticks(b"42 (a) R 1"), None);
    }
}
