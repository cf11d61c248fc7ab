//! `fleetprof-collector`: command line, configuration, logging and signals; the rest is the
//! library.
#![forbid(unsafe_code)]

mod store_command;

use clap::Parser;
use collector::config::{Config, Configuration, Loaded, LogFormat, LogLevel, effective_uid};
use collector::listen::ListenError;
use collector::server::{self, Addresses, ServeError};
use collector::store::embedded::{self, EmbeddedStore};
use collector::store::open::{self, OpenError};
use collector::time::Clock;
use collector::{audit, confine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

const EXAMPLES: &str = "\
Examples:
  fleetprof-collector                                   serve from /var/lib/fleetprof/collector
  fleetprof-collector --data-dir /tmp/fleet             keep the data elsewhere
  fleetprof-collector --set retention.disk_gib=100      override one key of the configuration
  fleetprof-collector --check-config collector.yaml     check a configuration
  fleetprof-collector audit verify /srv/copies/audit    check files of an audit log
  fleetprof-collector store check                       examine the ClickHouse servers
  fleetprof-collector archive take-over                 continue the archive of a lost collector

Agents push to --listen-grpc, and `agent-ctl --collector` connects there; the page is at \
--listen-http.

Exit codes: 0 stopped as asked, 1 failed, 2 usage, 3 configuration, 4 permission, 5 in use";

/// Store the profiles of a fleet, and answer queries about them.
#[derive(Parser)]
#[command(name = "fleetprof-collector", version, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file [default: /etc/fleetprof/collector.yaml when it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for the data of the embedded store
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen here for agents and agent-ctl, loopback only
    #[arg(long, value_name = "ADDR")]
    listen_grpc: Option<SocketAddr>,
    /// Serve the page, downloads and metrics here, loopback only
    #[arg(long, value_name = "ADDR")]
    listen_http: Option<SocketAddr>,
    /// Listen here for hosts and people on other machines, with TLS, such as 0.0.0.0:7601
    #[arg(long, value_name = "ADDR")]
    listen_tls: Option<SocketAddr>,
    /// Listen here for browsers on other machines, with TLS and a login, such as 0.0.0.0:7611
    #[arg(long, value_name = "ADDR")]
    listen_https: Option<SocketAddr>,
    /// Override a key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Check the configuration and exit: code 0 if it is valid, 3 if it is not
    #[arg(long)]
    check: bool,
    /// Check this configuration file and exit: code 0 if it is valid, 3 if it is not
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    check_config: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check the files of an audit log
    Audit {
        #[command(subcommand)]
        action: AuditAction,
    },
    /// Check and prepare the servers of `store: clickhouse`
    Store {
        #[command(subcommand)]
        action: store_command::Action,
        #[command(flatten)]
        source: Source,
    },
    /// Look after the archive of the embedded store
    Archive {
        #[command(subcommand)]
        action: ArchiveAction,
    },
}

#[derive(clap::Subcommand)]
enum ArchiveAction {
    /// Make this collector the one that writes to the archive
    #[command(after_help = "\
For a collector that replaces one that is lost: run it with the configuration of the new collector \
while that is stopped, then start it. The other collector, if it still runs, uploads nothing any \
more and reports that.

Exit code 1: the archive is not reachable, or has no manifest; 3: configuration; 5: the collector \
runs")]
    TakeOver {
        #[command(flatten)]
        source: Source,
    },
}

#[derive(clap::Subcommand)]
enum AuditAction {
    /// Check that the files of a log are complete and unchanged, without a collector
    #[command(after_help = "\
Without head.json, which says what the last line was, lines that are missing at the end are not \
found: compare the last number and hash with what you noted.

Exit code 1: something is wrong, or the files cannot be read")]
    Verify {
        /// Directory with the files: `audit` in the data_dir of a stopped collector, or a copy
        directory: PathBuf,
    },
}

/// Exit codes.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Exit {
    Failed = 1,
    Config = 3,
    Permission = 4,
    InUse = 5,
}

