//! Hosts with certificates from another authority: a company's, cert-manager's, SPIRE's.
//!
//! Such a host has no invitation and no pinned key: its identity is the SPIFFE ID or DNS name in
//! its certificate, whatever it claims itself. The configuration lists the authorities, and which
//! of the names that they sign are hosts of this fleet. The files are read again when they change.

use super::IdentityError;
use crate::config::outside::{DNS, HostNames, SPIFFE, is_domain, is_name, is_path};
use crate::reread::Reread;
use profile::text::with_causes;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Largest of these files. Unit: bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most authorities of all files together.
const AUTHORITIES_MAX: usize = 256;

/// Label that has the SPIFFE ID of a host.
pub const SPIFFE_LABEL: &str = "spiffe_id";

/// One rejected host is logged in this time; the others are counted.
const TOLD_EACH: Duration = Duration::from_secs(60);

/// True for the id of a host that only a certificate of another authority gives.
pub fn is_given(host_id: &str) -> bool {
    host_id.starts_with(SPIFFE) || host_id.starts_with(DNS)
}

/// The owner named in a certificate of another authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Never changes: the SPIFFE ID, or `dns:` and the name.
    pub host_id: String,
    /// By which the fleet knows it.
    pub name: String,
    /// Labels that follow from it.
    pub labels: BTreeMap<String, String>,
}

/// Who a certificate is of. A SPIFFE ID is the only URI of its certificate; of names in DNS one
/// alone may be a host's, or it would be two hosts.
///
/// # Errors
/// Why it is no host of the fleet, for the log.
pub fn of(names: &HostNames, certificate: &CertificateDer<'_>) -> Result<Named, String> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|_| "the certificate cannot be read".to_owned())?;
    let found = parsed.subject_alternative_name();
    let found = found.map_err(|_| "the names of the certificate cannot be read".to_owned())?;
    let found = found.map_or(&[][..], |names| &names.value.general_names);
    let uris = found.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let dns = found.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    match names {
        HostNames::Spiffe(prefix) => spiffe(prefix, uris),
        HostNames::Dns(suffix) => by_name(suffix, dns),
    }
}

fn spiffe<'a>(prefix: &str, mut uris: impl Iterator<Item = &'a str>) -> Result<Named, String> {
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(
            "the certificate must have exactly one URI as its name: a SPIFFE ID".to_owned(),
        );
    };
    let shown = uri.escape_debug();
    let parts = uri
        .strip_prefix(SPIFFE)
        .and_then(|rest| rest.split_once('/'));
    if !parts.is_some_and(|(domain, path)| is_domain(domain) && is_path(path)) {
        return Err(format!("`{shown}` is not the SPIFFE ID of a host"));
    }
    let name = uri.strip_prefix(prefix).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("`{shown}` does not start with `{prefix}`"))?;
    named(
        uri.to_owned(),
        name.to_owned(),
        [(SPIFFE_LABEL.to_owned(), uri.to_owned())].into(),
    )
}

fn by_name<'a>(suffix: &str, names: impl Iterator<Item = &'a str>) -> Result<Named, String> {
    let mut own: Vec<String> = names
        .map(str::to_ascii_lowercase)
        .filter(|name| name.ends_with(suffix) && is_name(name))
        .collect();
    own.sort_unstable();
    own.dedup();
    match <[String; 1]>::try_from(own) {
        Ok([name]) => named(format!("{DNS}{name}"), name, BTreeMap::new()),
        Err(own) if own.is_empty() => {
            Err(format!("no name of the certificate ends with `{suffix}`"))
        }
        Err(_) => Err(format!(
            "several names of the certificate end with `{suffix}`, but a host has only one"
        )),
    }
}

fn named(host_id: String, name: String, labels: BTreeMap<String, String>) -> Result<Named, String> {
    let most = crate::store::HOST_ID_BYTES_MAX;
    if host_id.len() > most {
        return Err(format!("`{host_id}` is longer than {most} bytes"));
    }
    Ok(Named {
        host_id,
        name,
        labels,
    })
}

