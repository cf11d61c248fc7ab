//! One question over HTTP on loopback, head included, as a test reads it.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Longest wait for an answer of somebody who is known to answer. Only a failing test waits so
/// long.
const LIMIT: Duration = Duration::from_secs(10);

/// An address on loopback that was free a moment ago.
///
/// # Panics
/// When none is.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("failed to bind a port");
    listener.local_addr().expect("an address").to_string()
}

/// What is answered, head included.
///
/// # Errors
/// When nobody answers, or not within `limit`.
pub fn ask(address: &str, path: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(limit))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The same where somebody is known to answer.
///
/// # Panics
/// When nobody does.
pub fn http_get(address: &str, path: &str) -> String {
    ask(address, path, LIMIT).expect("an answer")
}
