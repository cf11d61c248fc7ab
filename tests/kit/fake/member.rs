//! A host that joins a fleet as the agent does: its key, its certificate, and connections with it.

use super::push::LIMIT;
use identity::HostName;
pub use identity::{EnrollError, Membership, renew};
use proto::credential::Credential;
use std::fmt::Display;
use std::net::SocketAddr;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// A host with a key.
pub struct Host {
    /// What it calls itself.
    pub name: HostName,
    /// Its key. PEM.
    pub key: String,
    _dir: TempDir,
}

impl Host {
    /// A host with a new key.
    ///
    /// # Panics
    /// When there is no room for one.
    pub fn new(name: &str) -> Host {
        let dir = tempfile::tempdir().expect("a directory");
        let store = identity::IdentityStore::open(&dir.path().join("identity")).expect("opens");
        Host {
            name: HostName {
                host_id: format!("id-{name}"),
                hostname: name.to_owned(),
            },
            key: store.key().expect("a key"),
            _dir: dir,
        }
    }

    /// Joins the fleet at `address` with the string of an invitation.
    ///
    /// # Errors
    /// When it is not let in.
    ///
    /// # Panics
    /// When the string is none.
    pub async fn join(
        &self,
        address: SocketAddr,
        invitation: &str,
        now_unix_s: i64,
    ) -> Result<Membership, EnrollError> {
        let credential = Credential::parse(invitation).expect("an invitation");
        let address = address.to_string();
        identity::enroll(&address, &credential, &self.name, &self.key, now_unix_s).await
    }

    /// A connection with its certificate.
    ///
    /// # Errors
    /// When it is not taken.
    pub async fn connect(
        &self,
        address: impl Display,
        membership: &Membership,
    ) -> Result<Channel, tonic::transport::Error> {
        Endpoint::from_shared(format!("https://{address}"))?
            .connect_timeout(LIMIT)
            .tls_config(membership.tls(&self.key))?
            .connect()
            .await
    }
}
