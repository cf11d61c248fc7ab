//! The transport under the S3 client: HTTP/1.1 with rustls, certificates checked, no redirect
//! followed.

use crate::trust;
use async_trait::async_trait;
use http_body_util::BodyExt as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use std::path::Path;
use std::time::Duration;

/// Time to reach a server. A server of the same region answers within milliseconds.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Connections that are kept while nothing is asked.
const IDLE_MAX: usize = 8;

/// See the module.
#[derive(Clone, Debug)]
pub struct Transport(Client<HttpsConnector<TcpConnector>, HttpRequestBody>);

impl Transport {
    /// Trusts the system's authorities, and those of `ca_file`.
    ///
    /// # Errors
    /// A sentence, if the file cannot be used.
    pub fn new(ca_file: Option<&Path>) -> Result<Transport, String> {
        let tls = trust::client(ca_file, None);
        let tls = tls.map_err(|why| why.of_key("archive.ca_file"))?;
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        Ok(Transport(client))
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.request(request).await.map_err(|error| {
            let kind = match error.is_connect() {
                true => HttpErrorKind::Connect,
                false => HttpErrorKind::Interrupted,
            };
            HttpError::new(kind, error)
        })?;
        let (head, body) = answer.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
