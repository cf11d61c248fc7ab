//! The authority of the fleet: its key, its certificate, and what it signs.
//!
//! Created at the first start that listens for other hosts, in a directory used only by the
//! collector. The key never leaves it. Collectors of one fleet have copies of the same two files.
//! P-256 throughout: browsers do not accept Ed25519.

use super::IdentityError;
use super::outside::{ByName, Trusted};
use crate::durable::replace;
use crate::percent::{escaped, unescaped};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::UnixTime;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig, version};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const KEY_FILE: &str = "authority.key";
const CERTIFICATE_FILE: &str = "authority.crt";

/// Largest of these files. Unit: bytes. Larger is surely another file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// How long the authority lasts. Hosts learn of another one when they renew.
const AUTHORITY_LASTS: Duration = Duration::from_secs(20 * 365 * 86_400);

/// How long a collector's own certificate lasts; a new one is made each day.
const SERVER_LASTS: Duration = Duration::from_secs(7 * 86_400);

/// How far the clock of who looks at a certificate may be behind.
const CLOCKS_APART: Duration = Duration::from_secs(3600);

/// SHA-256 of a public key as it stands in a certificate.
pub type KeyHash = [u8; 32];

/// See the file.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    key_hash: KeyHash,
    fleet_id: String,
    /// Verifies that it signed a certificate.
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A certificate for a host.
pub struct Issued {
    /// X.509, DER.
    pub certificate: Vec<u8>,
    /// When it ends. Unit: seconds since the Unix epoch.
    pub not_after_unix_s: i64,
}

/// The owner named in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The host's id.
    pub host_id: String,
    /// Its key.
    pub key: KeyHash,
    /// When the certificate ends. Unit: seconds since the Unix epoch.
    pub not_after_unix_s: i64,
}

