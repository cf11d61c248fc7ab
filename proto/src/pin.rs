//! The trust of a host before it has joined, and of people: they accept only a collector whose
//! authority has the key named by their invitation or token.

use crate::credential::KEY_HASH_BYTES;
use ring::digest::{SHA256, digest};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Accepts a server if its chain contains a certificate with this key and is valid under it.
#[derive(Debug)]
pub struct Pinned {
    authority: [u8; KEY_HASH_BYTES],
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    /// Accepts the authority with a key of this SHA-256 hash.
    pub fn new(authority: [u8; KEY_HASH_BYTES]) -> Pinned {
        Pinned {
            authority,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
        }
    }

    fn has_the_key(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            return false;
        };
        digest(&SHA256, parsed.public_key().raw).as_ref() == self.authority
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|certificate| self.has_the_key(certificate))
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
