//! A terminal for programs that draw: tmux on a socket of its own.

use crate::process::{run, wait_for};
use std::process::Command;
use std::time::Duration;

/// A tmux server of its own, ended when dropped.
pub struct Terminal {
    socket: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Terminal {
    /// Starts a program in a terminal of 120 columns and 40 lines.
    ///
    /// # Panics
    /// When its words are not UTF-8 or tmux does not start.
    pub fn open(program: &Command) -> Terminal {
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let terminal = Terminal {
            socket: dir.path().join("tmux"),
            _dir: dir,
        };
        let words = std::iter::once(program.get_program()).chain(program.get_args());
        let line: Vec<&str> = words.map(|word| word.to_str().expect("UTF-8")).collect();
        let new = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "120",
            "-y",
            "40",
        ];
        terminal.tmux(&[&new[..], &line].concat());
        terminal
    }

    /// Runs a command of tmux and returns what it prints.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn tmux(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(&self.socket)
            .args(args)
            .env("TERM", "xterm-256color");
        run(&mut command, Duration::from_secs(10)).text()
    }

    /// The screen as text.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// True once the screen shows `text`.
    pub fn shows(&self, text: &str) -> bool {
        let found = wait_for(Duration::from_secs(15), || {
            self.screen().contains(text).then_some(())
        });
        if found.is_none() {
            eprintln!("`{text}` is not on the screen:\n{}", self.screen());
        }
        found.is_some()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
