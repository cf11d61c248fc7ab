//! The HTTP client for servers with TLS.

use super::options::{OpenError, Options, unreadable};
use crate::trust::{self, TrustError};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
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
    let config = trust::client(options.ca_file.as_deref(), options.cert.as_ref());
    let config = config.map_err(|TrustError { path, why }| match path {
        Some(path) => unreadable(&path, &why),
        None => OpenError::Option {
            option: "clickhouse.urls",
            reason: why,
        },
    })?;
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