impl Authority {
    /// Reads the authority in `dir`, or makes one where there is none.
    ///
    /// # Errors
    /// When the files cannot be read or written, belong to somebody else, or do not fit together.
    pub fn open(dir: &Path, now_unix_s: i64) -> Result<Authority, IdentityError> {
        let at = |name: &str| dir.join(name);
        let failed = |operation, name: &str| {
            let path = at(name);
            move |source| IdentityError::File {
                operation,
                path,
                source,
            }
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(failed("make", ""))?;
        let key = match read_private(&at(KEY_FILE)) {
            Ok(pem) => Some(pem),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read", KEY_FILE)(error)),
        };
        let certificate = match std::fs::read(at(CERTIFICATE_FILE)) {
            Ok(pem) => Some(pem),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read", CERTIFICATE_FILE)(error)),
        };
        match (key, certificate) {
            (Some(key), Some(certificate)) => {
                let damaged = |why: String| IdentityError::Authority {
                    dir: dir.to_owned(),
                    why,
                };
                let key = String::from_utf8(key)
                    .map_err(|_| damaged(format!("{KEY_FILE} is not text")))?;
                let key = KeyPair::from_pem(&key)
                    .map_err(|error| damaged(format!("{KEY_FILE}: {error}")))?;
                let certificate = CertificateDer::from_pem_slice(&certificate)
                    .map_err(|error| damaged(format!("{CERTIFICATE_FILE}: {error}")))?;
                Authority::of(key, certificate).map_err(damaged)
            }
            // The key is the authority: its certificate can be made again, and is trusted as
            // before.
            (key, None) => {
                let key = match key {
                    Some(pem) => KeyPair::from_pem(&String::from_utf8_lossy(&pem)),
                    None => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
                };
                let key = key.map_err(IdentityError::Sign)?;
                replace(&dir.join(KEY_FILE), key.serialize_pem().as_bytes(), 0o600)
                    .map_err(failed("write", KEY_FILE))?;
                let certificate = self_signed(&key, now_unix_s).map_err(IdentityError::Sign)?;
                replace(
                    &dir.join(CERTIFICATE_FILE),
                    certificate.pem().as_bytes(),
                    0o644,
                )
                .map_err(failed("write", CERTIFICATE_FILE))?;
                let certificate = certificate.der().clone();
                Authority::of(key, certificate).map_err(|why| IdentityError::Authority {
                    dir: dir.to_owned(),
                    why,
                })
            }
            (None, Some(_)) => Err(IdentityError::Authority {
                dir: dir.to_owned(),
                why: format!("{CERTIFICATE_FILE} exists, but {KEY_FILE} is missing"),
            }),
        }
    }

    fn of(key: KeyPair, certificate: CertificateDer<'static>) -> Result<Authority, String> {
        let (_, parsed) = X509Certificate::from_der(&certificate)
            .map_err(|error| format!("{CERTIFICATE_FILE}: {error}"))?;
        if parsed.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&key) {
            return Err(format!("{CERTIFICATE_FILE} does not match {KEY_FILE}"));
        }
        if !parsed.is_ca() {
            return Err(format!(
                "{CERTIFICATE_FILE} is not the certificate of an authority"
            ));
        }
        let key_hash = hash_of(parsed.public_key().raw);
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|error| format!("{CERTIFICATE_FILE}: {error}"))?;
        let fleet_id = data_encoding::HEXLOWER.encode(&key_hash[..16]);
        let mut roots = RootCertStore::empty();
        roots
            .add(certificate.clone())
            .map_err(|error| format!("{CERTIFICATE_FILE}: {error}"))?;
        let verifier = verifier(roots).map_err(|error| error.to_string())?;
        Ok(Authority {
            issuer,
            certificate,
            key_hash,
            fleet_id,
            verifier,
        })
    }

    /// SHA-256 of its public key.
    pub fn key_hash(&self) -> KeyHash {
        self.key_hash
    }

    /// Its certificate, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// The fleet's name in certificates.
    pub fn fleet_id(&self) -> &str {
        &self.fleet_id
    }

    /// Signs a certificate for the key in a request. Names and extensions that the request asks for
    /// count for nothing. Returns the key as well.
    ///
    /// # Errors
    /// What is wrong with the request, for its sender.
    pub fn sign_host(
        &self,
        (host_id, request): (&str, &SigningRequest),
        now_unix_s: i64,
        lasts: Duration,
    ) -> Result<Issued, IdentityError> {
        let uri = format!("spiffe://{}/host/{}", self.fleet_id, escaped(host_id));
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uri = uri.try_into().map_err(IdentityError::Sign)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let not_after_unix_s = now_unix_s.saturating_add(lasts.as_secs() as i64);
        last(&mut params, now_unix_s, not_after_unix_s)?;
        let signed = params.signed_by(&request.params.public_key, &self.issuer);
        Ok(Issued {
            certificate: signed.map_err(IdentityError::Sign)?.der().to_vec(),
            not_after_unix_s,
        })
    }

    /// How the port for other hosts speaks TLS for the next days: with a key made now, TLS 1.3
    /// only, and a client's certificate where there is one. Sessions are not resumed: a resumed one
    /// is of whoever the client was when the session started.
    ///
    /// Certificates of other authorities are taken where `outside` has them.
    ///
    /// # Errors
    /// When nothing can be signed.
    pub fn server_config(
        &self,
        now_unix_s: i64,
        outside: Option<&Trusted>,
    ) -> Result<ServerConfig, IdentityError> {
        let names = vec![proto::COLLECTOR_NAME.to_owned()];
        let (chain, key) = self.sign_server(names, now_unix_s)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let own = CertifiedKey::from_der(chain, key, &provider).map_err(IdentityError::Tls)?;
        let mut roots = RootCertStore::empty();
        roots
            .add(self.certificate.clone())
            .map_err(IdentityError::Tls)?;
        for authority in outside.iter().flat_map(|outside| &outside.authorities) {
            roots.add(authority.clone()).map_err(IdentityError::Tls)?;
        }
        let clients = verifier(roots).map_err(IdentityError::Clients)?;
        let shown: Arc<dyn ResolvesServerCert> = match outside.and_then(|it| it.shown.clone()) {
            Some(other) => Arc::new(ByName {
                own: Arc::new(own),
                other,
            }),
            None => Arc::new(SingleCertAndKey::from(own)),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(IdentityError::Tls)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(shown);
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }

    /// How the page speaks TLS for the next days under these names, where the operator has no
    /// certificate for it.
    ///
    /// # Errors
    /// When nothing can be signed.
    pub fn page_config(
        &self,
        names: Vec<String>,
        now_unix_s: i64,
    ) -> Result<ServerConfig, IdentityError> {
        let (chain, key) = self.sign_server(names, now_unix_s)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(IdentityError::Tls)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(IdentityError::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// A certificate of a server with these names, with its chain and its key, both made now.
    fn sign_server(
        &self,
        names: Vec<String>,
        now_unix_s: i64,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::Sign)?;
        let mut params = CertificateParams::new(names).map_err(IdentityError::Sign)?;
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let not_after = now_unix_s.saturating_add(SERVER_LASTS.as_secs() as i64);
        last(&mut params, now_unix_s, not_after)?;
        let own = params
            .signed_by(&key, &self.issuer)
            .map_err(IdentityError::Sign)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| IdentityError::Key)?;
        Ok((vec![own.der().clone(), self.certificate.clone()], key))
    }

    /// True for a certificate that it has signed, and that is good now. The handshake has proved
    /// that the peer has its key, and not who signed it.
    pub fn has_signed(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
    ) -> bool {
        let now = UnixTime::now();
        let verified = self.verifier.verify_client_cert(certificate, between, now);
        verified.is_ok()
    }

    /// The owner named in a certificate. The handshake has proved that the authority signed it, and
    /// that the peer has its key.
    pub fn claim(&self, certificate: &CertificateDer<'_>) -> Option<Claim> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = parsed.subject_alternative_name().ok()??;
        let prefix = format!("spiffe://{}/host/", self.fleet_id);
        let host_id = names
            .value
            .general_names
            .iter()
            .find_map(|name| match name {
                GeneralName::URI(uri) => unescaped(uri.strip_prefix(&prefix)?),
                _ => None,
            })?;
        Some(Claim {
            host_id,
            key: hash_of(parsed.public_key().raw),
            not_after_unix_s: parsed.validity().not_after.timestamp(),
        })
    }
}