/// The files, and how names are read.
pub struct Outside {
    names: HostNames,
    authorities: Vec<PathBuf>,
    /// The certificate and the key for clients that ask for another name than the fleet's.
    shown: Option<(PathBuf, PathBuf)>,
    read: Reread<Trusted>,
    told: Mutex<Option<Instant>>,
}

/// Contents of the files.
pub struct Trusted {
    /// Authorities with accepted certificates.
    pub authorities: Vec<CertificateDer<'static>>,
    /// What is shown to whoever asks for another name.
    pub shown: Option<Arc<CertifiedKey>>,
}

impl Outside {
    /// Reads them.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub fn open(
        names: HostNames,
        authorities: Vec<PathBuf>,
        shown: Option<(PathBuf, PathBuf)>,
    ) -> Result<Outside, IdentityError> {
        let mut files = authorities.clone();
        if let Some((certificate, key)) = &shown {
            files.extend([certificate.clone(), key.clone()]);
        }
        let outside = Outside {
            names,
            authorities,
            shown,
            read: Reread::of(files),
            told: Mutex::default(),
        };
        // Reported at the start, and not at the first connection.
        outside.trusted()?;
        Ok(outside)
    }

    /// Which names are hosts.
    pub fn names(&self) -> &HostNames {
        &self.names
    }

    /// What the files say now. Where they cannot be used, what they said before.
    ///
    /// # Errors
    /// Why they cannot be used, where they could not before.
    pub fn trusted(&self) -> Result<Arc<Trusted>, IdentityError> {
        let kept = |error| {
            tracing::error!(
                "failed to reload the authorities of hosts, so the old ones stay: {}",
                with_causes(&error)
            );
        };
        self.read.get(|| self.read_files(), kept)
    }

    fn read_files(&self) -> Result<Trusted, IdentityError> {
        let mut authorities = Vec::new();
        for path in &self.authorities {
            let found = certificates(path)?;
            if found.is_empty() {
                return Err(unusable(path, "it has no certificate"));
            }
            // What a handshake would only find out would turn everybody away.
            let mut roots = RootCertStore::empty();
            for authority in &found {
                roots
                    .add(authority.clone())
                    .map_err(|error| unusable(path, &error.to_string()))?;
            }
            authorities.extend(found);
        }
        if authorities.len() > AUTHORITIES_MAX {
            let path = self
                .authorities
                .last()
                .map_or(Path::new(""), PathBuf::as_path);
            return Err(unusable(path, "there are too many authorities"));
        }
        let shown = match &self.shown {
            None => None,
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let private = PrivateKeyDer::from_pem_slice(&bytes(key)?)
                    .map_err(|error| unusable(key, &error.to_string()))?;
                let provider = rustls::crypto::ring::default_provider();
                let shown = CertifiedKey::from_der(chain, private, &provider);
                Some(Arc::new(shown.map_err(|error| {
                    unusable(certificate, &error.to_string())
                })?))
            }
        };
        Ok(Trusted { authorities, shown })
    }

    /// True once in a while: then a rejected host is logged.
    pub fn tells(&self) -> bool {
        let now = Instant::now();
        let mut told = crate::sync::lock(&self.told);
        let is_time = told.is_none_or(|last| now.duration_since(last) >= TOLD_EACH);
        if is_time {
            *told = Some(now);
        }
        is_time
    }
}

