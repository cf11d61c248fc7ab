//! Tests servers that answer correctly, and all kinds that do not.

use super::*;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that answers connections with this function, and the count of requests.
fn server(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(first)) = lines.next() else {
                continue;
            };
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            count.fetch_add(1, Ordering::SeqCst);
            answer(&first, &mut stream);
        }
    });
    (url, asked)
}

fn says(status: &'static str, body: &'static str) -> (String, Arc<AtomicUsize>) {
    server(move |_, stream| {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n");
        let _ = write!(stream, "{head}\r\n{body}");
    })
}

/// Fetches what starts as it should; how that came out, and the file.
fn fetch(servers: &mut Servers) -> (FetchOutcome, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("file");
    let mut take = |bytes| {
        let content = std::fs::read(&to).unwrap();
        assert_eq!(content.len() as u64, bytes);
        match content.starts_with(b"wrong") {
            true => Err("it is of another build".to_owned()),
            false => Ok(()),
        }
    };
    let outcome = servers.fetch(ID, &to, &mut take, &|| false);
    (outcome, std::fs::read(&to).unwrap_or_default())
}

fn all(urls: &[&String]) -> Servers {
    let urls: Vec<String> = urls.iter().map(|url| (*url).clone()).collect();
    Servers::new(&urls, 1000)
}

#[test]
fn a_file_is_asked_for_by_its_build_id() {
    let (url, _) = server(|first, stream| {
        let body = first.to_owned();
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n");
        let _ = write!(stream, "{head}\r\n{body}");
    });
    let (fetched, content) = fetch(&mut all(&[&format!("{url}/")]));
    assert_eq!(fetched, FetchOutcome::Kept);
    let line = format!("GET /buildid/{ID}/debuginfo HTTP/1.1");
    assert_eq!(String::from_utf8(content).unwrap(), line);
}

#[test]
fn the_next_server_is_asked_when_one_does_not_have_it() {
    let (without, _) = says("404 Not Found", "nothing here");
    let (with, _) = says("200 OK", "symbols");
    let (fetched, content) = fetch(&mut all(&[&without, &with]));
    assert_eq!(fetched, FetchOutcome::Kept);
    assert_eq!(content, b"symbols");
    let (fetched, _) = fetch(&mut all(&[&without]));
    assert_eq!(fetched, FetchOutcome::Absent);
}

#[test]
fn the_next_server_is_asked_when_what_one_has_is_of_no_use() {
    let (lies, _) = says("200 OK", "wrong file");
    let (endless, _) = server(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[7; 100]).is_ok() {}
    });
    let (with, _) = says("200 OK", "symbols");
    for bad in [&lies, &endless] {
        let (fetched, content) = fetch(&mut all(&[bad, &with]));
        assert_eq!(
            (fetched, &content[..]),
            (FetchOutcome::Kept, &b"symbols"[..])
        );
        // It would be downloaded again each time.
        let (without, _) = says("404 Not Found", "");
        let (fetched, _) = fetch(&mut all(&[bad, &without]));
        assert_eq!(fetched, FetchOutcome::Refused);
    }
}

#[test]
fn a_server_that_fails_is_left_alone_for_a_while() {
    let (url, asked) = says("500 Internal Server Error", "");
    let mut servers = all(&[&url]);
    for _ in 0..3 {
        let (fetched, _) = fetch(&mut servers);
        assert_eq!(fetched, FetchOutcome::Unavailable);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn a_server_that_is_away_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (fetched, _) = fetch(&mut all(&[&url]));
    assert_eq!(fetched, FetchOutcome::Unavailable);
}

#[test]
fn a_file_without_end_is_given_up_at_the_bound() {
    let (url, _) = server(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[7; 100]).is_ok() {}
    });
    let (fetched, content) = fetch(&mut all(&[&url]));
    assert_eq!(fetched, FetchOutcome::Refused);
    assert!(content.len() <= 1000);
}

#[test]
fn a_file_announced_too_large_is_not_read() {
    let (url, _) = server(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n");
        std::thread::sleep(Duration::from_secs(60));
    });
    let started = Instant::now();
    let (fetched, _) = fetch(&mut all(&[&url]));
    assert_eq!(fetched, FetchOutcome::Refused);
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_file_cut_short_is_not_taken() {
    let (url, _) = server(|_, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsymb");
    });
    let (fetched, _) = fetch(&mut all(&[&url]));
    assert_eq!(fetched, FetchOutcome::Unavailable);
}

#[test]
fn redirections_come_to_an_end() {
    let (url, asked) = server(|_, stream| {
        let _ = write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n"
        );
        let _ = write!(stream, "Connection: close\r\n\r\n");
    });
    let (fetched, _) = fetch(&mut all(&[&url]));
    assert_eq!(fetched, FetchOutcome::Unavailable);
    assert!(asked.load(Ordering::SeqCst) <= REDIRECTS_MAX as usize + 1);
}

#[test]
fn what_is_no_build_id_is_not_asked_for() {
    let (url, asked) = says("200 OK", "symbols");
    let mut servers = all(&[&url]);
    let to = Path::new("/nonexistent/file");
    for id in ["", "../../etc/passwd", "0123", "0123456789ABCDEF"] {
        let fetched = servers.fetch(id, to, &mut |_| Ok(()), &|| false);
        assert_eq!(fetched, FetchOutcome::Absent);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}