/// When a certificate ends. Unit: seconds since the Unix epoch.
pub fn ends_unix_s(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

/// Accepts certificates of these authorities, and clients without one.
fn verifier(
    roots: RootCertStore,
) -> Result<Arc<dyn ClientCertVerifier>, rustls::server::VerifierBuilderError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
}

/// A request for a certificate from a sender who proved to have its key.
pub struct SigningRequest {
    params: CertificateSigningRequestParams,
    /// The key.
    pub key: KeyHash,
}

/// Longest request. Unit: bytes. One of a P-256 key takes some three hundred.
const REQUEST_BYTES_MAX: usize = 8 << 10;

impl SigningRequest {
    /// Reads one and checks its signature.
    ///
    /// # Errors
    /// [`IdentityError::Request`].
    pub fn parse(der: &[u8]) -> Result<SigningRequest, IdentityError> {
        if der.len() > REQUEST_BYTES_MAX {
            return Err(IdentityError::Request("it is too large".to_owned()));
        }
        let params =
            CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der))
                .map_err(|error| IdentityError::Request(error.to_string()))?;
        let key = hash_of(&rcgen::PublicKeyData::subject_public_key_info(
            &params.public_key,
        ));
        Ok(SigningRequest { params, key })
    }
}

/// When a certificate is good.
fn last(
    params: &mut CertificateParams,
    now_unix_s: i64,
    not_after_unix_s: i64,
) -> Result<(), IdentityError> {
    let time = |unix_s| {
        time::OffsetDateTime::from_unix_timestamp(unix_s).map_err(|_| IdentityError::Clock)
    };
    params.not_before = time(now_unix_s.saturating_sub(CLOCKS_APART.as_secs() as i64))?;
    params.not_after = time(not_after_unix_s)?;
    let mut serial = [0; 16];
    SystemRandom::new()
        .fill(&mut serial)
        .map_err(|_| IdentityError::Random)?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(())
}

fn self_signed(key: &KeyPair, now_unix_s: i64) -> Result<rcgen::Certificate, rcgen::Error> {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "Fleetprof fleet");
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let not_after = now_unix_s.saturating_add(AUTHORITY_LASTS.as_secs() as i64);
    last(&mut params, now_unix_s, not_after).map_err(|_| rcgen::Error::Time)?;
    params.self_signed(key)
}

fn hash_of(public_key: &[u8]) -> KeyHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, public_key).as_ref());
    hash
}

