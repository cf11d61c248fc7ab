//! `fleetprof-collector store`: examines the servers of `store: clickhouse`, and prints statements
//! for whoever may make tables and users.

use crate::Source;
use collector::config::{Config, Engine};
use collector::store::clickhouse::ClickHouseStore;
use collector::store::clickhouse::{self, Finding, Options, Role, Severity};
use collector::store::copy::{Copied, copy};
use collector::store::open::{clickhouse_options, open_embedded, senders_clickhouse_options};
use collector::store::{TimeRange, WindowSink};
use collector::time::Clock;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Exit code where something is wrong.
const WRONG: u8 = 1;
/// Exit code where the configuration is.
const CONFIG: u8 = 3;

#[derive(clap::Subcommand)]
pub enum Action {
    /// Examine the servers, and say how to fix what is wrong
    #[command(after_help = "\
It looks at every server of clickhouse.urls: version, clock, rights, replicas, parts, failing \
changes, disks; and at every shard: key, version of the schema, tables, columns; with \
senders.enabled also in the database of other senders. It changes nothing.

Exit code 1: something is wrong; warnings alone are code 0")]
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: Source,
    },
    /// Print the statements that make the tables
    #[command(after_help = "\
A collector makes and migrates the tables itself, unless its user may not. Print the statements \
once and keep them: the key of the database is in them, and it is random.")]
    Schema {
        /// Print those that bring a database from this version of the schema up to date
        #[arg(long, value_name = "VERSION", default_value_t = 0)]
        from: u32,
        #[command(flatten)]
        source: Source,
    },
    /// Copy the windows of the embedded store in data_dir to the servers
    #[command(after_help = "\
No collector may use data_dir meanwhile. Windows are copied as they came, with their hosts; what \
is only there in minutes, ten minutes or hours is not, and windows older than retention.raw_days \
are refused. A copy that ended goes on when it is started again: what is there counts once. At the \
end the sums of both stores are compared.

Exit code 1: it failed, or the servers have less than data_dir")]
    Copy {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: Source,
    },
    /// Print the statements that give the collector's user its rights
    Grants {
        /// Rights to make and migrate the tables, too
        #[arg(long)]
        own: bool,
        #[command(flatten)]
        source: Source,
    },
}

impl Action {
    /// Where the configuration comes from, as it stands after the action.
    pub fn source(&self) -> &Source {
        match self {
            Action::Check { source, .. }
            | Action::Schema { source, .. }
            | Action::Copy { source, .. }
            | Action::Grants { source, .. } => source,
        }
    }
}

/// The databases that the collector uses: that of agents, and that of other senders where they are
/// let in.
fn databases(config: &Config) -> Vec<Options> {
    let mut all = vec![clickhouse_options(config)];
    if config.senders.enabled {
        all.push(senders_clickhouse_options(config));
    }
    all
}

/// Does it.
pub fn run(action: &Action, config: &Config) -> ExitCode {
    if config.store != Engine::ClickHouse {
        let text = "error: the configuration has `store: embedded`, which has no server\n\
                    try: --set store=clickhouse";
        let _ = writeln!(std::io::stderr(), "{text}");
        return ExitCode::from(CONFIG);
    }
    let databases = databases(config);
    match action {
        Action::Check { json, .. } => return check(&databases, *json),
        Action::Copy { json, .. } => {
            return match copy_all(config, clickhouse_options(config)) {
                Ok(copied) => told(&copied, *json),
                Err(error) => {
                    let text = format!("error: {error}\ntry: start the copy again; it goes on");
                    let _ = writeln!(std::io::stderr(), "{text}");
                    ExitCode::from(WRONG)
                }
            };
        }
        Action::Schema { from, .. } => {
            for options in &databases {
                print(clickhouse::schema_statements(options, *from));
            }
        }
        Action::Grants { own, .. } => {
            let role = if *own { Role::Own } else { Role::Use };
            let user = &config.clickhouse.user;
            for options in &databases {
                let (layout, database) = (options.layout(), &options.database);
                print(clickhouse::grants(role, layout, database, user));
            }
        }
    }
    ExitCode::SUCCESS
}

