//! A connection of HTTP/1.1 to a collector, for calls that are posted.

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;

/// Longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// Most of a refusal that is told. Unit: characters.
const TOLD: usize = 300;

/// See the file.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    address: String,
}

impl Connection {
    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn open(address: &str) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("failed to connect to `{address}`"))?;
        stream.set_nodelay(true)?;
        let (sender, driver) = handshake(TokioIo::new(stream)).await?;
        // Ends with the connection; what goes wrong in it is the error of the request.
        tokio::spawn(async move { driver.await.ok() });
        Ok(Connection {
            sender,
            address: address.to_owned(),
        })
    }

    /// Posts to a path and reads all of the answer.
    ///
    /// # Errors
    /// When the answer is not 200, is cut, or does not come in time.
    pub async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> anyhow::Result<Bytes> {
        let mut request = Request::post(path).header("Host", &self.address);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let answering = async {
            self.sender.ready().await?;
            let answer = self.sender.send_request(request).await?;
            let status = answer.status();
            anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        let answered = tokio::time::timeout(ANSWER_LIMIT, answering).await;
        let (status, body) = answered.context("no answer in time")??;
        ensure!(
            status.as_u16() == 200,
            "the answer to `{path}` is {status}: {}",
            String::from_utf8_lossy(&body)
                .chars()
                .take(TOLD)
                .collect::<String>()
        );
        Ok(body)
    }
}