/// Reads a file that nobody else may read.
fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own || meta.mode() & 0o077 != 0 {
        let why = "other users may read or write it: it must belong to the collector's user, with \
            mode 0600";
        return Err(io::Error::other(why));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is too large for a key"));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: i64 = 1_790_000_000;

    fn request(key: &KeyPair) -> SigningRequest {
        let params = CertificateParams::default();
        let request = params.serialize_request(key).expect("a request");
        SigningRequest::parse(request.der()).expect("sound")
    }

    #[test]
    fn an_authority_is_made_once_and_then_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("identity");
        let made = Authority::open(&dir, NOW).expect("makes one");
        let read = Authority::open(&dir, NOW + 5).expect("reads it");
        assert_eq!(made.key_hash(), read.key_hash());
        assert_eq!(made.fleet_id(), read.fleet_id());
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert_eq!(mode(&dir.join(KEY_FILE)), 0o600);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        Authority::open(dir.path(), NOW).expect("makes one");
        let open = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(dir.path().join(KEY_FILE), open).expect("set");
        assert!(matches!(
            Authority::open(dir.path(), NOW),
            Err(IdentityError::File { .. })
        ));
    }

    #[test]
    fn files_of_two_authorities_do_not_fit_together() {
        let (a, b) = (
            tempfile::tempdir().expect("a"),
            tempfile::tempdir().expect("b"),
        );
        Authority::open(a.path(), NOW).expect("makes one");
        Authority::open(b.path(), NOW).expect("makes one");
        let from = b.path().join(CERTIFICATE_FILE);
        std::fs::copy(from, a.path().join(CERTIFICATE_FILE)).expect("copied");
        assert!(matches!(
            Authority::open(a.path(), NOW),
            Err(IdentityError::Authority { .. })
        ));
    }

    #[test]
    fn a_key_without_its_certificate_is_the_same_authority() {
        let dir = tempfile::tempdir().expect("a directory");
        let made = Authority::open(dir.path(), NOW).expect("makes one");
        std::fs::remove_file(dir.path().join(CERTIFICATE_FILE)).expect("removed");
        let again = Authority::open(dir.path(), NOW).expect("signs it again");
        assert_eq!(made.key_hash(), again.key_hash());
    }

    #[test]
    fn a_certificate_without_its_key_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        Authority::open(dir.path(), NOW).expect("makes one");
        std::fs::remove_file(dir.path().join(KEY_FILE)).expect("removed");
        assert!(matches!(
            Authority::open(dir.path(), NOW),
            Err(IdentityError::Authority { .. })
        ));
    }

    #[test]
    fn a_certificate_says_whose_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::open(dir.path(), NOW).expect("makes one");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let request = request(&key);
        let lasts = Duration::from_secs(100);
        let issued = authority
            .sign_host(("name:wéb 1/%", &request), NOW, lasts)
            .expect("signs");
        let claim = authority.claim(&CertificateDer::from(issued.certificate));
        let expected = Claim {
            host_id: "name:wéb 1/%".to_owned(),
            key: request.key,
            not_after_unix_s: NOW + 100,
        };
        assert_eq!(claim, Some(expected));
    }

    #[test]
    fn a_certificate_of_another_fleet_says_nothing() {
        let (a, b) = (
            tempfile::tempdir().expect("a"),
            tempfile::tempdir().expect("b"),
        );
        let own = Authority::open(a.path(), NOW).expect("makes one");
        let other = Authority::open(b.path(), NOW).expect("makes one");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let issued = other
            .sign_host(("a", &request(&key)), NOW, Duration::from_secs(9))
            .expect("signs");
        assert_eq!(own.claim(&CertificateDer::from(issued.certificate)), None);
    }

    #[test]
    fn a_request_whose_signature_is_wrong_is_refused() {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let request = CertificateParams::default()
            .serialize_request(&key)
            .expect("a request");
        let mut der = request.der().to_vec();
        let at = der.len() - 3;
        der[at] ^= 1;
        assert!(SigningRequest::parse(&der).is_err());
        assert!(SigningRequest::parse(b"no request").is_err());
        assert!(SigningRequest::parse(&[0x30; REQUEST_BYTES_MAX + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_host_id_survives_the_certificate(id in "\\PC{1,40}") {
            prop_assert_eq!(unescaped(&escaped(&id)), Some(id));
        }

        #[test]
        fn no_request_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = SigningRequest::parse(&bytes);
        }
    }
}
