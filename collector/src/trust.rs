//! Whom the collector believes when it connects to others by TLS, and the certificate it shows.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why there is no such client.
#[derive(Debug)]
pub(crate) struct TrustError {
    /// The file that cannot be used; `None`: it is none.
    pub path: Option<PathBuf>,
    /// What is wrong.
    pub why: String,
}

impl TrustError {
    fn of(path: &Path, why: &dyn std::fmt::Display) -> TrustError {
        TrustError {
            path: Some(path.to_owned()),
            why: why.to_string(),
        }
    }

    /// As a sentence about files that this key names.
    pub fn of_key(self, key: &str) -> String {
        match self.path {
            Some(path) => format!("failed to use `{}` (`{key}`): {}", path.display(), self.why),
            None => self.why,
        }
    }
}

impl From<rustls::Error> for TrustError {
    fn from(error: rustls::Error) -> TrustError {
        TrustError {
            path: None,
            why: error.to_string(),
        }
    }
}

/// A client that believes the system's authorities and those of a file, and shows the certificate
/// of a pair of files. Reads files.
///
/// # Errors
/// When a file cannot be used.
pub(crate) fn client(
    ca_file: Option<&Path>,
    own: Option<&(PathBuf, PathBuf)>,
) -> Result<ClientConfig, TrustError> {
    let mut roots = RootCertStore::empty();
    // What cannot be read of the system's is as good as not there: nobody is believed for it.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        for certificate in certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|why| TrustError::of(path, &why))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some((cert, key)) = own else {
        return Ok(config.with_no_client_auth());
    };
    let failed = |why: &dyn std::fmt::Display| TrustError::of(key, why);
    let own = PrivateKeyDer::from_pem_file(key).map_err(|why| failed(&why))?;
    let config = config.with_client_auth_cert(certificates(cert)?, own);
    config.map_err(|why| failed(&why))
}

/// The certificates of a file, of which there is one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let failed = |why: &dyn std::fmt::Display| TrustError::of(path, why);
    let all = CertificateDer::pem_file_iter(path).map_err(|why| failed(&why))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|why| failed(&why))?;
    match all.is_empty() {
        true => Err(failed(&"it has no certificate")),
        false => Ok(all),
    }
}
