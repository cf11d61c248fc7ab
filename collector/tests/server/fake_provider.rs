//! A provider of OpenID Connect that answers as a test says, however wrong that is.

use data_encoding::BASE64URL_NOPAD;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Where its document is.
pub const DOCUMENT: &str = "/.well-known/openid-configuration";

/// One answer.
#[derive(Clone)]
pub struct Says {
    status: u16,
    more: String,
    body: Vec<u8>,
    after: Duration,
}

impl Says {
    /// With this status.
    pub fn with(status: u16, body: impl Into<Vec<u8>>) -> Says {
        Says {
            status,
            more: String::new(),
            body: body.into(),
            after: Duration::ZERO,
        }
    }

    /// JSON.
    pub fn json(value: &Value) -> Says {
        Says::with(200, value.to_string())
    }

    /// To somewhere else.
    pub fn redirect(to: &str) -> Says {
        Says {
            more: format!("Location: {to}\r\n"),
            ..Says::with(302, "")
        }
    }

    /// The same after so long.
    pub fn after(self, after: Duration) -> Says {
        Says { after, ..self }
    }
}

/// See the file. Clones are the same.
#[derive(Clone)]
pub struct Fake {
    /// Who it is.
    pub issuer: String,
    says: Arc<Mutex<HashMap<String, Says>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// On loopback.
    pub async fn start() -> Fake {
        let (listener, fake) = Fake::bound("http").await;
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().answer(stream));
            }
        });
        fake
    }

    /// The same over TLS, with a certificate that is written to `ca_file`.
    pub async fn start_encrypted(ca_file: &Path) -> Fake {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let signed = params.self_signed(&key).expect("a certificate");
        std::fs::write(ca_file, signed.pem()).expect("written");
        let chain = vec![CertificateDer::from(signed.der().to_vec())];
        let private = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .expect("a certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (listener, fake) = Fake::bound("https").await;
        let serving = fake.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, serving) = (acceptor.clone(), serving.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serving.answer(stream).await;
                    }
                });
            }
        });
        fake
    }

    async fn bound(scheme: &str) -> (TcpListener, Fake) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fake = Fake {
            issuer: format!("{scheme}://localhost:{port}"),
            says: Arc::default(),
            asked: Arc::default(),
        };
        fake.say(DOCUMENT, Says::json(&fake.document()));
        (listener, fake)
    }

    /// What it says of itself.
    pub fn document(&self) -> Value {
        let issuer = &self.issuer;
        json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"),
            "userinfo_endpoint": format!("{issuer}/me"),
        })
    }

    /// From now on this is answered at a path.
    pub fn say(&self, path: &str, says: Says) {
        let mut all = self.says.lock().expect("no panic");
        all.insert(path.to_owned(), says);
    }

    /// Gives a token with these claims for any code.
    pub fn give(&self, claims: &Value) {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let token = format!("{}.{}.c2ln", part(&json!({"alg": "RS256"})), part(claims));
        let tokens = json!({"id_token": token, "access_token": "at", "token_type": "Bearer"});
        self.say("/token", Says::json(&tokens));
    }

    /// Requests that came, head and body.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }

    async fn answer(self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut request = Vec::new();
        let whole = |request: &[u8]| {
            let end = request.windows(4).position(|four| four == b"\r\n\r\n")?;
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
            (request.len() >= end + 4 + length).then_some(())
        };
        while whole(&request).is_none() {
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                Ok(got) if got > 0 => request.extend_from_slice(&piece[..got]),
                _ => return,
            }
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        self.asked.lock().expect("no panic").push(request);
        let says = self.says.lock().expect("no panic").get(&path).cloned();
        let says = says.unwrap_or_else(|| Says::with(404, "nothing"));
        tokio::time::sleep(says.after).await;
        let head = format!(
            "HTTP/1.1 {} X\r\nContent-Length: {}\r\n{}\r\n",
            says.status,
            says.body.len(),
            says.more
        );
        // Who asked may have had enough.
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(&says.body).await;
        let _ = stream.shutdown().await;
    }
}
