//! Enrolls a host in a fleet and renews its membership.

use super::store::Membership;
use super::{ANSWER_MAX, CONNECT_MAX};
use crate::dial::Dialer;
use pem::{EncodeConfig, LineEnding, Pem};
use proto::TlsProblem;
use proto::collector::enrollment_service_client::EnrollmentServiceClient;
use proto::collector::{EnrollRequest, EnrollResponse};
use proto::credential::Credential;
use proto::pin::Pinned;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Most authorities that a collector may name, and the largest certificate. Unit: certificates,
/// bytes.
const AUTHORITIES_MAX: usize = 8;
const CERTIFICATE_BYTES_MAX: usize = 64 << 10;

/// Largest answer. Unit: bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Id and name of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// Never changes.
    pub host_id: String,
    /// Today.
    pub hostname: String,
}

/// Why a host is no member.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// The address is none.
    #[error("failed to use address `{address}`: expected HOST:PORT")]
    Address {
        /// As it was given.
        address: String,
    },
    /// The collector cannot be reached.
    #[error("failed to connect to `{address}`")]
    Connect {
        /// Its address.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// Somebody answers who is not the collector that invited the host.
    #[error(
        "failed to trust `{address}`: it does not belong to the fleet that invited this host, \
         because its authority has another key than the invitation"
    )]
    WrongFleet {
        /// Its address.
        address: String,
        /// The error of the check.
        source: tonic::transport::Error,
    },
    /// The listener there does not speak TLS: it is the collector's local port, or something else.
    #[error(
        "failed to connect to `{address}`: what listens there does not speak TLS; hosts join at \
         the port of the collector's `listen.tls`, which is {} by default",
        profile::fleet::COLLECTOR_TLS_PORT
    )]
    NoTls {
        /// Its address.
        address: String,
    },
    /// The listener there is for browsers.
    #[error(
        "failed to connect to `{address}`: that is a port for browsers; hosts join at the port of \
         the collector's `listen.tls`, which is {} by default",
        profile::fleet::COLLECTOR_TLS_PORT
    )]
    Page {
        /// Its address.
        address: String,
    },
    /// There was no answer in time.
    #[error("failed to connect to `{address}` within {} s", CONNECT_MAX.as_secs())]
    Late {
        /// Its address.
        address: String,
    },
    /// This host's clock, or the collector's, is off.
    #[error(
        "failed to check the certificate of the collector at `{address}`: it is not valid now, so \
         the clock of this host or of the collector is wrong by more than an hour"
    )]
    Clock {
        /// Its address.
        address: String,
        /// The error of the check.
        source: tonic::transport::Error,
    },
    /// The collector says no.
    #[error("the collector refuses this host: {}", .0.message())]
    Refused(Status),
    /// Its answer is unusable.
    #[error("failed to use the collector's answer: {0}")]
    Answer(String),
    /// The key of this host cannot be used.
    #[error("failed to use the key of this host")]
    Key(#[source] rcgen::Error),
}

/// Joins the fleet that made an invitation. `now_unix_s` is this host's clock.
///
/// # Errors
/// [`EnrollError`].
pub async fn enroll(
    address: &str,
    credential: &Credential,
    host: &HostName,
    key_pem: &str,
    now_unix_s: i64,
) -> Result<Membership, EnrollError> {
    let tls = ClientTlsConfig::new().domain_name(proto::COLLECTOR_NAME);
    let verifier = Arc::new(Pinned::new(credential.authority));
    let endpoint = endpoint(address)?
        .tls_config_with_verifier(tls, verifier)
        .map_err(|source| unreachable(address, source))?;
    let channel = connect(address, &endpoint, None).await?;
    ask(
        address,
        channel,
        &credential.reveal(),
        host,
        key_pem,
        now_unix_s,
    )
    .await
}

/// Renews a certificate: the key is known, so nothing else is shown. One that has ended is not
/// shown either, and another is had all the same.
///
/// # Errors
/// [`EnrollError`].
pub async fn renew(
    membership: &Membership,
    host: &HostName,
    key_pem: &str,
    now_unix_s: i64,
) -> Result<Membership, EnrollError> {
    renew_by(membership, host, key_pem, now_unix_s, None).await
}

/// The same where another thread has to connect.
pub(crate) async fn renew_by(
    membership: &Membership,
    host: &HostName,
    key_pem: &str,
    now_unix_s: i64,
    dialer: Option<&Dialer>,
) -> Result<Membership, EnrollError> {
    let address = &membership.collector;
    let authorities = membership.authorities.iter();
    let tls = ClientTlsConfig::new()
        .domain_name(proto::COLLECTOR_NAME)
        .ca_certificates(authorities.map(tonic::transport::Certificate::from_pem));
    let endpoint = endpoint(address)?
        .tls_config(tls)
        .map_err(|source| unreachable(address, source))?;
    let channel = connect(address, &endpoint, dialer).await?;
    ask(address, channel, "", host, key_pem, now_unix_s).await
}

