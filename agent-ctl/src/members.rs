//! `agent-ctl hosts invite`, `invitations`, `members` and `remove`: manage which hosts may upload
//! to a collector.

use crate::collector::Collector;
use crate::connection::{self, Route, Transport};
use crate::exit::fail;
use crate::form::Form;
use crate::listen_tls::{self, COLLECTOR_CONFIG};
use crate::number::within;
use crate::peer::Connection;
use crate::service::{self, COLLECTOR, State};
use crate::terminal::{Out, Table, clean};
use crate::units::SECOND_NS;
use crate::when::{Clock, rfc3339};
use crate::{exit, units};
use anyhow::Result;
use profile::fleet::COLLECTOR_TLS_PORT;
use proto::collector::fleet_service_client::FleetServiceClient;
use proto::collector::{
    Invitation, InviteRequest, InviteResponse, ListInvitationsRequest, ListMembersRequest,
    ListMembersResponse, Member, RemoveMemberRequest, RevokeInvitationRequest,
};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Code;

/// Characters of a key's hash that distinguish keys for people.
const KEY_CHARS: usize = 16;

/// What to do with the members of a fleet.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// Invite a host: print the command to run there
    #[command(after_help = "\
By default the invitation is for one host and expires after an hour. It is shown once. It holds \
the fingerprint of the fleet's authority, so the host cannot be led to another collector. The \
collector must listen for other hosts (`listen.tls`). --listen sees to that, as root on the \
collector's machine: it sets the key where the configuration has no section `listen`, and enables \
and starts the service, or restarts it.

Examples:
  sudo agent-ctl hosts invite --listen 0.0.0.0:7601 --hosts 20
  agent-ctl --collector c1 hosts invite
  agent-ctl --collector c1 hosts invite --name web-1 --label cluster=eu
  agent-ctl --collector c1 hosts invite --hosts 500 --lifetime 30d --label cluster=eu    for images
  agent-ctl --collector c1 hosts invite --json | jq -r .credential")]
    Invite(Invite),
    /// List the hosts that have joined the fleet, with their keys
    #[command(after_help = "\
Examples:
  agent-ctl --collector c1 hosts members
  agent-ctl --collector c1 hosts members --json | jq -r '.members[].name'")]
    Members {
        #[command(flatten)]
        form: Form,
    },
    /// List the invitations that are still valid
    #[command(after_help = "\
Examples:
  agent-ctl --collector c1 hosts invitations
  agent-ctl --collector c1 hosts invitations --json | jq -r '.invitations[].id'")]
    Invitations {
        #[command(flatten)]
        form: Form,
    },
    /// Revoke an invitation
    #[command(after_help = "\
Hosts that joined with the invitation stay; remove them with `agent-ctl hosts remove`.

Examples:
  agent-ctl --collector c1 hosts uninvite 1f2e3d4c5b6a7988")]
    Uninvite {
        /// Id of the invitation in `hosts invitations`
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        form: Form,
    },
    /// Remove a host from the fleet and close its connections
    #[command(after_help = "\
The data of the host stays. To join again, the host needs a new invitation.

Examples:
  agent-ctl --collector c1 hosts remove web-1")]
    Remove {
        /// Name or id of the host
        #[arg(value_name = "HOST")]
        host: String,
        #[command(flatten)]
        form: Form,
    },
}

/// An invitation to make.
#[derive(Debug, clap::Args)]
pub struct Invite {
    /// Name of the host in the fleet [default: its own name]
    #[arg(long, conflicts_with = "hosts")]
    name: Option<String>,
    /// Label of the hosts that join, which they cannot change; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Time until the invitation expires
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = crate::when::duration)]
    lifetime: Duration,
    /// Number of hosts that may join
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = within::<u32>(1, 1_000_000))]
    hosts: u32,
    /// Replace the member with this name, for a host that lost its key
    #[arg(long, requires = "name")]
    replace: bool,
    /// Have the collector of this machine listen at this address for hosts and people, with TLS, if
    /// it does not listen for them yet
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Configuration that --listen changes, if the service reads another one
    #[arg(long, value_name = "FILE", requires = "listen", default_value = COLLECTOR_CONFIG)]
    config: PathBuf,
    #[command(flatten)]
    form: Form,
}

