//! `agent-ctl config`: checks a file, shows the configuration in force, and has it read again.
//!
//! Only the program that reads a configuration knows whether it is valid, so `check` runs that
//! program's own check, `fleetprofd` or `fleetprof-collector`, and passes on its output and exit
//! code.

use crate::client::Client;
use crate::exit::{self, fail};
use crate::peer::Connection;
use crate::terminal::{Out, Tone, clean};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that reads a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Daemon {
    /// fleetprofd
    Agent,
    /// fleetprof-collector
    Collector,
}

impl Daemon {
    /// The program that reads a file, guessed from its name.
    fn by_name(file: &Path) -> Daemon {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        match name.contains("collector") {
            true => Daemon::Collector,
            false => Daemon::Agent,
        }
    }

    /// Name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Daemon::Agent => "fleetprofd",
            Daemon::Collector => "fleetprof-collector",
        }
    }
}

/// Checks a configuration file; shows or reloads the agent's.
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
    /// Check a file with the daemon or collector installed here; exit code 3 when it is invalid
    #[command(after_help = "\
Runs `fleetprofd --check-config FILE` or `fleetprof-collector --check-config FILE`, found next to \
agent-ctl or in PATH. Prints all errors of the file with their lines.

Examples:
  agent-ctl config check config/agent.yaml
  agent-ctl config check config/collector.yaml
  agent-ctl config check --of collector /tmp/new.yaml")]
    Check {
        /// Configuration file to check
        file: PathBuf,
        /// Program that reads the file [default: derived from the file name, or agent]
        #[arg(long, value_enum)]
        of: Option<Daemon>,
    },
    /// Print the active configuration as YAML, with all defaults
    #[command(after_help = "Example:\n  agent-ctl config show")]
    Show,
    /// Reload the agent's configuration file; nothing changes if it is invalid
    #[command(after_help = "\
Exit code 3: the file is invalid, and the active configuration stays.

Example:
  agent-ctl config reload")]
    Reload,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let client = async || {
        let instead = "a collector reloads its file at SIGHUP: see `fleetprof-collector --help`";
        let agent = connection.agent_only("config", instead)?;
        Client::connect(connection, &agent).await
    };
    match args.command {
        // A file is checked here, whoever is asked for anything else.
        ConfigCommand::Check { file, of } => {
            check(of.unwrap_or_else(|| Daemon::by_name(&file)), &file)
        }
        ConfigCommand::Show => {
            let config = client().await?.config().await?;
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
            let answer = client().await?.reload().await?;
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

/// The program next to this one, or else the one in PATH.
pub fn installed(program: &str) -> PathBuf {
    let here = std::env::current_exe()
        .ok()
        .map(|path| path.with_file_name(program));
    here.filter(|path| path.is_file())
        .unwrap_or_else(|| program.into())
}

fn check(of: Daemon, file: &Path) -> Result<u8> {
    let daemon = installed(of.program());
    let status = Command::new(&daemon)
        .arg("--check-config")
        .arg(file)
        .status();
    let status = match status {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!(
                "failed to check `{}`: no {} found next to agent-ctl or in PATH",
                file.display(),
                of.program()
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
