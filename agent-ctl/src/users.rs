//! `agent-ctl users`: manages who may use a collector, and what they may do.

use crate::connection::{self, Route, Transport};
use crate::exit::{self, fail};
use crate::form::Form;
use crate::login::role_name;
use crate::members::{listen_address, word};
use crate::peer::Connection;
use crate::terminal::{Out, Table, clean};
use crate::units;
use crate::units::SECOND_NS;
use crate::when::{Clock, rfc3339};
use anyhow::Result;
use proto::collector::access_service_client::AccessServiceClient;
use proto::collector::{
    AddUserRequest, ListUsersRequest, RemoveUserRequest, Role as WireRole, User,
};
use serde::Serialize;
use std::time::Duration;

/// Prefix of the name of somebody who logged in through an identity provider.
const SIGNED_IN: &str = "oidc:";

/// Shows and changes who may ask a collector.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Roles; each includes those above it, but for sender:
  sender    send profiles of other programs, and nothing else
  metrics   scrape metrics
  viewer    read everything that is stored
  operator  capture on hosts, upload symbols
  admin     add and remove hosts and people, read the audit log

On the collector's own machine everybody is an admin called `local`, without a login. Use it to \
add the first person.

Examples:
  agent-ctl --collector 127.0.0.1 users add anna --role admin      on the collector's machine
  agent-ctl users add ben --role viewer --scope 'team=\"web\"'
  agent-ctl users list
  agent-ctl users remove ben")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Add a person: print the command that logs them in
    #[command(after_help = "\
The command holds a token, which is shown once. Whoever has the token acts as that person. Give \
each program a name and token of its own.

Examples:
  agent-ctl users add anna --role operator
  agent-ctl users add prometheus --role metrics --lifetime 1y
  agent-ctl users add shop-sdk --role sender
  agent-ctl users add ben --role viewer --scope 'namespace=~\"web-.*\"'
  agent-ctl users add anna --role operator --replace     replaces a lost token
  agent-ctl users add ci --role operator --json | jq -r .token")]
    Add(Add),
    /// List people with a token, and people logged in through an identity provider
    #[command(after_help = "\
Examples:
  agent-ctl users list
  agent-ctl users list --json | jq -r '.users[] | select(.expired).name'")]
    List {
        #[command(flatten)]
        form: Form,
    },
    /// Remove a person: their token, sessions and running calls end at once
    #[command(after_help = "\
People who log in through an identity provider have no token. Removing them ends their sessions; \
they can log in again while their account is in a group of auth.oidc.rules.

Examples:
  agent-ctl users remove ben
  agent-ctl users remove oidc:anna@example.net")]
    Remove {
        /// Name of the person
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        form: Form,
    },
}

/// Somebody to be let in.
#[derive(Debug, clap::Args)]
struct Add {
    /// Name of the person, as in the audit log
    #[arg(value_name = "NAME")]
    name: String,
    /// What they may do
    #[arg(long, value_enum)]
    role: Role,
    /// Selector of the part of the fleet they see [default: all of it]
    #[arg(long, value_name = "SELECTOR")]
    scope: Option<String>,
    /// Time until the token expires
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = crate::when::duration)]
    lifetime: Duration,
    /// Replace the token of a person who has one
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    /// Send profiles of other programs, and nothing else
    Sender,
    /// Scrape metrics
    Metrics,
    /// Read everything that is stored
    Viewer,
    /// Capture on hosts, upload symbols
    Operator,
    /// Add and remove hosts and people, read the audit log
    Admin,
}

impl From<Role> for WireRole {
    fn from(role: Role) -> WireRole {
        match role {
            Role::Sender => WireRole::Sender,
            Role::Metrics => WireRole::Metrics,
            Role::Viewer => WireRole::Viewer,
            Role::Operator => WireRole::Operator,
            Role::Admin => WireRole::Admin,
        }
    }
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("people")?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let mut service = AccessServiceClient::new(transport);
    match args.action {
        Action::Add(add) => self::add(out, &mut service, &route, add).await,
        Action::List { form } => {
            let call = service.list_users(ListUsersRequest {});
            let answer = route.answer("list people", call).await?;
            if form.is_json() {
                let users = answer.users.iter().map(UserJson::of).collect();
                out.write_json(&List { users })?;
                return Ok(exit::OK);
            }
            out.write(&show(out, &answer.users))?;
            let count = answer.users.len() as u64;
            let word = if count == 1 { "person" } else { "people" };
            note!("{} {word}", units::count(count));
            Ok(exit::OK)
        }
        Action::Remove { name, form } => {
            let call = service.remove_user(RemoveUserRequest { name });
            let removed = route.answer("remove somebody", call).await?;
            let user = removed.user.unwrap_or_default();
            match form.is_json() {
                true => out.write_json(&UserJson::of(&user))?,
                false => {
                    let what = match user.name.starts_with(SIGNED_IN) {
                        true => "sessions of {} have",
                        false => "token of {} has",
                    };
                    let what = what.replace("{}", &clean(&user.name));
                    out.write(&format!("the {what} ended\n"))?;
                }
            }
            Ok(exit::OK)
        }
    }
}

