//! `agent-ctl config`: check a file, show what is in force, have it read again.
//!
//! What a valid configuration is only the daemon knows, so `check` runs the daemon's own check and
//! passes its words and its exit code on.

use crate::client::Client;
use crate::exit::{self, fail};
use crate::peer::Connection;
use crate::terminal::{Out, Tone, clean};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the daemon's program.
const DAEMON: &str = "fleetprofd";

/// Checks, shows or reloads the agent's configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl config check /etc/fleetprof/agent.yaml && agent-ctl config reload
  agent-ctl config show > agent.yaml")]
pub struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Check a file with the daemon installed here; exit code 3 when it is invalid
    #[command(after_help = "\
Runs `fleetprofd --check-config FILE`, found beside agent-ctl or in PATH.

Example:
  agent-ctl config check config/agent.yaml")]
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the configuration in force as YAML, defaults filled in
    #[command(after_help = "Example:\n  agent-ctl config show")]
    Show,
    /// Have the agent read its file again: all of it is taken, or none
    #[command(after_help = "\
Exit code 3: the file is invalid, the configuration in force stays.

Example:
  agent-ctl config reload")]
    Reload,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let instead = "a collector shows and checks its own: `fleetprof-collector --help`";
    let agent = connection.agent_only("config", instead)?;
    match args.command {
        ConfigCommand::Check { file } => check(&daemon(), &file),
        ConfigCommand::Show => {
            let config = Client::connect(connection, &agent).await?.config().await?;
            let path = if config.path.is_empty() {
                "# no file: defaults, environment and flags".to_owned()
            } else {
                format!("# {}", config.path)
            };
            let yaml: String = config.yaml.lines().map(|line| clean(line) + "\n").collect();
            out.write(&format!("{}\n{yaml}", out.tone(Tone::Dim, &path)))?;
            Ok(exit::OK)
        }
        ConfigCommand::Reload => {
            let answer = Client::connect(connection, &agent).await?.reload().await?;
            let mut text = String::new();
            if answer.changed.is_empty() && answer.needs_restart.is_empty() {
                text.push_str("nothing changed\n");
            }
            for key in &answer.changed {
                text.push_str(&format!(
                    "{} {}\n",
                    out.tone(Tone::Good, "in force:"),
                    clean(key)
                ));
            }
            for key in &answer.needs_restart {
                let label = out.tone(Tone::Warn, "needs a restart:");
                text.push_str(&format!("{label} {}\n", clean(key)));
            }
            out.write(&text)?;
            Ok(if answer.needs_restart.is_empty() {
                exit::OK
            } else {
                exit::PARTIAL
            })
        }
    }
}

/// The daemon beside this program, or else the one in PATH.
fn daemon() -> PathBuf {
    let here = std::env::current_exe()
        .ok()
        .map(|path| path.with_file_name(DAEMON));
    here.filter(|path| path.is_file())
        .unwrap_or_else(|| DAEMON.into())
}

fn check(daemon: &Path, file: &Path) -> Result<u8> {
    let status = Command::new(daemon)
        .arg("--check-config")
        .arg(file)
        .status();
    let status = match status {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!(
                "failed to check `{}`: no {DAEMON} beside agent-ctl nor in PATH",
                file.display()
            );
            return Err(fail(exit::FAILURE, message));
        }
        other => other.with_context(|| format!("failed to run `{}`", daemon.display()))?,
    };
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(exit::FAILURE))
}
