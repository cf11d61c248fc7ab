//! A certificate that another tool renews: files of cert-manager, of SPIRE's helper, or of a
//! company's own tools. They are read again when they change.

use super::store::Membership;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Largest of these files. Unit: bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a host has its certificate from, and which collector it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Where the collector is: `HOST:PORT`.
    pub collector: String,
    /// The name that the collector's certificate must have.
    pub server_name: String,
    /// The certificate of the host, and those that signed it. PEM.
    pub certificate: PathBuf,
    /// Its key. PEM.
    pub key: PathBuf,
    /// Authorities that sign the collector's certificate. PEM.
    pub authorities: PathBuf,
}

/// Stamps that show whether a file was replaced or changed.
pub type Stamps = [Option<(i64, i64, u64, u64)>; 3];

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file cannot be read.
    #[error("failed to read `{path}`")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has unusable content.
    #[error("failed to use `{path}`: {why}")]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

impl Files {
    /// Their current stamps.
    pub fn stamps(&self) -> Stamps {
        [&self.certificate, &self.key, &self.authorities].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.size()))
        })
    }

    /// The key, PEM, and the membership that they make, where they fit together. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// [`FilesError`].
    pub fn read(&self, host_id: &str) -> Result<(String, Membership), FilesError> {
        let certificate = text(&self.certificate)?;
        let key = text(&self.key)?;
        let authorities = text(&self.authorities)?;
        let chain = chain(&self.certificate, &certificate)?;
        let private = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| unusable(&self.key, &error.to_string()))?;
        let (name, starts, ends) = {
            let first = chain.first();
            let first =
                first.ok_or_else(|| unusable(&self.certificate, "it has no certificate"))?;
            let (_, parsed) = X509Certificate::from_der(first)
                .map_err(|_| unusable(&self.certificate, "its certificate cannot be read"))?;
            let validity = parsed.validity();
            (
                name(&parsed),
                validity.not_before.timestamp(),
                validity.not_after.timestamp(),
            )
        };
        // Half of a change: the one file is new, and the other is not yet.
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, private, &provider)
            .map_err(|error| unusable(&self.key, &error.to_string()))?;
        if self::chain(&self.authorities, &authorities)?.is_empty() {
            return Err(unusable(&self.authorities, "it has no certificate"));
        }
        let membership = Membership {
            collector: self.collector.clone(),
            fleet_id: self.server_name.clone(),
            host_id: host_id.to_owned(),
            name,
            certificate,
            authorities: vec![authorities],
            issued_unix_s: starts,
            not_after_unix_s: ends,
            server_name: self.server_name.clone(),
            ..Membership::default()
        };
        Ok((key, membership))
    }
}

/// The owner's name in a certificate, for people.
fn name(parsed: &X509Certificate<'_>) -> String {
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let uri = names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let dns = names.iter().find_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    uri.or(dns).unwrap_or_default().to_owned()
}

fn chain(path: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    found.map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> FilesError {
    FilesError::Unusable {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

fn text(path: &Path) -> Result<String, FilesError> {
    let failed = |source| FilesError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let mut bounded = file.take(FILE_BYTES_MAX + 1);
    bounded.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(unusable(path, "it is too large"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn pair(uri: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("ASCII"))];
        let signed = params.self_signed(&key).expect("a certificate");
        (signed.pem(), key.serialize_pem())
    }

    fn files(dir: &Path) -> Files {
        Files {
            collector: "c1:7601".to_owned(),
            server_name: "c1.example".to_owned(),
            certificate: dir.join("tls.crt"),
            key: dir.join("tls.key"),
            authorities: dir.join("ca.crt"),
        }
    }

    #[test]
    fn files_that_fit_together_are_a_membership() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        assert!(matches!(files.read("a"), Err(FilesError::Read { .. })));
        let (certificate, key) = pair("spiffe://td/host/a");
        std::fs::write(&files.certificate, &certificate).expect("written");
        std::fs::write(&files.key, &key).expect("written");
        std::fs::write(&files.authorities, &certificate).expect("written");
        let before = files.stamps();
        let (read, membership) = files.read("a").expect("sound");
        assert_eq!(read, key);
        assert_eq!(membership.name, "spiffe://td/host/a");
        assert_eq!(membership.server_name, "c1.example");
        assert!(membership.not_after_unix_s > membership.issued_unix_s);
        // Half of a renewal.
        let (other, _) = pair("spiffe://td/host/a");
        std::fs::write(&files.certificate, other).expect("written");
        assert_ne!(files.stamps(), before);
        assert!(matches!(files.read("a"), Err(FilesError::Unusable { .. })));
        std::fs::write(&files.certificate, &certificate).expect("written");
        std::fs::write(&files.authorities, "nonsense").expect("written");
        assert!(matches!(files.read("a"), Err(FilesError::Unusable { .. })));
    }
}