fn unusable(path: &Path, why: &str) -> IdentityError {
    IdentityError::Unusable {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |source: io::Error| IdentityError::File {
        operation: "read",
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unusable(path, "it is too large"));
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let bytes = bytes(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    found.map_err(|error| unusable(path, &error.to_string()))
}

/// Shows the fleet's certificate to whoever asks for its name, or for none, and the other one to
/// all others.
#[derive(Debug)]
pub struct ByName {
    /// The fleet's.
    pub own: Arc<CertifiedKey>,
    /// The other.
    pub other: Arc<CertifiedKey>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(match hello.server_name() {
            Some(name) if name != proto::COLLECTOR_NAME => self.other.clone(),
            _ => self.own.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate(names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().expect("a key");
        let signed = params.self_signed(&key).expect("a certificate");
        signed.der().clone()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().expect("ASCII"))
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().expect("ASCII"))
    }

    #[test]
    fn a_spiffe_id_is_the_only_uri_and_below_what_the_fleet_says() {
        let names = HostNames::parse("spiffe://prod.example/host/").expect("sound");
        let found = |uris: &[&str]| {
            let all: Vec<_> = uris.iter().map(|text| uri(text)).collect();
            of(&names, &certificate(&all))
        };
        let named = found(&["spiffe://prod.example/host/eu/web-1"]).expect("a host");
        assert_eq!(named.host_id, "spiffe://prod.example/host/eu/web-1");
        assert_eq!(named.name, "eu/web-1");
        assert_eq!(named.labels[SPIFFE_LABEL], named.host_id);
        for uris in [
            &[][..],
            &[
                "spiffe://prod.example/host/a",
                "spiffe://prod.example/host/b",
            ],
            &["spiffe://prod.example/host/a", "https://a.example/"],
            &["spiffe://other.example/host/a"],
            &["spiffe://prod.example.evil/host/a"],
            &["spiffe://prod.example/host/"],
            &["spiffe://prod.example/host"],
            &["spiffe://prod.example/hosts/a"],
            &["spiffe://prod.example/host/../admin"],
            &["spiffe://prod.example/host/a%2fb"],
            &["spiffe://prod.example/host/a?b"],
            &["spiffe://prod.example:1/host/a"],
            &["SPIFFE://prod.example/host/a"],
        ] {
            assert!(found(uris).is_err(), "{uris:?}");
        }
        let long = format!("spiffe://prod.example/host/{}", "a".repeat(300));
        assert!(found(&[long.as_str()]).is_err());
        assert!(of(&names, &certificate(&[dns("a.example")])).is_err());
    }

    #[test]
    fn of_names_in_dns_one_is_the_hosts() {
        let names = HostNames::parse("dns:*.hosts.example").expect("sound");
        let found = |all: &[&str]| {
            let all: Vec<_> = all.iter().map(|text| dns(text)).collect();
            of(&names, &certificate(&all))
        };
        let named = found(&["web-1", "Web-1.Hosts.Example"]).expect("a host");
        assert_eq!(named.host_id, "dns:web-1.hosts.example");
        assert_eq!(named.name, "web-1.hosts.example");
        for all in [
            &[][..],
            &["web-1.example"],
            &["hosts.example"],
            &["evilhosts.example"],
            &["*.hosts.example"],
            &["a.hosts.example", "b.hosts.example"],
            &["a.hosts.example.evil.example"],
        ] {
            assert!(found(all).is_err(), "{all:?}");
        }
    }

    #[test]
    fn files_that_cannot_be_read_leave_what_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca.pem");
        let names = || HostNames::parse("dns:*.hosts.example").expect("sound");
        let open = || Outside::open(names(), vec![path.clone()], None);
        assert!(open().is_err(), "no file");
        std::fs::write(&path, "no certificate").expect("written");
        assert!(open().is_err(), "none in it");
        let pem = |der: &CertificateDer<'_>| {
            let text = data_encoding::BASE64.encode(der);
            format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let (a, b) = (certificate(&[]), certificate(&[]));
        std::fs::write(&path, pem(&a)).expect("written");
        let outside = open().expect("sound");
        let count = || outside.trusted().expect("some").authorities.len();
        assert_eq!(count(), 1);
        std::fs::write(&path, pem(&a) + &pem(&b)).expect("written");
        assert_eq!(count(), 2);
        // One that handshakes would stumble over: its DER is cut.
        let cut = pem(&a) + &pem(&CertificateDer::from(&b[..b.len() - 1]));
        for wrong in ["", "-----BEGIN CERTIFICATE-----\n!!", &cut] {
            std::fs::write(&path, wrong).expect("written");
            assert_eq!(count(), 2, "{wrong}");
        }
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(count(), 2);
        std::fs::write(&path, pem(&b)).expect("written");
        assert_eq!(count(), 1);
    }
}