/// Most threads of the runtime. Streams cost little; more only wake each other up.
const WORKERS_MAX: usize = 8;

/// Blocking threads besides those of queries: status or metrics, alerts, evidence, and shutdown.
/// Queries write their files in their own place, and pushes have a thread of their own.
const BLOCKING_SPARE: usize = 12;

/// Time for blocking calls to end after everything else has.
const RUNTIME_END: Duration = Duration::from_secs(2);

/// Where a configuration comes from, so that it can be read again.
#[derive(Clone, clap::Args)]
struct Source {
    /// Configuration file [default: /etc/fleetprof/collector.yaml when it exists]
    #[arg(long = "config", value_name = "FILE")]
    path: Option<PathBuf>,
    /// Override a key of the configuration; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl Source {
    /// The same with what stands further right on a command line, which wins.
    fn then(&self, later: &Source) -> Source {
        Source {
            path: later.path.clone().or_else(|| self.path.clone()),
            sets: [&self.sets[..], &later.sets].concat(),
        }
    }

    fn load(&self) -> Result<Loaded, collector::config::ConfigError> {
        let (path, env) = (self.path.as_deref(), std::env::vars_os());
        Config::load(path, env, &self.sets, effective_uid())
    }
}

type SetLogLevel = Box<dyn Fn(&Config) + Send>;

fn main() -> ExitCode {
    let args = Args::parse();
    match &args.command {
        Some(Command::Audit { action }) => {
            let AuditAction::Verify { directory } = action;
            return verify_audit(directory);
        }
        Some(Command::Store { action, source }) => {
            let loaded = match source.then(action.source()).load() {
                Ok(loaded) => loaded,
                Err(error) => return fail(&error, Exit::Config),
            };
            return store_command::run(action, &loaded.config);
        }
        Some(Command::Archive { action }) => {
            let ArchiveAction::TakeOver { source } = action;
            return match take_over(source) {
                Ok(()) => ExitCode::SUCCESS,
                Err((error, code)) => fail(&*error, code),
            };
        }
        None => {}
    }
    let check = args.check || args.check_config.is_some();
    let source = match source(args) {
        Ok(source) => source,
        Err(text) => {
            let _ = writeln!(std::io::stderr(), "error: {text}");
            return ExitCode::from(Exit::Config as u8);
        }
    };
    let loaded = match source.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            let file = source.path.as_deref().filter(|_| check);
            // All that is wrong with the file, where that is what is wrong.
            return match file.map(|file| Config::check(file, effective_uid())) {
                Some(Err(errors)) => {
                    for error in &errors {
                        fail(error, Exit::Config);
                    }
                    ExitCode::from(Exit::Config as u8)
                }
                _ => fail(&error, Exit::Config),
            };
        }
    };
    if let Err(why) = server::check(&loaded.config) {
        let _ = writeln!(std::io::stderr(), "error: {why}");
        return ExitCode::from(Exit::Config as u8);
    }
    if check {
        for warning in &loaded.warnings {
            let _ = writeln!(std::io::stderr(), "warning: {warning}");
        }
        let file = loaded.file.as_ref();
        let name = file.map_or("the configuration".into(), |file| file.to_string_lossy());
        // A reader that is gone does not make it invalid.
        let _ = writeln!(std::io::stdout(), "{name}: valid");
        return ExitCode::SUCCESS;
    }
    let set_log_level = start_logging(&loaded.config);
    match run(loaded, source, set_log_level) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&*error, exit(&*error)),
    }
}