fn label(text: &str) -> Result<(String, String), String> {
    let expected = || "expected NAME=VALUE".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    if name.is_empty() || value.is_empty() {
        return Err(expected());
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, action: Action) -> Result<u8> {
    let (transport, route) = match &action {
        Action::Invite(Invite {
            listen: Some(address),
            config,
            ..
        }) => listening(connection, *address, config).await?,
        _ => connection::open(connection, &connection.collector_only("hosts")?).await?,
    };
    let peer = route.peer.clone();
    let mut service = FleetServiceClient::new(transport);
    match action {
        Action::Invite(invite) => self::invite(out, &mut service, &route, invite).await,
        Action::Members { form } => {
            let call = service.list_members(ListMembersRequest {});
            let answer = answer(&route, "list members", call).await?;
            if form.is_json() {
                out.write_json(&List::of(&answer))?;
                return Ok(exit::OK);
            }
            let clock = Collector::connect(connection, &peer).await?.clock().await?;
            out.write(&show(out, &answer, &clock))?;
            let authority = hex(&answer.authority_key_sha256);
            let count = answer.members.len() as u64;
            let hosts = if count == 1 { "host" } else { "hosts" };
            note!(
                "{} {hosts}; the key of the authority is SHA256:{authority}",
                units::count(count)
            );
            Ok(exit::OK)
        }
        Action::Invitations { form } => {
            let call = service.list_invitations(ListInvitationsRequest {});
            let answer = answer(&route, "list invitations", call).await?;
            if form.is_json() {
                let invitations = answer.invitations.iter().map(InvitationJson::of);
                let invitations = invitations.collect();
                out.write_json(&Invitations { invitations })?;
                return Ok(exit::OK);
            }
            out.write(&show_invitations(out, &answer.invitations))?;
            let count = answer.invitations.len() as u64;
            let word = if count == 1 {
                "invitation"
            } else {
                "invitations"
            };
            note!("{} {word}", units::count(count));
            Ok(exit::OK)
        }
        Action::Uninvite { id, form } => {
            let call = service.revoke_invitation(RevokeInvitationRequest { id });
            let revoked = answer(&route, "revoke the invitation", call).await?;
            let invitation = revoked.invitation.unwrap_or_default();
            match form.is_json() {
                true => out.write_json(&InvitationJson::of(&invitation))?,
                false => out.write(&format!("revoked invitation {}\n", clean(&invitation.id)))?,
            }
            Ok(exit::OK)
        }
        Action::Remove { host, form } => {
            let call = service.remove_member(RemoveMemberRequest { host });
            let removed = answer(&route, "remove the host", call).await?;
            let member = removed.member.unwrap_or_default();
            if form.is_json() {
                out.write_json(&MemberJson::of(&member))?;
            } else {
                out.write(&format!("removed {} from the fleet\n", clean(&member.name)))?;
            }
            Ok(exit::OK)
        }
    }
}

/// A connection to the collector of this machine, which listens for other hosts: if need be it is
/// told to, started, or started again.
async fn listening(
    connection: &Connection,
    address: SocketAddr,
    config: &Path,
) -> Result<(Transport, Route)> {
    let peer = connection.local_collector("--listen")?;
    let opened = connection::open(connection, &peer).await;
    let state = match opened {
        Ok((transport, route)) => {
            let mut service = FleetServiceClient::new(transport.clone());
            let asked = service.list_invitations(ListInvitationsRequest {});
            let asked = route.within("ask the collector", asked).await?;
            if !asked.is_err_and(|status| status.code() == Code::Unimplemented) {
                return Ok((transport, route));
            }
            State::Running
        }
        Err(error) if exit::code_of(&error) == exit::UNREACHABLE => match COLLECTOR.state() {
            State::Stopped => State::Stopped,
            _ => return Err(error),
        },
        Err(error) => return Err(error),
    };
    if !service::is_root() {
        return Err(fail(
            exit::PERMISSION,
            "failed to change how the collector listens: only root may\nrun it with sudo",
        ));
    }
    if state == State::Running && COLLECTOR.state() != State::Running {
        return Err(fail(
            exit::USAGE,
            format!(
                "failed to restart the collector: it is not the service of systemd\nset \
                 `listen.tls: {address}` in its configuration, and restart it yourself"
            ),
        ));
    }
    let change = listen_tls::set(config, address)?;
    let started = match state {
        State::Running => COLLECTOR.restart(),
        _ => COLLECTOR.enable(),
    };
    if let Err(error) = started {
        // As it was, where it ran before.
        if let Some(change) = change {
            change.undo();
            if state == State::Running {
                let _ = COLLECTOR.restart();
            }
        }
        return Err(error);
    }
    let name = config.display();
    match (&change, state) {
        (Some(_), _) => note!(
            "the collector listens at {address} with TLS from now on (`listen.tls` in {name})"
        ),
        (None, _) => note!("{name} says already where the collector listens: it is unchanged"),
    }
    if state != State::Running {
        note!("the collector did not run: it is started now, and at each boot");
    }
    connection::open(connection, &peer).await
}

/// An answer; a collector without members says what to do.
async fn answer<T>(
    route: &Route,
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T> {
    match call.await {
        Err(status) if status.code() == Code::Unimplemented => Err(fail(
            exit::FAILURE,
            format!(
                "failed to {what}: the collector does not listen for other hosts\nrun `sudo \
                 agent-ctl hosts invite --listen 0.0.0.0:{COLLECTOR_TLS_PORT}` on its machine, or \
                 set `listen.tls` in its configuration and restart it"
            ),
        )),
        answered => route.answer(what, async { answered }).await,
    }
}

async fn invite(
    out: &Out,
    service: &mut FleetServiceClient<Transport>,
    route: &Route,
    invite: Invite,
) -> Result<u8> {
    let lifetime_s = u32::try_from(invite.lifetime.as_secs()).unwrap_or(u32::MAX);
    let call = service.invite(InviteRequest {
        name: invite.name.unwrap_or_default(),
        labels: invite.labels.into_iter().collect(),
        lifetime_s: lifetime_s.max(1),
        hosts_max: invite.hosts,
        replace: invite.replace,
    });
    let invited = answer(route, "make an invitation", call).await?;
    if invite.form.is_json() {
        out.write_json(&Invited {
            credential: &invited.credential,
            collector: address(&invited),
            expires: rfc3339(invited.expires_unix_s.saturating_mul(SECOND_NS)),
        })?;
        return Ok(exit::OK);
    }
    out.write(&format!(
        "sudo agent-ctl join {} {}\n",
        word(&clean(&address(&invited))),
        clean(&invited.credential)
    ))?;
    let hosts = match invite.hosts {
        1 => "on one host".to_owned(),
        hosts => format!("on up to {} hosts", units::count(hosts.into())),
    };
    note!(
        "run it {hosts} before {}; whoever has the line can join, so keep it to yourself",
        rfc3339(invited.expires_unix_s.saturating_mul(SECOND_NS))
    );
    Ok(exit::OK)
}

/// Where hosts connect.
fn address(invited: &InviteResponse) -> String {
    listen_address(&invited.listen, &invited.hostname)
}

/// Where others connect: the address the collector listens on, or its name where it listens on all.
pub fn listen_address(listen: &str, hostname: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(listen) if listen.ip().is_unspecified() && !hostname.is_empty() => {
            format!("{hostname}:{}", listen.port())
        }
        _ => listen.to_owned(),
    }
}

/// An address as one word of a command line: of IPv6 the brackets are a pattern to some shells.
pub fn word(address: &str) -> Cow<'_, str> {
    match address.contains(['[', ']']) {
        true => format!("'{address}'").into(),
        false => address.into(),
    }
}

