//! `agent-ctl man`: prints manual pages, generated from the definition of the command line.

use crate::{exit, terminal::Out};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Prints the manual page, or writes all of them to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl man | man -l -
  agent-ctl man --dir /usr/local/share/man/man1")]
pub struct Args {
    /// Directory to write a page for each subcommand to; created if missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command for the command line `cli`.
pub fn run(out: &Out, cli: clap::Command, args: Args) -> Result<u8> {
    if let Some(dir) = args.dir {
        std::fs::create_dir_all(&dir)
            .and_then(|()| clap_mangen::generate_to(cli, &dir))
            .with_context(|| format!("failed to write manual pages to `{}`", dir.display()))?;
        return Ok(exit::OK);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(cli).render(&mut page)?;
    out.write(&String::from_utf8_lossy(&page))?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::fmt::Write;
    use testkit::repository::check_generated;

    /// Every command with its help, those of a command behind it.
    fn write(command: &mut clap::Command, above: &str, page: &mut String) {
        let name = format!("{above}{}", command.get_name());
        let help = command.clone().bin_name(&name).render_long_help();
        let lines: Vec<String> = help
            .to_string()
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let help = lines.join("\n");
        write!(page, "\n## {name}\n\n```text\n{}\n```\n", help.trim_end()).expect("room");
        let below = format!("{name} ");
        for command in command.get_subcommands_mut() {
            if command.get_name() != "help" {
                write(command, &below, page);
            }
        }
    }

    /// `FLEETPROF_BLESS=1 cargo test -p agent-ctl page` writes the page again.
    #[test]
    fn page_of_the_reference_is_written_from_the_command_line() {
        let mut page = "# Commands of agent-ctl\n\n\
            What `agent-ctl COMMAND --help` prints. [Exit codes](exit-codes.md) are documented apart.\n\
            Generated from the program.\n"
            .to_owned();
        let mut command = Cli::command().term_width(100);
        command.build();
        write(&mut command, "", &mut page);
        check_generated("docs/reference/cli.md", &page);
    }
}
