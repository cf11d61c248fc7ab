//! TLS of the page: with the operator's own certificate, which is read again when its file changes,
//! else with one that the fleet's authority signs.

use crate::identity::Fleet;
use crate::reread::{Looks, Reread};
use crate::sync::lock;
use profile::text::with_causes;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How often another one is signed. Unit: seconds.
const SIGNED_AGAIN_S: i64 = 86_400;

/// Certificates of the page.
pub enum Certificates {
    /// The operator's.
    Files {
        /// The chain. PEM.
        certificate: PathBuf,
        /// Its key. PEM.
        key: PathBuf,
        /// What was made of them last.
        read: Reread<ServerConfig>,
        /// How they are looked at.
        looks: Looks,
    },
    /// The fleet's.
    Signed {
        /// The fleet whose authority signs.
        fleet: Arc<Fleet>,
        /// For these names and addresses.
        names: Vec<String>,
        /// What was signed last, and when.
        signed: Mutex<Option<(i64, Arc<ServerConfig>)>>,
    },
}

impl Certificates {
    /// The operator's own.
    pub fn files(certificate: &Path, key: &Path) -> Certificates {
        Certificates::Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            read: Reread::of(vec![certificate.to_owned(), key.to_owned()]),
            looks: Looks::default(),
        }
    }

    /// Certificates signed by the fleet's authority.
    pub fn signed(fleet: Arc<Fleet>, names: Vec<String>) -> Certificates {
        Certificates::Signed {
            fleet,
            names,
            signed: Mutex::default(),
        }
    }

    /// The same as [`Certificates::config`] for a handshake: files are looked at where nobody waits
    /// for them for long.
    ///
    /// # Errors
    /// As there, and where the files never answered.
    pub async fn config_now(self: &Arc<Certificates>) -> Result<Arc<ServerConfig>, String> {
        let Certificates::Files { read, looks, .. } = &**self else {
            return self.config();
        };
        let own = self.clone();
        let found = looks.look(move || own.config(), || read.last().map(Ok));
        let late = || Err("its files cannot be read in time".to_owned());
        found.await.unwrap_or_else(late)
    }

    /// How TLS is spoken now.
    ///
    /// # Errors
    /// Why it cannot be: a file that is no certificate, or none that fits the key.
    pub fn config(&self) -> Result<Arc<ServerConfig>, String> {
        match self {
            Certificates::Files {
                certificate,
                key,
                read,
                ..
            } => read.get(
                || from_files(certificate, key),
                |why| {
                    tracing::error!(
                        "failed to use the new certificate of the page, so the old one stays: {why}"
                    );
                },
            ),
            Certificates::Signed {
                fleet,
                names,
                signed,
            } => {
                let now = fleet.now();
                let mut signed = lock(signed);
                if let Some((when, config)) = &*signed
                    && (0..SIGNED_AGAIN_S).contains(&now.saturating_sub(*when))
                {
                    return Ok(config.clone());
                }
                let config = fleet.authority.page_config(names.clone(), now);
                let config = Arc::new(config.map_err(|error| with_causes(&error))?);
                *signed = Some((now, config.clone()));
                Ok(config)
            }
        }
    }
}

fn from_files(certificate: &Path, key: &Path) -> Result<ServerConfig, String> {
    let failed = |path: &Path, why: &dyn std::fmt::Display| {
        format!("failed to use `{}`: {why}", path.display())
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .map_err(|error| failed(certificate, &error))?
        .collect();
    let chain = chain.map_err(|error| failed(certificate, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| failed(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