/// Prints statements for clickhouse-client.
fn print(statements: Vec<String>) {
    let mut out = std::io::stdout().lock();
    for statement in statements {
        // A reader that is gone needs no more of them.
        let _ = writeln!(out, "{statement};\n");
    }
}

fn check(databases: &[Options], json: bool) -> ExitCode {
    let mut found = Vec::new();
    for options in databases {
        match clickhouse::check(options, &Clock::system()) {
            Ok(of_one) => found.extend(of_one.into_iter().map(|mut one| {
                if databases.len() > 1 {
                    let separator = if one.of.is_empty() { "" } else { ", " };
                    one.of = format!("{}{separator}{}", options.database, one.of);
                }
                one
            })),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "error: {error}");
                return ExitCode::from(CONFIG);
            }
        }
    }
    let is_wrong = found.iter().any(|one| one.severity == Severity::Error);
    let mut out = std::io::stdout().lock();
    if json {
        let all = serde_json::json!({ "ok": !is_wrong, "findings": found });
        let _ = writeln!(out, "{all:#}");
    } else {
        for one in &found {
            let _ = write!(out, "{}", text(one));
        }
    }
    ExitCode::from(if is_wrong { WRONG } else { 0 })
}

/// Copies the embedded store.
fn copy_all(config: &Config, options: Options) -> Result<Copied, Box<dyn Error>> {
    let clock = Clock::system();
    // What is only in its log is put into files first.
    open_embedded(config, clock.now_unix_ns())?.close()?;
    let from = open_embedded(config, clock.now_unix_ns())?;
    let to = ClickHouseStore::open(options)?;
    let mut hour = 0;
    let each = |range: TimeRange, copied: &Copied| {
        let of = range.start_unix_ns / 3_600_000_000_000;
        if of != hour {
            hour = of;
            let (start, stored) = (collector::time::rfc3339(range.start_unix_ns), copied.stored);
            let _ = writeln!(std::io::stderr(), "{start}: {stored} windows");
        }
    };
    Ok(copy(&from, &to, clock.now_unix_ns(), each)?)
}

/// Says what was copied.
fn told(copied: &Copied, json: bool) -> ExitCode {
    let mut out = std::io::stdout().lock();
    if json {
        let all = serde_json::json!(copied);
        let _ = writeln!(out, "{all:#}");
    } else {
        let Copied {
            stored,
            there,
            refused,
            reason,
            hosts,
            lacking,
            coarser,
        } = copied;
        let _ = writeln!(
            out,
            "{stored} windows copied, {there} were there, {hosts} hosts"
        );
        if let Some(reason) = reason {
            let _ = writeln!(out, "{refused} windows refused: {reason}");
        }
        if *coarser > 0 {
            let _ = writeln!(
                out,
                "{coarser} partitions were not copied: downsampled, or in the archive alone"
            );
        }
        for &start in lacking {
            let start = collector::time::rfc3339(start);
            let _ = writeln!(out, "less than in data_dir: ten minutes from {start}");
        }
    }
    ExitCode::from(if copied.lacking.is_empty() { 0 } else { WRONG })
}

/// A finding in lines for people.
fn text(finding: &Finding) -> String {
    let Finding {
        check,
        severity,
        of,
        text,
        fix,
    } = finding;
    let word = match severity {
        Severity::Ok => "ok",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let of = if of.is_empty() {
        String::new()
    } else {
        format!(" ({of})")
    };
    // Texts of servers are somebody else's.
    let clean = profile::text::printable;
    let mut lines = format!("{word:7} {check}{}: {}\n", clean(&of), clean(text));
    if !fix.is_empty() {
        lines.push_str(&format!("        fix: {}\n", clean(fix)));
    }
    lines
}
