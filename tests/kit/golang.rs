//! Programs in Go, built by the machine's toolchain, or that of [`TOOL`], in the ways that leave
//! other tables behind.

use crate::process::{program, run};
use crate::workload::source;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A `go` to use instead of that on `PATH`: other releases write other tables.
pub const TOOL: &str = "FLEETPROF_GO";

/// Longest that building may take. Some ways need the complete standard library built again.
const LIMIT: Duration = Duration::from_secs(300);

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Build {
    /// With symbols and debug information.
    Whole,
    /// Without both.
    Stripped,
    /// Position-independent, stripped.
    Pie,
    /// Linked by the C compiler, stripped.
    External,
    /// Likewise, position-independent.
    ExternalPie,
}

impl Build {
    /// All of them.
    pub const ALL: [Build; 5] = [
        Build::Whole,
        Build::Stripped,
        Build::Pie,
        Build::External,
        Build::ExternalPie,
    ];

    fn flags(self) -> &'static [&'static str] {
        match self {
            // Go can read compressed sections of its own; the tests compare plain ones.
            Build::Whole => &["-ldflags=-compressdwarf=false"],
            Build::Stripped => &["-ldflags=-s -w"],
            Build::Pie => &["-buildmode=pie", "-ldflags=-s -w"],
            Build::External => &["-ldflags=-s -w -linkmode=external"],
            Build::ExternalPie => &["-buildmode=pie", "-ldflags=-s -w -linkmode=external"],
        }
    }
}

/// The `go` that builds.
///
/// # Errors
/// When there is none.
pub fn tool() -> Result<PathBuf, String> {
    let chosen = std::env::var_os(TOOL).map(PathBuf::from);
    let found = chosen.or_else(|| program("go"));
    found.ok_or_else(|| "needs the program `go`".to_owned())
}

/// Builds `tests/workloads/orders.go`, or returns what was built before.
///
/// # Errors
/// When there is no Go, or it cannot build in this way.
pub fn build(how: Build) -> Result<PathBuf, String> {
    static BUILT: OnceLock<Mutex<HashMap<Build, Result<PathBuf, String>>>> = OnceLock::new();
    let built = BUILT.get_or_init(Mutex::default);
    let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = built.get(&how) {
        return found.clone();
    }
    let dir = crate::binaries::shared_dir(&format!("go-{how:?}"));
    let path = dir.join(format!("orders-{how:?}").to_lowercase());
    let found = compile(how.flags(), &path).map(|()| path);
    built.insert(how, found.clone());
    found
}

fn compile(flags: &[&str], path: &Path) -> Result<(), String> {
    let mut command = command()?;
    command.arg("build").args(flags).arg("-o").arg(path);
    let out = run(command.arg(source("orders.go")), LIMIT);
    match out.code == Some(0) {
        true => Ok(()),
        false => Err(format!("needs a Go that can build so: {}", out.stderr)),
    }
}

/// What programs are built for: the architecture of the tests, also where an emulator runs them.
const GOARCH: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};

/// `go`, which touches nothing of the network and of the user's own cache.
///
/// # Errors
/// When there is none.
pub fn command() -> Result<Command, String> {
    let tool = tool()?;
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
    let cache = cache.unwrap_or_else(std::env::temp_dir);
    let mut command = Command::new(tool);
    command
        .env("GOCACHE", cache.join("fleetprof/go-build"))
        .env("GO111MODULE", "off")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .env("GOARCH", GOARCH)
        .env_remove("GOROOT")
        .env_remove("GOFLAGS");
    Ok(command)
}
