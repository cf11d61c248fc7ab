//! The services of this machine, as systemd runs them, for the two commands that may be the first
//! ones after an installation: `join` starts the agent, `hosts invite --listen` the collector. Root
//! alone starts anything; where systemd does not know the unit, nothing is done.

use crate::exit::{self, fail};
use anyhow::{Context, Result};
use std::process::{Command, Output};

/// The agent of this host.
pub const AGENT: Service = Service("fleetprofd.service");

/// The collector of this machine.
pub const COLLECTOR: Service = Service("fleetprof-collector.service");

/// A unit of systemd.
#[derive(Clone, Copy)]
pub struct Service(&'static str);

/// What systemd says of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none, or no systemd.
    Unknown,
    /// It is installed and does not run.
    Stopped,
    /// It runs, or is about to.
    Running,
}

impl Service {
    /// Whether it is there and runs.
    pub fn state(self) -> State {
        let asked = systemctl(&["show", "--property=LoadState,ActiveState", self.0]);
        match asked {
            Ok(output) if output.status.success() => {
                state_of(&String::from_utf8_lossy(&output.stdout))
            }
            _ => State::Unknown,
        }
    }

    /// Starts it, now and at each boot, and waits until it is ready.
    ///
    /// # Errors
    /// With what systemd says.
    pub fn enable(self) -> Result<()> {
        self.run("start", &["enable", "--now", self.0])
    }

    /// Starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// With what systemd says.
    pub fn restart(self) -> Result<()> {
        self.run("restart", &["restart", self.0])
    }

    fn run(self, what: &str, words: &[&str]) -> Result<()> {
        let output = systemctl(words).context("failed to run systemctl")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().next().unwrap_or("systemctl failed").trim();
        let unit = self.0;
        Err(fail(
            exit::FAILURE,
            format!("failed to {what} `{unit}`: {why}\nsee `journalctl -u {unit}`"),
        ))
    }
}

fn systemctl(words: &[&str]) -> std::io::Result<Output> {
    Command::new("systemctl")
        .arg("--no-ask-password")
        .args(words)
        .output()
}

fn state_of(shown: &str) -> State {
    let has = |line: &str| shown.lines().any(|shown| shown == line);
    if !has("LoadState=loaded") {
        State::Unknown
    } else if has("ActiveState=inactive") || has("ActiveState=failed") {
        State::Stopped
    } else {
        State::Running
    }
}

/// Whether this is root, who may start services.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_says_of_a_unit() {
        for (shown, expected) in [
            ("LoadState=loaded\nActiveState=inactive\n", State::Stopped),
            ("LoadState=loaded\nActiveState=failed\n", State::Stopped),
            ("LoadState=loaded\nActiveState=active\n", State::Running),
            ("LoadState=loaded\nActiveState=activating\n", State::Running),
            (
                "LoadState=not-found\nActiveState=inactive\n",
                State::Unknown,
            ),
            ("LoadState=masked\nActiveState=inactive\n", State::Unknown),
            ("", State::Unknown),
        ] {
            assert_eq!(state_of(shown), expected, "{shown}");
        }
    }
}
