//! Reads the text of source files, if this machine has them.
//!
//! Paths come from the debug information of the sampled program, so its author chose them. Only
//! regular files named like source files, after following links, are read, up to a bound: a program
//! cannot make its observer print other files. The file that is read is the one that was checked
//! (`regular.rs`).

use super::regular::PathHandle;
use crate::terminal::clean;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest source file. Unit: bytes. Generated ones of a megabyte or two exist.
const SOURCE_BYTES_MAX: u64 = 4 << 20;

/// Longest line shown. Unit: characters. Longer ones are generated; the rest is cut.
const LINE_CHARS_MAX: usize = 400;

/// Columns of a tab.
const TAB: usize = 4;

/// How the names of source files end.
const ENDINGS: &[&str] = &[
    "ada", "adb", "ads", "asm", "c", "c++", "cc", "cpp", "cr", "cu", "cxx", "d", "def", "f", "f90",
    "go", "h", "h++", "hh", "hpp", "hs", "hxx", "inc", "inl", "ipp", "kt", "l", "m", "mm", "ml",
    "nim", "pas", "rs", "s", "sx", "swift", "tcc", "v", "y", "zig",
];

/// Where sources are looked for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Sources {
    /// Look for sources here too, by the longest matching end of the path in debug information
    #[arg(long, value_name = "DIR", help_heading = "Source")]
    source_dir: Vec<PathBuf>,
    /// Read sources below TO instead of FROM: `/build/api=/src/api`
    #[arg(long, value_name = "FROM=TO", value_parser = mapping, help_heading = "Source")]
    source_map: Vec<(PathBuf, PathBuf)>,
}

fn mapping(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once('=') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok((from.into(), to.into())),
        _ => Err("expected `FROM=TO`".to_owned()),
    }
}

impl Sources {
    /// The lines of a source file, fit to be shown.
    ///
    /// # Errors
    /// Why they cannot be had.
    pub fn read(&self, path: &str) -> Result<Vec<String>, String> {
        let path = Path::new(path);
        let mut why = None;
        for place in self.places(path) {
            match read(&place) {
                Ok(lines) => return Ok(lines),
                // The first says most: the others are guesses.
                Err(error) => drop(why.get_or_insert(error)),
            }
        }
        Err(why.unwrap_or_else(|| "its path is relative: give --source-dir".to_owned()))
    }

    fn places(&self, path: &Path) -> Vec<PathBuf> {
        let mapped = self.source_map.iter().filter_map(|(from, to)| {
            let rest = path.strip_prefix(from).ok()?;
            Some(to.join(rest))
        });
        let mut places: Vec<PathBuf> = mapped.collect();
        if path.is_absolute() {
            places.push(path.to_owned());
        }
        let names: Vec<_> = path
            .components()
            .filter_map(|part| match part {
                std::path::Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        for dir in &self.source_dir {
            let ends = (0..names.len()).map(|at| dir.join(names[at..].iter().collect::<PathBuf>()));
            places.extend(ends.filter(|place| place.exists()).take(1));
        }
        places
    }
}

fn is_source(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&&*ending.to_ascii_lowercase()))
}

fn read(path: &Path) -> Result<Vec<String>, String> {
    let shown = path.to_string_lossy();
    let shown = clean(&shown);
    let failed = |why: &dyn std::fmt::Display| format!("failed to read `{shown}`: {why}");
    let handle = PathHandle::at(path).map_err(|error| failed(&error))?;
    let real = handle.place().map_err(|error| failed(&error))?;
    if !is_source(path) || !is_source(&real) {
        return Err(failed(&"its name is not that of a source file"));
    }
    let file = handle.open().map_err(|error| failed(&error))?;
    let facts = file.metadata().map_err(|error| failed(&error))?;
    if facts.len() > SOURCE_BYTES_MAX {
        return Err(failed(&"it is larger than 4 MiB"));
    }
    let mut bytes = Vec::new();
    let read = file.take(SOURCE_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text
        .lines()
        .map(|line| clean(&cut(untabbed(line))).into_owned())
        .collect())
}

/// A line without what is too much of it.
fn cut(mut line: String) -> String {
    if let Some((at, _)) = line.char_indices().nth(LINE_CHARS_MAX) {
        line.truncate(at);
        line.push('…');
    }
    line
}

/// A line with spaces for tabs.
fn untabbed(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut column = 0;
    for c in line.chars() {
        let more = match c {
            '\t' => TAB - column % TAB,
            _ => 1,
        };
        match c {
            '\t' => out.extend(std::iter::repeat_n(' ', more)),
            c => out.push(c),
        }
        column += more;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn sources_are_found_where_they_are_or_are_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("api/src/deep");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("a.c"), "int a;\n\tint\tb;\x1b[2J\n").unwrap();
        let expected = ["int a;", "    int b;\\x1b[2J"].map(str::to_owned);
        let at = place.join("a.c");
        let here = Sources::default().read(at.to_str().unwrap());
        assert_eq!(here.unwrap(), expected);
        let mapped = Sources {
            source_map: vec![("/build/x".into(), dir.path().join("api"))],
            ..Sources::default()
        };
        assert_eq!(mapped.read("/build/x/src/deep/a.c").unwrap(), expected);
        let below = Sources {
            source_dir: vec![dir.path().join("api")],
            ..Sources::default()
        };
        for path in ["/build/y/src/deep/a.c", "../src/deep/a.c"] {
            assert_eq!(below.read(path).unwrap(), expected, "{path}");
        }
        let none = Sources::default().read("src/a.c").unwrap_err();
        assert_eq!(none, "its path is relative: give --source-dir");
        let gone = Sources::default().read("/nowhere/\x1ba.c").unwrap_err();
        assert!(
            gone.starts_with("failed to read `/nowhere/\\x1ba.c`: No such file"),
            "{gone}"
        );
    }

    #[test]
    fn what_debug_information_leads_to_is_read_only_if_it_is_source() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("shadow");
        fs::write(&secret, "secret").unwrap();
        let link = dir.path().join("link.c");
        symlink(&secret, &link).unwrap();
        let folder = dir.path().join("folder.c");
        fs::create_dir(&folder).unwrap();
        let large = dir.path().join("large.c");
        let sparse = fs::File::create(&large).unwrap();
        sparse.set_len(SOURCE_BYTES_MAX + 1).unwrap();
        let pipe = dir.path().join("pipe.c");
        super::super::regular::tests::fifo(&pipe);
        for path in [&secret, &link, &folder, &large, &pipe] {
            let refused = Sources::default().read(path.to_str().unwrap());
            assert!(refused.is_err(), "{path:?}");
        }
    }

    #[test]
    fn long_lines_are_cut() {
        let long = cut("é".repeat(LINE_CHARS_MAX + 1));
        assert_eq!(long, "é".repeat(LINE_CHARS_MAX) + "…");
        let short = "é".repeat(LINE_CHARS_MAX);
        assert_eq!(cut(short.clone()), short);
    }

    #[test]
    fn a_mapping_has_two_sides() {
        assert_eq!(mapping("/a=/b"), Ok(("/a".into(), "/b".into())));
        for text in ["", "/a", "=/b", "/a="] {
            assert!(mapping(text).is_err(), "{text}");
        }
    }
}