async fn add(
    out: &Out,
    service: &mut AccessServiceClient<Transport>,
    route: &Route,
    add: Add,
) -> Result<u8> {
    if let (Role::Sender, Some(_)) = (add.role, &add.scope) {
        return Err(fail(
            exit::USAGE,
            "failed to add a sender with a scope: a sender reads nothing, and with a scope it may \
             not send\nleave --scope out; its name is the label `sender` of all that it sends",
        ));
    }
    let lifetime_s = u32::try_from(add.lifetime.as_secs()).unwrap_or(u32::MAX);
    let call = service.add_user(AddUserRequest {
        name: add.name,
        role: WireRole::from(add.role).into(),
        scope: add.scope.unwrap_or_default(),
        lifetime_s: lifetime_s.max(1),
        replace: add.replace,
    });
    let added = route.answer("add a person", call).await?;
    let user = added.user.unwrap_or_default();
    let address = listen_address(&added.listen, &added.hostname);
    if add.form.is_json() {
        out.write_json(&Added {
            token: &added.token,
            collector: &address,
            user: UserJson::of(&user),
        })?;
        return Ok(exit::OK);
    }
    let token = clean(&added.token);
    out.write(&match address.as_str() {
        // Nobody can log in from elsewhere but at the page.
        "" => format!("{token}\n"),
        // Words of a command line are seen by everybody on the machine; what `echo` says is not.
        address => format!(
            "echo {token} | agent-ctl login {} -\n",
            word(&clean(address))
        ),
    })?;
    note!(
        "give the line to {} in private: whoever has it can log in as {0}. It has the role {} \
         until {}",
        clean(&user.name),
        role_name(user.role()),
        rfc3339(user.expires_unix_s.saturating_mul(SECOND_NS))
    );
    Ok(exit::OK)
}

fn show(out: &Out, users: &[User]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let clock = Clock::local();
    let mut table = Table::new(&[
        "NAME", "ROLE", "SCOPE", "EXPIRES", "USED", "SESSIONS", "ADDED", "BY",
    ]);
    for user in users {
        let time = |unix_s: i64| clock.show(unix_s.saturating_mul(SECOND_NS));
        let scope = match user.scope.as_str() {
            "" => "all",
            scope => scope,
        };
        table.row([
            clean(&user.name).into_owned(),
            role_name(user.role()).to_owned(),
            clean(scope).into_owned(),
            match user.expired {
                true => "expired".to_owned(),
                false => time(user.expires_unix_s),
            },
            match user.used_unix_s {
                0 => "never".to_owned(),
                used => time(used),
            },
            user.sessions.to_string(),
            time(user.created_unix_s),
            clean(&user.created_by).into_owned(),
        ]);
    }
    table
        .sparing(&["ADDED", "BY", "USED", "SESSIONS"])
        .show(out)
}

#[derive(Serialize)]
struct Added<'a> {
    token: &'a str,
    collector: &'a str,
    user: UserJson<'a>,
}

#[derive(Serialize)]
struct List<'a> {
    users: Vec<UserJson<'a>>,
}

#[derive(Serialize)]
struct UserJson<'a> {
    name: &'a str,
    role: &'a str,
    scope: &'a str,
    created_by: &'a str,
    created: String,
    expires: String,
    expired: bool,
    used: Option<String>,
    sessions: u32,
    signed_in: bool,
}

impl<'a> UserJson<'a> {
    fn of(user: &'a User) -> UserJson<'a> {
        let time = |unix_s: i64| rfc3339(unix_s.saturating_mul(SECOND_NS));
        UserJson {
            name: &user.name,
            role: role_name(user.role()),
            scope: &user.scope,
            created_by: &user.created_by,
            created: time(user.created_unix_s),
            expires: time(user.expires_unix_s),
            expired: user.expired,
            used: (user.used_unix_s != 0).then(|| time(user.used_unix_s)),
            sessions: user.sessions,
            signed_in: user.signed_in,
        }
    }
}
