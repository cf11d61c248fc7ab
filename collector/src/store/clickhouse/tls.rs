//! The HTTP client for servers with TLS: whom it believes, and the certificate that it shows.

use super::options::{OpenError, Options, unreadable};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection without a request is kept. A server closes those that are idle for 3 s
/// (`keep_alive_timeout`, 10 s in later versions); with more, requests meet closed connections.
const IDLE: Duration = Duration::from_secs(2);
/// Time after which an idle connection is probed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A client for the servers of `options`.
pub(super) fn client(options: &Options) -> Result<::clickhouse::Client, OpenError> {
    if !options.urls.iter().any(|url| url.starts_with("https://")) {
        return Ok(::clickhouse::Client::default());
    }
    let mut roots = RootCertStore::empty();
    // What cannot be read of the system's is as good as not there: nobody is believed for it.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = &options.ca_file {
        for certificate in certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|why| unreadable(path, &why))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| OpenError::Option {
            option: "clickhouse.urls",
            reason: why.to_string(),
        })?
        .with_root_certificates(roots);
    let config = match &options.cert {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let own = PrivateKeyDer::from_pem_file(key).map_err(|why| unreadable(key, &why))?;
            let config = config.with_client_auth_cert(certificates(cert)?, own);
            config.map_err(|why| unreadable(key, &why))?
        }
    };
    let mut connector = HttpConnector::new();
    connector.set_keepalive(Some(KEEPALIVE));
    connector.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    let client = HttpClient::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    Ok(::clickhouse::Client::with_http_client(client))
}

/// The certificates of a file, of which there is one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let failed = |why: &dyn std::fmt::Display| unreadable(path, why);
    let all = CertificateDer::pem_file_iter(path).map_err(|why| failed(&why))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|why| failed(&why))?;
    if all.is_empty() {
        return Err(failed(&"it has no certificate"));
    }
    Ok(all)
}