fn endpoint(address: &str) -> Result<Endpoint, EnrollError> {
    let wrong = || EnrollError::Address {
        address: address.to_owned(),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok(Endpoint::from_shared(format!("https://{address}"))
        .map_err(|_| wrong())?
        .connect_timeout(CONNECT_MAX))
}

async fn connect(
    address: &str,
    endpoint: &Endpoint,
    dialer: Option<&Dialer>,
) -> Result<Channel, EnrollError> {
    let connecting = async {
        match dialer {
            Some(dialer) => dialer.connect(endpoint, address).await,
            None => endpoint.connect().await,
        }
    };
    // It resolves within its own bound; this one covers the handshake.
    match timeout(CONNECT_MAX + Duration::from_secs(1), connecting).await {
        Ok(connected) => connected.map_err(|source| unreachable(address, source)),
        Err(_) => Err(EnrollError::Late {
            address: address.to_owned(),
        }),
    }
}

/// Why there is no connection, in the words of whoever reads it.
fn unreachable(address: &str, source: tonic::transport::Error) -> EnrollError {
    let address = address.to_owned();
    match TlsProblem::of(&source) {
        Some(TlsProblem::Clock) => EnrollError::Clock { address, source },
        Some(TlsProblem::OtherAuthority) => EnrollError::WrongFleet { address, source },
        Some(TlsProblem::NoTls) => EnrollError::NoTls { address },
        Some(TlsProblem::NoHttp2) => EnrollError::Page { address },
        None => EnrollError::Connect { address, source },
    }
}

async fn ask(
    address: &str,
    channel: Channel,
    credential: &str,
    host: &HostName,
    key_pem: &str,
    now_unix_s: i64,
) -> Result<Membership, EnrollError> {
    let request = EnrollRequest {
        signing_request: signing_request(key_pem)?,
        host_id: host.host_id.clone(),
        hostname: host.hostname.clone(),
        credential: credential.to_owned(),
    };
    let mut client =
        EnrollmentServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = match timeout(ANSWER_MAX, client.enroll(request)).await {
        Ok(answer) => answer.map_err(EnrollError::Refused)?.into_inner(),
        Err(_) => {
            let text = format!(
                "the collector did not answer within {} s",
                ANSWER_MAX.as_secs()
            );
            return Err(EnrollError::Refused(Status::new(
                Code::DeadlineExceeded,
                text,
            )));
        }
    };
    membership(address, host, key_pem, answer, now_unix_s)
}

fn signing_request(key_pem: &str) -> Result<Vec<u8>, EnrollError> {
    let key = KeyPair::from_pem(key_pem).map_err(EnrollError::Key)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).map_err(EnrollError::Key)?;
    Ok(request.der().to_vec())
}

/// The membership in an answer, if it is usable: the certificate must belong to the host's own key.
fn membership(
    address: &str,
    host: &HostName,
    key_pem: &str,
    answer: EnrollResponse,
    now_unix_s: i64,
) -> Result<Membership, EnrollError> {
    let wrong = |why: &str| EnrollError::Answer(why.to_owned());
    let key = KeyPair::from_pem(key_pem).map_err(EnrollError::Key)?;
    let (_, parsed) = X509Certificate::from_der(&answer.certificate)
        .map_err(|_| wrong("the certificate is not readable"))?;
    if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&key) {
        return Err(wrong("the certificate belongs to another key"));
    }
    let authorities = &answer.authorities;
    if authorities.is_empty() || authorities.len() > AUTHORITIES_MAX {
        return Err(wrong("the answer has no authority, or too many"));
    }
    let large = |der: &Vec<u8>| der.len() > CERTIFICATE_BYTES_MAX;
    if large(&answer.certificate) || authorities.iter().any(large) {
        return Err(wrong("a certificate is too large"));
    }
    Ok(Membership {
        collector: address.to_owned(),
        fleet_id: answer.fleet_id,
        host_id: host.host_id.clone(),
        name: answer.name,
        labels: answer.labels.into_iter().collect(),
        certificate: pem(answer.certificate),
        authorities: answer.authorities.into_iter().map(pem).collect(),
        issued_unix_s: now_unix_s,
        not_after_unix_s: answer.not_after_unix_s,
        server_name: String::new(),
    })
}

/// A certificate as text, which is what the transport takes and people can look at.
fn pem(der: Vec<u8>) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", der), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_told_at_once() {
        for address in ["", "c1", ":7601", "c1:", "c1:0", "c1:99999", "c 1:7601"] {
            assert!(
                matches!(endpoint(address), Err(EnrollError::Address { .. })),
                "{address}"
            );
        }
        for address in [
            "c1:7601",
            "c1.example.net:443",
            "10.0.0.1:7601",
            "[::1]:7601",
        ] {
            assert!(endpoint(address).is_ok(), "{address}");
        }
    }
}
