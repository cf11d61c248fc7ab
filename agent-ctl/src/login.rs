//! `agent-ctl login`, `logout` and `whoami`: the user's identity at a collector.

use crate::connection::{self, Route, Transport};
use crate::exit::{self, fail};
use crate::form::Form;
use crate::join::with_port;
use crate::logins::{Login, Logins};
use crate::peer::{Connection, Kind, Peer, Target};
use crate::terminal::{Out, clean};
use crate::units::SECOND_NS;
use crate::when::rfc3339;
use anyhow::Result;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{Role, WhoAmIRequest, WhoAmIResponse};
use proto::credential::Credential;
use serde::Serialize;
use std::io::Read;

/// Longest token that is read. Unit: bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Logs in to a collector: after that it is asked without any option.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
An administrator makes the token (`agent-ctl users add`). It holds the fingerprint of the fleet's \
authority, so any other server at that address is refused. It is stored in \
$XDG_CONFIG_HOME/fleetprof/logins.json, which only you can read. A program that cannot log in uses \
--token-file.

Examples:
  echo fpu1_… | agent-ctl login c1.example.net:7601 -      hides it from the list of processes
  agent-ctl login c1.example.net --name prod - < token     reads it from a file
  agent-ctl hosts                                          uses the collector of the last login
  agent-ctl --collector prod hosts                         uses another collector")]
pub struct Args {
    /// Address where the collector accepts people: HOST or HOST:PORT
    #[arg(value_name = "COLLECTOR")]
    address: String,
    /// `-` to read the token from standard input, or the token itself, which everybody on this
    /// machine can see
    #[arg(value_name = "TOKEN")]
    token: String,
    /// Name of the login for --collector [default: the host of the collector]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    form: Form,
}

/// Forgets the token for a collector.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
This deletes the token from this machine only. The token stays valid until an administrator runs \
`agent-ctl users remove`.

Examples:
  agent-ctl logout
  agent-ctl logout prod")]
pub struct LogoutArgs {
    /// Name of the login [default: the last one]
    #[arg(value_name = "COLLECTOR")]
    name: Option<String>,
}

/// Says who a collector takes you for, and what you may do there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl whoami
  agent-ctl --collector prod whoami --json | jq -r .role")]
pub struct WhoamiArgs {
    #[command(flatten)]
    form: Form,
}

/// Runs `login`.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let token = match args.token.as_str() {
        "-" => {
            let mut text = String::new();
            let input = std::io::stdin().lock();
            input.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
            text
        }
        given => given.to_owned(),
    };
    let credential = Credential::parse_token(&token)
        .map_err(|error| fail(exit::USAGE, format!("failed to log in: {error}")))?;
    let address = with_port(&args.address);
    let target: Target = address.parse().map_err(|why| {
        fail(
            exit::USAGE,
            format!("failed to use address `{}`: {why}", args.address),
        )
    })?;
    let name = match args.name {
        Some(name) => name,
        None => host_of(&address).to_owned(),
    };
    if name.is_empty() || name.contains([':', '/', ' ']) || name.starts_with('[') {
        return Err(fail(
            exit::USAGE,
            format!("failed to name the login `{name}`: give a name of letters with --name"),
        ));
    }
    let login = Login {
        address,
        token: credential.reveal_token(),
    };
    let peer = Peer {
        kind: Kind::Collector,
        target,
        login: Some(login.clone()),
    };
    let (transport, route) = connection::open_as(connection, &peer, Some(&login)).await?;
    let who = ask(transport, &route).await?;
    let mut logins = Logins::read()?;
    logins.collectors.insert(name.clone(), login.clone());
    logins.default = Some(name.clone());
    logins.write()?;
    if args.form.is_json() {
        out.write_json(&Who::of(&login.address, &who))?;
        return Ok(exit::OK);
    }
    out.write(&format!("logged in to {name} as {}\n", describe(&who)))?;
    note!("it is the default collector, also as --collector {name}");
    Ok(exit::OK)
}

/// Runs `logout`.
pub fn logout(out: &Out, args: LogoutArgs) -> Result<u8> {
    let mut logins = Logins::read()?;
    let name = args.name.or_else(|| logins.default.clone());
    let removed = name
        .as_ref()
        .and_then(|name| logins.collectors.remove_entry(name));
    let Some((name, _)) = removed else {
        let message = match name {
            Some(name) => format!(
                "failed to log out of `{name}`: there is no login with that \
                name"
            ),
            None => "failed to log out: there is no login".to_owned(),
        };
        return Err(fail(exit::USAGE, message));
    };
    if logins.default.as_ref() == Some(&name) {
        logins.default = None;
    }
    logins.write()?;
    out.write(&format!("deleted the token for {}\n", clean(&name)))?;
    Ok(exit::OK)
}

/// Runs `whoami`.
pub async fn whoami(out: &Out, connection: &Connection, args: WhoamiArgs) -> Result<u8> {
    let peer = connection.collector_only("people")?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let who = ask(transport, &route).await?;
    match args.form.is_json() {
        true => out.write_json(&Who::of(&peer.target.to_string(), &who))?,
        false => out.write(&format!("{}\n", describe(&who)))?,
    }
    Ok(exit::OK)
}

async fn ask(transport: Transport, route: &Route) -> Result<WhoAmIResponse> {
    let mut service = AccessServiceClient::new(transport);
    let call = service.who_am_i(WhoAmIRequest {});
    route.answer("get your name and role", call).await
}

/// Who it is, for people.
fn describe(who: &WhoAmIResponse) -> String {
    let scope = match who.scope.as_str() {
        "" => "the complete fleet".to_owned(),
        scope => clean(scope).into_owned(),
    };
    let until = match who.expires_unix_s {
        0 => String::new(),
        end => format!(", until {}", rfc3339(end.saturating_mul(SECOND_NS))),
    };
    format!(
        "{} ({}; {scope}{until})",
        clean(&who.name),
        role_name(who.role())
    )
}

/// As people write it.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Unspecified => "unknown role",
        Role::Sender => "sender",
        Role::Metrics => "metrics",
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Admin => "admin",
    }
}

/// The address without its port, and without brackets.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[derive(Serialize)]
struct Who<'a> {
    collector: &'a str,
    name: &'a str,
    role: &'a str,
    scope: &'a str,
    expires: Option<String>,
    fleet_id: &'a str,
}

impl<'a> Who<'a> {
    fn of(collector: &'a str, who: &'a WhoAmIResponse) -> Who<'a> {
        let end = who.expires_unix_s;
        Who {
            collector,
            name: &who.name,
            role: role_name(who.role()),
            scope: &who.scope,
            expires: (end != 0).then(|| rfc3339(end.saturating_mul(SECOND_NS))),
            fleet_id: &who.fleet_id,
        }
    }
}
