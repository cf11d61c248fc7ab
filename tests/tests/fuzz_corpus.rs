//! The corpus of the fuzz targets, run through them with the product's own compiler: what was once
//! fixed stays fixed, and a target that no longer fits the code under test does not compile.
//! `fuzz/README.md` tells how to search for more.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use testkit::repository::root;

#[path = "../../fuzz/src/targets.rs"]
mod targets;

/// Most bytes of the whole corpus: it is cloned with every checkout.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    files.sort();
    files
}

#[test]
fn every_target_keeps_its_promises_on_its_corpus() {
    let mut broken = Vec::new();
    for (name, target) in targets::ALL {
        let files = files_in(&root().join("fuzz/corpus").join(name));
        assert!(!files.is_empty(), "`{name}` has no corpus");
        for file in files {
            let bytes = std::fs::read(&file).expect("a readable file");
            if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn every_target_is_a_program_of_the_fuzzer_and_has_a_corpus() {
    let stem = |path: &PathBuf| {
        let name = path.file_stem().expect("a file has a name");
        name.to_string_lossy().into_owned()
    };
    let listed: BTreeSet<String> = targets::ALL
        .iter()
        .map(|(name, _)| (*name).into())
        .collect();
    for folder in ["fuzz/fuzz_targets", "fuzz/corpus"] {
        let found: BTreeSet<String> = files_in(&root().join(folder)).iter().map(stem).collect();
        assert_eq!(found, listed, "{folder}");
    }
    let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("a manifest");
    for name in &listed {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}

#[test]
fn the_corpus_is_small() {
    let dirs = files_in(&root().join("fuzz/corpus"));
    let files = dirs.iter().flat_map(|dir| files_in(dir));
    let bytes: u64 = files
        .map(|file| file.metadata().expect("a file has a length").len())
        .sum();
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes");
}
