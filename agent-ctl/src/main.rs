//! `agent-ctl`: queries the agent of one host, or the collector of a fleet, over gRPC. This file
//! runs the command and turns its result into an exit code; see `exit.rs` for the codes.
#![forbid(unsafe_code)]
#![deny(
    clippy::print_stderr,
    reason = "it panics where standard error takes nothing: `note!`"
)]

/// Prints a line to standard error. If that cannot be written (a full disk, a closed reader) the
/// exit code still says what happened.
macro_rules! note {
    ($($text:tt)*) => {
        $crate::terminal::note(format_args!($($text)*))
    };
}

mod alerts;
mod annotate;
mod audit;
mod baseline;
mod capture;
mod capture_info;
mod captures;
mod cgroups;
mod cli;
mod client;
mod collector;
mod command;
mod complete;
mod completions;
mod config;
mod connection;
mod degradation;
mod delivery;
mod diff;
mod doctor;
mod events;
mod exit;
mod facts;
mod fleet;
mod fleet_capture;
mod form;
mod group_by;
mod heatmap;
mod hosts;
mod import;
mod incidents;
mod join;
mod labels;
mod listen_tls;
mod local;
mod login;
mod logins;
mod look;
mod loss;
mod man;
mod members;
mod nothing;
mod number;
mod output;
mod overview;
mod page;
mod peer;
mod pins;
mod profile_cmd;
mod record;
mod render;
mod report;
mod runtimes;
mod sampleable;
mod select;
mod series;
mod service;
mod signals;
mod source;
mod spread;
mod status;
mod steps;
mod summary;
mod symbols;
mod tail;
mod terminal;
mod top;
mod units;
mod users;
mod views;
mod when;

use anyhow::Context;
use clap::CommandFactory;
use cli::{Cli, Command};
use std::process::ExitCode;
use terminal::{Out, clean_lines};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let as_helper = command::start(std::env::args_os());
    if let Some(code) = as_helper.or_else(|| complete::call(std::env::args_os())) {
        return code.into();
    }
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refused) => return show(&refused).into(),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            note!("agent-ctl: failed to start: {error}");
            return exit::FAILURE.into();
        }
    };
    // A capture is ended by a signal with what there is; the others are just ended.
    let hears_signals = match &cli.command {
        Command::Capture(_) | Command::Annotate(_) => true,
        Command::Profile(args) => args.records(),
        _ => false,
    };
    let code = runtime.block_on(async {
        tokio::select! {
            result = run(cli) => finish(result),
            code = interrupted(), if !hears_signals => code,
        }
    });
    // Not waiting for work that was interrupted.
    runtime.shutdown_background();
    code.into()
}

async fn run(cli: Cli) -> anyhow::Result<u8> {
    let out = Out::stdout();
    let connection = cli.connection;
    match cli.command {
        Command::Status(args) => status::run(&out, &connection, args).await,
        Command::Doctor(args) => doctor::run(&out, &connection, args).await,
        Command::Hosts(args) => hosts::run(&out, &connection, args).await,
        Command::Join(args) => join::run(&out, &connection, args).await,
        Command::Leave(args) => join::leave(&out, &connection, args).await,
        Command::Login(args) => login::run(&out, &connection, args).await,
        Command::Logout(args) => login::logout(&out, args),
        Command::Whoami(args) => login::whoami(&out, &connection, args).await,
        Command::Page(args) => page::run(&out, &connection, args).await,
        Command::Users(args) => users::run(&out, &connection, args).await,
        Command::Audit(args) => audit::run(&out, &connection, args).await,
        Command::Cgroups(args) => cgroups::run(&out, &connection, args).await,
        Command::Top(args) => top::run(&out, &connection, args).await,
        Command::Profile(args) => profile_cmd::run(&out, &connection, args).await,
        Command::Capture(args) => capture::run(&out, &connection, *args).await,
        Command::Annotate(args) => annotate::run(&out, &connection, args).await,
        Command::Captures(args) => captures::run(&out, &connection, args).await,
        Command::Heatmap(args) => heatmap::run(&out, &connection, args).await,
        Command::Import(args) => import::run(&out, args).await,
        Command::Overview(args) => overview::run(&out, &connection, *args).await,
        Command::Labels(args) => labels::run(&out, &connection, args).await,
        Command::Series(args) => series::run(&out, &connection, args).await,
        Command::Diff(args) => diff::run(&out, &connection, args).await,
        Command::Pins(args) => pins::run(&out, &connection, args).await,
        Command::Incidents(args) => incidents::run(&out, &connection, args).await,
        Command::Views(args) => views::run(&out, &connection, args).await,
        Command::Alerts(args) => alerts::run(&out, &connection, args).await,
        Command::Events(args) => events::run(&out, &connection, args).await,
        Command::Symbols(args) => symbols::run(&out, &connection, args).await,
        Command::Tail(args) => tail::run(&out, &connection, args).await,
        Command::Config(args) => config::run(&out, &connection, args).await,
        Command::Completions(args) => completions::run(&out, Cli::command(), args),
        Command::Man(args) => man::run(&out, Cli::command(), args),
    }
}

/// Prints help, or why the command line was not understood.
fn show(refused: &clap::Error) -> u8 {
    let code = match refused.use_stderr() {
        true => exit::USAGE,
        false => exit::OK,
    };
    let printed = refused
        .print()
        .context("failed to write to standard output");
    // If errors cannot be printed either, the exit code still says what happened.
    finish(printed.map(|()| code)).max(code)
}

fn finish(result: anyhow::Result<u8>) -> u8 {
    match result {
        Ok(code) => code,
        Err(error) if exit::is_broken_pipe(&error) => exit::OK,
        Err(error) => {
            note!("agent-ctl: {}", clean_lines(&format!("{error:#}")));
            exit::code_of(&error)
        }
    }
}

/// Waits for SIGINT or SIGTERM. What the command holds (a temporary file, the terminal's mode) is
/// put back when its future is dropped.
async fn interrupted() -> u8 {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => exit::INTERRUPTED,
        _ = terminate.recv() => exit::TERMINATED,
    }
}
