//! Programs of known shape: compiled once a test program, started in a cgroup, ended with their
//! owner.

use crate::cgroup::Cgroup;
use crate::process::{Output, Proc, run};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Longest a compiler may take.
const COMPILE_LIMIT: Duration = Duration::from_secs(60);
/// Longest a workload may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Flags of C workloads whose stacks the frame-pointer chain must show whole.
pub const FRAME_POINTERS: &[&str] = &["-O2", "-g0", "-fno-omit-frame-pointer", "-pthread"];

/// A recipe: same recipe, same file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    source: &'static str,
    name: String,
    flags: Vec<String>,
}

/// A C program of `tests/workloads`, static and with frame pointers.
pub fn c(source: &'static str) -> Recipe {
    let flags = FRAME_POINTERS
        .iter()
        .chain(&["-static"])
        .map(|&flag| flag.to_owned())
        .collect();
    let name = source.strip_suffix(".c").expect("a C source").to_owned();
    Recipe {
        source,
        name,
        flags,
    }
}

/// A stripped, dynamically linked C program.
pub fn stripped_c(source: &'static str, name: &str) -> Recipe {
    let mut recipe = c(source).named(name);
    recipe.flags.retain(|flag| flag != "-static");
    recipe.flags.push("-s".to_owned());
    recipe
}

/// A dynamically linked C program without frame pointers, built with further flags.
pub fn bare_c(source: &'static str, flags: &[&str]) -> Recipe {
    let mut recipe = c(source);
    let usual = ["-O2", "-g0", "-fomit-frame-pointer", "-pthread"];
    recipe.flags = usual
        .iter()
        .chain(flags)
        .map(|&flag| flag.to_owned())
        .collect();
    recipe
}

/// A Rust program as a release build with frame pointers.
pub fn rust(source: &'static str) -> Recipe {
    let name = source
        .strip_suffix(".rs")
        .expect("a Rust source")
        .to_owned();
    let flags = ["--edition", "2024", "-O", "-C", "force-frame-pointers=yes"];
    Recipe {
        source,
        name,
        flags: flags.map(str::to_owned).to_vec(),
    }
}

impl Recipe {
    /// The same as a shared library.
    pub fn library(mut self) -> Recipe {
        self.flags.retain(|flag| flag != "-static");
        self.flags.extend(["-shared", "-fPIC"].map(str::to_owned));
        self
    }

    /// The same linked dynamically.
    pub fn dynamic(mut self) -> Recipe {
        self.flags.retain(|flag| flag != "-static");
        self
    }

    /// The same under another file name, and so another comm.
    pub fn named(mut self, name: &str) -> Recipe {
        name.clone_into(&mut self.name);
        self
    }

    /// The same with a word before every function name, and other code: another build id.
    pub fn prefixed(mut self, prefix: &str) -> Recipe {
        let twist: u32 = prefix.bytes().map(u32::from).sum();
        self.flags.push(format!("-DPREFIX={prefix}"));
        self.flags.push(format!("-DTWIST={twist}"));
        self
    }

    /// Builds the program, or returns the one built before.
    ///
    /// # Panics
    /// When the compiler fails.
    pub fn build(&self) -> PathBuf {
        static BUILT: OnceLock<Mutex<HashMap<Recipe, PathBuf>>> = OnceLock::new();
        let mut built = BUILT
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(path) = built.get(self) {
            return path.clone();
        }
        let dir = crate::binaries::shared_dir(&format!("build-{}", built.len()));
        // The linker splits names that no shell would: it gets a plain one.
        let plain = dir.join("program");
        let path = dir.join(&self.name);
        let compiler = if self.source.ends_with(".rs") {
            "rustc"
        } else {
            "gcc"
        };
        let mut command = Command::new(compiler);
        command
            .args(&self.flags)
            .arg("-o")
            .arg(&plain)
            .arg(source(self.source));
        run(&mut command, COMPILE_LIMIT).ok();
        std::fs::rename(&plain, &path).expect("failed to rename a program");
        built.insert(self.clone(), path.clone());
        path
    }

    /// Builds and starts it outside of any cgroup of the test.
    pub fn start(&self, args: &[&str]) -> Workload {
        Workload::spawn(Command::new(self.build()).args(args))
    }

    /// Builds and starts it in a cgroup.
    pub fn start_in(&self, cgroup: &Cgroup, args: &[&str]) -> Workload {
        let program = self.build();
        Workload::spawn(cgroup.command(&program).args(args)).settled(&program)
    }
}

/// A source file of `tests/workloads`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(name)
}

/// A running workload; killed when dropped.
pub struct Workload {
    proc: Proc,
    _dir: tempfile::TempDir,
}

impl Workload {
    /// Starts any command as a workload.
    pub fn spawn(command: &mut Command) -> Workload {
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let proc = Proc::spawn(command, dir.path(), "workload");
        Workload { proc, _dir: dir }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    /// The process itself.
    pub fn proc(&mut self) -> &mut Proc {
        &mut self.proc
    }

    /// Waits until the process has become the workload's own program (the shell that moves it to
    /// its cgroup is gone).
    ///
    /// # Panics
    /// When that takes longer than five seconds.
    pub fn settled(self, program: &Path) -> Workload {
        let exe = PathBuf::from(format!("/proc/{}/exe", self.pid()));
        let wanted = program.canonicalize().expect("the program is there");
        crate::process::wait_for(END_LIMIT, || {
            (std::fs::read_link(&exe).ok()? == wanted).then_some(())
        })
        .unwrap_or_else(|| panic!("did not become {wanted:?}: {}", self.proc.stderr()));
        self
    }

    /// Ends it and returns the numbers on its last line, which starts with `word`.
    ///
    /// # Panics
    /// When it does not end in time or says nothing.
    pub fn finish(mut self, word: &str) -> Vec<u64> {
        self.proc.terminate(END_LIMIT);
        let said = self.proc.stdout();
        let line = said.lines().last().unwrap_or_default();
        let mut fields = line.split(' ');
        assert_eq!(
            fields.next(),
            Some(word),
            "said {said:?}, {:?}",
            self.proc.stderr()
        );
        fields
            .map(|field| field.parse().expect("a number"))
            .collect()
    }
}

/// Runs a short workload to its end.
pub fn run_to_end(command: &mut Command) -> Output {
    run(command, Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require::{Need, met};

    #[test]
    fn the_split_holds_its_shares() {
        if !met(&[Need::StaticC]) {
            return;
        }
        let said = run_to_end(Command::new(c("split.c").build()).args(["-t", "0.5"]))
            .ok()
            .text();
        let spent: Vec<f64> = said
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap())
            .collect();
        let total: f64 = spent.iter().sum();
        for (spent, share) in spent.iter().zip([0.7, 0.2, 0.1]) {
            assert!((spent / total - share).abs() < 0.02, "{said}");
        }
    }

    #[test]
    fn a_recipe_is_built_once() {
        if !met(&[Need::StaticC]) {
            return;
        }
        assert_eq!(c("brief.c").build(), c("brief.c").build());
        assert_ne!(c("brief.c").build(), c("brief.c").named("other").build());
    }
}
