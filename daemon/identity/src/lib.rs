//! The identity of this host in its fleet: a private key that never leaves it, a certificate for
//! that key, and how it gets both.
//!
//! A host joins with the string of an invitation, which contains the hash of the key of the fleet's
//! authority, so even the first connection goes only to the right collector. Afterwards the
//! certificate is enough; it is renewed with the key alone, however long the host was off.
#![forbid(unsafe_code)]

mod dial;
mod enroll;
mod files;
mod member;
mod store;

pub use dial::Dialer;
pub use enroll::{EnrollError, HostName, enroll, renew};
pub use files::{Files, FilesError};
pub use member::{Changes, HostMember, JoinError, Renewal};
pub use store::{IdentityStore, Membership, StoreError};

use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Longest time for a connection and its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

impl Membership {
    /// How a member speaks TLS with its collector: it trusts the fleet's authorities and no others,
    /// and whoever answers must have the name that all collectors of a fleet have, or
    /// the one that the configuration gives.
    pub fn tls(&self, key_pem: &str) -> ClientTlsConfig {
        let authorities = self.authorities.iter().map(Certificate::from_pem);
        let name = match self.server_name.as_str() {
            "" => proto::COLLECTOR_NAME,
            other => other,
        };
        ClientTlsConfig::new()
            .domain_name(name)
            .ca_certificates(authorities)
            .identity(Identity::from_pem(&self.certificate, key_pem))
    }

    /// True when it is time to renew the certificate: two thirds of its time are over, or all of
    /// it, or the clock says that it has not started.
    pub fn is_due(&self, now_unix_s: i64) -> bool {
        // At least an hour: a clock that is days off must not make each minute the time.
        let lasts = self
            .not_after_unix_s
            .saturating_sub(self.issued_unix_s)
            .max(3600);
        let due = self.issued_unix_s.saturating_add(lasts / 3 * 2);
        now_unix_s >= due || now_unix_s < self.issued_unix_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_time() {
        let membership = Membership {
            issued_unix_s: 1000,
            not_after_unix_s: 10_000,
            ..Membership::default()
        };
        assert!(!membership.is_due(1000));
        assert!(!membership.is_due(6999));
        assert!(membership.is_due(7000));
        assert!(membership.is_due(99_999));
        assert!(membership.is_due(900));
    }
}
