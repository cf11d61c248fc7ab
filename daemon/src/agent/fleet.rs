//! The host's fleet membership: joins, leaves, and reports its state.

use super::Agent;
use agent_config::Config;
use export::Target;
use host::facts::effective_uid;
use host::health::{Degradation, Severity};
use host::sync::lock;
use host::time::MonotonicTime;
use identity::{EnrollError, Files, HostMember, HostName, JoinError, StoreError};
use profile::text::with_causes;
use proto::agent as wire;
use proto::credential::Credential;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tonic::{Code, Status};

/// First and longest wait before a host that joins by a file tries again.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(120);

/// Largest such file. Unit: bytes.
const JOIN_FILE_BYTES_MAX: u64 = 4096;

/// Unit: nanoseconds.
const SECOND_NS: i64 = 1_000_000_000;

/// Starts what talks to a collector, when the host joins a fleet while the daemon runs.
type StartUplink = Box<dyn Fn(Target) -> io::Result<()> + Send + Sync>;

/// See the module.
pub struct Fleet {
    /// The host's identity, or why it cannot be read.
    member: Result<Arc<HostMember>, String>,
    start_uplink: OnceLock<StartUplink>,
    /// Why the host has not joined by its file so far.
    waits: Mutex<Option<String>>,
}

impl Fleet {
    /// Reads the identity that the host has, if it has one.
    pub fn open(config: &Config, host: HostName) -> Fleet {
        let member = match files(config) {
            Some(files) => Ok(HostMember::of_files(files, host)),
            None => HostMember::open(config.collector.identity_dir.clone(), host),
        };
        let member = member.map(Arc::new);
        if let Err(error) = &member {
            tracing::error!("{}", with_causes(error));
        }
        Fleet {
            member: member.map_err(|error: StoreError| with_causes(&error)),
            start_uplink: OnceLock::new(),
            waits: Mutex::default(),
        }
    }

    /// Says how the uplink is started later. Once.
    pub fn set_starter(&self, start: impl Fn(Target) -> io::Result<()> + Send + Sync + 'static) {
        // The supervisor sets it once.
        let _ = self.start_uplink.set(Box::new(start));
    }

    /// The collector for windows at the start: the configured one, or else that of the fleet that
    /// the host has joined.
    pub fn target(&self, config: &Config) -> Option<Target> {
        if let Some(address) = config.collector.address {
            return Some(Target::Configured(address));
        }
        let member = self.member.as_ref().ok()?;
        // Files may come later.
        let is_one = member.is_of_files() || member.membership().is_some();
        is_one.then(|| Target::Fleet(Arc::clone(member)))
    }

    /// The host's identity.
    pub fn member(&self) -> Option<&Arc<HostMember>> {
        self.member.as_ref().ok()
    }

    /// The host's fleet membership.
    pub fn status(&self) -> Option<wire::FleetMembership> {
        let member = self.member()?;
        let membership = member.membership()?;
        Some(wire::FleetMembership {
            collector: membership.collector,
            fleet_id: membership.fleet_id,
            name: membership.name,
            labels: membership.labels.into_iter().collect(),
            not_after_unix_s: membership.not_after_unix_s,
            renewal_error: member.renewal().failed.unwrap_or_default(),
        })
    }

    /// Current degradations. `now_unix_ns` is wall time.
    pub fn degradations(&self, now_unix_ns: i64) -> Vec<Degradation> {
        let member = match &self.member {
            Ok(member) => member,
            Err(why) => {
                return vec![Degradation {
                    id: "identity_unreadable",
                    message: format!("this host pushes to no fleet: {why}"),
                    remedy:
                        "remove the directory `collector.identity_dir`, restart, and join again"
                            .to_owned(),
                    severity: Severity::Error,
                }];
            }
        };
        if let Some(why) = &*lock(&self.waits) {
            return vec![Degradation {
                id: "fleet_not_joined",
                message: format!("this host has not joined its fleet yet: {why}"),
                remedy: "check `collector.join_file`; the invitation may be used up or expired"
                    .to_owned(),
                severity: Severity::Warning,
            }];
        }
        if member.is_of_files() {
            return of_files(member, now_unix_ns / SECOND_NS)
                .into_iter()
                .collect();
        }
        let Some(membership) = member.membership() else {
            return Vec::new();
        };
        if membership.host_id != member.host().host_id {
            return vec![Degradation {
                id: "certificate_of_another_id",
                message: format!(
                    "the certificate of this host is for the id `{}`, but its id is `{}` now: the \
                     collector rejects its windows",
                    membership.host_id,
                    member.host().host_id
                ),
                remedy: "join again with an invitation from `agent-ctl hosts invite`".to_owned(),
                severity: Severity::Error,
            }];
        }
        let ended = membership.not_after_unix_s <= now_unix_ns / SECOND_NS;
        let failed = member.renewal().failed;
        let why = match (failed, ended) {
            (Some(why), _) => why,
            (None, true) => "nothing renews it, because `collector.address` is set".to_owned(),
            (None, false) => return Vec::new(),
        };
        let left_s = membership.not_after_unix_s - now_unix_ns / SECOND_NS;
        let (severity, when) = match left_s {
            ..=0 => (Severity::Error, "has ended".to_owned()),
            left => (Severity::Warning, format!("ends in {} h", left / 3600)),
        };
        vec![Degradation {
            id: "certificate_not_renewed",
            message: format!("the certificate of this host {when} and cannot be renewed: {why}"),
            remedy: "make sure that the host can reach its collector; if the host was removed, \
                invite it again with `agent-ctl hosts invite`"
                .to_owned(),
            severity,
        }]
    }
}

