//! `agent-ctl man`: manual pages from the command line's own description.

use crate::cli::Cli;
use crate::{exit, terminal::Out};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::PathBuf;

/// Prints the manual page, or writes all of them to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl man | man -l -
  agent-ctl man --dir /usr/local/share/man/man1")]
pub struct Args {
    /// Directory to write one page a subcommand to; made when it is not there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(out: &Out, args: Args) -> Result<u8> {
    let command = Cli::command();
    if let Some(dir) = args.dir {
        std::fs::create_dir_all(&dir)
            .and_then(|()| clap_mangen::generate_to(command, &dir))
            .with_context(|| format!("failed to write manual pages to `{}`", dir.display()))?;
        return Ok(exit::OK);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    out.write(&String::from_utf8_lossy(&page))?;
    Ok(exit::OK)
}