fn show(out: &Out, answer: &ListMembersResponse, clock: &Clock) -> String {
    if answer.members.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["HOST", "LABELS", "JOINED", "RENEWED", "KEY", "ID"]);
    for member in &answer.members {
        let labels: BTreeMap<_, _> = member.labels.iter().collect();
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let key = hex(&member.key_sha256);
        table.row([
            clean(&member.name).into_owned(),
            clean(&labels.join(",")).into_owned(),
            clock.show(member.enrolled_unix_s.saturating_mul(SECOND_NS)),
            clock.show(member.renewed_unix_s.saturating_mul(SECOND_NS)),
            key.chars().take(KEY_CHARS).collect(),
            clean(&member.host_id).into_owned(),
        ]);
    }
    table.sparing(&["RENEWED", "LABELS", "ID"]).show(out)
}

fn show_invitations(out: &Out, invitations: &[Invitation]) -> String {
    if invitations.is_empty() {
        return String::new();
    }
    let clock = Clock::local();
    let mut table = Table::new(&["ID", "NAME", "LABELS", "HOSTS", "EXPIRES", "MADE"]);
    for invitation in invitations {
        let labels: BTreeMap<_, _> = invitation.labels.iter().collect();
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        table.row([
            clean(&invitation.id).into_owned(),
            clean(&invitation.name).into_owned(),
            clean(&labels.join(",")).into_owned(),
            format!("{} of {}", invitation.hosts, invitation.hosts_max),
            clock.show(invitation.expires_unix_s.saturating_mul(SECOND_NS)),
            clock.show(invitation.made_unix_s.saturating_mul(SECOND_NS)),
        ]);
    }
    table.sparing(&["MADE", "LABELS"]).show(out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Serialize)]
