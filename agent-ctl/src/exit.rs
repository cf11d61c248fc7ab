//! Exit codes, and which error leads to which.

use std::error::Error;

/// Done, nothing to remark.
pub const OK: u8 = 0;
/// Failed for a reason that has no code of its own.
pub const FAILURE: u8 = 1;
/// The command line cannot be understood, or asks for what is not there or cannot be: a bad
/// selector, range or file; an event, function, field, unit, process, pin or capture that whoever
/// is asked does not know.
pub const USAGE: u8 = 2;
/// A configuration is invalid.
pub const CONFIG: u8 = 3;
/// The agent, its socket or a file refused access.
pub const PERMISSION: u8 = 4;
/// No agent or collector answers.
pub const UNREACHABLE: u8 = 5;
/// There is a result, but it misses something: `doctor` found problems, a range holds no samples,
/// or more of it was lost than taken. The status of an agent has an error, that of a collector
/// warnings or hosts without samples. For a fleet: partitions are damaged, more than a tenth of the
/// time of its hosts has no data (the newest windows are always on their way, so a gap alone does
/// not count), weights are larger than an answer can say, or a host is silent or has warnings. What
/// a bound pruned does not count: its weight is in the answer, under the callers.
pub const PARTIAL: u8 = 6;
/// Ended by SIGINT, as shells count it.
pub const INTERRUPTED: u8 = 130;
/// Ended by SIGTERM, as shells count it.
pub const TERMINATED: u8 = 143;

/// The table for `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  usage: the command line is wrong, or names what is not there (an event, unit, process, pin)
  3  configuration invalid
  4  permission denied
  5  no agent or collector answers
  6  partial: there is an answer, but it is empty, most of it was lost, or something is degraded";

/// An error that says with which code the command ends.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Exit {
    /// One of the constants of this file.
    pub code: u8,
    /// The error, in lowercase; a line that starts with [`REMEDY`] says what to do.
    pub message: String,
}

/// Prefix of the remedy of an error or degradation.
pub const REMEDY: &str = "fix: ";

/// An error with this code. What is below the first line of `message` is the remedy.
pub fn fail(code: u8, message: impl Into<String>) -> anyhow::Error {
    let message = message.into();
    match message.split_once('\n') {
        Some((what, remedy)) => error(code, format!("{what}\n{REMEDY}{remedy}")),
        None => error(code, message),
    }
}

/// An error with this code in these words, which may be those of another program.
pub fn error(code: u8, message: String) -> anyhow::Error {
    Exit { code, message }.into()
}

/// The exit code of an error: the one it names, or what its causes say.
pub fn code_of(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(exit) = cause.downcast_ref::<Exit>() {
            return exit.code;
        }
        if io_kind(cause) == Some(std::io::ErrorKind::PermissionDenied) {
            return PERMISSION;
        }
    }
    FAILURE
}

/// True when the error says that nobody reads our output any more: `agent-ctl … | head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| io_kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}

fn io_kind(error: &(dyn Error + 'static)) -> Option<std::io::ErrorKind> {
    error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::io;

    #[test]
    fn a_code_is_found_below_context() {
        let error = Err::<(), _>(fail(CONFIG, "bad"))
            .context("failed to reload")
            .unwrap_err();
        assert_eq!(code_of(&error), CONFIG);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(
            code_of(&anyhow::Error::from(denied).context("x")),
            PERMISSION
        );
        assert_eq!(code_of(&anyhow::anyhow!("x")), FAILURE);
    }

    #[test]
    fn the_remedy_of_an_error_says_that_it_is_one() {
        let error = fail(USAGE, "failed to x\nuse y");
        assert_eq!(error.to_string(), "failed to x\nfix: use y");
        assert_eq!(fail(USAGE, "failed to x").to_string(), "failed to x");
    }

    #[test]
    fn a_broken_pipe_is_found_below_context() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe)).context("x");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("x")));
    }
}