/// The files of the host's certificate, if another tool renews it.
fn files(config: &Config) -> Option<Files> {
    let tls = &config.collector.tls;
    // Reading the configuration has checked that they come together.
    Some(Files {
        collector: tls.address.clone()?,
        server_name: tls.server_name.clone().unwrap_or_default(),
        certificate: tls.cert_file.clone()?,
        key: tls.key_file.clone()?,
        authorities: tls.ca_file.clone()?,
    })
}

/// Degradations of a certificate that another tool renews.
fn of_files(member: &HostMember, now_unix_s: i64) -> Option<Degradation> {
    let failed = member.renewal().failed;
    let ends = member.membership().map(|known| known.not_after_unix_s);
    let (severity, message) = match (ends, failed) {
        (None, why) => {
            let why = why.unwrap_or_default();
            let text = format!("this host has no certificate, so it pushes to no fleet: {why}");
            (Severity::Error, text)
        }
        (Some(ends), why) if ends <= now_unix_s => {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            let text = format!("the certificate of this host has expired and was not renewed{why}");
            (Severity::Error, text)
        }
        (Some(ends), Some(why)) => {
            let hours = (ends - now_unix_s) / 3600;
            let text = format!(
                "the renewed certificate of this host cannot be used; the old one expires in \
                 {hours} h: {why}"
            );
            (Severity::Warning, text)
        }
        (Some(_), None) => return None,
    };
    Some(Degradation {
        id: "certificate_not_renewed",
        message,
        remedy:
            "check the files of `collector.tls` and the program that writes them; the daemon reads \
             them again by itself"
                .to_owned(),
        severity,
    })
}

impl Agent {
    /// Joins the fleet that made an invitation; the future does it.
    pub(super) fn join(
        &self,
        collector: String,
        credential: Credential,
    ) -> impl Future<Output = Result<wire::FleetMembership, Status>> + Send + use<> {
        let fleet = Arc::clone(&self.fleet);
        let configured = lock(&self.settings.active).config.collector.address;
        let now_unix_s = self.clock.to_unix_ns(MonotonicTime::now()) / SECOND_NS;
        async move {
            if let Some(address) = configured {
                return Err(Status::failed_precondition(format!(
                    "this host pushes to {address} from its configuration: first remove \
                     `collector.address` and restart the agent"
                )));
            }
            let member = fleet.member.as_ref().map_err(|why| {
                Status::failed_precondition(format!("failed to read the host's identity: {why}"))
            })?;
            let joined = member.join(&collector, &credential, now_unix_s).await;
            let membership = joined.map_err(|error| refusal(&error))?;
            if let Some(start) = fleet.start_uplink.get() {
                let target = Target::Fleet(Arc::clone(member));
                start(target).map_err(|error| {
                    Status::internal(format!("joined, but failed to start pushing: {error}"))
                })?;
            }
            tracing::info!(
                fleet = membership.fleet_id,
                collector = membership.collector,
                name = membership.name,
                "joined a fleet"
            );
            fleet
                .status()
                .ok_or_else(|| Status::internal("the host left the fleet at the same moment"))
        }
    }