struct Invited<'a> {
    credential: &'a str,
    collector: String,
    expires: String,
}

#[derive(Serialize)]
struct Invitations {
    invitations: Vec<InvitationJson>,
}

#[derive(Serialize)]
struct InvitationJson {
    id: String,
    name: String,
    labels: BTreeMap<String, String>,
    replace: bool,
    made: String,
    expires: String,
    hosts_max: u32,
    hosts: u32,
}

impl InvitationJson {
    fn of(invitation: &Invitation) -> InvitationJson {
        let time = |unix_s: i64| rfc3339(unix_s.saturating_mul(SECOND_NS));
        InvitationJson {
            id: invitation.id.clone(),
            name: invitation.name.clone(),
            labels: invitation.labels.clone().into_iter().collect(),
            replace: invitation.replace,
            made: time(invitation.made_unix_s),
            expires: time(invitation.expires_unix_s),
            hosts_max: invitation.hosts_max,
            hosts: invitation.hosts,
        }
    }
}

#[derive(Serialize)]
struct List {
    fleet_id: String,
    authority_key_sha256: String,
    members: Vec<MemberJson>,
}

impl List {
    fn of(answer: &ListMembersResponse) -> List {
        List {
            fleet_id: answer.fleet_id.clone(),
            authority_key_sha256: hex(&answer.authority_key_sha256),
            members: answer.members.iter().map(MemberJson::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct MemberJson {
    name: String,
    host_id: String,
    labels: BTreeMap<String, String>,
    key_sha256: String,
    joined: String,
    renewed: String,
}

impl MemberJson {
    fn of(member: &Member) -> MemberJson {
        let time = |unix_s: i64| rfc3339(unix_s.saturating_mul(SECOND_NS));
        MemberJson {
            name: member.name.clone(),
            host_id: member.host_id.clone(),
            labels: member.labels.clone().into_iter().collect(),
            key_sha256: hex(&member.key_sha256),
            joined: time(member.enrolled_unix_s),
            renewed: time(member.renewed_unix_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_listens_everywhere_is_called_by_its_name() {
        let invited = |listen: &str| InviteResponse {
            listen: listen.to_owned(),
            hostname: "c1".to_owned(),
            ..InviteResponse::default()
        };
        assert_eq!(address(&invited("0.0.0.0:7601")), "c1:7601");
        assert_eq!(address(&invited("[::]:7601")), "c1:7601");
        assert_eq!(address(&invited("10.0.0.1:443")), "10.0.0.1:443");
    }

    #[test]
    fn an_address_is_one_word_for_every_shell() {
        assert_eq!(word("c1:7601"), "c1:7601");
        assert_eq!(word("[fd00::7]:7601"), "'[fd00::7]:7601'");
    }

    #[test]
    fn a_label_is_a_name_and_a_value() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(label("a=b"), Ok(pair("a", "b")));
        assert_eq!(label("a=b=c"), Ok(pair("a", "b=c")));
        for wrong in ["", "a", "=b", "a="] {
            assert!(label(wrong).is_err(), "{wrong}");
        }
    }
}
