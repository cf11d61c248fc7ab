//! `fleetprofd`: command line, configuration and logging; the rest is the library.
#![forbid(unsafe_code)]

use agent_config::{Config, Configuration, LogFormat, LogLevel};
use clap::Parser;
use daemon::agent::{ConfigSource, SetLogLevel};
use daemon::supervisor::{self, Exit};
use host::facts::effective_uid;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

const EXAMPLES: &str = "\
Examples:
  fleetprofd                                       sample this host with the defaults
  fleetprofd --listen unix:/tmp/agent.sock         answer on another socket
  fleetprofd --collector 127.0.0.1                 push closed windows to a collector
  fleetprofd --set sampling.rate_hz=49             override one key of the configuration
  fleetprofd --check-config /etc/fleetprof/agent.yaml

Exit codes: 0 stopped as asked, 1 failed, 2 usage, 3 configuration, 4 permission, 5 socket in use";

/// Sample the stacks of every CPU all the time, and answer queries about them.
#[derive(Parser)]
#[command(name = "fleetprofd", version, after_help = EXAMPLES)]
struct Args {
    /// Configuration file [default: /etc/fleetprof/agent.yaml when it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen here: unix:PATH, or HOST:PORT with a token and TLS
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Push closed windows to this collector [default port: 7600]; sets the key collector.address
    #[arg(long, value_name = "HOST[:PORT]")]
    collector: Option<String>,
    /// Override a key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Check a configuration file and exit: code 0 if it is valid, 3 if it is not
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "listen", "collector", "sets"])]
    check_config: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(path) = &args.check_config {
        return match Config::check(path, effective_uid()) {
            Ok(warnings) => {
                warnings
                    .iter()
                    .for_each(|warning| eprintln!("warning: {warning}"));
                println!("{}: valid", path.display());
                ExitCode::SUCCESS
            }
            Err(errors) => {
                for error in &errors {
                    fail(error, Exit::Config);
                }
                ExitCode::from(Exit::Config as u8)
            }
        };
    }
    let mut sets = args.sets;
    sets.extend(
        args.listen
            .map(|address| format!("server.listen={address}")),
    );
    sets.extend(
        args.collector
            .map(|address| format!("collector.address={address}")),
    );
    let source = ConfigSource {
        path: args.config,
        sets,
    };
    let loaded = match source.load() {
        Ok(loaded) => loaded,
        Err(error) => return fail(&error, Exit::Config),
    };
    let set_log_level = start_logging(&loaded.config);
    match supervisor::run(loaded, source, set_log_level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit()),
    }
}

/// Prints the error and its causes, each once. If standard error cannot be written (a full disk, a
/// closed reader) the exit code still says what happened.
fn fail(error: &dyn std::error::Error, exit: Exit) -> ExitCode {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(exit as u8)
}

/// Logs to standard error; the result changes the level later.
fn start_logging(config: &Config) -> SetLogLevel {
    use std::io::IsTerminal;
    let (level, handle) = reload::Layer::new(filter(config));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(level);
    match config.log.format {
        LogFormat::Json => registry.with(lines.json()).init(),
        LogFormat::Text => {
            registry
                .with(lines.with_ansi(std::io::stderr().is_terminal()))
                .init();
        }
    }
    Box::new(move |config| {
        if let Err(error) = handle.reload(filter(config)) {
            tracing::error!(%error, "failed to change the log level");
        }
    })
}

fn filter(config: &Config) -> LevelFilter {
    match config.log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