/// Makes the collector of a configuration the one that writes to its archive.
fn take_over(source: &Source) -> Result<(), (Box<dyn Error>, Exit)> {
    let loaded = source
        .load()
        .map_err(|error| (error.into(), Exit::Config))?;
    let config = loaded.config;
    let Some(options) = open::archive_options(&config) else {
        return Err(("`archive.url` is null".into(), Exit::Config));
    };
    let url = config.archive.url.clone().unwrap_or_default();
    let taken = EmbeddedStore::take_over_archive(&config.data_dir, options);
    let taken = taken.map_err(OpenError::from).map_err(|error| {
        let code = exit(&error);
        (error.into(), code)
    })?;
    let Some(before) = taken else {
        let text = format!("the archive `{url}` has no manifest: there is nothing to take over");
        return Err((text.into(), Exit::Failed));
    };
    // Its name is somebody else's.
    let host = profile::text::printable(&before.host);
    let _ = writeln!(
        std::io::stdout(),
        "{url} belonged to the collector of {host} ({}) and belongs to this one now",
        profile::text::printable(&before.id)
    );
    Ok(())
}

/// Checks the files of an audit log that nobody writes to.
fn verify_audit(directory: &Path) -> ExitCode {
    let found = match audit::verify_dir(directory) {
        Ok(found) => found,
        Err(error) => {
            let directory = directory.display();
            let _ = writeln!(
                std::io::stderr(),
                "error: failed to read the audit log in `{directory}`: {error}"
            );
            return ExitCode::from(Exit::Failed as u8);
        }
    };
    // Names of files, and what is in them, are somebody else's.
    let clean = |text: &str| profile::text::printable(text).into_owned();
    let mut out = std::io::stdout();
    for problem in &found.problems {
        let _ = writeln!(out, "{}", clean(problem));
    }
    if !found.problems.is_empty() {
        let _ = writeln!(
            std::io::stderr(),
            "error: the audit log was changed or is damaged"
        );
        return ExitCode::from(Exit::Failed as u8);
    }
    let end = match found.behind {
        Some(0) => "complete and unchanged".to_owned(),
        Some(behind) => format!(
            "unchanged; the last {behind} are behind the line that head.json says is the last"
        ),
        None => {
            "unchanged; without head.json nothing says whether that is the last line".to_owned()
        }
    };
    let _ = writeln!(
        out,
        "{} lines, {} to {}, {end}; the hash of the last line is {}",
        found.lines, found.first_seq, found.last_seq, found.last_hash
    );
    ExitCode::SUCCESS
}

/// Flags are the last word: each stands for a key.
fn source(args: Args) -> Result<Source, String> {
    let mut sets = args.sets;
    if let Some(dir) = args.data_dir {
        let dir = std::path::absolute(&dir)
            .map_err(|error| format!("failed to find `{}`: {error}", dir.display()))?;
        sets.push(format!("data_dir={}", dir.display()));
    }
    let listen = [
        ("grpc", args.listen_grpc),
        ("http", args.listen_http),
        ("tls", args.listen_tls),
        ("https", args.listen_https),
    ];
    for (name, address) in listen {
        sets.extend(address.map(|address| format!("listen.{name}={address}")));
    }
    Ok(Source {
        path: args.config.or(args.check_config),
        sets,
    })
}

fn run(loaded: Loaded, source: Source, set_log_level: SetLogLevel) -> Result<(), Box<dyn Error>> {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    let config = loaded.config;
    // Asked before: who is confined reads no limits of its cgroup.
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let given_up = confine::give_up(&config, loaded.file.as_deref());
    let clock = Clock::system();
    let store = open::open(&config, clock.now_unix_ns())?;
    let (engine, version) = store.status.engine();
    tracing::info!(engine, version, "store opened");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.clamp(2, WORKERS_MAX))
        .max_blocking_threads(config.query.concurrent as usize + BLOCKING_SPARE)
        .thread_name("fp-collector")
        .enable_all()
        .build()?;
    let (stop, stopping) = watch::channel(false);
    let served = runtime.block_on(async {
        let [term, int, hup] = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        let signals = [term?, int?, hup?];
        let active = config.clone();
        let watching = tokio::spawn(watch_signals(signals, source, active, set_log_level, stop));
        let stopping = (stopping, given_up);
        let served = server::serve_confined(&config, store, clock, stopping, ready).await;
        watching.abort();
        Ok::<_, std::io::Error>(served)
    })?;
    runtime.shutdown_timeout(RUNTIME_END);
    served?;
    tracing::info!("stopped");
    Ok(())
}

