//! The programs under test: built by cargo once a test program, with the profile and the target
//! directory that the test itself was built with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest that building may take. Unit: seconds. A cold release build on two busy cores fits.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// A directory with `fleetprofd`, `fleetprof-collector` and `agent-ctl` to use instead of building
/// them.
pub const BIN_DIR: &str = "FLEETPROF_BIN_DIR";

/// Where cargo put this test program: `TARGET/PROFILE`.
fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("failed to find this program");
    let mut dir = exe
        .parent()
        .expect("a program lies in a directory")
        .to_path_buf();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

/// A directory under cargo's target directory for what tests build; kept from run to run.
fn scratch() -> PathBuf {
    profile_dir().join("fleetprof-tests")
}

/// An empty directory for what the tests of this program share. The next test program removes it:
/// statics are not dropped.
///
/// # Panics
/// When it cannot be made.
pub fn shared_dir(name: &str) -> PathBuf {
    let base = scratch();
    for entry in std::fs::read_dir(&base).into_iter().flatten().flatten() {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let dir = base.join(std::process::id().to_string()).join(name);
    std::fs::create_dir_all(&dir).expect("failed to make a directory");
    dir
}

fn built() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os(BIN_DIR) {
            return PathBuf::from(dir);
        }
        let profile_dir = profile_dir();
        let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let target = profile_dir
            .parent()
            .expect("a profile directory lies in a target directory");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--profile", profile]);
        if profile != "dev" {
            // Minutes, if nothing is built, in which a bench would seem to hang.
            eprintln!("building the programs, {profile} (or set {BIN_DIR} to where they are) ...");
        }
        // `--workspace --tests` selects features as `cargo test --workspace` does, so that nothing
        // is compiled a second time. Releases are built for benches, without tests.
        let what: &[&str] = match profile {
            "dev" => &["--workspace", "--bins", "--tests"],
            _ => &[
                "-p",
                "fleetprof-daemon",
                "-p",
                "fleetprof-collector",
                "-p",
                "agent-ctl",
            ],
        };
        command
            .args(what)
            .arg("--target-dir")
            .arg(target)
            .current_dir(crate::repository::root());
        // What cargo tells a test program about its own package must not reach build scripts: those
        // that watch it would make cargo compile their packages again in every run.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        crate::process::run(&mut command, BUILD_LIMIT).ok();
        profile_dir
    })
}

/// The daemon's program.
pub fn fleetprofd() -> PathBuf {
    built().join("fleetprofd")
}

/// The control command's program.
pub fn agent_ctl() -> PathBuf {
    built().join("agent-ctl")
}

/// The collector's program.
pub fn collector() -> PathBuf {
    built().join("fleetprof-collector")
}