    /// Joins by the file of the configuration, where there is one and the host is a member of no
    /// fleet; ends when it has, or when there is nothing to do.
    pub async fn join_by_file(self: Arc<Self>) {
        let file = lock(&self.settings.active)
            .config
            .collector
            .join_file
            .clone();
        let (Some(file), Some(member)) = (file, self.fleet.member()) else {
            return;
        };
        let mut wait = TRY_AGAIN;
        while member.membership().is_none() && !member.is_of_files() {
            let tried = match invitation(&file).await {
                Ok((collector, credential)) => {
                    let joined = self.join(collector, credential).await;
                    joined.map_err(|status| status.message().to_owned())
                }
                Err(why) => Err(why),
            };
            match tried {
                Ok(_) => break,
                // `collector.address` goes before.
                Err(_)
                    if lock(&self.settings.active)
                        .config
                        .collector
                        .address
                        .is_some() =>
                {
                    break;
                }
                Err(why) => {
                    let before = lock(&self.fleet.waits).replace(why.clone());
                    if before.as_ref() != Some(&why) {
                        tracing::warn!(file = %file.display(), why, "failed to join the fleet so \
                            far");
                    }
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(TRY_AGAIN_MAX);
        }
        *lock(&self.fleet.waits) = None;
    }

    /// Leaves the fleet; the future does it.
    pub(super) fn leave(&self) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let fleet = Arc::clone(&self.fleet);
        async move {
            let none = || Status::not_found("this host is not a member of a fleet");
            let member = fleet.member().ok_or_else(none)?;
            let left = member.membership().ok_or_else(none)?;
            member.leave().await.map_err(|error| refusal(&error))?;
            tracing::info!(fleet = left.fleet_id, "left the fleet");
            Ok(())
        }
    }
}

/// The collector and the invitation in a file: its last two words.
async fn invitation(file: &Path) -> Result<(String, Credential), String> {
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        // Through links, which files of a volume of Kubernetes are; a FIFO is not waited for.
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        let meta = opened.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        // It says where all profiles of this host go.
        if meta.uid() != 0 && meta.uid() != effective_uid() || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other(
                "other users may write it: only root or this user may own and write it",
            ));
        }
        opened.take(JOIN_FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, io::Error>(text)
    });
    let text = match read.await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(format!("failed to read `{}`: {error}", file.display())),
        Err(_) => return Err(format!("failed to read `{}`", file.display())),
    };
    let Some((collector, invitation)) = last_words(&text) else {
        let name = file.display();
        return Err(format!("`{name}` has no address and invitation"));
    };
    let credential = Credential::parse(invitation).map_err(|error| error.to_string())?;
    Ok((collector.to_owned(), credential))
}

/// The address and the invitation of a line that `hosts invite` printed, which quotes an address of
/// IPv6 for a shell.
fn last_words(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split_whitespace().rev();
    let (invitation, collector) = (words.next()?, words.next()?);
    Some((collector.trim_matches('\''), invitation))
}

/// Why a host does not join, for whoever asked.
fn refusal(error: &JoinError) -> Status {
    let text = with_causes(error);
    match error {
        // Who asks has proved enough to this agent: it is the invitation that lacks something.
        JoinError::Enroll(EnrollError::Refused(status)) => match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => Status::failed_precondition(text),
            code => Status::new(code, text),
        },
        JoinError::Enroll(
            EnrollError::Address { .. } | EnrollError::NoTls { .. } | EnrollError::Page { .. },
        ) => Status::invalid_argument(text),
        JoinError::Enroll(EnrollError::WrongFleet { .. }) => Status::failed_precondition(text),
        JoinError::Enroll(_) => Status::unavailable(text),
        JoinError::OfFiles => Status::failed_precondition(text),
        JoinError::Store(_) | JoinError::Files(_) | JoinError::Thread => Status::internal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_invitation_is_not_a_missing_token_for_the_agent() {
        for (told, expected) in [
            (Code::Unauthenticated, Code::FailedPrecondition),
            (Code::PermissionDenied, Code::FailedPrecondition),
            (Code::AlreadyExists, Code::AlreadyExists),
            (Code::Unavailable, Code::Unavailable),
        ] {
            let refused = Status::new(told, "the invitation is used up");
            let status = refusal(&JoinError::Enroll(EnrollError::Refused(refused)));
            assert_eq!(status.code(), expected, "{told:?}");
            assert!(status.message().ends_with("used up"), "{status}");
        }
    }

    #[test]
    fn a_printed_line_has_the_address_before_the_invitation() {
        for line in [
            "sudo agent-ctl join c1:7601 fpj1_x\n",
            "c1:7601 fpj1_x",
            "sudo agent-ctl join 'c1:7601' fpj1_x",
        ] {
            assert_eq!(last_words(line), Some(("c1:7601", "fpj1_x")), "{line}");
        }
        let six = "sudo agent-ctl join '[fd00::7]:7601' fpj1_x\n";
        assert_eq!(last_words(six), Some(("[fd00::7]:7601", "fpj1_x")));
        assert_eq!(last_words("fpj1_x\n"), None);
    }
}
