//! `agent-ctl join` and `leave`: make this host a member of a fleet, or end its membership.

use crate::client::Client;
use crate::exit::{self, fail};
use crate::form::Form;
use crate::peer::{Connection, Peer, Target};
use crate::service::{self, State};
use crate::terminal::{Out, clean};
use crate::when::rfc3339;
use anyhow::Result;
use profile::fleet::COLLECTOR_TLS_PORT;
use proto::agent::{FleetMembership, JoinFleetRequest};
use proto::credential::Credential;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;

const INSTEAD: &str = "invite hosts with `agent-ctl hosts invite`";

/// Longest invitation that is read. Unit: bytes.
const INVITATION_BYTES_MAX: u64 = 4096;

/// Joins the fleet that invited this host: the agent uploads to its collector.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Run this as root on the host. An agent that is installed as a service and does not run is enabled \
and started; one that runs does not restart. The invitation comes from `agent-ctl hosts invite` \
and holds the fingerprint of the fleet's authority, so the agent refuses \
any other server at that address. The agent makes a key that never leaves the host, and renews its \
certificate by itself.

Examples:
  sudo agent-ctl join c1.example.net:7601 fpj1_…
  sudo agent-ctl join c1.example.net - < invitation     hides it from the list of processes")]
pub struct Args {
    /// Address where the collector accepts hosts: HOST or HOST:PORT
    #[arg(value_name = "COLLECTOR")]
    address: String,
    /// Invitation, `-` to read it from standard input
    #[arg(value_name = "INVITATION")]
    invitation: String,
    #[command(flatten)]
    form: Form,
}

/// Leaves the fleet: the agent stops uploading.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Run this as root on the host. Windows that wait on the host's disk stay there, and go to the next \
fleet that the host joins. The fleet lists the host until you run `agent-ctl hosts remove`.

Examples:
  sudo agent-ctl leave")]
pub struct LeaveArgs {}

/// Runs `join`.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let agent = connection.agent_only("join", INSTEAD)?;
    let invitation = match args.invitation.as_str() {
        "-" => {
            let mut text = String::new();
            let input = std::io::stdin().lock();
            input.take(INVITATION_BYTES_MAX).read_to_string(&mut text)?;
            text
        }
        given => given.to_owned(),
    };
    let credential = Credential::parse(&invitation)
        .map_err(|error| fail(exit::USAGE, format!("failed to join the fleet: {error}")))?;
    let mut client = match Client::connect(connection, &agent).await {
        Err(error) if exit::code_of(&error) == exit::UNREACHABLE && start(&agent)? => {
            Client::connect(connection, &agent).await?
        }
        connected => connected?,
    };
    let membership = client
        .join(JoinFleetRequest {
            collector: with_port(&args.address),
            credential: credential.reveal(),
        })
        .await?;
    if args.form.is_json() {
        out.write_json(&Joined::of(&membership))?;
        return Ok(exit::OK);
    }
    out.write(&format!(
        "joined fleet {} as {}; windows go to {}\n",
        clean(&membership.fleet_id),
        clean(&membership.name),
        clean(&membership.collector),
    ))?;
    note!(
        "the certificate ends at {} and is renewed before then",
        rfc3339(membership.not_after_unix_s.saturating_mul(1_000_000_000))
    );
    Ok(exit::OK)
}

/// Starts the agent of this host where it is a service that does not run; false when it is none.
fn start(agent: &Peer) -> Result<bool> {
    let is_here = matches!(agent.target, Target::Unix(_));
    if !is_here || !service::is_root() || service::AGENT.state() != State::Stopped {
        return Ok(false);
    }
    service::AGENT.enable()?;
    note!("the agent did not run: it is started now, and at each boot");
    Ok(true)
}

/// Runs `leave`.
pub async fn leave(out: &Out, connection: &Connection, _args: LeaveArgs) -> Result<u8> {
    let agent = connection.agent_only("leave", INSTEAD)?;
    let mut client = Client::connect(connection, &agent).await?;
    client.leave().await?;
    out.write("left the fleet; windows stay on this host\n")?;
    Ok(exit::OK)
}

/// The address with the port that collectors take other hosts at, where none is given.
pub fn with_port(address: &str) -> String {
    let last = address.rsplit(':').next().unwrap_or_default();
    let has_port = address.contains(':') && last.parse::<u16>().is_ok();
    // An address of IPv6 has colons without a port, unless it stands in brackets.
    let bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    match (has_port, bare_v6) {
        (_, true) => format!("[{address}]:{COLLECTOR_TLS_PORT}"),
        (true, false) => address.to_owned(),
        (false, false) => format!("{address}:{COLLECTOR_TLS_PORT}"),
    }
}

#[derive(Serialize)]
struct Joined {
    collector: String,
    fleet_id: String,
    name: String,
    labels: BTreeMap<String, String>,
    not_after: String,
}

impl Joined {
    fn of(membership: &FleetMembership) -> Joined {
        Joined {
            collector: membership.collector.clone(),
            fleet_id: membership.fleet_id.clone(),
            name: membership.name.clone(),
            labels: membership.labels.clone().into_iter().collect(),
            not_after: rfc3339(membership.not_after_unix_s.saturating_mul(1_000_000_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_without_a_port_gets_the_usual_one() {
        for (given, full) in [
            ("c1", "c1:7601"),
            ("c1:443", "c1:443"),
            ("10.0.0.1", "10.0.0.1:7601"),
            ("::1", "[::1]:7601"),
            ("[::1]", "[::1]:7601"),
            ("[::1]:443", "[::1]:443"),
        ] {
            assert_eq!(with_port(given), full);
        }
    }
}