fn ready(addresses: Addresses) {
    let Addresses {
        grpc,
        http,
        tls,
        https,
    } = addresses;
    let hosts = tls.map(tracing::field::display);
    let people = https.map(|https| format!("https://{https}/"));
    tracing::info!(%grpc, page = format!("http://{http}/"), hosts, people, "listening");
    notify(&[NotifyState::Ready]);
}

/// Informs the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

/// Stops at SIGTERM and SIGINT, reads the configuration again at SIGHUP.
async fn watch_signals(
    [mut term, mut int, mut hup]: [Signal; 3],
    source: Source,
    mut active: Config,
    set_log_level: SetLogLevel,
    stop: watch::Sender<bool>,
) {
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = int.recv() => break,
            _ = hup.recv() => match tokio::task::block_in_place(|| source.load()) {
                Ok(new) => {
                    let diff = active.adopt(&new.config);
                    set_log_level(&active);
                    let (changed, restart) = (diff.changed.join(" "), diff.needs_restart.join(" "));
                    tracing::info!(changed, needs_restart = restart, "configuration reloaded");
                }
                Err(error) => {
                    tracing::error!("configuration refused; the active one stays: {}", causes(&error));
                }
            },
        }
    }
    tracing::info!("stopping");
    notify(&[NotifyState::Stopping]);
    // Nobody listens when serving has ended already.
    let _ = stop.send(true);
    // Held until serving ends: dropped, the signals would end the process as by default.
    std::future::pending::<()>().await;
}

/// Each agent takes a descriptor, each partition some.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

/// The code that stands for an error.
fn exit(error: &(dyn Error + 'static)) -> Exit {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(ServeError::Listen(ListenError::NotLoopback { .. })) = error.downcast_ref() {
            return Exit::Config;
        }
        if let Some(ServeError::Listen(ListenError::Bind { source, .. })) = error.downcast_ref() {
            return exit_of(source);
        }
        match error.downcast_ref() {
            Some(OpenError::Embedded(embedded::OpenError::Locked { .. })) => return Exit::InUse,
            Some(OpenError::Embedded(embedded::OpenError::Io { error, .. })) => {
                return exit_of(error);
            }
            _ => {}
        }
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return exit_of(error);
        }
        at = error.source();
    }
    Exit::Failed
}

fn exit_of(error: &std::io::Error) -> Exit {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Exit::Permission,
        std::io::ErrorKind::AddrInUse => Exit::InUse,
        _ => Exit::Failed,
    }
}

/// Prints the error and its causes, each once. If standard error cannot be written (a full disk, a
/// closed reader) the exit code still says what happened.
fn fail(error: &dyn Error, exit: Exit) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {}", causes(error));
    ExitCode::from(exit as u8)
}

fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    fn source_of(args: &[&str]) -> Source {
        let all = ["fleetprof-collector"].iter().chain(args);
        let args = Args::try_parse_from(all).unwrap_or_else(|error| panic!("{error}"));
        match args.command {
            Some(Command::Store { action, source }) => source.then(action.source()),
            _ => panic!("another command"),
        }
    }

    #[test]
    fn keys_that_are_set_before_and_after_a_subcommand_all_apply_in_their_order() {
        for action in [&["check"] as &[&str], &["schema"], &["copy"], &["grants"]] {
            let before = [
                "store",
                "--set",
                "store=clickhouse",
                "--set",
                "log.level=warn",
            ];
            let after = ["--set", "log.level=info", "--config", "b.yaml"];
            let source =
                source_of(&[&before[..], &["--config", "a.yaml"], action, &after].concat());
            let expected = ["store=clickhouse", "log.level=warn", "log.level=info"];
            assert_eq!(source.sets, expected, "{action:?}");
            assert_eq!(source.path, Some("b.yaml".into()));
        }
        let source = source_of(&["store", "--config", "a.yaml", "check"]);
        assert_eq!(source.path, Some("a.yaml".into()));
    }
}
