//! The repository as tests read it: tracked files, manifests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
}

/// Every file that belongs to the repository, relative to its root: what git tracks or would track,
/// or a walk where there is no git (a source archive).
pub fn files() -> Vec<PathBuf> {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-C"]).arg(root());
    command.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listed = crate::process::program("git").and_then(|_| {
        let out = crate::process::run(&mut command, Duration::from_secs(30));
        (out.code == Some(0)).then(|| out.text())
    });
    let mut files: Vec<PathBuf> = match listed {
        Some(text) => text
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            .collect(),
        None => {
            let mut found = Vec::new();
            walk(root(), &mut found);
            found
        }
    };
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    files
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name == ".git" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            walk(&path, found);
        } else if let Ok(relative) = path.strip_prefix(root()) {
            found.push(relative.to_path_buf());
        }
    }
}

/// Checks that a generated file of the repository has this text. With `FLEETPROF_BLESS` set it is
/// written instead.
///
/// # Panics
/// When the file has another text, or cannot be written.
pub fn check_generated(file: &str, text: &str) {
    let path = root().join(file);
    if std::env::var_os("FLEETPROF_BLESS").is_some() {
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("failed to write `{file}`: {e}"));
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found
        .lines()
        .zip(text.lines())
        .find(|(old, new)| old != new);
    assert!(
        found == text,
        "{file} is old, run with FLEETPROF_BLESS=1; the first line that differs, old and new: \
         {differs:?}"
    );
}

/// Every Rust source file with its text.
pub fn rust_sources() -> Vec<(PathBuf, String)> {
    let sources = files()
        .into_iter()
        .filter(|file| file.extension().is_some_and(|e| e == "rs"));
    sources
        .map(|file| {
            let text = std::fs::read_to_string(root().join(&file)).expect("a source file is UTF-8");
            (file, text)
        })
        .collect()
}
