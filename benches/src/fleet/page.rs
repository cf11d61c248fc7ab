//! How long the page's port takes to send the first byte of an answer, as whoever opens it counts:
//! on a connection that is opened for it, and on one that is there.

use anyhow::{Context, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Largest head of an answer. Unit: bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Somebody who opens the page.
pub struct Browser {
    /// `HOST:PORT`.
    address: String,
    /// How it speaks TLS; none: it does not.
    tls: Option<Arc<ClientConfig>>,
    /// What it shows; none: it is believed.
    token: Option<String>,
}

/// A connection.
pub struct Connection(Box<dyn Stream>);

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Browser {
    /// One that comes without TLS and is believed.
    pub fn plain(address: String) -> Browser {
        Browser {
            address,
            tls: None,
            token: None,
        }
    }

    /// One that trusts the authority in this file and shows a token.
    ///
    /// # Errors
    /// When the file holds no certificate.
    pub fn proven(address: String, authority: &Path, token: String) -> anyhow::Result<Browser> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each connection is one of somebody who was never here.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Browser {
            address,
            tls: Some(Arc::new(config)),
            token: Some(token),
        })
    }

    /// Connects; with TLS the handshake is done.
    ///
    /// # Errors
    /// When nobody answers, or not whoever is trusted.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        let tcp = TcpStream::connect(&self.address)
            .with_context(|| format!("failed to connect to `{}`", self.address))?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(ANSWER_LIMIT))?;
        let Some(config) = &self.tls else {
            return Ok(Connection(Box::new(tcp)));
        };
        let (host, _) = self.address.rsplit_once(':').context("no port")?;
        let name = ServerName::try_from(host.to_owned())?;
        let mut tls = StreamOwned::new(ClientConnection::new(config.clone(), name)?, tcp);
        tls.conn.complete_io(&mut tls.sock)?;
        Ok(Connection(Box::new(tls)))
    }

    /// Asks for a path and reads all of the answer. Returns when its first byte was there, and how
    /// long its content is.
    ///
    /// # Errors
    /// When the answer is not one of success, or is cut.
    pub fn ask(&self, on: &mut Connection, path: &str) -> anyhow::Result<(Instant, usize)> {
        let token = self.token.as_ref();
        let shown = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let shown = shown.unwrap_or_default();
        let address = &self.address;
        let text = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{shown}\r\n");
        on.0.write_all(text.as_bytes())?;
        on.0.flush()?;
        let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        let mut first = None;
        loop {
            let read = on.0.read(&mut piece)?;
            first.get_or_insert_with(Instant::now);
            ensure!(read > 0, "the answer to `{path}` is cut");
            answer.extend_from_slice(&piece[..read]);
            if let Some(length) = content(&answer)? {
                return Ok((first.context("no byte")?, length));
            }
        }
    }
}

/// How long the content of an answer is, once all of it is there.
fn content(answer: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        ensure!(
            answer.len() < HEAD_BYTES_MAX,
            "an answer without end of head"
        );
        return Ok(None);
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("the collector answers {status}");
    }
    let body = &answer[end + 4..];
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    match length {
        Some(length) => {
            let length: usize = length.trim().parse()?;
            Ok((body.len() >= length).then_some(length))
        }
        None => Ok(body.ends_with(b"0\r\n\r\n").then_some(body.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_all_of_its_content_is_there() {
        let found = |text: &str| content(text.as_bytes());
        assert_eq!(found("HTTP/1.1 200 OK\r\nContent-").expect("sound"), None);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(found(&format!("{head}ab")).expect("sound"), None);
        assert_eq!(found(&format!("{head}abc")).expect("sound"), Some(3));
        let pieces = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
        assert_eq!(found(pieces).expect("sound"), None);
        assert!(
            found(&format!("{pieces}0\r\n\r\n"))
                .expect("sound")
                .is_some()
        );
        assert!(found("HTTP/1.1 303 See Other\r\n\r\n").is_err());
    }
}
