//! A receiver of webhooks on loopback that answers as a test says, and keeps what it accepted.

use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A notification that was accepted.
#[derive(Clone, Debug)]
pub struct Got {
    /// Its `Idempotency-Key`.
    pub key: String,
    /// Its content.
    pub body: Value,
}

/// See the file. Clones are the same.
#[derive(Clone)]
pub struct Webhook {
    /// Where it is.
    pub address: SocketAddr,
    status: Arc<AtomicU16>,
    got: Arc<Mutex<Vec<Got>>>,
    attempts: Arc<Mutex<u32>>,
}

impl Webhook {
    /// On any port.
    pub async fn start() -> Webhook {
        Webhook::at(([127, 0, 0, 1], 0).into()).await
    }

    /// On this one.
    pub async fn at(address: SocketAddr) -> Webhook {
        let listener = TcpListener::bind(address).await.expect("a port");
        let webhook = Webhook {
            address: listener.local_addr().expect("an address"),
            status: Arc::new(AtomicU16::new(200)),
            got: Arc::default(),
            attempts: Arc::default(),
        };
        let serving = webhook.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().answer(stream));
            }
        });
        webhook
    }

    /// Its address, with a secret in it.
    pub fn url(&self) -> String {
        format!("http://{}/hook/s3cret-token", self.address)
    }

    /// What it answers from now on.
    pub fn answers(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// What it accepted.
    pub fn got(&self) -> Vec<Got> {
        self.got.lock().expect("no panic").clone()
    }

    /// How often something was sent, accepted or not.
    pub fn attempts(&self) -> u32 {
        *self.attempts.lock().expect("no panic")
    }

    async fn answer(self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        let (head, length) = loop {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            }
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let Some(end) = text.find("\r\n\r\n") else {
                continue;
            };
            let head = text[..end].to_owned();
            let length = field(&head, "content-length")
                .parse::<usize>()
                .expect("a length");
            break (head, end + 4 + length);
        };
        while bytes.len() < length {
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            }
        }
        assert!(head.starts_with("POST /hook/s3cret-token "), "{head}");
        let status = self.status.load(Ordering::Relaxed);
        *self.attempts.lock().expect("no panic") += 1;
        if (200..300).contains(&status) {
            let body = &bytes[head.len() + 4..];
            self.got.lock().expect("no panic").push(Got {
                key: field(&head, "idempotency-key"),
                body: serde_json::from_slice(body).expect("JSON"),
            });
        }
        let more = match status {
            302 => "Location: http://127.0.0.1:1/elsewhere\r\n",
            _ => "",
        };
        let answer = format!("HTTP/1.1 {status} X\r\n{more}Content-Length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

fn field(head: &str, name: &str) -> String {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut found = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    found
        .next()
        .map_or_else(String::new, |(_, value)| value.trim().to_owned())
}
