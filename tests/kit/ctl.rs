//! `agent-ctl`, run with a time limit.

use crate::process::{Output, run};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

/// Longest that a command of these tests may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Exit code: bad usage.
pub const USAGE: i32 = 2;
/// Exit code: invalid configuration.
pub const CONFIG: i32 = 3;
/// Exit code: no daemon answers.
pub const UNREACHABLE: i32 = 5;

/// Runs `agent-ctl` with these arguments and an environment without settings of its own.
///
/// # Panics
/// When it takes too long.
pub fn ctl<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Output {
    run(&mut command(args), LIMIT)
}

/// The command that [`ctl`] runs.
pub fn command<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = Command::new(crate::binaries::agent_ctl());
    command
        .args(args)
        .env_remove("FLEETPROF_AGENT")
        .env("NO_COLOR", "1")
        .env("TERM", "dumb");
    command
}
