//! The hosts of the fleet: the authority that signs their certificates, the members, and the port
//! on which they connect from elsewhere.
//!
//! A host is a pinned key. Its certificate says which id the key belongs to; the registry says
//! whether it still does. Both are checked on every connection, so that a removed host is locked
//! out at once, whatever its certificate says.

mod acceptor;
mod authority;
mod gate;
mod outside;
mod registry;
mod service;

pub use acceptor::{MemberPeer, TlsConn, accept};
pub use authority::Authority;
pub use gate::{Gatekeeper, Guarded};
pub use outside::Outside;
pub use registry::{Invitation, Listed, Member, Refused, Registry};
pub use service::{Enrollment, FleetAdmin, REQUEST_BYTES_MAX};

use crate::reread::Looks;
use crate::time::Clock;
use authority::{Claim, ends_unix_s};
use outside::{Named, SPIFFE_LABEL, Trusted};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::{Request, Status};

/// How often the collector makes itself another certificate. Unit: seconds.
const SERVER_RENEWED_S: i64 = 86_400;

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("failed to {operation} `{path}`")]
    File {
        /// What was to be done.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The files are there, and are no authority.
    #[error("failed to use the authority in `{dir}`: {why}")]
    Authority {
        /// Its directory.
        dir: PathBuf,
        /// Why not.
        why: String,
    },
    /// A file of another authority is not what it should be.
    #[error("failed to use `{path}`: {why}")]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// `identity.outside.hosts` matches our own authority's names.
    #[error(
        "failed to use `identity.outside.hosts`: it is the trust domain of this fleet's own \
        authority"
    )]
    OwnDomain,
    /// The database failed.
    #[error("failed to use the member registry")]
    Registry(#[source] rusqlite::Error),
    /// A certificate cannot be signed.
    #[error("failed to sign a certificate")]
    Sign(#[source] rcgen::Error),
    /// The message is not a certificate request.
    #[error("failed to read the signing request: {0}")]
    Request(String),
    /// TLS cannot be set up.
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
    /// Certificates of clients cannot be checked.
    #[error("failed to set up certificate checks")]
    Clients(#[source] rustls::server::VerifierBuilderError),
    /// A key that was just made cannot be used.
    #[error("failed to use the collector's own key")]
    Key,
    /// The clock is out of all reason.
    #[error("failed to sign a certificate: the clock is out of range")]
    Clock,
    /// The system gives no random numbers.
    #[error("failed to get random numbers")]
    Random,
    /// Files of another authority do not answer.
    #[error("failed to read the files of `identity.outside`: they took too long")]
    Late,
}

/// The fleet as this collector knows it.
pub struct Fleet {
    /// Signs.
    pub authority: Authority,
    /// Knows the members.
    pub registry: Registry,
    /// How long a certificate of a host lasts.
    pub host_lasts: Duration,
    /// Hosts of other authorities, where there are some.
    pub outside: Option<Outside>,
    clock: Clock,
    looks: Looks,
    /// How TLS is spoken.
    tls: Mutex<Option<Spoken>>,
}

/// How TLS is spoken, when that was made, and whom else it trusts.
struct Spoken {
    config: Arc<ServerConfig>,
    made: i64,
    trusted: Option<Arc<Trusted>>,
}

/// The owner of a certificate.
pub enum Claimed {
    /// A certificate from our authority.
    Own(Claim),
    /// A certificate from another authority, and when it expires, in seconds since the Unix epoch.
    Outside(Named, i64),
}

impl Fleet {
    /// Opens the identity in `dir`, or makes one.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn open(dir: &Path, host_lasts: Duration, clock: Clock) -> Result<Fleet, IdentityError> {
        let authority = Authority::open(dir, unix_s(&clock))?;
        let registry = Registry::open(&dir.join("members.sqlite"), unix_s(&clock))?;
        Ok(Fleet {
            authority,
            registry,
            host_lasts,
            outside: None,
            clock,
            looks: Looks::default(),
            tls: Mutex::new(None),
        })
    }

    /// The same with hosts of other authorities.
    ///
    /// # Errors
    /// When they would be taken for ours.
    pub fn with_outside(self, outside: Outside) -> Result<Fleet, IdentityError> {
        if outside.names().domain() == Some(self.authority.fleet_id()) {
            return Err(IdentityError::OwnDomain);
        }
        Ok(Fleet {
            outside: Some(outside),
            ..self
        })
    }

    /// How TLS is spoken now.
    ///
    /// # Errors
    /// When nothing can be signed.
    pub fn tls(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        let now = self.now();
        let trusted = self.outside.as_ref().map(Outside::trusted).transpose()?;
        let mut tls = crate::sync::lock(&self.tls);
        let whom = trusted.as_ref().map(Arc::as_ptr);
        if let Some(spoken) = &*tls
            && (0..SERVER_RENEWED_S).contains(&now.saturating_sub(spoken.made))
            && spoken.trusted.as_ref().map(Arc::as_ptr) == whom
        {
            return Ok(spoken.config.clone());
        }
        let config = Arc::new(self.authority.server_config(now, trusted.as_deref())?);
        *tls = Some(Spoken {
            config: config.clone(),
            made: now,
            trusted,
        });
        Ok(config)
    }

    /// The same for a handshake: files of another authority are looked at where nobody waits for
    /// them for long.
    ///
    /// # Errors
    /// As [`Fleet::tls`], and where the files never answered.
    pub async fn tls_now(self: &Arc<Fleet>) -> Result<Arc<ServerConfig>, IdentityError> {
        if self.outside.is_none() {
            return self.tls();
        }
        let own = self.clone();
        let last = || {
            let spoken = crate::sync::lock(&self.tls);
            spoken.as_ref().map(|spoken| Ok(spoken.config.clone()))
        };
        let found = self.looks.look(move || own.tls(), last).await;
        found.unwrap_or(Err(IdentityError::Late))
    }

    /// The owner of a certificate chain that the handshake has verified.
    ///
    /// # Errors
    /// Why it is nobody's, for the log.
    pub fn claim(&self, chain: &[CertificateDer<'_>]) -> Result<Claimed, String> {
        let (certificate, between) = chain.split_first().ok_or("there is no certificate")?;
        if self.authority.has_signed(certificate, between) {
            let claim = self.authority.claim(certificate);
            let claim = claim.ok_or("the certificate does not belong to a host")?;
            return Ok(Claimed::Own(claim));
        }
        let outside = self.outside.as_ref();
        let outside = outside.ok_or("the certificate does not belong to a host")?;
        let named = outside::of(outside.names(), certificate)?;
        let ends = ends_unix_s(certificate).ok_or("the certificate cannot be read")?;
        Ok(Claimed::Outside(named, ends))
    }

    /// Unit: seconds since the Unix epoch.
    pub fn now(&self) -> i64 {
        unix_s(&self.clock)
    }
}

fn unix_s(clock: &Clock) -> i64 {
    clock.now_unix_ns() / 1_000_000_000
}

/// The member that a request comes from; none on the port for this machine alone.
pub fn member<T>(request: &Request<T>) -> Option<Arc<Member>> {
    let peer = request.extensions().get::<MemberPeer>()?;
    peer.member.clone()
}

/// Holds what a host says of itself against its certificate: its id must be the member's, and its
/// name and the labels of its invitation are those the fleet knows, whatever it says. A host of
/// another authority has its id from its certificate, and what it calls itself counts for nothing.
///
/// # Errors
/// PERMISSION_DENIED for another id.
pub fn bind(
    member: Option<&Arc<Member>>,
    host_id: &mut String,
    facts: &mut proto::collector::HostFacts,
) -> Result<(), Status> {
    let Some(member) = member else { return Ok(()) };
    if member.is_outside() {
        host_id.clone_from(&member.host_id);
    } else if member.host_id != *host_id {
        tracing::warn!(
            member = member.name,
            claimed = ?host_id,
            "a host claims the id of another host"
        );
        return Err(Status::permission_denied(format!(
            "the certificate belongs to host `{}`, but the Hello has another id",
            member.host_id
        )));
    }
    bind_facts(Some(member), facts);
    Ok(())
}

/// The same for what a host reports later, on a stream with a known id.
pub fn bind_facts(member: Option<&Arc<Member>>, facts: &mut proto::collector::HostFacts) {
    let Some(member) = member else { return };
    facts.hostname.clone_from(&member.name);
    // They come from the fleet: whatever else there is of that name gives way. So does what no
    // certificate of a host says.
    facts
        .labels
        .retain(|name, _| !member.labels.contains_key(name) && name != SPIFFE_LABEL);
}

/// The labels that the fleet gave a host, in what is kept of it.
pub fn assign(member: Option<&Arc<Member>>, labels: &mut BTreeMap<String, String>) {
    if let Some(member) = member {
        labels.extend(member.labels.clone());
    }
}
